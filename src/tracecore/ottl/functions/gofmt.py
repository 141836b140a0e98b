"""Go's `fmt.Sprintf` for the values statements have, with its flags, argument indexes and error marks."""

from __future__ import annotations

import math
import re
from decimal import Decimal
from typing import Any

from tracecore.ottl.errors import OttlRuntimeError
from tracecore.ottl.functions.bounds import MAX_TEXT, MAX_WIDTH
from tracecore.ottl.values import Duration, Time, Value

_DIRECTIVE = re.compile(
    r"%(?P<flags>[-+# 0]*)(?P<width>(?:\[\d+\])?\*|\d+)?(?P<precision>\.(?:(?:\[\d+\])?\*|\d*))?"
    r"(?:\[(?P<index>[^\]]*)\])?(?P<verb>.)?",
    re.DOTALL,
)


class _Spec:
    __slots__ = ("minus", "plus", "precision", "sharp", "space", "width", "zero")

    def __init__(self, flags: str, width: int, precision: int) -> None:
        self.minus = "-" in flags
        self.plus = "+" in flags
        self.sharp = "#" in flags
        self.space = " " in flags
        self.zero = "0" in flags and not self.minus
        if width < 0:
            self.minus, self.zero, width = True, False, -width
        self.width = width
        self.precision = precision

    def pad(self, text: str, zeros: bool = False) -> str:
        if len(text) >= self.width:
            return text
        if self.minus:
            return text.ljust(self.width)
        if self.zero and zeros:
            sign = text[:1] if text[:1] in ("+", "-", " ") else ""
            return sign + text[len(sign) :].rjust(self.width - len(sign), "0")
        return text.rjust(self.width, "0" if self.zero else " ")


def sprintf(template: str, values: list[Value]) -> str:
    """The formatted text. A mistake in the template gives a mark such as `%!d(string=x)`, never an error, as in Go."""
    pieces: list[str] = []
    cursor = _Cursor(values)
    last = size = 0
    for found in _DIRECTIVE.finditer(template):
        pieces.append(template[last : found.start()])
        last = found.end()
        pieces.append(_directive(found, cursor))
        size += len(pieces[-1]) + len(pieces[-2])
        if size > MAX_TEXT:
            raise OttlRuntimeError(f"the result of Format is longer than {MAX_TEXT} characters")
    pieces.append(template[last:])
    if not cursor.reordered and cursor.next < len(values):
        rest = values[cursor.next :]
        pieces.append("%!(EXTRA " + ", ".join(_extra(value) for value in rest) + ")")
    return "".join(pieces)


class _Cursor:
    __slots__ = ("good", "next", "reordered", "values")

    def __init__(self, values: list[Value]) -> None:
        self.values = values
        self.next = 0
        self.reordered = False
        self.good = True

    def select(self, index: str | None) -> None:
        if index is None:
            return
        self.reordered = True
        number = int(index) if index.isascii() and index.isdigit() and len(index) < 8 else 0
        if 1 <= number <= len(self.values):
            self.next = number - 1
        else:
            self.good = False

    def star(self, text: str) -> int | None:
        self.select(text[1:-2] if text.startswith("[") else None)
        if self.next >= len(self.values):
            return None
        value = self.values[self.next]
        self.next += 1
        return value if type(value) is int and abs(value) <= MAX_WIDTH else None


