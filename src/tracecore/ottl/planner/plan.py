"""A plan: transform processors in their order, and for each record only the statements that can do something.

    plan = Plan(processors)      # mappings as under `transform/…:` in a Collector's configuration
    plan.run(signal)             # the same as running each processor on the record

One scan of the body says which guards can match; statements without a guard always run. Statements are compiled when
they are first needed. Where the same ones run again and again, texts that differ in digits only are told from others
(`repetition`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import msgspec

from tracecore.ottl.context import Context
from tracecore.ottl.planner.database import FOLDING, Database, Search, compiled, search

if TYPE_CHECKING:
    from tracecore.ottl.planner.repetition import Repetition, Script
    from tracecore.ottl.processor import Group
    from tracecore.ottl.tree import Node
    from tracecore.signals.record import LogSignal

#: Sets of guards that records were seen to match, with the statements to run for each. Forgotten when so many.
MAX_SCHEDULES: Final = 4096
#: So many records with one set of guards make it worth finding out what repeats.
WORTH: Final = 32
#: Longer texts hardly repeat, and are expensive to remember.
MAX_REPEATED: Final = 1024


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
            wanted, self.database = outlined.text, Database(outlined.text.entries, once=True, serialised=serialised)
        #: What is searched for in bodies, without what Hyperscan cannot search for.
        self.text = wanted
        self._patterns = tuple(frozenset(entry.patterns) for entry in wanted.entries)
        self._always = frozenset(wanted.open)
        self._everything = frozenset(range(len(outlined.patterns)))
        self._stages = _stages(outlined.groups)
        self._schedules: tuple[dict[frozenset[int], _Schedule], ...] = tuple({} for _ in self._stages)
        #: Statements, and under -1 conditions, by group; and the patterns that these ask the body for.
        self._compiled: dict[tuple[int, int], Any] = {}
        self._asked: dict[tuple[int, int], frozenset[int]] = {}
        self._numbers = {pattern: number for number, pattern in enumerate(outlined.patterns)}
        self._repetition: Repetition | None = None

    def run(self, signal: LogSignal) -> None:
        """Run all statements that can do something on this record, in their order."""
        log: dict[str, Any] = signal["log"]  # type: ignore[assignment]
        caches: dict[tuple[int, str], dict[str, Any]] = {}
        for number in range(len(self._stages)):
            body = log.get("body")
            data: bytes | None = None
            if type(body) is str and type(log.get("attributes")) is dict:
                data = _encoded(body)
            schedule = self._schedule(number, None if data is None else self.matching(data))
            if data is not None and len(data) <= MAX_REPEATED and self._repeated(schedule, data, signal):
                continue
            answers = dict(schedule.answers)
            for group, contextual, entry in schedule.groups:
                ctx = contextual(signal)
                if data is not None and not entry.changes_body:
                    ctx.answers = answers
                if entry.shared_cache:
                    ctx.cache = caches.setdefault((entry.processor, entry.context), {})
                self.failures += group.run(ctx)

    def run_all(self, signals: Sequence[LogSignal]) -> None:
        """Run on several records as on one payload; record by record where that is the same."""
        for signal in signals:
            self.run(signal)

    def matching(self, data: bytes) -> frozenset[int]:
        """Entries of the database that occur in a text, encoded as UTF-8."""
        found: list[int] = []
        self.database.scan(data, _collect, found)
        return frozenset(found)

    def _repeated(self, schedule: _Schedule, data: bytes, signal: LogSignal) -> bool:
        """Does what was done to a text like this one before; False where that is not known."""
        schedule.runs += 1
        if schedule.runs <= WORTH:
            return False
        if schedule.script is _NOT_TRIED:
            schedule.script = self._script(schedule)
        script, repetition = schedule.script, self._repetition
        return script is not None and repetition is not None and repetition.run(script, data, signal)

    def _script(self, schedule: _Schedule) -> Script | None:
        from tracecore.ottl.planner.repetition import Repetition, Script, Unforeseen

        if self._repetition is None:
            self._repetition = Repetition()
        try:
            return Script([group for group, _, _ in schedule.groups])
        except Unforeseen:
            return None

    def _schedule(self, stage: int, found: frozenset[int] | None) -> _Schedule:
        known = self._schedules[stage]
        key = _UNKNOWN if found is None else found
        schedule = known.get(key)
        if schedule is None:
            if len(known) >= MAX_SCHEDULES:
                known.clear()
            schedule = known[key] = self._planned(stage, found)
        return schedule

    def _planned(self, stage: int, found: frozenset[int] | None) -> _Schedule:
        entries = self._patterns
        if found is None or any(not entries[number] for number in found):
            matched = self._everything
        else:
            matched = self._always.union(*(entries[number] for number in found))
        planned = []
        asked: set[int] = set()
        for number in self._stages[stage]:
            entry = self.outline.groups[number]
            if entry.guard is not None and matched.isdisjoint(entry.guard):
                continue
            places = tuple(
                place for place, guard in enumerate(entry.guards) if guard is None or not matched.isdisjoint(guard)
            )
            if places or entry.conditions:
                planned.append((self._group(number, places), _CONTEXTUAL[entry.context], entry))
                for place in (*places, -1):
                    asked.update(self._asked[number, place])
        no = {self.outline.patterns[number]: False for number in asked if number not in matched}
        return _Schedule(tuple(planned), no)

    def _group(self, number: int, places: tuple[int, ...]) -> Group:
        from tracecore.ottl.compile import compile_condition, compile_statement
        from tracecore.ottl.parser import parse_condition
        from tracecore.ottl.processor import Group
        from tracecore.ottl.runner import check_error_mode

        entry = self.outline.groups[number]
        programs = []
        for place in places:
            program = self._compiled.get((number, place))
            if program is None:
                program = compile_statement(entry.statements[place], entry.context, qualified=entry.qualified)
                self._compiled[number, place] = program
                self._asked[number, place] = self._patterns_of(program.tree)
            programs.append(program)
        conditions = self._compiled.get((number, -1))
        if conditions is None:
            conditions = tuple(
                (text, compile_condition(text, entry.context, qualified=entry.qualified)) for text in entry.conditions
            )
            self._compiled[number, -1] = conditions
            self._asked[number, -1] = self._patterns_of(*map(parse_condition, entry.conditions))
        return Group(entry.context, tuple(programs), conditions, check_error_mode(entry.error_mode), entry.shared_cache)

    def _patterns_of(self, *nodes: Node) -> frozenset[int]:
        """Numbers of the patterns that statements or conditions ask the body for, of those that are searched for."""
        from tracecore.ottl.tree import Call, body_pattern, walk

        calls = (node for top in nodes for node in walk(top) if isinstance(node, Call))
        numbers = (self._numbers.get(pattern) for call in calls if (pattern := body_pattern(call)) is not None)
        return frozenset(number for number in numbers if number is not None)


_NOT_TRIED: Final[Any] = object()


class _Schedule:
    """What runs where certain guards match.

    Args:
        groups: with what makes their context.
        answers: patterns they ask for that do not match.
    """

    __slots__ = ("answers", "groups", "runs", "script")

    def __init__(
        self,
        groups: tuple[tuple[Group, Callable[[LogSignal], Context], PlannedGroup], ...],
        answers: dict[str, bool],
    ) -> None:
        self.groups = groups
        self.answers = answers
        self.runs = 0
        #: What is known of their repetition; None where nothing can be known.
        self.script: Script | None = _NOT_TRIED


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


def _log_context(signal: LogSignal) -> Context:
    return Context(signal["resource"], signal.get("scope", {}), signal["log"])  # type: ignore[arg-type]


def _scope_context(signal: LogSignal) -> Context:
    scope: Any = signal.get("scope", {})
    return Context(signal["resource"], scope, scope)  # type: ignore[arg-type]


def _resource_context(signal: LogSignal) -> Context:
    return Context(signal["resource"], {}, signal["resource"])  # type: ignore[arg-type]


_CONTEXTUAL: Final[dict[str, Callable[[LogSignal], Context]]] = {
    "log": _log_context,
    "scope": _scope_context,
    "resource": _resource_context,
}
