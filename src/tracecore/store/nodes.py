"""Nodes and GPUs: their state, events over time, incidents and jobs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

import msgspec
from sqlalchemy import ColumnElement, Connection, Row, bindparam, func, select, update

from tracecore.store import cursors
from tracecore.store.database import Database
from tracecore.store.incidents import MOST, IncidentQuery, Incidents, action
from tracecore.store.jobs import job_rows
from tracecore.store.records import Action, Gpu, NodeDetail, NodeEvent, NodePage, NodeRow, NodeState
from tracecore.store.tables import (
    actions,
    changes,
    gpus,
    incident_entities,
    incidents,
    job_nodes,
    jobs,
    node_events,
    nodes,
)
from tracecore.store.update import MAX_NAME, clean
from tracecore.store.writing import seen_nodes

STATES: Final = ("healthy", "degraded", "failed", "silent")
#: A node that sent facts and then none for so long is silent. Agents send a heartbeat every half minute.
SILENT_NS: Final = 5 * 60 * 1_000_000_000


class NodeReport(msgspec.Struct, kw_only=True):
    """The state of a node, or of one of its GPUs.

    Args:
        gpu: its PCI bus id or name; empty for the node itself.
        state: empty where only its being there is known.
        heard: when facts of it came, by the server's clock.
    """

    name: str
    at: int
    gpu: str = ""
    state: NodeState | str = ""
    heard: int | None = None
    reason: str = ""
    model: str = ""


class Nodes:
    """The nodes of a store."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def find(
        self,
        *,
        state: str | None = None,
        name: str | None = None,
        limit: int = 100,
        cursor: str | None = None,
        tenant: str | None = None,
    ) -> NodePage:
        """Nodes by name.

        Args:
            name: the beginning of the name.
            tenant: only nodes that its jobs ran on or its incidents speak of.
        """
        limit = max(1, min(limit, 5_000))
        table = nodes.c
        statement = select(nodes)
        if state is not None:
            statement = statement.where(func.coalesce(func.nullif(table.override, ""), table.state) == state)
        if tenant is not None:
            statement = statement.where(_of_tenant(tenant))
        if name:
            statement = statement.where(table.name.startswith(name, autoescape=True))
        if cursor:
            (after,) = cursors.decode(cursor, str)
            statement = statement.where(table.name > after)
        with self._database.read() as connection:
            rows = connection.execute(statement.order_by(table.name).limit(limit + 1)).all()
            found = _node_rows(connection, rows[:limit], tenant)
        return NodePage(nodes=found, next=cursors.encode(rows[limit - 1].name) if len(rows) > limit else None)

    def get(self, name: str, *, tenant: str | None = None, since: int | None = None) -> NodeDetail | None:
        """One node with its incidents, events and the jobs that ran there.

        Args:
            since: of its events.
        """
        with self._database.read() as connection:
            known = select(nodes).where(nodes.c.name == name)
            row = connection.execute(known if tenant is None else known.where(_of_tenant(tenant))).first()
            if row is None:
                return None
            held = select(jobs).join(job_nodes, job_nodes.c.job == jobs.c.name).where(job_nodes.c.node == name)
            if tenant is not None:
                held = held.where(jobs.c.tenant == tenant)
            return NodeDetail(
                node=_node_rows(connection, [row], tenant)[0],
                incidents=Incidents(self._database)
                .read(connection, IncidentQuery(node=name, tenant=tenant), limit=100)
                .incidents,
                events=_events(connection, name, since),
                jobs=job_rows(connection, connection.execute(held.order_by(job_nodes.c.last_seen.desc()).limit(50))),
                actions=_actions(connection, name),
            )

    def counts(self, tenant: str | None = None) -> dict[str, int]:
        """Return the number of nodes in each state."""
        with self._database.read() as connection:
            return count_nodes(connection, tenant)

    def report(self, reports: Iterable[NodeReport], events: Iterable[dict[str, Any]] = ()) -> None:
        """Store what is known of nodes and GPUs.

        Args:
            events: rows of `node_events`.
        """
        with self._database.write() as connection:
            report_nodes(self._database, connection, [*reports])
            add_events(self._database, connection, events)

    def override(self, name: str, state: str, who: str, now: int) -> bool:
        """Set a node's state by hand, or clear it with an empty one; whether the node is known."""
        with self._database.write() as connection:
            done = connection.execute(
                update(nodes)
                .where(nodes.c.name == name)
                .values(override=state, override_by=who if state else "", state_at=now)
            )
            if done.rowcount:
                connection.execute(changes.insert(), {"at": now, "kind": "node", "name": name, "detail": state})
            return bool(done.rowcount)