def _directive(found: re.Match[str], cursor: _Cursor) -> str:
    cursor.good = True
    prefix = ""
    width_text, precision_text = found["width"], found["precision"]
    width, precision = 0, -1
    if width_text:
        if width_text.endswith("*"):
            given = cursor.star(width_text)
            prefix += "%!(BADWIDTH)" if given is None else ""
            width = given or 0
        else:
            width = int(width_text) if len(width_text) < 8 else MAX_WIDTH + 1
            if width > MAX_WIDTH:
                prefix, width = "%!(BADWIDTH)", 0
    if precision_text:
        if precision_text.endswith("*"):
            given = cursor.star(precision_text[1:])
            if given is None:
                prefix += "%!(BADPREC)"
            precision = -1 if given is None or given < 0 else given
        else:
            digits = precision_text[1:]
            precision = (int(digits) if len(digits) < 8 else MAX_WIDTH + 1) if digits else 0
            if precision > MAX_WIDTH:
                prefix, precision = prefix + "%!(BADPREC)", -1
    cursor.select(found["index"])
    verb = found["verb"]
    if verb is None:
        return prefix + "%!(NOVERB)"
    if verb == "%":
        return prefix + "%"
    if not cursor.good:
        return f"{prefix}%!{verb}(BADINDEX)"
    if cursor.next >= len(cursor.values):
        return f"{prefix}%!{verb}(MISSING)"
    value = cursor.values[cursor.next]
    cursor.next += 1
    return prefix + _print(value, verb, _Spec(found["flags"], width, precision))


def _type_name(value: Value) -> str:
    if isinstance(value, (bool, int, float, str)):
        return {bool: "bool", int: "int64", float: "float64", str: "string"}[type(value)]
    if value is None:
        return "<nil>"
    if type(value) is bytes:
        return "[]uint8"
    if isinstance(value, Time):
        return "time.Time"
    if isinstance(value, Duration):
        return "time.Duration"
    if isinstance(value, list):
        return "[]interface {}"
    return "map[string]interface {}" if isinstance(value, dict) else f"pcommon.{type(value).__name__}"


def _extra(value: Value) -> str:
    return "<nil>" if value is None else f"{_type_name(value)}={_print(value, 'v', _Spec('', 0, -1))}"


def _bad(value: Value, verb: str) -> str:
    if value is None:
        return f"%!{verb}(<nil>)"
    return f"%!{verb}({_type_name(value)}={_print(value, 'v', _Spec('', 0, -1))})"


def _print(value: Value, verb: str, spec: _Spec) -> str:
    if verb == "T":
        return spec.pad(_type_name(value))
    if value is None:
        return spec.pad("<nil>") if verb == "v" else _bad(value, verb)
    if isinstance(value, bool):
        return spec.pad("true" if value else "false") if verb in "tv" else _bad(value, verb)
    if isinstance(value, int):
        return _integer(value, verb, spec)
    if isinstance(value, float):
        return _float(value, "g" if verb == "v" else verb, spec, shortest=verb == "v")
    if isinstance(value, str):
        return _string(value, verb, spec)
    if type(value) is bytes and verb in "sqxX":
        return _bytes(value, verb, spec)
    if isinstance(value, (Time, Duration)):
        if verb in "sv":
            return spec.pad(_go_time(value) if isinstance(value, Time) else str(value))
        return _integer(value.nanos, verb, spec) if isinstance(value, Duration) else _bad(value, verb)
    if isinstance(value, dict):
        inner = " ".join(f"{_print(key, verb, spec)}:{_element(value[key], verb, spec)}" for key in sorted(value))
        return f"map[{inner}]"
    if isinstance(value, (list, bytes)):
        if isinstance(value, bytes) and type(value) is not bytes and verb in "sv":
            return spec.pad(value.hex() if any(value) else "")  # ids print as their hex text
        return "[" + " ".join(_element(item, verb, spec) for item in value) + "]"
    return _bad(value, verb)


def _element(value: Value, verb: str, spec: _Spec) -> str:
    return spec.pad("<nil>") if value is None else _print(value, verb, spec)


def _go_time(value: Time) -> str:
    moment = value.to_datetime()
    fraction = f".{value.nanosecond:09d}".rstrip("0").rstrip(".")
    offset = moment.strftime("%z")[:5]
    return f"{moment:%Y-%m-%d %H:%M:%S}{fraction} {offset} {moment.tzname() if moment.utcoffset() else 'UTC'}"


