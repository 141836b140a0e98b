"""A file that is followed: what is known of it, and reading on where reading ended."""

from __future__ import annotations

import collections
import grp
import os
import pwd
import stat
from collections.abc import Callable
from typing import Any, Final

from tracecore.signals.logs.tail.config import FileLogConfig
from tracecore.signals.logs.tail.fingerprint import Fingerprint
from tracecore.signals.logs.tail.inflation import Inflation
from tracecore.signals.record import Value

#: Pieces of a file that have arrived behind others that have not, of which a position tells.
MOST_AHEAD: Final = 512


class HandedOut:
    """Something that was handed out.

    Args:
        end: the offset up to which everything was handed out with it.
        record: entries up to there.
        skipping: the rest of a long entry is being dropped there.
        arrived: it has arrived.
    """

    __slots__ = ("arrived", "end", "record", "skipping")

    def __init__(self, end: int, record: int, skipping: bool, arrived: bool) -> None:
        self.end = end
        self.record = record
        self.skipping = skipping
        self.arrived = arrived


class WatchedFile:
    """One file, wherever it is now.

    `offset` counts bytes of what is read: of the file itself, or of what it holds when it is compressed; then `base` is
    where in the file that begins. `delivered` is the offset up to which everything has arrived.
    """

    __slots__ = (
        "ahead", "attributes", "base", "born", "changed", "compressed", "delivered", "delivered_record",
        "delivered_skipping", "device", "fd", "fingerprint", "flush_length", "flush_since", "given", "ident",
        "inflation", "inode", "large_since", "lost_since", "offset", "outstanding", "partial",
        "path", "placed", "record", "rest", "size", "skipping", "stored", "target", "unclaimed",
    )  # fmt: skip

    def __init__(self, ident: int, path: str, fingerprint: Fingerprint) -> None:
        self.ident = ident
        self.path = path
        self.fingerprint = fingerprint
        self.fd: int | None = None
        self.device = self.inode = 0
        self.size = 0  # of the file, when it was looked at last
        self.changed = 0  # when it was seen to change last
        self.offset = 0
        self.delivered = 0
        self.delivered_record = 0
        self.delivered_skipping = False
        self.given = 0  # the offset up to which everything was handed out
        self.base = 0
        self.compressed = False
        self.inflation: Inflation | None = None
        self.target = 0  # read to here before looking again
        self.record = 0  # entries read so far
        self.skipping = False  # dropping the rest of an entry that was too long
        self.rest = 0  # bytes after the last whole entry
        self.flush_length = 0
        self.flush_since = 0
        self.partial = False  # the container runtime cut the last line: the next belongs to it
        self.placed = False  # it was found at a path
        self.born = 0  # the look at which it was found, at a path that was new, too
        self.unclaimed = 0  # looks since it was not any more
        self.large_since = 0  # when it was found to be larger than rotation would let it become
        self.lost_since = 0  # when it was found to have no path
        self.outstanding: collections.deque[HandedOut] = collections.deque()  # what was handed out, in order
        # What arrived before a restart and lies further on: where it begins and ends, and the entries up to there.
        self.ahead: collections.deque[tuple[int, int, int]] = collections.deque()
        self.attributes: dict[str, Value] = {}
        self.stored: bytes = b""

    def read(self, size: int) -> bytes:
        """The next bytes, without moving on; the caller moves `offset`."""
        if self.fd is None:
            return b""
        if not self.compressed:
            return os.pread(self.fd, size, self.offset)
        if self.inflation is None or self.inflation.position != self.offset:
            self.inflation = Inflation(self.fd, self.base, self.offset)
        return self.inflation.read(size)

    @property
    def exhausted(self) -> bool:
        """Return whether there is nothing to read in it now."""
        return not self.compressed and self.size <= self.offset

    def close(self) -> None:
        if self.fd is not None:
            os.close(self.fd)
            self.fd = None
        self.inflation = None

    def hand_out(self, end: int, arrived: bool = False) -> HandedOut:
        """Notes that everything up to here was given out.

        Args:
            end: up to where.
            arrived: nothing was given out, so nothing has to arrive.
        """
        note = HandedOut(end, self.record, self.skipping, arrived)
        self.outstanding.append(note)
        return note

    def settle(self) -> None:
        """Moves `delivered` to where everything before has arrived."""
        while self.outstanding and self.outstanding[0].arrived:
            note = self.outstanding.popleft()
            self.delivered, self.delivered_record = note.end, note.record
            self.delivered_skipping = note.skipping

    def beyond(self) -> tuple[tuple[int, int, int], ...]:
        """Return what has arrived behind a gap: where it begins and ends, and the entries up to there."""
        found: list[tuple[int, int, int]] = []
        at = self.delivered
        whole = True
        for note in self.outstanding:
            # Notes that do not lead further belong to what the next one ends.
            whole = whole and note.arrived
            if note.end > at:
                # Where the rest of a long entry is being dropped, reading cannot begin.
                if whole and not note.skipping:
                    found.append((at, note.end, note.record))
                at, whole = note.end, True
        merged: list[tuple[int, int, int]] = []
        for start, end, record in (*found, *self.ahead):
            if merged and merged[-1][1] == start:
                merged[-1] = (merged[-1][0], end, record)
            elif len(merged) < MOST_AHEAD:
                merged.append((start, end, record))
        return tuple(merged)


def file_attributes(config: FileLogConfig, path: str, fd: int) -> dict[str, Value]:
    """Return what the options `include_file_…` ask for."""
    found: dict[str, Value] = {}
    if config.include_file_name:
        found["log.file.name"] = os.path.basename(path)
    if config.include_file_path:
        found["log.file.path"] = path
    if config.include_file_owner_name or config.include_file_owner_group_name or config.include_file_permissions:
        status = os.fstat(fd)
        if config.include_file_owner_name:
            found["log.file.owner.name"] = _user(status.st_uid)
        if config.include_file_owner_group_name:
            found["log.file.owner.group.name"] = _group(status.st_gid)
        if config.include_file_permissions:
            found["log.file.permissions"] = f"{stat.S_IMODE(status.st_mode) & 0o777:03o}"
    if config.include_file_name_resolved or config.include_file_path_resolved:
        resolved = os.path.realpath(path)
        if config.include_file_name_resolved:
            found["log.file.name_resolved"] = os.path.basename(resolved)
        if config.include_file_path_resolved:
            found["log.file.path_resolved"] = resolved
    return found


def _user(number: int) -> str:
    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:
        return str(number)


def _group(number: int) -> str:
    try:
        return grp.getgrgid(number).gr_name
    except KeyError:
        return str(number)


def delete(file: WatchedFile, report: Callable[[str], Any]) -> None:
    """Delete a file that was read."""
    try:
        os.unlink(file.path)
    except OSError as error:
        report(f"{file.path} cannot be deleted: {error.strerror}")
    file.close()
