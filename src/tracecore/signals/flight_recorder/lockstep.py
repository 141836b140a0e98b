"""The entries of a dump as columns, all at once.

PyTorch's writer is regular: after the first entry every key is a two-byte reference to the memo, and entries differ in
their operands only. So the entries of a ring are parsed side by side: one cursor for each, all stepped over the same
key together with numpy. The interpreter reads the head and one entry to learn the order of keys; an entry that turns
out to be laid out otherwise is given back to the interpreter, and teaches its layout. Nothing is trusted: each step
checks that the bytes under all cursors are what the plan says, and the entries must join without a gap.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec

from tracecore.signals.arrays import np
from tracecore.signals.flight_recorder.cursors import LONG_MASK, Cursors, Octets
from tracecore.signals.flight_recorder.dump import (
    DONE,
    P2P,
    STARTED,
    Columns,
    Dump,
    GroupTable,
    assemble,
    columns_of,
    group_name,
    integer,
    is_document,
    make_entry,
    notable_positions,
    raw_signature,
    text,
)
from tracecore.signals.flight_recorder.matching import digest
from tracecore.signals.flight_recorder.pickled import DumpError, Interpreter, Limits
from tracecore.signals.flight_recorder.precedent import THREADS, TIMES, Precedent, precedent_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Ints = NDArray[np.int64]
    Bools = NDArray[np.bool_]

#: Below this many bytes the interpreter alone is quicker than setting numpy up.
WORTHWHILE: Final = 24_000
_PLANS: Final = 12
_LONGEST_BLOB: Final = 1024

_TENSORS: Final = ("input_sizes", "input_dtypes", "output_sizes", "output_dtypes")


class _Step(msgspec.Struct, frozen=True):
    key: str
    token: bytes
    kind: str  # scalar, string, pair, blob


class UnfamiliarLayout(Exception):
    """The dump is not laid out as this reader needs; the general one takes it."""


def read(path: str, rank: int, data: bytes, limits: Limits) -> Dump:
    """The dump of a pickle, quickly where its layout is PyTorch's; `UnfamiliarLayout` where it is not."""
    for place, known in enumerate(_PRECEDENTS):
        dump = known.read(path, rank, data, limits)
        if dump is not None:
            _PRECEDENTS.insert(0, _PRECEDENTS.pop(place))
            return dump
    dump, precedent = _read(path, rank, data, limits)
    if precedent is not None:
        _PRECEDENTS.insert(0, precedent)
        del _PRECEDENTS[_KEPT:]
    return dump


#: The dumps read last that others were, or may be, like; the latest first. A job has a few kinds of ranks.
_KEPT: Final = 12
_PRECEDENTS: Final[list[Precedent]] = []


def _read(path: str, rank: int, data: bytes, limits: Limits) -> tuple[Dump, Precedent | None]:
    """The dump, without precedent."""
    machine = Interpreter(data, limits)
    if machine.run(2) is not None or len(machine.bounds) < 2:
        raise UnfamiliarLayout
    root_stack = machine.outer[0]
    entries_list = machine.outer[1]
    head = machine.stack  # the entries read so far
    if len(head) != 2 or not isinstance(root_stack[0], dict) or not all(isinstance(item, dict) for item in head):
        raise UnfamiliarLayout
    if entries_list[-2:-1] != ["entries"]:
        raise UnfamiliarLayout
    second_start, second_end = machine.bounds[1]
    view = Octets(data)
    sample = head[1]
    plan = _plan(machine, second_start, sample)
    opening = b"}(" + plan[0].token
    starts = view.find(opening, second_end)
    if len(starts) and int(starts[0]) != second_end:
        raise UnfamiliarLayout

    reader = _Reader(machine, view, starts)
    reader.define(second_end, plan)
    reader.teach(plan)
    end = reader.chain(second_end)
    # What follows the entries (further keys, the end of the list) is the interpreter's again.
    machine.pos = end
    root = machine.run()
    if not is_document(root):
        raise DumpError("not_a_dump", "a pickle, but no Flight Recorder dump")
    return reader.finish(path, rank, root, head, opening, end)


