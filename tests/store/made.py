"""Incident documents made up for tests."""

from __future__ import annotations

from typing import Any

from tracecore.incidents.fingerprint import fingerprint
from tracecore.patterns.contract import rfc3339

T0 = 1_800_000_000 * 10**9
SECOND = 10**9


def incident(
    number: int = 1,
    *,
    revision: int = 1,
    state: str = "diagnosed",
    job: str = "llama-7b",
    node: str = "gpu-node-17",
    pattern: str = "gpu_fault",
    headline: str = "GPU 3 of gpu-node-17 fell off the bus (Xid 79)",
    at: int = T0,
    **more: Any,
) -> dict[str, Any]:
    """An update's document, as `incidents.live.Update.document` writes it."""
    verdict = f"{pattern}-{number:012x}"
    return {
        "id": f"incident-{number:012x}",
        "status": "diagnosed",
        "headline": headline,
        "root_cause": {"pattern": pattern, "verdict": verdict} if pattern else None,
        "suspects": {"ranks": [3], "nodes": [node] if node else [], "gpus": ["0000:3b:00.0"], "pods": []},
        "explains": [],
        "not_measured": ["metrics"],
        "failure": {"class": "infrastructure", "retry": {"decision": "retry", "reason": "retry 1 of 3 at once"}},
        "first_seen": rfc3339(at),
        "last_seen": rfc3339(at + SECOND),
        "remediation": "Drain the node.",
        "job": job,
        "attempt": 0,
        "fingerprint": fingerprint(pattern, headline),
        "state": state,
        "revision": revision,
        "updated_at": rfc3339(at + revision * SECOND),
        "reason": "new",
        "verdicts": [
            {
                "verdict.id": verdict,
                "verdict.revision": revision,
                "verdict.status": "active",
                "verdict.time": rfc3339(at),
                "pattern.id": "1",
                "pattern.name": pattern,
                "role": "cause",
                "headline": headline,
                "remediation": "Drain the node.",
                "evidence_trail": [
                    {
                        "kind": "kernel_event",
                        "uid": f"{node}:kmsg#{number}",
                        "timestamp": rfc3339(at),
                        "description": "Xid 79 on 0000:3b:00.0, GPU has fallen off the bus",
                    }
                ],
            }
        ]
        if pattern
        else [],
        **more,
    }
