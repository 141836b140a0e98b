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
from collections import OrderedDict
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import msgspec

from tracecore.engine.emission import Emission, Status
from tracecore.engine.routes import Route, Routes, Shelf, identity
from tracecore.engine.windows import ASLEEP, AWAKE, CHANGED, FactWindow, Known

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence, Set

    from tracecore.engine.routes import Group, Spot
    from tracecore.facts.fact import Fact
    from tracecore.patterns.contract import Key, Pattern, Verdict
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
#: Facts that are taken before it is seen whether there are too many windows.
PORTION = 4096

log = logging.getLogger(__name__)
_time = attrgetter("time")
_end = attrgetter("end")
_key = attrgetter("key")
_shelf = attrgetter("shelf")


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """How much the engine may hold; what goes beyond is dropped, oldest first, and counted.

    Args:
        window: facts in one window, unless its pattern says less.
        total: facts in all windows together; a fact that three patterns need counts three times.
        windows: windows in all; those that were touched least recently go first.
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
        evicted_total: dropped for the limit of all windows together, or with a window.
        evicted_windows: windows dropped because there were too many.
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
    evicted_windows: int = 0
    beyond_horizon: int = 0
    evaluations: int = 0
    emitted: int = 0
    cleared: int = 0
    held: int = 0
    windows: int = 0
    errors: dict[str, int] = msgspec.field(default_factory=dict)


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
                self._routes.setdefault(kind, Routes()).add(Route(shelf, kind), kind)
        self._pending: list[Fact] = []
        self._changed: list[FactWindow] = []
        self._called: list[FactWindow] = []
        self._repeats = False
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
        for begin in range(0, len(facts), PORTION):
            self._take(facts[begin : begin + PORTION])
            if self.stats.windows > self.limits.windows:
                self._evict()

    def _take(self, facts: Sequence[Fact]) -> None:
        assert self.clock is not None
        stats, routes_of, changed = self.stats, self._routes.get, self._changed
        # A window may be left alone for a while; a fact that is older than this by then could miss what it joins.
        hurry = self.clock - self.lateness + PAUSE
        groups: list[Group] = []
        held = unneeded = 0
        for fact in facts:
            kind = type(fact)
            routes = routes_of(kind)
            if routes is None:
                unneeded += 1
                continue
            time = fact.time
            needed = False
            spots: list[Spot] = []
            if routes.steady:
                places = routes.identities.get(identity(fact))
                spots, shared = routes.remember(fact, self._find) if places is None else places
                for group in shared:
                    counts = group.counts
                    if counts is None or counts(fact):
                        needed = True
                        if not group.batch:
                            groups.append(group)
                        group.batch.append(fact)
                if routes.others:
                    spots = spots.copy()
            for route in routes.others:
                for key in route.keys(fact):
                    window = route.windows.get(key)
                    if window is None:
                        window = self._find(route.shelf, key, time)
                    spots.append((window.facts.get(kind), window, route))
            for present, window, route in spots:
                counts = route.counts
                if counts is not None and not counts(fact):
                    continue
                needed = True
                if present and time > present[-1].time and time >= hurry:
                    # Nearly all facts come in order.
                    present.append(fact)
                    held += 1
                elif not self._join(window, route, fact, hurry):
                    continue
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
        for group in groups:
            self._put(group, hurry)

    def _put(self, group: Group, hurry: int) -> None:
        """Facts that wait, into the windows of their group."""
        batch, group.batch = group.batch, []
        number = len(batch)
        in_order = batch[0].time >= hurry and (number == 1 or len(set(map(_time, batch))) == number)
        for present, window, route in group.spots:
            new = batch
            if (counts := route.counts) is not None and group.counts is None:
                new = [fact for fact in batch if counts(fact)]
                if not new:
                    continue
            if in_order and present and new[0].time > present[-1].time:
                present += new
                self.stats.held += len(new)
            else:
                new = [fact for fact in new if self._join(window, route, fact, hurry)]
            if window.state == CHANGED:
                continue
            if window.state == ASLEEP:
                arms, key = route.shelf.pattern.arms, window.key
                worth = any(arms(fact, key) for fact in new) if route.arms is None else route.arms and bool(new)
            elif (matters := route.matters) is not None:
                worth = any(matters(window, fact) for fact in new)
            else:
                worth = bool(new)
            if worth:
                window.state = CHANGED
                self._changed.append(window)

    def _join(self, window: FactWindow, route: Route, fact: Fact, hurry: int) -> bool:
        """Put a fact where it belongs; False where it is known, or too old for this window."""
        assert self.clock is not None
        if fact.end < hurry:
            if self.clock - fact.end > self.lateness + 2 * route.shelf.horizon:
                self.stats.expired += 1
                return False
            # What is so late cannot wait.
            window.urgent = True
        added = window.add(fact)
        if added < 0:
            self.stats.duplicates += 1
            return False
        self.stats.held += added
        return True

    def _find(self, shelf: Shelf, key: Key, time: int) -> FactWindow:
        """The window of this key; a new one holds nothing from before this time."""
        window = shelf.windows.get(key)
        if window is None:
            self.stats.windows += 1
            window = shelf.windows[key] = FactWindow(key, self.skew, shelf.index, time)
        return window

    def _evict(self) -> None:
        """Drop windows until one in sixteen is free, of the patterns that have most the least recently touched.

        Whoever makes up jobs or nodes fills the windows of some patterns, and thereby drops his own.
        """
        most = _level([len(shelf.windows) for shelf in self._shelves], self.limits.windows - self.limits.windows // 16)
        for shelf in self._shelves:
            excess = len(shelf.windows) - most
            if excess > 0:
                gone = set(heapq.nsmallest(excess, shelf.windows.values(), key=_touched))
                self.stats.evicted_windows += len(gone)
                dropped = sum(map(len, gone))
                self.stats.held -= dropped
                self.stats.evicted_total += dropped
                self._changed = [window for window in self._changed if window not in gone]
                self._drop(shelf, gone)

    def _drop(self, shelf: Shelf, windows: Set[FactWindow]) -> None:
        for window in windows:
            del shelf.windows[window.key]
            self._forget(shelf, window)
        self.stats.windows -= len(windows)
        for kind in shelf.pattern.steady:
            if kind in self._routes:
                self._routes[kind].forget(windows)

    def _bound(self, instant: int) -> None:
        """Forget what is too old, and what is too much."""
        for shelf in self._shelves:
            if shelf.swept is None:
                shelf.swept = instant
            elif instant - shelf.swept > max(shelf.horizon // 2, self.lateness, SECOND):
                shelf.swept = instant
                self._sweep(shelf, instant - self.lateness - 2 * shelf.horizon)
        if self.stats.held > self.limits.total:
            self._shrink()

    def _sweep(self, shelf: Shelf, cutoff: int) -> None:
        empty = set()
        for window in shelf.windows.values():
            if window.oldest < cutoff:
                self.stats.held -= window.prune(cutoff)
                if window.state != CHANGED and not any(window.facts.values()):
                    empty.add(window)
        if empty:
            self._drop(shelf, empty)

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
                self._called.append(window)

    def _evaluate(self, instant: int, out: list[Emission], *, due: bool = False, leave: bool = False) -> None:
        """Look at windows that changed.

        Args:
            due: only at those whose deadline has come.
            leave: large windows that little was added to may wait.
        """
        called, self._called = self._called, []
        if due:
            # Those that had changed stay among the changed until the end of the step.
            changed = called
            self._repeats = self._repeats or any(window.state == CHANGED for window in called)
        else:
            changed, self._changed = self._changed, []
            for window in called:
                if window.state != CHANGED:
                    window.state = CHANGED
                    changed.append(window)
            if self._repeats:
                self._repeats = False
                changed = [window for window in dict.fromkeys(changed) if window.state == CHANGED]
            if leave:
                ripe = [window for window in changed if window.called or _ripe(window, instant)]
                if len(ripe) < len(changed):
                    chosen = set(ripe)
                    self._changed = [window for window in changed if window not in chosen]
                    changed = ripe
            self._waits = min((window.looked + PAUSE for window in self._changed), default=None)
        changed.sort(key=_key)
        changed.sort(key=_shelf)
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
        # Nothing in the window is old enough to be settled: then no verdict on it is.
        fresh = window.oldest >= settled
        before = window.known or {}
        known: dict[str | Source, Known] = {}
        number = len(before)
        if number and verdicts[:number] == [standing.verdict for standing in before.values()]:
            # Mostly all that was said still holds, and what is new comes after it.
            known, verdicts = before, verdicts[number:]
        for verdict in verdicts:
            episode = verdict.episode
            standing = before.get(episode)
            if standing is None:
                if not fresh and _begin(verdict) < settled:
                    self.stats.beyond_horizon += 1
                    continue
                standing = Known(verdict, self._past.pop((shelf.index, window.key, episode), 0) + 1)
                out.append(self._emit(standing, "active", instant))
            elif (
                standing.verdict != verdict
                and (fresh or _begin(verdict) >= settled)
                and _begin(standing.verdict) >= settled
            ):
                before_print = _print(standing.verdict) if standing.print is None else standing.print
                standing.verdict, standing.print = verdict, _print(verdict)
                if standing.print != before_print:
                    standing.revision += 1
                    out.append(self._emit(standing, "active", instant))
            known[episode] = standing
        for episode, standing in before.items() if known is not before else ():
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


def _level(sizes: list[int], total: int) -> int:
    """The most that each may have so that all together have no more than this."""
    left = len(sizes)
    for size in sorted(sizes):
        if size * left > total:
            return total // left
        total -= size
        left -= 1
    return max(sizes, default=0)


def _touched(window: FactWindow) -> int:
    """The time of its newest fact."""
    return max((facts[-1].time for facts in window.facts.values() if facts), default=0)


def _print(verdict: Verdict) -> int:
    """Tells documents apart at the size of a number: they are long, and rendering them is dear."""
    return hash(repr(verdict.document()))


def _begin(verdict: Verdict) -> int:
    """The time of its oldest evidence."""
    return min(map(_end, verdict.evidence()), default=verdict.time)
