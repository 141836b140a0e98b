"""Operators that make fields of a text, a time, a severity."""

from __future__ import annotations

from typing import Any, Final

import msgspec
import re2

from tracecore.signals.logs.operators.base import Failures, Operator
from tracecore.signals.logs.operators.entry import MISSING, SEVERITIES, Entry, OperatorError
from tracecore.signals.logs.operators.options import Options
from tracecore.signals.logs.operators.times import Layout, TimeError
from tracecore.signals.otlp.messages import MAX_DEPTH

_LEVELS: Final = {text.lower(): number for number, text in enumerate(SEVERITIES) if text}
_HTTP: Final = {f"{n}xx": range(n * 100, n * 100 + 100) for n in (2, 3, 4, 5)}


class SeverityReader:
    """Reads a severity from a field.

    Args:
        options: `parse_from`, `preset`, `mapping`, `overwrite_text`.
    """

    def __init__(self, options: Options) -> None:
        self._field = options.needed_field("parse_from")
        self._overwrite = options.flag("overwrite_text", False)
        preset = options.text("preset", "default")
        self._mapping: dict[str, int] = {}
        if preset != "none":
            self._mapping = dict(_LEVELS)
            self._mapping.update({str(number): number for number in range(1, 25)})
            if preset not in ("otel", "aliases"):
                for name, alias in (("warn", "warning"), ("error", "err")):
                    for suffix in ("", "2", "3", "4"):
                        self._mapping[alias + suffix] = _LEVELS[name + suffix]
        mapping = options.raw("mapping", {})
        if not isinstance(mapping, dict):
            options.wrong("mapping", "expected severities and what stands for them")
            mapping = {}
        for level, values in mapping.items():
            number = _LEVELS.get(str(level).lower()) or (
                int(level) if str(level).isdigit() and 0 < int(level) < 25 else 0
            )
            for value in values if isinstance(values, list) else [values]:
                try:
                    for text in _texts(value):
                        self._mapping[text] = number
                except ValueError as error:
                    options.wrong("mapping", str(error))

    def read(self, entry: Entry, now: int) -> None:
        """Sets severity and its text.

        Raises:
            OperatorError: there is none.
        """
        value = self._field.get(entry)
        if value is MISSING:
            raise OperatorError("there is no field to read the severity from")
        if isinstance(value, bytes):
            text = value.decode("utf-8", "replace")
        elif isinstance(value, str):
            text = value
        elif isinstance(value, int | float) and not isinstance(value, bool) and value == int(value):
            text = str(int(value))
        else:
            raise OperatorError(f"{type(value).__name__} cannot be a severity")
        number = self._mapping.get(text.lower(), 0)
        entry.severity = number
        entry.severity_text = SEVERITIES[number] if self._overwrite and number else text


def _texts(value: Any) -> list[str]:
    if isinstance(value, bool):
        raise ValueError("true and false cannot be severities")
    if isinstance(value, int):
        return [str(value)]
    if isinstance(value, str):
        return [str(n) for n in _HTTP[value]] if value in _HTTP else [value.lower()]
    if (
        isinstance(value, dict)
        and isinstance(low := value.get("min"), int)
        and isinstance(high := value.get("max"), int)
    ):
        low, high = min(low, high), max(low, high)
        if high - low > 100_000:
            raise ValueError("the range is too wide")
        return [str(n) for n in range(low, high + 1)]
    raise ValueError(f"{value!r} cannot stand for a severity")


class TimeReader:
    """Reads a time from a field.

    Args:
        options: `parse_from`, `layout`, `layout_type`, `location`.
    """

    def __init__(self, options: Options) -> None:
        self._field = options.needed_field("parse_from")
        kind = options.one_of("layout_type", ("strptime", "gotime", "epoch"), "strptime")
        layout = options.text("layout")
        location = options.text("location")
        if not layout:
            options.wrong("layout", '"layout" is missing')
        self._layout = options.made("layout", lambda: Layout(layout, kind, location)) if layout else None

    def read(self, entry: Entry, now: int) -> None:
        """Sets the time.

        Raises:
            OperatorError: there is none.
        """
        value = self._field.get(entry)
        if value is MISSING or self._layout is None:
            raise OperatorError("there is no field to read the time from")
        try:
            entry.time = self._layout.parse(value, now)
        except TimeError as error:
            raise OperatorError(str(error)) from None


class ScopeReader:
    """Reads the name of a scope from a field.

    Args:
        options: `parse_from`.
    """

    def __init__(self, options: Options) -> None:
        self._field = options.needed_field("parse_from")

    def read(self, entry: Entry, now: int) -> None:
        """Sets the scope.

        Raises:
            OperatorError: there is none.
        """
        value = self._field.get(entry)
        if not isinstance(value, str):
            raise OperatorError("there is no name of a scope")
        entry.scope = value


