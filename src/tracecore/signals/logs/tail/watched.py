"""A file that is followed: what is known of it, and reading on where reading ended."""

from __future__ import annotations

import collections
import grp
import os
import pwd
import stat
from typing import Any

from tracecore.signals.logs.tail.config import FileLogConfig
from tracecore.signals.logs.tail.fingerprint import Fingerprint
from tracecore.signals.logs.tail.inflation import Inflation
from tracecore.signals.record import Value


class Watched:
    """One file, wherever it is now.

    `offset` counts bytes of what is read: of the file itself, or of what it holds when it is compressed; then `base` is
    where in the file that begins. `delivered` is the offset up to which everything has arrived.
    """

    __slots__ = (
        "attributes", "base", "changed", "compressed", "delete", "delivered", "delivered_record", "device", "fd",
        "fingerprint", "flush_length", "flush_since", "given", "ident", "inflation", "inode", "large_since",
        "lost_since", "mtime", "offset", "outstanding", "partial", "path", "placed", "record", "rest", "size",
        "skipping", "stored", "target", "templates", "unclaimed",
    )  # fmt: skip

    def __init__(self, ident: int, path: str, fingerprint: Fingerprint) -> None:
        self.ident = ident
        self.path = path
        self.fingerprint = fingerprint
        self.fd: int | None = None
        self.device = self.inode = 0
        self.size = 0  # of the file, when it was looked at last
        self.mtime = 0
        self.changed = 0  # when it was seen to change last
        self.offset = 0
        self.delivered = 0
        self.delivered_record = 0
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
        self.unclaimed = 0  # looks since it was not any more
        self.large_since = 0  # when it was found to be larger than rotation would let it become
        self.lost_since = 0  # when it was found to have no path
        self.outstanding: collections.deque[list[int]] = (
            collections.deque()
        )  # offset, arrived?, record of what was handed out
        self.attributes: dict[str, Value] = {}
        self.templates: dict[Any, Any] = {}
        self.stored: bytes = b""
        self.delete = False

    def read(self, size: int) -> bytes:
        """The next bytes, without moving on; the caller moves `offset`."""
        if self.fd is None:
            return b""
        if not self.compressed:
            return os.pread(self.fd, size, self.offset)
        if self.inflation is None or self.inflation.position != self.offset:
            self.inflation = Inflation(self.fd, self.base, self.offset)
        return self.inflation.read(size)

    def close(self) -> None:
        if self.fd is not None:
            os.close(self.fd)
            self.fd = None
        self.inflation = None

    def hand_out(self, safe: int | None = None, arrived: bool = False) -> list[int]:
        """Notes that everything up to here was given out; the note is marked when it has arrived.

        Args:
            safe: up to where, when what follows is held back.
            arrived: nothing was given out, so nothing has to arrive.
        """
        note = [self.offset if safe is None else safe, int(arrived), self.record]
        self.outstanding.append(note)
        return note

    def settle(self) -> None:
        """Moves `delivered` to where everything before has arrived."""
        while self.outstanding and self.outstanding[0][1]:
            self.delivered, _, self.delivered_record = self.outstanding.popleft()


def file_attributes(config: FileLogConfig, path: str, fd: int) -> dict[str, Value]:
    """What the options `include_file_…` ask for."""
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
