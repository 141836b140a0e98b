"""Calls that differ, from what the watchdogs of the ranks print when they give up."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tracecore.facts.nccl import GLOO
from tracecore.patterns.config import HOUR

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from tracecore.facts.nccl import WatchdogReport

#: Operations whose number of elements must agree, and on which side: an all-gather may be given uneven parts.
_SENT: Final = frozenset({"ALLREDUCE", "BROADCAST", "REDUCE", "REDUCE_SCATTER", "_REDUCE_SCATTER_BASE", "BARRIER"})
_RECEIVED: Final = frozenset({"ALLGATHER", "_ALLGATHER_BASE"})
#: Watchdogs of one hang give up within this time of each other.
_EPISODE: Final = HOUR
#: Point-to-point work has numbers of its own.
_PAIRWISE: Final = ("SEND", "RECV", "COALESCED")


def tells(report: WatchdogReport) -> bool:
    """Whether a report says which collective its rank was in, or in which group that was."""
    if report.rank is None or report.seq is None or report.pg == GLOO or report.report not in ("timeout", "exception"):
        return False
    return not (report.op or "").upper().startswith(_PAIRWISE)


def what(report: WatchdogReport) -> str:
    """`ALLREDUCE|(262144,)`: what must agree, as far as the report tells."""
    operation = report.op or ""
    amount = report.numel_out if operation in _RECEIVED else report.numel_in if operation in _SENT else None
    return operation if amount is None else f"{operation}|({amount},)"


def calls(reports: Sequence[WatchdogReport]) -> dict[tuple[str, int], dict[int, WatchdogReport]]:
    """The call of each rank by (group, sequence).

    The line that names the call does not name the group. The next line of the same rank with the same number names the
    group and not the call. Where a job speaks of one group only, it is that one.
    """
    found: dict[tuple[str, int], dict[int, WatchdogReport]] = {}
    waiting: dict[tuple[int, int], list[WatchdogReport]] = {}
    groups: dict[str, None] = {}
    for report in _ordered(reports):
        assert report.rank is not None  # `tells` asks for both
        assert report.seq is not None
        key = report.rank, report.seq
        if report.pg:
            groups[report.pg] = None
        if report.op is not None and not report.pg:
            waiting.setdefault(key, []).append(report)
        elif report.op is not None and report.pg:
            found.setdefault((report.pg, report.seq), {})[report.rank] = report
        elif report.pg and len(said := waiting.pop(key, [])) == 1:
            found.setdefault((report.pg, report.seq), {})[report.rank] = said[0]
    if len(groups) <= 1:
        only = next(iter(groups), "")
        for (rank, seq), said in waiting.items():
            found.setdefault((only, seq), {}).setdefault(rank, said[-1])
    # A log may hold several runs, in which the same number is another collective: the last one counts.
    for place, ranks in found.items():
        last = max(report.time for report in ranks.values())
        found[place] = {rank: report for rank, report in ranks.items() if report.time >= last - _EPISODE}
    return found


def _ordered(reports: Iterable[WatchdogReport]) -> list[WatchdogReport]:
    return sorted(reports, key=lambda report: (report.time, report.source.path, report.source.offset, report.uid))


def described(reports: Sequence[WatchdogReport], group: str) -> str | None:
    """Return the program's name for this group."""
    return next((report.pg_desc for report in _ordered(reports) if report.pg == group and report.pg_desc), None)
