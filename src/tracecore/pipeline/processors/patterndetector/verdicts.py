"""Verdicts as log records."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from tracecore.engine.emission import Emission
from tracecore.pipeline.agent.batch import Batch

SCOPE: Final = "tracecore.patterndetector"


def batch(emissions: Sequence[Emission], now: int) -> Batch:
    """A batch of them, each with the entities it is about as its resource."""
    entries = [
        {
            "resource": {"attributes": _entities(emission)},
            "scope_logs": [{"scope": {"name": SCOPE}, "log_records": [_record(emission, now)]}],
        }
        for emission in emissions
    ]
    return Batch("logs", {"resource_logs": entries}, count=len(entries))


def _entities(emission: Emission) -> dict[str, Any]:
    """Whom a verdict is about, where it is one."""
    suspects = emission.verdict.suspects()
    found: dict[str, Any] = {"service.name": "tracecore"}
    if len(suspects.nodes) == 1:
        found["k8s.node.name" if suspects.pods else "host.name"] = suspects.nodes[0]
    if len(suspects.pods) == 1:
        namespace, _, name = suspects.pods[0].rpartition("/")
        found |= {"k8s.namespace.name": namespace, "k8s.pod.name": name} if namespace else {"k8s.pod.name": name}
    jobs = {fact.job for fact in emission.verdict.evidence() if fact.job}
    if len(jobs) == 1:
        found["gen_ai.training.job_id"] = jobs.pop()
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
