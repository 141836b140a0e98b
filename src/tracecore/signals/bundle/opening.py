"""Functions that walk directories, and open files, pipes and compressed files so that they can be read repeatedly."""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO, cast

from tracecore.signals import folders
from tracecore.signals.bundle import archive
from tracecore.signals.bundle.archive import BundleLimits, Opener

#: Limit of the bytes of standard input that are copied.
GIVEN = 64 << 30


TAIL = 32 * 1024


def walk(root: Path, skip: Callable[[str, str], None]) -> Iterator[tuple[str, str]]:
    """Return every file below a directory and its relative path, sorted by name.

    Links to directories are not entered.
    """
    for folder, files in folders.walk(root, lambda problem: skip(str(problem.filename), archive.reason(problem))):
        here = Path(folder)
        # Making a path object for every file costs more than opening the file.
        shown = "" if str(here) == "." else os.path.join(here, "")
        below = "" if here == root else here.relative_to(root).as_posix() + "/"
        for name in files:
            yield shown + name, below + name


def not_regular(mode: int) -> str:
    if stat.S_ISFIFO(mode):
        return "a pipe: give what comes out of it as standard input, `tracecore diagnose -`"
    return "a socket" if stat.S_ISSOCK(mode) else "a device"


def descriptor(name: str) -> int | None:
    """Return the descriptor for a path like `/dev/fd/3` or `-`; None for other paths."""
    if name in ("-", "/dev/stdin"):
        return 0
    for prefix in ("/dev/fd/", "/proc/self/fd/"):
        if name.startswith(prefix) and name[len(prefix) :].isdigit():
            return int(name[len(prefix) :])
    return None


class _Copy:
    """Opens a temporary file without a name, any number of times."""

    def __init__(self, file: BinaryIO, size: int) -> None:
        self._file = file
        self.size = size

    def __call__(self) -> BinaryIO:
        return open(f"/proc/self/fd/{self._file.fileno()}", "rb", buffering=0)


def spool(number: int) -> tuple[_Copy, bool]:
    """Make an open file readable again, by a copy if necessary. Also return whether the copy is complete."""
    if stat.S_ISREG(os.fstat(number).st_mode):
        file = cast(BinaryIO, os.fdopen(os.dup(number), "rb", buffering=0))
        return _Copy(file, os.fstat(number).st_size), True
    copy = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115
    size = 0
    while size < GIVEN and (chunk := os.read(number, 1 << 20)):
        size += copy.write(chunk) or 0
    whole = size < GIVEN or not os.read(number, 1)
    return _Copy(cast(BinaryIO, copy), size), whole


def inside(path: str, real: str) -> bool:
    return os.path.commonpath((os.path.realpath(path), real)) == real


def open_file(path: str) -> BinaryIO:
    return open(path, "rb", buffering=0)


def decompressed(opener: Opener, kind: str, compressed: int, limits: BundleLimits) -> BinaryIO:
    return archive.decompress(opener(), kind, compressed, limits)


def aside(opener: Opener, most: int) -> BinaryIO:
    """Return a copy that can be read from its end. Small copies are in memory."""
    copy = tempfile.SpooledTemporaryFile(max_size=16 << 20)  # noqa: SIM115
    size = 0
    with opener() as file:
        while chunk := file.read(1 << 20):
            size += len(chunk)
            if size > most:
                copy.close()
                raise archive.Bomb(f"a zip of more than {most} bytes inside of an archive")
            copy.write(chunk)
    copy.seek(0)
    return cast(BinaryIO, copy)


def exactly(file: BinaryIO, size: int) -> bytes:
    parts: list[bytes] = []
    while size > 0 and (chunk := file.read(size)):
        parts.append(chunk)
        size -= len(chunk)
    return b"".join(parts)


def pass_over(file: BinaryIO, count: int) -> int:
    """Skip this many bytes and return the number of line breaks in them."""
    if (own := getattr(file, "pass_over", None)) is not None:
        return int(own(count))
    lines = 0
    while count > 0 and (chunk := file.read(min(count, 1 << 20))):
        lines += chunk.count(b"\n")
        count -= len(chunk)
    return lines


def end_of_file(file: BinaryIO, head: bytes, size: int | None) -> tuple[bytes, int | None]:
    """Return the last bytes of a file whose head was read, and its size; by seeking if possible, else by reading on."""
    if file.seekable():
        end = file.seek(0, os.SEEK_END)
        file.seek(max(end - TAIL, len(head)))
        return exactly(file, TAIL), size
    last = b""
    read = len(head)
    while chunk := file.read(1 << 20):
        last = (last + chunk)[-TAIL:]
        read += len(chunk)
    return last, read


def stem(name: str) -> str:
    """Return a name without the suffix of a compression."""
    for suffix in (".gz", ".bz2", ".xz", ".zst", ".zstd"):
        if name.endswith(suffix):
            return name[: -len(suffix)]
    return name
