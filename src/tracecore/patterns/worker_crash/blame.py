"""Decide whether a process failed by itself or as a consequence of another failure.

When one rank dies, the others lose their connection to it, their watchdogs abort them, and the launcher terminates the
rest. All of that leaves many lines in the logs, and none of it is the cause.
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

#: Signals that mean a fault of the process, or that are not sent to request an end.
FATAL = frozenset(
    {
        "SIGSEGV", "SIGBUS", "SIGABRT", "SIGKILL", "SIGFPE", "SIGILL", "SIGTRAP", "SIGSYS", "SIGIOT", "SIGXFSZ",
        "SIGXCPU", "SIGPIPE", "SIGALRM", "SIGQUIT",
    }
)  # fmt: skip
ABORT = frozenset({"SIGABRT", "SIGIOT"})
#: Signals of a process that was asked to end or that its watchdog ended.
_TOLD = ABORT | {"SIGTERM"}
#: Signals that request a process to end.
_ASKED = frozenset({"SIGTERM", "SIGINT"})
#: Exceptions with which a launcher reports a crash, or a process reports that it was stopped. Never the crash itself.
MESSENGERS = frozenset(
    {
        "ChildFailedError", "SignalException", "ProcessRaisedException", "ProcessExitedException", "CalledProcessError",
        "KeyboardInterrupt", "SystemExit", "SIGTERMException", "RayTaskError", "RayActorError", "ActorDiedError",
        "WorkerCrashedError", "NodeDiedError", "TrainingFailedError",
    }
)  # fmt: skip
#: Exception types that count only if no process reports anything else.
_WEAK = frozenset({UNFINISHED, LAST_WORDS})
WORKER_KILLED = "DataLoader worker killed"
#: A line that names no process belongs to the process of a line this many bytes away or closer.
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

    # Each of these reads all facts of a kind once, when it is first needed.

    @cached_property
    def _launched(self) -> Others[LauncherFailure]:
        return Others(self.launchers, _rank)

    @cached_property
    def _launched_to_fail(self) -> Others[LauncherFailure]:
        """Reports of bad ends that were not requested."""
        return Others([report for report in self.launchers if report.exit_code and report.signal not in _TOLD], _rank)

    @cached_property
    def _unexplained(self) -> tuple[Others[ExitStatus], Others[ExitStatus]]:
        """Return the bad ends that neither a request nor a lost peer explains, and those of them that are no aborts."""
        statuses = [
            status
            for status in self.statuses
            if status.exit_code and status.signal != "SIGTERM" and not self._lost_peer(status, status.rank)
        ]
        return Others(statuses, _rank), Others([s for s in statuses if s.signal not in ABORT], _rank)

    @cached_property
    def _ended_by(self) -> dict[str, Others[ExitStatus]]:
        """Ends of processes by the words of `_how_ended`."""
        return {
            how: Others(statuses, _rank)
            for how, statuses in grouped([s for s in self.statuses if not s.alive], _how_ended).items()
        }

    @cached_property
    def _waited(self) -> Timeline[Fact]:
        """Reports of ranks that timed out in a collective or could not join the rendezvous."""
        return Timeline([f for f in self.facts.peers if isinstance(f, RendezvousFailure) or _is_timeout(f)])

    @cached_property
    def _stopped(self) -> Related[PlannedStop]:
        return Related(self.stops, _of_whom)

    def followers(self, first: Fact, ranks: Container[int | None]) -> dict[int | None, Fact]:
        """Return by rank the first fact, near this failure, that another rank lost a peer or its watchdog ended it."""
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
        """Return whether there is any output of this rank around that time."""
        steps = self.facts.steps.get(rank, ())
        place = bisect_left(steps, fact.time - self.memory, key=_time)
        if place < len(steps) and steps[place].time <= fact.time + self.memory:
            return True
        return self._complained(rank, fact)

    def _complained(self, rank: int | None, fact: Fact) -> bool:
        """Return whether this rank raised an exception or died of a signal around that time."""
        return _any(self.facts.complaints, rank, fact.time - self.memory, fact.time + self.memory)

    def own(self, fact: Fact) -> bool:
        """Return whether this fact shows that a process failed by itself."""
        if isinstance(fact, ExceptionRaised):
            return self._raised(fact)
        if isinstance(fact, CudaError):
            # A watchdog that meets an error of its own GPU ends the process, often without another line; so does ROCm.
            # No process survives an assert on its GPU, even if its log ends before saying so.
            fatal = self._last_word(fact) is not None or (fact.error == "device_assert" and self._nothing_said)
            return fatal and not self._ended(fact) and not self.survived(fact)
        if isinstance(fact, FatalSignal):
            # A process that prints steps afterwards did not die. The text was from a sample or about another process.
            return self._died(fact, fact.signal) and not self.steps_of_its_own(fact)
        if isinstance(fact, ExitStatus):
            return self._died(fact, fact.signal) or self._left_alone(fact) or fact is self._left_early
        if isinstance(fact, ContainerTerminated):
            return bool(fact.exit_code) and self._died(fact, signal_name(fact.exit_code or 0))
        if isinstance(fact, LauncherFailure):
            return self._reported(fact)
        if not isinstance(fact, LoaderError) or fact.error_class != WORKER_KILLED:
            return False
        # Workers that died of SIGTERM were asked to end, by their own process or by a request to stop.
        return fact.signal != "SIGTERM" and not self._ended(fact) and not self.survived(fact)

    def named(self, fact: Fact) -> int | None:
        """Return the rank that failed. Lines with which C++ ends a process name none: use that of a watchdog nearby."""
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
        """Return reports of watchdogs that know their rank, by file, in order of offset."""
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
        if self.confirmed(fact) is not None or self._is_waited_for(fact):
            return True
        return not (self.survived(fact) or self._got_over(fact))

    def _is_waited_for(self, fact: ExceptionRaised) -> bool:
        """Return whether it ended a thread of a rank that did not time out in a collective, as others did.

        A process goes on without a thread until it needs what the thread delivered, and then waits for ever.
        """
        if not fact.threaded or fact.rank is None or fact.rank in self._timed_out or self.facts.done:
            return False
        steps = self.facts.steps.get(fact.rank, ())
        if len(steps) - bisect_right(steps, fact.time, key=_time) >= LOOKED_AT:
            return False  # it went on without that thread
        first = self._waited.first(fact.time - self.memory, fact.time + self.memory)
        return first is not None and bool(self._timed_out)

    @cached_property
    def _timed_out(self) -> frozenset[int]:
        """Return the ranks that timed out in a collective."""
        return frozenset(f.rank for f in self.facts.peers if _is_timeout(f) and f.rank is not None)

    def _got_over(self, fact: ExceptionRaised) -> bool:
        """Return whether the program catches this exception and went on after an earlier one like it."""
        alike = self._handled.get(fact.handled, ()) if fact.handled is not None else ()
        return any(
            other.time <= fact.time and other is not fact and self.survived(other) for other in alike[:LOOKED_AT]
        )

    @cached_property
    def _handled(self) -> dict[tuple[object, ...] | None, list[ExceptionRaised]]:
        return grouped(self.exceptions, attrgetter("handled"))

    def _gave_up_joining(self, fact: ExceptionRaised, kind: str) -> bool:
        """Return whether a runtime's exception only repeats a failure of the rendezvous in the lines just above."""
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
        """Return whether only this rank waited in vain for a key of the store, after it had made steps."""
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
            return False  # the watchdog of a waiting rank aborted it; the line does not say which rank
        if signal in ABORT and isinstance(fact, ExitStatus) and not self._heard(rank, fact):
            # The reason for the abort is in output of the process that was not read.
            return self._others_explained(fact) and not self._ended(fact)
        return not self._ended(fact)

    def _others_explained(self, fact: ExitStatus) -> bool:
        """Return whether every other process that ended was asked to, or lost a peer.

        If others waited in vain, this one may have waited as well, and its watchdog aborted it like the others.
        """
        if self._some_waited(fact):
            return False
        return self._unexplained[0].first(fact.rank, fact.time - self.memory, fact.time + self.memory) is None

    def _some_waited(self, fact: Fact) -> bool:
        """Return whether other ranks report a timeout or a failed join. A silent rank may have had the same."""
        return self._waited.first(fact.time - self.memory, fact.time + self.memory) is not None

    def _terminated_alone(self, fact: Fact) -> bool:
        """Return whether only this process was asked to end. A stop of the job, or its clean-up, asks all of them."""
        if not isinstance(fact, ExitStatus) or fact.rank is None or self.launchers:
            return False
        if any(stop.rank != fact.rank for stop in self.stops):
            return False
        # If another process crashed, the rest was asked to end because of that, even if only this one was left.
        return bool(self._other_ends(fact)) and not self._other_ends(fact) & {"told", "fatal"}

    def _left_alone(self, fact: ExitStatus) -> bool:
        """Return whether only this process ended by itself, with a status of its own and without a traceback.

        The others were aborted or asked to end, lost a peer, ended well, or have not ended.
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
            # The others were aborted or still wait. A rank that gave up by itself would have a status as well.
            return heard and self._other_ends(fact) <= {"aborted"}
        # A silent rank may have failed first, or may have lost a peer that aborted.
        return self._unexplained[1 if heard else 0].first(fact.rank, *span) is None

    @cached_property
    def _left_early(self) -> ExitStatus | None:
        """Return the only process that ended well, if all others ended badly because they lost a peer.

        Return None for a run that is complete or was asked to stop. If others waited until a watchdog reported it, the
        run hangs instead.
        """
        well = [status for status in self.statuses if status.exit_code == 0]
        others = [status for status in self.statuses if status.exit_code != 0]
        if len(well) != 1 or not others or well[0].rank is None or self.launchers or self.stops or self.facts.done:
            return None
        # A rank that ends before its first step has no output. Statuses of all ranks from 0 on are not of launchers.
        listed = {status.rank for status in self.statuses} == set(range(len(self.statuses)))
        if self._complained(well[0].rank, well[0]) or not (listed or self._heard(well[0].rank, well[0])):
            return None
        if self._some_waited(well[0]):
            return None
        return well[0] if all(self._lost_peer(other, other.rank) for other in others) else None

    def _told_first(self, fact: LauncherFailure, rank: int | None) -> bool:
        """Return whether launchers that name no root report one bad status of this rank, and had to end the others."""
        if not fact.exit_code or rank is None or self._complained(rank, fact):
            return False
        span = fact.time - self.memory, fact.time + self.memory
        return self._launched.first(rank, *span) is not None and self._launched_to_fail.first(rank, *span) is None

    def _told_alone(self, fact: LauncherFailure, rank: int | None) -> bool:
        """Return whether the only evidence of the failure is one status that a launcher reports."""
        if not fact.exit_code or not self._nothing_said:
            return False
        span = fact.time - self.memory, fact.time + self.memory
        return rank is None or self._launched_to_fail.first(rank, *span) is None

    @cached_property
    def _nothing_said(self) -> bool:
        """Return whether no process reports why it failed or that it lost a peer. Launchers do not count."""
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
            return True  # reports of lost peers are about this process
        told = fact.root or self._told_first(fact, rank) or self._told_alone(fact, rank)
        return told and not self._lost_peer(fact, rank)

    def _lost_peer(self, fact: Fact, rank: int | None) -> bool:
        """Return whether the rank's own output says, before its end, that it lost a peer or its watchdog ended it."""
        within = fact.approximate or isinstance(fact, LauncherFailure)
        # Launchers print times without fractions of a second.
        latest = fact.time + self.memory if within else fact.end + SECOND
        return _any(self.facts.lost, rank, fact.time - self.memory, latest)

    def _ended(self, fact: Fact) -> bool:
        """Return whether the end had been requested."""
        return bool(self.stops) and self._stopped.lasting(fact, fact.time - self.grace, fact.time) is not None


