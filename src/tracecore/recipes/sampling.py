"""Progress lines are sampled: most lines of a training log are of this kind, and each of them matches.

Every progress line of a block is read (`templates`), but only those are handed on without which a conclusion would
change. In each lane (whose line it is, and which kind of line) these are

- both lines around a pause of `PAUSE` seconds or more, so that a stall begins and ends where it did;
- both lines around a step that is not larger than the one before, and the first line of steps that stand still;
- at most one line a second, at least one in 25, so that a run that goes on is seen to go on;
- the last line of a block, since nobody knows yet what follows;
- all lines at the beginning of a stream and at its end, where incidents are. Of a stream that goes on, the end is
  wherever it is read up to: the last lines of every block.

Values that are not finite, checkpoints, evaluation and everything else have guards of their own and are never sampled.
Progress lines of a shape that cannot be read by the block are handed on, all of them.
"""

from __future__ import annotations

import itertools
from collections import OrderedDict
from collections.abc import Sequence
from typing import Final

import numpy as np

from tracecore.ottl.planner.database import Database
from tracecore.ottl.planner.doubts import Doubts
from tracecore.ottl.planner.selection import Selector, long_lines, mapped, plain
from tracecore.recipes.templates import Array, Ask, Ends, Flags, Lines, Reader, Template, learn
from tracecore.signals.logs.selector import Picked

#: Seconds; see above. This and the longest interval together are less than any pause that means something to whoever
#: gets the lines (`pipeline.thinning`: 30).
PAUSE: Final = 5
#: The shortest interval that gives no more than so many lines of a block is taken, else the longest.
EVERY: Final = (1, 2, 5, 10, 25)
ENOUGH: Final = 1
#: Bytes of a stream, at its beginning and at its end, of which no line is left out.
BEGINNING: Final = 2 << 10
END: Final = 16 << 10
#: The same for a stream that goes on: bytes at its beginning, and lines at the end of every block.
LIVE_BEGINNING: Final = 16 << 10
LIVE_END: Final = 6
#: How much of a block is looked at together: as much as stays near the processor.
PIECE: Final = 1 << 19
#: Templates in use, and lines that may be learned from in one block and in one stream.
MAX_READERS: Final = 16
MAX_LEARNED: Final = 4
MAX_LESSONS: Final = 512
#: So many lines of an unknown shape are worth a template.
WORTH: Final = 24
MAX_LANES: Final = 65_536
#: Of a stream that goes on for ever: lines that may be learned from, and templates that streams share.
MAX_LIVE_LESSONS: Final = 64
MAX_SHARED: Final = 1024

_DIGITS = bytes.maketrans(b"0123456789", b"0000000000")
_NONE: Final[Array] = np.zeros(0, np.int64)


class Shapes:
    """What was learned from the lines of some streams, for others like them."""

    def __init__(self) -> None:
        self.templates: OrderedDict[bytes, Template] = OrderedDict()
        self._kinds: dict[bytes, int] = {}
        self._numbers = itertools.count()

    def keep(self, shape: bytes, template: Template) -> None:
        self.templates[shape] = template
        if len(self.templates) > MAX_SHARED:
            self.templates.popitem(last=False)

    def kind(self, template: Template) -> int:
        """The number of a kind of line."""
        number = self._kinds.get(template.kind)
        if number is None:
            if len(self._kinds) >= MAX_LANES:
                self._kinds.clear()
            number = self._kinds[template.kind] = next(self._numbers)
        return number


