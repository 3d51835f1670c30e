"""Docker and Podman: a box is a container on this machine, with the agent as its first process."""
