"""Emissions: verdicts that are new, revised or retracted."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import msgspec

from tracecore.patterns.contract import Verdict, rfc3339

if TYPE_CHECKING:
    from collections.abc import Iterable

Status: TypeAlias = Literal["active", "cleared"]


class Emission(msgspec.Struct, frozen=True, gc=False):
    """A verdict that is new, has changed, or no longer holds.

    An episode whose evidence merely grows old ends in silence: what it said stays true of its time. `cleared` means
    that the facts now say otherwise (the collective completed after all).

    Args:
        revision: 1 at first; one more whenever something new is said under this id.
        status: `active`, or `cleared`, which takes the verdict back.
        verdict: as it is now, or, when cleared, as it last was.
        at: the engine's clock, in nanoseconds.
    """

    revision: int
    status: Status
    verdict: Verdict
    at: int

    @property
    def id(self) -> str:
        """The verdict's id: pattern, key and episode."""
        return self.verdict.id

    def document(self) -> dict[str, Any]:
        """The verdict's document with what the engine knows about it."""
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
    last: dict[str, Emission] = {}
    for emission in emissions:
        last[emission.id] = emission
    return [emission for emission in last.values() if emission.status == "active"]
