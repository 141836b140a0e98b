"""Variants of shapes as columns, for reading the numbers of many lines at once."""

from __future__ import annotations

from tracecore.recipes.shapes import WIDTH, Shape
from tracecore.signals.arrays import np


class Rows:
    """Variants of shapes as columns: of each, which numbers of a line mean something, and what.

    A variant is a shape and how many numbers its lines have.
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

    def add(self, number: int, shape: Shape, count: int) -> int:
        """The number of a variant: that of the shape, and how many numbers a line has."""
        key = number, count
        if key not in self._known:
            who, stream = (
                [(place, 1 + order * 1_000_003) for order, place in enumerate(places)]
                for places in (shape.who, shape.stream)
            )
            used = shape.used
            columns: list[list[float]] = [[place % count for place in used]]
            for meaning in (shape.steps, shape.times, who, stream, shape.lengths, shape.exponents):
                weights: dict[int, float] = dict(meaning)
                columns.append([weights.get(place, 0) for place in used])
            self._known[key] = len(self._rows)
            self._rows.append([column + [0.0] * (WIDTH - len(used)) for column in columns])
            self._shapes.append(number)
            self._counts.append(count)
            self._widths.append(len(used))
            self._named.append(sum(known << bit for bit, known in enumerate(shape.named)))
            self._without.append((shape.stepless, shape.timeless))
        return self._known[key]

    def columns(self) -> None:
        """Makes columns of what was added."""
        if len(self.shapes) == len(self._rows):
            return
        table = np.array(self._rows, np.float64)
        self.times = np.ascontiguousarray(table[:, 2])
        whole = table[:, [0, 1, 3, 4, 5, 6]].astype(np.int64)
        #: Of each variant and each of its numbers, what it means; the compiled part knows the order.
        self.meanings = np.ascontiguousarray(whole.transpose(0, 2, 1))
        self.runs, self.steps, self.who, self.streams, self.lengths, self.exponents = np.moveaxis(self.meanings, 2, 0)
        self.stepless, self.timeless = np.array(self._without, np.bool_).T
        traits = self.stepless + 2 * self.timeless
        columns = self._shapes, self._counts, self._widths, self._named, traits
        self.about = np.array(columns, np.int64).T.copy()
        self.shapes, self.counts, self.widths, self.named = self.about.T[:4]
