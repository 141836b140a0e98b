"""Planned groups read from configurations: every statement is parsed, and its guard is found."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
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
    union,
)
from tracecore.ottl.planner.places import Place
from tracecore.ottl.planner.plan import PlannedGroup
from tracecore.ottl.processor import GroupSource, read_config


def read_groups(processors: Iterable[Mapping[str, Any]]) -> tuple[tuple[PlannedGroup, ...], tuple[str, ...], bool]:
    """Return the log groups of all processors, the patterns of their guards, and `Outline.local`.

    Raises:
        OttlError, ValueError: as `ottl.Processor` does.
    """
    numbers: dict[str, int] = {}
    groups: list[PlannedGroup] = []
    stamped: dict[Place, Guard] = {}
    local = True
    for number, config in enumerate(processors):
        for source in read_config(config):
            if source.signal == "logs":
                group, group_local = _planned_group(source, number, numbers, stamped)
                groups.append(group)
                local = local and group_local
    return tuple(groups), tuple(numbers), local


def _planned_group(
    source: GroupSource, processor: int, numbers: dict[str, int], stamped: dict[Place, Guard]
) -> tuple[PlannedGroup, bool]:
    """Return the group and whether it is local. Adds new patterns to `numbers` and the places it sets to `stamped`."""
    statements = [parse(text) for text in source.statements]
    conditions = [parse_condition(text) for text in source.conditions]
    if source.context:
        context = context_type(source.context.lower()).name
    else:
        context = infer_context([*statements, *conditions], SIGNALS["logs"])
    writes_body = context == "log" and any(map(changes_body, statements))
    guarded = context == "log" and not writes_body
    entry = fresh = None
    if guarded and conditions:
        entry = union([guard(condition) for condition in conditions])
        fresh = union([guard(condition, stamped) for condition in conditions])
        fresh = entry if fresh is None else fresh
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
        guard=_numbered(entry, numbers),
        guards=tuple(_numbered(statement_guard(node) if guarded else None, numbers) for node in statements),
        fresh=_numbered(fresh, numbers),
        effects=None if (setting := effects.guard()) is None or not guarded else tuple(sorted(setting)),
        changes_body=writes_body,
    )
    return group, context == "log" and not source.shared_cache and all(map(stays_inside, statements))


def _numbered(found: Guard, numbers: dict[str, int]) -> tuple[int, ...] | None:
    if found is None:
        return None
    return tuple(sorted(numbers.setdefault(pattern, len(numbers)) for pattern in found))
