"""Reduction of conditions, given which patterns match the body."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeAlias

from tracecore.ottl import tree
from tracecore.ottl.planner.guards import cannot_fail

#: Tells whether a pattern matches the body; None if that is not known.
Matches: TypeAlias = Callable[[str], bool | None]


def reduced(condition: tree.Condition, matches: Matches) -> tree.Condition:
    """Replace what is known in a condition by its value; a literal if everything is known.

    Args:
        condition: in a log's context, of a log whose body is a string and whose attributes are a map.
        matches: what is known.
    """
    match condition:
        case tree.Call() if (pattern := tree.body_pattern(condition)) is not None:
            known = matches(pattern)
            return condition if known is None else tree.Literal(known, condition.offset)
        case tree.Not(operand, offset):
            inner = reduced(operand, matches)
            return tree.Literal(not inner.value, offset) if isinstance(inner, tree.Literal) else tree.Not(inner, offset)
        case tree.And():
            return _reduced_operands(condition, matches, decisive=False)
        case tree.Or():
            return _reduced_operands(condition, matches, decisive=True)
    return condition


def _reduced_operands(condition: tree.And | tree.Or, matches: Matches, *, decisive: bool) -> tree.Condition:
    """Reduce a conjunction (`decisive` is False) or a disjunction: one operand with the decisive value decides it."""
    left: list[tree.Condition] = []
    for operand in condition.operands:
        inner = reduced(operand, matches)
        if not isinstance(inner, tree.Literal):
            left.append(inner)
        elif bool(inner.value) is decisive:
            if all(map(cannot_fail, left)):
                return inner
            left.append(operand)  # an operand before it may raise an error, so it must be evaluated in its place
    if not left:
        return tree.Literal(not decisive, condition.offset)
    return left[0] if len(left) == 1 else type(condition)(tuple(left), condition.offset)


def body_patterns(condition: tree.Condition) -> Iterator[str]:
    """Return the patterns that a condition matches against the body."""
    match condition:
        case tree.Call() if (pattern := tree.body_pattern(condition)) is not None:
            yield pattern
        case tree.Not(operand):
            yield from body_patterns(operand)
        case tree.And(operands) | tree.Or(operands):
            for operand in operands:
                yield from body_patterns(operand)
