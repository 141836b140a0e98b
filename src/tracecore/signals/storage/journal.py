"""A file of keys and values that survives a kill at any instant.

Changes are appended, each with a checksum, and become true as a whole or not at all. A last change that was cut off
by a crash never happened; anything else that does not add up means that the file cannot be trusted, and it is set
aside under another name. What is no longer current is left out when the file is rewritten, next to itself, and put in
its place.
"""

from __future__ import annotations

import ctypes
import errno
import os
import stat
import struct
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

#: The first bytes of the file: what it is, and the version of its format.
MAGIC: Final = b"tracecore storage 1\n"
#: No change is larger; what claims to be is damage.
MAX_CHANGE: Final = 1 << 28
#: Room on the disk that only small changes may use: what was done can be noted when there is no room for more to do.
RESERVE: Final = 1 << 20
#: Changes up to this size are small: positions, and that something is not needed any more.
SMALL: Final = 1 << 14
#: Rewritten when this much is no longer current, and it is more than what is.
GARBAGE: Final = 1 << 20

_HEAD = struct.Struct("<II")  # checksum of the rest, its length
_ENTRY = struct.Struct("<HI")  # length of the key, length of the value + 1; none for a deleted key


class StorageError(Exception):
    """The storage cannot be used now; what it held is unharmed."""


class Corrupt(Exception):
    """The file is not what was written."""


