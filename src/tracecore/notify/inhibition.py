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


class Inhibition:
    """The rules, and the active incidents that are sources of one of them."""

    def __init__(self, active: Iterable[tuple[str, Labels]], rules: Sequence[InhibitRule]) -> None:
        """
        Args:
            active: ids and labels of all incidents that are not resolved.
        """
        known = [*active]
        self._rules = [(rule, _by_label(rule, known)) for rule in rules]

    def inhibitor(self, name: str, labels: Labels) -> str:
        """Name the active incident that inhibits this one; empty where none does.

        Args:
            name: the incident's id; it never inhibits itself.
        """
        for rule, sources in self._rules:
            if not all_match(rule.target_matchers, labels):
                continue
            is_source = all_match(rule.source_matchers, labels)
            for value in _values(rule, labels):
                for other, theirs in sources.get(value, ()):
                    if other == name or not _share(rule.equal, labels, theirs):
                        continue
                    # Two incidents that are source and target of one rule would inhibit each other.
                    if not (is_source and all_match(rule.target_matchers, theirs)):
                        return other
        return ""


def is_target(labels: Labels, rules: Iterable[InhibitRule]) -> bool:
    """Tell whether a rule could inhibit an incident."""
    return any(all_match(rule.target_matchers, labels) for rule in rules)


def _by_label(rule: InhibitRule, active: Iterable[tuple[str, Labels]]) -> dict[str, list[tuple[str, Labels]]]:
    """The sources of a rule by the values of its first `equal` label: a fleet can have thousands of them."""
    found: dict[str, list[tuple[str, Labels]]] = {}
    for name, labels in active:
        if all_match(rule.source_matchers, labels):
            for value in _values(rule, labels):
                found.setdefault(value, []).append((name, labels))
    return found


def _values(rule: InhibitRule, labels: Labels) -> Sequence[str]:
    return (rule.equal and labels.get(rule.equal[0])) or [""]


def _share(equal: Sequence[str], one: Labels, other: Labels) -> bool:
    if not equal:
        return True
    if not any(one.get(name) or other.get(name) for name in equal):
        return False
    return all(_same(one.get(name) or [], other.get(name) or []) for name in equal)


def _same(one: Sequence[str], other: Sequence[str]) -> bool:
    """Several values are the same where they have one in common."""
    return not (one or other) or bool(set(one) & set(other))
