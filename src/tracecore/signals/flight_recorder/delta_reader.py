"""Read a dump by its differences from the dump of another rank.

All ranks run one program, so most bytes of their dumps are equal; times and names of threads differ. A `Reference` is a
dump that the interpreter has read in full, with the offsets of these values. Entries that differ elsewhere, such as the
last ones of ranks that stopped at different points, are interpreted. A dump that is like no reference is interpreted
as a whole and becomes a reference.

Nothing is trusted. Each entry is either equal or interpreted, entries must follow each other without a gap, and a
string may differ only if nothing that matters refers to it. The names of groups are read from every dump.
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
    Octets = NDArray[np.uint8]

#: Below this many bytes the interpreter is faster than numpy.
WORTHWHILE: Final = 24_000
#: Larger dumps are not kept as references.
_MAX_BYTES: Final = 4 << 20
#: If more entries than this differ from the reference, try another reference first.
_MAX_DIFFER: Final = 40
#: References that are kept. A job has a few kinds of ranks, and one for each stage of a pipeline.
_MAX_REFERENCES: Final = 64
#: If none of this many references was used, no more are made.
_MAX_UNUSED: Final = 128

_TIMES: Final = ("time_created_ns", "time_discovered_started_ns", "time_discovered_completed_ns")
_THREADS: Final = ("thread_name", "thread_id")


class Reference(msgspec.Struct, kw_only=True):
    """A dump, and where another dump may differ from it.

    Args:
        octets: the bytes of the file.
        fixed: 255 for a byte that must be equal in the other dump, 0 for a byte that may differ.
        opening: the first bytes of every entry.
        starts: where entries begin, in ring order.
        end: where the last entry ends.
        times: for each of `_TIMES` and each entry, the offset of the eight bytes of the value; -1 if there are none.
        records: the record number of each entry.
        memo: the memo of the pickle after the entries.
        free: memo indexes whose value may differ: those that only threads and groups use, or no entry.
        groups: the groups that `dump.columns` number: memo indexes of name and description, and the rank's own number.
        root: the document without its entries.
        positions: rows of the notable entries of `dump`.
    """

    octets: Octets
    fixed: Octets
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

    def read(self, path: str, rank: int, data: bytes, limits: DumpLimits, most: int = _MAX_DIFFER) -> RankDump | None:
        """Return the dump of another rank; None if more than `most` of its entries differ."""
        end = len(data) - (len(self.octets) - self.end)
        if end <= 0 or len(data) > 2 * len(self.octets) or data[end:] != self.octets[self.end :].tobytes():
            return None
        octets = np.frombuffer(data, dtype=np.uint8)
        try:
            return _Delta(self, path, rank, data, limits, octets, end, most).dump()
        except (DumpError, _Different):
            return None


#: The latest used first.
_REFERENCES: Final[list[Reference]] = []
#: How many references were made, and how often one was used.
_COUNTS: Final = {"made": 0, "used": 0}


def read(path: str, rank: int, data: bytes, limits: DumpLimits) -> RankDump | None:
    """Return the dump of a pickle; None if it is no Flight Recorder document."""
    tries = [(index, reference, _MAX_DIFFER) for index, reference in enumerate(_REFERENCES)]
    # If half of the entries differ (in sizes, say), that is still cheaper than interpreting all of them.
    tries += [(index, reference, len(reference.starts) // 2) for index, reference, _ in tries[:1]]
    for index, reference, most in tries:
        dump = reference.read(path, rank, data, limits, most)
        if dump is not None:
            _REFERENCES.insert(0, _REFERENCES.pop(index))
            _COUNTS["used"] += 1
            return dump
    machine = Interpreter(data, limits)
    root = machine.run()
    if not is_document(root):
        return None
    dump = dump_of(path, rank, root)
    if _COUNTS["used"] or _COUNTS["made"] < _MAX_UNUSED:
        reference_or_none = reference_of(machine, root, dump)
        if reference_or_none is not None:
            _COUNTS["made"] += 1
            _REFERENCES.insert(0, reference_or_none)
            del _REFERENCES[_MAX_REFERENCES:]
    return dump


class _Different(Exception):
    """The dump is not like the reference."""


class _Delta:
    """One dump compared with a reference. `most` entries may differ, and `end` is where the entries end."""

    def __init__(
        self,
        reference: Reference,
        path: str,
        rank: int,
        data: bytes,
        limits: DumpLimits,
        octets: Octets,
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
            # The first entry begins differently, because it defines the keys in the memo.
            self.starts = np.append(np.int64(0), _offsets_of(octets[:end], reference.opening))
        self.ends = np.append(self.starts[1:], end)
        #: The number of entries that have a counterpart in the reference.
        self.shared = min(len(self.starts), len(reference.starts))
        if self.shared < 2:
            raise _Different
        #: How far each of these entries is moved relative to its counterpart.
        self.shift = self.starts[: self.shared] - reference.starts[: self.shared]

    def dump(self) -> RankDump:
        different = self._different_entries()
        root, raws = self._document()
        for row in different:
            raws[row] = self._interpreted(row)
        if raws:
            self._check_memo()
        times = [self._time(offsets, raws) for offsets in self.reference.times]
        table = GroupTable()
        memo = self.machine.memo
        for name, desc, local in self.reference.groups:
            table.index(_string(memo, name), local, _string(memo, desc))
        if len(table.groups) != len(self.reference.groups):
            raise _Different
        columns, signatures = self._columns(raws, times[0], table)
        notable = self._notable(columns, raws, times)
        first = self._first_record(raws) if raws else int(self.reference.records[0])
        return assemble(self.path, self.rank, root, table, columns, signatures, notable, first)

    def _different_entries(self) -> list[int]:
        """Return the rows of the entries after the first that differ, oldest first."""
        known_ends = np.append(self.reference.starts[1:], self.reference.end)
        # If an entry is longer or shorter than its counterpart, the entries after it have moved.
        resized = np.flatnonzero(self.ends[1 : self.shared] - known_ends[1 : self.shared] != self.shift[1:]) + 1
        if len(resized) > self.most:
            raise _Different
        rows = {*resized.tolist(), *range(self.shared, len(self.starts))}
        if len(rows) > self.most:
            raise _Different
        begin = 1
        for stop in (*resized.tolist(), self.shared):
            if begin < stop:
                low, high, shift = int(self.starts[begin]), int(self.ends[stop - 1]), int(self.shift[begin])
                rows.update(np.searchsorted(self.starts, self._different_offsets(low, high, shift), "right") - 1)
            begin = stop + 1
        if len(rows) > self.most:
            raise _Different
        return sorted(map(int, rows))

    def _different_offsets(self, low: int, high: int, shift: int) -> Ints:
        """Return the first and last offset of each word of eight bytes that differs between `low` and `high`.

        A word may reach into a neighbouring entry, which is then interpreted although it is equal.
        """
        padded = np.zeros(-(-(high - low) // 8) * 8, dtype=np.uint8)
        differences = padded[: high - low]
        np.bitwise_xor(self.octets[low:high], self.reference.octets[low - shift : high - shift], out=differences)
        np.bitwise_and(differences, self.reference.fixed[low - shift : high - shift], out=differences)
        words = np.flatnonzero(padded.view(np.uint64))
        if len(words) > 64 * self.most:
            raise _Different
        first = low + 8 * words
        return np.concatenate((first, np.minimum(first + 7, high - 1)))

    def _document(self) -> tuple[Mapping[str, Any], dict[int, dict[str, Any]]]:
        """Return the document without its entries, and the first entry if it differs.

        Afterwards the memo has the values defined before the other entries, and those that equal entries define.
        """
        reference, machine = self.reference, self.machine
        if not self.shift[1] and not len(self._different_offsets(0, int(self.starts[1]), 0)):
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
        """Raise if the memo has another value for something that equal entries refer to, except threads and groups."""
        known = self.reference.memo
        for index, value in self.machine.memo.items():
            if index in known and index not in self.reference.free and value != known[index]:
                raise _Different

    def _time(self, offsets: Ints, raws: Mapping[int, Any]) -> Ints:
        """Return one time of each entry; 0 if the entry is interpreted, or the reference has no offset for it."""
        offsets = offsets[: self.shared]
        if raws:
            offsets = offsets.copy()
            offsets[[row for row in raws if row < self.shared]] = -1
        rows = np.flatnonzero(offsets >= 0)
        values: Ints = np.zeros(len(self.starts), dtype=np.int64)
        if len(rows):
            words: Ints = np.ndarray(shape=(len(self.octets) - 7,), dtype="<i8", buffer=self.octets.data, strides=(1,))
            found = words[offsets[rows] + self.shift[rows]]
            if int(found.min()) <= 0:
                raise _Different  # the bytes around it are equal, but this is no time
            values[rows] = found
        return values

    def _columns(
        self, raws: dict[int, dict[str, Any]], created: Ints, table: GroupTable
    ) -> tuple[EntryColumns, dict[int, str]]:
        known = self.reference.dump.columns
        signatures = self.reference.dump.signatures
        untimed = np.flatnonzero(created[: self.shared] == 0)
        created[untimed] = known.created[untimed]
        if not raws:
            return msgspec.structs.replace(known, created=created), signatures
        own, texts, _ = columns_of(list(raws.values()), table)
        rows = np.fromiter(raws, dtype=np.int64, count=len(raws))
        created[rows] = own.created
        if len(self.starts) == len(self.reference.starts) and all(
            np.array_equal(getattr(known, name)[rows], getattr(own, name)) for name in _COLUMNS
        ):
            # Share the columns with the reference, so that thousands of dumps need little memory.
            return msgspec.structs.replace(known, created=created), signatures
        patched = {}
        for name in _COLUMNS:
            column = np.resize(getattr(known, name), len(self.starts))
            column[rows] = getattr(own, name)
            patched[name] = column
        signatures = signatures | texts
        return EntryColumns(created=created, **patched), {
            key: signatures[key] for key in np.unique(patched["sig"]).tolist()
        }

    def _notable(self, columns: EntryColumns, raws: dict[int, dict[str, Any]], times: list[Ints]) -> list[DumpEntry]:
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
            if position in raws or position not in entries:
                raw = raws.get(position) or self._interpreted(position)
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

    def _first_record(self, raws: dict[int, dict[str, Any]]) -> int:
        records = np.resize(self.reference.records, len(self.starts))
        for row, raw in raws.items():
            records[row] = integer(raw.get("record_id")) or 0
        if bool((np.diff(records) < 0).any()):
            raise _Different  # the entries are not in the order in which they were recorded
        return int(records[0])


#: Columns that are equal in dumps of one program.
_COLUMNS: Final = ("group", "seq", "sig", "flags")


def _offsets_of(octets: Octets, token: bytes) -> Ints:
    """Return all offsets of a token of two bytes or more."""
    found = np.flatnonzero((octets[:-1] == token[0]) & (octets[1:] == token[1]))
    for index in range(2, len(token)):
        found = found[found + index < len(octets)]
        found = found[octets[found + index] == token[index]]
    return found


def _string(memo: dict[int, Any], index: int) -> str:
    value = memo.get(index)
    return value if isinstance(value, str) else ""


# -- making a reference ----------------------------------------------------------------------------------------------


def reference_of(machine: Interpreter, root: Mapping[str, Any], dump: RankDump) -> Reference | None:
    """Make a reference of a dump; None if it cannot be one. `root` is what the interpreter returned for it."""
    data, raws = machine.data, root.get("entries")
    if len(data) > _MAX_BYTES or not isinstance(raws, list) or len(raws) != len(machine.bounds) or len(raws) < 3:
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
    # Stack frames are dictionaries in the memo. The document itself is in the memo, too.
    content = set(
        _strings([value for value in machine.memo.values() if type(value) is dict and value is not root], seen)
    )
    for raw in raws:
        for key, value in raw.items():
            if isinstance(value, str):
                (threads if key in _THREADS else content).add(value)
            elif isinstance(value, list | dict) or (isinstance(value, tuple) and key != "process_group"):
                content.update(_strings(value, seen))
    content |= set().union(*raws)
    group_strings = {text for group in groups for text in (group.name, group.desc)}
    outside = set(_strings({key: value for key, value in root.items() if key != "entries"}))
    fixed = np.full(len(data), 255, dtype=np.uint8)
    times = tuple(_time_offsets(data, bounds, index_of.get(key), [raw.get(key) for raw in raws]) for key in _TIMES)
    for offsets in times:
        known = offsets[offsets >= 0]
        fixed[(known[:, None] + np.arange(8)).ravel()] = 0
    for text in threads - content - group_strings:
        _allow_any(fixed, data, text, index_of.get(text))
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
        free=frozenset(index_of[text] for text in (threads | group_strings | outside) - content if text in index_of),
        groups=tuple((index_of[group.name], index_of[group.desc], group.local_id) for group in groups),
        root={key: value for key, value in root.items() if key != "entries"} | {"entries": []},
        dump=dump,
        positions=notable_positions(dump.columns),
    )


def _strings(value: Any, seen: set[int] | None = None) -> Iterator[str]:
    """Return all strings in a value, except in containers whose id is in `seen`; adds new ids to `seen`."""
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


def _time_offsets(data: bytes, bounds: Ints, key: int | None, values: Sequence[Any]) -> Ints:
    """Return the offset of the eight bytes of a time in each entry; -1 if unknown. `key` is its key's memo index."""
    offsets: Ints = np.full(len(values), -1, dtype=np.int64)
    if key is None:
        return offsets
    token = bytes((key,)) if key < 256 else key.to_bytes(4, "little")
    for row, (value, (start, end)) in enumerate(zip(values, bounds.tolist(), strict=True)):
        if type(value) is not int or not 1 << 55 <= value < 1 << 63:
            continue
        written = token + b"\x8a\x08" + value.to_bytes(8, "little")
        first = data.find(written, start, end)
        known = first >= 0 and data[first - 1 : first] in (b"h", b"q", b"j", b"r")
        if known and data.find(written, first + 1, end) < 0:
            offsets[row] = first + len(token) + 2
    return offsets


def _allow_any(fixed: Octets, data: bytes, text: str, index: int | None) -> None:
    """Allow other dumps to have any string of the same length here."""
    if index is None:
        return
    content = text.encode("utf-8", "replace")
    put = b"q" + bytes((index,)) if index < 256 else b"r" + index.to_bytes(4, "little")
    written = b"X" + len(content).to_bytes(4, "little") + content + put
    at = data.find(written)
    if at >= 0 and data.find(written, at + 1) < 0:
        fixed[at + 5 : at + 5 + len(content)] = 0
