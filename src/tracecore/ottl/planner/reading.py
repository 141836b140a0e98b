"""From configurations to planned groups: parses every statement and finds its guards."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tracecore.ottl.contexts import context_type
from tracecore.ottl.inference import SIGNALS, infer_context
from tracecore.ottl.parser import parse, parse_condition
from tracecore.ottl.planner.guards import (
    Effects,
    Guard,
    changes_body,
    guard,
    only_removes,
    statement_guard,
    stays_inside,
)
from tracecore.ottl.planner.places import Place
from tracecore.ottl.planner.plan import PlannedGroup
from tracecore.ottl.processor import GroupSource, read_config


def read_groups(processors: Iterable[Mapping[str, Any]]) -> tuple[tuple[PlannedGroup, ...], tuple[str, ...], bool]:
    """The log groups of all processors, the patterns that guard them, and whether records stay by themselves.

    Raises:
        OttlError, ValueError: as `ottl.Processor` does.
    """
    numbers: dict[str, int] = {}
    groups: list[PlannedGroup] = []
    stamped: dict[Place, Guard] = {}
    local = True
    for place, config in enumerate(processors):
        for source in read_config(config):
            if source.signal == "logs":
                group, alone = _planned(source, place, numbers, stamped)
                groups.append(group)
                local = local and alone
    return tuple(groups), tuple(numbers), local


def _planned(
    source: GroupSource, processor: int, numbers: dict[str, int], stamped: dict[Place, Guard]
) -> tuple[PlannedGroup, bool]:
    statements = [parse(text) for text in source.statements]
    conditions = [parse_condition(text) for text in source.conditions]
    if source.context:
        context = context_type(source.context.lower()).name
    else:
        context = infer_context([*statements, *conditions], SIGNALS["logs"])
    writes = context == "log" and any(map(changes_body, statements))
    guarded = context == "log" and not writes
    whole = _entered([guard(condition) for condition in conditions]) if guarded else None
    own = [statement_guard(node) if guarded else None for node in statements]
    fresh = _entered([guard(condition, stamped) for condition in conditions]) if guarded else None
    fresh = whole if fresh is None else fresh
    if guarded and all(map(only_removes, statements)):
        fresh = frozenset()
    effects = Effects(stamped)
    for node in statements:
        if not only_removes(node):
            effects.add(node, fresh if guarded else None)
    stamped.update((place, found) for place, found in effects.stamped.items() if place[0] == "attributes")
    group = PlannedGroup(
        processor=processor,
        context=context,
        statements=source.statements,
        conditions=source.conditions,
        qualified=not source.context,
        error_mode=source.error_mode,
        shared_cache=source.shared_cache,
        guard=_numbered(whole, numbers),
        guards=tuple(_numbered(found, numbers) for found in own),
        fresh=_numbered(fresh, numbers),
        effects=None if (visible := effects.whole()) is None or not guarded else tuple(sorted(visible)),
        changes_body=writes,
    )
    alone = context == "log" and not source.shared_cache and all(map(stays_inside, statements))
    return group, alone


def _entered(guards: Sequence[Guard]) -> Guard:
    """The guard of a group that is entered where one of some conditions holds."""
    known = [found for found in guards if found is not None]
    return frozenset[str]().union(*known) if known and len(known) == len(guards) else None


def _numbered(found: Guard, numbers: dict[str, int]) -> tuple[int, ...] | None:
    if found is None:
        return None
    return tuple(sorted(numbers.setdefault(pattern, len(numbers)) for pattern in found))
