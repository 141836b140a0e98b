"""The schedule of statements for a record: first questions about its body, then the statements that remain.

Where the scan found certain guards, certain statements can do something (`Schedule`). What their conditions ask the
body is asked first, all expressions of a group at once (`Question`). A statement whose condition cannot hold then is
gone, and so is a group; what is left is compiled once for all records with the same answers (`Rest`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from tracecore.ottl import tree
from tracecore.ottl.compile import Program, compile_condition, compile_statement
from tracecore.ottl.context import Context
from tracecore.ottl.functions import regex
from tracecore.ottl.parser import parse, parse_condition
from tracecore.ottl.planner.guards import quiet
from tracecore.ottl.planner.questions import Answer, questions, reduced
from tracecore.ottl.planner.shortcuts import Asked, asking, editing, editing_where
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


class Question:
    """A question: which of some expressions match the body.

    Args:
        patterns: the expressions.
        test: gives the places of those that match a text, encoded as UTF-8.
        before: the answers to the questions before this one.
    """

    __slots__ = ("before", "next", "patterns", "test")

    def __init__(
        self, patterns: tuple[str, ...], test: Callable[[bytes], list[int]], before: Mapping[str, bool]
    ) -> None:
        self.patterns = patterns
        self.test = test
        self.before = before
        #: What comes after an answer, as far as there was such an answer.
        self.next: dict[tuple[int, ...], Next] = {}


Next: TypeAlias = Question | Rest


class Schedule:
    """The statements that run if certain guards match.

    Args:
        stock: the statements.
        candidates: what can do something.
        matched: numbers of the patterns they ask for that can match; None where nothing is known of the body.
    """

    __slots__ = ("_candidates", "_first", "_matched", "_stock")

    def __init__(self, stock: Stock, candidates: Candidates, matched: frozenset[int] | None) -> None:
        self._stock = stock
        self._candidates = candidates
        self._matched = matched
        self._first: Next | None = None

    def rest(self, data: bytes | None) -> Rest:
        """Return the statements for a record whose body is this UTF-8 text; None for a body that is no text."""
        step = self._first
        if step is None:
            step = self._first = self._next({})
        while type(step) is Question:
            assert data is not None
            found = tuple(step.test(data))
            step = step.next.get(found) or self._grown(step, found)
        assert type(step) is Rest
        return step

    def _grown(self, asked: Question, found: tuple[int, ...]) -> Next:
        self._stock.count_step()
        answers = {pattern: place in found for place, pattern in enumerate(asked.patterns)}
        asked.next[found] = step = self._next({**asked.before, **answers})
        return step

    def _next(self, answers: Mapping[str, bool]) -> Next:
        stock, matched = self._stock, self._matched
        if matched is None:
            return Rest([stock.whole(number, places) for number, places in self._candidates])

        def answer(pattern: str) -> bool | None:
            number = stock.numbers.get(pattern)
            return False if number is not None and number not in matched else answers.get(pattern)

        left: list[tuple[CompiledGroup, PlannedGroup]] = []
        for number, places in self._candidates:
            if patterns := stock.questions(number, places, answer):
                return Question(patterns, stock.test(patterns), answers)
            group = stock.left(number, places, answer)
            if group is not None:
                left.append((group, stock.groups[number]))
        return Rest(left)


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
        #: Editors as the language has them, and as they run here.
        self._editors: dict[tuple[int, int], tuple[RawGetter, RawGetter]] = {}
        self._tests: dict[tuple[str, ...], Callable[[bytes], list[int]]] = {}
        self._compiled: dict[tuple[int, str], Asked] = {}
        self._asked: dict[tuple[int, tuple[int, ...]], tuple[str, ...]] = {}
        #: Groups as they are written, with some of their statements.
        self._whole: dict[tuple[int, tuple[int, ...]], CompiledGroup] = {}
        #: Expressions that a statement asks for.
        self._own: dict[tuple[int, int], tuple[str, ...]] = {}
        #: What is left of statements, by the answers to what they ask.
        self._programs: dict[tuple[int, int, tuple[bool | None, ...]], Program | None] = {}
        #: What is left of groups, by the answers to what they ask; None where nothing is.
        self._left: dict[tuple[int, tuple[int, ...], tuple[bool | None, ...]], CompiledGroup | None] = {}

    def count_step(self) -> None:
        """One more is remembered."""
        self._steps += 1
        if self._steps >= MAX_STEPS:
            self._steps = 0
            self._left.clear()
            self._programs.clear()
            self._whole.clear()
            self._asked.clear()
            self._forget()

    def asked(self, candidates: Candidates) -> frozenset[int]:
        """Numbers of the patterns that statements and their groups ask the body for, of those that are searched for."""
        patterns = (each for number, places in candidates for each in self.questions(number, places, _unknown))
        return frozenset(self.numbers[each] for each in patterns if each in self.numbers)

    def test(self, patterns: tuple[str, ...]) -> Callable[[bytes], list[int]]:
        """Return the question about these expressions, compiled once for all that ask it."""
        test = self._tests.get(patterns)
        if test is None:
            if len(self._tests) >= MAX_TESTS:
                self._tests.clear()
                self._forget()
            test = self._tests[patterns] = regex.together("IsMatch", patterns)
        return test

    def whole(self, number: int, places: tuple[int, ...]) -> tuple[CompiledGroup, PlannedGroup]:
        """A group of some of its statements, for any record."""
        entry = self.groups[number]
        if (number, places) not in self._whole:
            nodes = [self._statement(number, place) for place in places]
            programs = [compile_statement(node, entry.context, qualified=entry.qualified) for node in nodes]
            conditions = [
                (text, compile_condition(text, entry.context, qualified=entry.qualified)) for text in entry.conditions
            ]
            self._whole[number, places] = self._made(number, conditions, programs)
        return self._whole[number, places], entry

    def _told(self, number: int) -> bool:
        """Whether what is known of the body is true for all statements of a group."""
        return self.groups[number].context == "log" and not self.groups[number].changes_body

    def questions(self, number: int, places: tuple[int, ...], answer: Answer) -> tuple[str, ...]:
        """The expressions of a group of which it is not known yet whether they match the body."""
        if not self._told(number):
            return ()
        key = number, places
        if key not in self._asked:
            statements = (self._statement(number, place).where for place in places)
            conditions = (*self._conditions_of(number), *(where for where in statements if where is not None))
            # A dictionary for a set in order.
            self._asked[key] = tuple({pattern: None for node in conditions for pattern in questions(node, _unknown)})
        return tuple(pattern for pattern in self._asked[key] if answer(pattern) is None)

    def left(self, number: int, places: tuple[int, ...], answer: Answer) -> CompiledGroup | None:
        """Return what remains of a group when its questions are answered; None if nothing does.

        It is for records whose body is text and whose attributes are a map.
        """
        if not self._told(number):
            return self.whole(number, places)[0]
        # The same answers leave the same, whatever else was asked.
        key = number, places, tuple(map(answer, self.questions(number, places, _unknown)))
        if key not in self._left:
            self._left[key] = self._reduced(number, places, answer)
        return self._left[key]

    def _reduced(self, number: int, places: tuple[int, ...], answer: Answer) -> CompiledGroup | None:
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
        where = self._statement(number, place).where
        asked = self._own.get((number, place))
        if asked is None:
            asked = self._own[number, place] = () if where is None else tuple(questions(where, _unknown))
        key = number, place, tuple(map(answer, asked))
        if key not in self._programs:
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
            self._editors[number, place] = general, editing(node.editor, general)
        general, editor = self._editors[number, place]
        if where is None:
            return Program(node, entry.context, None, editor)
        holds = self._condition(number, where)
        both = editing_where(node.editor, where, lambda ctx: holds(ctx) and general(ctx))
        return Program(node, entry.context, holds, editor) if both is None else Program(node, entry.context, None, both)

    def _condition(self, number: int, node: tree.Condition) -> Asked:
        key = number, tree.unparse(node)  # not the tree itself, whose 1 is equal to its true
        if key not in self._compiled:
            entry = self.groups[number]

            def compiled(inner: tree.Condition) -> Asked:
                return compile_condition(inner, entry.context, qualified=entry.qualified)

            self._compiled[key] = asking(node, compiled)
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
