"""RE2 expressions parsed into trees over bytes, from which the expressions for Hyperscan are made.

A tree may match more than its expression, but never less. A character outside ASCII is one to four bytes, and any byte
above 127 stands for any such character. Case is folded only within ASCII. Two characters outside ASCII fold to ASCII
letters (`FOLDING`); every scan must search for them, too.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final, Literal, TypeAlias

import msgspec

#: U+017F and U+212A: an expression that ignores case takes them for `s` and `k`.
FOLDING: Final = ("ſ".encode(), "\u212a".encode())

ASCII: Final = (1 << 128) - 1
HIGH: Final = ((1 << 256) - 1) ^ ASCII
#: Depth of groups; deeper expressions are not rewritten.
MAX_DEPTH: Final = 50


class Byte(msgspec.Struct, frozen=True):
    """One byte out of a set. Bit n of the mask is set if byte n is in the set."""

    mask: int


class Wide(msgspec.Struct, frozen=True):
    """One character: any character outside ASCII, or one of the ASCII characters in the mask."""

    mask: int


class Sequence(msgspec.Struct, frozen=True):
    parts: tuple[Node, ...]


class Choice(msgspec.Struct, frozen=True):
    parts: tuple[Node, ...]


class Repeat(msgspec.Struct, frozen=True):
    part: Node
    least: int
    most: int | None


class Position(msgspec.Struct, frozen=True):
    """A condition on the position that consumes no character."""

    kind: Literal["text start", "text end", "line start", "line end", "word", "inside"]


Node: TypeAlias = Byte | Wide | Sequence | Choice | Repeat | Position
EMPTY: Final = Sequence(())


class Unreadable(ValueError):
    """An expression that this module cannot parse."""


def _mask(characters: str) -> int:
    mask = 0
    for char in characters:
        mask |= 1 << ord(char)
    return mask


def _span(first: int, last: int) -> int:
    return ((1 << (last + 1)) - 1) & ~((1 << first) - 1)


_DIGIT = _span(48, 57)
_UPPER = _span(65, 90)
_LOWER = _span(97, 122)
_WORD = _DIGIT | _UPPER | _LOWER | _mask("_")
_SPACE = _mask("\t\n\f\r ")
_PERL: Final = {"d": _DIGIT, "w": _WORD, "s": _SPACE}
_POSIX: Final = {
    "alnum": _DIGIT | _UPPER | _LOWER,
    "alpha": _UPPER | _LOWER,
    "ascii": ASCII,
    "blank": _mask("\t "),
    "cntrl": _span(0, 31) | _mask("\x7f"),
    "digit": _DIGIT,
    "graph": _span(33, 126),
    "lower": _LOWER,
    "print": _span(32, 126),
    "punct": _span(33, 47) | _span(58, 64) | _span(91, 96) | _span(123, 126),
    "space": _SPACE | _mask("\v"),
    "upper": _UPPER,
    "word": _WORD,
    "xdigit": _DIGIT | _span(65, 70) | _span(97, 102),
}
_CLASSES: Final = frozenset("dwsDWS")
#: ASCII letters that `FOLDING` folds to.
_FOLDABLE: Final = _mask("sSkK")
_ESCAPES: Final = {"n": "\n", "t": "\t", "r": "\r", "f": "\f", "v": "\v", "a": "\a"}
_PUNCTUATION: Final = frozenset("\\.+*?()|[]{}^$-/:;,'\"<>=!@#%&~` _")


@lru_cache(maxsize=2048)
def parse(text: str) -> Node:
    """Parse an expression.

    Raises:
        Unreadable: it uses something unknown. It must then be treated as matching every text.
    """
    parser = _Parser(text)
    node = parser.choice(0)
    if parser.at < len(text):
        raise Unreadable("unbalanced parenthesis")
    return node


class _Parser:
    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0
        self.fold = False
        self.dotall = False
        self.multiline = False

    def choice(self, depth: int) -> Node:
        if depth > MAX_DEPTH:
            raise Unreadable("nested too deep")
        flags = self.fold, self.dotall, self.multiline
        parts = [self._sequence(depth)]
        while self._take("|"):
            parts.append(self._sequence(depth))
        self.fold, self.dotall, self.multiline = flags
        return parts[0] if len(parts) == 1 else Choice(tuple(parts))

    def _take(self, token: str) -> bool:
        if self.text.startswith(token, self.at):
            self.at += len(token)
            return True
        return False

    def _sequence(self, depth: int) -> Node:
        parts: list[Node] = []
        while self.at < len(self.text) and self.text[self.at] not in "|)":
            if self._take("\\Q"):
                end = self.text.find("\\E", self.at)
                quoted = self.text[self.at :] if end < 0 else self.text[self.at : end]
                parts.extend(self._character(char) for char in quoted)
                self.at = len(self.text) if end < 0 else end + 2
                continue
            if self._take("\\E"):
                continue
            atom = self._atom(depth)
            if atom is not None:
                parts.append(self._repeated(atom))
        return parts[0] if len(parts) == 1 else Sequence(tuple(parts))

    def _repeated(self, atom: Node) -> Node:
        while self.at < len(self.text):
            char = self.text[self.at]
            if char in "*+?":
                self.at += 1
                least, most = (1, None) if char == "+" else (0, None) if char == "*" else (0, 1)
            elif (counted := self._counted()) is not None:
                least, most = counted
            else:
                return atom
            self._take("?")  # lazy: the same texts match
            atom = Repeat(atom, least, most)
        return atom

    def _counted(self) -> tuple[int, int | None] | None:
        """Read `{2}`, `{2,}` or `{2,5}`; anything else in braces is literal."""
        if self.text[self.at] != "{":
            return None
        end = self.text.find("}", self.at)
        first, comma, last = self.text[self.at + 1 : end].partition(",")
        if end < 0 or not first.isdecimal() or not (last.isdecimal() or not last):
            return None
        self.at = end + 1
        return int(first), int(last) if last else None if comma else int(first)

    def _atom(self, depth: int) -> Node | None:
        char = self.text[self.at]
        self.at += 1
        if char == "(":
            return self._group(depth)
        if char == "[":
            return self._class()
        if char == "\\":
            return self._escape()
        if char == ".":
            return Wide(ASCII if self.dotall else ASCII & ~_mask("\n"))
        if char == "^":
            return Position("line start" if self.multiline else "text start")
        if char == "$":
            return Position("line end" if self.multiline else "text end")
        return self._character(char)

    def _group(self, depth: int) -> Node | None:
        flags = self.fold, self.dotall, self.multiline
        if self._take("?P<") or self._take("?<"):
            self.at = self.text.find(">", self.at) + 1
            if not self.at:
                raise Unreadable("no name")
        elif self._take("?"):
            end = self.at
            on = True
            while end < len(self.text) and self.text[end] not in ":)":
                letter = self.text[end]
                if letter == "-":
                    on = False
                elif letter == "i":
                    self.fold = on
                elif letter == "s":
                    self.dotall = on
                elif letter == "m":
                    self.multiline = on
                elif letter != "U":  # which of several matches is preferred does not matter
                    raise Unreadable(f"flag {letter}")
                end += 1
            self.at = end + 1
            if self.text[end : end + 1] == ")":  # flags for the rest of the enclosing group
                return None
        node = self.choice(depth + 1)
        if not self._take(")"):
            raise Unreadable("unbalanced parenthesis")
        self.fold, self.dotall, self.multiline = flags
        return node

    def _character(self, char: str) -> Node:
        if not char.isascii():
            if self.fold and char.swapcase() != char:
                return Wide(_FOLDABLE)
            try:
                return Sequence(tuple(Byte(1 << byte) for byte in char.encode()))
            except UnicodeEncodeError:
                raise Unreadable("a character that is none") from None
        return Byte(_folded(1 << ord(char)) if self.fold else 1 << ord(char))

    def _escape(self) -> Node:
        char = self.text[self.at : self.at + 1]
        if char in ("b", "B", "A", "z"):
            self.at += 1
            return Position({"b": "word", "B": "inside", "A": "text start", "z": "text end"}[char])  # type: ignore[arg-type]
        if char.lower() in _PERL:
            self.at += 1
            mask = _PERL[char.lower()]
            return Byte(mask) if char.islower() else Wide(ASCII & ~mask)
        return self._character(self._escaped())

    def _escaped(self) -> str:
        """Return the character that an escape stands for."""
        char = self.text[self.at : self.at + 1]
        self.at += 1
        if char in _ESCAPES:
            return _ESCAPES[char]
        if char == "x":
            if self._take("{"):
                end = self.text.find("}", self.at)
                digits, self.at = self.text[self.at : end], end + 1
            else:
                digits, self.at = self.text[self.at : self.at + 2], self.at + 2
            try:
                return chr(int(digits, 16))
            except (ValueError, OverflowError):
                raise Unreadable("an escape that is none") from None
        if char in _PUNCTUATION:
            return char
        raise Unreadable(f"escape {char}")

    def _class(self) -> Node:
        negated = self._take("^")
        mask, wide = 0, False
        first = True
        while first or not self.text.startswith("]", self.at):
            if self.at >= len(self.text):
                raise Unreadable("missing ]")
            first = False
            if self.text.startswith("[:", self.at) and (end := self.text.find(":]", self.at)) >= 0:
                name, self.at = self.text[self.at + 2 : end], end + 2
                known = _POSIX.get(name.removeprefix("^"))
                if known is None:
                    raise Unreadable(f"class {name}")
                mask, wide = (mask | ASCII & ~known, True) if name.startswith("^") else (mask | known, wide)
                continue
            if self.text.startswith("\\", self.at) and (letter := self.text[self.at + 1 : self.at + 2]) in _CLASSES:
                self.at += 2
                known = _PERL[letter.lower()]
                mask, wide = (mask | known, wide) if letter.islower() else (mask | ASCII & ~known, True)
                continue
            low = self._member()
            high = low
            if self.text.startswith("-", self.at) and not self.text.startswith("-]", self.at):
                self.at += 1
                high = self._member()
            wide = wide or high > 127
            if low < 128:
                mask |= _span(low, min(high, 127))
        self.at += 1
        if self.fold:
            # A negated class excludes both cases of a letter. Characters outside ASCII are included anyway.
            mask = _folded(mask) | (_FOLDABLE if wide and not negated else 0)
        if negated:
            return Wide(ASCII & ~mask)
        return Wide(mask) if wide else Byte(mask)

    def _member(self) -> int:
        if self._take("\\"):
            return ord(self._escaped())
        char = self.text[self.at : self.at + 1]
        if not char:
            raise Unreadable("missing ]")
        self.at += 1
        return ord(char)


def _folded(mask: int) -> int:
    """Add the other case of every letter in the mask."""
    letters = mask & (_UPPER | _LOWER)
    return mask | (letters & _UPPER) << 32 | (letters & _LOWER) >> 32
