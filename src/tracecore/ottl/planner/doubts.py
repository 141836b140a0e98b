"""A second look at lines in which only a word of a guard was found.

The scan of raw blocks searches for a word where a guard needs one: that is cheap, and as a rule the word is rare. In
some logs it is not: a warning on every step has it, and each such line would be parsed for nothing. So a line with a
word also has to match what the word's guards say as a whole, which is compiled the first time it is needed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

from tracecore.ottl.planner.database import ScanDatabase, Search, compiled, is_literal, search
from tracecore.signals import compiled as c_part
from tracecore.signals.arrays import distinct, np

Array: TypeAlias = np.ndarray[tuple[int], np.dtype[np.intp]]
Keep: TypeAlias = Callable[[str, Callable[[], bytes]], bytes]


class Doubts:
    """Check which finds of a scan hold. The answer depends on the line alone.

    Args:
        searched: what the scan searches for.
        patterns: the guards it was made from.
        keep: gives what it is called with, made by the second argument the first time; for what is kept on disk.
    """

    def __init__(self, searched: Search, patterns: Sequence[str], keep: Keep | None = None) -> None:
        self._searched = searched
        self._patterns = patterns
        self._databases: dict[int, ScanDatabase | None] = {}
        self._keep = keep

    def holding(self, text: bytes, ends: Array, lines: Array, entries: Array) -> Array:
        """The lines that are worth parsing, ascending.

        Args:
            text: what was scanned.
            ends: where its lines end.
            lines: the line of each find.
            entries: what was found there, as the place in the search.
        """
        holds = np.zeros(len(ends) + 1, np.bool_)
        doubted: list[tuple[ScanDatabase, Array]] = []
        for entry in distinct(entries).tolist():
            where = lines[entries == entry]
            database = self._database(entry)
            if database is None:
                holds[where] = True
            else:
                doubted.append((database, where))
        for database, where in doubted:
            if len(asked := distinct(where[~holds[where]])):
                holds[_matching(database, text, ends, asked)] = True
        return np.flatnonzero(holds)

    def _database(self, entry: int) -> ScanDatabase | None:
        """Return what a line with a find has to match as well; None for nothing."""
        if entry not in self._databases:
            self._databases[entry] = self._whole(entry)
        return self._databases[entry]

    def _whole(self, entry: int) -> ScanDatabase | None:
        """A database of the guards behind a word; None where nothing more is known of one of them."""
        numbers = self._searched.entries[entry].patterns
        if not numbers or not is_literal(self._searched.entries[entry].expression):
            return None

        def make() -> bytes:
            wanted = search([self._patterns[number] for number in numbers], lines=True, literals=False)
            usable, database = compiled(wanted, once=False)
            return b"" if usable.open else database.dump()

        dumped = make() if self._keep is None else self._keep(str(entry), make)
        return ScanDatabase((), once=False, serialised=dumped) if dumped else None


def lines_end(text: bytes, ends: Array, lines: Array) -> Array:
    """Where some lines end; the last one may have no terminator."""
    return np.append(ends, len(text))[lines]


def joined(text: bytes, begins: Array, finals: Array) -> bytes:
    """Stretches of a text as lines."""
    if c_part.part is not None:
        return c_part.part.joined(text, begins, finals)
    return b"\n".join(map(text.__getitem__, map(slice, begins.tolist(), finals.tolist())))


def some_lines(text: bytes, ends: Array, lines: Array) -> tuple[bytes, Array]:
    """Some lines of a text, and where they end."""
    begins, finals = np.append(-1, ends)[lines] + 1, lines_end(text, ends, lines)
    return joined(text, begins, finals), np.cumsum(finals - begins + 1) - 1


def _matching(database: ScanDatabase, text: bytes, ends: Array, lines: Array) -> Array:
    """Return those of some lines in which something is found."""
    matched: list[int] = []
    some, borders = some_lines(text, ends, lines)
    database.scan(some, _collect, matched)
    return lines[distinct(np.searchsorted(borders, np.array(matched, np.intp)))]


def _collect(number: int, start: int, end: int, flags: int, matched: list[int]) -> None:
    matched.append(end - 1)
