"""Verdicts that were emitted, and what of them is new, has changed or no longer holds."""

from __future__ import annotations

from collections import OrderedDict
from operator import attrgetter
from typing import TYPE_CHECKING

from tracecore.engine.emission import Emission
from tracecore.engine.windows import Known

if TYPE_CHECKING:
    from collections.abc import Container, Iterator, Mapping, Sequence

    from tracecore.engine.bounds import Limits, Stats
    from tracecore.engine.windows import FactWindow
    from tracecore.patterns.contract import Key, Verdict
    from tracecore.signals.record import Source

#: Of a window of which nothing was said.
NOTHING: Mapping[str | Source, Known] = {}

_end = attrgetter("end")


class Conclusions:
    """What was said of each window, and the revisions of what has ended.

    Args:
        limits: of what has ended so many are remembered.
        stats: where it counts.
    """

    def __init__(self, limits: Limits, stats: Stats) -> None:
        self._limits = limits
        self._stats = stats
        self._past: OrderedDict[tuple[int, Key, str | Source], int] = OrderedDict()
        #: The places of patterns of which something has ended: of the others nothing is remembered.
        self._ended: set[int] = set()

    def compare(self, window: FactWindow, verdicts: Sequence[Verdict], settled: int, instant: int) -> list[Emission]:
        """What is new in the verdicts on a window.

        Args:
            settled: a verdict with evidence before this time is neither emitted, nor changed, nor taken back.
        """
        said: list[Emission] = []
        before: Mapping[str | Source, Known] = window.known or NOTHING
        known: dict[str | Source, Known] = {}
        rest = verdicts
        if told := window.said:
            number = len(told)
            if verdicts[:number] == told:
                # Mostly all that was said still holds, often as the same objects, and what is new comes after it.
                if number == len(verdicts):
                    return said
                before = known = window.known or known
                rest = verdicts[number:]
        if window.floor is not None:
            settled = max(settled, window.floor)
        # Nothing in the window is old enough to be settled: then no verdict on it is.
        fresh = window.oldest >= settled
        if len(rest) > 1:
            # Of several that say they are one episode the last counts, at every look alike.
            rest = list({verdict.episode: verdict for verdict in rest}.values())
        whole = True
        for verdict in rest:
            episode = verdict.episode
            standing = before.get(episode)
            if standing is None:
                if not fresh and _begin(verdict) < settled:
                    self._stats.beyond_horizon += 1
                    whole = False
                    continue
                revision = 1
                if window.shelf in self._ended:
                    revision += self._past.pop((window.shelf, window.key, episode), 0)
                standing = Known(verdict, revision)
                said.append(Emission(revision, "active", verdict, instant))
            elif standing.verdict is not verdict and standing.verdict != verdict:
                if (fresh or _begin(verdict) >= settled) and _begin(standing.verdict) >= settled:
                    last, standing.verdict = standing.verdict, verdict
                    if not _alike(last, verdict):
                        standing.revision += 1
                        said.append(Emission(standing.revision, "active", verdict, instant))
                else:
                    whole = False
            known[episode] = standing
        self._stats.emitted += len(said)
        if known is not before:
            if before:
                said += self._end(window, known, settled, instant)
            window.known = known or None
        window.said = verdicts if whole and len(known) == len(verdicts) else ()
        return said

    def _end(
        self, window: FactWindow, known: Container[str | Source], settled: int, instant: int
    ) -> Iterator[Emission]:
        """What was said of a window, and is not among what is known now."""
        for episode, standing in (window.known or NOTHING).items():
            if episode in known:
                continue
            if _begin(standing.verdict) >= settled:
                standing.revision += 1
                self._stats.cleared += 1
                yield Emission(standing.revision, "cleared", standing.verdict, instant)
            self._remember(window, episode, standing)

    def forget(self, window: FactWindow) -> None:
        """This window is no more; should an episode of it come back, its revision goes on."""
        for episode, standing in (window.known or NOTHING).items():
            self._remember(window, episode, standing)

    def _remember(self, window: FactWindow, episode: str | Source, standing: Known) -> None:
        self._ended.add(window.shelf)
        self._past[window.shelf, window.key, episode] = standing.revision
        if len(self._past) > self._limits.past:
            self._past.popitem(last=False)


def _alike(one: Verdict, other: Verdict) -> bool:
    """Whether two verdicts have the same document. Most differ in what is cheap to tell: prose comes last."""
    mine, its = one.fields(), other.fields()
    return (
        one.confidence == other.confidence
        and mine == its
        and repr(mine) == repr(its)
        and [fact.uid for fact in one.evidence()] == [fact.uid for fact in other.evidence()]
        and repr(one.document()) == repr(other.document())
    )


def _begin(verdict: Verdict) -> int:
    """The time of its oldest evidence."""
    return min(map(_end, verdict.evidence()), default=verdict.time)
