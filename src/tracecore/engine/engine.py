"""The engine: it takes facts and returns verdicts, on a clock that the caller moves.

    engine = Engine(catalogue())
    engine.add(facts)
    for emission in engine.advance(now): ...

`replay` is `add` followed by `close`, so an offline diagnosis, a live agent and a test run the same code and end with
the same verdicts. Time is event time; the watermark follows the clock. Three instants matter to a window:

    now - lateness                  the watermark: a fact may still arrive with this time
    now - lateness - horizon        a verdict with evidence before this is final
    now - lateness - 2 x horizon    facts before this are forgotten: no verdict that can change depends on them

where `lateness` is the allowed lateness plus the longest time that a changed window may wait for its evaluation.

A window that has a trigger is evaluated when a fact arrives in it, and when its timer (`Pattern.due`) fires. A large
window waits until it has grown by a quarter, or for some seconds, so that the work for each fact does not grow with
the window (see `_pause`). `close` evaluates every window that waits.
"""

from __future__ import annotations

import heapq
import logging
from bisect import bisect_right
from itertools import takewhile
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from tracecore.engine.bounds import EngineLimits, EngineStats
from tracecore.engine.emission import Revisions
from tracecore.engine.keyed_windows import KeyedWindows
from tracecore.engine.window import CHANGED, CURRENT, DORMANT, TRIGGERED

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from tracecore.engine.emission import Emission
    from tracecore.engine.keyed_windows import PatternWindows
    from tracecore.engine.window import FactWindow
    from tracecore.facts.fact import Fact
    from tracecore.patterns.contract import Key, Pattern, Verdict

__all__ = ["LATENESS", "SKEW", "Engine", "EngineLimits", "EngineStats"]

SECOND = 1_000_000_000
LATENESS = 30 * SECOND
SKEW = 2 * SECOND
#: A window of at most this many facts is evaluated at once when a trigger arrives.
SMALL = 256
#: A larger window is evaluated at once if at least 1/GROWTH of its facts are new since its last evaluation.
GROWTH = 4
#: Else it waits for one second per RATE facts after a trigger, and for LONGEST_PAUSE after other facts.
RATE = 1024
LONGEST_PAUSE = 10 * SECOND
#: After this many evaluations that changed nothing a window waits a second, and twice as long after each further one.
PATIENCE = 3
#: A window may exceed its limit by 1/SLACK, so that it is not trimmed at every evaluation.
SLACK = 8

log = logging.getLogger(__name__)
_time = attrgetter("time")


