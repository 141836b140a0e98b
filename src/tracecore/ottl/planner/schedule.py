"""Schedules: which statements run on a record, depending on the patterns that match its body.

The scan of a body selects the statements that can do something: the candidates. A `Schedule` then matches the body
with all the patterns that the conditions of the candidates name, one group of statements at a time. Statements and
groups whose conditions are now false are dropped. The others (`ReducedGroups`) are compiled without the conditions
that are now true, once for all records whose bodies match the same patterns.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from itertools import chain
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from tracecore.ottl import tree
from tracecore.ottl.compile import Program, compile_condition, compile_statement
from tracecore.ottl.context import Context
from tracecore.ottl.functions import regex
from tracecore.ottl.parser import parse, parse_condition
from tracecore.ottl.planner.guards import cannot_fail
from tracecore.ottl.planner.reduction import Matches, body_patterns, reduced
from tracecore.ottl.planner.shortcuts import editing
from tracecore.ottl.processor import CompiledGroup
from tracecore.ottl.runner import check_error_mode
from tracecore.ottl.signature import RawGetter

if TYPE_CHECKING:
    from tracecore.ottl.planner.plan import Outline, PlannedGroup
    from tracecore.signals.record import LogSignal

#: After this many reductions all schedules and reduced statements are dropped.
MAX_REDUCTIONS: Final = 8192
#: Sets of patterns that are matched together. All are dropped when one more is needed.
MAX_TESTS: Final = 1024

Predicate: TypeAlias = Callable[[Context], bool]
#: Returns which of some patterns match a body, as their positions.
PatternTest: TypeAlias = Callable[[bytes], list[int]]
#: Numbers of groups, each with the indexes of the statements that can do something.
Candidates: TypeAlias = tuple[tuple[int, tuple[int, ...]], ...]
#: The caches that groups of a processor share, by processor and context.
Caches: TypeAlias = dict[tuple[int, str], dict[str, Any]]


class ReducedGroups:
    """Compiled groups, reduced to what can do something on certain records.

    Args:
        groups: in order, each with its group in the plan.
    """

    __slots__ = ("_groups",)

    def __init__(self, groups: Sequence[tuple[CompiledGroup, PlannedGroup]]) -> None:
        self._groups = tuple(groups)

    def run(self, signal: LogSignal, caches: Caches) -> int:
        """Run the groups on a record and return how many statements and conditions raised an error."""
        failed = 0
        for group, planned in self._groups:
            ctx = _CONTEXTS[planned.context](signal)
            if planned.shared_cache:
                ctx.cache = caches.setdefault((planned.processor, planned.context), {})
            failed += group.run(ctx)
        return failed


class Schedule:
    """The groups that run on records for which the scan gave the same result.

    Args:
        statements: the statements of the plan.
        candidates: the statements that can do something.
        matched: numbers of the candidates' patterns that may match, from the scan; None if the body was not scanned.
    """

    __slots__ = ("_candidates", "_matched", "_reduced", "_statements", "_tests")

    def __init__(self, statements: StatementCache, candidates: Candidates, matched: frozenset[int] | None) -> None:
        self._statements = statements
        self._candidates = candidates
        self._matched = matched
        #: Patterns that are matched together, and their test.
        self._tests: list[tuple[tuple[str, ...], PatternTest]] = []
        seen: set[str] = set()
        for patterns in statements.patterns(candidates) if matched is not None else ():
            new = tuple(each for each in patterns if each not in seen and self._scan_result(each) is None)
            if new:
                self._tests.append((new, statements.test(new)))
                seen.update(new)
        #: Groups by the results of all tests.
        self._reduced: dict[tuple[tuple[int, ...], ...], ReducedGroups] = {}

    def groups(self, data: bytes | None) -> ReducedGroups:
        """Return the groups for a record whose body is this UTF-8 text; None for a body that is no text."""
        found = () if data is None else tuple(tuple(test(data)) for _, test in self._tests)
        return self._reduced.get(found) or self._reduce(found)

    def _reduce(self, found: tuple[tuple[int, ...], ...]) -> ReducedGroups:
        tested: dict[str, bool] = {}
        for positions, (patterns, _) in zip(found, self._tests, strict=False):
            tested.update((pattern, position in positions) for position, pattern in enumerate(patterns))
        matches = None if self._matched is None else lambda pattern: tested.get(pattern, self._scan_result(pattern))
        reduced_groups = self._reduced[found] = self._statements.reduced(self._candidates, matches)
        return reduced_groups

    def _scan_result(self, pattern: str) -> bool | None:
        """Return False if the scan showed that a pattern does not match. It never shows that a pattern matches."""
        number = self._statements.numbers.get(pattern)
        return False if self._matched is not None and number is not None and number not in self._matched else None


class StatementCache:
    """The statements of a plan, parsed and compiled when they are first needed.

    Args:
        outline: the plan.
        forget: drops all schedules. Called when too many reductions or tests were made.
    """

    def __init__(self, outline: Outline, forget: Callable[[], None]) -> None:
        self._forget = forget
        self._reductions = 0
        self.planned = outline.groups
        self.numbers = {pattern: number for number, pattern in enumerate(outline.patterns)}
        self._editors: dict[tuple[int, int], RawGetter] = {}
        self._tests: dict[tuple[str, ...], PatternTest] = {}
        self._predicates: dict[tuple[int, str], Predicate] = {}
        #: Patterns that a statement's condition names; index None stands for the conditions of the group.
        self._patterns: dict[tuple[int, int | None], tuple[str, ...]] = {}
        #: Whole statements.
        self._programs: dict[tuple[int, int], Program] = {}
        #: Reduced statements, by which of their patterns match; None if the condition is false.
        self._reduced: dict[tuple[int, int, tuple[bool | None, ...]], Program | None] = {}

    def patterns(self, candidates: Candidates) -> Iterator[dict[str, None]]:
        """Return for each group the patterns that its conditions and candidate statements name, in order."""
        for number, indexes in candidates:
            if self._reducible(number):
                yield dict.fromkeys(chain(*(self._patterns_of(number, index) for index in (None, *indexes))))

    def numbers_of(self, candidates: Candidates) -> frozenset[int]:
        """Return the numbers of those patterns that are searched for."""
        return frozenset(self.numbers[each] for each in chain(*self.patterns(candidates)) if each in self.numbers)

    def test(self, patterns: tuple[str, ...]) -> PatternTest:
        """Return the test of these patterns; equal tests are compiled once."""
        test = self._tests.get(patterns)
        if test is None:
            if len(self._tests) >= MAX_TESTS:
                self._tests.clear()
                self._forget()
            test = self._tests[patterns] = regex.together("IsMatch", patterns)
        return test

    def reduced(self, candidates: Candidates, matches: Matches | None) -> ReducedGroups:
        """Return groups without the conditions whose result is known.

        Args:
            candidates: the groups.
            matches: for records whose body is text and whose attributes are a map; None for all others.
        """
        self._reductions += 1
        if self._reductions >= MAX_REDUCTIONS:
            self._reductions = 0
            self._reduced.clear()
            self._forget()
        groups: list[tuple[CompiledGroup, PlannedGroup]] = []
        for number, indexes in candidates:
            group: CompiledGroup | None
            if matches is not None and self._reducible(number):
                group = self._reduced_group(number, indexes, matches)
            else:
                group = self._whole_group(number, indexes)
            if group is not None:
                groups.append((group, self.planned[number]))
        return ReducedGroups(groups)

    def _whole_group(self, number: int, indexes: tuple[int, ...]) -> CompiledGroup:
        """Compile a group with some of its statements for any record."""
        planned = self.planned[number]
        for index in indexes:
            if (number, index) not in self._programs:
                node = self._statement(number, index)
                self._programs[number, index] = compile_statement(node, planned.context, qualified=planned.qualified)
        conditions = [
            (text, compile_condition(text, planned.context, qualified=planned.qualified)) for text in planned.conditions
        ]
        return self._group(number, conditions, [self._programs[number, index] for index in indexes])

    def _reducible(self, number: int) -> bool:
        """Whether a group reads the body that was scanned in all its statements."""
        return self.planned[number].context == "log" and not self.planned[number].changes_body

    def _patterns_of(self, number: int, index: int | None) -> tuple[str, ...]:
        if (number, index) not in self._patterns:
            nodes = self._conditions(number) if index is None else (self._statement(number, index).where,)
            found = (body_patterns(node) for node in nodes if node is not None)
            self._patterns[number, index] = tuple(chain.from_iterable(found))
        return self._patterns[number, index]

    def _reduced_group(self, number: int, indexes: tuple[int, ...], matches: Matches) -> CompiledGroup | None:
        """Compile a reduced group; None if it can do nothing."""
        conditions = self._reduced_conditions(number, matches)
        if conditions is None:
            return None
        found = (self._reduced_program(number, index, matches) for index in indexes)
        programs = [program for program in found if program is not None]
        if not programs and all(cannot_fail(node) for _, node in conditions):
            return None
        return self._group(number, [(text, self._predicate(number, node)) for text, node in conditions], programs)

    def _reduced_program(self, number: int, index: int, matches: Matches) -> Program | None:
        """Compile a reduced statement; None if its condition is false."""
        key = number, index, tuple(map(matches, self._patterns_of(number, index)))
        if key not in self._reduced:
            where = self._statement(number, index).where
            condition = None if where is None else reduced(where, matches)
            if not isinstance(condition, tree.Literal):
                self._reduced[key] = self._program(number, index, condition)
            else:
                self._reduced[key] = self._program(number, index, None) if condition.value else None
        return self._reduced[key]

    def _reduced_conditions(self, number: int, matches: Matches) -> list[tuple[str, tree.Condition]] | None:
        """Return a group's reduced conditions, each with its text; None if all of them are false."""
        conditions: list[tuple[str, tree.Condition]] = []
        for text, condition in zip(self.planned[number].conditions, self._conditions(number), strict=True):
            found = reduced(condition, matches)
            if not isinstance(found, tree.Literal):
                conditions.append((text, found))
            elif found.value:
                # One true condition is enough, unless a condition before it may raise an error.
                return [] if all(cannot_fail(node) for _, node in conditions) else [*conditions, (text, found)]
        return conditions if conditions or not self.planned[number].conditions else None

    def _group(
        self, number: int, conditions: Sequence[tuple[str, Predicate]], programs: Sequence[Program]
    ) -> CompiledGroup:
        planned = self.planned[number]
        mode = check_error_mode(planned.error_mode)
        return CompiledGroup(planned.context, tuple(programs), tuple(conditions), mode, planned.shared_cache)

    def _statement(self, number: int, index: int) -> tree.Statement:
        return _parsed(self.planned[number].statements[index])

    def _conditions(self, number: int) -> tuple[tree.Condition, ...]:
        return tuple(map(_parsed_condition, self.planned[number].conditions))

    def _program(self, number: int, index: int, where: tree.Condition | None) -> Program:
        """Compile a statement with another condition."""
        planned = self.planned[number]
        node = self._statement(number, index)
        if (number, index) not in self._editors:
            unconditional = tree.Statement(node.editor, None, node.source)
            general = compile_statement(unconditional, planned.context, qualified=planned.qualified).editor
            self._editors[number, index] = editing(node.editor, general)
        predicate = None if where is None else self._predicate(number, where)
        return Program(node, planned.context, predicate, self._editors[number, index])

    def _predicate(self, number: int, node: tree.Condition) -> Predicate:
        key = number, tree.unparse(node)  # trees cannot be keys: a literal 1 equals a literal true
        if key not in self._predicates:
            planned = self.planned[number]
            self._predicates[key] = compile_condition(node, planned.context, qualified=planned.qualified)
        return self._predicates[key]


#: Cached for the whole process, because its plans share recipes.
_parsed: Final = lru_cache(MAX_REDUCTIONS)(parse)
_parsed_condition: Final = lru_cache(MAX_REDUCTIONS)(parse_condition)


def _log_context(signal: LogSignal) -> Context:
    return Context(signal["resource"], signal.get("scope", {}), signal["log"])  # type: ignore[arg-type]


def _scope_context(signal: LogSignal) -> Context:
    scope: Any = signal.get("scope", {})
    return Context(signal["resource"], scope, scope)  # type: ignore[arg-type]


def _resource_context(signal: LogSignal) -> Context:
    return Context(signal["resource"], {}, signal["resource"])  # type: ignore[arg-type]


_CONTEXTS: Final[dict[str, Callable[[LogSignal], Context]]] = {
    "log": _log_context,
    "scope": _scope_context,
    "resource": _resource_context,
}