_BASES = {"b": (2, "0b"), "o": (8, "0"), "O": (8, "0o"), "d": (10, ""), "v": (10, ""), "x": (16, "0x"), "X": (16, "0X")}


def _integer(value: int, verb: str, spec: _Spec) -> str:
    if verb in _BASES:
        return _in_base(value, verb, spec)
    if verb in "cqU":
        code = value if 0 <= value <= 0x10FFFF and not 0xD800 <= value < 0xE000 else 0xFFFD
        if verb == "c":
            return spec.pad(chr(code))
        if verb == "q":
            return spec.pad("'" + ("\\'" if code == 0x27 else _escaped(chr(code), spec.plus).replace('\\"', '"')) + "'")
        shown = f" '{chr(code)}'" if spec.sharp and code == value and chr(code).isprintable() else ""
        return spec.pad(f"U+{value & 0xFFFFFFFFFFFFFFFF:0{max(4, spec.precision)}X}{shown}")
    return _bad(value, verb)


def _in_base(value: int, verb: str, spec: _Spec) -> str:
    base, mark = _BASES[verb]
    size = abs(value)
    digits = {2: f"{size:b}", 8: f"{size:o}", 10: str(size), 16: f"{size:x}"}[base]
    if verb == "X":
        digits = digits.upper()
    sign = "-" if value < 0 else "+" if spec.plus else " " if spec.space else ""
    if spec.precision >= 0:
        digits = "" if spec.precision == 0 and value == 0 else digits.rjust(spec.precision, "0")
    elif spec.zero and spec.width:
        digits = digits.rjust(spec.width - len(sign), "0")
    if verb == "O" or (spec.sharp and mark and not (base == 8 and digits.startswith("0"))):
        digits = mark + digits
    text = sign + digits
    return text.ljust(spec.width) if spec.minus else text.rjust(spec.width)


def _float(value: float, verb: str, spec: _Spec, shortest: bool = False) -> str:
    if verb not in "eEfFgGxX" or len(verb) != 1:
        return _bad(value, verb)
    if not math.isfinite(value):
        text = "NaN" if value != value else ("-Inf" if value < 0 else "+Inf")
        if text == "+Inf" and not spec.plus:
            text = " Inf" if spec.space else "Inf" if not shortest else "+Inf"
        if text == "NaN" and (spec.plus or spec.space):
            text = ("+" if spec.plus else " ") + text
        spec.zero = False
        return spec.pad(text)
    sign = "-" if math.copysign(1.0, value) < 0 else "+" if spec.plus else " " if spec.space else ""
    size = abs(value)
    precision = spec.precision
    if verb in "xX":
        text = _hex_float(size, precision)
        text = text.upper() if verb == "X" else text
    elif verb in "fF":
        text = f"{size:.{6 if precision < 0 else precision}f}"
        if spec.sharp and "." not in text:
            text += "."
    elif verb in "eE":
        text = _two_digit_exponent(f"{size:.{6 if precision < 0 else precision}e}")
    else:
        text = _general(size, precision, spec.sharp)
    if verb in "EG":
        text = text.upper()
    return spec.pad(sign + text, zeros=True)


def _general(size: float, precision: int, sharp: bool) -> str:
    """`%g`: the shortest digits that give the number back, or `precision` of them; an exponent outside those."""
    if precision < 0:
        digits, exponent = _digits(repr(size))
        limit = 6
    else:
        limit = max(precision, 1)
        digits, exponent = _digits(f"{size:.{limit - 1}e}")
    if sharp:
        digits = digits.ljust(limit, "0")
    if exponent < -4 or exponent >= limit:
        mantissa = digits[0] + ("." + digits[1:] if len(digits) > 1 or sharp else "")
        return f"{mantissa}e{'-' if exponent < 0 else '+'}{abs(exponent):02d}"
    if exponent < 0:
        return "0." + "0" * (-exponent - 1) + digits
    whole = digits[: exponent + 1].ljust(exponent + 1, "0")
    rest = digits[exponent + 1 :]
    return f"{whole}.{rest}" if rest or sharp else whole


