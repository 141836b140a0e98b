"""Every projector: what it makes of a proper record, of one without its gate, and of nonsense."""

from __future__ import annotations

import re
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracecore.facts.catalog import TYPES
from tracecore.facts.codec import decode, encode
from tracecore.facts.collective import CollectiveEntry
from tracecore.facts.fact import Fact
from tracecore.facts.gpu import (
    AerError,
    AerRecovery,
    EccDelta,
    FramebufferSample,
    GpuCondition,
    GpuDriverError,
    GpuLost,
    NvlinkRate,
    PcieRateCollapse,
    SdcCounter,
    Sxid,
    ThrottleSample,
    WrongResult,
    Xid,
    XidGauge,
)
from tracecore.facts.host import HostEvent, SlurmState
from tracecore.facts.identity import Stamped, bus_id, stamped
from tracecore.facts.kubernetes import (
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
from tracecore.facts.memory import CudaOom, CudaOomUnmeasured, MemoryKillReport, OomKill
from tracecore.facts.nccl import NcclError, RendezvousFailure, RendezvousRetry, WatchdogReport
from tracecore.facts.network import LinkState, NicError, PortState
from tracecore.facts.process import (
    CudaError,
    ExceptionRaised,
    ExitStatus,
    FatalSignal,
    LauncherFailure,
    LoaderError,
    RankStarted,
    StackPrinted,
)
from tracecore.facts.projection import PROJECTORS, TRIGGERS, project
from tracecore.facts.stop import PlannedStop
from tracecore.facts.storage import StorageError
from tracecore.facts.training import (
    CheckpointPhase,
    EvalAccuracy,
    NonFinite,
    Preparation,
    Progress,
    ReplicaMismatch,
    ResultRecomputed,
    RunFinished,
    SaveAwaited,
    SlowRanks,
    StepStalled,
)
from tracecore.signals.record import Source

T0 = 1_700_000_000_000_000_000
GPU = "0000:3b:00.0"
TRACE = 'Traceback (most recent call last):\n  File "train.py", line 7, in step\n    raise\nValueError: bad batch\n'


def signal(attributes: dict[str, Any], resource: dict[str, Any] | None = None, body: str = "a line") -> Any:
    return {
        "resource": {"attributes": resource or {}},
        "log": {"body": body, "attributes": attributes, "time_unix_nano": T0},
        "source": Source("node.log", 17, 3, 40),
    }


def of(kind: type[Fact], facts: list[Fact]) -> Any:
    found = [fact for fact in facts if type(fact) is kind]
    assert len(found) <= 1
    return found[0] if found else None


# type, attributes of the record, what the fact must say. The first attribute is the gate.
NORMAL: list[tuple[type[Fact], dict[str, Any], dict[str, Any]]] = [
    (
        RankStarted,
        {"tracecore.rank.started": True, "gen_ai.training.rank": 3, "tracecore.rank.world": 8},
        {"rank": 3, "world": 8},
    ),
    (
        Preparation,
        {"tracecore.training.preparation": "Map (num_proc=8)", "tracecore.training.preparation.done": True},
        {"what": "Map (num_proc=8)", "done": True},
    ),
    (
        ResultRecomputed,
        {
            "tracecore.training.recomputed": "changed",
            "tracecore.training.recomputed.step": 411,
            "tracecore.training.recomputed.device": 5,
        },
        {"outcome": "changed", "step": 411, "device": 5},
    ),
    (GpuCondition, {"hw.gpu.condition": "row_remap_failed"}, {"condition": "row_remap_failed"}),
    (XidGauge, {"hw.gpu.xid.last": 79, "gpu.id": "0000:3B:00.0"}, {"code": 79, "gpu": "0000:3b:00.0"}),
    (
        Xid,
        {
            "kernelevents.xid": 45,
            "gpu.id": "00000000:3B:00.0",
            "kernelevents.xid.process": "python",
            "process.pid": "4242",
            "kernelevents.xid.cause": 31,
            "kernelevents.xid.link": 2.0,
            "kernelevents.xid.detail": "Ch 00000008",
        },
        {"code": 45, "gpu": GPU, "process": "python", "pid": 4242, "cause": 31, "link": 2, "detail": "Ch 00000008"},
    ),
    (
        Xid,
        {
            "kernelevents.xid": 149,
            "kernelevents.xid.unit": "NETIR_LINK_EVT",
            "kernelevents.xid.fatal": True,
            "kernelevents.xid.intr_info": 5,
            "kernelevents.xid.error_status": "7",
            "kernelevents.xid.recovery": "GPU Reset Required",
        },
        {
            "code": 149,
            "unit": "NETIR_LINK_EVT",
            "fatal": True,
            "intr_info": 5,
            "error_status": 7,
            "recovery": "GPU Reset Required",
        },
    ),
    (
        GpuDriverError,
        {"kernelevents.gpu.error": "page_fault", "kernelevents.gpu.process": "python", "process.pid": 4},
        {"error": "page_fault", "process": "python", "pid": 4},
    ),
    (AerRecovery, {"kernelevents.pcie_aer.recovery": "failed", "gpu.id": GPU}, {"succeeded": False}),
    (
        NicError,
        {"kernelevents.nic.error": "cable_error", "kernelevents.nic.device": "0000:5C:00.0"},
        {"error": "cable_error", "device": "0000:5c:00.0"},
    ),
    (LinkState, {"hw.network.up": False, "network.interface.name": "eth0"}, {"interface": "eth0", "up": False}),
    (
        CollectiveEntry,
        {"nccl.fr.collective_seq_id": 4, "nccl.fr.rank": 2, "nccl.fr.pg_id": 0, "nccl.fr.state": "started"},
        {"seq": 4, "rank": 2, "pg": "0", "state": "started"},
    ),
    (GpuLost, {"kernelevents.gpu_lost": True, "gpu.id": "PCI:0000:3b:00"}, {"gpu": GPU, "detail": "a line"}),
    (
        Sxid,
        {
            "kernelevents.sxid": 20034,
            "kernelevents.sxid.fatal": True,
            "kernelevents.sxid.link": 33,
            "kernelevents.sxid.switch": "0000:A9:00.0",
        },
        {"code": 20034, "fatal": True, "link": 33, "switch": "0000:a9:00.0"},
    ),
    (
        EccDelta,
        {
            "hw.errors.delta": 2.0,
            "gpu.id": GPU,
            "error.type": "Uncorrected",
            "error.subtype": "double-bit",
            "error.persistence": "volatile",
            "hw.gpu.index": "3",
        },
        {"delta": 2, "error_type": "uncorrected", "subtype": "double_bit", "persistence": "volatile", "index": 3},
    ),
    (
        ThrottleSample,
        {
            "hw.gpu.throttle.reason": "thermal_hardware",
            "gpu.id": GPU,
            "hw.gpu.throttle.duration": 5,
            "hw.gpu.temperature": 91,
            "hw.gpu.clock.sm": 840.5,
        },
        {"reason": "thermal_hardware", "throttled_s": 5.0, "temperature_c": 91.0, "sm_clock_mhz": 840.5},
    ),
    (
        FramebufferSample,
        {"hw.gpu.memory.free": 1024.0, "gpu.id": GPU, "hw.gpu.memory.total": 2048},
        {"free_bytes": 1024, "total_bytes": 2048, "gpu": GPU},
    ),
    (
        AerError,
        {
            "kernelevents.pcie_aer.severity": "Uncorrected (Non-Fatal)",
            "gpu.id": GPU,
            "kernelevents.pcie_aer.type": "Transaction Layer",
        },
        {"severity": "nonfatal", "error_type": "Transaction Layer"},
    ),
    (
        PcieRateCollapse,
        {
            "tracecore.alert.pcie_rate_collapse.bytes_per_second": 25,
            "gpu.id": GPU,
            "tracecore.alert.pcie_rate_collapse.baseline_bytes_per_second": 100,
            "network.io.direction": "receive",
        },
        {"bytes_per_second": 25.0, "baseline_bytes_per_second": 100.0, "direction": "receive", "drop_ratio": 0.75},
    ),
    (
        NvlinkRate,
        {
            "hw.gpu.nvlink.rate": 10,
            "hw.gpu.nvlink.link": 3,
            "hw.gpu.nvlink.peer_median": 100.0,
            "hw.gpu.nvlink.low_seconds": 300,
        },
        {"bytes_per_second": 10.0, "link": 3, "peer_median": 100.0, "low_s": 300.0},
    ),
    (
        WrongResult,
        {"hw.gpu.result.wrong": True, "hw.gpu.result.wrong_count": 17, "hw.gpu.result.checked_count": 2000},
        {"wrong": 17, "checked": 2000},
    ),
    (SdcCounter, {"hw.gpu.sdc.delta": 1, "hw.gpu.sdc.kind": "sram"}, {"delta": 1, "counter": "sram"}),
    (
        PortState,
        {"hw.network.ib.port.state": "4: ACTIVE", "hw.network.ib.device": "mlx5_0", "hw.network.ib.port.num": 2},
        {"device": "mlx5_0", "port": 2, "state": 4},
    ),
    (
        HostEvent,
        {"kernelevents.host": "segfault", "kernelevents.host.detail": "at 0", "kernelevents.host.process": "pt_main"},
        {"event": "segfault", "detail": "at 0", "process": "pt_main"},
    ),
    (
        OomKill,
        {
            "kernelevents.oom.victim_pid": 77,
            "kernelevents.oom.victim_name": "python",
            "kernelevents.oom.cgroup": "/kubepods/x",
            "kernelevents.oom.constraint": "CONSTRAINT_MEMCG",
            "kernelevents.oom.rss_kb": "1048576",
            "kernelevents.oom.limit_kb": 2097152,
        },
        {"victim_pid": 77, "victim_name": "python", "constraint": "memcg", "rss_kb": 1048576, "limit_kb": 2097152},
    ),
    (MemoryKillReport, {"tracecore.host_oom.reporter": "slurm", "process.pid": 5}, {"reporter": "slurm", "pid": 5}),
    (
        SlurmState,
        {"tracecore.slurm.state": "CANCELLED by 1000", "tracecore.slurm.job_id": 991},
        {"state": "CANCELLED", "slurm_job": "991", "job": "991"},
    ),
    (
        PlannedStop,
        {"tracecore.stop.reason": "time_limit", "tracecore.stop.source": "slurm"},
        {"reason": "time_limit", "requester": "slurm"},
    ),
    (
        ExceptionRaised,
        {"exception.type": "ValueError", "exception.message": "bad batch", "exception.stacktrace": TRACE},
        {"type": "ValueError", "message": "bad batch", "file": "train.py", "line": 7, "function": "step"},
    ),
    (
        StackPrinted,
        {"code.stacktrace": 'Thread 0x1f (most recent call first):\n  File "train.py", line 7 in step'},
        {"inner": "step", "file": "train.py", "line": 7, "function": "step"},
    ),
    (FatalSignal, {"tracecore.process.signal": "SIGSEGV", "process.pid": 9}, {"signal": "SIGSEGV", "pid": 9}),
    (ExitStatus, {"tracecore.process.exit_code": -9}, {"exit_code": -9, "alive": False, "signal": "SIGKILL"}),
    (
        LauncherFailure,
        {
            "tracecore.launcher": "torchelastic",
            "tracecore.launcher.root": True,
            "tracecore.launcher.rank": 3,
            "tracecore.launcher.local_rank": 1,
            "tracecore.launcher.pid": 55,
            "tracecore.launcher.exit_code": 1,
            "tracecore.launcher.host": "node-3",
            "tracecore.launcher.time": "2026-01-01_00:00:00",
            "tracecore.launcher.error_file": "/t/e.json",
            "tracecore.launcher.traceback": TRACE,
            "gen_ai.training.rank": 0,
        },
        {
            "root": True,
            "rank": 3,
            "local_rank": 1,
            "pid": 55,
            "exit_code": 1,
            "node": "node-3",
            "failed_at": "2026-01-01_00:00:00",
            "exception_type": "ValueError",
            "exception_message": "bad batch",
        },
    ),
    (CudaError, {"tracecore.cuda.error": "illegal_memory_access"}, {"error": "illegal_memory_access"}),
    (
        CudaOom,
        {
            "cuda_oom.tried_alloc_bytes": "2048",
            "cuda_oom.gpu_index": 0,
            "cuda_oom.free_bytes": 10.0,
            "cuda_oom.total_bytes": 4096,
            "cuda_oom.reserved_unallocated_bytes": 5,
            "cuda_oom.allocated_bytes": 6,
            "cuda_oom.limit_bytes": 7,
            "cuda_oom.backend": "cuda",
        },
        {
            "tried_bytes": 2048,
            "ordinal": 0,
            "free_bytes": 10,
            "total_bytes": 4096,
            "reserved_unallocated_bytes": 5,
            "allocated_bytes": 6,
            "limit_bytes": 7,
            "backend": "cuda",
            "gpu": None,
        },
    ),
    (
        CudaOomUnmeasured,
        {"cuda_oom.backend": "cuda", "cuda_oom.gpu_index": 1},
        {"backend": "cuda", "ordinal": 1, "detail": "a line"},
    ),
    (
        LoaderError,
        {
            "dataloader.error_class": "DataLoader worker killed",
            "dataloader.worker_pid": 123,
            "dataloader.signal": "SIGKILL",
        },
        {"error_class": "DataLoader worker killed", "worker_pid": 123, "signal": "SIGKILL"},
    ),
    (
        StorageError,
        {
            "tracecore.storage.error": "enospc",
            "tracecore.storage.path": "/ckpt",
            "tracecore.storage.backend": "nfs",
            "tracecore.storage.device": "srv:/x",
        },
        {"error": "enospc", "path": "/ckpt", "backend": "nfs", "device": "srv:/x"},
    ),
    (
        WatchdogReport,
        {
            "nccl.watchdog.kind": "timeout",
            "nccl.watchdog.op": "ALLREDUCE",
            "nccl.watchdog.seq": 12,
            "nccl.watchdog.timeout_ms": 600000,
            "nccl.watchdog.elapsed_ms": 600010,
            "nccl.watchdog.last_enqueued": 14,
            "nccl.watchdog.last_started": 13,
            "nccl.watchdog.last_completed": 11,
            "nccl.watchdog.pg": 0,
            "nccl.watchdog.pg_desc": "default_pg",
            "nccl.watchdog.numel_in": 1,
            "nccl.watchdog.numel_out": 1,
            "nccl.watchdog.rank": 5,
            "nccl.watchdog.from_rank": 2,
        },
        {
            "report": "timeout",
            "op": "ALLREDUCE",
            "seq": 12,
            "timeout_ms": 600000,
            "last_enqueued": 14,
            "last_started": 13,
            "last_completed": 11,
            "pg": "0",
            "pg_desc": "default_pg",
            "rank": 5,
            "from_rank": 2,
        },
    ),
    (
        NcclError,
        {"nccl.error": "remote_error", "nccl.error.peer": "10.0.0.3<4431>", "nccl.error.detail": "closed"},
        {"error": "remote_error", "peer": "10.0.0.3<4431>", "detail": "closed"},
    ),
    (
        RendezvousFailure,
        {
            "tracecore.rendezvous.failure": "store_timeout",
            "tracecore.rendezvous.joined": 3,
            "tracecore.rendezvous.expected": 4,
            "tracecore.rendezvous.endpoint": "m:29500",
            "tracecore.rendezvous.interface": "eth9",
        },
        {"failure": "store_timeout", "joined": 3, "expected": 4, "endpoint": "m:29500", "interface": "eth9"},
    ),
    (
        RendezvousRetry,
        {"tracecore.rendezvous.retry": "connection_refused", "tracecore.rendezvous.endpoint": "m:29500"},
        {"problem": "connection_refused", "endpoint": "m:29500"},
    ),
    (
        Progress,
        {
            "gen_ai.training.step": 10,
            "gen_ai.training.phase": "train",
            "tracecore.training.iter_time_s": 0.5,
            "tracecore.training.data_time_s": 0.1,
            "tracecore.training.loss": "2.25",
            "tracecore.training.grad_norm": 1,
            "tracecore.training.learning_rate": 1e-4,
            "tracecore.training.total_steps": 100,
            "tracecore.training.epoch": 0.5,
        },
        {"step": 10, "phase": "train", "iter_time_s": 0.5, "loss": 2.25, "grad_norm": 1.0, "total_steps": 100},
    ),
    (
        StepStalled,
        {"tracecore.alert.training_step_stalled.no_progress_seconds": 130, "gen_ai.training.step": 9},
        {"no_progress_s": 130.0, "step": 9, "phase": None, "since": T0 - 130_000_000_000},
    ),
    (
        CheckpointPhase,
        {
            "tracecore.training.checkpoint.phase": "write",
            "tracecore.training.checkpoint.event": "begin",
            "tracecore.training.checkpoint.path": "/ckpt/9",
            "gen_ai.training.checkpoint.step": 9,
        },
        {"phase": "write", "event": "begin", "path": "/ckpt/9", "step": 9},
    ),
    (NonFinite, {"tracecore.training.non_finite": "loss"}, {"what": "loss", "explicit": True}),
    (
        EvalAccuracy,
        {
            "gen_ai.training.eval_accuracy.observed": 0.71,
            "gen_ai.training.eval_accuracy.baseline": 0.75,
            "gen_ai.training.eval_set.checksum": "abc",
            "gen_ai.training.checkpoint.step": 100,
            "gen_ai.training.job.start_unix_nano": T0 - 5,
            "gen_ai.training.job.end_unix_nano": str(T0 + 5),
        },
        {"observed": 0.71, "baseline": 0.75, "checksum": "abc", "job_start": T0 - 5, "job_end": T0 + 5},
    ),
    (RunFinished, {"tracecore.training.finished": True}, {"always": False}),
    (SaveAwaited, {"tracecore.training.checkpoint.missing": "3, 11"}, {"missing": (3, 11)}),
    (
        RunFinished,
        {"tracecore.training.finished": True, "tracecore.training.finished.whole": True},
        {"whole": True},
    ),
    (
        RunFinished,
        {"tracecore.training.finished": True, "tracecore.training.finished.always": True},
        {"always": True},
    ),
    (ReplicaMismatch, {"tracecore.training.replica_mismatch": 9}, {"odd": 9, "step": None}),
    (
        SlowRanks,
        {
            "tracecore.straggler.reporter": "a detector",
            "tracecore.straggler.ranks": "{StragglerId(rank=6 }, rank 12, [3]",
            "tracecore.straggler.ratio": 1.8,
            "tracecore.straggler.node": "n7",
        },
        {"reporter": "a detector", "slow": (3, 6, 12), "ratio": 1.8, "machine": "n7"},
    ),
    (SlowRanks, {"tracecore.straggler.reporter": "a detector"}, {"slow": ()}),
    (
        PodEvicted,
        {
            "k8s.event.reason": "Evicted",
            "k8s.event.note": "low on memory",
            "k8s.event.uid": "u-1",
            "k8s.event.count": 3,
            "k8s.object.kind": "Pod",
            "k8s.object.name": "w-0",
            "k8s.namespace.name": "ml",
            "k8s.pod.uid": "p-1",
        },
        {"reason": "Evicted", "pod": "ml/w-0", "note": "low on memory", "uid": "u-1", "count": 3, "pod_uid": "p-1"},
    ),
    (
        NodePressure,
        {"k8s.node.condition": "DiskPressure", "k8s.node.condition.status": "True", "k8s.node.name": "n1"},
        {"condition": "DiskPressure", "active": True, "node": "n1"},
    ),
    (
        NodeReadiness,
        {"k8s.node.condition": "Ready", "k8s.node.condition.status": "Unknown", "k8s.node.name": "n1"},
        {"ready": False, "status": "Unknown"},
    ),
    (
        PodReady,
        {
            "k8s.pod.ready_time": "2026-01-02T03:04:05.5Z",
            "gen_ai.training.rank": "2",
            "k8s.pod.name": "w-2",
            "k8s.namespace.name": "ml",
        },
        {"ready_time": 1767323045_500000000, "time": 1767323045_500000000, "rank": 2, "namespace": "ml"},
    ),
    (MountEvent, {"k8s.event.reason": "FailedMount", "k8s.node.name": "n1"}, {"reason": "FailedMount", "node": "n1"}),
    (CniEvent, {"k8s.event.reason": "FailedCreatePodSandBox"}, {"reason": "FailedCreatePodSandBox"}),
    (
        ContainerStarted,
        {"k8s.event.reason": "Started", "k8s.pod.name": "w-0", "k8s.namespace.name": "train"},
        {"pod": "train/w-0"},
    ),
    (
        ContainerTerminated,
        {
            "k8s.container.terminated.reason": "OOMKilled",
            "k8s.container.terminated.exit_code": 137,
            "k8s.container.name": "train",
        },
        {"reason": "OOMKilled", "exit_code": 137, "container": "train"},
    ),
    (
        WorkloadEvent,
        {"k8s.event.hint": "image_pull_failure", "k8s.event.reason": "Failed"},
        {"hint": "image_pull_failure", "reason": "Failed"},
    ),
    (
        WorkloadEvent,
        {"k8s.event.hint": "completed", "k8s.object.kind": "Job", "k8s.object.name": "bert"},
        {"hint": "completed", "workload": "bert"},
    ),
    (
        PodEvicted,
        {"k8s.event.reason": "Evicted", "k8s.pod.name": "fluentd-x", "k8s.pod.of_cluster": True},
        {"of_cluster": True},
    ),
]


@pytest.mark.parametrize(("kind", "attributes", "expected"), NORMAL, ids=[row[0].__name__ for row in NORMAL])
def test_a_proper_record_makes_the_fact(kind: type[Fact], attributes: dict[str, Any], expected: dict[str, Any]) -> None:
    fact = of(kind, project(signal(attributes)))
    assert fact is not None
    assert {name: getattr(fact, name) for name in expected} == expected
    assert fact.source.path == "node.log"
    sentence = fact.describe()
    assert sentence
    assert "None" not in sentence
    assert "\n" not in sentence


@pytest.mark.parametrize(("kind", "attributes", "expected"), NORMAL, ids=[row[0].__name__ for row in NORMAL])
def test_the_gate_may_not_be_missing_or_of_the_wrong_type(
    kind: type[Fact], attributes: dict[str, Any], expected: dict[str, Any]
) -> None:
    gates = {name for p in PROJECTORS for name in p.triggers}
    without = {name: value for name, value in attributes.items() if name not in gates}
    assert of(kind, project(signal(without))) is None
    for wrong in ([1], {"a": 1}, b"48", float("nan"), "", "   ", None):
        spoiled = {name: (wrong if name in gates else value) for name, value in attributes.items()}
        assert of(kind, project(signal(spoiled))) is None, wrong


@pytest.mark.parametrize(("kind", "attributes", "expected"), NORMAL, ids=[row[0].__name__ for row in NORMAL])
def test_a_wrong_optional_value_is_not_measured(
    kind: type[Fact], attributes: dict[str, Any], expected: dict[str, Any]
) -> None:
    gates = {name for p in PROJECTORS for name in (*p.triggers, *p.gate)}
    spoiled = {name: (value if name in gates else ["nonsense"]) for name, value in attributes.items()}
    for fact in project(signal(spoiled)):
        for name in type(fact).__struct_fields__:
            assert getattr(fact, name) not in ("", ["nonsense"]), name


def test_every_type_that_a_record_can_state_has_a_row() -> None:
    derived = {"Heartbeat", "NodeSilence", "GroupProgress", "Arrival", "GroupCrossed"}
    assert {t.__name__ for t in TYPES} - {row[0].__name__ for row in NORMAL} <= derived


def test_the_resource_is_asked_after_the_record() -> None:
    resource = {"k8s.node.name": "n-res", "gen_ai.training.rank": 7, "gpu.id": "0000:AF:00.0", "host.name": "h"}
    fact = of(Xid, project(signal({"kernelevents.xid": 79, "gen_ai.training.rank": 1}, resource)))
    assert (fact.node, fact.rank, fact.gpu) == ("n-res", 1, "0000:af:00.0")
    assert of(Xid, project(signal({"kernelevents.xid": 79}, {"host.name": "h"}))).node == "h"


def test_what_was_read_before_does_not_colour_what_is_read_now() -> None:
    def read(**attributes: Any) -> tuple[Any, ...]:
        named = {key.replace("__", "."): value for key, value in attributes.items()}
        fact = of(Xid, project(signal({"kernelevents.xid": 79, **named})))
        return fact.rank, fact.attempt, fact.approximate, fact.node

    for _ in range(2):
        assert read(gen_ai__training__rank=1)[0] == 1
        assert read(gen_ai__training__rank=True)[0] is None
        assert read(gen_ai__training__rank=1.0)[0] == 1
        assert read(tracecore__attempt=1)[1] == 1
        assert read(tracecore__attempt=True)[1] == 0
        assert read(tracecore__time__inferred=1)[2] is False
        assert read(tracecore__time__inferred=True)[2] is True
        assert read(host__name=["a"])[3] is None
        assert read(host__name="h" * 10_000)[3].startswith("hhh")


def test_a_gate_on_the_resource_alone_makes_no_fact_but_readiness() -> None:
    assert project(signal({}, {"kernelevents.xid": 79})) == []
    ready = {"k8s.pod.ready_time": "2026-01-02T03:04:05Z", "gen_ai.training.rank": 1, "k8s.pod.name": "w"}
    first, second = (project(signal({"x": n}, ready)) for n in (1, 2))
    assert [type(f) for f in first] == [PodReady]
    assert first[0].uid == second[0].uid


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ("0000:3B:00.0", "0000:3b:00.0"),
        ("00000000:3b:00.0", "0000:3b:00.0"),
        ("00010000:3b:00.0", "10000:3b:00.0"),
        ("PCI:0000:3b:00", "0000:3b:00.0"),
        ("3b:00.1", "0000:3b:00.1"),
        (" 0000:3b:1f.7 ", "0000:3b:1f.7"),
        ("0000:3b:20.0", None),
        ("0000:3b:00.8", None),
        ("GPU-5a6b", None),
        ("0", None),
        ("", None),
        (0, None),
        (None, None),
        ("0000:3b:00.0" * 100, None),
    ],
)
def test_bus_ids_have_one_form(written: object, expected: str | None) -> None:
    assert bus_id(written) == expected


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ("Corrected", "corrected"),
        ("corrected", "corrected"),
        ("Uncorrected (Non-Fatal)", "nonfatal"),
        ("Uncorrectable (Non-Fatal)", "nonfatal"),
        ("Uncorrected (Fatal)", "fatal"),
        ("Uncorrectable (Fatal)", "fatal"),
        ("nonfatal", "nonfatal"),
        ("fatal", "fatal"),
        ("uncorrected", None),
        ("loud", None),
    ],
)
def test_severities_are_normalised(written: str, expected: str | None) -> None:
    fact = of(AerError, project(signal({"kernelevents.pcie_aer.severity": written, "gpu.id": GPU})))
    assert (fact and fact.severity) == expected


