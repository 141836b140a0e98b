"""From a tree to the expression Hyperscan searches for: in the body of one record, or in raw lines of a file."""

from __future__ import annotations

from functools import lru_cache
from typing import Final

from tracecore.ottl.planner.expressions import (
    EMPTY,
    HIGH,
    Byte,
    Choice,
    Node,
    Place,
    Repeat,
    Sequence,
    Wide,
)

#: Longer counted repetitions are searched for without their bound: an automaton has to count them out.
MAX_COUNT: Final = 4
#: Stands for the line ends inside a text whose raw form has them escaped (see `selection`).
LINE_BREAK: Final = 0x1E

_BREAKS: Final = 1 << 10 | 1 << 13
_NOT_BREAKS: Final = ((1 << 256) - 1) & ~_BREAKS
_WORD_BYTES: Final = frozenset(b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_")
_NOT_WORD: Final = sum(1 << byte for byte in range(256) if byte not in _WORD_BYTES) & _NOT_BREAKS
#: What follows in a raw line.
_REST: Final = b"[^\\n]*$"
_TRAILING: Final = 1 << 9 | 1 << 11 | 1 << 12 | 1 << 13 | 1 << 32 | 1 << LINE_BREAK


def alternatives(node: Node, *, lines: bool) -> tuple[Node, ...]:
    """Expressions one of which matches wherever the whole does; in raw lines, where one line of a text does.

    Without what an unanchored search does not need: optional things at either end, and in raw lines every line but one.
    """
    node = _trimmed(one_line(node) if lines else node)
    parts = node.parts if isinstance(node, Choice) else (node,)
    found: list[Node] = []
    for part in parts:
        inner = _trimmed(part)
        found.extend(alternatives(inner, lines=False) if isinstance(inner, Choice) else (inner,))
    return tuple(found)


def written(node: Node, *, lines: bool) -> bytes | None:
    """An expression as Hyperscan has it; None where it says nothing, because no character is needed to match it.

    In a record's text, encoded as UTF-8, or in raw lines, where prefixes, quotes and white space may stand around it.
    """
    return None if _nullable(node) else _written(node, lines=lines)


def to_line_end(node: Node) -> bytes | None:
    """The same in raw lines, up to where the line ends: Hyperscan reports it once for each line then."""
    return None if _nullable(node) else _to_line_end(node, first=True)


def _to_line_end(node: Node, *, first: bool) -> bytes:
    match node:
        case Sequence((*before, last)):
            parts = (_written_part(part, first=first and not at) for at, part in enumerate(before))
            return b"".join(parts) + b"(?:" + _to_line_end(last, first=first and not before) + b")"
        case Choice(parts):
            return b"|".join(_to_line_end(part, first=first) for part in parts)
        case Place("text end" | "line end"):
            return _line_end(_REST)
    return _written(node, lines=True, first=first) + _REST


def _nullable(node: Node) -> bool:
    """Whether it may match without a single character."""
    match node:
        case Byte() | Wide():
            return False
        case Sequence(parts):
            return all(_nullable(part) for part in parts)
        case Choice(parts):
            return any(_nullable(part) for part in parts)
        case Repeat(part, least, _):
            return least == 0 or _nullable(part)
    return True


def _trimmed(node: Node, *, start: bool = True, end: bool = True) -> Node:
    """Without what an unanchored search does not need: optional things at either end, repetitions of the last thing."""
    match node:
        case Wide(mask):
            # Of a character of several bytes, the one beside the rest will do.
            return Byte(mask | HIGH)
        case Repeat(part, least, _):
            if least == 0:
                return EMPTY
            return _trimmed(part, start=start, end=end) if least == 1 else Repeat(part, least, least)
        case Choice(parts):
            return Choice(tuple(_trimmed(part, start=start, end=end) for part in parts))
        case Sequence(parts):
            kept = list(parts)
            while start and kept and isinstance(kept[0], Repeat) and kept[0].least == 0:
                kept.pop(0)
            while end and kept and isinstance(kept[-1], Repeat) and kept[-1].least == 0:
                kept.pop()
            if kept and start:
                kept[0] = _trimmed(kept[0], end=end and len(kept) == 1)
            if len(kept) > 1 and end:
                kept[-1] = _trimmed(kept[-1], start=False)
            return Sequence(tuple(kept))
    return node


def one_line(node: Node, *, last: bool = True) -> Node:
    """The part of an expression that one line of the text has to match.

    Args:
        node: the expression, or a part of it.
        last: nothing follows it.
    """
    match node:
        case Byte(mask) if not mask & _NOT_BREAKS:
            return _BREAK
        case Sequence(parts):
            pieces: list[list[Node]] = [[]]
            for at, part in enumerate(parts):
                line = one_line(part, last=last and at == len(parts) - 1)
                if line is _BREAK:
                    pieces.append([Place("line start")])
                else:
                    pieces[-1].append(line)
            whole = [Sequence(tuple(piece)) for piece in pieces]
            return next((piece for piece in whole if not _nullable(piece)), whole[-1])
        case Choice(parts):
            # `(?:\n|$)` at the end of an expression is the end of a line.
            instead = Place("line end" if last else "line start")
            lines = (one_line(part, last=last) for part in parts)
            return Choice(tuple(instead if line is _BREAK else line for line in lines))
        case Repeat(part, least, most):
            inner = one_line(part, last=False)
            return Repeat(EMPTY, 0, 1) if inner is _BREAK else Repeat(inner, least, most)
    return node


#: A line break that must be there.
_BREAK: Final = Place("line end")


def _written(node: Node, *, lines: bool, first: bool = True) -> bytes:
    match node:
        case Byte(mask):
            return _class(_lined(mask) if lines else mask)
        case Wide(mask):
            return _class((_lined(mask) if lines else mask) | HIGH) + b"{1,4}"
        case Sequence(parts):
            return b"".join(_written_part(part, lines=lines, first=first and not at) for at, part in enumerate(parts))
        case Choice(parts):
            return b"|".join(_written(part, lines=lines, first=first) for part in parts)
        case Repeat(part, least, most):
            return _repeat(part, least, most, lines=lines)
        case Place(kind):
            return _place(kind, lines=lines, first=first)
    raise TypeError(f"not a node: {node!r}")


def _written_part(node: Node, *, lines: bool = True, first: bool) -> bytes:
    """A part of a sequence."""
    return _group(node, lines, first) if isinstance(node, Choice) else _written(node, lines=lines, first=first)


def _group(node: Node, lines: bool, first: bool) -> bytes:
    return b"(?:" + _written(node, lines=lines, first=first) + b")"


def _repeat(part: Node, least: int, most: int | None, *, lines: bool) -> bytes:
    if isinstance(part, Place) or part == EMPTY:
        return b"" if least == 0 else _written(part, lines=lines, first=False)
    least = min(least, MAX_COUNT)
    if isinstance(part, Wide):
        written = _class((_lined(part.mask) if lines else part.mask) | HIGH)
        most = None if most is None else most * 4
    else:
        written = _written(part, lines=lines) if isinstance(part, Byte) else _group(part, lines, False)
    if most is not None and most > MAX_COUNT:
        most = None
    if most == 0:
        return b""
    bounds = {(0, None): b"*", (1, None): b"+", (0, 1): b"?", (1, 1): b""}.get((least, most))
    if bounds is None:
        bounds = b"{%d,%s}" % (least, b"" if most is None else b"%d" % most)
    return written + bounds


def _place(kind: str, *, lines: bool, first: bool) -> bytes:
    """A position, as far as Hyperscan knows it: the start of something only as the first thing of an expression."""
    if kind.endswith("start") and not first:
        return b""
    if not lines:
        return {
            "text start": b"\\A",
            "text end": b"\\z",
            "line start": b"(?m:^)",
            "line end": b"(?m:$)",
            "word": b"\\b",
            "inside": b"\\B",
        }[kind]
    if kind in ("text start", "line start"):
        return b"(?:^|%s)" % _class(_NOT_WORD | 1 << 13)
    if kind in ("text end", "line end"):
        return _line_end(b"")
    return b"\\b" if kind == "word" else b""


def _line_end(following: bytes) -> bytes:
    """The end of a text in a raw line, and what follows a quote there."""
    return b'%s*(?:$|["\\r%s]%s)' % (_class(_TRAILING), bytes((LINE_BREAK,)), following)


def _lined(mask: int) -> int:
    """A set of bytes as it is in raw lines: line ends inside the text have a stand-in."""
    return (mask & _NOT_BREAKS) | (1 << LINE_BREAK if mask & _BREAKS else 0)


@lru_cache(maxsize=4096)
def _class(mask: int) -> bytes:
    members = [byte for byte in range(256) if mask >> byte & 1]
    if len(members) == 1:
        return _byte(members[0])
    out = []
    at = 0
    while at < len(members):
        last = at
        while last + 1 < len(members) and members[last + 1] == members[last] + 1:
            last += 1
        out.append(_byte(members[at]) if last == at else _byte(members[at]) + b"-" + _byte(members[last]))
        at = last + 1
    return b"[" + b"".join(out) + b"]"


def _byte(byte: int) -> bytes:
    return bytes((byte,)) if byte in _WORD_BYTES else b"\\x%02x" % byte
