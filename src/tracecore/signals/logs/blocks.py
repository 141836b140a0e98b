"""Read a file as blocks of whole lines, in constant memory.

A line ends with a newline, or with a carriage return (progress bars). Of a line longer than `MAX_LINE`, the beginning
and the end become two lines, and the dropped bytes in between are counted. The block size never changes the lines.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import BinaryIO

import msgspec

from tracecore.signals.arrays import np
from tracecore.signals.stream import Counters

#: Large enough that the work per block hardly counts. Larger blocks cost more for fresh memory.
BLOCK = 1 << 20
#: The first block is smaller, because the sampler learns the shapes of a file from it line by line.
FIRST = 1 << 17
#: If more bytes than this follow the last newline, a block may also end with a carriage return.
CARRY = 1 << 15
#: Bytes that fit into the cache of one core.
PIECE = 1 << 17
MAX_LINE = 1 << 20
#: Bytes kept of the end of a longer line.
LINE_END = 1 << 16
#: How far back the time for a line without one is looked for. This many bytes of a block are kept for the next.
LOOK_BACK = 1 << 14


class Block(msgspec.Struct, gc=False):
    """Whole lines, and their place in the file.

    Args:
        data: the lines.
        offset: of the first line.
        line: number of the first line.
        newlines: their count, set by a consumer that knows it; otherwise `blocks` counts them.
    """

    data: bytes
    offset: int
    line: int
    newlines: int = -1


def blocks(file: BinaryIO, counters: Counters, size: int = BLOCK) -> Iterator[Block]:
    """Yield blocks of about `size` bytes at most that end with a line end, except perhaps the last."""
    carry = b""
    offset = 0  # of the carry
    line = 1
    skipping = False
    kept = b""  # the end so far of a line that is too long
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
            # Keep exactly `MAX_LINE` bytes, so that the result does not depend on the block size.
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
    """Count the newlines between two places, several times faster than `bytes.count` if lines are short."""
    end = len(data) if end is None else end
    array = np.frombuffer(data, np.uint8)
    return sum(int(np.count_nonzero(array[at : min(at + PIECE, end)] == 10)) for at in range(start, end, PIECE))


def _last_end(data: bytes, known: int) -> int:
    """Return the place after the last line end, or 0. The first `known` bytes have no line end.

    A carriage return in the last byte may be half of a CR LF, so it does not count.
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
