"""An incident: one root cause, what it explains, what was not measured."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import msgspec

from tracecore.facts.fact import order
from tracecore.incidents.fingerprint import fingerprint
from tracecore.patterns.contract import LastLines, Suspects, Verdict, rfc3339

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracecore.engine.emission import Emission
    from tracecore.facts.fact import Fact
    from tracecore.incidents.run import JobAttempt

Status: TypeAlias = Literal["diagnosed", "insufficient_evidence"]


class Edge(msgspec.Struct, frozen=True):
    """One verdict explains another, and why."""

    cause: str
    effect: str
    reason: str


class Alternative(msgspec.Struct, frozen=True):
    """A verdict that could have been the root, and why it is not."""

    verdict: str
    pattern: str
    reason: str


class Gap(msgspec.Struct, frozen=True):
    """A layer that nobody measured, and how to have it next time."""

    layer: str
    enable: str


class Incident(msgspec.Struct, kw_only=True):
    """The verdicts of one job in one episode, arbitrated.

    Args:
        root: the verdict that names the cause; None where the evidence does not.
        symptoms: the verdicts it explains, directly or through another, in order of time.
        edges: what explains what.
        alternatives: what else was considered.
        gaps: layers that were not measured.
        suspects: whom to look at first.
        attempt: which start of the job.
        origin: names the run where the job has no name: when it began, or what speaks of it first.
        slot: tells incidents of one attempt apart: the number of the episode, or a condition that ends no run.
        first, last: nanoseconds of the first and the last evidence.
        timed: these times were read, not inferred.
        evidence: facts to show where there is no root.
        advice: what to do, in a sentence or two.
        last_lines: what the suspects of a hang wrote last.
        judged: the root's verdict with what is known beside it; the root's own where nothing is.
        failure: class, suggestion and retry decision, filled in by whoever classifies.
    """

    status: Status
    headline: str
    advice: str
    root: Emission | None
    symptoms: list[Emission]
    edges: list[Edge]
    alternatives: list[Alternative]
    gaps: list[Gap]
    suspects: Suspects
    job: str = ""
    attempt: int = 0
    origin: str = ""
    slot: str = "0"
    first: int = 0
    last: int = 0
    timed: bool = True
    evidence: tuple[Fact, ...] = ()
    last_lines: tuple[LastLines, ...] = ()
    judged: Verdict | None = None
    failure: dict[str, Any] | None = None

    @property
    def id(self) -> str:
        """Deterministic, and without the pattern: a better diagnosis of an episode is the same incident."""
        name = "\x00".join((self.job or self.origin, str(self.attempt), self.slot))
        return f"incident-{hashlib.blake2b(name.encode('utf-8', 'surrogatepass'), digest_size=6).hexdigest()}"

    @property
    def is_machine_only(self) -> bool:
        """Tell whether all it rests on was said by machines, and nothing by the job itself."""
        return bool(self.evidence) and all(fact.layer in ("kernel", "metrics", "kubernetes") for fact in self.evidence)

    @property
    def fingerprint(self) -> str:
        """The same for the same kind of failure in another job."""
        return fingerprint(self.root.verdict.pattern_name if self.root else "", self.headline)

    def document(self) -> dict[str, Any]:
        """As `docs/diagnosis.schema.json` describes it."""
        document: dict[str, Any] = {
            "id": self.id,
            "status": self.status,
            "headline": self.headline,
            "root_cause": None
            if self.root is None
            else {"pattern": self.root.verdict.pattern_name, "verdict": self.root.id},
            "suspects": {
                "ranks": list(self.suspects.ranks),
                "nodes": list(self.suspects.nodes),
                "gpus": list(self.suspects.gpus),
                "pods": list(self.suspects.pods),
            },
            "explains": [emission.id for emission in self.symptoms],
            "not_measured": [gap.layer for gap in self.gaps],
            "failure": self.failure or {"class": "unknown"},
            "first_seen": rfc3339(self.first),
            "last_seen": rfc3339(self.last),
            "remediation": self.advice,
            "edges": [{"cause": e.cause, "effect": e.effect, "reason": e.reason} for e in self.edges],
            "alternatives": [
                {"verdict": a.verdict, "pattern": a.pattern, "reason": a.reason} for a in self.alternatives
            ],
            "how_to_measure": {gap.layer: gap.enable for gap in self.gaps},
            "attempt": self.attempt,
            "fingerprint": self.fingerprint,
        }
        if self.last_lines:
            document["last_lines"] = [_quoted(lines) for lines in self.last_lines]
        if self.job:
            document["job"] = self.job
        if not self.timed:
            document["times_inferred"] = True
        return document


def origin(attempt: JobAttempt | None, evidence: Sequence[Fact]) -> str:
    """Name a run without a job id: by when it began, else by the first that speaks of it."""
    if attempt is not None and attempt.timed:
        return f"@{attempt.first}"
    first = min(evidence, key=order, default=None)
    if first is None:
        return ""
    return first.uid if first.approximate else f"{first.node or ''}@{first.time}"


def _quoted(lines: LastLines) -> dict[str, Any]:
    document: dict[str, Any] = {"rank": lines.rank, "file": lines.path, "line": lines.lines[0][0]}
    document["text"] = [text for _, text in lines.lines]
    if lines.doing:
        document["doing"] = lines.doing
    return document
