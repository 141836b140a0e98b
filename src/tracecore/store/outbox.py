"""The outbox: notifications that were decided together with the revision they tell, and wait to be sent.

A sender claims some for a time, sends them, and says how it went. One that is killed in between leaves its claim to run
out; the receiver's dedup key (incident and revision) keeps the message from being shown twice.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec
from sqlalchemy import or_, select, update

from tracecore.store.database import Database
from tracecore.store.tables import incidents, notifications
from tracecore.store.update import MAX_TEXT, clean


class Claimed(NamedTuple):
    """A notification to be sent now."""

    number: int
    incident: str
    revision: int
    receiver: str
    tries: int
    payload: dict[str, Any]


class Outbox:
    """The notifications of a store."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def claim(self, owner: str, now: int, until: int, *, limit: int = 50) -> list[Claimed]:
        """Notifications that are due and nobody else sends, oldest first.

        Args:
            until: when another sender may take them.
        """
        table = notifications.c
        due = or_(table.state == "pending", (table.state == "sending") & (table.lease_until < now))
        query = (
            select(table.number, incidents.c.id, table.revision, table.receiver, table.tries, table.payload)
            .join(incidents, incidents.c.number == table.incident)
            .where(due, table.due_at <= now)
            .order_by(table.due_at, table.number)
            .limit(limit)
            .with_for_update(skip_locked=True, of=notifications)
        )
        with self._database.write() as connection:
            rows = connection.execute(query).all()
            if rows:
                connection.execute(
                    update(notifications)
                    .where(table.number.in_([row.number for row in rows]))
                    .values(state="sending", lease_owner=owner, lease_until=until, tries=table.tries + 1)
                )
        return [
            Claimed(row.number, row.id, row.revision, row.receiver, row.tries + 1, msgspec.json.decode(row.payload))
            for row in rows
        ]

    def sent(self, number: int, owner: str, now: int) -> bool:
        """A notification has arrived; false where the claim had run out and another sender has it."""
        return self._finish(number, owner, {"state": "sent", "sent_at": now, "error": ""})

    def failed(self, number: int, owner: str, error: str, *, again_at: int | None) -> bool:
        """A notification has not arrived; it is tried again at a time, or not at all."""
        values = {"error": clean(error, MAX_TEXT), "state": "failed" if again_at is None else "pending"}
        return self._finish(number, owner, values | ({} if again_at is None else {"due_at": again_at}))

    def _finish(self, number: int, owner: str, values: dict[str, Any]) -> bool:
        table = notifications.c
        with self._database.write() as connection:
            done = connection.execute(
                update(notifications)
                .where(table.number == number, table.state == "sending", table.lease_owner == owner)
                .values(**values, lease_owner="", lease_until=None)
            )
            return bool(done.rowcount)
