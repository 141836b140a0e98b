"""Patterns of a company called Acme."""
