"""Verdicts arbitrated into one incident."""
