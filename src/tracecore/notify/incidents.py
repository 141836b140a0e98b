"""Incidents of the store as notifications see them: labels to match, words to show."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any, Final

import msgspec
from sqlalchemy import Connection, Row, select

from tracecore.notify.config import NotificationConfig
from tracecore.notify.labels import labels_of
from tracecore.notify.matchers import Labels
from tracecore.notify.message import ShownIncident
from tracecore.notify.routes import SECOND
from tracecore.patterns.contract import rfc3339
from tracecore.signals.redaction import redacted
from tracecore.store.tables import evidence, incidents

CHUNK: Final = 500
#: Lines of evidence that a message quotes, and characters of each.
LINES: Final = 2
MAX_LINE: Final = 300
_TRACEBACK: Final = "Traceback (most recent call last)"
_PLACES: Final = msgspec.json.Decoder(dict[str, list[str]])
_DOCUMENT: Final = msgspec.json.Decoder(dict[str, Any])
_LINES: Final = msgspec.json.Decoder(list[str])


class KnownIncident(msgspec.Struct, kw_only=True):
    """One incident with its labels.

    Args:
        number: of its row.
        last_seen: when something of it happened last.
    """

    number: int
    id: str
    active: bool
    last_seen: int
    acknowledged: bool
    labels: Labels
    told: ShownIncident


def load(connection: Connection, config: NotificationConfig, where: Any) -> dict[int, KnownIncident]:
    """Read incidents, by number.

    Args:
        where: a condition on the table of incidents.
    """
    rows = connection.execute(select(incidents).where(where)).all()
    quoted = _quoted(connection, [row.number for row in rows])
    return {row.number: _known(row, config, quoted.get(row.number, [])) for row in rows}


def by_number(connection: Connection, config: NotificationConfig, numbers: Collection[int]) -> dict[int, KnownIncident]:
    """Read these incidents."""
    found: dict[int, KnownIncident] = {}
    ordered = sorted(numbers)
    for begin in range(0, len(ordered), CHUNK):
        found |= load(connection, config, incidents.c.number.in_(ordered[begin : begin + CHUNK]))
    return found


def by_id(connection: Connection, config: NotificationConfig, ids: Collection[str]) -> dict[int, KnownIncident]:
    """Read these incidents by their ids."""
    found: dict[int, KnownIncident] = {}
    ordered = sorted(ids)
    for begin in range(0, len(ordered), CHUNK):
        found |= load(connection, config, incidents.c.id.in_(ordered[begin : begin + CHUNK]))
    return found


def active_labels(connection: Connection, config: NotificationConfig, most: int) -> list[tuple[str, Labels]]:
    """Ids and labels of the incidents that are not resolved, newest first."""
    table = incidents.c
    query = select(
        table.id, table.job, table.pattern, table.failure_class, table.fingerprint, table.state, table.tenant,
        table.places, table.document,
    )  # fmt: skip
    rows = connection.execute(query.where(table.active == 1).order_by(table.number.desc()).limit(most))
    return [(row.id, _labels(row, config, _DOCUMENT.decode(row.document))) for row in rows]


def _labels(row: Any, config: NotificationConfig, document: dict[str, Any]) -> Labels:
    return labels_of(
        id=row.id, job=row.job, pattern=row.pattern, failure_class=row.failure_class, fingerprint=row.fingerprint,
        state=row.state, tenant=row.tenant, nodes=_PLACES.decode(row.places or "{}").get("node", ()),
        document=document, rules=config.labels,
    )  # fmt: skip


def _known(row: Row[Any], config: NotificationConfig, lines: list[str]) -> KnownIncident:
    document, places = _DOCUMENT.decode(row.document), _PLACES.decode(row.places or "{}")
    labels = _labels(row, config, document)
    failure = document.get("failure")
    retry = failure.get("retry") if isinstance(failure, dict) else None
    decision = retry.get("reason") if isinstance(retry, dict) else ""
    told = ShownIncident(
        id=row.id,
        revision=row.revision,
        status="firing" if row.active else "resolved",
        headline=redacted(row.headline),
        job=row.job,
        where=_where(places),
        action=redacted(str(document.get("remediation") or "")),
        failure_class=row.failure_class,
        decision=decision if isinstance(decision, str) else "",
        evidence=[redacted(line)[:MAX_LINE] for line in lines],
        since=_second(row.first_seen),
        ended=_second(row.resolved_at) if row.resolved_at else "",
        severity=(labels.get("severity") or ["warning"])[0],
        acknowledged_by=row.acknowledged_by,
        url=f"{config.external_url}/incidents/{row.id}" if config.external_url else "",
        labels=labels,
    )
    return KnownIncident(
        number=row.number, id=row.id, active=bool(row.active), last_seen=row.last_seen,
        acknowledged=row.acknowledged_at is not None, labels=labels, told=told,
    )  # fmt: skip


def _second(time: int) -> str:
    """A time as people read it."""
    return rfc3339(time // SECOND * SECOND)


def _quoted(connection: Connection, numbers: list[int]) -> dict[int, list[str]]:
    """Return the lines to quote for each incident; where no line was sent, what the evidence says."""
    found: dict[int, list[str]] = {}
    for begin in range(0, len(numbers), CHUNK):
        query = (
            select(evidence.c.incident, evidence.c.text, evidence.c.lines)
            .where(evidence.c.incident.in_(numbers[begin : begin + CHUNK]), evidence.c.position < 8)
            .order_by(evidence.c.incident, evidence.c.position)
        )
        said: dict[int, list[str]] = {}
        for number, text, lines in connection.execute(query):
            found.setdefault(number, []).extend(_telling(_LINES.decode(lines or "[]")))
            said.setdefault(number, []).append(text)
        for number, texts in said.items():
            found[number] = (found[number] or texts)[:LINES]
    return found


def _telling(lines: list[str]) -> list[str]:
    """Shorten a traceback to its error and the frame that raised it; other lines stay."""
    column = max((line.find(_TRACEBACK) for line in lines), default=-1)
    if column < 0:
        return lines
    # Every line can have a prefix, `[rank2]: `; what an exception says begins where the header begins.
    bare = [line[column:] for line in lines]
    frame = max((place for place, line in enumerate(bare) if line.lstrip().startswith('File "')), default=-1)
    raised = [
        place
        for place, line in enumerate(bare)
        if place > frame and line[:1].strip() and not line.startswith(_TRACEBACK) and line.strip(" ^~")
    ]
    kept = [place for place in (frame, *raised[:1]) if place >= 0]
    return [lines[place] for place in kept] or lines


def _where(places: dict[str, list[str]]) -> str:
    """Nodes, pods and ranks in words."""
    parts = []
    for kind in ("node", "gpu", "pod", "rank"):
        if names := places.get(kind):
            shown = ", ".join(_some(names))
            parts.append(f"{kind if len(names) == 1 else f'{kind}s'} {shown}")
    return "; ".join(parts)


def _some(names: Iterable[str], most: int = 4) -> list[str]:
    held = [*names]
    return held if len(held) <= most else [*held[:most], f"and {len(held) - most} more"]
