"""A simulated Kubernetes cluster: a program of its own that imports nothing of the desk or the agent."""
