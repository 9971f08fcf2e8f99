"""The kubelet: a container is a local process tree."""
