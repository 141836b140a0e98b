"""Sampling: columns decide which lines of a stream are handed on, and the recipes judge those.

Of each block, one scan finds what is no progress: it is handed on. Progress lines are most of a log and each of them
matches, so their steps and times are read by the block (`shapes`, `columns`), and only those are handed on without
which a conclusion would change (`lanes`). What is handed on is evaluated like any other line, and now and then
compared with what was read of it: where that is not the same, lines of this shape are evaluated one by one from then
on.

Of a stream that goes on for ever nothing is kept back, and recent lines are handed on as long as they are not many:
all those of a run that makes a few steps a second, however they are read, and of a sudden burst.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from tracecore.ottl.planner.database import ScanDatabase
from tracecore.ottl.planner.selection import Selector, find, plain
from tracecore.recipes.columns import NO_PROGRESS, Array, Flags, Lines, Mask, Numbers, Progress, read
from tracecore.recipes.known_shapes import Shapes
from tracecore.recipes.lanes import Lanes
from tracecore.recipes.repeats import MAX_EVENTS, Kinds, Repeats
from tracecore.recipes.shapes import ALONE, NOTHING, UNKNOWN, shown_numbers
from tracecore.signals.arrays import distinct, np
from tracecore.signals.logs.blocks import Block
from tracecore.signals.logs.selector import FAILED_GROUP, PARTIALS, LoneLine, Picked

#: Seconds of a pause, and between lines that are handed on in any case (the first that gives no more than so many
#: lines of a block). Stalls are looked for from 60 s on: of a stream that goes on for ever, a pause and the
#: longest interval together are less.
PAUSE: Final = 30
EVERY: Final = (600, 1800, 3600, 14_400)
ENOUGH: Final = 24
LIVE_PAUSE: Final = 15
LIVE_EVERY: Final = (1, 2, 5, 10, 40)
LIVE_ENOUGH: Final = 1
#: Of a stream that goes on for ever: recent lines of a lane, at most, and those more for each second that passes.
#: What is in a full block was written a while ago and is followed by more: none of it is recent.
BURST: Final = 96
RATE: Final = 4
RECENT_BLOCK: Final = 64 << 10
FULL_BLOCK: Final = 3 << 18
#: Bytes at the end of a stream; of a lane that ended before them only the last line is handed on.
RECENT: Final = 4 << 20

#: Of lines that are known to say nothing, one in so many is looked at, and of a block at most so many are evaluated.
DOUBTED: Final = 16
MAX_DOUBTED: Final = 2

_NONE: Final[Array] = np.zeros(0, np.int64)


class Sampler:
    """A selector that samples progress lines. One for each stream: it remembers what it saw last.

    Args:
        events: finds lines that are no progress, or more than that.
        progress: databases, of each of which progress lines have something.
        shapes: of the lines of this and other streams.
        mask: hides what means nothing in lines that are not known otherwise.
        kinds: of events, of this and other streams.
        escaped: lines are JSON.
        size: of the stream in bytes, where it is known.
        live: the stream goes on for ever, and nothing of it is kept back.
    """

    def __init__(
        self,
        events: Selector,
        progress: Sequence[ScanDatabase],
        shapes: Shapes,
        mask: Mask,
        kinds: Kinds,
        *,
        escaped: bool = False,
        size: int | None = None,
        live: bool = False,
    ) -> None:
        self._events = events
        self._progress = progress
        self._shapes = shapes
        self._mask = mask
        self._escaped = escaped
        self._size = size
        self._live = live
        self._lanes = Lanes()
        self._repeats = Repeats(kinds)
        #: The last line of the block before was cut by the runtime.
        self._cut = False
        self._end = 0

    def __call__(self, block: bytes) -> Sequence[int]:
        return self.take(Block(block, 0, 1))

    @property
    def refused(self) -> int:
        """Shapes that turned out to be read wrongly."""
        return self._shapes.refused

    def take(self, block: Block) -> Picked:
        """Return the lines of a block that are handed on, in order."""
        lines = Lines(block.data)
        self._end = block.offset + len(block.data)
        # What the lines say, without escapes and terminal codes.
        text = plain(lines.marked, self._escaped)
        said = lines if text is lines.marked else Lines(text)
        events = self._events.lines(text, said.ends)
        cut, rest = self._partial(lines, events)
        newlines = lines.newlines()

        def row(line: int) -> LoneLine:
            start = int(lines.starts[line])
            return LoneLine(lines.raw(line), block.offset + start, block.line + int(np.searchsorted(newlines, start)))

        sorted_events = self._repeats.thin(lines, said, events.tolist(), {*cut, *rest}, None if self._live else row)
        # A line that is more than progress is handed on by its place.
        more = np.zeros(len(lines.ends) + 1, np.bool_)
        more[events] = more[rest] = True
        more[sorted_events.progress] = False
        found, alone = self._progress_in(lines, said, more[: len(said.ends)])
        reports = sorted_events.reports
        events = np.array(sorted_events.kept, np.int64)
        picked = [events, alone]
        if self._lanes.full:
            reports += self._lanes.close()
        if len(events) and find(text, FAILED_GROUP) >= 0:
            # What workers say after it is another attempt: all in the order of the stream.
            reports += self._lanes.close()
            timed = np.zeros(len(found.line), np.bool_)
        else:
            timed = np.isfinite(found.time) & (not self._live)
        beside = self._repeats.true(lines, sorted_events.news)
        if timed.any():
            rows = found.some(timed)
            keep = self._keep(block)
            thinned = self._lanes.thin(rows, PAUSE, EVERY, ENOUGH, beside, keep)
            reports += self._lanes.follow(thinned, lambda place: row(int(rows.line[place])), keep)
            reports.sort(key=_offset)
            picked.append(_before(found.line[~timed], rows.line[thinned.place[thinned.pause]]))
        if not timed.all():
            rows = found.some(~timed)
            thinned = self._lanes.thin(rows, LIVE_PAUSE, LIVE_EVERY, LIVE_ENOUGH, beside, together=self._live)
            places = thinned.place[thinned.kept]
            # Far from the end, the last line of each writer stands for its lanes.
            lasts = _lasts(rows.who) if self._far(block) else thinned.lasts
            picked += [rows.line[places], rows.line[lasts]]
            if self._live and len(block.data) < FULL_BLOCK:
                picked.append(rows.line[self._recent(lines, rows)])
        chosen = distinct(np.concatenate(picked))
        positions = np.minimum(lines.ends[chosen], len(block.data) - 1).tolist() if len(chosen) else []
        counts = {int(lines.starts[line]): count for line, count in sorted_events.counts.items()}
        return Picked(positions, newlines, reports, len(newlines), counts)

    def finish(self) -> Sequence[LoneLine]:
        """Return the lines still kept back: of each lane the line that stands for others, and the last ones."""
        return self._lanes.close(self._end - RECENT)

    def _keep(self, block: Block) -> int:
        """Return how many of the last lines of each lane may be needed: few if the end is far away."""
        return 1 if self._far(block) else self._lanes.tail()

    def _far(self, block: Block) -> bool:
        """Return whether the end of the stream is far away; more follows what is in a full block."""
        if self._live:
            return len(block.data) >= FULL_BLOCK
        return self._size is not None and block.offset + len(block.data) < self._size - RECENT

    def _progress_in(self, lines: Lines, said: Lines, events: Flags) -> tuple[Progress, Array]:
        """Progress lines of a block, and those that have to be evaluated one by one.

        Args:
            lines: as they are.
            said: their text.
            events: lines that are no progress, or more than that.
        """
        shapes = self._shapes
        shapes.renew(len(lines.ends))
        keys, sets, found = self._mask.outlined(said)
        variants = shapes.answers.find(keys, sets)
        silent = np.flatnonzero((variants == NOTHING) & ~events)[::DOUBTED]
        for line in self._telling(said, silent)[:MAX_DOUBTED].tolist():
            if shapes.ask(lines.raw(line)).something:
                shapes.answers.doubt(int(keys[line]))
        new = np.flatnonzero((variants == UNKNOWN) & ~events)
        variants[new] = NOTHING
        told = self._telling(said, new)
        variants[told] = UNKNOWN
        others = new[variants[new] == NOTHING]
        shapes.answers.add(keys[others], sets[others], NOTHING, asked=False)
        most = 0
        while len(told):
            # Of each outline a few lines at a time: they may tell what the others say.
            most += 1
            looked, told = self._look(lines, said, found, told, keys, variants, most)
            for answer in distinct(variants[looked]).tolist():
                own = looked[variants[looked] == answer]
                shapes.answers.add(keys[own], sets[own], answer)
            variants[told] = shapes.answers.find(keys[told], sets[told])
            told = told[variants[told] == UNKNOWN]
        variants[variants == UNKNOWN] = ALONE
        variants[events] = NOTHING
        return self._read(found, variants, lines.raw)

    def _look(
        self, lines: Lines, said: Lines, found: Numbers, which: Array, keys: Array, variants: Array, most: int
    ) -> tuple[Array, Array]:
        """Find out the variants of some lines; return those that have one, and those that were not looked at.

        Args:
            lines: as they are.
            said: their text.
            found: the numbers in it.
            which: the lines.
            keys: of all lines.
            variants: of all lines.
            most: so many lines with a key are enough.
        """
        known: dict[int, list[int]] = {}
        others: list[int] = []
        for line, key in zip(which.tolist(), keys[which].tolist(), strict=True):
            own = known.setdefault(key, [])
            if len(own) >= most:
                others.append(line)
                continue
            raw, text = lines.raw(line), said.raw(line)
            runs = found.edges[2 * found.first[line] : 2 * found.first[line + 1]] - said.starts[line]
            shown = list(zip(runs[::2].tolist(), runs[1::2].tolist(), strict=True))
            spans = shown_numbers(raw, text, shown)
            variants[line] = ALONE if spans is None else self._shapes.find(key, raw, spans)
            if variants[line] != UNKNOWN:
                own.append(line)
        looked = [line for own in known.values() for line in own]
        return np.array(looked, np.int64), np.array(others, np.int64)

    def _telling(self, said: Lines, which: Array) -> Array:
        """Those of some lines in which recipes of progress can find something: many that have its words are prose."""
        for database in self._progress:
            matched: list[int] = []
            some = said.some(which)
            database.scan(some.marked, _collect, matched)
            which = which[distinct(np.searchsorted(some.ends, np.array(matched, np.int64)))]
        return which

    def _read(self, found: Numbers, variants: Array, raw: Callable[[int], bytes]) -> tuple[Progress, Array]:
        """Progress lines that can be read by the block, and those that cannot; `raw` gives a line as it is."""
        shapes = self._shapes
        alone = np.flatnonzero(variants == ALONE)
        if not (variants >= 0).any():
            return NO_PROGRESS, alone
        shapes.rows.columns()
        progress, wrong = read(found, variants, shapes.rows)
        refused = [
            place
            for place in self._doubtful(progress)
            if not shapes.agrees(
                int(progress.variant[place]), raw(int(progress.line[place])), int(progress.step[place])
            )
        ]
        if refused:
            others = np.isin(shapes.rows.shapes[progress.variant], shapes.rows.shapes[progress.variant[refused]])
            wrong, progress = np.append(wrong, progress.line[others]), progress.some(~others)
        return progress, np.append(alone, wrong)

    def _doubtful(self, found: Progress) -> list[int]:
        """Progress lines to compare with what recipes make of them: one of each shape that was not seen often."""
        counts = np.bincount(found.variant)
        present = np.flatnonzero(counts)
        doubtful = [
            variant
            for variant, count in zip(present.tolist(), counts[present].tolist(), strict=True)
            if self._shapes.doubtful(variant, count)
        ]
        return [int(np.argmax(found.variant == variant)) for variant in doubtful]

    def _recent(self, lines: Lines, rows: Progress) -> Array:
        """Places of the last lines of each lane, as many as may be handed on."""
        size = len(lines.block)
        since = int(np.searchsorted(lines.starts[rows.line], size - RECENT_BLOCK))
        if since == len(rows.line):
            return _NONE
        order = np.argsort(rows.lane[since:], kind="stable") + since
        stops = np.append(np.flatnonzero(np.diff(rows.lane[order])) + 1, len(order))
        chosen: list[Array] = []
        begin = 0
        for stop in stops.tolist():
            lane = self._lanes.lane(int(rows.lane[order[begin]]))
            now = float(rows.time[order[stop - 1]])
            passed = now - lane.refilled if now == now and lane.refilled == lane.refilled else 1.0
            lane.tokens = min(BURST, lane.tokens + RATE * min(abs(passed), BURST))
            lane.refilled = now
            count = min(stop - begin, int(lane.tokens))
            lane.tokens -= count
            chosen.append(order[stop - count : stop])
            begin = stop
        return np.concatenate(chosen)

    def _partial(self, lines: Lines, events: Array) -> tuple[list[int], list[int]]:
        """Lines that the container runtime has cut, and those that are the rest of one."""
        cut: list[int] = []
        rest: list[int] = [0] if self._cut and len(lines.ends) else []
        self._cut = False
        if len(events) > MAX_EVENTS and not any(find(lines.block, partial) >= 0 for partial in PARTIALS):
            return cut, rest
        for line in events.tolist():
            head = lines.block[lines.starts[line] : lines.starts[line] + 48]
            if any(partial + b" " in head for partial in PARTIALS):
                cut.append(line)
                if line + 1 < len(lines.ends):
                    rest.append(line + 1)
                else:
                    self._cut = True
        return cut, rest


def _offset(report: LoneLine) -> int:
    return report.offset


def _lasts(names: Array) -> Array:
    """Return where each name is found last."""
    found: Array = len(names) - 1 - np.unique(names[::-1], return_index=True)[1]
    return found


def _before(lines: Array, pauses: Array) -> Array:
    """Return the last of some lines without a time before each line that ends a pause.

    Whoever reads every line does not know for how long nothing came after it.
    """
    places = np.searchsorted(lines, pauses) - 1
    return lines[places[places >= 0]]


def _collect(number: int, start: int, end: int, flags: int, matched: list[int]) -> None:
    matched.append(end - 1)
