"""Kinds of lines that can say nothing, whatever their numbers are: they are not scanned again.

Lines are of one kind if they differ in their digits and the letters a to f only, so one key stands for all of them. A
guard that matches a line also matches what is left of the line, if the same bytes are left out of the guard
(`widening.without`). So where no such guard matches, none can match any line of the kind. This is asked of a kind when
it comes again: of prose, most kinds come once.
"""

from __future__ import annotations

from typing import Final

from tracecore.ottl.planner.database import ScanDatabase
from tracecore.recipes.columns import Array, Lines
from tracecore.recipes.known_shapes import Keys
from tracecore.recipes.shapes import UNKNOWN, VARYING
from tracecore.signals.arrays import distinct, np

#: What lines of a kind may say.
EVENT: Final = 1
PROGRESS: Final = 2


class Kinds:
    """A memory of the kinds of lines of some streams. Not for two threads at a time.

    Args:
        events: the database of guards of events for what is left of lines; None where every line may be one.
        progress: the same for progress.
    """

    def __init__(self, events: ScanDatabase | None, progress: ScanDatabase | None) -> None:
        self._databases = (EVENT, events), (PROGRESS, progress)
        self._seen, self._known = Keys(), Keys()

    def says(self, said: Lines, keys: Array) -> Array:
        """Return what each of some lines may say; of kinds that came before, it is known the next time.

        Args:
            said: the lines.
            keys: of each.
        """
        found = self._known.find(keys)
        new = np.flatnonzero(found == UNKNOWN)
        found[new] = EVENT | PROGRESS
        again = new[self._seen.find(keys[new]) != UNKNOWN]
        self._seen.add(keys[new], EVENT | PROGRESS)
        if len(again):
            self._learn(said, again[np.unique(keys[again], return_index=True)[1]], keys)
        return found

    def _learn(self, said: Lines, which: Array, keys: Array) -> None:
        left = Lines(said.some(which).marked.translate(None, VARYING))
        says = np.zeros(len(which), np.int64)
        for answer, database in self._databases:
            says[slice(None) if database is None else matching(database, left)] |= answer
        self._known.add(keys[which], says)


def matching(database: ScanDatabase, lines: Lines) -> Array:
    """Return the numbers of the lines in which something is found."""
    matched: list[int] = []
    database.scan(lines.marked, _collect, matched)
    found: Array = distinct(np.searchsorted(lines.ends, np.array(matched, np.int64)))
    return found


def _collect(number: int, start: int, end: int, flags: int, matched: list[int]) -> None:
    matched.append(end - 1)
