"""A dump read before, by which the next rank's is read.

All ranks run one program, so most of a dump is, byte for byte, what another rank wrote: only times and the names of
threads are its own. A precedent knows where those are. What else is equal in two dumps means the same in both; an
entry that is not (the last ones, where ranks came to different places) is read by the interpreter. A dump that is like
no precedent is read without one.

Nothing is trusted here either: an entry is equal or it is interpreted, entries must join without a gap, and a string
may differ only where nothing of consequence refers to it. Groups are named anew for every dump.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec

from tracecore.signals.arrays import np
from tracecore.signals.flight_recorder.cursors import offsets_of
from tracecore.signals.flight_recorder.dump import (
    Columns,
    Dump,
    Entry,
    Group,
    GroupTable,
    assemble,
    columns_of,
    integer,
    is_document,
    make_entry,
    notable_positions,
)
from tracecore.signals.flight_recorder.pickled import DumpError, Interpreter, Limits

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    Ints = NDArray[np.int64]
    Octet = NDArray[np.uint8]

#: Entries of a dump that may differ from the precedent's; with more of them it is cheaper to read it without one.
_OWN: Final = 40
#: Larger dumps are not kept.
_LARGEST: Final = 4 << 20

TIMES: Final = ("time_created_ns", "time_discovered_started_ns", "time_discovered_completed_ns")
THREADS: Final = ("thread_name", "thread_id")


class Precedent(msgspec.Struct, kw_only=True):
    """A dump, and where another may differ from it.

    Args:
        octets: the file.
        fixed: 255 where another dump must have the same byte, 0 where it has its own.
        opening: what every entry begins with.
        starts: where entries begin, in ring order; `end` is where the last one ends.
        times: for each of `TIMES`, where the eight bytes of the value are in each entry; -1 where there are none.
        records: the number of each entry.
        memo: what references mean at the end of the entries.
        free: references that only threads and groups use, or none of the entries.
        groups: (name, description) by reference, and the rank's own number, of the groups that columns number.
        root: the document; its entries are not looked at.
        positions: of the notable entries of `dump`.
    """

    octets: Octet
    fixed: Octet
    opening: bytes
    starts: Ints
    end: int
    times: tuple[Ints, ...]
    records: Ints
    memo: dict[int, Any]
    free: frozenset[int]
    groups: tuple[tuple[int, int, str], ...]
    root: Mapping[str, Any]
    dump: Dump
    positions: list[int]

    def read(self, path: str, rank: int, data: bytes, limits: Limits) -> Dump | None:
        """The dump of another rank; None where it is too different."""
        end = len(data) - (len(self.octets) - self.end)
        if end <= 0 or len(data) > 2 * len(self.octets) or data[end:] != self.octets[self.end :].tobytes():
            return None
        octets = np.frombuffer(data, dtype=np.uint8)
        try:
            return _Resemblance(self, path, rank, data, limits, octets, end).dump()
        except (DumpError, _Different):
            return None


class _Different(Exception):
    """The dump is not like its precedent."""


class _Resemblance:
    """One dump beside its precedent."""

    def __init__(
        self, precedent: Precedent, path: str, rank: int, data: bytes, limits: Limits, octets: Octet, end: int
    ) -> None:
        self.precedent = precedent
        self.path, self.rank = path, rank
        self.octets = octets
        self.machine = Interpreter(data, limits)
        if len(octets) == len(precedent.octets):
            self.starts = precedent.starts.copy()
        else:
            # The first entry spells its keys out and so begins otherwise than the rest.
            self.starts = np.append(np.int64(0), offsets_of(octets[:end], precedent.opening))
        self.ends = np.append(self.starts[1:], end)
        self.shared = min(len(self.starts), len(precedent.starts))
        if self.shared < 2:
            raise _Different
        self.shift = self.starts[: self.shared] - precedent.starts[: self.shared]

    def dump(self) -> Dump:
        own = self._own_entries()
        root, read = self._beginning()
        for row in own:
            read[row] = self._interpreted(row)
        if read:
            self._check_references()
        times = [self._time(places, read) for places in self.precedent.times]
        table = GroupTable()
        memo = self.machine.memo
        for name, desc, local in self.precedent.groups:
            table.index(_string(memo, name), local, _string(memo, desc))
        if len(table.groups) != len(self.precedent.groups):
            raise _Different
        columns, signatures = self._columns(read, times[0], table)
        notable = self._notable(columns, read, times)
        first = self._first_record(read) if read else int(self.precedent.records[0])
        return assemble(self.path, self.rank, root, table, columns, signatures, notable, first)

    def _own_entries(self) -> list[int]:
        """The entries after the first that differ, oldest first."""
        known_ends = np.append(self.precedent.starts[1:], self.precedent.end)
        # Where an entry is longer or shorter than its counterpart, what follows has moved.
        moved = np.flatnonzero(self.ends[1 : self.shared] - known_ends[1 : self.shared] != self.shift[1:]) + 1
        own = {*moved.tolist(), *range(self.shared, len(self.starts))} if len(moved) <= _OWN else set()
        if len(moved) > _OWN or len(own) > _OWN:
            raise _Different
        begin = 1
        for stop in (*moved.tolist(), self.shared):
            if begin < stop:
                piece = int(self.starts[begin]), int(self.ends[stop - 1])
                own.update(np.searchsorted(self.starts, self._differing(*piece, int(self.shift[begin])), "right") - 1)
            begin = stop + 1
        if len(own) > _OWN:
            raise _Different
        return sorted(map(int, own))

    def _differing(self, low: int, high: int, shift: int) -> Ints:
        """Where bytes between these offsets are not what the precedent has; a few more of them do no harm."""
        other = np.zeros(-(-(high - low) // 8) * 8, dtype=np.uint8)
        piece = other[: high - low]
        np.bitwise_xor(self.octets[low:high], self.precedent.octets[low - shift : high - shift], out=piece)
        np.bitwise_and(piece, self.precedent.fixed[low - shift : high - shift], out=piece)
        words = np.flatnonzero(other.view(np.uint64))
        if len(words) > 64 * _OWN:
            raise _Different
        first = low + 8 * words
        return np.concatenate((first, np.minimum(first + 7, high - 1)))

    def _beginning(self) -> tuple[Mapping[str, Any], dict[int, dict[str, Any]]]:
        """The document, and the first entry where it differs.

        The interpreter's memo then has what precedes the other entries, and what those of them define that are equal.
        """
        precedent, machine = self.precedent, self.machine
        if not self.shift[1] and not len(self._differing(0, int(self.starts[1]), 0)):
            self.starts[0] = precedent.starts[0]
            self.shift[0] = 0
            machine.memo = dict(precedent.memo)
            return precedent.root, {}
        machine.run(1)
        if len(machine.outer) != 2 or machine.pos != int(self.starts[1]):
            raise _Different
        base, items = machine.outer
        if len(base) != 1 or type(base[0]) is not dict or not all(type(key) is str for key in items[::2]):
            raise _Different
        root = base[0] | dict(zip(items[::2], items[1::2], strict=False))
        if not is_document(root) or len(machine.stack) != 1 or type(machine.stack[0]) is not dict:
            raise _Different
        self.starts[0] = machine.bounds[0][0]
        machine.memo = precedent.memo | machine.memo
        return root, {0: machine.stack[0]}

    def _interpreted(self, row: int) -> dict[str, Any]:
        raw, end = self.machine.value(int(self.starts[row]))
        if type(raw) is not dict or end != int(self.ends[row]):
            raise _Different
        return raw

    def _check_references(self) -> None:
        """What equal entries refer to must be equal, but for threads and groups."""
        known = self.precedent.memo
        for index, value in self.machine.memo.items():
            if index not in self.precedent.free and index in known:
                other = known[index]
                if value is not other and value != other:
                    raise _Different

    def _time(self, places: Ints, read: Mapping[int, Any]) -> Ints:
        """One time of each entry; 0 where it is the precedent's or there is none, and for entries of its own."""
        places = places[: self.shared]
        if read:
            places = places.copy()
            places[[row for row in read if row < self.shared]] = -1
        rows = np.flatnonzero(places >= 0)
        values: Ints = np.zeros(len(self.starts), dtype=np.int64)
        if len(rows):
            words: Ints = np.ndarray(shape=(len(self.octets) - 7,), dtype="<i8", buffer=self.octets.data, strides=(1,))
            found = words[places[rows] + self.shift[rows]]
            if int(found.min()) <= 0:
                raise _Different  # equal bytes around it, but no time: that it has ended is not certain
            values[rows] = found
        return values

    def _columns(
        self, read: dict[int, dict[str, Any]], created: Ints, table: GroupTable
    ) -> tuple[Columns, dict[int, str]]:
        before = self.precedent.dump.columns
        signatures = self.precedent.dump.signatures
        equal = np.flatnonzero(created[: self.shared] == 0)
        created[equal] = before.created[equal]
        if not read:
            return msgspec.structs.replace(before, created=created), signatures
        extra, texts, _ = columns_of(list(read.values()), table)
        rows = np.fromiter(read, dtype=np.int64, count=len(read))
        created[rows] = extra.created
        if len(self.starts) == len(self.precedent.starts) and all(
            np.array_equal(getattr(before, name)[rows], getattr(extra, name)) for name in _KEPT
        ):
            # Shared with the precedent's dump, which makes thousands of dumps small.
            return msgspec.structs.replace(before, created=created), signatures
        patched = {}
        for name in _KEPT:
            column = np.resize(getattr(before, name), len(self.starts))
            column[rows] = getattr(extra, name)
            patched[name] = column
        signatures = signatures | texts
        return Columns(created=created, **patched), {key: signatures[key] for key in np.unique(patched["sig"]).tolist()}

    def _notable(self, columns: Columns, read: dict[int, dict[str, Any]], times: list[Ints]) -> list[Entry]:
        precedent = self.precedent
        if columns.seq is precedent.dump.columns.seq:
            positions = precedent.positions
            entries = dict(zip(positions, precedent.dump.notable, strict=True))
        else:
            positions, entries = notable_positions(columns), {}
        notable = []
        for position in positions:
            offset = int(self.starts[position])
            if position in read or position not in entries:
                raw = read.get(position) or self._interpreted(position)
                notable.append(make_entry(raw, int(columns.group[position]), offset))
            else:
                entry = entries[position]
                created, started, completed = (int(column[position]) for column in times)
                notable.append(
                    msgspec.structs.replace(
                        entry,
                        created=created or entry.created,
                        started=started or entry.started,
                        completed=completed or entry.completed,
                        offset=offset,
                    )
                )
        return notable

    def _first_record(self, read: dict[int, dict[str, Any]]) -> int:
        records = np.resize(self.precedent.records, len(self.starts))
        for row, raw in read.items():
            records[row] = integer(raw.get("record_id")) or 0
        if bool((np.diff(records) < 0).any()):
            raise _Different  # the ring in another order than it was filled
        return int(records[0])


