"""Chains of waits: from each waiting rank to the ranks at the end of its chain.

A rank waits in a collective for other ranks, which may wait in operations of other groups for further ranks. The ranks
at the end of the chain wait for nobody, so they are what the others are held up by.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

import msgspec

from tracecore.signals.flight_recorder.matching import operation_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tracecore.signals.flight_recorder.dump import DumpEntry
    from tracecore.signals.flight_recorder.state import GroupMember, GroupState, Why

_MAX_CHAIN: Final = 64
_ARROW: Final = re.compile(r"^(send|recv) ([0-9]{1,8})(?:->|<-)([0-9]{1,8})")


class _Wait(msgspec.Struct):
    """The open operation that a rank entered first, and the ranks it waits for.

    Args:
        peers: the ranks it waits for.
        pairwise: the operation is a send or receive.
        begun: the GPU has begun it.
        odd: the rank called something else than the others, so the others wait for this rank.
        together: if there are no peers, the ranks whose first open operation is the same.
        unseen: if there are no peers, the members that left no dump.
    """

    group: str
    seq: int
    created: int
    record_id: int
    peers: tuple[int, ...] = ()
    pairwise: bool = False
    begun: bool = False
    odd: bool = False
    together: tuple[int, ...] = ()
    unseen: tuple[int, ...] = ()

    @property
    def operation(self) -> tuple[str, int]:
        return self.group, self.seq


class _ChainEnd(msgspec.Struct, frozen=True):
    """The end of a chain of waits.

    Args:
        ranks: the ranks that are waited for; empty if no rank is known to be at fault.
        why: what is wrong with them.
        operation: (group, sequence number) of the operation that they hold up.
        unseen: ranks without a dump that may be at fault.
    """

    ranks: tuple[int, ...]
    why: Why
    operation: tuple[str, int]
    unseen: tuple[int, ...] = ()


def follow_chains(groups: list[GroupState]) -> None:
    """Set for each member what it waits in, and which ranks are at the end of its chain."""
    first = _first_waits(groups)
    for group in groups:
        _find_peers(group, first)
    lags = _lags(groups)
    present = {rank for group in groups for rank in group.present}
    found: dict[int, _ChainEnd] = {}
    #: Circles that many chains lead to are judged once.
    circles: dict[frozenset[int], tuple[tuple[int, ...], Why]] = {}
    for group in groups:
        for member in group.present.values():
            wait = first.get(member.rank)
            if wait is None:
                continue
            if wait.pairwise or (wait.group, wait.seq) != (group.label, group.stuck):
                member.waits_in = (wait.group, wait.seq)
            # Thousands of ranks may wait for the same peers. They share one tuple of peers, and so one search.
            key = id(wait.peers) if wait.peers else id(wait.together)
            if key not in found:
                found[key] = _end_of_chain(wait, first, lags, present, circles)
            end = found[key]
            member.roots, member.why, member.origin, member.unseen = end.ranks, end.why, end.operation, end.unseen
            here = wait.group == group.label and member.rank in member.roots
            member.stalled = here and not wait.pairwise and member.why in ("inside", "unstarted")


def _first_waits(groups: list[GroupState]) -> dict[int, _Wait]:
    """Return the open operation that each rank entered first."""
    first: dict[int, _Wait] = {}
    for group in groups:
        for member in group.present.values():
            waits = _pair_waits(group, member)
            if member.first_waiting is not None:
                entry = member.entry
                created, record_id = (entry.created, entry.record_id) if entry else (0, 0)
                waits.append(_Wait(group.label, member.first_waiting, created, record_id))
            for wait in waits:
                known = first.get(member.rank)
                if known is None or (wait.record_id, wait.created) < (known.record_id, known.created):
                    first[member.rank] = wait
    return first


def _find_peers(group: GroupState, first: dict[int, _Wait]) -> None:
    """Set the peers of each member whose first open operation is a collective of this group.

    The peers are the ranks that called something else, have not entered the collective, are stuck before it, or have
    entered it but are held up by an operation of another group that they entered earlier.
    """
    waits = {
        member.rank: wait
        for member in group.present.values()
        if (wait := first.get(member.rank)) is not None and wait.group == group.label and not wait.pairwise
    }
    odd, since = _odd_ranks(group)
    behind: dict[int, tuple[int, ...]] = {}
    together: dict[int, tuple[int, ...]] = {}
    for rank, wait in waits.items():
        if odd and since <= wait.seq:
            wait.odd = rank in odd
            wait.peers = () if wait.odd else odd
            continue
        if wait.seq not in behind:
            behind[wait.seq] = tuple(
                other.rank
                for other in group.present.values()
                if (other.last_enqueued is not None and other.last_enqueued < wait.seq)
                or (other.first_waiting is not None and other.first_waiting < wait.seq)
                or (other.first_waiting == wait.seq and other.rank not in waits and other.rank in first)
            )
            together[wait.seq] = tuple(other for other, its in waits.items() if its.seq == wait.seq)
        wait.peers = behind[wait.seq]
        if not wait.peers:
            wait.together = together[wait.seq]
            wait.unseen = group.absent


def _odd_ranks(group: GroupState) -> tuple[tuple[int, ...], int]:
    """Return the ranks whose different call explains the hang, and its sequence number.

    A different call that ended on all ranks explains a later hang if exactly the ranks that made it are past the
    collective that most others are stuck in: since that call they have been one exchange ahead.
    """
    if group.disagreement is not None:
        return group.disagreement.minority, group.disagreement.seq
    waiting = [m.first_waiting for m in group.present.values() if m.first_waiting is not None]
    if group.settled is None or not waiting or group.settled.seq >= min(waiting):
        return (), 0
    past = {m.rank for m in group.present.values() if m.first_waiting != min(waiting)}
    odd = group.settled.minority
    return (odd, group.settled.seq) if past == set(odd) and 2 * len(past) < len(group.present) else ((), 0)


def _lags(groups: list[GroupState]) -> dict[int, tuple[int, bool]]:
    """Return for each rank the number of groups that it holds back, and whether only GPU starts show that.

    A rank holds a group back if all members entered a collective and others got further in it: they completed it, or
    at least their GPUs began it. Groups with a missing dump do not count.
    """
    lags: dict[int, tuple[int, bool]] = {}
    for group in groups:
        members = group.present.values()
        waiting = {m.first_waiting for m in members if m.first_waiting is not None}
        if group.absent or not waiting:
            continue
        seq = min(waiting)
        if any(m.last_enqueued is None or m.last_enqueued < seq for m in members):
            continue
        late = [m for m in members if m.first_waiting == seq]
        # A collective of an aborted communicator reads as completed, but may not have been.
        completed = any(m.first_waiting != seq and not m.aborted_at(seq) for m in members)
        if not completed:
            begun = len(late)
            late = [m for m in late if not m.started]
            if len(late) == begun or not all(m.tells_starts for m in late):
                continue
        for member in late:
            count, starts_only = lags.get(member.rank, (0, True))
            lags[member.rank] = (count + 1, starts_only and not completed)
    return lags


def peer_of(group: GroupState, entry: DumpEntry) -> int | None:
    """Return the rank that a send goes to or a receive comes from; None for anything else."""
    found = _ARROW.match(operation_of(entry.name))
    if found is None:
        return None
    # The name has ranks within the group, which are positions in the list of its members.
    peer = int(found.group(3))
    return group.members[peer] if not group.inferred and peer < len(group.members) else peer


def other_half_of(name: str) -> str | None:
    """Return the name that the peer of a send or receive records: `nccl:recv 3<-2` for `nccl:send 2->3`."""
    operation = operation_of(name)
    found = _ARROW.match(operation)
    if found is None:
        return None
    backend = name.removesuffix(operation)
    mine, peer = found.group(2), found.group(3)
    return f"{backend}recv {peer}<-{mine}" if found.group(1) == "send" else f"{backend}send {peer}->{mine}"


def _pair_waits(group: GroupState, member: GroupMember) -> list[_Wait]:
    """Return the wait in the first open send or receive, if there is one.

    The operations of one batch run together. The batch waits for the peers that never posted their half; if all have,
    for the peers whose half has not ended. A send that arrived shows that the GPU has begun the batch.
    """
    pairs = [(entry, peer) for entry in member.pending if (peer := peer_of(group, entry)) is not None]
    if not pairs:
        return []
    first = pairs[0][0]
    batch = [(entry, peer) for entry, peer in pairs if entry.p2p_seq == first.p2p_seq]
    awaited = (
        [peer for entry, peer in batch if entry.record_id in member.unmatched]
        or [peer for entry, peer in batch if entry.record_id not in member.answered]
        or [peer for _, peer in batch]
    )
    peers = tuple(sorted(set(awaited)))
    arrived = any(entry.record_id in member.answered and _sends(entry) for entry, _ in batch)
    return [_Wait(group.label, first.p2p_seq, first.created, first.record_id, peers, pairwise=True, begun=arrived)]


def _sends(entry: DumpEntry) -> bool:
    return operation_of(entry.name).startswith("send")


def _end_of_chain(
    begin: _Wait,
    first: dict[int, _Wait],
    lags: dict[int, tuple[int, bool]],
    present: set[int],
    circles: dict[frozenset[int], tuple[tuple[int, ...], Why]],
) -> _ChainEnd:
    """Follow the waits from this one to the ranks that wait for nobody.

    If there are none, the end is the ranks that hold back most groups although all members entered; else the ranks
    that wait for one another in a circle.
    """
    seen: set[int] = set()
    front: Iterable[tuple[_Wait, Iterable[int]]] = [(begin, begin.peers or begin.together)]
    #: Ranks that wait for nobody, each with the wait that leads to it.
    roots: dict[int, _Wait] = {}
    #: Ranks in a collective that all members entered, each with the wait in it.
    ends: dict[int, _Wait] = {}
    expanded: set[int] = set()
    for _ in range(_MAX_CHAIN):
        following: list[tuple[_Wait, Iterable[int]]] = []
        for via, ranks in front:
            for current in ranks:
                if current in seen:
                    continue
                seen.add(current)
                wait = first.get(current)
                if wait is None or wait.odd:
                    roots[current] = via
                elif wait.together:
                    ends.update(dict.fromkeys(wait.together, wait))
                elif id(wait.peers) not in expanded:
                    expanded.add(id(wait.peers))
                    following.append((wait, wait.peers))
        if not following:
            break
        front = following
    gone = {rank: via for rank, via in roots.items() if rank not in present}
    if len(gone) == len(roots) > 0:
        return _ChainEnd((), "absent", gone[min(gone)].operation, tuple(sorted(gone)))
    roots = {rank: via for rank, via in roots.items() if rank in present}
    if roots:
        why: Why = "different" if any(rank in first and first[rank].odd for rank in roots) else "absent"
        return _ChainEnd(tuple(sorted(roots)), why, roots[min(roots)].operation)
    held = {rank: lags[rank] for rank in ends if rank in lags}
    if held:
        most = max(count for count, _ in held.values())
        worst = {rank: starts_only for rank, (count, starts_only) in held.items() if count == most}
        why = "unstarted" if all(worst.values()) else "inside"
        return _ChainEnd(tuple(sorted(worst)), why, ends[min(worst)].operation)
    if ends:
        # If a dump is missing, the rank without one may be at fault.
        last = min(ends, key=lambda rank: (not ends[rank].unseen, rank))
        return _ChainEnd((), "absent", ends[last].operation, ends[last].unseen)
    members = _members_of_circle(seen, first)
    if members not in circles:
        circles[members] = _circle(members, first)
    circle, why = circles[members]
    return _ChainEnd(circle, why, begin.operation)


def _members_of_circle(ranks: set[int], first: dict[int, _Wait]) -> frozenset[int]:
    """Return the ranks without those that nobody waits for, which are not part of the circle."""
    while True:
        shared = {id(peers): peers for peers in (first[rank].peers for rank in ranks)}
        inside = ranks & {peer for peers in shared.values() for peer in peers}
        if inside == ranks:
            return frozenset(ranks)
        ranks = inside


def _in_every_circle(ranks: frozenset[int], first: dict[int, _Wait]) -> int | None:
    """Return the only rank without which none of these ranks would wait in a circle; None if there is no such rank."""
    inside: dict[int, list[int]] = {}
    waiting: dict[int, list[int]] = {}
    for rank in ranks:
        key = id(first[rank].peers)
        waiting.setdefault(key, []).append(rank)
        if key not in inside:
            inside[key] = [peer for peer in first[rank].peers if peer in ranks]
    awaited_in: dict[int, list[int]] = {}
    for key, peers in inside.items():
        for peer in peers:
            awaited_in.setdefault(peer, []).append(key)
    # A rank of every circle is in this one.
    walk: list[int] = []
    current = min(ranks)
    while current not in walk:
        walk.append(current)
        if len(walk) > _MAX_CHAIN:
            return None
        current = inside[id(first[current].peers)][0]
    found = [rank for rank in walk[walk.index(current) :] if _released(rank, inside, waiting, awaited_in) == len(ranks)]
    return found[0] if len(found) == 1 else None


def _released(
    rank: int, inside: dict[int, list[int]], waiting: dict[int, list[int]], awaited_in: dict[int, list[int]]
) -> int:
    """Return the number of ranks that could go on, one after the other, if this rank did not wait."""
    left = {key: len(peers) for key, peers in inside.items()}
    gone, front = {rank}, [rank]
    while front:
        for key in awaited_in.get(front.pop(), ()):
            left[key] -= 1
            if not left[key]:
                free = [other for other in waiting[key] if other not in gone]
                gone.update(free)
                front += free
    return len(gone)


def _circle(ranks: frozenset[int], first: dict[int, _Wait]) -> tuple[tuple[int, ...], Why]:
    """Return the ranks at fault among ranks that wait for one another in a circle, and what is wrong with them.

    A rank that entered a collective while others wait to exchange with it left out the exchange. If all are in
    collectives and one rank is part of every circle, this rank took another order; else those outside the collective
    that most are in did. If all are in exchanges, those whose GPU has not begun hold up the others. Else all are at
    fault.
    """
    pairwise = [rank for rank in ranks if first[rank].pairwise]
    odd = {peer for rank in pairwise for peer in first[rank].peers if not first[peer].pairwise}
    if not pairwise and ranks and (sole := _in_every_circle(ranks, first)) is not None:
        odd = {sole}
    elif not pairwise and ranks:
        places: dict[tuple[str, int], set[int]] = {}
        for rank in ranks:
            places.setdefault((first[rank].group, first[rank].seq), set()).add(rank)
        most, *others = sorted(places.values(), key=len, reverse=True)
        odd = set().union(*others) if others and len(others[0]) < len(most) else set()
    if odd:
        return tuple(sorted(odd)), "different"
    idle = {rank for rank in pairwise if not first[rank].begun}
    if 0 < len(idle) < len(pairwise) == len(ranks):
        return tuple(sorted(idle)), "unstarted"
    return tuple(sorted(ranks)), "absent"
