"""Facts about a job's processes, arranged for look-ups."""

from __future__ import annotations

from bisect import bisect_right, insort
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from tracecore.facts.fact import Fact, order
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
    from collections.abc import Sequence

    from tracecore.patterns.contract import Window


F = TypeVar("F", bound=Fact)

#: Exceptions of collectives and the store: a peer went away, unless the line says that it was this rank.
COLLECTIVE = frozenset({"DistBackendError", "DistNetworkError", "DistStoreError", "DistError", "DistQueueEmptyError"})
#: Errors of collectives that are of this rank's own making.
OWN_COLLECTIVE = frozenset(
    {"invalid_usage", "unhandled_cuda_error", "internal_error", "oom", "version_mismatch", "shm_error", "nvls_error"}
)
#: SourceLines of a watchdog that ends its own process.
ABORTING = frozenset({"timeout", "exception", "abort", "heartbeat"})
#: Of facts that are read from one line, which comes first.
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
#: Of the facts that may bear on a failure so many of one process are looked at, so that a storm costs no more.
LOOKED_AT = 64
_time = attrgetter("time")
_rank = attrgetter("rank")
_pod = attrgetter("pod")


class Peers:
    """Facts by which a rank says that it lost a peer, never met one, or that its watchdog ends it, in order, and when
    by rank."""

    def __init__(self) -> None:
        self.facts: list[Fact] = []
        #: Of these, those that stand for several statements over some time.
        self.folds: list[Fact] = []
        self.times: dict[int | None, list[int]] = {}

    def add(self, facts: Sequence[Fact]) -> None:
        new = [fact for fact in facts if _lost(fact)]
        for fact in new:
            insort(self.times.setdefault(fact.rank, []), fact.time)
        if new:
            self.facts += new
            arrange(self.facts)
            self.folds = [fact for fact in self.facts if fact.last_time is not None]


def _lost(fact: Fact) -> bool:
    if isinstance(fact, NcclError):
        return fact.error not in OWN_COLLECTIVE
    if isinstance(fact, WatchdogReport):
        return fact.report in ABORTING
    if isinstance(fact, RendezvousFailure):
        return not fact.own
    return isinstance(fact, ExceptionRaised) and last_name(fact.type) in COLLECTIVE


class SourceLines(Generic[F]):
    """Lines that facts were read from; a folded fact stands for lines of its stream that nobody remembers."""

    def __init__(self) -> None:
        self.places: set[tuple[str, int, str]] = set()
        self.folds: dict[tuple[str, int | None], list[F]] = {}

    def add(self, facts: Sequence[F]) -> None:
        for fact in facts:
            self.places.add(place_of(fact))
            if fact.count > 1:
                _keep(self.folds.setdefault((fact.source.path, fact.rank), []), fact)

    def hold(self, fact: Fact) -> bool:
        """Whether this fact was read from one of them."""
        if place_of(fact) in self.places:
            return True
        folds = self.folds.get((fact.source.path, fact.rank), []) if self.folds else []
        last = bisect_right(folds, fact.time, key=_time)
        return any(fact.time <= fold.end for fold in folds[max(0, last - LOOKED_AT) : last])


class OwnLines(SourceLines[NcclError]):
    """Lines of errors of a rank's own making."""

    def add(self, facts: Sequence[NcclError]) -> None:
        super().add([fact for fact in facts if fact.error in OWN_COLLECTIVE])


class OwnRendezvous(SourceLines[RendezvousFailure]):
    """Lines of failures to join of a rank's own making."""

    def add(self, facts: Sequence[RendezvousFailure]) -> None:
        super().add([fact for fact in facts if fact.own])


class Ends:
    """Fatal signals by the line that says so, of several the last."""

    def __init__(self) -> None:
        self.lines: dict[tuple[str, int, str], FatalSignal] = {}

    def add(self, signals: Sequence[FatalSignal]) -> None:
        for signal in signals:
            last = self.lines.setdefault(place_of(signal), signal)
            if order(signal) > order(last):
                self.lines[place_of(signal)] = signal