def _how_ended(status: ExitStatus) -> str:
    """Return `told` (asked to end, or ended well), `aborted`, `fatal` (another fatal signal) or `own` (a status)."""
    if status.signal == "SIGTERM" or status.exit_code == 0:
        return "told"
    if status.signal == "SIGABRT":
        return "aborted"
    return "fatal" if status.signal in FATAL - ABORT else "own"


def _ends_in_cpp(fact: Fact) -> bool:
    """Return whether this is `terminate called after throwing an instance of 'c10::Error'`, or the abort after it."""
    if isinstance(fact, ExceptionRaised):
        return "::" in fact.type
    return isinstance(fact, FatalSignal) and fact.signal in ABORT


def _is_timeout(fact: Fact) -> bool:
    return isinstance(fact, WatchdogReport) and fact.report in ("timeout", "heartbeat")


def _hold(lines: Iterable[SourceLines], fact: Fact) -> bool:
    """Return whether this fact was read from one of these lines."""
    return any(known.hold(fact) for known in lines)


def _any(kinds: Iterable[ByRank], rank: int | None, begin: int, end: int) -> bool:
    """Return whether any of these facts is of this rank and time."""
    for facts in [kind[rank] for kind in kinds if rank in kind]:
        place = bisect_left(facts, begin, key=_time)
        if place < len(facts) and facts[place].time <= end:
            return True
    return False
