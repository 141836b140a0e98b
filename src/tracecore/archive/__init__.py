"""Many bundles: diagnosed by local processes or on Ray, kept as facts in Parquet, diagnosed again by later releases."""
