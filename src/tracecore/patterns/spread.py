"""The spread of many numbers: where they lie close together, none can stand out."""

from __future__ import annotations

from math import inf, log2
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

#: Marks on the scale of `bucket` between a number and its double.
FINENESS = 8


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


def bucket(number: float | None) -> float | None:
    """Return the place of a number on a scale of powers of two; infinity for one that has none, None for None.

    A window that keeps the places of its facts knows how far apart they can be without a look at each.
    """
    if number is None:
        return None
    return FINENESS * log2(number) // 1 if 0 < number < inf else inf


def close(buckets: Iterable[float | None], factor: float) -> bool:
    """Whether numbers from these buckets are certain to be less than `factor` times each other."""
    known = [place for place in buckets if place is not None]
    return not known or (max(known) - min(known) + 1) / FINENESS < log2(factor)
