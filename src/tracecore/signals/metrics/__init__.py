"""Metric series, and the bridges that turn series into events."""