@pytest.mark.parametrize(
    ("value", "expected"),
    [(48, 48), ("48", 48), (48.0, 48), (48.5, None), (True, None), ("48a", None), (1 << 64, None), (-48, None)],
)
def test_integers_arrive_in_three_ways(value: object, expected: int | None) -> None:
    fact = of(Xid, project(signal({"kernelevents.xid": value})))
    assert (fact and fact.code) == expected


@pytest.mark.parametrize("value", [5 * 2**30, float(5 * 2**30), str(5 * 2**30)])
def test_metric_points_are_read_alike(value: Any) -> None:
    facts = project(signal({"hw.gpu.memory.free": value, "gpu.id": GPU}))
    assert [(type(f), f.free_bytes, f.total_bytes) for f in facts] == [  # type: ignore[attr-defined]
        (FramebufferSample, 5 * 2**30, None)
    ]


def test_one_line_may_be_a_loader_error_and_a_storage_error() -> None:
    facts = project(signal({"dataloader.error_class": "Stale file handle", "tracecore.storage.error": "estale"}))
    assert {type(f) for f in facts} == {LoaderError, StorageError}
    assert of(LoaderError, project(signal({"dataloader.worker_pid": 4}))) is None


def test_an_oom_is_measured_or_not_never_both() -> None:
    measured = project(signal({"cuda_oom.backend": "cuda", "cuda_oom.tried_alloc_bytes": 5}))
    assert {type(f) for f in measured} == {CudaOom}
    unreadable = project(signal({"cuda_oom.backend": "cuda", "cuda_oom.tried_alloc_bytes": "many"}))
    assert {type(f) for f in unreadable} == {CudaOomUnmeasured}


