"""One rank's dump: the state of each group, and the ring of entries as columns.

Thousands of ranks with rings of 2,000 entries each are kept as numpy columns. Full entries, with stack frames, are made
only for those that a report may show: the first unfinished and the last entry of each group.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec

from tracecore.signals.arrays import np
from tracecore.signals.flight_recorder.matching import COALESCED, digest, dtypes_of, operation_of, signature, sizes_of
from tracecore.signals.flight_recorder.pickled import DumpError, DumpLimits, loads
from tracecore.signals.flight_recorder.raw_entries import (
    StackFrame,
    entry_done,
    entry_p2p,
    entry_seq,
    frames_of,
    group_name,
    instant,
    integer,
    members_of,
    raw_signature,
    text,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

#: Bits of `EntryColumns.flags`.
DONE: Final = 1
P2P: Final = 2
STARTED: Final = 4

_MAX_GROUPS: Final = 4096
#: The signature of the row that closes a batch.
_BATCH: Final = digest(COALESCED)


class DumpEntry(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """One recorded collective or point-to-point operation."""

    group: int
    seq: int
    p2p_seq: int = 0
    record_id: int = 0
    name: str
    state: str
    done: bool
    retired: bool | None = None
    is_p2p: bool = False
    created: int = 0
    started: int | None = None
    completed: int | None = None
    timeout_ms: int | None = None
    input_sizes: tuple[tuple[int, ...], ...] = ()
    input_dtypes: tuple[str, ...] = ()
    output_sizes: tuple[tuple[int, ...], ...] = ()
    output_dtypes: tuple[str, ...] = ()
    frames: tuple[StackFrame, ...] = ()
    offset: int = 0

    @property
    def signature(self) -> str:
        return signature(
            operation_of(self.name), self.input_sizes, self.input_dtypes, self.output_sizes, self.output_dtypes
        )


class ProcessGroup(msgspec.Struct, kw_only=True):
    """The state of one process group as one rank recorded it.

    Args:
        name: the stable name, the same on all its ranks.
        desc: what the program calls it.
        members: global ranks, ascending; None where the backend does not write them.
        last_enqueued, last_completed: the recorder's own counters; None where it has none.
        local_id: the rank's own number for the group.
    """

    name: str
    desc: str = ""
    members: tuple[int, ...] | None = None
    last_enqueued: int | None = None
    last_completed: int | None = None
    local_id: str = ""


class EntryColumns(msgspec.Struct, kw_only=True):
    """The entries of one ring, oldest first. All arrays have one length.

    `sig` is `matching.digest` of the entry's signature; for p2p it is the digest of its name.
    """

    group: NDArray[np.int16]
    seq: NDArray[np.int64]
    sig: NDArray[np.int64]
    created: NDArray[np.int64]
    flags: NDArray[np.uint8]


class RankDump(msgspec.Struct, kw_only=True):
    """One rank's dump.

    Args:
        notable: the first unfinished and the last entry of each group, the unfinished point-to-point operations.
        wrapped: older entries were overwritten.
        latest: the latest time anywhere in the dump, nanoseconds.
        signatures: text of each digest in the columns.
    """

    path: str
    rank: int
    version: str
    groups: list[ProcessGroup]
    columns: EntryColumns
    notable: list[DumpEntry]
    signatures: dict[int, str]
    entries: int
    wrapped: bool
    latest: int


def make_entry(raw: Mapping[str, Any], group: int, offset: int = 0, *, ended: bool = False) -> DumpEntry:
    """Return the full entry of a raw one; `ended` says that the batch that it belongs to has ended."""
    return DumpEntry(
        group=group,
        seq=entry_seq(raw),
        p2p_seq=integer(raw.get("p2p_seq_id")) or 0,
        record_id=integer(raw.get("record_id")) or 0,
        name=text(raw.get("profiling_name")),
        state=text(raw.get("state")),
        done=ended or entry_done(raw),
        retired=raw["retired"] if isinstance(raw.get("retired"), bool) else None,
        is_p2p=entry_p2p(raw),
        created=instant(raw.get("time_created_ns")) or 0,
        started=instant(raw.get("time_discovered_started_ns")),
        completed=instant(raw.get("time_discovered_completed_ns")),
        timeout_ms=integer(raw.get("timeout_ms")),
        input_sizes=sizes_of(raw.get("input_sizes")),
        input_dtypes=dtypes_of(raw.get("input_dtypes")),
        output_sizes=sizes_of(raw.get("output_sizes")),
        output_dtypes=dtypes_of(raw.get("output_dtypes")),
        frames=frames_of(raw.get("frames")),
        offset=offset,
    )


class GroupTable:
    """The groups of one dump, numbered in the order in which they are found."""

    def __init__(self) -> None:
        self.groups: list[ProcessGroup] = []
        self._index: dict[tuple[str, str], int] = {}

    def index(self, name: str, local_id: str, desc: str) -> int:
        """Return the number of this group, which is added if it is new."""
        key = (name, local_id)
        found = self._index.get(key)
        if found is None:
            if len(self.groups) >= _MAX_GROUPS:
                raise DumpError("too_large", f"more than {_MAX_GROUPS} process groups")
            found = self._index[key] = len(self.groups)
            self.groups.append(ProcessGroup(name=name, desc=desc, local_id=local_id))
        return found


def columns_of(entries: Sequence[Any], table: GroupTable) -> tuple[EntryColumns, dict[int, str], list[int]]:
    """Return columns of raw entries, the text of their signatures, and the position of each row's entry."""
    group: list[int] = []
    seq: list[int] = []
    sig: list[int] = []
    created: list[int] = []
    flags: list[int] = []
    kept: list[int] = []
    texts: dict[int, str] = {}
    for position, raw in enumerate(entries):
        if not isinstance(raw, dict):
            continue
        is_p2p = entry_p2p(raw)
        call = raw_signature(raw)
        call_digest = digest(call)
        texts[call_digest] = call
        name, desc = group_name(raw)
        group.append(table.index(name, text(raw.get("pg_id", "")), desc))
        seq.append((integer(raw.get("p2p_seq_id")) or 0) if is_p2p else entry_seq(raw))
        sig.append(call_digest)
        created.append(instant(raw.get("time_created_ns")) or 0)
        started = raw.get("state") == "started" or instant(raw.get("time_discovered_started_ns")) is not None
        flags.append((DONE if entry_done(raw) else 0) | (P2P if is_p2p else 0) | (STARTED if started else 0))
        kept.append(position)
    columns = EntryColumns(
        group=np.array(group, dtype=np.int16),
        seq=np.array(seq, dtype=np.int64),
        sig=np.array(sig, dtype=np.int64),
        created=np.array(created, dtype=np.int64),
        flags=np.array(flags, dtype=np.uint8),
    )
    return columns, texts, kept


