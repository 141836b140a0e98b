"""Sampling: choose which lines of a stream are handed on to the recipes.

Most lines of a log report progress. Of each block, one scan finds *events*: lines that recipes may find something in
besides progress. They are handed on, and repeated ones are thinned (`repeats`). Progress lines are read for the whole
block at once: the shape of a line says where its step and time are (`shapes`, `columns`). Only those are handed on
without which a conclusion would change (`lanes`).

Every line that is handed on is evaluated like any other line, so the recipes alone decide what it means. Now and then a
line is evaluated to check what was read by its shape. If the two differ, the lines of this shape are evaluated one by
one from then on.

A live stream has no end, so nothing of it is held back. Recent lines of it are handed on as long as they are not many,
so that a slow run or a sudden burst is seen in full.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from tracecore.ottl.planner.database import ScanDatabase
from tracecore.ottl.planner.selection import Selector, find, plain
from tracecore.recipes.columns import EMPTY, NO_PROGRESS, Array, Flags, Lines, Mask, Numbers, Progress, read
from tracecore.recipes.known_shapes import Shapes
from tracecore.recipes.lanes import Lanes
from tracecore.recipes.repeats import Kinds, Repeats
from tracecore.recipes.shapes import EVALUATE, NOTHING, UNKNOWN, raw_spans
from tracecore.signals.arrays import distinct, np
from tracecore.signals.logs.blocks import Block
from tracecore.signals.logs.selector import FAILED_GROUP, PARTIALS, LoneLine, Picked

#: Seconds of a pause.
PAUSE: Final = 30
#: Seconds of an interval, of which one line is handed on in any case. The first length is used that gives no more than
#: `ENOUGH` lines of a block, else the last.
EVERY: Final = (600, 1800, 3600, 14_400)
ENOUGH: Final = 24
#: The same for live streams. A pause and the longest interval together are less than the 60 s of a stall.
LIVE_PAUSE: Final = 15
LIVE_EVERY: Final = (1, 2, 5, 10, 40)
LIVE_ENOUGH: Final = 1
#: Recent lines of one lane that a live stream hands on at once, and how many more for each second.
BURST: Final = 96
RATE: Final = 4
#: Bytes at the end of a block that are recent. Nothing in a full block is: it was written a while ago.
RECENT_BLOCK: Final = 64 << 10
FULL_BLOCK: Final = 3 << 18
#: Bytes at the end of a stream. Of a lane that ended before them, only the last line is handed on.
RECENT: Final = 4 << 20

#: Owners of progress whose names are remembered.
MAX_OWNERS: Final = 1024
#: Owners with one name, such as the ranks of a machine, among which the one of an event is looked for.
MAX_NAMESAKES: Final = 32
#: Progress lines are kept beside this many events of a block: if there is one owner, and if there are several.
MAX_EVENTS: Final = 24
MAX_EVENTS_SEVERAL: Final = 256

#: Of the lines that are known to say nothing, one in `CHECKED` is scanned. Of those, `MAX_CHECKED` of each block are
#: evaluated.
CHECKED: Final = 16
MAX_CHECKED: Final = 2


class _Owners:
    """The owners of progress by their names: machine, rank, pod."""

    def __init__(self) -> None:
        self.names: dict[int, tuple[object, ...]] = {}
        self._by_name: dict[tuple[int, object], list[int]] = {}

    def add(self, owner: int, names: tuple[object, ...]) -> None:
        self.names[owner] = names
        for known in _known(names):
            self._by_name.setdefault(known, []).append(owner)

    def find(self, names: tuple[object, ...]) -> int | None:
        """Return the only owner that shares a name, and of whom no name is known to differ."""
        known = dict(_known(names))
        likely = min((self._by_name.get(name, []) for name in known.items()), key=len, default=[])
        found = [
            owner
            for owner in likely[:MAX_NAMESAKES]
            if all(known.get(place, name) == name for place, name in _known(self.names[owner]))
        ]
        return found[0] if len(found) == 1 and len(likely) <= MAX_NAMESAKES else None


def _known(names: tuple[object, ...]) -> list[tuple[int, object]]:
    return [(place, name) for place, name in enumerate(names) if name not in (None, "")]


class Sampler:
    """A selector that samples progress lines. Each stream needs its own: it remembers earlier blocks.

    Args:
        events: finds lines that are more than progress.
        progress: databases; a progress line has a match in each of them.
        shapes: known shapes, shared by streams.
        mask: hides what means nothing to the recipes of progress.
        kinds: known kinds of events, shared by streams.
        escaped: the lines are JSON.
        size: of the stream in bytes, if known.
        live: the stream has no end, and nothing is held back.
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
        self._owners = _Owners()
        #: The container runtime cut the last line of the previous block, so its rest comes first.
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
        text = plain(lines.marked, self._escaped)
        texts = lines if text is lines.marked else Lines(text)
        events = self._events.lines(text, texts.ends)
        cut, rest = self._partial(lines, events)
        newlines = lines.newlines()

        def row(line: int) -> LoneLine:
            start = int(lines.starts[line])
            return LoneLine(lines.raw(line), block.offset + start, block.line + int(np.searchsorted(newlines, start)))

        failed = len(events) > 0 and find(text, FAILED_GROUP) >= 0
        far = self._far_from_end(block) and not failed
        sorted_events = self._repeats.thin(
            lines, texts, events.tolist(), {*cut, *rest}, None if self._live else row, far=far
        )
        # The rest of a cut line may have a number past the last line of the block.
        is_event = np.zeros(len(lines.ends) + 1, np.bool_)
        is_event[events] = is_event[rest] = True
        is_event[sorted_events.progress] = False
        found, alone = self._progress_in(lines, texts, is_event[: len(texts.ends)])
        reports = sorted_events.reports
        events = np.array(sorted_events.kept, np.int64)
        picked = [events, alone]
        if self._lanes.full:
            reports += self._lanes.close()
        if failed:
            # What workers write after this line is another attempt, so no line may stand for lines on both sides.
            reports += self._lanes.close()
            timed = np.zeros(len(found.line), np.bool_)
        else:
            timed = np.isfinite(found.time) & (not self._live)
        troubles = self._concerned(self._repeats.troubles(lines, sorted_events.news), found, lines)
        if timed.any():
            rows = found.take(timed)
            keep = 1 if self._far_from_end(block) else self._lanes.tail()
            thinned = self._lanes.thin(rows, PAUSE, EVERY, ENOUGH, troubles, keep)
            reports += self._lanes.reports(thinned, lambda place: row(int(rows.line[place])), keep)
            reports.sort(key=_offset)
            picked.append(_last_before(found.line[~timed], rows.line[thinned.place[thinned.pause]]))
        if not timed.all():
            rows = found.take(~timed)
            thinned = self._lanes.thin(rows, LIVE_PAUSE, LIVE_EVERY, LIVE_ENOUGH, troubles, together=self._live)
            places = thinned.place[thinned.kept]
            # Far from the end, the last line of an owner stands for all its lanes.
            lasts = _lasts(rows.owner) if self._far_from_end(block) else thinned.lasts
            picked += [rows.line[places], rows.line[lasts]]
            if self._live and len(block.data) < FULL_BLOCK:
                picked.append(rows.line[self._recent(lines, rows)])
        chosen = distinct(np.concatenate(picked))
        positions = np.minimum(lines.ends[chosen], len(block.data) - 1).tolist() if len(chosen) else []
        counts = {int(lines.starts[line]): count for line, count in sorted_events.counts.items()}
        return Picked(positions, newlines, reports, len(newlines), counts)

    def finish(self) -> Sequence[LoneLine]:
        """Return the lines that are still held back: reports, and the last lines of each lane."""
        return self._lanes.close(self._end - RECENT)

    def _concerned(self, events: Sequence[int], found: Progress, lines: Lines) -> dict[int, int | None]:
        """Return the owner of progress that an event concerns; None if the event does not tell.

        Of many events some are left out. The others are evenly spread. Of a live stream so much is handed on that it is
        not worth asking the recipes for the owner.
        """
        if not events or not len(found.line):
            return {}
        if self._live:
            return dict.fromkeys(_spread(events, MAX_EVENTS))
        owners = self._owners
        new = [owner for owner in distinct(found.owner).tolist() if owner not in owners.names]
        if len(owners.names) + len(new) > MAX_OWNERS:
            return dict.fromkeys(_spread(events, MAX_EVENTS))
        for owner in new:
            line = int(found.line[np.argmax(found.owner == owner)])
            owners.add(owner, self._shapes.evaluate(lines.raw(line)).owner)
        if len(owners.names) == 1:
            return dict.fromkeys(_spread(events, MAX_EVENTS), *owners.names)
        chosen = _spread(events, MAX_EVENTS_SEVERAL)
        return {event: owners.find(self._shapes.evaluate(lines.raw(event)).owner) for event in chosen}

    def _far_from_end(self, block: Block) -> bool:
        """Return whether much more follows a block. In a live stream more follows a full block."""
        if self._live:
            return len(block.data) >= FULL_BLOCK
        return self._size is not None and block.offset + len(block.data) < self._size - RECENT

    def _progress_in(self, lines: Lines, texts: Lines, is_event: Flags) -> tuple[Progress, Array]:
        """Return the progress lines of a block, and the lines that have to be evaluated one by one.

        Args:
            lines: of the block.
            texts: their texts.
            is_event: which lines are more than progress.
        """
        shapes = self._shapes
        shapes.renew(len(lines.ends))
        keys, words, numbers = self._mask.outlined(texts)
        variants = shapes.answers.find(keys, words)
        silent = np.flatnonzero((variants == NOTHING) & ~is_event)[::CHECKED]
        for line in self._candidates(texts, silent)[:MAX_CHECKED].tolist():
            if shapes.evaluate(lines.raw(line)).stamped:
                shapes.answers.forget_silence(int(keys[line]))
        new = np.flatnonzero((variants == UNKNOWN) & ~is_event)
        variants[new] = NOTHING
        candidates = self._candidates(texts, new)
        variants[candidates] = UNKNOWN
        others = new[variants[new] == NOTHING]
        shapes.answers.add(keys[others], words[others], NOTHING, evaluated=False)
        most = 0
        while len(candidates):
            # A few lines of each outline in each round: their answers may hold for the others.
            most += 1
            looked, candidates = self._look_up(lines, texts, numbers, candidates, keys, variants, most)
            for answer in distinct(variants[looked]).tolist():
                own = looked[variants[looked] == answer]
                shapes.answers.add(keys[own], words[own], answer)
            variants[candidates] = shapes.answers.find(keys[candidates], words[candidates])
            candidates = candidates[variants[candidates] == UNKNOWN]
        variants[variants == UNKNOWN] = EVALUATE
        variants[is_event] = NOTHING
        return self._read(numbers, variants, lines.raw)

    def _look_up(
        self, lines: Lines, texts: Lines, numbers: Numbers, which: Array, keys: Array, variants: Array, most: int
    ) -> tuple[Array, Array]:
        """Set the variants of some lines; return those that got one, and those that were not looked at.

        Args:
            lines: of the block.
            texts: their texts.
            numbers: the numbers in the texts.
            which: the lines to look at.
            keys: of all lines of the block.
            variants: of all lines of the block; changed in place.
            most: how many lines with one key get a variant.
        """
        by_key: dict[int, list[int]] = {}
        skipped: list[int] = []
        for line, key in zip(which.tolist(), keys[which].tolist(), strict=True):
            own = by_key.setdefault(key, [])
            if len(own) >= most:
                skipped.append(line)
                continue
            raw, text = lines.raw(line), texts.raw(line)
            edges = numbers.edges[2 * numbers.first[line] : 2 * numbers.first[line + 1]] - texts.starts[line]
            shown = list(zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True))
            spans = raw_spans(raw, text, shown)
            variants[line] = EVALUATE if spans is None else self._shapes.find(key, raw, spans)
            if variants[line] != UNKNOWN:
                own.append(line)
        looked = [line for own in by_key.values() for line in own]
        return np.array(looked, np.int64), np.array(skipped, np.int64)

    def _candidates(self, texts: Lines, which: Array) -> Array:
        """Return those of some lines in which recipes of progress may find something."""
        for database in self._progress:
            matched: list[int] = []
            some = texts.take(which)
            database.scan(some.marked, _collect, matched)
            which = which[distinct(np.searchsorted(some.ends, np.array(matched, np.int64)))]
        return which

    def _read(self, numbers: Numbers, variants: Array, raw: Callable[[int], bytes]) -> tuple[Progress, Array]:
        """Read the progress lines of a block; return also the lines that have to be evaluated one by one.

        Args:
            raw: returns a line as it is.
        """
        shapes = self._shapes
        alone = np.flatnonzero(variants == EVALUATE)
        if not (variants >= 0).any():
            return NO_PROGRESS, alone
        shapes.variants.build()
        progress, wrong = read(numbers, variants, shapes.variants)
        refused = [
            place
            for place in self._to_check(progress)
            if not shapes.agrees(
                int(progress.variant[place]), raw(int(progress.line[place])), int(progress.step[place])
            )
        ]
        if refused:
            shape_of = shapes.variants.shapes
            others = np.isin(shape_of[progress.variant], shape_of[progress.variant[refused]])
            wrong, progress = np.append(wrong, progress.line[others]), progress.take(~others)
        return progress, np.append(alone, wrong)

    def _to_check(self, found: Progress) -> list[int]:
        """Return indexes of lines to evaluate as a check: the first line of each variant whose check is due."""
        counts = np.bincount(found.variant)
        present = np.flatnonzero(counts)
        due = [
            variant
            for variant, count in zip(present.tolist(), counts[present].tolist(), strict=True)
            if self._shapes.is_check_due(variant, count)
        ]
        return [int(np.argmax(found.variant == variant)) for variant in due]

    def _recent(self, lines: Lines, rows: Progress) -> Array:
        """Return indexes of the last lines of each lane, as many as its tokens allow (a token bucket)."""
        size = len(lines.block)
        since = int(np.searchsorted(lines.starts[rows.line], size - RECENT_BLOCK))
        if since == len(rows.line):
            return EMPTY
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
        """Return the lines that the container runtime has cut, and the lines that are the rest of one."""
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
    """Return where each name comes last."""
    found: Array = len(names) - 1 - np.unique(names[::-1], return_index=True)[1]
    return found


def _last_before(lines: Array, pauses: Array) -> Array:
    """Return the last of some lines without a time before each line that ends a pause.

    With such a line in between, the length of the pause is not known, and no stall may be stated.
    """
    places = np.searchsorted(lines, pauses) - 1
    return lines[places[places >= 0]]


def _collect(number: int, start: int, end: int, flags: int, matched: list[int]) -> None:
    matched.append(end - 1)


def _spread(some: Sequence[int], most: int) -> Sequence[int]:
    """Return at most so many of some numbers, evenly spread, with the first and the last."""
    if len(some) <= most:
        return some
    return [some[place] for place in np.linspace(0, len(some) - 1, most).astype(np.int64).tolist()]