def test_lines_that_mention_a_step_have_not_made_it() -> None:
    stall = {"tracecore.alert.training_step_stalled.no_progress_seconds": 5, "gen_ai.training.step": 3}
    assert {type(f) for f in project(signal(stall))} == {StepStalled}
    saving = {
        "tracecore.training.checkpoint.phase": "write",
        "tracecore.training.checkpoint.event": "begin",
        "gen_ai.training.step": 3,
    }
    assert {type(f) for f in project(signal(saving))} == {CheckpointPhase}


def test_an_evaluation_knows_what_its_baseline_was_measured_on() -> None:
    fact = of(
        EvalAccuracy,
        project(
            signal(
                {
                    "gen_ai.training.eval_accuracy.observed": 0.7,
                    "gen_ai.training.eval_set.checksum": 17,
                    "gen_ai.training.eval_set.baseline_checksum": "abc",
                    "gen_ai.training.checkpoint.baseline_step": "900",
                }
            )
        ),
    )
    assert (fact.checksum, fact.baseline_checksum, fact.baseline_step) == ("17", "abc", 900)


def test_a_reported_nan_is_told_from_a_complaint() -> None:
    report = project(signal({"tracecore.training.non_finite": "loss", "gen_ai.training.step": 3}))
    assert of(NonFinite, report).explicit is False
    assert of(Progress, report).loss is None
    complaint = {"tracecore.training.non_finite": "loss", "tracecore.training.non_finite.explicit": True}
    facts = project(signal({**complaint, "gen_ai.training.step": 3, "gen_ai.training.phase": "eval"}))
    assert {type(f) for f in facts} == {NonFinite}
    assert of(NonFinite, facts).explicit is True
    assert (of(NonFinite, facts).step, of(NonFinite, facts).phase) == (3, "eval")


