"""Projectors of kernel lines about the machine, and of scheduler output about jobs and nodes."""

from __future__ import annotations

from typing import Any, Final

from tracecore.facts.coerce import flag, integer, name, natural, positive, text, word
from tracecore.facts.host import HostEvent, SlurmState
from tracecore.facts.identity import Stamped
from tracecore.facts.kubernetes import GIVEN_UP, SLURM_DOWN, NodeReadiness
from tracecore.facts.memory import MemoryKillReport, OomKill
from tracecore.facts.projectors.projector import Projection
from tracecore.facts.stop import PlannedStop
from tracecore.signals.scheduler.slurm import hosts

#: Maximum number of tasks to read from one list.
MOST_TASKS: Final = 256

#: The reason for the stop, by the state of Slurm.
_STOPPED = {
    "TIMEOUT": "time_limit",
    "DEADLINE": "time_limit",
    "PREEMPTED": "preempted",
    "CANCELLED": "cancelled",
    "REVOKED": "cancelled",
}


def host_event(record: Stamped) -> HostEvent | None:
    event = word(record.get("kernelevents.host"))
    if event is None:
        return None
    return HostEvent(
        **record.identity(),
        event=event,
        detail=text(record.get("kernelevents.host.detail"), 512),
        process=name(record.get("kernelevents.host.process")),
        pid=positive(record.get("process.pid")),
        training=flag(record.get("kernelevents.host.training")) is True,
    )


def oom_kill(record: Stamped) -> OomKill | None:
    prefix = "kernelevents.oom."
    kill = OomKill(
        **record.identity(),
        victim_pid=positive(record.get(prefix + "victim_pid")),
        victim_name=name(record.get(prefix + "victim_name")),
        cgroup=name(record.get(prefix + "cgroup")),
        constraint=_constraint(record.get(prefix + "constraint")),
        rss_kb=natural(record.get(prefix + "rss_kb")),
        limit_kb=natural(record.get(prefix + "limit_kb")),
        invoked_by=name(record.get(prefix + "invoked_by")),
        pod_uid=name(record.get("k8s.pod.uid")),
    )
    said = (kill.victim_pid, kill.victim_name, kill.constraint, kill.limit_kb)
    return None if all(value is None for value in said) else kill


def _constraint(value: object) -> str | None:
    """Return `memcg` for both `CONSTRAINT_MEMCG` and `memcg`."""
    found = word(value)
    return None if found is None else found.removeprefix("constraint_")


def memory_kill_report(record: Stamped) -> MemoryKillReport | None:
    reporter = word(record.get("tracecore.host_oom.reporter"))
    if reporter is None:
        return None
    return MemoryKillReport(
        **record.identity(),
        reporter=reporter,
        pid=positive(record.get("process.pid")),
        detail=record.body,
        pod_uid=name(record.get("k8s.pod.uid")),
        ranks=_tasks(record.get("tracecore.host_oom.ranks")),
    )


def _tasks(value: object) -> tuple[int, ...]:
    """Read ranks as srun lists its tasks: `1-3,7`."""
    found: set[int] = set()
    for part in value.split(",", MOST_TASKS)[:MOST_TASKS] if isinstance(value, str) else ():
        first, _, last = part.partition("-")
        if first.isdecimal() and (last or first).isdecimal() and max(len(first), len(last)) < 8:
            found.update(range(int(first), min(int(last or first), int(first) + MOST_TASKS) + 1))
    return tuple(sorted(found))


def slurm_memory_kill(record: Stamped) -> MemoryKillReport | None:
    """Return a report for Slurm's state OUT_OF_MEMORY, if the record does not already give one."""
    if slurm_status(record) != "OUT_OF_MEMORY" or record.get("tracecore.host_oom.reporter") is not None:
        return None
    return MemoryKillReport(**_scheduled(record), reporter="slurm", detail=record.body)


def slurm_status(record: Stamped) -> str | None:
    """Return the state of Slurm: CANCELLED also for `CANCELLED by 1000` and `CANCELLED+`."""
    found = name(record.get("tracecore.slurm.state"))
    return None if found is None else found.upper().split()[0].rstrip("+")


def _scheduled(record: Stamped) -> dict[str, Any]:
    fields = record.identity()
    if "job" not in fields and (job := _slurm_job(record)) is not None:
        fields["job"] = job
    if (node := name(record.get("tracecore.slurm.node"))) is not None:
        fields["node"] = node
    if _slurm_job(record) is not None:
        # Slurm's line is about the whole job, even if it is in the file of one rank.
        fields.pop("rank", None)
    return fields


