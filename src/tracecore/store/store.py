"""The store: one object through which everything that is kept is written and read."""

from __future__ import annotations

import secrets
import sqlite3
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec
from sqlalchemy import select

from tracecore.signals import private
from tracecore.store import overview as overviews
from tracecore.store import writing
from tracecore.store.changes import Changes
from tracecore.store.database import Database, StoreError, connect
from tracecore.store.decisions import Decisions
from tracecore.store.incidents import IncidentQuery, Incidents
from tracecore.store.jobs import Jobs
from tracecore.store.nodes import Nodes
from tracecore.store.people import People, Silences
from tracecore.store.records import IncidentPage, JobRow, NodeRow, Overview
from tracecore.store.schema import prepare
from tracecore.store.tables import detector_state
from tracecore.store.tokens import Tokens
from tracecore.store.update import IncidentUpdate, read_update
from tracecore.store.uploads import Uploads
from tracecore.store.writing import Stored

#: The key of the value that signs sessions.
SECRET: Final = "server/secret"


class Found(msgspec.Struct, kw_only=True):
    """The results of a search: incidents by their words, jobs and nodes by the beginning of their names."""

    incidents: IncidentPage
    jobs: list[JobRow]
    nodes: list[NodeRow]


class Store:
    """Everything that is kept.

    Args:
        database: with the tables of this version.
    """

    def __init__(self, database: Database) -> None:
        self.database = database
        self.incidents = Incidents(database)
        self.jobs = Jobs(database)
        self.nodes = Nodes(database)
        self.people = People(database)
        self.silences = Silences(database)
        self.tokens = Tokens(database)
        self.changes = Changes(database)
        self.uploads = Uploads(database)
        self.decisions = Decisions(database)

    @classmethod
    def open(cls, place: str, *, durable: bool = True, existing: bool = False) -> Store:
        """Open a store, make it where there is none, and bring its tables up to date.

        Args:
            place: a file, `sqlite:///file` or `postgresql://user@host/database`.
            durable: every commit waits until the disk has it.
            existing: refuse an SQLite file that is not there, rather than make it.

        Raises:
            StoreError: it cannot be opened, or a newer version of tracecore made it.
        """
        database = connect(place, durable=durable, existing=existing)
        try:
            prepare(database)
        except BaseException:
            database.close()
            raise
        return cls(database)

    def put(self, updates: Sequence[IncidentUpdate], now: int) -> list[Stored]:
        """Store updates of incidents; all of them are durable when this returns. The same one twice is stored once."""
        if not updates:
            return []
        with self.database.write() as connection:
            return writing.put(self.database, connection, updates, now)

    def put_incident(
        self, document: Mapping[str, Any], now: int, *, revision: int | None = None, **more: Any
    ) -> Stored:
        """Store one incident's document; see `update.read_update` for what else can be said.

        Raises:
            BadIncident: it is not an incident.
        """
        return self.put([read_update(document, now=now, revision=revision, **more)], now)[0]

    def put_diagnosis(
        self, document: Mapping[str, Any], now: int, *, origin: str = "publish", tenant: str = ""
    ) -> list[Stored]:
        """Store the incidents of a diagnosis (`tracecore/diagnosis/v1`).

        Raises:
            BadIncident: one of them is not an incident.
        """
        told = document.get("verdicts")
        held = {
            verdict["verdict.id"]: verdict
            for verdict in (told if isinstance(told, list) else ())
            if isinstance(verdict, dict) and isinstance(verdict.get("verdict.id"), str)
        }
        updates = []
        for incident in document.get("incidents") or ():
            root = incident.get("root_cause")
            named = [root.get("verdict")] if isinstance(root, dict) else []
            explained = incident.get("explains")
            named += explained if isinstance(explained, list) else []
            own = [held[name] for name in named if isinstance(name, str) and name in held]
            updates.append(read_update(incident, now=now, verdicts=own, origin=origin, tenant=tenant))
        return self.put(updates, now)

    def overview(
        self, now: int, *, days: int = overviews.DAYS, tenant: str | None = None, before: Overview | None = None
    ) -> Overview:
        """Return open incidents, fleet health, interruptions and recurring causes; see `overview.overview`."""
        return overviews.overview(self.database, now, days=days, tenant=tenant, before=before)

    def search(self, text: str, *, limit: int = 50, cursor: str | None = None, tenant: str | None = None) -> Found:
        """Incidents by their words, newest first; jobs and nodes by the beginning of their names."""
        first = text.strip()
        return Found(
            incidents=self.incidents.find(IncidentQuery(text=text, tenant=tenant), limit=limit, cursor=cursor),
            jobs=self.jobs.find(name=first, limit=10, tenant=tenant).jobs if first else [],
            nodes=self.nodes.find(name=first, limit=10, tenant=tenant).nodes if first else [],
        )

    def secret(self) -> bytes:
        """A random value that all processes on this store share, made when it is first asked for."""
        with self.database.write() as connection:
            connection.execute(
                self.database.insert(detector_state).on_conflict_do_nothing(),
                {"key": SECRET, "value": secrets.token_bytes(32)},
            )
            found = connection.execute(select(detector_state.c.value).where(detector_state.c.key == SECRET))
            return bytes(found.scalar_one())

    def backup(self, path: Path) -> None:
        """Copy an SQLite store while it is used; PostgreSQL has `pg_dump`.

        Raises:
            StoreError: it is not SQLite, or the file cannot be written.
        """
        if not self.database.is_sqlite:
            raise StoreError("this is PostgreSQL: use pg_dump")
        try:
            private.opened(path).close()
            connection = self.database.engine.raw_connection()
            copy = sqlite3.connect(path)
            try:
                connection.driver_connection.backup(copy)  # type: ignore[union-attr]
            finally:
                copy.close()
                connection.close()
        except (OSError, sqlite3.Error) as error:
            raise StoreError(f"cannot write {path}: {error}") from error

    def close(self) -> None:
        self.database.close()
