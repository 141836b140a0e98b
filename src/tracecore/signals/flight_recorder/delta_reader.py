"""Read a dump by what differs from another rank's.

All ranks run one program, so most of a dump is, byte for byte, what another rank wrote: only times and names of threads
are its own. A `Reference` is a dump that the interpreter has read in full, with the
places of those. An entry that differs elsewhere (the last ones, where ranks came to different places) is interpreted.
A dump that is like no reference is interpreted as a whole, and becomes one.

Nothing is trusted: an entry is equal or it is interpreted, entries must join without a gap, and a string may differ
only where nothing of consequence refers to it. Groups are named anew for every dump.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec

from tracecore.signals.arrays import np
from tracecore.signals.flight_recorder.dump import (
    DumpEntry,
    EntryColumns,
    GroupTable,
    RankDump,
    assemble,
    batches_of,
    columns_of,
    dump_of,
    is_document,
    make_entry,
    notable_positions,
)
from tracecore.signals.flight_recorder.pickled import DumpError, DumpLimits, Interpreter
from tracecore.signals.flight_recorder.raw_entries import integer

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    Ints = NDArray[np.int64]
    Octet = NDArray[np.uint8]

#: Below this many bytes the interpreter is quicker than numpy.
WORTHWHILE: Final = 24_000
#: Larger dumps are not kept as references.
_LARGEST: Final = 4 << 20
#: Entries of a dump that may differ from the reference's. With more of them another reference may be better.
_FEW: Final = 40
#: References that are kept: a job has a few kinds of ranks, and one for each stage of a pipeline.
_KEPT: Final = 64
#: References that are made before one of them must have been of use.
_TRIED: Final = 128

_TIMES: Final = ("time_created_ns", "time_discovered_started_ns", "time_discovered_completed_ns")
_THREADS: Final = ("thread_name", "thread_id")


class Reference(msgspec.Struct, kw_only=True):
    """A dump, and where another may differ from it.

    Args:
        octets: the file.
        fixed: 255 where another dump must have the same byte, 0 where it has its own.
        opening: what every entry begins with.
        starts: where entries begin, in ring order; `end` is where the last one ends.
        times: for each of `_TIMES`, where the eight bytes of the value are in each entry; -1 where there are none.
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
    dump: RankDump
    positions: list[int]

    def read(self, path: str, rank: int, data: bytes, limits: DumpLimits, most: int = _FEW) -> RankDump | None:
        """The dump of another rank; None where more than `most` of its entries differ."""
        end = len(data) - (len(self.octets) - self.end)
        if end <= 0 or len(data) > 2 * len(self.octets) or data[end:] != self.octets[self.end :].tobytes():
            return None
        octets = np.frombuffer(data, dtype=np.uint8)
        try:
            return _Delta(self, path, rank, data, limits, octets, end, most).dump()
        except (DumpError, _Different):
            return None


#: The latest first.
_REFERENCES: Final[list[Reference]] = []
_MADE: Final = {"made": 0, "used": 0}


