"""Failure classes, retry policy, supervisor, queue."""
