"""Judgement of failures: a process's own, or a consequence of another's.

When one rank dies, the others lose their connection to it, their watchdogs abort them, and the launcher terminates what
is left. All of that is loud, and none of it is the cause.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from functools import cached_property
from itertools import chain
from operator import attrgetter
from typing import TYPE_CHECKING, TypeVar

from tracecore.facts.kubernetes import ContainerTerminated
from tracecore.facts.nccl import RendezvousFailure, WatchdogReport
from tracecore.facts.process import (
    LAST_WORDS,
    UNFINISHED,
    CudaError,
    ExceptionRaised,
    ExitStatus,
    FatalSignal,
    LauncherFailure,
    LoaderError,
    signal_name,
)
from tracecore.facts.stop import PlannedStop
from tracecore.patterns.config import SECOND
from tracecore.patterns.related import Related
from tracecore.patterns.timeline import Others, Timeline, grouped
from tracecore.patterns.worker_crash.aftermath import Aftermath
from tracecore.patterns.worker_crash.process_facts import COLLECTIVE, LOOKED_AT, RUNTIMES, STORE, last_name

if TYPE_CHECKING:
    from collections.abc import Container, Iterable

    from tracecore.facts.fact import Fact
    from tracecore.patterns.contract import Window
    from tracecore.patterns.worker_crash.process_facts import ByRank, ProcessFacts, SourceLines

    F = TypeVar("F", bound=Fact)

#: Signals a process dies of by its own fault, or that nobody sends as a request.
FATAL = frozenset(
    {
        "SIGSEGV", "SIGBUS", "SIGABRT", "SIGKILL", "SIGFPE", "SIGILL", "SIGTRAP", "SIGSYS", "SIGIOT", "SIGXFSZ",
        "SIGXCPU", "SIGPIPE", "SIGALRM", "SIGQUIT",
    }
)  # fmt: skip
ABORT = frozenset({"SIGABRT", "SIGIOT"})
#: How a process ends that was told to, or whose watchdog ended it.
_TOLD = ABORT | {"SIGTERM"}
#: Signals by which somebody asks a process to end.
_ASKED = frozenset({"SIGTERM", "SIGINT"})
#: Exceptions by which a launcher, or a process that was told to stop, says so: never the crash itself.
MESSENGERS = frozenset(
    {
        "ChildFailedError", "SignalException", "ProcessRaisedException", "ProcessExitedException", "CalledProcessError",
        "KeyboardInterrupt", "SystemExit", "SIGTERMException", "RayTaskError", "RayActorError", "ActorDiedError",
        "WorkerCrashedError", "NodeDiedError", "TrainingFailedError",
    }
)  # fmt: skip
#: What counts only where no process says anything else.
_WEAK = frozenset({UNFINISHED, LAST_WORDS})
WORKER_KILLED = "DataLoader worker killed"
#: Bytes of a log within which lines that name no process belong to the one around them.
BESIDE = 1 << 15
_time = attrgetter("time")
_offset = attrgetter("source.offset")
_rank = attrgetter("rank")
_of_whom = attrgetter("rank", "node", "pod")


class Scene(Aftermath):
    """The facts of one window, arranged so that a failure can be judged."""

    def __init__(self, window: Window, facts: ProcessFacts, memory: int, grace: int) -> None:
        super().__init__(window, facts, memory, grace)
        self.stops = window.of(PlannedStop)
        self.exceptions = window.of(ExceptionRaised)
        self._watchdogs: dict[str, list[WatchdogReport]] | None = None

    # Each of these costs one look at all facts of a kind, and only where it is asked for.

    @cached_property
    def _launched(self) -> Others[LauncherFailure]:
        return Others(self.launchers, _rank)

    @cached_property
    def _launched_to_fail(self) -> Others[LauncherFailure]:
        """Reports of ends that were neither good nor asked for."""
        return Others([report for report in self.launchers if report.exit_code and report.signal not in _TOLD], _rank)

    @cached_property
    def _unexplained(self) -> tuple[Others[ExitStatus], Others[ExitStatus]]:
        """Unexplained ends that were not requested; and those of them that are not aborts."""
        statuses = [
            status
            for status in self.statuses
            if status.exit_code and status.signal != "SIGTERM" and not self._lost_peer(status, status.rank)
        ]
        return Others(statuses, _rank), Others([s for s in statuses if s.signal not in ABORT], _rank)

    @cached_property
    def _ended_by(self) -> dict[str, Others[ExitStatus]]:
        """Ends by what they tell: told to end or good, fatal, aborted, a status of their own."""
        return {
            how: Others(statuses, _rank)
            for how, statuses in grouped([s for s in self.statuses if not s.alive], _how_ended).items()
        }

    @cached_property
    def _waited(self) -> Timeline[Fact]:
        """Reports of ranks that timed out in a collective or could not join."""
        return Timeline([f for f in self.facts.peers if isinstance(f, RendezvousFailure) or _is_timeout(f)])

    @cached_property
    def _stopped(self) -> Related[PlannedStop]:
        return Related(self.stops, _of_whom)

    def followers(self, first: Fact, ranks: Container[int | None]) -> dict[int | None, Fact]:
        """By rank the first word of another that it lost a peer, or that its watchdog ends it, near this failure."""
        attempt, oldest, latest = first.attempt, first.time - self.memory, first.time + self.memory
        found: dict[int | None, Fact] = {}
        peers, folds = self.facts.peers, self.facts.peer_folds
        begun = [fact for fact in folds[-LOOKED_AT:] if fact.time < oldest <= fact.end]
        near = peers[bisect_left(peers, oldest, key=_time) : bisect_right(peers, latest, key=_time)]
        for fact in (*begun, *near):
            rank = fact.rank
            if rank not in found and rank not in ranks and fact is not first and fact.attempt == attempt:
                found[rank] = fact
        return found

    def _heard(self, rank: int | None, fact: Fact) -> bool:
        """Whether there is any output of this rank around that time."""
        steps = self.facts.steps.get(rank, ())
        place = bisect_left(steps, fact.time - self.memory, key=_time)
        if place < len(steps) and steps[place].time <= fact.time + self.memory:
            return True
        return self._complained(rank, fact)

    def _complained(self, rank: int | None, fact: Fact) -> bool:
        """Whether this rank raised or died around that time."""
        return _any(self.facts.complaints, rank, fact.time - self.memory, fact.time + self.memory)

    def own(self, fact: Fact) -> bool:
        """Whether this fact says that a process failed of itself."""
        if isinstance(fact, ExceptionRaised):
            return self._raised(fact)
        if isinstance(fact, CudaError):
            # A watchdog that met an error of its own GPU ends the process, often without another word; so does ROCm.
            # No process goes on after an assert on its GPU, and the log may end before it says so.
            fatal = self._last_word(fact) is not None or (fact.error == "device_assert" and self._nothing_said)
            return fatal and not self._ended(fact) and not self.survived(fact)
        if isinstance(fact, FatalSignal):
            # A process that prints steps below the word has only printed it: of a sample, or of another's trouble.
            return self._died(fact, fact.signal) and not self.steps_of_its_own(fact)
        if isinstance(fact, ExitStatus):
            return self._died(fact, fact.signal) or self._left_alone(fact) or fact is self._left_early
        if isinstance(fact, ContainerTerminated):
            return bool(fact.exit_code) and self._died(fact, signal_name(fact.exit_code or 0))
        if isinstance(fact, LauncherFailure):
            return self._reported(fact)
        if not isinstance(fact, LoaderError) or fact.error_class != WORKER_KILLED:
            return False
        # Workers that are terminated were told to end, by their own process or by whoever stops it.
        return fact.signal != "SIGTERM" and not self._ended(fact) and not self.survived(fact)

    def named(self, fact: Fact) -> int | None:
        """Its rank; of the lines by which C++ ends a process, which name none, that of the watchdog beside them."""
        rank = self.rank(fact)
        if rank is not None or not _ends_in_cpp(fact):
            return rank
        reports = self._spoken().get(fact.source.path, ())
        place = bisect_left(reports, fact.source.offset, key=_offset)
        near = [report for report in reports[max(place - 1, 0) : place + 1] if self.near(report, fact)]
        closest = min(near, key=lambda report: abs(report.source.offset - fact.source.offset), default=None)
        if closest is None or abs(closest.source.offset - fact.source.offset) > BESIDE:
            return None
        return closest.rank

    def _spoken(self) -> dict[str, list[WatchdogReport]]:
        """Lines of watchdogs that know their rank, by file, as they stand in it."""
        if self._watchdogs is None:
            self._watchdogs = {}
            known = [reports[0] for place, reports in self.facts.words.items() if place and reports[0].rank is not None]
            for report in sorted(known, key=_offset):
                self._watchdogs.setdefault(report.source.path, []).append(report)
        return self._watchdogs

    def _raised(self, fact: ExceptionRaised) -> bool:
        kind = last_name(fact.type)
        if kind in MESSENGERS or (kind in _WEAK and (self.stops or not self._nothing_said)):
            return False
        peers = kind in COLLECTIVE or _hold(self.facts.peer_lines, fact) or self._gave_up_joining(fact, kind)
        if peers and not _hold(self.facts.own_lines, fact) and not self._asked_alone(fact):
            return False
        if self._ended(fact):
            return False
        return self.confirmed(fact) is not None or not (self.survived(fact) or self._got_over(fact))

    def _got_over(self, fact: ExceptionRaised) -> bool:
        """Whether the program catches this exception, and went on when it did so before."""
        alike = self._handled.get(fact.handled, ()) if fact.handled is not None else ()
        return any(
            other.time <= fact.time and other is not fact and self.survived(other) for other in alike[:LOOKED_AT]
        )

    @cached_property
    def _handled(self) -> dict[tuple[object, ...] | None, list[ExceptionRaised]]:
        return grouped(self.exceptions, attrgetter("handled"))

    def _gave_up_joining(self, fact: ExceptionRaised, kind: str) -> bool:
        """Whether a runtime raises, with its status alone, what it said of the rendezvous in the lines just above."""
        if kind not in RUNTIMES:
            return False
        end = fact.source.offset
        near = (
            other
            for other in self.facts.peers
            if isinstance(other, RendezvousFailure)
            and (other.source.path, other.rank) == (fact.source.path, fact.rank)
            and end - BESIDE <= other.source.offset <= end
        )
        joining = next(near, None)
        steps = self.facts.steps.get(fact.rank, ()) if joining is not None else ()
        return joining is not None and not any(
            step.source.path == fact.source.path and joining.source.offset < step.source.offset < end for step in steps
        )

    def _asked_alone(self, fact: ExceptionRaised) -> bool:
        """Whether one rank alone waited for a key of a store in vain, after steps that all of them made."""
        if last_name(fact.type) not in STORE or fact.rank is None:
            return False
        steps = self.facts.steps.get(fact.rank, ())
        joined = bool(steps) and steps[0].time <= fact.time
        others = (f for f in self.facts.peers if isinstance(f, RendezvousFailure) and f.rank != fact.rank)
        return joined and not any(self.near(other, fact) for other in others)

    def _died(self, fact: Fact, signal: str | None) -> bool:
        alone = signal in _ASKED and self._terminated_alone(fact)
        if signal not in FATAL and not alone:
            return False
        rank = self.rank(fact)
        if self._lost_peer(fact, rank):
            return False
        if alone:
            return True
        if signal in ABORT and rank is None and not isinstance(fact, ExitStatus) and self._some_waited(fact):
            return False  # the watchdog of one that waited ends it, whoever's line this is
        if signal in ABORT and isinstance(fact, ExitStatus) and not self._heard(rank, fact):
            # Why it aborted is in its output, which nobody has seen.
            return self._others_explained(fact) and not self._ended(fact)
        return not self._ended(fact)

    def _others_explained(self, fact: ExitStatus) -> bool:
        """Whether every other process that ended was told to, or says that it lost a peer.

        Where they waited in vain, this one may have, too: its watchdog then aborted it like theirs.
        """
        if self._some_waited(fact):
            return False
        return self._unexplained[0].first(fact.rank, fact.time - self.memory, fact.time + self.memory) is None

    def _some_waited(self, fact: Fact) -> bool:
        """Whether other ranks report a timeout or a failed join: a silent rank may have had the same."""
        return self._waited.first(fact.time - self.memory, fact.time + self.memory) is not None

    def _terminated_alone(self, fact: Fact) -> bool:
        """Whether one process was told to end and no other: who stops a job, or cleans up after it, tells all."""
        if not isinstance(fact, ExitStatus) or fact.rank is None or self.launchers:
            return False
        if any(stop.rank != fact.rank for stop in self.stops):
            return False
        # Nor was it alone where another crashed: what is left is then told to end, be it only this one.
        return bool(self._other_ends(fact)) and not self._other_ends(fact) & {"told", "fatal"}

    def _left_alone(self, fact: ExitStatus) -> bool:
        """Whether one process gave up with a status of its own and no traceback, and no other did of itself.

        The others were aborted or told to end, say that they lost a peer, ended well, or have not ended.
        """
        if not fact.exit_code or fact.signal is not None or fact.rank is None or self.launchers or self.stops:
            return False
        if self._complained(fact.rank, fact) or self._lost_peer(fact, fact.rank):
            return False
        heard = self._heard(fact.rank, fact)
        span = fact.time - self.memory, fact.time + self.memory
        if self._ends_of_all.first(fact.rank, *span) is None:
            return False
        if self._some_waited(fact):
            # They were aborted for it or still wait. Who gave up by itself ends with a status, too.
            return heard and self._other_ends(fact) <= {"aborted"}
        # A rank that says nothing may have been the first, or may have lost a peer that aborted.
        return self._unexplained[1 if heard else 0].first(fact.rank, *span) is None

    @cached_property
    def _left_early(self) -> ExitStatus | None:
        """The one process that ended well, where each of the others ended badly and says that it lost a peer.

        A run of which somebody says that it is complete, or that was told to end, was left by nobody. Where some waited
        for it until a watchdog said so, they hang.
        """
        well = [status for status in self.statuses if status.exit_code == 0]
        others = [status for status in self.statuses if status.exit_code != 0]
        if len(well) != 1 or not others or well[0].rank is None or self.launchers or self.stops or self.facts.done:
            return None
        # Who ends before the first step is not heard of; a list of all ranks from 0 on is none of launchers.
        listed = {status.rank for status in self.statuses} == set(range(len(self.statuses)))
        if self._complained(well[0].rank, well[0]) or not (listed or self._heard(well[0].rank, well[0])):
            return None
        if self._some_waited(well[0]):
            return None
        return well[0] if all(self._lost_peer(other, other.rank) for other in others) else None

    def _told_first(self, fact: LauncherFailure, rank: int | None) -> bool:
        """Whether a launcher that names no root reports one status of a process's own, and had to end the others."""
        if not fact.exit_code or rank is None or self._complained(rank, fact):
            return False
        span = fact.time - self.memory, fact.time + self.memory
        return self._launched.first(rank, *span) is not None and self._launched_to_fail.first(rank, *span) is None

    def _told_alone(self, fact: LauncherFailure, rank: int | None) -> bool:
        """Whether a status of a process's own, as its launcher reports it, is all that is known of a failure."""
        if not fact.exit_code or not self._nothing_said:
            return False
        span = fact.time - self.memory, fact.time + self.memory
        return rank is None or self._launched_to_fail.first(rank, *span) is None

    @cached_property
    def _nothing_said(self) -> bool:
        """Whether no process says why it failed, or that it lost another. What launchers raise says neither."""
        said = chain.from_iterable(facts for kind in self.facts.complaints for facts in kind.values())
        return not self.facts.peers and all(
            isinstance(fact, ExceptionRaised) and last_name(fact.type) in {*MESSENGERS, *_WEAK} for fact in said
        )

    def _other_ends(self, fact: ExitStatus) -> set[str]:
        """Return how the other ranks ended, in the words of `_how_ended`."""
        span = fact.time - self.memory, fact.time + self.memory
        return {how for how, ends in self._ended_by.items() if ends.first(fact.rank, *span) is not None}

    def _reported(self, fact: LauncherFailure) -> bool:
        if fact.signal is not None:
            return self._died(fact, fact.signal)
        # A reporter that only sees a process disappear does not know its exit status.
        if fact.exit_code == 0 or (fact.exit_code is None and not fact.root) or self._ended(fact):
            return False
        if fact.exception_type is not None and last_name(fact.exception_type) in MESSENGERS | COLLECTIVE:
            return False
        rank = self.rank(fact)
        if rank is None and fact.exit_code is None:
            return True  # What others say of their peers is said of this one.
        told = fact.root or self._told_first(fact, rank) or self._told_alone(fact, rank)
        return told and not self._lost_peer(fact, rank)

    def _lost_peer(self, fact: Fact, rank: int | None) -> bool:
        """The rank's own output says that it lost a peer or that its watchdog ended it, before it died."""
        within = fact.approximate or isinstance(fact, LauncherFailure)
        # Launchers tell times without fractions of a second.
        latest = fact.time + self.memory if within else fact.end + SECOND
        return _any(self.facts.lost, rank, fact.time - self.memory, latest)

    def _ended(self, fact: Fact) -> bool:
        """Return whether the end had been asked for."""
        return bool(self.stops) and self._stopped.lasting(fact, fact.time - self.grace, fact.time) is not None


