"""The shape of progress lines.

Nearly all lines of a training log are made by one format string. A template is learned from one of them: which bytes
before the step stay the same, which are digits, where the step begins, where the time stands, which digits say whose
line it is. Which digits these are is not guessed: one digit is changed, and the recipes are asked again. All lines of
a block are then compared with the template at once, and their steps and times read without looking at a line alone
(`columns`).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Final, NamedTuple, TypeAlias

import msgspec
import re2

#: Ranks and the like that lanes of one kind are told apart by.
LANES: Final = 4096
#: How far into a line a template may reach.
REACH: Final = 192
#: Bytes after the step that are compared, up to the next digit.
TAIL: Final = 8
#: How far before the end of a line its time is looked for.
LATE: Final = 48
#: Numbers before the step that are looked at while learning.
MAX_NUMBERS: Final = 24

#: Shapes of lines that are remembered, and how long these lines may be.
MAX_KNOWN: Final = 1024
LONGEST_KNOWN: Final = 512

#: Values after the step whose size is looked at, and numbers that are tried to find them.
MAX_VALUES: Final = 2
MAX_TRIED: Final = 8

#: All digits as zeros.
DIGITS: Final = bytes.maketrans(b"0123456789", b"0000000000")

_NUMBER = re2.compile(rb"\d+")
_VALUE = re2.compile(rb"\d+(?:\.\d*)?(?:[eE][+-]?\d+)?")
_EXPONENT = re2.compile(rb"[eE][+-]?\d+")
_DIGITS = re2.compile(rb"0+")
_BLANKS = re2.compile(rb"[ \x00]+")
_CLOCK = re2.compile(rb"\d\d:\d\d:\d\d")


class Said(NamedTuple):
    """What the recipes and the reader make of one line.

    Args:
        progress: it is a progress line.
        step: the step it has, if any.
        who: whose line it is, in any form that can be compared.
        timed: it has a time of its own.
        values: what it says of the loss and the like.
        time: the time of its own, in any form that can be compared.
    """

    progress: bool
    step: int | None
    who: object
    timed: bool = True
    values: object = None
    time: object = None


Ask: TypeAlias = Callable[[bytes], Said]


class Template(msgspec.Struct, frozen=True):
    """The shape of a line.

    Args:
        target: the bytes before the step, digits as zeros.
        mask: which bits of them are compared: all of a byte that stays the same, the upper half of a digit, none of
            what is drawn (bars are of other characters than ASCII's).
        step: where the step begins; None for lines without one.
        tail: the bytes after the step, and how many of them are compared.
        values: (place after the step, bytes, which bits of them are compared): with one more digit before its point, or
            another exponent, a value is one of another shape, so that none becomes ten times as large unseen.
        clock: where `HH:MM:SS` stands; None for lines without a time before the step.
        late: for those, how far before the end of the line it stands; None where it does not either.
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
    late: int | None
    lanes: tuple[tuple[int, int], ...]
    kind: bytes
    text: int
    timed: bool


class Lessons:
    """What was learned from the lines of some streams, for others of the same format. Not for two threads at a time.

    What is learned from a line depends on no other digits than those of exponents, so that a line that has the same
    ones and otherwise the same shape says nothing new.
    """

    def __init__(self) -> None:
        self._learned: OrderedDict[bytes, Template | None] = OrderedDict()

    def learn(self, line: bytes, text: int, ask: Ask) -> Template | None:
        """As `learn`."""
        if len(line) > LONGEST_KNOWN:
            return learn(line, text, ask)
        shape = b" ".join((line.translate(DIGITS), *_EXPONENT.findall(line)))
        if shape not in self._learned:
            self._learned[shape] = learn(line, text, ask)
            if len(self._learned) > MAX_KNOWN:
                self._learned.popitem(last=False)
        return self._learned[shape]


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
    mask = bytes(0xF0 if 48 <= byte <= 57 else 0xFF if byte < 128 else 0 for byte in head)
    target = bytes(48 if bits == 0xF0 else byte & bits for byte, bits in zip(head, mask, strict=True))
    tail = b""
    values: tuple[tuple[int, bytes, bytes], ...] = ()
    if at is not None:
        end = next(stop for start, stop in numbers if start == at)
        rest = line[end : end + TAIL]
        number = _NUMBER.search(rest)
        tail = rest[: number.start()] if number else rest
        values = tuple(_values(line, end, said, ask))
    kind = b"\x00".join((_gist(target), tail, *(word for _, word, _ in values)))
    place = clock.start() if clock else None
    late = _late(line, reach, said, ask) if said.timed and place is None else None
    timed = said.timed and (place is not None or late is not None)
    return Template(target, mask, at, tail, values, place, late, tuple(lanes), kind, text, timed)


def _gist(target: bytes) -> bytes:
    """A shape without how wide its numbers, its blanks and what is drawn are: a bar that grows is one kind of line."""
    gist: bytes = _BLANKS.sub(b" ", _DIGITS.sub(b"0", target))
    return gist


def _late(line: bytes, after: int, said: Said, ask: Ask) -> int | None:
    """How far before the end of a line its time stands, where that follows everything else: Docker writes it last."""
    begin = max(after, len(line) - LATE)
    for clock in _CLOCK.finditer(line[begin:]):
        if ask(_changed(line, begin + clock.end() - 1)).time != said.time:
            return len(line) - begin - int(clock.start())
    return None


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
