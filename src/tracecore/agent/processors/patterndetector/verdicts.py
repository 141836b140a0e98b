"""Verdicts and incidents as log records."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from tracecore.agent.batch import Batch
from tracecore.engine.emission import Emission
from tracecore.incidents import wire
from tracecore.incidents.live import Update

if TYPE_CHECKING:
    from tracecore.agent.processors.patterndetector.grouping import HeldBackVerdicts

#: The name under which what was held back is told.
HELD_BACK: Final = "verdicts_held_back"
SCOPE: Final = "tracecore.patterndetector"
#: The scopes of what a detector says.
SCOPES: Final = frozenset({SCOPE, wire.SCOPE})


def batch(
    emissions: Sequence[Emission], updates: Sequence[Update], now: int, held_back: HeldBackVerdicts | None = None
) -> Batch:
    """A batch of them, each with the entities it is about as its resource."""
    told = [(entities_of(emission), _record(emission, now)) for emission in emissions]
    if held_back is not None:
        told.append(({"service.name": "tracecore"}, _summary(held_back)))
    entries: list[dict[str, Any]] = [
        {
            "resource": {"attributes": entities},
            "scope_logs": [{"scope": {"name": SCOPE}, "log_records": [record]}],
        }
        for entities, record in told
    ]
    for update in updates:
        signal = wire.to_record(update.document())
        scope_logs = [{"scope": signal["scope"], "log_records": [signal["log"]]}]
        entries.append({"resource": signal["resource"], "scope_logs": scope_logs})
    return Batch("logs", {"resource_logs": entries}, count=len(entries))


def told_elsewhere(payload: Mapping[str, Any]) -> dict[str, Any]:
    """Return the verdicts and incidents among these records, which another detector made."""
    return {
        "resource_logs": [
            {**entry, "scope_logs": told}
            for entry in payload.get("resource_logs") or ()
            if (told := [held for held in entry.get("scope_logs") or () if is_told(held)])
        ]
    }


def is_told(held: Mapping[str, Any]) -> bool:
    """Tell whether the records of a scope are verdicts or incidents."""
    return (held.get("scope") or {}).get("name") in SCOPES


def _summary(held_back: HeldBackVerdicts) -> dict[str, Any]:
    """Return a verdict that says how much was held back, so that every exporter tells it."""
    return {
        "body": held_back.headline,
        "attributes": {
            "pattern.name": HELD_BACK,
            "pattern.headline": held_back.headline,
            "pattern.remediation": "Look at the first verdicts of each group; the latest of the others follow. "
            "If a log makes them up, quiet that workload.",
            "pattern.role": "outcome",
            "verdict.id": f"{HELD_BACK}/{held_back.since}",
            "verdict.revision": 1,
            "verdict.status": "active",
            "verdict.held_back": held_back.count,
        },
        "time_unix_nano": held_back.since,
        "observed_time_unix_nano": held_back.at,
        "severity_number": 13,
        "severity_text": "WARN",
        "event_name": "tracecore.verdict",
    }


def _job(emission: Emission) -> str:
    jobs = {fact.job for fact in emission.verdict.evidence() if fact.job}
    return jobs.pop() if len(jobs) == 1 else ""


def entities_of(emission: Emission) -> dict[str, Any]:
    """Name the node, pod and job of a verdict, where there is only one of each."""
    suspects, job = emission.verdict.suspects(), _job(emission)
    found: dict[str, Any] = {"service.name": "tracecore"}
    if len(suspects.nodes) == 1:
        found["k8s.node.name" if suspects.pods else "host.name"] = suspects.nodes[0]
    if len(suspects.pods) == 1:
        namespace, _, name = suspects.pods[0].rpartition("/")
        found |= {"k8s.namespace.name": namespace, "k8s.pod.name": name} if namespace else {"k8s.pod.name": name}
    if job:
        found["gen_ai.training.job_id"] = job
    return found


def _record(emission: Emission, now: int) -> dict[str, Any]:
    verdict = emission.verdict
    active = emission.status == "active"
    return {
        "body": verdict.headline(),
        "attributes": {
            **verdict.attributes(),
            "pattern.role": verdict.role,
            "verdict.id": emission.id,
            "verdict.revision": emission.revision,
            "verdict.status": emission.status,
        },
        "time_unix_nano": verdict.time,
        "observed_time_unix_nano": now,
        "severity_number": 17 if active else 9,
        "severity_text": "ERROR" if active else "INFO",
        "event_name": "tracecore.verdict",
    }
