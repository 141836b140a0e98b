"""Make facts from Flight Recorder dumps.

A dump has thousands of entries for each rank. `facts_of` takes the joined dumps (`signals.flight_recorder.join`) and
makes facts only about ranks that wait, fell behind, called another operation or came last.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeAlias

import msgspec

from tracecore.facts.collective import Arrival, CollectiveEntry, GroupCrossed, GroupProgress, called_of, named
from tracecore.facts.fact import Fact
from tracecore.signals.flight_recorder.exchange import misfit
from tracecore.signals.flight_recorder.matching import elements
from tracecore.signals.record import Source

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from tracecore.signals.flight_recorder.dump import DumpEntry
    from tracecore.signals.flight_recorder.exchange import Misfit
    from tracecore.signals.flight_recorder.raw_entries import StackFrame
    from tracecore.signals.flight_recorder.state import Disagreement, GroupMember, GroupState, JoinedDumps

#: Ranks by a line of user code and the group in which they called from there.
Lines: TypeAlias = dict[str, dict[str, set[int]]]
#: Frames of the framework and the interpreter are not user code.
_LIBRARY: Final = ("/site-packages/", "/dist-packages/", "/lib/python3", "/torch/", "<string>", "<frozen ", "/ray/")


def user_frame(frames: Sequence[StackFrame]) -> str | None:
    """Return the innermost line of user code, or the outermost line if all frames are of libraries."""
    for frame in frames:
        if frame.filename and not any(part in frame.filename for part in _LIBRARY):
            return str(frame)
    return str(frames[-1]) if frames else None


def facts_of(joined: JoinedDumps, reread: Callable[[str, str, int], DumpEntry | None] | None = None) -> list[Fact]:
    """Return the facts of a set of dumps.

    Args:
        joined: the dumps, joined by `signals.flight_recorder.join.join`.
        reread: returns the full entry of (path, group name, sequence number), for the frames of a disagreement.
    """
    facts: list[Fact] = []
    descriptions = {group.label: group.desc for group in joined.groups}
    hangs = any(group.open for group in joined.groups)
    lines = _lines(joined)
    for group in joined.groups:
        if group.interesting:
            facts.extend(_progress(group, joined, descriptions))
            found = misfit(group, reread)
            facts.extend(_waiting(group, joined, found))
            facts.extend(_exchanging(group, joined, found))
            # A disagreement that ended on all ranks is no reason to wait. It counts only if no collective is open.
            differs = group.disagreement or (group.settled if not hangs else None)
            facts.extend(_disagreeing(group, joined, reread, differs, lines))
        facts.extend(_arrivals(group))
    facts.extend(_scattered(joined))
    facts.extend(_crossed(joined))
    return facts


def _crossed(joined: JoinedDumps) -> Iterator[GroupCrossed]:
    """Yield ranks that gave one name to groups of different members, and exchanged with wrong peers.

    Each rank may number its own groups, so a name that is used twice proves nothing. But if a collective of all members
    ended although a member never used the group, it ended with wrong peers.
    """
    named_so: dict[str, list[tuple[GroupState, list[GroupMember], tuple[int, ...]]]] = {}
    for group in joined.groups:
        never = tuple(m.rank for m in group.present.values() if not m.listed)
        ended = [m for m in group.present.values() if m.listed and m.last_completed > 0 and _of_all(m.last)]
        if never and ended and not group.inferred:
            named_so.setdefault(group.name, []).append((group, ended, never))
    for name, groups in named_so.items():
        if len(groups) < 2:
            continue
        for place, (group, ended, never) in enumerate(sorted(groups, key=lambda item: item[0].members)):
            for member in ended:
                yield GroupCrossed(
                    time=_moment(member.last, joined),
                    source=Source(member.path, ident=f"{member.path}#crossed&group={group.label}"),
                    rank=member.rank,
                    pg=name,
                    members=group.members,
                    never=never,
                    odd=place > 0,
                )


def _of_all(entry: DumpEntry | None) -> bool:
    return (_operation(entry) or "").lstrip("_").startswith(("all", "reduce_scatter", "barrier"))


def _progress(group: GroupState, joined: JoinedDumps, descriptions: dict[str, str]) -> Iterator[GroupProgress]:
    earlier = _settled_text(group.settled) if group.settled is not None else None
    for rank, member in group.present.items():
        waits = member.waits_in
        last = member.final or member.latest or member.last
        yield GroupProgress(
            time=_moment(last, joined),
            source=Source(member.path, ident=f"{member.path}#rank={rank}&group={group.label}"),
            rank=rank,
            pg=group.label,
            pg_desc=group.desc or None,
            last_enqueued=member.last_enqueued,
            last_completed=member.last_completed,
            oldest=member.oldest,
            last_op=_operation(last),
            frame=user_frame(last.frames) if last else None,
            waits_pg=waits[0] if waits else None,
            waits_desc=descriptions.get(waits[0]) or None if waits else None,
            waits_seq=waits[1] if waits else None,
            roots=member.roots,
            why=member.why,
            origin_pg=member.origin[0] if member.origin else None,
            origin_desc=descriptions.get(member.origin[0]) or None if member.origin else None,
            origin_seq=member.origin[1] if member.origin else None,
            unseen=member.unseen,
            stalled=member.stalled,
            open_seq=member.first_waiting,
            earlier=earlier,
            absent=group.absent,
            size=len(group.members),
        )


def _settled_text(found: Disagreement) -> str:
    odd = found.sides[1]
    what = called_of(found.sides[0].signature), called_of(odd.signature)
    return f"at seq {found.seq} {named(odd.ranks)} called {what[1]} and {named(found.sides[0].ranks)} {what[0]}"


def _exchanging(group: GroupState, joined: JoinedDumps, found: Misfit | None) -> Iterator[CollectiveEntry]:
    """Yield the calls of an all-to-all that does not add up, with the elements that each rank sends and expects."""
    if found is None:
        return
    whole = [t for t in found.transfers if t.sender is None]
    for rank, entry in found.entries.items():
        member = group.present[rank]
        fact = _entry(group, rank, member, entry, joined)
        mine = [t for t in found.transfers if rank in (t.sender, t.receiver)]
        yield msgspec.structs.replace(
            fact,
            state=fact.state if member.first_waiting == entry.seq else "completed",
            transfers=tuple(mine or whole),
            misfit=rank in found.odd,
            sent=sum(elements(entry.input_sizes)),
            expected=sum(elements(entry.output_sizes)),
        )


def _waiting(group: GroupState, joined: JoinedDumps, found: Misfit | None) -> Iterator[CollectiveEntry]:
    told = found.entries if found is not None else {}
    for rank, member in group.present.items():
        entry = member.entry if member.first_waiting is not None else None
        if entry is not None and rank in told and told[rank].seq == entry.seq:
            entry = None
        if entry is not None and (group.disagreement is None or group.disagreement.seq != entry.seq):
            yield _entry(group, rank, member, entry, joined)
        if member.pending:
            yield _entry(group, rank, member, member.pending[0], joined)


def _scattered(joined: JoinedDumps) -> Iterator[CollectiveEntry]:
    """Yield ranks that wait for the same ranks, each in another group, as waiting behind the group where it began.

    In groups of two ranks no two ranks wait together, although the whole job may be stuck.
    """
    waiting: dict[tuple[int, ...], list[tuple[GroupState, GroupMember, DumpEntry]]] = {}
    for group in joined.groups:
        mine = [m for m in group.present.values() if m.waits_in is None or m.pending]
        stuck = [(m, entry) for m in mine if (entry := _unfinished(m)) is not None]
        if len(stuck) > 1:
            return
        for member, entry in stuck:
            if member.roots:
                waiting.setdefault(member.roots, []).append((group, member, entry))
    for roots, items in waiting.items():
        # It began in a group that has one of the awaited ranks as a member.
        first = [item for item in items if set(roots) & item[0].present.keys()]
        if len(items) < 2 or not first:
            continue
        origin, _, start = min(first, key=lambda item: (item[2].created, item[1].rank))
        for group, member, entry in items:
            if group is not origin:
                fact = _entry(origin, member.rank, member, entry, joined)
                yield msgspec.structs.replace(
                    fact,
                    source=Source(member.path, offset=entry.offset, ident=f"{fact.source.ident}&behind={origin.label}"),
                    seq=start.seq,
                    op=_operation(start),
                    signature=None,
                    is_p2p=start.is_p2p,
                    behind=f"{_operation(entry)} seq {entry.seq} of group {group.desc or group.label}",
                )


def _unfinished(member: GroupMember) -> DumpEntry | None:
    """Return the operation that this member is in."""
    if member.pending and (member.first_waiting is None or member.waits_in is not None):
        return member.pending[0]
    return member.entry if member.first_waiting is not None else None


def _entry(group: GroupState, rank: int, member: GroupMember, entry: DumpEntry, joined: JoinedDumps) -> CollectiveEntry:
    # The caller knows that it has not ended. After an abort its record may say otherwise.
    return CollectiveEntry(
        time=entry.started or entry.created or joined.end,
        source=Source(member.path, offset=entry.offset, ident=f"{member.path}#entry={entry.record_id}"),
        rank=rank,
        pg=group.label,
        pg_desc=group.desc or None,
        seq=entry.seq,
        op=_operation(entry),
        state="started" if entry.started or entry.state == "started" else "scheduled",
        created=entry.created or None,
        started=entry.started,
        signature=None if entry.is_p2p else entry.signature,
        is_p2p=entry.is_p2p,
        peer=member.roots[0] if entry.is_p2p and len(member.roots) == 1 else None,
        frame=user_frame(entry.frames),
        final=True,
        timeout_ms=entry.timeout_ms,
    )


def _disagreeing(
    group: GroupState,
    joined: JoinedDumps,
    reread: Callable[[str, str, int], DumpEntry | None] | None,
    found: Disagreement | None,
    lines: Lines,
) -> Iterator[CollectiveEntry]:
    if found is None:
        return
    strays = _strays(group, joined, found, lines)
    for side in found.sides:
        for place, rank in enumerate(side.ranks):
            member = group.present[rank]
            entry = member.entry if member.entry is not None and member.entry.seq == found.seq else None
            if entry is None and place == 0 and reread is not None:
                entry = reread(member.path, group.name, found.seq)
            created = side.created[place] or None
            waiting = member.first_waiting is not None and member.first_waiting <= found.seq
            yield CollectiveEntry(
                time=created or joined.end,
                source=Source(member.path, ident=f"{member.path}#group={group.label}&seq={found.seq}"),
                rank=rank,
                pg=group.label,
                pg_desc=group.desc or None,
                seq=found.seq,
                op=_operation(entry) or side.signature.partition("|")[0],
                state="scheduled" if waiting else "completed",
                created=created,
                signature=side.signature,
                frame=user_frame(entry.frames) if entry else None,
                final=True,
                timeout_ms=entry.timeout_ms if entry else None,
                misfit=rank in strays,
            )


def _lines(joined: JoinedDumps) -> Lines:
    """Return the ranks by line of user code and by group, as people call it, where calls of two sides are even."""
    found: Lines = {}
    if not any(map(_is_even, joined.groups)):
        return found
    for group in joined.groups:
        for member in group.present.values():
            for entry in (member.entry, member.last):
                frame = user_frame(entry.frames) if entry is not None else None
                if frame is not None:
                    found.setdefault(frame, {}).setdefault(group.desc, set()).add(member.rank)
    return found


def _is_even(group: GroupState) -> bool:
    """Whether no side of a disagreement is smaller than another."""
    return group.disagreement is not None and len({len(side.ranks) for side in group.disagreement.sides}) == 1


def _strays(group: GroupState, joined: JoinedDumps, found: Disagreement, lines: Lines) -> set[int]:
    """Return the ranks that called here, of two even sides, what all other ranks call in another kind of group."""
    if not group.desc or found is not group.disagreement or not _is_even(group):
        return set()
    strays: set[int] = set()
    for side in found.sides:
        own = set(side.ranks)
        entries = [group.present[rank].entry for rank in side.ranks]
        frames = {user_frame(entry.frames) for entry in entries if entry is not None and entry.seq == found.seq}
        used = lines.get(frames.pop() or "", {}) if len(frames) == 1 else {}
        others = {rank for desc, ranks in used.items() if desc and desc != group.desc for rank in ranks}
        if used.get(group.desc, own) <= own and others >= set(joined.ranks) - own:
            strays |= own
    return strays if len(strays) < sum(len(side.ranks) for side in found.sides) else set()


def _arrivals(group: GroupState) -> Iterator[Arrival]:
    for late in group.late:
        path = group.present[late.rank].path
        yield Arrival(
            time=late.time,
            source=Source(path, ident=f"{path}#arrival&group={group.label}&seq={late.seq}"),
            rank=late.rank,
            pg=group.label,
            pg_desc=group.desc or None,
            seq=late.seq,
            lateness=late.lateness,
            ranks=late.ranks,
        )


def _moment(entry: DumpEntry | None, joined: JoinedDumps) -> int:
    return entry.created if entry is not None and entry.created else joined.end


def _operation(entry: DumpEntry | None) -> str | None:
    if entry is None:
        return None
    from tracecore.signals.flight_recorder.matching import operation_of

    return operation_of(entry.name) or None
