"""Emissions: verdicts that are new, revised or retracted."""

from __future__ import annotations

from collections import OrderedDict
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from tracecore.patterns.contract import Verdict, rfc3339

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from tracecore.engine.bounds import EngineLimits, EngineStats
    from tracecore.engine.window import FactWindow
    from tracecore.patterns.contract import Key
    from tracecore.signals.record import Source

_end = attrgetter("end")


class Emission(msgspec.Struct, frozen=True, gc=False):
    """A verdict that is new, has changed, or no longer holds.

    An episode whose evidence grows old ends without an emission, because its last verdict stays true of its time.
    `cleared` means that the facts now contradict the verdict (the collective completed after all).

    Args:
        revision: 1 at first, and one more with each emission under this id.
        status: `active`, or `cleared`, which retracts the verdict.
        verdict: the current verdict; the last one if it is cleared.
        at: the engine's clock, in nanoseconds.
    """

    revision: int
    status: Literal["active", "cleared"]
    verdict: Verdict
    at: int

    @property
    def id(self) -> str:
        """Return the verdict's id: pattern, key and episode."""
        return self.verdict.id

    def document(self) -> dict[str, Any]:
        """Return the verdict's document with its id, revision and status."""
        return {
            "verdict.id": self.id,
            "verdict.revision": self.revision,
            "verdict.status": self.status,
            "verdict.time": rfc3339(self.verdict.time),
            "pattern.name": self.verdict.pattern_name,
            "role": self.verdict.role,
            **self.verdict.document(),
        }


def standing(emissions: Iterable[Emission]) -> list[Emission]:
    """Return the last emission of every id that was not retracted, in the order of first emissions."""
    last = {emission.id: emission for emission in emissions}
    return [emission for emission in last.values() if emission.status == "active"]


class Revisions:
    """Compares the verdicts on a window with those emitted before, and numbers the revisions.

    Args:
        limits: `past` limits the number of ended episodes that are remembered.
        stats: counters to update.
    """

    def __init__(self, limits: EngineLimits, stats: EngineStats) -> None:
        self._limits = limits
        self._stats = stats
        #: The last revision of ended episodes. If an episode comes back, its revisions go on from there.
        self._ended: OrderedDict[tuple[int, Key, str | Source], int] = OrderedDict()

    def compare(self, window: FactWindow, verdicts: Sequence[Verdict], final: int, instant: int) -> list[Emission]:
        """Return emissions for the differences, and remember the verdicts as standing.

        Args:
            final: a verdict with evidence before this event time is neither emitted, nor revised, nor retracted.
        """
        # Usually the earlier verdicts are unchanged, and new ones follow them.
        unchanged = verdicts[: len(window.verdicts)] == window.verdicts
        new = verdicts[len(window.verdicts) :] if unchanged else verdicts
        if unchanged and not new:
            return []
        final = max(final, window.floor)
        before = window.standing
        after = dict(before) if unchanged else {}
        out: list[Emission] = []
        # If several verdicts have the same episode, the last one counts.
        for verdict in {verdict.episode: verdict for verdict in new}.values():
            last = before.get(verdict.episode)
            if last is None:
                if _begin(verdict) < final:
                    self._stats.beyond_horizon += 1
                    continue
                revision = 1 + self._ended.pop((window.pattern, window.key, verdict.episode), 0)
                last = Emission(revision, "active", verdict, instant)
                out.append(last)
            elif last.verdict != verdict and min(_begin(last.verdict), _begin(verdict)) >= final:
                equal = _equal(last.verdict, verdict)
                last = Emission(last.revision + (not equal), "active", verdict, instant)
                if not equal:
                    out.append(last)
            after[verdict.episode] = last
        self._stats.emitted += len(out)
        for episode, last in () if unchanged else before.items():
            if episode not in after:
                if _begin(last.verdict) >= final:
                    last = Emission(last.revision + 1, "cleared", last.verdict, instant)
                    self._stats.cleared += 1
                    out.append(last)
                self._remember(window, episode, last)
        window.standing, window.verdicts = after, [*window.verdicts, *new] if unchanged else verdicts
        return out

    def forget(self, window: FactWindow) -> None:
        """Remember the revisions of the episodes of a window that is dropped."""
        for episode, last in window.standing.items():
            self._remember(window, episode, last)

    def _remember(self, window: FactWindow, episode: str | Source, last: Emission) -> None:
        self._ended[window.pattern, window.key, episode] = last.revision
        if len(self._ended) > self._limits.past:
            self._ended.popitem(last=False)


def _equal(one: Verdict, other: Verdict) -> bool:
    """Whether two verdicts have the same document and name the same suspects. Cheap comparisons come first."""
    return (
        one.fields() == other.fields()
        and [fact.uid for fact in one.evidence()] == [fact.uid for fact in other.evidence()]
        and one.suspects() == other.suspects()
        and repr(one.document()) == repr(other.document())
    )


def _begin(verdict: Verdict) -> int:
    """Return the time of the oldest evidence."""
    return min(map(_end, verdict.evidence()), default=verdict.time)
