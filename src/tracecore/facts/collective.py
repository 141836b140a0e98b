"""Facts of Flight Recorder dumps: collectives that ranks entered, and how far each rank came in each group.

A dump holds thousands of entries for each rank. `facts_of` takes the reduction of all dumps
(`signals.flight_recorder.join`) and makes facts of what matters only: who waits, in what, who is behind, who called
something else, who came last. `collective_entry` reads the same from a stamped record (`nccl.fr.*`), one entry each.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Final

import msgspec

from tracecore.facts.coerce import natural
from tracecore.facts.fact import Fact
from tracecore.facts.wording import sentence
from tracecore.signals.flight_recorder.exchange import Transfer, misfit
from tracecore.signals.flight_recorder.matching import elements
from tracecore.signals.record import LogSignal, Source, attribute

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from tracecore.signals.flight_recorder.dump import Entry, Frame
    from tracecore.signals.flight_recorder.exchange import Misfit
    from tracecore.signals.flight_recorder.state import Disagreement, GroupState, Joined, Member

#: Ranks named in a sentence before it only counts the rest.
_NAMED: Final = 8
#: Frames of the framework and the interpreter are not user code.
_LIBRARY: Final = ("/site-packages/", "/dist-packages/", "/lib/python3", "/torch/", "<string>", "<frozen ", "/ray/")


class CollectiveEntry(Fact, frozen=True, kw_only=True):
    """One collective as one rank recorded it.

    Args:
        pg: process group, by its stable name.
        pg_desc: what the program calls it.
        seq: sequence number in the group.
        op: operation (`all_reduce`), without its backend.
        state: scheduled, started or completed.
        created, started, completed: when, nanoseconds; None where it did not happen or is not known.
        signature: what all ranks of the group must agree on (operation, elements, types); None where not recorded.
        is_p2p: a send or receive.
        peer: the other rank of it.
        frame: the innermost line of user code.
        final: read from a dump, which is what a rank leaves when it stops: nothing came after.
        timeout_ms: how long it may take.
        behind: the rank is in this other operation, which waits for the one that `pg` and `seq` name.
        transfers: of an all-to-all that does not add up, what this rank sends or expects differently.
        misfit: its part in that is wrong, as far as that can be told.
        sent, expected: elements that it sends and expects there.
    """

    kind: ClassVar[str] = "collective"
    layer: ClassVar[str] = "flight_recorder"

    pg: str
    seq: int
    state: str
    pg_desc: str | None = None
    op: str | None = None
    created: int | None = None
    started: int | None = None
    completed: int | None = None
    signature: str | None = None
    is_p2p: bool = False
    peer: int | None = None
    frame: str | None = None
    final: bool = False
    timeout_ms: int | None = None
    behind: str | None = None
    transfers: tuple[Transfer, ...] = ()
    misfit: bool = False
    sent: int | None = None
    expected: int | None = None

    @property
    def done(self) -> bool:
        return self.state == "completed" or self.completed is not None

    def describe(self) -> str:
        what = f"{self.op or 'collective'} seq {self.seq} of group {self.pg_desc or self.pg} is {self.state}"
        if self.behind:
            what = f"waits in {self.behind}, behind seq {self.seq} of group {self.pg_desc or self.pg}"
        return sentence(self, what) + (f", called from {self.frame}" if self.frame else "")


class GroupProgress(Fact, frozen=True, kw_only=True):
    """Position of one rank in one process group, from its dump.

    Args:
        pg, pg_desc: the group.
        last_enqueued: the last collective it entered, 0 for none; None where its ring no longer tells.
        last_completed: the last that ended.
        oldest: the oldest sequence its ring still holds.
        last_op: what it called last, in any group.
        frame: where in user code that was called.
        waits_pg, waits_desc, waits_seq: the operation it waits in, where it is not the one the group is stuck in.
        roots: the ranks at the end of the chain it waits for.
        why: what is wrong with those ranks: absent (they did not come), different (they called something else), inside
            (they are still in what others have completed), unstarted (their GPU has not begun what others have).
        origin_pg, origin_desc, origin_seq: where those ranks are missed, or in which they are.
        unseen: ranks without a dump for which it may wait, where there are no roots.
        stalled: it is one of those, and still inside a collective of this group.
        open_seq: the first collective of this group that it has entered and that has not ended.
        earlier: an earlier call of this group that differed between ranks, and ended all the same.
        absent: members of the group that left no dump.
        size: members of the group.
    """

    kind: ClassVar[str] = "group_progress"
    layer: ClassVar[str] = "flight_recorder"

    pg: str
    pg_desc: str | None = None
    last_enqueued: int | None = None
    last_completed: int | None = None
    oldest: int | None = None
    last_op: str | None = None
    frame: str | None = None
    waits_pg: str | None = None
    waits_desc: str | None = None
    waits_seq: int | None = None
    roots: tuple[int, ...] = ()
    why: str = "absent"
    origin_pg: str | None = None
    origin_desc: str | None = None
    origin_seq: int | None = None
    unseen: tuple[int, ...] = ()
    stalled: bool = False
    open_seq: int | None = None
    earlier: str | None = None
    absent: tuple[int, ...] = ()
    size: int | None = None

    def describe(self) -> str:
        group = self.pg_desc or self.pg
        what = (
            f"last entered seq {self.last_enqueued} of group {group}"
            if self.last_enqueued
            else f"entered nothing of group {group}"
        )
        if self.waits_pg is not None:
            what += f" and waits in {self.waits_desc or f'group {self.waits_pg}'} seq {self.waits_seq}"
        what = sentence(self, what)
        if self.last_op or self.frame:
            what += f", last called {self.last_op or 'something'}" + (f" from {self.frame}" if self.frame else "")
        return what


class Arrival(Fact, frozen=True, kw_only=True):
    """The last rank to reach a collective of a group whose ranks all came.

    Args:
        pg, seq: the collective.
        lateness: nanoseconds after the middle rank.
        ranks: how many came.
    """

    kind: ClassVar[str] = "arrival"
    layer: ClassVar[str] = "flight_recorder"

    pg: str
    seq: int
    lateness: int
    ranks: int
    pg_desc: str | None = None

    def describe(self) -> str:
        late = f"{self.lateness / 1e6:.1f} ms"
        return sentence(
            self, f"last of {self.ranks} ranks at seq {self.seq} of group {self.pg_desc or self.pg}, {late} late"
        )


TYPES: Final[tuple[type[Fact], ...]] = (CollectiveEntry, GroupProgress, Arrival)


# -- from dumps ------------------------------------------------------------------------------------------------------


def user_frame(frames: Sequence[Frame]) -> str | None:
    """The innermost line of the user's own code; where all is library, the outermost line there is."""
    for frame in frames:
        if frame.filename and not any(part in frame.filename for part in _LIBRARY):
            return str(frame)
    return str(frames[-1]) if frames else None


