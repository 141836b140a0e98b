"""The shapes that are known for the lines of one format, and the table that finds them.

A line is looked up by the key of its outline. The key is a hash of the line in which numbers, identifiers, padding,
bars and words that no recipe names are alike, so free text in a line does no harm. Words that recipes name are part of
the outline where a number follows them. The other such words are kept beside the key, as a set of bits. They are
ignored until two lines of one outline turn out to say different things.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from functools import cache
from typing import Any, Final, TypeAlias

from tracecore.recipes.shapes import EVALUATE, NOTHING, UNKNOWN, Evaluate, Shape, learn
from tracecore.recipes.variants import Variants
from tracecore.signals.arrays import np
from tracecore.signals.compiled import SET, WORDS

Array: TypeAlias = np.ndarray[tuple[int], np.dtype[np.int64]]

#: Shapes that are learned. Lines of further ones are evaluated one by one until all shapes are forgotten.
MAX_SHAPES: Final = 2048
#: Lines between two times at which all shapes are forgotten, at least: learning that many takes some seconds.
RENEWED: Final = 1 << 20
#: Lines of an outline before its shape is learned: learning costs as much as evaluating twenty lines.
LINES_BEFORE_LEARNING: Final = 6
#: Shapes of one outline, and shapes of one kind that are tried on a new outline.
MAX_ALIKE: Final = 8
#: Outlines that are remembered; all are forgotten when there are more.
MAX_KEYS: Final = 1 << 16
#: Failed attempts to learn from an outline before its lines are evaluated one by one.
MAX_TRIES: Final = 4
#: The bits of a set of words that tell which word follows which.
_ORDER_BITS: Final = np.frombuffer(((1 << 64 * SET) - (1 << WORDS)).to_bytes(8 * SET, "little"), np.uint64)
_MIX: Final = np.array([0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9, 0x27D4EB2F165667C5], np.uint64)


class Answers:
    """A hash table from outlines to answers, asked for all lines of a block at once.

    An answer is the number of a variant, or `NOTHING` or `EVALUATE`. While all lines of an outline have the same
    answer, it holds for every line without new words. Once they differ, the outline is *mixed*: an answer then holds
    only for lines with exactly the same words. Apart from that, lines without a match say nothing, and so do lines that
    have only words of these.

    A key replaces another key in the same place.
    """

    def __init__(self) -> None:
        # An empty place holds a key that belongs to another place.
        self._keys = np.arange(1, MAX_KEYS + 1)
        self._answers: Array = np.full(MAX_KEYS, UNKNOWN, np.int64)
        #: The words for which the answer holds.
        self._covered = np.zeros((MAX_KEYS, SET), np.uint64)
        self._mixed = np.zeros(MAX_KEYS, np.bool_)

    def __len__(self) -> int:
        return int(np.count_nonzero(self._answers != UNKNOWN))

    def find(self, keys: Array, words: Any) -> Array:
        """Return the answer for each line, or `UNKNOWN`."""
        found = self._lookup(keys, words)
        missing = np.flatnonzero(found == UNKNOWN)
        found[missing] = self._lookup(_with_words(keys[missing], words[missing]), words[missing])
        return found

    def _lookup(self, keys: Array, words: Any) -> Array:
        places = keys & MAX_KEYS - 1
        holds = (self._keys[places] == keys) & ~(words & ~self._covered[places]).any(1)
        return np.where(holds, self._answers[places], UNKNOWN)

    def add(self, keys: Array, words: Any, answer: int, *, evaluated: bool = True) -> None:
        """Remember the answer for lines that had none.

        Args:
            keys: of the lines.
            words: their sets of words.
            answer: the same for all of them.
            evaluated: the recipes gave it. Then it holds for the words in any order.
        """
        places = self._claim(keys, answer)
        own = self._keys[places] == keys  # else another of these keys took the place
        keys, words, places = keys[own], words[own], places[own]
        self._mix(places[(self._answers[places] != answer) & ~self._mixed[places]])
        covers = ~self._mixed[places] if evaluated else np.ones(len(keys), np.bool_)
        _add_words(self._covered, places[covers], words[covers] | (_ORDER_BITS if evaluated else np.uint64(0)))
        self._covered[self._claim(_with_words(keys[~covers], words[~covers]), answer)] = ~np.uint64(0)

    def _claim(self, keys: Array, answer: int) -> Array:
        """Return the places of keys; a key that is new takes its place with this answer."""
        places = keys & MAX_KEYS - 1
        new = self._keys[places] != keys
        claimed = places[new]
        self._keys[claimed], self._answers[claimed] = keys[new], answer
        self._covered[claimed], self._mixed[claimed] = 0, False
        return places

    def _mix(self, places: Array) -> None:
        self._mixed[places], self._answers[places], self._covered[places] = True, NOTHING, 0

    def forget_silence(self, key: int) -> None:
        """Forget that lines of an outline say nothing: one of them does."""
        self._mix(np.array([key & MAX_KEYS - 1]))

    def drop(self, unwanted: Array) -> None:
        """Forget everything with one of these answers."""
        places = np.flatnonzero(np.isin(self._answers, unwanted))
        self._keys[places], self._answers[places] = places + 1, UNKNOWN


def _with_words(keys: Array, words: Any) -> Array:
    """Return keys that depend on the words as well, but not on their order."""
    mixed = ((words & ~_ORDER_BITS) * _MIX).sum(1, np.uint64)
    mixed = (mixed ^ mixed >> np.uint64(47)) * _MIX[0]
    found: Array = keys ^ (mixed ^ mixed >> np.uint64(32)).view(np.int64)
    return found


def _add_words(table: Any, places: Array, words: Any) -> None:
    """Add words to the sets at some places; a place may come several times."""
    if len(places):
        order = np.argsort(places, kind="stable")
        first = np.append(0, np.flatnonzero(np.diff(places[order])) + 1)
        table[places[order[first]]] |= np.bitwise_or.reduceat(words[order], first)


class _OutlineHistory:
    """The known variants of the lines of one outline."""

    __slots__ = ("answers", "seen")

    def __init__(self) -> None:
        #: Numbers of shapes, or `NOTHING` or `EVALUATE`.
        self.answers: list[int] = []
        #: Lines that were looked at.
        self.seen = 0


class Shapes:
    """The known shapes of lines of one format. Not thread-safe.

    Args:
        evaluate: what reader and recipes make of a line.
    """

    def __init__(self, evaluate: Evaluate) -> None:
        self.evaluate = evaluate
        self.answers = Answers()
        self.variants = Variants()
        self._outlines: dict[int, _OutlineHistory] = {}
        #: The shapes known now. Their numbers begin at `_first`, so that no number is used twice.
        self.shapes: list[Shape | int] = []
        self._first = 0
        #: Numbers of the latest shapes of each kind.
        self._kinds: dict[object, deque[int]] = {}
        self._lines = 0
        #: Lines seen of each variant.
        self._counts: dict[int, int] = {}
        #: Shapes that read a line wrongly. Their lines are evaluated one by one.
        self.refused = 0

    def renew(self, lines: int) -> None:
        """Before a block with this many lines: forget all shapes if there is no room for more.

        An agent that runs for months sees more loggers than one job has.
        """
        self._lines += lines
        if len(self.shapes) < MAX_SHAPES or self._lines < RENEWED:
            return
        self._first += len(self.shapes)
        self._lines = 0
        self.answers, self.variants = Answers(), Variants()
        for known in (self.shapes, self._kinds, self._outlines, self._counts):
            known.clear()

    def find(self, key: int, raw: bytes, spans: Sequence[tuple[int, int]]) -> int:
        """Return the variant of a line that has no answer yet, or `NOTHING`, `EVALUATE` or `UNKNOWN`.

        Args:
            key: of its outline.
            raw: the line as it is.
            spans: where its numbers are.
        """
        if len(self._outlines) >= MAX_KEYS:
            self._outlines.clear()
        outline = self._outlines.setdefault(key, _OutlineHistory())
        answer = self._answer(outline, raw, spans)
        outline.seen += 1
        if answer != UNKNOWN and answer not in outline.answers:
            outline.answers.append(answer)
        if answer < 0:
            return answer
        shape = self._shape(answer)
        return self.variants.add(answer, shape, len(spans)) if isinstance(shape, Shape) else EVALUATE

    def _answer(self, outline: _OutlineHistory, raw: bytes, spans: Sequence[tuple[int, int]]) -> int:
        """Return the number of the line's shape, or `NOTHING`, `EVALUATE` or `UNKNOWN`."""
        if any(number >= 0 and self._shape(number) == EVALUATE for number in outline.answers):
            return EVALUATE  # the shape was refused
        if not outline.seen or outline.answers or outline.seen == LINES_BEFORE_LEARNING:
            reading = self.evaluate(raw)
            if not reading.stamped or not reading.only_progress:
                return EVALUATE if reading.stamped else NOTHING
            for number in outline.answers:
                shape = self._shape(number) if number >= 0 else EVALUATE
                if isinstance(shape, Shape) and shape.fits(reading, raw, spans):
                    return number
            # If another program writes behind a progress bar, the outline is new and the shape is not.
            for number in reversed(self._kinds.get(reading.kind, ())):
                shape = self._shape(number)
                if isinstance(shape, Shape) and shape.covers(reading, raw, spans, self.evaluate):
                    return number
        if outline.seen < LINES_BEFORE_LEARNING:
            return UNKNOWN
        if len(self.shapes) >= MAX_SHAPES or len(outline.answers) >= MAX_ALIKE:
            return EVALUATE
        found = learn(raw, spans, cache(self.evaluate))
        if isinstance(found, int):
            tries = outline.seen - LINES_BEFORE_LEARNING
            return EVALUATE if found == UNKNOWN and tries >= MAX_TRIES else found
        self.shapes.append(found)
        number = self._first + len(self.shapes) - 1
        self._kinds.setdefault(found.kind, deque(maxlen=MAX_ALIKE)).append(number)
        return number

    def _shape(self, number: int) -> Shape | int:
        return self.shapes[number - self._first]

    def is_check_due(self, variant: int, count: int) -> bool:
        """Count lines of a variant; return whether one of them is to be evaluated: after 4, 16, 64, … lines."""
        before = self._counts.get(variant, 1)
        self._counts[variant] = before + count
        return before.bit_length() + 1 >> 1 != (before + count).bit_length() + 1 >> 1

    def agrees(self, variant: int, raw: bytes, step: int) -> bool:
        """Return whether the evaluation of a line gives the step that its shape gave; refuse the shape if not."""
        number = int(self.variants.shapes[variant])
        reading = self.evaluate(raw)
        if reading.stamped and reading.only_progress and (-1 if reading.step is None else reading.step) == step:
            return True
        self.refused += 1
        self.shapes[number - self._first] = EVALUATE
        self.answers.drop(np.flatnonzero(self.variants.shapes == number))
        return False
