"""Retention: remove what is too old, and the oldest where the database is too large."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Final

from sqlalchemy import Connection, delete, select, text
from sqlalchemy.exc import SQLAlchemyError

from tracecore.store import search
from tracecore.store.database import Database
from tracecore.store.store import Store
from tracecore.store.tables import (
    attempts,
    audit,
    changes,
    decisions,
    diagnoses,
    incidents,
    job_nodes,
    job_progress,
    jobs,
    ledgers,
    node_events,
    silences,
    verdicts,
)

log = logging.getLogger("tracecore.store")

DAY: Final = 86_400 * 1_000_000_000
#: Rows that one transaction removes, so that others can write in between.
CHUNK: Final = 500
#: Seconds between two looks.
EVERY_S: Final = 600
#: Changes are for pages that are open now.
CHANGES: Final = DAY
#: The audit log and diagnoses outlive the incidents they speak of.
AUDIT_DAYS: Final = 400


class Retention:
    """Looks every ten minutes, in a thread.

    Args:
        days: how long resolved incidents and all else is kept; 0 for ever.
        size: bytes of the database; 0 for no limit.
    """

    def __init__(self, store: Store, clock: Callable[[], int], *, days: int = 0, size: int = 0) -> None:
        self._database = store.database
        self._clock = clock
        self._days = days
        self._size = size
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="retention", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        if self._thread.ident is not None:
            self._thread.join(30)

    def _run(self) -> None:
        while not self._stop.wait(EVERY_S):
            try:
                self.look()
            except SQLAlchemyError as error:
                log.warning("old incidents are not removed: %s", type(error).__name__)

    def look(self) -> int:
        """Remove what is due; how many incidents that were."""
        now = self._clock()
        with self._database.write() as connection:
            connection.execute(delete(changes).where(changes.c.at < now - CHANGES))
            connection.execute(delete(audit).where(audit.c.at < now - AUDIT_DAYS * DAY))
        gone = 0
        if self._days:
            gone += remove_before(self._database, now - self._days * DAY, self._stop.is_set)
        if self._size:
            gone += remove_beyond(self._database, self._size, self._stop.is_set)
        if gone:
            log.info("removed %d old incidents", gone)
        return gone


def remove_before(database: Database, time: int, stopped: Callable[[], bool] = lambda: False) -> int:
    """Remove resolved incidents last seen before a time, with all that belongs to them; and other old rows."""
    gone = 0
    while not stopped():
        with database.write() as connection:
            numbers = [
                *connection.execute(
                    select(incidents.c.number)
                    .where(incidents.c.active == 0, incidents.c.first_seen < time, incidents.c.last_seen < time)
                    .order_by(incidents.c.first_seen)
                    .limit(CHUNK)
                ).scalars()
            ]
            _remove(connection, numbers)
        gone += len(numbers)
        if len(numbers) < CHUNK:
            break
    with database.write() as connection:
        connection.execute(delete(node_events).where(node_events.c.time < time))
        connection.execute(delete(job_progress).where(job_progress.c.time < time))
        connection.execute(delete(verdicts).where(verdicts.c.time < time))
        connection.execute(delete(silences).where(silences.c.ends_at < time))
        connection.execute(delete(diagnoses).where(diagnoses.c.created_at < time))
        connection.execute(delete(decisions).where(decisions.c.at < time))
        connection.execute(delete(ledgers).where(ledgers.c.updated_at < time))
        kept = select(incidents.c.job)
        old = select(jobs.c.name).where(jobs.c.last_seen < time, jobs.c.name.not_in(kept))
        connection.execute(delete(attempts).where(attempts.c.job.in_(old)))
        connection.execute(delete(job_nodes).where(job_nodes.c.job.in_(old)))
        connection.execute(delete(jobs).where(jobs.c.last_seen < time, jobs.c.name.not_in(kept)))
    return gone


def remove_beyond(database: Database, size: int, stopped: Callable[[], bool] = lambda: False) -> int:
    """Remove the oldest resolved incidents until the database has at most so many bytes."""
    gone = 0
    while not stopped() and used(database) > size:
        with database.write() as connection:
            numbers = [
                *connection.execute(
                    select(incidents.c.number)
                    .where(incidents.c.active == 0)
                    .order_by(incidents.c.first_seen)
                    .limit(CHUNK)
                ).scalars()
            ]
            _remove(connection, numbers)
        gone += len(numbers)
        if not numbers:
            log.warning("the database is larger than it may be, and nothing that is resolved is left to remove")
            break
        if not database.is_sqlite:
            # PostgreSQL counts removed rows until they are vacuumed.
            with database.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
                for table in ("incidents", "revisions", "evidence", "incident_text", "verdicts"):
                    connection.execute(text(f"VACUUM {table}"))
            break
    return gone


def used(database: Database) -> int:
    """Bytes that the database uses, without pages that wait to be used again."""
    with database.read() as connection:
        if database.is_sqlite:
            page = connection.execute(text("PRAGMA page_size")).scalar_one()
            pages = connection.execute(text("PRAGMA page_count")).scalar_one()
            free = connection.execute(text("PRAGMA freelist_count")).scalar_one()
            return int(page * (pages - free))
        return int(connection.execute(text("SELECT pg_database_size(current_database())")).scalar_one())


def _remove(connection: Connection, numbers: list[int]) -> None:
    if numbers:
        search.forget(connection, numbers)
        connection.execute(delete(incidents).where(incidents.c.number.in_(numbers)))
