"""Converters that read text formats into maps and lists: JSON, CSV, key=value, and severities."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Any

from tracecore.ottl.context import Context
from tracecore.ottl.errors import OttlCompileError, OttlRuntimeError
from tracecore.ottl.functions.bounds import MAX_DEPTH
from tracecore.ottl.functions.gofmt import value_text
from tracecore.ottl.functions.maps import check_delimiters
from tracecore.ottl.functions.strings import SPACE
from tracecore.ottl.signature import (
    MISSING,
    Getter,
    PMapGetter,
    String,
    StringGetter,
    constant_value,
    converter,
    value_converter,
)
from tracecore.ottl.values import Value, go_type, quote


@value_converter("ParseJSON")
def parse_json(target: String) -> Value:
    """The map or list a JSON text stands for. Every number becomes a float."""
    value = read_json(target)
    if isinstance(value, (dict, list)):
        return value
    kind = "<nil>" if value is None else go_type(value)
    raise OttlRuntimeError(f"could not convert parsed value of type {kind} to JSON object")


_UNPAIRED = dict.fromkeys(range(0xD800, 0xE000), "\ufffd")


def read_json(text: str) -> Value:
    """A JSON text's value, with floats for all numbers and U+FFFD for what is no Unicode, as Go reads it."""
    try:
        text.encode()
    except UnicodeEncodeError:
        text = text.translate(_UNPAIRED)
    try:
        value = _JSON.decode(text)
    except RecursionError as error:
        raise OttlRuntimeError(f"JSON nests deeper than {MAX_DEPTH} levels") from error
    except ValueError as error:
        raise OttlRuntimeError(f"invalid JSON: {error}") from error
    _check_depth(value)
    # An escape may have made half of a surrogate pair; rare enough to look only where one was written.
    return _paired(value) if "\\ud" in text or "\\uD" in text or "\\Ud" in text else value


def _number(text: str) -> float:
    number = float(text)
    if math.isinf(number):
        raise ValueError(f"cannot unmarshal number {text[:40]} into Go value of type float64")
    return number


def _constant(text: str) -> float:
    raise ValueError(f"invalid character '{text[0]}' looking for beginning of value")


_JSON = json.JSONDecoder(parse_int=_number, parse_float=_number, parse_constant=_constant)


def _check_depth(value: Value) -> None:
    level = [value]
    for _ in range(MAX_DEPTH):
        level = [
            inner
            for item in level
            if isinstance(item, (dict, list))
            for inner in (item.values() if isinstance(item, dict) else item)
        ]
        if not level:
            return
    raise OttlRuntimeError(f"JSON nests deeper than {MAX_DEPTH} levels")


def _paired(value: Value) -> Value:
    if isinstance(value, str):
        return value.translate(_UNPAIRED)
    if isinstance(value, list):
        return [_paired(item) for item in value]
    if isinstance(value, dict):
        return {_paired(key): _paired(item) for key, item in value.items()}
    return value


@converter("ParseKeyValue")
def parse_key_value(target: StringGetter, delimiter: str = "=", pair_delimiter: str = " ") -> Getter:
    """The map a text such as `key=value other="a b"` stands for."""
    check_delimiters(delimiter, pair_delimiter)

    def run(ctx: Context) -> dict[str, str]:
        text = target(ctx)
        if not text:
            raise OttlRuntimeError("cannot parse from empty target")
        parsed: dict[str, str] = {}
        wrong: list[str] = []
        for pair in split_quoted(text, pair_delimiter):
            key, found, value = pair.partition(delimiter)
            if found:
                parsed[key.strip(SPACE)] = value.strip(SPACE)
            else:
                wrong.append(f"cannot split {quote(pair)} into 2 items, got 1 item(s)")
        if wrong:
            raise OttlRuntimeError(f"failed to split pairs into key-values: {'; '.join(wrong)}")
        return parsed

    return run


