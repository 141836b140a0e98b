"""Open the database: SQLite with a write-ahead log and one writer at a time, or PostgreSQL."""

from __future__ import annotations

import os
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from sqlalchemy import Connection, Engine, Table, create_engine, event
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, NoSuchModuleError, SQLAlchemyError

from tracecore.signals import private

#: Seconds to wait for another writer of an SQLite file.
BUSY_S: Final = 60
#: Connections of one process to PostgreSQL.
POOL: Final = 10


class StoreError(Exception):
    """The store cannot be used. The message says why and what to do."""


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

    def insert(self, table: Table) -> Any:
        """An INSERT that can say what to do on a conflict."""
        return sqlite.insert(table) if self.is_sqlite else postgresql.insert(table)

    def close(self) -> None:
        self.engine.dispose()


def default_url() -> str:
    """`TRACECORE_DATABASE`, else a file in the user's state directory."""
    if url := os.environ.get("TRACECORE_DATABASE"):
        return url
    base = os.environ.get("XDG_STATE_HOME") or os.path.join(os.path.expanduser("~"), ".local", "state")
    return os.path.join(base, "tracecore", "store.db")


def connect(place: str, *, durable: bool = True) -> Database:
    """Open a database.

    Args:
        place: a file, `sqlite:///file` or `postgresql://user@host/database`.
        durable: every commit waits until the disk has it.

    Raises:
        StoreError: it cannot be opened.
    """
    url = parsed(place)
    try:
        if url.get_backend_name() == "sqlite":
            return Database(_sqlite(url, durable))
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
    except NoSuchModuleError as error:
        raise StoreError(f"no driver for {url.get_backend_name()}: use SQLite or PostgreSQL") from error
    except ModuleNotFoundError as error:
        raise StoreError(f"{error.name} is not installed: pip install 'tracecore-diagnosis[postgres]'") from error
    except (DBAPIError, sqlite3.Error) as error:
        reason = str(error.orig if isinstance(error, DBAPIError) else error).strip().splitlines()[0]
        raise StoreError(f"cannot open the store {url.render_as_string()}: {reason}") from error


def why_failed(error: SQLAlchemyError) -> str:
    """Say in one line why the database failed, without the statement and its values."""
    said = str(error.orig if isinstance(error, DBAPIError) else type(error).__name__).strip()
    return said.splitlines()[0][:200] if said else type(error).__name__


def parsed(place: str) -> URL:
    """The address of a store; a plain path is an SQLite file.

    Raises:
        StoreError: it is none.
    """
    if "://" not in place:
        return make_url("sqlite://").set(database=str(Path(place).expanduser()))
    try:
        url = make_url(place)
    except ArgumentError as error:
        raise StoreError("not a database address: write a file, or postgresql://user@host/database") from error
    backend = url.get_backend_name()
    if backend in ("postgresql", "postgres"):
        return url.set(drivername="postgresql+psycopg")
    if backend != "sqlite":
        raise StoreError(f"{backend} is not supported: use SQLite or PostgreSQL")
    if not url.database or url.database == ":memory:":
        raise StoreError("a store needs a file: write sqlite:///path/to/store.db")
    return url


def _sqlite(url: URL, durable: bool) -> Engine:
    path = Path(url.database or "")
    try:
        private.make_folder(path.parent)
        if not path.exists():
            # SQLite gives the files beside it the same access.
            private.opened(path, "ab").close()
    except OSError as error:
        raise StoreError(f"cannot make {path}: {error.strerror}") from error
    engine = create_engine(url, connect_args={"timeout": BUSY_S, "isolation_level": None, "check_same_thread": False})

    @event.listens_for(engine, "connect")
    def _(connection: sqlite3.Connection, _record: Any) -> None:
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute(f"PRAGMA synchronous={'FULL' if durable else 'NORMAL'}")
        connection.execute("PRAGMA foreign_keys=ON")
        connection.execute("PRAGMA cache_size=-16000")
        connection.execute("PRAGMA temp_store=MEMORY")

    @event.listens_for(engine, "begin")
    def _(connection: Connection) -> None:
        # A writer takes its lock at once: a transaction that reads first and writes later can only fail.
        reading = connection.get_execution_options().get("reading")
        connection.exec_driver_sql("BEGIN" if reading else "BEGIN IMMEDIATE")

    with engine.connect():
        pass
    return engine