@pytest.mark.parametrize("value", [float("nan"), float("-inf"), "NaN", "+inf"])
def test_a_value_that_is_no_number_says_so_itself(value: object) -> None:
    facts = project(signal({"tracecore.training.loss": value, "gen_ai.training.step": 3}))
    found = of(NonFinite, facts)
    assert (found.what, found.step, found.explicit) == ("loss", 3, False)
    assert of(Progress, facts).loss is None
    for good in (2.5, "2.5", "n/a", True):
        assert NonFinite not in {type(fact) for fact in project(signal({"tracecore.training.loss": good}))}


@pytest.mark.parametrize(
    ("state", "stop"),
    [("TIMEOUT", "time_limit"), ("PREEMPTED", "preempted"), ("CANCELLED+", "cancelled"), ("FAILED", None)],
)
def test_slurm_states_say_whether_the_end_was_wanted(state: str, stop: str | None) -> None:
    facts = project(signal({"tracecore.slurm.state": state, "tracecore.slurm.job_id": "7"}))
    fact = of(PlannedStop, facts)
    assert (fact and fact.reason) == stop
    assert of(SlurmState, facts).job == "7"


def test_a_node_that_ray_calls_dead() -> None:
    fact = of(NodeReadiness, project(signal({"tracecore.node.lost": True, "tracecore.launcher.host": "10.0.0.7"})))
    assert (fact.ready, fact.node) == (False, "10.0.0.7")
    failed = {"tracecore.slurm.state": "NODE_FAIL", "tracecore.slurm.node": "n7", "host.name": "login"}
    assert of(SlurmState, project(signal(failed))).node == "n7"


