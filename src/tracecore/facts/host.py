"""Facts about machines."""

from __future__ import annotations

from typing import ClassVar

from tracecore.facts.fact import Fact
from tracecore.facts.wording import seconds, sentence

#: Events that mean the machine itself went down or came back, rather than that it fell ill.
LOST = frozenset({"panic", "boot", "shutdown"})


#: Events of a machine that its management controller, its scheduler or a monitor tells of, not its kernel.
WORDS = {
    "power_supply": "power supply",
    "fan": "fan",
    "sensor": "a sensor of the machine is not as it should be",
    "node_unavailable": "no jobs are scheduled",
    "gpu_missing": "a GPU is missing, and no jobs are scheduled",
    "prolog_failed": "the prolog or epilog of a job failed, and no more jobs are scheduled",
    "maintenance_scheduled": "the cloud has announced maintenance of the machine",
    "health_check": "the node's health check failed",
    "disk_failing": "a disk is failing",
    "file_system_full": "a file system is full",
    "memory_fragmented": "the machine has no large blocks of free memory left",
    "storage_cluster": "the storage cluster reports errors",
    "memory_failure": "kernel: memory of the machine is damaged, and the kernel ended a process that used it",
    "memory_module": "memory of the machine has errors that cannot be corrected",
}


class HostEvent(Fact, frozen=True, kw_only=True):
    """The kernel says something about the machine, or about a process's fault.

    Args:
        event: panic, oops, hung_task, soft_lockup, hard_lockup, machine_check, boot, shutdown, segfault, gpf, bug and
            others of `kernelevents.host`; what others than the kernel say of the machine has its words in `WORDS`.
        detail: as printed.
        process: the process it names.
        training: programs that train have names like that of the process.
        rebooted: of a boot: somebody compared it with the one before, as the kubelet does with boot ids.
    """

    kind: ClassVar[str] = "kernel_event"
    layer: ClassVar[str] = "kernel"
    folds: ClassVar[bool] = True
    varying: ClassVar[frozenset[str]] = frozenset({"detail"})

    event: str
    detail: str | None = None
    process: str | None = None
    pid: int | None = None
    rebooted: bool = False
    training: bool = False

    def describe(self) -> str:
        who = f" of {self.process}" if self.process else ""
        what = WORDS.get(self.event) or f"kernel: {self.event.replace('_', ' ')}"
        return sentence(self, f"{what}{who}", self.detail)


class NodeSilence(Fact, frozen=True, kw_only=True):
    """All streams of a node stopped while its peers went on. `time` is when it was last heard.

    Args:
        silent_s: seconds from then to the last word of its peers.
        peers: how many nodes of the same job went on.
    """

    kind: ClassVar[str] = "node_silence"
    layer: ClassVar[str] = "stdout"

    silent_s: float
    peers: int

    def describe(self) -> str:
        others = "1 peer" if self.peers == 1 else f"{self.peers} peers"
        return sentence(self, f"no stream spoke for {seconds(self.silent_s)} while {others} went on")


class Heartbeat(Fact, frozen=True, kw_only=True):
    """The agent of a node is alive; it reads the streams of a job there, or no job runs there."""

    kind: ClassVar[str] = "heartbeat"
    layer: ClassVar[str] = "stdout"

    def describe(self) -> str:
        return sentence(self, "the agent of the node is alive")


class SlurmState(Fact, frozen=True, kw_only=True):
    """The state Slurm gives a job or step.

    Args:
        state: TIMEOUT, NODE_FAIL, OUT_OF_MEMORY, PREEMPTED, CANCELLED, FAILED, COMPLETED and others as printed.
        slurm_job: Slurm's own job id.
        nodes: the machines of the job, where all of them are told.
    """

    kind: ClassVar[str] = "scheduler_state"
    layer: ClassVar[str] = "scheduler"
    folds: ClassVar[bool] = True

    state: str
    slurm_job: str | None = None
    exit_code: int | None = None
    nodes: tuple[str, ...] = ()

    def describe(self) -> str:
        job = f"job {self.slurm_job}" if self.slurm_job else "the job"
        return sentence(self, f"Slurm says {job} is {self.state}")