def _digits(text: str) -> tuple[str, int]:
    """The significant digits of a decimal number, without trailing zeros, and the exponent of the first of them."""
    _, digits, exponent = Decimal(text).as_tuple()
    power = len(digits) - 1 + int(exponent)
    joined = "".join(map(str, digits)).rstrip("0")
    return (joined, power) if joined else ("0", 0)


def _two_digit_exponent(text: str) -> str:
    mantissa, _, exponent = text.partition("e")
    return f"{mantissa}e{exponent[0]}{int(exponent[1:]):02d}"


def _hex_float(size: float, precision: int) -> str:
    if size == 0:
        return "0x0" + ("." + "0" * precision if precision > 0 else "") + "p+00"
    fraction, power = math.frexp(size)
    mantissa = int(math.ldexp(fraction, 53))  # 53 bits, the first of them 1
    if 0 <= precision < 13:
        drop = 52 - 4 * precision
        kept, rest = mantissa >> drop, mantissa & ((1 << drop) - 1)
        half = 1 << (drop - 1)
        if rest > half or (rest == half and kept & 1):
            kept += 1
        mantissa = kept << drop
        if mantissa >> 53:
            mantissa, power = mantissa >> 1, power + 1
    digits = f"{mantissa & ((1 << 52) - 1):013x}"
    digits = digits.rstrip("0") if precision < 0 else digits[:precision].ljust(precision, "0")
    exponent = power - 1
    return f"0x1{'.' + digits if digits else ''}p{'-' if exponent < 0 else '+'}{abs(exponent):02d}"


def _string(value: str, verb: str, spec: _Spec) -> str:
    if verb in ("s", "v", "q"):
        if spec.precision >= 0:
            value = value[: spec.precision]
        if verb == "v" and spec.sharp:
            verb = "q"
            spec.sharp = False
        if verb == "q":
            if spec.sharp and "`" not in value and all(char == "\t" or char.isprintable() for char in value):
                value = f"`{value}`"
            else:
                value = f'"{_escaped(value, spec.plus)}"'
        return spec.pad(value)
    if verb in ("x", "X"):
        return _bytes(value.encode("utf-8", "surrogateescape"), verb, spec)
    return _bad(value, verb)


def _bytes(value: bytes, verb: str, spec: _Spec) -> str:
    if verb == "s":
        cut = value if spec.precision < 0 else value[: spec.precision]
        return spec.pad(cut.decode("utf-8", "surrogateescape"))
    if verb == "q":
        return _string(value.decode("utf-8", "surrogateescape"), verb, spec)
    if spec.precision >= 0:
        value = value[: spec.precision]
    mark = ("0x" if verb == "x" else "0X") if spec.sharp and value else ""
    pairs = [f"{byte:02x}" if verb == "x" else f"{byte:02X}" for byte in value]
    text = (" " + mark).join(pairs) if spec.space else "".join(pairs)
    spec.zero = False
    return spec.pad(mark + text)


_ESCAPES = {
    "\a": "\\a",
    "\b": "\\b",
    "\f": "\\f",
    "\n": "\\n",
    "\r": "\\r",
    "\t": "\\t",
    "\v": "\\v",
    "\\": "\\\\",
    '"': '\\"',
}


def _escaped(text: str, ascii_only: bool) -> str:
    return "".join(_escape(char, ascii_only) for char in text)


def _escape(char: str, ascii_only: bool) -> str:
    known = _ESCAPES.get(char)
    if known is not None:
        return known
    code = ord(char)
    if 0xDC80 <= code < 0xDD00:
        return f"\\x{code - 0xDC00:02x}"
    if char.isprintable() and (not ascii_only or code < 0x80):
        return char
    if code < 0x20 or code == 0x7F:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def value_text(value: Any) -> str:
    """`%v` of a value, for error messages."""
    return _print(value, "v", _Spec("", 0, -1))
