"""Variants of shapes as columns, for reading the numbers of many lines at once."""

from __future__ import annotations

import re
from typing import Final

from tracecore.recipes.shapes import ALONE, WIDTH, Shape, numbers
from tracecore.signals.arrays import np

_FIXED: Final = re.compile(rb"[^0-9a-f]{0,4}\Z")


class Rows:
    """Variants of shapes as columns: of each, which numbers of a line mean something, and what.

    A variant is a shape and how many numbers its lines have. A loose one has an identifier in its lines, and so any
    number of numbers: those behind the identifier are counted from the end, and the bytes before each have to be right.
    """

    def __init__(self) -> None:
        self._known: dict[tuple[int, ...], int] = {}
        self.shapes = np.zeros(0, np.int64)
        self._rows: list[list[list[float]]] = []
        self._shapes: list[int] = []
        self._counts: list[int] = []
        self._widths: list[int] = []
        self._named: list[int] = []
        self._without: list[tuple[bool, bool]] = []
        #: Of loose variants, the bytes before their numbers and which of these matter.
        self._before: list[tuple[list[int], list[int]] | None] = []

    def add(self, number: int, shape: Shape, count: int) -> int:
        """The number of a variant: that of the shape, and how many numbers a line has."""
        key = number, count
        if key not in self._known:
            who, stream = (
                [(place, 1 + order * 1_000_003) for order, place in enumerate(places)]
                for places in (shape.who, shape.stream)
            )
            used = shape.used
            columns: list[list[float]] = [list(used)]
            for meaning in (shape.steps, shape.times, who, stream, shape.lengths, shape.exponents):
                weights: dict[int, float] = dict(meaning)
                columns.append([weights.get(place, 0) for place in used])
            rows = [column + [0.0] * (WIDTH - len(used)) for column in columns]
            named = sum(known << bit for bit, known in enumerate(shape.named))
            without = shape.stepless, shape.timeless
            self._known[key] = self._added(number, count, len(used), rows, named, without, None)
        return self._known[key]

    def loosened(self, variant: int, text: bytes, masked: bytes) -> int:
        """Return the loose variant of a line of which something is hidden; `ALONE` if there cannot be one.

        Args:
            variant: of the line as it is masked.
            text: the line.
            masked: the same without identifiers.
        """
        spans, shown = numbers(text), numbers(masked)
        pairs = enumerate(zip(spans, shown, strict=False))
        front = next((place for place, (one, other) in pairs if one != other), min(len(spans), len(shown)))
        back = len(shown) - front
        if shown != [*spans[:front], *spans[len(spans) - back :]]:
            return ALONE  # numbers between two identifiers
        key = variant, front, -1
        if key not in self._known:
            width = self._widths[variant]
            places, *meanings = self._rows[variant]
            used = [int(place) for place in places[:width]]
            counted = [float(place if place < front else place - len(shown)) for place in used]
            before = [_before(text, shown[place][0]) for place in used]
            padding = [0] * (WIDTH - width)
            known = [pair[0] for pair in before] + padding, [pair[1] for pair in before] + padding
            rows = [counted + [0.0] * (WIDTH - width), *meanings]
            same = self._named[variant], self._without[variant]
            self._known[key] = self._added(self._shapes[variant], len(shown), width, rows, *same, known)
        return self._known[key]

    def _added(
        self,
        number: int,
        count: int,
        width: int,
        rows: list[list[float]],
        named: int,
        without: tuple[bool, bool],
        before: tuple[list[int], list[int]] | None,
    ) -> int:
        self._rows.append(rows)
        self._shapes.append(number)
        self._counts.append(count)
        self._widths.append(width)
        self._named.append(named)
        self._without.append(without)
        self._before.append(before)
        return len(self._rows) - 1

    def columns(self) -> None:
        """Makes columns of what was added."""
        if len(self.shapes) == len(self._rows):
            return
        table = np.array(self._rows, np.float64)
        self.times = np.ascontiguousarray(table[:, 2])
        nothing = [0] * WIDTH, [0] * WIDTH
        pairs = np.array([pair or nothing for pair in self._before], np.uint64)
        whole = table[:, [0, 1, 3, 4, 5, 6]].astype(np.int64)
        #: Of each variant and each of its numbers, what it means; the compiled part knows the order.
        self.meanings = np.ascontiguousarray(np.concatenate((whole, pairs.view(np.int64)), 1).transpose(0, 2, 1))
        self.runs, self.steps, self.who, self.streams, self.lengths, self.exponents, before, fixed = np.moveaxis(
            self.meanings, 2, 0
        )
        self.before, self.fixed = before.view(np.uint64), fixed.view(np.uint64)
        self.loose = np.array([pair is not None for pair in self._before], np.bool_)
        self.stepless, self.timeless = np.array(self._without, np.bool_).T
        traits = self.loose + 2 * self.stepless + 4 * self.timeless
        columns = self._shapes, self._counts, self._widths, self._named, traits
        self.about = np.array(columns, np.int64).T.copy()
        self.shapes, self.counts, self.widths, self.named = self.about.T[:4]


def _before(text: bytes, begin: int) -> tuple[int, int]:
    """Return the eight bytes before a number, and which of the last four no identifier or other number can be in."""
    found = _FIXED.search(text, 0, begin)
    size = 0 if found is None else len(found.group())
    before = (bytes(8) + text)[begin : begin + 8]
    return int.from_bytes(before, "little"), int.from_bytes(b"\xff" * size, "little") << (64 - 8 * size)
