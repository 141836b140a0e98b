"""Notices of changes in directories by inotify, through the C library. Linux only."""

from __future__ import annotations

import ctypes
import errno
import os
import select
import struct
import tomllib
from pathlib import Path
from typing import Final, NamedTuple

MODIFY: Final = 0x2
ATTRIB: Final = 0x4
MOVED_FROM: Final = 0x40
MOVED_TO: Final = 0x80
CREATE: Final = 0x100
DELETE: Final = 0x200
DELETE_SELF: Final = 0x400
MOVE_SELF: Final = 0x800
UNMOUNT: Final = 0x2000
OVERFLOW: Final = 0x4000
IGNORED: Final = 0x8000
ONLY_DIRECTORIES: Final = 0x1000000
ADD: Final = 0x20000000

_HEADER: Final = struct.Struct("iIII")
_AT_ONCE: Final = 1 << 16


class InotifyEvent(NamedTuple):
    """Something happened.

    Args:
        number: of the watch.
        mask: what.
        name: in the watched directory; empty where it is about the directory itself.
    """

    number: int
    mask: int
    name: str


class Inotify:
    """A queue of announcements.

    Raises:
        OSError: there is no inotify here, or too many of it.
    """

    def __init__(self) -> None:
        library = ctypes.CDLL(None, use_errno=True)
        try:
            self._add, self._remove = library.inotify_add_watch, library.inotify_rm_watch
            begin = library.inotify_init1
        except AttributeError as error:
            raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS)) from error
        self._add.argtypes = (ctypes.c_int, ctypes.c_char_p, ctypes.c_uint32)
        self._fd: int = begin(os.O_NONBLOCK | os.O_CLOEXEC)
        if self._fd < 0:
            raise _error()
        self._poll = select.poll()
        self._poll.register(self._fd, select.POLLIN)

    def add(self, path: str, mask: int) -> int:
        """Watch a directory; gives the number of the watch. One that is watched already keeps its number.

        Raises:
            OSError: it cannot be watched.
        """
        number: int = self._add(self._fd, os.fsencode(path), mask)
        if number < 0:
            raise _error()
        return number

    def remove(self, number: int) -> None:
        """Watch it no longer; nothing happens where it is gone already."""
        self._remove(self._fd, number)

    def read(self) -> list[InotifyEvent]:
        """Return what was announced since the last time, each once."""
        found: dict[bytes, None] = {}
        while True:
            try:
                data = os.read(self._fd, _AT_ONCE)
            except BlockingIOError:
                break
            at = 0
            # A file that is written to line by line is announced as often: equal events are equal bytes.
            while at < len(data):
                end = at + 16 + (data[at + 12] | data[at + 13] << 8)
                found[data[at:end]] = None
                at = end
        events = []
        for one in found:
            number, mask, _, _ = _HEADER.unpack_from(one)
            events.append(InotifyEvent(number, mask, os.fsdecode(one[16:].rstrip(b"\0"))))
        return events

    def wait(self, seconds: float) -> bool:
        """Return whether something is announced within this time."""
        return bool(self._poll.poll(max(seconds, 0.0) * 1000))

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def _error() -> OSError:
    number = ctypes.get_errno()
    return OSError(number, os.strerror(number))


_TABLE: Final = tomllib.loads(Path(__file__).with_name("filesystems.toml").read_text("utf-8"))
_ANNOUNCED, _OTHERS = ({int(number, 16): name for number, name in rows.items()} for rows in _TABLE.values())


def foreign(path: str) -> str:
    """The file system of a path, if not all changes on it are announced; else nothing."""
    room = ctypes.create_string_buffer(512)
    if ctypes.CDLL(None, use_errno=True).statfs(os.fsencode(path), room) != 0:
        return "a file system that cannot be asked"
    kind = ctypes.c_long.from_buffer(room).value & 0xFFFFFFFF
    return "" if kind in _ANNOUNCED else _OTHERS.get(kind, f"file system {kind:#x}")