def _plan(machine: Interpreter, start: int, sample: dict[str, Any]) -> list[_Step]:
    """The order of keys of an entry at `start`, whose keys must all be references to the memo."""
    by_text = {value: index for index, value in reversed(machine.memo.items()) if type(value) is str}
    steps = []
    for key, value in sample.items():
        index = by_text.get(key)
        if index is None:
            raise UnfamiliarLayout
        token = b"h" + bytes((index,)) if index < 256 else b"j" + index.to_bytes(4, "little")
        if isinstance(value, str):
            kind = "string"
        elif key == "process_group" and isinstance(value, tuple):
            kind = "pair"
        elif isinstance(value, list | tuple | dict):
            kind = "blob"
        else:
            kind = "scalar"
        steps.append(_Step(key, token, kind))
    if not steps or steps[-1].kind == "blob" or machine.data[start : start + 2] != b"}(":
        raise UnfamiliarLayout
    keys = [step.key for step in steps]
    if "profiling_name" not in keys or not all(key in keys for key in _TENSORS):
        raise UnfamiliarLayout
    where = keys.index("input_sizes")
    if tuple(keys[where : where + 4]) != _TENSORS:
        raise UnfamiliarLayout
    return steps


class _Reader:
    """Runs plans over the starts, and keeps what each entry gave."""

    def __init__(self, machine: Interpreter, view: Octets, starts: Ints) -> None:
        self.machine = machine
        self.view = view
        self.starts = starts
        count = len(starts)
        self.ends: Ints = np.full(count, -1, dtype=np.int64)
        self.todo: Bools = np.ones(count, dtype=np.bool_)
        self.parts: list[tuple[Ints, Cursors]] = []
        self.slow: dict[int, dict[str, Any]] = {}
        self.types: set[str] = set()  # of tensors
        self.rows: Ints = np.arange(count, dtype=np.int64)
        self._found: dict[bytes, Ints] = {}

    def define(self, begin: int, plan: list[_Step]) -> None:
        """Memoise what entries define (a name, a frame met for the first time), in order.

        All ranks run one program, so what a list of frames defines is nearly always known from another dump. An
        entry that defines something elsewhere is read by the interpreter. All others hold references only.
        """
        octets = self.view.octets[begin : self.view.size]
        if not len(self.starts) or len(octets) < 8:
            return
        # `X` with a length below 2**16, or a BINPUT after SETITEMS. A hit inside an operand costs time, no more.
        literal = (octets[:-5] == 0x58) & (octets[3:-2] == 0) & (octets[4:-1] == 0)
        literal |= (octets[:-5] == 0x75) & ((octets[1:-4] == 0x71) | (octets[1:-4] == 0x72))
        hits = np.flatnonzero(literal) + begin
        owner_of = np.searchsorted(self.starts, hits, side="right") - 1
        hits, owner_of = hits[owner_of >= 0], owner_of[owner_of >= 0]
        owners, first = np.unique(owner_of, return_index=True)
        if len(owners) > 64 + len(self.starts) // 4:
            raise UnfamiliarLayout
        last_hits = hits[np.append(first[1:], len(hits)) - 1] if len(owners) else hits
        frames_end = self._frames_end(owners, plan)
        for owner, last_hit, end in zip(owners.tolist(), last_hits.tolist(), frames_end, strict=True):
            start = int(self.starts[owner])
            try:
                if last_hit < end:
                    self._define_frames(start + 2 + len(plan[0].token), end)
                else:
                    self._keep(owner, *self.machine.value(start))
            except DumpError:
                continue  # no entry begins here, or it is damaged: the chain will tell

    def _frames_end(self, owners: Ints, plan: list[_Step]) -> list[int]:
        """Where the list of frames of each of these entries ends; 0 where frames do not come first."""
        if plan[0].key != "frames" or plan[0].kind != "blob":
            return [0] * len(owners)
        anchors = self._anchors(plan[1].token)
        places = np.searchsorted(anchors, self.starts[owners])
        return [int(anchors[place]) if place < len(anchors) else 0 for place in places.tolist()]

    def _define_frames(self, start: int, end: int) -> None:
        machine = self.machine
        segment = machine.data[start:end]
        known = _FRAMES.get(segment)
        if known is not None and all(machine.memo.get(index) == value for index, value in known[0].items()):
            machine.memo.update(known[1])
            return
        used = _Recorded(machine.memo)
        machine.memo = used
        try:
            _, stop = machine.value(start)
        finally:
            machine.memo = used.base
        machine.memo.update(used.written)
        if stop == end and len(_FRAMES) < _REMEMBERED and len(segment) < 16_384:
            _FRAMES[segment] = (used.read, used.written)

    def _anchors(self, token: bytes) -> Ints:
        """Offsets of a key's reference right after the end of a list: `e`, or `]` of an empty one."""
        found = self._found.get(token)
        if found is None:
            anchors = self.view.find(token, int(self.starts[0]))
            before = self.view.octets[anchors - 1]
            found = self._found[token] = anchors[(before == 0x65) | (before == 0x5D)]
        return found

    def teach(self, plan: list[_Step]) -> None:
        """Run this plan over what is left, then learn from what it could not read."""
        for _ in range(_PLANS):
            left = np.flatnonzero(self.todo)
            if not len(left):
                return
            self._run(plan, left)
            left = np.flatnonzero(self.todo)
            if not len(left):
                return
            first = int(left[0])
            start = int(self.starts[first])
            try:
                raw, end = self.machine.value(start)
            except DumpError:
                self.todo[first] = False
                continue
            self._keep(first, raw, end)
            try:
                plan = _plan(self.machine, start, raw)
            except UnfamiliarLayout:
                continue

    def _keep(self, row: int, raw: Any, end: int) -> None:
        if isinstance(raw, dict):
            self.slow[row] = raw
            self.ends[row] = end
        self.todo[row] = False

    def _run(self, plan: list[_Step], left: Ints) -> None:
        view = self.view
        run = Cursors(view, self.starts[left] + 2)
        index = 0
        while index < len(plan):
            step = plan[index]
            run.expect(step.token)
            if step.kind == "scalar":
                run.scalar(step.key)
            elif step.kind == "string":
                run.string(step.key)
            elif step.kind == "pair":
                run.pair_of_strings()
            else:
                begin = run.at.copy()
                if step.key == _TENSORS[0]:
                    index += 3
                following = plan[index + 1]
                anchors = self._anchors(following.token)
                run.skip_to(following.token, anchors)
                if step.key == _TENSORS[0]:
                    run.tensors = (begin, run.at - begin)
            index += 1
        run.expect_octet(0x75)
        # A list skipped by its anchor must not have swallowed the next entry.
        following_start = np.append(self.starts[1:], view.size)[left]
        run.ok &= run.at <= following_start
        good = np.flatnonzero(run.ok)
        self.ends[left[good]] = run.at[good]
        self.todo[left[good]] = False
        self.parts.append((left, run))

    def chain(self, start: int) -> int:
        """Drop starts that were none: entries join without a gap from `start`. Gives where they end."""
        if not len(self.starts):
            return start
        joined = self.starts[1:] == self.ends[:-1]
        if int(self.starts[0]) == start and int(self.ends[-1]) > 0 and bool(joined.all()):
            return int(self.ends[-1])
        data = self.machine.data
        row_of = {offset: row for row, offset in enumerate(self.starts.tolist())}
        kept = []
        while data[start : start + 2] == b"}(":
            row = row_of.get(start)
            if row is None:
                raise UnfamiliarLayout  # an entry that opens in another way
            if self.ends[row] <= start:
                self._keep(row, *self.machine.value(start))
                if self.ends[row] <= start:
                    raise UnfamiliarLayout
            kept.append(row)
            start = int(self.ends[row])
        self.rows = np.array(kept, dtype=np.int64)
        return start

    def finish(
        self, path: str, rank: int, root: dict[str, Any], head: list[dict[str, Any]], opening: bytes, end: int
    ) -> tuple[Dump, Precedent | None]:
        """Columns in ring order, from the parts."""
        table = GroupTable()
        count = len(self.starts)
        group: NDArray[Any] = np.zeros(count, dtype=np.int16)
        seq: NDArray[Any] = np.zeros(count, dtype=np.int64)
        sig: NDArray[Any] = np.zeros(count, dtype=np.int64)
        created: NDArray[Any] = np.zeros(count, dtype=np.int64)
        flags: NDArray[Any] = np.zeros(count, dtype=np.uint8)
        record: NDArray[np.int64] = np.zeros(count, dtype=np.int64)
        signatures: dict[int, str] = {}
        for left, run in self.parts:
            good = np.flatnonzero(run.ok)
            if len(good):
                rows = left[good]
                values = self._columns(run, good, table, signatures)
                group[rows], seq[rows], sig[rows], created[rows], flags[rows] = values
                if "record_id" in run.scalars:
                    record[rows] = run.scalars["record_id"][good]
        for row, raw in self.slow.items():
            record[row] = integer(raw.get("record_id")) or 0
        ids = np.concatenate(([integer(raw.get("record_id")) or 0 for raw in head], record[self.rows]))
        if bool((np.diff(ids) < 0).any()):
            raise UnfamiliarLayout  # the ring in another order than it was filled
        extra, texts, _ = columns_of([*head, *self.slow.values()], table)
        signatures.update(texts)
        if self.slow:
            slow = np.fromiter(self.slow, dtype=np.int64, count=len(self.slow))
            for column, given in zip((group, seq, sig, created, flags), _arrays(extra), strict=True):
                column[slow] = given[len(head) :]
        columns = Columns(
            group=np.concatenate((extra.group[: len(head)], group[self.rows])),
            seq=np.concatenate((extra.seq[: len(head)], seq[self.rows])),
            sig=np.concatenate((extra.sig[: len(head)], sig[self.rows])),
            created=np.concatenate((extra.created[: len(head)], created[self.rows])),
            flags=np.concatenate((extra.flags[: len(head)], flags[self.rows])),
        )
        notable = []
        positions = notable_positions(columns)
        for position in positions:
            if position < len(head):
                raw, offset = head[position], self.machine.bounds[position][0]
            else:
                row = int(self.rows[position - len(head)])
                offset = int(self.starts[row])
                raw = self.slow.get(row) or self.machine.value(offset)[0]
            notable.append(make_entry(raw, int(columns.group[position]), offset))
        groups = list(table.groups)
        dump = assemble(path, rank, root, table, columns, signatures, notable, int(ids[0]))
        place_of = {row: place for place, row in enumerate(self.rows.tolist(), len(head))} if self.slow else {}
        raws = dict(enumerate(head)) | {place_of[row]: raw for row, raw in self.slow.items() if row in place_of}
        before = np.array([start for start, _ in self.machine.bounds[: len(head)]], dtype=np.int64)
        return dump, precedent_of(
            self.machine,
            root,
            dump,
            groups,
            starts=np.concatenate((before, self.starts[self.rows])),
            end=end,
            opening=opening,
            records=ids,
            times=tuple(np.concatenate((np.full(len(head), -1), self._times(key)[self.rows])) for key in TIMES),
            raws=raws,
            threads={text for key in THREADS for text in self._texts(key)},
            structural={text for key in ("profiling_name", "state") for text in self._texts(key)} | self.types,
            positions=positions,
        )

    def _times(self, key: str) -> Ints:
        """Where the bytes of this time are in each entry."""
        places = np.full(len(self.starts), -1, dtype=np.int64)
        for left, run in self.parts:
            if key in run.times:
                places[left[run.ok]] = run.times[key][run.ok]
        return places

    def _texts(self, key: str) -> list[str]:
        """The strings that entries have under this key."""
        offsets = [run.strings[key][run.ok] for _, run in self.parts if key in run.strings]
        return self._codes(np.concatenate(offsets))[1] if offsets else []

    def _after_string(self, offsets: Ints) -> Ints:
        cursor = Cursors(self.view, offsets)
        cursor.string("")
        return cursor.at

    def _codes(self, offsets: Ints) -> tuple[Ints, list[str]]:
        """A number for each string token, and the strings."""
        words = self.view.words[offsets]
        op = words & np.uint64(0xFF)
        key = np.where(op == 0x68, words & np.uint64(0xFFFF), words & np.uint64(0xFFFFFFFFFF))
        _, first, inverse = np.unique(key, return_index=True, return_inverse=True)
        strings = [self._string_at(int(offsets[i])) for i in first]
        return inverse.astype(np.int64), strings

    def _string_at(self, offset: int) -> str:
        value, _ = self.machine.value(offset)
        return value if isinstance(value, str) else ""

    def _blob_codes(self, begin: Ints, length: Ints) -> Ints:
        """A number for each distinct run of bytes."""
        words = self.view.words
        limit = int(length.max()) if len(length) else 0
        mixed = length.astype(np.uint64)
        prime = np.uint64(0x9E3779B97F4A7C15)
        for step in range(0, min(limit, _LONGEST_BLOB), 8):
            remaining = np.clip(length - step, 0, 8)
            word = words[np.minimum(begin + step, self.view.size)] & LONG_MASK[remaining]
            mixed = (mixed ^ word) * prime
            mixed ^= mixed >> np.uint64(29)
        if limit > _LONGEST_BLOB:
            data = self.machine.data
            for i in np.flatnonzero(length > _LONGEST_BLOB).tolist():
                start = int(begin[i])
                mixed[i] = np.uint64(digest(data[start : start + int(length[i])].hex()))
        _, inverse = np.unique(mixed, return_inverse=True)
        return inverse.astype(np.int64)

    def _columns(
        self, run: Cursors, good: Ints, table: GroupTable, signatures: dict[int, str]
    ) -> tuple[Any, Any, Any, Any, Any]:
        def scalar(key: str) -> Ints:
            column = run.scalars.get(key)
            return np.zeros(len(good), dtype=np.int64) if column is None else column[good]

        def truth(key: str) -> Bools:
            column = run.truths.get(key)
            return np.zeros(len(good), dtype=np.bool_) if column is None else column[good]

        names, name_texts = self._codes(run.strings["profiling_name"][good])
        if "state" in run.strings:
            states, state_texts = self._codes(run.strings["state"][good])
        else:
            states, state_texts = np.zeros(len(good), dtype=np.int64), [""]
        is_p2p = truth("is_p2p")
        if "is_p2p" not in run.truths:
            by_name = np.array([raw_is_p2p(name) for name in name_texts], dtype=np.bool_)
            is_p2p = by_name[names]

        # Groups: by the pair's bytes and the rank's own number.
        local = scalar("pg_id")
        if run.pair is not None:
            first = run.pair[good]
            left_codes, left_texts = self._codes(first)
            right_codes, right_texts = self._codes(self._after_string(first))
        else:
            left_codes = right_codes = np.zeros(len(good), dtype=np.int64)
            left_texts, right_texts = [""], [""]
        combined = (left_codes * len(right_texts) + right_codes) * (int(local.max()) + 1 if len(local) else 1) + local
        _, where, inverse = np.unique(combined, return_index=True, return_inverse=True)
        numbers = np.empty(len(where), dtype=np.int16)
        for i in np.argsort(where, kind="stable").tolist():
            at = int(where[i])
            raw: dict[str, Any] = {"pg_id": int(local[at])}
            if run.pair is not None:
                raw["process_group"] = (left_texts[int(left_codes[at])], right_texts[int(right_codes[at])])
            name, desc = group_name(raw)
            numbers[i] = table.index(name, text(raw["pg_id"]), desc)
        group = numbers[inverse]

        # Signatures: one decoding for each distinct (name, tensors).
        assert run.tensors is not None  # the plan has them
        begin, length = run.tensors[0][good], run.tensors[1][good]
        blobs = self._blob_codes(begin, length)
        combined = (blobs * len(name_texts) + names) * 2 + is_p2p
        _, where, inverse = np.unique(combined, return_index=True, return_inverse=True)
        digests = np.empty(len(where), dtype=np.int64)
        for i, at in enumerate(where.tolist()):
            words = self._signature(name_texts[int(names[at])], int(begin[at]), int(length[at]), bool(is_p2p[at]))
            digests[i] = digest(words)
            signatures[int(digests[i])] = words
        sig = digests[inverse]

        counter = "collective_seq_id" if "collective_seq_id" in run.scalars else "seq_id"
        seq = np.where(is_p2p, scalar("p2p_seq_id"), scalar(counter))
        completed_state = np.array([state == "completed" for state in state_texts], dtype=np.bool_)[states]
        started_state = np.array([state == "started" for state in state_texts], dtype=np.bool_)[states]
        done = completed_state | truth("retired") | (scalar("time_discovered_completed_ns") > 0)
        started = started_state | (scalar("time_discovered_started_ns") > 0)
        flags = done * np.uint8(DONE) | is_p2p * np.uint8(P2P) | started * np.uint8(STARTED)
        return group, seq, sig, scalar("time_created_ns"), flags.astype(np.uint8)

    def _signature(self, name: str, begin: int, length: int, is_p2p: bool) -> str:
        if is_p2p:
            return name
        machine = self.machine
        key = name, machine.data[begin : begin + length]
        known = _SIGNATURES.get(key)
        if known is not None and all(machine.memo.get(index) == value for index, value in known[0].items()):
            self.types.update(value for value in known[0].values() if type(value) is str)
            return known[1]
        used = _Recorded(machine.memo)
        machine.memo = used
        raw: dict[str, Any] = {"profiling_name": name, "is_p2p": False}
        at = begin
        try:
            for index, tensor in enumerate(_TENSORS):
                if index:
                    at += 2 if machine.data[at] == 0x68 else 5  # the key's reference
                raw[tensor], at = machine.value(at)
        finally:
            machine.memo = used.base
        words = raw_signature(raw)
        self.types.update(value for value in used.read.values() if type(value) is str)
        if len(_SIGNATURES) < _REMEMBERED and length < 4096:
            _SIGNATURES[key] = (used.read, words)
        return words


class _Recorded(dict[int, Any]):
    """A memo that notes what is read from the one beneath it and what is written."""

    def __init__(self, base: dict[int, Any]) -> None:
        super().__init__()
        self.base = base
        self.read: dict[int, Any] = {}

    @property
    def written(self) -> dict[int, Any]:
        return dict(self)

    def __missing__(self, index: int) -> Any:
        value = self.base[index]
        self.read[index] = value
        return value


#: What lists of frames define, and what tensors mean, by their bytes and by what they refer to. The same program runs
#: on all ranks, so a few are met in every dump. Bounded; a full table only costs time.
_REMEMBERED: Final = 4096
_FRAMES: Final[dict[bytes, tuple[dict[int, Any], dict[int, Any]]]] = {}
_SIGNATURES: Final[dict[tuple[str, bytes], tuple[dict[int, Any], str]]] = {}


def _arrays(columns: Columns) -> tuple[NDArray[Any], ...]:
    return columns.group, columns.seq, columns.sig, columns.created, columns.flags


def raw_is_p2p(name: str) -> bool:
    """Whether an operation's name says that it is point-to-point."""
    return name.partition(":")[2].startswith(("send ", "recv "))
