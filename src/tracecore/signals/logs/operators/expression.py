"""The expressions of operators' `if`, `expr` and `EXPR(…)`: the part of expr-lang that log configurations use.

An expression is compiled once into nested functions. It reads `body` (also `$`), `attributes`, `resource` and
`timestamp`; what is not there is `nil`.
"""

from __future__ import annotations

import operator
import os
from collections.abc import Callable
from typing import Any, Final, TypeAlias

import re2

from tracecore.signals.logs.operators.entry import Entry
from tracecore.signals.logs.operators.linear import Searcher

Function: TypeAlias = Callable[[Entry], Any]


class ExpressionError(Exception):
    """An expression that cannot be compiled, or not evaluated for this entry."""


_TOKEN = re2.compile(
    r"\s*(?:(\d[\d_]*\.\d+(?:[eE][+-]?\d+)?|0x[0-9a-fA-F]+|\d[\d_]*)"
    r'|("(?:[^"\\]|\\.)*"|\'(?:[^\'\\]|\\.)*\'|`[^`]*`)'
    r"|([A-Za-z_$][A-Za-z0-9_]*)"
    r"|(\?\.|\?\?|\*\*|==|!=|<=|>=|&&|\|\||\.\.|[-+*/%^<>!?:,.()\[\]{}|]))"
)
_BINDING: Final = {
    "|": 0, "or": 10, "||": 10, "and": 15, "&&": 15, "==": 20, "!=": 20, "<": 20, ">": 20, "<=": 20, ">=": 20,
    "not": 20, "in": 20, "matches": 20, "contains": 20, "startsWith": 20, "endsWith": 20, "+": 30, "-": 30, "*": 60,
    "/": 60, "%": 60, "**": 100, "^": 100, "??": 500,
}  # fmt: skip
_ESCAPES: Final = {"n": "\n", "t": "\t", "r": "\r", "a": "\a", "b": "\b", "f": "\f", "v": "\v"}
MAX_DEPTH: Final = 64
MAX_LENGTH: Final = 64 << 10


class Expression:
    """A compiled expression.

    Args:
        text: as a configuration has it.
        boolean: anything but true and false is an error.

    Raises:
        ExpressionError: it cannot be compiled.
    """

    def __init__(self, text: str, boolean: bool = False) -> None:
        parser = _Parser(text)
        self._function = parser.whole()
        self._boolean = boolean
        if boolean and parser.constant is not None and not isinstance(parser.constant, bool):
            raise ExpressionError("this is neither true nor false")

    def __call__(self, entry: Entry) -> Any:
        """Its value for an entry.

        Raises:
            ExpressionError: it has none.
        """
        try:
            found = self._function(entry)
        except (TypeError, ValueError, ZeroDivisionError, OverflowError, AttributeError, IndexError) as error:
            raise ExpressionError(str(error)) from None
        if self._boolean and found is not True and found is not False:
            raise ExpressionError(f"neither true nor false, but {_kind(found)}")
        return found


