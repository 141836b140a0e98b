"""Shapes of progress lines: what the numbers of a line mean, learned from the recipes.

Lines that differ in their numbers only say the same things in the same places. So of each shape one line is looked
into: one number after the other is changed, and reader and recipes are asked what the line says now. What a number
moves, and by how much, is all that is known of it: a step, a time, whose line it is, how large a loss or a norm is.
Nothing here knows how a framework writes.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Final, NamedTuple, TypeAlias

#: Numbers of a line that may mean something.
WIDTH: Final = 14
#: Answers for a line that is no shape: not looked up yet, no progress, progress that has to be evaluated by itself.
UNKNOWN: Final = -1
NOTHING: Final = -2
ALONE: Final = -3
#: Factor between what the size of one value adds to a lane, and that of the next.
APART: Final = 4096
#: Steps are below this; numbers of more digits do not fit into 64 bits, and what such a number means is not read.
MAX_STEP: Final = 1 << 40
MAX_DIGITS: Final = 19

DIGITS: Final = b"0123456789"
#: Left out of a line, what is left is the same in lines that differ in numbers and identifiers only.
VARYING: Final = DIGITS + b"abcdef"
NUMBER: Final = re.compile(rb"\d+")
#: Terminal codes, as they are or escaped in JSON, and other escapes: what stands in a line and not in its text.
_CODE: Final = re.compile(rb"(?:\x1b|\\u001[bB])\[[0-?]*[ -/]*[@-~]|\\u[0-9A-Fa-f]{4}|\\.")


class Said(NamedTuple):
    """The event that reader and recipes make of one line.

    Args:
        something: they know it.
        progress: it says nothing but progress.
        step: its step.
        who: names who wrote it.
        kind: the rest that tells one kind of progress line from another.
        time: in seconds, in any calendar; None where it has none.
        values: of which it matters how large they are.
        stream: names whose progress it is, which may be that of several writers.
        named: what else it says, without messages, sizes and the like.
    """

    something: bool
    progress: bool
    step: int | None
    who: object
    kind: object
    time: float | None
    values: tuple[float | None, ...]
    stream: tuple[object, ...] = ()
    named: object = None


Ask: TypeAlias = Callable[[bytes], Said]


class Shape(NamedTuple):
    """The meaning of the numbers of a line, each by its place among them, which may be counted from the end.

    Args:
        steps: what a number adds to the step, for each of one.
        times: the same for the time, in seconds.
        who: numbers that say whose line it is.
        stream: those of them that say whose progress it is.
        lengths: numbers whose length says how large a value is, each with a factor that tells values apart.
        exponents: the same for exponents, the factor with their sign.
        stepless: the line has no step.
        kind: see `Said`.
        since: the time of a line whose numbers are all 0; None for lines without one.
        named: what there is of the names of its stream: no rank is not rank 0.
    """

    steps: tuple[tuple[int, int], ...] = ()
    times: tuple[tuple[int, float], ...] = ()
    who: tuple[int, ...] = ()
    stream: tuple[int, ...] = ()
    lengths: tuple[tuple[int, int], ...] = ()
    exponents: tuple[tuple[int, int], ...] = ()
    stepless: bool = False
    kind: object = None
    since: float | None = None
    named: tuple[bool, ...] = ()

    @property
    def timeless(self) -> bool:
        """Whether the line has no time."""
        return self.since is None

    def fits(self, said: Said, raw: bytes, spans: Sequence[tuple[int, int]]) -> bool:
        """Whether a line with as many numbers says what this shape says."""
        step = None if self.stepless else sum(_at(raw, spans[place]) * weight for place, weight in self.steps)
        if (said.kind, said.step, said.time is None) != (self.kind, step, self.since is None):
            return False
        if said.time is None or self.since is None:
            return True
        return abs(self.since + sum(_at(raw, spans[place]) * weight for place, weight in self.times) - said.time) < 2

    def holds(self, said: Said, raw: bytes, spans: Sequence[tuple[int, int]], ask: Ask) -> bool:
        """Whether a line of another outline has this shape: it says what the shape says, with other numbers too."""
        count = len(spans)
        if not all(-count <= place < count for place in self.used) or not self.fits(said, raw, spans):
            return False
        used = {place % count for place in self.used}
        others = [span for place, span in enumerate(spans) if place not in used]
        return not others or _alike(said, ask(_changed(raw, others)))

    @property
    def used(self) -> list[int]:
        """Numbers that mean something."""
        pairs = (*self.steps, *self.times, *self.lengths, *self.exponents)
        return sorted({*self.who, *self.stream, *(place for place, _ in pairs)})


def numbers(line: bytes) -> list[tuple[int, int]]:
    """Where the numbers of a line are."""
    return [match.span() for match in NUMBER.finditer(line)]


def shown_numbers(raw: bytes, text: bytes, shown: Sequence[tuple[int, int]]) -> Sequence[tuple[int, int]] | None:
    """Return where the numbers of a line are that its text has; None if that is not certain.

    Args:
        raw: the line as it is.
        text: the same without escapes and terminal codes.
        shown: where those of the text are that are not hidden.
    """
    if raw == text:
        return shown
    spans, said = numbers(_CODE.sub(_hidden, raw)), numbers(text)
    if [raw[begin:end] for begin, end in spans] != [text[begin:end] for begin, end in said]:
        return None
    known = set(shown)
    return [span for span, place in zip(spans, said, strict=True) if place in known]


def _hidden(match: re.Match[bytes]) -> bytes:
    return b"\xff" * (match.end() - match.start())


def learn(raw: bytes, spans: Sequence[tuple[int, int]], ask: Ask) -> Shape | int:
    """The shape of a line; `NOTHING` or `ALONE` where it is none, `UNKNOWN` where other lines may have one.

    Args:
        raw: the line.
        spans: where its numbers are.
        ask: what recipes and reader make of a line.
    """
    base = ask(raw)
    if not base.something or not base.progress:
        return ALONE if base.something else NOTHING
    steps: list[tuple[int, int]] = []
    times: list[tuple[int, float]] = []
    who: list[int] = []
    stream: list[int] = []
    lengths: list[tuple[int, int]] = []
    exponents: list[tuple[int, int]] = []
    for place in telling(raw, spans, ask, base):
        begin, end = spans[place]
        said, change = _moved(raw, begin, end, ask, base)
        if said is None:
            return ALONE
        if said.who != base.who or said.kind != base.kind:
            who.append(place)
        if said.stream != base.stream:
            stream.append(place)
        if said.step != base.step:
            if said.step is None or base.step is None or (said.step - base.step) % change:
                return ALONE
            steps.append((place, (said.step - base.step) // change))
        if said.time != base.time:
            if said.time is None or base.time is None:
                return ALONE
            weight = (said.time - base.time) / change
            if abs(weight) >= 0.9 or end - begin >= 10:  # else a part of a second
                times.append((place, weight))
        for number, (before, after) in enumerate(zip(base.values, said.values, strict=True)):
            factor = APART**number
            if before is None or after is None or before == after:
                continue
            if _is_whole(before, after, change) and factor not in dict(lengths).values():
                lengths.append((place, factor))
            elif sign := _exponent(before, after, change):
                exponents.append((place, sign * factor))
    since = None
    if times and base.time is not None:
        since = base.time - sum(_at(raw, spans[place]) * weight for place, weight in times)
    others = (*who, *stream, *(place for place, _ in (*steps, *lengths, *exponents)))
    if times and times[0][0] > max(others, default=-1):
        # Behind everything else stands the time of a container runtime, whatever the line says before it.
        times = [(place - len(spans), weight) for place, weight in times]
    columns = tuple(steps), tuple(times), tuple(who), tuple(stream), tuple(lengths), tuple(exponents)
    shape = Shape(*columns, base.step is None, base.kind, since, tuple(bool(name) or name == 0 for name in base.stream))
    if any(spans[place][1] - spans[place][0] > MAX_DIGITS for place in shape.used):
        return UNKNOWN
    return shape if len(shape.used) <= WIDTH and shape.fits(base, raw, spans) else ALONE


def _at(raw: bytes, span: tuple[int, int]) -> int:
    return int(raw[span[0] : span[1]])


def telling(raw: bytes, spans: Sequence[tuple[int, int]], ask: Ask, base: Said) -> Iterable[int]:
    """Places of the numbers that mean something.

    Those of a date stand together and all mean something; most others mean nothing, and are asked for together.
    """

    def tells(low: int, high: int) -> bool:
        return ask(_changed(raw, spans[low:high])) != base

    low, asked = 0, 1
    while low < len(spans):
        high = min(low + asked, len(spans))
        if not tells(low, high):
            low, asked = high, 2 * asked
            continue
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if tells(low, middle) else (middle, high)
        yield low
        low, asked = low + 1, 1


def _changed(raw: bytes, spans: Iterable[tuple[int, int]]) -> bytes:
    """Return a line with other numbers in some places."""
    changed = bytearray(raw)
    for span in spans:
        changed[_told(*span)] = _other(raw[_told(*span)])
    return bytes(changed)


def _alike(one: Said, other: Said) -> bool:
    """Whether two events differ in parts of seconds and of values only."""
    if one._replace(time=None, values=()) != other._replace(time=None, values=()):
        return False
    pairs = zip((one.time, *one.values), (other.time, *other.values), strict=True)
    return all(_near(before, after) for before, after in pairs)


def _near(one: float | None, other: float | None) -> bool:
    if one is None or other is None:
        return one is other
    return one == other or (abs(one - other) < 1 and math.isclose(one, other, rel_tol=0.1))


def _told(begin: int, end: int) -> int:
    """Return the digit of a number by which it is changed: the last one, unless seconds hardly tell it apart."""
    return min(end, begin + 11) - 1


def _other(digit: int) -> int:
    """One less, so that dates stay dates; of nothing one more."""
    return digit - 1 if digit > 48 else 49


def _moved(raw: bytes, begin: int, end: int, ask: Ask, base: Said) -> tuple[Said | None, int]:
    """Return what a line says with a larger number in one place, and the difference; None if it makes no sense."""
    for place in (_told(begin, end), begin):
        changed = raw[:place] + bytes((_other(raw[place]),)) + raw[place + 1 :]
        said = ask(changed)
        if said.something and (said.time is None) == (base.time is None):
            return said, int(changed[begin:end]) - int(raw[begin:end])
    return None, 0


def _is_whole(before: float, after: float, change: int) -> bool:
    """Whether the whole part of a value was changed."""
    return math.isclose(after - before, math.copysign(change, after - before), rel_tol=1e-6)


def _exponent(before: float, after: float, change: int) -> int:
    """The sign of the exponent of a value that was changed; 0 where something else was."""
    if not before or not after or abs(change) > 99:
        return 0
    grown = math.log10(abs(after / before)) if math.isfinite(before) and math.isfinite(after) else 0.0
    return round(grown / change) if abs(grown) > 0.99 and math.isclose(abs(grown), abs(change), rel_tol=1e-6) else 0
