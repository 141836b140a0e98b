"""Guards: constant `IsMatch(body, "…")` conditions without which a statement does nothing.

A guard is a set of patterns. If none of them matches the body, the condition is false, and evaluating it has no effect
and raises no error. Example: `IsMatch(body, "NCCL") and attributes["x"] == 1` has the guard `{"NCCL"}`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, TypeAlias

from tracecore.ottl import tree
from tracecore.ottl.functions import regex
from tracecore.ottl.planner.places import Place, extraction, place_of

#: Patterns, one of which must match the body; None if the condition has no guard.
Guard: TypeAlias = frozenset[str] | None

#: For each attribute and cache entry that statements set: the union of their guards; None if one of them has none.
Stamped: TypeAlias = Mapping[Place, Guard]

#: Paths of a log record that can be read, and indexed with a constant key, without an error.
_SAFE_PATHS: Final = frozenset({"attributes", "cache", "resource.attributes", "log.attributes", "log.cache"})
_CACHE: Final = ("cache", "log.cache")
_ATTRIBUTES: Final = ("attributes", "log.attributes")
_REMOVING: Final = frozenset({"delete_key", "delete_matching_keys", "keep_keys", "keep_matching_keys"})


def guard(condition: tree.Condition | None, stamped: Stamped | None = None) -> Guard:
    """Return the guard of a condition in a log's context.

    Args:
        stamped: the guards of places that statements set. `attributes["x"] != nil` has the guard of `attributes["x"]`.
    """
    match condition:
        case tree.Call() if (pattern := tree.body_pattern(condition)) is not None:
            return frozenset({pattern})
        case tree.Comparison(("!=" | "==") as op, tree.Path() as path, tree.Literal(value)) if stamped:
            # `!= nil` and `== "text"` both hold only if a statement has set a value.
            place = place_of(path)
            return stamped.get(place) if place is not None and (op == "!=") == (value is None) else None
        case tree.And(operands):
            guards = []
            for operand in operands:
                guards.append(guard(operand, stamped))
                if not cannot_fail(operand):
                    break
            known = [found for found in guards if found is not None]
            # Prefer a guard that is searched for anyway: it costs nothing more.
            searched = [found for found in known if stamped and found in stamped.values()]
            return next(iter(searched or known), None)
        case tree.Or(operands):
            return union([guard(operand, stamped) for operand in operands])
    return None


class Effects:
    """The places that the statements of a group set, and the guards under which they do.

    Args:
        stamped: the places that earlier groups set.
    """

    def __init__(self, stamped: Stamped) -> None:
        self.stamped: dict[Place, Guard] = dict(stamped)
        #: Places that hold the body without terminal codes. A match of one of the patterns may have edited the copy.
        self._body_copies: dict[Place, frozenset[str]] = {("body", ""): frozenset()}
        #: Guards of all statements that set anything but a cache entry.
        self._guards: list[Guard] = []

    def add(self, statement: tree.Statement, group_guard: Guard) -> None:
        """Add the next statement of a group."""
        # A condition that raises an error sets nothing either.
        found = guard(statement.where, self.stamped) or group_guard
        match statement.editor:
            case tree.Call("set", (tree.Argument("", tree.Path() as target), tree.Argument("", value))):
                place = place_of(target)
                if place is not None and place[0] == "cache" and isinstance(value, tree.Path) and tree.is_body(value):
                    self._body_copies[place] = frozenset()
                self._set(place, found, group_guard)
            case tree.Call("merge_maps") as call if (extracted := extraction(call)) is not None:
                subject, pattern = extracted
                source = ("body", "") if tree.is_body(subject) else place_of(subject)
                edits = None if source is None else self._body_copies.get(source)
                for name in filter(None, regex.group_names(pattern)):
                    self._set(("cache", name), found if edits is None else edits | {pattern})
            case tree.Call("replace_pattern", (tree.Argument("", tree.Path() as target), tree.Argument("", value), *_)):
                strips_codes = isinstance(value, tree.Literal) and str(value.value).startswith("\\x1b")
                if not strips_codes and (place := place_of(target)) in self._body_copies:
                    edit = guard(statement.where, self.stamped)
                    before = self._body_copies.pop(place)
                    if edit is not None:
                        self._body_copies[place] = before | edit
            case _:
                self._set(None, found)

    def _set(self, place: Place | None, found: Guard, group_guard: Guard = None) -> None:
        if place is None or place[0] != "cache":
            self._guards.append(found)
            # The guard of the group is searched for anyway. That of the statement may be a word of many other lines.
            found = group_guard or found
        if place is not None:
            before = self.stamped.get(place, frozenset())
            self.stamped[place] = None if before is None or found is None else before | found

    def guard(self) -> Guard:
        """Return the guard of all statements together: without a match of it, no attribute is set."""
        return union(self._guards)


def union(guards: Sequence[Guard]) -> Guard:
    """Return the guard of "one of these": None if one of them is None."""
    known = [found for found in guards if found is not None]
    return frozenset[str]().union(*known) if len(known) == len(guards) else None


def statement_guard(statement: tree.Statement) -> Guard:
    """Return the guard of a statement in a log's context: of its condition, or of its extraction from the body."""
    found = guard(statement.where)
    if found is not None:
        return found
    if statement.where is not None and not cannot_fail(statement.where):
        return None
    match statement.editor:
        case tree.Call(
            "merge_maps", (tree.Argument("", tree.Path() as target), tree.Argument("", tree.Call() as source), *_)
        ):
            # If nothing is extracted, nothing is merged.
            pattern = tree.body_pattern(source, "ExtractPatterns")
            return frozenset({pattern}) if pattern is not None and tree.unparse(target) in _CACHE else None
    return None


