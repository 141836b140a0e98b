"""Literals that every match of an expression contains: searching for them is cheaper than for the expression."""

from __future__ import annotations

from functools import lru_cache
from typing import Final, TypeAlias

from tracecore.ottl.planner.expressions import Byte, Choice, Node, Position, Repeat, Sequence

#: An expression is expanded into at most this many strings: `ab?c` into `abc` and `ac`.
MAX_STRINGS: Final = 24
#: Literals of this length are rare enough in logs.
RARE_LENGTH: Final = 10
#: Words that healthy programs write all the time. They are as common as other literals of `COMMON_LENGTH`.
COMMON_WORDS: Final = frozenset((b"checkpoint", b"loading", b"saving", b"training", b"writing"))
COMMON_LENGTH: Final = 5

#: A string, and whether case is ignored. The string is in lower case then.
Literal: TypeAlias = tuple[bytes, bool]
_Strings: TypeAlias = frozenset[Literal]

_NOTHING: Final[_Strings] = frozenset({(b"", False)})


def required(node: Node) -> frozenset[Literal] | None:
    """Return the rarest known set of strings such that every match contains one of them; None if there is none."""
    exact, contained = _strings(node)
    found = contained if exact is None else _rarer(contained, exact)
    return None if found is None or _lowest_rarity(found) == 0 else found


def rarity(text: bytes) -> int:
    """Return how rare a literal is in logs: its length, but at most `COMMON_LENGTH` for a common word."""
    return min(len(text), COMMON_LENGTH) if text.strip(b" ").lower() in COMMON_WORDS else len(text)


def _lowest_rarity(strings: _Strings) -> int:
    return min((rarity(text) for text, _ in strings), default=0)


def _rarer(one: _Strings | None, other: _Strings | None) -> _Strings | None:
    """Return the set with the longer strings; if both are long enough, the set with fewer strings."""
    if one is None or other is None:
        return other if one is None else one
    first, second = _lowest_rarity(one), _lowest_rarity(other)
    if min(first, RARE_LENGTH) != min(second, RARE_LENGTH):
        return one if first > second else other
    return one if (-len(one), first) >= (-len(other), second) else other


def _strings(node: Node) -> tuple[_Strings | None, _Strings | None]:
    """Return all strings that the node matches (None if too many), and strings one of which each match contains."""
    match node:
        case Byte(mask):
            return _bytes(mask), None
        case Position():
            return _NOTHING, None
        case Sequence(parts):
            return _sequence(parts)
        case Choice(parts):
            return _choice(parts)
        case Repeat(part, least, most):
            exact, contained = _strings(part)
            if exact is not None and (least, most) == (0, 1):
                return exact | _NOTHING, None
            if exact is not None and least == most == 1:
                return exact, contained
            return None, (None if least == 0 else contained if exact is None else _rarer(contained, exact))
    return None, None


@lru_cache(maxsize=1024)
def _bytes(mask: int) -> _Strings | None:
    if mask.bit_count() > 8:
        return None
    found: set[Literal] = set()
    for byte in range(256):
        if mask >> byte & 1:
            char = bytes((byte,))
            if char.isalpha() and mask >> ord(char.swapcase()) & 1:
                found.add((char.lower(), True))
            else:
                found.add((char, False))
    return frozenset(found)


def _sequence(parts: tuple[Node, ...]) -> tuple[_Strings | None, _Strings | None]:
    complete = True
    contained: _Strings | None = None
    current = _NOTHING
    for part in parts:
        exact, inner = _strings(part)
        if exact is not None and len(current) * len(exact) <= MAX_STRINGS:
            current = frozenset(_joined(one, other) for one in current for other in exact)
            continue
        complete = False
        contained = _rarer(contained, current)
        contained = _rarer(contained, inner)
        contained = _rarer(contained, exact)
        current = _NOTHING if exact is None else exact
    return (current if complete else None), _rarer(contained, current)


def _joined(one: Literal, other: Literal) -> Literal:
    folded = one[1] or other[1]
    text = one[0] + other[0]
    return (text.lower() if folded else text), folded


def _choice(parts: tuple[Node, ...]) -> tuple[_Strings | None, _Strings | None]:
    exact: _Strings | None = frozenset()
    contained: _Strings | None = frozenset()
    for part in parts:
        own, inner = _strings(part)
        needed = inner if own is None else _rarer(inner, own)
        contained = None if contained is None or needed is None else contained | needed
        exact = None if exact is None or own is None else exact | own
    if exact is not None and len(exact) > MAX_STRINGS:
        exact = None
    return exact, contained
