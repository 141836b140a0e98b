"""The version of the tables: make them, bring them up to date, and refuse those of a newer version."""

from __future__ import annotations

from typing import Final

from sqlalchemy import text

from tracecore.store import search
from tracecore.store.database import Database, StoreError
from tracecore.store.tables import metadata

#: Any number, the same in every process: who changes the tables holds it.
LOCK: Final = 7_233_187_002


def prepare(database: Database) -> None:
    """Bring the tables to this version."""
    with database.write() as connection:
        if not database.is_sqlite:
            connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": LOCK})
        if connection.dialect.has_table(connection, "incidents"):
            return
        metadata.create_all(connection)
        for statement in search.SQLITE if database.is_sqlite else search.POSTGRESQL:
            connection.execute(text(statement))


__all__ = ["StoreError", "prepare"]