def changes_body(statement: tree.Statement) -> bool:
    """Whether a statement may change the body, so that later guards see another text."""
    arguments = statement.editor.arguments
    if not arguments:
        return False
    target = arguments[0].value
    return not isinstance(target, tree.Path) or "body" in [segment.name for segment in target.segments]


def only_removes(statement: tree.Statement) -> bool:
    """Whether a statement only removes attributes: it does nothing if no earlier statement has set one."""
    arguments = statement.editor.arguments
    target = arguments[0].value if arguments else None
    return statement.editor.name in _REMOVING and isinstance(target, tree.Path) and tree.unparse(target) in _ATTRIBUTES


def stays_inside(statement: tree.Statement) -> bool:
    """Whether a statement changes only the record, not the resource and scope that it shares with other records."""
    arguments = statement.editor.arguments
    target = arguments[0].value if arguments else None
    if not isinstance(target, tree.Path):
        return target is None
    return target.segments[0].name not in ("resource", "scope", "instrumentation_scope")


def cannot_fail(condition: tree.Condition) -> bool:
    """Whether a condition never raises an error on a log whose body is a string and whose attributes are a map."""
    match condition:
        case tree.Call():
            return tree.body_pattern(condition) is not None
        case tree.Comparison(op, left, right):
            literal = isinstance(left, tree.Literal) or isinstance(right, tree.Literal)
            return op in ("==", "!=") and literal and _is_safe(left) and _is_safe(right)
        case tree.Not(operand):
            return cannot_fail(operand)
        case tree.And(operands) | tree.Or(operands):
            return all(map(cannot_fail, operands))
    return isinstance(condition, tree.Literal)


def _is_safe(expression: tree.Expression) -> bool:
    """Whether reading an operand never raises an error."""
    if not isinstance(expression, tree.Path):
        return isinstance(expression, tree.Literal)
    *before, last = expression.segments
    name = ".".join(segment.name for segment in expression.segments)
    keys = last.keys
    constant = len(keys) == 1 and isinstance(keys[0], tree.Literal) and isinstance(keys[0].value, str)
    return name in _SAFE_PATHS and constant and not any(segment.keys for segment in before)
