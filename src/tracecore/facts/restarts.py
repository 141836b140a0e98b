"""Number the attempts of a program that appends to one file: after a failure its steps fall back.

A program that is restarted by hand, in a loop or by a supervisor appends to one log. The steps after an error show the
difference: a program that survived the error goes on, a restarted program counts from a lower step.
"""

from __future__ import annotations

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
    step: int | None = None
    epoch: float | None = None
    failed = full = False
    attempt = 0
    found: dict[int, Fact] = {}
    for fact in facts:
        if isinstance(fact, _ENDS):
            failed = failed or not (isinstance(fact, ExceptionRaised) and fact.caught)
        elif isinstance(fact, Progress) and fact.step is not None and (fact.phase or "train") == "train":
            # After a full progress bar, or in another epoch, a running program counts its steps from the beginning.
            again = not full and (fact.epoch is None or epoch is None or fact.epoch <= epoch)
            if failed and step is not None and fact.step < step - APART and again:
                attempt += 1
            failed, full, step, epoch = False, fact.step == fact.total_steps, fact.step, fact.epoch
        if attempt:
            found[id(fact)] = msgspec.structs.replace(fact, attempt=attempt)
    return found
