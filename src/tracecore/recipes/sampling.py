"""Progress lines are sampled: most lines of a training log are of this kind, and each of them matches.

Every progress line of a block is read (`templates`), or with spans those of some stretches, where a long log goes on as
before (`excerpt`). Only those are handed on without which a conclusion would change. In each lane (whose line it is,
and which kind of line) these are

- both lines around a pause, so that a stall begins and ends where it did;
- both lines around a step that is not larger than the one before, and the first line of steps that stand still;
- now and then one, so that a run that goes on is seen to go on;
- lines at the beginning of a stream and at its end, where incidents are.

Values that are not finite, checkpoints, evaluation and everything else have guards of their own and are never sampled.
Progress lines of a shape that cannot be read by the block are handed on, all of them. A value with more digits than
before makes a line of another shape.

With spans, a line that is handed on stands for those of its lane that follow it, up to the last before the next one:
it is kept back until that is known, and then handed on together with that one (`Report`), by blocks that may be long
gone. Around what is no progress, the line before and some after it are handed on, so that whoever asks whether the
run survived it gets an answer. Without spans, everything is handed on in its block: then one line in `EVERY` seconds
is needed, and the last line of the block, since nobody knows yet what follows. Of a stream that goes on, the end is
wherever it is read up to: there, of every second the first lines, and the last ones as long as they are not many. So of
a run that makes a few steps a second all are handed on, however they are read; of a faster one those that other ranks
made at the same time; and what is written all of a sudden, whole.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from tracecore.ottl.planner.database import Database
from tracecore.ottl.planner.doubts import Doubts, lines_end
from tracecore.ottl.planner.selection import Selector, ends, plain
from tracecore.recipes.columns import Array, Flags, Lines, Starts, seconds, together
from tracecore.recipes.escapes import uncoloured, unescaped
from tracecore.recipes.excerpt import MOST, Excerpt, Pace, Run, pace
from tracecore.recipes.lanes import MAX_LANES, Compared, Lanes, Standing, compare
from tracecore.recipes.readers import MAX_LESSONS, Readers
from tracecore.recipes.templates import Ask, Lessons, Template
from tracecore.signals.arrays import np
from tracecore.signals.logs.blocks import BLOCK, Again, Block, newlines
from tracecore.signals.logs.selector import FAILED_GROUP, Answer, Picked, Report

#: Seconds of a pause. Without spans, this and the longest interval together are less than any pause that means
#: something to whoever gets the lines (stalls are looked for from 60 s on); with spans, this alone.
PAUSE: Final = 5
PAUSE_OF_SPANS: Final = 30
#: Seconds between lines that are handed on in any case: the shortest interval that gives no more than `ENOUGH` lines
#: of a block is taken, else the longest.
EVERY: Final = (1, 2, 5, 10, 25)
SPANS: Final = (600, 1800, 3600, 14_400)
ENOUGH: Final = 1
ENOUGH_OF_SPANS: Final = 24
#: Without spans: bytes of a stream, at its beginning and at its end, of which no line is left out.
BEGINNING: Final = 2 << 10
END: Final = 16 << 10
#: The same for a stream that goes on. Its end is all of a block that holds what was just written, little of a larger
#: one, and nothing of a full one, which was written a while ago and is followed by more.
LIVE_BLOCK: Final = 64 << 10
LIVE_END: Final = 4 << 10
LIVE_FULL: Final = 3 << 18
#: There, so many first lines of each second; and so many last lines, once and then for each second that passes.
LIVE_LINES: Final = 3
LIVE_BURST: Final = 96
LIVE_RATE: Final = 2
#: With spans: lines at the end of a stream that are handed on for each lane, fewer of each where there are many.
TAIL: Final = 32
LEAST_TAIL: Final = 4
MOST_TAIL: Final = 16
#: Bytes at the end; of a lane that ended before them only the last line is handed on.
RECENT: Final = 4 << 20
#: With spans: how much that is no progress is looked at in a block, and lines after the last of it.
MAX_EVENTS: Final = 8
AFTER: Final = 6
#: Blocks that are read whole after stretches of one did not do, at most.
MOST_WAITED: Final = 15
#: Bytes of a block of which stretches are expected to be enough, and of those that are judged together.
SMALL: Final = 1 << 18
TOGETHER: Final = 8 << 20
#: Of a stream that goes on for ever: lines that may be learned from.
MAX_LIVE_LESSONS: Final = 64

_NONE: Final[Array] = np.zeros(0, np.int64)


class Shapes:
    """What streams have in common that are read one after the other, or by turns. Not for two threads at a time."""

    def __init__(self) -> None:
        #: Memory to work with: there may be thousands of streams, of which one is looked at at a time.
        self.starts = Starts()
        self._kinds: dict[bytes, int] = {}
        self._numbers = itertools.count()

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
        lessons: what was learned from other streams of this format.
        form: of the stream: `text`, or one of container runtimes, `cri` and `docker`.
        size: of the stream in bytes, where it is known.
        doubts: which finds of the events are looked at twice.
        shapes: of the lines of this and other streams.
        live: the stream goes on for ever, and so has no end.
        spans: lines may stand for those that follow them.
    """

    def __init__(
        self,
        events: Database,
        progress: Database,
        ask: Ask,
        lessons: Lessons,
        *,
        form: str = "text",
        size: int | None = None,
        doubts: Doubts | None = None,
        shapes: Shapes,
        live: bool = False,
        spans: bool = False,
    ) -> None:
        self._spans = spans
        self._live = live
        self._shapes = shapes
        self._beginning = 0 if self._live or spans else BEGINNING
        self._burst, self._second = LIVE_BURST, -1
        self._events = Selector(events, doubts=doubts)
        self._form = form
        self._size = size
        self._offset = 0
        self._starts = self._shapes.starts
        most = MAX_LIVE_LESSONS if self._live else MAX_LESSONS
        self._readers = Readers(progress, ask, lessons, form, self._shapes.kind, self._starts, most)
        self._lanes = Lanes()
        #: Of each lane of a stream that goes on, the second of its last line, and how many lines that has.
        self._seconds: dict[int, tuple[int, int]] = {}
        self._lines = 1
        self._standing: dict[int, Standing] = {}
        #: What the last block that was read whole was like, and blocks to read whole before stretches are tried again.
        self._pace: Pace | None = None
        #: Nothing but what is no progress, so far.
        self._barren = False
        #: Blocks that nothing has been said of yet.
        self._run: Run | None = None
        self._wait = 0
        self._vain = 0

    def __call__(self, block: bytes) -> Sequence[int] | None:
        return self._answer(block, self._looked(block))

    def size(self, most: int) -> int:
        """Bytes of the next block to take."""
        pace = self._pace
        held = pace is not None and pace.timed and not self._wait and MOST * pace.width <= SMALL
        return min(SMALL, most) if held or self._barren else most

    def take(self, block: Block, again: Again | None, *, hold: bool) -> list[Answer]:
        """What can be said now, in the order of the stream: of this block, and of those before that were kept back.

        Args:
            block: the next one.
            again: gives bytes of the stream once more; None where that cannot be done.
            hold: the answer may wait for the next blocks.
        """
        looked = self._looked(block.data)
        if not (hold and self._held(block, looked, again)):
            earlier = self.rest()
            # Of lines that are too long not all bytes come here.
            self._offset, self._lines = block.offset, block.line
            return [*earlier, (block, self._answer(block.data, looked))]
        return self.rest() if self._run is not None and self._run.size >= TOGETHER else []

    def rest(self) -> list[Answer]:
        """What can be said of the blocks that were kept back, now that no more of them are waited for."""
        run, self._run = self._run, None
        if run is None:
            return []
        picked = self._judged(run, [])
        if picked is not None:
            return [(Block(run.end, self._offset - len(run.end), self._lines), picked)]
        answers: list[Answer] = []
        for data in _parts(run.data(self._offset)):
            block = Block(data, self._offset, self._lines)
            answers.append((block, self._whole(data, self._plain(data), [], [], spans=True)))
        return answers

    def _looked(self, block: bytes) -> _Looked:
        """What there is in a block that is no progress."""
        text = self._plain(block)
        lines = self._events.lines(text)
        found: list[int] = []
        if len(lines):
            found = np.minimum(lines_end(block, ends(block), lines), len(block) - 1).tolist()
        return _Looked(text, found, self._spans and not (found and FAILED_GROUP in text))

    def _answer(self, block: bytes, looked: _Looked) -> Sequence[int] | None:
        """The answer for a block by itself."""
        text, found, spans = looked
        reports: list[Report] = [] if spans else self._close()
        if not found and spans:
            picked = self._nothing(block, text)
            if picked is None:
                picked = self._glance(block, reports)
            if picked is not None:
                return picked
        return self._whole(block, text, found, reports, spans=spans)

    def _held(self, block: Block, looked: _Looked, again: Again | None) -> bool:
        """Keeps a block back, if stretches of it and others may be enough."""
        pace = self._pace if self._run is None else self._run.pace
        if looked.found or not looked.spans or pace is None or not pace.timed or not self._glanceable(block.data):
            return False
        run = Run(pace, self._starts, again) if self._run is None else self._run
        lines = run.add(block.data)
        if lines is None:
            return False
        if self._run is None:
            self._run, self._offset, self._lines = run, block.offset, block.line
        block.newlines = lines
        return True

    def _plain(self, block: bytes) -> bytes:
        """A block as it is searched for what is no progress: without escapes and codes of terminals, line by line."""
        return plain(uncoloured(unescaped(block) if self._form == "docker" else block), escaped=False)

    def _nothing(self, block: bytes, text: bytes) -> Picked | None:
        """The answer for a block without any progress, in a stream that had none before."""
        self._barren = not (self._readers or self._standing or self._readers.any(text))
        if not self._barren:
            return None
        return self._done(len(block), Picked((), None, (), newlines(block)))

    def _glanceable(self, block: bytes) -> bool:
        """Whether stretches of a block may be enough."""
        if self._wait > 0 or b"\r" in block or not block.endswith(b"\n"):
            return False
        return not any(standing.owed for standing in self._standing.values())

    def _glance(self, block: bytes, reports: list[Report]) -> Picked | None:
        """The answer for a block of which stretches are enough; None where all of it has to be read."""
        if self._pace is None:
            return None
        if not self._glanceable(block):
            self._wait = max(self._wait - 1, 0)
            return None
        run = Run(self._pace, self._starts)
        if len(block) < MOST * self._pace.period or run.add(block) is None:
            self._in_vain()
            return None
        return self._judged(run, reports, alone=True)

    def _judged(self, run: Run, reports: list[Report], *, alone: bool = False) -> Picked | None:
        """The answer for some blocks of which stretches are enough; None where all of them have to be read.

        Args:
            run: the blocks.
            reports: that are due already.
            alone: there is only one, so that lines can be handed on by their place in it.
        """
        seen = run.excerpt()
        claimed, unknown = self._readers.read(seen.text, self._plain(seen.text), seen.starts)
        timed, loose = _parted(claimed)
        last = self._size is not None and self._offset + run.size >= self._size
        if not unknown and bool(timed) != bool(loose) and not (loose and (last or not alone)):
            lines = together(timed or loose)
            compared = compare(lines, PAUSE_OF_SPANS if timed else PAUSE)
            if compared.steady(seen.stretch[lines.number], run.pace.lanes):
                return self._glanced(run.size, seen, compared, reports, timed=bool(timed))
        self._in_vain()
        return None

    def _in_vain(self) -> None:
        """What did not do once will not do in the next block either, as a rule."""
        self._vain = min(2 * self._vain + 1, MOST_WAITED)
        self._wait = self._vain

    def _glanced(self, size: int, seen: Excerpt, compared: Compared, reports: list[Report], *, timed: bool) -> Picked:
        """The same where they are."""
        self._vain = 0
        picked: list[int] = []
        if timed:
            where = _Where(seen.starts, seen.offset, self._offset, seen.number, self._lines)
            self._follow(seen.text, where, size, compared, _NONE, reports)
        else:
            picked = self._needed(compared, None).tolist()
        after = seen.starts[1:] - seen.starts[:-1] + seen.offset
        return self._done(size, Picked(sorted(int(after[line]) - 1 for line in picked), None, reports, seen.lines))

    def _whole(
        self, block: bytes, text: bytes, found: list[int], reports: list[Report], *, spans: bool
    ) -> Sequence[int]:
        """The answer for a block of which every line is looked at.

        Args:
            block: as it is.
            text: without terminal codes and escapes.
            found: places of what is no progress.
            reports: that are due already.
            spans: lines may stand for those that follow.
        """
        starts = self._starts(block)
        closed = starts[1:] - 1 if block.endswith((b"\n", b"\r")) else starts[1:-1] - 1
        carriages = b"\r" in block
        if carriages:
            closed = closed[np.frombuffer(block, np.uint8)[closed] == 10]
        claimed, unknown = self._readers.read(block, text, starts)
        timed, loose = _parted(claimed) if spans else ([], [lines for _, lines in claimed])
        picked = unknown.copy()
        if timed:
            events = np.unique(starts.searchsorted(np.array(found, np.int64), "right") - 1) if found else _NONE
            number = closed.searchsorted(starts[:-1]) if carriages else np.arange(len(starts) - 1)
            where = _Where(starts, starts, self._offset, number, self._lines)
            lines = together(timed)
            if len(events):
                # A line that is more than progress is handed on by its place.
                lines = lines.some(~np.isin(lines.number, events))
            if len(lines.number):
                self._follow(block, where, len(block), compare(lines, PAUSE_OF_SPANS), events, reports)
        if loose:
            lines = together(loose)
            picked += self._needed(compare(lines, PAUSE), self._in_any_case(lines, starts, len(block))).tolist()
        if self._spans:
            quiet = claimed and not unknown and not found
            every = together([lines for _, lines in claimed]) if quiet else None
            self._pace = None if every is None else pace(every, len(block), timed=not loose)
        places = sorted([*found, *(int(starts[line + 1]) - 1 for line in picked)])
        return self._done(len(block), Picked(places, closed, reports, len(closed)))

    def _done(self, size: int, picked: Picked) -> Picked:
        self._offset += size
        self._lines += picked.lines or 0
        return picked

    def finish(self) -> Sequence[Report]:
        """What is still kept back: of each lane the line that stands for others, and the last ones."""
        recent = self._offset - RECENT
        lanes = self._standing.values()
        reports = [r for lane in lanes for r in (lane.ended() if lane.tail[-1].offset > recent else lane.closed())]
        self._standing.clear()
        return sorted(reports, key=_offset)

    def _close(self) -> list[Report]:
        """The same before a block of which lines are handed on by their place."""
        reports = [report for standing in self._standing.values() for report in standing.closed()]
        self._standing.clear()
        return sorted(reports, key=_offset)

    def _in_any_case(self, lines: Lines, starts: Array, size: int) -> Flags | None:
        """Lines near the beginning and the end of the stream; None where there are none."""
        near_end = self._size is not None and self._offset + size >= self._size - END
        whole: Flags | None = None
        if near_end or self._offset < self._beginning:
            where = self._offset + starts[lines.number + 1] - 1
            whole = where < self._beginning
            if near_end and self._size is not None:
                # Text that was changed is shorter than the block: then a little more is left out.
                whole |= where >= self._size - END
                if self._spans:
                    lanes = 1 if isinstance(lines.lane, int) else len(np.unique(lines.lane[whole]))
                    whole[: -max(TAIL, LEAST_TAIL * lanes)] = False
        if self._live and size < LIVE_FULL:
            whole = np.zeros(len(lines.number), np.bool_) if whole is None else whole
            reach = LIVE_BLOCK if size <= LIVE_BLOCK else LIVE_END
            recent = int(lines.number.searchsorted(starts[1:].searchsorted(size - reach + 1)))
            if recent < len(whole):
                second = seconds(lines.clock[recent:])
                lane = lines.lane if isinstance(lines.lane, int) else lines.lane[recent:]
                whole[recent:] |= self._first_of_seconds(second, lane)
                last = min(self._refilled(int(second[-1])), len(whole) - recent)
                self._burst -= last
                whole[len(whole) - last :] = True
        return whole

    def _refilled(self, second: int) -> int:
        """How many lines may be handed on for no other reason than that they are the last."""
        passed = (second - self._second) % 86_400 if second >= 0 and self._second >= 0 else 1
        self._second = second
        self._burst = min(self._burst + LIVE_RATE * passed, LIVE_BURST)
        return self._burst

    def _first_of_seconds(self, second: Array, lane: int | Array) -> Flags:
        """Which lines are among the first of their lane in a second."""
        order: Array | None = None
        changes = second[1:] != second[:-1]
        if not isinstance(lane, int):
            order = np.argsort(lane, kind="stable")
            second, lane = second[order], lane[order]
            changes = (second[1:] != second[:-1]) | (lane[1:] != lane[:-1])
        size = len(second)
        starts = [0, *(changes.nonzero()[0] + 1).tolist()]
        if len(self._seconds) > MAX_LANES:
            self._seconds.clear()
        first = np.zeros(size, np.bool_)
        for start, stop in zip(starts, [*starts[1:], size], strict=True):
            who, now = lane if isinstance(lane, int) else int(lane[start]), int(second[start])
            before = self._seconds.get(who)
            # A second may have begun in the block before; lines without a time have no seconds.
            seen = before[1] if before is not None and before[0] == now >= 0 else 0
            first[start : min(start + max(LIVE_LINES - seen, 0), stop)] = True
            self._seconds[who] = (now, seen + stop - start)
        if order is None:
            return first
        found = np.empty(size, np.bool_)
        found[order] = first
        return found

    def _needed(self, compared: Compared, whole: Flags | None) -> Array:
        """Numbers of the lines that are handed on in this block; `whole` are those that are in any case."""
        lanes = self._lanes.order(compared, PAUSE, EVERY, ENOUGH, whole)
        lanes.pick[[final for _, _, final, _ in lanes.spans]] = True
        needed: Array = lanes.number[lanes.pick]
        return needed

    def _follow(
        self, text: bytes, where: _Where, size: int, compared: Compared, beside: Array, reports: list[Report]
    ) -> None:
        """Hands on lines that stand for others, and keeps those back of which nobody knows yet how many they are.

        Args:
            text: a block, or stretches of it.
            where: its lines are.
            size: of the block.
            compared: those of them that are progress.
            beside: those that are not, or more than that.
            reports: gets lines that are handed on.
        """
        if len(beside) > MAX_EVENTS:
            beside = beside[np.linspace(0, len(beside) - 1, MAX_EVENTS).astype(np.int64)]
        lanes = self._lanes.order(compared, PAUSE_OF_SPANS, SPANS, ENOUGH_OF_SPANS, None)
        number, pick = lanes.number, lanes.pick

        def row(place: int) -> Report:
            return where.report(text, int(number[place]))

        keep = min(max(TAIL // len(lanes.spans), LEAST_TAIL), MOST_TAIL)
        if self._size is not None and self._offset + size < self._size - RECENT:
            keep = 1  # the end is far away
        # What led to something that is no progress matters near the end.
        lead = keep if len(beside) else 1
        for who, first, final, broken in lanes.spans:
            standing = self._standing.get(who)
            if standing is None:
                standing = self._standing[who] = Standing()
            if standing.owed or len(beside):
                standing.owed = _beside(number[first : final + 1], pick[first : final + 1], beside, standing.owed)
            if standing.report is None:
                pick[first] = True
            elif broken:
                reports += standing.closed()
        places = np.flatnonzero(pick)
        followed = list(zip(places.tolist(), np.append(lanes.still, False)[places].tolist(), strict=True))
        at = 0
        for who, first, final, _ in lanes.spans:
            begin = at
            while at < len(followed) and followed[at][0] <= final:
                at += 1
            picked = followed[begin:at]
            if picked and picked[-1][0] == final:
                picked[-1] = (final, self._lanes.stands(who))
            self._standing[who].follow(first, final, picked, row, keep, lead, reports)
        reports.sort(key=_offset)
        if len(self._standing) > MAX_LANES:
            reports += self._close()


def _parts(data: bytes) -> Iterator[bytes]:
    """Some lines as blocks of the usual size."""
    start = 0
    while start < len(data):
        end = data.rfind(b"\n", start, start + BLOCK) + 1 or data.find(b"\n", start + BLOCK) + 1 or len(data)
        yield data[start:end]
        start = end


class _Looked(NamedTuple):
    """What there is in a block that is no progress.

    Args:
        text: the block without terminal codes and escapes.
        found: places in the block.
        spans: lines may stand for those that follow.
    """

    text: bytes
    found: list[int]
    spans: bool


def _beside(number: Array, pick: Flags, events: Array, owed: int) -> int:
    """Picks those of a lane's lines that stand beside what is no progress. So many of its next lines do so, too.

    Args:
        number: which lines.
        pick: whether they are handed on.
        events: lines that are no progress.
        owed: so many of the first ones follow something in an earlier block.
    """
    size = len(number)
    pick[:owed] = True
    if not len(events):
        return max(owed - size, 0)
    after = np.searchsorted(number, events)
    near = np.concatenate((after - 1, after, after[-1] + np.arange(1, AFTER)))
    pick[near[(near >= 0) & (near < size)]] = True
    return max(int(after[-1]) + AFTER - size, 0)


class _Where(NamedTuple):
    """Where lines of a text are in a stream.

    Args:
        starts: where they begin in the text, and where the next one would.
        offset: where they begin in the block.
        base: where the block begins.
        number: which lines of the block they are.
        first: the number of its first line.
    """

    starts: Array
    offset: Array
    base: int
    number: Array
    first: int

    def report(self, text: bytes, line: int) -> Report:
        """A line by itself."""
        raw = text[self.starts[line] : self.starts[line + 1]].rstrip(b"\r\n")
        return Report(raw, self.base + int(self.offset[line]), self.first + int(self.number[line]))


def _parted(claimed: Sequence[tuple[bool, Lines]]) -> tuple[list[Lines], list[Lines]]:
    """Lines with a time, and those without."""
    return [lines for timed, lines in claimed if timed], [lines for timed, lines in claimed if not timed]


def _offset(report: Report) -> int:
    return report.offset
