"""The routing tree, as in Alertmanager: the first child that matches takes an incident, unless it says `continue`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import msgspec

from tracecore.notify.matchers import Labels, all_match
from tracecore.store.records import Matcher

SECOND: Final = 1_000_000_000
#: A group of every incident by itself.
EACH: Final = "..."


class Route(msgspec.Struct, kw_only=True):
    """One node of the routing tree; what a node does not say it has from its parent.

    Args:
        path: its place in the tree, `0.2.1`; names the groups that are kept.
        group_by: labels whose values make a group; `...` makes a group of every incident.
        group_wait: before the first message of a group.
        group_interval: before a message about further incidents of a group.
        repeat_interval: before a reminder.
        goes_on: later siblings are asked as well (`continue`).
        mute_time_intervals: names of times in which nothing is sent.
        active_time_intervals: names of times outside which nothing is sent.
    """

    path: str
    receiver: str
    group_by: list[str]
    group_wait: int
    group_interval: int
    repeat_interval: int
    matchers: list[Matcher] = []
    goes_on: bool = False
    mute_time_intervals: list[str] = []
    active_time_intervals: list[str] = []
    routes: list[Route] = []

    def group(self, labels: Labels) -> dict[str, str]:
        """The labels that make the group of an incident."""
        if EACH in self.group_by:
            return {"incident": ",".join(labels.get("incident", ()))}
        return {name: ",".join(sorted(labels.get(name, ()))) for name in sorted(self.group_by)}

    def walk(self) -> Iterator[Route]:
        """Yield this node and all below it."""
        yield self
        for child in self.routes:
            yield from child.walk()


def matching(route: Route, labels: Labels) -> list[Route]:
    """Find the routes that take an incident; empty where the root itself does not match."""
    if not all_match(route.matchers, labels):
        return []
    found: list[Route] = []
    for child in route.routes:
        below = matching(child, labels)
        found += below
        if below and not child.goes_on:
            break
    return found or [route]
