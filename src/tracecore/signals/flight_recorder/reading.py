"""Reading of dumps from files: one file, or thousands in several processes."""

from __future__ import annotations

import os
import re
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import TYPE_CHECKING, Any, Final

import msgspec

from tracecore.signals import folders
from tracecore.signals.flight_recorder import delta_reader
from tracecore.signals.flight_recorder.dump import DumpEntry, RankDump, decode, dump_of, make_entry
from tracecore.signals.flight_recorder.matching import operation_of
from tracecore.signals.flight_recorder.pickled import DumpError, DumpLimits
from tracecore.signals.flight_recorder.raw_entries import entry_p2p, entry_seq, group_name, members_of
from tracecore.signals.naming import printable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from pathlib import Path

#: Endings of files in a bundle that are no dumps.
_NOT_DUMPS: Final = (".log", ".txt", ".md", ".yaml", ".yml", ".py", ".html", ".prom", ".csv", ".out", ".err")
_CHUNK: Final = 32
_RANK_IN_NAME: Final = re.compile(r"rank[_-]?([0-9]{1,8})(?![0-9])", re.IGNORECASE)
_NUMBER: Final = re.compile(r"[0-9]+")
_SUFFIXES: Final = re.compile(r"(?:\.(?:json|pickle|pkl|pt|bin|gz|zst|dump|txt))+$")
_ARROW: Final = re.compile(r"^(?:send ([0-9]{1,8})->[0-9]{1,8}|recv ([0-9]{1,8})<-[0-9]{1,8})")


class SkippedDump(msgspec.Struct, frozen=True):
    """A file that gave no dump, and why."""

    path: str
    reason: str
    detail: str = ""


class Loaded(msgspec.Struct):
    """The dumps that could be read, in order of rank, and the files that gave none."""

    dumps: list[RankDump]
    skipped: list[SkippedDump]


def read_dump(data: bytes, path: str, limits: DumpLimits | None = None) -> RankDump:
    """Read a dump from its bytes; raises `DumpError`.

    Args:
        data: the file's content.
        path: the file's name for the user. The rank is taken from it, else from the content.
        limits: limits of the dump.
    """
    limits = limits or DumpLimits()
    if len(data) > limits.file_bytes:
        raise DumpError("too_large", f"{len(data)} bytes, the limit is {limits.file_bytes}")
    rank = _rank_in(path)
    if rank is not None and data[:1] == b"\x80" and len(data) >= delta_reader.WORTHWHILE:
        dump = delta_reader.read(path, rank, data, limits)
        if dump is not None:
            return dump
    root = decode(data, limits)
    if rank is None:
        rank = rank_from_content(root)
    if rank is None:
        raise DumpError("no_rank", "neither the file's name nor its content says which rank this is")
    return dump_of(path, rank, root)


def _rank_in(path: str) -> int | None:
    """Return the number after `rank` in a file's name, else the last number: 12 of `nccl_trace_rank_12`."""
    name = os.path.basename(path)
    found = _RANK_IN_NAME.findall(name) or _NUMBER.findall(_SUFFIXES.sub("", name))[-1:]
    return int(found[-1]) if found and len(found[-1]) <= 8 else None


def rank_from_content(root: dict[str, Any]) -> int | None:
    """Return the rank from a dump's content: a field, the only member that all groups share, or a name of a send."""
    value = root.get("rank")
    if type(value) is int and value >= 0:
        return value
    config = root.get("pg_config")
    groups = []
    if isinstance(config, dict):
        groups = [set(m) for item in config.values() if isinstance(item, dict) and (m := members_of(item.get("ranks")))]
    common = set.intersection(*groups) if groups else set()
    if len(common) == 1:
        return int(common.pop())
    entries = root.get("entries")
    for raw in entries if isinstance(entries, list) else ():
        group = raw.get("process_group") if isinstance(raw, dict) else None
        # Only in the default group are the ranks in names of sends and receives global.
        if isinstance(group, list | tuple) and group and group[0] == "0":
            arrow = _ARROW.match(operation_of(str(raw.get("profiling_name", ""))))
            if arrow:
                return int(arrow.group(1) or arrow.group(2))
    return None


