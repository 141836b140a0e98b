"""The windows that a fact goes to, where that depends on more than its type."""

from __future__ import annotations

from typing import Any, TypeVar

import pytest

from tracecore.facts.collective import CollectiveEntry
from tracecore.facts.fact import Fact
from tracecore.facts.gpu import AerError, FramebufferSample, GpuLost, SdcCounter, Sxid, Xid, XidGauge
from tracecore.facts.host import HostEvent, SlurmState
from tracecore.facts.kubernetes import ContainerStarted, ContainerTerminated, MountEvent, NodePressure, PodEvicted
from tracecore.facts.memory import CudaOomUnmeasured
from tracecore.facts.nccl import GLOO, NcclError, WatchdogReport
from tracecore.facts.network import STATES, PortState
from tracecore.facts.process import CudaError, LoaderError
from tracecore.facts.stop import ASKED, PlannedStop
from tracecore.facts.storage import StorageError
from tracecore.facts.training import CheckpointPhase, NonFinite, Progress, StepStalled
from tracecore.facts.xid_catalog import APPLICATION
from tracecore.patterns import catalogue
from tracecore.patterns.checkpointer_hang.detector import HARMLESS, PHASES
from tracecore.patterns.collective_mismatch.detector import _WHOLE_JOB
from tracecore.patterns.dataloader_hang.detector import WARM_UP
from tracecore.patterns.gpu_app_fault.detector import UNRELATED
from tracecore.patterns.gpu_fault.detector import CUDA, LINK, PEERS
from tracecore.patterns.ib_link_flap.detector import BROKEN
from tracecore.patterns.nccl_bootstrap.cohorts import NO_INTERFACE
from tracecore.patterns.nvlink_degradation.detector import CODES
from tracecore.patterns.planned_stop.detector import WORDS
from tracecore.patterns.pod_evicted.detector import CONDITIONS
from tracecore.patterns.storage_failure.detector import MOUNT_REASONS
from tracecore.signals.record import Source

PATTERNS = {pattern.name: pattern for pattern in catalogue()}
JOB, NODE, JOB_LAST = (("j", ""),), (("n",),), (("", "j"),)
F = TypeVar("F", bound=Fact)


def made(kind: type[F], **fields: Any) -> F:
    return kind(time=1, source=Source("a.log"), **{"node": "n", "job": "j"} | fields)


def saved(phase: str = min(PHASES), event: str = "end") -> CheckpointPhase:
    return made(CheckpointPhase, phase=phase, event=event)


