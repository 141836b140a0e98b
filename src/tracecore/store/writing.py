"""Write updates of incidents: each id and revision once, however often and in whatever order it arrives."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from typing import Any, Final

import msgspec
from sqlalchemy import Connection, bindparam, delete, func, select, update

from tracecore.store import search
from tracecore.store.database import Database
from tracecore.store.records import IncidentState
from tracecore.store.tables import (
    changes,
    evidence,
    incident_entities,
    incident_verdicts,
    incidents,
    job_nodes,
    jobs,
    nodes,
    revisions,
    verdicts,
)
from tracecore.store.times import moment
from tracecore.store.update import MAX_NAME, SHOWN, IncidentUpdate, clean, encode, excerpts

#: Ids that one query asks for.
CHUNK: Final = 500
SECOND: Final = 1_000_000_000


class Stored(msgspec.Struct, kw_only=True):
    """The result of an update.

    Args:
        new: it said something that was not stored before.
        revision: under which it is stored.
        state: of the incident now; a person may have resolved it.
    """

    id: str
    new: bool
    revision: int
    state: IncidentState


class _Known(msgspec.Struct):
    number: int
    revision: int
    state: str
    digest: str
    places: str
    resolved_at: int | None
    resolved_by: str
    before: int
    fresh: bool = False


def put(database: Database, connection: Connection, updates: Sequence[IncidentUpdate], now: int) -> list[Stored]:
    """Store updates, in one transaction of the caller's."""
    known = _lock(connection, {update.id for update in updates})
    stored: list[Stored] = []
    latest: dict[str, IncidentUpdate] = {}
    rows: dict[tuple[str, int], IncidentUpdate] = {}
    for one in updates:
        current = known.get(one.id)
        if one.revision is None:
            if current is not None and current.digest == one.digest:
                stored.append(Stored(id=one.id, new=False, revision=current.revision, state=one.state))
                continue
            one.revision = 1 if current is None else current.revision + 1
        newer = current is None or one.revision > current.revision
        rows.setdefault((one.id, one.revision), one)
        if newer:
            latest[one.id] = one
            if current is None:
                current = known[one.id] = _Known(0, 0, "", "", "", None, "", 0, True)
            current.revision, current.digest = one.revision, one.digest
        stored.append(Stored(id=one.id, new=newer, revision=one.revision, state=one.state))
    _insert_new(database, connection, latest, known, now)
    _update_old(connection, [one for one in latest.values() if not known[one.id].fresh], known, now)
    _insert_revisions(database, connection, rows, known)
    _insert_parts(database, connection, latest, known)
    _insert_places(database, connection, [*latest.values()])
    judge_nodes(connection, {name for one in latest.values() for kind, name in one.entities if kind == "node"}, now)
    _announce(connection, [*latest.values()], known, now)
    for result in stored:
        if result.id in latest:
            result.state = known[result.id].state  # type: ignore[assignment]
    return stored


def _lock(connection: Connection, ids: set[str]) -> dict[str, _Known]:
    """The incidents that exist, locked against other writers until the transaction ends."""
    found: dict[str, _Known] = {}
    table = incidents.c
    ordered = sorted(ids)
    for begin in range(0, len(ordered), CHUNK):
        query = (
            select(
                table.id, table.number, table.revision, table.state, table.digest, table.places, table.resolved_at,
                table.resolved_by,
            )
            .where(table.id.in_(ordered[begin : begin + CHUNK]))
            .order_by(table.id)
            .with_for_update()
        )  # fmt: skip
        for row in connection.execute(query):
            found[row.id] = _Known(*row[1:], before=row.revision)
    return found


