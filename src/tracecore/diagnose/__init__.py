"""Diagnose what a dead run left behind: a directory, files or an archive in, incidents out."""