class Journal:
    """Keys and values in one file. Not for several threads.

    Args:
        path: the file; made with mode 0600 when missing.
        fsync: wait for the disk at every change: survives a power cut, not only a kill.

    Raises:
        Corrupt: the file cannot be trusted.
        OSError: it cannot be opened.
    """

    def __init__(self, path: Path, fsync: bool = False) -> None:
        self._path = path
        self._fsync = fsync
        self._index: dict[bytes, tuple[int, int]] = {}
        self._live = 0
        self._reserved = 0  # the file has room on the disk up to here
        self.failed_compactions = 0
        self.torn = 0  # bytes of a change that was cut off
        self.fresh = False  # there was nothing before
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK, 0o600)
        try:
            own(self._fd, path)
            os.fchmod(self._fd, 0o600)
            self._end = self._load()
        except BaseException:
            os.close(self._fd)
            raise
        self._reserve(0)

    def get(self, key: str) -> bytes | None:
        """The value of a key; None where there is none."""
        place = self._index.get(key.encode())
        if place is None:
            return None
        value = os.pread(self._fd, place[1], place[0])
        if len(value) != place[1]:
            raise StorageError(f"{self._path} was cut off while in use")
        return value

    def items(self, prefix: str = "") -> Iterator[tuple[str, bytes]]:
        """Keys that begin like this, in the order in which they were first set, with their values."""
        for name in self.keys(prefix):
            value = self.get(name)
            if value is not None:
                yield name, value

    def keys(self, prefix: str = "") -> list[str]:
        """Return the keys that begin like this, in the order in which they were first set."""
        start = prefix.encode()
        return [key.decode() for key in self._index if key.startswith(start)]

    def update(self, changes: Mapping[str, bytes | None]) -> None:
        """Sets keys, and deletes those whose value is None: all of them or, where it fails, none.

        Raises:
            StorageError: the disk is full or broken; nothing has changed.
        """
        if not changes:
            return
        parts: list[bytes] = []
        places: list[tuple[bytes, tuple[int, int] | None]] = []
        at = self._end + _HEAD.size
        for name, value in changes.items():
            key = name.encode()
            if value is None and key not in self._index:
                continue
            parts += (_ENTRY.pack(len(key), 0 if value is None else len(value) + 1), key, value or b"")
            at += _ENTRY.size + len(key)
            places.append((key, None if value is None else (at, len(value))))
            at += len(value or b"")
        if not places:
            return
        body = b"".join(parts)
        if len(body) > MAX_CHANGE:
            raise StorageError(f"a change of {len(body)} bytes is too large for {self._path}")
        self._append(_HEAD.pack(zlib.crc32(body), len(body)) + body)
        for key, place in places:
            self._place(key, place)
        if self._end - len(MAGIC) - self._live > max(GARBAGE, self._live):
            try:
                self.compact()
            except StorageError:
                # The change is made. For rewriting the file there may be room after the next one.
                self.failed_compactions += 1

    def set(self, key: str, value: bytes) -> None:
        """Sets one key; see `update`."""
        self.update({key: value})

    def delete(self, key: str) -> None:
        """Removes a key, if it is there; see `update`."""
        self.update({key: None})

    def compact(self, directory: Path | None = None) -> None:
        """Rewrites the file with what is current.

        Args:
            directory: where the new file is made; it must be of the same file system.

        Raises:
            StorageError: there is no room for it; the old file goes on.
        """
        if not self._index:
            self._empty()
            return
        beside = (directory or self._path.parent) / f".{self._path.name}.new"
        try:
            # What a killed rewrite left, or what somebody put there, is not written into.
            beside.unlink(missing_ok=True)
            fd = os.open(beside, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise StorageError(f"{beside}: {error.strerror}") from error
        try:
            end = _write(fd, MAGIC, 0)
            index: dict[bytes, tuple[int, int]] = {}
            for key, (offset, length) in self._index.items():
                value = os.pread(self._fd, length, offset)
                body = _ENTRY.pack(len(key), length + 1) + key + value
                index[key] = (end + _HEAD.size + _ENTRY.size + len(key), length)
                end = _write(fd, _HEAD.pack(zlib.crc32(body), len(body)) + body, end)
            os.fsync(fd)
            os.rename(beside, self._path)
        except OSError as error:
            os.close(fd)
            beside.unlink(missing_ok=True)
            raise StorageError(f"{self._path}: {error.strerror}") from error
        os.close(self._fd)
        self._fd, self._index, self._end = fd, index, end
        self._reserved = 0
        self._reserve(0)
        try:
            _sync_directory(self._path.parent)
        except OSError as error:
            raise StorageError(f"{self._path.parent}: {error.strerror}") from error

    @property
    def size(self) -> int:
        """Bytes of the file."""
        return self._end

    @property
    def live(self) -> int:
        """Bytes of what is current."""
        return self._live

    def fileno(self) -> int:
        return self._fd

    def close(self) -> None:
        os.close(self._fd)

    def _append(self, data: bytes) -> None:
        if len(data) > SMALL and not self._reserve(len(data)):
            raise StorageError(f"{self._path}: no room for {len(data)} bytes")
        try:
            end = _write(self._fd, data, self._end)
            if self._fsync:
                os.fdatasync(self._fd)
        except OSError as error:
            # What was written half is cut off, so that the next change does not stand behind rubbish.
            os.ftruncate(self._fd, self._end)
            self._reserved = 0
            raise StorageError(f"{self._path}: {error.strerror}") from error
        self._end = end

    def _reserve(self, more: int) -> bool:
        """Sees to it that there is room on the disk for so many bytes and the reserve; false where there is none."""
        wanted = self._end + more + RESERVE
        if wanted > self._reserved:
            taken = wanted + RESERVE
            if not _allocate(self._fd, self._end, taken - self._end):
                return False
            self._reserved = taken
        return True

    def _empty(self) -> None:
        """Nothing is current: the file becomes short where it is, for which a full disk has room, too."""
        try:
            os.ftruncate(self._fd, len(MAGIC))
        except OSError as error:
            raise StorageError(f"{self._path}: {error.strerror}") from error
        self._end = len(MAGIC)
        self._reserved = 0
        self._reserve(0)

    def _place(self, key: bytes, place: tuple[int, int] | None) -> None:
        old = self._index.pop(key, None) if place is None else self._index.get(key)
        if old is not None:
            self._live -= _ENTRY.size + len(key) + old[1] + _HEAD.size
        if place is not None:
            self._index[key] = place
            self._live += _ENTRY.size + len(key) + place[1] + _HEAD.size

    def _load(self) -> int:
        """Reads all changes; gives where the next one goes."""
        size = os.fstat(self._fd).st_size
        start = os.pread(self._fd, len(MAGIC), 0)
        if len(start) < len(MAGIC) and MAGIC.startswith(start):
            os.ftruncate(self._fd, 0)
            self.fresh = True
            return _write(self._fd, MAGIC, 0)
        if start != MAGIC:
            raise Corrupt("it does not begin like one of ours")
        at = len(MAGIC)
        while at < size:
            head = os.pread(self._fd, _HEAD.size, at)
            if len(head) < _HEAD.size:
                break
            checksum, length = _HEAD.unpack(head)
            if length > MAX_CHANGE or not length:
                raise Corrupt(f"impossible length at byte {at}")
            if at + _HEAD.size + length > size:
                break
            body = os.pread(self._fd, length, at + _HEAD.size)
            if zlib.crc32(body) != checksum:
                raise Corrupt(f"wrong checksum at byte {at}")
            self._replay(body, at + _HEAD.size)
            at += _HEAD.size + length
        if at < size:
            self.torn = size - at
            os.ftruncate(self._fd, at)
        return at

    def _replay(self, body: bytes, offset: int) -> None:
        at = 0
        while at < len(body):
            if at + _ENTRY.size > len(body):
                raise Corrupt(f"half an entry at byte {offset + at}")
            key_length, marked = _ENTRY.unpack_from(body, at)
            at += _ENTRY.size
            key = body[at : at + key_length]
            at += key_length
            length = max(marked - 1, 0)
            if at + length > len(body):
                raise Corrupt(f"half an entry at byte {offset + at}")
            self._place(key, (offset + at, length) if marked else None)
            at += length


def own(fd: int, path: Path) -> None:
    """Whether this is a file of ours: a link or a pipe that somebody put in its place is not touched.

    Raises:
        OSError: it is none.
    """
    status = os.fstat(fd)
    if not stat.S_ISREG(status.st_mode) or status.st_nlink > 1 or status.st_uid not in (os.geteuid(), 0):
        raise OSError(errno.EPERM, "not a file of ours: somebody else put it there", str(path))


def _write(fd: int, data: bytes, offset: int) -> int:
    """Writes all of it; gives the end."""
    view = memoryview(data)
    while view:
        written = os.pwrite(fd, view, offset)
        offset += written
        view = view[written:]
    return offset


_KEEP_SIZE: Final = 1
_fallocate = getattr(ctypes.CDLL(None, use_errno=True), "fallocate64", None)
if _fallocate is not None:
    _fallocate.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)


def _allocate(fd: int, offset: int, length: int) -> bool:
    """Takes room on the disk behind the end of a file, which stays where it is; false where the disk is full.

    Where a file system cannot do that, a full disk is noticed when it is written to.
    """
    if _fallocate is None or _fallocate(fd, _KEEP_SIZE, offset, length) == 0:
        return True
    return ctypes.get_errno() not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def _sync_directory(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
