"""What launchers and schedulers say about a job's processes: exit statuses, Slurm's accounting and state."""
