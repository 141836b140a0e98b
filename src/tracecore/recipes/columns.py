"""The lines of a block in columns: where they begin, where their numbers are, and what those of known shapes say."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, Final, NamedTuple, TypeAlias

from tracecore.ottl.planner.doubts import joined
from tracecore.ottl.planner.selection import ends, lined
from tracecore.recipes.shapes import DIGITS, MAX_DIGITS, MAX_STEP, WIDTH
from tracecore.recipes.variants import Rows
from tracecore.signals import compiled
from tracecore.signals.arrays import np

Array: TypeAlias = np.ndarray[tuple[int], np.dtype[np.int64]]
Times: TypeAlias = np.ndarray[tuple[int], np.dtype[np.float64]]
Flags: TypeAlias = np.ndarray[tuple[int], np.dtype[np.bool_]]

HIDDEN: Final = b"\xff"
_LETTER: Final = 2
#: Kinds of bytes: digits are 1, letters 2, all others 0.
_KINDS: Final = bytes(1 if byte in DIGITS else _LETTER * (byte < 128 and chr(byte).isalpha()) for byte in range(256))
_SMALL: Final = np.uint64(0x2020202020202020)
_HIGH: Final = np.uint64(0x8080808080808080)
_UP_TO_F: Final = np.uint64(0xE6E6E6E6E6E6E6E6)
_FACTOR: Final = np.uint64(0x9E3779B97F4A7C15)
_FRONTS: Final = np.array([(1 << 8 * size) - 1 for size in range(9)], np.uint64)
#: What stands among bytes that a program printed as text, with those: `b'\xd3]g5|\x81'`.
_IN_BYTES: Final = re.compile(
    rb"(?:[0-9A-Za-z]+[^0-9A-Za-z\s'\"\\]{0,2})?\\x[0-9A-Fa-f]{2}[0-9A-Za-z]*"
    rb"(?:[^0-9A-Za-z\s'\"\\]{0,2}(?:\\x[0-9A-Fa-f]{2}[0-9A-Za-z]*|[0-9A-Za-z]+))*"
)
#: An identifier of several parts, as a UUID is.
_CHAIN: Final = re.compile(rb"(?<![0-9A-Za-z])[0-9A-Fa-f]{4,}(?:-[0-9A-Fa-f]{4,})+(?![0-9A-Za-z])")
_JOINED: Final = re.compile(rb"-[0-9A-Fa-f]{4}")
_MIXED: Final = re.compile(rb"[0-9][A-Fa-f]|[A-Fa-f][0-9]")
#: What joins the parts of base64.
_JOINTS: Final = np.frombuffer(b"+/", np.uint8)
#: Bytes of what follows a word that is named and is no number.
_TOLD: Final = 12
_BETWEEN_DIGITS: Final = np.frombuffer(b"et", np.uint8)
#: Named words are numbered from 1 on.
_WORDS: Final = 95
#: Prime factors that keep lanes apart.
_KIND: Final = 0x9E3779B97F4A7C1
_WHO: Final = 0x2545F4914F6CDD1
_SIZE: Final = 0x369DEA0F31A53F
_NAMED: Final = 1 << 52
#: In the order in which the compiled part wants them.
_LIMITS: Final = np.array([WIDTH, MAX_DIGITS, MAX_STEP, _NAMED, _KIND, _WHO, _SIZE], np.int64)


class Lines:
    """The lines of a block, with their terminators; a carriage return that stands alone ends one, too.

    Args:
        block: bytes that end with a line, as a rule.
        borders: where the lines end, where that is known; there are no carriage returns then.
    """

    def __init__(self, block: bytes, borders: Array | None = None) -> None:
        self.block = block
        self.marked = lined(block) if borders is None else block
        self.ends: Array = ends(self.marked) if borders is None else borders
        if borders is None and not self.marked.endswith(b"\n"):
            self.ends = np.append(self.ends, len(block))
        self.starts: Array = np.append(0, self.ends[:-1] + 1)[: len(self.ends)]

    def some(self, lines: Array) -> Lines:
        """Some of the lines by themselves."""
        if len(lines) == len(self.ends):
            return self
        starts, stops = self.starts[lines], self.ends[lines]
        return Lines(joined(self.marked, starts, stops), np.cumsum(stops - starts + 1) - 1)

    def raw(self, line: int) -> bytes:
        """A line without its terminator."""
        return self.block[self.starts[line] : self.ends[line]].rstrip(b"\r\n")

    def newlines(self) -> Array:
        """Where the newlines are."""
        places = self.ends if self.marked is self.block else ends(self.block)
        return places[:-1] if len(places) and places[-1] == len(self.block) else places


class Mask:
    """Hides what differs from line to line and means nothing: words that no recipe names, and identifiers.

    Escapes, what stands among escaped bytes, and characters that are not ASCII are such words, too.

    Args:
        words: those that recipes name, in small letters.
    """

    def __init__(self, words: Iterable[str]) -> None:
        named = [form for word in words for form in (word, word + "s")]
        values = np.array([int.from_bytes(word.encode()[:8], "little") for word in named], np.uint64)
        # By a hash of the word. A word that shares the place of another is not hidden, which does no harm.
        bits = (64 * len(named)).bit_length()
        self._named = np.zeros(1 << bits, np.uint8)
        self._shift = np.uint64(64 - bits)
        self._seen = np.zeros(1 << 16, np.int64)
        self._named[(values * _FACTOR) >> self._shift] = 1 + np.arange(len(named)) // 2 % _WORDS

    def __call__(self, text: bytes) -> bytes:
        """A text of lines in which `HIDDEN` stands for each byte of these; everything else stays in its place."""
        if compiled.part is not None:
            return compiled.part.masked(text, self._named)
        if not text:
            return text
        if _JOINED.search(text) is not None:
            text = _CHAIN.sub(_whole, text)
        array = np.frombuffer(text, np.uint8)
        kind = np.frombuffer(text.translate(_KINDS), np.uint8)
        # Runs of bytes of one kind; those of digits and letters that touch are one token.
        begin = np.append(0, np.flatnonzero(kind[1:] != kind[:-1]) + 1)
        size = np.diff(begin, append=len(text))
        said = kind[begin]
        touching = np.append(False, (said[1:] > 0) & (said[:-1] > 0))
        mixed = touching | np.append(touching[1:], False)
        letters = np.flatnonzero(said == _LETTER)
        words = np.ndarray((len(text),), np.uint64, text + bytes(8), 0, (1,))[begin[letters]] | _SMALL
        words &= _FRONTS[np.minimum(size[letters], 8)]
        named = self._named[(words * _FACTOR) >> self._shift] > 0
        # `batch_7` names something; what is said of a number is not joined to it so.
        after = np.minimum(begin[letters] + size[letters], len(text) - 2)
        named &= (array[after] != ord("_")) | (kind[after + 1] != 1)
        hidden = np.zeros(len(begin), np.bool_)
        hidden[letters[~named & ~mixed[letters] & (size[letters] > 2)]] = True
        if len(parts := np.flatnonzero(mixed)):
            front = np.zeros(len(begin), np.uint64)
            front[letters] = words
            known = np.zeros(len(begin), np.bool_)
            known[letters] = named
            # What begins with a digit after a word that recipes name is a number to them.
            told = np.zeros(len(begin) + 2, np.bool_)
            told[letters + 2] = named & (size[letters] > 2)
            told = told[: len(begin)] & (said != _LETTER)
            hidden[parts] = _identifiers(
                said[parts], size[parts], front[parts], known[parts], ~touching[parts], told[parts]
            )
            # Of what is joined by + or /, as base64 is, all is as opaque as an identifier in it.
            runs = np.flatnonzero(said > 0)
            heads = np.flatnonzero(~touching[runs])
            before = begin[runs[heads]] - 1
            joint = np.isin(array[before], _JOINTS) & (before == (begin + size)[runs[heads - 1]])
            joint[:1] = False
            opaque = np.logical_or.reduceat(hidden[runs] & mixed[runs], heads)
            told[runs[heads]] &= np.add.reduceat(size[runs], heads) < _TOLD
            chain = np.cumsum(~joint | told[runs[heads]]) - 1
            opaque = (
                np.logical_or.reduceat(opaque, np.flatnonzero(np.diff(chain, prepend=-1)))[chain] & ~told[runs[heads]]
            )
            hidden[runs] |= np.repeat(opaque, np.diff(heads, append=len(runs))) & ~known[runs]
        # Whatever touches what follows a backslash belongs to an escape.
        token = np.cumsum(~touching)
        escapes = np.flatnonzero((said > 0) & ~touching & (array[begin - 1] == ord("\\")) & (begin > 0))
        hidden |= np.isin(token, token[escapes])
        for match in _IN_BYTES.finditer(text) if b"\\x" in text else ():
            hidden |= (begin < match.end()) & (begin + size > match.start()) & (said > 0)
        # `HIDDEN` has all bits.
        out = array | np.repeat(hidden * np.uint8(HIDDEN[0]), size)
        out[array >= 128] = HIDDEN[0]
        out[begin[escapes] - 1] = HIDDEN[0]
        return out.tobytes()

    def outlined(self, lines: Lines) -> tuple[Array, Any, Numbers]:
        """Return a key of each line's outline, a set of the words besides, and the numbers that are not hidden.

        In an outline, numbers are alike, and so is everything that is hidden. The compiled part leaves out the words
        that no number follows, and tells them in the set; otherwise the outline has them, and all sets are alike.
        """
        if compiled.part is not None:
            keys, sets, first, edges = compiled.part.outlined(lines.marked, lines.ends, self._named)
            return keys, sets, Numbers(lines.marked, first, edges)
        marked = lines.marked if lines.ends[-1:] < len(lines.marked) else lines.marked + b"\n"
        left = marked.translate(None, DIGITS).split(b"\n")[: len(lines.ends)]
        own = np.fromiter(map(hash, left), np.int64, len(left))
        # To hide something takes long. It is worth it where lines do not come again that have the same words.
        places = own & len(self._seen) - 1
        new = np.flatnonzero(self._seen[places] != own)
        self._seen[places] = own
        text = np.frombuffer(marked, np.uint8).copy()
        if len(new):
            inside = np.zeros(len(left), np.bool_)
            inside[new] = True
            some = self(joined(marked, lines.starts[new], lines.ends[new]) + b"\n")
            text[np.repeat(inside, np.diff(lines.ends, prepend=-1))] = np.frombuffer(some, np.uint8)
        digit = np.zeros(len(text) + 2, np.bool_)
        np.less(text - np.uint8(48), 10, out=digit[1:-1])
        edges = np.flatnonzero(digit[1:] != digit[:-1])
        first = np.searchsorted(edges[::2], np.append(lines.starts, len(text)))
        text[digit[1:-1]] = ord("0")
        # Of a run of digits, or of what is hidden and spaces behind it, one byte is left.
        hidden = np.append(False, text[:-1] == HIDDEN[0])
        outline = text[~(digit[1:-1] & digit[:-2]) & ~(hidden & ((text == HIDDEN[0]) | (text == ord(" "))))].tobytes()
        keys = np.fromiter(map(hash, outline.split(b"\n")[: len(left)]), np.int64, len(left))
        return keys, np.ones((len(keys), compiled.SET), np.uint64), Numbers(lines.marked, first, edges)


def _whole(match: re.Match[bytes]) -> bytes:
    return HIDDEN * len(match.group()) if _MIXED.search(match.group()) else match.group()


def _identifiers(said: Any, size: Array, words: Any, named: Flags, first: Flags, told: Flags) -> Flags:
    """Return the runs that are part of an identifier: hexadecimal but no float, or digits and letters by turns.

    Three turns with a word that is named or a single e or t in the middle are none: 15T01, 2e05, 9Nov2026.

    Args:
        said: what kind each run is.
        size: how long it is.
        words: the letters it begins with.
        named: recipes name its letters.
        first: it begins a token.
        told: it would be a number if it did.
    """
    starts = np.flatnonzero(first)
    runs = np.diff(starts, append=len(first))
    letter = said == _LETTER
    hexadecimal = ((_UP_TO_F - words) & _HIGH == _HIGH) & (size <= 8)
    foreign = np.logical_or.reduceat(letter & ~hexadecimal, starts)
    exponent = np.logical_and.reduceat(~letter | (words == ord("e")), starts)
    turns = (runs == 3) & ~np.logical_or.reduceat(named, starts) & ~np.isin(words[starts + (runs > 1)], _BETWEEN_DIGITS)
    length = np.add.reduceat(size, starts)
    found = (runs > 3) | turns | (~foreign & ~exponent & (length >= 3))
    return np.repeat(found & ~(told[starts] & (length < _TOLD)), runs)


class Progress(NamedTuple):
    """Progress lines of a block, in its order.

    Args:
        line: which lines.
        variant: of their shapes.
        step: -1 where they have none.
        time: in seconds; not a number where they have none.
        who: whose progress they are.
        lane: whose lines of which shape they are, and how large their values.
    """

    line: Array
    variant: Array
    step: Array
    time: Times
    who: Array
    lane: Array

    def some(self, where: Array | Flags) -> Progress:
        """Return the lines at these places."""
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


class Numbers(NamedTuple):
    """The places of numbers in the lines of a block.

    Args:
        text: of the lines.
        first: the first one of each line, and of the line after the last.
        edges: where each begins and ends.
    """

    text: bytes
    first: Array
    edges: Array


def read(numbers: Numbers, variants: Array, rows: Rows) -> tuple[Progress, Array]:
    """Return the events of lines of known shapes, and the lines whose numbers differ from their shape's.

    Args:
        numbers: of the lines.
        variants: of each line; below 0 for those that are none.
        rows: the variants.
    """
    if compiled.part is not None:
        tables = rows.about, rows.meanings, rows.times, _LIMITS
        columns, wrong = compiled.part.read(numbers.text, numbers.edges, numbers.first, variants, tables)
        return Progress(*columns), wrong
    right = variants >= 0
    right[right] = np.diff(numbers.first)[right] == rows.counts[variants[right]]
    line = np.flatnonzero(right)
    variant = variants[line]
    present = np.flatnonzero(np.bincount(variant, minlength=len(rows.shapes)))
    first = numbers.first[line]
    # After the last number stands one that is empty, for lines that have none.
    begins, ends = (np.append(numbers.edges[side::2], len(numbers.text)) for side in (0, 1))
    text = np.frombuffer(numbers.text, np.uint8)
    step, who, writer, size = (np.zeros(len(line), np.int64) for _ in range(4))
    time = np.zeros(len(line))
    odd = np.zeros(len(line), np.bool_)
    # Column by column, and only what one of the variants says: most numbers mean one thing.
    for column in range(int(rows.widths[present].max(initial=0))):
        run = np.minimum(first + _of(rows.runs, column, variant, present), len(begins) - 1)
        end = ends[run]
        length = end - begins[run]
        odd |= (length > MAX_DIGITS) & (rows.widths[variant] > column)
        value = _values(text, end - length, length)
        if rows.times[present, column].any():
            time += value.view(np.uint64) * _of(rows.times, column, variant, present)
        for weights, sums in (
            (rows.steps, step),
            (rows.streams, who),
            (rows.who, writer),
            (rows.exponents, size),
        ):
            if weights[present, column].any():
                sums += value * _of(weights, column, variant, present)
        if rows.lengths[present, column].any():
            size += np.where(value != 0, length, 0) * _of(rows.lengths, column, variant, present)
    odd |= (step >= MAX_STEP) | (step < 0)
    step[rows.stepless[variant]] = -1
    time[rows.timeless[variant]] = np.nan
    who += rows.named[variant] * _NAMED
    found = Progress(line, variant, step, time, who, rows.shapes[variant] * _KIND + writer * _WHO + size * _SIZE)
    wrong = np.flatnonzero((variants >= 0) & ~right)
    if odd.any():
        wrong, found = np.sort(np.append(wrong, line[odd])), found.some(~odd)
    return found, wrong


def _of(table: Any, column: int, variant: Array, present: Array) -> Any:
    """Return the value of a column for each line; one number if all lines are of one variant."""
    return table[present[0], column] if len(present) == 1 else table[:, column][variant]


def _values(text: Any, begin: Array, length: Array) -> Array:
    """Return the numbers of so many digits that begin at some places; of more than `MAX_DIGITS`, anything."""
    value = np.zeros(len(begin), np.int64)
    for place in range(min(int(length.max(initial=0)), MAX_DIGITS)):
        inside = np.flatnonzero(length > place)
        value[inside] = value[inside] * 10 + text[begin[inside] + place] - ord("0")
    return value