def read_file(path: str, limits: DumpLimits | None = None) -> RankDump:
    """Read a dump from a file; raises `DumpError`. The arguments are those of `read_dump`."""
    limits = limits or DumpLimits()
    try:
        if os.path.exists(path) and not os.path.isfile(path):
            raise DumpError("unreadable", "not a regular file")
        with open(path, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            if size > limits.file_bytes:
                raise DumpError("too_large", f"{size} bytes, the limit is {limits.file_bytes}")
            # `read(limit)` would reserve memory for the limit. The file may have grown since `fstat`.
            data = file.read(size + 1)
            if len(data) > size:
                data += file.read(limits.file_bytes + 1 - len(data))
    except OSError as error:
        raise DumpError("unreadable", error.strerror or type(error).__name__) from error
    return read_dump(data, path, limits)


def find(paths: Iterable[str | Path]) -> list[str]:
    """Return the files that may be dumps: all given files, and files in given directories that look like dumps."""
    found: dict[str, None] = {}
    for path in paths:
        name = os.fspath(path)
        if not os.path.isdir(name):
            found[name] = None
            continue
        for folder, files in folders.walk(name, lambda _: None):
            for file in files:
                full = os.path.join(folder, file)
                # Opening a pipe or a device could block.
                if not file.endswith(_NOT_DUMPS) and os.path.isfile(full) and looks_like_dump(full):
                    found[full] = None
    return list(found)


def looks_like_dump(path: str) -> bool:
    """Whether a file's name or its first bytes are those of a dump; a damaged dump is known by its name."""
    base = os.path.basename(path).lower()
    if base.startswith(("nccl_trace", "fr_dump", "fr_json", "fr_trace", "flight_recorder", "rank_")):
        return True
    try:
        with open(path, "rb") as file:
            return head_looks_like_dump(file.read(4096))
    except OSError:
        return False


def head_looks_like_dump(head: bytes) -> bool:
    """Whether a file's first bytes are those of a dump."""
    if head[:1] == b"\x80":
        if b"version" in head:
            return b"pg_config" in head or b"entries" in head or b"nccl_version" in head
        return b"profiling_name" in head and b"seq_id" in head  # the first recorders wrote the entries alone
    if head.lstrip()[:1] == b"{":
        named = b"collective_seq_id" in head or b"pg_config" in head or b"pg_status" in head
        return named or (b"profiling_name" in head and b"seq_id" in head)
    return False


def _read_chunk(paths: Sequence[str], limits: DumpLimits) -> list[RankDump | SkippedDump]:
    results: list[RankDump | SkippedDump] = []
    for path in paths:
        try:
            results.append(read_file(path, limits))
        except DumpError as error:
            results.append(SkippedDump(path, error.reason, error.detail))
        except MemoryError:
            results.append(SkippedDump(path, "too_large", "out of memory while reading it"))
    return results


def load(
    paths: Sequence[str],
    jobs: int = 1,
    limits: DumpLimits | None = None,
    progress: Callable[[int], None] | None = None,
) -> Loaded:
    """Read files. Files that cannot be read are listed in the result.

    Args:
        paths: files, from `find`.
        jobs: the number of processes; 1 reads in this process.
        limits: limits of one dump.
        progress: called after each chunk with the number of files that are done.
    """
    limits = limits or DumpLimits()
    chunks = [paths[i : i + _CHUNK] for i in range(0, len(paths), _CHUNK)]
    results: list[RankDump | SkippedDump] = []
    if jobs <= 1 or len(chunks) < 2:
        for chunk in chunks:
            results.extend(_read_chunk(chunk, limits))
            if progress is not None:
                progress(len(results))
    else:
        with ProcessPoolExecutor(max_workers=jobs) as pool:
            futures = [pool.submit(_read_chunk, chunk, limits) for chunk in chunks]
            for chunk, future in zip(chunks, futures, strict=True):
                try:
                    results.extend(future.result())
                except BrokenProcessPool:
                    # A worker died, perhaps for lack of memory. Read its files in this process.
                    results.extend(_read_chunk(chunk, limits))
                if progress is not None:
                    progress(len(results))
    dumps = [item for item in results if isinstance(item, RankDump)]
    skipped = [item for item in results if isinstance(item, SkippedDump)]
    return Loaded(one_for_each_rank(dumps, skipped), sorted(skipped, key=lambda item: item.path))


def one_for_each_rank(dumps: list[RankDump], skipped: list[SkippedDump]) -> list[RankDump]:
    """Keep one dump of each rank in each folder: prefer stack frames (pickles), then later, then longer dumps."""
    best: dict[tuple[str, int], RankDump] = {}
    for dump in sorted(dumps, key=lambda d: d.path):
        key = (os.path.dirname(dump.path), dump.rank)
        other = best.get(key)
        if other is None:
            best[key] = dump
            continue
        keep, drop = (dump, other) if _preference(dump) > _preference(other) else (other, dump)
        best[key] = keep
        detail = f"rank {drop.rank} is read from {printable(os.path.basename(keep.path))}"
        skipped.append(SkippedDump(drop.path, "duplicate", detail))
    return [best[key] for key in sorted(best, key=lambda k: (k[1], k[0]))]


def _preference(dump: RankDump) -> tuple[bool, int, int]:
    return any(entry.frames for entry in dump.notable), dump.latest, dump.entries


def sets_of(dumps: Sequence[RankDump]) -> list[list[RankDump]]:
    """Return sets of dumps that belong together: one set, or one for each folder if ranks repeat (several attempts)."""
    ranks = [dump.rank for dump in dumps]
    if len(set(ranks)) == len(ranks):
        return [sorted(dumps, key=lambda d: d.rank)] if dumps else []
    folders: dict[str, list[RankDump]] = {}
    for dump in dumps:
        folders.setdefault(os.path.dirname(dump.path), []).append(dump)
    return [sorted(folders[name], key=lambda d: d.rank) for name in sorted(folders)]


def entry_at(path: str, group: str, seq: int, limits: DumpLimits | None = None) -> DumpEntry | None:
    """Read one collective again, in full; None if the dump no longer has it or cannot be read."""
    try:
        with open(path, "rb") as file:
            return entry_in(file.read(), group, seq, limits)
    except (OSError, DumpError):
        return None


def entry_in(data: bytes, group: str, seq: int, limits: DumpLimits | None = None) -> DumpEntry | None:
    """Return one collective of a dump, in full; of a coalesced group the closing record, which is the last."""
    found = None
    entries = decode(data, limits).get("entries")
    for raw in entries if isinstance(entries, list) else ():
        if isinstance(raw, dict) and entry_seq(raw) == seq and not entry_p2p(raw) and group_name(raw)[0] == group:
            found = raw
    return make_entry(found, 0) if found is not None else None
