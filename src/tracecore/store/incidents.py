"""Read incidents: lists by filter and cursor, one with all that belongs to it, similar ones."""

from __future__ import annotations

from typing import Any, Final, Literal

import msgspec
from sqlalchemy import ColumnElement, Connection, Row, and_, or_, select, text

from tracecore.store import cursors, search
from tracecore.store.database import Database
from tracecore.store.records import (
    Acknowledgement,
    Action,
    CitedEvidence,
    IncidentDetail,
    IncidentPage,
    IncidentRow,
    Note,
    Notification,
    Revision,
)
from tracecore.store.tables import (
    acknowledgements,
    actions,
    evidence,
    incident_entities,
    incident_verdicts,
    incidents,
    notes,
    notifications,
    revisions,
    verdicts,
)

#: Rows of one page, at most.
MOST: Final = 500
_COLUMNS: Final = [column for column in incidents.c if column.name not in ("document", "digest")]
_DOCUMENT: Final = msgspec.json.Decoder(dict[str, Any])
_PLACES: Final = msgspec.json.Decoder(dict[str, list[str]])


class IncidentQuery(msgspec.Struct, kw_only=True, frozen=True):
    """A filter of incidents.

    Args:
        state: `active` is open or diagnosed; `acknowledged` is active, and somebody looks after it.
        text: words to search for.
        since, until: of `first_seen`, in nanoseconds; `until` is excluded.
        tenant: only this tenant's; None for all.
    """

    state: Literal["active", "open", "diagnosed", "acknowledged", "resolved"] | None = None
    job: str | None = None
    node: str | None = None
    gpu: str | None = None
    pattern: str | None = None
    failure_class: str | None = None
    fingerprint: str | None = None
    acknowledged: bool | None = None
    since: int | None = None
    until: int | None = None
    text: str | None = None
    tenant: str | None = None


class Incidents:
    """The incidents of a store."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def find(self, query: IncidentQuery | None = None, *, limit: int = 50, cursor: str | None = None) -> IncidentPage:
        """Incidents, those that began last first.

        Raises:
            BadCursor: the cursor is not one of ours.
        """
        with self._database.read() as connection:
            return self.read(connection, query or IncidentQuery(), limit=limit, cursor=cursor)

    def read(
        self, connection: Connection, query: IncidentQuery, *, limit: int = 50, cursor: str | None = None
    ) -> IncidentPage:
        """The same in a transaction of the caller's."""
        limit = max(1, min(limit, MOST))
        table = incidents.c
        statement = select(*_COLUMNS).where(*_conditions(query))
        parameters: dict[str, Any] = {}
        if query.text is not None:
            found = search.condition(self._database.is_sqlite, query.text)
            if found is None:
                return IncidentPage(incidents=[])
            statement = statement.where(text(found[0]))
            parameters = found[1]
        if cursor:
            time, number = cursors.decode(cursor, int, int)
            before = or_(table.first_seen < time, and_(table.first_seen == time, table.number < number))
            # The first condition alone lets an index begin at the right place.
            statement = statement.where(table.first_seen <= time, before)
        statement = statement.order_by(table.first_seen.desc(), table.number.desc()).limit(limit + 1)
        rows = connection.execute(statement, parameters).all()
        more = len(rows) > limit
        last = rows[limit - 1] if more else None
        return IncidentPage(
            incidents=[incident_row(row) for row in rows[:limit]],
            next=cursors.encode(last.first_seen, last.number) if last is not None else None,
        )

    def get(self, id: str, *, tenant: str | None = None) -> IncidentDetail | None:
        """One incident with all that belongs to it."""
        with self._database.read() as connection:
            row = connection.execute(_one(id, tenant, *_COLUMNS, incidents.c.document)).first()
            if row is None:
                return None
            number = row.number
            return IncidentDetail(
                incident=incident_row(row),
                document=_DOCUMENT.decode(row.document),
                verdicts=_verdicts(connection, number),
                evidence=_evidence(connection, number),
                revisions=_revisions(connection, number),
                notes=[
                    Note(number=r.number, at=r.at, author=r.author, text=r.text)
                    for r in connection.execute(
                        select(notes).where(notes.c.incident == number).order_by(notes.c.number)
                    )
                ],
                acknowledgements=[
                    Acknowledgement(at=r.at, who=r.who, what=r.what, comment=r.comment)
                    for r in connection.execute(
                        select(acknowledgements)
                        .where(acknowledgements.c.incident == number)
                        .order_by(acknowledgements.c.number)
                    )
                ],
                notifications=notifications_of(connection, id, number),
                actions=_actions(connection, id, number),
            )

    def row(self, id: str, *, tenant: str | None = None) -> IncidentRow | None:
        """One incident as a list shows it."""
        with self._database.read() as connection:
            row = connection.execute(_one(id, tenant, *_COLUMNS)).first()
        return None if row is None else incident_row(row)

    def revision(self, id: str, revision: int, *, tenant: str | None = None) -> dict[str, Any] | None:
        """The document of one revision."""
        with self._database.read() as connection:
            found = connection.execute(
                _one(id, tenant, revisions.c.document)
                .join(revisions, revisions.c.incident == incidents.c.number)
                .where(revisions.c.revision == revision)
            ).scalar()
        return None if found is None else _DOCUMENT.decode(found)

    def similar(
        self, fingerprint: str, *, but: str = "", limit: int = 10, tenant: str | None = None
    ) -> list[IncidentRow]:
        """Incidents of the same kind in other jobs or at other times, newest first.

        Args:
            but: leave this one out.
        """
        found = self.find(IncidentQuery(fingerprint=fingerprint, tenant=tenant), limit=limit + 1).incidents
        return [row for row in found if row.id != but][:limit]

    def revisions_known(self, ids: list[str]) -> dict[str, int]:
        """The stored revision of each of these incidents that is stored."""
        with self._database.read() as connection:
            query = select(incidents.c.id, incidents.c.revision).where(incidents.c.id.in_(ids))
            return {row.id: row.revision for row in connection.execute(query)}


