"""Tables, and how to open them: SQLite with its write-ahead log, or PostgreSQL."""

from __future__ import annotations

import os
import sqlite3
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Float,
    ForeignKey,
    Index,
    Integer,
    MetaData,
    String,
    Table,
    Text,
    create_engine,
    event,
    insert,
    select,
    text,
)
from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, NoSuchModuleError

from tracecore.signals import private

if TYPE_CHECKING:
    from sqlalchemy import Connection, Engine
    from sqlalchemy.engine import URL

SCHEMA: Final = 1
#: How long to wait for another writer of the SQLite file before giving up.
BUSY_S: Final = 60
#: Any number, the same in every process: who creates the tables holds it.
_CREATION_LOCK: Final = 7_233_187_001

metadata = MetaData()
_Id = BigInteger().with_variant(Integer, "sqlite")

meta = Table(
    "tracecore_queue_meta",
    metadata,
    Column("name", String(40), primary_key=True),
    Column("value", Text, nullable=False),
)

tasks = Table(
    "tracecore_tasks",
    metadata,
    Column("id", _Id, primary_key=True, autoincrement=True),
    # Submitting twice with one key gives one task.
    Column("key", String(200), unique=True),
    Column("name", String(200), nullable=False),
    Column("spec", Text, nullable=False),
    Column("priority", Integer, nullable=False),
    Column("status", String(16), nullable=False),
    Column("submitted_at", BigInteger, nullable=False),
    Column("updated_at", BigInteger, nullable=False),
    Column("not_before", BigInteger, nullable=False, default=0),
    Column("attempts", Integer, nullable=False, default=0),
    Column("token", BigInteger, nullable=False, default=0),
    Column("lost", Integer, nullable=False, default=0),
    Column("worker", String(200), nullable=False, default=""),
    Column("lease_until", BigInteger),
    Column("cancel_requested", Boolean, nullable=False, default=False),
    Column("reason", Text, nullable=False, default=""),
    Column("failure_class", String(20), nullable=False, default=""),
    Column("ledger", Text, nullable=False, default="{}"),
    Column("excluded", Text, nullable=False, default="{}"),
    Index("tracecore_tasks_next", "status", text("priority DESC"), "id"),
    Index("tracecore_tasks_lease", "status", "lease_until"),
    sqlite_autoincrement=True,
)

attempts = Table(
    "tracecore_attempts",
    metadata,
    Column("task", _Id, ForeignKey("tracecore_tasks.id", ondelete="CASCADE"), primary_key=True),
    Column("number", Integer, primary_key=True),
    Column("status", String(16), nullable=False),
    Column("worker", String(200), nullable=False),
    Column("host", String(200), nullable=False),
    Column("token", BigInteger, nullable=False),
    Column("started_at", BigInteger, nullable=False),
    Column("ended_at", BigInteger),
    Column("run_s", Float),
    Column("exit_code", Integer),
    Column("signal", String(16), nullable=False, default=""),
    Column("retried", Boolean, nullable=False, default=False),
    Column("failure_class", String(20), nullable=False, default=""),
    Column("log", Text, nullable=False, default=""),
    Column("failure", Text),
)


class DatabaseError(Exception):
    """The queue's database cannot be used; the message says why and what to do."""


class NoQueue(DatabaseError):
    """There is none, and it was not asked to make one."""


def default_url() -> str:
    """`TRACECORE_QUEUE`, else one file in the user's state directory."""
    if url := os.environ.get("TRACECORE_QUEUE"):
        return url
    base = os.environ.get("XDG_STATE_HOME") or os.path.join(os.path.expanduser("~"), ".local", "state")
    return os.path.join(base, "tracecore", "queue.db")


