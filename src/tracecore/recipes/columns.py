"""The lines of a block in columns: where they begin, and what those of one shape say.

Nothing here looks at a line alone, but at the very end of a block. Of each line that has a reader's shape, its step and
its time are cut out as they stand, eight bytes each: that is enough to see whether they follow those of the line
before. They become numbers (`steps`, `seconds`) only where somebody asks.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Final, NamedTuple, TypeAlias

from tracecore.recipes.templates import LANES, Template
from tracecore.signals.arrays import np

Array: TypeAlias = np.ndarray[tuple[int], np.dtype[np.int64]]
Words: TypeAlias = np.ndarray[tuple[int], np.dtype[np.uint64]]
Rows: TypeAlias = np.ndarray[tuple[int], np.dtype[np.void]]
Flags: TypeAlias = np.ndarray[tuple[int], np.dtype[np.bool_]]
Bytes: TypeAlias = np.ndarray[tuple[int], np.dtype[np.uint8]]

#: Digits of a step, at most.
MAX_DIGITS: Final = 7
#: The step of lines that have none, and the time of those.
NO_STEP: Final = (1 << 64) - 1
NO_CLOCK: Final = 0
#: How much wider than a line is on average a row is that lines are laid in.
ROOM: Final = 1.5
WIDEST: Final = 1024

_EIGHT: Final = np.dtype("V8")


class Lines(NamedTuple):
    """Lines of a block that have a shape.

    Args:
        number: which lines, ascending.
        step: a digit in each byte, the last in the lowest, so that they compare as the numbers do.
        clock: `HH:MM:SS`, the last character in the lowest byte, so that they compare as the times do.
        lane: whose they are: one for all of them, or one for each.
    """

    number: Array
    step: Words
    clock: Words
    lane: int | Array

    def some(self, where: Array | Flags) -> Lines:
        """Those in some places."""
        number, step, clock, lane = self
        return Lines(number[where], step[where], clock[where], lane if isinstance(lane, int) else lane[where])


def together(parts: list[Lines]) -> Lines:
    """Lines that were read one part after the other, in the order of the block."""
    if len(parts) == 1:
        return parts[0]
    number = np.concatenate([part.number for part in parts])
    step, clock = np.concatenate([part.step for part in parts]), np.concatenate([part.clock for part in parts])
    lane: int | Array = parts[0].lane
    if not isinstance(lane, int) or any(not isinstance(part.lane, int) or part.lane != lane for part in parts):
        lane = np.concatenate([np.broadcast_to(np.asarray(part.lane, np.int64), len(part.number)) for part in parts])
    lines = Lines(number, step, clock, lane)
    return lines if (number[1:] > number[:-1]).all() else lines.some(np.argsort(number, kind="stable"))


def steps(words: Words) -> Array:
    """The steps as numbers; -1 for none."""
    number: Array = words.view(np.uint8).reshape(-1, 8) @ _DECIMALS
    number[words == _NO_STEP] = -1
    return number


def as_steps(number: Array) -> Words:
    """Numbers as steps stand in columns."""
    digits = (number[:, None] // _DECIMALS % 10).astype(np.uint8)
    words: Words = digits.view(np.uint64).reshape(-1)
    return words


def seconds(words: Words) -> Array:
    """`HH:MM:SS` as seconds of the day; -1 for none."""
    number: Array = (words.view(np.uint8).reshape(-1, 8) & 15) @ _OF_DAY
    number[words == 0] = -1
    return number


class Aside(NamedTuple):
    """Some lines of a block side by side, each in a row of the same width, filled up with NULs and a newline.

    Args:
        buffer: the rows.
        width: of a row.
        number: which lines.
    """

    buffer: memoryview
    width: int
    number: Array

    def holding(self, ends: Sequence[int]) -> list[int]:
        """Numbers of the lines that hold matches which end in some places of the buffer."""
        found: list[int] = np.unique(self.number[(np.array(ends, np.int64) - 1) // self.width]).tolist()
        return found


def aside(text: bytes, starts: Array, number: Array) -> tuple[Aside, Array]:
    """Those of some lines that fit into rows, and the numbers of the others. To cut lines out one by one costs more.

    Args:
        text: the block.
        starts: of its lines, and where the next one would begin.
        number: which lines.
    """
    start = starts[number]
    length = starts[number + 1] - start
    room = int(length.sum() / len(length) * ROOM)
    width = min(room + 16 - room % 16, WIDEST, len(text))
    fits = (length <= width) & (start <= len(text) - width)
    rest = number[~fits]
    if len(rest):
        number, start, length = number[fits], start[fits], length[fits]
    kept = _fronts(width)
    rows = np.ndarray((len(text) - width + 1,), kept.dtype, text, 0, (1,))[start].view(np.uint8)
    rows &= kept[length].view(np.uint8)
    rows[width - 1 :: width] = 10
    return Aside(rows.data, width, number), rest


@lru_cache(maxsize=8)
def _fronts(width: int) -> Rows:
    """For each length, a row of which so many bytes at the front are ones and the others zeros."""
    table = np.tri(width + 1, width, -1, np.uint8)
    table *= 255
    rows: Rows = table.view(np.dtype(("V", width))).reshape(-1)
    return rows


class Starts:
    """Finds where lines begin; keeps its memory, since fresh memory costs more than the search.

    What it gives has one number more than there are lines: where the next one would begin.
    """

    def __init__(self) -> None:
        self._found = np.zeros(0, np.bool_)
        self._some = np.zeros(0, np.bool_)

    def __call__(self, text: bytes) -> Array:
        """The lines of any text; they end with a newline, or with a carriage return that stands alone."""
        array = np.frombuffer(text, np.uint8)
        found = self._newlines(array)
        if b"\r" in text:
            alone = array == 13
            alone[:-1] &= array[1:] != 10
            found[: len(array)] |= alone
        return _closed(self._after(found), len(array))

    def newlines(self, text: bytes) -> Flags:
        """Which bytes of a text are newlines; to be used before anything else is asked."""
        return self._newlines(np.frombuffer(text, np.uint8))[: len(text)]

    def _newlines(self, array: Bytes) -> Flags:
        size = len(array)
        whole = size + -size % 8
        if len(self._found) < whole:
            self._found = np.empty(whole, np.bool_)
            self._some = np.empty(whole // 8, np.bool_)
        found = self._found[:whole]
        found[size:] = False
        np.equal(array, 10, out=found[:size])
        return found

    def _after(self, found: Flags) -> Array:
        """Zero, the places after those that were found, and room for one more."""
        # Eight bytes at a time: few of them hold a line end, and hardly any two.
        words = found.view(np.uint64)
        some = np.not_equal(words, 0, out=self._some[: len(words)])
        place: Array = some.nonzero()[0]
        below = words[place]
        more = below.copy()
        below -= _u(1)
        more &= below
        if more.any():
            place = found.nonzero()[0]
            starts = np.empty(len(place) + 2, np.int64)
            np.add(place, 1, out=starts[1:-1])
        else:
            starts = np.empty(len(place) + 2, np.int64)
            after = np.left_shift(place, 3, out=starts[1:-1])
            after += (np.bitwise_count(below) + 8) >> 3
        starts[0] = 0
        return starts


def _closed(starts: Array, size: int) -> Array:
    """The end of a text is where the last line ends, unless that has ended before."""
    if starts[-2] == size:
        return starts[:-1]
    starts[-1] = size
    return starts


class _Form:
    """A shape whose steps have so many digits: everything stands in a fixed place, and is read as words of eight bytes.

    Args:
        template: the shape.
        digits: of the step; 0 for lines without one.
    """

    def __init__(self, template: Template, digits: int) -> None:
        # Where words stand, what is in them, and which bits of them matter.
        words: list[tuple[int, bytes, bytes]] = []
        for place in range(len(template.target), template.text, -8):
            first = max(place - 8, 0)
            words.append((first, template.target[first:place], template.mask[first:place]))
        if template.step is not None:
            # The step and what follows it are one word; what is too much for that is another.
            tail, rest = template.tail[: 8 - digits], template.tail[8 - digits :]
            if rest:
                words.append((template.step + 8, rest, b"\xff" * len(rest)))
            words += [(template.step + digits + place, word, mask) for place, word, mask in template.values]
            self.zeros = _word(b"0" * digits + tail)
            self.matters = _word(b"\xff" * (digits + len(tail)))
            self.six = _word(b"\x06" * digits)
            self.wrong = _word(b"\xf0" * digits + b"\xff" * len(tail))
            self.shift = _u(64 - 8 * digits)
        #: Words that are the same in all lines: (place, what stands there, which bits of it matter).
        self.fixed = [(place, _word(target) & _word(mask), _word(mask)) for place, target, mask in words]
        places = [place for place, _, _ in words]
        places += [place for place in (template.step, template.clock) if place is not None]
        places += [begin for begin, _ in template.lanes]
        #: What is looked at of a line: from the first of them to the end of the last.
        self.low, self.need = min(places), max(places) + 8
        self._row = np.dtype(("V", self.need - self.low))

    def rows(self, text: bytes, start: Array) -> Rows:
        """What is looked at of some lines."""
        # A line is copied at once, since it has to be fetched from afar; its words are then near.
        return np.ndarray((len(text) - self.need + 1,), self._row, text, self.low, (1,))[start]

    def word(self, rows: Rows, place: int) -> Words:
        """A word of each line."""
        return np.ndarray((len(rows),), np.uint64, rows, place - self.low, (self._row.itemsize,))

    def differences(self, rows: Rows, number: int) -> Words:
        """What differs in a fixed word of each line."""
        place, target, mask = self.fixed[number]
        found: Words = self.word(rows, place) ^ target
        found &= mask
        return found


class Reader:
    """Reads the lines of one shape out of blocks.

    Args:
        template: the shape.
        kind: a number for its kind.
    """

    def __init__(self, template: Template, kind: int) -> None:
        self.template = template
        self._kind = kind
        self._forms: dict[int, _Form] = {}
        #: Digits that the last step had.
        self._digits = 0
        #: Bytes from the start of a line that are looked at: most where the step is longest.
        self._need = self._form(0 if template.step is None else MAX_DIGITS).need

    def _form(self, digits: int) -> _Form:
        form = self._forms.get(digits)
        if form is None:
            form = self._forms[digits] = _Form(self.template, digits)
        return form

    def read(self, text: bytes, starts: Array, number: Array | None = None) -> tuple[list[Lines], Array]:
        """Those of some lines that have this shape, and the numbers of the others.

        Args:
            text: the block.
            starts: of its lines, and where the next one would begin.
            number: which lines, ascending; None for all.
        """
        start = starts[:-1] if number is None else starts[number]
        after = starts[1:] if number is None else starts[number + 1]
        room = int(start.searchsorted(len(text) - self._need, "right"))
        found, rest = self._together(text, start[:room], after[:room])
        if room < len(start):
            # So near to the end of a block, lines are read one by one.
            spans = zip(start[room:].tolist(), after[room:].tolist(), strict=True)
            single = [self._one(text[begin:end].rstrip(b"\r\n")) for begin, end in spans]
            fits = np.array([one is not None for one in single])
            for place, one in enumerate(single, room):
                if one is not None:
                    step, clock = np.array([[one[0]], [one[1]]], np.uint64)
                    found.append(Lines(np.array([place]), step, clock, one[2]))
            rest = np.concatenate((rest, (~fits).nonzero()[0] + room))
        if number is not None:
            return [lines._replace(number=number[lines.number]) for lines in found], number[rest]
        return found, rest

    def _together(self, text: bytes, start: Array, after: Array) -> tuple[list[Lines], Array]:
        """The same for lines far enough from the end of the block; their numbers are their places among these.

        Args:
            text: the block.
            start: where the lines begin.
            after: where those after them do.
        """
        if not len(start):
            return [], _NONE
        known = self._digits
        if self.template.step is None or known:
            # As a rule all steps of a block have as many digits as the last one before it.
            found, rest, near = self._sized(text, start, after, known)
            if self.template.step is None or not len(near):
                return found, rest
        else:
            found, rest = [], np.arange(len(start))
        widths = self._widths(text, start[rest])
        for digits in set(widths.tolist()) - {0, known}:
            places = rest[widths == digits]
            lines, _, _ = self._sized(text, start[places], after[places], digits)
            found += [more._replace(number=places[more.number]) for more in lines]
            if lines and all(found[-1].number[-1] >= one.number[-1] for one in found):
                self._digits = digits
        left = np.ones(len(start), np.bool_)
        for one in found:
            left[one.number] = False
        return found, left.nonzero()[0]

    def _widths(self, text: bytes, start: Array) -> Array:
        """How many digits the steps of lines have; 0 for lines that are others before the step."""
        step = self.template.step
        assert step is not None
        form = self._form(1)
        widths = np.zeros(len(start), np.int64)
        where = np.arange(len(start))
        if step > self.template.text:
            # The first word is what stands before the step.
            place, target, mask = form.fixed[0]
            same = (_words(text, start + place) ^ target) & mask == 0
            where = same.nonzero()[0]
        if len(where):
            digits = _words(text, start[where] + step) ^ _ZEROS
            others = ((digits + _ABOVE) | digits) & _TOP
            lowest = others & (~others + _u(1))
            widths[where] = np.where(others == 0, 0, np.bitwise_count(lowest - _u(1)) >> 3)
        return widths

    def _sized(self, text: bytes, start: Array, after: Array, digits: int) -> tuple[list[Lines], Array, Array]:
        """Those of the lines that fit and whose steps have so many digits, and the others, by their places.

        Last come those of the others that are the same just before the step: they may have one with other digits.
        """
        form, template = self._form(digits), self.template
        rows = form.rows(text, start)
        differs = form.differences(rows, 0) if form.fixed else np.zeros(len(start), np.uint64)
        for number in range(1, len(form.fixed)):
            differs |= form.differences(rows, number)
        step: Words | None = None
        if template.step is not None:
            step = form.word(rows, template.step) ^ form.zeros
            step &= form.matters
            wrong = step + form.six
            wrong |= step
            wrong &= form.wrong
            differs |= wrong
        late: Words | None = None
        if template.late is not None:
            late = _words(text, np.maximum(after - (template.late + 1), 0))
            differs |= (late ^ _CLOCK) & _CLOCK_BITS
        fits = differs == 0
        where, rest = fits.nonzero()[0], (~fits).nonzero()[0]
        near = rest
        if len(rest) and template.step is not None and template.step > template.text:
            near = rest[form.differences(rows[rest], 0) == 0]
        if not len(where):
            return [], rest, near
        if step is None:
            step = np.full(len(where), NO_STEP, np.uint64)
        else:
            step = step[where]
            step <<= form.shift
            step.byteswap(inplace=True)
        if template.clock is None and late is None:
            clock = np.full(len(where), NO_CLOCK, np.uint64)
        else:
            clock = late[where] if late is not None else form.word(rows, template.clock or 0).take(where)
            clock.byteswap(inplace=True)
        lane: int | Array = self._kind
        for begin, length in template.lanes:
            column = form.word(rows, begin).take(where)
            column &= _word(b"\xff" * length)
            # Where all lines are one lane's there is only one number.
            one = (column == column[0]).all()
            value = _decimal(column[:1] if one else column, length)
            lane = lane * LANES + (int(value[0]) if one else value)
        return [Lines(where, step, clock, lane)], rest, near

    def _one(self, line: bytes) -> tuple[int, int, int] | None:
        """Step, clock and lane of a single line, as a column has them; None where it does not have this shape."""
        template = self.template
        digits = 0
        step, clock = NO_STEP, NO_CLOCK
        if template.step is not None:
            number = line[template.step : template.step + 8]
            digits = len(number) - len(number.lstrip(b"0123456789"))
            after = template.step + digits
            if not 0 < digits <= MAX_DIGITS or line[after : after + len(template.tail)] != template.tail:
                return None
            step = int.from_bytes(number[:digits], "big") & 0x0F0F0F0F0F0F0F0F
        form = self._form(digits)
        for place, target, mask in form.fixed:
            if int.from_bytes(line[place : place + 8], "little") & int(mask) != int(target):
                return None
        at = template.clock if template.late is None else max(len(line) - template.late, 0)
        if at is not None:
            word = line[at : at + 8]
            clock = int.from_bytes(word, "big")
            if template.late is not None and (int.from_bytes(word, "little") ^ int(_CLOCK)) & int(_CLOCK_BITS):
                return None
        lane = self._kind
        for begin, length in template.lanes:
            value = 0
            for byte in line[begin : begin + length]:
                value = value * 10 + (byte & 15)
            lane = lane * LANES + value
        return step, clock, lane


def _decimal(words: Words, length: int) -> Array:
    """The number whose digits are the first bytes of words."""
    value = words & _u(15)
    for place in range(8, 8 * length, 8):
        value *= _u(10)
        value += (words >> _u(place)) & _u(15)
    return value.view(np.int64)


def _words(text: bytes, places: Array) -> Words:
    """The eight bytes in each of some places."""
    return np.ndarray((len(text) - 7,), _EIGHT, text, 0, (1,))[places].view(np.uint64)


def _word(text: bytes) -> np.uint64:
    return np.uint64(int.from_bytes(text, "little"))


def _u(value: int) -> np.uint64:
    return np.uint64(value)


_NONE: Final[Array] = np.zeros(0, np.int64)
_NO_STEP: Final = _u(NO_STEP)
#: A time, of which only the colons are compared and that the others are digits.
_CLOCK: Final = _word(b"00:00:00")
_CLOCK_BITS: Final = _word(b"\xf0\xf0\xff\xf0\xf0\xff\xf0\xf0")
_ZEROS: Final = _u(0x3030303030303030)
_ABOVE: Final = _u(0x7676767676767676)
_TOP: Final = _u(0x8080808080808080)
#: What the bytes of a step count, the last digit first, and those of a time.
_DECIMALS: Final = 10 ** np.arange(8, dtype=np.int64)
_OF_DAY: Final = np.array((1, 10, 0, 60, 600, 0, 3600, 36_000), np.int64)
