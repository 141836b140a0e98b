"""Read log files: tailing, rotation, checkpoints, container and plain formats."""
