"""Shapes of progress lines: what the numbers of a line mean, learned from the recipes.

Lines that differ in their numbers only say the same things in the same places. So of each shape one line is looked
into: one number after the other is changed, and reader and recipes are asked what the line says now. What a number
moves, and by how much, is all that is known of it: a step, a time, whose line it is, how large a loss or a norm is.
Nothing here knows how a framework writes.

A line is looked up by what is left of it without its digits. What is not found so is looked up once more by its
`outline`, in which words that no recipe names, identifiers, padding and bars are alike; so text that is different in
every line does no harm.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from typing import Final, NamedTuple, TypeAlias

from tracecore.signals.arrays import np

Flags: TypeAlias = np.ndarray[tuple[int], np.dtype[np.bool_]]

#: Shapes that are learned; further ones are evaluated line by line.
MAX_SHAPES: Final = 512
#: To learn a shape takes as long as to evaluate twenty lines: so many of them have to come first.
WORTH: Final = 3
#: Shapes that differ in words only that no number follows.
MAX_ALIKE: Final = 8
#: Lines and outlines that are remembered; all are forgotten when there are so many.
MAX_KEYS: Final = 1 << 16
#: Numbers of a line that may mean something.
WIDTH: Final = 14
#: Answers for a line that is no shape: not looked up yet, no progress, progress that has to be evaluated by itself.
UNKNOWN: Final = -1
NOTHING: Final = -2
ALONE: Final = -3
#: Factor between what the size of one value adds to a lane, and that of the next.
APART: Final = 4096
#: Steps are below this; of more digits than a number of 64 bits has, nothing is known.
MAX_STEP: Final = 1 << 40
MAX_DIGITS: Final = 18

DIGITS: Final = b"0123456789"
#: Left out of a line, what is left is the same in lines that differ in numbers and identifiers only.
VARYING: Final = DIGITS + b"abcdef"
_NUMBER: Final = re.compile(rb"\d+")
_TOKEN: Final = re.compile(rb"[0-9A-Za-z]+|[^0-9A-Za-z]+")
_REPEATED: Final = re.compile(rb"([\x80-\xff])[\x80-\xff ]+|([ =.#>*_~-])\2+")
_UNNUMBERED: Final = re.compile(rb"([A-Za-z]+)(?![0-9A-Za-z]|[^0-9A-Za-z\xff]{0,6}0)")
_FIXED: Final = re.compile(rb"[^0-9a-f]{0,4}\Z")
_PROSE: Final = re.compile(rb"\xff(?:[^0-9A-Za-z\xff]{0,3}\xff)+")


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
    """

    something: bool
    progress: bool
    step: int | None
    who: object
    kind: object
    time: float | None
    values: tuple[float | None, ...]
    stream: tuple[object, ...] = ()


Ask: TypeAlias = Callable[[bytes], Said]


class Shape(NamedTuple):
    """The meaning of the numbers of a line, each by its place among them.

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

    @property
    def used(self) -> list[int]:
        """Numbers that mean something."""
        pairs = (*self.steps, *self.times, *self.lengths, *self.exponents)
        return sorted({*self.who, *self.stream, *(place for place, _ in pairs)})


def numbers(line: bytes) -> list[tuple[int, int]]:
    """Where the numbers of a line are."""
    return [match.span() for match in _NUMBER.finditer(line)]


def learn(raw: bytes, spans: Sequence[tuple[int, int]], ask: Ask) -> Shape | int:
    """The shape of a line; `NOTHING` or `ALONE` where it is none.

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
    for place in _telling(raw, spans, ask, base, 0, len(spans)):
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
    columns = tuple(steps), tuple(times), tuple(who), tuple(stream), tuple(lengths), tuple(exponents)
    shape = Shape(*columns, base.step is None, base.kind, since, tuple(bool(name) or name == 0 for name in base.stream))
    return shape if len(shape.used) <= WIDTH and shape.fits(base, raw, spans) else ALONE


def _at(raw: bytes, span: tuple[int, int]) -> int:
    return int(raw[span[0] : span[1]])


