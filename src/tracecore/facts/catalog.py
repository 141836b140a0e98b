"""The tuple of all fact types, and a way to make facts from plain fields (as cases do)."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Any

import msgspec

from tracecore.facts import collective
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
from tracecore.facts.host import Heartbeat, HostEvent, NodeSilence, SlurmState
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

TYPES: tuple[type[Fact], ...] = (
    Xid,
    XidGauge,
    GpuLost,
    GpuCondition,
    GpuDriverError,
    Sxid,
    EccDelta,
    ThrottleSample,
    FramebufferSample,
    AerError,
    AerRecovery,
    PcieRateCollapse,
    NvlinkRate,
    SdcCounter,
    WrongResult,
    PortState,
    LinkState,
    NicError,
    WatchdogReport,
    NcclError,
    RendezvousFailure,
    RendezvousRetry,
    Progress,
    StepStalled,
    Preparation,
    CheckpointPhase,
    SaveAwaited,
    NonFinite,
    ResultRecomputed,
    EvalAccuracy,
    RunFinished,
    SlowRanks,
    ReplicaMismatch,
    ExceptionRaised,
    StackPrinted,
    RankStarted,
    FatalSignal,
    ExitStatus,
    LauncherFailure,
    CudaError,
    LoaderError,
    CudaOom,
    CudaOomUnmeasured,
    OomKill,
    MemoryKillReport,
    StorageError,
    PodEvicted,
    NodePressure,
    NodeReadiness,
    PodReady,
    MountEvent,
    CniEvent,
    ContainerStarted,
    ContainerTerminated,
    WorkloadEvent,
    HostEvent,
    NodeSilence,
    Heartbeat,
    SlurmState,
    PlannedStop,
    *collective.TYPES,
)

#: Fields with a time as value. A case may write `t+30s` in them.
TIME_FIELDS = frozenset({"last_time", "ready_time", "job_start", "job_end", "created", "started", "completed"})
#: Fields that a case does not set by name.
_GIVEN = frozenset({"time", "source"})


class FactError(ValueError):
    """A mapping that is not a valid fact. The text has the mistake and the valid names."""


def snake(name: str) -> str:
    """Return `cuda_oom` for `CudaOom`."""
    return "".join(f"_{c.lower()}" if c.isupper() and i else c.lower() for i, c in enumerate(name))


BY_NAME: dict[str, type[Fact]] = {name: t for t in TYPES for name in (t.__name__, snake(t.__name__))}


def type_named(name: str) -> type[Fact]:
    """Return the fact type called `CudaOom` or `cuda_oom`.

    Raises:
        FactError: there is no such type; the text suggests a similar one.
    """
    if name in BY_NAME:
        return BY_NAME[name]
    near = difflib.get_close_matches(name, BY_NAME, n=1)
    raise FactError(f"no fact type {name!r}" + (f"; did you mean {near[0]!r}?" if near else ""))


def fields_of(kind: type[Fact]) -> tuple[str, ...]:
    """Return the fields that a case may set for this type."""
    return tuple(f for f in kind.__struct_fields__ if f not in _GIVEN)


def build(name: str, fields: Mapping[str, Any], *, time: int, uid: str) -> Fact:
    """Make a fact from plain values.

    Args:
        name: `Xid` or `xid`.
        fields: its fields except time and source, with strict checks of types.
        time: nanoseconds since the epoch.
        uid: becomes the fact's uid.

    Raises:
        FactError: unknown type or field, missing field, or a value of the wrong type.
    """
    kind = type_named(name)
    known = fields_of(kind)
    if unknown := [f for f in fields if f not in known]:
        raise FactError(f"{kind.__name__} has no field {', '.join(map(repr, unknown))}; its fields: {', '.join(known)}")
    try:
        return msgspec.convert(
            {**fields, "fact": kind.__name__, "time": time, "source": Source(path=uid, ident=uid)}, kind
        )
    except msgspec.ValidationError as error:
        raise FactError(f"{kind.__name__}: {error}; its fields: {', '.join(known)}") from None