def _slurm_job(record: Stamped) -> str | None:
    job = record.get("tracecore.slurm.job_id")
    return name(str(job) if type(job) is int else job)


def slurm_state(record: Stamped) -> SlurmState | None:
    state = slurm_status(record)
    if not state:
        return None
    fields = _scheduled(record)
    if state == "NODE_FAIL" and name(record.get("tracecore.slurm.node")) is None:
        # A step is cancelled on every node for the failure of one, and the failed one cannot say so.
        fields.pop("node", None)
    return SlurmState(
        **fields,
        state=state,
        slurm_job=_slurm_job(record),
        exit_code=integer(record.get("tracecore.process.exit_code")),
        nodes=tuple(hosts(text(record.get("tracecore.slurm.nodes"), 4096) or "")),
    )


def slurm_node_lost(record: Stamped) -> NodeReadiness | None:
    """Return a fact about a node that does not answer Slurm."""
    state, _ = _slurm_node(record)
    silent = state.rstrip("$@^~#%-").endswith("*") or "NOT_RESPONDING" in state
    gone = silent or flag(record.get("tracecore.slurm.node_gone")) is True
    fields = record.identity()
    if not gone or "node" not in fields or not ("DOWN" in state or not state):
        return None
    return NodeReadiness(**fields, ready=False, status=state or None, reason=SLURM_DOWN, note=record.body)


def slurm_node_unavailable(record: Stamped) -> HostEvent | None:
    """Return a fact about a node that answers Slurm but gets no jobs."""
    state, reason = _slurm_node(record)
    kept_off = any(word in state for word in ("DOWN", "DRAIN", "FAIL")) or (not state and bool(reason))
    if not kept_off or slurm_node_lost(record) is not None or "node" not in record.identity():
        return None
    prolog = flag(record.get("tracecore.slurm.prolog_failed")) is True
    missing = flag(record.get("tracecore.slurm.gpu_missing")) is True
    event = "prolog_failed" if prolog else "gpu_missing" if missing else "node_unavailable"
    return HostEvent(**record.identity(), event=event, detail=": ".join(filter(None, (state.lower(), reason))))


def _slurm_node(record: Stamped) -> tuple[str, str]:
    """Return state and reason of a node. A list of reasons has no state."""
    state = name(record.get("tracecore.slurm.node_state")) or ""
    return state.upper(), text(record.get("tracecore.slurm.reason"), 512) or ""


def started_node_lost(record: Stamped) -> NodeReadiness | None:
    """Return a fact about a node that is gone according to the launcher of its processes: Ray's head, mpirun, Flux."""
    if flag(record.get("tracecore.node.lost")) is not True:
        return None
    fields = record.identity()
    if (host := name(record.get("tracecore.launcher.host"))) is not None:
        fields["node"] = host
    return NodeReadiness(**fields, ready=False, reason=GIVEN_UP, note=record.body)


def planned_stop(record: Stamped) -> PlannedStop | None:
    reason = word(record.get("tracecore.stop.reason"))
    if reason is None:
        return None
    return PlannedStop(
        **_scheduled(record),
        reason=reason,
        requester=word(record.get("tracecore.stop.source")),
        detail=record.body,
    )


def slurm_stop(record: Stamped) -> PlannedStop | None:
    """Return a stop for a Slurm state that means a requested end, if the record does not already give one."""
    reason = _STOPPED.get(slurm_status(record) or "")
    if reason is None or record.get("tracecore.stop.reason") is not None:
        return None
    return PlannedStop(**_scheduled(record), reason=reason, requester="slurm", detail=record.body)


HOST = (
    Projection(host_event, gate=("kernelevents.host",)),
    Projection(
        oom_kill,
        either=tuple(f"kernelevents.oom.{n}" for n in ("victim_pid", "victim_name", "constraint", "limit_kb")),
    ),
    Projection(memory_kill_report, gate=("tracecore.host_oom.reporter",)),
    Projection(slurm_state, gate=("tracecore.slurm.state",)),
    Projection(slurm_memory_kill, gate=("tracecore.slurm.state",)),
    Projection(slurm_node_lost, gate=("tracecore.slurm.node_state",)),
    Projection(slurm_node_unavailable, gate=("tracecore.slurm.node_state",)),
    Projection(started_node_lost, gate=("tracecore.node.lost",)),
    Projection(planned_stop, gate=("tracecore.stop.reason",)),
    Projection(slurm_stop, gate=("tracecore.slurm.state",)),
)
