"""Leases: of several server processes one does a task, and another goes on when it is gone."""

from __future__ import annotations

from sqlalchemy import Connection, delete, or_

from tracecore.store.database import Database
from tracecore.store.tables import leases


def hold(database: Database, connection: Connection, name: str, owner: str, now: int, lasts: int) -> bool:
    """Take or renew a lease; whether this owner has it.

    Args:
        lasts: for how long, in nanoseconds.
    """
    statement = database.insert(leases).values(name=name, owner=owner, until=now + lasts)
    result = connection.execute(
        statement.on_conflict_do_update(
            index_elements=["name"],
            set_={"owner": owner, "until": now + lasts},
            where=or_(leases.c.owner == owner, leases.c.until < now),
        )
    )
    return bool(result.rowcount)


def release(connection: Connection, name: str, owner: str) -> None:
    """Give a lease back, so that another process need not wait until it ends."""
    connection.execute(delete(leases).where(leases.c.name == name, leases.c.owner == owner))
