"""The progress lines of a stream: their shapes are learned as it goes, and then they are read by the block."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from tracecore.ottl.planner.database import Database
from tracecore.recipes.columns import Array, Lines, Reader, Starts, aside
from tracecore.recipes.templates import DIGITS, Ask, Lessons, Template
from tracecore.signals.arrays import np

#: Templates in use, and lines that may be learned from in one block and in one stream.
MAX_READERS: Final = 64
MAX_LEARNED: Final = 16
MAX_LESSONS: Final = 512
#: So many lines of an unknown shape are worth a template; and of how many they are counted first.
WORTH: Final = 24
PEEK: Final = 256


class Readers:
    """Reads the progress lines of a stream, and learns from those that it cannot read yet.

    Args:
        progress: the database of their guards.
        ask: what recipes and reader make of one line.
        lessons: what was learned from other streams of this format.
        form: of the stream: `text`, or one of container runtimes, `cri` and `docker`.
        kind: gives a kind of line its number.
        starts: finds lines.
        most: lines that may be learned from.
    """

    def __init__(
        self,
        progress: Database,
        ask: Ask,
        lessons: Lessons,
        form: str,
        kind: Callable[[Template], int],
        starts: Starts,
        most: int = MAX_LESSONS,
    ) -> None:
        self._progress = progress
        self._ask = ask
        self._lessons = lessons
        self._form = form
        self._kind = kind
        self._starts = starts
        self._most_learned = most
        self._learned = 0
        self._readers: list[Reader] = []
        #: Shapes that were tried in vain.
        self._hopeless: set[bytes] = set()

    def __bool__(self) -> bool:
        return bool(self._readers)

    def read(self, block: bytes, text: bytes, starts: Array) -> tuple[list[tuple[bool, Lines]], list[int]]:
        """Progress lines that were read and whether they have a time, and numbers of those that could not be.

        Args:
            block: some lines.
            text: the same without terminal codes and escapes.
            starts: where the lines of the block begin.
        """
        claimed: list[tuple[bool, Lines]] = []
        left: Array | None = None
        plain_starts = starts if text is block else self._starts(text)
        for reader in tuple(self._readers):
            if left is None or len(left):
                left = self._claim(reader, block, starts, left, claimed)
        lessons = MAX_LEARNED
        if left is None:
            left = np.arange(len(starts) - 1)
        # A look at the first of them saves searching all that a template will explain.
        while len(left) > (PEEK if self._readers else 0) and lessons > 0:
            lessons -= 1
            first = self._progress_lines(text, plain_starts, left[:PEEK])
            learned = self._learn(block, starts, first) if len(first) >= WORTH or not self._readers else None
            if learned is None:
                break
            left = self._claim(learned, block, starts, left, claimed)
        unknown = self._progress_lines(text, plain_starts, left)
        while len(unknown) >= WORTH and lessons > 0:
            lessons -= 1
            learned = self._learn(block, starts, unknown)
            if learned is None:
                break
            unknown = self._claim(learned, block, starts, np.array(unknown, np.int64), claimed).tolist()
        return claimed, unknown

    def _claim(
        self, reader: Reader, text: bytes, starts: Array, left: Array | None, claimed: list[tuple[bool, Lines]]
    ) -> Array:
        """Reads those of some lines that have a reader's shape, and gives the others."""
        found, rest = reader.read(text, starts, left)
        if found:
            claimed += [(reader.template.timed, lines) for lines in found]
            if reader is not self._readers[0]:
                self._readers.remove(reader)
                self._readers.insert(0, reader)
        return rest

    def _learn(self, text: bytes, starts: Array, numbers: Sequence[int]) -> Reader | None:
        """A reader for the first of these lines that has a shape nobody tried in vain."""
        for number in numbers:
            line = text[starts[number] : starts[number + 1]].rstrip(b"\r\n")
            shape = line[:96].translate(DIGITS)
            if shape in self._hopeless or self._learned >= self._most_learned:
                continue
            self._learned += 1
            header = 0
            if self._form == "cri":
                header = len(b" ".join(line.split(b" ", 3)[:3])) + 1
            elif self._form == "docker":
                header = line.find(b'"', 7) + 1
            template = self._lessons.learn(line, header, self._ask)
            if template is not None:
                return self._use(template)
            self._hopeless.add(shape)
        return None

    def _use(self, template: Template) -> Reader:
        reader = Reader(template, self._kind(template))
        self._readers.insert(0, reader)
        del self._readers[MAX_READERS:]
        return reader

    def any(self, text: bytes) -> bool:
        """Whether there is a line in which a guard of progress can match."""
        found: list[int] = []
        self._progress.scan(text, _stop, found)
        return bool(found)

    def _progress_lines(self, text: bytes, starts: Array, numbers: Array) -> list[int]:
        """Those of some lines in which a guard of progress can match."""
        found: list[int] = []
        if len(numbers) == len(starts) - 1:
            self._progress.scan(text, _collect, found)
            return np.unique(starts.searchsorted(np.array(found, np.int64) - 1, "right") - 1).tolist() if found else []
        if not len(numbers):
            return []
        rows, others = aside(text, starts, numbers)
        self._progress.scan(rows.buffer, _collect, found)
        picked = rows.holding(found) if found else []
        for number in others.tolist():
            found.clear()
            self._progress.scan(text[starts[number] : starts[number + 1]], _collect, found)
            if found:
                picked.append(number)
        return sorted(picked)


def _stop(number: int, start: int, end: int, flags: int, found: list[int]) -> bool:
    found.append(end)
    return True


def _collect(number: int, start: int, end: int, flags: int, found: list[int]) -> None:
    found.append(end)
