"""Facts about memory that ran out, on the GPU and on the host."""

from __future__ import annotations

from typing import ClassVar, Final

import re2

from tracecore.facts.fact import Fact
from tracecore.facts.wording import sentence, size

#: Slurm's cgroups of a job and of one of its tasks on a machine.
_SLURM: Final = re2.compile(r"/job_(\d{1,12})(?:/.*?/task_(\d{1,5}))?(?:/|$)")


class CudaOom(Fact, frozen=True, kw_only=True):
    """An out-of-memory line of PyTorch with its numbers.

    Args:
        tried_bytes: size of the failed allocation.
        ordinal: CUDA's device ordinal, which is not a bus id.
        free_bytes: free on the device.
        total_bytes: capacity of the device.
        reserved_unallocated_bytes: held by the allocator and not in use.
        allocated_bytes: in use by PyTorch.
        limit_bytes: limit of this process.
        backend: cuda, hip or xla.
        visible_devices: CUDA_VISIBLE_DEVICES of the process, if known.
        device_order: CUDA_DEVICE_ORDER of the process, if known.
        pod_gpus: bus ids of the GPUs of its pod.
    """

    kind: ClassVar[str] = "cuda_oom"
    layer: ClassVar[str] = "stdout"
    folds: ClassVar[bool] = True

    tried_bytes: int
    ordinal: int | None = None
    free_bytes: int | None = None
    total_bytes: int | None = None
    reserved_unallocated_bytes: int | None = None
    allocated_bytes: int | None = None
    limit_bytes: int | None = None
    backend: str | None = None
    visible_devices: str | None = None
    device_order: str | None = None
    pod_gpus: str | None = None

    def describe(self) -> str:
        parts = [f"out of GPU memory: tried to allocate {size(self.tried_bytes)}"]
        if self.ordinal is not None:
            parts.append(f"device {self.ordinal}")
        for name, value in (
            ("free", self.free_bytes),
            ("capacity", self.total_bytes),
            ("reserved but unallocated", self.reserved_unallocated_bytes),
            ("process limit", self.limit_bytes),
        ):
            if value is not None:
                parts.append(f"{name} {size(value)}")
        return sentence(self, ", ".join(parts))


class CudaOomUnmeasured(Fact, frozen=True, kw_only=True):
    """A program ran out of GPU memory and printed no readable number.

    Args:
        backend, ordinal, visible_devices, device_order, pod_gpus: as in `CudaOom`.
        detail: the line.
    """

    kind: ClassVar[str] = "cuda_oom"
    layer: ClassVar[str] = "stdout"
    folds: ClassVar[bool] = True
    varying: ClassVar[frozenset[str]] = frozenset({"detail"})

    backend: str
    ordinal: int | None = None
    detail: str | None = None
    visible_devices: str | None = None
    device_order: str | None = None
    pod_gpus: str | None = None

    def describe(self) -> str:
        device = f" on device {self.ordinal}" if self.ordinal is not None else ""
        return sentence(self, f"out of GPU memory ({self.backend}){device}, no sizes printed", self.detail)


class OomKill(Fact, frozen=True, kw_only=True):
    """The kernel's OOM killer chose a process.

    Args:
        constraint: none (the whole machine), memcg, cpuset or memory_policy.
        invoked_by: the process whose allocation failed.
        pod_uid: uid of the pod, from the path of the cgroup.
    """

    kind: ClassVar[str] = "oom_kill"
    layer: ClassVar[str] = "kernel"
    folds: ClassVar[bool] = True

    victim_pid: int | None = None
    victim_name: str | None = None
    cgroup: str | None = None
    constraint: str | None = None
    rss_kb: int | None = None
    limit_kb: int | None = None
    invoked_by: str | None = None
    pod_uid: str | None = None

    @property
    def slurm(self) -> tuple[str, int | None] | None:
        """Return the Slurm job of the cgroup, and the number of its task on this machine."""
        match = _SLURM.search(self.cgroup) if self.cgroup else None
        return (match.group(1), int(match.group(2)) if match.group(2) else None) if match else None

    def describe(self) -> str:
        pid = f" (pid {self.victim_pid})" if self.victim_pid is not None else ""
        parts = [f"the kernel's OOM killer killed {self.victim_name or 'a process'}{pid}"]
        if self.rss_kb is not None:
            parts.append(f"which held {size(self.rss_kb * 1024)}")
        if self.limit_kb is not None:
            parts.append(f"limit {size(self.limit_kb * 1024)}")
        if self.cgroup:
            parts.append(f"cgroup {self.cgroup}")
        return sentence(self, ", ".join(parts))


class MemoryKillReport(Fact, frozen=True, kw_only=True):
    """A report, not from the kernel, that a process was killed for memory.

    Args:
        reporter: slurm, ray, kubernetes or stdout.
        pod_uid: uid of the pod of the process.
        ranks: the ranks that it names, if there are several.
    """

    kind: ClassVar[str] = "memory_kill_report"
    layer: ClassVar[str] = "stdout"
    folds: ClassVar[bool] = True
    varying: ClassVar[frozenset[str]] = frozenset({"detail"})

    reporter: str
    pid: int | None = None
    detail: str | None = None
    pod_uid: str | None = None
    ranks: tuple[int, ...] = ()

    def describe(self) -> str:
        pid = f" of process {self.pid}" if self.pid is not None else ""
        return sentence(self, f"{self.reporter} reports a memory kill{pid}", self.detail)
