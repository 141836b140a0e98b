"""Facts from the Kubernetes API about pods and nodes."""

from __future__ import annotations

from typing import ClassVar

from tracecore.facts.fact import Fact
from tracecore.facts.wording import sentence

#: Reasons of events about volumes that could not be mounted.
MOUNT_REASONS = frozenset({"FailedMount", "VolumeMountFailure", "FailedAttachVolume"})
#: Reasons of events about pod networks that could not be set up.
CNI_REASONS = frozenset({"FailedCreatePodSandBox", "NetworkNotReady", "CNIError"})
#: Conditions that make a kubelet evict pods.
PRESSURES = frozenset({"DiskPressure", "MemoryPressure", "PIDPressure"})


#: The reason of a kubelet that refuses a pod, for example because of its devices.
REFUSED = "UnexpectedAdmissionError"
#: The hint of an event that says that a job completed.
COMPLETED = "completed"
#: The reason of a node that does not answer Slurm.
SLURM_DOWN = "SlurmDown"
#: The reason of a node that is gone according to a launcher or scheduler (Ray, mpirun, Flux).
GIVEN_UP = "NodeDead"


class PodEvicted(Fact, frozen=True, kw_only=True):
    """A pod was evicted.

    Args:
        reason: the reason of the event.
        note: the message of the event.
        pod_uid: uid of the pod.
        by_taint: evicted because of a taint and not for lack of resources on the node.
        of_cluster: one of the cluster's own pods, not one of a training (logging, monitoring, drivers).
    """

    kind: ClassVar[str] = "pod_event"
    layer: ClassVar[str] = "kubernetes"
    folds: ClassVar[bool] = True
    varying: ClassVar[frozenset[str]] = frozenset({"note"})

    reason: str | None = None
    note: str | None = None
    pod_uid: str | None = None
    by_taint: bool = False
    of_cluster: bool = False

    def describe(self) -> str:
        return sentence(self, self.reason or "Evicted", self.note)


class NodePressure(Fact, frozen=True, kw_only=True):
    """A node's pressure condition changed.

    Args:
        condition: DiskPressure, MemoryPressure or PIDPressure.
        active: True if the pressure began, False if it ended.
    """

    kind: ClassVar[str] = "node_condition"
    layer: ClassVar[str] = "kubernetes"

    condition: str
    active: bool = True
    note: str | None = None

    def describe(self) -> str:
        return sentence(self, f"{self.condition} {'began' if self.active else 'ended'}", self.note)


class NodeReadiness(Fact, frozen=True, kw_only=True):
    """A node is ready or not ready. If it names no node, it is about the node of the pod.

    Args:
        ready: False also if the API says Unknown.
        status: the status of the condition as printed: True, False or Unknown.
    """

    kind: ClassVar[str] = "node_condition"
    layer: ClassVar[str] = "kubernetes"

    ready: bool
    status: str | None = None
    reason: str | None = None
    note: str | None = None

    def describe(self) -> str:
        whose = "node" if self.node is not None or self.pod is None else "the node of a pod"
        return sentence(self, f"{whose} is {'ready' if self.ready else 'not ready'}", self.note)


class PodReady(Fact, frozen=True, kw_only=True):
    """A training pod became ready.

    Args:
        ready_time: nanoseconds since the epoch.
        namespace: the namespace of the pod. It stands for the job if the job has no id.
    """

    kind: ClassVar[str] = "pod_ready"
    layer: ClassVar[str] = "kubernetes"

    ready_time: int
    namespace: str | None = None

    def describe(self) -> str:
        return sentence(self, "pod became ready")


class MountEvent(Fact, frozen=True, kw_only=True):
    """A volume could not be mounted or attached.

    Args:
        volume: its name.
        device: its server or share.
        backend: the kind of storage, a value of `tracecore.storage.backend`.
        waited: the kubelet gave up waiting for it.
    """

    kind: ClassVar[str] = "storage_event"
    layer: ClassVar[str] = "kubernetes"
    folds: ClassVar[bool] = True
    varying: ClassVar[frozenset[str]] = frozenset({"note"})

    reason: str
    note: str | None = None
    volume: str | None = None
    device: str | None = None
    backend: str | None = None
    waited: bool = False

    def describe(self) -> str:
        return sentence(self, self.reason, self.note)


class CniEvent(Fact, frozen=True, kw_only=True):
    """The network of a pod could not be set up."""

    kind: ClassVar[str] = "cni_event"
    layer: ClassVar[str] = "kubernetes"
    folds: ClassVar[bool] = True
    varying: ClassVar[frozenset[str]] = frozenset({"note"})

    reason: str
    note: str | None = None
    namespace: str | None = None

    def describe(self) -> str:
        return sentence(self, self.reason, self.note)


class ContainerStarted(Fact, frozen=True, kw_only=True):
    """The kubelet started a container. All volumes of the pod are mounted then."""

    kind: ClassVar[str] = "container_started"
    layer: ClassVar[str] = "kubernetes"
    folds: ClassVar[bool] = True

    def describe(self) -> str:
        return sentence(self, "container started")


class ContainerTerminated(Fact, frozen=True, kw_only=True):
    """A container ended.

    Args:
        reason: OOMKilled, Error, ContainerCannotRun, DeadlineExceeded, Completed.
        container: its name.
        pod_uid: uid of its pod.
    """

    kind: ClassVar[str] = "container_terminated"
    layer: ClassVar[str] = "kubernetes"
    folds: ClassVar[bool] = True

    reason: str | None = None
    exit_code: int | None = None
    container: str | None = None
    pod_uid: str | None = None

    def describe(self) -> str:
        name = f"container {self.container}" if self.container else "container"
        code = f" with exit status {self.exit_code}" if self.exit_code is not None else ""
        return sentence(self, f"{name} terminated{code}", self.reason)


#: Advice if the kubelet killed a container that did not answer its probe.
ANSWER_PROBES = (
    "It did not answer its probe in time, which a process that saves or loads may be unable to do: raise "
    "`timeoutSeconds` and `failureThreshold` of the probe, or answer it from a thread of its own."
)


class WorkloadEvent(Fact, frozen=True, kw_only=True):
    """Another event about a workload: back-off, image pull, scheduling, probe.

    Args:
        hint: a value of `k8s.event.hint`.
        workload: the name of the job that completed. Names of its pods begin with it.
    """

    kind: ClassVar[str] = "pod_event"
    layer: ClassVar[str] = "kubernetes"
    folds: ClassVar[bool] = True
    varying: ClassVar[frozenset[str]] = frozenset({"note"})

    hint: str
    reason: str | None = None
    note: str | None = None
    workload: str | None = None

    def describe(self) -> str:
        return sentence(self, self.reason or self.hint.replace("_", " "), self.note)

    def killed(self) -> str:
        """Return why the kubelet killed a container, in its own words."""
        note = self.note or "its probe failed"
        return note[0].lower() + note[1:]
