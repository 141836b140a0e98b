"""A second scan for lines in which the first scan found only a literal of a guard.

For a guard such as `check-point \\d+ is corrupt` the first scan of a raw block searches only for `check-point`, because
literals are cheap to find and usually rare. In some logs the literal is on every line, and parsing all these lines
would be a waste. A line found by a literal is therefore a *doubt*: it must also match one of the whole guards that
require the literal. A database of these guards is compiled when the literal is first found.
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
    """Confirms lines that a scan found. The answer depends on the line alone.

    Args:
        searched: what the scan searches for.
        patterns: the guards it was made from.
        keep: a cache on disk; `keep(name, make)` returns the stored bytes, or stores and returns those of `make`.
    """

    def __init__(self, searched: Search, patterns: Sequence[str], keep: Keep | None = None) -> None:
        self._searched = searched
        self._patterns = patterns
        self._databases: dict[int, ScanDatabase | None] = {}
        self._keep = keep

    def confirmed(self, text: bytes, ends: Array, lines: Array, entries: Array) -> Array:
        """Return the numbers of the lines that are worth parsing, ascending.

        Args:
            text: the scanned text.
            ends: where its lines end.
            lines: the line of each match.
            entries: the entry of the search that matched there.
        """
        confirmed = np.zeros(len(ends) + 1, np.bool_)
        doubted: list[tuple[ScanDatabase, Array]] = []
        for entry in distinct(entries).tolist():
            matched = lines[entries == entry]
            database = self._database(entry)
            if database is None:
                confirmed[matched] = True
            else:
                doubted.append((database, matched))
        for database, matched in doubted:
            if len(unsure := distinct(matched[~confirmed[matched]])):
                confirmed[_matching(database, text, ends, unsure)] = True
        return np.flatnonzero(confirmed)

    def _database(self, entry: int) -> ScanDatabase | None:
        """Return the database that a line found by this entry must match, too; None if it is confirmed already."""
        if entry not in self._databases:
            self._databases[entry] = self._compile(entry)
        return self._databases[entry]

    def _compile(self, entry: int) -> ScanDatabase | None:
        """Compile the whole guards behind a literal; None if one of them cannot be searched for as a whole."""
        numbers = self._searched.entries[entry].patterns
        if not numbers or not is_literal(self._searched.entries[entry].expression):
            return None

        def make() -> bytes:
            wanted = search([self._patterns[number] for number in numbers], lines=True, literals=False)
            usable, database = compiled(wanted, once=False)
            return b"" if usable.open else database.dump()

        dumped = make() if self._keep is None else self._keep(str(entry), make)
        return ScanDatabase((), once=False, serialised=dumped) if dumped else None


def ends_of(text: bytes, ends: Array, lines: Array) -> Array:
    """Return where the lines with these numbers end; the last line may have no newline."""
    return np.append(ends, len(text))[lines]


def joined(text: bytes, begins: Array, stops: Array) -> bytes:
    """Return the slices `text[begin:stop]`, joined with newlines."""
    if c_part.part is not None:
        return c_part.part.joined(text, begins, stops)
    return b"\n".join(map(text.__getitem__, map(slice, begins.tolist(), stops.tolist())))


def _matching(database: ScanDatabase, text: bytes, ends: Array, lines: Array) -> Array:
    """Return which of these lines the database matches."""
    begins, stops = np.append(-1, ends)[lines] + 1, ends_of(text, ends, lines)
    matched: list[int] = []
    database.scan(joined(text, begins, stops), _collect, matched)
    joined_ends = np.cumsum(stops - begins + 1) - 1
    return lines[distinct(np.searchsorted(joined_ends, np.array(matched, np.intp)))]


def _collect(number: int, start: int, end: int, flags: int, matched: list[int]) -> None:
    matched.append(end - 1)
