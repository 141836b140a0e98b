"""Verdicts and incidents as log records."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import msgspec

from tracecore.agent.batch import Batch
from tracecore.engine.emission import Emission
from tracecore.incidents.live import Update
from tracecore.patterns.contract import Suspects

if TYPE_CHECKING:
    from tracecore.agent.processors.patterndetector.grouping import Summary

#: The name under which what was held back is told.
HELD_BACK: Final = "verdicts_held_back"
SCOPE: Final = "tracecore.patterndetector"


def batch(
    emissions: Sequence[Emission], updates: Sequence[Update], now: int, held_back: Summary | None = None
) -> Batch:
    """A batch of them, each with the entities it is about as its resource."""
    told = [(entities_of(emission), _record(emission, now)) for emission in emissions]
    if held_back is not None:
        told.append(({"service.name": "tracecore"}, _summary(held_back)))
    told += [(_entities(update.incident.suspects, update.incident.job), _incident(update)) for update in updates]
    entries = [
        {
            "resource": {"attributes": entities},
            "scope_logs": [{"scope": {"name": SCOPE}, "log_records": [record]}],
        }
        for entities, record in told
    ]
    return Batch("logs", {"resource_logs": entries}, count=len(entries))


def entities_of(emission: Emission) -> dict[str, Any]:
    """Whom a verdict is about, where it is one."""
    return _entities(emission.verdict.suspects(), _job(emission))


def _summary(held_back: Summary) -> dict[str, Any]:
    """What was held back, as a verdict of its own, so that every exporter tells it."""
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


def _entities(suspects: Suspects, job: str) -> dict[str, Any]:
    """Whom it is about, where it is one."""
    found: dict[str, Any] = {"service.name": "tracecore"}
    if len(suspects.nodes) == 1:
        found["k8s.node.name" if suspects.pods else "host.name"] = suspects.nodes[0]
    if len(suspects.pods) == 1:
        namespace, _, name = suspects.pods[0].rpartition("/")
        found |= {"k8s.namespace.name": namespace, "k8s.pod.name": name} if namespace else {"k8s.pod.name": name}
    if job:
        found["gen_ai.training.job_id"] = job
    return found


def _incident(update: Update) -> dict[str, Any]:
    incident = update.incident
    document = update.document()
    attributes: dict[str, Any] = {
        "incident.id": update.id,
        "incident.revision": update.revision,
        "incident.state": update.state,
        "incident.fingerprint": incident.fingerprint,
        "incident.headline": incident.headline,
        "incident.remediation": incident.advice,
        "incident.class": document["failure"]["class"],
        "incident.patterns": list(dict.fromkeys(held.verdict.pattern_name for held in update.verdicts)),
        "incident.json": msgspec.json.encode(document).decode(),
    }
    if incident.root is not None:
        attributes["pattern.name"] = incident.root.verdict.pattern_name
    over = update.state == "resolved"
    return {
        "body": incident.headline,
        "attributes": attributes,
        "time_unix_nano": incident.first,
        "observed_time_unix_nano": update.at,
        "severity_number": 9 if over else 17,
        "severity_text": "INFO" if over else "ERROR",
        "event_name": "tracecore.incident",
    }


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
