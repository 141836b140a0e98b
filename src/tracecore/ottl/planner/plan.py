"""A plan runs transform processors on log records, but only the statements that can do something on a record.

    plan = Plan(outline(processors))    # mappings as under `transform/…:` in a Collector's configuration
    plan.run(signal)                    # the same result as running each processor on the record

One scan of the body finds the guards that can match. Statements without a guard always run. Statements are compiled
when they are first needed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import msgspec

from tracecore.ottl.planner.database import ScanDatabase, Search, compiled, search
from tracecore.ottl.planner.expressions import FOLDING

if TYPE_CHECKING:
    from tracecore.ottl.planner.schedule import Caches, Candidates, Schedule, StatementCache
    from tracecore.signals.record import LogSignal

#: Schedules kept for each stage. All are dropped when one more is needed.
MAX_SCHEDULES: Final = 4096


class PlannedGroup(msgspec.Struct, frozen=True):
    """A group of statements and its guards. Patterns are given by number.

    Args:
        processor: the number of its processor in the plan; groups of one processor may share a cache.
        context: `log`, `resource`, …
        statements: their text.
        conditions: their text.
        qualified: paths begin with the name of their context.
        error_mode: see `ottl.transform`.
        shared_cache: see `ottl.processor.Group`.
        guard: patterns, one of which must match; None if the group must always be entered.
        guards: the same for each statement.
        fresh: the same as `guard` for a line as it is read, which has none of the attributes that statements set.
        effects: for such a line, the text of patterns one of which must match for any attribute to be set; or None.
        changes_body: the body must be scanned again after this group.
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
    """A plan as data, which can be stored: everything that is derived from the statements before they run.

    Args:
        patterns: the patterns of all guards, by number.
        groups: the groups of all processors, in order.
        text: what to search for in a record's text.
        local: statements change only their own record, so that records can be run one after the other.
    """

    patterns: tuple[str, ...]
    groups: tuple[PlannedGroup, ...]
    text: Search
    local: bool


def outline(processors: Iterable[Mapping[str, Any]]) -> Outline:
    """Read the log statements of processors.

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
        serialised: the compiled database, if it was stored.
    """

    def __init__(self, outlined: Outline, serialised: bytes | None = None) -> None:
        self.outline = outlined
        #: Statements and conditions that raised an error and were skipped, since the start.
        self.failures = 0
        if serialised is None:
            wanted, self.database = compiled(outlined.text, once=True)
        else:
            wanted, self.database = outlined.text, ScanDatabase(outlined.text.entries, once=True, serialised=serialised)
        #: What is searched for in bodies, without the entries that Hyperscan rejects.
        self.text = wanted
        self._entry_patterns = tuple(frozenset(entry.patterns) for entry in wanted.entries)
        self._unsearchable = frozenset(wanted.open)
        self._stages = _stages(outlined.groups)
        #: For each stage, the schedule by the entries of the database that were found.
        self._schedules: tuple[dict[frozenset[int], Schedule], ...] = tuple({} for _ in self._stages)
        #: Equal schedules are shared.
        self._shared: dict[tuple[Candidates, frozenset[int] | None], Schedule] = {}
        self._statements: StatementCache | None = None

    def run(self, signal: LogSignal) -> None:
        """Run all statements that can do something on this record, in order."""
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
            schedule = schedules.get(found) or self._schedule(stage, found)
            self.failures += schedule.groups(data).run(signal, caches)

    def matching(self, data: bytes) -> frozenset[int]:
        """Return the entries of the database that match a text, encoded as UTF-8."""
        found: list[int] = []
        self.database.scan(data, _collect, found)
        return frozenset(found)

    def _forget(self) -> None:
        self._shared.clear()
        for schedules in self._schedules:
            schedules.clear()

    def _schedule(self, stage: int, found: frozenset[int]) -> Schedule:
        """Make the schedule of a stage for entries that were not found together before."""
        from tracecore.ottl.planner.schedule import Schedule, StatementCache

        if self._statements is None:
            self._statements = StatementCache(self.outline, self._forget)
        if len(self._schedules[stage]) >= MAX_SCHEDULES:
            self._forget()
        entries = self._entry_patterns
        if found is _UNKNOWN or any(not entries[number] for number in found):
            matched = frozenset(range(len(self.outline.patterns)))
        else:
            matched = self._unsearchable.union(*(entries[number] for number in found))
        chosen = []
        for number in self._stages[stage]:
            group = self.outline.groups[number]
            if group.guard is not None and matched.isdisjoint(group.guard):
                continue
            statements = tuple(
                index for index, guard in enumerate(group.guards) if guard is None or not matched.isdisjoint(guard)
            )
            if statements or group.conditions:
                chosen.append((number, statements))
        candidates = tuple(chosen)
        # Ignore matches that no candidate asks for. Many sets of found entries then have the same schedule.
        known = None if found is _UNKNOWN else matched & self._statements.numbers_of(candidates)
        schedule = self._shared.get((candidates, known))
        if schedule is None:
            schedule = self._shared[candidates, known] = Schedule(self._statements, candidates, known)
        self._schedules[stage][found] = schedule
        return schedule


def _encoded(body: str) -> bytes | None:
    try:
        return body.encode()
    except UnicodeEncodeError:
        return None


#: The key of the schedule for bodies that cannot be scanned: all statements run.
_UNKNOWN: Final = frozenset({-1})


def _collect(number: int, start: int, end: int, flags: int, found: list[int]) -> None:
    found.append(number)


def _stages(groups: Sequence[PlannedGroup]) -> tuple[tuple[int, ...], ...]:
    """Divide the groups, by number, into stages; the body does not change within a stage."""
    stages: list[list[int]] = [[]]
    for number, group in enumerate(groups):
        stages[-1].append(number)
        if group.changes_body:
            stages.append([])
    return tuple(tuple(stage) for stage in stages if stage)
