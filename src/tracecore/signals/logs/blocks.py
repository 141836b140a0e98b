"""A file as blocks of whole lines, in constant memory.

A line ends with a newline or, for progress bars that redraw themselves, with a carriage return. A line longer than
`MAX_LINE` keeps its beginning and its end, as two lines; what is between them is dropped and counted. How the bytes
fall into blocks never changes the lines.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import BinaryIO

import msgspec

from tracecore.signals.arrays import np
from tracecore.signals.stream import Counters

#: What is done once for each block costs little of one so large; much larger ones cost more for fresh memory.
BLOCK = 1 << 20
#: The first one is smaller: in it whoever reads a file gets to know it, and looks at every line for that.
FIRST = 1 << 17
#: How much may be left after the last newline before carriage returns are taken for line ends, too.
CARRY = 1 << 15
#: What is looked at together stays in the cache of one core.
PIECE = 1 << 17
MAX_LINE = 1 << 20
#: Bytes of the end of a longer line that are kept.
LINE_END = 1 << 16
#: How far back a line without a time looks for one: so much of a block has to be kept for the next.
LOOK_BACK = 1 << 14


class Block(msgspec.Struct, gc=False):
    """Whole lines, and where they stand in the file.

    Args:
        data: the lines.
        offset: of the first, in the file.
        line: its number.
        newlines: how many there are. Whoever has counted them says so, and they are not counted again.
    """

    data: bytes
    offset: int
    line: int
    newlines: int = -1


def blocks(file: BinaryIO, counters: Counters, size: int = BLOCK) -> Iterator[Block]:
    """Cuts a file into blocks of at most about `size` bytes that end on a line border (the last one may not)."""
    carry = b""
    offset = 0  # of the carry
    line = 1
    skipping = False
    kept = b""  # the end, so far, of a line that is too long
    for chunk in _chunks(file, counters, size):
        if skipping:
            end = _first_end(chunk)
            rest = chunk if end < 0 else chunk[:end]
            offset += len(rest)
            counters.bytes_dropped += max(0, len(kept) + len(rest) - LINE_END)
            kept = (kept + rest[-LINE_END:])[-LINE_END:]
            if end < 0:
                continue
            yield Block(kept, offset - len(kept), line)
            line += chunk[end - 1 : end] == b"\n"
            skipping, kept, chunk = False, b"", chunk[end:]
        data = carry + chunk if carry else chunk
        cut = _last_end(data, len(carry))
        if cut:
            block = Block(data[:cut], offset, line)
            yield block
            line += newlines(block.data) if block.newlines < 0 else block.newlines
            offset += cut
        carry = data[cut:]
        if len(carry) > MAX_LINE:
            # What is kept has the length of the longest line, so that the block size does not show.
            yield Block(carry[:MAX_LINE], offset, line)
            counters.lines_capped += 1
            kept = carry[max(MAX_LINE, len(carry) - LINE_END) :]
            counters.bytes_dropped += len(carry) - MAX_LINE - len(kept)
            offset += len(carry)
            carry, skipping = b"", True
    if carry or kept:
        yield Block(carry or kept, offset - len(kept), line)


def _chunks(file: BinaryIO, counters: Counters, size: int) -> Iterator[bytes]:
    wanted = min(size, FIRST)
    while chunk := file.read(wanted):
        counters.read(len(chunk))
        yield chunk
        wanted = size


def newlines(data: bytes, start: int = 0, end: int | None = None) -> int:
    """Return the number of newlines between two places; several times faster than `bytes.count` on short lines."""
    end = len(data) if end is None else end
    array = np.frombuffer(data, np.uint8)
    # Piece by piece, so that what is compared stays in the cache.
    return sum(int(np.count_nonzero(array[at : min(at + PIECE, end)] == 10)) for at in range(start, end, PIECE))


def _last_end(data: bytes, known: int) -> int:
    """Just after the last line end; the first `known` bytes have none. 0 when there is none.

    A carriage return that is the last byte so far may yet become a CR LF, so it is not taken as a border.
    """
    newline = data.rfind(b"\n", max(0, known - 1)) + 1
    limit = len(data) - 1
    if len(data) - newline <= CARRY:
        return newline
    return max(newline, data.rfind(b"\r", newline, limit) + 1)


def _first_end(data: bytes) -> int:
    newline = data.find(b"\n")
    carriage = data.find(b"\r", 0, newline if newline >= 0 else len(data))
    return (carriage if carriage >= 0 else newline) + 1 if carriage >= 0 or newline >= 0 else -1
