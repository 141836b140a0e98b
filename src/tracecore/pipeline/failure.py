"""The failure class of an incident: whose move is next, and whether to retry."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from tracecore.incidents.incident import Incident
    from tracecore.incidents.run import Attempt

#: Of a log, the end that is looked at.
TAIL: Final = 256 * 1024

NOTHING_FAILED: Final = "none"

_BY_PATTERN: Final = {
    "cuda_oom": "resource",
    "host_oom": "infrastructure",
    "gpu_fault": "infrastructure",
    "gpu_app_fault": "code",
    "hbm_ecc": "infrastructure",
    "collective_mismatch": "code",
    "training_divergence": "code",
    "nccl_hang": "resource",
    "nccl_bootstrap": "infrastructure",
    "checkpointer_hang": "resource",
    "dataloader_hang": "infrastructure",
    "pod_evicted": "infrastructure",
    "planned_stop": "infrastructure",
    "storage_failure": "infrastructure",
}


def failure_of(incident: Incident, attempt: Attempt | None, tail: str = "") -> dict[str, Any]:
    """Class, suggestion and retry decision of an incident.

    Args:
        attempt: how the processes ended.
        tail: the end of the suspect's log.
    """
    if attempt is not None and attempt.state == "finished":
        return {"class": NOTHING_FAILED, "suggestion": "Nothing failed.", "retry": _no("the run finished")}
    root = incident.root
    fields = root.verdict.fields() if root is not None else {}
    name = root.verdict.pattern_name if root is not None else ""
    kind = _BY_PATTERN.get(name, "unknown")
    if name == "worker_crash":
        signal = fields.get("tracecore.process.signal")
        kind = "infrastructure" if signal == "SIGKILL" else "code"
    return {"class": kind, "suggestion": incident.advice, "retry": _no("not classified")}


def _no(reason: str) -> dict[str, Any]:
    return {"decision": "no", "reason": reason}