def read(path: str, rank: int, data: bytes, limits: DumpLimits) -> RankDump | None:
    """The dump of a pickle; None where it is no Flight Recorder document."""
    tries = [(place, reference, _FEW) for place, reference in enumerate(_REFERENCES)]
    # Half of its entries may be its own (sizes, say): that is still cheaper than interpreting all of them.
    tries += [(place, reference, len(reference.starts) // 2) for place, reference, _ in tries[:1]]
    for place, reference, most in tries:
        dump = reference.read(path, rank, data, limits, most)
        if dump is not None:
            _REFERENCES.insert(0, _REFERENCES.pop(place))
            _MADE["used"] += 1
            return dump
    machine = Interpreter(data, limits)
    root = machine.run()
    if not is_document(root):
        return None
    dump = dump_of(path, rank, root)
    if _MADE["used"] or _MADE["made"] < _TRIED:
        reference_or_none = reference_of(machine, root, dump)
        if reference_or_none is not None:
            _MADE["made"] += 1
            _REFERENCES.insert(0, reference_or_none)
            del _REFERENCES[_KEPT:]
    return dump


class _Different(Exception):
    """The dump is not like its reference."""


class _Delta:
    """One dump beside its reference."""

    def __init__(
        self,
        reference: Reference,
        path: str,
        rank: int,
        data: bytes,
        limits: DumpLimits,
        octets: Octet,
        end: int,
        most: int,
    ) -> None:
        self.reference, self.most = reference, most
        self.path, self.rank = path, rank
        self.octets = octets
        self.machine = Interpreter(data, limits)
        if len(octets) == len(reference.octets):
            self.starts = reference.starts.copy()
        else:
            # The first entry spells its keys out and so begins otherwise than the rest.
            self.starts = np.append(np.int64(0), _offsets_of(octets[:end], reference.opening))
        self.ends = np.append(self.starts[1:], end)
        self.shared = min(len(self.starts), len(reference.starts))
        if self.shared < 2:
            raise _Different
        self.shift = self.starts[: self.shared] - reference.starts[: self.shared]

    def dump(self) -> RankDump:
        own = self._own_entries()
        root, read = self._beginning()
        for row in own:
            read[row] = self._interpreted(row)
        if read:
            self._check_memo()
        times = [self._time(places, read) for places in self.reference.times]
        table = GroupTable()
        memo = self.machine.memo
        for name, desc, local in self.reference.groups:
            table.index(_string(memo, name), local, _string(memo, desc))
        if len(table.groups) != len(self.reference.groups):
            raise _Different
        columns, signatures = self._columns(read, times[0], table)
        notable = self._notable(columns, read, times)
        first = self._first_record(read) if read else int(self.reference.records[0])
        return assemble(self.path, self.rank, root, table, columns, signatures, notable, first)

    def _own_entries(self) -> list[int]:
        """The entries after the first that differ, oldest first."""
        known_ends = np.append(self.reference.starts[1:], self.reference.end)
        # Where an entry is longer or shorter than its counterpart, what follows has moved.
        moved = np.flatnonzero(self.ends[1 : self.shared] - known_ends[1 : self.shared] != self.shift[1:]) + 1
        if len(moved) > self.most:
            raise _Different
        own = {*moved.tolist(), *range(self.shared, len(self.starts))}
        if len(own) > self.most:
            raise _Different
        begin = 1
        for stop in (*moved.tolist(), self.shared):
            if begin < stop:
                piece = int(self.starts[begin]), int(self.ends[stop - 1])
                own.update(np.searchsorted(self.starts, self._differing(*piece, int(self.shift[begin])), "right") - 1)
            begin = stop + 1
        if len(own) > self.most:
            raise _Different
        return sorted(map(int, own))

    def _differing(self, low: int, high: int, shift: int) -> Ints:
        """Where bytes between these offsets are not what the reference has; a few more of them do no harm."""
        other = np.zeros(-(-(high - low) // 8) * 8, dtype=np.uint8)
        piece = other[: high - low]
        np.bitwise_xor(self.octets[low:high], self.reference.octets[low - shift : high - shift], out=piece)
        np.bitwise_and(piece, self.reference.fixed[low - shift : high - shift], out=piece)
        words = np.flatnonzero(other.view(np.uint64))
        if len(words) > 64 * self.most:
            raise _Different
        first = low + 8 * words
        return np.concatenate((first, np.minimum(first + 7, high - 1)))

    def _beginning(self) -> tuple[Mapping[str, Any], dict[int, dict[str, Any]]]:
        """The document, and the first entry where it differs.

        The interpreter's memo then has what precedes the other entries, and what those of them define that are equal.
        """
        reference, machine = self.reference, self.machine
        if not self.shift[1] and not len(self._differing(0, int(self.starts[1]), 0)):
            self.starts[0] = reference.starts[0]
            self.shift[0] = 0
            machine.memo = dict(reference.memo)
            return reference.root, {}
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
        machine.memo = reference.memo | machine.memo
        return root, {0: machine.stack[0]}

    def _interpreted(self, row: int) -> dict[str, Any]:
        raw, end = self.machine.value(int(self.starts[row]))
        if type(raw) is not dict or end != int(self.ends[row]):
            raise _Different
        return raw

    def _check_memo(self) -> None:
        """Raise where what equal entries refer to is not what it is in the reference, but for threads and groups."""
        known = self.reference.memo
        for index, value in self.machine.memo.items():
            if index in known and index not in self.reference.free and value != known[index]:
                raise _Different

    def _time(self, places: Ints, read: Mapping[int, Any]) -> Ints:
        """One time of each entry; 0 where it is the reference's or there is none, and for entries of its own."""
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
    ) -> tuple[EntryColumns, dict[int, str]]:
        before = self.reference.dump.columns
        signatures = self.reference.dump.signatures
        equal = np.flatnonzero(created[: self.shared] == 0)
        created[equal] = before.created[equal]
        if not read:
            return msgspec.structs.replace(before, created=created), signatures
        extra, texts, _ = columns_of(list(read.values()), table)
        rows = np.fromiter(read, dtype=np.int64, count=len(read))
        created[rows] = extra.created
        if len(self.starts) == len(self.reference.starts) and all(
            np.array_equal(getattr(before, name)[rows], getattr(extra, name)) for name in _COLUMNS
        ):
            # Shared with the reference's dump, which makes thousands of dumps small.
            return msgspec.structs.replace(before, created=created), signatures
        patched = {}
        for name in _COLUMNS:
            column = np.resize(getattr(before, name), len(self.starts))
            column[rows] = getattr(extra, name)
            patched[name] = column
        signatures = signatures | texts
        return EntryColumns(created=created, **patched), {
            key: signatures[key] for key in np.unique(patched["sig"]).tolist()
        }

    def _notable(self, columns: EntryColumns, read: dict[int, dict[str, Any]], times: list[Ints]) -> list[DumpEntry]:
        reference = self.reference
        if columns.seq is reference.dump.columns.seq:
            positions = reference.positions
            entries = dict(zip(positions, reference.dump.notable, strict=True))
        else:
            positions, entries = notable_positions(columns), {}
        notable = []
        ended = batches_of(columns)[1]
        for position in positions:
            offset = int(self.starts[position])
            if position in read or position not in entries:
                raw = read.get(position) or self._interpreted(position)
                notable.append(make_entry(raw, int(columns.group[position]), offset, ended=bool(ended[position])))
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
        records = np.resize(self.reference.records, len(self.starts))
        for row, raw in read.items():
            records[row] = integer(raw.get("record_id")) or 0
        if bool((np.diff(records) < 0).any()):
            raise _Different  # the ring in another order than it was filled
        return int(records[0])


#: Columns that are the same in dumps of one program; times are not.
_COLUMNS: Final = ("group", "seq", "sig", "flags")


def _offsets_of(octets: Octet, token: bytes) -> Ints:
    """All offsets of a token of two bytes or more."""
    found = np.flatnonzero((octets[:-1] == token[0]) & (octets[1:] == token[1]))
    for index in range(2, len(token)):
        found = found[found + index < len(octets)]
        found = found[octets[found + index] == token[index]]
    return found


def _string(memo: dict[int, Any], index: int) -> str:
    value = memo.get(index)
    return value if isinstance(value, str) else ""


# -- making one ------------------------------------------------------------------------------------------------------


def reference_of(machine: Interpreter, root: Mapping[str, Any], dump: RankDump) -> Reference | None:
    """A dump that was read in full, as a reference for others; None where it cannot be one.

    Args:
        machine: the interpreter that read it.
        root, dump: what it gave.
    """
    data, raws = machine.data, root.get("entries")
    if len(data) > _LARGEST or not isinstance(raws, list) or len(raws) != len(machine.bounds) or len(raws) < 3:
        return None
    records = np.array([integer(raw.get("record_id")) or 0 for raw in raws], dtype=np.int64)
    bounds = np.array(machine.bounds, dtype=np.int64)
    if bool((np.diff(records) < 0).any()) or bool((bounds[1:, 0] != bounds[:-1, 1]).any()):
        return None
    index_of = {value: index for index, value in reversed(machine.memo.items()) if type(value) is str}
    groups = dump.groups[: int(dump.columns.group.max()) + 1]
    if not all(group.name in index_of and group.desc in index_of for group in groups):
        return None
    seen: set[int] = set()
    threads: set[str] = set()
    # Frames are in the memo; so is the whole document, at its very end.
    meaning = set(
        _strings([value for value in machine.memo.values() if type(value) is dict and value is not root], seen)
    )
    for raw in raws:
        for key, value in raw.items():
            if isinstance(value, str):
                (threads if key in _THREADS else meaning).add(value)
            elif isinstance(value, list | dict) or (isinstance(value, tuple) and key != "process_group"):
                meaning.update(_strings(value, seen))
    meaning |= set().union(*raws)
    group_strings = {text for group in groups for text in (group.name, group.desc)}
    before = set(_strings({key: value for key, value in root.items() if key != "entries"}))
    fixed = np.full(len(data), 255, dtype=np.uint8)
    times = tuple(_time_places(data, bounds, index_of.get(key), [raw.get(key) for raw in raws]) for key in _TIMES)
    for places in times:
        there = places[places >= 0]
        fixed[(there[:, None] + np.arange(8)).ravel()] = 0
    for text in threads - meaning - group_strings:
        _release(fixed, data, text, index_of.get(text))
    opening = data[int(bounds[1, 0]) :][: 4 if data[int(bounds[1, 0]) + 2 :][:1] == b"h" else 7]
    return Reference(
        octets=np.frombuffer(data, dtype=np.uint8),
        fixed=fixed,
        opening=opening,
        starts=bounds[:, 0].copy(),
        end=int(bounds[-1, 1]),
        times=times,
        records=records,
        memo={index: value for index, value in machine.memo.items() if value is not root},
        free=frozenset(index_of[text] for text in (threads | group_strings | before) - meaning if text in index_of),
        groups=tuple((index_of[group.name], index_of[group.desc], group.local_id) for group in groups),
        root={key: value for key, value in root.items() if key != "entries"} | {"entries": []},
        dump=dump,
        positions=notable_positions(dump.columns),
    )


def _strings(value: Any, seen: set[int] | None = None) -> Iterator[str]:
    """All strings in a document; what was `seen` before is left out."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list | tuple):
        if seen is not None:
            if id(value) in seen:
                return
            seen.add(id(value))
        for item in (*value, *value.values()) if isinstance(value, dict) else value:
            if not isinstance(item, int):
                yield from _strings(item, seen)


def _time_places(data: bytes, bounds: Ints, key: int | None, values: Sequence[Any]) -> Ints:
    """Where the eight bytes of this time are in each entry; -1 where that is not certain."""
    places: Ints = np.full(len(values), -1, dtype=np.int64)
    if key is None:
        return places
    token = bytes((key,)) if key < 256 else key.to_bytes(4, "little")
    for row, (value, (start, end)) in enumerate(zip(values, bounds.tolist(), strict=True)):
        if type(value) is not int or not 1 << 55 <= value < 1 << 63:
            continue
        written = token + b"\x8a\x08" + value.to_bytes(8, "little")
        first = data.find(written, start, end)
        known = first >= 0 and data[first - 1 : first] in (b"h", b"q", b"j", b"r")
        if known and data.find(written, first + 1, end) < 0:
            places[row] = first + len(token) + 2
    return places


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
