"""Group failures that are close to each other into crashes, and find the first failure of each."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from operator import attrgetter
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from tracecore.facts.process import CudaError, ExceptionRaised, ExitStatus, FatalSignal, LauncherFailure, LoaderError
from tracecore.patterns.config import SECOND
from tracecore.patterns.timeline import grouped

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from tracecore.facts.fact import Fact

#: If one rank has several failures, the one with the lowest number here is cited: it says most.
TELLING: dict[type[Fact], int] = {
    LoaderError: 0,
    ExceptionRaised: 1,
    CudaError: 2,
    FatalSignal: 3,
    LauncherFailure: 4,
}
#: Signals of ranks that followed: watchdogs abort waiting ranks, and the clean-up terminates the rest.
FOLLOWING = {"SIGABRT": 2, "SIGTERM": 3}
#: A process may report why it died this much later than another process reports that it is gone.
LATER = 60 * SECOND
#: Two messages that share this many characters are not alike by chance.
ENOUGH = 20
_time = attrgetter("time")
_attempt = attrgetter("attempt")
FF = TypeVar("FF", bound="Fact")


class Crash(NamedTuple):
    """Failures that are close to each other.

    Args:
        start: the earliest of them.
        first: the one that counts.
        rank: the rank of that one; None if it is not known.
        ranks: all ranks that failed in the same way, including `rank`.
        everybody: several processes reported the same failure and none named its rank.
    """

    start: Fact
    first: Fact
    rank: int | None
    ranks: frozenset[int]
    everybody: bool = False


class JudgedFailures:
    """Judges facts that may be failures of a process itself.

    Each fact is judged when it is first needed, because a window may hold many and few of them decide.

    Args:
        own: returns whether a fact is such a failure.
        rank: returns the rank that failed; None if it is not known.
    """

    def __init__(self, own: Callable[[Fact], bool], rank: Callable[[Fact], int | None]) -> None:
        self.rank = rank
        self._own = own
        self._judged: dict[int, bool] = {}

    def own(self, fact: Fact) -> bool:
        judged = self._judged.get(id(fact))
        if judged is None:
            judged = self._judged[id(fact)] = self._own(fact)
        return judged

    def first(self, facts: Iterable[FF]) -> FF | None:
        """Return the earliest failure among facts in order of time.

        If several have the same time, prefer the one that is least likely a consequence, then the first in its file.
        """
        known: list[FF] = []
        for fact in facts:
            if known and fact.time > known[0].time:
                break
            if self.own(fact):
                known.append(fact)
        return min(known, key=lambda fact: (_follows(fact), *_place(fact)), default=None)


def crashes(facts: Sequence[Fact], failures: JudgedFailures, window: int) -> Iterator[Crash]:
    """Yield the crashes among these facts, separated by the times between failures.

    Args:
        facts: those that may be failures, in order of time.
        failures: judges them.
        window: failures this close to each other are one crash.
    """
    for known in grouped(facts, _attempt).values():
        place = 0
        while place < len(known):
            begin = place
            place += 1
            if not failures.own(known[begin]):
                continue
            # A failure without another shortly before it begins a crash. Failures soon after it belong to the crash.
            place = bisect_right(known, known[begin].time + window, place, key=_time)
            # Launchers print times without fractions of a second.
            earlier = known[bisect_left(known, known[begin].time - SECOND, 0, begin, key=_time) : begin]
            told = [fact for fact in earlier if isinstance(fact, LauncherFailure) and not failures.own(fact)]
            yield _crash([known[begin], *told, *known[begin + 1 : place]], failures)
            while place < len(known):
                last = next((fact for fact in reversed(known[begin:place]) if failures.own(fact)), None)
                if last is None:
                    break  # only consequences are left
                begin, place = place, bisect_right(known, last.time + window, place, key=_time)


def _crash(facts: list[Fact], failures: JudgedFailures) -> Crash:
    """Return the crash that the failures among these facts form; the first fact is a failure."""
    own, rank_of = failures.own, failures.rank
    reports = [fact for fact in facts if isinstance(fact, LauncherFailure) and fact.root and fact.rank is not None]
    roots = {fact.rank for fact in reports if own(fact)}
    # The rank that the launcher saw fail first may only repeat the exception of another rank.
    told = (fact for fact in facts if isinstance(fact, ExceptionRaised) and fact.origin is not None)
    roots = {fact.origin for fact in told if fact.rank in roots and own(fact)} or roots
    if raised := _raised_instead(reports, facts, failures):
        roots, facts = set(), raised
    # Prefer the rank that the launcher saw fail first, else the earliest failure. An exception says more than a signal.
    first = failures.first(fact for fact in facts if not roots or rank_of(fact) in roots)
    assert first is not None, "the first fact is a failure, and so is each report of a root"
    rank = rank_of(first)
    everybody = False
    if rank is not None:
        first = min((fact for fact in facts if rank_of(fact) == rank and own(fact)), key=_telling)
    elif isinstance(first, LauncherFailure | FatalSignal) and (
        known := failures.first(fact for fact in facts if rank_of(fact) is not None)
    ):
        first, rank = known, rank_of(known)
    elif isinstance(first, ExceptionRaised | FatalSignal):
        first = min((fact for fact in facts if fact.source == first.source and own(fact)), key=_telling)
    if isinstance(first, LauncherFailure) and (said := _said_by(first, facts, failures)):
        # An exception printed before ranks were known explains the status that the launcher saw.
        everybody = sum(fact.count for fact in said) > max(rank or 1, first.other_rank or 1)
        first, rank = said[0], None if everybody else rank
    elif rank is not None and (thrown := _thrown(first, facts, failures)) is not None:
        first = thrown
    if (gone := _gone(first, facts, failures)) is not None:
        first, rank, everybody = gone, rank_of(gone), False
    if everybody:
        return Crash(facts[0], first, None, frozenset(), everybody=True)
    if rank is None and (alone := _reported_alone(first, facts, failures)) is not None:
        return Crash(facts[0], first, alone, frozenset({alone}))
    listed = {one for fact in facts if isinstance(fact, LauncherFailure) for one in fact.failed}
    if rank is None and listed:
        return Crash(facts[0], first, None, frozenset(listed))
    alike = {rank_of(fact) for fact in facts if type(fact) is type(first) and _alike(fact, first) and own(fact)}
    return Crash(facts[0], first, rank, frozenset(one for one in (rank, *alike) if one is not None))


def _gone(first: Fact, facts: Iterable[Fact], failures: JudgedFailures) -> ExceptionRaised | FatalSignal | None:
    """Return the failure of a process without a rank, if the first failure only says that another process is gone.

    Servers of rewards, samples and parameters have no rank.
    """
    if not (isinstance(first, ExceptionRaised) and first.lost_peer):
        return None
    return failures.first(
        fact
        for fact in facts
        if isinstance(fact, ExceptionRaised | FatalSignal)
        and not (isinstance(fact, ExceptionRaised) and fact.lost_peer)
        and failures.rank(fact) is None
        and _elsewhere(fact, first)
        and (fact.approximate or first.approximate or fact.time <= first.time + LATER)
    )


def _elsewhere(fact: ExceptionRaised | FatalSignal, first: ExceptionRaised) -> bool:
    """Return whether another process wrote this fact, judging by file and pid."""
    if fact.pid is not None and first.pid is not None:
        return fact.pid != first.pid
    return fact.source.path != first.source.path


def _raised_instead(reports: Iterable[LauncherFailure], facts: Iterable[Fact], failures: JudgedFailures) -> list[Fact]:
    """Return the exceptions of the program, and the launcher's reports, if every rank that the launcher saw fail first
    was aborted and it lists another rank with the status of an exception.

    A watchdog aborts a rank that waits for another one, which may raise its exception long before it ends.
    """
    raised = {report.raised_rank for report in reports if report.signal == "SIGABRT"}
    if not raised or None in raised:
        return []
    own = [
        fact
        for fact in facts
        if isinstance(fact, ExceptionRaised)
        and "::" not in fact.type
        and failures.rank(fact) in (None, *raised)
        and failures.own(fact)
    ]
    return [*own, *(fact for fact in facts if isinstance(fact, LauncherFailure))] if own else []


def _said_by(report: LauncherFailure, facts: Iterable[Fact], failures: JudgedFailures) -> list[ExceptionRaised]:
    """Return the exceptions without a rank that explain an exit status which a launcher reports without a reason."""
    if not report.exit_code or report.signal is not None or report.exception_type is not None:
        return []
    raised = [fact for fact in facts if isinstance(fact, ExceptionRaised) and failures.rank(fact) is None]
    first = failures.first(raised)
    if first is None:
        return []
    return [first, *(fact for fact in raised if fact is not first and _alike(fact, first) and failures.own(fact))]


def _reported_alone(first: Fact, facts: Iterable[Fact], failures: JudgedFailures) -> int | None:
    """Return the only rank that a launcher saw end with the status of an exception, if one exception was printed."""
    if isinstance(first, CudaError | FatalSignal) and first.count == 1:
        return _aborted_alone(first, facts, failures)
    if not isinstance(first, ExceptionRaised) or first.count > 1:
        return None
    others = [fact for fact in facts if isinstance(fact, ExceptionRaised) and fact is not first and failures.own(fact)]
    reports = [fact for fact in facts if isinstance(fact, LauncherFailure)]
    ranks = {report.rank for report in reports if report.exit_code == 1}
    ranks |= {report.raised_rank for report in reports if report.raised_rank is not None}
    # A local rank may be on any machine. A scheduler's task that starts processes stands for a machine.
    unplaced = (report for report in reports if report.rank is None and report.local_rank is not None)
    local = any(report.exit_code in (1, None) for report in unplaced)
    if others or len(ranks) != 1 or local:
        return None
    return ranks.pop()


def _aborted_alone(first: CudaError | FatalSignal, facts: Iterable[Fact], failures: JudgedFailures) -> int | None:
    """Return the only rank that is known to have died of a signal, if the line that ended a process names no rank.

    A CUDA error counts as SIGABRT: the runtimes of GPUs abort the process.
    """
    signal = first.signal if isinstance(first, FatalSignal) else "SIGABRT"
    ends = [fact for fact in facts if isinstance(fact, FatalSignal | LauncherFailure | ExitStatus)]
    ranks = {end.rank for end in ends if end.signal == signal and end.rank is not None and failures.own(end)}
    local = any(isinstance(end, LauncherFailure) and end.rank is None and end.local_rank is not None for end in ends)
    return ranks.pop() if len(ranks) == 1 and not local else None


def _thrown(end: Fact, facts: Iterable[Fact], failures: JudgedFailures) -> ExceptionRaised | None:
    """Return the only C++ exception without a rank, if another fact says which rank aborted."""
    if getattr(end, "signal", None) != "SIGABRT":
        return None
    raised = [fact for fact in facts if isinstance(fact, ExceptionRaised) and "::" in fact.type and fact.message]
    thrown = [fact for fact in raised if failures.rank(fact) is None and failures.own(fact)]
    return thrown[0] if len(thrown) == 1 and thrown[0].count == 1 else None


def _place(fact: Fact) -> tuple[str, int, str]:
    return fact.source.path, fact.source.offset, fact.uid


def _follows(fact: Fact) -> int:
    """Return how likely an exit status, which has no time, is a consequence: higher is likelier."""
    if not isinstance(fact, ExitStatus):
        return 0
    return FOLLOWING.get(fact.signal or "", 1)


def _alike(fact: Fact, first: Fact) -> bool:
    """Return whether two facts of one type are the same failure of two ranks, such as a failed import everywhere."""
    if isinstance(fact, ExceptionRaised) and isinstance(first, ExceptionRaised):
        if fact.file is None and first.file is None and fact.type == first.type:
            # Without frames, one message must contain the other.
            one, other = fact.message or "", first.message or ""
            return min(len(one), len(other)) >= ENOUGH and (one in other or other in one)
        return (fact.type, fact.file, fact.line) == (first.type, first.file, first.line) and fact.file is not None
    if not (fact.approximate or abs(fact.time - first.time) <= SECOND):
        return False
    signal = getattr(fact, "signal", None)
    return signal is not None and signal == getattr(first, "signal", None)


def _telling(fact: Fact) -> tuple[float, int, str]:
    telling: float = TELLING.get(type(fact), len(TELLING))
    if isinstance(fact, ExceptionRaised) and "::" in fact.type and not fact.message:
        telling = TELLING[CudaError] + 0.5  # a C++ exception without its what() text
    return telling, fact.time, fact.uid
