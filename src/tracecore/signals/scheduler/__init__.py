"""Statements of launchers and schedulers about a job's processes: exit statuses, Slurm's accounting and state."""
