"""Pieces of a bundle's files, kept so that a later diagnosis can quote them when the files are gone.

While a bundle is diagnosed, `remembering` keeps the bytes that are read. A `KeptFile` returns these bytes at their
offsets. The rest is blank, with the same number of line breaks, so that line numbers stay right. Secrets are masked
byte for byte, because offsets must not move. `Bundle.masked` makes readers show a mask as `[redacted]`.
"""

from __future__ import annotations

import io
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import pairwise, zip_longest
from typing import TYPE_CHECKING, BinaryIO, Final, cast

import msgspec

from tracecore.signals.bundle.archive import Opener
from tracecore.signals.bundle.opening import pass_over
from tracecore.signals.redaction import hidden

if TYPE_CHECKING:
    from tracecore.signals.bundle.discovery import Bundle

#: Limit of the bytes that are kept of one bundle.
MAX_KEPT: Final = 8 << 20


class Piece(msgspec.Struct, frozen=True, array_like=True):
    """Bytes of a file, or a gap between kept bytes.

    Args:
        offset: the offset of the first byte.
        length: the number of bytes.
        lines: the number of line breaks in them.
        data: the bytes; empty for a gap.
    """

    offset: int
    length: int
    lines: int
    data: bytes = b""


class KeptPieces:
    """The pieces of each file that were read, by path.

    Args:
        limit: total number of bytes to keep.
    """

    def __init__(self, limit: int = MAX_KEPT) -> None:
        self._left = limit
        self._read: dict[str, dict[int, bytes]] = {}
        self._gaps: dict[str, dict[tuple[int, int], int]] = {}
        #: Paths of files that can only be read from their start.
        self.streamed: set[str] = set()
        #: Number of pieces that were left out because of the limit.
        self.left_out = 0

    def read(self, path: str, offset: int, data: bytes) -> None:
        known = self._read.setdefault(path, {})
        same = known.get(offset, b"")
        if same and not data.startswith(same) and not same.startswith(data):
            # Another section of a pasted text: what is blank in one is not in the other.
            lines = zip_longest(same.split(b"\n"), data.split(b"\n"), fillvalue=b"")
            data = b"\n".join(mine if mine.strip() else other for mine, other in lines)
        new = len(data) - len(same)
        if new < 0 or data == same:
            return
        if new > self._left:
            self.left_out += 1
            return
        self._left -= new
        known[offset] = data

    def passed(self, path: str, offset: int, length: int, lines: int) -> None:
        if length:
            self._gaps.setdefault(path, {})[offset, length] = lines

    def paths(self) -> list[str]:
        return sorted({*self._read, *self._gaps})

    def pieces(self, path: str) -> list[Piece]:
        """Return the kept pieces of a file in order of offsets, without overlaps, with secrets masked.

        A gap has line breaks only if a reader passed over it and counted them.
        """
        found: list[tuple[int, bytes]] = []
        for offset, data in sorted(self._read.get(path, {}).items()):
            end = found[-1][0] + len(found[-1][1]) if found else -1
            if offset <= end:
                found[-1] = found[-1][0], found[-1][1] + data[max(end - offset, 0) :]
            else:
                found.append((offset, data))
        pieces = [Piece(offset, len(data), data.count(b"\n"), hidden(data)) for offset, data in found]
        return sorted((*pieces, *self._blanks(path, pieces)), key=lambda piece: piece.offset)

    def _blanks(self, path: str, pieces: Sequence[Piece]) -> Iterator[Piece]:
        """Return the gaps between pieces whose line breaks a reader has counted."""
        passed = self._gaps.get(path, {})
        ends = {p.offset: p.offset + p.length for p in pieces}
        edges = {0, *ends, *ends.values()}
        edges.update(edge for offset, length in passed for edge in (offset, offset + length))
        gaps: dict[tuple[int, int], int | None] = {
            pair: None
            for pair in pairwise(sorted(edges))
            if not any(begin <= pair[0] < end for begin, end in ends.items())
        }
        for (offset, length), lines in sorted(passed.items(), key=lambda item: item[0][1]):
            end = offset + length
            inside = [gap for gap in gaps if offset <= gap[0] and gap[1] <= end]
            free = [gap for gap in inside if gaps[gap] is None]
            if free:
                known = sum(gaps[gap] or 0 for gap in inside)
                known += sum(p.data.count(b"\n", max(0, offset - p.offset), max(0, end - p.offset)) for p in pieces)
                # Only the number of line breaks before the next piece matters, so the last gap gets all of them.
                gaps[free[-1]] = max(0, min(lines - known, free[-1][1] - free[-1][0]))
        return (Piece(begin, end - begin, lines) for (begin, end), lines in gaps.items() if lines)


