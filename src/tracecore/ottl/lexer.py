"""Text to tokens. The kinds, their names and their order are the language's own."""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from tracecore.ottl.errors import OttlSyntaxError

#: Longest statement that is read. Statements are configuration, yet configuration can be a mistake too.
MAX_LENGTH: Final = 1 << 20

_RULES: Final = (
    ("Bytes", r"0x[a-fA-F0-9]+"),
    ("Float", r"(?:[0-9]+\.[0-9]*|[0-9]*\.[0-9]+)(?:[eE][-+]?[0-9]+)?"),
    ("Int", r"[0-9]+"),
    ("String", r'"(?:\\[^\n]|[^\\"])*"'),
    ("Nil", r"nil\b"),
    ("OpNot", r"not\b"),
    ("OpOr", r"or\b"),
    ("OpAnd", r"and\b"),
    ("OpComparison", r"==|!=|>=|<=|>|<"),
    ("LambdaArrow", r"=>"),
    ("OpAddSub", r"[+-]"),
    ("OpMultDiv", r"[/*]"),
    ("Boolean", r"(?:true|false)\b"),
    ("Equal", r"="),
    ("LParen", r"\("),
    ("RParen", r"\)"),
    ("LBrace", r"\{"),
    ("RBrace", r"\}"),
    ("Colon", r":"),
    ("Punct", r"[,.\[\]]"),
    ("Uppercase", r"[A-Z][A-Z0-9_]*"),
    ("Lowercase", r"[a-z][a-z0-9_]*"),
    ("whitespace", r"[\t\n\f\r ]+"),
    ("Underscore", r"_\b"),
)
_TOKEN: Final = re.compile("|".join(f"(?P<{name}>{pattern})" for name, pattern in _RULES), re.ASCII)


class Token(NamedTuple):
    """One token: its kind, its text as written, and where it starts."""

    kind: str
    text: str
    offset: int

    @property
    def end(self) -> int:
        return self.offset + len(self.text)


def lex(text: str) -> list[Token]:
    """The tokens of a text, white space left out.

    Raises:
        OttlSyntaxError: at the first character no token starts with.
    """
    if len(text) > MAX_LENGTH:
        raise OttlSyntaxError(f"statement is longer than {MAX_LENGTH} characters", text[:80], 0)
    tokens: list[Token] = []
    offset = 0
    while offset < len(text):
        match = _TOKEN.match(text, offset)
        if match is None:
            what = (
                "unterminated string" if text[offset] == '"' else f"invalid input text {text[offset : offset + 10]!r}"
            )
            raise OttlSyntaxError(what, text, offset)
        kind = match.lastgroup or ""
        if kind != "whitespace":
            tokens.append(Token(kind, match.group(), offset))
        offset = match.end()
    return tokens


_SIMPLE: Final = {"a": 7, "b": 8, "f": 12, "n": 10, "r": 13, "t": 9, "v": 11, "\\": 92, '"': 34}
_DIGITS: Final = {"x": 2, "u": 4, "U": 8}


def unquote(token: Token, source: str) -> str:
    """The value of a string token, by Go's rules for escapes.

    Bytes that are not UTF-8 (`\\xff`) are kept as lone surrogates, as Python keeps undecodable bytes.
    """
    body = token.text[1:-1]
    if "\n" in body:
        raise OttlSyntaxError("a string cannot span lines", source, token.offset + 1 + body.index("\n"))
    if "\\" not in body:
        return body
    out = bytearray()
    index = 0
    while index < len(body):
        char = body[index]
        if char != "\\":
            following = body.find("\\", index)
            chunk = body[index:] if following < 0 else body[index:following]
            out += chunk.encode("utf-8", "surrogateescape")
            index += len(chunk)
            continue
        index = _escape(body, index, out, source, token.offset + 1)
    return out.decode("utf-8", "surrogateescape")


def _escape(body: str, index: int, out: bytearray, source: str, base: int) -> int:
    """Append what the escape at `index` stands for, and give the index after it."""
    letter = body[index + 1]
    if letter in _SIMPLE:
        out.append(_SIMPLE[letter])
        return index + 2
    wrong = OttlSyntaxError(f"invalid escape \\{letter} in a string", source, base + index)
    if letter in _DIGITS:
        digits = body[index + 2 : index + 2 + _DIGITS[letter]]
        if len(digits) != _DIGITS[letter] or not re.fullmatch("[0-9a-fA-F]+", digits):
            raise wrong
        code = int(digits, 16)
        if letter == "x":
            out.append(code)
        elif code > 0x10FFFF or 0xD800 <= code < 0xE000:
            raise wrong
        else:
            out += chr(code).encode()
        return index + 2 + len(digits)
    digits = body[index + 1 : index + 4]
    if not re.fullmatch("[0-3][0-7][0-7]", digits):
        raise wrong
    out.append(int(digits, 8))
    return index + 4
