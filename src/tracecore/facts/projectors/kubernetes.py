"""Projectors of Kubernetes events and of the state of pods and nodes."""

from __future__ import annotations

from tracecore.facts.coerce import flag, integer, moment, name, text, word
from tracecore.facts.host import HostEvent
from tracecore.facts.identity import Stamped
from tracecore.facts.kubernetes import (
    CNI_REASONS,
    COMPLETED,
    MOUNT_REASONS,
    PRESSURES,
    CniEvent,
    ContainerStarted,
    ContainerTerminated,
    MountEvent,
    NodePressure,
    NodeReadiness,
    PodEvicted,
    PodReady,
    WorkloadEvent,
)
from tracecore.facts.memory import MemoryKillReport
from tracecore.facts.projectors.projector import Projection
from tracecore.facts.stop import PlannedStop
from tracecore.signals.record import Source

_EVENT = ("k8s.event.reason", "k8s.event.hint")
#: Hints that another projector turns into its own fact.
_TYPED_HINTS = frozenset(
    {"pod_evicted", "preempted", "oom_killed", "node_pressure", "node_unhealthy", "node_problem", "network_not_ready"}
)


def _reason(record: Stamped) -> str | None:
    return name(record.get("k8s.event.reason"))


def _hint(record: Stamped) -> str | None:
    return word(record.get("k8s.event.hint"))


def _note(record: Stamped) -> str | None:
    return text(record.get("k8s.event.note"), 1024) or record.body


def pod_evicted(record: Stamped) -> PodEvicted | None:
    reason = _reason(record)
    if _hint(record) != "pod_evicted" and reason != "Evicted":
        return None
    if record.get("tracecore.stop.reason") is not None:
        return None  # the node is drained, so the eviction has no pressure as its cause
    fields = record.event_identity()
    if "pod" not in fields:
        return None
    return PodEvicted(
        **fields,
        reason=reason,
        note=_note(record),
        pod_uid=name(record.get("k8s.pod.uid")),
        by_taint=flag(record.get("k8s.event.by_taint")) is True,
        of_cluster=flag(record.get("k8s.pod.of_cluster")) is True,
    )


def node_pressure(record: Stamped) -> NodePressure | None:
    condition = name(record.get("k8s.node.condition"))
    status = word(record.get("k8s.node.condition.status"))
    active = {"true": True, "false": False}.get(status or "true")
    fields = record.event_identity()
    if condition not in PRESSURES or active is None or "node" not in fields:
        return None
    fields.pop("pod", None)
    return NodePressure(**fields, condition=condition, active=active, note=_note(record))


def node_readiness(record: Stamped) -> NodeReadiness | None:
    reason = _reason(record)
    status = name(record.get("k8s.node.condition.status"))
    condition = name(record.get("k8s.node.condition"))
    ready: bool | None = None
    if condition == "Ready" and status is not None:
        ready = status.lower() == "true"
    elif condition is None:
        ready = False if _hint(record) == "node_unhealthy" and reason != "Rebooted" else None
    fields = record.event_identity()
    if ready is None or ("node" not in fields and not ("pod" in fields and reason == "NodeNotReady")):
        return None
    if "node" in fields:
        fields.pop("pod", None)
    return NodeReadiness(**fields, ready=ready, status=status, reason=reason, note=_note(record))


def node_rebooted(record: Stamped) -> HostEvent | None:
    """Return a reboot, which the kubelet knows from a new boot id."""
    if _reason(record) != "Rebooted":
        return None
    fields = record.event_identity()
    fields.pop("pod", None)
    return HostEvent(**fields, event="boot", detail=_note(record), rebooted=True) if "node" in fields else None


def node_problem(record: Stamped) -> HostEvent | None:
    """Return a problem that a monitor of the node reports while the node goes on."""
    fields = record.event_identity()
    if _hint(record) != "node_problem" or "node" not in fields or record.get("kernelevents.xid") is not None:
        return None  # an Xid is a fact of its own
    fields.pop("pod", None)
    detail = ": ".join(filter(None, (_reason(record), _note(record))))
    return HostEvent(**fields, event="health_check", detail=detail)