@contextmanager
def remembering(bundle: Bundle, memory: KeptPieces) -> Iterator[None]:
    """Keep what is read of the bundle's files within this context."""
    opened = [(stream, stream.open) for stream in bundle.streams]
    for stream, opener in opened:
        stream.open = partial(_remembered, opener, stream.path, memory)
    try:
        yield
    finally:
        for stream, opener in opened:
            stream.open = opener


def _remembered(opener: Opener, path: str, memory: KeptPieces) -> BinaryIO:
    return cast(BinaryIO, _Remembered(opener(), path, memory))


class _Remembered(io.RawIOBase):
    """A file that notes in `memory` which bytes of it are read."""

    def __init__(self, file: BinaryIO, path: str, memory: KeptPieces) -> None:
        self._file = file
        self._path = path
        self._memory = memory
        self._at = 0
        if not file.seekable():
            memory.streamed.add(path)

    def seekable(self) -> bool:
        return self._file.seekable()

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._at = self._file.seek(offset, whence)
        return self._at

    def read(self, size: int = -1) -> bytes:
        data = self._file.read(size)
        self._memory.read(self._path, self._at, data)
        self._at += len(data)
        return data

    def pass_over(self, count: int) -> int:
        """Read on without keeping the bytes; return the number of line breaks."""
        lines = pass_over(self._file, count)
        self._memory.passed(self._path, self._at, count, lines)
        self._at += count
        return lines

    def close(self) -> None:
        self._file.close()
        super().close()


class KeptFile(io.RawIOBase):
    """A file made of kept pieces; the rest of it is blank.

    Args:
        pieces: in order of offsets.
        size: the size of the file; the end of the last piece by default.
        streamed: the file can only be read from its start.
    """

    def __init__(self, pieces: Sequence[Piece], size: int | None = None, *, streamed: bool = False) -> None:
        self._pieces = pieces
        self._offsets = [piece.offset for piece in pieces]
        self._end = max([size or 0, *(piece.offset + piece.length for piece in pieces)])
        self._streamed = streamed
        self._at = 0

    def seekable(self) -> bool:
        return not self._streamed

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._end}[whence]
        self._at = max(0, base + offset)
        return self._at

    def read(self, size: int = -1) -> bytes:
        left = max(0, self._end - self._at)
        parts: list[bytes] = []
        # Return at most 1 MiB, as a raw file may, so that reading everything does not make one large blank.
        left = min(left, size if size >= 0 else left, 1 << 20)
        while left > 0:
            part = self._next(left)
            parts.append(part)
            self._at += len(part)
            left -= len(part)
        return b"".join(parts)

    def _next(self, most: int) -> bytes:
        place = bisect_right(self._offsets, self._at) - 1
        following = self._offsets[place + 1] if place + 1 < len(self._offsets) else self._end
        if place < 0 or self._at >= self._pieces[place].offset + self._pieces[place].length:
            return b" " * min(most, following - self._at)
        piece = self._pieces[place]
        begin = self._at - piece.offset
        if piece.data:
            return piece.data[begin : begin + most]
        length = min(most, piece.length - begin)
        breaks = max(0, min(piece.lines - begin, length))
        return b"\n" * breaks + b" " * (length - breaks)
