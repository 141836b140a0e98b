"""Diagnose a run from the files that it left behind."""