def pod_ready(record: Stamped) -> PodReady | None:
    ready = moment(record.get("k8s.pod.ready_time"))
    fields = record.event_identity()
    if ready is None or "rank" not in fields:
        return None
    source: Source = fields["source"]
    who = fields.get("pod") or f"rank {fields['rank']}"
    # Every record of the pod has this attribute. The uid makes them one statement.
    fields["source"] = Source(source.path, source.offset, source.line, source.length, f"pod-ready:{who}:{ready}")
    fields["time"] = ready
    fields.pop("count", None)
    return PodReady(**fields, ready_time=ready, namespace=name(record.get("k8s.namespace.name")))


def mount_event(record: Stamped) -> MountEvent | None:
    reason = _reason(record)
    if reason not in MOUNT_REASONS or flag(record.get("k8s.event.passing")) is True:
        return None
    return MountEvent(
        **record.event_identity(),
        reason=reason,
        note=_note(record),
        volume=name(record.get("k8s.event.volume")),
        device=name(record.get("k8s.event.volume.source")),
        backend=word(record.get("k8s.event.volume.type")),
        waited=flag(record.get("k8s.event.waited")) is True,
    )


def cni_event(record: Stamped) -> CniEvent | None:
    reason = _reason(record)
    if reason not in CNI_REASONS and _hint(record) != "network_not_ready":
        return None
    return CniEvent(
        **record.event_identity(),
        reason=reason or "NetworkNotReady",
        note=_note(record),
        namespace=name(record.get("k8s.namespace.name")),
    )


def container_started(record: Stamped) -> ContainerStarted | None:
    if _reason(record) != "Started":
        return None
    fields = record.event_identity()
    return ContainerStarted(**fields) if "pod" in fields else None


def container_terminated(record: Stamped) -> ContainerTerminated | None:
    reason = name(record.get("k8s.container.terminated.reason"))
    code = integer(record.get("k8s.container.terminated.exit_code"))
    if reason is None and code is None:
        return None
    container = name(record.get("k8s.container.name"))
    return ContainerTerminated(
        **record.event_identity(),
        reason=reason,
        exit_code=code,
        container=container,
        pod_uid=name(record.get("k8s.pod.uid")),
    )


def memory_kill_event(record: Stamped) -> MemoryKillReport | None:
    if _hint(record) != "oom_killed" or record.get("tracecore.host_oom.reporter") is not None:
        return None
    return MemoryKillReport(
        **record.event_identity(),
        reporter="kubernetes",
        detail=_note(record),
        pod_uid=name(record.get("k8s.pod.uid")),
    )


def preempted(record: Stamped) -> PlannedStop | None:
    if _hint(record) != "preempted" and _reason(record) != "Preempted":
        return None
    if record.get("tracecore.stop.reason") is not None:
        return None
    return PlannedStop(**record.event_identity(), reason="preempted", requester="kubernetes", detail=_note(record))


def workload_event(record: Stamped) -> WorkloadEvent | None:
    """Return an event for which no other projector has a type."""
    hint, reason = _hint(record), _reason(record)
    if hint is None or hint in _TYPED_HINTS or reason in MOUNT_REASONS or reason in CNI_REASONS:
        return None
    workload = name(record.get("k8s.object.name")) if hint == COMPLETED else None
    return WorkloadEvent(**record.event_identity(), hint=hint, reason=reason, note=_note(record), workload=workload)


KUBERNETES = (
    Projection(pod_evicted, either=_EVENT),
    Projection(node_pressure, gate=("k8s.node.condition",)),
    Projection(node_readiness, either=("k8s.node.condition", "k8s.event.hint")),
    Projection(node_rebooted, gate=("k8s.event.reason",)),
    Projection(node_problem, gate=("k8s.event.hint",)),
    Projection(mount_event, gate=("k8s.event.reason",)),
    Projection(cni_event, either=_EVENT),
    Projection(container_started, gate=("k8s.event.reason",)),
    Projection(container_terminated, either=("k8s.container.terminated.reason", "k8s.container.terminated.exit_code")),
    Projection(memory_kill_event, gate=("k8s.event.hint",)),
    Projection(preempted, either=_EVENT),
    Projection(workload_event, gate=("k8s.event.hint",)),
    Projection(pod_ready, gate=("k8s.pod.ready_time",), resource=True),
)