def test_a_slurm_memory_kill_is_reported_once() -> None:
    state = {"tracecore.slurm.state": "OUT_OF_MEMORY"}
    assert of(MemoryKillReport, project(signal(state))).reporter == "slurm"
    assert of(MemoryKillReport, project(signal({**state, "tracecore.host_oom.reporter": "slurm"}))) is not None


@pytest.mark.parametrize(
    ("stamps", "kind", "says"),
    [
        ({"k8s.node.condition": "Ready", "k8s.node.condition.status": "False"}, NodeReadiness, {"ready": False}),
        ({"k8s.node.condition": "Ready", "k8s.node.condition.status": "True"}, NodeReadiness, {"ready": True}),
        ({"k8s.event.hint": "node_unhealthy"}, NodeReadiness, {"ready": False}),
        ({"k8s.event.reason": "Rebooted"}, HostEvent, {"event": "boot", "rebooted": True}),
        (
            {"k8s.node.condition": "DiskPressure", "k8s.node.condition.status": "True"},
            NodePressure,
            {"condition": "DiskPressure", "active": True},
        ),
        ({"k8s.node.condition": "PIDPressure"}, NodePressure, {"condition": "PIDPressure", "active": True}),
        (
            {"k8s.node.condition": "MemoryPressure", "k8s.node.condition.status": "False"},
            NodePressure,
            {"condition": "MemoryPressure", "active": False},
        ),
    ],
)
def test_node_events(stamps: dict[str, str], kind: type[Fact], says: dict[str, Any]) -> None:
    event = {"k8s.object.kind": "Node", "k8s.object.name": "n9", "k8s.pod.name": "agent", **stamps}
    facts = project(signal(event))
    assert [type(f) for f in facts] == [kind]
    assert {name: getattr(facts[0], name) for name in says} == says
    assert (facts[0].node, facts[0].pod) == ("n9", None)


