"""Regular expressions that Python's own engine matches in linear time.

RE2 takes linear time for any expression, but a call of it from Python costs several times what matching a line does.
Expressions of logs are mostly simple: anchored, and every repetition ends at a character that it cannot contain. For
those Python's engine never backtracks, and finds the same.
"""

from __future__ import annotations

import re
from re import _constants as constants  # type: ignore[attr-defined]
from re import _parser as parser  # type: ignore[attr-defined]
from typing import Any, Final

import re2

#: Characters beyond ASCII are one: they are in a set, or may be.
_OTHER: Final = 128
_ALL: Final = frozenset(range(129))
_DIGITS: Final = frozenset(range(48, 58))
_WORD: Final = frozenset({*_DIGITS, *range(65, 91), *range(97, 123), 95})
_SPACE: Final = frozenset(b"\t\n\f\r \v")
_CATEGORIES: Final = {
    constants.CATEGORY_DIGIT: _DIGITS,
    constants.CATEGORY_NOT_DIGIT: _ALL - _DIGITS,
    constants.CATEGORY_WORD: _WORD,
    constants.CATEGORY_NOT_WORD: _ALL - _WORD,
    constants.CATEGORY_SPACE: _SPACE,
    constants.CATEGORY_NOT_SPACE: _ALL - _SPACE,
}
#: What the two engines read differently, or only one of them reads.
_UNSURE: Final = ("[:", "{,", "(?i", "(?s", "(?m", "(?x", "(?U", "(?a", "(?u", "(?L", "(?-", "\\Q", "\\C", "\\b", "\\B")
#: A vertical tab is a blank to one engine only; where a text ends in a newline, `$` is not the end to the other.
_TELLING: Final = "\v"

#: A character set and whether it may be repeated without end; or the end of the text.
_Step = tuple[frozenset[int], bool, bool]


class Searcher:
    """Searches with whichever engine is faster and surely linear.

    Args:
        pattern: as RE2 reads it.

    Raises:
        re2.error: it is none.
    """

    __slots__ = ("_quick", "_slow", "names")

    def __init__(self, pattern: str) -> None:
        self._slow = re2.compile(pattern)
        self._quick = quick(pattern)
        #: Names of groups, in order.
        self.names = tuple(self._slow.groupindex)

    def found(self, text: str) -> bool:
        """Return whether it matches somewhere."""
        if self._quick is not None and _TELLING not in text and text[-1:] != "\n":
            return self._quick.match(text) is not None
        return self._slow.search(text) is not None

    def groups(self, text: str) -> dict[str, str] | None:
        """Return what the named groups of the first match hold, empty where one took no part; None without a match."""
        if self._quick is not None and _TELLING not in text and text[-1:] != "\n":
            quick_match = self._quick.match(text)
            return None if quick_match is None else quick_match.groupdict("")
        match = self._slow.search(text)
        return None if match is None else {name: held or "" for name, held in match.groupdict().items()}


def quick(pattern: str) -> re.Pattern[str] | None:
    """The expression for Python's engine; None where that could backtrack, or find something else."""
    if any(part in pattern for part in _UNSURE):
        return None
    try:
        tree = parser.parse(pattern, re.ASCII)
        compiled = re.compile(pattern, re.ASCII)
        if tree.state.flags & ~(re.ASCII | re.UNICODE):
            return None
        items = list(tree)
        if not items or items[0] != (constants.AT, constants.AT_BEGINNING):
            return None
        steps = _steps(items[1:])
    except (re.error, RecursionError, OverflowError, Unusable):
        return None
    return compiled if _deterministic(steps) else None


class Unusable(Exception):
    """This has to be left to RE2."""


def _steps(items: list[Any]) -> list[_Step]:
    """Sets of characters in order: each may be repeated, and may be missing."""
    found: list[_Step] = []
    for place, (kind, held) in enumerate(items):
        if kind is constants.SUBPATTERN:
            _, more, less, inner = held
            if more or less:
                raise Unusable
            found += _steps(list(inner))
        elif kind in (constants.MAX_REPEAT, constants.MIN_REPEAT):
            least, most, inner = held
            if len(inner) != 1:
                raise Unusable
            found.append((_characters(inner[0]), most > 1, least == 0))
        elif kind is constants.AT:
            if held is not constants.AT_END or place != len(items) - 1:
                raise Unusable
        elif kind is constants.BRANCH:
            # Alternatives of plain letters, all of one length or not: a constant number of attempts.
            firsts: set[int] = set()
            for branch in held[1]:
                if not branch or any(part is not constants.LITERAL for part, _ in branch):
                    raise Unusable
                firsts |= _characters(branch[0])
            found.append((frozenset(firsts), False, False))
        else:
            found.append((_characters((kind, held)), False, False))
    return found


def _characters(item: Any) -> frozenset[int]:
    """The characters that one item matches."""
    kind, held = item
    if kind is constants.LITERAL:
        return frozenset({min(held, _OTHER)})
    if kind is constants.NOT_LITERAL:
        return _ALL - {held} if held < _OTHER else _ALL
    if kind is constants.ANY:
        return _ALL - {10}
    if kind is constants.IN:
        found: set[int] = set()
        negated = False
        for part, value in held:
            if part is constants.NEGATE:
                negated = True
            elif part is constants.LITERAL:
                found.add(min(value, _OTHER))
            elif part is constants.RANGE:
                found.update(min(n, _OTHER) for n in range(value[0], min(value[1], _OTHER) + 1))
                if value[1] >= _OTHER:
                    found.add(_OTHER)
            elif part is constants.CATEGORY:
                found |= _CATEGORIES[value]
            else:
                raise Unusable
        # Of what is beyond ASCII some may be in a set and some not.
        return frozenset((_ALL - found) | {_OTHER} if negated else found)
    raise Unusable


def _deterministic(steps: list[_Step]) -> bool:
    """Return whether every repetition ends where the next item begins, so that no other division is ever tried."""
    for number, (characters, repeats, missing) in enumerate(steps):
        if not repeats and not missing:
            continue
        for after, _, optional in steps[number + 1 :]:
            if characters & after:
                return False
            if not optional:
                break
    return True
