"""The front door: what `./desk` runs. Bootstrap, embedded servers, the supervisor and the checks."""
