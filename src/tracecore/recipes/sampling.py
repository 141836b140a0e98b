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

import re
from collections.abc import Callable, Sequence
from itertools import repeat
from typing import Final

from tracecore.ottl.planner.database import Database
from tracecore.ottl.planner.selection import Selector, plain
from tracecore.recipes.columns import HIDDEN, NO_PROGRESS, Array, Lines, Mask, Progress, read
from tracecore.recipes.lanes import Lanes
from tracecore.recipes.repeats import Repeats, sampled
from tracecore.recipes.shapes import ALONE, DIGITS, NOTHING, UNKNOWN, Shapes, numbers
from tracecore.signals.arrays import np
from tracecore.signals.logs.blocks import Block
from tracecore.signals.logs.selector import ALWAYS, FAILED_GROUP, PARTIALS, Picked, Report

#: Seconds of a pause, and between lines that are handed on in any case (the first that gives no more than so many
#: lines of a block). Stalls are looked for from 60 s on: of a stream that goes on for ever, a pause and the
#: longest interval together are less.
PAUSE: Final = 30
EVERY: Final = (600, 1800, 3600, 14_400)
ENOUGH: Final = 24
LIVE_PAUSE: Final = 5
LIVE_EVERY: Final = (1, 2, 5, 10, 25)
LIVE_ENOUGH: Final = 1
#: Of a stream that goes on for ever: recent lines of a lane, at most, and those more for each second that passes.
#: What is in a full block was written a while ago and is followed by more: none of it is recent.
BURST: Final = 96
RATE: Final = 4
RECENT_BLOCK: Final = 64 << 10
FULL_BLOCK: Final = 3 << 18
#: Bytes at the end of a stream; of a lane that ended before them only the last line is handed on.
RECENT: Final = 4 << 20
#: How much that is no progress is looked at in a block, for the progress lines beside it.
MAX_EVENTS: Final = 8

#: Left out of a masked line, what is left tells what it says.
_UNTELLING: Final = DIGITS + HIDDEN + b" "
#: Terminal codes, as they are or escaped in JSON, and other escapes: what stands in a line and not in its text.
_CODE: Final = re.compile(rb"(?:\x1b|\\u001[bB])\[[0-?]*[ -/]*[@-~]|\\u[0-9A-Fa-f]{4}|\\.")
_ESCAPE: Final = re.compile(rb"\\[a-z]")
_NONE: Final[Array] = np.zeros(0, np.int64)


