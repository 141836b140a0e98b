"""Open SQLite files and PostgreSQL databases, for the store and for the queue."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from sqlalchemy import Connection, Engine, create_engine, event
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, NoSuchModuleError

from tracecore.signals import private

#: Seconds to wait for another writer of an SQLite file.
BUSY_S: Final = 60


class DatabaseError(Exception):
    """A database cannot be used. The message says why and what to do."""


def default_place(variable: str, name: str) -> str:
    """Return the value of an environment variable, else a file in the user's state directory."""
    return os.environ.get(variable) or str(state_folder() / name)


def state_folder() -> Path:
    """Return the folder of the user's state."""
    base = os.environ.get("XDG_STATE_HOME") or os.path.join(os.path.expanduser("~"), ".local", "state")
    return Path(base) / "tracecore"


def parsed(place: str, what: str = "store") -> URL:
    """Return the address of a database; a plain path is an SQLite file.

    Args:
        place: a file, `sqlite:///file` or `postgresql://user@host/database`.
        what: the name of the thing in messages: `store`, `queue`.

    Raises:
        DatabaseError: it is no such address.
    """
    if "://" not in place:
        return make_url("sqlite://").set(database=str(Path(place).expanduser()))
    try:
        url = make_url(place)
    except ArgumentError as error:
        raise DatabaseError("not a database address: write a file, or postgresql://user@host/database") from error
    backend = url.get_backend_name()
    if backend in ("postgresql", "postgres"):
        return url.set(drivername="postgresql+psycopg")
    if backend != "sqlite":
        raise DatabaseError(f"no {what} in {backend}: use SQLite or PostgreSQL")
    if not url.database or url.database == ":memory:":
        raise DatabaseError(f"a {what} needs a file: write sqlite:///path/to/{what}.db")
    return url


@contextmanager
def explained(url: URL, what: str) -> Iterator[None]:
    """Turn errors of the drivers inside into a `DatabaseError` that says what to do."""
    try:
        yield
    except NoSuchModuleError as error:
        raise DatabaseError(f"no driver for {url.get_backend_name()}: use SQLite or PostgreSQL") from error
    except ModuleNotFoundError as error:
        raise DatabaseError(f"{error.name} is not installed: pip install 'tracecore-diagnosis[postgres]'") from error
    except (DBAPIError, sqlite3.Error) as error:
        reason = str(error.orig if isinstance(error, DBAPIError) else error).strip().splitlines()[0]
        raise DatabaseError(f"cannot open the {what} {url.render_as_string()}: {reason}") from error


def open_sqlite(url: URL, *, durable: bool, pragmas: tuple[str, ...] = ()) -> Engine:
    """Open an SQLite file with a write-ahead log, and make it where there is none.

    Args:
        durable: every commit waits until the disk has it. Without it a power cut (not a killed process) may undo the
            last moments.
        pragmas: further settings of each connection.
    """
    path = Path(url.database or "")
    try:
        private.make_folder(path.parent)
        if not path.exists():
            # SQLite gives the files beside it the same access.
            private.opened(path, "ab").close()
    except OSError as error:
        raise DatabaseError(f"cannot make {path}: {error.strerror}") from error
    engine = create_engine(url, connect_args={"timeout": BUSY_S, "isolation_level": None, "check_same_thread": False})

    @event.listens_for(engine, "connect")
    def _(connection: sqlite3.Connection, _record: Any) -> None:
        synchronous = f"synchronous={'FULL' if durable else 'NORMAL'}"
        for pragma in ("journal_mode=WAL", synchronous, "foreign_keys=ON", *pragmas):
            connection.execute(f"PRAGMA {pragma}")

    @event.listens_for(engine, "begin")
    def _(connection: Connection) -> None:
        # A writer takes its lock at once: a transaction that reads first and writes later can only fail.
        reading = connection.get_execution_options().get("reading")
        connection.exec_driver_sql("BEGIN" if reading else "BEGIN IMMEDIATE")

    return engine
