"""Converters of text. Positions and lengths count bytes of UTF-8, as they do in the Collector."""

from __future__ import annotations

from collections.abc import Callable

from tracecore.ottl.context import Context
from tracecore.ottl.errors import OttlCompileError, OttlRuntimeError, OttlTypeError
from tracecore.ottl.functions import gofmt
from tracecore.ottl.functions.bounds import MAX_TEXT
from tracecore.ottl.signature import (
    AnyValue,
    Getter,
    Int,
    String,
    StringGetter,
    converter,
    value_converter,
    value_converters,
)
from tracecore.ottl.values import go_type, to_json

#: What Go's `strings.TrimSpace` trims.
SPACE = (
    "\t\n\v\f\r \x85\xa0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a"
    "\u2028\u2029\u202f\u205f\u3000"
)


@value_converter("Concat")
def concat(vals: AnyValue, delimiter: String) -> str:
    """Join the texts of values; nil is written `<nil>`."""
    if not isinstance(vals, list):
        raise OttlTypeError(f"expected a list but got {go_type(vals)}")
    text = delimiter.join(map(_text, vals))
    if len(text) > MAX_TEXT:
        raise OttlRuntimeError(f"the result of Concat is longer than {MAX_TEXT} characters")
    return text


def _text(value: object) -> str:
    if isinstance(value, str):
        return value
    if value is None:
        return "<nil>"
    return value.hex() if type(value) is bytes else to_json(value)


@converter("Format")
def format_(format: str, vals: list[Getter]) -> Getter:
    """Go's `fmt.Sprintf`."""

    def run(ctx: Context) -> str:
        return gofmt.sprintf(format, [value(ctx) for value in vals])

    return run


@value_converter("HasPrefix")
def has_prefix(target: String, prefix: String) -> bool:
    """Whether a string begins with another."""
    return target.startswith(prefix)


@value_converter("HasSuffix")
def has_suffix(target: String, suffix: String) -> bool:
    """Whether a string ends with another."""
    return target.endswith(suffix)


@value_converter("Split")
def split(target: String, delimiter: String) -> list[str]:
    """The parts of a string between delimiters; each character of it when the delimiter is empty."""
    return target.split(delimiter) if delimiter else list(target)


@value_converter("Substring")
def substring(target: String, start: Int, length: Int, utf8_safe: bool = False) -> str:
    """`length` bytes of a string from byte `start`; with `utf8_safe`, no character is cut in two."""
    begin = start
    if begin < 0:
        raise OttlRuntimeError(f"invalid start for substring function, {begin} cannot be negative")
    if length <= 0:
        raise OttlRuntimeError(f"invalid length for substring function, {length} cannot be negative or zero")
    ascii_only = target.isascii()
    data = b"" if ascii_only else target.encode("utf-8", "surrogateescape")
    total = len(target) if ascii_only else len(data)
    if begin > total or length > total - begin:
        raise OttlRuntimeError(
            f"invalid range for substring function, start({begin})+length({length}) cannot be greater than the "
            f"length of target string({total})"
        )
    if ascii_only:
        return target[begin : begin + length]
    end = begin + length
    if utf8_safe:
        while begin < total and not _starts_rune(data[begin]):
            begin += 1
        while begin < end < total and not _starts_rune(data[end]):
            end -= 1
    return data[begin : max(begin, end)].decode("utf-8", "surrogateescape")


def _starts_rune(byte: int) -> bool:
    return byte & 0xC0 != 0x80


@value_converter("Trim")
def trim(target: String, replacement: str = " ") -> str:
    """A string without the given characters at both ends."""
    return target.strip(replacement) if replacement else target


@value_converter("TrimPrefix")
def trim_prefix(target: String, prefix: String) -> str:
    """A string without a prefix, where it has it."""
    return target.removeprefix(prefix)


@value_converter("TrimSuffix")
def trim_suffix(target: String, suffix: String) -> str:
    """A string without a suffix, where it has it."""
    return target.removesuffix(suffix)


CASES = value_converters(
    String,
    ("ToLowerCase", "A string in lower case.", lambda target: lower(target)),
    ("ToUpperCase", "A string in upper case.", lambda target: upper(target)),
    ("ToSnakeCase", "A string in snake_case.", lambda target: snake(target)),
    ("ToCamelCase", "A string in CamelCase.", lambda target: camel(target)),
)


@converter("ConvertCase")
def convert_case(target: StringGetter, to_case: str) -> Getter:
    """A string in `lower`, `upper`, `snake` or `camel` case."""
    change = _CASES.get(to_case)
    if change is None:
        raise OttlCompileError(f"invalid case: {to_case}, allowed cases are: {', '.join(_CASES)}")
    return lambda ctx: change(target(ctx))


def lower(text: str) -> str:
    """Go's `strings.ToLower`: rune by rune, so that nothing grows and no rule looks at its neighbours."""
    return text.lower() if text.isascii() else "".join(_one(char, char.lower()) for char in text)


def upper(text: str) -> str:
    """Go's `strings.ToUpper`: rune by rune (`ß` stays)."""
    return text.upper() if text.isascii() else "".join(_one(char, char.upper()) for char in text)


def _one(char: str, changed: str) -> str:
    if len(changed) == 1:
        return changed
    if char == "\u0130" and changed[0] == "i":
        return "i"
    # Where the full mapping is longer, Go has the simple one: the title case of Greek letters with iota, else itself.
    title = char.title()
    return title if len(title) == 1 else char


def camel(text: str) -> str:
    """CamelCase: a letter after `_`, space, `-`, `.` or a digit is a capital; other bytes go."""
    result = bytearray()
    capitalise, previous_capital = True, False
    for byte in text.strip(SPACE).encode("utf-8", "surrogateescape"):
        capital, small = 0x41 <= byte <= 0x5A, 0x61 <= byte <= 0x7A
        out = byte
        if capitalise and small:
            out = byte - 32
        elif not capitalise and previous_capital and capital:
            out = byte + 32
        previous_capital = capital
        if capital or small:
            result.append(out)
            capitalise = False
        elif 0x30 <= byte <= 0x39:
            result.append(byte)
            capitalise = True
        else:
            capitalise = byte in b"_ -."
    return result.decode()


def snake(text: str) -> str:
    """snake_case: a `_` where the kind of character changes, and for each space, `-` and `.`."""
    data = text.strip(SPACE).encode("utf-8", "surrogateescape")
    result = bytearray()
    for index, byte in enumerate(data):
        kind = _kind(byte)
        out = byte + 32 if kind == "A" else byte
        following = _kind(data[index + 1]) if index + 1 < len(data) else ""
        if kind and following and (kind, following) != ("a", "a") and kind != following:
            if kind == "A" and following == "a":
                if index and _kind(data[index - 1]) == "A":
                    result += b"_"
                result.append(out)
            else:
                result.append(out)
                result += b"_"
            continue
        result.append(0x5F if byte in b" _-." else out)
    return result.decode("utf-8", "surrogateescape")


def _kind(byte: int) -> str:
    if 0x41 <= byte <= 0x5A:
        return "A"
    if 0x61 <= byte <= 0x7A:
        return "a"
    return "0" if 0x30 <= byte <= 0x39 else ""


_CASES: dict[str, Callable[[str], str]] = {"lower": lower, "upper": upper, "snake": snake, "camel": camel}
