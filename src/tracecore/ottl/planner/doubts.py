"""A second look at lines in which only a word of a guard was found.

The scan of raw blocks searches for a word where a guard needs one: that is cheap, and as a rule the word is rare. In
some logs it is not: a warning on every step has it, and each such line would be parsed for nothing. So a line with a
word also has to match what the word's guards say as a whole, which is compiled the first time it is needed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TypeAlias

from tracecore.ottl.planner.database import Database, Search, compiled, search

Keep: TypeAlias = Callable[[str, Callable[[], bytes]], bytes]


class Doubts:
    """Which finds of a scan hold: an answer depends on the line alone.

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

    def holding(self, text: bytes, ends: Sequence[int], entries: Sequence[int]) -> list[int]:
        """Those of the finds that are worth parsing their line.

        Args:
            text: what was scanned.
            ends: the last byte of each find.
            entries: what was found, as the place in the search.
        """
        found: list[int] = []
        for entry, places in _grouped(ends, entries).items():
            if entry not in self._databases:
                self._databases[entry] = self._whole(entry)
            database = self._databases[entry]
            if database is None:
                found += places
                continue
            lines = _lines_at(text, places)
            # As a rule none of them holds, and then one look says so.
            if len(lines) == 1 or _matches(database, b"\n".join(lines)):
                found += [end for end, line in zip(places, lines, strict=True) if _matches(database, line)]
        return found

    def _whole(self, entry: int) -> Database | None:
        """A database of the guards behind a word; None where nothing more than the word is known of one of them."""
        numbers = self._searched.entries[entry].patterns
        if not numbers:
            return None

        def make() -> bytes:
            wanted = search([self._patterns[number] for number in numbers], lines=True, literals=False)
            usable, database = compiled(wanted, once=True)
            return b"" if usable.open else database.dump()

        dumped = make() if self._keep is None else self._keep(str(entry), make)
        return Database((), once=True, serialised=dumped) if dumped else None


def _grouped(ends: Sequence[int], entries: Sequence[int]) -> dict[int, Sequence[int]]:
    kinds = set(entries)
    if len(kinds) == 1:
        return {entries[0]: ends}
    groups: dict[int, list[int]] = {kind: [] for kind in kinds}
    for end, entry in zip(ends, entries, strict=True):
        groups[entry].append(end)
    return dict(groups)


def line_at(text: bytes, place: int) -> bytes:
    """The line that a place is in."""
    return _lines_at(text, (place,))[0]


def _lines_at(text: bytes, places: Iterable[int]) -> list[bytes]:
    before, after, size = text.rfind, text.find, len(text)
    # The last line may have no newline: then -1 is found, which is the size of the text but for whole turns.
    return [text[before(b"\n", 0, place) + 1 : after(b"\n", place) % (size + 1)] for place in places]


def _matches(database: Database, text: bytes) -> bool:
    matched: list[int] = []
    database.scan(text, _collect, matched)
    return bool(matched)


def _collect(number: int, start: int, end: int, flags: int, matched: list[int]) -> bool:
    matched.append(number)
    return True
