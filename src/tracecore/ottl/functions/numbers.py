"""Converters of numbers."""

from __future__ import annotations

import math
import re

from tracecore.ottl.errors import OttlRuntimeError
from tracecore.ottl.functions.gofmt import value_text
from tracecore.ottl.signature import (
    FloatLike,
    Int,
    String,
    StringLike,
    value_converter,
)
from tracecore.ottl.values import INT64_MAX, INT64_MIN, quote


@value_converter("Log")
def log(target: FloatLike) -> float:
    """The natural logarithm."""
    if target is None:
        raise OttlRuntimeError("invalid input: <nil>")
    if target <= 0:
        raise OttlRuntimeError(f"invalid input: expected number greater than zero but got {value_text(target)}")
    return math.log(target)


@value_converter("ParseInt")
def parse_int(target: String, base: Int) -> int:
    """The integer a text stands for in a base (2 to 36; 0: by its prefix `0b`, `0o`, `0x`)."""
    if not target:
        raise OttlRuntimeError("invalid target value for ParseInt function, target cannot be empty")
    if base < 0:
        raise OttlRuntimeError(f"invalid base value: {base} for ParseInt function, base cannot be negative")
    return int_in_base(target, base)


_PREFIXES = {"0b": 2, "0o": 8, "0x": 16}
_UNDERSCORES = re.compile(r"[+-]?(?:0[bBoOxX]_?|(?=[0-9]))[0-9a-zA-Z]+(?:_[0-9a-zA-Z]+)*")


def int_in_base(text: str, base: int) -> int:
    """Go's `strconv.ParseInt(text, base, 64)`."""

    def failed(reason: str) -> OttlRuntimeError:
        return OttlRuntimeError(f"strconv.ParseInt: parsing {quote(text)}: {reason}")

    if base == 1 or base > 36:
        raise failed(f"invalid base {base}")
    sign, digits = (text[0], text[1:]) if text[:1] in ("+", "-") else ("", text)
    radix = base
    if base == 0:
        radix = 10
        if digits.startswith("0"):
            radix = _PREFIXES.get(digits[:2].lower(), 8)
            digits = digits[2:] if digits[:2].lower() in _PREFIXES and len(digits) >= 3 else digits[1:]
            if not digits:
                digits = "0" if text.strip("+-") == "0" else ""
        if "_" in text:
            if not _UNDERSCORES.fullmatch(text):
                raise failed("invalid syntax")
            digits = digits.replace("_", "")
    allowed = "0123456789abcdefghijklmnopqrstuvwxyz"[:radix]
    if not digits or any(char not in allowed for char in digits.lower()) or not digits.isascii():
        raise failed("invalid syntax")
    if len(digits.lstrip("0")) > 64:
        raise failed("value out of range")
    number = int(digits, radix)
    number = -number if sign == "-" else number
    if not INT64_MIN <= number <= INT64_MAX:
        raise failed("value out of range")
    return number


@value_converter("IsValidLuhn")
def is_valid_luhn(target: StringLike) -> bool:
    """Whether a number ends in its right check digit. Spaces do not count."""
    if target is None:
        raise OttlRuntimeError("invalid input: <nil>")
    digits = target.replace(" ", "")
    total = 0
    for place, char in enumerate(reversed(digits)):
        if not "0" <= char <= "9":
            raise OttlRuntimeError(f"strconv.Atoi: parsing {quote(char)}: invalid syntax")
        digit = int(char) * (2 if place % 2 else 1)
        total += digit - 9 if digit > 9 else digit
    return bool(digits) and total % 10 == 0
