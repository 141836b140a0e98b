"""The windows that a fact goes to, where that depends on more than its type."""

from __future__ import annotations

from typing import Any, TypeVar

import pytest

from tracecore.facts.fact import Fact
from tracecore.facts.gpu import GpuLost, Sxid, Xid
from tracecore.facts.kubernetes import ContainerStarted, MountEvent, NodePressure, PodEvicted
from tracecore.facts.nccl import WatchdogReport
from tracecore.facts.process import CudaError, LoaderError
from tracecore.facts.storage import StorageError
from tracecore.facts.training import CheckpointPhase, Progress, StepStalled
from tracecore.patterns import catalogue
from tracecore.patterns.checkpointer_hang.detector import HARMLESS, PHASES
from tracecore.patterns.gpu_fault.detector import CUDA, LINK, PEERS
from tracecore.patterns.pod_evicted.detector import CONDITIONS
from tracecore.patterns.storage_failure.detector import MOUNT_REASONS
from tracecore.signals.record import Source

PATTERNS = {pattern.name: pattern for pattern in catalogue()}
JOB, NODE = (("j", ""),), (("n",),)
F = TypeVar("F", bound=Fact)


def made(kind: type[F], **fields: Any) -> F:
    return kind(time=1, source=Source("a.log"), **{"node": "n", "job": "j"} | fields)


def saved(phase: str = min(PHASES), event: str = "end") -> CheckpointPhase:
    return made(CheckpointPhase, phase=phase, event=event)


@pytest.mark.parametrize(
    ("name", "fact", "keys"),
    [
        ("checkpointer_hang", saved(), JOB),
        ("checkpointer_hang", saved("unheard_of"), ()),
        ("checkpointer_hang", made(StorageError, error="io_error"), JOB),
        ("checkpointer_hang", made(StorageError, error=min(HARMLESS)), ()),
        ("checkpointer_hang", made(WatchdogReport, report="timeout"), JOB),
        ("checkpointer_hang", made(WatchdogReport, report="abort"), ()),
        ("checkpointer_hang", made(StepStalled, no_progress_s=1.0), JOB),
        ("checkpointer_hang", made(StepStalled, no_progress_s=float("inf")), ()),
        ("checkpointer_hang", made(Progress, job=None, pod="ns/p"), (("", "ns"),)),
        ("storage_failure", made(MountEvent, reason=min(MOUNT_REASONS), pod="ns/p"), (("n", ""),)),
        ("storage_failure", made(ContainerStarted, pod="ns/p"), (("n", ""), ("", "ns/p"))),
        ("storage_failure", made(ContainerStarted), (("n", ""),)),
        ("storage_failure", made(MountEvent, reason="Pulled"), ()),
        ("storage_failure", saved(event="begin"), ()),
        ("storage_failure", saved(), (("n", ""),)),
        ("storage_failure", made(StorageError, error="x", node=None, pod="ns/p"), (("", "ns/p"),)),
        ("storage_failure", made(StorageError, error="x", node=None), (("", ""),)),
        ("ib_link_flap", made(WatchdogReport, report="timeout"), NODE),
        ("ib_link_flap", made(WatchdogReport, report="dump_signal"), ()),
        ("xid_correlation", made(Xid, code=79), NODE),
        ("xid_correlation", made(Xid, code=79, node=None), ()),
        ("xid_correlation", made(PodEvicted, reason="Evicted"), ()),
        ("xid_correlation", made(PodEvicted, reason="Evicted", pod="ns/p"), NODE),
        ("pod_evicted", made(PodEvicted, reason="Evicted"), ()),
        ("pod_evicted", made(PodEvicted, reason="Evicted", pod="ns/p"), NODE),
        ("pod_evicted", made(PodEvicted, reason="Evicted", pod="ns/p", node=None), (("",),)),
        ("pod_evicted", made(NodePressure, condition=min(CONDITIONS)), NODE),
        ("pod_evicted", made(NodePressure, condition=min(CONDITIONS), active=False), ()),
        ("pod_evicted", made(NodePressure, condition=min(CONDITIONS), node=None), ()),
        ("pod_evicted", made(NodePressure, condition="Ready"), ()),
        ("gpu_fault", made(CudaError, error=min(CUDA)), (("n", PEERS),)),
        ("gpu_fault", made(CudaError, error="device_assert"), ()),
        ("gpu_fault", made(Sxid, code=1), (("n", PEERS),)),
        ("gpu_fault", made(Xid, code=LINK, gpu="g"), (("n", PEERS),)),
        ("gpu_fault", made(Xid, code=79, gpu="g"), (("n", "g"), ("n", PEERS))),
        ("gpu_fault", made(Xid, code=13, gpu="g"), ()),
        ("gpu_fault", made(GpuLost, node=None), (("", ""), ("", PEERS))),
        ("worker_crash", made(LoaderError, error_class="x", retried=True), ()),
        ("worker_crash", made(LoaderError, error_class="x"), JOB),
    ],
)
def test_a_fact_goes_to_the_windows_it_can_matter_to(name: str, fact: Fact, keys: tuple[Any, ...]) -> None:
    assert PATTERNS[name].keys(fact) == keys
