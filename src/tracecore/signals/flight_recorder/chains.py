"""Chains of waiting: from each rank that waits to the ranks at the end of the chain."""

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
    """The first operation a rank is in, and the ranks it waits for.

    Args:
        pairwise: a send or receive.
        begun: the GPU has begun it.
        odd: the rank called something else than the others, and so it is they who wait for it.
        together: ranks for which this is the first open operation, too.
        unseen: members that left no dump, where nobody else is waited for.
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
    def place(self) -> tuple[str, int]:
        return self.group, self.seq


class _End(msgspec.Struct, frozen=True):
    """Where a chain of waits ends.

    Args:
        ranks: those that are waited for; empty where nobody is to blame.
        why: what is wrong with them.
        place: (group, sequence) where they are missed, or in which they are.
        unseen: ranks that left no dump, where it may be them.
    """

    ranks: tuple[int, ...]
    why: Why
    place: tuple[str, int]
    unseen: tuple[int, ...] = ()


def follow_chains(groups: list[GroupState]) -> None:
    """For each member say what it waits in, and which ranks are at the end of that chain."""
    first = _first_waits(groups)
    for group in groups:
        _find_peers(group, first)
    lags = _lags(groups)
    present = {rank for group in groups for rank in group.present}
    found: dict[int, _End] = {}
    for group in groups:
        for member in group.present.values():
            wait = first.get(member.rank)
            if wait is None:
                continue
            if wait.pairwise or (wait.group, wait.seq) != (group.label, group.stuck):
                member.waits_in = (wait.group, wait.seq)
            # Thousands wait for the same few: those that share their tuple of peers share the answer.
            key = id(wait.peers) if wait.peers else id(wait.together)
            if key not in found:
                found[key] = _roots(wait, first, lags, present)
            end = found[key]
            member.roots, member.why, member.origin, member.unseen = end.ranks, end.why, end.place, end.unseen
            here = wait.group == group.label and member.rank in member.roots
            member.stalled = here and not wait.pairwise and member.why in ("inside", "unstarted")


def _first_waits(groups: list[GroupState]) -> dict[int, _Wait]:
    """The open operation that each rank entered first."""
    first: dict[int, _Wait] = {}
    for group in groups:
        for member in group.present.values():
            waits = _pair_waits(group, member)
            if member.first_waiting is not None:
                entry = member.entry
                created, record_id = (entry.created, entry.record_id) if entry else (0, 0)
                waits.append(_Wait(group.label, member.first_waiting, created, record_id))
            known = first.get(member.rank)
            for wait in (*waits, known) if known is not None else waits:
                if known is None or (wait.record_id, wait.created) < (known.record_id, known.created):
                    known = wait
            if known is not None:
                first[member.rank] = known
    return first


def _find_peers(group: GroupState, first: dict[int, _Wait]) -> None:
    """For each member whose first open operation is a collective of this group: whom it waits for.

    That is who called something else, has not come, is stuck before it, or has come but is held up by an operation
    that it entered earlier, in another group.
    """
    mine = {
        member.rank: wait
        for member in group.present.values()
        if (wait := first.get(member.rank)) is not None and wait.group == group.label and not wait.pairwise
    }
    odd, since = _odd_ones(group)
    behind: dict[int, tuple[int, ...]] = {}
    together: dict[int, tuple[int, ...]] = {}
    for rank, wait in mine.items():
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
                or (other.first_waiting == wait.seq and other.rank not in mine and other.rank in first)
            )
            together[wait.seq] = tuple(other for other, its in mine.items() if its.seq == wait.seq)
        wait.peers = behind[wait.seq]
        if not wait.peers:
            wait.together = together[wait.seq]
            wait.unseen = group.absent


def _odd_ones(group: GroupState) -> tuple[tuple[int, ...], int]:
    """The ranks that called something else than the others, and where; none where that explains nothing.

    A different call that ended everywhere explains a hang after it where those that made it, and only those, are past
    what most others are stuck in: their part of the exchanges has been off by one since.
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
    """Return the number of groups that each rank holds back: others are further in a collective that all entered.

    With it, whether that is only known from who has begun it. Groups of which a dump is missing do not count.
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
        # What an aborted communicator calls completed never retires, and may not have been.
        completed = any(m.first_waiting != seq and not m.aborted_at(seq) for m in members)
        if not completed:
            begun = len(late)
            late = [m for m in late if not m.started]
            if len(late) == begun or not all(m.tells_starts for m in late):
                continue
        for member in late:
            count, only = lags.get(member.rank, (0, True))
            lags[member.rank] = (count + 1, only and not completed)
    return lags


def peer_of(group: GroupState, entry: DumpEntry) -> int | None:
    """The rank that a send goes to or a receive comes from; None for anything else."""
    found = _ARROW.match(operation_of(entry.name))
    if found is None:
        return None
    # The numbers are those of the group; its members in order give the global ranks.
    peer = int(found.group(3))
    return group.members[peer] if not group.inferred and peer < len(group.members) else peer


def other_half_of(name: str) -> str | None:
    """Return what the peer of a send or receive records: `nccl:recv 3<-2` for `nccl:send 2->3`."""
    operation = operation_of(name)
    found = _ARROW.match(operation)
    if found is None:
        return None
    backend = name.removesuffix(operation)
    mine, peer = found.group(2), found.group(3)
    return f"{backend}recv {peer}<-{mine}" if found.group(1) == "send" else f"{backend}send {peer}->{mine}"


def _pair_waits(group: GroupState, member: GroupMember) -> list[_Wait]:
    """Return the wait in the first open send or receive.

    The operations of one batch run together: the batch waits for the peers that never posted their half, and where
    all have, for those whose half has not ended. A send that arrived says that the GPU has begun the batch.
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
    wait = _Wait(group.label, first.p2p_seq, first.created, first.record_id, peers, pairwise=True, begun=arrived)
    return [wait]