def _how_ended(status: ExitStatus) -> str:
    """Told to end or ended well, dead by a fatal signal, aborted, or with a status of its own."""
    if status.signal == "SIGTERM" or status.exit_code == 0:
        return "told"
    if status.signal == "SIGABRT":
        return "aborted"
    return "fatal" if status.signal in FATAL - ABORT else "own"


def _ends_in_cpp(fact: Fact) -> bool:
    """`terminate called after throwing an instance of 'c10::Error'`, or the abort that it is."""
    if isinstance(fact, ExceptionRaised):
        return "::" in fact.type
    return isinstance(fact, FatalSignal) and fact.signal in ABORT


def _is_timeout(fact: Fact) -> bool:
    return isinstance(fact, WatchdogReport) and fact.report in ("timeout", "heartbeat")


def _hold(lines: Iterable[SourceLines], fact: Fact) -> bool:
    """Whether this fact was read from one of these lines."""
    return any(known.hold(fact) for known in lines)


def _any(kinds: Iterable[ByRank], rank: int | None, begin: int, end: int) -> bool:
    """Whether one of these facts is of this rank and this time."""
    for facts in [kind[rank] for kind in kinds if rank in kind]:
        place = bisect_left(facts, begin, key=_time)
        if place < len(facts) and facts[place].time <= end:
            return True
    return False
