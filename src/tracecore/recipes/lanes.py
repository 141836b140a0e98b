"""Thinning: which progress lines are handed on, so that nothing that is concluded from them changes.

A lane are the lines of one shape by one writer whose values are about as large. In a lane only moves matter: lines
whose step is larger than any before, or smaller by more than ranks are apart that share a log. Handed on are

- both moves around a pause, so that a stall begins and ends where it did, however many lines repeat the last step;
- both moves around a step that goes back;
- one in each interval, so that a run that goes on is seen to go on;
- the first of a lane, and those before and after something that is no progress.

A line that is handed on may stand for the moves that follow it, up to the last before the next one that is: then it
is kept back until that is known, by blocks that may be long gone (`LoneLine`).
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

from tracecore.recipes.columns import Array, Flags, Progress, Times
from tracecore.signals.arrays import distinct, np
from tracecore.signals.logs.selector import LoneLine

MAX_LANES: Final = 16_384
#: Ranks that share a log and do not say who they are may be so many steps apart.
SKEW: Final = 2
#: Steps back, and lines out of order, of one lane that are handed on, and how many more for each block without any: a
#: lane with more of them has no order.
MAX_BACK: Final = 8
MORE_BACK: Final = 2
#: Moves after something that is no progress.
AFTER: Final = 6
#: Moves at the end of a stream that are handed on for each lane, fewer of each where there are many.
TAIL: Final = 32
LEAST_TAIL: Final = 4
MOST_TAIL: Final = 16

_LIFT: Final = 1 << 42
_NEW: Final = -(1 << 41)
#: The time of the last move of a writer that made none, and the place where its last pause ended.
_NEVER: Final = float("nan"), -1
#: Two lines that seem to be so many seconds apart may have different clocks: loggers leave out the year, or the zone.
FAR: Final = 600


class Thinned(NamedTuple):
    """The moves of a block, lane by lane; each lane begins with its last move of an earlier block.

    Args:
        place: of each move among the progress lines of the block; -1 for those of an earlier one.
        rows: how many lines of its lane come before it in this block.
        kept: which are handed on.
        edge: which do not simply follow the one before.
        pause: which come after a pause of their writer.
        lanes: (its first move here, one past its last, how many lines it has).
        lasts: the last line of each lane, move or not.
    """

    place: Array
    rows: Array
    kept: Flags
    edge: Flags
    pause: Flags
    lanes: list[tuple[Lane, int, int, int]]
    lasts: Array


class Lane:
    """The state of a lane between two blocks."""

    __slots__ = ("backs", "count", "last", "place", "refilled", "report", "step", "tail", "time", "tokens")

    def __init__(self) -> None:
        #: Of the last move; its place counts the lines of all blocks.
        self.step = _NEW
        self.time = float("nan")
        self.place = -1
        #: A line that stands for those that follow it, how many lines these are, and the last move among them.
        self.report: LoneLine | None = None
        self.count = 0
        self.last: LoneLine | None = None
        self.tail: deque[LoneLine] = deque(maxlen=MOST_TAIL)
        #: So many steps back may still be handed on.
        self.backs = MAX_BACK
        #: Lines that may be handed on for no other reason than that they are recent.
        self.tokens = 1e9
        self.refilled = float("nan")

    def closed(self, last: LoneLine) -> LoneLine:
        """The line that stands for others, up to the last of them."""
        assert self.report is not None
        if last.offset <= self.report.offset:
            return self.report
        return self.report._replace(until=last.raw, lines=max(self.count, 1))

    def over(self) -> list[LoneLine]:
        """The line that stands for others, and the last of these for itself."""
        if self.report is None or self.last is None:
            return []
        report, self.report = self.closed(self.last), None
        self.count = 0
        if report.until is None:
            return [report]
        return [report._replace(lines=max(report.lines - 1, 1)), self.last]

    def ended(self) -> list[LoneLine]:
        """The same with all that is known of the last ones."""
        if self.report is None:
            return []
        rows = [row for row in self.tail if row.offset > self.report.offset]
        if not rows:
            return self.over()
        return [self.closed(rows[0])._replace(lines=max(self.count - len(rows), 1)), *rows]


class Lanes:
    """The lanes of a stream."""

    def __init__(self) -> None:
        self._lanes: dict[int, Lane] = {}
        #: So many of the next moves of each writer follow something that is no progress.
        self._owed: dict[int, int] = {}
        #: When each writer made its last move, and where its last pause ended.
        self._writers: dict[int, tuple[float, int]] = {}
        #: Lines of the blocks before.
        self._lines = 0
        #: Those that tell their steps.
        self._stepped: set[int] = set()

    @property
    def full(self) -> bool:
        """Whether there are too many to remember."""
        return len(self._lanes) > MAX_LANES

    def thin(
        self,
        found: Progress,
        limit: float,
        intervals: Sequence[int],
        enough: int,
        events: Array,
        lead: int = 1,
        *,
        together: bool = False,
    ) -> Thinned:
        """Return the progress lines of a block that are handed on.

        Args:
            found: the lines; at least one.
            limit: seconds of a pause.
            intervals: the first of them that gives no more than `enough` lines is the time between those that are
                handed on in any case, else the last.
            events: lines that are no progress.
            lead: so many moves before the last of these are handed on.
            together: one line of an interval will do for all lanes of a writer.
        """
        order = np.argsort(found.lane, kind="stable")
        names = found.lane[order]
        first = np.append(0, np.flatnonzero(names[1:] != names[:-1]) + 1)
        lanes = [self.lane(name) for name in names[first].tolist()]
        # Before the lines of each lane stands its last move of an earlier block.
        begins = np.zeros(len(order) + len(first), np.bool_)
        begins[first + np.arange(len(first))] = True
        step = _led([lane.step for lane in lanes], found.step[order], begins)
        time = _led([lane.time for lane in lanes], found.time[order], begins)
        line = _led([lane.place for lane in lanes], found.line[order] + self._lines, begins)
        moves, level, back = _moves(step, begins)
        ordinal = np.cumsum(begins) - 1
        row = moves - ordinal[moves] - 1
        place = np.where(begins[moves], -1, order[row])
        follows = ~begins[moves[1:]]
        now, then = time[moves[1:]], time[moves[:-1]]
        timed = follows & np.isfinite(now) & np.isfinite(then)
        passed = np.where(timed, now - then, 0.0)
        turned = _few(follows & (back[moves[1:]] | (passed < -1)), ordinal[moves[1:]], lanes)
        here = np.flatnonzero(~begins[moves])
        own = place[here]
        # Lines without a step are no progress of a writer that tells its steps.
        stepped = found.step[own] >= 0
        counts = stepped
        begun = [] if stepped.all() else [who for who in _distinct(found.who[own[stepped]]) if who not in self._stepped]
        self._stepped.update(_distinct(found.who[own[stepped]]))
        if not stepped.all():
            counts = stepped | ~np.isin(found.who[own], list(self._stepped))
        ended, before = np.full(len(moves), -1), np.full(len(moves), np.nan)
        within = np.where(timed & (passed >= 0), passed, np.inf)
        ended[here[counts]], before[here[counts]] = self._pauses(
            found.some(own[counts]), np.concatenate(((np.inf,), within, (np.inf,))), here[counts], limit
        )
        pause = np.zeros(len(moves), np.bool_)
        pause[1:] = (passed >= limit) & (ended[1:] > line[moves[:-1]])
        edge = pause.copy()
        edge[1:] |= turned | follows & ((step[moves[:-1]] == _NEW) | (~np.isfinite(then) & np.isfinite(now)))
        for who in begun:
            # From its first step on, lines without one are no progress: none before that stands for one after it.
            mine = found.who[own] == who
            late = here[mine & ~stepped & (found.line[own] > found.line[own[mine & stepped]].min())]
            edge[late[np.unique(ordinal[moves[late]], return_index=True)[1]]] = True
        kept = edge.copy()
        kept[:-1] |= edge[1:]
        # Lanes of one writer may have clocks that are apart: each has to be in another interval by its own, too.
        lasts = (then, before[1:]) if together else (then,)
        for every in intervals:
            other = [np.isfinite(last) & (np.floor(now / every) != np.floor(last / every)) for last in lasts]
            ticks = 1 + np.flatnonzero(follows & np.isfinite(now) & np.logical_and.reduce(other))
            if len(ticks) <= enough:
                break
        kept[ticks] = True
        starts = np.flatnonzero(begins[moves])
        stops = np.append(starts[1:], len(moves))
        self._beside(kept, here, found.line[own], found.who[own], events, lead)
        kept[starts] = False
        ends = np.append(first[1:], len(order))
        finals = ends + np.arange(len(first))
        # Where a lane ends, its steps are as high as they were.
        for lane, final, move in zip(lanes, finals.tolist(), (stops - 1).tolist(), strict=True):
            lane.step, lane.time, lane.place = int(level[final]), float(time[moves[move]]), int(line[moves[move]])
        self._lines += int(found.line[-1]) + 1
        sizes = (ends - first).tolist()
        parts = list(zip(lanes, starts.tolist(), stops.tolist(), sizes, strict=True))
        return Thinned(place, row - first[ordinal[moves]], kept, edge, pause, parts, order[ends - 1])

    def _pauses(self, moves: Progress, within: Times, places: Array, limit: float) -> tuple[Array, Times]:
        """Return for each move of a block where the last pause of its writer ended, and the latest time before it.

        A lane whose lines are rare pauses all the time: that matters only where its writer makes no other move. Between
        two moves whose clocks differ no more time passed than between each of them and the next one of its own lane.

        Args:
            moves: those that count as progress of their writer.
            within: seconds between each move and the one before it in the same lane, and to the one after it.
            places: of these moves among them.
            limit: seconds of a pause.
        """
        order = np.argsort(moves.line, kind="stable")
        if not _one(moves.who):
            order = order[np.argsort(moves.who[order], kind="stable")]
        order = order[np.isfinite(moves.time[order])]
        ended, before = np.full(len(moves.line), -1), np.full(len(moves.line), np.nan)
        if not len(order):
            return ended, before
        names = moves.who[order]
        first = np.append(0, np.flatnonzero(np.diff(names)) + 1)
        known = [self._writers.get(name, _NEVER) for name in names[first].tolist()]
        # Before the moves of each writer stands its last one of an earlier block.
        begins = np.zeros(len(order) + len(first), np.bool_)
        heads = first + np.arange(len(first))
        begins[heads] = True
        times = _led([last for last, _ in known], moves.time[order], begins)
        gaps = np.diff(times)
        far = np.abs(gaps) > FAR
        if far.any():
            since, until = (_led(np.inf, within[places[order] + side], begins) for side in (0, 1))
            gaps = np.where(far, np.minimum(since[1:], until[:-1]), gaps)
        ends = _led([ended for _, ended in known], moves.line[order] + self._lines, begins)
        ends[1:][(gaps < limit) & ~begins[1:]] = -1
        lasts = np.append(heads[1:], len(times)) - 1
        latest = times.copy()
        for head, last in zip(heads.tolist(), lasts.tolist(), strict=True):
            np.maximum.accumulate(ends[head : last + 1], out=ends[head : last + 1])
            np.fmax.accumulate(latest[head : last + 1], out=latest[head : last + 1])
        states = zip(times[lasts].tolist(), ends[lasts].tolist(), strict=True)
        self._writers.update(zip(names[first].tolist(), states, strict=True))
        ended[order], before[order] = ends[~begins], latest[np.flatnonzero(~begins) - 1]
        return ended, before

    def _beside(self, kept: Flags, moves: Array, line: Array, who: Array, events: Array, lead: int) -> None:
        """Keeps moves of each writer before and after what is no progress; some of them may be in the next block.

        Args:
            moves: those of this block, by their places in `kept`.
            line: their lines.
            who: their writers.
        """
        if len(events):
            self._owed = dict.fromkeys(self._owed, AFTER)
        if not len(line) or not (len(events) or any(self._owed.values())):
            return
        order = np.lexsort((line, who))
        begins = np.append(0, np.flatnonzero(np.diff(who[order])) + 1)
        for first, stop in zip(begins.tolist(), [*begins[1:].tolist(), len(order)], strict=True):
            writer, own = int(who[order[first]]), order[first:stop]
            if not len(events):
                owed = self._owed.get(writer, 0)
                kept[moves[own[:owed]]] = True
                self._owed[writer] = max(owed - len(own), 0)
                continue
            after = np.searchsorted(line[own], events)
            last = int(after[-1])
            # The line itself may say a step, too: then the next one is no move.
            near = np.concatenate((after - 1, after, after + 1, np.arange(last - lead, last + AFTER)))
            kept[moves[own[near[(near >= 0) & (near < len(own))]]]] = True
            self._owed[writer] = max(last + AFTER - len(own), 0)

    def follow(self, thinned: Thinned, row: Callable[[int], LoneLine], keep: int) -> list[LoneLine]:
        """Lines that stand for others, of this block and of those before; what is not known yet is kept back.

        Args:
            row: a progress line by its place.
            keep: so many of the last moves of a lane are remembered.
        """
        reports: list[LoneLine] = []
        places = thinned.place.tolist()
        kept = np.flatnonzero(thinned.kept).tolist()
        for lane, start, stop, size in thinned.lanes:
            counted = 0
            for move in kept[bisect_left(kept, start) : bisect_left(kept, stop)]:
                here = row(places[move])
                if lane.report is not None:
                    lane.count += int(thinned.rows[move]) - counted
                    if move == start + 1 and thinned.edge[move]:
                        reports += lane.over()
                    else:
                        before = row(places[move - 1]) if move > start + 1 else lane.last
                        assert before is not None
                        reports.append(lane.closed(before))
                lane.report, lane.count, counted = here, 0, int(thinned.rows[move])
            lane.count += size - counted
            if stop > start + 1:
                lane.tail.extend(row(place) for place in places[max(stop - keep, start + 1) : stop])
                lane.last = lane.tail[-1]
                if lane.report is None:
                    lane.report = row(places[start + 1])
                    lane.count = size - int(thinned.rows[start + 1])
        return sorted(reports, key=_offset)

    def tail(self) -> int:
        """Return how many of the last moves of each lane are handed on."""
        return min(max(TAIL // max(len(self._lanes), 1), LEAST_TAIL), MOST_TAIL)

    def close(self, recent: int | None = None) -> list[LoneLine]:
        """Return what is kept back, and forget it.

        Args:
            recent: of lanes that went on after this place of the stream, all that is known of the last lines.
        """
        lanes, self._lanes = self._lanes, {}
        self._owed.clear()
        self._writers.clear()
        self._stepped.clear()
        reports: list[LoneLine] = []
        for lane in lanes.values():
            late = recent is not None and lane.last is not None and lane.last.offset > recent
            reports += lane.ended() if late else lane.over()
        return sorted(reports, key=_offset)

    def lane(self, name: int) -> Lane:
        """A lane by its name."""
        lane = self._lanes.get(name)
        if lane is None:
            lane = self._lanes[name] = Lane()
        return lane


def _led(heads: object, values: Any, begins: Flags) -> Any:
    """Return values with a head before the first of each lane or writer, which stands where one begins."""
    found = np.empty(len(begins), values.dtype)
    found[begins], found[~begins] = heads, values
    return found


def _moves(step: Array, begins: Flags) -> tuple[Array, Array, Flags]:
    """Return the lines that are moves, the step reached at each, and which of them go back.

    Args:
        step: lane by lane.
        begins: where a lane begins.
    """
    back = np.zeros(len(step), np.bool_)
    back[1:] = ~begins[1:] & (step[1:] >= 0) & (step[1:] < step[:-1] - SKEW)
    # Each stretch without a step back is lifted above the one before it, and put down again.
    lift = np.cumsum(begins | back) * _LIFT
    level: Array = np.maximum.accumulate(step + lift) - lift
    move = begins | back | (step == -1)
    move[1:] |= level[1:] > level[:-1]
    return np.flatnonzero(move), level, back


def _few(flags: Flags, ordinal: Array, lanes: Sequence[Lane]) -> Flags:
    """Return the first lines of each lane, up to its limit."""
    where = np.flatnonzero(flags)
    which = ordinal[where]
    left = np.array([lane.backs for lane in lanes])
    nth = np.arange(len(where)) - np.searchsorted(which, which)
    flags[where[nth >= left[which]]] = False
    counts = np.bincount(which, minlength=len(lanes))
    left = np.where(counts > 0, np.maximum(left - counts, 0), np.minimum(left + MORE_BACK, MAX_BACK))
    for lane, backs in zip(lanes, left.tolist(), strict=True):
        lane.backs = backs
    return flags


def _one(names: Array) -> bool:
    """Return whether all are the same: as a rule, one writer has a file for itself."""
    return bool((names == names[:1]).all())


def _distinct(names: Array) -> list[int]:
    found: list[int] = (names[:1] if _one(names) else distinct(names)).tolist()
    return found


def _offset(report: LoneLine) -> int:
    return report.offset
