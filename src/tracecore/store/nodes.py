"""Nodes and GPUs: their state, events over time, incidents and jobs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

import msgspec
from sqlalchemy import Connection, Row, func, select, update

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


class NodeReport(msgspec.Struct, kw_only=True):
    """The state of a node, or of one of its GPUs.

    Args:
        gpu: its PCI bus id or name; empty for the node itself.
        state: empty where only its being there is known.
    """

    name: str
    at: int
    gpu: str = ""
    state: NodeState | str = ""
    reason: str = ""
    model: str = ""


class Nodes:
    """The nodes of a store."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def find(
        self, *, state: str | None = None, name: str | None = None, limit: int = 100, cursor: str | None = None
    ) -> NodePage:
        """Nodes by name.

        Args:
            name: the beginning of the name.
        """
        limit = max(1, min(limit, 5_000))
        table = nodes.c
        statement = select(nodes)
        if state is not None:
            statement = statement.where(func.coalesce(func.nullif(table.override, ""), table.state) == state)
        if name:
            statement = statement.where(table.name.startswith(name, autoescape=True))
        if cursor:
            (after,) = cursors.decode(cursor, str)
            statement = statement.where(table.name > after)
        with self._database.read() as connection:
            rows = connection.execute(statement.order_by(table.name).limit(limit + 1)).all()
            found = _node_rows(connection, rows[:limit])
        return NodePage(nodes=found, next=cursors.encode(rows[limit - 1].name) if len(rows) > limit else None)

    def get(self, name: str, *, tenant: str | None = None, since: int | None = None) -> NodeDetail | None:
        """One node with its incidents, events and the jobs that ran there.

        Args:
            since: of its events.
        """
        with self._database.read() as connection:
            row = connection.execute(select(nodes).where(nodes.c.name == name)).first()
            if row is None:
                return None
            held = select(jobs).join(job_nodes, job_nodes.c.job == jobs.c.name).where(job_nodes.c.node == name)
            if tenant is not None:
                held = held.where(jobs.c.tenant == tenant)
            return NodeDetail(
                node=_node_rows(connection, [row])[0],
                incidents=Incidents(self._database)
                .read(connection, IncidentQuery(node=name, tenant=tenant), limit=100)
                .incidents,
                events=_events(connection, name, since),
                jobs=job_rows(connection, connection.execute(held.order_by(job_nodes.c.last_seen.desc()).limit(50))),
                actions=_actions(connection, name),
            )

    def events(self, name: str, *, since: int | None = None, limit: int = 1_000) -> list[NodeEvent]:
        """Xids, ECC errors, throttling and link changes of a node, newest first."""
        with self._database.read() as connection:
            return _events(connection, name, since, limit)

    def counts(self) -> dict[str, int]:
        """Return the number of nodes in each state."""
        state = func.coalesce(func.nullif(nodes.c.override, ""), nodes.c.state)
        with self._database.read() as connection:
            return {row[0]: row[1] for row in connection.execute(select(state, func.count()).group_by(state))}

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


def add_events(database: Database, connection: Connection, events: Iterable[dict[str, Any]]) -> None:
    rows = [*events]
    if rows:
        connection.execute(database.insert(node_events).on_conflict_do_nothing(), rows)


def _node_rows(connection: Connection, rows: Iterable[Row[Any]]) -> list[NodeRow]:
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
    counts = {r.name: r.total for r in connection.execute(active)}
    return [
        NodeRow(
            name=row.name, state=row.override or row.state, reason=row.reason, override=row.override,
            override_by=row.override_by, first_seen=row.first_seen, last_seen=row.last_seen,
            incidents=counts.get(row.name, 0), gpus=held.get(row.name, []),
        )
        for row in found
    ]  # fmt: skip


def _events(connection: Connection, name: str, since: int | None, limit: int = 1_000) -> list[NodeEvent]:
    table = node_events.c
    statement = select(node_events).where(table.node == name)
    if since is not None:
        statement = statement.where(table.time >= since)
    return [
        NodeEvent(time=row.time, uid=row.uid, kind=row.kind, gpu=row.gpu, value=row.value, text=row.text)
        for row in connection.execute(statement.order_by(table.time.desc(), table.uid).limit(min(limit, 10_000)))
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
