"""The lines of a block in columns: where they begin, where their numbers are, and what those of known shapes say."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final, NamedTuple, TypeAlias

from tracecore.ottl.planner.selection import ends, lined
from tracecore.recipes.shapes import DIGITS, MAX_DIGITS, MAX_STEP, Rows
from tracecore.signals.arrays import np

Array: TypeAlias = np.ndarray[tuple[int], np.dtype[np.int64]]
Times: TypeAlias = np.ndarray[tuple[int], np.dtype[np.float64]]
Flags: TypeAlias = np.ndarray[tuple[int], np.dtype[np.bool_]]

_TENS: Final = 10 ** np.arange(MAX_DIGITS + 1, dtype=np.int64)
HIDDEN: Final = b"\xff"
_LETTER: Final = 2
#: Kinds of bytes: digits are 1, letters 2, all others 0.
_KINDS: Final = bytes(1 if byte in DIGITS else _LETTER * (byte < 128 and chr(byte).isalpha()) for byte in range(256))
_SMALL: Final = np.uint64(0x2020202020202020)
_HIGH: Final = np.uint64(0x8080808080808080)
_UP_TO_F: Final = np.uint64(0xE6E6E6E6E6E6E6E6)
_FACTOR: Final = np.uint64(0x9E3779B97F4A7C15)
_SHIFT: Final = np.uint64(64 - 18)
_ALL: Final = np.uint64(0xFFFFFFFFFFFFFFFF)
_DIGIT_BITS: Final = np.uint64(0x0F0F0F0F0F0F0F0F)
_FRONTS: Final = np.array([(1 << 8 * size) - 1 for size in range(9)], np.uint64)
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

    def without(self, characters: bytes) -> list[bytes]:
        """Each line without some characters."""
        found = self.marked.translate(None, characters).split(b"\n")
        del found[len(self.ends) :]
        return found

    def raw(self, line: int) -> bytes:
        """A line without its terminator."""
        return self.block[self.starts[line] : self.ends[line]].rstrip(b"\r\n")

    def newlines(self) -> Array:
        """Where the newlines are."""
        places = self.ends if self.marked is self.block else np.flatnonzero(np.frombuffer(self.block, np.uint8) == 10)
        return places[:-1] if len(places) and places[-1] == len(self.block) else places


class Mask:
    """Hides what differs from line to line and means nothing: words that no recipe names, and identifiers.

    Args:
        words: those that recipes name, in small letters.
    """

    def __init__(self, words: Iterable[str]) -> None:
        named = {form for word in words for form in (word, word + "s")}
        values = np.unique(np.array([int.from_bytes(word.encode()[:8], "little") for word in named], np.uint64))
        # By a hash of the word. A word that shares the place of another is not hidden, which does no harm.
        self._named = np.zeros(1 << 18, np.bool_)
        self._named[(values * _FACTOR) >> _SHIFT] = True

    def __call__(self, text: bytes) -> bytes:
        """A text of lines in which `HIDDEN` stands for each byte of these; everything else stays in its place."""
        array = np.frombuffer(text, np.uint8)
        kind = np.frombuffer(text.translate(_KINDS), np.uint8)
        # Runs of bytes of one kind; those of digits and letters that touch are one token.
        begin = np.append(0, np.flatnonzero(kind[1:] != kind[:-1]) + 1)
        size = np.diff(begin, append=len(text))
        said = kind[begin]
        touching = np.append(False, (said[1:] > 0) & (said[:-1] > 0))
        mixed = touching | np.append(touching[1:], False)
        letters = np.flatnonzero(said == _LETTER)
        if not len(letters):
            return text
        words = np.ndarray((len(text),), np.uint64, text + bytes(8), 0, (1,))[begin[letters]] | _SMALL
        words &= _FRONTS[np.minimum(size[letters], 8)]
        named = self._named[(words * _FACTOR) >> _SHIFT]
        # `batch_7` names something; what is said of a number is not joined to it so.
        after = np.minimum(begin[letters] + size[letters], len(text) - 2)
        named &= (array[after] != ord("_")) | (kind[after + 1] != 1)
        hidden = np.zeros(len(begin), np.bool_)
        hidden[letters[~named & ~mixed[letters] & (size[letters] > 2)]] = True
        if len(parts := np.flatnonzero(mixed)):
            front = np.zeros(len(begin), np.uint64)
            front[letters] = words
            hidden[parts] = _identifiers(said[parts], size[parts], front[parts], ~touching[parts])
        # `HIDDEN` has all bits.
        return (array | np.repeat(hidden * np.uint8(HIDDEN[0]), size)).tobytes()


def _identifiers(said: Any, size: Array, words: Any, first: Flags) -> Flags:
    """Return the runs that are part of an identifier: hexadecimal but no float, or digits and letters by turns.

    Args:
        said: what kind each run is.
        size: how long it is.
        words: the letters it begins with.
        first: it begins a token.
    """
    starts = np.flatnonzero(first)
    runs = np.diff(starts, append=len(first))
    letter = said == _LETTER
    hexadecimal = ((_UP_TO_F - words) & _HIGH == _HIGH) & (size <= 8)
    foreign = np.logical_or.reduceat(letter & ~hexadecimal, starts)
    exponent = np.logical_and.reduceat(~letter | (words == ord("e")), starts)
    found = (runs > 3) | (~foreign & ~exponent & (np.add.reduceat(size, starts) >= 6))
    return np.repeat(found, runs)


class Progress(NamedTuple):
    """Progress lines of a block, in its order.

    Args:
        line: which lines.
        variant: of their shapes.
        step: -1 where they have none.
        time: in seconds; not a number where they have none.
        who: who wrote them.
        lane: whose lines of which shape they are, and how large their values.
    """

    line: Array
    variant: Array
    step: Array
    time: Times
    who: Array
    lane: Array

    def some(self, where: Array | Flags) -> Progress:
        """Those in some places."""
        line, variant, step, time, who, lane = self
        return Progress(line[where], variant[where], step[where], time[where], who[where], lane[where])

    def joined(self, other: Progress) -> Progress:
        """With other lines of the same block."""
        both = Progress(
            np.append(self.line, other.line),
            np.append(self.variant, other.variant),
            np.append(self.step, other.step),
            np.append(self.time, other.time),
            np.append(self.who, other.who),
            np.append(self.lane, other.lane),
        )
        return both.some(np.argsort(both.line, kind="stable"))


_NONE: Final[Array] = np.zeros(0, np.int64)
NO_PROGRESS: Final = Progress(_NONE, _NONE, _NONE, np.zeros(0, np.float64), _NONE, _NONE)


def read(lines: Lines, variants: Array, rows: Rows, stepless: Flags, timeless: Flags) -> tuple[Progress, Array]:
    """Return the events of lines of known shapes, and the lines whose numbers differ from their shape's.

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
    begins, stops = np.append(edges[::2], len(array)), np.append(edges[1::2], len(array))
    first = np.searchsorted(begins[:-1], np.append(lines.starts, len(array)))
    right = (first[line + 1] - first[line]) == rows.counts[variant]
    wrong = line[~right]
    if len(wrong):
        line, variant = line[right], variant[right]
    base = first[line]
    present = np.flatnonzero(np.bincount(variant, minlength=len(rows.shapes)))
    step, who, size = (np.zeros(len(line), np.int64) for _ in range(3))
    time = np.zeros(len(line))
    long = np.zeros(len(line), np.bool_)
    words = np.ndarray((len(array) + 1,), np.uint64, bytes(8) + lines.block, 0, (1,))
    for column in range(int(rows.widths[present].max(initial=0))):
        run = np.minimum(base + _of(rows.runs, column, variant, present), len(begins) - 1)
        end = stops[run]
        length = end - begins[run]
        long |= length > MAX_DIGITS
        value = _values(words, end, length)
        for weights, sums in ((rows.steps, step), (rows.who, who), (rows.exponents, size)):
            if weights[present, column].any():
                sums += value * _of(weights, column, variant, present)
        if rows.times[present, column].any():
            time += value * _of(rows.times, column, variant, present)
        if rows.lengths[present, column].any():
            size += np.where(value > 0, length, 0) * _of(rows.lengths, column, variant, present)
    shape = rows.shapes[variant]
    long |= (step >= MAX_STEP) | (step < 0)
    step[stepless[shape]] = -1
    time[timeless[shape]] = np.nan
    found = Progress(line, variant, step, time, who, shape * _KIND + who * _WHO + size * _SIZE)
    if long.any():
        wrong, found = np.append(wrong, line[long]), found.some(~long)
    return found, wrong


