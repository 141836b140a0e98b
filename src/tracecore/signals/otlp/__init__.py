"""OTLP in and out."""