def _telling(raw: bytes, spans: Sequence[tuple[int, int]], ask: Ask, base: Said, low: int, high: int) -> Iterable[int]:
    """Places of the numbers that mean something: most of a long line mean nothing, and are asked for together."""
    if low >= high:
        return
    changed = bytearray(raw)
    for _, end in spans[low:high]:
        changed[end - 1] = _other(raw[end - 1])
    if ask(bytes(changed)) == base:
        return
    if high - low == 1:
        yield low
        return
    middle = (low + high) // 2
    yield from _telling(raw, spans, ask, base, low, middle)
    yield from _telling(raw, spans, ask, base, middle, high)


def _other(digit: int) -> int:
    """One less, so that dates stay dates; of nothing one more."""
    return digit - 1 if digit > 48 else 49


def _moved(raw: bytes, begin: int, end: int, ask: Ask, base: Said) -> tuple[Said | None, int]:
    """Return what a line says with a larger number in one place, and the difference; None if it makes no sense."""
    for place in (end - 1, begin):
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


class Rows:
    """Variants of shapes as columns: of each, which numbers of a line mean something, and what.

    A variant is a shape and how many numbers its lines have. A loose one has an identifier in its lines, and so any
    number of numbers: those behind the identifier are counted from the end, and the bytes before each have to be right.
    """

    def __init__(self) -> None:
        self._known: dict[tuple[int, ...], int] = {}
        self.shapes = np.zeros(0, np.int64)
        self._rows: list[list[list[float]]] = []
        self._shapes: list[int] = []
        self._counts: list[int] = []
        self._widths: list[int] = []
        self._named: list[int] = []
        #: Of loose variants, the bytes before their numbers and which of these matter.
        self._before: list[tuple[list[int], list[int]] | None] = []

    def add(self, number: int, shape: Shape, count: int) -> int:
        """The number of a variant: that of the shape, and how many numbers a line has."""
        key = number, count
        if key not in self._known:
            who, stream = (
                [(place, 1 + order * 1_000_003) for order, place in enumerate(places)]
                for places in (shape.who, shape.stream)
            )
            used = shape.used
            columns: list[list[float]] = [list(used)]
            for meaning in (shape.steps, shape.times, who, stream, shape.lengths, shape.exponents):
                weights: dict[int, float] = dict(meaning)
                columns.append([weights.get(place, 0) for place in used])
            rows = [column + [0.0] * (WIDTH - len(used)) for column in columns]
            named = sum(known << bit for bit, known in enumerate(shape.named))
            self._known[key] = self._added(number, count, len(used), rows, named, None)
        return self._known[key]

    def loosened(self, variant: int, text: bytes, masked: bytes) -> int:
        """Return the loose variant of a line of which something is hidden; `ALONE` if there cannot be one.

        Args:
            variant: of the line as it is masked.
            text: the line.
            masked: the same without identifiers.
        """
        spans, shown = numbers(text), numbers(masked)
        pairs = enumerate(zip(spans, shown, strict=False))
        front = next((place for place, (one, other) in pairs if one != other), min(len(spans), len(shown)))
        back = len(shown) - front
        if shown != [*spans[:front], *spans[len(spans) - back :]]:
            return ALONE  # numbers between two identifiers
        key = variant, front, -1
        if key not in self._known:
            width = self._widths[variant]
            places, *meanings = self._rows[variant]
            used = [int(place) for place in places[:width]]
            counted = [float(place if place < front else place - len(shown)) for place in used]
            before = [_before(text, shown[place][0]) for place in used]
            padding = [0] * (WIDTH - width)
            known = [pair[0] for pair in before] + padding, [pair[1] for pair in before] + padding
            rows = [counted + [0.0] * (WIDTH - width), *meanings]
            named = self._named[variant]
            self._known[key] = self._added(self._shapes[variant], len(shown), width, rows, named, known)
        return self._known[key]

    def _added(
        self,
        number: int,
        count: int,
        width: int,
        rows: list[list[float]],
        named: int,
        before: tuple[list[int], list[int]] | None,
    ) -> int:
        self._rows.append(rows)
        self._shapes.append(number)
        self._counts.append(count)
        self._widths.append(width)
        self._named.append(named)
        self._before.append(before)
        return len(self._rows) - 1

    def columns(self) -> None:
        """Makes columns of what was added."""
        if len(self.shapes) == len(self._rows):
            return
        table = np.array(self._rows, np.float64)
        self.runs, self.steps, self.who, self.streams, self.lengths, self.exponents = (
            table[:, column].astype(np.int64) for column in (0, 1, 3, 4, 5, 6)
        )
        self.times = table[:, 2]
        self.shapes = np.array(self._shapes, np.int64)
        self.counts = np.array(self._counts, np.int64)
        self.widths = np.array(self._widths, np.int64)
        self.named = np.array(self._named, np.int64)
        self.loose = np.array([pair is not None for pair in self._before], np.bool_)
        nothing = [0] * WIDTH, [0] * WIDTH
        pairs = np.array([pair or nothing for pair in self._before], np.uint64)
        self.before, self.fixed = pairs[:, 0], pairs[:, 1]


