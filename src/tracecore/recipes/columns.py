"""The lines of a block as numpy arrays: their borders, outlines, numbers, and the progress read from known shapes.

Most of this exists a second time in C (`signals/compiled/lines.c`), which is used where it was compiled.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, Final, NamedTuple, TypeAlias

from tracecore.ottl.planner.doubts import joined
from tracecore.ottl.planner.selection import ends, lined
from tracecore.recipes.shapes import DIGITS, MAX_DIGITS, MAX_STEP, WIDTH
from tracecore.recipes.variants import Variants
from tracecore.signals import compiled
from tracecore.signals.arrays import np

Array: TypeAlias = np.ndarray[tuple[int], np.dtype[np.int64]]
Times: TypeAlias = np.ndarray[tuple[int], np.dtype[np.float64]]
Flags: TypeAlias = np.ndarray[tuple[int], np.dtype[np.bool_]]

#: Stands for each byte that means nothing to any recipe. It cannot be part of UTF-8.
HIDDEN: Final = b"\xff"
_LETTER: Final = 2
#: Kinds of bytes: 1 for digits, 2 for letters, 0 for all others.
_KINDS: Final = bytes(1 if byte in DIGITS else _LETTER * (byte < 128 and chr(byte).isalpha()) for byte in range(256))
_SMALL: Final = np.uint64(0x2020202020202020)
_HIGH: Final = np.uint64(0x8080808080808080)
_UP_TO_F: Final = np.uint64(0xE6E6E6E6E6E6E6E6)
_FACTOR: Final = np.uint64(0x9E3779B97F4A7C15)
_FRONTS: Final = np.array([(1 << 8 * size) - 1 for size in range(9)], np.uint64)
#: Bytes that a program printed as text, with the characters among them: `b'\xd3]g5|\x81'`.
_IN_BYTES: Final = re.compile(
    rb"(?:[0-9A-Za-z]+[^0-9A-Za-z\s'\"\\]{0,2})?\\x[0-9A-Fa-f]{2}[0-9A-Za-z]*"
    rb"(?:[^0-9A-Za-z\s'\"\\]{0,2}(?:\\x[0-9A-Fa-f]{2}[0-9A-Za-z]*|[0-9A-Za-z]+))*"
)
#: An identifier of several parts, such as a UUID.
_PARTS: Final = re.compile(rb"(?<![0-9A-Za-z])[0-9A-Fa-f]{4,}(?:-[0-9A-Fa-f]{4,})+(?![0-9A-Za-z])")
_DASHED: Final = re.compile(rb"-[0-9A-Fa-f]{4}")
_HEX: Final = re.compile(rb"[0-9][A-Fa-f]|[A-Fa-f][0-9]")
#: Characters between the parts of base64.
_JOINTS: Final = np.frombuffer(b"+/", np.uint8)
#: A token of this many bytes is an identifier even where a recipe expects a number (after a known word).
_LONG: Final = 12
_BETWEEN_DIGITS: Final = np.frombuffer(b"et", np.uint8)
#: Known words have numbers from 1 to this.
_WORDS: Final = 95
#: Factors that combine shape, writer and magnitude to the name of a lane, and owner and known parts to its owner.
_BY_SHAPE: Final = 0x9E3779B97F4A7C1
_BY_WRITER: Final = 0x2545F4914F6CDD1
_BY_MAGNITUDE: Final = 0x369DEA0F31A53F
_BY_KNOWN: Final = 1 << 52
#: In the order that the compiled part expects.
_LIMITS: Final = np.array([WIDTH, MAX_DIGITS, MAX_STEP, _BY_KNOWN, _BY_SHAPE, _BY_WRITER, _BY_MAGNITUDE], np.int64)


class Lines:
    """The lines of a block. A newline ends a line, and so does a carriage return without one.

    Args:
        block: the bytes. As a rule they end with a whole line.
        borders: where the lines end, if known. Then there are no carriage returns.
    """

    def __init__(self, block: bytes, borders: Array | None = None) -> None:
        self.block = block
        self.marked = lined(block) if borders is None else block
        self.ends: Array = ends(self.marked) if borders is None else borders
        if borders is None and not self.marked.endswith(b"\n"):
            self.ends = np.append(self.ends, len(block))
        self.starts: Array = np.append(0, self.ends[:-1] + 1)[: len(self.ends)]

    def take(self, lines: Array) -> Lines:
        """Return a block of these lines alone."""
        if len(lines) == len(self.ends):
            return self
        starts, stops = self.starts[lines], self.ends[lines]
        return Lines(joined(self.marked, starts, stops), np.cumsum(stops - starts + 1) - 1)

    def raw(self, line: int) -> bytes:
        """Return a line without its terminator."""
        return self.block[self.starts[line] : self.ends[line]].rstrip(b"\r\n")

    def newlines(self) -> Array:
        """Return where the newlines are."""
        places = self.ends if self.marked is self.block else ends(self.block)
        return places[:-1] if len(places) and places[-1] == len(self.block) else places


class Mask:
    """Hides what differs from line to line and means nothing to the recipes: unknown words and identifiers.

    Hidden are also escapes, printed bytes and characters that are not ASCII.

    Args:
        words: known words: those that recipes name, in small letters.
    """

    def __init__(self, words: Iterable[str]) -> None:
        forms = [form for word in words for form in (word, word + "s")]
        values = np.array([int.from_bytes(word.encode()[:8], "little") for word in forms], np.uint64)
        # A hash table without chains. A word that hits the place of a known one is not hidden, which does no harm.
        bits = (64 * len(forms)).bit_length()
        self._known = np.zeros(1 << bits, np.uint8)
        self._shift = np.uint64(64 - bits)
        self._seen = np.zeros(1 << 16, np.int64)
        self._known[(values * _FACTOR) >> self._shift] = 1 + np.arange(len(forms)) // 2 % _WORDS

    def __call__(self, text: bytes) -> bytes:
        """Return a text of the same length in which each byte that means nothing is `HIDDEN`."""
        if compiled.part is not None:
            return compiled.part.masked(text, self._known)
        if not text:
            return text
        if _DASHED.search(text) is not None:
            text = _PARTS.sub(_hide_hexadecimal, text)
        array = np.frombuffer(text, np.uint8)
        kind = np.frombuffer(text.translate(_KINDS), np.uint8)
        # A run is a run of bytes of one kind. Runs of digits and letters that touch are one token.
        begin = np.append(0, np.flatnonzero(kind[1:] != kind[:-1]) + 1)
        size = np.diff(begin, append=len(text))
        run_kind = kind[begin]
        touching = np.append(False, (run_kind[1:] > 0) & (run_kind[:-1] > 0))
        mixed = touching | np.append(touching[1:], False)
        letters = np.flatnonzero(run_kind == _LETTER)
        words = np.ndarray((len(text),), np.uint64, text + bytes(8), 0, (1,))[begin[letters]] | _SMALL
        words &= _FRONTS[np.minimum(size[letters], 8)]
        known = self._known[(words * _FACTOR) >> self._shift] > 0
        # `batch_7` is a name. A known word whose number matters is not joined to it by an underscore.
        after = np.minimum(begin[letters] + size[letters], len(text) - 2)
        known &= (array[after] != ord("_")) | (kind[after + 1] != 1)
        hidden = np.zeros(len(begin), np.bool_)
        hidden[letters[~known & ~mixed[letters] & (size[letters] > 2)]] = True
        if len(parts := np.flatnonzero(mixed)):
            run_word = np.zeros(len(begin), np.uint64)
            run_word[letters] = words
            run_known = np.zeros(len(begin), np.bool_)
            run_known[letters] = known
            # What begins with a digit after a known word may be the number that a recipe expects.
            expected = np.zeros(len(begin) + 2, np.bool_)
            expected[letters + 2] = known & (size[letters] > 2)
            expected = expected[: len(begin)] & (run_kind != _LETTER)
            hidden[parts] = _identifiers(
                run_kind[parts], size[parts], run_word[parts], run_known[parts], ~touching[parts], expected[parts]
            )
            # If one of the tokens joined by + or / (base64) is an identifier, all of them are.
            runs = np.flatnonzero(run_kind > 0)
            heads = np.flatnonzero(~touching[runs])
            before = begin[runs[heads]] - 1
            joint = np.isin(array[before], _JOINTS) & (before == (begin + size)[runs[heads - 1]])
            joint[:1] = False
            opaque = np.logical_or.reduceat(hidden[runs] & mixed[runs], heads)
            expected[runs[heads]] &= np.add.reduceat(size[runs], heads) < _LONG
            chain = np.cumsum(~joint | expected[runs[heads]]) - 1
            any_opaque = np.logical_or.reduceat(opaque, np.flatnonzero(np.diff(chain, prepend=-1)))
            opaque = any_opaque[chain] & ~expected[runs[heads]]
            hidden[runs] |= np.repeat(opaque, np.diff(heads, append=len(runs))) & ~run_known[runs]
        # The token after a backslash belongs to an escape.
        token = np.cumsum(~touching)
        escapes = np.flatnonzero((run_kind > 0) & ~touching & (array[begin - 1] == ord("\\")) & (begin > 0))
        hidden |= np.isin(token, token[escapes])
        for match in _IN_BYTES.finditer(text) if b"\\x" in text else ():
            hidden |= (begin < match.end()) & (begin + size > match.start()) & (run_kind > 0)
        # All bits of `HIDDEN` are set.
        out = array | np.repeat(hidden * np.uint8(HIDDEN[0]), size)
        out[array >= 128] = HIDDEN[0]
        out[begin[escapes] - 1] = HIDDEN[0]
        return out.tobytes()

    def outlined(self, lines: Lines) -> tuple[Array, Any, Numbers]:
        """Return the key of each line's outline, the set of its other words, and the numbers that are not hidden.

        An outline is a line in which all numbers are alike, and so is everything that is hidden. The compiled part also
        leaves out known words that no number follows and returns them as a set. Without it they stay in the outline and
        all sets are equal.
        """
        if compiled.part is not None:
            keys, words, first, edges = compiled.part.outlined(lines.marked, lines.ends, self._known)
            return keys, words, Numbers(lines.marked, first, edges)
        marked = lines.marked if lines.ends[-1:] < len(lines.marked) else lines.marked + b"\n"
        without_digits = marked.translate(None, DIGITS).split(b"\n")[: len(lines.ends)]
        hashes = np.fromiter(map(hash, without_digits), np.int64, len(without_digits))
        # Masking is slow, so lines are only masked if no line with the same words came before.
        places = hashes & len(self._seen) - 1
        new = np.flatnonzero(self._seen[places] != hashes)
        self._seen[places] = hashes
        text = np.frombuffer(marked, np.uint8).copy()
        if len(new):
            is_new = np.zeros(len(hashes), np.bool_)
            is_new[new] = True
            masked = self(joined(marked, lines.starts[new], lines.ends[new]) + b"\n")
            text[np.repeat(is_new, np.diff(lines.ends, prepend=-1))] = np.frombuffer(masked, np.uint8)
        digit = np.zeros(len(text) + 2, np.bool_)
        np.less(text - np.uint8(48), 10, out=digit[1:-1])
        edges = np.flatnonzero(digit[1:] != digit[:-1])
        first = np.searchsorted(edges[::2], np.append(lines.starts, len(text)))
        text[digit[1:-1]] = ord("0")
        # Shorten runs of digits to one byte, and runs of hidden bytes with the spaces behind them.
        hidden = np.append(False, text[:-1] == HIDDEN[0])
        outline = text[~(digit[1:-1] & digit[:-2]) & ~(hidden & ((text == HIDDEN[0]) | (text == ord(" "))))].tobytes()
        keys = np.fromiter(map(hash, outline.split(b"\n")[: len(hashes)]), np.int64, len(hashes))
        return keys, np.ones((len(keys), compiled.SET), np.uint64), Numbers(lines.marked, first, edges)


def _hide_hexadecimal(match: re.Match[bytes]) -> bytes:
    return HIDDEN * len(match.group()) if _HEX.search(match.group()) else match.group()


def _identifiers(kind: Any, size: Array, words: Any, known: Flags, first: Flags, expected: Flags) -> Flags:
    """Return the runs that are part of an identifier: a hexadecimal number, or a mix of digits and letters.

    Floats such as 2e05 are no identifiers, and neither are three runs with a known word or a single e or t in the
    middle: 9Nov2026, 15T01.

    Args:
        kind: of each run.
        size: its length.
        words: its first eight letters.
        known: recipes name its word.
        first: it begins a token.
        expected: if it begins a token, a recipe may expect a number there.
    """
    starts = np.flatnonzero(first)
    runs = np.diff(starts, append=len(first))
    letter = kind == _LETTER
    hexadecimal = ((_UP_TO_F - words) & _HIGH == _HIGH) & (size <= 8)
    foreign = np.logical_or.reduceat(letter & ~hexadecimal, starts)
    exponent = np.logical_and.reduceat(~letter | (words == ord("e")), starts)
    three = (runs == 3) & ~np.logical_or.reduceat(known, starts) & ~np.isin(words[starts + (runs > 1)], _BETWEEN_DIGITS)
    length = np.add.reduceat(size, starts)
    found = (runs > 3) | three | (~foreign & ~exponent & (length >= 3))
    return np.repeat(found & ~(expected[starts] & (length < _LONG)), runs)


class Progress(NamedTuple):
    """The progress lines of a block, in order.

    Args:
        line: which lines.
        variant: of their shapes.
        step: -1 without a step.
        time: in seconds; NaN without a time.
        owner: a hash of the rank whose progress it is.
        lane: a hash of shape, writer and magnitude of the values.
    """

    line: Array
    variant: Array
    step: Array
    time: Times
    owner: Array
    lane: Array

    def take(self, where: Array | Flags) -> Progress:
        """Return the lines at these places."""
        line, variant, step, time, owner, lane = self
        return Progress(line[where], variant[where], step[where], time[where], owner[where], lane[where])


EMPTY: Final[Array] = np.zeros(0, np.int64)
NO_PROGRESS: Final = Progress(EMPTY, EMPTY, EMPTY, np.zeros(0, np.float64), EMPTY, EMPTY)


class Numbers(NamedTuple):
    """The places of numbers in the lines of a block.

    Args:
        text: of the lines.
        first: the index of each line's first number, and the count of all numbers.
        edges: where each number begins and ends, in turn.
    """

    text: bytes
    first: Array
    edges: Array


def read(numbers: Numbers, variants: Array, known: Variants) -> tuple[Progress, Array]:
    """Read the progress of a block; return also the lines that cannot be read by their shape.

    Args:
        numbers: of the lines.
        variants: of each line; negative for lines that are not read.
        known: the tables of the variants.
    """
    if compiled.part is not None:
        tables = known.about, known.meanings, known.times, _LIMITS
        columns, wrong = compiled.part.read(numbers.text, numbers.edges, numbers.first, variants, tables)
        return Progress(*columns), wrong
    right = variants >= 0
    right[right] = np.diff(numbers.first)[right] == known.counts[variants[right]]
    line = np.flatnonzero(right)
    variant = variants[line]
    present = np.flatnonzero(np.bincount(variant, minlength=len(known.shapes)))
    first = numbers.first[line]
    # An empty number is put after the last one, for lines without numbers.
    begins, ends = (np.append(numbers.edges[side::2], len(numbers.text)) for side in (0, 1))
    text = np.frombuffer(numbers.text, np.uint8)
    step, owner, writer, magnitude = (np.zeros(len(line), np.int64) for _ in range(4))
    time = np.zeros(len(line))
    odd = np.zeros(len(line), np.bool_)
    # Column by column, and only the meanings that one of the variants has: most numbers have one meaning.
    for column in range(int(known.widths[present].max(initial=0))):
        place = np.minimum(first + _column(known.places, column, variant, present), len(begins) - 1)
        end = ends[place]
        length = end - begins[place]
        odd |= (length > MAX_DIGITS) & (known.widths[variant] > column)
        value = _values(text, end - length, length)
        if known.times[present, column].any():
            time += value.view(np.uint64) * _column(known.times, column, variant, present)
        for weights, sums in (
            (known.steps, step),
            (known.owners, owner),
            (known.writers, writer),
            (known.exponents, magnitude),
        ):
            if weights[present, column].any():
                sums += value * _column(weights, column, variant, present)
        if known.lengths[present, column].any():
            magnitude += np.where(value != 0, length, 0) * _column(known.lengths, column, variant, present)
    odd |= (step >= MAX_STEP) | (step < 0)
    step[known.stepless[variant]] = -1
    time[known.timeless[variant]] = np.nan
    owner += known.owner_bits[variant] * _BY_KNOWN
    lane = known.shapes[variant] * _BY_SHAPE + writer * _BY_WRITER + magnitude * _BY_MAGNITUDE
    found = Progress(line, variant, step, time, owner, lane)
    wrong = np.flatnonzero((variants >= 0) & ~right)
    if odd.any():
        wrong, found = np.sort(np.append(wrong, line[odd])), found.take(~odd)
    return found, wrong


def _column(table: Any, column: int, variant: Array, present: Array) -> Any:
    """Return a column's value for each line, or one number if all lines are of one variant."""
    return table[present[0], column] if len(present) == 1 else table[:, column][variant]


def _values(text: Any, begin: Array, length: Array) -> Array:
    """Return the numbers at some places. The result is arbitrary for more than `MAX_DIGITS` digits."""
    value = np.zeros(len(begin), np.int64)
    for place in range(min(int(length.max(initial=0)), MAX_DIGITS)):
        inside = np.flatnonzero(length > place)
        value[inside] = value[inside] * 10 + text[begin[inside] + place] - ord("0")
    return value