def batches_of(columns: EntryColumns) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Return two masks: rows that close a batch of sends and receives, and rows that have ended.

    `batch_isend_irecv` records each operation of a batch and then one closing row for the whole batch. Only the closing
    row is ever marked as completed. Its collective sequence number belongs to an earlier collective.
    """
    flags = columns.flags
    done = (flags & DONE) != 0
    closing = np.zeros(len(flags), dtype=np.bool_)
    pairwise = (flags & P2P) != 0
    if not bool(pairwise.any()):
        return closing, done
    same = (columns.group[1:] == columns.group[:-1]) & pairwise[:-1]
    closing[1:] = same & ~pairwise[1:] & (columns.sig[1:] == _BATCH)
    # The operations of one batch are adjacent and share their number.
    begins = np.append(True, ~(same & pairwise[1:] & (columns.seq[1:] == columns.seq[:-1])))
    batch = np.cumsum(begins) - 1
    closers = np.flatnonzero(closing)
    ended = np.zeros(int(batch[-1]) + 1, dtype=np.bool_)
    ended[batch[closers - 1]] = done[closers]
    return closing, done | (pairwise & ended[batch])


def notable_positions(columns: EntryColumns, p2p_limit: int = 64) -> list[int]:
    """Return the rows of the first unfinished and the last entry of each group, and of unfinished p2p operations."""
    positions: set[int] = set()
    closing, done = batches_of(columns)
    collective = ((columns.flags & P2P) == 0) & ~closing
    for number in sorted(set(columns.group.tolist())):  # `np.unique` would import `numpy.ma`
        every = np.flatnonzero((columns.group == number) & ~closing)
        if not len(every):
            continue
        positions.add(int(every[-1]))
        mine = every[collective[every]]
        if len(mine):
            positions.add(int(mine[np.argmax(columns.seq[mine])]))
            waiting = mine[~done[mine]]
            if len(waiting):
                positions.add(int(waiting[np.argmin(columns.seq[waiting])]))
    pending = np.flatnonzero(((columns.flags & P2P) != 0) & ~done)
    positions.update(int(p) for p in pending[:p2p_limit])
    return sorted(positions)


def attach_groups(table: GroupTable, config: Any, status: Any) -> None:
    """Add the members from `pg_config` (by name) and counters from `pg_status` (by the rank's own number)."""
    by_name: dict[str, Any] = config if isinstance(config, dict) else {}
    known = {group.name for group in table.groups}
    for name, item in list(by_name.items())[:_MAX_GROUPS]:
        if not isinstance(item, dict):
            continue
        members = members_of(item.get("ranks"))
        key = text(name)
        for group in table.groups:
            if group.name == key:
                group.members = members
                group.desc = group.desc or text(item.get("desc"))
        if key not in known and members:
            table.groups.append(ProcessGroup(name=key, desc=text(item.get("desc")), members=members))
    counters: dict[str, Any] = {text(k): v for k, v in status.items()} if isinstance(status, dict) else {}
    unclaimed = dict(counters)
    for group in table.groups:
        if group.local_id and group.local_id in counters:
            _set_counters(group, counters[group.local_id])
            unclaimed.pop(group.local_id, None)
    # The number of a group is only in its entries. If all were overwritten, the number must be the only one left.
    unnumbered = [group for group in table.groups if not group.local_id]
    if len(unnumbered) == 1 and len(unclaimed) == 1:
        _set_counters(unnumbered[0], next(iter(unclaimed.values())))


def _set_counters(group: ProcessGroup, item: Any) -> None:
    if not isinstance(item, dict):
        return
    group.last_enqueued = integer(item.get("last_enqueued_collective"))
    group.last_completed = integer(item.get("last_completed_collective"))


def assemble(
    path: str,
    rank: int,
    root: Mapping[str, Any],
    table: GroupTable,
    columns: EntryColumns,
    signatures: dict[int, str],
    notable: list[DumpEntry],
    first_record: int,
) -> RankDump:
    """Make a dump of its parts."""
    attach_groups(table, root.get("pg_config"), root.get("pg_status"))
    latest = int(columns.created.max()) if len(columns.created) else 0
    for entry in notable:
        latest = max(latest, entry.created, entry.started or 0, entry.completed or 0)
    return RankDump(
        path=path,
        rank=rank,
        version=text(root.get("version")),
        groups=table.groups,
        columns=columns,
        notable=notable,
        signatures=signatures,
        entries=len(columns.seq),
        wrapped=first_record > 0,
        latest=latest,
    )


def dump_of(path: str, rank: int, root: Mapping[str, Any]) -> RankDump:
    """Make a dump of its decoded document. This works for JSON and for any layout of pickles."""
    entries = root.get("entries") or []
    if not isinstance(entries, list):
        raise DumpError("corrupt", "`entries` is not a list")
    # Old recorders wrote the ring in memory order, which need not begin with the oldest entry.
    entries = [raw for raw in entries if isinstance(raw, dict)]
    entries.sort(key=lambda raw: integer(raw.get("record_id")) or 0)
    table = GroupTable()
    columns, signatures, kept = columns_of(entries, table)
    ended = batches_of(columns)[1]
    notable = [
        make_entry(entries[kept[position]], int(columns.group[position]), position, ended=bool(ended[position]))
        for position in notable_positions(columns)
    ]
    first = integer(entries[0].get("record_id")) if entries else 0
    return assemble(path, rank, root, table, columns, signatures, notable, first or 0)


def is_document(root: Any) -> bool:
    """Whether a decoded value is a Flight Recorder dump."""
    return isinstance(root, dict) and "version" in root and bool({"entries", "pg_config", "pg_status"} & root.keys())


def decode(data: bytes, limits: DumpLimits | None = None) -> dict[str, Any]:
    """Decode a dump, which may be a pickle or JSON."""
    limits = limits or DumpLimits()
    if not data:
        raise DumpError("empty", "the file has no bytes")
    if len(data) > limits.file_bytes:
        raise DumpError("too_large", f"{len(data)} bytes, the limit is {limits.file_bytes}")
    if data[0] == 0x80:
        root = loads(data, limits)
    else:
        stripped = data.lstrip()[:1]
        if stripped != b"{":
            raise DumpError("not_a_dump", "neither a pickle nor JSON")
        try:
            root = msgspec.json.decode(data)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            reason = "truncated" if "truncated" in str(error) else "corrupt"
            raise DumpError(reason, f"JSON: {error}") from error
        except RecursionError as error:
            raise DumpError("too_deep", "JSON nested too deep") from error
    if isinstance(root, list) and root and isinstance(root[0], dict) and "profiling_name" in root[0]:
        root = {"version": "1.0", "entries": root}  # the first recorders (PyTorch 2.2) wrote only the entries
    if not is_document(root):
        raise DumpError("not_a_dump", "a document, but no Flight Recorder dump")
    document: dict[str, Any] = root
    return document