def test_hints_decide_where_reasons_do_not() -> None:
    pod = {"k8s.object.kind": "Pod", "k8s.object.name": "w", "k8s.namespace.name": "ml"}
    assert of(PodEvicted, project(signal({"k8s.event.hint": "pod_evicted", **pod}))).pod == "ml/w"
    assert of(PlannedStop, project(signal({"k8s.event.hint": "preempted", **pod}))).requester == "kubernetes"
    assert of(MemoryKillReport, project(signal({"k8s.event.hint": "oom_killed", **pod}))).reporter == "kubernetes"
    assert of(CniEvent, project(signal({"k8s.event.hint": "network_not_ready", **pod}))) is not None
    assert of(MountEvent, project(signal({"k8s.event.reason": "SuccessfulMountVolume", **pod}))) is None
    assert project(signal({"k8s.event.reason": "Evicted"})) == []


def test_a_launcher_speaks_of_another_rank_than_its_own() -> None:
    attributes = {"tracecore.launcher": "slurm", "tracecore.launcher.host": "n4", "tracecore.launcher.rank": 4}
    own = {"gen_ai.training.rank": 0, "k8s.node.name": "n0"}
    facts = project(signal({**attributes, "tracecore.process.exit_code": 1}, own))
    assert {(type(f), f.rank) for f in facts} == {(LauncherFailure, 4), (ExitStatus, 4)}
    assert of(LauncherFailure, facts).node == "n4"
    torch = {**attributes, "tracecore.launcher": "torchelastic"}
    assert of(LauncherFailure, project(signal(torch, own))).node == "n0"
    assert of(LauncherFailure, project(signal({"tracecore.launcher": "ray"}, own))).rank is None
    jax = {"tracecore.launcher": "jax", "tracecore.launcher.rank": 4}
    assert of(LauncherFailure, project(signal(jax, own))).node is None
    assert of(LauncherFailure, project(signal(jax, {**own, "gen_ai.training.rank": 4}))).node == "n0"


