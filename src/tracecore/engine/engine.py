"""Facts in, verdicts out, on a clock that is handed in.

    engine = Engine(catalogue())
    engine.add(facts)
    for emission in engine.advance(now): ...

`replay` is `add` and then `close`: an offline diagnosis, a live agent and a test run the same code and end with the
same verdicts. Three instants matter to a window, counted back from the clock:

    now - lateness                  a fact may still arrive with this time
    now - lateness - horizon        a verdict with evidence before this is settled: nothing can bear on it any more
    now - lateness - 2 x horizon    facts before this are forgotten: no unsettled verdict can depend on them

A fact finds its windows by who it is about; for types of which many come (`Pattern.steady`) the engine remembers them
and puts all that came into windows of one key at once.
A window is looked at when something in it changed that may matter (`Pattern.triggers`, `arms`, `asides`). A large one
that little was added to is looked at once a second and no more, however often the clock moves, and at once where a fact
is so late that it could miss what it joins. `close` leaves nothing.
"""

from __future__ import annotations

import heapq
import logging
from bisect import bisect_right
from collections import defaultdict
from operator import attrgetter, itemgetter
from typing import TYPE_CHECKING, Any

from tracecore.engine.bounds import Limits, Stats
from tracecore.engine.conclusions import Conclusions
from tracecore.engine.intake import PAUSE, Intake
from tracecore.engine.routes import Shelf
from tracecore.engine.windows import ASLEEP, AWAKE, CHANGED
from tracecore.patterns.contract import FOREVER

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from tracecore.engine.emission import Emission
    from tracecore.engine.windows import FactWindow
    from tracecore.facts.fact import Fact
    from tracecore.patterns.contract import Key, Pattern, Verdict

__all__ = ["LATENESS", "SKEW", "Engine", "Limits", "Stats"]

SECOND = 1_000_000_000
LATENESS = 30 * SECOND
SKEW = 2 * SECOND
#: Windows of so many facts are looked at whenever they change; a larger one that grew by less than one in so many since
#: the last look waits until that is so long ago.
SMALL = 1024
GROWTH = 8
#: A window may hold one in so many more than its limit, so that it is not cut at every look.
SLACK = 8

log = logging.getLogger(__name__)
_time = attrgetter("time")
_place = itemgetter(0, 1)


