"""Facts about the processes of a job, arranged for look-ups."""

from __future__ import annotations

from bisect import bisect_right
from functools import cached_property
from itertools import chain
from operator import attrgetter
from typing import TYPE_CHECKING, Any, TypeAlias

from tracecore.facts.fact import Fact
from tracecore.facts.kubernetes import ContainerTerminated
from tracecore.facts.nccl import NcclError, RendezvousFailure, WatchdogReport
from tracecore.facts.process import (
    CudaError,
    ExceptionRaised,
    ExitStatus,
    FatalSignal,
    LauncherFailure,
    LoaderError,
)
from tracecore.facts.training import Progress, RunFinished

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tracecore.patterns.contract import Window

    ByRank: TypeAlias = Mapping[Any, Sequence[Fact]]

#: Exceptions of collectives and of the store. A peer went away, unless the line blames this rank.
COLLECTIVE = frozenset({"DistBackendError", "DistNetworkError", "DistStoreError", "DistError", "DistQueueEmptyError"})
#: Those that a program which uses the store by itself may also get.
STORE = frozenset({"DistStoreError"})
#: Exceptions of runtimes that also connect the processes.
RUNTIMES = frozenset({"XlaRuntimeError", "JaxRuntimeError"})
#: Errors of collectives that this rank itself caused.
OWN_COLLECTIVE = frozenset(
    {
        "invalid_usage",
        "unhandled_cuda_error",
        "internal_error",
        "oom",
        "version_mismatch",
        "shm_error",
        "nvls_error",
        "hccl_init_error",
        "hccl_config_error",
    }
)
#: Kinds of reports of a watchdog that ends its own process.
ABORTING = frozenset({"timeout", "exception", "abort", "heartbeat", "dump_signal"})
#: The order of facts that were read from one line.
TYPES: tuple[type[Fact], ...] = (
    NcclError,
    WatchdogReport,
    ExceptionRaised,
    CudaError,
    FatalSignal,
    ExitStatus,
    ContainerTerminated,
    LauncherFailure,
    LoaderError,
    RendezvousFailure,
)
#: Maximum number of facts of one process that are examined for one failure, which bounds the cost of a log storm.
LOOKED_AT = 64
#: A rank that no process has.
NOBODY = object()
#: Facts that may say that a rank lost a peer.
LOST: tuple[type[Fact], ...] = (NcclError, WatchdogReport, RendezvousFailure, ExceptionRaised)
_time = attrgetter("time")
_rank = attrgetter("rank")
_pod = attrgetter("pod")
_pid = attrgetter("pid")


def _lost(fact: Fact) -> bool:
    """Return whether a rank reports that it lost a peer, never met one, or that its watchdog ends it."""
    if isinstance(fact, NcclError):
        return fact.error not in OWN_COLLECTIVE
    if isinstance(fact, WatchdogReport):
        return fact.report in ABORTING
    if isinstance(fact, RendezvousFailure):
        return True
    return isinstance(fact, ExceptionRaised) and last_name(fact.type) in COLLECTIVE


def _own(fact: Fact) -> bool:
    """Return whether the rank itself caused an error."""
    if isinstance(fact, NcclError):
        return fact.error in OWN_COLLECTIVE
    return True


# Keys by which windows group facts. Facts that do not count get the key None, or NOBODY if the key is a rank.


def place_of(fact: Fact) -> tuple[str, int, str]:
    """Return the position of the line that a fact was read from."""
    source = fact.source
    return source.path, source.offset, source.ident


def _fold_of(fact: Fact) -> tuple[str, int | None] | None:
    """Return file and rank of a folded fact, which stands for several lines."""
    return (fact.source.path, fact.rank) if fact.count > 1 else None


def _own_place(fact: Fact) -> tuple[str, int, str] | None:
    return place_of(fact) if _own(fact) else None


def _own_fold(fact: Fact) -> tuple[str, int | None] | None:
    return _fold_of(fact) if _own(fact) else None


def _lost_rank(fact: Fact) -> object:
    return fact.rank if _lost(fact) else NOBODY


def _ends(report: WatchdogReport) -> bool:
    """Return whether the watchdog ends its process with this report."""
    return report.report in ("exception", "abort")