def _row(one: IncidentUpdate, now: int) -> dict[str, Any]:
    over = one.state == "resolved"
    by_kind: dict[str, list[str]] = {}
    for kind, name in one.entities:
        held = by_kind.setdefault(kind, [])
        if len(held) < SHOWN:
            held.append(name)
    return {
        "id": one.id,
        "revision": one.revision,
        "state": one.state,
        "active": 0 if over else 1,
        "headline": one.headline,
        "pattern": one.pattern,
        "fingerprint": one.fingerprint,
        "failure_class": one.failure_class,
        "decision": one.decision,
        "job": one.job,
        "attempt": one.attempt,
        "tenant": one.tenant,
        "origin": one.origin,
        "places": encode(by_kind).decode(),
        "first_seen": one.first_seen,
        "last_seen": one.last_seen,
        "stored_at": now,
        "updated_at": one.at,
        "resolved_at": one.at if over else None,
        "resolved_by": "",
        "acknowledged_at": one.at if one.acknowledged else None,
        "acknowledged_by": "the sender" if one.acknowledged else "",
        "lost_gpu_seconds": one.gpus * max((one.at if over else one.last_seen) - one.first_seen, 0) / SECOND,
        "digest": one.digest,
        "document": one.encoded,
    }


def _insert_new(
    database: Database, connection: Connection, latest: dict[str, IncidentUpdate], known: dict[str, _Known], now: int
) -> None:
    new = sorted((one for one in latest.values() if known[one.id].fresh), key=lambda one: one.id)
    if not new:
        return
    statement = (
        database.insert(incidents)
        .on_conflict_do_nothing(index_elements=["id"])
        .returning(incidents.c.id, incidents.c.number)
    )
    made = connection.execute(statement, [_row(one, now) for one in new])
    for row in made:
        known[row.id].number, known[row.id].state = row.number, latest[row.id].state
    taken = {one.id for one in new if not known[one.id].number}
    if taken:
        # Another process stored these a moment ago.
        for name, current in _lock(connection, taken).items():
            if current.revision >= known[name].revision:
                del latest[name]
            else:
                current.revision, current.digest = known[name].revision, known[name].digest
            known[name] = current


def _update_old(connection: Connection, old: list[IncidentUpdate], known: dict[str, _Known], now: int) -> None:
    rows = []
    for one in old:
        current, row = known[one.id], _row(one, now)
        if current.resolved_by and one.last_seen <= (current.resolved_at or 0):
            # A person resolved it, and nothing happened since.
            row |= {"state": "resolved", "active": 0}
            row |= {"resolved_at": current.resolved_at, "resolved_by": current.resolved_by}
        known[one.id].state = row["state"]
        for name in ("id", "stored_at", "acknowledged_at", "acknowledged_by", "origin"):
            del row[name]
        rows.append({f"new_{name}": value for name, value in row.items()} | {"which": current.number})
    if rows:
        values: dict[str, Any] = {name.removeprefix("new_"): bindparam(name) for name in rows[0] if name != "which"}
        connection.execute(update(incidents).where(incidents.c.number == bindparam("which")).values(**values), rows)


def _insert_revisions(
    database: Database,
    connection: Connection,
    rows: dict[tuple[str, int], IncidentUpdate],
    known: dict[str, _Known],
) -> None:
    if rows:
        connection.execute(
            database.insert(revisions).on_conflict_do_nothing(),
            [
                {
                    "incident": known[one.id].number,
                    "revision": revision,
                    "state": one.state,
                    "at": one.at,
                    "reason": one.reason,
                    "headline": one.headline,
                    "document": one.encoded,
                }
                for (_, revision), one in rows.items()
            ],
        )


