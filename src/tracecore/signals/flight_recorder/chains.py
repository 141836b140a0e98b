"""Who waits for whom: from each rank that waits to the ranks at the end of the chain."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

import msgspec

from tracecore.signals.flight_recorder.matching import operation_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tracecore.signals.flight_recorder.dump import Entry
    from tracecore.signals.flight_recorder.state import GroupState, Member

_MAX_CHAIN: Final = 64
_ARROW: Final = re.compile(r"^(send|recv) ([0-9]{1,8})(?:->|<-)([0-9]{1,8})")


class _Wait(msgspec.Struct, frozen=True):
    """One operation a rank is in, and the ranks it waits for.

    Args:
        pairwise: a send or receive.
        odd: the rank called something else than the others, and so it is they who wait for it.
    """

    group: str
    seq: int
    created: int
    record_id: int
    peers: tuple[int, ...]
    pairwise: bool = False
    odd: bool = False


def follow_chains(groups: list[GroupState]) -> None:
    """For each member say what it waits in, and which ranks are at the end of that chain."""
    waits: dict[int, list[_Wait]] = {}
    for group in groups:
        behind: dict[int, tuple[int, ...]] = {}
        odd = group.disagreement.minority if group.disagreement is not None else ()
        for member in group.present.values():
            if member.first_waiting is not None:
                waits.setdefault(member.rank, []).append(_collective_wait(group, member, behind, odd))
            for entry in member.pending:
                wait = _pair_wait(group, member, entry)
                if wait is not None:
                    waits.setdefault(member.rank, []).append(wait)
    earliest = {rank: min(items, key=lambda w: (w.record_id, w.created)) for rank, items in waits.items()}
    found: dict[int, tuple[tuple[int, ...], bool]] = {}
    for group in groups:
        for member in group.present.values():
            wait = earliest.get(member.rank)
            if wait is None:
                continue
            if wait.pairwise or (wait.group, wait.seq) != (group.label, group.stuck):
                member.waits_in = (wait.group, wait.seq)
            # Thousands wait for the same few: those that share their tuple of peers share the answer.
            if id(wait.peers) not in found:
                found[id(wait.peers)] = _roots(wait.peers, earliest)
            member.roots, member.roots_differ = found[id(wait.peers)]


def _collective_wait(
    group: GroupState, member: Member, behind: dict[int, tuple[int, ...]], odd: tuple[int, ...]
) -> _Wait:
    """What this member waits for: those that called something else, have not come, or are stuck before it."""
    seq = member.first_waiting or 0
    entry = member.entry
    created, record_id = (entry.created, entry.record_id) if entry else (0, 0)
    if group.disagreement is not None and group.disagreement.seq <= seq:
        if member.rank in odd:
            return _Wait(group.label, seq, created, record_id, (), odd=True)
        return _Wait(group.label, seq, created, record_id, odd)
    if seq not in behind:
        behind[seq] = tuple(
            other.rank
            for other in group.present.values()
            if (other.last_enqueued is not None and other.last_enqueued < seq)
            or (other.first_waiting is not None and other.first_waiting < seq)
        )
    return _Wait(group.label, seq, created, record_id, behind[seq])


def peer_of(group: GroupState, entry: Entry) -> int | None:
    """The rank that a send goes to or a receive comes from; None for anything else."""
    found = _ARROW.match(operation_of(entry.name))
    if found is None:
        return None
    # The numbers are those of the group; its members in order give the global ranks.
    peer = int(found.group(3))
    return group.members[peer] if not group.inferred and peer < len(group.members) else peer


def _pair_wait(group: GroupState, member: Member, entry: Entry) -> _Wait | None:
    peer = peer_of(group, entry)
    if peer is None:
        return None
    return _Wait(group.label, entry.p2p_seq, entry.created, entry.record_id, (peer,), pairwise=True)


def _roots(peers: tuple[int, ...], earliest: dict[int, _Wait]) -> tuple[tuple[int, ...], bool]:
    """Ranks reached from these that wait for nobody themselves, and whether some called something else.

    Where there are none, it is those that wait in a circle.
    """
    seen: set[int] = set()
    front: Iterable[int] = peers
    roots: set[int] = set()
    expanded: set[int] = set()
    for _ in range(_MAX_CHAIN):
        following: list[int] = []
        for current in front:
            if current in seen:
                continue
            seen.add(current)
            wait = earliest.get(current)
            if wait is None or wait.odd:
                roots.add(current)
            elif id(wait.peers) not in expanded:
                expanded.add(id(wait.peers))
                following += wait.peers
        if not following:
            break
        front = following
    if roots:
        return tuple(sorted(roots)), any(rank in earliest and earliest[rank].odd for rank in roots)
    return _circle(seen, earliest)


def _circle(ranks: set[int], earliest: dict[int, _Wait]) -> tuple[tuple[int, ...], bool]:
    """Of ranks that all wait for one another, those to look at, and whether they did otherwise than the rest.

    Nobody waits for the ranks that are merely behind. One that others want to exchange with, and that went on to a
    collective instead, has left out its part; those that are in another collective than most took another order.
    Where all are alike, it is all of them.
    """
    while True:
        shared = {id(peers): peers for peers in (earliest[rank].peers for rank in ranks)}
        inside = ranks & {peer for peers in shared.values() for peer in peers}
        if inside == ranks:
            break
        ranks = inside
    pairwise = [rank for rank in ranks if earliest[rank].pairwise]
    odd = {peer for rank in pairwise for peer in earliest[rank].peers if not earliest[peer].pairwise}
    if not pairwise and ranks:
        places: dict[tuple[str, int], set[int]] = {}
        for rank in ranks:
            places.setdefault((earliest[rank].group, earliest[rank].seq), set()).add(rank)
        first, *others = sorted(places.values(), key=len, reverse=True)
        odd = set().union(*others) if others and len(others[0]) < len(first) else set()
    return tuple(sorted(odd or ranks)), bool(odd)
