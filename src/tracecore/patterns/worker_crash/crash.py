"""Crashes: failures close to each other, and the first of them."""

from __future__ import annotations

from bisect import bisect_right
from operator import attrgetter
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from tracecore.facts.process import CudaError, ExceptionRaised, ExitStatus, FatalSignal, LauncherFailure, LoaderError
from tracecore.patterns.config import SECOND

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

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
#: Characters of a message that are no coincidence.
ENOUGH = 20
_time = attrgetter("time")
FF = TypeVar("FF", bound="Fact")


class Crash(NamedTuple):
    """Failures that are close to each other.

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


def crashes(failures: Sequence[Fact], whose: Mapping[int, int | None], window: int) -> Iterator[Crash]:
    """The crashes that these failures are, by the times between them.

    Args:
        failures: in order of time.
        whose: their ranks, by `id` of the failure.
        window: failures this close to each other are one crash.
    """
    attempts: dict[int, list[Fact]] = {}
    for fact in failures:
        attempts.setdefault(fact.attempt, []).append(fact)
    for own in attempts.values():
        begin = 0
        while begin < len(own):
            # A failure with none shortly before it begins a crash; what follows it closely belongs to it.
            end = place = bisect_right(own, own[begin].time + window, begin, key=_time)
            while place < len(own) and own[place].time - own[place - 1].time <= window:
                place = bisect_right(own, own[place].time + window, place, key=_time)
            yield _crash(own[begin:end], whose)
            begin = place


def _crash(failures: list[Fact], whose: Mapping[int, int | None]) -> Crash:
    ranked = [fact for fact in failures if whose[id(fact)] is not None]
    roots = {fact.rank for fact in failures if isinstance(fact, LauncherFailure) and fact.root} - {None}
    # What the launcher saw first, else what was said first; a rank's exception says more than its signal.
    named = ([fact for fact in ranked if whose[id(fact)] in roots] if roots else []) or failures
    first = _first_of(named)
    rank = whose[id(first)]
    everybody = False
    if rank is not None:
        first = min((fact for fact in named if whose[id(fact)] == rank), key=_telling)
    elif isinstance(first, LauncherFailure | FatalSignal) and ranked:
        first = _first_of(ranked)
        rank = whose[id(first)]
    elif isinstance(first, ExceptionRaised | FatalSignal):
        first = min((fact for fact in named if fact.source == first.source), key=_telling)
    if isinstance(first, LauncherFailure) and (said := _said_by(first, failures, whose)):
        # An exception printed before ranks were known explains the status that the launcher saw.
        times, known = sum(fact.count for fact in said), max(rank or 0, first.other_rank or 0) + 1
        everybody = times > 1 and times >= known
        first, rank = said[0], None if everybody else rank
    if everybody:
        return Crash(failures[0], first, None, frozenset(), everybody=True)
    alike = {whose[id(fact)] for fact in ranked if type(fact) is type(first) and _alike(fact, first)}
    return Crash(failures[0], first, rank, frozenset(known for known in (rank, *alike) if known is not None))


def _said_by(
    report: LauncherFailure, failures: Iterable[Fact], whose: Mapping[int, int | None]
) -> list[ExceptionRaised]:
    """Return the exception without a rank that explains a bare exit status of the launcher."""
    if not report.exit_code or report.signal is not None or report.exception_type is not None:
        return []
    nobodys = [fact for fact in failures if isinstance(fact, ExceptionRaised) and whose[id(fact)] is None]
    if not nobodys:
        return []
    first = _first_of(nobodys)
    return [first, *(fact for fact in nobodys if fact is not first and _alike(fact, first))]


def _first_of(facts: Iterable[FF]) -> FF:
    """The earliest; of several the least likely to be the end of one who followed, then the first in its file."""
    known = list(facts)
    time = min(fact.time for fact in known)
    known = [fact for fact in known if fact.time == time]
    return known[0] if len(known) == 1 else min(known, key=lambda fact: (_follows(fact), *_place(fact)))


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
