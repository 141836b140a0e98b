"""The lines of a block, cut out only where somebody asks: of a block that is scanned, hardly any is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import overload

from tracecore.signals.arrays import np

Ends = np.ndarray[tuple[int], np.dtype[np.int64]]


class Lines(Sequence[bytes]):
    """Whole lines of a block, without their ends."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self._ends: Ends | None = None

    @property
    def ends(self) -> Ends:
        """Return where the newlines are; whoever knows may say so."""
        if self._ends is None:
            self._ends = np.flatnonzero(np.frombuffer(self.data, np.uint8) == 10)
        return self._ends

    @ends.setter
    def ends(self, known: Ends) -> None:
        # To count them costs as much as to look for them; that the last one is there is seen at once.
        if self.data.rfind(b"\n") == (known[-1] if len(known) else -1):
            self._ends = known

    def __bool__(self) -> bool:
        return b"\n" in self.data

    def __len__(self) -> int:
        return len(self.ends)

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
        line = self.data[int(self.ends[place - 1]) + 1 if place else 0 : int(self.ends[place])]
        return line[:-1] if line.endswith(b"\r") else line


class Starts(Sequence[int]):
    """Where lines begin; the last number is where the next will."""

    def __init__(self, lines: Lines) -> None:
        self._lines = lines

    def __len__(self) -> int:
        return len(self._lines) + 1

    @overload
    def __getitem__(self, place: int) -> int: ...

    @overload
    def __getitem__(self, place: slice) -> list[int]: ...

    def __getitem__(self, place: int | slice) -> int | list[int]:
        if isinstance(place, slice):
            return [self[n] for n in range(*place.indices(len(self)))]
        if place == -1:
            return self._lines.data.rfind(b"\n") + 1
        place = place + len(self) if place < 0 else place
        if not 0 <= place < len(self):
            raise IndexError(place)
        return int(self._lines.ends[place - 1]) + 1 if place else 0

    def holding(self, position: int) -> int:
        """The number of the line that holds this place."""
        return int(np.searchsorted(self._lines.ends, position))


def lines(data: bytes) -> tuple[Lines, Starts]:
    """The whole lines of a block, and where they begin."""
    found = Lines(data)
    return found, Starts(found)
