"""Exporters: destinations of records."""