def facts_of(joined: Joined, reread: Callable[[str, str, int], Entry | None] | None = None) -> list[Fact]:
    """The facts of a set of dumps.

    Args:
        joined: `signals.flight_recorder.join.join` of them.
        reread: gives the full entry of (path, group name, sequence), for the frames of a disagreement.
    """
    facts: list[Fact] = []
    called_so = {group.label: group.desc for group in joined.groups}
    hangs = any(group.open for group in joined.groups)
    for group in joined.groups:
        if group.interesting:
            facts.extend(_progress(group, joined, called_so))
            found = misfit(group, reread)
            facts.extend(_waiting(group, joined, found))
            facts.extend(_exchanging(group, joined, found))
            # What ended everywhere is no reason to wait: beside an open collective it is only mentioned.
            differs = group.disagreement or (group.settled if not hangs else None)
            facts.extend(_disagreeing(group, joined, reread, differs))
        facts.extend(_arrivals(group))
    facts.extend(_scattered(joined))
    return facts


def _progress(group: GroupState, joined: Joined, called_so: dict[str, str]) -> Iterator[GroupProgress]:
    earlier = _settled(group.settled) if group.settled is not None else None
    for rank, member in group.present.items():
        waits = member.waits_in
        last = member.final or member.latest or member.last
        yield GroupProgress(
            time=_moment(last, joined),
            source=Source(member.path or "flight_recorder", ident=f"{member.path}#rank={rank}&group={group.label}"),
            rank=rank,
            pg=group.label,
            pg_desc=group.desc or None,
            last_enqueued=member.last_enqueued,
            last_completed=member.last_completed,
            oldest=member.oldest,
            last_op=_operation(last),
            frame=user_frame(last.frames) if last else None,
            waits_pg=waits[0] if waits else None,
            waits_desc=called_so.get(waits[0]) or None if waits else None,
            waits_seq=waits[1] if waits else None,
            roots=member.roots,
            why=member.why,
            origin_pg=member.origin[0] if member.origin else None,
            origin_desc=called_so.get(member.origin[0]) or None if member.origin else None,
            origin_seq=member.origin[1] if member.origin else None,
            unseen=member.unseen,
            stalled=member.stalled,
            open_seq=member.first_waiting,
            earlier=earlier,
            absent=group.absent,
            size=len(group.members),
        )


