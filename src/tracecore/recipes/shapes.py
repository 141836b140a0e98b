"""Shapes of progress lines: what each number of a line means, learned from the recipes.

Two lines have the same outline when they differ only in numbers and unimportant words: `step 12 loss 2.5` and
`step 13 loss 2.4`. A shape says what the numbers of an outline mean: number 0 is the step, number 1 is part of the
loss.

A shape is learned from one line. One number after the other is changed, and reader and recipes evaluate the changed
line. What changes in the result, and by how much, is the meaning of that number. So this module knows no framework's
format.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Final, NamedTuple, TypeAlias

#: Numbers of a line that may have a meaning, at most.
WIDTH: Final = 14
#: Answers for a line without a shape: not looked up yet; no progress; progress to be evaluated line by line.
UNKNOWN: Final = -1
NOTHING: Final = -2
EVALUATE: Final = -3
#: The magnitudes of several values are added up, each multiplied by another power of this factor.
VALUE_FACTOR: Final = 4096
#: Steps are below `MAX_STEP`. Numbers with more than `MAX_DIGITS` digits do not fit into 64 bits and are not read.
MAX_STEP: Final = 1 << 40
MAX_DIGITS: Final = 19

DIGITS: Final = b"0123456789"
#: Lines that differ only in numbers and hexadecimal identifiers are equal without these bytes.
VARYING: Final = DIGITS + b"abcdef"
NUMBER: Final = re.compile(rb"\d+")
#: Terminal codes, plain or escaped in JSON, and other escapes: part of the line, not of its text.
_CODE: Final = re.compile(rb"(?:\x1b|\\u001[bB])\[[0-?]*[ -/]*[@-~]|\\u[0-9A-Fa-f]{4}|\\.")


class Reading(NamedTuple):
    """The findings of reader and recipes on one line.

    Args:
        stamped: the recipes stamp something on it.
        only_progress: they stamp nothing but progress.
        trouble: they stamp more than normal work: progress, checkpoints, step times.
        step: its step.
        writer: identifies the process that wrote it.
        kind: tells kinds of progress lines apart: the phase and which attributes there are.
        time: in seconds, in any calendar; None without a time.
        values: loss and gradient norm. Only their magnitude matters.
        owner: identifies the rank whose progress it is (machine, rank, pod). Several writers may report the progress of
            one rank.
        details: attributes besides progress, without messages, sizes and the like.
    """

    stamped: bool
    only_progress: bool
    trouble: bool
    step: int | None
    writer: object
    kind: object
    time: float | None
    values: tuple[float | None, ...]
    owner: tuple[object, ...] = ()
    details: object = None


Evaluate: TypeAlias = Callable[[bytes], Reading]


class Shape(NamedTuple):
    """The meaning of the numbers of a line. A number is given by its index, which may count from the end.

    Args:
        steps: numbers that are part of the step, and how much one unit adds to it.
        times: the same for the time, in seconds.
        writer: numbers that identify the writer.
        owner: numbers that identify the owner.
        lengths: numbers whose count of digits is the magnitude of a value, with the factor of that value.
        exponents: numbers that are the exponent of a value, with its factor and sign.
        stepless: the line has no step.
        kind: see `Reading`.
        base_time: the time of a line whose numbers are all 0; None for lines without a time.
        owner_known: which parts of the owner the line has; a missing rank is not rank 0.
    """

    steps: tuple[tuple[int, int], ...] = ()
    times: tuple[tuple[int, float], ...] = ()
    writer: tuple[int, ...] = ()
    owner: tuple[int, ...] = ()
    lengths: tuple[tuple[int, int], ...] = ()
    exponents: tuple[tuple[int, int], ...] = ()
    stepless: bool = False
    kind: object = None
    base_time: float | None = None
    owner_known: tuple[bool, ...] = ()

    @property
    def timeless(self) -> bool:
        """Whether the line has no time."""
        return self.base_time is None

    def fits(self, reading: Reading, raw: bytes, spans: Sequence[tuple[int, int]]) -> bool:
        """Whether this shape gives the same kind, step and time for a line as its evaluation did."""
        step = None if self.stepless else sum(_number(raw, spans[place]) * weight for place, weight in self.steps)
        if (reading.kind, reading.step, reading.time is None) != (self.kind, step, self.base_time is None):
            return False
        if reading.time is None or self.base_time is None:
            return True
        passed = sum(_number(raw, spans[place]) * weight for place, weight in self.times)
        return abs(self.base_time + passed - reading.time) < 2

    def covers(self, reading: Reading, raw: bytes, spans: Sequence[tuple[int, int]], evaluate: Evaluate) -> bool:
        """Whether this shape fits a line of another outline, and the line's other numbers mean nothing."""
        count = len(spans)
        if not all(-count <= place < count for place in self.used) or not self.fits(reading, raw, spans):
            return False
        used = {place % count for place in self.used}
        others = [span for place, span in enumerate(spans) if place not in used]
        return not others or _alike(reading, evaluate(_changed(raw, others)))

    @property
    def used(self) -> list[int]:
        """Indexes of the numbers that have a meaning."""
        pairs = (*self.steps, *self.times, *self.lengths, *self.exponents)
        return sorted({*self.writer, *self.owner, *(place for place, _ in pairs)})


