"""Facts in, verdicts out, on a clock that is handed in.

    engine = Engine(catalogue())
    engine.add(facts)
    for emission in engine.advance(now): ...

`replay` is `add` and then `close`: an offline diagnosis, a live agent and a test run the same code and end with the
same verdicts. Three instants matter to a window, counted back from the clock:

    now - lateness                  a fact may still arrive with this time
    now - lateness - horizon        a verdict with evidence before this is settled: nothing can bear on it any more
    now - lateness - 2 x horizon    facts before this are forgotten: no unsettled verdict can depend on them

A fact finds its windows by who it is about; for types of which many come (`Pattern.steady`) the engine remembers them.
A window is looked at when something in it changed that may matter (`Pattern.triggers`, `arms`, `asides`). A large one
that little was added to is looked at once a second and no more, however often the clock moves, and at once where a fact
is so late that it could miss what it joins. `close` leaves nothing.
"""

from __future__ import annotations

import heapq
import logging
from collections import OrderedDict
from operator import attrgetter
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec

from tracecore.engine.emission import Emission, Status
from tracecore.engine.windows import ASLEEP, AWAKE, CHANGED, FactWindow, Known
from tracecore.patterns.contract import Pattern

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from tracecore.facts.fact import Fact
    from tracecore.patterns.contract import Key, Verdict
    from tracecore.signals.record import Source

SECOND = 1_000_000_000
LATENESS = 30 * SECOND
SKEW = 2 * SECOND
#: Windows of so many facts are looked at whenever they change; a larger one that grew by less than one in so many since
#: the last look waits until that is so long ago.
SMALL = 1024
GROWTH = 8
PAUSE = SECOND
#: A window may hold one in so many more than its limit, so that it is not cut at every look.
SLACK = 8
#: Identities of one fact type whose windows are remembered.
SPOTS = 65_536

log = logging.getLogger(__name__)
_time = attrgetter("time")
_end = attrgetter("end")
_place = attrgetter("shelf", "key")
_who = attrgetter("node", "pod", "job", "rank", "gpu", "attempt")


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """How much the engine may hold; what goes beyond is dropped, oldest first, and counted.

    Args:
        window: facts in one window, unless its pattern says less.
        total: facts in all windows together; a fact that three patterns need counts three times.
        windows: windows in all.
        future: facts kept back because they carry a time that has not come.
        past: ended verdicts whose revision is remembered.
    """

    window: int = 65_536
    total: int = 4_000_000
    windows: int = 500_000
    future: int = 100_000
    past: int = 65_536


class Stats(msgspec.Struct, kw_only=True):
    """Counters since the engine was made; `held` and `windows` are what it holds now.

    Args:
        facts: facts taken in.
        unneeded: of a type that no pattern needs, or without the identity that any of them joins on.
        duplicates: already known (same type, uid and time).
        late: arrived after the lateness bound; they still join what is there.
        expired: so late that their window has forgotten their time.
        future: dropped because too many carried a time that has not come.
        evicted_window: dropped for the limit of one window.
        evicted_total: dropped for the limit of all windows together.
        refused_windows: facts dropped because there were too many windows.
        beyond_horizon: verdicts not emitted because they rest on facts farther apart than their pattern's horizon.
        errors: evaluations that raised, by pattern name.
    """

    facts: int = 0
    unneeded: int = 0
    duplicates: int = 0
    late: int = 0
    expired: int = 0
    future: int = 0
    evicted_window: int = 0
    evicted_total: int = 0
    refused_windows: int = 0
    beyond_horizon: int = 0
    evaluations: int = 0
    emitted: int = 0
    cleared: int = 0
    held: int = 0
    windows: int = 0
    errors: dict[str, int] = msgspec.field(default_factory=dict)


#: Where a fact of one type and identity goes: a window, its facts of that type, and what to ask of the fact.
Spot: TypeAlias = "tuple[list[Any] | None, FactWindow, Route]"


