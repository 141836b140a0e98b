"""Globs: `*` and `**` for any text, `?` for one character, `[a-z]`, `[!abc]`, `{one,two}`, `\\` to escape."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

from tracecore.ottl.functions import regex


@lru_cache(maxsize=256)
def compiled(pattern: str) -> Callable[[str], bool]:
    """A function that says whether a whole string matches the glob. ValueError when it is not a glob."""
    return regex.compiled(f"(?s)^(?:{_translate(pattern)})\\z").matches


def _translate(pattern: str) -> str:
    pieces: list[str] = []
    position, depth = 0, 0
    while position < len(pattern):
        char = pattern[position]
        position += 1
        if char == "*":
            pieces.append(".*")
        elif char == "?":
            pieces.append(".")
        elif char == "[":
            piece, position = _range(pattern, position)
            pieces.append(piece)
        elif char == "{":
            depth += 1
            pieces.append("(?:")
        elif char == "," and depth:
            pieces.append("|")
        elif char == "}" and depth:
            depth -= 1
            pieces.append(")")
        else:
            if char == "\\":
                if position == len(pattern):
                    break
                char = pattern[position]
                position += 1
            pieces.append(_literal(char))
    return "".join(pieces) + ")" * depth


def _range(pattern: str, position: int) -> tuple[str, int]:
    negate = pattern.startswith("!", position)
    position += negate
    if position >= len(pattern):
        raise ValueError("unexpected end of input")
    if pattern.startswith("-", position + 1):
        low, high = pattern[position], pattern[position + 2 : position + 3]
        position += 3
        if not high or position >= len(pattern):
            raise ValueError("unexpected end of input")
        if pattern[position] != "]":
            raise ValueError("expected close range character")
        if high < low:
            raise ValueError(f"hi character '{high}' should be greater than lo '{low}'")
        return f"[{'^' * negate}{_literal(low)}-{_literal(high)}]", position + 1
    characters: list[str] = []
    while position < len(pattern) and pattern[position] != "]":
        if pattern[position] == "\\":
            position += 1
        characters.append(pattern[position : position + 1])
        position += 1
    if position >= len(pattern):
        raise ValueError("unexpected end of input")
    if not characters:
        raise ValueError("could not parse range")
    return f"[{'^' * negate}{''.join(map(_literal, characters))}]", position + 1


def _literal(char: str) -> str:
    return char if char.isalnum() or not char.isascii() else f"\\x{{{ord(char):x}}}"
