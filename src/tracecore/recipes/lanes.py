"""Thinning of progress lines: which ones are handed on, so that no conclusion changes.

A *lane* is the lines of one shape by one writer with values of one magnitude: `[rank3] step 7 loss 2.5` and
`[rank3] step 8 loss 2.4` are in one lane, `[rank3] step 9 loss 2000.1` is in another. An *owner* is the rank whose
progress the lanes report. In a lane only *moves* matter: lines with a higher step than any before, or one so much lower
that the run went back. These are handed on:

- both moves around an *edge*: a pause of the owner or a step back, so that stalls and restarts have the same bounds.
  An owner that always reports after a minute does not pause for a minute;
- one move in each interval, which shows that the run goes on;
- moves before and after an event (a line that is more than progress).

A line that is handed on may stand for the moves up to the next one that is. Such a line is a report (`LoneLine`). It is
held back until the last line it stands for is known, which may be many blocks later.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from tracecore.recipes.columns import Array, Flags, Progress, Times
from tracecore.signals.arrays import distinct, np
from tracecore.signals.logs.selector import LoneLine

MAX_LANES: Final = 16_384
#: Ranks that share a log without naming themselves may be this many steps apart.
SKEW: Final = 2
#: Steps back of one lane that are handed on, and how many more for each block without any. A lane with more of them
#: has no order.
MAX_BACK: Final = 8
MORE_BACK: Final = 2
#: Moves that are handed on after an event, and after one that names its rank among several. Without a rank, one or two
#: moves could be another rank's.
AFTER: Final = 4
AFTER_NAMED: Final = 2
#: Moves at the end of a stream that are handed on: shared by all lanes, and the least and most for one lane.
TAIL: Final = 32
LEAST_TAIL: Final = 4
MOST_TAIL: Final = 16
#: A pause is at least this many times as long as the owner's usual gap: three quarters of its last gaps are shorter.
PAUSES: Final = 3
#: The last gaps of each owner that tell what is usual.
GAPS: Final = 16
#: Two lines that seem to be this many seconds apart may have different clocks: loggers leave out the year, or the zone.
FAR: Final = 600

_LIFT: Final = 1 << 42
#: The step of a lane without a move.
_NO_STEP: Final = -(1 << 41)


class _Owner(NamedTuple):
    """The state of an owner between two blocks.

    Args:
        time: of its last move.
        ended: the line where its last pause ended.
        gaps: the seconds between its last moves.
    """

    time: float
    ended: int
    gaps: tuple[float, ...]


#: An owner without a move.
_NO_MOVE: Final = _Owner(float("nan"), -1, ())


class Thinned(NamedTuple):
    """The moves of a block, lane by lane. Each lane begins with its last move of an earlier block.

    Args:
        place: of each move, its index among the progress lines of the block; -1 for a move of an earlier block.
        before: of each move, how many lines of its lane come before it in this block.
        kept: the move is handed on.
        edge: the move is separated from the one before by a pause, a step back or the like.
        pause: the move ends a pause of its owner.
        lanes: (lane, its first move here, one past its last move, count of its lines).
        lasts: indexes of the last line of each lane, move or not.
    """

    place: Array
    before: Array
    kept: Flags
    edge: Flags
    pause: Flags
    lanes: list[tuple[Lane, int, int, int]]
    lasts: Array


class Lane:
    """The state of a lane between two blocks."""

    __slots__ = ("backs_left", "count", "last", "line", "refilled", "report", "step", "tail", "time", "tokens")

    def __init__(self) -> None:
        #: The last move. Its line is counted from the first block of the stream.
        self.step = _NO_STEP
        self.time = float("nan")
        self.line = -1
        #: The report that is held back, how many lines it stands for, and the last move among these.
        self.report: LoneLine | None = None
        self.count = 0
        self.last: LoneLine | None = None
        #: The last moves.
        self.tail: deque[LoneLine] = deque(maxlen=MOST_TAIL)
        #: Steps back that may still be handed on.
        self.backs_left = MAX_BACK
        #: Lines that a live stream may hand on only because they are recent.
        self.tokens = 1e9
        self.refilled = float("nan")

    def closed(self, last: LoneLine) -> LoneLine:
        """Return the report that is held back, with the last line it stands for."""
        assert self.report is not None
        if last.offset <= self.report.offset:
            return self.report
        return self.report._replace(until=last.raw, lines=max(self.count, 1))

    def release(self) -> list[LoneLine]:
        """Return the report that is held back, and the last move by itself; hold nothing back any more."""
        if self.report is None or self.last is None:
            return []
        report, self.report = self.closed(self.last), None
        self.count = 0
        if report.until is None:
            return [report]
        return [report._replace(lines=max(report.lines - 1, 1)), self.last]

    def release_tail(self) -> list[LoneLine]:
        """Return the report that is held back, and each of the last moves by itself."""
        if self.report is None:
            return []
        rows = [row for row in self.tail if row.offset > self.report.offset]
        if not rows:
            return self.release()
        return [self.closed(rows[0])._replace(lines=max(self.count - len(rows), 1)), *rows]


class Lanes:
    """The lanes of a stream."""

    def __init__(self) -> None:
        self._lanes: dict[int, Lane] = {}
        #: How many of the next moves are handed on because of an event: by owner, and of anybody.
        self._due: dict[int | None, int] = {}
        self._owners: dict[int, _Owner] = {}
        #: Owners with lines that have a step.
        self._stepping: set[int] = set()
        #: Lines of earlier blocks.
        self._lines = 0

    @property
    def full(self) -> bool:
        """Whether there are more lanes than should be remembered."""
        return len(self._lanes) > MAX_LANES

    def thin(
        self,
        found: Progress,
        limit: float,
        intervals: Sequence[int],
        enough: int,
        events: Mapping[int, int | None],
        lead: int = 1,
        *,
        together: bool = False,
    ) -> Thinned:
        """Choose the progress lines of a block that are handed on.

        Args:
            found: the lines; at least one.
            limit: seconds of a pause, at least.
            intervals: one move of each interval is handed on. The first length that gives no more than `enough` moves
                is used, else the last.
            events: lines that tell of trouble, each with the owner that it concerns; None if it does not tell.
            lead: moves to hand on before the last event.
            together: one move of an interval is enough for all lanes of an owner.
        """
        order = np.argsort(found.lane, kind="stable")
        names = found.lane[order]
        first = np.append(0, np.flatnonzero(names[1:] != names[:-1]) + 1)
        lanes = [self.lane(name) for name in names[first].tolist()]
        # The last move of an earlier block is put before the lines of each lane.
        begins = np.zeros(len(order) + len(first), np.bool_)
        begins[first + np.arange(len(first))] = True
        step = _with_heads([lane.step for lane in lanes], found.step[order], begins)
        time = _with_heads([lane.time for lane in lanes], found.time[order], begins)
        line = _with_heads([lane.line for lane in lanes], found.line[order] + self._lines, begins)
        moves, level, back = _moves(step, begins)
        ordinal = np.cumsum(begins) - 1
        row = moves - ordinal[moves] - 1
        place = np.where(begins[moves], -1, order[row])
        follows = ~begins[moves[1:]]
        now, then = time[moves[1:]], time[moves[:-1]]
        timed = follows & np.isfinite(now) & np.isfinite(then)
        passed = np.where(timed, now - then, 0.0)
        turned = _limit_backs(follows & (back[moves[1:]] | (passed < -1)), ordinal[moves[1:]], lanes)
        here = np.flatnonzero(~begins[moves])
        own = place[here]
        # Lines without a step do not count as progress if the owner has lines with one.
        has_step = found.step[own] >= 0
        counts = has_step
        stepping = _distinct(found.owner[own[has_step]])
        new = [] if has_step.all() else [owner for owner in stepping if owner not in self._stepping]
        self._stepping.update(stepping)
        if not has_step.all():
            counts = has_step | ~np.isin(found.owner[own], list(self._stepping))
        ended, latest = np.full(len(moves), -1), np.full(len(moves), np.nan)
        limits = np.full(len(moves), limit)
        gaps = np.where(timed & (passed >= 0), passed, np.inf)
        ended[here[counts]], latest[here[counts]], limits[here[counts]] = self._pauses(
            found.take(own[counts]), np.concatenate(((np.inf,), gaps, (np.inf,))), here[counts], limit
        )
        pause = np.zeros(len(moves), np.bool_)
        pause[1:] = (passed >= limits[1:]) & (ended[1:] > line[moves[:-1]])
        edge = pause.copy()
        edge[1:] |= turned | follows & ((step[moves[:-1]] == _NO_STEP) | (~np.isfinite(then) & np.isfinite(now)))
        for owner in new:
            # Before an owner's first step its lines without a step count. None of them may stand for a later one.
            mine = found.owner[own] == owner
            late = here[mine & ~has_step & (found.line[own] > found.line[own[mine & has_step]].min())]
            edge[late[np.unique(ordinal[moves[late]], return_index=True)[1]]] = True
        kept = edge.copy()
        kept[:-1] |= edge[1:]
        # The lanes of one owner may have different clocks, so a move also has to be in a new interval of its own lane.
        previous = (then, latest[1:]) if together else (then,)
        for every in intervals:
            other = [np.isfinite(last) & (np.floor(now / every) != np.floor(last / every)) for last in previous]
            ticks = 1 + np.flatnonzero(follows & np.isfinite(now) & np.logical_and.reduce(other))
            if len(ticks) <= enough:
                break
        kept[ticks] = True
        starts = np.flatnonzero(begins[moves])
        stops = np.append(starts[1:], len(moves))
        self._keep_near_events(kept, here, found.line[own], found.owner[own], events, lead)
        kept[starts] = False
        ends = np.append(first[1:], len(order))
        finals = ends + np.arange(len(first))
        for lane, final, move in zip(lanes, finals.tolist(), (stops - 1).tolist(), strict=True):
            lane.step, lane.time, lane.line = int(level[final]), float(time[moves[move]]), int(line[moves[move]])
        self._lines += int(found.line[-1]) + 1
        sizes = (ends - first).tolist()
        parts = list(zip(lanes, starts.tolist(), stops.tolist(), sizes, strict=True))
        return Thinned(place, row - first[ordinal[moves]], kept, edge, pause, parts, order[ends - 1])

    def _pauses(self, moves: Progress, gaps: Times, places: Array, limit: float) -> tuple[Array, Times, Times]:
        """Return for each move the line where its owner's last pause ended, the owner's latest time before it, and how
        long a pause of the owner is.

        Pauses are looked for in owners, not in lanes: a lane whose lines are rare pauses all the time. Two lanes may
        have different clocks. So when two neighbouring moves seem far apart, the time between them is at most the gap
        to the next move of either lane, which has the same clock.

        Args:
            moves: those that count as progress of their owner.
            gaps: seconds between each move of the block and the one before it in its lane, and to the one after it.
            places: indexes of `moves` among the moves of the block.
            limit: seconds of a pause, at least.
        """
        order = np.argsort(moves.line, kind="stable")
        if not _all_same(moves.owner):
            order = order[np.argsort(moves.owner[order], kind="stable")]
        order = order[np.isfinite(moves.time[order])]
        ended, before = np.full(len(moves.line), -1), np.full(len(moves.line), np.nan)
        limits = np.full(len(moves.line), limit)
        if not len(order):
            return ended, before, limits
        names = moves.owner[order]
        first = np.append(0, np.flatnonzero(np.diff(names)) + 1)
        known = [self._owners.get(name, _NO_MOVE) for name in names[first].tolist()]
        # The last move of an earlier block is put before the moves of each owner.
        begins = np.zeros(len(order) + len(first), np.bool_)
        heads = first + np.arange(len(first))
        begins[heads] = True
        times = _with_heads([owner.time for owner in known], moves.time[order], begins)
        passed = np.diff(times)
        far = np.abs(passed) > FAR
        if far.any():
            since, until = (_with_heads(np.inf, gaps[places[order] + side], begins) for side in (0, 1))
            passed = np.where(far, np.minimum(since[1:], until[:-1]), passed)
        ends = _with_heads([owner.ended for owner in known], moves.line[order] + self._lines, begins)
        lasts = np.append(heads[1:], len(times)) - 1
        latest = times.copy()
        parts = zip(names[first].tolist(), known, first.tolist(), heads.tolist(), lasts.tolist(), strict=True)
        for name, owner, begin, head, last in parts:
            recent = (*owner.gaps, *passed[max(head, last - GAPS) : last].tolist())
            recent = tuple([gap for gap in recent if gap >= 0])[-GAPS:]
            usual = sorted(recent)[len(recent) * 3 // 4] if len(recent) == GAPS else 0.0
            limits[order[begin : begin + last - head]] = longest = max(limit, PAUSES * usual)
            ends[head + 1 : last + 1][passed[head:last] < longest] = -1
            np.maximum.accumulate(ends[head : last + 1], out=ends[head : last + 1])
            np.fmax.accumulate(latest[head : last + 1], out=latest[head : last + 1])
            self._owners[name] = _Owner(float(times[last]), int(ends[last]), recent)
        ended[order], before[order] = ends[~begins], latest[np.flatnonzero(~begins) - 1]
        return ended, before, limits

    def _keep_near_events(
        self, kept: Flags, moves: Array, line: Array, owner: Array, events: Mapping[int, int | None], lead: int
    ) -> None:
        """Keep moves before and after events. Some of the moves after may be in the next block.

        Args:
            kept: flags of all moves; changed in place.
            moves: indexes of this block's moves in `kept`.
            line: their lines.
            owner: their owners.
            events: see `thin`.
            lead: moves to keep before the last event.
        """
        if not (events or self._due):
            return
        order = np.argsort(line, kind="stable")
        line, moves, owner = line[order], moves[order], owner[order]
        own: dict[int | None, Array] = {None: np.arange(len(line))}

        def keep(name: int | None, begin: int, stop: int) -> None:
            kept[moves[own[name][max(begin, 0) : stop]]] = True
            if (left := stop - len(own[name])) > 0:
                self._due[name] = max(left, self._due.get(name, 0))

        due, self._due = self._due, {}
        for name in {*due, *events.values()} - {None}:
            own[name] = np.flatnonzero(owner == name)
        for name, left in due.items():
            keep(name, 0, left)
        last = max(events, default=-1)
        for event, name in events.items():
            below = int(np.searchsorted(line[own[name]], event))
            after = AFTER_NAMED if name is not None and len(self._owners) > 1 else AFTER
            keep(name, below - (lead if event == last else 1), below + after)

    def reports(self, thinned: Thinned, row: Callable[[int], LoneLine], keep: int) -> list[LoneLine]:
        """Return the reports that a block completes, and hold back the others.

        Args:
            row: gives a progress line by its index.
            keep: how many of the last moves of a lane to remember.
        """
        reports: list[LoneLine] = []
        places = thinned.place.tolist()
        kept = np.flatnonzero(thinned.kept).tolist()
        for lane, start, stop, size in thinned.lanes:
            counted = 0
            for move in kept[bisect_left(kept, start) : bisect_left(kept, stop)]:
                here = row(places[move])
                if lane.report is not None:
                    lane.count += int(thinned.before[move]) - counted
                    if move == start + 1 and thinned.edge[move]:
                        reports += lane.release()
                    else:
                        before = row(places[move - 1]) if move > start + 1 else lane.last
                        assert before is not None
                        reports.append(lane.closed(before))
                lane.report, lane.count, counted = here, 0, int(thinned.before[move])
            lane.count += size - counted
            if stop > start + 1:
                lane.tail.extend(row(place) for place in places[max(stop - keep, start + 1) : stop])
                lane.last = lane.tail[-1]
                if lane.report is None:
                    lane.report = row(places[start + 1])
                    lane.count = size - int(thinned.before[start + 1])
        return sorted(reports, key=_offset)

    def tail(self) -> int:
        """Return how many of the last moves of each lane are handed on."""
        return min(max(TAIL // max(len(self._lanes), 1), LEAST_TAIL), MOST_TAIL)

    def close(self, recent: int | None = None) -> list[LoneLine]:
        """Return everything that is held back, and forget all lanes.

        Args:
            recent: of lanes with a move after this offset of the stream, all of the last moves are returned.
        """
        lanes, self._lanes = self._lanes, {}
        self._due.clear()
        self._owners.clear()
        self._stepping.clear()
        reports: list[LoneLine] = []
        for lane in lanes.values():
            late = recent is not None and lane.last is not None and lane.last.offset > recent
            reports += lane.release_tail() if late else lane.release()
        return sorted(reports, key=_offset)

    def lane(self, name: int) -> Lane:
        """Return the lane with this name, new if there is none."""
        lane = self._lanes.get(name)
        if lane is None:
            lane = self._lanes[name] = Lane()
        return lane


def _with_heads(heads: object, values: Any, begins: Flags) -> Any:
    """Merge two sequences: a head where `begins` is set, a value elsewhere."""
    merged = np.empty(len(begins), values.dtype)
    merged[begins], merged[~begins] = heads, values
    return merged


def _moves(step: Array, begins: Flags) -> tuple[Array, Array, Flags]:
    """Return which lines are moves, the highest step up to each line, and which lines go back.

    Args:
        step: of the lines, lane by lane.
        begins: where a lane begins.
    """
    back = np.zeros(len(step), np.bool_)
    back[1:] = ~begins[1:] & (step[1:] >= 0) & (step[1:] < step[:-1] - SKEW)
    # Lift each stretch without a step back above the one before it, so that one running maximum serves all stretches.
    lift = np.cumsum(begins | back) * _LIFT
    level: Array = np.maximum.accumulate(step + lift) - lift
    move = begins | back | (step == -1)
    move[1:] |= level[1:] > level[:-1]
    return np.flatnonzero(move), level, back


def _limit_backs(backs: Flags, ordinal: Array, lanes: Sequence[Lane]) -> Flags:
    """Clear all but the first steps back of each lane, as many as it has left; `ordinal` is the lane of each flag."""
    where = np.flatnonzero(backs)
    which = ordinal[where]
    left = np.array([lane.backs_left for lane in lanes])
    nth = np.arange(len(where)) - np.searchsorted(which, which)
    backs[where[nth >= left[which]]] = False
    counts = np.bincount(which, minlength=len(lanes))
    left = np.where(counts > 0, np.maximum(left - counts, 0), np.minimum(left + MORE_BACK, MAX_BACK))
    for lane, count in zip(lanes, left.tolist(), strict=True):
        lane.backs_left = count
    return backs


def _all_same(names: Array) -> bool:
    return bool((names == names[:1]).all())


def _distinct(names: Array) -> list[int]:
    # As a rule a file has one owner.
    found: list[int] = (names[:1] if _all_same(names) else distinct(names)).tolist()
    return found


def _offset(report: LoneLine) -> int:
    return report.offset
