"""The lines of a block, cut out only where somebody asks: of a block that is scanned, hardly any is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import overload

import numpy as np

Ends = np.ndarray[tuple[int], np.dtype[np.intp]]


class Starts(Sequence[int]):
    """Where lines begin; the last number is where the next will."""

    def __init__(self, ends: Ends) -> None:
        self._ends = ends

    def __len__(self) -> int:
        return len(self._ends) + 1

    @overload
    def __getitem__(self, place: int) -> int: ...

    @overload
    def __getitem__(self, place: slice) -> list[int]: ...

    def __getitem__(self, place: int | slice) -> int | list[int]:
        if isinstance(place, slice):
            return [self[n] for n in range(*place.indices(len(self)))]
        place = place + len(self) if place < 0 else place
        if not 0 <= place < len(self):
            raise IndexError(place)
        return int(self._ends[place - 1]) + 1 if place else 0


class Lines(Sequence[bytes]):
    """Lines without their ends."""

    def __init__(self, data: bytes, ends: Ends) -> None:
        self._data = data
        self._ends = ends
        self._returns = b"\r" in data

    def __len__(self) -> int:
        return len(self._ends)

    @overload
    def __getitem__(self, place: int) -> bytes: ...

    @overload
    def __getitem__(self, place: slice) -> list[bytes]: ...

    def __getitem__(self, place: int | slice) -> bytes | list[bytes]:
        if isinstance(place, slice):
            return [self[n] for n in range(*place.indices(len(self)))]
        place = place + len(self) if place < 0 else place
        if not 0 <= place < len(self):
            raise IndexError(place)
        line = self._data[int(self._ends[place - 1]) + 1 if place else 0 : int(self._ends[place])]
        return line[:-1] if self._returns and line.endswith(b"\r") else line


def lines(data: bytes) -> tuple[Lines, Starts]:
    """The whole lines of a block, and where they begin."""
    ends = np.flatnonzero(np.frombuffer(data, np.uint8) == 10)
    return Lines(data, ends), Starts(ends)


def longest(starts: Starts) -> int:
    """The length of the longest line, its end included."""
    ends = starts._ends
    return int(np.diff(ends, prepend=-1).max()) if len(ends) else 0
