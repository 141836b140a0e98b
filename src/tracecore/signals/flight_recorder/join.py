"""The join of all ranks' dumps: for each group, which ranks wait, are missing, or called something else.

Millions of entries are reduced, with numpy, to one small `GroupState` for each group.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final

import msgspec

from tracecore.signals.arrays import np
from tracecore.signals.flight_recorder.chains import follow_chains, other_half_of, peer_of
from tracecore.signals.flight_recorder.dump import DONE, P2P, STARTED, DumpEntry, ProcessGroup, RankDump, batches_of
from tracecore.signals.flight_recorder.matching import digest, operation_of
from tracecore.signals.flight_recorder.state import Disagreement, GroupMember, GroupState, JoinedDumps, Late, Side

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from numpy.typing import NDArray

#: Cells (different rings x sequence numbers) that are compared. If there are more, only the latest numbers are.
_MAX_CELLS: Final = 48_000_000
#: Beginnings and names of collectives that may end on one rank before all others have entered.
_ROOTED_PREFIXES: Final = ("broadcast", "gather", "scatter")
_ROOTED: Final = ("reduce", "reduce_oop")
#: The number of latest collectives whose arrival times are compared.
_ARRIVALS: Final = 32


class _Part(msgspec.Struct):
    """One group in one rank's dump. `number` is the number of the group in the dump's columns."""

    dump: RankDump
    number: int
    group: ProcessGroup


def join(dumps: Sequence[RankDump]) -> JoinedDumps:
    """Join the dumps of one job; one dump for each rank."""
    ranks = tuple(dump.rank for dump in dumps)
    by_rank = {dump.rank: dump for dump in dumps}
    groups = [_state(label, parts, by_rank) for label, parts in _by_group(dumps)]
    members = {rank for group in groups for rank in group.members}
    expected = set(range(max(members | set(ranks)) + 1)) if ranks else set()
    # Numbers without a dump count as ranks only if at least half of the dumps are there.
    unseen = (members | expected if len(expected) <= 2 * len(ranks) else members) - set(ranks)
    for group in groups:
        if group.inferred and (group.desc == "default_pg" or group.name == "0"):
            # All ranks are in the default group, even if the backend does not record that.
            group.absent = tuple(sorted(unseen))
            group.members = tuple(sorted({*group.members, *unseen}))
    follow_chains(groups)
    return JoinedDumps(
        groups=groups,
        ranks=ranks,
        unseen=tuple(sorted(unseen)),
        end=max((dump.latest for dump in dumps), default=0),
        versions=tuple(sorted({dump.version for dump in dumps})),
    )


def _by_group(dumps: Sequence[RankDump]) -> Iterable[tuple[str, list[_Part]]]:
    """Return the label and parts of each group. Groups that share a name are told apart by their members."""
    named: dict[str, dict[tuple[int, ...] | None, list[_Part]]] = {}
    # Replace equal tuples of members by one object. Tuples can be long, so each object is hashed only once.
    by_id: dict[int, tuple[int, ...] | None] = {}
    first: dict[tuple[int, ...] | None, tuple[int, ...] | None] = {}
    for dump in dumps:
        for group in dump.groups:
            members = group.members
            if id(members) not in by_id:
                by_id[id(members)] = first.setdefault(members, members)
            group.members = by_id[id(members)]
    buckets: dict[tuple[str, int], list[_Part]] = {}
    for dump in dumps:
        for number, group in enumerate(dump.groups):
            buckets.setdefault((group.name, id(group.members)), []).append(_Part(dump, number, group))
    for (name, _), parts in buckets.items():
        named.setdefault(name, {})[parts[0].group.members] = _latest_parts(parts)
    for name in sorted(named, key=_number_or_name):
        by_members = named[name]
        unknown = by_members.pop(None, [])
        if not by_members:
            yield name, unknown
            continue
        for members, parts in sorted(by_members.items(), key=lambda item: item[0] or ()):
            others = [part for part in unknown if part.dump.rank in (members or ())]
            label = name if len(by_members) == 1 else f"{name}@{(members or (0,))[0]}"
            yield label, sorted(parts + others, key=lambda part: part.dump.rank)


def _latest_parts(parts: list[_Part]) -> list[_Part]:
    """Keep the latest part of each rank; a rank that made a group of the same name again has two."""
    latest: dict[int, _Part] = {}
    for part in parts:
        other = latest.get(part.dump.rank)
        if other is None or _last_row(other) < _last_row(part):
            latest[part.dump.rank] = part
    return list(latest.values())


def _last_row(part: _Part) -> int:
    rows = np.flatnonzero(part.dump.columns.group == part.number)
    return int(rows[-1]) if len(rows) else -1


def _number_or_name(name: str) -> tuple[int, str]:
    """Return a sort key that orders numbers by value, and before other names."""
    return (int(name), "") if name.isascii() and name.isdigit() and len(name) < 10 else (1 << 40, name)


class _Ring(msgspec.Struct, frozen=True):
    """The collectives of one rank in one group, one for each sequence number. `rows` are the rows in the dump."""

    seq: NDArray[np.int64]
    sig: NDArray[np.int64]
    created: NDArray[np.int64]
    done: NDArray[np.bool_]
    rows: NDArray[np.int64]


def _rings(parts: list[_Part]) -> dict[int, _Ring]:
    """Return the ring of each rank. Rings of dumps that share columns (see `delta_reader`) share their arrays."""
    rings: dict[int, _Ring] = {}
    shared: dict[tuple[int, ...], _Ring] = {}
    for part in parts:
        columns = part.dump.columns
        key = part.number, id(columns.group), id(columns.seq), id(columns.sig), id(columns.flags)
        known = shared.get(key)
        if known is None:
            known = shared[key] = _ring(part)
        rings[part.dump.rank] = msgspec.structs.replace(known, created=columns.created[known.rows])
    return rings


def _ring(part: _Part) -> _Ring:
    columns = part.dump.columns
    closing = batches_of(columns)[0]
    mine = (columns.group == part.number) & ((columns.flags & P2P) == 0) & (columns.seq > 0) & ~closing
    rows = np.flatnonzero(mine)
    seq, sig, done = columns.seq[rows], columns.sig[rows], (columns.flags[rows] & DONE) != 0
    if len(seq) > 1 and not bool((np.diff(seq) > 0).all()):
        # A coalesced group has several records with one sequence number. Hash their signatures and order into one.
        order = np.argsort(seq, kind="stable")
        rows, seq, sig, done = rows[order], seq[order], sig[order], done[order]
        first = np.flatnonzero(np.append(True, seq[1:] != seq[:-1]))
        counts = np.diff(np.append(first, len(seq)))
        position = np.arange(len(seq)) - np.repeat(first, counts)
        mixed = (sig ^ (position * 0x5851F42D4C957F2D)) * np.int64(0x2545F4914F6CDD1D)
        combined = np.where(counts == 1, sig[first], np.add.reduceat(mixed, first) & np.int64((1 << 62) - 1))
        rows, seq, sig = rows[first], seq[first], combined
        done = np.logical_and.reduceat(done, first)
    return _Ring(seq, sig, columns.created[rows], done, rows)


def _state(label: str, parts: list[_Part], dumps: Mapping[int, RankDump]) -> GroupState:
    first = parts[0].group
    rings = _rings(parts)
    known = next((part.group.members for part in parts if part.group.members), None)
    members = known or tuple(sorted(rings))
    present = {part.dump.rank: _member(part, rings[part.dump.rank]) for part in parts}
    absent = tuple(sorted(set(members) - dumps.keys()))
    unlisted = sorted(set(members) - set(present) - set(absent))
    for rank in unlisted:
        present[rank] = _unlisted_member(dumps[rank])
    state = GroupState(
        label=label,
        name=first.name,
        desc=next((part.group.desc for part in parts if part.group.desc), ""),
        members=tuple(sorted({*members, *rings})),
        inferred=known is None,
        present=dict(sorted(present.items())),
        absent=absent,
    )
    if unlisted and not _all_took_part(parts, rings):
        for rank in unlisted:
            if _lists_all_groups(dumps[rank]):
                state.present[rank].last_enqueued = 0
    _undo_aborted(state, rings, parts)
    _match_pairs(state, parts)
    _find_stuck(state)
    _compare(state, rings, parts)
    return state


def _member(part: _Part, ring: _Ring) -> GroupMember:
    group, dump = part.group, part.dump
    mine = [entry for entry in dump.notable if entry.group == part.number]
    pending = sorted((e for e in mine if e.is_p2p and not e.done), key=_recorded)
    member = msgspec.structs.replace(_unlisted_member(dump), listed=True, latest=_latest(mine), pending=pending)
    if not len(ring.seq):
        # The recorder's counter includes point-to-point work, so it is used only if there are no entries.
        counted = group.last_enqueued
        member.last_enqueued = counted if counted is not None and counted >= 0 else (None if dump.wrapped else 0)
        member.last_completed = max(group.last_completed or 0, 0)
        return member
    collectives = [entry for entry in mine if not entry.is_p2p]
    waiting = np.flatnonzero(~ring.done)
    completed = int(ring.seq[ring.done][-1]) if bool(ring.done.any()) else int(ring.seq[0]) - 1
    if len(waiting):
        member.first_waiting = int(ring.seq[waiting[0]])
        completed = min(completed, member.first_waiting - 1)
    last = int(ring.seq[-1])
    member.last_enqueued, member.last_completed, member.oldest = last, completed, int(ring.seq[0])
    member.last = _with_seq(collectives, last)
    member.entry = _with_seq(collectives, last if member.first_waiting is None else member.first_waiting)
    member.tells_starts = bool((dump.columns.flags[ring.rows] & STARTED).any())
    return member


def _unlisted_member(dump: RankDump) -> GroupMember:
    """Make a member whose dump does not have the group."""
    final = _latest(dump.notable)
    return GroupMember(
        rank=dump.rank, path=dump.path, last_enqueued=None, last_completed=0, oldest=0, final=final, listed=False
    )


def _recorded(entry: DumpEntry) -> tuple[int, int]:
    return entry.record_id, entry.created


def _latest(entries: Iterable[DumpEntry]) -> DumpEntry | None:
    return max(entries, key=_recorded, default=None)


def _lists_all_groups(dump: RankDump) -> bool:
    """Whether a dump has every group that its rank ever used: it has `pg_config`, or no entry was overwritten."""
    return any(group.members for group in dump.groups) or (dump.entries > 0 and not dump.wrapped)


def _all_took_part(parts: list[_Part], rings: dict[int, _Ring]) -> bool:
    """Whether a collective ended that cannot end before all members have entered it."""
    for part in parts:
        ring, unretired = rings[part.dump.rank], _unretired(part)
        done = ring.done
        mine = [entry for entry in part.dump.notable if entry.group == part.number and not entry.is_p2p]
        last = _with_seq(mine, int(ring.seq[-1])) if len(ring.seq) else None
        if last is not None and last.record_id in unretired:
            done = done[:-1]  # it reads as completed because the communicator was aborted
        for sig in set(ring.sig[: len(done)][done].tolist()):
            operation = part.dump.signatures.get(sig, "").partition("|")[0].lstrip("_")
            if not operation.startswith(_ROOTED_PREFIXES) and operation not in _ROOTED:
                return True
    return False


def _with_seq(entries: list[DumpEntry], seq: int) -> DumpEntry | None:
    return next((entry for entry in entries if entry.seq == seq), None)


def _undo_aborted(state: GroupState, rings: dict[int, _Ring], parts: list[_Part]) -> None:
    """Undo false completions.

    When a communicator is aborted, its outstanding work reads as completed. Such work is the last of its rank and never
    retires. It has not completed if a present member never entered it.
    """
    entered = [m.last_enqueued for m in state.present.values() if m.last_enqueued is not None]
    lowest = min(entered, default=0)
    retired = {part.dump.rank: _unretired(part) for part in parts}
    for rank, member in state.present.items():
        last = member.last
        if (
            member.first_waiting is None
            and last is not None
            and last.seq > lowest
            and last.done
            and last.record_id in retired.get(rank, ())
            and not operation_of(last.name).startswith("broadcast")
        ):
            member.first_waiting = last.seq
            member.last_completed = min(member.last_completed, last.seq - 1)
            member.entry = last
            done = rings[rank].done.copy()  # other ranks may share the array
            done[-1] = False
            rings[rank] = msgspec.structs.replace(rings[rank], done=done)


def _unretired(part: _Part) -> set[int]:
    """Return the record numbers of notable entries that never retired."""
    return {entry.record_id for entry in part.dump.notable if entry.retired is False}


def _match_pairs(state: GroupState, parts: list[_Part]) -> None:
    """Find the open sends and receives whose other half was never posted, and those whose other half has ended.

    The n-th send from one rank to another belongs to the n-th receive there. Operations can be counted only if both
    dumps have all entries since the start.
    """
    whole = {part.dump.rank: part for part in parts if not part.dump.wrapped}
    _reopen_receives(state, whole)
    still_open = {rank: Counter(entry.name for entry in member.pending) for rank, member in state.present.items()}
    for rank, member in state.present.items():
        if rank not in whole:
            continue
        seen: dict[str, int] = {}
        unmatched, answered = set(), set()
        for entry in member.pending:
            peer, other_half = peer_of(state, entry), other_half_of(entry.name)
            if peer is None or other_half is None or peer not in whole:
                continue
            seen[entry.name] = seen.get(entry.name, 0) + 1
            number = _count(whole[rank], entry.name) - still_open[rank][entry.name] + seen[entry.name]
            posted = _count(whole[peer], other_half)
            if posted < number:
                unmatched.add(entry.record_id)
            elif posted - still_open[peer][other_half] >= number:
                answered.add(entry.record_id)
        member.unmatched, member.answered = frozenset(unmatched), frozenset(answered)


def _reopen_receives(state: GroupState, whole: Mapping[int, _Part]) -> None:
    """Undo false completions of receives (see `_undo_aborted`): those whose send was never posted."""
    for rank, member in state.present.items():
        last = member.latest
        if rank not in whole or last is None or not (last.is_p2p and last.done and last.retired is False):
            continue
        peer, other_half = peer_of(state, last), other_half_of(last.name)
        # A send may end before it is received.
        if peer is None or peer not in whole or other_half is None or operation_of(last.name).startswith("send"):
            continue
        if _count(whole[peer], other_half) < _count(whole[rank], last.name):
            member.pending = sorted([*member.pending, last], key=_recorded)


def _count(part: _Part, name: str) -> int:
    columns = part.dump.columns
    return int(((columns.group == part.number) & (columns.sig == digest(name))).sum())


def _find_stuck(state: GroupState) -> None:
    waiting = [m for m in state.present.values() if m.first_waiting is not None]
    if not waiting:
        return
    # A single rank that waits earlier than the others is no hang of this group. Its chain of waits is followed anyway.
    counts: dict[int, int] = {}
    for member in waiting:
        assert member.first_waiting is not None
        counts[member.first_waiting] = counts.get(member.first_waiting, 0) + 1
    first = min(counts)
    state.stuck = first if counts[first] >= 2 or len(counts) == 1 else min(counts, key=lambda s: (-counts[s], s))
    state.waiting = tuple(sorted(m.rank for m in waiting if m.first_waiting == state.stuck))
    state.missing = tuple(
        rank
        for rank, m in state.present.items()
        if m.last_enqueued is not None and m.last_enqueued < state.stuck and m.first_waiting is None
    )


def _compare(state: GroupState, rings: dict[int, _Ring], parts: list[_Part]) -> None:
    """Find the first disagreement in the sequence numbers that all rings still have, and the late ranks."""
    held = {rank: ring for rank, ring in rings.items() if len(ring.seq)}
    if len(held) < 2:
        return
    low = max(int(ring.seq[0]) for ring in held.values())
    high = max(int(ring.seq[-1]) for ring in held.values())
    order = sorted(held)
    # Rings that share their signatures are compared once.
    different_rings = {id(held[rank].sig): held[rank] for rank in order}
    width = min(high - low + 1, max(1, _MAX_CELLS // len(different_rings)))
    if width <= 0:
        return
    low = high - width + 1
    state.common = (low, high)
    cells = np.zeros((len(different_rings), width), dtype=np.int64)
    for row, ring in enumerate(different_rings.values()):
        inside = ring.seq >= low
        cells[row, ring.seq[inside] - low] = ring.sig[inside]
    row_of = {identity: row for row, identity in enumerate(different_rings)}
    rows = [row_of[id(held[rank].sig)] for rank in order]
    waiting = [m.first_waiting for m in state.present.values() if m.first_waiting is not None]
    first_open = min(waiting, default=high + 1)
    for begin in range(0, width, 256):
        block = cells[:, begin : begin + 256]
        top = block.max(axis=0)
        different = np.flatnonzero(((block != top) & (block != 0)).any(axis=0)) + begin
        if len(different) and state.settled is None and low + int(different[0]) < first_open:
            column = int(different[0])
            state.settled = _disagreement(low + column, cells[rows, column], order, held, parts)
        different = different[different >= first_open - low]
        if len(different):
            column = int(different[0])
            state.disagreement = _disagreement(low + column, cells[rows, column], order, held, parts)
            break
    if state.disagreement is None and state.settled is not None and _hangs_next(state, state.settled):
        state.disagreement, state.settled = state.settled, None
    _find_late(state, held, order, low, high)


def _hangs_next(state: GroupState, settled: Disagreement) -> bool:
    """Whether a call that differed, and yet ended, explains why the next call hangs.

    NCCL ends a call once its own amount has passed. Data that the other side sent beyond that amount stays in the
    channel and disturbs the next call: all ranks enter it, but none of them, or all but the odd ranks, complete it.
    """
    seq = settled.seq + 1
    members = state.present.values()
    if state.absent or any(m.last_enqueued is None or m.last_enqueued < seq for m in members):
        return False
    inside = {m.rank for m in members if m.first_waiting == seq}
    return inside == set(settled.minority) or len(inside) == len(state.present)


def _disagreement(
    seq: int, column: NDArray[np.int64], order: list[int], held: dict[int, _Ring], parts: list[_Part]
) -> Disagreement:
    sides: dict[int, list[int]] = {}
    for rank, value in zip(order, column.tolist(), strict=True):
        if value:
            sides.setdefault(value, []).append(rank)
    ranked = sorted(sides.items(), key=lambda item: (-len(item[1]), item[1]))
    place = {rank: int(np.searchsorted(held[rank].seq, seq)) for ranks in sides.values() for rank in ranks}
    of_rank = {part.dump.rank: part for part in parts}
    signatures = _signatures(seq, [of_rank[ranks[0]] for _, ranks in ranked])
    return Disagreement(
        seq=seq,
        sides=tuple(
            Side(
                signature=signature,
                ranks=tuple(ranks),
                created=tuple(int(held[rank].created[place[rank]]) for rank in ranks),
                done=tuple(bool(held[rank].done[place[rank]]) for rank in ranks),
            )
            for signature, (_, ranks) in zip(signatures, ranked, strict=True)
        ),
    )


def _signatures(seq: int, parts: list[_Part]) -> list[str]:
    """Return the call of each part at this sequence number; of a coalesced group the first call that differs."""
    called: list[list[str]] = []
    for part in parts:
        columns = part.dump.columns
        rows = (columns.group == part.number) & ((columns.flags & P2P) == 0) & (columns.seq == seq)
        called.append([part.dump.signatures.get(sig, "") for sig in columns.sig[rows].tolist()])
    longest = max(map(len, called))
    padded = [[*calls, *["nothing"] * (longest - len(calls))] for calls in called]
    different = (list(together) for together in zip(*padded, strict=True) if len(set(together)) > 1)
    return next(different, [calls[-1] if calls else "nothing" for calls in called])


def _find_late(state: GroupState, held: dict[int, _Ring], order: list[int], low: int, high: int) -> None:
    """Find the last rank to enter each of the latest collectives, if all members (at least four) entered them."""
    if len(order) < 4 or len(order) < len(state.members):
        return
    end = min(int(ring.seq[-1]) for ring in held.values())
    begin = max(low, end - _ARRIVALS + 1)
    if end < begin:
        return
    times = np.zeros((len(order), end - begin + 1), dtype=np.int64)
    for row, rank in enumerate(order):
        ring = held[rank]
        inside = (ring.seq >= begin) & (ring.seq <= end)
        times[row, ring.seq[inside] - begin] = ring.created[inside]
    for column in range(times.shape[1]):
        arrivals = times[:, column]
        if not bool((arrivals > 0).all()):
            continue
        row = int(np.argmax(arrivals))
        last = int(arrivals[row])
        middle = int(np.sort(arrivals)[len(order) // 2])
        state.late.append(
            Late(seq=begin + column, rank=order[row], time=last, lateness=last - middle, ranks=len(order))
        )
