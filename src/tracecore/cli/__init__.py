"""The `tracecore` command; one module for each sub-command."""