class _Parser:
    def __init__(self, text: str) -> None:
        if len(text) > MAX_LENGTH:
            raise ExpressionError("the expression is too long")
        self._tokens: list[tuple[str, str, int]] = []
        at = 0
        stripped = text.rstrip()
        while at < len(stripped):
            match = _TOKEN.match(stripped, at) if at == 0 else _TOKEN.match(stripped[at:])
            if match is None or not match.end():
                raise ExpressionError(f"column {at + 1}: unexpected {stripped[at : at + 10]!r}")
            number, string, name, sign = match.groups()
            kind = "number" if number else "string" if string else "name" if name else "sign"
            self._tokens.append((kind, number or string or name or sign, at + 1))
            at += match.end()
        self._at = 0
        self._depth = 0
        self.constant: Any = None

    def whole(self) -> Function:
        if not self._tokens:
            raise ExpressionError("there is no expression")
        if len(self._tokens) == 1 and self._tokens[0][0] in ("number", "string"):
            self.constant = self._tokens[0][1]
        found = self._ternary()
        if self._at < len(self._tokens):
            raise self._error(f"unexpected {self._tokens[self._at][1]}")
        return found

    def _error(self, message: str) -> ExpressionError:
        column = self._tokens[min(self._at, len(self._tokens) - 1)][2]
        return ExpressionError(f"column {column}: {message}")

    def _peek(self) -> str:
        if self._at < len(self._tokens) and self._tokens[self._at][0] in ("sign", "name"):
            return self._tokens[self._at][1]
        return ""

    def _take(self, sign: str) -> None:
        if self._peek() != sign:
            raise self._error(f"expected {sign}")
        self._at += 1

    def _ternary(self) -> Function:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise self._error("nested too deep")
        condition = self._binary(0)
        if self._peek() == "?":
            self._at += 1
            yes = self._ternary()
            self._take(":")
            no = self._ternary()
            condition = _choice(condition, yes, no)
        self._depth -= 1
        return condition

    def _binary(self, least: int) -> Function:
        left = self._unary()
        while (sign := self._peek()) in _BINDING and sign != "|":
            negated = False
            start = self._at
            if sign == "not":
                self._at += 1
                sign, negated = self._peek(), True
                if sign not in ("in", "matches", "contains", "startsWith", "endsWith"):
                    raise self._error("expected in, matches or contains after not")
            power = _BINDING[sign]
            if power < least or (power == least and sign not in ("**", "^")):
                self._at = start
                break
            self._at += 1
            right_at = self._at
            right = self._binary(power - 1 if sign in ("**", "^") else power)
            left = self._combined(sign, left, right, right_at)
            if negated:
                left = _negated(left)
        return left

    def _combined(self, sign: str, left: Function, right: Function, at: int) -> Function:
        if sign == "matches" and self._at == at + 1 and self._tokens[at][0] == "string":
            return _matches(left, self._regex(_unquoted(self._tokens[at][1])))
        if sign in ("and", "&&"):
            return lambda e: _truth(left(e)) and _truth(right(e))
        if sign in ("or", "||"):
            return lambda e: _truth(left(e)) or _truth(right(e))
        if sign == "??":
            return lambda e: found if (found := left(e)) is not None else right(e)
        function = _BINARY[sign]
        return lambda e: function(left(e), right(e))

    def _regex(self, pattern: str) -> Searcher:
        try:
            return Searcher(pattern)
        except re2.error as error:
            raise self._error(f"no regular expression: {error}") from None

    def _unary(self) -> Function:
        sign = self._peek()
        if sign in ("not", "!"):
            self._at += 1
            return _negated(self._binary(20 if sign == "not" else 50) if sign == "not" else self._unary())
        if sign in ("-", "+"):
            self._at += 1
            inner = self._unary()
            return (lambda e: -_number(inner(e))) if sign == "-" else lambda e: _number(inner(e))
        return self._postfix(self._primary())

    def _postfix(self, held: Function) -> Function:
        while True:
            sign = self._peek()
            if sign in (".", "?."):
                self._at += 1
                if self._at >= len(self._tokens) or self._tokens[self._at][0] != "name":
                    raise self._error("expected a name")
                held = _member(held, _constant(self._tokens[self._at][1]), sign == "?.")
                self._at += 1
            elif sign == "[":
                self._at += 1
                key = self._ternary()
                self._take("]")
                held = _member(held, key, False)
            else:
                return held

    def _primary(self) -> Function:
        if self._at >= len(self._tokens):
            raise self._error("the expression ends too early")
        kind, text, _ = self._tokens[self._at]
        self._at += 1
        if kind == "number":
            plain = text.replace("_", "")
            number: Any = float(plain) if "." in plain else int(plain, 0) if plain[:2] == "0x" else int(plain)
            return _constant(number)
        if kind == "string":
            return _constant(_unquoted(text))
        if text == "(":
            inner = self._ternary()
            self._take(")")
            return inner
        if text == "[":
            items = self._list("]")
            return lambda e: [item(e) for item in items]
        if kind == "name":
            return self._name(text)
        self._at -= 1
        raise self._error(f"unexpected {text}")

    def _name(self, text: str) -> Function:
        if text in ("true", "false", "nil"):
            return _constant({"true": True, "false": False, "nil": None}[text])
        if self._peek() == "(":
            function = _CALLS.get(text)
            if function is None:
                self._at -= 1
                raise self._error(f"no function is called {text}")
            self._at += 1
            arguments = self._list(")")
            most, call = function
            if len(arguments) not in most:
                raise self._error(f"{text} takes {' or '.join(map(str, most))} arguments, not {len(arguments)}")
            return lambda e: call(*[argument(e) for argument in arguments])
        if text in ("body", "$"):
            return lambda e: e.body
        if text in ("attributes", "resource"):
            return operator.attrgetter(text)
        if text == "timestamp":
            return lambda e: e.time
        return _constant(None)

    def _list(self, end: str) -> list[Function]:
        items: list[Function] = []
        while self._peek() != end:
            items.append(self._ternary())
            if self._peek() != end:
                self._take(",")
        self._at += 1
        return items


def _constant(value: Any) -> Function:
    return lambda e: value


def _choice(condition: Function, yes: Function, no: Function) -> Function:
    return lambda e: yes(e) if _truth(condition(e)) else no(e)


def _negated(inner: Function) -> Function:
    return lambda e: not _truth(inner(e))


def _matches(left: Function, pattern: Searcher) -> Function:
    return lambda e: pattern.found(_text(left(e)))


def _member(held: Function, key: Function, optional: bool) -> Function:
    def get(entry: Entry) -> Any:
        value, name = held(entry), key(entry)
        if type(value) is dict:
            return value.get(name)
        if value is None and optional:
            return None
        if isinstance(value, list) and isinstance(name, int):
            return value[name]
        raise TypeError(f"cannot fetch {name} from {_kind(value)}")

    return get