def _insert_parts(
    database: Database, connection: Connection, latest: dict[str, IncidentUpdate], known: dict[str, _Known]
) -> None:
    """Suspects, verdicts, evidence and words of the latest revision of each incident."""
    old = [{"which": known[one.id].number} for one in latest.values() if not known[one.id].fresh]
    kept = _kept_lines(connection, [row["which"] for row in old])
    if old:
        for table in (incident_entities, incident_verdicts, evidence):
            connection.execute(delete(table).where(table.c.incident == bindparam("which")), old)
    entities, held, pieces, texts = [], [], [], []
    said: dict[str, dict[str, Any]] = {}
    for one in latest.values():
        number = known[one.id].number
        entities += [
            {"incident": number, "kind": kind, "name": name, "first_seen": one.first_seen, "tenant": one.tenant}
            for kind, name in one.entities
        ]
        for position, verdict in enumerate(one.verdicts):
            row = _verdict(verdict, one)
            if row is not None:
                said[row["id"]] = row
                held.append({"incident": number, "verdict": row["id"], "position": position})
        heard = [one.headline, one.job, one.id, one.fingerprint, one.pattern, *(name for _, name in one.entities)]
        for position, (whose, kind, uid, time, told, lines) in enumerate(excerpts(one)):
            piece = {"incident": number, "position": position, "verdict": whose, "kind": kind, "uid": uid}
            said_lines = encode(lines).decode() if lines else kept.get((number, uid), "[]")
            pieces.append(piece | {"time": time, "text": told, "lines": said_lines})
            heard += [told, *lines]
        texts.append((number, search.words(*heard)))
    if entities:
        connection.execute(incident_entities.insert(), entities)
    put_verdicts(database, connection, said.values(), replace=True)
    if held:
        connection.execute(database.insert(incident_verdicts).on_conflict_do_nothing(), held)
    if pieces:
        connection.execute(evidence.insert(), pieces)
    search.index(connection, texts, [row["which"] for row in old])


def _kept_lines(connection: Connection, numbers: list[int]) -> dict[tuple[int, str], str]:
    """Lines that were stored before: a later revision can come from a process that never saw them."""
    found: dict[tuple[int, str], str] = {}
    for begin in range(0, len(numbers), CHUNK):
        query = select(evidence.c.incident, evidence.c.uid, evidence.c.lines).where(
            evidence.c.incident.in_(numbers[begin : begin + CHUNK]), evidence.c.lines != "[]"
        )
        found |= {(row.incident, row.uid): row.lines for row in connection.execute(query)}
    return found


def put_verdicts(
    database: Database, connection: Connection, rows: Iterable[dict[str, Any]], *, replace: bool = False
) -> int:
    """Store verdicts, each in its latest revision.

    Args:
        replace: whatever their revision, they replace what is stored. An incident's verdicts are those of its latest
            revision, and a detector that was started again counts their revisions from the beginning.
    """
    ordered = sorted(rows, key=lambda row: str(row["id"]))
    if ordered:
        connection.execute(_upsert_verdicts(database, replace), ordered)
    return len(ordered)


@functools.lru_cache(8)
def _upsert_verdicts(database: Database, replace: bool) -> Any:
    """The statement is kept: to build it takes longer than to store ten verdicts."""
    statement = database.insert(verdicts)
    newer = {column.name: statement.excluded[column.name] for column in verdicts.c if column.name != "id"}
    where = None if replace else statement.excluded.revision > verdicts.c.revision
    return statement.on_conflict_do_update(index_elements=["id"], set_=newer, where=where)


def _verdict(document: dict[str, Any], one: IncidentUpdate) -> dict[str, Any] | None:
    node = next((name for kind, name in one.entities if kind == "node"), "")
    return verdict_row(document, one.at, job=one.job, node=node, tenant=one.tenant)


def verdict_row(
    document: dict[str, Any], now: int, *, job: str = "", node: str = "", tenant: str = ""
) -> dict[str, Any] | None:
    """A verdict's document as a row; None where it is not a verdict."""
    name, revision, pattern = document.get("verdict.id"), document.get("verdict.revision"), document.get("pattern.name")
    if not isinstance(name, str) or not 0 < len(name) <= 120 or not isinstance(pattern, str):
        return None
    return {
        "id": clean(name),
        "revision": revision if type(revision) is int and 0 < revision < 1 << 31 else 1,
        "status": clean(str(document.get("verdict.status", "active")), 16),
        "pattern": clean(pattern, 80),
        "role": clean(str(document.get("role", "")), 16),
        "headline": clean(str(document.get("headline", ""))),
        "job": job,
        "node": node,
        "tenant": tenant,
        "time": moment(document.get("verdict.time")) or now,
        "updated_at": now,
        "document": encode(document).decode(),
    }


