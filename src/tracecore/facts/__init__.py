"""Typed, timestamped, citable statements taken from signals."""
