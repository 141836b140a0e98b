"""Expressions for Hyperscan, made from trees: for the body of one record, or for the raw lines of a file.

In raw lines the text may have a prefix, quotes and white space around it, and each line is searched by itself.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final

from tracecore.ottl.planner.expressions import EMPTY, HIGH, Byte, Choice, Node, Position, Repeat, Sequence, Wide

#: Repetitions with a higher bound are searched for without it, because an automaton needs a state for each count.
MAX_COUNT: Final = 4
#: Replaces a line end that is escaped in a raw line, as in JSON (see `selection`).
LINE_BREAK: Final = 0x1E

_BREAKS: Final = 1 << 10 | 1 << 13
_NOT_BREAKS: Final = ((1 << 256) - 1) & ~_BREAKS
_WORD_BYTES: Final = frozenset(b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_")
_NOT_WORD: Final = sum(1 << byte for byte in range(256) if byte not in _WORD_BYTES) & _NOT_BREAKS
_REST_OF_LINE: Final = b"[^\\n]*$"
_TRAILING: Final = 1 << 9 | 1 << 11 | 1 << 12 | 1 << 13 | 1 << 32 | 1 << LINE_BREAK


def alternatives(node: Node, *, lines: bool) -> tuple[Node, ...]:
    """Split an expression into alternatives; wherever the expression matches, at least one of them does.

    Parts that an unanchored search does not need are removed: optional parts at both ends, and for raw lines all lines
    of the expression but one.
    """
    node = _trimmed(one_line(node) if lines else node)
    parts = node.parts if isinstance(node, Choice) else (node,)
    found: list[Node] = []
    for part in parts:
        inner = _trimmed(part)
        found.extend(alternatives(inner, lines=False) if isinstance(inner, Choice) else (inner,))
    return tuple(found)


def to_hyperscan(node: Node, *, lines: bool) -> bytes | None:
    """Return the expression for raw lines or for a record's text in UTF-8; None if it matches the empty text."""
    return None if _nullable(node) else _expression(node, lines=lines)


def to_line_end(node: Node) -> bytes | None:
    """Return the expression for raw lines, extended to the line's end, so that Hyperscan reports each line once."""
    return None if _nullable(node) else _to_line_end(node, first=True)


def _to_line_end(node: Node, *, first: bool) -> bytes:
    match node:
        case Sequence((*before, last)):
            parts = (_part(part, first=first and not at) for at, part in enumerate(before))
            return b"".join(parts) + b"(?:" + _to_line_end(last, first=first and not before) + b")"
        case Choice(parts):
            return b"|".join(_to_line_end(part, first=first) for part in parts)
        case Position("text end" | "line end"):
            return _line_end(_REST_OF_LINE)
    return _expression(node, lines=True, first=first) + _REST_OF_LINE


def _nullable(node: Node) -> bool:
    """Whether the node matches the empty text."""
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
    """Remove what an unanchored search does not need at the start or end: optional parts and further repetitions."""
    match node:
        case Wide(mask):
            # One byte of a character of several bytes is enough here.
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
    """Return the part of an expression that one line of the text must match.

    Args:
        node: the expression, or a part of it.
        last: whether this part ends the expression.
    """
    match node:
        case Byte(mask) if not mask & _NOT_BREAKS:
            return _BREAK
        case Sequence(parts):
            pieces: list[list[Node]] = [[]]
            for at, part in enumerate(parts):
                line = one_line(part, last=last and at == len(parts) - 1)
                if line is _BREAK:
                    pieces.append([Position("line start")])
                else:
                    pieces[-1].append(line)
            candidates = [Sequence(tuple(piece)) for piece in pieces]
            return next((line for line in candidates if not _nullable(line)), candidates[-1])
        case Choice(parts):
            # `(?:\n|$)` at the end of an expression is the end of a line.
            position = Position("line end" if last else "line start")
            lines = (one_line(part, last=last) for part in parts)
            return Choice(tuple(position if line is _BREAK else line for line in lines))
        case Repeat(part, least, most):
            inner = one_line(part, last=False)
            return Repeat(EMPTY, 0, 1) if inner is _BREAK else Repeat(inner, least, most)
    return node


#: What `one_line` returns for a line break that the expression requires.
_BREAK: Final = Position("line end")


def _expression(node: Node, *, lines: bool, first: bool = True) -> bytes:
    match node:
        case Byte(mask):
            return _class(_in_raw_line(mask) if lines else mask)
        case Wide(mask):
            return _class((_in_raw_line(mask) if lines else mask) | HIGH) + b"{1,4}"
        case Sequence(parts):
            return b"".join(_part(part, lines=lines, first=first and not at) for at, part in enumerate(parts))
        case Choice(parts):
            return b"|".join(_expression(part, lines=lines, first=first) for part in parts)
        case Repeat(part, least, most):
            return _repeat(part, least, most, lines=lines)
        case Position(kind):
            return _position(kind, lines=lines, first=first)
    raise TypeError(f"not a node: {node!r}")


def _part(node: Node, *, lines: bool = True, first: bool) -> bytes:
    """Return the expression of a part of a sequence."""
    return _group(node, lines, first) if isinstance(node, Choice) else _expression(node, lines=lines, first=first)


def _group(node: Node, lines: bool, first: bool) -> bytes:
    return b"(?:" + _expression(node, lines=lines, first=first) + b")"


def _repeat(part: Node, least: int, most: int | None, *, lines: bool) -> bytes:
    if isinstance(part, Position) or part == EMPTY:
        return b"" if least == 0 else _expression(part, lines=lines, first=False)
    least = min(least, MAX_COUNT)
    if isinstance(part, Wide):
        repeated = _class((_in_raw_line(part.mask) if lines else part.mask) | HIGH)
        most = None if most is None else most * 4
    else:
        repeated = _expression(part, lines=lines) if isinstance(part, Byte) else _group(part, lines, False)
    if most is not None and most > MAX_COUNT:
        most = None
    if most == 0:
        return b""
    bounds = {(0, None): b"*", (1, None): b"+", (0, 1): b"?", (1, 1): b""}.get((least, most))
    if bounds is None:
        bounds = b"{%d,%s}" % (least, b"" if most is None else b"%d" % most)
    return repeated + bounds


def _position(kind: str, *, lines: bool, first: bool) -> bytes:
    """Return the assertion for a position. Hyperscan supports starts only as the first part of an expression."""
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
    """Match the end of a text in a raw line: the line's end or a closing quote, and `following` after a quote."""
    return b'%s*(?:$|["\\r%s]%s)' % (_class(_TRAILING), bytes((LINE_BREAK,)), following)


def _in_raw_line(mask: int) -> int:
    """Replace line ends in a set of bytes by `LINE_BREAK`."""
    return (mask & _NOT_BREAKS) | (1 << LINE_BREAK if mask & _BREAKS else 0)


@lru_cache(maxsize=4096)
def _class(mask: int) -> bytes:
    """Return a set of bytes as a character class."""
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
