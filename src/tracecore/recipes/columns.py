"""The lines of a block in columns: where they begin, where their numbers are, and what those of known shapes say."""

from __future__ import annotations

from typing import Final, NamedTuple, TypeAlias

from tracecore.ottl.planner.selection import ends, lined
from tracecore.recipes.shapes import DIGITS, MAX_DIGITS, MAX_STEP, Rows
from tracecore.signals.arrays import np

Array: TypeAlias = np.ndarray[tuple[int], np.dtype[np.int64]]
Times: TypeAlias = np.ndarray[tuple[int], np.dtype[np.float64]]
Flags: TypeAlias = np.ndarray[tuple[int], np.dtype[np.bool_]]

_TENS: Final = 10 ** np.arange(MAX_DIGITS + 1, dtype=np.int64)
#: Prime factors that keep lanes apart.
_KIND: Final = 0x9E3779B97F4A7C1
_WHO: Final = 0x2545F4914F6CDD1
_SIZE: Final = 0x369DEA0F31A53F


class Lines:
    """The lines of a block, with their terminators; a carriage return that stands alone ends one, too.

    Args:
        block: bytes that end with a line, as a rule.
    """

    def __init__(self, block: bytes) -> None:
        self.block = block
        self.marked = lined(block)
        self.ends: Array = ends(self.marked)
        if not self.marked.endswith(b"\n"):
            self.ends = np.append(self.ends, len(block))
        self.starts: Array = np.append(0, self.ends[:-1] + 1)

    def undigited(self) -> list[bytes]:
        """Each line without its digits."""
        found = self.marked.translate(None, DIGITS).split(b"\n")
        del found[len(self.ends) :]
        return found

    def raw(self, line: int) -> bytes:
        """A line without its terminator."""
        return self.block[self.starts[line] : self.ends[line]].rstrip(b"\r\n")

    def newlines(self) -> Array:
        """Where the newlines are."""
        places = self.ends if self.marked is self.block else np.flatnonzero(np.frombuffer(self.block, np.uint8) == 10)
        return places[:-1] if len(places) and places[-1] == len(self.block) else places


class Progress(NamedTuple):
    """Progress lines of a block, in its order.

    Args:
        line: which lines.
        variant: of their shapes.
        step: -1 where they have none.
        time: in seconds; not a number where they have none.
        lane: whose lines of which shape they are, and how large their values.
    """

    line: Array
    variant: Array
    step: Array
    time: Times
    lane: Array

    def some(self, where: Array | Flags) -> Progress:
        """Those in some places."""
        line, variant, step, time, lane = self
        return Progress(line[where], variant[where], step[where], time[where], lane[where])

    def joined(self, other: Progress) -> Progress:
        """With other lines of the same block."""
        both = Progress(
            np.append(self.line, other.line),
            np.append(self.variant, other.variant),
            np.append(self.step, other.step),
            np.append(self.time, other.time),
            np.append(self.lane, other.lane),
        )
        return both.some(np.argsort(both.line, kind="stable"))


_NONE: Final[Array] = np.zeros(0, np.int64)
NO_PROGRESS: Final = Progress(_NONE, _NONE, _NONE, np.zeros(0, np.float64), _NONE)


def read(lines: Lines, variants: Array, rows: Rows, stepless: Flags, timeless: Flags) -> tuple[Progress, Array]:
    """What the lines of known shapes say, and which of these have other numbers than their shape.

    Args:
        lines: of a block.
        variants: of each of its lines; below 0 for those that are none.
        rows: the variants.
        stepless: shapes without a step.
        timeless: shapes without a time.
    """
    line = np.flatnonzero(variants >= 0)
    variant = variants[line]
    array = np.frombuffer(lines.block, np.uint8)
    digit = np.zeros(len(array) + 2, np.bool_)
    np.less(array - np.uint8(48), 10, out=digit[1:-1])
    edges = np.flatnonzero(digit[1:] != digit[:-1])
    begins, stops = edges[::2], edges[1::2]
    first = np.searchsorted(begins, np.append(lines.starts, len(array)))
    right = (first[line + 1] - first[line]) == rows.counts[variant]
    wrong = line[~right]
    if len(wrong):
        line, variant = line[right], variant[right]
    run = first[line][:, None] + rows.runs[variant]
    if not len(begins):
        run[:] = 0
        begins = stops = np.zeros(1, np.int64)
    else:
        np.minimum(run, len(begins) - 1, out=run)
    value, length = _values(array, begins[run], stops[run])
    step = (value * rows.steps[variant]).sum(1)
    long = (stops[run] - begins[run] > MAX_DIGITS).any(1) | (step >= MAX_STEP) | (step < 0)
    shape = rows.shapes[variant]
    step[stepless[shape]] = -1
    time = (value * rows.times[variant]).sum(1)
    time[timeless[shape]] = np.nan
    lane = shape * _KIND + (value * rows.who[variant]).sum(1) * _WHO
    lane += ((length * rows.lengths[variant]).sum(1) + (value * rows.exponents[variant]).sum(1)) * _SIZE
    found = Progress(line, variant, step, time, lane)
    if long.any():
        wrong, found = np.append(wrong, line[long]), found.some(~long)
    return found, wrong


def _values(array: np.ndarray[tuple[int], np.dtype[np.uint8]], begin: Array, end: Array) -> tuple[Array, Array]:
    """Numbers from places to places, and how many digits they have without zeros before them."""
    size = np.minimum(end - begin, MAX_DIGITS)
    value = np.zeros(begin.shape, np.int64)
    for place in range(int(size.max(initial=0))):
        inside = place < size
        digit = array[np.where(inside, end - 1 - place, 0)] - np.int64(48)
        value += np.where(inside, digit, 0) * _TENS[place]
    return value, np.searchsorted(_TENS, value, "right")