class Sampler:
    """A selector that samples progress lines. One for each stream: it remembers what it saw last.

    Args:
        events: the database of all guards but those of progress.
        progress: the database of those.
        ask: what recipes and reader make of one line.
        container: lines have a container runtime's header.
        size: of the stream in bytes, where it is known.
        doubts: which finds of the events are looked at twice.
        shapes: of the lines of other streams, where this one goes on for ever and so has no end.
    """

    def __init__(
        self,
        events: Database,
        progress: Database,
        ask: Ask,
        *,
        container: bool = False,
        size: int | None = None,
        doubts: Doubts | None = None,
        shapes: Shapes | None = None,
    ) -> None:
        self._live = shapes is not None
        self._shapes = Shapes() if shapes is None else shapes
        self._beginning = LIVE_BEGINNING if self._live else BEGINNING
        self._most_lessons = MAX_LIVE_LESSONS if self._live else MAX_LESSONS
        self._events = Selector(events, doubts=doubts)
        self._progress = progress
        self._ask = ask
        self._container = container
        self._size = size
        self._offset = 0
        self._readers: list[Reader] = []
        #: Shapes that were tried in vain, and those whose shared template was.
        self._hopeless: set[bytes] = set()
        self._tried: set[bytes] = set()
        self._lessons = 0
        self._ends = Ends()
        #: The last line of each lane: step, second, and whether its step stood still.
        self._last: dict[int, tuple[int, int, bool]] = {}

    def __call__(self, block: bytes) -> Sequence[int] | None:
        text = plain(block, escaped=False)
        found = self._events.scan(text)
        found += long_lines(text)
        returns = b"\r" in text
        picked, borders = self._sampled(text, returns)
        self._offset += len(block)
        last = len(text) - 1
        found += [int(borders[line]) if line < len(borders) else last for line in picked]
        found.sort()
        if text is not block:
            return mapped(text, found, block)
        return found if returns else Picked(found, borders)

    def _sampled(self, text: bytes, returns: bool) -> tuple[list[int], Array]:
        """Numbers of progress lines to hand on, and where all lines end.

        Args:
            text: the block.
            returns: it has carriage returns.
        """
        borders: list[Array] = []
        known: list[Lines] = []
        picked: list[int] = []
        lessons = MAX_LEARNED
        begin, number = 0, 0
        while begin < len(text):
            end = len(text)
            if end - begin > PIECE:
                end = text.rfind(b"\n", begin, begin + PIECE) + 1 or end
            stops = self._ends(text, begin, end, returns=returns)
            starts = np.empty(len(stops) + 1, np.int64)
            starts[0] = begin
            np.add(stops, 1, out=starts[1:])
            if starts[-1] == end:
                starts = starts[:-1]
            claimed, unknown, lessons = self._read(text, starts, end, lessons)
            known += [Lines(lines.number + number, *lines[1:]) if number else lines for lines in claimed]
            picked += [line + number for line in unknown]
            borders.append(stops)
            number += len(stops)
            begin = end
        if not borders:
            return picked, _NONE
        ends = borders[0] if len(borders) == 1 else np.concatenate(borders)
        if known:
            lines = _together(known)
            whole: Flags | None = None
            near_end = self._size is not None and self._offset + len(text) >= self._size - END
            if near_end or self._offset < self._beginning:
                where = self._offset + np.append(ends, len(text) - 1)[lines.number]
                whole = where < self._beginning
                if near_end and self._size is not None:
                    # Text that was changed is shorter than the block: then a little more is left out.
                    whole |= where >= self._size - END
            if self._live:
                whole = np.zeros(len(lines.number), np.bool_) if whole is None else whole
                whole[-LIVE_END:] = True
            picked += self._needed(lines, whole).tolist()
        return picked, ends

    def _read(self, text: bytes, starts: Array, end: int, lessons: int) -> tuple[list[Lines], list[int], int]:
        """Progress lines that were read, numbers of those that could not be, and how many more may be learned from.

        Args:
            text: the block.
            starts: where lines of a piece of it begin.
            end: where the piece ends.
            lessons: how many lines may be learned from.
        """
        claimed: list[Lines] = []
        left = np.arange(len(starts))
        if not self._readers:
            # One look at the beginning saves searching all of the block for what a template will explain.
            self._learn(text, starts, end, self._progress_lines(text, starts, end, left[:256]))
        for reader in tuple(self._readers):
            left = self._claim(reader, text, starts, left, claimed)
        unknown = self._progress_lines(text, starts, end, left)
        while len(unknown) >= WORTH and lessons > 0:
            lessons -= 1
            learned = self._learn(text, starts, end, unknown)
            if learned is None:
                break
            unknown = self._claim(learned, text, starts, np.array(unknown, np.int64), claimed).tolist()
        return claimed, unknown, lessons

    def _claim(self, reader: Reader, text: bytes, starts: Array, left: Array, claimed: list[Lines]) -> Array:
        """Reads those of the lines that have a reader's shape, and gives the others."""
        start = starts if len(left) == len(starts) else starts[left]
        room = int(np.searchsorted(start, len(text) - reader.need, "right"))
        if room <= 0:
            return left
        lines, good = reader.read(text, start[:room], left[:room])
        if not len(lines.number):
            return left
        claimed.append(lines)
        if reader is not self._readers[0]:
            self._readers.remove(reader)
            self._readers.insert(0, reader)
        if good is None:
            return left[room:]
        rest = left[:room][~good]
        return rest if room == len(left) else np.concatenate((rest, left[room:]))

    def _learn(self, text: bytes, starts: Array, end: int, numbers: Sequence[int]) -> Reader | None:
        """A reader for the first of these lines that has a shape nobody tried in vain."""
        for number in numbers:
            start = int(starts[number])
            stop = int(starts[number + 1]) - 1 if number + 1 < len(starts) else end
            line = text[start:stop].rstrip(b"\r\n")
            shape = line[:96].translate(_DIGITS)
            if shape in self._hopeless:
                continue
            shared = self._shapes.templates.get(shape)
            if shared is not None and shape not in self._tried and len(self._tried) < MAX_SHARED:
                self._tried.add(shape)
                return self._use(shared)
            if self._lessons >= self._most_lessons:
                continue
            self._lessons += 1
            header = len(b" ".join(line.split(b" ", 3)[:3])) + 1 if self._container else 0
            template = learn(line, header, self._ask)
            if template is not None:
                self._shapes.keep(shape, template)
                self._tried.add(shape)
                return self._use(template)
            self._hopeless.add(shape)
        return None

    def _use(self, template: Template) -> Reader:
        reader = Reader(template, self._shapes.kind(template))
        self._readers.insert(0, reader)
        del self._readers[MAX_READERS:]
        return reader

    def _progress_lines(self, text: bytes, starts: Array, end: int, numbers: Array) -> list[int]:
        """Those of the lines in which a guard of progress can match."""
        if not len(numbers):
            return []
        if len(numbers) == len(starts):
            first = int(starts[0])
            buffer, borders = text[first:end], starts - first
        else:
            begins = starts[numbers]
            stops: Array = np.concatenate((starts, np.array([end])))[numbers + 1]
            lengths: Array = stops - begins
            buffer = b"".join(map(text.__getitem__, map(slice, begins.tolist(), stops.tolist())))
            borders = np.cumsum(lengths) - lengths
        found: list[int] = []
        self._progress.scan(buffer, _collect, found)
        if not found:
            return []
        lines = np.unique(np.searchsorted(borders, np.array(found, np.int64) - 1, "right") - 1)
        picked: list[int] = numbers[lines].tolist()
        return picked

    def _needed(self, lines: Lines, whole: Flags | None) -> Array:
        """Numbers of the lines that are handed on; `whole` are those that are in any case."""
        number, step, second, lane = lines
        size = len(lane)
        least, most = int(lane.min()), int(lane.max())
        order: Array | None = None
        if least != most:
            # Small numbers are sorted by counting.
            lanes = (lane - least).astype(np.uint16) if most - least < 65_536 else lane
            order = np.argsort(lanes, kind="stable")
            number, step, second, lane = number[order], step[order], second[order], lane[order]
        pick = np.zeros(size, np.bool_) if whole is None else whole if order is None else whole[order]
        rise, pause = step[1:] - step[:-1], second[1:] - second[:-1]
        inner = np.ones(size - 1, np.bool_) if order is None else lane[1:] == lane[:-1]
        # As a rule steps rise within the same second, and only where they do not there is something to find out.
        at = np.flatnonzero((rise <= 0) | (pause != 0))
        within, rises, pauses = inner[at], rise[at], pause[at]
        edges = at[within & ((pauses >= PAUSE) | (pauses < 0) | (rises < 0))]
        pick[edges] = True
        pick[edges + 1] = True
        still = np.zeros(size - 1, np.bool_)
        stood_at = at[within & (rises == 0) & (step[at + 1] >= 0)]
        if len(stood_at):
            still[stood_at] = True
            begins, over = still.copy(), ~still
            begins[1:] &= over[:-1]
            over[1:] &= still[:-1]
            over[:1] = False
            pick[:-1] |= begins | over
            pick[1:] |= over & inner
        later = at[within & (pauses != 0)] + 1
        now, then = second[later], second[later - 1]
        for every in EVERY:
            ticks = later[now // every != then // every]
            if len(ticks) <= ENOUGH:
                break
        pick[ticks] = True
        firsts = np.flatnonzero(np.concatenate(([True], ~inner)))
        lasts = np.append(firsts[1:] - 1, size - 1)
        pick[lasts] = True
        if len(self._last) > MAX_LANES:
            self._last.clear()
        rows = zip(lane[firsts].tolist(), firsts.tolist(), lasts.tolist(), strict=True)
        for who, first, final in rows:
            before = self._last.get(who)
            stood = bool(still[final - 1]) if final > first else False
            if before is None:
                pick[first] = True
            else:
                passed = second[first] - before[1]
                stands = step[first] == before[0] >= 0
                if (
                    not 0 <= passed < PAUSE
                    or second[first] // every != before[1] // every
                    or step[first] < before[0]
                    or (before[2] and not stands)
                ):
                    pick[first] = True
                stood = stood or (bool(stands) and final == first)
            self._last[who] = (int(step[final]), int(second[final]), stood)
        needed: Array = number[pick]
        return needed


def _together(known: list[Lines]) -> Lines:
    """Lines of several shapes as one, in the order of the block."""
    if len(known) == 1:
        return known[0]
    number, step, second, lane = (np.concatenate(parts) for parts in zip(*known, strict=True))
    if (np.diff(number) > 0).all():
        return Lines(number, step, second, lane)
    order = np.argsort(number, kind="stable")
    return Lines(number[order], step[order], second[order], lane[order])


def _collect(number: int, start: int, end: int, flags: int, found: list[int]) -> None:
    found.append(end)
