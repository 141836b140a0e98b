"""Facts about machines."""

from __future__ import annotations

from typing import ClassVar

from tracecore.facts.fact import Fact
from tracecore.facts.wording import seconds, sentence

#: Events of a machine that went down or came back. All others are problems of a running machine.
LOST = frozenset({"panic", "boot", "shutdown"})


#: Texts for events that a management controller, scheduler or monitor reports instead of the kernel.
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
    """An event of a machine or a fault of a process, mostly from the kernel.

    Args:
        event: panic, oops, hung_task, soft_lockup, hard_lockup, machine_check, boot, shutdown, segfault, gpf, bug and
            others of `kernelevents.host`. Events that the kernel does not report have a text in `WORDS`.
        detail: as printed.
        process: the process that it names.
        training: the name of the process is typical of training programs.
        rebooted: the boot is known to be a reboot, such as from two boot ids that the kubelet compared.
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
    """All streams of a node stopped while its peers went on. `time` is that of its last line.

    Args:
        silent_s: seconds from then to the last line of its peers.
        peers: number of nodes of the same job that went on.
    """

    kind: ClassVar[str] = "node_silence"
    layer: ClassVar[str] = "stdout"

    silent_s: float
    peers: int

    def describe(self) -> str:
        others = "1 peer" if self.peers == 1 else f"{self.peers} peers"
        return sentence(self, f"{others} went on, but nothing was received for {seconds(self.silent_s)}")


class Heartbeat(Fact, frozen=True, kw_only=True):
    """The agent of a node is alive. `job` is the job whose streams it reads; None if no job runs there."""

    kind: ClassVar[str] = "heartbeat"
    layer: ClassVar[str] = "stdout"

    def describe(self) -> str:
        return sentence(self, "the agent of the node is alive")


class SlurmState(Fact, frozen=True, kw_only=True):
    """The state of a job or step in Slurm.

    Args:
        state: TIMEOUT, NODE_FAIL, OUT_OF_MEMORY, PREEMPTED, CANCELLED, FAILED, COMPLETED and others as printed.
        slurm_job: Slurm's own job id.
        nodes: the machines of the job, if all of them are listed.
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