class Complaints:
    """Times at which ranks raised or died, by rank, sorted."""

    def __init__(self) -> None:
        self.times: dict[int | None, list[int]] = {}

    def add(self, facts: Sequence[Fact]) -> None:
        for fact in facts:
            insort(self.times.setdefault(fact.rank, []), fact.time)


class LastWords:
    """Reports of watchdogs that end their process: by line, and by stream."""

    def __init__(self) -> None:
        self.lines: dict[tuple[str, int, str], WatchdogReport] = {}
        self.streams: dict[tuple[str, int | None], list[WatchdogReport]] = {}

    def add(self, reports: Sequence[WatchdogReport]) -> None:
        for report in reports:
            if report.report not in ("exception", "abort"):
                continue
            first = self.lines.setdefault(place_of(report), report)
            if order(report) < order(first):
                self.lines[place_of(report)] = report
            for rank in {report.rank, None}:
                _keep(self.streams.setdefault((report.source.path, rank), []), report)


class ProcessFacts:
    """All of these for one window."""

    def __init__(self, window: Window) -> None:
        self.steps = window.grouped(Progress, _rank)
        self.statuses = window.grouped(ExitStatus, _rank)
        self.launched = window.grouped(LauncherFailure, _rank)
        self.done = window.grouped(RunFinished, _rank)
        self.pods = window.grouped(ContainerTerminated, _pod)
        self.words = LastWords()
        self.ends = Ends()
        self.complaints = Complaints()
        self.peers = Peers()
        own, cuda, rendezvous = OwnLines(), SourceLines[CudaError](), OwnRendezvous()
        self.own_lines: tuple[SourceLines[Any], ...] = (own, cuda, rendezvous)
        errors, reports, failed = (
            SourceLines[NcclError](),
            SourceLines[WatchdogReport](),
            SourceLines[RendezvousFailure](),
        )
        self.peer_lines: tuple[SourceLines[Any], ...] = (errors, reports, failed)
        #: Facts that know process and rank, by process; of those who name it the one to be believed first.
        kinds: tuple[type[Fact], ...] = (LauncherFailure, FatalSignal, ExceptionRaised, ExitStatus)
        self.pids = tuple([window.grouped(kind, _ranked_pid) for kind in kinds])
        parts: dict[type[Fact], tuple[Any, ...]] = {
            NcclError: (self.peers, own, errors),
            WatchdogReport: (self.peers, reports, self.words),
            RendezvousFailure: (self.peers, rendezvous, failed),
            CudaError: (cuda,),
            FatalSignal: (self.ends, self.complaints),
            ExceptionRaised: (self.peers, self.complaints),
        }
        for kind, some in parts.items():
            if facts := window.of(kind):
                for part in some:
                    part.add(facts)


def _ranked_pid(fact: Fact) -> int | None:
    """Its process, where it knows the rank, too."""
    return None if fact.rank is None else getattr(fact, "pid", None)


def place_of(fact: Fact) -> tuple[str, int, str]:
    """The line a fact was read from."""
    source = fact.source
    return source.path, source.offset, source.ident


def last_name(kind: str) -> str:
    """`DistBackendError` of `torch.distributed.DistBackendError` and of `c10::DistBackendError`."""
    return kind.rpartition(".")[2].rpartition(":")[2]


def arrange(facts: list[Fact]) -> None:
    """Sort by time, then by uid, then by type: uids are made up only where times do not decide."""
    facts.sort(key=_time)
    if len(set(map(_time, facts))) < len(facts):
        facts.sort(key=lambda fact: (fact.time, fact.uid, TYPES.index(type(fact))))


def _keep(known: list[F], fact: F) -> None:
    """Put a fact in its place; they mostly come in order."""
    if not known or fact.time > known[-1].time:
        known.append(fact)
    else:
        insort(known, fact, key=order)