def _one(id: str, tenant: str | None, *columns: Any) -> Any:
    statement = select(*columns).where(incidents.c.id == id)
    return statement if tenant is None else statement.where(incidents.c.tenant == tenant)


def _conditions(query: IncidentQuery) -> list[ColumnElement[bool]]:
    table = incidents.c
    found: list[ColumnElement[bool]] = []
    if query.state == "active":
        found.append(table.active == 1)
    elif query.state == "acknowledged":
        found += [table.active == 1, table.acknowledged_at.is_not(None)]
    elif query.state is not None:
        found += [table.state == query.state, table.active == (0 if query.state == "resolved" else 1)]
    for column, value in (
        (table.job, query.job),
        (table.pattern, query.pattern),
        (table.failure_class, query.failure_class),
        (table.fingerprint, query.fingerprint),
        (table.tenant, query.tenant),
    ):
        if value is not None:
            found.append(column == value)
    for kind, name in (("node", query.node), ("gpu", query.gpu)):
        if name is not None:
            own = incident_entities.c
            found.append(table.number.in_(select(own.incident).where(own.kind == kind, own.name == name)))
    if query.acknowledged is not None:
        found.append(table.acknowledged_at.is_not(None) if query.acknowledged else table.acknowledged_at.is_(None))
    if query.since is not None:
        found.append(table.first_seen >= query.since)
    if query.until is not None:
        found.append(table.first_seen < query.until)
    return found


def incident_row(row: Row[Any]) -> IncidentRow:
    places = _PLACES.decode(row.places)
    return IncidentRow(
        id=row.id,
        revision=row.revision,
        state=row.state,
        headline=row.headline,
        pattern=row.pattern,
        fingerprint=row.fingerprint,
        failure_class=row.failure_class,
        decision=row.decision,
        job=row.job,
        attempt=row.attempt,
        tenant=row.tenant,
        origin=row.origin,
        nodes=places.get("node", []),
        ranks=[int(rank) for rank in places.get("rank", []) if rank.isascii() and rank.isdigit()],
        first_seen=row.first_seen,
        last_seen=row.last_seen,
        updated_at=row.updated_at,
        resolved_at=row.resolved_at,
        resolved_by=row.resolved_by,
        acknowledged_at=row.acknowledged_at,
        acknowledged_by=row.acknowledged_by,
        lost_gpu_hours=row.lost_gpu_seconds / 3600,
    )


def _verdicts(connection: Connection, number: int) -> list[dict[str, Any]]:
    held = incident_verdicts.c
    query = (
        select(verdicts.c.document)
        .join(incident_verdicts, held.verdict == verdicts.c.id)
        .where(held.incident == number)
        .order_by(held.position)
    )
    return [_DOCUMENT.decode(document) for document in connection.execute(query).scalars()]


def _evidence(connection: Connection, number: int) -> list[CitedEvidence]:
    query = select(evidence).where(evidence.c.incident == number).order_by(evidence.c.position)
    return [
        CitedEvidence(
            verdict=row.verdict, kind=row.kind, uid=row.uid, time=row.time, text=row.text,
            lines=msgspec.json.decode(row.lines),
        )
        for row in connection.execute(query)
    ]  # fmt: skip


def _revisions(connection: Connection, number: int) -> list[Revision]:
    table = revisions.c
    query = (
        select(table.revision, table.state, table.at, table.reason, table.headline)
        .where(table.incident == number)
        .order_by(table.revision.desc())
        .limit(200)
    )
    return [
        Revision(revision=row.revision, state=row.state, at=row.at, reason=row.reason, headline=row.headline)
        for row in connection.execute(query)
    ]


def notifications_of(connection: Connection, id: str, number: int) -> list[Notification]:
    query = select(notifications).where(notifications.c.incident == number).order_by(notifications.c.number.desc())
    return [notification(row, id) for row in connection.execute(query.limit(200))]


def notification(row: Row[Any], id: str) -> Notification:
    return Notification(
        number=row.number, incident=id, revision=row.revision, receiver=row.receiver, reason=row.reason,
        title=row.title, state=row.state, tries=row.tries, due_at=row.due_at, created_at=row.created_at,
        sent_at=row.sent_at, error=row.error,
    )  # fmt: skip


def _actions(connection: Connection, id: str, number: int) -> list[Action]:
    query = select(actions).where(actions.c.incident == number).order_by(actions.c.number.desc()).limit(200)
    return [action(row, id) for row in connection.execute(query)]


def action(row: Row[Any], id: str) -> Action:
    return Action(
        number=row.number, incident=id, kind=row.kind, target=row.target, state=row.state, reason=row.reason,
        result=row.result, who=row.who, created_at=row.created_at, updated_at=row.updated_at,
    )  # fmt: skip
