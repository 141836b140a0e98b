"""The spread of many numbers: where they lie close together, none can stand out."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection


class Spread:
    """The lowest and the highest of some numbers, and whether one of them is not a number."""

    __slots__ = ("high", "low", "odd")

    def __init__(self, numbers: Collection[float]) -> None:
        self.low = min(numbers, default=float("inf"))
        self.high = max(numbers, default=float("-inf"))
        # A value that is not a number compares with nothing and would hide the others; the sum shows it.
        total = sum(numbers)
        self.odd = total != total

    def __bool__(self) -> bool:
        """Whether there were any."""
        return self.odd or self.low <= self.high
