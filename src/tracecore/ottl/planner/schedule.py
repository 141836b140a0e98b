"""The statements that run on a record: those that can do something, by what their conditions ask the body.

Where the scan found certain guards, certain statements can do something (`Schedule`). What their conditions ask the
body is asked first, the expressions of each group at once. A statement whose condition cannot hold then is gone, and so
is a group; what is left (`Rest`) is compiled once for all records with the same answers.
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
from tracecore.ottl.planner.guards import quiet
from tracecore.ottl.planner.questions import Answer, questions, reduced
from tracecore.ottl.planner.shortcuts import editing
from tracecore.ottl.processor import CompiledGroup
from tracecore.ottl.runner import check_error_mode
from tracecore.ottl.signature import RawGetter

if TYPE_CHECKING:
    from tracecore.ottl.planner.plan import Outline, PlannedGroup
    from tracecore.signals.record import LogSignal

#: Questions and rests that are remembered; all are forgotten when there are so many.
MAX_STEPS: Final = 8192
#: Sets of expressions that are asked for together, likewise.
MAX_TESTS: Final = 1024

Asked: TypeAlias = Callable[[Context], bool]
#: Groups by their number, with the places of the statements of each that can do something.
Candidates: TypeAlias = tuple[tuple[int, tuple[int, ...]], ...]
#: The caches that groups of a processor share, by processor and context.
Caches: TypeAlias = dict[tuple[int, str], dict[str, Any]]


class Rest:
    """The statements that run when nothing is left to ask.

    Args:
        groups: in order, each with where it comes from.
    """

    __slots__ = ("_groups",)

    def __init__(self, groups: Sequence[tuple[CompiledGroup, PlannedGroup]]) -> None:
        self._groups = tuple(groups)

    def run(self, signal: LogSignal, caches: Caches) -> int:
        """Run on a record, and give how many statements and conditions failed."""
        failed = 0
        for group, entry in self._groups:
            ctx = _CONTEXTUAL[entry.context](signal)
            if entry.shared_cache:
                ctx.cache = caches.setdefault((entry.processor, entry.context), {})
            failed += group.run(ctx)
        return failed


class Schedule:
    """The statements that run if certain guards match.

    Args:
        stock: the statements.
        candidates: what can do something.
        matched: numbers of the patterns they ask for that can match; None where nothing is known of the body.
    """

    __slots__ = ("_asked", "_candidates", "_matched", "_rests", "_stock")

    def __init__(self, stock: Stock, candidates: Candidates, matched: frozenset[int] | None) -> None:
        self._stock = stock
        self._candidates = candidates
        self._matched = matched
        #: Expressions that are asked for together, with the function that gives the places of those that match.
        self._asked: list[tuple[tuple[str, ...], Callable[[bytes], list[int]]]] = []
        seen: set[str] = set()
        for patterns in stock.asked(candidates) if matched is not None else ():
            new = tuple(each for each in patterns if each not in seen and self._known(each) is None)
            if new:
                self._asked.append((new, stock.test(new)))
                seen.update(new)
        #: By what each question gave.
        self._rests: dict[tuple[tuple[int, ...], ...], Rest] = {}

    def rest(self, data: bytes | None) -> Rest:
        """Return the statements for a record whose body is this UTF-8 text; None for a body that is no text."""
        found = () if data is None else tuple(tuple(test(data)) for _, test in self._asked)
        return self._rests.get(found) or self._made(found)

    def _made(self, found: tuple[tuple[int, ...], ...]) -> Rest:
        answers: dict[str, bool] = {}
        for places, (patterns, _) in zip(found, self._asked, strict=False):
            answers.update((pattern, place in places) for place, pattern in enumerate(patterns))
        answer = None if self._matched is None else lambda pattern: answers.get(pattern, self._known(pattern))
        rest = self._rests[found] = self._stock.rest(self._candidates, answer)
        return rest

    def _known(self, pattern: str) -> bool | None:
        """Whether an expression matches, as far as the scan tells: it may only tell that it does not."""
        number = self._stock.numbers.get(pattern)
        return False if self._matched is not None and number is not None and number not in self._matched else None


class Stock:
    """The statements of a plan, read and compiled when they are first needed.

    Args:
        outline: the plan.
        forget: called when too much is remembered of what runs when.
    """

    def __init__(self, outline: Outline, forget: Callable[[], None]) -> None:
        self._forget = forget
        self._steps = 0
        self.groups = outline.groups
        self.numbers = {pattern: number for number, pattern in enumerate(outline.patterns)}
        self._editors: dict[tuple[int, int], RawGetter] = {}
        self._tests: dict[tuple[str, ...], Callable[[bytes], list[int]]] = {}
        self._compiled: dict[tuple[int, str], Asked] = {}
        #: Expressions that a statement asks for; those that the conditions of a group ask for have no place.
        self._asked: dict[tuple[int, int | None], tuple[str, ...]] = {}
        #: Statements as they are written.
        self._whole: dict[tuple[int, int], Program] = {}
        #: What is left of statements, by the answers to what they ask.
        self._programs: dict[tuple[int, int, tuple[bool | None, ...]], Program | None] = {}

    def asked(self, candidates: Candidates) -> Iterator[dict[str, None]]:
        """The expressions that each group and its statements ask the body for, in order."""
        for number, places in candidates:
            if self._told(number):
                yield dict.fromkeys(chain(*(self._asked_by(number, place) for place in (None, *places))))

    def numbers_of(self, candidates: Candidates) -> frozenset[int]:
        """Numbers of those expressions that are searched for."""
        return frozenset(self.numbers[each] for each in chain(*self.asked(candidates)) if each in self.numbers)

    def test(self, patterns: tuple[str, ...]) -> Callable[[bytes], list[int]]:
        """Return the question about these expressions, compiled once for all that ask it."""
        test = self._tests.get(patterns)
        if test is None:
            if len(self._tests) >= MAX_TESTS:
                self._tests.clear()
                self._forget()
            test = self._tests[patterns] = regex.together("IsMatch", patterns)
        return test

    def rest(self, candidates: Candidates, answer: Answer | None) -> Rest:
        """Return what remains of groups when what they ask is answered.

        Args:
            candidates: the groups.
            answer: for records whose body is text and whose attributes are a map; None for all others.
        """
        self._steps += 1
        if self._steps >= MAX_STEPS:
            self._steps = 0
            self._programs.clear()
            self._forget()
        left: list[tuple[CompiledGroup, PlannedGroup]] = []
        for number, places in candidates:
            group: CompiledGroup | None
            if answer is not None and self._told(number):
                group = self._left(number, places, answer)
            else:
                group = self._written(number, places)
            if group is not None:
                left.append((group, self.groups[number]))
        return Rest(left)

    def _written(self, number: int, places: tuple[int, ...]) -> CompiledGroup:
        """A group of some of its statements, for any record."""
        entry = self.groups[number]
        for place in places:
            if (number, place) not in self._whole:
                node = self._statement(number, place)
                self._whole[number, place] = compile_statement(node, entry.context, qualified=entry.qualified)
        conditions = [
            (text, compile_condition(text, entry.context, qualified=entry.qualified)) for text in entry.conditions
        ]
        return self._made(number, conditions, [self._whole[number, place] for place in places])

    def _told(self, number: int) -> bool:
        """Whether what is known of the body is true for all statements of a group."""
        return self.groups[number].context == "log" and not self.groups[number].changes_body

    def _asked_by(self, number: int, place: int | None) -> tuple[str, ...]:
        if (number, place) not in self._asked:
            nodes = self._conditions_of(number) if place is None else (self._statement(number, place).where,)
            asked = (questions(node, _unknown) for node in nodes if node is not None)
            self._asked[number, place] = tuple(chain.from_iterable(asked))
        return self._asked[number, place]

    def _left(self, number: int, places: tuple[int, ...], answer: Answer) -> CompiledGroup | None:
        """Return what remains of a group; None if nothing does."""
        conditions = self._conditions_left(number, answer)
        if conditions is None:
            return None
        found = (self._program_left(number, place, answer) for place in places)
        programs = [program for program in found if program is not None]
        if not programs and all(quiet(node) for _, node in conditions):
            return None
        return self._made(number, [(text, self._condition(number, node)) for text, node in conditions], programs)

    def _program_left(self, number: int, place: int, answer: Answer) -> Program | None:
        """Return what remains of a statement; None if nothing does."""
        key = number, place, tuple(map(answer, self._asked_by(number, place)))
        if key not in self._programs:
            where = self._statement(number, place).where
            rest = None if where is None else reduced(where, answer)
            if not isinstance(rest, tree.Literal):
                self._programs[key] = self._program(number, place, rest)
            else:
                self._programs[key] = self._program(number, place, None) if rest.value else None
        return self._programs[key]

    def _conditions_left(self, number: int, answer: Answer) -> list[tuple[str, tree.Condition]] | None:
        """Return what remains of a group's conditions, each with its text; None if none of them can hold."""
        conditions: list[tuple[str, tree.Condition]] = []
        for text, condition in zip(self.groups[number].conditions, self._conditions_of(number), strict=True):
            found = reduced(condition, answer)
            if not isinstance(found, tree.Literal):
                conditions.append((text, found))
            elif found.value:
                # One that holds is enough, unless another is to fail before it.
                return [] if all(quiet(node) for _, node in conditions) else [*conditions, (text, found)]
        return conditions if conditions or not self.groups[number].conditions else None

    def _made(self, number: int, conditions: Sequence[tuple[str, Asked]], programs: Sequence[Program]) -> CompiledGroup:
        entry = self.groups[number]
        mode = check_error_mode(entry.error_mode)
        return CompiledGroup(entry.context, tuple(programs), tuple(conditions), mode, entry.shared_cache)

    def _statement(self, number: int, place: int) -> tree.Statement:
        return _parsed(self.groups[number].statements[place])

    def _conditions_of(self, number: int) -> tuple[tree.Condition, ...]:
        return tuple(map(_parsed_condition, self.groups[number].conditions))

    def _program(self, number: int, place: int, where: tree.Condition | None) -> Program:
        """A statement under what is left of its condition."""
        entry = self.groups[number]
        node = self._statement(number, place)
        if (number, place) not in self._editors:
            alone = tree.Statement(node.editor, None, node.source)
            general = compile_statement(alone, entry.context, qualified=entry.qualified).editor
            self._editors[number, place] = editing(node.editor, general)
        holds = None if where is None else self._condition(number, where)
        return Program(node, entry.context, holds, self._editors[number, place])

    def _condition(self, number: int, node: tree.Condition) -> Asked:
        key = number, tree.unparse(node)  # not the tree itself, whose 1 is equal to its true
        if key not in self._compiled:
            entry = self.groups[number]
            self._compiled[key] = compile_condition(node, entry.context, qualified=entry.qualified)
        return self._compiled[key]


def _unknown(pattern: str) -> None:
    return None


#: Plans of one process run the same recipes.
_parsed: Final = lru_cache(MAX_STEPS)(parse)
_parsed_condition: Final = lru_cache(MAX_STEPS)(parse_condition)


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
