"""The shapes that are known of the lines of one format, and how a line is found among them.

A line is looked up by what is left of it without its digits and the letters of identifiers. What is not found so is
looked up once more by its `outline`, in which words that no recipe names, identifiers, padding and bars are alike; so
text that is different in every line does no harm.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from typing import Final, TypeAlias

from tracecore.recipes.shapes import ALONE, NOTHING, NUMBER, UNKNOWN, Ask, Shape, learn
from tracecore.recipes.variants import Rows
from tracecore.signals.arrays import np

Array: TypeAlias = np.ndarray[tuple[int], np.dtype[np.int64]]

#: Shapes that are learned; further ones are evaluated line by line.
MAX_SHAPES: Final = 512
#: To learn a shape takes as long as to evaluate twenty lines: so many of them have to come first.
WORTH: Final = 6
#: Shapes that differ in words only that no number follows.
MAX_ALIKE: Final = 8
#: Lines and outlines that are remembered; all outlines are forgotten when there are so many.
MAX_KEYS: Final = 1 << 16
#: After so many lines with the same key, or outline, none of which could be remembered by it, none is tried any more.
MAX_TRIES: Final = 4
#: A key is remembered when it came so many times before, and of a block so many: what comes often comes again.
SEEN: Final = 3
MAX_NEW: Final = 128
_TOKEN: Final = re.compile(rb"[0-9A-Za-z]+|[^0-9A-Za-z]+")
_REPEATED: Final = re.compile(rb"([\x80-\xff])[\x80-\xff ]+|([ =.#>*_~-])\2+")
_UNNUMBERED: Final = re.compile(rb"([A-Za-z]+)(?![0-9A-Za-z]|[^0-9A-Za-z\xff]{0,6}0)")
_PROSE: Final = re.compile(rb"\xff(?:[^0-9A-Za-z\xff]{0,3}\xff)+")


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


class Keys:
    """A table by keys of 64 bits, asked for all lines of a block at once; a key takes the place of another."""

    def __init__(self) -> None:
        # At first, each place has a key that belongs to another one.
        self._keys = np.arange(1, MAX_KEYS + 1)
        self._found: Array = np.full(MAX_KEYS, UNKNOWN, np.int64)

    def __len__(self) -> int:
        return int(np.count_nonzero(self._found != UNKNOWN))

    def get(self, key: int) -> int:
        """Return what is known by a key, or `UNKNOWN`."""
        return int(self.find(np.array([key], np.int64))[0])

    def add(self, key: int | Array, found: int | Array) -> None:
        """Remember something by a key, or by each of many."""
        place = key & MAX_KEYS - 1
        self._keys[place], self._found[place] = key, found

    def find(self, keys: Array) -> Array:
        """Return what is known by each of many keys, or `UNKNOWN`."""
        places = keys & MAX_KEYS - 1
        return np.where(self._keys[places] == keys, self._found[places], UNKNOWN)

    def drop(self, unwanted: Array) -> None:
        """Forget some of what is known."""
        self._found[np.isin(self._found, unwanted)] = UNKNOWN


class Shapes:
    """The known shapes of lines of one format. Not for two threads at a time.

    Args:
        ask: what recipes and reader make of a line.
    """

    def __init__(self, ask: Ask) -> None:
        self.ask = ask
        self._words = _Words()
        #: Variants, or one of `NOTHING` and `ALONE`, by lines without their digits, and by what is left of masked ones.
        self.keys = Keys()
        self.masked = Keys()
        self._outlines: dict[tuple[bytes, bytes], int] = {}
        self._alike: dict[bytes, _Alike] = {}
        #: Keys of lines that came, and how often it was tried to remember something by them.
        self._tries: dict[int, int] = {}
        self.shapes: list[Shape | int] = []
        self.rows = Rows()
        #: Lines of each variant that were seen.
        self._counts: dict[int, int] = {}
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

    def again(self, keys: Sequence[int]) -> list[int]:
        """Return a place of each key that came before, here or earlier: lines of prose have a key that comes once."""
        found: dict[int, int] = {}
        for place, key in enumerate(keys):
            tries = self._tries.get(key, -SEEN)
            if tries < 0:
                self._tries[key] = tries + 1
            elif tries < MAX_TRIES and len(found) < MAX_NEW:
                found[key] = place
        for key in found:
            self._tries[key] += 1
        if len(self._tries) >= MAX_KEYS:
            self._tries.clear()
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
        if alike.seen < WORTH:
            return UNKNOWN
        if len(self.shapes) >= MAX_SHAPES or len(alike.answers) >= MAX_ALIKE:
            return ALONE
        found = learn(raw, spans, cache(self.ask))
        if isinstance(found, int):
            return ALONE if found == UNKNOWN and alike.seen >= WORTH + MAX_TRIES else found
        self.shapes.append(found)
        return len(self.shapes) - 1

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
            keys.drop(np.flatnonzero(self.rows.shapes == number))
        return False


class _Words(dict[bytes, bytes]):
    """Return the placeholder for a token of a masked line in an outline."""

    def __missing__(self, token: bytes) -> bytes:
        if len(self) >= MAX_KEYS:
            self.clear()
        found = NUMBER.sub(b"0", token) if token[:1].isalnum() else _REPEATED.sub(rb"\1\2", token)
        self[token] = found
        return found

    def outline(self, line: bytes) -> tuple[bytes, bytes]:
        """A line in which everything is alike that means the same to recipes, and named words that no number follows.

        Of these it matters that they are there, and not where.
        """
        parts = _UNNUMBERED.split(b"".join(map(self.__getitem__, _TOKEN.findall(line))))
        named = {word for word in parts[1::2] if len(word) > 2}
        return _PROSE.sub(b"\xff", b"\xff".join(parts[::2])), b" ".join(sorted(named))
