"""Keep the log lines of facts, to show them with the facts."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import Final

#: Maximum number of lines of one fact, and of characters of a line.
MAX_LINES: Final = 8
MAX_LINE: Final = 1 << 10
#: Maximum number of characters of all lines. The oldest are dropped first.
MAX_KEPT: Final = 16 << 20


class Quotes:
    """Lines by the uid of a fact, in bounded memory."""

    def __init__(self, most: int = MAX_KEPT) -> None:
        self._most = most
        self._size = 0
        self._lines: OrderedDict[str, tuple[str, ...]] = OrderedDict()

    def keep(self, uid: str, lines: Sequence[str]) -> None:
        """Remember the lines of a fact."""
        self._size -= _size(self._lines.pop(uid, ()))
        kept = self._lines[uid] = tuple(line[:MAX_LINE] for line in lines[:MAX_LINES])
        self._size += _size(kept)
        while self._size > self._most:
            self._size -= _size(self._lines.popitem(last=False)[1])

    def of(self, uid: str) -> tuple[str, ...]:
        """Return the lines of a fact; empty if they are not known."""
        return self._lines.get(uid, ())


def lines_of(text: str) -> list[str]:
    """Split a text into lines: all of them, or the first and the last ones of a long text."""
    if len(text) > 2 * MAX_LINE * MAX_LINES:
        text = f"{text[:MAX_LINE]}\n{text[-MAX_LINE * MAX_LINES :]}"
    lines = text.splitlines()
    return lines if len(lines) <= MAX_LINES else [lines[0], *lines[1 - MAX_LINES :]]


def _size(lines: Sequence[str]) -> int:
    return sum(map(len, lines)) + 100
