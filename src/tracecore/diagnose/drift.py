"""Ranks that come apart in their steps although they exchange data in each: their collectives do not match.

NCCL does not compare calls. A rank that makes one call more in each step than the others, or sends another size, takes
their next calls for its own, and falls behind. In the end the others leave and this rank waits alone.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Final

from tracecore.facts.collective import CollectiveEntry, named
from tracecore.facts.nccl import DRIFTED, NcclError, WatchdogReport
from tracecore.facts.process import ExitStatus
from tracecore.facts.training import Progress
from tracecore.signals.record import Source

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracecore.facts.fact import Fact

#: A rank is behind by at least so many reports. One or two it may not have written.
REPORTS: Final = 3


def drifted(facts: Sequence[Fact]) -> list[Fact]:
    """Return a fact that ranks came apart, if some ended well while others, steps behind, waited in a collective."""
    ended = {fact.rank: fact for fact in facts if isinstance(fact, ExitStatus) and fact.rank is not None}
    well = {rank for rank, status in ended.items() if status.exit_code == 0}
    waits = {fact.rank for fact in facts if fact.rank is not None and _waits(fact)} - well
    if not well or not waits:
        return []
    steps = _steps(facts, well | waits)
    behind = sorted(rank for rank in waits if rank in steps)
    ahead = sorted(well & steps.keys())
    if not behind or not ahead or not all(_is_behind(steps[one], steps[other]) for one in behind for other in ahead):
        return []
    odd = ahead if len(ahead) < len(behind) else behind if len(behind) < len(ahead) else sorted((*ahead, *behind))
    last = steps[behind[0]][-1]
    detail = (
        f"{named(behind)} reported step {last.step} after {named(ahead)} had reported step {steps[ahead[0]][-1].step}, "
        f"and still waited in a collective when the others ended well"
    )
    source = last.source
    return [
        NcclError(
            time=last.time,
            source=Source(
                source.path, source.offset, source.line, source.length, f"{source.path}@{source.offset}#drift"
            ),
            approximate=last.approximate,
            job=last.job,
            attempt=last.attempt,
            rank=last.rank,
            error=DRIFTED,
            peer=", ".join(map(str, odd)),
            detail=detail,
        )
    ]


def _waits(fact: Fact) -> bool:
    if isinstance(fact, WatchdogReport):
        return fact.report in ("timeout", "exception") and not fact.is_p2p
    return isinstance(fact, CollectiveEntry) and fact.final and not fact.done and not fact.is_p2p


def _steps(facts: Sequence[Fact], ranks: set[int]) -> dict[int, list[Progress]]:
    """Return the reports of each rank's last attempt, in order; none of a rank that counts more than one thing."""
    found: dict[int, list[Progress]] = {}
    for fact in facts:
        if not isinstance(fact, Progress) or fact.rank is None or fact.rank not in ranks:
            continue
        if fact.step is not None and fact.phase != "eval":
            found.setdefault(fact.rank, []).append(fact)
    last = max((report.attempt for reports in found.values() for report in reports), default=0)
    ordered = {
        rank: sorted((r for r in reports if r.attempt == last), key=lambda r: (r.time, r.source.offset))
        for rank, reports in found.items()
    }
    return {rank: reports for rank, reports in ordered.items() if reports and _grows(reports)}


def _grows(reports: Sequence[Progress]) -> bool:
    return all((one.step or 0) <= (other.step or 0) for one, other in pairwise(reports))


def _is_behind(reports: Sequence[Progress], others: Sequence[Progress]) -> bool:
    """Return whether a rank made its last report after another had reported a step that is far ahead of it."""
    last, theirs = reports[-1], others[-1]
    apart = max(((b.step or 0) - (a.step or 0) for a, b in pairwise(reports)), default=0)
    if len(reports) < REPORTS or (theirs.step or 0) - (last.step or 0) < REPORTS * max(apart, 1):
        return False
    if last.source.path == theirs.source.path:
        return last.source.offset > theirs.source.offset
    return last.time > theirs.time and not last.approximate and not theirs.approximate
