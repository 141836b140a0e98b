"""Guards: constant `IsMatch(body, "…")` conditions without which a statement does nothing.

A guard is a set of patterns. Where none of them matches the body, the condition is false, and evaluating it has no
other effect: nothing before the guard could have failed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, TypeAlias

from tracecore.ottl import tree
from tracecore.ottl.functions import regex
from tracecore.ottl.planner.places import Place, extraction, place_of

#: Patterns one of which has to match; None where nothing is known.
Guard: TypeAlias = frozenset[str] | None

#: Attributes and entries of the cache, with the guards of all statements that set them; None where one has none.
Stamped: TypeAlias = Mapping[Place, Guard]

#: Paths of a log record that can be read, and with a constant key indexed, without failing.
_QUIET: Final = frozenset({"attributes", "cache", "resource.attributes", "log.attributes", "log.cache"})
_CACHE: Final = ("cache", "log.cache")
_ATTRIBUTES: Final = ("attributes", "log.attributes")
_REMOVING: Final = frozenset({"delete_key", "delete_matching_keys", "keep_keys", "keep_matching_keys"})


def guard(condition: tree.Condition | None, stamped: Stamped | None = None) -> Guard:
    """The guard of a condition in a log's context.

    Args:
        stamped: `attributes["x"] != nil` has the guards of the statements that set it, and so has `cache["x"] != nil`.
    """
    match condition:
        case tree.Call() if (pattern := tree.body_pattern(condition)) is not None:
            return frozenset({pattern})
        case tree.Comparison(("!=" | "==") as op, tree.Path() as path, tree.Literal(value)) if stamped:
            # Nothing but a value that was set is not nil, or equal to one that is not.
            place = place_of(path)
            return stamped.get(place) if place is not None and (op == "!=") == (value is None) else None
        case tree.And(operands):
            guards = []
            for operand in operands:
                guards.append(guard(operand, stamped))
                if not quiet(operand):
                    break
            known = [found for found in guards if found is not None]
            # What is searched for anyway costs nothing more.
            anyway = [found for found in known if stamped and found in stamped.values()]
            return next(iter(anyway or known), None)
        case tree.Or(operands):
            guards = [guard(operand, stamped) for operand in operands]
            known = [found for found in guards if found is not None]
            return frozenset().union(*known) if len(known) == len(guards) else None
    return None


class Effects:
    """Guards: attributes that statements set, and the conditions under which they do.

    Args:
        stamped: attributes that are set by the groups before.
    """

    def __init__(self, stamped: Stamped) -> None:
        self.stamped: dict[Place, Guard] = dict(stamped)
        #: Entries of the cache that are the body but for terminal codes, unless one of these patterns matches it.
        self._copies: dict[Place, frozenset[str]] = {("body", ""): frozenset()}
        #: Guards of all statements that set an attribute.
        self.visible: list[Guard] = []

    def add(self, statement: tree.Statement, entered: Guard) -> None:
        """Takes a statement of a group in, in order; `entered` is the guard of the group."""
        # A condition that fails sets nothing either.
        found = guard(statement.where, self.stamped) or entered
        match statement.editor:
            case tree.Call("set", (tree.Argument("", tree.Path() as target), tree.Argument("", value))):
                place = place_of(target)
                if place is not None and place[0] == "cache" and isinstance(value, tree.Path) and tree.is_body(value):
                    self._copies[place] = frozenset()
                self._set(place, found)
            case tree.Call("merge_maps") as call if (taken := extraction(call)) is not None:
                subject, pattern = taken
                source = ("body", "") if tree.is_body(subject) else place_of(subject)
                edited = None if source is None else self._copies.get(source)
                for name in filter(None, regex.group_names(pattern)):
                    self._set(("cache", name), found if edited is None else edited | {pattern})
            case tree.Call("replace_pattern", (tree.Argument("", tree.Path() as target), tree.Argument("", value), *_)):
                codes = isinstance(value, tree.Literal) and str(value.value).startswith("\\x1b")
                if not codes and (place := place_of(target)) in self._copies:
                    edits = guard(statement.where, self.stamped)
                    before = self._copies.pop(place)
                    if edits is not None:
                        self._copies[place] = before | edits
            case _:
                self._set(None, found)

    def _set(self, place: Place | None, found: Guard) -> None:
        if place is None or place[0] != "cache":
            self.visible.append(found)
        if place is not None:
            before = self.stamped.get(place, frozenset())
            self.stamped[place] = None if before is None or found is None else before | found

    def whole(self) -> Guard:
        """Return the condition under which an attribute is set at all."""
        known = [found for found in self.visible if found is not None]
        return frozenset[str]().union(*known) if len(known) == len(self.visible) else None


def statement_guard(statement: tree.Statement) -> Guard:
    """The guard of a statement in a log's context: of its condition, or of what it would take out of the body."""
    found = guard(statement.where)
    if found is not None:
        return found
    if statement.where is not None and not quiet(statement.where):
        return None
    match statement.editor:
        case tree.Call(
            "merge_maps", (tree.Argument("", tree.Path() as target), tree.Argument("", tree.Call() as source), *_)
        ):
            # Nothing extracted is nothing merged.
            pattern = tree.body_pattern(source, "ExtractPatterns")
            return frozenset({pattern}) if pattern is not None and tree.unparse(target) in _CACHE else None
    return None


def changes_body(statement: tree.Statement) -> bool:
    """Whether later guards may see another body than earlier ones."""
    arguments = statement.editor.arguments
    if not arguments:
        return False
    target = arguments[0].value
    return not isinstance(target, tree.Path) or "body" in [segment.name for segment in target.segments]


def only_removes(statement: tree.Statement) -> bool:
    """Whether a statement does nothing but take attributes off: nothing, where no statement before it has set one."""
    arguments = statement.editor.arguments
    target = arguments[0].value if arguments else None
    return statement.editor.name in _REMOVING and isinstance(target, tree.Path) and tree.unparse(target) in _ATTRIBUTES


def stays_inside(statement: tree.Statement) -> bool:
    """Whether a statement changes nothing but the record itself (not the resource and scope it shares with others)."""
    arguments = statement.editor.arguments
    target = arguments[0].value if arguments else None
    if not isinstance(target, tree.Path):
        return target is None
    return target.segments[0].name not in ("resource", "scope", "instrumentation_scope")


def quiet(condition: tree.Condition) -> bool:
    """Whether a condition cannot fail on a log whose body is a string and whose attributes are a map."""
    match condition:
        case tree.Call():
            return tree.body_pattern(condition) is not None
        case tree.Comparison(op, left, right):
            literal = isinstance(left, tree.Literal) or isinstance(right, tree.Literal)
            return op in ("==", "!=") and literal and _readable(left) and _readable(right)
        case tree.Not(operand):
            return quiet(operand)
        case tree.And(operands) | tree.Or(operands):
            return all(quiet(operand) for operand in operands)
    return isinstance(condition, tree.Literal)


def _readable(expression: tree.Expression) -> bool:
    if not isinstance(expression, tree.Path):
        return isinstance(expression, tree.Literal)
    *before, last = expression.segments
    name = ".".join(segment.name for segment in expression.segments)
    keys = last.keys
    constant = len(keys) == 1 and isinstance(keys[0], tree.Literal) and isinstance(keys[0].value, str)
    return name in _QUIET and constant and not any(segment.keys for segment in before)
