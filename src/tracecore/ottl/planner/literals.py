"""Literals that an expression cannot match without: cheaper to search for than the expression itself."""

from __future__ import annotations

from functools import lru_cache
from typing import Final, TypeAlias

from tracecore.ottl.planner.expressions import Byte, Choice, Node, Place, Repeat, Sequence

#: As many strings as one expression may be spelled out to.
MAX_STRINGS: Final = 24
#: A literal of this length is rare enough in logs.
LONG: Final = 10
#: Words that programs write all the time, whatever happens: no rarer than a literal of this length.
COMMON: Final = frozenset((b"checkpoint", b"loading", b"saving", b"training", b"writing"))
SHORT: Final = 5

#: A string and whether case matters not. A folded one is in lower case.
Literal: TypeAlias = tuple[bytes, bool]
_Strings: TypeAlias = frozenset[Literal]

_NOTHING: Final[_Strings] = frozenset({(b"", False)})


def required(node: Node) -> frozenset[Literal] | None:
    """Strings one of which is in whatever the expression matches, the rarest that can be had; None where none is."""
    exact, best = _strings(node)
    found = best if exact is None else _better(best, exact)
    return None if found is None or _score(found) == 0 else found


def rarity(text: bytes) -> int:
    """Return how rare a literal is in logs, as the length of one without a meaning."""
    return min(len(text), SHORT) if text.strip(b" ").lower() in COMMON else len(text)


def _score(strings: _Strings) -> int:
    return min((rarity(text) for text, _ in strings), default=0)


def _better(one: _Strings | None, other: _Strings | None) -> _Strings | None:
    """The longer ones; beyond a length that is rare enough, the fewer ones."""
    if one is None or other is None:
        return other if one is None else one
    first, second = _score(one), _score(other)
    if min(first, LONG) != min(second, LONG):
        return one if first > second else other
    return one if (-len(one), first) >= (-len(other), second) else other


def _strings(node: Node) -> tuple[_Strings | None, _Strings | None]:
    """All strings the node matches, where they are few; and strings one of which any match contains."""
    match node:
        case Byte(mask):
            return _bytes(mask), None
        case Place():
            return _NOTHING, None
        case Sequence(parts):
            return _sequence(parts)
        case Choice(parts):
            return _choice(parts)
        case Repeat(part, least, most):
            exact, best = _strings(part)
            if exact is not None and (least, most) == (0, 1):
                return exact | _NOTHING, None
            if exact is not None and least == most == 1:
                return exact, best
            return None, (None if least == 0 else best if exact is None else _better(best, exact))
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
    whole = True
    best: _Strings | None = None
    current = _NOTHING
    for part in parts:
        exact, inner = _strings(part)
        if exact is not None and len(current) * len(exact) <= MAX_STRINGS:
            current = frozenset(_joined(one, other) for one in current for other in exact)
            continue
        whole = False
        best = _better(best, current)
        best = _better(best, inner)
        best = _better(best, exact)
        current = _NOTHING if exact is None else exact
    best = _better(best, current)
    return (current if whole else None), best


def _joined(one: Literal, other: Literal) -> Literal:
    folded = one[1] or other[1]
    text = one[0] + other[0]
    return (text.lower() if folded else text), folded


def _choice(parts: tuple[Node, ...]) -> tuple[_Strings | None, _Strings | None]:
    exact: _Strings | None = frozenset()
    best: _Strings | None = frozenset()
    for part in parts:
        own, inner = _strings(part)
        needed = inner if own is None else _better(inner, own)
        best = None if best is None or needed is None else best | needed
        exact = None if exact is None or own is None else exact | own
    if exact is not None and len(exact) > MAX_STRINGS:
        exact = None
    return exact, best
