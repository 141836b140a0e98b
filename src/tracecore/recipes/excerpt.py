"""Stretches of blocks in the place of all of them, where the lines in between would say nothing new.

Most blocks of a long log are like the one before: the same lanes go on, line by line, and nothing else is said. Then it
is enough to see all of them every few seconds of the log: had one paused in between, its time would show it, and had
it gone back, its step, unless it went back by less than it made since. What is no progress is looked for in all of the
block before; so are values that are not finite.

What is cut out of some blocks is judged together, when the blocks themselves are gone: so they can be small ones that
stay in the cache of a core, and what is done once for each judgement costs little. Only where the stretches are not
enough are the blocks read a second time.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from tracecore.recipes.columns import Array, Lines, Starts, seconds
from tracecore.signals.arrays import np
from tracecore.signals.logs.blocks import LOOK_BACK, Again

#: How much wider the last stretch is: what is remembered are the last lines.
LAST: Final = 4
#: Bytes from one stretch to the next, and of a stretch, at least; lines of the rarest lane that it should hold.
PERIOD: Final = 128 << 10
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
        timed: their lines have times.
    """

    lanes: frozenset[int]
    width: int
    period: int
    timed: bool


def pace(lines: Lines, size: int, *, timed: bool) -> Pace | None:
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
    return Pace(frozenset(lanes), width, period, timed) if period >= MOST * width else None


class Excerpt(NamedTuple):
    """Some stretches of whole lines, among them the beginning of a run of blocks and its end.

    Args:
        text: the stretches, one after the other.
        starts: where their lines begin in the text, and where the next one would.
        stretch: which stretch each line is in.
        offset: where each line begins in the run.
        number: which line of the run it is.
        lines: how many newlines the whole run has.
    """

    text: bytes
    starts: Array
    stretch: Array
    offset: Array
    number: Array
    lines: int


class Run:
    """Blocks one after the other, of which stretches are kept.

    Args:
        pace: of the log.
        starts: finds lines.
        again: gives the bytes of the blocks once more; None where they have to be kept for that.
    """

    def __init__(self, pace: Pace, starts: Starts, again: Again | None = None) -> None:
        self.pace = pace
        self._starts = starts
        self.size = 0
        #: The last bytes of the last block.
        self.end = b""
        self._again = again
        self._kept: list[bytes] = []
        #: Where stretches begin and end, their text, and how many lines there are before each since the one before.
        self._begins: list[int] = []
        self._stops: list[int] = []
        self._texts: list[bytes] = []
        self._gaps: list[int] = []
        self._gap = 0
        self._due = 0
        self._last = b""

    def add(self, block: bytes) -> int | None:
        """Takes a block of whole lines and gives the number of its newlines; None where it or they are unfit."""
        _, width, period, _ = self.pace
        size, base = len(block), self.size
        if size < MOST * width:
            return None
        places: list[tuple[int, int]] = []
        at = max(self._due - base, 0)
        while at <= size - 2 * width:
            first = block.find(b"\n", at) + 1 if at else 0
            stop = block.find(b"\n", first + width) + 1
            if stop <= first or (places and first < places[-1][1]):
                return None
            places.append((first, stop))
            at += period
        last = block.find(b"\n", size - LAST * width) + 1
        if last == size:
            return None
        self._due = base + at
        self._last = block[last:]
        self.end = block[-LOOK_BACK:]
        self.size += size
        if self._again is None:
            self._kept.append(block)
        ends = self._starts.newlines(block)
        lines = before = 0
        for first, stop in places:
            gap = int(np.count_nonzero(ends[before:first]))
            self._gaps.append(self._gap + gap)
            self._gap = 0
            self._begins.append(base + first)
            self._stops.append(base + stop)
            self._texts.append(block[first:stop])
            lines += gap + int(np.count_nonzero(ends[first:stop]))
            before = stop
        gap = int(np.count_nonzero(ends[before:]))
        self._gap += gap
        return lines + gap

    def excerpt(self) -> Excerpt:
        """The stretches of all blocks."""
        last = self.size - len(self._last)
        if self._stops[-1] < last:
            self._begins.append(last)
            self._stops.append(self.size)
            self._texts.append(self._last)
            self._gaps.append(self._gap - self._last.count(b"\n"))
        else:
            self._texts.append(self._last[self._stops[-1] - last :])
            self._stops[-1] = self.size
        text = b"".join(self._texts)
        starts = self._starts(text)
        begin = np.array(self._begins, np.int64)
        size = np.array(self._stops, np.int64) - begin
        left_out = np.cumsum(self._gaps)
        place = np.cumsum(size) - size
        stretch = place.searchsorted(starts[:-1], "right") - 1
        lines = len(stretch)
        offset = starts[:-1] + (begin - place)[stretch]
        return Excerpt(text, starts, stretch, offset, np.arange(lines) + left_out[stretch], lines + int(left_out[-1]))

    def data(self, offset: int) -> bytes:
        """All of the blocks, the first of which begins in this place of the stream."""
        return b"".join(self._kept) if self._again is None else self._again(offset, self.size)
