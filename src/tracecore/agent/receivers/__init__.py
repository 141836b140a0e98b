"""Receivers: sources of records."""
