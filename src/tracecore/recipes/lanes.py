"""Lanes of progress: lines of one kind by one writer, and what is remembered of them from block to block."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

import numpy as np

from tracecore.recipes.templates import Array, Flags, Lines
from tracecore.signals.logs.selector import Report

MAX_LANES: Final = 16_384


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


class Lanes:
    """The last line of each lane: step, second, and whether its step stood still."""

    def __init__(self) -> None:
        self._last: dict[int, tuple[int, int, bool]] = {}

    def stands(self, who: int) -> bool:
        """Whether the step of a lane's last line stood still."""
        return self._last[who][2]

    def order(self, lines: Lines, limit: int, intervals: Sequence[int], enough: int, whole: Flags | None) -> Ordered:
        """Lane by lane, which lines have to be handed on for what they say.

        Args:
            lines: in the order of the block.
            limit: seconds of a pause.
            intervals: one of them is the time between lines that are handed on without a reason.
            enough: so many of those in a block are enough.
            whole: lines that are handed on in any case.
        """
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
        edges = at[within & ((pauses >= limit) | (pauses < 0) | (rises < 0))]
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
        for every in intervals:
            ticks = later[now // every != then // every]
            if len(ticks) <= enough:
                break
        pick[ticks] = True
        firsts = np.flatnonzero(np.concatenate(([True], ~inner)))
        lasts = np.append(firsts[1:] - 1, size - 1)
        if len(self._last) > MAX_LANES:
            self._last.clear()
        spans: list[tuple[int, int, int, bool]] = []
        rows = zip(lane[firsts].tolist(), firsts.tolist(), lasts.tolist(), strict=True)
        for who, first, final in rows:
            before = self._last.get(who)
            stood = bool(still[final - 1]) if final > first else False
            broken = False
            if before is None:
                pick[first] = True
            else:
                passed = int(second[first]) - before[1]
                stands = int(step[first]) == before[0] >= 0
                broken = not 0 <= passed < limit or int(step[first]) < before[0] or before[2] != stands
                if broken or int(second[first]) // every != before[1] // every:
                    pick[first] = True
                stood = stood or (stands and final == first)
            self._last[who] = (int(step[final]), int(second[final]), stood)
            spans.append((who, first, final, broken))
        return Ordered(number, pick, still, spans)


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
        reports: list[Report],
    ) -> None:
        """Takes the lines of a block from `first` to `final`, of which some are handed on for themselves.

        Args:
            picked: these, and whether the step stands still after them.
        """
        counted = first
        for place, alone in picked:
            if self.report is not None:
                self.count += place - counted
                last = row(place - 1) if place > first else self.tail[-1]
                reports.append(self._until(last))
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
        if self.report is None:
            return []
        last = [row for row in self.tail if row.offset > self.report.offset]
        return [self._until(last[0], len(last)), *last] if last else [self.report]
