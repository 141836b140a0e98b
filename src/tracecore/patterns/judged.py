"""Verdicts that stand while only later facts come: a look goes on where the last one ended."""

from __future__ import annotations

from bisect import bisect_right
from operator import attrgetter
from typing import TYPE_CHECKING, Self, TypeVar

from tracecore.patterns.contract import NEVER

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracecore.facts.fact import Fact
    from tracecore.patterns.contract import Verdict, Window

    F = TypeVar("F", bound=Fact)

#: With fewer verdicts it costs less to judge all anew than to remember them.
MANY = 3

_time = attrgetter("time")


class Judged:
    """The verdicts on all facts up to an instant, for patterns in which no fact bears on what was before it.

    `until` is that instant; subclasses hold what else the next look needs to go on from there.
    """

    __slots__ = ("until", "verdicts")

    def __init__(self) -> None:
        self.until = NEVER
        self.verdicts: list[Verdict] = []

    @classmethod
    def resumed(cls, window: Window) -> Self:
        """What the last look left, where everything that is new in the window is later; else from the beginning."""
        kept: Self | None = window.kept
        stands = kept is not None and all(facts[0].time > kept.until for facts in window.new().values())
        return kept if kept is not None and stands else cls()

    def leave(self, window: Window) -> list[Verdict]:
        """The verdicts, which are left to the next look where they are many."""
        if len(self.verdicts) >= MANY or window.kept is not None:
            window.keep(self)
        return [*self.verdicts]

    def later(self, facts: Sequence[F]) -> Sequence[F]:
        """Those after `until`, of facts that are in order."""
        return facts if self.until == NEVER else facts[bisect_right(facts, self.until, key=_time) :]