class Engine:
    """Joins facts into verdicts.

    Args:
        patterns: the patterns to detect; their order is the order of emissions.
        lateness: how long after its own time a fact may arrive and still change everything it would have changed.
        skew: how far the clocks of two nodes may disagree. A fact is accepted up to this far ahead of the clock,
            and detectors that compare nodes allow for it.
        tardiness: how late a timer may fire. Firing several timers together saves evaluations where only the verdicts
            that stand at the end count; it must not exceed the allowed lateness.
        limits: see `EngineLimits`.
        strict: raise the exceptions of detectors; otherwise log and count them.
    """

    def __init__(
        self,
        patterns: Sequence[Pattern[Any]],
        *,
        lateness: int = LATENESS,
        skew: int = SKEW,
        tardiness: int = 0,
        limits: EngineLimits | None = None,
        strict: bool = True,
    ) -> None:
        self.lateness = lateness
        self.skew = skew
        self.tardiness = tardiness
        self.limits = limits or EngineLimits()
        self.strict = strict
        self.stats = EngineStats()
        self.clock: int | None = None
        self._revisions = Revisions(self.limits, self.stats)
        forget = self._revisions.forget
        self._windows = KeyedWindows(
            patterns, self.limits, self.stats, lateness=lateness + LONGEST_PAUSE, skew=skew, forget=forget
        )
        self._pending: list[Fact] = []
        self._timers: list[tuple[int, int, Key]] = []

    # -- the clock ----------------------------------------------------------------------------------------------------

    def add(self, facts: Iterable[Fact]) -> None:
        """Add facts in any order. Nothing is evaluated before the clock moves."""
        before = len(self._pending)
        self._pending.extend(facts)
        self.stats.facts += len(self._pending) - before

    def advance(self, now: int) -> list[Emission]:
        """Move the clock to `now` and return the new emissions. The clock never moves back."""
        return self._advance(now, last=False)

    def close(self, now: int) -> list[Emission]:
        """End the input: move the clock through every timer up to `now` and evaluate everything that changed.

        `now` is when the observation ended: silence is evidence only while somebody was watching.
        """
        return self._advance(now, last=True)

    def replay(self, facts: Iterable[Fact], until: int | None = None) -> list[Emission]:
        """Return what a live engine would have emitted about these facts of the past by `until`.

        Args:
            until: the end of the observation; the time of the last fact when not given.
        """
        self.add(facts)
        if until is None:
            until = max((fact.end for fact in self._pending), default=self.clock or 0)
        return self.close(until)

    def _advance(self, now: int, last: bool) -> list[Emission]:
        pending, self._pending = self._pending, []
        pending.sort(key=_time)
        if self.clock is None:
            self.clock = min(now, pending[0].time) if pending else now
        now = max(now, self.clock)
        watermark = self.clock - self.lateness
        self.stats.late += sum(fact.end < watermark for fact in takewhile(lambda fact: fact.time < watermark, pending))
        out: list[Emission] = []
        taken = 0
        while True:
            # A step is no longer than the allowed lateness. Windows keep facts that much longer than necessary, so at
            # the end of a step they still have all facts that the first fact of the step can join.
            step = now
            if taken < len(pending) and pending[taken].time < now:
                step = min(now, max(pending[taken].time + self.lateness, self.clock))
            while True:
                instant = min(step, max(self._timers[0][0] + self.tardiness, self.clock)) if self._timers else step
                ahead = self.skew if instant == now else 0
                begin, taken = taken, bisect_right(pending, instant + ahead, taken, key=_time)
                self._windows.insert(pending[begin:taken], self.clock)
                self.clock = instant
                out += self._evaluate(self._fire_timers(instant), instant)
                if instant >= step:
                    break
            changed, self._windows.changed = dict.fromkeys(self._windows.changed), []
            ripe = [window for window in changed if window.state >= CHANGED]
            if step >= now:
                ripe = self._windows.waiting() if last else self._ripe(ripe, step)
            out += self._evaluate(ripe, step)
            self._windows.prune(step)
            if step >= now:
                break
        # Facts whose time has not come wait for it.
        self._pending = pending[taken : taken + self.limits.future]
        self.stats.future += len(pending) - taken - len(self._pending)
        return out

    def _set_timer(self, window: FactWindow, instant: int) -> None:
        if window.timer is None or instant < window.timer:
            window.timer = instant
            heapq.heappush(self._timers, (instant, window.pattern, window.key))

    def _fire_timers(self, instant: int) -> list[FactWindow]:
        """Return the windows whose timers fire. Timers of windows that were evaluated or dropped since are ignored."""
        fired = []
        while self._timers and self._timers[0][0] <= instant:
            _, pattern, key = heapq.heappop(self._timers)
            window = self._windows.patterns[pattern].windows.get(key)
            if window is not None and window.timer is not None and window.timer <= instant:
                window.timer = None
                fired.append(window)
        return fired

    # -- evaluation ---------------------------------------------------------------------------------------------------

    def _ripe(self, changed: list[FactWindow], instant: int) -> list[FactWindow]:
        """Return the windows to evaluate now, and set timers for those that can wait."""
        ripe = []
        for window in changed:
            until = (window.evaluated + _pause(window)) // SECOND * SECOND
            if until <= instant:
                ripe.append(window)
            else:
                self._set_timer(window, until)
                if window.size > SMALL:  # it may have grown enough at the next step
                    self._windows.changed.append(window)
        return ripe

    def _evaluate(self, windows: list[FactWindow], instant: int) -> list[Emission]:
        """Evaluate windows and return the emissions in the order of patterns and keys."""
        found = []
        most = self.limits.window + self.limits.window // SLACK
        for window in windows:
            owner = self._windows.patterns[window.pattern]
            if window.size > most:
                dropped = window.trim(self.limits.window)
                self.stats.held -= dropped
                self.stats.evicted_window += dropped
            window.state = CURRENT
            window.evaluated, window.evaluated_size, window.timer = instant, window.size, None
            try:
                verdicts = self._verdicts(owner, window, instant)
            except Exception:
                if self.strict:
                    raise
                window.wakes = frozenset(owner.pattern.needs)
                name = owner.pattern.name
                self.stats.errors[name] = self.stats.errors.get(name, 0) + 1
                log.exception("pattern %s failed on window %s", name, window.key)
                continue
            window.unchanged += 1
            if verdicts or window.standing:
                final = instant - self.lateness - LONGEST_PAUSE - owner.horizon
                if emissions := self._revisions.compare(window, verdicts, final, instant):
                    found.append((window.pattern, window.key, emissions))
                    window.unchanged = 0
        found.sort(key=lambda item: item[:2])
        return [emission for _, _, emissions in found for emission in emissions]

    def _verdicts(self, owner: PatternWindows, window: FactWindow, instant: int) -> Sequence[Verdict]:
        """Return the verdicts on a window, and set its next timer."""
        if not any(map(window.facts.get, owner.triggers)):
            window.state, window.wakes = DORMANT, owner.triggers
            return ()
        self.stats.evaluations += 1
        reading = window.reading = set()
        verdicts = owner.pattern.evaluate(window, instant)
        due = owner.pattern.due(window, instant)
        window.reading = None
        reads = frozenset(reading)
        window.wakes = owner.read.setdefault(reads, reads)
        if due is not None and due > instant:
            self._set_timer(window, due)
        return verdicts


def _pause(window: FactWindow) -> int:
    """Return how long a changed window waits after its last evaluation."""
    if window.state == TRIGGERED and window.size <= SMALL:
        return 0
    idle = window.unchanged - PATIENCE
    pause = 0 if idle < 0 else min(LONGEST_PAUSE, SECOND << min(idle, 4))
    if window.size <= SMALL:
        return pause
    if (window.size - window.evaluated_size) * GROWTH >= window.size:
        return 0
    triggered = max(pause, min(LONGEST_PAUSE, window.size * SECOND // RATE))
    return triggered if window.state == TRIGGERED else LONGEST_PAUSE
