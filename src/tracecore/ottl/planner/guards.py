"""Guards: constant `IsMatch(body, "…")` conditions without which a statement does nothing.

A guard is a set of patterns. Where none of them matches the body, the condition is false, and evaluating it has no
other effect: nothing before the guard could have failed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, TypeAlias

from tracecore.ottl import tree
from tracecore.ottl.planner.places import place_of

#: Patterns one of which has to match; None where nothing is known.
Guard: TypeAlias = frozenset[str] | None

#: Attributes, with the guards of all statements that set them; None where one of these has no guard.
Stamped: TypeAlias = Mapping[str, Guard]

#: Paths of a log record that can be read, and with a constant key indexed, without failing.
_QUIET: Final = frozenset({"attributes", "cache", "resource.attributes", "log.attributes", "log.cache"})
_CACHE: Final = ("cache", "log.cache")


def guard(condition: tree.Condition | None, stamped: Stamped | None = None) -> Guard:
    """The guard of a condition in a log's context.

    Args:
        stamped: `attributes["x"] != nil` has the guards of the statements that set it.
    """
    match condition:
        case tree.Call() if (pattern := tree.body_pattern(condition)) is not None:
            return frozenset({pattern})
        case tree.Comparison("!=", tree.Path() as path, tree.Literal(None)) if stamped:
            place = place_of(path)
            return stamped.get(place[1]) if place is not None and place[0] == "attributes" else None
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


def stamps(statement: tree.Statement) -> str | None:
    """The attribute that a statement sets, if it does nothing else."""
    match statement.editor:
        case tree.Call("set", (tree.Argument("", tree.Path() as target), *_)):
            place = place_of(target)
            return place[1] or None if place is not None and place[0] == "attributes" else None
    return None


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
            return frozenset({pattern}) if pattern is not None and tree.path_text(target) in _CACHE else None
    return None


def changes_body(statement: tree.Statement) -> bool:
    """Whether later guards may see another body than earlier ones."""
    arguments = statement.editor.arguments
    if not arguments:
        return False
    target = arguments[0].value
    return not isinstance(target, tree.Path) or "body" in [segment.name for segment in target.segments]


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
