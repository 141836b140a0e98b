"""Comparison of what the ranks of an all-to-all send with what their peers expect.

An all-to-all of lists is recorded with one tensor for each peer, so each pair is compared. `all_to_all_single` is
recorded as one tensor for all peers: there the whole that is sent must be the whole that is expected.
"""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING, Final

import msgspec

from tracecore.signals.flight_recorder.matching import elements, operation_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from tracecore.signals.flight_recorder.dump import DumpEntry
    from tracecore.signals.flight_recorder.state import GroupState

#: Dumps that are read once more for the splits of a collective that their ranks have completed.
_REREAD: Final = 64
#: Members of a group that are compared pair by pair.
_PAIRWISE: Final = 1024
#: Pairs that are shown.
_SHOWN: Final = 16


class Transfer(msgspec.Struct, frozen=True):
    """Elements that one rank sends and another expects, where the two differ; without ranks for all of them at once."""

    sent: int
    expected: int
    sender: int | None = None
    receiver: int | None = None


class Misfit(msgspec.Struct, frozen=True):
    """An all-to-all that does not add up.

    Args:
        entries: the call of each rank.
        transfers: what differs.
        odd: the ranks whose splits are wrong, as far as that can be told.
    """

    entries: dict[int, DumpEntry]
    transfers: tuple[Transfer, ...]
    odd: tuple[int, ...]


def misfit(group: GroupState, reread: Callable[[str, str, int], DumpEntry | None] | None) -> Misfit | None:
    """The open all-to-all of this group, where what is sent is not what is expected."""
    seq = min((m.first_waiting for m in group.present.values() if m.first_waiting is not None), default=None)
    if seq is None or group.disagreement is not None:
        return None
    entries: dict[int, DumpEntry] = {}
    completed = []
    for rank, member in group.present.items():
        if member.last_enqueued is None or member.last_enqueued < seq:
            return None  # it has not come, and that is why the others wait
        if member.entry is not None and member.entry.seq == seq:
            entries[rank] = member.entry
        else:
            completed.append(rank)
    if not entries or not all(_is_exchange(entry) for entry in entries.values()):
        return None
    if completed and (reread is None or len(completed) > _REREAD):
        return None
    for rank in completed:
        entry = reread(group.present[rank].path, group.name, seq) if reread is not None else None
        if entry is None:
            return None
        entries[rank] = entry
    waiting = [rank for rank, member in group.present.items() if member.first_waiting == seq]
    sent = {rank: elements(entry.input_sizes) for rank, entry in entries.items()}
    expected = {rank: elements(entry.output_sizes) for rank, entry in entries.items()}
    size = len(group.members)
    if size > 1 and all(len(counts) == size for counts in (*sent.values(), *expected.values())):
        return _pairs(group, entries, sent, expected) if size <= _PAIRWISE else None
    if group.absent:
        return None
    whole = Transfer(sum(map(sum, sent.values())), sum(map(sum, expected.values())))
    if whole.sent != whole.expected:
        return Misfit(entries, (whole,), _who_is_off(sent, expected, whole, waiting if completed else []))
    return _unequal(entries, sent, expected)


def _is_exchange(entry: DumpEntry) -> bool:
    return operation_of(entry.name).startswith(("all_to_all", "alltoall"))


def _pairs(
    group: GroupState,
    entries: dict[int, DumpEntry],
    sent: dict[int, tuple[int, ...]],
    expected: dict[int, tuple[int, ...]],
) -> Misfit | None:
    place = {rank: position for position, rank in enumerate(group.members)}
    transfers: list[Transfer] = []
    involved: dict[int, int] = {}
    for one, other in product(sorted(sent), sorted(expected)):
        amounts = sent[one][place[other]], expected[other][place[one]]
        if amounts[0] != amounts[1]:
            transfers.append(Transfer(*amounts, one, other))
            for rank in {one, other}:
                involved[rank] = involved.get(rank, 0) + 1
    if not transfers:
        return None
    most = max(involved.values())
    odd = tuple(sorted(rank for rank, count in involved.items() if count == most))
    return Misfit(entries, tuple(transfers[:_SHOWN]), odd)


def _who_is_off(
    sent: dict[int, tuple[int, ...]], expected: dict[int, tuple[int, ...]], whole: Transfer, waiting: list[int]
) -> tuple[int, ...]:
    """Those still inside while others have completed; else the only one whose amount can hold the whole difference."""
    if waiting:
        return tuple(sorted(waiting))
    more, off = (
        (expected, whole.expected - whole.sent) if whole.expected > whole.sent else (sent, whole.sent - whole.expected)
    )
    able = [rank for rank, counts in more.items() if sum(counts) >= off]
    return tuple(able) if len(able) == 1 else ()


def _unequal(
    entries: dict[int, DumpEntry], sent: dict[int, tuple[int, ...]], expected: dict[int, tuple[int, ...]]
) -> Misfit | None:
    """Where most ranks send and expect the same, the splits are equal, and so who has another amount does not fit."""
    amounts: dict[tuple[int, int], list[int]] = {}
    for rank in entries:
        amounts.setdefault((sum(sent[rank]), sum(expected[rank])), []).append(rank)
    usual, ranks = max(amounts.items(), key=lambda item: len(item[1]))
    if usual[0] != usual[1] or len(ranks) < 2 or 2 * len(ranks) <= len(entries) or len(ranks) == len(entries):
        return None
    size = len(entries)
    odd = tuple(sorted(set(entries) - set(ranks)))
    transfers = tuple(Transfer(sum(sent[rank]) // size, usual[1] // size, rank, ranks[0]) for rank in odd[:_SHOWN])
    return Misfit(entries, transfers, odd)
