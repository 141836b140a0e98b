"""Incidents, jobs, nodes and what people did about them, kept in SQLite or PostgreSQL."""
