"""Grouping and rate limits for what a detector tells, in Alertmanager's words.

A log can be made to show a new failure on every line. Of each group (a pattern, a namespace, a job) only so many
verdicts leave in an interval; the others wait in their latest revision, leave when there is room, and are summed up in
one record at the end of the interval.
"""

from __future__ import annotations

import logging
from collections import Counter, OrderedDict
from collections.abc import Iterable, Iterator
from typing import Annotated, Any, Final

import msgspec

from tracecore.agent.options import SECOND, Interval
from tracecore.agent.printing import visible
from tracecore.agent.processors.patterndetector.verdicts import HELD_BACK, entities_of
from tracecore.agent.telemetry import Meter
from tracecore.engine.emission import Emission

log = logging.getLogger("tracecore.agent.patterndetector")

#: Verdicts that wait for room; the oldest of more are dropped and counted.
WAITING: Final = 1_000
#: Groups that are told apart in one interval.
GROUPS: Final = 1_000
_PATTERN: Final = "pattern.name"

Positive = Annotated[int, msgspec.Meta(ge=1)]


class Grouping(msgspec.Struct, frozen=True, kw_only=True):
    """
    Args:
        group_by: attributes whose verdicts are one group.
        group_interval: how long counts last.
        max_per_group: verdicts and revisions of one group that leave in an interval.
        max_total: the same of all groups.
    """

    group_by: tuple[str, ...] = (_PATTERN, "k8s.namespace.name", "gen_ai.training.job_id")
    group_interval: Interval = 60 * SECOND
    max_per_group: Positive = 20
    max_total: Positive = 100

    def check(self) -> Iterator[tuple[tuple[str | int, ...], str]]:
        if self.max_total < self.max_per_group:
            yield ("max_total",), "may not be less than max_per_group"


class HeldBackVerdicts(msgspec.Struct, frozen=True):
    """The verdicts held back in an interval.

    Args:
        count: verdicts and revisions.
        groups: how many of each group, the largest first.
        since: when the interval began.
        at: when it ended.
    """

    count: int
    groups: tuple[tuple[str, int], ...]
    since: int
    at: int

    @property
    def headline(self) -> str:
        shown = ", ".join(f"{count:,} of {name}" for name, count in self.groups[:3])
        more = f" and {len(self.groups) - 3:,} more groups" if len(self.groups) > 3 else ""
        what = "1 verdict was" if self.count == 1 else f"{self.count:,} verdicts were"
        return f"{what} held back in {(self.at - self.since) / SECOND:.0f} s: {shown}{more}"


class VerdictGroups:
    """Lets some verdicts pass, and keeps count of the others.

    Args:
        settings: how many.
        id: of the processor.
        meter: where it counts.
    """

    def __init__(self, settings: Grouping, id: str, meter: Meter) -> None:
        self._settings = settings
        self._id = id
        self._meter = meter
        self._since = 0
        self._total = 0
        self._counts: Counter[str] = Counter()
        self._held: Counter[str] = Counter()
        self._waiting: OrderedDict[str, Emission] = OrderedDict()
        meter.declare(dropped=(HELD_BACK,), events=(HELD_BACK,))

    def take(
        self, said: Iterable[Emission], now: int, *, last: bool = False
    ) -> tuple[list[Emission], HeldBackVerdicts | None]:
        """Return what leaves now, and at the end of an interval what was held back.

        Args:
            last: the agent stops.
        """
        summary = None
        over = now - self._since >= self._settings.group_interval or now < self._since
        if over or last:
            if self._held:
                groups = tuple((visible(name), count) for name, count in self._held.most_common())
                summary = HeldBackVerdicts(self._held.total(), groups, self._since, now)
                log.warning("%s: %s", self._id, summary.headline)
            self._held.clear()
        if over:
            self._since, self._total = now, 0
            self._counts.clear()
            waiting, self._waiting = self._waiting, OrderedDict()
            said = [*waiting.values(), *said]
        return [emission for emission in said if self._passes(emission)], summary

    def _passes(self, emission: Emission) -> bool:
        waited = self._waiting.pop(emission.id, None)
        if waited is not None and waited.revision == 1 and emission.status == "cleared":
            return False  # nobody heard of it
        group = self._group(emission)
        if self._counts[group] < self._settings.max_per_group and self._total < self._settings.max_total:
            self._counts[group] += 1
            self._total += 1
            return True
        self._held[group if group in self._held or len(self._held) < GROUPS else "other groups"] += 1
        self._meter.note(HELD_BACK)
        self._waiting[emission.id] = emission
        if len(self._waiting) > WAITING:
            self._waiting.popitem(last=False)
            self._meter.drop(HELD_BACK, 1)
        return False

    def _group(self, emission: Emission) -> str:
        whose: dict[str, Any] = {_PATTERN: emission.verdict.pattern_name, **entities_of(emission)}
        found = [str(whose[name]) for name in self._settings.group_by if whose.get(name)]
        group = " ".join(found)[:200]
        return group if group in self._counts or len(self._counts) < GROUPS else "other groups"
