"""Detection of a pod that the kubelet evicted, and of the pressure that caused it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeAlias

from tracecore.facts.kubernetes import NodePressure, PodEvicted
from tracecore.patterns.config import MINUTE, Duration, Settings
from tracecore.patterns.contract import NEVER, Pattern, Role, Verdict, filled, to_the_second
from tracecore.patterns.scope import namespace, pod_fields, pod_name

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracecore.facts.fact import Fact
    from tracecore.patterns.contract import Key, Window

Pressure: TypeAlias = Literal["disk", "memory", "pid", "unknown"]

CONDITIONS: dict[str, Pressure] = {"DiskPressure": "disk", "MemoryPressure": "memory", "PIDPressure": "pid"}
#: Words of the kubelet's notes in lower case. The first that appears in a note decides.
ANCHORS: dict[str, Pressure] = {
    "ephemeral-storage": "disk",
    "ephemeral local storage": "disk",
    "ephemeral storage": "disk",
    "nodefs": "disk",
    "imagefs": "disk",
    "diskpressure": "disk",
    "inodes": "disk",
    "memory": "memory",
    "pids": "pid",
    "pidpressure": "pid",
}

WORDS: dict[Pressure, str] = {
    "disk": "disk pressure",
    "memory": "memory pressure",
    "pid": "process-id pressure",
    "unknown": "an unspecified resource shortage",
}
NEXT: dict[Pressure, str] = {
    "disk": (
        "find what fills the disk (`df -h; df -i; du -xsh /var/lib/kubelet/pods/* /var/lib/containerd`), clear it "
        "(`crictl rmi --prune`, old logs, checkpoints written to the pod's own file system), and give the pod an "
        "`ephemeral-storage` request and limit or a volume"
    ),
    "memory": (
        "find what takes the memory (`kubectl top pod -A --sort-by=memory`, `free -g`, page cache of loaders), and "
        "give the pod a memory request equal to its limit, so that the kubelet evicts others before it"
    ),
    "pid": (
        "find what forks (`ps -eLf | awk '{print $1}' | sort | uniq -c | sort -n | tail`), lower the number of data "
        "loader workers, and set or raise `podPidsLimit`"
    ),
    "unknown": "read the note of the eviction and the node's conditions to learn what it was short of",
}


class Config(Settings, frozen=True, kw_only=True):
    """
    Args:
        window: the pressure may have begun this long before the eviction.
    """

    window: Duration = 5 * MINUTE


class PodEvictedVerdict(Verdict, frozen=True, kw_only=True):
    """
    Args:
        eviction: the eviction of the pod.
        condition: the latest pressure that began on its node before; None if none was seen.
    """

    pattern_id: ClassVar[str] = "14"
    pattern_name: ClassVar[str] = "pod_evicted"
    role: ClassVar[Role] = "cause"

    eviction: PodEvicted
    condition: NodePressure | None = None

    @property
    def pod(self) -> str:
        return self.eviction.pod or ""

    @property
    def pressure(self) -> Pressure:
        """Return the pressure from the condition of the node, else from the words of the note."""
        if self.condition is not None:
            return CONDITIONS.get(self.condition.condition, "unknown")
        return pressure_of(self.eviction.note or "")

    def headline(self) -> str:
        node = f" from {self.eviction.node}" if self.eviction.node else ""
        at = "" if self.eviction.approximate else f" at {to_the_second(self.eviction.time)}"
        return f"{self.pod} was evicted{node}{at} under {WORDS[self.pressure]}"

    def remediation(self) -> str:
        node = self.eviction.node
        where = f"On {node} (`kubectl describe node {node}`)"
        if node is None:
            pod = f"{pod_name(self.pod)} -n {namespace(self.pod)}"
            where = f"On its node (`kubectl get pod {pod} -o wide` names it)"
        return f"{where}: {NEXT[self.pressure]}. Then restart the job from its last checkpoint."

    def evidence(self) -> Sequence[Fact]:
        return (self.eviction,) if self.condition is None else (self.condition, self.eviction)

    def missing_layers(self) -> tuple[str, ...]:
        return ("node_condition",) if self.condition is None else ()

    def fields(self) -> dict[str, Any]:
        fields = {
            **pod_fields(self.pod),
            "k8s.node.name": self.eviction.node,
            "pressure": self.pressure,
            "k8s.event.reason": self.eviction.reason,
        }
        return filled(fields)

    def promoted(self) -> dict[str, Any]:
        return {
            "k8s.pod.name": pod_name(self.pod),
            "k8s.namespace.name": namespace(self.pod),
            "k8s.node.name": self.eviction.node,
            "k8s.event.reason": self.eviction.reason,
        }


class PodEvictedPattern(Pattern[Config]):
    """An eviction, with the latest pressure that began on its node before it; partial without one.

    A pressure that begins after the eviction does not count. Each pod gets one verdict.
    """

    id = "14"
    name = "pod_evicted"
    role = "cause"
    maturity = "experimental"
    needs = (PodEvicted, NodePressure)
    triggers = (PodEvicted,)
    Config = Config

    @property
    def horizon(self) -> int:
        return self.config.window

    def keys(self, fact: Fact) -> tuple[Key, ...]:
        if type(fact) is NodePressure:
            return ((fact.node,),) if fact.node and fact.active and fact.condition in CONDITIONS else ()
        return ((fact.node or "",),) if fact.pod else ()

    def evaluate(self, window: Window, now: int) -> list[Verdict]:
        found: list[Verdict] = []
        pressures = iter(window.of(NodePressure))
        upcoming = next(pressures, None)
        near = self.config.window
        evicted: dict[str | None, int] = {}
        condition: NodePressure | None = None
        until = NEVER
        for eviction in window.of(PodEvicted):
            time, pod = eviction.time, eviction.pod
            while upcoming is not None and upcoming.time <= time:
                condition, until = upcoming, upcoming.time + near
                upcoming = next(pressures, None)
            repeated = pod in evicted and time - evicted[pod] <= near
            evicted[pod] = time
            if not repeated:
                pressure = condition if time <= until else None
                found.append(
                    PodEvictedVerdict(
                        key=window.key,
                        episode=eviction.source,
                        time=time,
                        confidence="partial" if pressure is None else "full",
                        eviction=eviction,
                        condition=pressure,
                    )
                )
        return found


def pressure_of(note: str) -> Pressure:
    """Return the pressure that a note of the kubelet names, by the first of `ANCHORS` in it."""
    lower = note.lower()
    # "The node was low on resource: memory. Container x was using …": text before the resource may name others.
    lower = lower.partition("low on resource:")[2] or lower
    places = [(place, pressure) for anchor, pressure in ANCHORS.items() if (place := lower.find(anchor)) >= 0]
    return min(places)[1] if places else "unknown"