#: Columns that are the same in dumps of one program; times are not.
_KEPT: Final = ("group", "seq", "sig", "flags")


def _string(memo: dict[int, Any], index: int) -> str:
    value = memo.get(index)
    return value if isinstance(value, str) else ""


# -- making one ------------------------------------------------------------------------------------------------------


def precedent_of(
    machine: Interpreter,
    root: Mapping[str, Any],
    dump: Dump,
    groups: Sequence[Group],
    starts: Ints,
    end: int,
    opening: bytes,
    records: Ints,
    times: tuple[Ints, ...],
    raws: Mapping[int, Mapping[str, Any]],
    threads: set[str],
    structural: set[str],
    positions: list[int],
) -> Precedent | None:
    """A precedent of a dump that was read in full; None where it cannot be one.

    Args:
        machine: the interpreter that read it.
        root, dump: what it gave.
        groups: the groups that the columns number.
        starts, end, opening, records, times, positions: as in `Precedent`; times of `raws` are still to be found.
        raws: entries that were interpreted, by their place in the ring.
        threads: names and numbers of threads in the other entries.
        structural: strings of those entries that mean something.
    """
    data = machine.data
    if len(data) > _LARGEST:
        return None
    index_of = {value: index for index, value in reversed(machine.memo.items()) if type(value) is str}
    named = []
    for group in groups:
        if group.name not in index_of or group.desc not in index_of:
            return None
        named.append((index_of[group.name], index_of[group.desc], group.local_id))
    # Frames are in the memo; so is the whole document, at its very end.
    frames = [value for value in machine.memo.values() if type(value) is not str and value is not root]
    meaning = structural | set(_strings(frames))
    for row, raw in raws.items():
        threads |= {value for key in THREADS if isinstance(value := raw.get(key), str)}
        meaning |= set(_strings({key: value for key, value in raw.items() if key not in (*THREADS, "process_group")}))
        stop = int(starts[row + 1]) if row + 1 < len(starts) else end
        for key, places in zip(TIMES, times, strict=True):
            places[row] = _time_place(data, int(starts[row]), stop, index_of.get(key), raw.get(key))
    group_strings = {text for group in groups for text in (group.name, group.desc)}
    before = set(_strings({key: value for key, value in root.items() if key != "entries"}))
    fixed = np.full(len(data), 255, dtype=np.uint8)
    for places in times:
        there = places[places >= 0]
        fixed[(there[:, None] + np.arange(8)).ravel()] = 0
    for text in threads - meaning - group_strings:
        _release(fixed, data, text, index_of.get(text))
    return Precedent(
        octets=np.frombuffer(data, dtype=np.uint8),
        fixed=fixed,
        opening=opening,
        starts=starts,
        end=end,
        times=times,
        records=records,
        memo={index: value for index, value in machine.memo.items() if value is not root},
        free=frozenset(index_of[text] for text in (threads | group_strings | before) - meaning if text in index_of),
        groups=tuple(named),
        root=root,
        dump=dump,
        positions=positions,
    )