def number_spans(line: bytes) -> list[tuple[int, int]]:
    """Return where the numbers of a line are."""
    return [match.span() for match in NUMBER.finditer(line)]


def raw_spans(raw: bytes, text: bytes, shown: Sequence[tuple[int, int]]) -> Sequence[tuple[int, int]] | None:
    """Translate spans of numbers in the text of a line to spans in the raw line; None if that is not certain.

    Args:
        raw: the line as it is in the file.
        text: the same without escapes and terminal codes.
        shown: the numbers of the text that are not part of an identifier.
    """
    if raw == text:
        return shown
    in_raw = number_spans(_CODE.sub(lambda code: b"\xff" * len(code.group()), raw))
    in_text = number_spans(text)
    if [raw[begin:end] for begin, end in in_raw] != [text[begin:end] for begin, end in in_text]:
        return None
    wanted = set(shown)
    return [span for span, place in zip(in_raw, in_text, strict=True) if place in wanted]


def learn(raw: bytes, spans: Sequence[tuple[int, int]], evaluate: Evaluate) -> Shape | int:
    """Return the shape of a line, or `NOTHING` or `EVALUATE`; `UNKNOWN` if another line of its outline may have one.

    Args:
        raw: the line.
        spans: where its numbers are.
        evaluate: what reader and recipes make of a line.
    """
    base = evaluate(raw)
    if not base.stamped or not base.only_progress:
        return EVALUATE if base.stamped else NOTHING
    steps: list[tuple[int, int]] = []
    times: list[tuple[int, float]] = []
    writer: list[int] = []
    owner: list[int] = []
    lengths: list[tuple[int, int]] = []
    exponents: list[tuple[int, int]] = []
    for place in meaningful(raw, spans, evaluate, base):
        begin, end = spans[place]
        reading, change = _read_changed(raw, begin, end, evaluate, base)
        if reading is None:
            return EVALUATE
        if reading.writer != base.writer or reading.kind != base.kind:
            writer.append(place)
        if reading.owner != base.owner:
            owner.append(place)
        if reading.step != base.step:
            if reading.step is None or base.step is None or (reading.step - base.step) % change:
                return EVALUATE
            steps.append((place, (reading.step - base.step) // change))
        if reading.time != base.time:
            if reading.time is None or base.time is None:
                return EVALUATE
            weight = (reading.time - base.time) / change
            if abs(weight) >= 0.9 or end - begin >= 10:  # else a fraction of a second
                times.append((place, weight))
        for number, (before, after) in enumerate(zip(base.values, reading.values, strict=True)):
            factor = VALUE_FACTOR**number
            if before is None or after is None or before == after:
                continue
            if _is_integer_part(before, after, change) and factor not in dict(lengths).values():
                lengths.append((place, factor))
            elif sign := _exponent_sign(before, after, change):
                exponents.append((place, sign * factor))
    base_time = None
    if times and base.time is not None:
        base_time = base.time - sum(_number(raw, spans[place]) * weight for place, weight in times)
    others = (*writer, *owner, *(place for place, _ in (*steps, *lengths, *exponents)))
    if times and times[0][0] > max(others, default=-1):
        # The time of a container runtime is at the end of the line, behind a text with any count of numbers.
        times = [(place - len(spans), weight) for place, weight in times]
    columns = tuple(steps), tuple(times), tuple(writer), tuple(owner), tuple(lengths), tuple(exponents)
    known = tuple(bool(name) or name == 0 for name in base.owner)
    shape = Shape(*columns, base.step is None, base.kind, base_time, known)
    if any(spans[place][1] - spans[place][0] > MAX_DIGITS for place in shape.used):
        return UNKNOWN
    return shape if len(shape.used) <= WIDTH and shape.fits(base, raw, spans) else EVALUATE


def meaningful(raw: bytes, spans: Sequence[tuple[int, int]], evaluate: Evaluate, base: Reading) -> Iterable[int]:
    """Yield the indexes of the numbers that have a meaning: changing one changes what the recipes say.

    Numbers without a meaning are tested in growing groups. The numbers of a date are neighbours and all have a meaning,
    so after each find the group is one number again.
    """

    def matter(low: int, high: int) -> bool:
        return evaluate(_changed(raw, spans[low:high])) != base

    low, size = 0, 1
    while low < len(spans):
        high = min(low + size, len(spans))
        if not matter(low, high):
            low, size = high, 2 * size
            continue
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if matter(low, middle) else (middle, high)
        yield low
        low, size = low + 1, 1


def _number(raw: bytes, span: tuple[int, int]) -> int:
    return int(raw[span[0] : span[1]])


def _changed(raw: bytes, spans: Iterable[tuple[int, int]]) -> bytes:
    """Return a line with other numbers in some places."""
    changed = bytearray(raw)
    for span in spans:
        place = _digit_to_change(*span)
        changed[place] = _other_digit(raw[place])
    return bytes(changed)


def _alike(one: Reading, other: Reading) -> bool:
    """Whether two readings differ only in fractions of seconds and of values."""
    if one._replace(time=None, values=()) != other._replace(time=None, values=()):
        return False
    pairs = zip((one.time, *one.values), (other.time, *other.values), strict=True)
    return all(_near(before, after) for before, after in pairs)


def _near(one: float | None, other: float | None) -> bool:
    if one is None or other is None:
        return one is other
    return one == other or (abs(one - other) < 1 and math.isclose(one, other, rel_tol=0.1))


def _digit_to_change(begin: int, end: int) -> int:
    """Return the last digit of a number, but at most the eleventh: in nanoseconds the last one hardly counts."""
    return min(end, begin + 11) - 1


def _other_digit(digit: int) -> int:
    """Return one less, so that dates stay valid; 1 for 0."""
    return digit - 1 if digit > 48 else 49


def _read_changed(raw: bytes, begin: int, end: int, evaluate: Evaluate, base: Reading) -> tuple[Reading | None, int]:
    """Evaluate a line with another number in one place; return the reading, or None, and the number's change."""
    for place in (_digit_to_change(begin, end), begin):
        changed = raw[:place] + bytes((_other_digit(raw[place]),)) + raw[place + 1 :]
        reading = evaluate(changed)
        if reading.stamped and (reading.time is None) == (base.time is None):
            return reading, int(changed[begin:end]) - int(raw[begin:end])
    return None, 0


def _is_integer_part(before: float, after: float, change: int) -> bool:
    """Whether the number that changed is the integer part of a value."""
    return math.isclose(after - before, math.copysign(change, after - before), rel_tol=1e-6)


def _exponent_sign(before: float, after: float, change: int) -> int:
    """Return the sign of the exponent if the number that changed is the exponent of a value, else 0."""
    if not before or not after or abs(change) > 99:
        return 0
    grown = math.log10(abs(after / before)) if math.isfinite(before) and math.isfinite(after) else 0.0
    return round(grown / change) if abs(grown) > 0.99 and math.isclose(abs(grown), abs(change), rel_tol=1e-6) else 0