def _truth(value: Any) -> bool:
    if value is True or value is False:
        return bool(value)
    raise TypeError(f"neither true nor false, but {_kind(value)}")


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value
    raise TypeError(f"no text, but {_kind(value)}")


def _number(value: Any) -> Any:
    if isinstance(value, int | float) and not isinstance(value, bool):
        return value
    raise TypeError(f"no number, but {_kind(value)}")


def _kind(value: Any) -> str:
    return "nil" if value is None else type(value).__name__


def _unquoted(text: str) -> str:
    if text[0] == "`":
        return text[1:-1]
    out: list[str] = []
    at = 1
    while at < len(text) - 1:
        char = text[at]
        at += 1
        if char == "\\":
            char = text[at]
            at += 1
            if char in "xuU":
                length = {"x": 2, "u": 4, "U": 8}[char]
                try:
                    out.append(chr(int(text[at : at + length], 16)))
                except ValueError:
                    raise ExpressionError(f"\\{char} has no number behind it") from None
                at += length
                continue
            char = _ESCAPES.get(char, char)
        out.append(char)
    return "".join(out)


def _equal(left: Any, right: Any) -> bool:
    # A bool is no number here, and texts of bytes are texts.
    if isinstance(left, bool) != isinstance(right, bool):
        return False
    return bool(left == right)


def _ordered(compare: Callable[[Any, Any], bool]) -> Callable[[Any, Any], bool]:
    def ordered(left: Any, right: Any) -> bool:
        if isinstance(left, str) and isinstance(right, str):
            return compare(left, right)
        return compare(_number(left), _number(right))

    return ordered


def _contained(left: Any, right: Any) -> bool:
    if right is None:
        return False
    if isinstance(right, dict | list):
        return left in right
    raise TypeError(f"cannot look into {_kind(right)}")


def _plus(left: Any, right: Any) -> Any:
    if isinstance(left, str) and isinstance(right, str):
        return left + right
    return _number(left) + _number(right)


def _power(left: Any, right: Any) -> float:
    return float(float(_number(left)) ** float(_number(right)))


def _dynamic_match(left: Any, right: Any) -> bool:
    try:
        return re2.search(_text(right), _text(left)) is not None
    except re2.error as error:
        raise TypeError(f"no regular expression: {error}") from None


_BINARY: Final[dict[str, Callable[[Any, Any], Any]]] = {
    "==": _equal,
    "!=": lambda left, right: not _equal(left, right),
    "<": _ordered(operator.lt),
    ">": _ordered(operator.gt),
    "<=": _ordered(operator.le),
    ">=": _ordered(operator.ge),
    "in": _contained,
    "matches": _dynamic_match,
    "contains": lambda left, right: _text(right) in _text(left),
    "startsWith": lambda left, right: _text(left).startswith(_text(right)),
    "endsWith": lambda left, right: _text(left).endswith(_text(right)),
    "+": _plus,
    "-": lambda left, right: _number(left) - _number(right),
    "*": lambda left, right: _number(left) * _number(right),
    "/": lambda left, right: _number(left) / _number(right),
    "%": lambda left, right: int(_number(left)) % int(_number(right)),
    "**": _power,
    "^": _power,
}


def _shown(value: Any) -> str:
    if value is None:
        return "<nil>"
    if isinstance(value, bool):
        return "true" if value else "false"
    return value if isinstance(value, str) else str(value)


def _type(value: Any) -> str:
    names = {str: "string", bool: "bool", int: "int", float: "float", dict: "map", list: "array", type(None): "nil"}
    return names.get(type(value), type(value).__name__)


_CALLS: Final[dict[str, tuple[tuple[int, ...], Callable[..., Any]]]] = {
    "len": ((1,), len),
    "lower": ((1,), lambda text: _text(text).lower()),
    "upper": ((1,), lambda text: _text(text).upper()),
    "trim": ((1, 2), lambda text, chars=None: _text(text).strip(chars)),
    "trimPrefix": ((2,), lambda text, part: _text(text).removeprefix(_text(part))),
    "trimSuffix": ((2,), lambda text, part: _text(text).removesuffix(_text(part))),
    "hasPrefix": ((2,), lambda text, part: _text(text).startswith(_text(part))),
    "hasSuffix": ((2,), lambda text, part: _text(text).endswith(_text(part))),
    "indexOf": ((2,), lambda text, part: _text(text).find(_text(part))),
    "split": ((2,), lambda text, part: _text(text).split(_text(part))),
    "join": ((1, 2), lambda items, part="": part.join(map(_text, items))),
    "replace": ((3,), lambda text, old, new: _text(text).replace(_text(old), _text(new))),
    "int": ((1,), lambda value: int(value)),
    "float": ((1,), lambda value: float(value)),
    "string": ((1,), _shown),
    "type": ((1,), _type),
    "abs": ((1,), lambda value: abs(_number(value))),
    "keys": ((1,), lambda held: list(held.keys())),
    "values": ((1,), lambda held: list(held.values())),
    "env": ((1,), lambda name: os.environ.get(_text(name), "")),
}