def _before(text: bytes, begin: int) -> tuple[int, int]:
    """Return the eight bytes before a number, and which of the last four no identifier or other number can be in."""
    found = _FIXED.search(text, 0, begin)
    size = 0 if found is None else len(found.group())
    before = (bytes(8) + text)[begin : begin + 8]
    return int.from_bytes(before, "little"), int.from_bytes(b"\xff" * size, "little") << (64 - 8 * size)


class _Alike:
    """The lines of one outline, whatever words they have that no number follows.

    As long as all of them say the same, words that were seen in them mean nothing there.
    """

    __slots__ = ("answers", "seen", "words")

    def __init__(self) -> None:
        #: Shapes, or what else is known of some of them.
        self.answers: list[int] = []
        self.words: set[bytes] = set()
        #: Lines that were looked at.
        self.seen = 0


class Shapes:
    """The known shapes of lines of one format. Not for two threads at a time.

    Args:
        ask: what recipes and reader make of a line.
    """

    def __init__(self, ask: Ask) -> None:
        self.ask = ask
        self._words = _Words()
        #: Variants, or one of `NOTHING` and `ALONE`, by lines without their digits, and by what is left of masked ones.
        self.keys: dict[bytes, int] = {}
        self.masked: dict[bytes, int] = {}
        self._outlines: dict[tuple[bytes, bytes], int] = {}
        self._alike: dict[bytes, _Alike] = {}
        #: Keys of lines that came once, by their hashes.
        self._once: set[int] = set()
        self.shapes: list[Shape | int] = []
        self.rows = Rows()
        #: Lines of each variant that were seen.
        self._counts: dict[int, int] = {}
        self._without = np.zeros(0, np.bool_), np.zeros(0, np.bool_)
        #: Shapes of which a line said something else than its columns; their lines are evaluated one by one.
        self.refused = 0

    def find(self, line: bytes, raw: bytes, spans: Sequence[tuple[int, int]]) -> int:
        """The variant of a line that was not found by its key.

        Args:
            line: the line, masked.
            raw: the line as it is.
            spans: where its numbers are in the latter.
        """
        outline = self._words.outline(line)
        number = self._outlines.get(outline, UNKNOWN)
        if number == UNKNOWN:
            number = self._learned(outline, raw, spans)
            if number == UNKNOWN:
                return ALONE
            if len(self._outlines) >= MAX_KEYS:
                self._outlines.clear()
            self._outlines[outline] = number
        found = number
        if number >= 0:
            shape = self.shapes[number]
            found = self.rows.add(number, shape, len(spans)) if isinstance(shape, Shape) else ALONE
        return found

    def remember(self, key: bytes, found: int, *, masked: bool) -> None:
        """Keeps what was found of a line under its key."""
        keys = self.masked if masked else self.keys
        if len(keys) >= MAX_KEYS:
            keys.clear()
        keys[key] = found

    def again(self, keys: Sequence[bytes]) -> list[int]:
        """Return a place of each key that came before, here or earlier: lines of prose have a key that comes once."""
        found: dict[int, int] = {}
        for place, each in enumerate(map(hash, keys)):
            if each in self._once:
                found[each] = place
            else:
                self._once.add(each)
        if len(self._once) >= MAX_KEYS:
            self._once.clear()
        return list(found.values())

    def _learned(self, outline: tuple[bytes, bytes], raw: bytes, spans: Sequence[tuple[int, int]]) -> int:
        """The shape of the first lines with an outline, or what else is known of it; `UNKNOWN` for nothing yet."""
        if len(self._alike) >= MAX_KEYS:
            self._alike.clear()
        alike = self._alike.setdefault(outline[0], _Alike())
        words = outline[1].split()
        if len(alike.answers) == 1 and alike.answers[0] >= 0 and alike.words.issuperset(words):
            return alike.answers[0]
        found = self._answer(alike, raw, spans)
        alike.seen += 1
        if found != UNKNOWN:
            alike.words.update(words)
            if found not in alike.answers:
                alike.answers.append(found)
        return found

    def _answer(self, alike: _Alike, raw: bytes, spans: Sequence[tuple[int, int]]) -> int:
        """The same for an outline of which some lines are known."""
        if not alike.seen or alike.answers:
            said = self.ask(raw)
            if not said.something or not said.progress:
                return ALONE if said.something else NOTHING
            for number in alike.answers:
                shape = self.shapes[number] if number >= 0 else ALONE
                if isinstance(shape, Shape) and shape.fits(said, raw, spans):
                    return number
        if any(end - begin > MAX_DIGITS for begin, end in spans):
            return ALONE
        if alike.seen < WORTH:
            return UNKNOWN
        if len(self.shapes) >= MAX_SHAPES or len(alike.answers) >= MAX_ALIKE:
            return ALONE
        found = learn(raw, spans, cache(self.ask))
        if isinstance(found, int):
            return found
        self.shapes.append(found)
        return len(self.shapes) - 1

    def without(self) -> tuple[Flags, Flags]:
        """Return the shapes without a step, and those without a time."""
        if len(self._without[0]) < len(self.shapes):
            shapes = [shape if isinstance(shape, Shape) else Shape() for shape in self.shapes]
            self._without = (
                np.array([shape.stepless for shape in shapes], np.bool_),
                np.array([shape.timeless for shape in shapes], np.bool_),
            )
        return self._without

    def doubtful(self, variant: int, count: int) -> bool:
        """Whether a line of a variant is to be compared with what recipes make of it, now that so many more came.

        After 1, 4, 16, 64, … of them.
        """
        before = self._counts.get(variant, 0)
        self._counts[variant] = before + count
        return before.bit_length() + 1 >> 1 != (before + count).bit_length() + 1 >> 1

    def agrees(self, variant: int, raw: bytes, step: int) -> bool:
        """Whether a line says what its columns say; if not, its shape is not used any more."""
        number = int(self.rows.shapes[variant])
        said = self.ask(raw)
        if said.something and said.progress and (-1 if said.step is None else said.step) == step:
            return True
        self.refused += 1
        self.shapes[number] = ALONE
        for keys in (self.keys, self.masked):
            for key in [key for key, found in keys.items() if found >= 0 and self.rows.shapes[found] == number]:
                del keys[key]
        return False


class _Words(dict[bytes, bytes]):
    """Return the placeholder for a token of a masked line in an outline."""

    def __missing__(self, token: bytes) -> bytes:
        if len(self) >= MAX_KEYS:
            self.clear()
        found = _NUMBER.sub(b"0", token) if token[:1].isalnum() else _REPEATED.sub(rb"\1\2", token)
        self[token] = found
        return found

    def outline(self, line: bytes) -> tuple[bytes, bytes]:
        """A line in which everything is alike that means the same to recipes, and named words that no number follows.

        Of these it matters that they are there, and not where.
        """
        parts = _UNNUMBERED.split(b"".join(map(self.__getitem__, _TOKEN.findall(line))))
        named = {word for word in parts[1::2] if len(word) > 2}
        return _PROSE.sub(b"\xff", b"\xff".join(parts[::2])), b" ".join(sorted(named))