def _settled(found: Disagreement) -> str:
    odd = found.sides[1]
    what = called_of(found.sides[0].signature), called_of(odd.signature)
    return f"at seq {found.seq} {named(odd.ranks)} called {what[1]} and {named(found.sides[0].ranks)} {what[0]}"


def _exchanging(group: GroupState, joined: Joined, found: Misfit | None) -> Iterator[CollectiveEntry]:
    """The calls of an all-to-all that does not add up, with what each rank sends and expects."""
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


def _waiting(group: GroupState, joined: Joined, found: Misfit | None) -> Iterator[CollectiveEntry]:
    told = found.entries if found is not None else {}
    for rank, member in group.present.items():
        entry = member.entry if member.first_waiting is not None else None
        if entry is not None and rank in told and told[rank].seq == entry.seq:
            entry = None
        if entry is not None and (group.disagreement is None or group.disagreement.seq != entry.seq):
            yield _entry(group, rank, member, entry, joined)
        if member.pending:
            yield _entry(group, rank, member, member.pending[0], joined)


def _scattered(joined: Joined) -> Iterator[CollectiveEntry]:
    """Ranks that wait for the same ones, each in another group: said to wait behind the one that began it.

    In groups of two nobody waits together, though the whole job may stand.
    """
    waiting: dict[tuple[int, ...], list[tuple[GroupState, Member, Entry]]] = {}
    for group in joined.groups:
        mine = [m for m in group.present.values() if m.waits_in is None or m.pending]
        stuck = [(m, entry) for m in mine if (entry := _unfinished(m)) is not None]
        if len(stuck) > 1:
            return
        for member, entry in stuck:
            if member.roots:
                waiting.setdefault(member.roots, []).append((group, member, entry))
    for roots, items in waiting.items():
        # It began where one of those that all wait for should have come.
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


def _unfinished(member: Member) -> Entry | None:
    """The operation this member is in."""
    if member.pending and (member.first_waiting is None or member.waits_in is not None):
        return member.pending[0]
    return member.entry if member.first_waiting is not None else None


def _entry(group: GroupState, rank: int, member: Member, entry: Entry, joined: Joined) -> CollectiveEntry:
    # The caller knows that it has not ended, whatever its record says after an abort.
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
    joined: Joined,
    reread: Callable[[str, str, int], Entry | None] | None,
    found: Disagreement | None,
) -> Iterator[CollectiveEntry]:
    if found is None:
        return
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
            )


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


def _moment(entry: Entry | None, joined: Joined) -> int:
    return entry.created if entry is not None and entry.created else joined.end


def _operation(entry: Entry | None) -> str | None:
    if entry is None:
        return None
    from tracecore.signals.flight_recorder.matching import operation_of

    return operation_of(entry.name) or None


# -- from stamped records --------------------------------------------------------------------------------------------

_RANKS: Final = ("gen_ai.training.rank", "nccl.rank", "nccl.fr.rank")