def _of(table: Any, column: int, variant: Array, present: Array) -> Any:
    """Return the value of a column for each line; one number if all lines are of one variant."""
    return table[present[0], column] if len(present) == 1 else table[:, column][variant]


def _values(words: Any, end: Array, length: Array) -> Array:
    """Return the numbers of so many digits that end before some places; of more than `MAX_DIGITS`, anything.

    Args:
        words: the eight bytes before each place of the text, as a number.
    """
    value = _eight(words[end], length)
    for more in (8, 16):
        longer = np.flatnonzero(length > more)
        if not len(longer):
            break
        value[longer] += _eight(words[end[longer] - more], length[longer] - more) * _TENS[more]
    return value


def _eight(word: Any, length: Array) -> Array:
    """The number that the last of eight bytes are, so many of them."""
    word = word & (_ALL << (64 - 8 * np.minimum(length, 8)).astype(np.uint64)) & _DIGIT_BITS
    # Digits to pairs, pairs to fours, fours to one number.
    word = (word * np.uint64(2561) >> np.uint64(8)) & np.uint64(0x00FF00FF00FF00FF)
    word = (word * np.uint64(6553601) >> np.uint64(16)) & np.uint64(0x0000FFFF0000FFFF)
    found: Array = (word * np.uint64(42949672960001) >> np.uint64(32)).astype(np.int64)
    return found
