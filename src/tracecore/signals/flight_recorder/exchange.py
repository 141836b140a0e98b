"""Comparison of what the ranks of an all-to-all send with what their peers expect.

An all-to-all of lists is recorded with one tensor for each peer, so each pair of ranks is compared.
`all_to_all_single` is recorded with one tensor for all peers, so only the totals are compared.
"""

from __future__ import annotations

from collections import Counter
from itertools import product
from typing import TYPE_CHECKING, Final

import msgspec

from tracecore.signals.flight_recorder.matching import elements, operation_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from tracecore.signals.flight_recorder.dump import DumpEntry
    from tracecore.signals.flight_recorder.state import GroupState

#: At most this many dumps are read again for the splits of a collective that their ranks have completed.
_MAX_REREAD: Final = 64
#: Groups with more members are not compared pair by pair.
_MAX_PAIRWISE: Final = 1024
#: At most this many differing pairs are returned.
_MAX_TRANSFERS: Final = 16


class Transfer(msgspec.Struct, frozen=True):
    """Different numbers of elements that one rank sends and another expects. Totals of a group have no ranks."""

    sent: int
    expected: int
    sender: int | None = None
    receiver: int | None = None


class Misfit(msgspec.Struct, frozen=True):
    """An all-to-all in which the amounts sent and expected differ.

    Args:
        entries: the call of each rank.
        transfers: the differences.
        odd: the ranks whose splits are wrong; empty if that is not known.
    """

    entries: dict[int, DumpEntry]
    transfers: tuple[Transfer, ...]
    odd: tuple[int, ...]


def misfit(group: GroupState, reread: Callable[[str, str, int], DumpEntry | None] | None) -> Misfit | None:
    """Return the open all-to-all of this group if the amounts sent and expected differ."""
    seq = min((m.first_waiting for m in group.present.values() if m.first_waiting is not None), default=None)
    if seq is None or group.disagreement is not None:
        return None
    entries: dict[int, DumpEntry] = {}
    completed = []
    for rank, member in group.present.items():
        if member.last_enqueued is None or member.last_enqueued < seq:
            return None  # the others wait because this rank has not entered
        if member.entry is not None and member.entry.seq == seq:
            entries[rank] = member.entry
        else:
            completed.append(rank)
    if not entries or not all(_is_exchange(entry) for entry in entries.values()):
        return None
    if completed and (reread is None or len(completed) > _MAX_REREAD):
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
        return _differing_pairs(group, entries, sent, expected) if size <= _MAX_PAIRWISE else None
    if group.absent:
        return None
    total = Transfer(sum(map(sum, sent.values())), sum(map(sum, expected.values())))
    if total.sent != total.expected:
        return Misfit(entries, (total,), _odd_ranks(sent, expected, total, waiting if completed else []))
    return _unequal_splits(entries, sent, expected)


def _is_exchange(entry: DumpEntry) -> bool:
    return operation_of(entry.name).startswith(("all_to_all", "alltoall"))


def _differing_pairs(
    group: GroupState,
    entries: dict[int, DumpEntry],
    sent: dict[int, tuple[int, ...]],
    expected: dict[int, tuple[int, ...]],
) -> Misfit | None:
    position_of = {rank: position for position, rank in enumerate(group.members)}
    transfers: list[Transfer] = []
    differences: Counter[int] = Counter()
    for sender, receiver in product(sorted(sent), sorted(expected)):
        amounts = sent[sender][position_of[receiver]], expected[receiver][position_of[sender]]
        if amounts[0] != amounts[1]:
            transfers.append(Transfer(*amounts, sender, receiver))
            differences.update({sender, receiver})
    if not transfers:
        return None
    most = max(differences.values())
    odd = tuple(sorted(rank for rank, count in differences.items() if count == most))
    return Misfit(entries, tuple(transfers[:_MAX_TRANSFERS]), odd)


def _odd_ranks(
    sent: dict[int, tuple[int, ...]], expected: dict[int, tuple[int, ...]], total: Transfer, waiting: list[int]
) -> tuple[int, ...]:
    """Return the ranks still inside while others have completed; else those with another amount than the equal ones of
    most; else the only rank that can cause the difference.
    """
    if waiting:
        return tuple(sorted(waiting))
    _, usual = _equal_amounts(sent, expected)
    if usual:
        return tuple(sorted(sent.keys() - set(usual)))
    larger = expected if total.expected > total.sent else sent
    difference = abs(total.expected - total.sent)
    possible = [rank for rank, counts in larger.items() if sum(counts) >= difference]
    return tuple(possible) if len(possible) == 1 else ()


def _unequal_splits(
    entries: dict[int, DumpEntry], sent: dict[int, tuple[int, ...]], expected: dict[int, tuple[int, ...]]
) -> Misfit | None:
    """Compare the amounts of the ranks: if most send and expect the same amount, a rank with another one is odd."""
    amount, ranks = _equal_amounts(sent, expected)
    if not ranks:
        return None
    size = len(entries)
    odd = tuple(sorted(set(entries) - set(ranks)))
    shown = odd[:_MAX_TRANSFERS]
    transfers = tuple(Transfer(sum(sent[rank]) // size, amount // size, rank, ranks[0]) for rank in shown)
    return Misfit(entries, transfers, odd)


def _equal_amounts(sent: dict[int, tuple[int, ...]], expected: dict[int, tuple[int, ...]]) -> tuple[int, list[int]]:
    """Return the amount that most ranks, but not all, send and expect alike, and these ranks; none if there is none."""
    amounts: dict[tuple[int, int], list[int]] = {}
    for rank in sent:
        amounts.setdefault((sum(sent[rank]), sum(expected[rank])), []).append(rank)
    usual, ranks = max(amounts.items(), key=lambda item: len(item[1]))
    if usual[0] != usual[1] or len(ranks) < 2 or 2 * len(ranks) <= len(sent) or len(ranks) == len(sent):
        return 0, []
    return usual[0], ranks
