"""Processors: changes to records on their way."""
