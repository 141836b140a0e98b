"""Progress lines of one shape, read by the block.

Nearly all lines of a training log are made by one format string. A template is learned from one of them: which bytes
before the step stay the same, which are digits, where the step begins, where the time stands, which digits say whose
line it is. Which digits these are is not guessed: one digit is changed, and the recipes are asked again. All lines of
a block are then compared with the template at once, and their steps and times read without looking at a line alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from typing import Final, NamedTuple, TypeAlias

import msgspec
import numpy as np
import re2

Array: TypeAlias = np.ndarray[tuple[int], np.dtype[np.int64]]
Words: TypeAlias = np.ndarray[tuple[int], np.dtype[np.uint64]]

Flags: TypeAlias = np.ndarray[tuple[int], np.dtype[np.bool_]]

#: Ranks and the like that lanes of one kind are told apart by.
LANES: Final = 4096
#: How far into a line a template may reach.
REACH: Final = 192
#: Bytes after the step that are compared, up to the next digit.
TAIL: Final = 8
#: Numbers before the step that are looked at while learning.
MAX_NUMBERS: Final = 24

#: Values after the step whose size is looked at, and numbers that are tried to find them.
MAX_VALUES: Final = 2
MAX_TRIED: Final = 8

_NUMBER = re2.compile(rb"\d+")
_VALUE = re2.compile(rb"\d+(?:\.\d*)?(?:[eE][+-]?\d+)?")
_CLOCK = re2.compile(rb"\d\d:\d\d:\d\d")


class Said(NamedTuple):
    """What the recipes and the reader make of one line.

    Args:
        progress: it is a progress line.
        step: the step it has, if any.
        who: whose line it is, in any form that can be compared.
        timed: it has a time of its own.
        values: what it says of the loss and the like.
    """

    progress: bool
    step: int | None
    who: object
    timed: bool = True
    values: object = None


Ask: TypeAlias = Callable[[bytes], Said]


class Template(msgspec.Struct, frozen=True):
    """The shape of a line.

    Args:
        target: the bytes before the step, digits as zeros.
        mask: which bits of them are compared: all of a byte that stays the same, the upper half of a digit.
        step: where the step begins; None for lines without one.
        tail: the bytes after the step, and how many of them are compared.
        values: (place after the step, bytes, which bits of them are compared): with one more digit before its point, or
            another exponent, a value is one of another shape, so that none becomes ten times as large unseen.
        clock: where `HH:MM:SS` stands; None for lines without a time.
        lanes: (start, length) of the numbers that say whose line it is.
        kind: lines of different kinds are followed apart.
        text: where the text begins; what a container runtime puts before it is the same for all lines.
        timed: lines say when they were written; the clock of others may be that of something else.
    """

    target: bytes
    mask: bytes
    step: int | None
    tail: bytes
    values: tuple[tuple[int, bytes, bytes], ...]
    clock: int | None
    lanes: tuple[tuple[int, int], ...]
    kind: bytes
    text: int
    timed: bool


def learn(line: bytes, text: int, ask: Ask) -> Template | None:
    """The template of a line; None where it has none that can be read in fixed places.

    Args:
        line: without its terminator.
        text: how many bytes before its text are a container runtime's.
        ask: what recipes and reader make of such a line.
    """
    said = ask(line)
    if not said.progress:
        return None
    numbers = [match.span() for match in _NUMBER.finditer(line[:REACH])][:MAX_NUMBERS]
    clock = _CLOCK.search(line[:REACH])
    lanes: list[tuple[int, int]] = []
    at: int | None = None
    for start, end in numbers:
        if at is not None:
            break
        value = int(line[start:end])
        timed = clock is not None and clock.start() <= start < clock.end()
        if timed or start < text:
            continue
        other = _changed(line, end - 1)
        now = ask(other)
        if said.step is not None and value == said.step and now.step == int(other[start:end]):
            at = start
        elif now.who != said.who:
            lanes.append((start, end - start))
    if said.step is not None and at is None:
        return None
    reach = at if at is not None else _after_prefix(line, numbers, lanes)
    if reach is None:
        return None
    if clock is not None and clock.end() > reach:
        clock = None
    if any(length > 8 for _, length in lanes):
        return None
    head = line[:reach]
    digits = [48 <= byte <= 57 for byte in head]
    target = bytes(48 if digit else byte for byte, digit in zip(head, digits, strict=True))
    mask = bytes(0xF0 if digit else 0xFF for digit in digits)
    tail = b""
    values: tuple[tuple[int, bytes, bytes], ...] = ()
    if at is not None:
        end = next(stop for start, stop in numbers if start == at)
        rest = line[end : end + TAIL]
        number = _NUMBER.search(rest)
        tail = rest[: number.start()] if number else rest
        values = tuple(_values(line, end, said, ask))
    kind = b"\x00".join((target, tail, *(word for _, word, _ in values)))
    place = clock.start() if clock else None
    timed = said.timed and place is not None
    return Template(target, mask, at, tail, values, place, tuple(lanes), kind, text, timed)


def _values(line: bytes, step_end: int, said: Said, ask: Ask) -> Iterator[tuple[int, bytes, bytes]]:
    """The words that show how large the values after a step are."""
    found = 0
    for match in islice(_VALUE.finditer(line[:REACH], step_end), MAX_TRIED):
        start, end = match.span()
        if found == MAX_VALUES or ask(_changed(line, start)).values == said.values:
            continue
        found += 1
        number = line[start:end]
        exponent = max(number.find(b"e"), number.find(b"E"))
        # Up to the character after the whole part, or to the end of the exponent.
        stop = end if exponent >= 0 else start + len(number.partition(b".")[0]) + 1
        begin = max(stop - 8, step_end)
        word = line[begin:stop]
        exact = start + exponent if exponent >= 0 else stop
        mask = bytes(0xF0 if 48 <= byte <= 57 and begin + at < exact else 0xFF for at, byte in enumerate(word))
        zeros = bytes(48 if bits == 0xF0 else byte for byte, bits in zip(word, mask, strict=True))
        yield begin - step_end, zeros, mask


def _changed(line: bytes, place: int) -> bytes:
    """The same line with another digit in this place; never one that makes the number zero or shorter."""
    digit = line[place] - 48
    return line[:place] + bytes((48 + (digit + 1 if digit < 9 else 1),)) + line[place + 1 :]


def _after_prefix(line: bytes, numbers: list[tuple[int, int]], lanes: list[tuple[int, int]]) -> int | None:
    """Where a line without a step stops being the same: at the first number after all that stands before the text."""
    text = max((start + length for start, length in lanes), default=0)
    for start, end in numbers:
        before = line[text:start]
        # A word of letters before the number: the text itself has begun, not a date.
        if start > text and sum(byte > 48 and chr(byte).isalpha() for byte in before[-12:]) >= 3:
            return start
        text = end
    return None


class Lines(NamedTuple):
    """Lines of a block that have a template.

    Args:
        number: which lines, ascending.
        step: their steps; -1 for lines without.
        second: of the day; -1 where the line has no time.
        lane: whose they are.
    """

    number: Array
    step: Array
    second: Array
    lane: Array


_EIGHT: Final = np.dtype("V8")
_NO_NUMBERS: Final[Array] = np.zeros(0, np.int64)
_MISSING: Final[Array] = np.zeros(0, np.int64)
_NO_LINES: Final = Lines(_NO_NUMBERS, _NO_NUMBERS, _NO_NUMBERS, _NO_NUMBERS)


class Ends:
    """Finds where lines end; keeps its memory, since fresh memory costs more than the search."""

    def __init__(self) -> None:
        self._found = np.zeros(0, np.bool_)
        self._some = np.zeros(0, np.bool_)

    def newlines(self, text: bytes) -> Array | None:
        """Newlines of a text that has no other control characters but tabs; None where it has."""
        array = np.frombuffer(text, np.uint8)
        found = self._flags(len(array))
        np.less(array, 32, out=found[: len(array)])
        place = self._places(found)
        values = array[place]
        other = values != 10
        if not other.any():
            return place
        if (values[other] != 9).any():
            return None
        lines: Array = place[~other]
        return lines

    def __call__(self, text: bytes) -> Array:
        """Newlines and carriage returns."""
        array = np.frombuffer(text, np.uint8)
        found = self._flags(len(array))
        np.equal(array, 10, out=found[: len(array)])
        if b"\r" in text:
            found[: len(array)] |= array == 13
        return self._places(found)

    def _flags(self, size: int) -> Flags:
        if len(self._found) < size + 8:
            self._found = np.empty(size + 8 + -size % 8, np.bool_)
            self._some = np.empty(len(self._found) // 8, np.bool_)
        found = self._found[: size + -size % 8]
        found[size:] = False
        return found

    def _places(self, found: Flags) -> Array:
        # Eight bytes at a time: few of them hold a line end, and hardly any two.
        words = found.view(np.uint64)
        some = np.not_equal(words, 0, out=self._some[: len(words)])
        place: Array = some.nonzero()[0]
        less = words[place]
        value = less.copy()
        less -= _u(1)
        value &= less
        if value.any():
            return found.nonzero()[0]
        place <<= 3
        place += np.bitwise_count(less) >> 3
        return place


class Reader:
    """Reads the lines of one shape out of blocks.

    Args:
        template: the shape.
        kind: a number for its kind.
    """

    def __init__(self, template: Template, kind: int) -> None:
        self.template = template
        self._kind = kind
        width = len(template.target)
        self._values = [(place, _word(word), _word(mask)) for place, word, mask in template.values]
        self._checks: list[tuple[int, np.uint64, np.uint64]] = []
        for place in range(width, template.text, -8):
            first = max(place - 8, 0)
            mask = _word(template.mask[first:place])
            self._checks.append((first, _word(template.target[first:place]) & mask, mask))
        self._tail = _word(template.tail)
        self._tail_mask = _u((1 << 8 * len(template.tail)) - 1)
        # What is copied of a line at once: from the first thing that is looked at to the last, so that the eight bytes
        # before the step, and those before them, are words.
        low = min([place for place, _, _ in self._checks] + [width if template.clock is None else template.clock])
        self._low = max(low - (low - width) % 8, width % 8)
        size = width - self._low + 16 + max((place for place, _, _ in self._values), default=0)
        self._width = size + -size % 8
        #: Bytes that must follow the start of a line.
        self.need = self._low + self._width

    def read(self, text: bytes, start: Array, number: Array) -> tuple[Lines, Flags | None]:
        """Those of the lines that have this shape, and which of the lines these are; None for all.

        Args:
            text: the block.
            start: where lines begin, none nearer than `need` to its end.
            number: which lines they are.
        """
        template, low, width = self.template, self._low, self._width
        given = len(start)
        kept: Array | None = None
        if self._checks:
            # Most lines that are others differ in the eight bytes before the step.
            place, target, mask = self._checks[0]
            found = np.ndarray((len(text) - 7,), _EIGHT, text, 0, (1,))[start + place].view(np.uint64)
            if mask != _ALL:
                found &= mask
            kept = (found == target).nonzero()[0]
            if len(kept) == given:
                kept = None
            elif not len(kept):
                return _NO_LINES, None
            else:
                start = start[kept]
        rows = np.ndarray((len(text) - low - width + 1,), np.dtype(("V", width)), text, low, (1,))[start]

        def words(at: int) -> Words:
            if at < low:
                return np.ndarray((len(text) - 7,), _EIGHT, text, 0, (1,))[start + at].view(np.uint64)
            return np.ndarray((len(rows),), np.uint64, rows, at - low, (width,))

        fits: Flags | None = None
        for place, target, mask in self._checks[1:]:
            fits = _also(fits, words(place) == target if mask == _ALL else (words(place) & mask) == target)
        step = _MISSING
        if template.step is not None:
            place = template.step
            step, digits, stepped = self._steps(words(place), lambda: words(place + 8))
            if stepped is not None:
                fits = _also(fits, stepped)
            for after, target, mask in self._values:
                if isinstance(digits, int):
                    found = words(place + digits + after)
                else:
                    eights = np.ndarray((len(text) - 7,), _EIGHT, text, 0, (1,))
                    found = eights[start + (digits + (place + after))].view(np.uint64)
                fits = _also(fits, (found & mask) == target)
        if fits is not None:
            where = fits.nonzero()[0]
            if not len(where):
                return _NO_LINES, None
            rows, start, step = rows[where], start[where], step if step is _MISSING else step[where]
            kept = where if kept is None else kept[where]
        number = number if kept is None else number[kept]
        second = _MISSING if template.clock is None else _seconds(words(template.clock))
        lane: int | Array = self._kind
        for begin, length in template.lanes:
            value: int | Array = 0
            for at in range(begin, begin + length):
                if at >= low:
                    digit_bytes = np.ndarray((len(rows),), np.uint8, rows, at - low, (width,))
                else:
                    digit_bytes = np.frombuffer(text, np.uint8)[start + at]
                first = int(digit_bytes[0])
                # Where all lines are one lane's there is only one number.
                digit: int | Array = first - 48 if (digit_bytes == first).all() else digit_bytes.astype(np.int64) - 48
                value = value * 10 + digit
            lane = lane * LANES + value
        lanes = np.full(len(number), lane, np.int64) if isinstance(lane, int) else lane
        good: Flags | None = None
        if kept is not None:
            good = np.zeros(given, np.bool_)
            good[kept] = True
        return Lines(number, _filled(step, len(number)), _filled(second, len(number)), lanes), good

    def read_one(self, line: bytes) -> tuple[int, int, int] | None:
        """Step, second and lane of a single line; None where it does not have this shape."""
        template = self.template

        def word(at: int) -> int:
            return int.from_bytes(line[at : at + 8], "little")

        if any(word(place) & int(mask) != int(target) for place, target, mask in self._checks):
            return None
        step = -1
        if template.step is not None:
            begin = template.step
            width = len(line[begin : begin + 8]) - len(line[begin : begin + 8].lstrip(b"0123456789"))
            end = begin + width
            if not 0 < width < 8 or line[end : end + len(template.tail)] != template.tail:
                return None
            if any(word(end + after) & int(mask) != int(target) for after, target, mask in self._values):
                return None
            step = int(line[begin:end])
        second = -1
        if template.clock is not None:
            digits = [byte & 15 for byte in line[template.clock : template.clock + 8]]
            hours, minutes, seconds = (10 * digits[at] + digits[at + 1] for at in (0, 3, 6))
            second = 3600 * hours + 60 * minutes + seconds
        lane = self._kind
        for begin, length in template.lanes:
            value = 0
            for byte in line[begin : begin + length]:
                value = value * 10 + byte - 48
            lane = lane * LANES + value
        return step, second, lane

    def _steps(self, first: Words, after: Callable[[], Words]) -> tuple[Array, int | Array, Flags | None]:
        """The steps that begin eight bytes, how long they are, and which lines have one and what follows it; None for
        all."""
        tail = self.template.tail
        first = np.ascontiguousarray(first)
        head = int(first[0]).to_bytes(8, "little")
        width = 8 - len(head.lstrip(b"0123456789"))
        if width > 0 and width + len(tail) <= 8 and tail:
            # As a rule all steps of a block have as many digits as the first, and then much is known beforehand.
            digits = first ^ _ZEROS
            digits &= _u((1 << 8 * width) - 1)
            wrong = digits + _SIX
            wrong |= digits
            wrong &= _UPPER
            behind = first >> _u(8 * width)
            behind ^= self._tail
            behind &= self._tail_mask
            wrong |= behind
            if not wrong.any():
                digits <<= _u(64 - 8 * width)
                return _value(digits), width, None
        values, widths = _numbers(first)
        good = (widths > 0) & (widths < 8)
        if tail:
            bits = (widths * 8).astype(np.uint64) & _u(63)
            rest = (first >> bits) | (after() << (_u(64) - bits & _u(63)))
            good &= (rest & self._tail_mask) == self._tail
        return values, widths, good


def _also(fits: Flags | None, same: Flags) -> Flags | None:
    """Which lines fit so far; None for all."""
    if same.all():
        return fits
    return same if fits is None else fits & same


def _filled(values: Array, size: int) -> Array:
    return np.full(size, -1, np.int64) if values is _MISSING else values


def _word(text: bytes) -> np.uint64:
    return np.uint64(int.from_bytes(text, "little"))


def _u(value: int) -> np.uint64:
    return np.uint64(value)


_ALL: Final = _u((1 << 64) - 1)
_ZEROS: Final = _u(0x3030303030303030)
_ABOVE: Final = _u(0x7676767676767676)
_TOP: Final = _u(0x8080808080808080)
_SIX: Final = _u(0x0606060606060606)
_UPPER: Final = _u(0xF0F0F0F0F0F0F0F0)
#: Digits become numbers of two, four and eight digits: what to multiply by, how far the next one is, what is kept.
_STAGES: Final = (
    (_u(10), _u(8), _u(0x00FF00FF00FF00FF)),
    (_u(100), _u(16), _u(0x0000FFFF0000FFFF)),
    (_u(10000), _u(32), _u(0xFFFFFFFF)),
)


def _numbers(words: Words) -> tuple[Array, Array]:
    """The decimal numbers at the beginning of eight bytes, and how many digits they have (8: perhaps more)."""
    digits = words ^ _ZEROS
    others = ((digits + _ABOVE) | digits) & _TOP
    lowest = others & (~others + _u(1))
    width = np.where(others == 0, _u(8), np.bitwise_count(lowest - _u(1)).astype(np.uint64) >> _u(3))
    # The first character is the lowest byte; shifted up, what is below it are leading zeros.
    shift = (_u(8) - width) * _u(8)
    value = np.where(width == 0, _u(0), digits << (shift & _u(63)))
    return _value(value), width.astype(np.int64)


def _value(digits: Words) -> Array:
    """The number of eight digits, the first in the lowest byte."""
    value = digits
    for factor, shift, mask in _STAGES:
        high = value >> shift
        value = value * factor
        value += high
        value &= mask
    number: Array = value.view(np.int64)
    return number


def _seconds(words: Words) -> Array:
    """`HH:MM:SS` as seconds of the day. Many lines share a second, so each is worked out where it begins."""
    words = np.ascontiguousarray(words)
    changes = (words[1:] != words[:-1]).nonzero()[0]
    borders = np.empty(len(changes) + 2, np.int64)
    borders[0], borders[-1] = 0, len(words)
    np.add(changes, 1, out=borders[1:-1])
    return np.repeat(_of_day(words[borders[:-1]]), borders[1:] - borders[:-1])


def _of_day(words: Words) -> Array:
    digits = words & _u(0x0F0F000F0F000F0F)
    pairs = digits * _u(10) + (digits >> _u(8))
    hours, minutes, seconds = pairs & _u(0xFF), (pairs >> _u(24)) & _u(0xFF), (pairs >> _u(48)) & _u(0xFF)
    second: Array = (hours * _u(3600) + minutes * _u(60) + seconds).astype(np.int64)
    return second