def split_quoted(text: str, delimiter: str) -> list[str]:
    """The parts of a text between delimiters that are not inside quotes. The quotes go, empty parts too."""
    parts: list[str] = []
    current: list[str] = []
    inside, escaped, at = "", False, 0
    while at < len(text):
        if not inside and text.startswith(delimiter, at):
            if current:
                parts.append("".join(current))
                current.clear()
            at += len(delimiter)
            continue
        char = text[at]
        at += 1
        if escaped:
            escaped = False
        elif not inside and char in "\"'":
            inside = char
            continue
        elif char == inside:
            inside = ""
            continue
        else:
            escaped = char == "\\"
        current.append(char)
    if inside:
        raise OttlRuntimeError(
            f"splitting source {quote(text)} into pairs failed: never reached the end of a quoted value"
        )
    if current:
        parts.append("".join(current))
    return parts


@converter("ParseCSV")
def parse_csv(
    target: StringGetter,
    header: StringGetter,
    delimiter: str = ",",
    header_delimiter: str | None = None,
    mode: str = "strict",
) -> Getter:
    """The fields of one CSV row by the names in `header`; `mode` is `strict`, `lazyQuotes` or `ignoreQuotes`."""
    if len(delimiter) != 1:
        raise OttlCompileError("invalid arguments: delimiter must be a single character")
    if header_delimiter is not None and len(header_delimiter) != 1:
        raise OttlCompileError("invalid arguments: header_delimiter must be a single character")
    if mode not in ("strict", "lazyQuotes", "ignoreQuotes"):
        raise OttlCompileError(f"unknown mode: {mode}")

    def run(ctx: Context) -> dict[str, str]:
        row, names = _argument(target, "target", ctx), _argument(header, "header", ctx)
        if not names:
            raise OttlRuntimeError("headers must not be an empty string")
        columns = names.split(header_delimiter or delimiter)
        values = row.split(delimiter) if mode == "ignoreQuotes" else csv_row(row, delimiter, mode == "lazyQuotes")
        if len(values) != len(columns):
            raise OttlRuntimeError(
                f"map csv headers: wrong number of fields: expected {len(columns)}, found {len(values)}"
            )
        return dict(zip(columns, values, strict=True))

    return run


def _argument(getter: StringGetter, name: str, ctx: Context) -> str:
    try:
        return getter(ctx)
    except OttlRuntimeError as error:
        raise OttlRuntimeError(f"error getting value for {name} in ParseCSV: {error.message}") from error


def csv_row(text: str, delimiter: str, lazy: bool) -> list[str]:
    """One row, in which a line end outside quotes belongs to the field it is in."""
    if delimiter in '\0"\r\n\ufffd':
        raise OttlRuntimeError("read csv line: csv: invalid field or comment delimiter")
    lines = _lines(text)
    row: list[str] | None = None
    at = 0
    while at < len(lines):
        if lines[at] == "\n":
            at += 1
            continue
        fields, at, problem = _record(lines, at, delimiter, lazy)
        if problem and not fields:
            raise OttlRuntimeError(f"read csv line: {problem}")
        if row is None:
            row = fields
        else:
            row[-1] += "\n" + fields[0]
            row += fields[1:]
    if row is None:
        raise OttlRuntimeError("no csv lines found")
    return row


def _lines(text: str) -> list[str]:
    lines = text.split("\n")
    last = lines.pop()
    ended = [line.removesuffix("\r") + "\n" for line in lines]
    return [*ended, last.removesuffix("\r")] if last else ended


