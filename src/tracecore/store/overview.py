"""The overview: what is open, how the fleet is, what interrupted it and what comes back."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final

from sqlalchemy import ColumnElement, Connection, and_, func, select, true

from tracecore.store.database import Database
from tracecore.store.incidents import IncidentQuery, Incidents
from tracecore.store.nodes import count_nodes
from tracecore.store.records import Cause, Overview, Recurring, RecurringNode
from tracecore.store.tables import incident_entities, incidents, jobs

DAYS: Final = 30
DAY: Final = 86_400 * 1_000_000_000
#: Lines of each list.
TOP: Final = 10
OPEN: Final = 50


def overview(
    database: Database, now: int, *, days: int = DAYS, tenant: str | None = None, before: Overview | None = None
) -> Overview:
    """The fleet at one moment.

    Args:
        days: how far back to count.
        tenant: only this tenant's incidents and jobs.
        before: an earlier answer to take the history from (causes, what comes back): counting it costs most of the
            time, and it changes little within seconds.
    """
    table = incidents.c
    whose = true() if tenant is None else table.tenant == tenant
    since = (now // DAY - days + 1) * DAY
    recent = and_(whose, table.first_seen >= since)
    with database.read() as connection:
        causes = _causes(connection, recent) if before is None else before.causes
        job_query = select(jobs.c.state, func.count()).group_by(jobs.c.state)
        if tenant is not None:
            job_query = job_query.where(jobs.c.tenant == tenant)
        counted = connection.execute(
            select(func.count(), func.count(table.acknowledged_at)).where(whose, table.active == 1)
        ).one()
        return Overview(
            at=now,
            days=days,
            open=Incidents(database)
            .read(connection, IncidentQuery(state="active", tenant=tenant), limit=OPEN)
            .incidents,
            open_count=counted[0],
            unacknowledged=counted[0] - counted[1],
            nodes=count_nodes(connection, tenant),
            jobs={row[0]: row[1] for row in connection.execute(job_query)},
            causes=causes,
            lost_gpu_hours=sum(cause.lost_gpu_hours for cause in causes),
            fingerprints=_fingerprints(connection, recent) if before is None else before.fingerprints,
            recurring_nodes=_nodes(connection, since, tenant) if before is None else before.recurring_nodes,
        )


def _causes(connection: Connection, recent: ColumnElement[bool]) -> list[Cause]:
    table = incidents.c
    # Floor division: `/` would divide exactly on PostgreSQL, and every incident would be a day of its own.
    day = (table.first_seen // DAY).label("day")
    query = (
        select(day, table.pattern, table.failure_class, func.count().label("total"), func.sum(table.lost_gpu_seconds))
        .where(recent)
        .group_by(day, table.pattern, table.failure_class)
        .order_by(day, table.pattern, table.failure_class)
    )
    return [
        Cause(
            day=datetime.fromtimestamp(int(row[0]) * 86_400, UTC).strftime("%Y-%m-%d"),
            pattern=row[1],
            failure_class=row[2],
            incidents=row[3],
            lost_gpu_hours=float(row[4] or 0) / 3600,
        )
        for row in connection.execute(query)
    ]


def _fingerprints(connection: Connection, recent: ColumnElement[bool]) -> list[Recurring]:
    table = incidents.c
    count = func.count().label("total")
    last = func.max(table.first_seen).label("last")
    query = (
        select(table.fingerprint, count, last, func.max(table.number).label("newest"))
        .where(recent, table.fingerprint != "")
        .group_by(table.fingerprint)
        .having(count > 1)
        .order_by(count.desc(), last.desc())
        .limit(TOP)
    )
    rows = connection.execute(query).all()
    said = {
        row.number: row
        for row in connection.execute(
            select(table.number, table.headline, table.pattern).where(table.number.in_([row.newest for row in rows]))
        )
    }
    return [
        Recurring(
            fingerprint=row.fingerprint,
            pattern=said[row.newest].pattern,
            headline=said[row.newest].headline,
            incidents=row.total,
            last_seen=row.last,
        )
        for row in rows
    ]


def _nodes(connection: Connection, since: int, tenant: str | None) -> list[RecurringNode]:
    own = incident_entities.c
    count = func.count().label("total")
    last = func.max(own.first_seen).label("last")
    query = select(own.name, count, last).where(own.kind == "node", own.first_seen >= since)
    if tenant is not None:
        query = query.where(own.tenant == tenant)
    query = query.group_by(own.name).having(count > 1).order_by(count.desc(), last.desc()).limit(TOP)
    return [RecurringNode(name=row.name, incidents=row.total, last_seen=row.last) for row in connection.execute(query)]
