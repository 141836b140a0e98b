"""Emitted verdicts by window: what is new, what is revised and what is retracted."""

from __future__ import annotations

from collections import OrderedDict
from operator import attrgetter
from typing import TYPE_CHECKING

from tracecore.engine.emission import Emission
from tracecore.engine.window import Standing

if TYPE_CHECKING:
    from collections.abc import Container, Iterator, Mapping, Sequence

    from tracecore.engine.bounds import EngineLimits, EngineStats
    from tracecore.engine.window import FactWindow
    from tracecore.patterns.contract import Key, Verdict
    from tracecore.signals.record import Source

NOTHING: Mapping[str | Source, Standing] = {}

_end = attrgetter("end")


class Revisions:
    """Compares the verdicts on a window with those emitted before, and numbers what changed.

    Args:
        limits: bound how many ended episodes are remembered.
        stats: counters to keep.
    """

    def __init__(self, limits: EngineLimits, stats: EngineStats) -> None:
        self._limits = limits
        self._stats = stats
        #: The last revision of ended episodes: one that comes back goes on counting.
        self._ended: OrderedDict[tuple[int, Key, str | Source], int] = OrderedDict()

    def compare(self, window: FactWindow, verdicts: Sequence[Verdict], final: int, instant: int) -> list[Emission]:
        """Return emissions for the differences, and remember the verdicts as standing.

        Args:
            final: a verdict with evidence before this event time is neither emitted, nor revised, nor retracted.
        """
        if window.floor is not None:
            final = max(final, window.floor)
        before = window.standing or NOTHING
        after: dict[str | Source, Standing] = {}
        rest = verdicts
        if window.said and verdicts[: len(window.said)] == window.said:
            # Mostly all that was said still holds, and what is new comes after it.
            rest = verdicts[len(window.said) :]
            if not rest:
                return []
            after.update(before)
        # No verdict is final while the window holds no fact that is.
        fresh = window.oldest >= final
        out: list[Emission] = []
        unchanged = True
        # If several verdicts name one episode, the last counts.
        for verdict in {verdict.episode: verdict for verdict in rest}.values():
            standing = before.get(verdict.episode)
            changeable = fresh or _begin(verdict) >= final
            if standing is None:
                if not changeable:
                    self._stats.beyond_horizon += 1
                    unchanged = False
                    continue
                revision = 1 + self._ended.pop((window.pattern, window.key, verdict.episode), 0)
                standing = Standing(verdict, revision)
                out.append(Emission(revision, "active", verdict, instant))
            elif standing.verdict != verdict:
                if changeable and _begin(standing.verdict) >= final:
                    last, standing.verdict = standing.verdict, verdict
                    if not _alike(last, verdict):
                        standing.revision += 1
                        out.append(Emission(standing.revision, "active", verdict, instant))
                else:
                    unchanged = False
            after[verdict.episode] = standing
        self._stats.emitted += len(out)
        if before and rest is verdicts:  # otherwise all that was said still holds
            out += self._retract(window, after, final, instant)
        window.standing = after or None
        window.said = verdicts if unchanged and len(after) == len(verdicts) else ()
        return out

    def _retract(
        self, window: FactWindow, after: Container[str | Source], final: int, instant: int
    ) -> Iterator[Emission]:
        """Yield retractions of what no longer holds; a final verdict ends silently."""
        for episode, standing in (window.standing or NOTHING).items():
            if episode in after:
                continue
            if _begin(standing.verdict) >= final:
                standing.revision += 1
                self._stats.cleared += 1
                yield Emission(standing.revision, "cleared", standing.verdict, instant)
            self._remember(window, episode, standing)

    def forget(self, window: FactWindow) -> None:
        """Remember the revisions of a window that is dropped."""
        for episode, standing in (window.standing or NOTHING).items():
            self._remember(window, episode, standing)

    def _remember(self, window: FactWindow, episode: str | Source, standing: Standing) -> None:
        self._ended[window.pattern, window.key, episode] = standing.revision
        if len(self._ended) > self._limits.past:
            self._ended.popitem(last=False)


def _alike(one: Verdict, other: Verdict) -> bool:
    """Whether two verdicts have the same document and name the same suspects. Cheap comparisons come first."""
    mine, its = one.fields(), other.fields()
    return (
        one.confidence == other.confidence
        and mine == its
        and repr(mine) == repr(its)
        and [fact.uid for fact in one.evidence()] == [fact.uid for fact in other.evidence()]
        and one.suspects() == other.suspects()
        and repr(one.document()) == repr(other.document())
    )


def _begin(verdict: Verdict) -> int:
    """Return the time of the oldest evidence."""
    return min(map(_end, verdict.evidence()), default=verdict.time)
