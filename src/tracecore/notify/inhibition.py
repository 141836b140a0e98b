"""Inhibition: incidents that say less than another one that is active are not told.

Alertmanager's semantics but for one trap: there, a rule whose `equal` labels are missing on both sides applies. Here
such a rule does not apply, since two incidents without a node have no node in common.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from tracecore.notify.matchers import Labels, all_match
from tracecore.store.records import Matcher


class InhibitRule(msgspec.Struct, kw_only=True):
    """One rule: while a source is active, targets that share the `equal` labels with it are not told."""

    source_matchers: list[Matcher]
    target_matchers: list[Matcher]
    equal: list[str] = []


def inhibitor(name: str, labels: Labels, active: Iterable[tuple[str, Labels]], rules: Sequence[InhibitRule]) -> str:
    """Name the active incident that inhibits this one; empty where none does.

    Args:
        name: the incident's id; it never inhibits itself.
        active: ids and labels of all incidents that are not resolved.
    """
    own = [rule for rule in rules if all_match(rule.target_matchers, labels)]
    if not own:
        return ""
    for other, theirs in active:
        if other == name:
            continue
        for rule in own:
            if not all_match(rule.source_matchers, theirs) or not _share(rule.equal, labels, theirs):
                continue
            # Two incidents that are source and target of one rule would inhibit each other.
            if all_match(rule.source_matchers, labels) and all_match(rule.target_matchers, theirs):
                continue
            return other
    return ""


def _share(equal: Sequence[str], one: Labels, other: Labels) -> bool:
    if not equal:
        return True
    if not any(one.get(name) or other.get(name) for name in equal):
        return False
    return all(_same(one.get(name) or [], other.get(name) or []) for name in equal)


def _same(one: Sequence[str], other: Sequence[str]) -> bool:
    """Several values are the same where they have one in common."""
    return not (one or other) or bool(set(one) & set(other))
