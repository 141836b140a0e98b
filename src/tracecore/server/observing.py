"""The state of jobs and nodes from facts, healthy or not: progress, attempts, Xids, links, heat."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import msgspec
from sqlalchemy import Connection, select

from tracecore.agent.options import SECOND
from tracecore.facts import wire
from tracecore.facts.fact import Fact
from tracecore.facts.gpu import AerError, EccDelta, GpuDriverError, GpuLost, NvlinkRate, Sxid, ThrottleSample, Xid
from tracecore.facts.host import Heartbeat, HostEvent
from tracecore.facts.network import LinkState, PortState
from tracecore.facts.process import ExitStatus
from tracecore.facts.training import Progress
from tracecore.store import jobs as job_writes
from tracecore.store import nodes as node_writes
from tracecore.store.database import Database
from tracecore.store.jobs import JobReport
from tracecore.store.nodes import NodeReport
from tracecore.store.store import Store
from tracecore.store.tables import jobs
from tracecore.store.update import MAX_NAME, MAX_TEXT, clean
from tracecore.store.writing import seen_at

#: Nanoseconds between two stored reports of one rank, and ranks of a job whose reports are stored.
EVERY: Final = 10 * SECOND
RANKS: Final = 64
#: Jobs that are remembered.
JOBS: Final = 10_000
#: How often a node that is merely alive is written.
ALIVE: Final = 60 * SECOND

#: What an event of a node is called.
KINDS: Final[dict[type[Fact], str]] = {
    Xid: "xid",
    GpuLost: "xid",
    GpuDriverError: "xid",
    Sxid: "link",
    EccDelta: "ecc",
    ThrottleSample: "throttle",
    NvlinkRate: "link",
    LinkState: "link",
    PortState: "link",
    AerError: "pcie",
    HostEvent: "host",
}


class _Job(msgspec.Struct):
    tenant: str = ""
    ranks: int = 0
    gpus: int = 0
    step: int | None = None
    total: int | None = None
    last: int = 0
    attempts: dict[int, dict[str, Any]] = {}
    reported: dict[int, int] = {}


class Observer:
    """Gathers what facts say, and writes it with the detector's transaction."""

    def __init__(self, store: Store) -> None:
        self._database: Database = store.database
        self._jobs: dict[str, _Job] = {}
        self._changed: set[str] = set()
        self._points: dict[tuple[str, int, int], dict[str, Any]] = {}
        self._nodes: dict[str, int] = {}
        self._heard: dict[str, int] = {}
        self._alive: dict[str, int] = {}
        self._gpus: dict[tuple[str, str], int] = {}
        self._events: dict[tuple[str, int, str], dict[str, Any]] = {}
        self._places: dict[tuple[str, str], int] = {}

    def __bool__(self) -> bool:
        return bool(self._changed or self._nodes or self._events or self._gpus)

    def tenant(self, job: str) -> str:
        return self._jobs[job].tenant if job in self._jobs else self._known(job).tenant if job else ""

    def gpus(self, job: str) -> int:
        """GPUs of a job, as far as its ranks say."""
        held = self._jobs.get(job) or (self._known(job) if job else _Job())
        return max(held.gpus, held.ranks)

    def look(self, facts: Iterable[Fact], tenant: str, now: int) -> None:
        """Learn from the facts of a request."""
        for fact in facts:
            if fact.time > now + 60 * SECOND or fact.time <= 0:
                continue
            if fact.node:
                self._place(fact, now)
            if fact.job:
                self._job_of(fact, tenant)

    def _place(self, fact: Fact, now: int) -> None:
        node = clean(fact.node or "", MAX_NAME)
        if now > self._heard.get(node, 0) + ALIVE:
            self._heard[node] = now
            self._nodes[node] = max(fact.end, self._nodes.get(node, 0))
        if fact.end > self._alive.get(node, 0) + ALIVE or type(fact) in KINDS:
            self._alive[node] = self._nodes[node] = max(fact.end, self._nodes.get(node, 0))
        if fact.job:
            key = (clean(fact.job, MAX_NAME), node)
            if fact.end > self._alive.get("\x00".join(key), 0) + ALIVE:
                self._alive["\x00".join(key)] = self._places[key] = fact.end
        if fact.gpu and type(fact) is not ThrottleSample:
            self._gpus[node, clean(fact.gpu, 80)] = fact.end
        kind = KINDS.get(type(fact))
        if kind is None or (isinstance(fact, ThrottleSample) and fact.reason in (None, "none")):
            return
        uid = wire.uid(fact)
        self._events[node, fact.time, uid] = {
            "node": node,
            "time": fact.time,
            "uid": uid,
            "kind": kind,
            "gpu": clean(fact.gpu or "", 80),
            "value": _value(fact),
            "text": clean(fact.describe(), MAX_TEXT),
        }

    def _job_of(self, fact: Fact, tenant: str) -> None:
        name = clean(fact.job or "", MAX_NAME)
        held = self._jobs.get(name)
        if held is None:
            held = self._jobs[name] = self._known(name)
            if len(self._jobs) > JOBS:
                del self._jobs[next(iter(self._jobs))]
        held.tenant = held.tenant or tenant
        held.ranks = max(held.ranks, (fact.rank or 0) + 1 if fact.rank is not None else 0)
        if fact.end > held.last + SECOND or not isinstance(fact, (Progress, Heartbeat)):
            self._changed.add(name)
        held.last = max(held.last, fact.end)
        if isinstance(fact, Heartbeat):
            return
        self._attempt_of(name, held, fact)
        if isinstance(fact, Progress):
            self._progress_of(name, held, fact)

    def _attempt_of(self, name: str, held: _Job, fact: Fact) -> None:
        attempt = held.attempts.get(fact.attempt)
        if attempt is None:
            attempt = held.attempts[fact.attempt] = {
                "job": name, "attempt": fact.attempt, "state": "running", "started_at": fact.time, "ended_at": None,
                "first_step": None, "last_step": None, "exit_code": None, "reason": "", "nodes": "[]",
            }  # fmt: skip
            self._changed.add(name)
        attempt["started_at"] = min(attempt["started_at"], fact.time)
        if isinstance(fact, Progress) and fact.step is not None:
            first, last = attempt["first_step"], attempt["last_step"]
            attempt["first_step"] = fact.step if first is None else min(first, fact.step)
            attempt["last_step"] = fact.step if last is None else max(last, fact.step)
            if attempt["ended_at"] is not None and fact.end > attempt["ended_at"]:
                attempt |= {"ended_at": None, "state": "running"}
        if isinstance(fact, ExitStatus):
            code = fact.exit_code
            if attempt["state"] != "failed":
                attempt["state"] = "failed" if code or fact.signal else "finished"
                attempt["exit_code"] = code
                attempt["reason"] = clean(fact.describe(), MAX_TEXT)
            attempt["ended_at"] = max(attempt["ended_at"] or 0, fact.end)

    def _progress_of(self, name: str, held: _Job, fact: Progress) -> None:
        rank = -1 if fact.rank is None else fact.rank
        if fact.step is not None:
            held.step = fact.step
        held.total = fact.total_steps or held.total
        if rank >= RANKS or fact.end < held.reported.get(rank, 0) + EVERY:
            return
        held.reported[rank] = fact.end
        self._points[name, fact.end, rank] = {
            "job": name, "time": fact.end, "rank": rank, "attempt": fact.attempt, "step": fact.step,
            "loss": fact.loss, "step_s": fact.iter_time_s, "data_s": fact.data_time_s,
        }  # fmt: skip

    def _known(self, name: str) -> _Job:
        """Return the job as the store knows it."""
        with self._database.read() as connection:
            row = connection.execute(select(jobs).where(jobs.c.name == name)).first()
        if row is None:
            return _Job()
        return _Job(tenant=row.tenant, ranks=row.ranks, gpus=row.gpus, step=row.step, total=row.total_steps)

    def write(self, connection: Connection) -> None:
        """Write what was gathered, in a transaction of the caller's."""
        reports: list[JobReport] = []
        tries: list[dict[str, Any]] = []
        for name in sorted(self._changed):
            held = self._jobs.get(name)
            if held is None:
                continue
            last = held.attempts.get(max(held.attempts, default=0))
            reports.append(
                JobReport(
                    name=name, at=held.last, state=str(last["state"]) if last else "running", tenant=held.tenant,
                    ranks=held.ranks, gpus=max(held.gpus, held.ranks), step=held.step, total_steps=held.total,
                )
            )  # fmt: skip
            tries += held.attempts.values()
        job_writes.report_jobs(self._database, connection, reports)
        job_writes.put_attempts(self._database, connection, tries)
        job_writes.add_progress(self._database, connection, self._points.values())
        seen = [NodeReport(name=name, at=at, heard=self._heard.get(name)) for name, at in self._nodes.items()]
        seen += [NodeReport(name=name, gpu=gpu, at=at) for (name, gpu), at in self._gpus.items()]
        node_writes.report_nodes(self._database, connection, seen)
        node_writes.add_events(self._database, connection, [self._events[key] for key in sorted(self._events)])
        if self._places:
            seen_at(self._database, connection, self._places)
        for held_back in (self._changed, self._points, self._nodes, self._gpus, self._events, self._places):
            held_back.clear()


def _value(fact: Fact) -> float | None:
    """The number an event is drawn with."""
    for name in ("code", "delta", "temperature_c", "bytes_per_second"):
        found = getattr(fact, name, None)
        if isinstance(found, (int, float)):
            return float(found)
    return None