def test_a_traceback_that_is_the_body() -> None:
    facts = project(signal({"exception.type": "ValueError", "tracecore.cuda.error": "unknown_error"}, body=TRACE))
    raised = of(ExceptionRaised, facts)
    assert (raised.file, raised.line, raised.message) == ("train.py", 7, "bad batch")
    assert of(CudaError, facts).detail == "ValueError: bad batch"
    table = of(CudaError, project(signal({"tracecore.cuda.error": "busy"}, body="\nfirst\nsecond\n")))
    assert table.detail == "first"


def test_a_traceback_of_which_only_the_first_line_was_stamped() -> None:
    body = "time : x\n  traceback : " + TRACE.replace("\n", "\n  ")
    first = {"tracecore.launcher": "torchelastic", "tracecore.launcher.traceback": TRACE.splitlines()[0]}
    fact = of(LauncherFailure, project(signal(first, body=body)))
    assert (fact.exception_type, fact.exception_message) == ("ValueError", "bad batch")


@pytest.mark.parametrize(
    ("code", "name"), [(-9, "SIGKILL"), (137, "SIGKILL"), (139, "SIGSEGV"), (1, None), (0, None), (255, None)]
)
def test_exit_statuses_name_their_signal(code: int, name: str | None) -> None:
    assert of(ExitStatus, project(signal({"tracecore.process.exit_code": code}))).signal == name