def entered(**fields: Any) -> CollectiveEntry:
    return made(CollectiveEntry, **{"pg": "0", "seq": 1, "state": "started", "rank": 0} | fields)


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
        ("collective_mismatch", made(NcclError, error="mismatched_collective"), (("j", _WHOLE_JOB),)),
        ("collective_mismatch", made(NcclError, error="timeout"), ()),
        ("collective_mismatch", entered(op="all_reduce"), (("j", "0"),)),
        ("collective_mismatch", entered(signature="s"), (("j", "0"),)),
        ("collective_mismatch", entered(signature="s", attempt=2), (("j#2", "0"),)),
        ("collective_mismatch", entered(), ()),
        ("collective_mismatch", entered(op="all_reduce", rank=None), ()),
        ("collective_mismatch", entered(op="send", is_p2p=True), ()),
        ("cuda_oom", made(FramebufferSample, gpu="g"), (("n", "g"), ("", "g"))),
        ("cuda_oom", made(FramebufferSample), ()),
        ("cuda_oom", made(CudaOomUnmeasured, backend="cuda", rank=0, pod="ns/p"), (("n", "ns/p", "0"),)),
        ("cuda_oom", made(CudaOomUnmeasured, backend="cuda", node=None), (("", "", ""),)),
        ("dataloader_hang", made(StepStalled, no_progress_s=1.0, step=9), NODE),
        ("dataloader_hang", made(StepStalled, no_progress_s=1.0, step=min(WARM_UP)), ()),
        ("dataloader_hang", made(StepStalled, no_progress_s=1.0, step=9, phase="eval"), ()),
        ("dataloader_hang", made(StepStalled, no_progress_s=float("nan"), step=9), ()),
        ("dataloader_hang", made(MountEvent, reason="Pulled"), ()),
        ("dataloader_hang", made(MountEvent, reason=min(MOUNT_REASONS), pod="ns/p"), (("n",), ("", "ns/p"))),
        ("dataloader_hang", made(StepStalled, no_progress_s=1.0, step=9, node=None), (("", ""),)),
        ("gpu_app_fault", made(CudaError, error=min(UNRELATED)), ()),
        ("gpu_app_fault", made(CudaError, error="launch_failure"), (("n",), ("",))),
        ("gpu_app_fault", made(CudaError, error="launch_failure", node=None), (("",),)),
        ("gpu_app_fault", made(XidGauge, code=min(APPLICATION)), (("n",), ("",))),
        ("gpu_app_fault", made(XidGauge, code=79), ()),
        ("gpu_app_fault", made(Xid, code=min(APPLICATION)), (("n",), ("",))),
        ("gpu_app_fault", made(Xid, code=79), (("n",), ("",))),
        ("gpu_app_fault", made(Xid, code=63), ()),
        ("host_lost", made(HostEvent, event="panic"), (("n", ""),)),
        ("host_lost", made(HostEvent, event="mce"), ()),
        ("host_lost", made(SlurmState, state="NODE_FAIL"), (("n", ""),)),
        ("host_lost", made(SlurmState, state="FAILED", node=None), ()),
        ("host_lost", made(SlurmState, state="NODE_FAIL", node=None), JOB_LAST),
        ("host_lost", made(PlannedStop, reason=min(ASKED)), (("n", ""),)),
        ("host_lost", made(PlannedStop, reason="no reason that anybody asks for"), ()),
        ("host_oom", made(ContainerTerminated, reason="OOMKilled", exit_code=1), (("n", ""),)),
        ("host_oom", made(ContainerTerminated, reason="Error", exit_code=137), (("n", ""),)),
        ("host_oom", made(ContainerTerminated, reason="Error", exit_code=1), ()),
        ("host_oom", made(LoaderError, error_class="x", signal="SIGKILL"), (("n", ""),)),
        ("host_oom", made(LoaderError, error_class="x", signal="SIGBUS", worker_pid=7), ()),
        ("host_oom", made(LoaderError, error_class="x", worker_pid=7), (("n", ""),)),
        ("host_oom", made(LoaderError, error_class="x"), ()),
        ("host_oom", made(ContainerTerminated, reason="OOMKilled", node=None, pod="ns/p"), (("", "ns/p"),)),
        ("host_oom", made(ContainerTerminated, reason="OOMKilled", pod="ns/p"), (("n", ""),)),
        ("ib_link_flap", made(NcclError, error=min(BROKEN)), NODE),
        ("ib_link_flap", made(NcclError, error="mismatched_collective"), ()),
        ("ib_link_flap", made(PortState, device="mlx5_0", port=1, state=min(STATES)), NODE),
        ("ib_link_flap", made(PortState, device="mlx5_0", port=1, state=77), ()),
        ("nccl_bootstrap", made(NcclError, error=NO_INTERFACE), (("",),)),
        ("nccl_bootstrap", made(NcclError, error="mismatched_collective"), ()),
        ("nccl_bootstrap", made(Progress, step=1), (("",),)),
        ("nccl_bootstrap", made(Progress), ()),
        ("nccl_bootstrap", made(Progress, step=1, phase="init"), ()),
        ("nccl_hang", entered(), (("j", "0"),)),
        ("nccl_hang", entered(rank=None), ()),
        ("nccl_hang", entered(is_p2p=True), (("j", "0"), ("j", ""))),
        ("nccl_hang", made(WatchdogReport, report="timeout", rank=0, pg=GLOO), (("j", GLOO),)),
        ("nccl_hang", made(WatchdogReport, report="timeout", rank=0, pg="5"), (("j", "5"), ("j", ""))),
        ("nccl_hang", made(WatchdogReport, report="timeout", rank=0), (("j", ""),)),
        ("nccl_hang", made(WatchdogReport, report="timeout", pg="5", reporter="hvd", missing=(1,)), (("j", "5"),)),
        ("nccl_hang", made(WatchdogReport, report="timeout", reporter="hvd", missing=(1,)), (("j", ""),)),
        ("nccl_hang", made(WatchdogReport, report="heartbeat", pg="5", missing=(1,)), ()),
        ("nccl_hang", made(WatchdogReport, report="heartbeat", pg="5", reporter="hvd"), ()),
        ("nccl_hang", made(WatchdogReport, report="heartbeat", pg="5", group_rank=0), (("j", "5"),)),
        ("nccl_hang", made(WatchdogReport, report="heartbeat", group_rank=0), ()),
        ("nvlink_degradation", made(Xid, code=min(CODES)), (("n",), ("",))),
        ("nvlink_degradation", made(Xid, code=13), ()),
        ("nvlink_degradation", made(WatchdogReport, report="timeout", node=None), (("",),)),
        ("nvlink_degradation", made(WatchdogReport, report="exception"), ()),
        ("nvlink_degradation", made(StepStalled, no_progress_s=1.0, step=1), NODE),
        ("nvlink_degradation", made(StepStalled, no_progress_s=1.0), ()),
        ("pcie_aer", made(AerError, gpu="g", severity="fatal"), (("n", "g"), ("", "g"))),
        ("pcie_aer", made(AerError, gpu="g", severity="unheard_of"), ()),
        ("planned_stop", made(PlannedStop, reason=min(WORDS)), (("j", "", ""),)),
        ("planned_stop", made(PlannedStop, reason="unheard of"), ()),
        ("planned_stop", made(PlannedStop, reason=min(WORDS), job=None, pod="ns/p"), (("", "ns", ""),)),
        ("planned_stop", made(PlannedStop, reason=min(WORDS), job=None), (("", "", "n"),)),
        ("planned_stop", made(PlannedStop, reason=min(WORDS), job=None, node=None), (("", "", ""),)),
        ("silent_data_corruption", made(SdcCounter, delta=1, counter="x"), (("",),)),
        ("silent_data_corruption", made(SdcCounter, delta=0, counter="x"), ()),
        ("training_divergence", made(Progress, loss=1.0), JOB),
        ("training_divergence", made(Progress, grad_norm=1.0), JOB),
        ("training_divergence", made(Progress, step=3), ()),
        ("training_divergence", made(Progress, loss=1.0, phase="eval"), ()),
        ("training_divergence", made(NonFinite, what="loss"), JOB),
        ("training_divergence", made(NonFinite, what="loss", phase="eval"), ()),
    ],
)
def test_a_fact_goes_to_the_windows_it_can_matter_to(name: str, fact: Fact, keys: tuple[Any, ...]) -> None:
    assert PATTERNS[name].keys(fact) == keys
