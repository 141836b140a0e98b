"""Files that are at no path any more, moved or deleted: read to their end while they are open, then remembered.

There may be thousands of them, and nearly all are closed and will never be seen again: they are not looked at.
"""

from __future__ import annotations

import os
from typing import Final

from tracecore.signals.logs.tail import fingerprint
from tracecore.signals.logs.tail.config import SECOND, FileLogConfig
from tracecore.signals.logs.tail.watched import WatchedFile

#: A file without a path is held open until it has not grown for so long.
LOST: Final = 10 * SECOND
#: Files that are remembered after they are gone.
MAX_GONE: Final = 10_000
#: A file that is gone and was shorter than a fingerprint is remembered for so many looks: others may begin so, too.
BRIEFLY: Final = 3


class UnlinkedFiles:
    """The files that are known and at no path.

    Args:
        config: the options.
    """

    def __init__(self, config: FileLogConfig) -> None:
        self._config = config
        self._files: dict[int, WatchedFile] = {}
        #: Those of them that may be open, and those that are not remembered for long.
        self._open: dict[int, WatchedFile] = {}
        self._brief: dict[int, WatchedFile] = {}

    @property
    def open(self) -> bool:
        """Return whether some may still be written to."""
        return bool(self._open)

    def add(self, file: WatchedFile) -> None:
        """It has no path any more."""
        self._files[file.ident] = file
        if file.fd is not None:
            self._open[file.ident] = file
        if file.fingerprint.length < self._config.fingerprint_size:
            self._brief[file.ident] = file

    def remove(self, file: WatchedFile) -> None:
        """It was found at a path, or is forgotten."""
        for held in (self._files, self._open, self._brief):
            held.pop(file.ident, None)

    def growing(self, now: int) -> list[WatchedFile]:
        """Return the open files in which something is left to read."""
        found = []
        for file in list(self._open.values()):
            if file.fd is None:
                del self._open[file.ident]
                continue
            file.lost_since = file.lost_since or now
            data, compressed = fingerprint.first_bytes(
                file.fd, self._config.fingerprint_size, bool(self._config.compression)
            )
            if compressed != file.compressed or not file.fingerprint.begins(data):
                file.close()  # truncated: what is in it now is read by the path
                continue
            status = os.fstat(file.fd)
            if status.st_size != file.size:
                file.changed = now
            file.size = file.target = status.st_size
            if not file.compressed and status.st_size > file.offset:
                found.append(file)
            if now - max(file.lost_since, file.changed) > LOST and file.exhausted:
                file.close()
        return found

    def out_of_reach(self) -> dict[str, int]:
        """Bytes that have not arrived, of files that are gone: with the last handle they are lost."""
        return {
            file.path: left
            for file in self._open.values()
            if file.fd is not None and not file.compressed and (left := _unlinked_size(file.fd) - file.delivered) > 0
        }

    def gone(self) -> list[WatchedFile]:
        """Return the files to forget: they cannot be found again, or are too many."""
        old: list[WatchedFile] = []
        for file in self._brief.values():
            if file.fd is None and not file.outstanding:
                file.unclaimed += 1
                if file.unclaimed > BRIEFLY:
                    old.append(file)
        if len(self._files) - len(old) > MAX_GONE:
            chosen = {file.ident for file in old}
            rest = [
                file
                for file in self._files.values()
                if file.fd is None and not file.outstanding and file.ident not in chosen
            ]
            old += rest[: max(len(rest) - MAX_GONE, 0)]
        return old


def _unlinked_size(fd: int) -> int:
    """The size of a file that has no name; none where it has one."""
    status = os.fstat(fd)
    return 0 if status.st_nlink else status.st_size