class Parser(Operator):
    """Base of parsers: where they read and write, and what they take from the outcome."""

    def __init__(self, options: Options, failures: Failures) -> None:
        super().__init__(options, failures)
        self.parse_from = options.needed_field("parse_from", "body")
        self.parse_to = options.needed_field("parse_to", "attributes", root=True)
        self.body = options.field("body")
        if self.body is not None and self.parse_to.text == "body":
            options.wrong("parse_to", "not body, when body is set, too")
        self._readers: list[TimeReader | SeverityReader | ScopeReader] = []
        for name, reader in (("timestamp", TimeReader), ("severity", SeverityReader), ("scope_name", ScopeReader)):
            inner = options.inner(name)
            if inner is not None:
                self._readers.append(reader(inner))
                inner.finish()
        places = self.parse_from.text, self.parse_to.text
        #: Whether it reads the body into attributes, and nothing else.
        self.plain = places == ("body", "attributes") and self.body is None and not self._readers

    def transform(self, entry: Entry, now: int) -> None:
        if self.plain:
            entry.attributes.update(self.parse(entry.body))
            return
        value = self.parse_from.get(entry)
        if value is MISSING:
            raise OperatorError(f"there is no {self.parse_from.text}")
        self.parse_to.set(entry, self.parse(value))
        if self.body is not None and (body := self.body.get(entry)) is not MISSING:
            entry.body = body
        error: OperatorError | None = None
        for reader in self._readers:
            try:
                reader.read(entry, now)
            except OperatorError as failure:
                error = error or failure
        if error is not None:
            raise error

    def parse(self, value: Any) -> Any:
        """Return what is made of a value.

        Raises:
            OperatorError: nothing can be.
        """
        raise NotImplementedError


class RegexParser(Parser):
    """`regex_parser`: named groups become fields."""

    def __init__(self, options: Options, failures: Failures) -> None:
        super().__init__(options, failures)
        self._regex = options.regex("regex")
        if options.has("regex") and not self._regex.names:
            options.wrong("regex", "it has no named groups, such as (?P<name>.*)")
        cache = options.inner("cache")
        if cache is not None:
            cache.count("size", 0)
            cache.finish()

    def parse(self, value: Any) -> Any:
        if not isinstance(value, str):
            raise OperatorError(f"{type(value).__name__} cannot be parsed by a regular expression")
        found = self._regex.groups(value)
        if found is None:
            raise OperatorError("the regular expression does not match")
        return found


class JsonParser(Parser):
    """`json_parser`: an object's members become fields."""

    def __init__(self, options: Options, failures: Failures) -> None:
        super().__init__(options, failures)
        self._ints = options.flag("parse_ints", False)

    def parse(self, value: Any) -> Any:
        if not isinstance(value, str):
            raise OperatorError(f"{type(value).__name__} cannot be parsed as JSON")
        return json_object(value, self._ints)


#: An escape in JSON; the group is half of a surrogate pair without the other. What is whole is tried first.
_ESCAPE = re2.compile(
    r"\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|(\\u[dD][89a-fA-F][0-9a-fA-F]{2})|\\."
)


def json_object(text: str, ints: bool = False) -> dict[str, Any]:
    """A JSON object; numbers are floats unless whole ones are asked for.

    Raises:
        OperatorError: it is none.
    """
    try:
        try:
            found = _decoded(text)
        except (msgspec.DecodeError, UnicodeEncodeError):
            if (repaired := _paired(text)) == text:
                raise
            found = msgspec.json.decode(repaired.encode("utf-8", "replace"))
    except (msgspec.DecodeError, RecursionError) as error:
        raise OperatorError(f"no JSON: {error}") from None
    if found is None:
        return {}
    if not isinstance(found, dict):
        raise OperatorError("no JSON object")
    if ints:
        return {name: _numbers(value, True) for name, value in found.items()}
    # Most values are texts and numbers, which need no call.
    return {
        name: value
        if (kind := type(value)) is str or kind is float
        else float(value)
        if kind is int
        else _numbers(value, False)
        for name, value in found.items()
    }


_decoded = msgspec.json.Decoder().decode


def _paired(text: str) -> str:
    """JSON in which halves of surrogate pairs that stand alone became the sign for what cannot be read."""
    repaired: str = _ESCAPE.sub(lambda found: "\\ufffd" if found[1] else found[0], text)
    return repaired


def _numbers(value: Any, ints: bool, depth: int = 0) -> Any:
    kind = type(value)
    if kind is float:
        return value
    if kind is int:
        return value if ints and -(1 << 63) <= value < 1 << 63 else float(value)
    if depth >= MAX_DEPTH:
        raise OperatorError("no JSON: nested too deep")
    if kind is dict:
        return {name: _numbers(item, ints, depth + 1) for name, item in value.items()}
    if kind is list:
        return [_numbers(item, ints, depth + 1) for item in value]
    return value


class SeverityParser(Operator):
    """`severity_parser`."""

    def __init__(self, options: Options, failures: Failures) -> None:
        super().__init__(options, failures)
        self._reader = SeverityReader(options)

    def transform(self, entry: Entry, now: int) -> None:
        self._reader.read(entry, now)


class TimeParser(Operator):
    """`time_parser`."""

    def __init__(self, options: Options, failures: Failures) -> None:
        super().__init__(options, failures)
        self._reader = TimeReader(options)

    def transform(self, entry: Entry, now: int) -> None:
        self._reader.read(entry, now)
