"""Tables, and how to open them: SQLite with its write-ahead log, or PostgreSQL."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Final

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
    insert,
    select,
    text,
)

from tracecore.store.opening import DatabaseError, default_place, explained, open_sqlite, parsed

if TYPE_CHECKING:
    from sqlalchemy import Connection, Engine

SCHEMA: Final = 1
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


class NoQueue(DatabaseError):
    """There is none, and it was not asked to make one."""


def default_url() -> str:
    """Return `TRACECORE_QUEUE`, else one file in the user's state directory."""
    return default_place("TRACECORE_QUEUE", "queue.db")


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
    url = parsed(place, "queue")
    with explained(url, "queue"):
        if url.get_backend_name() != "sqlite":
            engine = create_engine(url, pool_pre_ping=True)
        elif make or Path(url.database or "").exists():
            engine = open_sqlite(url, durable=durable)
        else:
            raise NoQueue(f"there is no queue at {url.database}; `tracecore queue submit` makes one")
        _create(engine, make)
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
