"""Detection of the rank that raised an exception, crashed or was killed before the others followed."""

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
from tracecore.patterns.config import MINUTE, Duration, Settings
from tracecore.patterns.contract import Pattern
from tracecore.patterns.scope import job_keys
from tracecore.patterns.worker_crash.blame import Scene
from tracecore.patterns.worker_crash.crash import JudgedFailures, crashes
from tracecore.patterns.worker_crash.process_facts import ProcessFacts, arrange
from tracecore.patterns.worker_crash.verdict import WorkerCrashVerdict

if TYPE_CHECKING:
    from tracecore.facts.fact import Fact
    from tracecore.patterns.contract import Key, Verdict, Window
    from tracecore.patterns.worker_crash.crash import Crash

#: Facts that may show that a process failed by itself.
FAILURES = (
    ExceptionRaised,
    CudaError,
    FatalSignal,
    ExitStatus,
    ContainerTerminated,
    LauncherFailure,
    LoaderError,
)
#: Maximum number of ranks that followed to cite.
CITED = 3


class Config(Settings, frozen=True, kw_only=True):
    """
    Args:
        window: failures this close to each other are one crash. The first of them counts.
        memory: a watchdog's report, an exit status or a step this close to a failure bears on it.
        grace: a process that ends this soon after a stop was requested ended because of it.
    """

    window: Duration = 5 * MINUTE
    memory: Duration = 30 * MINUTE
    grace: Duration = 2 * MINUTE


class WorkerCrash(Pattern[Config]):
    """The first failure that no other failure explains.

    It is an uncaught exception, a fatal signal, or the failure that a launcher calls the root. Consequences are lost
    connections, aborts by the watchdog, exceptions of a launcher and ends after a requested stop. If the steps go on
    after a traceback, or the process exits with 0, the process survived it.
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
    Config = Config

    @property
    def horizon(self) -> int:
        return self.config.memory + self.config.window + self.config.grace

    def keys(self, fact: Fact) -> tuple[Key, ...]:
        if type(fact) is LoaderError and fact.retried:
            return ()
        return job_keys(fact)

    def evaluate(self, window: Window, now: int) -> list[Verdict]:
        scene = Scene(window, ProcessFacts(window), self.config.memory, self.config.grace)
        facts: list[Fact] = [fact for kind in FAILURES for fact in window.of(kind)]
        arrange(facts)
        failures = JudgedFailures(scene.own, scene.named)
        found = [self._verdict(window, scene, crash) for crash in crashes(facts, failures, self.config.window)]
        found.sort(key=lambda verdict: (verdict.time, verdict.episode))
        return found

    def _verdict(self, window: Window, scene: Scene, crash: Crash) -> Verdict:
        confirmation = scene.confirmed(crash.first)
        followers = scene.followers(crash.first, crash.ranks)
        certain = confirmation is not None or followers or not isinstance(crash.first, ExceptionRaised)
        return WorkerCrashVerdict(
            key=window.key,
            episode=f"{crash.start.attempt}:{crash.start.uid}",
            time=crash.first.time,
            confidence="full" if certain else "partial",
            failure=crash.first,
            rank=crash.rank,
            ranks=tuple(sorted(crash.ranks)),
            everybody=crash.everybody,
            confirmation=confirmation,
            followers=tuple(list(followers.values())[:CITED]),
            followed=len(followers.keys() - {None}),
        )
