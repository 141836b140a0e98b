"""Open the database: SQLite with a write-ahead log and one writer at a time, or PostgreSQL."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from sqlalchemy import Connection, Engine, Table, create_engine
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from tracecore.store.opening import DatabaseError as StoreError
from tracecore.store.opening import default_place, explained, open_sqlite, parsed, state_folder

__all__ = ["Database", "StoreError", "connect", "default_url"]

#: Connections of one process to PostgreSQL.
POOL: Final = 10


class Database:
    """Connections to read and to write with."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.is_sqlite = engine.dialect.name == "sqlite"
        self._reader = engine.execution_options(reading=True)
        self._writing = threading.Lock()

    @contextmanager
    def read(self) -> Iterator[Connection]:
        """A transaction that sees one state of the database."""
        with self._reader.begin() as connection:
            yield connection

    @contextmanager
    def write(self) -> Iterator[Connection]:
        """A transaction that is durable when the block ends, and undone where it raises."""
        if not self.is_sqlite:
            with self.engine.begin() as connection:
                yield connection
            return
        # SQLite lets one writer in and makes the others poll: threads of this process queue here instead.
        with self._writing, self.engine.begin() as connection:
            yield connection

    @property
    def place(self) -> str:
        """The file, or the address without its password."""
        return self.engine.url.render_as_string(hide_password=True).removeprefix("sqlite:///")

    def insert(self, table: Table) -> Any:
        """An INSERT that can say what to do on a conflict."""
        return sqlite.insert(table) if self.is_sqlite else postgresql.insert(table)

    def close(self) -> None:
        self.engine.dispose()


def default_url() -> str:
    """Return `TRACECORE_DATABASE`, else a file in the user's state directory."""
    return default_place("TRACECORE_DATABASE", "store.db")


def connect(place: str, *, durable: bool = True, existing: bool = False) -> Database:
    """Open a database.

    Args:
        place: a file, `sqlite:///file` or `postgresql://user@host/database`.
        durable: every commit waits until the disk has it.
        existing: refuse an SQLite file that is not there, rather than make it.

    Raises:
        StoreError: it cannot be opened.
    """
    url = parsed(place, "store")
    if url.get_backend_name() == "sqlite":
        path = Path(url.database or "")
        if existing and not path.exists():
            raise StoreError(f"there is no database {path}")
        if not path.parent.is_dir() and path.parent != state_folder():
            raise StoreError(f"cannot make the database {path}: there is no folder {path.parent}")
    with explained(url, "store"):
        if url.get_backend_name() == "sqlite":
            engine = open_sqlite(url, durable=durable, pragmas=("cache_size=-16000", "temp_store=MEMORY"))
        else:
            engine = create_engine(
                url,
                pool_pre_ping=True,
                pool_size=POOL,
                max_overflow=POOL,
                # Transactions of the store are short; a lock held longer is a fault that should show.
                connect_args={"connect_timeout": 10, "options": "-c lock_timeout=30000 -c timezone=UTC"},
            )
        with engine.connect():
            pass
    return Database(engine)


def why_failed(error: SQLAlchemyError) -> str:
    """Say in one line why the database failed, without the statement and its values."""
    said = str(error.orig if isinstance(error, DBAPIError) else type(error).__name__).strip()
    return said.splitlines()[0][:200] if said else type(error).__name__
