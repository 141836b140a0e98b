"""Escapes of Docker's JSON and colours of terminals, taken out of whole blocks."""

from __future__ import annotations

from typing import Final

from tracecore.ottl.planner.selection import plain
from tracecore.ottl.planner.widening import LINE_BREAK
from tracecore.signals.arrays import np

_ESCAPE: Final = ord("\\")
_QUOTE: Final = ord('"')
_NEWLINE: Final = ord("n")
#: The longest code of a colour: two of them with red, green and blue.
_LONGEST: Final = 40


def unescaped(block: bytes) -> bytes:
    """A block of entries as the planner's scan wants them; lines stay lines.

    To take one escape after the other out of a block costs as much as ten scans of it. But nearly all are the newline
    at the end of an entry, which becomes a break and a letter that nobody minds, and quotes.
    """
    array = np.frombuffer(block, np.uint8)
    escapes = np.flatnonzero(array[:-2] == _ESCAPE)
    if b"\\" in block[-2:]:
        return plain(block, escaped=True)
    quoted = array[escapes + 1] == _QUOTE
    ends = (array[escapes + 1] == _NEWLINE) & (array[escapes + 2] == _QUOTE)
    if not (quoted | ends).all():
        return plain(block, escaped=True)
    changed = bytearray(block)
    np.frombuffer(changed, np.uint8)[escapes[ends]] = LINE_BREAK
    quotes = escapes[quoted].tolist()
    return b"".join(map(changed.__getitem__, map(slice, [0, *(at + 1 for at in quotes)], [*quotes, len(block)])))


def uncoloured(block: bytes) -> bytes:
    """A block without colours; as it is where it has other codes of terminals, too."""
    if b"\x1b" not in block:
        return block
    # No code goes on in another line.
    last = block.rfind(b"\n", 0, max(len(block) - _LONGEST, 0)) + 1
    array = np.frombuffer(block, np.uint8)
    codes = np.flatnonzero(array[:last] == 0x1B)
    kept = np.ones(last, np.bool_)
    left = codes[array[codes + 1] == 0x5B]
    done = 0
    for length in range(2, _LONGEST):
        byte = array[left + length]
        ended = left[(byte >= 0x40) & (byte <= 0x7E)]
        done += len(ended)
        for place in range(length + 1 if len(ended) else 0):
            kept[ended + place] = False
        left = left[(byte >= 0x30) & (byte <= 0x3F)]
        if not len(left):
            break
    # What is left of one code may be another with what follows it: codes are taken out all at once or not here.
    return array[:last][kept].tobytes() + block[last:] if done == len(codes) else block
