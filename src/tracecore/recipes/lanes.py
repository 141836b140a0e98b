"""Lanes of progress: lines of one kind by one writer, and what is remembered of them from block to block."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Final, NamedTuple

from tracecore.recipes.columns import NO_STEP, Array, Flags, Lines, Words, as_steps, seconds, steps
from tracecore.signals.arrays import np
from tracecore.signals.logs.selector import Report

MAX_LANES: Final = 16_384
#: Ranks that share a log and do not say who they are may be so many steps apart.
SKEW: Final = 2
#: So many lines of one step without times stand still.
MANY: Final = 64

#: Bits of a clock that hold its single seconds.
_SECONDS: Final = np.uint64(8)


class Ordered(NamedTuple):
    """Lines of a block, lane by lane.

    Args:
        number: which lines.
        pick: whether they are handed on.
        still: whether the next one has the same step.
        spans: (lane, its first place here, its last, whether its first line does not simply follow the last one
            of an earlier block).
    """

    number: Array
    pick: Flags
    still: Flags
    spans: list[tuple[int, int, int, bool]]


class Compared(NamedTuple):
    """Lines lane by lane, each with the one before it.

    Args:
        lines: in this order.
        order: their places in the order of the block; None where there is only one lane.
        inner: which lines but the last are followed by one of their lane; None where there is only one.
        at: lines that the next one does not simply follow, so that there may be something to find out.
        then: the seconds of these, and of those after them.
        now: likewise.
        edges: those of them after which there is a pause, or a smaller step.
        still: those of them after which the step is the same, and has been or will be for longer than a moment.
        stood: whether there is one for which that can be said of this block alone.
        spans: (lane, its first place, its last).
        ends: (step, second) of these first and last places.
    """

    lines: Lines
    order: Array | None
    inner: Flags | None
    at: Array
    then: Array
    now: Array
    edges: Array
    still: Array
    stood: bool
    spans: list[tuple[int, int, int]]
    ends: list[tuple[tuple[int, int], tuple[int, int]]]

    def steady(self, stretch: Array, expected: frozenset[int]) -> bool:
        """Whether certain lanes, and no others, go on in all stretches of a block: then so they do between them.

        Args:
            stretch: which one each line is in, in the order of the block.
            expected: the lanes.
        """
        if len(self.edges) or self.stood or {who for who, _, _ in self.spans} != expected:
            return False
        if self.order is not None:
            stretch = stretch[self.order]
        seen = stretch[1:] != stretch[:-1]
        if self.inner is not None:
            seen |= ~self.inner
        return int(np.count_nonzero(seen)) + 1 == len(expected) * (int(stretch.max()) + 1)


def compare(lines: Lines, limit: int) -> Compared:
    """Lane by lane, where something may have happened.

    Args:
        lines: in the order of the block.
        limit: seconds of a pause.
    """
    order: Array | None = None
    if not isinstance(lines.lane, int):
        order = _by_lane(lines.lane)
        lines = lines.some(order)
    return _compared(lines, order, limit)


def _compared(lines: Lines, order: Array | None, limit: int, *, level: bool = False) -> Compared:
    """The same for lines in their order; `level` where their steps have been evened out."""
    number, step, clock, lane = lines
    size = len(number)
    # As a rule steps rise within the same ten seconds, and only where they do not there is something to find out.
    coarse = clock >> _SECONDS if limit > 10 else clock
    stays = (step[1:] <= step[:-1]) & (step[1:] != NO_STEP)
    at = (stays | (clock[1:] < clock[:-1]) | (coarse[1:] != coarse[:-1])).nonzero()[0]
    firsts, lasts = [0], [size - 1]
    inner: Flags | None = None
    if not isinstance(lane, int):
        inner = lane[1:] == lane[:-1]
        at = at[inner[at]]
        ends = (~inner).nonzero()[0]
        firsts, lasts = [0, *(ends + 1).tolist()], [*ends.tolist(), size - 1]
    count = len(at)
    places = np.concatenate((at, at + 1, firsts, lasts))
    said, times = steps(step[places]), seconds(clock[places])
    then, now = times[:count], times[count : 2 * count]
    rises, pauses = said[count : 2 * count] - said[:count], now - then
    if not level and ((rises < 0) & (rises >= -SKEW)).any():
        return _compared(lines._replace(step=_level(lines)), order, limit, level=True)
    whose = [lane] if isinstance(lane, int) else lane[firsts].tolist()
    rows = list(zip(said[2 * count :].tolist(), times[2 * count :].tolist(), strict=True))
    edges = at[(pauses >= limit) | (pauses < 0) | (rises < 0)]
    same = (rises == 0) & (step[at] != NO_STEP)
    still, stood = _lasting(at[same], then[same], now[same], limit, edges, firsts, lasts)
    return Compared(
        lines,
        order,
        inner,
        at,
        then,
        now,
        edges,
        still,
        stood,
        list(zip(whose, firsts, lasts, strict=True)),
        list(zip(rows[: len(firsts)], rows[len(firsts) :], strict=True)),
    )


def _level(lines: Lines) -> Words:
    """Steps of lines lane by lane without those that are a little behind the largest so far."""
    said = steps(lines.step)
    new = said[1:] < said[:-1] - SKEW
    if not isinstance(lines.lane, int):
        new |= lines.lane[1:] != lines.lane[:-1]
    # Each stretch without a large step back is lifted above the one before it, and put down again.
    lift = np.append(0, np.cumsum(new)) << 32
    number: Array = np.maximum.accumulate(said + lift) - lift
    level = as_steps(number)
    level[lines.step == NO_STEP] = NO_STEP
    return level


def _lasting(
    same: Array, then: Array, now: Array, limit: int, edges: Array, firsts: list[int], lasts: list[int]
) -> tuple[Array, bool]:
    """Of lines that the next one has the same step as, those where it stays so for long, and whether there are any.

    Ranks that share a log and do not say who they are repeat every step. That is no step that stands still, unless it
    does so for a while, or until nothing comes; where a block begins or ends, nobody knows yet.

    Args:
        same: these lines.
        then: their seconds, and those of the lines after them.
        now: likewise.
        limit: seconds of a pause.
        edges: lines after which there is one, or a smaller step.
        firsts: the first line of each lane.
        lasts: the last.
    """
    if not len(same):
        return same, False
    first = np.flatnonzero(np.diff(same, prepend=-2) != 1)
    last = np.append(first[1:], len(same)) - 1
    count = last - first + 1
    begin, end = same[first], same[last] + 1
    long = (now[last] - then[first] >= limit) | np.isin(end, edges) | ((then[first] < 0) & (count >= MANY))
    kept = long | np.isin(begin, firsts) | np.isin(end, lasts)
    return same[np.repeat(kept, count)], bool(long.any())


class Lanes:
    """The last line of each lane: step, second, and whether its step stood still."""

    def __init__(self) -> None:
        self._last: dict[int, tuple[int, int, bool]] = {}

    def stands(self, who: int) -> bool:
        """Whether the step of a lane's last line stood still."""
        return self._last[who][2]

    def order(
        self, compared: Compared, limit: int, intervals: Sequence[int], enough: int, whole: Flags | None
    ) -> Ordered:
        """Lane by lane, which lines have to be handed on for what they say.

        Args:
            compared: the lines of a block.
            limit: seconds of a pause, as they were compared with.
            intervals: one of them is the time between lines that are handed on without a reason.
            enough: so many of those in a block are enough.
            whole: lines that are handed on in any case.
        """
        size = len(compared.lines.number)
        pick = np.zeros(size, np.bool_) if whole is None else whole
        if whole is not None and compared.order is not None:
            pick = whole[compared.order]
        still = np.zeros(size - 1, np.bool_)
        pick[compared.edges] = True
        pick[compared.edges + 1] = True
        if len(compared.still):
            still[compared.still] = True
            begins, over = still.copy(), ~still
            begins[1:] &= over[:-1]
            over[1:] &= still[:-1]
            over[:1] = False
            pick[:-1] |= begins | over
            pick[1:] |= over if compared.inner is None else over & compared.inner
        for every in intervals:
            ticks = compared.at[compared.now // every != compared.then // every] + 1
            if len(ticks) <= enough:
                break
        pick[ticks] = True
        if len(self._last) > MAX_LANES:
            self._last.clear()
        spans: list[tuple[int, int, int, bool]] = []
        for (who, first, final), (one, other) in zip(compared.spans, compared.ends, strict=True):
            (first_step, begin), (final_step, end) = one, other
            before = self._last.get(who)
            stood = bool(still[final - 1]) if final > first else False
            broken = False
            if before is None:
                pick[first] = True
            else:
                stands = first_step == before[0] >= 0
                back = first_step < before[0] - SKEW
                broken = not 0 <= begin - before[1] < limit or back or before[2] != stands
                if broken or begin // every != before[1] // every:
                    pick[first] = True
                stood = stood or (stands and final == first)
            self._last[who] = (final_step, end, stood)
            spans.append((who, first, final, broken))
        return Ordered(compared.lines.number, pick, still, spans)


def _by_lane(lane: Array) -> Array:
    """The order of lines lane by lane."""
    least, most = int(lane.min()), int(lane.max())
    # Small numbers are sorted by counting.
    return np.argsort((lane - least).astype(np.uint16) if most - least < 65_536 else lane, kind="stable")


class Standing:
    """What is kept back of a lane: a line, how many followed it, and the last of these."""

    __slots__ = ("alone", "count", "owed", "report", "tail")

    def __init__(self) -> None:
        self.report: Report | None = None
        #: Those that follow it have the same step: that is no progress, and nobody stands for it.
        self.alone = False
        self.count = 0
        self.tail: deque[Report] = deque()
        #: So many of the next lines follow something that is no progress.
        self.owed = 0

    def follow(
        self,
        first: int,
        final: int,
        picked: Sequence[tuple[int, bool]],
        row: Callable[[int], Report],
        keep: int,
        lead: int,
        reports: list[Report],
    ) -> None:
        """Takes the lines of a block from `first` to `final`, of which some are handed on for themselves.

        Args:
            picked: these, and whether the step stands still after them.
            keep: so many of the last lines are remembered.
            lead: so many lines before one that is handed on are handed on as well; 1 for none.
        """
        counted = first
        for place, alone in picked:
            if self.report is not None:
                self.count += place - counted
                if lead == 1:
                    reports.append(self._until(row(place - 1) if place > first else self.tail[-1]))
                else:
                    before = [row(number) for number in range(max(place - lead, first), place)]
                    reports += self._with([*self.tail, *before][-lead:])
            self.report, self.alone, self.count, counted = row(place), alone, 0, place
        self.count += final + 1 - counted
        if len(self.tail) > keep or self.tail.maxlen != keep:
            self.tail = deque(self.tail, keep)
        self.tail.extend(row(place) for place in range(max(final - keep + 1, first), final + 1))

    def _until(self, last: Report, others: int = 0) -> Report:
        """The line that stands for others, up to the last; so many of them are handed on for themselves."""
        report = self.report
        assert report is not None
        lines = self.count - others
        return report if self.count <= 1 or self.alone else report._replace(until=last.raw, lines=max(lines, 1))

    def closed(self) -> list[Report]:
        """The line that stands for others, and the last of these for itself."""
        if self.report is None:
            return []
        last = self.tail[-1]
        found = [self._until(last)] if self.count <= 1 else [self._until(last, 1), last]
        self.report, self.count = None, 0
        return found

    def ended(self) -> list[Report]:
        """The same with all that is known of the last ones."""
        return [] if self.report is None else self._with(self.tail)

    def _with(self, rows: Iterable[Report]) -> list[Report]:
        """The line that stands for others, and those of the last ones that follow it, for themselves."""
        assert self.report is not None
        last = [row for row in rows if row.offset > self.report.offset]
        return [self._until(last[0], len(last)), *last] if last else [self.report]
