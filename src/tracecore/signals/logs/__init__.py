"""Log files: tailing, rotation, checkpoints, container and plain formats."""
