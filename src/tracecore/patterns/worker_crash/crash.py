"""Crashes: failures close to each other, and the first of them."""

from __future__ import annotations

from bisect import bisect_right
from operator import attrgetter
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from tracecore.facts.process import CudaError, ExceptionRaised, ExitStatus, FatalSignal, LauncherFailure, LoaderError
from tracecore.patterns.config import SECOND
from tracecore.patterns.timeline import grouped

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from tracecore.facts.fact import Fact

#: Of the failures of one rank that is cited which says most.
TELLING: dict[type[Fact], int] = {
    LoaderError: 0,
    ExceptionRaised: 1,
    CudaError: 2,
    FatalSignal: 3,
    LauncherFailure: 4,
}
#: Watchdogs abort those that wait, and whoever cleans up terminates them.
FOLLOWING = {"SIGABRT": 2, "SIGTERM": 3}
#: How much later a process may say why it died than another one says that it is gone.
LATER = 60 * SECOND
#: Characters of a message that are no coincidence.
ENOUGH = 20
_time = attrgetter("time")
_attempt = attrgetter("attempt")
FF = TypeVar("FF", bound="Fact")


class Crash(NamedTuple):
    """JudgedFailures that are close to each other.

    Args:
        start: the earliest of them.
        first: the one that counts.
        rank: whose that is; None where nobody says.
        ranks: all that failed in the very same way, `rank` among them.
        everybody: several processes said the same and none said its rank.
    """

    start: Fact
    first: Fact
    rank: int | None
    ranks: frozenset[int]
    everybody: bool = False


class JudgedFailures:
    """Judges facts that may be failures of a process itself.

    Each is judged once and when it is first asked about: a window may hold many, and few of them decide.

    Args:
        own: says whether a fact is such a failure.
        rank: gives the rank that failed; None where nobody says.
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

        Of several the least likely to be the end of one who followed, then the first in its file.
        """
        known: list[FF] = []
        for fact in facts:
            if known and fact.time > known[0].time:
                break
            if self.own(fact):
                known.append(fact)
        return min(known, key=lambda fact: (_follows(fact), *_place(fact)), default=None)


def crashes(facts: Sequence[Fact], failures: JudgedFailures, window: int) -> Iterator[Crash]:
    """Return the crashes that the failures among these facts are, by the times between them.

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
            # A failure with none shortly before it begins a crash; what follows it closely belongs to it.
            place = bisect_right(known, known[begin].time + window, place, key=_time)
            yield _crash(known[begin:place], failures)
            while place < len(known):
                last = next((fact for fact in reversed(known[begin:place]) if failures.own(fact)), None)
                if last is None:
                    break  # nothing of it is its own
                begin, place = place, bisect_right(known, last.time + window, place, key=_time)


def _crash(facts: list[Fact], failures: JudgedFailures) -> Crash:
    """Return the crash of the failures among these facts, the first of which is one."""
    own, rank_of = failures.own, failures.rank
    reports = [fact for fact in facts if isinstance(fact, LauncherFailure) and fact.root and fact.rank is not None]
    roots = {fact.rank for fact in reports if own(fact)}
    # The one that the launcher saw first may only tell of another's exception.
    told = (fact for fact in facts if isinstance(fact, ExceptionRaised) and fact.origin is not None)
    roots = {fact.origin for fact in told if fact.rank in roots and own(fact)} or roots
    # What the launcher saw first, else what was said first; a rank's exception says more than its signal.
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
    """Return the failure of a process without a rank, where the first failure only says that another process is gone.

    Servers of rewards, samples and parameters are no ranks.
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
    """Whether another process wrote it, as far as files and numbers of processes tell."""
    if fact.pid is not None and first.pid is not None:
        return fact.pid != first.pid
    return fact.source.path != first.source.path


def _said_by(report: LauncherFailure, facts: Iterable[Fact], failures: JudgedFailures) -> list[ExceptionRaised]:
    """Return the exception without a rank that explains a bare exit status of the launcher."""
    if not report.exit_code or report.signal is not None or report.exception_type is not None:
        return []
    raised = [fact for fact in facts if isinstance(fact, ExceptionRaised) and failures.rank(fact) is None]
    first = failures.first(raised)
    if first is None:
        return []
    return [first, *(fact for fact in raised if fact is not first and _alike(fact, first) and failures.own(fact))]


def _reported_alone(first: Fact, facts: Iterable[Fact], failures: JudgedFailures) -> int | None:
    """Return the only rank that a launcher saw end with the status of an exception, where one exception was printed."""
    if isinstance(first, CudaError | FatalSignal) and first.count == 1:
        return _aborted_alone(first, facts, failures)
    if not isinstance(first, ExceptionRaised) or first.count > 1:
        return None
    others = [fact for fact in facts if isinstance(fact, ExceptionRaised) and fact is not first and failures.own(fact)]
    reports = [fact for fact in facts if isinstance(fact, LauncherFailure)]
    ranks = {report.rank for report in reports if report.exit_code == 1}
    # A local rank may be of any machine, and a task of the scheduler that starts others is a machine.
    unplaced = (report for report in reports if report.rank is None and report.local_rank is not None)
    local = any(report.exit_code in (1, None) for report in unplaced)
    if others or len(ranks) != 1 or local:
        return None
    return ranks.pop()


def _aborted_alone(first: CudaError | FatalSignal, facts: Iterable[Fact], failures: JudgedFailures) -> int | None:
    """Return the only rank that is known to have died of a signal, where the line that ended a process names no rank.

    The runtimes of GPUs abort the process themselves.
    """
    signal = first.signal if isinstance(first, FatalSignal) else "SIGABRT"
    ends = [fact for fact in facts if isinstance(fact, FatalSignal | LauncherFailure | ExitStatus)]
    ranks = {end.rank for end in ends if end.signal == signal and end.rank is not None and failures.own(end)}
    local = any(isinstance(end, LauncherFailure) and end.rank is None and end.local_rank is not None for end in ends)
    return ranks.pop() if len(ranks) == 1 and not local else None


def _thrown(end: Fact, facts: Iterable[Fact], failures: JudgedFailures) -> ExceptionRaised | None:
    """Return the only exception of C++ without a rank, where somebody says which rank aborted."""
    if getattr(end, "signal", None) != "SIGABRT":
        return None
    raised = [fact for fact in facts if isinstance(fact, ExceptionRaised) and "::" in fact.type and fact.message]
    thrown = [fact for fact in raised if failures.rank(fact) is None and failures.own(fact)]
    return thrown[0] if len(thrown) == 1 and thrown[0].count == 1 else None


def _place(fact: Fact) -> tuple[str, int, str]:
    return fact.source.path, fact.source.offset, fact.uid


def _follows(fact: Fact) -> int:
    """Rank how likely an exit status, which has no time, is a consequence."""
    if not isinstance(fact, ExitStatus):
        return 0
    return FOLLOWING.get(fact.signal or "", 1)


def _alike(fact: Fact, first: Fact) -> bool:
    """The same failure of another rank, of one type: everybody fails to import it, everybody is killed at once."""
    if isinstance(fact, ExceptionRaised) and isinstance(first, ExceptionRaised):
        if fact.file is None and first.file is None and fact.type == first.type:
            # Where no frame tells: one says all that the other says.
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
        telling = TELLING[CudaError] + 0.5  # an exception of C++ without its what()
    return telling, fact.time, fact.uid
