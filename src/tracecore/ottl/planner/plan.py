"""A plan: transform processors in their order, and for each record only the statements that can do something.

    plan = Plan(processors)      # mappings as under `transform/…:` in a Collector's configuration
    plan.run(signal)             # the same as running each processor on the record

One scan of the body says which guards can match; statements without a guard always run. Statements are compiled when
they are first needed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import msgspec

from tracecore.ottl.planner.database import FOLDING, ScanDatabase, Search, compiled, search

if TYPE_CHECKING:
    from tracecore.ottl.planner.schedule import Caches, Candidates, Schedule, Stock
    from tracecore.signals.record import LogSignal

#: Sets of guards that records were seen to match, with the statements to run for each. Forgotten when so many.
MAX_SCHEDULES: Final = 4096


class PlannedGroup(msgspec.Struct, frozen=True):
    """A group of statements and what it takes to run them.

    Args:
        processor: its number in the plan; groups of one processor may share a cache.
        context: `log`, `resource`, …
        statements: their text.
        conditions: their text.
        qualified: paths begin with the name of their context.
        error_mode: see `ottl.transform`.
        shared_cache: see `ottl.processor.Group`.
        guard: numbers of patterns one of which must match; None where the group has to be entered always.
        guards: the same for each statement.
        fresh: as `guard`, for records that have no attribute of those that statements set: lines as they are read.
        effects: for the same records, patterns one of which must match for any attribute to be set; None for unknown.
        changes_body: the body is to be scanned again after it.
    """

    processor: int
    context: str
    statements: tuple[str, ...]
    conditions: tuple[str, ...]
    qualified: bool
    error_mode: str
    shared_cache: bool
    guard: tuple[int, ...] | None
    guards: tuple[tuple[int, ...] | None, ...]
    fresh: tuple[int, ...] | None
    effects: tuple[str, ...] | None
    changes_body: bool


class Outline(msgspec.Struct, frozen=True):
    """A plan as data: everything that has to be found out about statements before they run.

    Args:
        patterns: all guards, by number.
        groups: of all processors, in order.
        text: what to search for in a record's text.
        local: statements change only their own record, so that records can be run one after the other.
    """

    patterns: tuple[str, ...]
    groups: tuple[PlannedGroup, ...]
    text: Search
    local: bool


def outline(processors: Iterable[Mapping[str, Any]]) -> Outline:
    """Reads the log statements of processors.

    Raises:
        OttlError, ValueError: as `ottl.Processor` does.
    """
    from tracecore.ottl.planner.reading import read_groups

    groups, patterns, local = read_groups(processors)
    return Outline(patterns, groups, search(patterns, lines=False, extra=FOLDING), local)


class Plan:
    """Processors, ready to run on log records.

    Args:
        outlined: what to run, from `outline`.
        serialised: the compiled database, where it is known.
    """

    def __init__(self, outlined: Outline, serialised: bytes | None = None) -> None:
        self.outline = outlined
        #: Statements and conditions that failed and were passed over, since the start.
        self.failures = 0
        if serialised is None:
            wanted, self.database = compiled(outlined.text, once=True)
        else:
            wanted, self.database = outlined.text, ScanDatabase(outlined.text.entries, once=True, serialised=serialised)
        #: What is searched for in bodies, without what Hyperscan cannot search for.
        self.text = wanted
        self._patterns = tuple(frozenset(entry.patterns) for entry in wanted.entries)
        self._always = frozenset(wanted.open)
        self._everything = frozenset(range(len(outlined.patterns)))
        self._stages = _stages(outlined.groups)
        self._schedules: tuple[dict[frozenset[int], Schedule], ...] = tuple({} for _ in self._stages)
        #: The same by what tells them apart.
        self._shared: dict[tuple[Candidates, frozenset[int] | None], Schedule] = {}
        self._stock: Stock | None = None

    def run(self, signal: LogSignal) -> None:
        """Run all statements that can do something on this record, in their order."""
        log: dict[str, Any] = signal["log"]  # type: ignore[assignment]
        caches: Caches = {}
        for stage, schedules in enumerate(self._schedules):
            body = log.get("body")
            data = _encoded(body) if type(body) is str and type(log.get("attributes")) is dict else None
            if data is None:
                found = _UNKNOWN
            else:
                hits: list[int] = []
                self.database.scan(data, _collect, hits)
                found = frozenset(hits)
            schedule = schedules.get(found) or self._scheduled(stage, found)
            self.failures += schedule.rest(data).run(signal, caches)

    def matching(self, data: bytes) -> frozenset[int]:
        """Entries of the database that occur in a text, encoded as UTF-8."""
        found: list[int] = []
        self.database.scan(data, _collect, found)
        return frozenset(found)

    def _forget(self) -> None:
        self._shared.clear()
        for known in self._schedules:
            known.clear()

    def _scheduled(self, stage: int, found: frozenset[int]) -> Schedule:
        """The schedule of a stage for guards that were not found together before."""
        from tracecore.ottl.planner.schedule import Schedule, Stock

        if self._stock is None:
            self._stock = Stock(self.outline, self._forget)
        if len(self._schedules[stage]) >= MAX_SCHEDULES:
            self._forget()
        entries = self._patterns
        if found is _UNKNOWN or any(not entries[number] for number in found):
            matched = self._everything
        else:
            matched = self._always.union(*(entries[number] for number in found))
        candidates = []
        for number in self._stages[stage]:
            entry = self.outline.groups[number]
            if entry.guard is not None and matched.isdisjoint(entry.guard):
                continue
            places = tuple(
                place for place, guard in enumerate(entry.guards) if guard is None or not matched.isdisjoint(guard)
            )
            if places or entry.conditions:
                candidates.append((number, places))
        chosen = tuple(candidates)
        known = None if found is _UNKNOWN else matched & self._stock.numbers_of(chosen)
        # Much of what is found matters to no statement that can run: a comma, where only progress is asked for one.
        schedule = self._shared.get((chosen, known))
        if schedule is None:
            schedule = self._shared[chosen, known] = Schedule(self._stock, chosen, known)
        self._schedules[stage][found] = schedule
        return schedule


def _encoded(body: str) -> bytes | None:
    try:
        return body.encode()
    except UnicodeEncodeError:
        return None


#: The key of what runs where the body is no text that can be scanned: everything.
_UNKNOWN: Final = frozenset({-1})


def _collect(number: int, start: int, end: int, flags: int, found: list[int]) -> None:
    found.append(number)


def _stages(groups: Sequence[PlannedGroup]) -> tuple[tuple[int, ...], ...]:
    """Numbers of groups between which the body does not change."""
    stages: list[list[int]] = [[]]
    for number, group in enumerate(groups):
        stages[-1].append(number)
        if group.changes_body:
            stages.append([])
    return tuple(tuple(stage) for stage in stages if stage)