class Sampler:
    """A selector that samples progress lines. One for each stream: it remembers what it saw last.

    Args:
        events: finds lines that are no progress, or more than that.
        progress: the database of guards of progress.
        effects: the database of what progress lines have besides, where it is known.
        shapes: of the lines of this and other streams.
        mask: hides what means nothing in lines that are not known otherwise.
        event_mask: the same for lines that are no progress.
        escaped: lines are JSON.
        size: of the stream in bytes, where it is known.
        live: the stream goes on for ever, and nothing of it is kept back.
    """

    def __init__(
        self,
        events: Selector,
        progress: Database,
        effects: Database | None,
        shapes: Shapes,
        mask: Mask,
        event_mask: Mask,
        *,
        escaped: bool = False,
        size: int | None = None,
        live: bool = False,
    ) -> None:
        self._events = events
        self._progress = progress
        self._effects = effects
        self._shapes = shapes
        self._mask = mask
        self._event_mask = event_mask
        self._escaped = escaped
        self._size = size
        self._live = live
        self._lanes = Lanes()
        self._repeats = Repeats()
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
        keys = said.without(DIGITS)
        known = np.fromiter(map(self._shapes.keys.get, keys, repeat(UNKNOWN)), np.int64, len(keys))
        # A line that is more than progress is handed on by its place.
        known[events] = NOTHING
        cut, rest = self._partial(lines, events)
        known[rest] = NOTHING
        found, alone = self._read(said, known, lines.raw)
        others, texts = self._progressing(said, np.flatnonzero(known == UNKNOWN))
        if len(others):
            more, others_alone = self._found(lines, keys, others, texts)
            found, alone = found.joined(more), np.concatenate((alone, others_alone))
        newlines = lines.newlines()

        def row(line: int) -> Report:
            start = int(lines.starts[line])
            return Report(lines.raw(line), block.offset + start, block.line + int(np.searchsorted(newlines, start)))

        reports: list[Report] = []
        masked = self._masked(said, events)
        news = [line for line in self._repeats.news(events.tolist(), masked) if line not in cut]
        if not self._live and len(events):
            also = self._progressing(said, events)[0].tolist()
            kept, reports = self._repeats.thin(events.tolist(), masked, said, row, {*also, *cut, *rest})
            events = np.array(kept, np.int64)
        picked = [events, alone]
        if self._lanes.full:
            reports += self._lanes.close()
        if len(events) and FAILED_GROUP in text:
            # What workers say after it is another attempt: all in the order of the stream.
            reports += self._lanes.close()
            timed = np.zeros(len(found.line), np.bool_)
        else:
            timed = np.isfinite(found.time) & (not self._live)
        beside = self._true(lines, sampled(news, MAX_EVENTS))
        if timed.any():
            rows = found.some(timed)
            keep = self._keep(block)
            thinned = self._lanes.thin(rows, PAUSE, EVERY, ENOUGH, beside, keep)
            reports += self._lanes.follow(thinned, lambda place: row(int(rows.line[place])), keep)
            reports.sort(key=_offset)
        if not timed.all():
            rows = found.some(~timed)
            thinned = self._lanes.thin(rows, LIVE_PAUSE, LIVE_EVERY, LIVE_ENOUGH, beside)
            places = thinned.place[thinned.kept]
            # Far from the end, the last line of each writer stands for its lanes.
            lasts = _lasts(rows.who) if self._far(block) else thinned.lasts
            picked += [rows.line[places], rows.line[lasts]]
            if self._live and len(block.data) < FULL_BLOCK:
                picked.append(rows.line[self._recent(lines, rows)])
        chosen = np.unique(np.concatenate(picked))
        positions = np.minimum(lines.ends[chosen], len(block.data) - 1).tolist() if len(chosen) else []
        return Picked(positions, newlines, reports, len(newlines))

    def finish(self) -> Sequence[Report]:
        """Return the lines still kept back: of each lane the line that stands for others, and the last ones."""
        return self._lanes.close(self._end - RECENT)

    def _keep(self, block: Block) -> int:
        """Return how many of the last lines of each lane may be needed: few if the end is far away."""
        return 1 if self._far(block) else self._lanes.tail()

    def _far(self, block: Block) -> bool:
        """Return whether the end of the stream is far away."""
        return self._size is not None and block.offset + len(block.data) < self._size - RECENT

    def _true(self, lines: Lines, events: Array) -> Array:
        """Those that are events, and not only look like one; what opens a block of lines always is."""
        chosen = []
        for line in events.tolist():
            raw = lines.raw(line)
            opens = any(opener in raw for opener in ALWAYS)
            if not _is_ruler(raw) if opens else self._shapes.ask(raw).something:
                chosen.append(line)
        return np.array(chosen, np.int64)

    def _masked(self, said: Lines, events: Array) -> list[bytes]:
        """Events without what means nothing to any recipe."""
        if not len(events):
            return []
        text = b"\n".join([said.raw(line) for line in events.tolist()])
        # An escape in a line of JSON is no part of the word after it.
        aside = Lines(self._event_mask(_ESCAPE.sub(b"  ", text)))
        return [aside.raw(number) for number in range(len(events))]

    def _progressing(self, said: Lines, others: Array) -> tuple[Array, list[bytes]]:
        """Those of some lines in which recipes of progress can find something, and what they say."""
        begin, end = said.starts[others].tolist(), said.ends[others].tolist()
        texts = list(map(said.marked.__getitem__, map(slice, begin, end)))
        # The guards are words and cheap to find; most lines that have one are prose.
        for database in (self._progress, self._effects):
            if database is not None and texts:
                found = _matching(database, texts)
                others, texts = others[found], [texts[number] for number in found.tolist()]
        return others, texts

    def _found(self, lines: Lines, keys: list[bytes], others: Array, texts: list[bytes]) -> tuple[Progress, Array]:
        """The same as `_read` for lines that may be progress and are not known as they are.

        Args:
            lines: as they are.
            keys: of all lines.
            others: which lines.
            texts: what they say.
        """
        shapes = self._shapes
        text = b"\n".join(texts)
        aside = Lines(self._mask(text))
        masked = aside.without(_UNTELLING)
        variants = np.fromiter(map(shapes.masked.get, masked, repeat(UNKNOWN)), np.int64, len(masked))
        for number in np.flatnonzero(variants == UNKNOWN).tolist():
            found = shapes.masked.get(masked[number], UNKNOWN)
            if found == UNKNOWN:
                raw = lines.raw(int(others[number]))
                line = aside.raw(number)
                spans = numbers(line) if raw == texts[number] else _numbers(raw, texts[number], line)
                found = ALONE if spans is None else shapes.find(line, raw, spans)
                if found != ALONE:
                    shapes.remember(masked[number], found, masked=True)
            variants[number] = found
        progress, alone = self._read(aside, variants, lambda number: lines.raw(int(others[number])))
        # Where no digit was hidden, the line is known as it is from now on.
        hidden = np.frombuffer(aside.block, np.uint8) == HIDDEN[0]
        hidden &= np.frombuffer(text, np.uint8) - np.uint8(48) < 10
        opaque = np.zeros(len(others), np.bool_)
        opaque[np.searchsorted(aside.ends, np.flatnonzero(hidden))] = True
        for number in progress.line[~opaque[progress.line]].tolist():
            shapes.remember(keys[int(others[number])], int(variants[number]), masked=False)
        return progress._replace(line=others[progress.line]), others[alone]

    def _read(self, lines: Lines, variants: Array, raw: Callable[[int], bytes]) -> tuple[Progress, Array]:
        """Progress lines that can be read by the block, and those that cannot; `raw` gives a line as it is."""
        shapes = self._shapes
        alone = np.flatnonzero(variants == ALONE)
        if not (variants >= 0).any():
            return NO_PROGRESS, alone
        shapes.rows.columns()
        stepless, timeless = shapes.without()
        found, wrong = read(lines, variants, shapes.rows, stepless, timeless)
        refused = [
            place
            for place in self._doubtful(found)
            if not shapes.agrees(int(found.variant[place]), raw(int(found.line[place])), int(found.step[place]))
        ]
        if refused:
            others = np.isin(shapes.rows.shapes[found.variant], shapes.rows.shapes[found.variant[refused]])
            wrong, found = np.append(wrong, found.line[others]), found.some(~others)
        return found, np.append(alone, wrong)

    def _doubtful(self, found: Progress) -> list[int]:
        """Progress lines to compare with what recipes make of them: one of each shape that was not seen often."""
        variants, first, counts = np.unique(found.variant, return_index=True, return_counts=True)
        chosen: list[int] = []
        for variant, place, count in zip(variants.tolist(), first.tolist(), counts.tolist(), strict=True):
            if self._shapes.doubtful(variant, count):
                chosen.append(place)
        return chosen

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
        for line in events.tolist():
            head = lines.block[lines.starts[line] : lines.starts[line] + 48]
            if any(partial + b" " in head for partial in PARTIALS):
                cut.append(line)
                if line + 1 < len(lines.ends):
                    rest.append(line + 1)
                else:
                    self._cut = True
        return cut, rest