class Engine:
    """Joins facts into verdicts.

    Args:
        patterns: what to look for; their order is the order of emissions.
        lateness: how long after its own time a fact may arrive and still change everything it would have changed.
        skew: how far the clocks of two nodes may disagree. A fact is believed up to this far ahead of the clock,
            and detectors that compare nodes allow for it.
        limits: see `Limits`.
        strict: an exception in a detector is raised; otherwise it is logged and counted, and the others go on.
    """

    def __init__(
        self,
        patterns: Sequence[Pattern[Any]],
        *,
        lateness: int = LATENESS,
        skew: int = SKEW,
        limits: Limits | None = None,
        strict: bool = True,
    ) -> None:
        self.lateness = lateness
        self.skew = skew
        self.limits = limits or Limits()
        self.strict = strict
        self.stats = Stats()
        self.clock: int | None = None
        self._shelves = [Shelf(i, pattern, self.limits.window, self.stats) for i, pattern in enumerate(patterns)]
        self._conclusions = Conclusions(self.limits, self.stats)
        self._intake = Intake(
            self._shelves,
            self.limits,
            self.stats,
            lateness=lateness,
            skew=skew,
            forget=self._conclusions.forget,
        )
        self._pending: list[Fact] = []
        self._called: list[FactWindow] = []
        self._repeats = False
        self._deadlines: list[tuple[int, int, Key]] = []
        self._waits: int | None = None

    # -- the clock ------------------------------------------------------------------------------------------------

    def add(self, facts: Iterable[Fact]) -> None:
        """Take these facts, in any order; nothing is concluded before the clock moves."""
        before = len(self._pending)
        self._pending.extend(facts)
        self.stats.facts += len(self._pending) - before

    def advance(self, now: int) -> list[Emission]:
        """Move the clock to `now` and say what is new. The clock never moves back."""
        return self._advance(now, last=False)

    def close(self, now: int) -> list[Emission]:
        """End of input: walk the clock through every deadline up to `now`, and look at everything that changed.

        `now` is how long somebody looked, and matters: silence is evidence only while it was being watched.
        """
        return self._advance(now, last=True)

    def _advance(self, now: int, last: bool) -> list[Emission]:
        pending, self._pending = self._pending, []
        pending.sort(key=_time)
        if self.clock is None:
            self.clock = min(now, pending[0].time) if pending else now
        now = max(now, self.clock)
        self.stats.late += self._count_late(pending, self.clock - self.lateness)
        out: list[Emission] = []
        taken = 0
        while True:
            # Facts are taken in steps no longer than the lateness bound: windows keep that much more than they need,
            # so that at the end of a step nothing is missing that the step's first fact could join.
            step = now
            if taken < len(pending) and pending[taken].time < now:
                step = min(now, max(pending[taken].time + self.lateness, self.clock))
            if self._waits is not None:
                step = min(step, max(self._waits, self.clock))
            while True:
                instant = min(step, self._deadline(step))
                reach = instant + self.skew if instant == now else instant
                begin = taken
                taken = bisect_right(pending, reach, begin, key=_time)
                self._intake.take(pending[begin:taken], self.clock)
                self.clock = instant
                self._call_due(instant)
                if instant >= step:
                    break
                # A deadline within a step: what changed otherwise waits for the end of the step.
                self._evaluate(instant, out, due=True)
            self._evaluate(step, out, leave=step == now and not last)
            self._intake.bound(step)
            if step >= now:
                break
        self._hold_back(pending[taken:])
        return out

    def replay(self, facts: Iterable[Fact], until: int | None = None) -> list[Emission]:
        """Facts of the past, all at once: what a live engine would have said by `until`.

        Args:
            until: the end of what was observed; the time of the last fact when not given.
        """
        self.add(facts)
        if until is None:
            # Few facts stand for several: only those are asked when they end.
            folded = [fact.last_time for fact in self._pending if fact.last_time is not None]
            until = max((*map(_time, self._pending), *folded), default=self.clock or 0)
        return self.close(until)

    def _deadline(self, until: int) -> int:
        """The next deadline that still stands, or this instant when none is earlier."""
        assert self.clock is not None
        while self._deadlines:
            due, index, key = self._deadlines[0]
            window = self._shelves[index].windows.get(key)
            if window is not None and window.due == due:
                return min(until, max(due, self.clock))
            heapq.heappop(self._deadlines)
        return until

    def _count_late(self, pending: list[Fact], bound: int) -> int:
        late = 0
        for fact in pending:
            if fact.time >= bound:
                break
            late += fact.end < bound
        return late

    def _hold_back(self, future: list[Fact]) -> None:
        if len(future) > self.limits.future:
            self.stats.future += len(future) - self.limits.future
            del future[self.limits.future :]
        self._pending = future

    # -- windows into verdicts ------------------------------------------------------------------------------------

    def _call_due(self, instant: int) -> None:
        """Windows whose deadline has come are to be looked at."""
        while self._deadlines and self._deadlines[0][0] <= instant:
            due, index, key = heapq.heappop(self._deadlines)
            window = self._shelves[index].windows.get(key)
            if window is not None and window.due == due:
                window.due = None
                window.called = True
                self._called.append(window)

    def _evaluate(self, instant: int, out: list[Emission], *, due: bool = False, leave: bool = False) -> None:
        """Look at windows that changed.

        Args:
            due: only at those whose deadline has come.
            leave: large windows that little was added to may wait.
        """
        intake = self._intake
        called, self._called = self._called, []
        for window in called:
            intake.complete(window)
        if due:
            # Those that had changed stay among the changed until the end of the step.
            changed = called
            self._repeats = self._repeats or any(window.state == CHANGED for window in called)
        else:
            intake.settle()
            changed, intake.changed = intake.changed, []
            for window in called:
                if window.state != CHANGED:
                    window.state = CHANGED
                    changed.append(window)
            if self._repeats:
                self._repeats = False
                changed = [window for window in dict.fromkeys(changed) if window.state == CHANGED]
            if leave:
                rested = instant - PAUSE
                ripe = [window for window in changed if window.looked <= rested or _ripe(window)]
                if len(ripe) < len(changed):
                    chosen = set(ripe)
                    intake.changed = [window for window in changed if window not in chosen]
                    changed = ripe
            self._waits = min((window.looked + PAUSE for window in intake.changed), default=None)
        shelves: defaultdict[int, list[FactWindow]] = defaultdict(list)
        for window in changed:
            shelves[window.shelf].append(window)
        said: list[tuple[int, Key, list[Emission]]] = []
        for index, windows in shelves.items():
            self._look(self._shelves[index], windows, instant, said)
        # Windows know nothing of each other: only what is said has an order, by pattern and key.
        said.sort(key=_place)
        for _, _, emissions in said:
            out += emissions

    def _look(
        self, shelf: Shelf, windows: list[FactWindow], instant: int, said: list[tuple[int, Key, list[Emission]]]
    ) -> None:
        """Look at windows of one pattern."""
        evaluate, due, heeds, triggers = shelf.evaluate, shelf.due, shelf.heeds, shelf.triggers
        most = shelf.limit + shelf.limit // SLACK
        settled = instant - self.lateness - shelf.horizon
        complete = self._intake.complete if shelf.steady else None
        compare = self._conclusions.compare
        looks = 0
        for window in windows:
            if complete is not None:
                complete(window)
            window.state = AWAKE
            window.looked = instant
            # To set is dearer than to see that it is so already.
            if window.called or window.urgent:
                window.called = window.urgent = False
            if window.due is not None:
                window.due = None
            if heeds is not None:
                window.heeds = FOREVER
            size = sum(map(len, window.facts.values()))
            if size > most:
                dropped = window.trim(shelf.limit)
                self.stats.held -= dropped
                self.stats.evicted_window += dropped
                size -= dropped
            window.size = size
            if triggers and not any(map(window.facts.get, triggers)):
                # What armed it may be another fact than its triggers, and still wait for one.
                if not shelf.asks:
                    window.state = ASLEEP
                verdicts: Sequence[Verdict] = ()
            else:
                looks += 1
                try:
                    verdicts = evaluate(window, instant)
                    due_next = None if due is None else due(window, instant)
                    if heeds is not None:
                        window.heeds = heeds(window)
                except Exception:
                    if self.strict:
                        raise
                    self._fail(shelf, window)
                    continue
                if due_next is not None and due_next > instant:
                    window.due = due_next
                    heapq.heappush(self._deadlines, (due_next, window.shelf, window.key))
            if verdicts or window.known:
                emissions = compare(window, verdicts, settled, instant)
                if emissions:
                    said.append((shelf.index, window.key, emissions))
        self.stats.evaluations += looks

    def _fail(self, shelf: Shelf, window: FactWindow) -> None:
        """A detector raised: nothing that it kept can be relied on."""
        window.unlearn()
        name = shelf.pattern.name
        self.stats.errors[name] = self.stats.errors.get(name, 0) + 1
        log.exception("pattern %s failed on window %s", name, window.key)


def _ripe(window: FactWindow) -> bool:
    """Whether a window that changed is to be looked at now, and not when it has been left alone for long enough."""
    if window.called or window.urgent:
        return True
    size = len(window)
    return size <= SMALL or (size - window.size) * GROWTH >= size