def _insert_places(database: Database, connection: Connection, said: list[IncidentUpdate]) -> None:
    """Know the jobs and nodes that incidents speak of."""
    found: dict[str, dict[str, Any]] = {}
    where: dict[str, int] = {}
    both: dict[tuple[str, str], int] = {}
    for one in said:
        if one.job:
            state = "running" if one.state == "resolved" else "failed" if one.failure_class != "none" else "unknown"
            found[one.job] = {
                "name": one.job, "tenant": one.tenant, "state": state, "ranks": 0, "gpus": one.gpus, "step": None,
                "total_steps": None, "first_seen": one.first_seen, "last_seen": one.last_seen,
            }  # fmt: skip
        for kind, name in one.entities:
            if kind == "node":
                where[name] = max(where.get(name, 0), one.last_seen)
                if one.job:
                    both[one.job, name[:MAX_NAME]] = one.last_seen
    if found:
        statement = database.insert(jobs)
        connection.execute(
            statement.on_conflict_do_update(
                index_elements=["name"],
                set_={"last_seen": statement.excluded.last_seen, "state": statement.excluded.state},
                where=statement.excluded.last_seen > jobs.c.last_seen,
            ),
            [found[name] for name in sorted(found)],
        )
    if where:
        seen_nodes(database, connection, where)
    if both:
        seen_at(database, connection, both)


def judge_nodes(connection: Connection, names: set[str], now: int) -> None:
    """Set the state of nodes by their open incidents: failed by infrastructure, else degraded, else healthy."""
    ordered = sorted(names)
    for begin in range(0, len(ordered), CHUNK):
        some = ordered[begin : begin + CHUNK]
        own = incident_entities.c
        found = connection.execute(
            select(own.name, incidents.c.failure_class, func.max(incidents.c.headline))
            .join(incidents, incidents.c.number == own.incident)
            .where(own.kind == "node", own.name.in_(some), incidents.c.active == 1)
            .group_by(own.name, incidents.c.failure_class)
        )
        said: dict[str, tuple[str, str]] = {}
        for name, failure_class, headline in found:
            if failure_class == "infrastructure" or name not in said:
                said[name] = ("failed" if failure_class == "infrastructure" else "degraded", headline)
        rows = [
            {"which": name, "new_state": said.get(name, ("healthy", ""))[0], "new_reason": said.get(name, ("", ""))[1]}
            for name in some
        ]
        connection.execute(
            update(nodes)
            .where(nodes.c.name == bindparam("which"), nodes.c.reason != bindparam("new_reason"))
            .values(state=bindparam("new_state"), reason=bindparam("new_reason"), state_at=now),
            rows,
        )


def seen_nodes(database: Database, connection: Connection, seen: dict[str, int]) -> None:
    """Know these nodes, and when they were heard last."""
    statement = database.insert(nodes)
    connection.execute(
        statement.on_conflict_do_update(
            index_elements=["name"],
            set_={"last_seen": statement.excluded.last_seen},
            where=statement.excluded.last_seen > nodes.c.last_seen,
        ),
        [
            {"name": name, "state": "healthy", "reason": "", "first_seen": at, "last_seen": at, "state_at": at}
            for name, at in sorted(seen.items())
        ],
    )


def seen_at(database: Database, connection: Connection, seen: dict[tuple[str, str], int]) -> None:
    """Know that jobs ran on nodes."""
    statement = database.insert(job_nodes)
    connection.execute(
        statement.on_conflict_do_update(
            index_elements=["job", "node"],
            set_={"last_seen": statement.excluded.last_seen},
            where=statement.excluded.last_seen > job_nodes.c.last_seen,
        ),
        [{"job": job, "node": node, "last_seen": at} for (job, node), at in sorted(seen.items())],
    )


def _announce(connection: Connection, said: list[IncidentUpdate], known: dict[str, _Known], now: int) -> None:
    if said:
        connection.execute(
            changes.insert(),
            [
                {"at": now, "kind": "incident", "name": one.id, "tenant": one.tenant, "detail": known[one.id].state}
                for one in said
            ],
        )
