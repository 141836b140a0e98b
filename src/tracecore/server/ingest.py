"""Take facts, verdicts and incidents that agents and detectors send by OTLP.

Incidents and verdicts are stored at once. Facts go into the store's inbox, where the detector finds them. A request is
answered when all of it is durable.
"""

from __future__ import annotations

import contextvars
import logging
import threading
from collections.abc import Callable, Sequence
from typing import Any, Final

import msgspec
from sqlalchemy.exc import SQLAlchemyError

from tracecore.agent.batch import Refused
from tracecore.facts import wire as fact_wire
from tracecore.incidents import wire as incident_wire
from tracecore.server.committing import Committer
from tracecore.signals.otlp import bounds, decoding
from tracecore.signals.otlp.messages import OtlpError
from tracecore.store import inbox, writing
from tracecore.store.database import why_failed
from tracecore.store.store import Store
from tracecore.store.update import BadIncident, IncidentUpdate, read_update

log = logging.getLogger("tracecore.server")

#: Requests with facts that may wait for the detector.
MAX_WAITING: Final = 20_000
#: The principal of a gRPC request, set where its token is checked.
TENANT: contextvars.ContextVar[str] = contextvars.ContextVar("tenant", default="")
_VERDICT: Final = "verdict.id"


class Taken(msgspec.Struct):
    """The content of one request."""

    at: int
    tenant: str = ""
    facts: bytes = b""
    updates: list[IncidentUpdate] = []
    verdicts: list[dict[str, Any]] = []
    skipped: dict[str, int] = {}


class Ingest:
    """Takes export requests of any thread."""

    def __init__(self, store: Store, clock: Callable[[], int]) -> None:
        self._store = store
        self._clock = clock
        #: Called when there are new facts.
        self.woken: Callable[[], None] = lambda: None
        self._committer: Committer[Taken] = Committer(self._write)
        self._lock = threading.Lock()
        #: Taken and skipped records by kind and reason.
        self.counts: dict[str, int] = {}
        #: Requests in the inbox; the detector counts them now and then.
        self.waiting = 0

    def counted(self, waiting: int) -> None:
        """Hear from the detector how many requests wait."""
        self.waiting = waiting

    def take(self, signal: str, raw: bytes, tenant: str = "") -> dict[str, int]:
        """Store what a request brings; return how many records were skipped, by reason.

        Raises:
            OtlpError: it is no request.
            Refused: not now.
        """
        if signal != "logs":
            # Agents send facts instead of measurements; a pipeline that sends more should not fail for it.
            self._count("ignored_" + signal, 1)
            return {}
        bounds.check("logs", raw)
        taken = self._read(decoding.decode("logs", raw), raw, tenant)
        if taken.facts and self.waiting > MAX_WAITING:
            self._count("refused", 1)
            raise Refused("too many facts wait for the detector")
        if taken.facts or taken.updates or taken.verdicts:
            try:
                self._committer.submit(taken)
            except SQLAlchemyError as error:
                why = why_failed(error)
                log.warning("nothing is stored: %s", why)
                raise Refused(f"the database takes nothing: {why}") from None
        if taken.facts:
            self.waiting += 1
            self.woken()
        for reason, count in taken.skipped.items():
            self._count(f"skipped_{reason}", count)
        return taken.skipped

    def _read(self, payload: dict[str, Any], raw: bytes, tenant: str) -> Taken:
        now = self._clock()
        taken = Taken(at=now, tenant=tenant)
        facts = 0
        for entry in payload.get("resource_logs") or ():
            resource = (entry.get("resource") or {}).get("attributes") or {}
            for held in entry.get("scope_logs") or ():
                records = held.get("log_records") or ()
                if (held.get("scope") or {}).get("name") == fact_wire.SCOPE:
                    facts += len(records)
                    continue
                for record in records:
                    reason = self._record(taken, resource, record, now)
                    if reason:
                        taken.skipped[reason] = taken.skipped.get(reason, 0) + 1
        if facts:
            # A request is kept as it came: what the detector does not understand it passes over.
            taken.facts = raw
        self._count("facts", facts)
        self._count("incidents", len(taken.updates))
        self._count("verdicts", len(taken.verdicts))
        return taken

    def _record(self, taken: Taken, resource: dict[str, Any], record: dict[str, Any], now: int) -> str:
        """Take one record; the reason why it is skipped, or nothing."""
        attributes = record.get("attributes") or {}
        if incident_wire.is_incident(record):
            document = incident_wire.decoded(record, resource)
            if isinstance(document, str):
                return f"incident_{document}"
            try:
                taken.updates.append(read_update(document, now=now, tenant=taken.tenant))
            except BadIncident:
                return "incident_malformed"
            return ""
        if _VERDICT in attributes:
            row = _verdict(attributes, resource, record, now, taken.tenant)
            if row is None:
                return "verdict_malformed"
            taken.verdicts.append(row)
            return ""
        return "not_a_fact"

    def _write(self, group: Sequence[Taken]) -> None:
        now = self._clock()
        with self._store.database.write() as connection:
            updates = [update for taken in group for update in taken.updates]
            if updates:
                writing.put(self._store.database, connection, updates, now)
            rows = {row["id"]: row for row in _in_order([row for taken in group for row in taken.verdicts])}
            writing.put_verdicts(self._store.database, connection, rows.values())
            inbox.add(connection, [(taken.at, taken.tenant, taken.facts) for taken in group if taken.facts])

    def _count(self, what: str, count: int) -> None:
        if count:
            with self._lock:
                self.counts[what] = self.counts.get(what, 0) + count


def _in_order(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(rows, key=lambda row: int(row["revision"]))


def _verdict(
    attributes: dict[str, Any], resource: dict[str, Any], record: dict[str, Any], now: int, tenant: str
) -> dict[str, Any] | None:
    """A verdict's record as a row."""
    document = {
        **attributes,
        "role": attributes.get("pattern.role", ""),
        "headline": attributes.get("pattern.headline") or record.get("body") or "",
    }
    job, node = resource.get("gen_ai.training.job_id"), resource.get("k8s.node.name") or resource.get("host.name")
    row = writing.verdict_row(
        document,
        now,
        job=job[:300] if isinstance(job, str) else "",
        node=node[:300] if isinstance(node, str) else "",
        tenant=tenant,
    )
    time = record.get("time_unix_nano")
    if row is not None and isinstance(time, int) and 0 < time < 1 << 63:
        row["time"] = time
    return row


__all__ = ["TENANT", "Ingest", "OtlpError", "Refused"]
