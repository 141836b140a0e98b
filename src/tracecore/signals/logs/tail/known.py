"""The files that are known, found again by how they begin."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Final

from tracecore.signals.logs.tail.fingerprint import Fingerprint, digest
from tracecore.signals.logs.tail.watched import WatchedFile

#: How much of two files that begin alike is compared, and in which pieces.
COMPARED: Final = 1 << 20
_CHUNK: Final = 1 << 16


class KnownFiles:
    """Files by fingerprint.

    Args:
        fingerprint_size: how long a fingerprint gets.
    """

    def __init__(self, fingerprint_size: int) -> None:
        self._size = fingerprint_size
        self._files: dict[int, WatchedFile] = {}
        self._by_length: dict[int, dict[bytes, list[WatchedFile]]] = {}

    def __iter__(self) -> Iterator[WatchedFile]:
        return iter(self._files.values())

    def __contains__(self, ident: int) -> bool:
        return ident in self._files

    def __len__(self) -> int:
        return len(self._files)

    def add(self, file: WatchedFile) -> None:
        self._files[file.ident] = file
        self._by_length.setdefault(file.fingerprint.length, {}).setdefault(file.fingerprint.digest, []).append(file)

    def remove(self, file: WatchedFile) -> None:
        del self._files[file.ident]
        self._unlist(file)

    def grow(self, file: WatchedFile, fingerprint: Fingerprint) -> None:
        """More of the file's beginning is known."""
        self._unlist(file)
        file.fingerprint = fingerprint
        self._by_length.setdefault(fingerprint.length, {}).setdefault(fingerprint.digest, []).append(file)

    def equals(self, fingerprint: Fingerprint) -> list[WatchedFile]:
        """Files with this beginning that are at a path."""
        alike = self._by_length.get(fingerprint.length, {}).get(fingerprint.digest, ())
        return [file for file in alike if file.placed]

    def match(self, data: bytes, device: int, inode: int) -> WatchedFile | None:
        """The file that begins like this and is at no path: the longest beginning first."""
        for length in sorted(self._by_length, reverse=True):
            if 0 < length <= len(data):
                free = [file for file in self._by_length[length].get(digest(data[:length]), ()) if not file.placed]
                if free:
                    # The newest first, but the very same file before all others.
                    return next((f for f in free if f.device == device and f.inode == inode), free[-1])
        return None

    def _unlist(self, file: WatchedFile) -> None:
        by_digest = self._by_length[file.fingerprint.length]
        files = by_digest[file.fingerprint.digest]
        files.remove(file)
        if not files:
            del by_digest[file.fingerprint.digest]
            if not by_digest:
                del self._by_length[file.fingerprint.length]


def differ(one: int, other: int) -> bool:
    """Return whether two files that begin alike are different: neither is the beginning of the other.

    Of what they have in common the beginning is compared, and the end.
    """
    common = min(os.fstat(one).st_size, os.fstat(other).st_size)
    places = [*range(0, min(common, COMPARED), _CHUNK), max(common - _CHUNK, 0)]
    for at in places:
        size = min(_CHUNK, common - at)
        left, right = os.pread(one, size, at), os.pread(other, size, at)
        size = min(len(left), len(right))
        if left[:size] != right[:size]:
            return True
        if size < _CHUNK:
            break
    return False