def _record(lines: list[str], at: int, delimiter: str, lazy: bool) -> tuple[list[str], int, str]:
    """The fields of the record that begins at a line, the line after it, and what is wrong with it."""
    fields: list[str] = []
    line = lines[at]
    number, at = at + 1, at + 1
    while True:
        if not line.startswith('"'):
            field, more, rest = line.partition(delimiter)
            if not more:
                field = field.removesuffix("\n")
            if not lazy and '"' in field:
                return fields, at, f'record on line {number}: bare " in non-quoted-field'
            fields.append(field)
            if not more:
                return fields, at, ""
            line = rest
            continue
        pieces: list[str] = []
        line = line[1:]
        while True:
            head, found, rest = line.partition('"')
            if found:
                pieces.append(head)
                line = rest
                if line.startswith('"'):
                    pieces.append('"')
                    line = line[1:]
                elif line.startswith(delimiter):
                    line = line[1:]
                    fields.append("".join(pieces))
                    break
                elif line in ("", "\n"):
                    fields.append("".join(pieces))
                    return fields, at, ""
                elif lazy:
                    pieces.append('"')
                else:
                    return fields, at, f'record on line {number}: extraneous or missing " in quoted-field'
            elif line:
                pieces.append(line)
                line = lines[at] if at < len(lines) else ""
                at += 1
            else:
                if not lazy:
                    return fields, at, f'record on line {number}: extraneous or missing " in quoted-field'
                fields.append("".join(pieces))
                return fields, at, ""


@converter("ParseSeverity")
def parse_severity(target: Getter, mapping: PMapGetter) -> Getter:
    """The name of the severity whose criteria a value meets: equal to a text, or in a range of numbers."""
    table = constant_value(mapping)
    if table is MISSING:
        return _failing("severity mapping must be a literal PMap")
    try:
        levels: dict[str, list[Callable[[Any], bool]]] = {
            level: _criteria(criteria) for level, criteria in table.items()
        }
    except ValueError as error:
        return _failing(str(error))

    def run(ctx: Context) -> str:
        value = target(ctx)
        for level, criteria in levels.items():
            for meets in criteria:
                if type(value) not in (str, int):
                    raise OttlRuntimeError(
                        f"could not map log level: could not evaluate log level of value '{value_text(value)}': "
                        f"unsupported value type: {go_type(value)}"
                    )
                if meets(value):
                    return level
        raise OttlRuntimeError(f"could not map log level: no matching log level found for value '{value_text(value)}'")

    return run


def _failing(message: str) -> Getter:
    def run(ctx: Context) -> Value:
        raise OttlRuntimeError(message)

    return run


_HTTP = {"2xx": (200, 299), "3xx": (300, 399), "4xx": (400, 499), "5xx": (500, 599)}


def _criteria(given: Any) -> list[Callable[[Any], bool]]:
    if not isinstance(given, list):
        raise ValueError("severity mapping criteria must be []any")
    made = []
    for item in given:
        if not isinstance(item, dict):
            raise ValueError("severity mapping criteria items must be map[string]any")
        try:
            made.append(_criterion(item))
        except ValueError as error:
            raise ValueError(f"invalid severity mapping criteria: {error}") from error
    return made


def _criterion(item: dict[str, Any]) -> Callable[[Any], bool]:
    equals = item.get("equals", [])
    if not isinstance(equals, list):
        raise ValueError("equals must be a list")
    if not all(isinstance(text, str) for text in equals):
        raise ValueError("equals values must be strings")
    texts = frozenset(equals)
    low, high = 1, 0
    if "range" in item:
        low, high = _range(item["range"])

    def meets(value: Any) -> bool:
        return value in texts if isinstance(value, str) else bool(low <= value <= high)

    return meets


def _range(given: Any) -> tuple[int, int]:
    if isinstance(given, str):
        if given not in _HTTP:
            raise ValueError(f"unknown range placeholder: {given}")
        return _HTTP[given]
    if not isinstance(given, dict):
        raise ValueError("range must be a map or a known placeholder string")
    for name in ("min", "max"):
        if name not in given:
            raise ValueError(f"range must have a {name} value")
        if type(given[name]) is not int:
            raise ValueError(f"{name} must be an int64")
    return given["min"], given["max"]
