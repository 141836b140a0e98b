"""The catalogue of named root causes, one folder each."""