def test_a_record_without_time_or_place() -> None:
    nowhere: Any = {"resource": {}, "log": {"attributes": {"kernelevents.xid": 79}, "observed_time_unix_nano": 5}}
    (fact,) = project(nowhere)
    (again,) = project(nowhere)
    assert fact.time == 5
    assert fact.uid == again.uid
    assert fact.uid.startswith("otlp:")
    timeless: Any = {"resource": {}, "log": {"attributes": {"kernelevents.xid": 79}}}
    assert project(timeless) == []


NAMES = sorted(TRIGGERS | {name for row in NORMAL for name in row[1]})
VALUES: Any = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(max_size=30),
    st.binary(max_size=10),
    st.lists(st.integers(), max_size=2),
    st.sampled_from(["0000:3b:00.0", "48", "thermal_software", "Evicted", "Ready", "True", "begin", TRACE, "\ud800x"]),
    st.dictionaries(st.text(max_size=3), st.integers(), max_size=2),
)
ATTRIBUTES = st.dictionaries(st.one_of(st.sampled_from(NAMES), st.text(max_size=8)), VALUES, max_size=12)


@given(own=ATTRIBUTES, resource=ATTRIBUTES, body=VALUES, time=st.one_of(st.just(T0), VALUES))
def test_no_record_makes_a_projector_raise(own: Any, resource: Any, body: Any, time: Any) -> None:
    record: Any = {
        "resource": {"attributes": resource},
        "log": {"body": body, "attributes": own, "time_unix_nano": time},
    }
    facts = project(record)
    assert decode(encode(facts)) == facts
    assert all(fact.describe() for fact in facts)
    # The index is only a faster way of asking every projector in turn.
    assert facts == [fact for projector in PROJECTORS if (fact := projector(record)) is not None]


@given(shape=st.recursive(VALUES, lambda s: st.dictionaries(st.sampled_from(["log", "resource", "attributes"]), s)))
def test_no_shape_makes_it_raise(shape: Any) -> None:
    assert project(shape) == []


class Asked(dict[str, Any]):
    """A dictionary that remembers what it was asked for."""

    names: set[str]

    def get(self, key: str, default: Any = None) -> Any:
        self.names.add(key)
        return super().get(key, default)


def test_every_attribute_a_projector_reads_is_documented() -> None:
    text = (Path(__file__).resolve().parents[2] / "docs" / "attributes.md").read_text()
    documented: set[str] = set()
    for line in text.splitlines():
        prefix = ""
        for token in re.findall(r"`([^`]+)`", line):
            full = prefix + token if token.startswith(".") else token
            documented.add(full)
            if not token.startswith("."):
                prefix = token.rpartition(".")[0]
    names: set[str] = set(TRIGGERS)
    for _, attributes, _ in NORMAL:
        own = Asked(attributes)
        own.names = names
        for projector in PROJECTORS:
            projector.of(Stamped({}, {"body": "x"}, own, {}, T0))
    assert len(names) > 100
    assert sorted(names - documented) == []


def test_a_container_that_was_started_again_is_another_attempt() -> None:
    signal = {
        "resource": {"attributes": {"k8s.pod.name": "w-0", "k8s.container.restart_count": "2"}},
        "log": {"attributes": {}, "time_unix_nano": 5},
    }
    found = stamped(signal)
    assert found is not None
    assert found.identity()["attempt"] == 2


def test_gaps_below_a_rank_of_seven_digits_are_not_listed() -> None:
    from tracecore.facts.projectors.worker import _missing_below

    tracemalloc.start()
    assert _missing_below((0, 9_999_999)) == ()
    assert tracemalloc.get_traced_memory()[1] < 1 << 20
    tracemalloc.stop()
    assert _missing_below((0, 2, 3)) == (1,)
    assert _missing_below((0, 3)) == ()
    assert _missing_below(()) == ()
