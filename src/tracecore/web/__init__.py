"""Incident pages and API."""
