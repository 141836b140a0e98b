"""How far apart numbers of many facts lie: where they are close together, nothing among them can stand out."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable


class Spread:
    """The lowest and the highest of some numbers, and whether one of them is not a number."""

    __slots__ = ("high", "low", "odd")

    def __init__(self) -> None:
        self.low = float("inf")
        self.high = float("-inf")
        self.odd = False

    def add(self, numbers: Iterable[float | None]) -> None:
        """Take these numbers; None is none."""
        known = [number for number in numbers if number is not None]
        if known:
            self.low = min(self.low, *known)
            self.high = max(self.high, *known)
            # What is not a number compares with nothing and would hide the others; a sum shows it.
            total = sum(known)
            self.odd = self.odd or total != total

    def __bool__(self) -> bool:
        """Whether there were any."""
        return self.odd or self.low <= self.high
