"""Calls that differ, from what the watchdogs of the ranks print when they give up."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tracecore.facts.nccl import GLOO

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from tracecore.facts.nccl import WatchdogReport

#: Operations whose number of elements must agree, and on which side: an all-gather may be given uneven parts.
_SENT: Final = frozenset({"ALLREDUCE", "BROADCAST", "REDUCE", "REDUCE_SCATTER", "_REDUCE_SCATTER_BASE", "BARRIER"})
_RECEIVED: Final = frozenset({"ALLGATHER", "_ALLGATHER_BASE"})
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

    The line that names the call does not name the group. The next line of the same rank names the group and not the
    call: the two share the sequence number. Where a job speaks of one group only, it is that one.
    """
    groups: dict[tuple[int | None, int | None], str] = {}
    named: dict[str, None] = {}
    for report in _ordered(reports):
        if report.pg:
            groups[report.rank, report.seq] = report.pg
            named[report.pg] = None
    only = next(iter(named)) if len(named) == 1 else ""
    found: dict[tuple[str, int], dict[int, WatchdogReport]] = {}
    for report in _ordered(reports):
        if report.op is None or report.seq is None or report.rank is None:
            continue
        group = report.pg or groups.get((report.rank, report.seq)) or only
        if group or not named:
            found.setdefault((group, report.seq), {}).setdefault(report.rank, report)
    return found


def _ordered(reports: Iterable[WatchdogReport]) -> list[WatchdogReport]:
    return sorted(reports, key=lambda report: (report.time, report.uid))


def described(reports: Sequence[WatchdogReport], rank: int | None, seq: int | None) -> str | None:
    """What the program calls the group of this rank's collective."""
    mine = (report.pg_desc for report in reports if report.rank == rank and report.seq == seq and report.pg_desc)
    return next(mine, None)
