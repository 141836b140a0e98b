"""`tracecore serve`: ingest, API and pages over one store."""
