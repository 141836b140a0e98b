"""A second look at lines in which only a word of a guard was found.

The scan of raw blocks searches for a word where a guard needs one: that is cheap, and as a rule the word is rare. In
some logs it is not: a warning on every step has it, and each such line would be parsed for nothing. So a line with a
word also has to match what the word's guards say as a whole, which is compiled the first time it is needed. Rulers are
looked at twice as well: one matters only where a table of failures begins below it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, TypeAlias

from tracecore.ottl.planner.database import Database, Search, compiled, search
from tracecore.signals.arrays import np

Array: TypeAlias = np.ndarray[tuple[int], np.dtype[np.intp]]
Keep: TypeAlias = Callable[[str, Callable[[], bytes]], bytes]

#: A line that ends with twenty of these; it is found once, however long it is.
RULERS: Final = tuple(rb'%b{20}[ \t]*(?:$|["\r\x1e])' % mark for mark in (rb"\x3d", rb"\x2a"))
#: The first line of torchelastic's table, which begins with a ruler, ends so.
TABLE: Final = b" FAILED"
#: Bytes of other lines that may stand in between.
REACH: Final = 1 << 14


class Doubts:
    """Check which finds of a scan hold. Except for rulers, the answer depends on the line alone.

    Args:
        searched: what the scan searches for.
        patterns: the guards it was made from.
        keep: gives what it is called with, made by the second argument the first time; for what is kept on disk.
    """

    def __init__(self, searched: Search, patterns: Sequence[str], keep: Keep | None = None) -> None:
        self._searched = searched
        self._patterns = patterns
        self._databases: dict[int, Database | None] = {}
        self._keep = keep

    def holding(self, text: bytes, ends: Array, lines: Array, entries: Array) -> Array:
        """The lines that are worth parsing, ascending.

        Args:
            text: what was scanned.
            ends: where its lines end.
            lines: the line of each find.
            entries: what was found there, as the place in the search.
        """
        found = [np.unique(self._held(int(entry), text, ends, lines[entries == entry])) for entry in np.unique(entries)]
        return np.unique(np.concatenate(found)) if found else lines

    def _held(self, entry: int, text: bytes, ends: Array, lines: Array) -> Array:
        """Those of the lines with one find that hold."""
        lines = np.unique(lines)
        if self._searched.entries[entry].expression in RULERS:
            return lines[_tables(text, lines_end(text, ends, lines))]
        if entry not in self._databases:
            self._databases[entry] = self._whole(entry)
        database = self._databases[entry]
        if database is None:
            return lines
        begins = np.append(-1, ends)[lines] + 1
        finals = lines_end(text, ends, lines)
        spans = map(slice, begins.tolist(), finals.tolist())
        matched: list[int] = []
        database.scan(b"\n".join(map(text.__getitem__, spans)), _collect, matched)
        borders = np.cumsum(finals - begins + 1)
        return lines[np.unique(np.searchsorted(borders, np.array(matched, np.intp)))]

    def _whole(self, entry: int) -> Database | None:
        """A database of the guards behind a word; None where nothing more than the word is known of one of them."""
        numbers = self._searched.entries[entry].patterns
        if not numbers:
            return None

        def make() -> bytes:
            wanted = search([self._patterns[number] for number in numbers], lines=True, literals=False)
            usable, database = compiled(wanted, once=False)
            return b"" if usable.open else database.dump()

        dumped = make() if self._keep is None else self._keep(str(entry), make)
        return Database((), once=False, serialised=dumped) if dumped else None


def lines_end(text: bytes, ends: Array, lines: Array) -> Array:
    """Where some lines end; the last one may have no terminator."""
    return np.append(ends, len(text))[lines]


def _tables(text: bytes, rulers: Array) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Whether a table may begin below rulers that end in some places; nobody knows what follows the text."""
    places = []
    at = text.find(TABLE)
    while at >= 0:
        places.append(at)
        at = text.find(TABLE, at + 1)
    following = np.append(np.array(places, np.intp), len(text))
    found: np.ndarray[tuple[int], np.dtype[np.bool_]] = following[np.searchsorted(following, rulers)] - rulers <= REACH
    return found


def _collect(number: int, start: int, end: int, flags: int, matched: list[int]) -> None:
    matched.append(end - 1)
