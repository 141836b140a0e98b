"""Processes of this machine: which one writes a file, and which job and rank it belongs to."""
