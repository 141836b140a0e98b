"""Which failures are a process's own, and which only follow from another's.

When one rank dies, the others lose their connection to it, their watchdogs abort them, and the launcher terminates what
is left. All of that is loud, and none of it is the cause.
"""

from __future__ import annotations

from bisect import bisect_left
from functools import cached_property
from itertools import pairwise
from operator import attrgetter
from typing import TYPE_CHECKING, Any, TypeVar

from tracecore.facts.kubernetes import ContainerTerminated
from tracecore.facts.nccl import NcclError, RendezvousFailure, WatchdogReport
from tracecore.facts.process import (
    CudaError,
    ExceptionRaised,
    ExitStatus,
    FatalSignal,
    LauncherFailure,
    LoaderError,
    signal_name,
)
from tracecore.facts.stop import PlannedStop
from tracecore.facts.training import Progress, RunFinished
from tracecore.patterns.worker_crash.ledger import (
    COLLECTIVE,
    Aborts,
    ByPid,
    ByPod,
    ByRank,
    LastWords,
    Lines,
    LostCollectives,
    LostConnections,
    OwnLines,
    OwnRendezvous,
    Peers,
    Steps,
    last_name,
    order,
    place_of,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from tracecore.facts.fact import Fact
    from tracecore.patterns.contract import Window

    F = TypeVar("F", bound=Fact)

#: Signals a process dies of by its own fault, or that nobody sends as a request.
FATAL = frozenset({"SIGSEGV", "SIGBUS", "SIGABRT", "SIGKILL", "SIGFPE", "SIGILL", "SIGTRAP", "SIGSYS", "SIGIOT"})
ABORT = frozenset({"SIGABRT", "SIGIOT"})
#: Exceptions by which a launcher, or a process that was told to stop, says so: never the crash itself.
MESSENGERS = frozenset(
    {
        "ChildFailedError", "SignalException", "ProcessRaisedException", "ProcessExitedException", "CalledProcessError",
        "KeyboardInterrupt", "SystemExit", "SIGTERMException", "RayTaskError", "RayActorError", "ActorDiedError",
        "WorkerCrashedError", "NodeDiedError", "BrokenProcessPool", "TrainingFailedError",
    }
)  # fmt: skip
WORKER_KILLED = "DataLoader worker killed"
_time = attrgetter("time")


class Scene:
    """The facts of one window, arranged so that a failure can be judged.

    Args:
        window: of one job.
        memory: how far from a failure its explanation may be.
        grace: how long after a stop was asked for a death is part of it.
    """

    def __init__(self, window: Window, memory: int, grace: int) -> None:
        self.memory = memory
        self.grace = grace
        self.exceptions = window.of(ExceptionRaised)
        self.signals = window.of(FatalSignal)
        self.statuses = window.of(ExitStatus)
        self.launchers = window.of(LauncherFailure)
        self.loaders = window.of(LoaderError)
        self.containers = window.of(ContainerTerminated)
        self.progress = window.of(Progress)
        self.finished = window.of(RunFinished)
        self.stops = window.of(PlannedStop)
        self._peers: tuple[Peers[Any], ...] = (
            window.digest(NcclError, LostConnections),
            window.digest(WatchdogReport, Aborts),
            window.digest(ExceptionRaised, LostCollectives),
        )
        self._own_lines: tuple[Lines[Any], ...] = (
            window.digest(NcclError, OwnLines),
            window.digest(CudaError, Lines),
            window.digest(RendezvousFailure, OwnRendezvous),
        )
        self._peer_lines: tuple[Lines[Any], ...] = (
            window.digest(NcclError, Lines),
            window.digest(WatchdogReport, Lines),
            window.digest(RendezvousFailure, Lines),
        )
        self.cuda: dict[CudaError, WatchdogReport | FatalSignal] = _last_words(window)
        self._steps = window.digest(Progress, Steps)
        self._ranks = _by_rank(window, ExitStatus)
        self._launched = _by_rank(window, LauncherFailure)
        self._done = _by_rank(window, RunFinished)
        self._stopped = _by_rank(window, PlannedStop)
        pods: ByPod[ContainerTerminated] = window.digest(ContainerTerminated, ByPod)
        self._pods = pods.known
        self._pids: tuple[dict[int, list[Any]], ...] = tuple(
            window.digest(kind, ByPid).known for kind in (LauncherFailure, FatalSignal, ExceptionRaised, ExitStatus)
        )

    @cached_property
    def peers(self) -> list[Fact]:
        """All words of lost peers and of watchdogs, in order."""
        facts = [fact for peers in self._peers for fact in peers.facts]
        arrange(facts)
        return facts

    @cached_property
    def _complaints(self) -> dict[int | None, list[int]]:
        return _times([*self.exceptions, *self.signals])

    def _heard(self, rank: int | None, fact: Fact) -> bool:
        """Whether there is any output of this rank around that time."""
        steps = self._steps.ranks.get(rank, ())
        place = bisect_left(steps, fact.time - self.memory, key=_time)
        if place < len(steps) and steps[place].time <= fact.time + self.memory:
            return True
        return self._within(self._complaints.get(rank), fact)

    def failures(self) -> Iterator[Fact]:
        """Every fact that says that a process failed of itself."""
        yield from (fact for fact in self.exceptions if self._raised(fact))
        # A watchdog that met an error of its own GPU ends the process, often without another word; so does ROCm.
        yield from (fact for fact in self.cuda if not self._ended(fact) and not self.survived(fact))
        yield from (fact for fact in self.signals if self._died(fact, fact.signal))
        yield from (fact for fact in self.statuses if self._died(fact, fact.signal) or self._left_alone(fact))
        yield from (
            fact for fact in self.containers if fact.exit_code and self._died(fact, signal_name(fact.exit_code))
        )
        yield from (fact for fact in self.launchers if self._reported(fact))
        for loader in self.loaders:
            # Workers that are terminated were told to end, by their own process or by whoever stops it.
            if loader.error_class == WORKER_KILLED and loader.signal != "SIGTERM" and not self._ended(loader):
                yield loader

    def waits_for(self) -> set[int | None]:
        """Ranks of which a further step may change how a failure is judged; None stands for all of them."""
        found: set[int | None] = set()
        for facts in (self.exceptions, self.statuses, self.cuda):
            for fact in facts:
                rank = fact.rank
                steps = self._steps.ranks.get(rank)
                last = steps[-1] if steps and rank is not None else None
                if (
                    last is None
                    or last.attempt != fact.attempt
                    or not fact.end < last.time <= fact.time + self.memory
                    or not after(last, fact)
                ):
                    found.add(rank)
        return found

    def rank(self, fact: Fact) -> int | None:
        """Its rank; where the line names only a process, that process's rank."""
        if fact.rank is not None:
            return fact.rank
        if isinstance(fact, CudaError) and fact in self.cuda:
            return self.cuda[fact].rank
        pid: int = getattr(fact, "pid", None) or -1
        for known in self._pids:
            for other in known.get(pid, ()):
                if self.near(other, fact):
                    rank: int = other.rank
                    return rank
        return None

    def near(self, other: Fact, fact: Fact) -> bool:
        """Whether the one is close enough in time to bear on the other."""
        return other.end >= fact.time - self.memory and other.time <= fact.time + self.memory

    def _raised(self, fact: ExceptionRaised) -> bool:
        kind = last_name(fact.type)
        if kind in MESSENGERS:
            return False
        if (kind in COLLECTIVE or _hold(self._peer_lines, fact)) and not _hold(self._own_lines, fact):
            return False
        return not self._ended(fact) and (self.confirmed(fact) is not None or not self.survived(fact))

    def _died(self, fact: Fact, signal: str | None) -> bool:
        if signal not in FATAL and not (signal == "SIGTERM" and self._terminated_alone(fact)):
            return False
        rank = self.rank(fact)
        if self._lost_peer(fact, rank):
            return False
        if signal in ABORT and isinstance(fact, ExitStatus) and not self._heard(rank, fact):
            return False  # Why it aborted is in its output, which nobody has seen.
        return not self._ended(fact)

    def _terminated_alone(self, fact: Fact) -> bool:
        """Whether one process was told to end and no other: who stops a job, or cleans up after it, tells all."""
        if not isinstance(fact, ExitStatus) or fact.rank is None or self.launchers or self.stops:
            return False
        ended = self._other_ends(fact)
        return bool(ended) and not ended & {"SIGTERM", 0}

    def _left_alone(self, fact: ExitStatus) -> bool:
        """Whether one process gave up with a status of its own and no traceback, and the others were aborted."""
        if not fact.exit_code or fact.signal is not None or fact.rank is None or self.launchers or self.stops:
            return False
        if self._within(self._complaints.get(fact.rank), fact) or self._lost_peer(fact, fact.rank):
            return False
        return self._other_ends(fact) == {"SIGABRT"} and self._heard(fact.rank, fact)

    def _other_ends(self, fact: ExitStatus) -> set[str | int | None]:
        """How the other ranks ended, by signal or exit status."""
        others = [status for status in self.statuses if status.rank != fact.rank and self.near(status, fact)]
        return {status.signal or status.exit_code for status in others if not status.alive}

    def _reported(self, fact: LauncherFailure) -> bool:
        if fact.signal is not None:
            return self._died(fact, fact.signal)
        if not fact.exit_code or self._ended(fact):
            return False
        if fact.exception_type is not None and last_name(fact.exception_type) in MESSENGERS | COLLECTIVE:
            return False
        return fact.root and not self._lost_peer(fact, self.rank(fact))

    def _lost_peer(self, fact: Fact, rank: int | None) -> bool:
        """The rank's own output says that it lost a peer or that its watchdog ended it, before it died."""
        within = fact.approximate or isinstance(fact, LauncherFailure)
        for peers in self._peers:
            times = peers.times.get(rank)
            if times is not None and _any(
                times, fact.time - self.memory, fact.time + self.memory if within else fact.end
            ):
                return True
        return False

    def _within(self, times: list[int] | None, fact: Fact) -> bool:
        return times is not None and _any(times, fact.time - self.memory, fact.time + self.memory)

    def _ended(self, fact: Fact) -> bool:
        """Somebody had asked for the end."""
        if not self.stops:
            return False
        rank, time = fact.rank, fact.time
        known = self._stopped
        for stops in (known.get(rank, ()), known.get(None, ())) if rank is not None else known.values():
            for stop in stops:
                if stop.time <= time <= stop.end + self.grace and _one_place(stop, fact):
                    return True
        return False

    def survived(self, fact: Fact) -> bool:
        """The same process went on: its step advanced, it finished, or it exited with 0."""
        if any(after(done, fact) and self.near(done, fact) for done in self._done.get(fact.rank, ())):
            return True
        own = [status.exit_code for status in self._ends(fact) if not status.alive]
        if own and not any(own) and not any(self.near(report, fact) for report in self.launchers):
            return True
        if fact.rank is None:
            return self._others_went_on(fact)
        steps = self._steps.ranks.get(fact.rank, ())
        for place in range(bisect_left(steps, fact.time, key=_time), len(steps)):
            step = steps[place]
            if step.time > fact.time + self.memory:
                break
            if step.attempt == fact.attempt and after(step, fact):
                return True
        return False

    def _others_went_on(self, fact: Fact) -> bool:
        """Of several processes in one stream the others may report one more step, and no more, when one is gone."""
        before = after_it = -1
        for step in self.progress:
            if step.step is None or step.attempt != fact.attempt or not self.near(step, fact):
                continue
            if after(step, fact):
                after_it = max(after_it, step.step)
            else:
                before = max(before, step.step)
        return after_it > before + 1 if before >= 0 else after_it >= 0

    def confirmed(self, fact: Fact) -> Fact | None:
        """What else says that this very process ended badly: its launcher, its exit status, its container."""
        rank, pid = self.rank(fact), getattr(fact, "pid", None)
        if rank is not None:
            for report in self._launched.get(rank, ()):
                if self._blames(report, fact):
                    return report
        for report in self._launched.get(None, ()):
            if (pid is None or report.pid in (None, pid)) and self._blames(report, fact):
                return report
        for status in self._ends(fact):
            if status is not fact and status.exit_code:
                return status
        for end in self._pods.get(fact.pod, ()) if fact.pod else ():
            if end is not fact and end.exit_code and self.near(end, fact):
                return end
        return None

    def _blames(self, report: LauncherFailure, fact: Fact) -> bool:
        """A launcher's report that may be of this failure: of an end that nobody asked for, and not long before it."""
        if report is fact or not report.exit_code or report.signal == "SIGTERM" or report.attempt != fact.attempt:
            return False
        return report.end >= fact.time - self.grace and self.near(report, fact)

    def _ends(self, fact: Fact) -> list[ExitStatus]:
        """The exit statuses of the process that this fact is about."""
        if fact.rank is None:
            known = [status for statuses in self._ranks.values() for status in statuses if self.near(status, fact)]
            # One process, or one launcher for all of them.
            return known if self._alone(fact) else []
        known = [status for status in self._ranks.get(fact.rank, ()) if self.near(status, fact)]
        if known:
            # A single status beside a launcher is the launcher's own, whatever it is called.
            launched = any(self.near(report, fact) for report in self.launchers)
            return [] if launched and self._alone(fact) else known
        unnamed = [status for status in self._ranks.get(None, ()) if self.near(status, fact)]
        return unnamed if unnamed and self._alone(fact) else []

    def _alone(self, fact: Fact) -> bool:
        """The exit statuses at hand are all of one process."""
        seen = 0
        for statuses in self._ranks.values():
            seen += any(self.near(status, fact) for status in statuses)
            if seen > 1:
                return False
        return True


def _last_words(window: Window) -> dict[CudaError, WatchdogReport | FatalSignal]:
    """CUDA errors that end their process: a watchdog's line says so, or its stream's where one was folded; or the
    line by which the GPU's own runtime aborts it."""
    words = window.digest(WatchdogReport, LastWords)
    found: dict[CudaError, WatchdogReport | FatalSignal] = {}
    ends = {place_of(fact): fact for fact in window.of(FatalSignal)} if window.of(CudaError) else {}
    for fact in window.of(CudaError):
        report_of = words.lines.get(place_of(fact))
        for report in words.streams.get((fact.source.path, fact.rank), ()) if report_of is None else ():
            if (fact.count > 1 or report.count > 1) and fact.time <= report.end and report.time <= fact.end:
                report_of = report
                break
        if report_of is not None:
            found[fact] = report_of
        elif place_of(fact) in ends:
            found[fact] = ends[place_of(fact)]
    return found


def _by_rank(window: Window, kind: type[F]) -> dict[int | None, list[F]]:
    known: ByRank[F] = window.digest(kind, ByRank)
    return known.known


def _hold(lines: Iterable[Lines[Any]], fact: Fact) -> bool:
    """Whether this fact was read from one of these lines."""
    return any(known.hold(fact) for known in lines)


def after(later: Fact, earlier: Fact) -> bool:
    """Whether one was said after the other: by its place within one stream, else by its time."""
    if later.source.path == earlier.source.path and not later.source.ident:
        return later.source.offset > earlier.source.offset
    return later.time > earlier.time


def _one_place(stop: Fact, fact: Fact) -> bool:
    """Nothing tells apart where the one and the other happened."""
    node, pod = stop.node, stop.pod
    return (node is None or fact.node is None or node == fact.node) and (
        pod is None or fact.pod is None or pod == fact.pod
    )


def arrange(facts: list[Fact]) -> None:
    """Sort by time, then by uid: uids are made up only where times do not decide."""
    facts.sort(key=_time)
    if any(one.time == other.time for one, other in pairwise(facts)):
        facts.sort(key=order)


def first_of(facts: Iterable[Fact]) -> Fact:
    """The earliest, of several the one with the lowest uid."""
    known = list(facts)
    time = min(map(_time, known))
    known = [fact for fact in known if fact.time == time]
    return known[0] if len(known) == 1 else min(known, key=order)


def _times(facts: Iterable[Fact]) -> dict[int | None, list[int]]:
    """When facts were stated, by rank, sorted."""
    times: dict[int | None, list[int]] = {}
    for fact in facts:
        times.setdefault(fact.rank, []).append(fact.time)
    for known in times.values():
        known.sort()
    return times


def _any(times: list[int], begin: int, end: int) -> bool:
    place = bisect_left(times, begin)
    return place < len(times) and times[place] <= end
