"""Changes, in the order in which pages are told of them."""

from __future__ import annotations

from sqlalchemy import func, select

from tracecore.store.database import Database
from tracecore.store.records import Change
from tracecore.store.tables import changes


class Changes:
    """The log of changes that event streams follow."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def last(self) -> int:
        """The number of the last change; 0 where there was none."""
        with self._database.read() as connection:
            return connection.execute(select(func.max(changes.c.number))).scalar() or 0

    def after(self, number: int, *, limit: int = 500) -> list[Change]:
        """Changes with a greater number, oldest first."""
        query = select(changes).where(changes.c.number > number).order_by(changes.c.number).limit(limit)
        with self._database.read() as connection:
            return [Change(**row._mapping) for row in connection.execute(query)]
