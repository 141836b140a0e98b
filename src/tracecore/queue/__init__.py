"""Tasks that wait, run and are tried again: one SQLite file for a machine, PostgreSQL for many."""
