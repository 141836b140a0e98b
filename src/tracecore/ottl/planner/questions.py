"""Conditions reduced by the knowledge which expressions match the body."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeAlias

from tracecore.ottl import tree
from tracecore.ottl.planner.guards import quiet

#: Whether an expression matches the body; None where that is not known.
Answer: TypeAlias = Callable[[str], bool | None]


def reduced(condition: tree.Condition, answer: Answer) -> tree.Condition:
    """The condition without what is known; a literal where nothing else is left.

    Args:
        condition: in a log's context, of a log whose body is a string and whose attributes are a map.
        answer: what is known.
    """
    match condition:
        case tree.Call() if (pattern := tree.body_pattern(condition)) is not None:
            known = answer(pattern)
            return condition if known is None else tree.Literal(known, condition.offset)
        case tree.Not(operand, offset):
            inner = reduced(operand, answer)
            return tree.Literal(not inner.value, offset) if isinstance(inner, tree.Literal) else tree.Not(inner, offset)
        case tree.And():
            return _joined(condition, answer, until=False)
        case tree.Or():
            return _joined(condition, answer, until=True)
    return condition


def _joined(condition: tree.And | tree.Or, answer: Answer, *, until: bool) -> tree.Condition:
    left: list[tree.Condition] = []
    for operand in condition.operands:
        inner = reduced(operand, answer)
        if not isinstance(inner, tree.Literal):
            left.append(inner)
        elif bool(inner.value) is until:
            if all(map(quiet, left)):
                return inner
            left.append(operand)  # it is to be asked after one that may fail, as written
    if not left:
        return tree.Literal(not until, condition.offset)
    return left[0] if len(left) == 1 else type(condition)(tuple(left), condition.offset)


def questions(condition: tree.Condition, answer: Answer) -> Iterator[str]:
    """The expressions in a condition of which it is not known whether they match the body."""
    match condition:
        case tree.Call() if (pattern := tree.body_pattern(condition)) is not None:
            if answer(pattern) is None:
                yield pattern
        case tree.Not(operand):
            yield from questions(operand, answer)
        case tree.And(operands) | tree.Or(operands):
            for operand in operands:
                yield from questions(operand, answer)
