"""Find the counters of silent data corruption that rose while a job ran."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from functools import cached_property
from itertools import accumulate
from operator import attrgetter
from typing import TYPE_CHECKING

from tracecore.facts.fact import order
from tracecore.patterns.scope import job_keys
from tracecore.patterns.timeline import ValueChanges, grouped

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracecore.facts.gpu import SdcCounter
    from tracecore.facts.training import EvalAccuracy
    from tracecore.patterns.contract import Key

_time = attrgetter("time")
_node = attrgetter("node")
_delta = attrgetter("delta")


class CorruptionCounters:
    """The counters of a window. A counter that names no job counts for any job that ran on its node.

    Args:
        counters: in order.
        skew: how far the clocks of two nodes may disagree.
    """

    def __init__(self, counters: Sequence[SdcCounter], skew: int) -> None:
        self._counters = counters
        self._skew = skew

    # Most evaluations do not know when their job began. Then none of these is needed.

    @cached_property
    def _jobless(self) -> Rises:
        return Rises([counter for counter in self._counters if of_any_job(counter)])

    @cached_property
    def _nodes(self) -> dict[str | None, Rises]:
        return {node: Rises(group) for node, group in grouped(self._jobless.counters, _node).items()}

    @cached_property
    def _jobs(self) -> dict[tuple[Key, ...], OfJob]:
        own = [counter for counter in self._counters if not of_any_job(counter)]
        return {job: OfJob(group) for job, group in grouped(own, job_keys).items()}

    def during(self, evaluation: EvalAccuracy, memory: int) -> tuple[SdcCounter | None, int, int]:
        """Return the first counter that rose while the job ran, the sum of all rises, and the clock tolerance if the
        first counts only because of it. A job without an end had not ended when it was evaluated."""
        if evaluation.job_start is None:
            return None, 0, 0
        node = evaluation.node
        earliest, latest = evaluation.time - memory, evaluation.time + memory
        begin, end = evaluation.job_start, evaluation.time if evaluation.job_end is None else evaluation.job_end
        if begin > end:
            return None, 0, 0  # the job ended before it began
        exact = max(begin, earliest), min(end, latest)
        own = self._jobs.get(job_keys(evaluation))
        near = [self._jobless] if node is None else [self._nodes.get(node), self._nodes.get(None)]
        found = [rises.between(*exact) for rises in (*near, None if own is None else own.all) if rises is not None]
        if own is not None and node is not None and self._skew:
            # Other nodes have other clocks.
            found += own.on_other_nodes(node, (max(begin - self._skew, earliest), exact[0] - 1))
            found += own.on_other_nodes(node, (exact[1] + 1, min(end + self._skew, latest)))
        first = min((counter for counter, _ in found if counter is not None), key=order, default=None)
        inside = first is None or exact[0] <= first.time <= exact[1]
        return first, sum(rises for _, rises in found), 0 if inside else self._skew


class Rises:
    """Counters in order, and the sum of rises up to each."""

    __slots__ = ("counters", "sums")

    def __init__(self, counters: Sequence[SdcCounter]) -> None:
        self.counters = counters
        self.sums = [0, *accumulate(map(_delta, counters))]

    def between(self, oldest: int, newest: int) -> tuple[SdcCounter | None, int]:
        """Return the first counter of this time, and the sum of all rises of this time."""
        begin, end = self.range(oldest, newest)
        return (self.counters[begin], self.sums[end] - self.sums[begin]) if begin < end else (None, 0)

    def range(self, oldest: int, newest: int) -> tuple[int, int]:
        """Return the range of indexes of the counters of this time."""
        return bisect_left(self.counters, oldest, key=_time), bisect_right(self.counters, newest, key=_time)


class OfJob:
    """The counters that name one job."""

    __slots__ = ("_changes", "_named", "_nodes", "all")

    def __init__(self, counters: Sequence[SdcCounter]) -> None:
        self.all = Rises(counters)
        self._named = Rises([counter for counter in counters if counter.node is not None])
        self._changes = ValueChanges(map(_node, self._named.counters))
        self._nodes = {node: Rises(group) for node, group in grouped(self._named.counters, _node).items()}

    def on_other_nodes(self, node: str, span: tuple[int, int]) -> list[tuple[SdcCounter | None, int]]:
        """Return the first counter of other nodes at this time with the sum of their rises, or an empty list."""
        begin, end = self._named.range(*span)
        named = self._named.counters
        first = self._changes.after(begin) if begin < end and named[begin].node == node else begin
        if first is None or first >= end:
            return []
        here = self._nodes[node].between(*span)[1] if node in self._nodes else 0
        return [(named[first], self._named.between(*span)[1] - here)]


def of_any_job(counter: SdcCounter) -> bool:
    """Return whether a counter names neither a job nor a pod."""
    return not counter.job and not counter.pod
