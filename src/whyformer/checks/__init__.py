"""A check-up of an explanation: what is known to go wrong, tried out on this model and these inputs."""
