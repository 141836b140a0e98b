"""One rank raised, crashed or was killed, and the others followed: which one was first."""

from __future__ import annotations

from typing import TYPE_CHECKING

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
from tracecore.patterns.config import MINUTE, SECOND, Duration, Settings
from tracecore.patterns.contract import Pattern
from tracecore.patterns.scope import job_keys
from tracecore.patterns.worker_crash.blame import first_of
from tracecore.patterns.worker_crash.failures import Failures
from tracecore.patterns.worker_crash.verdict import WorkerCrashVerdict

if TYPE_CHECKING:
    from tracecore.facts.fact import Fact
    from tracecore.patterns.contract import Key, Verdict, Window
    from tracecore.patterns.worker_crash.blame import Scene

#: At most this many of those that followed are cited.
CITED = 3


class Config(Settings, frozen=True, kw_only=True):
    """
    Args:
        window: failures this close to each other are one crash, of which the first counts.
        memory: how far from a failure a watchdog's word, an exit status or a step still bears on it.
        grace: a death so soon after a stop was asked for is part of that stop.
    """

    window: Duration = 5 * MINUTE
    memory: Duration = 30 * MINUTE
    grace: Duration = 2 * MINUTE


#: Of the failures of one rank that is cited which says most.
TELLING: dict[type[Fact], int] = {
    LoaderError: 0,
    ExceptionRaised: 1,
    CudaError: 2,
    FatalSignal: 3,
    LauncherFailure: 4,
}


class WorkerCrash(Pattern[Config]):
    """The first failure that no other failure explains.

    An uncaught exception, a fatal signal, or what a launcher calls the root. Lost connections, aborts by the watchdog,
    a launcher's own exception and deaths after a stop that was asked for are consequences; a traceback after which
    the step goes on, or the process exits with 0, was survived.
    """

    id = "17"
    name = "worker_crash"
    role = "cause"
    maturity = "stable"
    needs = (
        ExceptionRaised,
        FatalSignal,
        ExitStatus,
        LauncherFailure,
        LoaderError,
        ContainerTerminated,
        CudaError,
        NcclError,
        WatchdogReport,
        RendezvousFailure,
        PlannedStop,
        Progress,
        RunFinished,
    )
    triggers = (ExceptionRaised, FatalSignal, ExitStatus, LauncherFailure, LoaderError, ContainerTerminated, CudaError)
    steady = asides = (Progress,)
    Config = Config

    @property
    def horizon(self) -> int:
        return self.config.memory + self.config.window + self.config.grace

    def keys(self, fact: Fact) -> tuple[Key, ...]:
        return job_keys(fact)

    def matters(self, window: Window, fact: Fact) -> bool:
        """A step matters to a failure of its rank that no step came after, and to one whose rank is not known."""
        failures: Failures | None = window.kept
        return failures is None or failures.awaits(fact.rank)

    def evaluate(self, window: Window, now: int) -> list[Verdict]:
        kept: Failures | None = window.kept
        failures = Failures() if kept is None else kept
        scene = failures.judge(window, self.config.memory, self.config.grace)
        window.keep(failures)
        attempts: dict[int, list[Fact]] = {}
        for fact in failures.own():
            attempts.setdefault(fact.attempt, []).append(fact)
        found: list[Verdict] = []
        for own in attempts.values():
            begin = 0
            for place in range(1, len(own) + 1):
                # A failure with none shortly before it begins a crash; what follows it closely belongs to it.
                if place == len(own) or own[place].time - own[place - 1].time > self.config.window:
                    found.append(self._verdict(window, scene, own[begin:place]))
                    begin = place
        found.sort(key=lambda verdict: (verdict.time, verdict.episode))
        return found

    def _verdict(self, window: Window, scene: Scene, failures: list[Fact]) -> Verdict:
        start = failures[0]
        failures = [fact for fact in failures if fact.time - start.time <= self.config.window]
        whose = {id(fact): scene.rank(fact) for fact in failures}
        ranked = [fact for fact in failures if whose[id(fact)] is not None]
        roots = {fact.rank for fact in failures if type(fact) is LauncherFailure and fact.root} - {None}
        # What the launcher saw first, else what was said first; a rank's exception says more than its signal.
        named = ([fact for fact in ranked if whose[id(fact)] in roots] if roots else []) or failures
        first = first_of(named)
        rank = whose[id(first)]
        if rank is not None:
            first = min((fact for fact in named if whose[id(fact)] == rank), key=_telling)
        elif isinstance(first, LauncherFailure | FatalSignal) and ranked:
            first = first_of(ranked)
            rank = whose[id(first)]
        elif isinstance(first, ExceptionRaised | FatalSignal):
            first = min((fact for fact in named if fact.source == first.source), key=_telling)
        ranks = {whose[id(fact)] for fact in ranked if _alike(fact, first)} | ({rank} - {None})
        confirmation = scene.confirmed(first)
        followers = scene.followers(first, ranks)
        certain = confirmation is not None or followers or not isinstance(first, ExceptionRaised)
        return WorkerCrashVerdict(
            key=window.key,
            episode=f"{start.attempt}:{start.uid}",
            time=first.time,
            confidence="full" if certain else "partial",
            failure=first,
            rank=rank,
            ranks=tuple(sorted(known for known in ranks if known is not None)),
            confirmation=confirmation,
            followers=tuple(list(followers.values())[:CITED]),
            followed=len(followers.keys() - {None}),
        )


def _alike(fact: Fact, first: Fact) -> bool:
    """The same failure of another rank: everybody fails to import it, everybody is killed at once."""
    if isinstance(fact, ExceptionRaised) and isinstance(first, ExceptionRaised):
        return (fact.type, fact.file, fact.line) == (first.type, first.file, first.line) and fact.file is not None
    if type(fact) is not type(first) or not (fact.approximate or abs(fact.time - first.time) <= SECOND):
        return False
    signal = getattr(fact, "signal", None)
    return signal is not None and signal == getattr(first, "signal", None)


def _telling(fact: Fact) -> tuple[int, int, str]:
    return TELLING.get(type(fact), len(TELLING)), fact.time, fact.uid
