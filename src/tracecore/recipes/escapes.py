"""Escapes of Docker's JSON and colours of terminals, taken out of whole blocks."""

from __future__ import annotations

from typing import Final

import numpy as np

from tracecore.ottl.planner.selection import plain
from tracecore.ottl.planner.widening import LINE_BREAK

#: How nearly every entry ends: nothing else in it is escaped, as a rule, but now and then a quote.
_END: Final = b'\\n","stream":"std'
_QUOTE: Final = b'\\"'
_BREAK: Final = bytes((LINE_BREAK,))
#: The longest code of a colour: two of them with red, green and blue.
_LONGEST: Final = 40


def unescaped(block: bytes) -> bytes:
    """A block of entries as the planner's scan wants them; lines stay lines.

    To take one escape after the other out of a block costs as much as ten scans of it.
    """
    escapes = block.count(b"\\") - block.count(_END)
    if escapes and escapes == block.count(_QUOTE):
        block = block.replace(_QUOTE, b'"')
        escapes = 0
    return plain(block, escaped=True) if escapes else block.replace(b"\\", _BREAK)


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