def _offset(report: Report) -> int:
    return report.offset


def _lasts(names: Array) -> Array:
    """Return where each name is found last."""
    found: Array = len(names) - 1 - np.unique(names[::-1], return_index=True)[1]
    return found


def _is_ruler(raw: bytes) -> bool:
    return b"====================" in raw or b"********************" in raw


def _matching(database: Database, texts: Sequence[bytes]) -> Array:
    """Return the places of the texts in which something is found, ascending."""
    matched: list[int] = []
    database.scan(b"\n".join(texts), _collect, matched)
    borders = np.cumsum(np.fromiter(map(len, texts), np.int64, len(texts)) + 1)
    return np.unique(np.searchsorted(borders, np.array(matched, np.int64)))


def _numbers(raw: bytes, text: bytes, masked: bytes) -> list[tuple[int, int]] | None:
    """Return where the numbers of a line are that its text has; None if that is not certain.

    Args:
        raw: the line as it is.
        text: the same without escapes and terminal codes.
        masked: the text without what means nothing.
    """
    spans, said = numbers(_CODE.sub(_hidden, raw)), numbers(text)
    if [raw[begin:end] for begin, end in spans] != [text[begin:end] for begin, end in said]:
        return None
    shown = set(numbers(masked))
    return [span for span, place in zip(spans, said, strict=True) if place in shown]


def _hidden(match: re.Match[bytes]) -> bytes:
    return HIDDEN * (match.end() - match.start())


def _collect(number: int, start: int, end: int, flags: int, matched: list[int]) -> None:
    matched.append(end - 1)
