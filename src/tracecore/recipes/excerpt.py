"""Stretches of a block in the place of all of it, where the lines in between would say nothing new.

Most blocks of a long log are like the one before: the same lanes go on, line by line, and nothing else is said. Then it
is enough to see all of them every few seconds of the log: had one paused in between, its time would show it, and had
it gone back, its step, unless it went back by less than it made since. What is no progress is looked for in all of the
block before; so are values that are not finite.
"""

from __future__ import annotations

from functools import partial
from typing import Final, NamedTuple

import numpy as np

from tracecore.recipes.columns import Array, Lines, Starts, seconds
from tracecore.signals.logs.blocks import newlines

#: How much wider the last stretch is: what is remembered of a block are its last lines.
LAST: Final = 4
#: Bytes from one stretch to the next, and of a stretch, at least; lines of the rarest lane that it should hold.
PERIOD: Final = 64 << 10
WIDTH: Final = 1 << 10
LINES: Final = 4
#: Seconds of the log from one stretch to the next, at most: two thirds of a pause.
SECONDS: Final = 20
#: Stretches are this part of a block, or, where that is too rarely, no more than that one.
PART: Final = 12
MOST: Final = 4


class Pace(NamedTuple):
    """Who writes to a log, and what stretches show that all of them go on.

    Args:
        lanes: who.
        width: of a stretch in bytes.
        period: bytes from one stretch to the next.
    """

    lanes: frozenset[int]
    width: int
    period: int


def pace(lines: Lines, size: int) -> Pace | None:
    """The pace of the lines of a block of so many bytes; None where stretches would be most of it."""
    if isinstance(lines.lane, int):
        lanes, rarest = [lines.lane], len(lines.number)
    else:
        found, counts = np.unique(lines.lane, return_counts=True)
        lanes, rarest = found.tolist(), int(counts.min())
    begin, end = seconds(lines.clock[[0, -1]]).tolist()
    width = max(LINES * size // rarest, WIDTH)
    period = max(PERIOD, PART * width)
    if end > begin:
        period = min(period, size * SECONDS // (end - begin))
    return Pace(frozenset(lanes), width, period) if period >= MOST * width else None


class Excerpt(NamedTuple):
    """Some stretches of whole lines, among them the beginning of a block and its end.

    Args:
        text: the stretches, one after the other.
        starts: where their lines begin in the text, and where the next one would.
        stretch: which stretch each line is in.
        offset: where each line begins in the block.
        number: which line of the block it is.
        lines: how many newlines the whole block has.
    """

    text: bytes
    starts: Array
    stretch: Array
    offset: Array
    number: Array
    lines: int


def excerpt(block: bytes, width: int, period: int, find: Starts) -> Excerpt | None:
    """Stretches of about `width` bytes, one in each `period`; None where the block is too short, or its lines too long.

    Args:
        block: whole lines that end with newlines.
        width: of a stretch in bytes.
        period: from the beginning of one to that of the next, at most.
        find: finds lines.
    """
    if len(block) < MOST * period:
        return None
    end = block.find(b"\n", len(block) - LAST * width) + 1
    begins: list[int] = []
    stops: list[int] = []
    count = -(-end // period)
    for at in range(0, end, -(-end // count)):
        first = block.find(b"\n", at) + 1 if at else 0
        stop = block.find(b"\n", first + width) + 1
        if (stops and first < stops[-1]) or not first < stop <= end:
            return None
        begins.append(first)
        stops.append(stop)
    if end == len(block):
        return None
    begins.append(end)
    stops.append(len(block))
    left_out = np.cumsum([0, *map(partial(newlines, block), stops[:-1], begins[1:])])
    text = b"".join(map(block.__getitem__, map(slice, begins, stops)))
    starts = find(text)
    begin = np.array(begins, np.int64)
    size = np.array(stops, np.int64) - begin
    place = np.cumsum(size) - size
    stretch = place.searchsorted(starts[:-1], "right") - 1
    lines = len(stretch)
    offset = starts[:-1] + (begin - place)[stretch]
    return Excerpt(text, starts, stretch, offset, np.arange(lines) + left_out[stretch], lines + int(left_out[-1]))
