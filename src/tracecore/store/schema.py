"""The version of the tables: make them, bring them up to date, and refuse those of a newer version."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from sqlalchemy import Connection, text

from tracecore.store.database import Database, StoreError

#: The version this program knows: the name of the last module in `migrations/versions`.
HEAD: Final = "0006"
VERSION_TABLE: Final = "tracecore_schema"
#: Any number, the same in every process: who changes the tables holds it.
LOCK: Final = 7_233_187_002


def prepare(database: Database) -> None:
    """Bring the tables to this version, whoever else starts at the same time.

    Raises:
        StoreError: a newer version of tracecore made them.
    """
    with database.read() as connection:
        if version(connection) == HEAD:
            return
    with database.write() as connection:
        if not database.is_sqlite:
            connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": LOCK})
        migrate(connection, HEAD)


def version(connection: Connection) -> str | None:
    """The version of the tables; None where there are none."""
    if not connection.dialect.has_table(connection, VERSION_TABLE):
        return None
    found = connection.execute(text(f"SELECT version_num FROM {VERSION_TABLE}")).scalar()
    return None if found is None else str(found)


def migrate(connection: Connection, target: str) -> None:
    """Bring the tables forward to a version, in a transaction of the caller's.

    Raises:
        StoreError: they are of a version that this program does not know.
    """
    from alembic import command
    from alembic.config import Config

    held = version(connection)
    if held is not None and held not in versions():
        raise StoreError(
            f"a newer tracecore made this store (schema {held}, this one knows up to {HEAD}): upgrade tracecore"
        )
    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent / "migrations"))
    config.set_main_option("path_separator", "os")
    config.attributes["connection"] = connection
    command.upgrade(config, target)


def versions() -> list[str]:
    """Every version that this program knows, the oldest first."""
    folder = Path(__file__).parent / "migrations" / "versions"
    return sorted(path.stem[1:5] for path in folder.glob("v[0-9]*.py"))
