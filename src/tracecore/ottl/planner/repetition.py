"""Texts that differ in digits only: what was decided for the first of them is done to the others.

Most records of a log are made by a few format strings. Statements ask whether expressions match a text, and take out
what these capture. An expression that takes one digit for any other (`blind`) gives the same answer for two texts of
one shape, and captures the same places. So of the first text of a shape it is noted which statements did something and
where their captures were; on the next ones only those are run, with captures cut out of the same places.

Taken for granted is what follows from the shape of the body and from which attributes there were: what blind
expressions say of the body and of what was captured from it, and what is nil. Any other condition is asked again and
must have the answer it had; values are worked out for each record. Where an answer is another one, or something fails,
the record is put back as it was and goes the long way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

from tracecore.ottl import tree
from tracecore.ottl.context import Context
from tracecore.ottl.errors import OttlError
from tracecore.ottl.functions import regex
from tracecore.ottl.parser import parse_condition
from tracecore.ottl.planner import expressions
from tracecore.ottl.planner.places import Place, extraction, place_of
from tracecore.ottl.planner.shortcuts import editing

if TYPE_CHECKING:
    from tracecore.ottl.processor import CompiledGroup
    from tracecore.signals.record import LogSignal

#: Shapes that are remembered; all are forgotten when there are so many.
MAX_SHAPES: Final = 1024
#: More statements at once than these are not looked into.
MAX_STATEMENTS: Final = 256

Step: TypeAlias = Callable[[Context], Any]
Asked: TypeAlias = Callable[[Context], bool]

_DIGITS: Final = bytes.maketrans(b"0123456789", b"0000000000")
_DIGIT_MASK: Final = sum(1 << byte for byte in b"0123456789")


@lru_cache(maxsize=2048)
def blind(pattern: str) -> bool:
    """Whether an expression cannot tell one ASCII digit from another; False where it cannot be read."""
    try:
        pending = [expressions.parse(pattern)]
    except (expressions.Unreadable, RecursionError):
        return False
    while pending:
        node = pending.pop()
        match node:
            case expressions.Byte(mask) | expressions.Wide(mask):
                if mask & _DIGIT_MASK not in (0, _DIGIT_MASK):
                    return False
            case expressions.Sequence(parts) | expressions.Choice(parts):
                pending.extend(parts)
            case expressions.Repeat(part):
                pending.append(part)
    return True


class Unforeseen(Exception):
    """A condition has another answer than for the text before."""


class _Cut(NamedTuple):
    """`merge_maps(cache, ExtractPatterns(…), "upsert")`; `subject` is an entry of the cache, empty for the body."""

    subject: str
    pattern: regex.CompiledRegex

    def located(self, ctx: Context) -> Step | None:
        """Return the function that cuts the same captures out of other texts; None if there are none."""
        subject = self.subject
        text = ctx.cache.get(subject) if subject else ctx.item["body"]
        spans = self.pattern.search(text) if isinstance(text, str) else None
        if spans is None:
            if not isinstance(text, str):
                raise Unforeseen  # a mistake in the statement, which is for the long way to tell
            return None
        named = zip(self.pattern.names, spans, strict=True)
        places = {name: slice(max(start, 0), max(end, 0)) for name, (start, end) in named if name}
        parts = tuple(places.items())

        def cut(ctx: Context) -> None:
            cache = ctx.cache
            text = cache[subject] if subject else ctx.item["body"]
            for name, part in parts:
                cache[name] = text[part]

        return cut


class _Statement(NamedTuple):
    """A statement; `sure` where its condition follows from the shape."""

    where: Asked | None
    sure: bool
    editor: Step
    cut: _Cut | None


class _Part(NamedTuple):
    """A group of statements; `entered` is None where it always is."""

    entered: Asked | None
    sure: bool
    statements: tuple[_Statement, ...]


class Script:
    """The statements that run where certain guards matched, and what is known of them before there is a text.

    Args:
        groups: in order; all of logs, none with a shared cache.

    Raises:
        Unforeseen: they do something of which it is not known what it means for those after it.
    """

    def __init__(self, groups: Sequence[CompiledGroup]) -> None:
        trees = [program.tree for group in groups for program in group.programs]
        if len(trees) > MAX_STATEMENTS or any(group.shared_cache or group.context != "log" for group in groups):
            raise Unforeseen
        known = _Knowledge(trees)
        self._parts = tuple(_part(group, known) for group in groups)
        #: Attributes of the record and of its resource of which it matters whether they were there.
        self._own = frozenset(name for root, name in known.read if root == "attributes")
        self._resource = frozenset(name for root, name in known.read if root == "resource.attributes")

    def shape(self, data: bytes, signal: LogSignal) -> object:
        """Return the part of the text that decides sure conditions; None if there is no such part."""
        shape = data.translate(_DIGITS)
        log, resource = signal["log"]["attributes"], signal["resource"].get("attributes")
        own = self._own.intersection(log)
        above = self._resource.intersection(resource) if resource else None
        if not own and not above:
            return self, shape
        if any(log[name] is None or type(log[name]) is bytes for name in own):
            return None
        if above and resource and any(resource[name] is None or type(resource[name]) is bytes for name in above):
            return None
        return self, shape, own, above

    def noted(self, signal: LogSignal) -> tuple[tuple[Step, ...], ...]:
        """Run all on a record, and give what has to be done to the next one of its shape.

        Raises:
            Unforeseen, OttlError, RecursionError: something failed; the record is as it was then.
        """
        noted: list[tuple[Step, ...]] = []
        for part in self._parts:
            steps = tuple(_steps(part, _context(signal)))
            if steps:
                noted.append(steps)
        return tuple(noted)


def _steps(part: _Part, ctx: Context) -> Iterator[Step]:
    if part.entered is not None:
        entered = part.entered(ctx)
        if not part.sure:
            yield _asked(part.entered, entered)
        if not entered:
            return
    for where, sure, editor, cut in part.statements:
        if where is not None:
            holds = where(ctx)
            if not sure:
                yield _asked(where, holds)
            if not holds:
                continue
        step = editor if cut is None else cut.located(ctx)
        if step is not None:
            step(ctx)
            yield step


def _asked(condition: Asked, answer: bool) -> Step:
    def ask(ctx: Context) -> None:
        if condition(ctx) is not answer:
            raise Unforeseen

    return ask


def _context(signal: LogSignal) -> Context:
    return Context(signal["resource"], signal.get("scope", {}), signal["log"])  # type: ignore[arg-type]


class Repetition:
    """The remembered texts."""

    def __init__(self) -> None:
        self._noted: dict[object, tuple[tuple[Step, ...], ...] | None] = {}

    def run(self, script: Script, data: bytes, signal: LogSignal) -> bool:
        """Run a script on a record whose body is this text; False where it has to go the long way.

        Args:
            script: what runs on it.
            data: the body, encoded.
            signal: its attributes are a dictionary.
        """
        shape = script.shape(data, signal)
        if shape is None:
            return False
        known = self._noted.get(shape, ())
        if known is None:
            return False
        attributes = signal["log"]["attributes"]
        before = dict(attributes)
        try:
            if known:
                for steps in known:
                    ctx = _context(signal)
                    for step in steps:
                        step(ctx)
            elif shape not in self._noted:
                if len(self._noted) >= MAX_SHAPES:
                    self._noted.clear()
                self._noted[shape] = None  # should it fail
                self._noted[shape] = script.noted(signal)
        except (OttlError, RecursionError, Unforeseen):
            attributes.clear()
            attributes.update(before)
            return False
        return True


# -- what statements mean for those after them -------------------------------------------------------------------------

#: Converters that give nil for nil, else a value, or fail; which of these follows from the shape of their arguments.
_CONVERTERS: Final = frozenset({"Int", "Double", "ConvertCase", "Concat"})


class _Knowledge:
    """The results that depend only on the shape, after any of these statements.

    Args:
        statements: all that may run.

    Raises:
        Unforeseen: one of them changes something else than single attributes and entries of the cache.
    """

    def __init__(self, statements: Sequence[tree.Statement]) -> None:
        #: Attributes whose earlier value matters.
        self.read: set[Place] = set()
        #: Whether these are nil does not follow from the shape; and of those beside them, which text they are.
        self._open: set[Place] = set()
        self._numbers: set[Place] = set()
        before = -1
        while before < (before := len(self._open) + len(self._numbers)):
            for statement in statements:
                self._learn(statement)

    def _learn(self, statement: tree.Statement) -> None:
        editor = statement.editor
        arguments = [argument.value for argument in editor.arguments]
        if any(argument.name for argument in editor.arguments) or not arguments:
            raise Unforeseen
        match editor.name, arguments:
            case "set", [tree.Path() as path, value] if (target := place_of(path)) is not None and target[1]:
                self._write(target, follows=self.follows(value), text=self._text(value))
            case "delete_key", [tree.Path() as path, tree.Literal()] if place_of(path) is not None:
                pass
            case "replace_pattern", [tree.Path() as path, tree.Literal(str() as pattern), tree.Literal()] if (
                target := place_of(path)
            ) is not None and target[0] == "cache":
                self._write(target, follows=True, text=blind(pattern))
            case "merge_maps", _ if (taken := extraction(editor)) is not None:
                follows = self.captures(*taken)
                for name in regex.group_names(taken[1]):
                    self._write(("cache", name), follows=follows, text=follows)
            case _:
                raise Unforeseen

    def _write(self, target: Place, *, follows: bool, text: bool) -> None:
        if target[0] not in ("cache", "attributes"):
            raise Unforeseen
        if not follows:
            self._open.add(target)
        if not text:
            self._numbers.add(target)

    def follows(self, value: tree.Expression | tree.Lambda | tree.FunctionName) -> bool:
        """Whether it follows from the shape if a value is nil."""
        match value:
            case tree.Literal():
                return True
            case tree.Path():
                if tree.is_body(value):
                    return True
                place = place_of(value)
                if place is None or not place[1]:
                    return False
                if place[0] != "cache":
                    self.read.add(place)
                return place not in self._open
            case tree.Call(name, arguments, ()) if name in _CONVERTERS:
                return all(self.follows(argument.value) for argument in arguments)
            case tree.Binary(_, left, right):
                return self.follows(left) and self.follows(right)
            case tree.ListLiteral(items):
                return all(self.follows(item) for item in items)
            case tree.MapLiteral(entries):
                return all(self.follows(item) for _, item in entries)
        return False

    def captures(self, subject: tree.Expression | tree.Lambda | tree.FunctionName, pattern: str) -> bool:
        """Whether it follows from the shape where an expression matches a value."""
        return blind(pattern) and self._text(subject)

    def _text(self, value: tree.Expression | tree.Lambda | tree.FunctionName) -> bool:
        """Whether a value is text whose shape follows from that of the body, or nothing."""
        match value:
            case tree.Literal(literal):
                return isinstance(literal, str)
            case tree.Path():
                place = place_of(value)
                if place is not None and place[0] == "cache" and place[1]:
                    return place not in self._open and place not in self._numbers
                return tree.is_body(value)
        return False

    def sure(self, condition: tree.Condition) -> bool:
        """Whether the answer of a condition follows from the shape."""
        match condition:
            case tree.Literal():
                return True
            case tree.Not(operand):
                return self.sure(operand)
            case tree.And(operands) | tree.Or(operands):
                return all(self.sure(operand) for operand in operands)
            case tree.Call(
                "IsMatch", (tree.Argument("", subject), tree.Argument("", tree.Literal(str() as pattern))), ()
            ):
                return self.captures(subject, pattern)
            case tree.Comparison(("==" | "!="), tree.Path() as path, tree.Literal(value)):
                place = place_of(path)
                if place is None or not place[1]:
                    return False
                if value is None:
                    return self.follows(path)
                # Text that has a digit is not a text that has none, whatever the digit.
                digits = isinstance(value, str) and any(char in "0123456789" for char in value)
                return place[0] == "cache" and isinstance(value, (str, bool)) and not digits and self.follows(path)
        return False


def _part(group: CompiledGroup, known: _Knowledge) -> _Part:
    conditions = [condition for _, condition in group.conditions]
    sure = all(known.sure(parse_condition(text)) for text, _ in group.conditions)

    def entered(ctx: Context) -> bool:
        return any(condition(ctx) for condition in conditions)

    statements = []
    for program in group.programs:
        cut = None
        if (taken := extraction(program.tree.editor)) is not None and known.captures(*taken):
            subject, pattern = taken
            place = place_of(subject)
            cut = _Cut("" if place is None else place[1], regex.compiled(pattern))
        where = program.tree.where
        editor = editing(program.tree.editor, program.editor)
        statements.append(_Statement(program.where, where is None or known.sure(where), editor, cut))
    return _Part(entered if conditions else None, sure, tuple(statements))