def connect(place: str, *, durable: bool = True, make: bool = True) -> Engine:
    """Open a queue, and make it where there is none.

    Args:
        place: a file, `sqlite:///file` or `postgresql://user@host/database`.
        durable: every commit waits until the disk has it. Without it a power cut (not a killed process) may undo the
            last moments of an SQLite queue.
        make: make it where there is none; who only reads does not.

    Raises:
        DatabaseError: it cannot be opened.
    """
    url = _url(place)
    try:
        if url.get_backend_name() == "sqlite":
            engine = _sqlite(url, durable, make)
        else:
            engine = create_engine(url, pool_pre_ping=True)
        _create(engine, make)
    except NoSuchModuleError as error:
        raise DatabaseError(f"no driver for {url.get_backend_name()}: use SQLite or PostgreSQL") from error
    except ModuleNotFoundError as error:
        raise DatabaseError(f"{error.name} is not installed: pip install 'psycopg[binary]'") from error
    except (DBAPIError, sqlite3.Error) as error:
        reason = str(error.orig if isinstance(error, DBAPIError) else error).strip()
        raise DatabaseError(f"cannot open the queue {url.render_as_string()}: {reason}") from error
    return engine


def _url(place: str) -> URL:
    if "://" not in place:
        return make_url("sqlite://").set(database=str(Path(place).expanduser()))
    try:
        url = make_url(place)
    except ArgumentError as error:
        raise DatabaseError(f"{place!r} is no database address: a file, or postgresql://user@host/database") from error
    backend = url.get_backend_name()
    if backend in ("postgresql", "postgres"):
        return url.set(drivername="postgresql+psycopg")
    if backend != "sqlite":
        raise DatabaseError(f"no queue in {backend}: use SQLite or PostgreSQL")
    if not url.database or url.database == ":memory:":
        raise DatabaseError("a queue in memory would have one user and no tomorrow: name a file")
    return url


def _sqlite(url: URL, durable: bool, make: bool) -> Engine:
    path = Path(url.database or "")
    if not make and not path.exists():
        raise NoQueue(f"there is no queue at {path}; `tracecore queue submit` makes one")
    try:
        private.make_folder(path.parent)
        if not path.exists():
            # SQLite gives the files beside it the same access.
            private.opened(path, "ab").close()
    except OSError as error:
        raise DatabaseError(f"cannot make the directory {path.parent}: {error.strerror}") from error
    engine = create_engine(url, connect_args={"timeout": BUSY_S, "isolation_level": None})

    @event.listens_for(engine, "connect")
    def _(connection: sqlite3.Connection, _record: Any) -> None:
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute(f"PRAGMA synchronous={'FULL' if durable else 'NORMAL'}")
        connection.execute("PRAGMA foreign_keys=ON")

    @event.listens_for(engine, "begin")
    def _(connection: Connection) -> None:
        # A writer takes its lock at once: a transaction that reads first and writes later can only fail.
        reading = connection.get_execution_options().get("reading")
        connection.exec_driver_sql("BEGIN" if reading else "BEGIN IMMEDIATE")

    return engine


def _create(engine: Engine, make: bool) -> None:
    reading = engine.connect().execution_options(reading=True)
    with reading as connection:
        version = _version(connection)
    if version is None and not make:
        raise NoQueue(f"there is no queue in {engine.url.render_as_string()}; `tracecore queue submit` makes one")
    if version is None:
        with engine.begin() as connection:
            if engine.dialect.name == "postgresql":
                connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _CREATION_LOCK})
            metadata.create_all(connection)
            if _version(connection) is None:
                connection.execute(
                    insert(meta),
                    [{"name": "schema", "value": str(SCHEMA)}, {"name": "ident", "value": uuid.uuid4().hex}],
                )
            version = SCHEMA
    if version != SCHEMA:
        raise DatabaseError(
            f"the queue {engine.url.render_as_string()} has schema {version}, this program knows {SCHEMA}"
        )


def _version(connection: Connection) -> int | None:
    if not connection.dialect.has_table(connection, meta.name):
        return None
    value = connection.execute(select(meta.c.value).where(meta.c.name == "schema")).scalar()
    return None if value is None else int(value)


def ident(engine: Engine) -> str:
    """A name no other queue has."""
    with engine.execution_options(reading=True).begin() as connection:
        return str(connection.execute(select(meta.c.value).where(meta.c.name == "ident")).scalar_one())
