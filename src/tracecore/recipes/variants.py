"""Shapes as tables of numpy, to read the numbers of many lines at once.

A variant is a shape together with the count of numbers in a line, since a shape may count numbers from the end.
"""

from __future__ import annotations

from tracecore.recipes.shapes import WIDTH, Shape
from tracecore.signals.arrays import np


class Variants:
    """The known variants: of each, which numbers of a line have a meaning, and which."""

    def __init__(self) -> None:
        self._numbers: dict[tuple[int, int], int] = {}
        self.shapes = np.zeros(0, np.int64)
        self._rows: list[list[list[float]]] = []
        self._shapes: list[int] = []
        self._counts: list[int] = []
        self._widths: list[int] = []
        self._owner_bits: list[int] = []
        self._without: list[tuple[bool, bool]] = []

    def add(self, shape_number: int, shape: Shape, count: int) -> int:
        """Return the number of the variant for lines of a shape that have `count` numbers."""
        key = shape_number, count
        if key not in self._numbers:
            writer, owner = (
                [(place, 1 + order * 1_000_003) for order, place in enumerate(places)]
                for places in (shape.writer, shape.owner)
            )
            used = shape.used
            columns: list[list[float]] = [[place % count for place in used]]
            for meaning in (shape.steps, shape.times, writer, owner, shape.lengths, shape.exponents):
                weights: dict[int, float] = dict(meaning)
                columns.append([weights.get(place, 0) for place in used])
            self._numbers[key] = len(self._rows)
            self._rows.append([column + [0.0] * (WIDTH - len(used)) for column in columns])
            self._shapes.append(shape_number)
            self._counts.append(count)
            self._widths.append(len(used))
            self._owner_bits.append(sum(known << bit for bit, known in enumerate(shape.owner_known)))
            self._without.append((shape.stepless, shape.timeless))
        return self._numbers[key]

    def build(self) -> None:
        """Build the tables if variants were added."""
        if len(self.shapes) == len(self._rows):
            return
        table = np.array(self._rows, np.float64)
        self.times = np.ascontiguousarray(table[:, 2])
        whole = table[:, [0, 1, 3, 4, 5, 6]].astype(np.int64)
        #: By variant and number: index in the line and weights. The compiled part relies on the order.
        self.meanings = np.ascontiguousarray(whole.transpose(0, 2, 1))
        self.places, self.steps, self.writers, self.owners, self.lengths, self.exponents = np.moveaxis(
            self.meanings, 2, 0
        )
        self.stepless, self.timeless = np.array(self._without, np.bool_).T
        traits = self.stepless + 2 * self.timeless
        columns = self._shapes, self._counts, self._widths, self._owner_bits, traits
        self.about = np.array(columns, np.int64).T.copy()
        self.shapes, self.counts, self.widths, self.owner_bits = self.about.T[:4]