class Route:
    """One way of a fact type: into the windows of one pattern.

    Args:
        arms: whether the type arms windows; None where each fact is to be asked about.
        counts: asked of each fact whether it counts; None where all do.
        matters: asked of each fact whether it changes anything; None where all do.
    """

    __slots__ = ("arms", "counts", "keys", "matters", "shelf", "windows")

    def __init__(self, shelf: Shelf, kind: type[Fact]) -> None:
        pattern = shelf.pattern
        self.shelf = shelf
        self.keys = pattern.keys
        self.windows = shelf.windows
        self.arms = None if shelf.asks else not shelf.triggers or kind in shelf.triggers
        gated = kind in pattern.steady and type(pattern).counts is not Pattern.counts
        self.counts: Callable[[Fact], bool] | None = pattern.counts if gated else None
        self.matters: Callable[[Any, Fact], bool] | None = pattern.matters if kind in pattern.asides else None


class Routes:
    """All ways of one fact type: those that follow from its identity, remembered by it, and the others."""

    __slots__ = ("others", "spots", "steady")

    def __init__(self) -> None:
        self.steady: list[Route] = []
        self.others: list[Route] = []
        self.spots: dict[tuple[object, ...], list[Spot]] = {}


class Shelf:
    """All windows of one pattern."""

    __slots__ = (
        "asks",
        "due",
        "evaluate",
        "horizon",
        "index",
        "limit",
        "pattern",
        "swept",
        "triggers",
        "windows",
    )

    def __init__(self, index: int, pattern: Pattern[Any], limit: int) -> None:
        self.index = index
        self.pattern = pattern
        self.horizon = pattern.horizon
        self.evaluate = pattern.evaluate
        self.due = None if type(pattern).due is Pattern.due else pattern.due
        self.triggers = frozenset(pattern.triggers)
        self.asks = type(pattern).arms is not Pattern.arms
        self.limit = limit if pattern.window_limit is None else min(limit, pattern.window_limit)
        self.windows: dict[Key, FactWindow] = {}
        self.swept: int | None = None


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
        self._shelves = [Shelf(i, pattern, self.limits.window) for i, pattern in enumerate(patterns)]
        self._routes: dict[type[Fact], Routes] = {}
        for shelf in self._shelves:
            for kind in dict.fromkeys(shelf.pattern.needs):
                routes = self._routes.setdefault(kind, Routes())
                (routes.steady if kind in shelf.pattern.steady else routes.others).append(Route(shelf, kind))
        self._pending: list[Fact] = []
        self._changed: list[FactWindow] = []
        self._deadlines: list[tuple[int, int, Key]] = []
        self._waits: int | None = None
        self._past: OrderedDict[tuple[int, Key, str | Source], int] = OrderedDict()

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
                while taken < len(pending) and pending[taken].time <= reach:
                    taken += 1
                self._insert(pending[begin:taken])
                self.clock = instant
                self._call_due(instant)
                if instant >= step:
                    break
                # A deadline within a step: what changed otherwise waits for the end of the step.
                self._evaluate(instant, out, due=True)
            self._evaluate(step, out, leave=step == now and not last)
            self._bound(step)
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
            until = max((fact.end for fact in self._pending), default=self.clock or 0)
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

    # -- facts into windows ---------------------------------------------------------------------------------------

    def _insert(self, facts: Sequence[Fact]) -> None:
        assert self.clock is not None
        stats, clock, routes_of, changed = self.stats, self.clock, self._routes.get, self._changed
        # A window may be left alone for a while; a fact that is older than this by then could miss what it joins.
        hurry = self.lateness - PAUSE
        held = unneeded = 0
        for fact in facts:
            kind = type(fact)
            routes = routes_of(kind)
            if routes is None:
                unneeded += 1
                continue
            time = fact.time
            if routes.steady:
                who = _who(fact)
                spots = routes.spots.get(who) or self._remember_spots(fact, routes, who)
                if routes.others:
                    spots = spots.copy()
            else:
                spots = []
            for route in routes.others:
                for key in route.keys(fact):
                    window = route.windows.get(key)
                    if window is not None:
                        spots.append((window.facts.get(kind), window, route))
                    elif (window := self._open(route.shelf, key)) is not None:
                        spots.append((None, window, route))
            needed = False
            age = clock - (time if fact.last_time is None else fact.last_time)
            if age > hurry:
                needed = bool(spots)
                spots = self._late(spots, age)
            for present, window, route in spots:
                counts = route.counts
                if counts is not None and not counts(fact):
                    continue
                needed = True
                if present and time > present[-1].time:
                    # Nearly all facts come in order.
                    present.append(fact)
                    held += 1
                else:
                    added = window.add(fact)
                    if added < 0:
                        stats.duplicates += 1
                        continue
                    held += added
                state = window.state
                if state == CHANGED:
                    continue
                if state == ASLEEP:
                    if not (route.shelf.pattern.arms(fact, window.key) if route.arms is None else route.arms):
                        continue
                elif route.matters is not None and not route.matters(window, fact):
                    continue
                window.state = CHANGED
                changed.append(window)
            if not needed:
                unneeded += 1
        stats.held += held
        stats.unneeded += unneeded

    def _remember_spots(self, fact: Fact, routes: Routes, who: tuple[object, ...]) -> list[Spot]:
        """The windows of steady types for facts of this identity."""
        spots: list[Spot] = []
        complete = True
        for route in routes.steady:
            for key in route.keys(fact):
                window = route.windows.get(key)
                if window is None:
                    window = self._open(route.shelf, key)
                if window is None:
                    complete = False
                else:
                    spots.append((window.facts.setdefault(type(fact), []), window, route))
        if complete:
            if len(routes.spots) >= SPOTS:
                routes.spots.clear()
            routes.spots[who] = spots
        return spots

    def _open(self, shelf: Shelf, key: Key) -> FactWindow | None:
        if self.stats.windows >= self.limits.windows:
            self.stats.refused_windows += 1
            return None
        self.stats.windows += 1
        window = shelf.windows[key] = FactWindow(key, self.skew, shelf.index)
        return window

    def _late(self, spots: list[Spot], age: int) -> list[Spot]:
        """Windows that still remember so long ago; they cannot wait."""
        kept: list[Spot] = []
        for spot in spots:
            if age > self.lateness + 2 * spot[2].shelf.horizon:
                self.stats.expired += 1
            else:
                spot[1].urgent = True
                kept.append(spot)
        return kept

    def _bound(self, instant: int) -> None:
        """Forget what is too old, and what is too much."""
        for shelf in self._shelves:
            if shelf.swept is None:
                shelf.swept = instant
            elif instant - shelf.swept > max(shelf.horizon // 2, SECOND):
                shelf.swept = instant
                self._sweep(shelf, instant - self.lateness - 2 * shelf.horizon)
        if self.stats.held > self.limits.total:
            self._shrink()

    def _sweep(self, shelf: Shelf, cutoff: int) -> None:
        empty = set()
        for window in shelf.windows.values():
            self.stats.held -= window.prune(cutoff)
            if window.state != CHANGED and not any(window.facts.values()):
                empty.add(window)
        for window in empty:
            del shelf.windows[window.key]
            self._forget(shelf, window)
        self.stats.windows -= len(empty)
        if empty:
            for routes in self._routes.values():
                gone = [who for who, spots in routes.spots.items() if any(window in empty for _, window, _ in spots)]
                for who in gone:
                    del routes.spots[who]

    def _shrink(self) -> None:
        """Drop the oldest facts of all windows until a tenth of the limit is free."""
        everything = [window for shelf in self._shelves for window in shelf.windows.values()]
        times = sorted(fact.time for window in everything for facts in window.facts.values() for fact in facts)
        cutoff = times[self.stats.held - self.limits.total * 9 // 10 - 1] + 1
        for window in everything:
            if dropped := window.prune(cutoff):
                window.raise_floor(cutoff)
                self.stats.held -= dropped
                self.stats.evicted_total += dropped

    # -- windows into verdicts ------------------------------------------------------------------------------------

    def _call_due(self, instant: int) -> None:
        """Windows whose deadline has come are to be looked at."""
        while self._deadlines and self._deadlines[0][0] <= instant:
            due, index, key = heapq.heappop(self._deadlines)
            window = self._shelves[index].windows.get(key)
            if window is not None and window.due == due:
                window.due = None
                window.called = True
                if window.state != CHANGED:
                    window.state = CHANGED
                    self._changed.append(window)

    def _evaluate(self, instant: int, out: list[Emission], *, due: bool = False, leave: bool = False) -> None:
        """Look at windows that changed.

        Args:
            due: only at those whose deadline has come.
            leave: large windows that little was added to may wait.
        """
        changed, self._changed = self._changed, []
        if due or leave:
            look = [window for window in changed if window.called or (leave and _ripe(window, instant))]
            if len(look) < len(changed):
                chosen = set(look)
                self._changed = [window for window in changed if window not in chosen]
                changed = look
        if not due:
            self._waits = min((window.looked + PAUSE for window in self._changed), default=None)
        changed.sort(key=_place)
        for window in changed:
            shelf = self._shelves[window.shelf]
            window.state = AWAKE
            window.called = window.urgent = False
            window.due = None
            window.looked = instant
            size = sum(map(len, window.facts.values()))
            if size > shelf.limit + shelf.limit // SLACK:
                dropped = window.trim(shelf.limit)
                self.stats.held -= dropped
                self.stats.evicted_window += dropped
                size -= dropped
            window.size = size
            if shelf.triggers and not any(map(window.facts.get, shelf.triggers)):
                # What armed it may be another fact than its triggers, and still wait for one.
                if not shelf.asks:
                    window.state = ASLEEP
                verdicts: Sequence[Verdict] = ()
            else:
                self.stats.evaluations += 1
                try:
                    verdicts = shelf.evaluate(window, instant)
                    due_next = None if shelf.due is None else shelf.due(window, instant)
                except Exception:
                    if self.strict:
                        raise
                    name = shelf.pattern.name
                    self.stats.errors[name] = self.stats.errors.get(name, 0) + 1
                    log.exception("pattern %s failed on window %s", name, window.key)
                    continue
                if due_next is not None and due_next > instant:
                    window.due = due_next
                    heapq.heappush(self._deadlines, (due_next, window.shelf, window.key))
            if verdicts or window.known:
                self._compare(shelf, window, verdicts, instant, out)

    def _compare(
        self, shelf: Shelf, window: FactWindow, verdicts: Sequence[Verdict], instant: int, out: list[Emission]
    ) -> None:
        settled = instant - self.lateness - shelf.horizon
        if window.floor is not None:
            settled = max(settled, window.floor)
        before = window.known or {}
        known: dict[str | Source, Known] = {}
        for verdict in verdicts:
            episode = verdict.episode
            standing = before.get(episode)
            if standing is None:
                if _begin(verdict) < settled:
                    self.stats.beyond_horizon += 1
                    continue
                standing = Known(verdict, self._past.pop((shelf.index, window.key, episode), 0) + 1)
                out.append(self._emit(standing, "active", instant))
            elif standing.verdict != verdict and min(_begin(verdict), _begin(standing.verdict)) >= settled:
                before_print = _print(standing.verdict) if standing.print is None else standing.print
                standing.verdict, standing.print = verdict, _print(verdict)
                if standing.print != before_print:
                    standing.revision += 1
                    out.append(self._emit(standing, "active", instant))
            known[episode] = standing
        for episode, standing in before.items():
            if episode in known:
                continue
            if _begin(standing.verdict) >= settled:
                standing.revision += 1
                out.append(self._emit(standing, "cleared", instant))
            self._remember((shelf.index, window.key, episode), standing.revision)
        window.known = known or None

    def _emit(self, standing: Known, status: Status, instant: int) -> Emission:
        if status == "cleared":
            self.stats.cleared += 1
        else:
            self.stats.emitted += 1
        return Emission(standing.verdict.id, standing.revision, status, standing.verdict, instant)

    def _forget(self, shelf: Shelf, window: FactWindow) -> None:
        for episode, standing in (window.known or {}).items():
            self._remember((shelf.index, window.key, episode), standing.revision)

    def _remember(self, episode: tuple[int, Key, str | Source], revision: int) -> None:
        self._past[episode] = revision
        if len(self._past) > self.limits.past:
            self._past.popitem(last=False)


def _ripe(window: FactWindow, instant: int) -> bool:
    """Whether a window that changed is to be looked at now, and not when it has been left alone for long enough."""
    if window.urgent or window.looked + PAUSE <= instant:
        return True
    size = len(window)
    return size <= SMALL or (size - window.size) * GROWTH >= size


def _print(verdict: Verdict) -> int:
    """Tells documents apart at the size of a number: they are long, and rendering them is dear."""
    return hash(repr(verdict.document()))


def _begin(verdict: Verdict) -> int:
    """The time of its oldest evidence."""
    return min(map(_end, verdict.evidence()), default=verdict.time)
