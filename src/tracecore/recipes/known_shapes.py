"""The shapes that are known of the lines of one format, and how a line is found among them.

A line is looked up by the key of its outline, in which words that no recipe names, identifiers, padding and bars are
alike; so text that is different in every line does no harm. Words that recipes name and no number follows are no part
of the outline. They mean nothing as long as all lines of the outline say the same, whichever of them they have.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from functools import cache
from typing import Any, Final, TypeAlias

from tracecore.recipes.shapes import ALONE, NOTHING, UNKNOWN, Ask, Shape, learn
from tracecore.recipes.variants import Rows
from tracecore.signals.arrays import np
from tracecore.signals.compiled import SET, WORDS

Array: TypeAlias = np.ndarray[tuple[int], np.dtype[np.int64]]

#: Shapes that are learned; lines of further ones are evaluated one by one, until all are forgotten and learned anew.
MAX_SHAPES: Final = 2048
#: Lines between two such times, at least: to learn that many shapes takes some seconds.
RENEWED: Final = 1 << 20
#: To learn a shape takes as long as to evaluate twenty lines: so many of them have to come first.
WORTH: Final = 6
#: Shapes that differ in words only that no number follows.
MAX_ALIKE: Final = 8
#: Outlines that are remembered; all are forgotten when there are so many.
MAX_KEYS: Final = 1 << 16
#: After so many lines of an outline that is worth it, none of which could be learned from, none is tried any more.
MAX_TRIES: Final = 4
#: Bits of a set that tell which word follows which.
_ORDERS: Final = np.frombuffer(((1 << 64 * SET) - (1 << WORDS)).to_bytes(8 * SET, "little"), np.uint64)
_MIX: Final = np.array([0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9, 0x27D4EB2F165667C5], np.uint64)


class Answers:
    """A table of what lines say by the keys of their outlines, asked for all lines of a block at once.

    As long as recipes say the same of all lines of an outline, that holds for lines that have no other words than
    these. Otherwise it holds for lines with the same words, and lines without anything that recipes need are known
    apart from them. A key takes the place of another.
    """

    def __init__(self) -> None:
        # At first, each place has a key that belongs to another one.
        self._keys = np.arange(1, MAX_KEYS + 1)
        self._found: Array = np.full(MAX_KEYS, UNKNOWN, np.int64)
        #: Words with which a line says this.
        self._covered = np.zeros((MAX_KEYS, SET), np.uint64)
        #: Recipes say different things of lines of the outline.
        self._mixed = np.zeros(MAX_KEYS, np.bool_)

    def __len__(self) -> int:
        return int(np.count_nonzero(self._found != UNKNOWN))

    def find(self, keys: Array, sets: Any) -> Array:
        """Return what is known of each of many lines, or `UNKNOWN`."""
        found = self._at(keys, sets)
        others = np.flatnonzero(found == UNKNOWN)
        found[others] = self._at(_exact(keys[others], sets[others]), sets[others])
        return found

    def _at(self, keys: Array, sets: Any) -> Array:
        places = keys & MAX_KEYS - 1
        holds = (self._keys[places] == keys) & ~(sets & ~self._covered[places]).any(1)
        return np.where(holds, self._found[places], UNKNOWN)

    def add(self, keys: Array, sets: Any, found: int, *, asked: bool = True) -> None:
        """Remember what some lines say, of which nothing was known.

        Args:
            keys: of the lines.
            sets: of the lines.
            found: what they say.
            asked: the recipes said so; which word follows which does not matter then.
        """
        places = self._taken(keys, found)
        own = self._keys[places] == keys  # else another one of these took the place
        keys, sets, places = keys[own], sets[own], places[own]
        self._mix(places[(self._found[places] != found) & ~self._mixed[places]])
        covers = ~self._mixed[places] if asked else np.ones(len(keys), np.bool_)
        _join(self._covered, places[covers], sets[covers] | (_ORDERS if asked else np.uint64(0)))
        self._covered[self._taken(_exact(keys[~covers], sets[~covers]), found)] = ~np.uint64(0)

    def _taken(self, keys: Array, found: int) -> Array:
        """Return the places of keys, which those take that had none."""
        places = keys & MAX_KEYS - 1
        new = self._keys[places] != keys
        own = places[new]
        self._keys[own], self._found[own], self._covered[own], self._mixed[own] = keys[new], found, 0, False
        return places

    def _mix(self, places: Array) -> None:
        self._mixed[places], self._found[places], self._covered[places] = True, NOTHING, 0

    def doubt(self, key: int) -> None:
        """Forget that lines with a key say nothing."""
        self._mix(np.array([key & MAX_KEYS - 1]))

    def drop(self, unwanted: Array) -> None:
        """Forget some of what is known."""
        places = np.flatnonzero(np.isin(self._found, unwanted))
        self._keys[places], self._found[places] = places + 1, UNKNOWN


def _exact(keys: Array, sets: Any) -> Array:
    """Return keys of lines by their words as well."""
    words = ((sets & ~_ORDERS) * _MIX).sum(1, np.uint64)
    words = (words ^ words >> np.uint64(47)) * _MIX[0]
    found: Array = keys ^ (words ^ words >> np.uint64(32)).view(np.int64)
    return found


def _join(table: Any, places: Array, sets: Any) -> None:
    """Add sets to those at some places, which may be the same."""
    if len(places):
        order = np.argsort(places, kind="stable")
        first = np.append(0, np.flatnonzero(np.diff(places[order])) + 1)
        table[places[order[first]]] |= np.bitwise_or.reduceat(sets[order], first)


class _Alike:
    """The lines of one outline, whatever words they have that no number follows."""

    __slots__ = ("answers", "seen")

    def __init__(self) -> None:
        #: Shapes, or what else is known of some of them.
        self.answers: list[int] = []
        #: Lines that were looked at.
        self.seen = 0


class Shapes:
    """The known shapes of lines of one format. Not for two threads at a time.

    Args:
        ask: what recipes and reader make of a line.
    """

    def __init__(self, ask: Ask) -> None:
        self.ask = ask
        #: Variants, or one of `NOTHING` and `ALONE`.
        self.answers = Answers()
        self._alike: dict[int, _Alike] = {}
        #: Those known now, and the number of the first of them: no number comes again.
        self.shapes: list[Shape | int] = []
        self._first = 0
        #: The last ones of each kind.
        self._kinds: dict[object, deque[int]] = {}
        self._lines = 0
        self.rows = Rows()
        #: Lines of each variant that were seen.
        self._counts: dict[int, int] = {}
        #: Shapes of which a line said something else than its columns; their lines are evaluated one by one.
        self.refused = 0

    def renew(self, lines: int) -> None:
        """Forget all shapes where there is no room for more, before a block of so many lines.

        An agent that runs for months sees more loggers than one job has.
        """
        self._lines += lines
        if len(self.shapes) < MAX_SHAPES or self._lines < RENEWED:
            return
        self._first += len(self.shapes)
        self._lines = 0
        self.answers, self.rows = Answers(), Rows()
        for known in (self.shapes, self._kinds, self._alike, self._counts):
            known.clear()

    def find(self, key: int, raw: bytes, spans: Sequence[tuple[int, int]]) -> int:
        """The variant of a line of which nothing is known yet; `UNKNOWN` if that is so still.

        Args:
            key: of its outline.
            raw: the line as it is.
            spans: where its numbers are.
        """
        if len(self._alike) >= MAX_KEYS:
            self._alike.clear()
        alike = self._alike.setdefault(key, _Alike())
        found = self._answer(alike, raw, spans)
        alike.seen += 1
        if found != UNKNOWN and found not in alike.answers:
            alike.answers.append(found)
        if found < 0:
            return found
        shape = self._shape(found)
        return self.rows.add(found, shape, len(spans)) if isinstance(shape, Shape) else ALONE

    def _answer(self, alike: _Alike, raw: bytes, spans: Sequence[tuple[int, int]]) -> int:
        """The shape of a line, or what else is known of it; `UNKNOWN` for nothing yet."""
        if any(number >= 0 and self._shape(number) == ALONE for number in alike.answers):
            return ALONE  # one that was wrong
        if not alike.seen or alike.answers or alike.seen == WORTH:
            said = self.ask(raw)
            if not said.something or not said.progress:
                return ALONE if said.something else NOTHING
            for number in alike.answers:
                shape = self._shape(number) if number >= 0 else ALONE
                if isinstance(shape, Shape) and shape.fits(said, raw, spans):
                    return number
            # What another program writes behind a bar makes a new outline of it, and no new shape.
            for number in reversed(self._kinds.get(said.kind, ())):
                shape = self._shape(number)
                if isinstance(shape, Shape) and shape.holds(said, raw, spans, self.ask):
                    return number
        if alike.seen < WORTH:
            return UNKNOWN
        if len(self.shapes) >= MAX_SHAPES or len(alike.answers) >= MAX_ALIKE:
            return ALONE
        found = learn(raw, spans, cache(self.ask))
        if isinstance(found, int):
            return ALONE if found == UNKNOWN and alike.seen >= WORTH + MAX_TRIES else found
        self.shapes.append(found)
        number = self._first + len(self.shapes) - 1
        self._kinds.setdefault(found.kind, deque(maxlen=MAX_ALIKE)).append(number)
        return number

    def _shape(self, number: int) -> Shape | int:
        return self.shapes[number - self._first]

    def doubtful(self, variant: int, count: int) -> bool:
        """Whether a line of a variant is to be compared with what recipes make of it, now that so many more came.

        After 4, 16, 64, … of them: the first one was looked into.
        """
        before = self._counts.get(variant, 1)
        self._counts[variant] = before + count
        return before.bit_length() + 1 >> 1 != (before + count).bit_length() + 1 >> 1

    def agrees(self, variant: int, raw: bytes, step: int) -> bool:
        """Whether a line says what its columns say; if not, its shape is not used any more."""
        number = int(self.rows.shapes[variant])
        said = self.ask(raw)
        if said.something and said.progress and (-1 if said.step is None else said.step) == step:
            return True
        self.refused += 1
        self.shapes[number - self._first] = ALONE
        self.answers.drop(np.flatnonzero(self.rows.shapes == number))
        return False