class _CollectiveProjector:
    """Gate: a rank, by any of its three names, and the sequence number."""

    gate: ClassVar[tuple[str, ...]] = ("nccl.fr.collective_seq_id",)

    def __call__(self, signal: LogSignal) -> CollectiveEntry | None:
        own = signal["log"].get("attributes", {})
        seq = natural(own.get("nccl.fr.collective_seq_id"))
        if seq is None:
            return None
        rank = next((value for name in _RANKS if (value := natural(attribute(signal, name))) is not None), None)
        if rank is None:
            return None
        created = natural(own.get("nccl.fr.time_created_ns")) or None
        started = natural(own.get("nccl.fr.time_discovered_started_ns")) or None
        completed = natural(own.get("nccl.fr.time_discovered_completed_ns")) or None
        name = _words(own.get("nccl.fr.profiling_name"))
        state = _words(own.get("nccl.fr.state")) or ("completed" if completed else "scheduled")
        log = signal["log"]
        time = log.get("time_unix_nano") or started or created or log.get("observed_time_unix_nano") or 0
        resource = signal["resource"].get("attributes", {})
        namespace, pod = _words(resource.get("k8s.namespace.name")), _words(resource.get("k8s.pod.name"))
        group = own.get("nccl.fr.pg_id")
        pg = _words(group) or str(natural(group) or 0)
        job = attribute(signal, "gen_ai.training.job_id")
        source = signal.get("source") or Source("nccl.fr", ident=f"nccl.fr/{pg}/{seq}/{rank}/{state}")
        return CollectiveEntry(
            time=time,
            source=source,
            node=_words(attribute(signal, "k8s.node.name")) or _words(attribute(signal, "host.name")),
            pod=(f"{namespace}/{pod}" if namespace else pod) if pod else None,
            job=_words(str(job) if type(job) is int else job),
            rank=rank,
            attempt=natural(attribute(signal, "tracecore.attempt")) or 0,
            pg=pg,
            seq=seq,
            op=name.partition(":")[2] or name if name else None,
            state=state,
            created=created,
            started=started,
            completed=completed,
            is_p2p=name is not None and name.partition(":")[2].startswith(("send ", "recv ")),
        )


#: Projects one stamped entry.
collective_entry: Final = _CollectiveProjector()


def _words(value: Any) -> str | None:
    return value[:512] or None if isinstance(value, str) else None


# -- what several patterns ask of entries ----------------------------------------------------------------------------


def sides_of(entries: Iterable[CollectiveEntry]) -> dict[str, list[CollectiveEntry]]:
    """Entries of one (group, sequence) by what was called; the largest side first, then by lowest rank.

    Where some entry has no sizes and types, operations alone are compared.
    """
    known = [entry for entry in entries if not entry.is_p2p and (entry.signature or entry.op)]
    whole = all(entry.signature for entry in known)
    sides: dict[str, list[CollectiveEntry]] = {}
    for entry in known:
        words = entry.signature or entry.op or ""
        sides.setdefault(words if whole else words.partition("|")[0], []).append(entry)
    for side in sides.values():
        side.sort(key=lambda entry: (entry.rank is None, entry.rank))
    return dict(sorted(sides.items(), key=lambda item: (-len(item[1]), item[1][0].rank or 0, item[0])))


def odd_ones(sides: dict[str, list[CollectiveEntry]]) -> list[CollectiveEntry]:
    """The minority; everybody where the two largest sides are even."""
    ordered = list(sides.values())
    if len(ordered) < 2:
        return []
    odd = ordered[1:] if len(ordered[1]) < len(ordered[0]) else ordered
    return sorted((entry for side in odd for entry in side), key=lambda entry: entry.rank or 0)


def called(entry: CollectiveEntry) -> str:
    """`all_reduce of 4096 Float` of an entry."""
    return called_of(entry.signature or entry.op or "")


def called_of(signature: str) -> str:
    """`all_reduce of 4096 Float` from a signature."""
    operation, *rest = signature.split("|")
    amounts = rest[0].strip("()").rstrip(",") if rest else ""
    types = rest[1].strip("()").rstrip(",").replace("'", "") if len(rest) > 1 else ""
    if not amounts:
        return operation
    if not amounts[:1].isdigit():  # an uneven operation has types only
        return f"{operation} of {amounts.strip(chr(39))}"
    return f"{operation} of {amounts}{' ' + types if types else ''}"


def named(ranks: Sequence[int], *, capital: bool = False) -> str:
    """`rank 3`, `ranks 0, 1 and 3`, `1023 ranks (0, 1, 2, …)`."""
    if len(ranks) == 1:
        text = f"rank {ranks[0]}"
    elif len(ranks) > _NAMED:
        text = f"{len(ranks)} ranks ({', '.join(map(str, ranks[:3]))}, …)"
    else:
        text = f"ranks {', '.join(map(str, ranks[:-1]))} and {ranks[-1]}" if ranks else "no rank"
    return text[0].upper() + text[1:] if capital else text