def _word_place(report: WatchdogReport) -> tuple[str, int, str] | None:
    return place_of(report) if _ends(report) else None


def _word_stream(report: WatchdogReport) -> tuple[str, int | None] | None:
    return (report.source.path, report.rank) if _ends(report) else None


def _word_path(report: WatchdogReport) -> str | None:
    return report.source.path if _ends(report) else None


class SourceLines:
    """The lines that facts of one type were read from, including the further lines that folded facts stand for."""

    def __init__(
        self, places: Mapping[tuple[str, int, str] | None, object], folds: Mapping[Any, Sequence[Fact]]
    ) -> None:
        self._places = places
        self._folds = folds

    def hold(self, fact: Fact) -> bool:
        """Return whether this fact was read from one of these lines."""
        if place_of(fact) in self._places:
            return True
        folds = self._folds.get((fact.source.path, fact.rank), ())
        last = bisect_right(folds, fact.time, key=_time) if folds else 0
        return any(fact.time <= fold.end for fold in folds[max(0, last - LOOKED_AT) : last])


class ProcessFacts:
    """The facts of one window by process, file and line."""

    def __init__(self, window: Window) -> None:
        self.steps = window.grouped(Progress, _rank)
        self.steps_by_pid = window.grouped(Progress, _pid)
        self.statuses = window.grouped(ExitStatus, _rank)
        self.launched = window.grouped(LauncherFailure, _rank)
        self.done = window.grouped(RunFinished, _rank)
        self.pods = window.grouped(ContainerTerminated, _pod)
        #: Fatal signals by line.
        self.ends = window.grouped(FatalSignal, place_of)
        #: Reports of watchdogs that end their process, by line, by file and rank, and by file.
        self.words = window.grouped(WatchdogReport, _word_place)
        self.word_streams = window.grouped(WatchdogReport, _word_stream)
        self.word_paths = window.grouped(WatchdogReport, _word_path)
        #: By rank: facts that it raised an exception or died, and in `lost` that it lost a peer.
        self.complaints: tuple[ByRank, ...] = (
            window.grouped(FatalSignal, _rank),
            window.grouped(ExceptionRaised, _rank),
        )
        self.lost: tuple[ByRank, ...] = tuple([window.grouped(kind, _lost_rank) for kind in LOST])
        owns: tuple[type[Fact], ...] = (NcclError, CudaError)
        peers: tuple[type[Fact], ...] = (NcclError, WatchdogReport, RendezvousFailure)
        self.own_lines = tuple(
            [SourceLines(window.grouped(kind, _own_place), window.grouped(kind, _own_fold)) for kind in owns]
        )
        self.peer_lines = tuple(
            [SourceLines(window.grouped(kind, place_of), window.grouped(kind, _fold_of)) for kind in peers]
        )
        #: Facts that know both pid and rank, by pid; the most reliable kind comes first.
        kinds: tuple[type[Fact], ...] = (LauncherFailure, FatalSignal, ExceptionRaised, ExitStatus)
        self.pids = tuple([window.grouped(kind, _ranked_pid) for kind in kinds])

    @cached_property
    def peers(self) -> list[Fact]:
        """All facts that say that a rank lost a peer, in order."""
        groups = [facts for kind in self.lost for rank, facts in kind.items() if rank is not NOBODY]
        peers = list(chain.from_iterable(groups))
        arrange(peers)
        return peers

    @cached_property
    def peer_folds(self) -> list[Fact]:
        """The folded ones of `peers`, which stand for several lines over some time."""
        return [fact for fact in self.peers if fact.last_time is not None]


def _ranked_pid(fact: Fact) -> int | None:
    """Return the pid of a fact that knows its rank as well."""
    return None if fact.rank is None else getattr(fact, "pid", None)


def last_name(kind: str) -> str:
    """Return `DistBackendError` for `torch.distributed.DistBackendError` and for `c10::DistBackendError`."""
    return kind.rpartition(".")[2].rpartition(":")[2]


def arrange(facts: list[Fact]) -> None:
    """Sort by time, then by uid, then by type. Uids cost time to build, so build them only if two times are equal."""
    facts.sort(key=_time)
    if len(set(map(_time, facts))) < len(facts):
        facts.sort(key=lambda fact: (fact.time, fact.uid, TYPES.index(type(fact))))
