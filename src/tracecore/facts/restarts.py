"""Number the attempts of a program that appends to one file: after a failure its steps fall back.

A program that is restarted by hand, in a loop or by a supervisor appends to one log. The steps after an error show the
difference: a program that survived the error goes on, a restarted program counts from a lower step.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import msgspec

from tracecore.facts.memory import CudaOom, CudaOomUnmeasured
from tracecore.facts.process import ExceptionRaised, FatalSignal, LauncherFailure
from tracecore.facts.training import Progress

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from tracecore.facts.fact import Fact

#: Facts that may end a program.
_ENDS = (ExceptionRaised, FatalSignal, LauncherFailure, CudaOom, CudaOomUnmeasured)
#: Ranks that share a file without naming themselves are at most this many steps apart.
APART = 1
#: Maximum number of counters of one program to follow.
COUNTERS = 64
#: A progress bar that falls back this often without a failure starts again in every epoch.
ROUNDS = 2


def numbered(facts: Iterable[Fact]) -> list[Fact]:
    """Return the facts, with attempt numbers in files of one process that show several attempts."""
    facts = list(facts)
    files: dict[str, list[Fact]] = {}
    for fact in facts:
        if fact.layer == "stdout":
            files.setdefault(fact.source.path, []).append(fact)
    moved: dict[int, Fact] = {}
    for own in files.values():
        if len({fact.rank for fact in own}) > 1 or any(fact.attempt for fact in own):
            continue  # the file has several ranks, whose steps are not in order, or a launcher that counts attempts
        own.sort(key=lambda fact: fact.source.offset)
        moved |= _counted(own)
    return [moved.get(id(fact), fact) for fact in facts]


def _counted(facts: Sequence[Fact]) -> dict[int, Fact]:
    """Return the facts of later attempts, by the id of the facts that they replace."""
    rounds = _rounds(facts)
    counters = _Counters()
    failed = False
    attempt = 0
    found: dict[int, Fact] = {}
    for fact in facts:
        if isinstance(fact, _ENDS):
            failed = failed or not (isinstance(fact, ExceptionRaised) and fact.caught)
        elif isinstance(fact, Progress) and fact.step is not None and (fact.phase or "train") == "train":
            if fact.total_steps not in rounds:
                if counters.falls_back(fact) and failed:
                    attempt += 1
                    counters = _Counters()
                failed = False
            counters.take(fact)
        if attempt:
            found[id(fact)] = msgspec.structs.replace(fact, attempt=attempt)
    return found


def _rounds(facts: Sequence[Fact]) -> set[int]:
    """Return the totals of progress bars that start again in every epoch: they fall back although nothing failed.

    A full bar cannot be relied on, because only few reports of a long log are kept.
    """
    counters = _Counters()
    failed = False
    falls: Counter[int] = Counter()
    for fact in facts:
        if isinstance(fact, _ENDS):
            failed = True
        elif isinstance(fact, Progress) and fact.step is not None and (fact.phase or "train") == "train":
            if fact.total_steps is not None and counters.falls_back(fact) and not failed:
                falls[fact.total_steps] += 1
            failed = False
            counters.take(fact)
    return {total for total, times in falls.items() if times >= ROUNDS}


class _Counters:
    """The last report of each counter of one program, by the total of the counter.

    A program may have several counters, such as a progress bar of the epoch and the step since the start.
    """

    def __init__(self) -> None:
        self._last: dict[int | None, Progress] = {}
        self._before: Progress | None = None

    def take(self, report: Progress) -> None:
        self._before = report
        if report.total_steps in self._last or len(self._last) < COUNTERS:
            self._last[report.total_steps] = report

    def falls_back(self, report: Progress) -> bool:
        """Return whether a step is lower than the last one of its counter.

        After a full progress bar, or in another epoch, a running program counts its steps from the beginning.
        """
        last = self._last.get(report.total_steps, self._before)
        if last is None or last.step is None or report.step is None or last.step == last.total_steps:
            return False
        again = report.epoch is None or last.epoch is None or report.epoch <= last.epoch
        return again and report.step < last.step - APART