def _strings(value: Any) -> Iterator[str]:
    """All strings in a document."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from _strings(key)
            yield from _strings(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _strings(item)


def _time_place(data: bytes, start: int, end: int, key: int | None, value: Any) -> int:
    """Where the eight bytes of this time are in an entry; -1 where that is not certain."""
    if key is None or type(value) is not int or not 1 << 55 <= value < 1 << 63:
        return -1
    token = bytes((key,)) if key < 256 else key.to_bytes(4, "little")
    written = token + b"\x8a\x08" + value.to_bytes(8, "little")
    first = data.find(written, start, end)
    if first < 0 or data[first - 1 : first] not in (b"h", b"q", b"j", b"r") or data.find(written, first + 1, end) >= 0:
        return -1
    return first + len(token) + 2


def _release(fixed: Octet, data: bytes, text: str, index: int | None) -> None:
    """Let a string that nothing depends on be any string of its length."""
    if index is None:
        return
    content = text.encode("utf-8", "replace")
    put = b"q" + bytes((index,)) if index < 256 else b"r" + index.to_bytes(4, "little")
    written = b"X" + len(content).to_bytes(4, "little") + content + put
    at = data.find(written)
    if at >= 0 and data.find(written, at + 1) < 0:
        fixed[at + 5 : at + 5 + len(content)] = 0