def report_nodes(database: Database, connection: Connection, reports: Sequence[NodeReport]) -> None:
    seen: dict[str, int] = {}
    for one in reports:
        name = clean(one.name, MAX_NAME)
        seen[name] = max(seen.get(name, 0), one.at)
    if not seen:
        return
    seen_nodes(database, connection, seen)
    heard = [{"which": clean(one.name, MAX_NAME), "at": one.heard} for one in reports if one.heard is not None]
    if heard:
        connection.execute(
            update(nodes).where(nodes.c.name == bindparam("which")).values(heard_at=bindparam("at")), heard
        )
    for one in reports:
        if one.state and not one.gpu:
            table = nodes.c
            connection.execute(
                update(nodes)
                .where(table.name == clean(one.name, MAX_NAME), table.state_at <= one.at)
                .values(state=one.state, reason=clean(one.reason), state_at=one.at)
            )
    rows = {
        (one.name, one.gpu): {
            "node": clean(one.name, MAX_NAME), "gpu": clean(one.gpu, 80), "state": one.state or "healthy",
            "reason": clean(one.reason), "model": clean(one.model, 120), "last_seen": one.at,
        }
        for one in reports
        if one.gpu
    }  # fmt: skip
    if rows:
        statement = database.insert(gpus)
        said = {name: statement.excluded[name] for name in ("state", "reason", "last_seen")}
        connection.execute(
            statement.on_conflict_do_update(
                index_elements=["node", "gpu"], set_=said, where=statement.excluded.last_seen >= gpus.c.last_seen
            ),
            [rows[key] for key in sorted(rows)],
        )


def judge_silence(connection: Connection, now: int) -> None:
    """Call healthy nodes silent that stopped sending facts, and silent ones healthy that send again."""
    table = nodes.c
    for before, after, holds in (
        ("healthy", "silent", table.heard_at < now - SILENT_NS),
        ("silent", "healthy", table.heard_at >= now - SILENT_NS),
    ):
        found = connection.execute(select(table.name).where(table.state == before, holds)).scalars().all()
        if found:
            reason = f"no data for {SILENT_NS // 60_000_000_000} minutes" if after == "silent" else ""
            connection.execute(
                update(nodes).where(table.name == bindparam("which")).values(state=after, reason=reason, state_at=now),
                [{"which": name} for name in found],
            )
            rows = [{"at": now, "kind": "node", "name": name, "detail": after} for name in found]
            connection.execute(changes.insert(), rows)


def count_nodes(connection: Connection, tenant: str | None) -> dict[str, int]:
    state = func.coalesce(func.nullif(nodes.c.override, ""), nodes.c.state)
    query = select(state, func.count()).group_by(state)
    rows = connection.execute(query if tenant is None else query.where(_of_tenant(tenant)))
    return {row[0]: row[1] for row in rows}


def _of_tenant(tenant: str) -> ColumnElement[bool]:
    """A condition on nodes: jobs of the tenant ran there, or its incidents speak of them."""
    ran = select(job_nodes.c.node).join(jobs, jobs.c.name == job_nodes.c.job).where(jobs.c.tenant == tenant)
    own = incident_entities.c
    told = select(own.name).where(own.kind == "node", own.tenant == tenant)
    return nodes.c.name.in_(ran.union(told))


def add_events(database: Database, connection: Connection, events: Iterable[dict[str, Any]]) -> None:
    rows = [*events]
    if rows:
        connection.execute(database.insert(node_events).on_conflict_do_nothing(), rows)


def _node_rows(connection: Connection, rows: Iterable[Row[Any]], tenant: str | None) -> list[NodeRow]:
    found = [*rows]
    names = [row.name for row in found]
    held: dict[str, list[Gpu]] = {}
    for begin in range(0, len(names), 500):
        some = names[begin : begin + 500]
        for r in connection.execute(select(gpus).where(gpus.c.node.in_(some)).order_by(gpus.c.node, gpus.c.gpu)):
            own = Gpu(gpu=r.gpu, state=r.state, reason=r.reason, model=r.model, last_seen=r.last_seen)
            held.setdefault(r.node, []).append(own)
    active = (
        select(incident_entities.c.name, func.count().label("total"))
        .join(incidents, incidents.c.number == incident_entities.c.incident)
        .where(incident_entities.c.kind == "node", incidents.c.active == 1, incident_entities.c.name.in_(names[:MOST]))
        .group_by(incident_entities.c.name)
    )
    if tenant is not None:
        active = active.where(incident_entities.c.tenant == tenant)
    counts = {r.name: r.total for r in connection.execute(active)}
    return [
        NodeRow(
            # The reason can be the headline of another tenant's incident.
            name=row.name, state=row.override or row.state, override=row.override,
            reason=row.reason if tenant is None or row.state == "silent" else "",
            override_by=row.override_by, first_seen=row.first_seen, last_seen=row.last_seen,
            incidents=counts.get(row.name, 0), gpus=held.get(row.name, []),
        )
        for row in found
    ]  # fmt: skip


def _events(connection: Connection, name: str, since: int | None) -> list[NodeEvent]:
    table = node_events.c
    statement = select(node_events).where(table.node == name)
    if since is not None:
        statement = statement.where(table.time >= since)
    return [
        NodeEvent(time=row.time, uid=row.uid, kind=row.kind, gpu=row.gpu, value=row.value, text=row.text)
        for row in connection.execute(statement.order_by(table.time.desc(), table.uid).limit(1_000))
    ]


def _actions(connection: Connection, name: str) -> list[Action]:
    query = (
        select(actions, incidents.c.id.label("whose"))
        .outerjoin(incidents, incidents.c.number == actions.c.incident)
        .where(actions.c.target == name)
        .order_by(actions.c.number.desc())
        .limit(100)
    )
    return [action(row, row.whose or "") for row in connection.execute(query)]
