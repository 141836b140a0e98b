"""The failures of a job, each judged again only when something new may bear on it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

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
from tracecore.facts.stop import PlannedStop
from tracecore.facts.training import Progress, RunFinished
from tracecore.patterns.worker_crash.blame import ABORT, Scene
from tracecore.patterns.worker_crash.crash import Crash, crashes
from tracecore.patterns.worker_crash.ledger import Ledger, arrange, place_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from tracecore.facts.fact import Fact
    from tracecore.patterns.contract import Window

#: Facts that may be a process's own failure.
FAILURES = (
    ExceptionRaised,
    CudaError,
    FatalSignal,
    ExitStatus,
    ContainerTerminated,
    LauncherFailure,
    LoaderError,
)
#: Facts by which a rank may say that it lost a peer.
LOST_PEER = (NcclError, WatchdogReport, ExceptionRaised, RendezvousFailure)
#: A rank that lost a peer, or whose watchdog ended it, did not die of itself.
_DEATHS = (FatalSignal, ExitStatus, ContainerTerminated, LauncherFailure)
#: Errors may be survived, or confirmed by whoever saw the process end.
_ERRORS = (ExceptionRaised, CudaError)
#: By type of a fact the failures of its rank that it bears on.
BEARS_ON: dict[type[Fact], tuple[type[Fact], ...]] = {
    ExceptionRaised: _DEATHS,
    NcclError: _DEATHS,
    WatchdogReport: (*_DEATHS, CudaError),
    FatalSignal: (ExitStatus, LauncherFailure),
    ExitStatus: _ERRORS,
    LauncherFailure: _ERRORS,
    RunFinished: _ERRORS,
    PlannedStop: FAILURES,
    ContainerTerminated: (),
    CudaError: (),
    LoaderError: (),
    RendezvousFailure: _DEATHS,
}


class Failures:
    """What was concluded of each failure in a window, kept from one look to the next.

    A fact bears on failures of its rank (`BEARS_ON`) and on those of its line, a container's end on those of its pod,
    and anything on those whose rank nobody says. An exit status bears also on how the others' are read, and on failures
    that seemed to be of the only process; a launcher's report on those of which no launcher had spoken. A step bears
    only on those that wait for one.

    Args:
        window: failures this close to each other are one crash.
    """

    def __init__(self, window: int) -> None:
        self._window = window
        self._ledger = Ledger()
        self._all: list[Fact] = []
        self._ranks: dict[tuple[int, type[Fact]], list[Fact]] = {}
        self._unranked: list[Fact] = []
        self._lines: dict[tuple[str, int, str], list[Fact]] = {}
        self._pods: dict[str | None, list[Fact]] = {}
        #: Of which no launcher has spoken, and that may be of the only process: a report, a status may bear on them.
        self._unlaunched: dict[int, Fact] = {}
        self._alone: dict[int, Fact] = {}
        #: Ends by an abort or a status, of which the others' ends tell whether they are a process's own.
        self._mute: list[ExitStatus] = []
        self._own: dict[int, Fact] = {}
        self._whose: dict[int, int | None] = {}
        self._crashes: list[Crash] | None = None
        self._waiting: dict[int, Fact] = {}
        #: The ranks of which a further step may change how a failure is judged; with None among them, of all.
        self.awaited: set[int | None] = set()

    def judge(self, window: Window, memory: int, grace: int) -> Scene:
        """Take what is new in the window, and judge the failures it bears on.

        Args:
            memory: how far from a failure its explanation may be.
            grace: how long after a stop was asked for a death is part of it.
        """
        new = window.new()
        self._ledger.take(new)
        scene = Scene(window, self._ledger, memory, grace)
        for kind in FAILURES:
            for fact in new.get(kind, ()):
                self._all.append(fact)
                if fact.rank is None:
                    self._unranked.append(fact)
                else:
                    self._ranks.setdefault((fact.rank, kind), []).append(fact)
                self._lines.setdefault(place_of(fact), []).append(fact)
                self._pods.setdefault(fact.pod, []).append(fact)
                self._unlaunched[id(fact)] = self._alone[id(fact)] = fact
                if isinstance(fact, ExitStatus) and fact.exit_code and (fact.signal is None or fact.signal in ABORT):
                    self._mute.append(fact)
        for fact in self._touched(scene, new):
            self._conclude(fact, scene)
        if scene.launchers:
            self._unlaunched = {name: fact for name, fact in self._unlaunched.items() if not scene.launched(fact)}
        if scene.statuses:
            self._alone = {name: fact for name, fact in self._alone.items() if scene.alone(fact)}
        self.awaited = {fact.rank for fact in self._waiting.values()}
        return scene

    def bears(self, finished: RunFinished) -> bool:
        """Whether there is a failure that the end of a run may bear on."""
        if self._unranked or finished.count > 1 or place_of(finished) in self._lines:
            return True
        return any((finished.rank, failure) in self._ranks for failure in BEARS_ON[RunFinished])

    def crashes(self) -> list[Crash]:
        """What the failures that are a process's own come to."""
        if self._crashes is None:
            own = list(self._own.values())
            arrange(own)
            self._crashes = list(crashes(own, self._whose, self._window))
        return self._crashes

    def _conclude(self, fact: Fact, scene: Scene) -> None:
        name, own = id(fact), scene.own(fact)
        rank = scene.named(fact) if own else None
        if own != (name in self._own) or rank != self._whose.get(name):
            self._crashes = None
            if own:
                self._own[name], self._whose[name] = fact, rank
            else:
                del self._own[name], self._whose[name]
        if scene.waits(fact):
            self._waiting[name] = fact
        else:
            self._waiting.pop(name, None)

    def _touched(self, scene: Scene, new: Mapping[type[Fact], Sequence[Any]]) -> Iterable[Fact]:
        stops, reports, statuses = new.get(PlannedStop, ()), new.get(LauncherFailure, ()), new.get(ExitStatus, ())
        # Where nobody was stopped and no launcher speaks, one who was told to end was told alone.
        first = (stops and len(stops) == len(scene.stops)) or (reports and len(reports) == len(scene.launchers))
        if first or any(fact.rank is None for fact in (*stops, *reports, *statuses)):
            return self._all
        touched: list[Fact] = []
        for kind, facts in new.items():
            if kind is Progress:
                steps, first_new = self._ledger.steps.ranks, facts[0].time
                touched += [
                    fact
                    for fact in self._waiting.values()
                    if fact.rank is None or (fact.rank in steps and steps[fact.rank][-1].time >= first_new)
                ]
                continue
            touched += self._unranked
            # What was folded stands for lines of its rank that nobody remembers.
            bearing = {
                (fact.rank, failure)
                for fact in facts
                if fact.rank is not None
                for failure in (BEARS_ON[kind] if fact.count == 1 else FAILURES)
            }
            for ranked in bearing:
                touched += self._ranks.get(ranked, ())
            for place in {place_of(fact) for fact in facts}:
                touched += self._lines.get(place, ())
            for pod in {fact.pod for fact in facts} if kind is ContainerTerminated else ():
                touched += self._pods.get(pod, ())
        if reports:
            touched += self._unlaunched.values()
            # Which of them was first, where none is called the root, is told by how the others ended.
            touched += [report for report in scene.launchers if not report.root]
        if statuses or not new.keys().isdisjoint(LOST_PEER):
            # What the others say of their ends bears on one of which its own process says nothing.
            # A status is asked about only where no launcher speaks and nobody was stopped.
            told = scene.launchers or scene.stops
            touched += [fact for fact in self._mute if fact.signal is not None] if told else self._mute
        if statuses:
            touched += self._alone.values()
            if not scene.launchers and not scene.stops:
                touched += scene.statuses
        return {id(fact): fact for fact in touched}.values()
