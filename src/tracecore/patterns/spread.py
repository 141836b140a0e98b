"""The spread of many numbers. If they are close together, none of them stands out."""

from __future__ import annotations

from math import inf, log2
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

#: Number of buckets between a number and its double.
FINENESS = 8


class Spread:
    """The lowest and highest of some numbers; `odd` says whether one of them is NaN."""

    __slots__ = ("high", "low", "odd")

    def __init__(self, numbers: Collection[float]) -> None:
        self.low = min(numbers, default=float("inf"))
        self.high = max(numbers, default=float("-inf"))
        # NaN compares with nothing and may hide the other numbers, but the sum shows it.
        total = sum(numbers)
        self.odd = total != total

    def __bool__(self) -> bool:
        """Return whether there were any numbers."""
        return self.odd or self.low <= self.high


def bucket(number: float | None) -> float | None:
    """Return the bucket of a number on a logarithmic scale; infinity if the number is not positive and finite.

    A window that keeps the distinct buckets of its facts can tell how far apart the numbers are without reading each.
    """
    if number is None:
        return None
    return FINENESS * log2(number) // 1 if 0 < number < inf else inf


def close(buckets: Iterable[float | None], factor: float) -> bool:
    """Return whether numbers from these buckets are certainly less than `factor` times each other."""
    known = [place for place in buckets if place is not None]
    return not known or (max(known) - min(known) + 1) / FINENESS < log2(factor)
