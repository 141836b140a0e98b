"""The names of all pages that tests look at; `pages` in conftest.py gives their addresses."""

from __future__ import annotations

NAMES = (
    "overview", "incidents", "search", "incident", "gpu_incident", "jobs", "job", "nodes", "node", "patterns",
    "pattern", "upload", "one_upload", "silences", "tokens", "not_found",
)  # fmt: skip