def _sends(entry: DumpEntry) -> bool:
    return operation_of(entry.name).startswith("send")


def _roots(begin: _Wait, first: dict[int, _Wait], lags: dict[int, tuple[int, bool]], present: set[int]) -> _End:
    """Ranks reached from this wait that wait for nobody themselves, what is wrong with them, and where they are missed.

    Where there are none, it is those that hold back most groups although everybody came; else those that wait in a
    circle.
    """
    seen: set[int] = set()
    front: Iterable[tuple[_Wait, Iterable[int]]] = [(begin, begin.peers or begin.together)]
    #: The rank, and the wait that leads to it.
    roots: dict[int, _Wait] = {}
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
        return _End((), "absent", gone[min(gone)].place, tuple(sorted(gone)))
    roots = {rank: via for rank, via in roots.items() if rank in present}
    if roots:
        why: Why = "different" if any(rank in first and first[rank].odd for rank in roots) else "absent"
        return _End(tuple(sorted(roots)), why, roots[min(roots)].place)
    held = {rank: lags[rank] for rank in ends if rank in lags}
    if held:
        most = max(count for count, _ in held.values())
        worst = {rank: only for rank, (count, only) in held.items() if count == most}
        return _End(tuple(sorted(worst)), "unstarted" if all(worst.values()) else "inside", ends[min(worst)].place)
    if ends:
        # Where a dump is missing, the rank without one may be the one.
        last = min(ends, key=lambda rank: (not ends[rank].unseen, rank))
        return _End((), "absent", ends[last].place, ends[last].unseen)
    circle, odd = _circle(seen, first)
    return _End(circle, odd, begin.place)


def _circle(ranks: set[int], first: dict[int, _Wait]) -> tuple[tuple[int, ...], Why]:
    """Return the ranks to look at among ranks that wait for one another, and whether they differ from the rest.

    Nobody waits for the ranks that are merely behind. One that others want to exchange with, and that went on to a
    collective instead, has left out its part; those that are in another collective than most took another order.
    Of exchanges that all have posted, some have begun: those that have not are behind a GPU that does not come to it.
    Where all are alike, it is all of them.
    """
    while True:
        shared = {id(peers): peers for peers in (first[rank].peers for rank in ranks)}
        inside = ranks & {peer for peers in shared.values() for peer in peers}
        if inside == ranks:
            break
        ranks = inside
    pairwise = [rank for rank in ranks if first[rank].pairwise]
    odd = {peer for rank in pairwise for peer in first[rank].peers if not first[peer].pairwise}
    if not pairwise and ranks:
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
