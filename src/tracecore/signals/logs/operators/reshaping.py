"""Operators that copy fields, keep some, lift what is inside of one, and mend texts."""

from __future__ import annotations

import copy
from functools import partial
from typing import Any, Final

import re2

from tracecore.signals.logs.operators.base import Failures, Operator
from tracecore.signals.logs.operators.entry import MISSING, Entry, Field, OperatorError
from tracecore.signals.logs.operators.options import Options
from tracecore.signals.logs.operators.parsers import Parser

#: What terminals take for colours and cursor moves.
_WELL_KNOWN: Final = {"ansi_control_sequences": "\x1b\\[[0-9;?]*[@-~]"}
_TEMPLATE = re2.compile(r"\$(?:(\$)|\{(\w+)\}|(\w+))")
_ESCAPE = re2.compile(r"\\(?:x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|([0-7]{3})|(.))")
_ESCAPED: Final = {
    "a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v", "\\": "\\", '"': '"', "'": "'",
}  # fmt: skip


class Noop(Operator):
    """`noop`: nothing, for routes that only lead somewhere."""

    def transform(self, entry: Entry, now: int) -> None:
        pass


class Copy(Operator):
    """`copy`: a field's value, in another place too."""

    def __init__(self, options: Options, failures: Failures) -> None:
        super().__init__(options, failures)
        self._from = options.needed_field("from", root=True)
        self._to = options.needed_field("to", root=True)

    def transform(self, entry: Entry, now: int) -> None:
        value = self._from.get(entry)
        if value is MISSING or value is None:
            raise OperatorError("copy: there is no such field")
        self._to.set(entry, copy.deepcopy(value))


class Retain(Operator):
    """`retain`: keeps the named fields of body, attributes or resource; of which none is named, all."""

    def __init__(self, options: Options, failures: Failures) -> None:
        super().__init__(options, failures)
        named = options.raw("fields", [])
        self._kept: dict[str, list[Field]] = {}
        if not isinstance(named, list) or not named:
            options.wrong("fields", '"fields" is missing')
            named = []
        for text in named:
            field = options.made("fields", partial(Field, str(text), True))
            if field is not None:
                self._kept.setdefault(field.root, []).append(field)

    def transform(self, entry: Entry, now: int) -> None:
        for root, fields in self._kept.items():
            if root == "body" and type(entry.body) is not dict:
                continue
            if any(not field.keys for field in fields):
                continue
            found = [(field, value) for field in fields if (value := field.get(entry)) is not MISSING]
            setattr(entry, root, {})
            for field, value in found:
                field.set(entry, value)


class Flatten(Operator):
    """`flatten`: what is in a field moves to where the field is."""

    def __init__(self, options: Options, failures: Failures) -> None:
        super().__init__(options, failures)
        self._field = options.needed_field("field")
        if options.has("field") and not self._field.keys:
            options.wrong("field", "the whole of an entry cannot be lifted; name a field in it")

    def transform(self, entry: Entry, now: int) -> None:
        value = self._field.get(entry)
        if type(value) is not dict:
            raise OperatorError("flatten: there is no map")
        self._field.delete(entry)
        held = getattr(entry, self._field.root)
        for key in self._field.keys[:-1]:
            held = held[key]
        held.update(value)


class AssignKeys(Operator):
    """`assign_keys`: a list becomes a map with these keys."""

    def __init__(self, options: Options, failures: Failures) -> None:
        super().__init__(options, failures)
        self._field = options.needed_field("field")
        keys = options.raw("keys", [])
        if not isinstance(keys, list) or not keys or not all(isinstance(key, str) for key in keys):
            options.wrong("keys", "expected a list of names")
            keys = []
        self._keys: list[str] = keys

    def transform(self, entry: Entry, now: int) -> None:
        value = self._field.get(entry)
        if type(value) is not list:
            raise OperatorError("assign_keys: there is no list")
        if len(value) != len(self._keys):
            raise OperatorError("assign_keys: keys and values differ in number")
        self._field.delete(entry)
        self._field.set(entry, dict(zip(self._keys, value, strict=True)))


class _Text(Operator):
    """Changes the text of a field."""

    default = ""

    def __init__(self, options: Options, failures: Failures) -> None:
        super().__init__(options, failures)
        self._field = options.needed_field("field", self.default)

    def transform(self, entry: Entry, now: int) -> None:
        value = self._field.get(entry)
        if not isinstance(value, str):
            raise OperatorError(f"{self.type}: there is no text")
        self._field.set(entry, self.changed(value))

    def changed(self, text: str) -> str:
        """The text as it should be.

        Raises:
            OperatorError: it cannot be.
        """
        raise NotImplementedError


class RegexReplace(_Text):
    """`regex_replace`: what an expression matches becomes something else, or nothing."""

    def __init__(self, options: Options, failures: Failures) -> None:
        super().__init__(options, failures)
        name = options.text("regex_name")
        text = options.text("regex")
        if bool(name) == bool(text):
            options.wrong("regex", "one of regex and regex_name is needed")
        if name and name not in _WELL_KNOWN:
            options.wrong("regex_name", f'"{name}" is none of {", ".join(_WELL_KNOWN)}')
        pattern = _WELL_KNOWN.get(name, text)
        self._regex = options.made("regex", lambda: re2.compile(pattern)) if pattern else None
        self._template = options.text("replace_with")

    def changed(self, text: str) -> str:
        if self._regex is None:
            return text
        made: str = self._regex.sub(self._filled, text)
        return made

    def _filled(self, match: Any) -> str:
        def part(reference: Any) -> str:
            dollar, braced, plain = reference.groups()
            if dollar:
                return "$"
            name = braced or plain
            try:
                return match.group(int(name) if name.isdigit() else name) or ""
            except (IndexError, KeyError, re2.error):
                return ""  # as Go does, for a group that is not there

        filled: str = _TEMPLATE.sub(part, self._template)
        return filled


class Unquote(_Text):
    """`unquote`: a text that stands in quotes, without them and with what its escapes mean."""

    def changed(self, text: str) -> str:
        quote, inner = text[:1], text[1:-1]
        if len(text) < 2 or quote not in ('"', "'", "`") or text[-1] != quote:
            raise OperatorError("unquote: the text does not stand in quotes")
        if quote == "`":
            if "`" in inner:
                raise OperatorError("unquote: a quote inside of the text")
            return inner.replace("\r", "")
        plain = _ESCAPE.sub("", inner)
        if quote in plain or "\n" in plain or "\\" in plain:
            raise OperatorError("unquote: a quote, an end of a line or half an escape inside of the text")
        made: str = _ESCAPE.sub(_unescaped, inner)
        if quote == "'" and len(made) != 1:
            raise OperatorError("unquote: single quotes are for one character")
        return made


def _unescaped(match: Any) -> str:
    byte, short, long, octal, letter = match.groups()
    if letter is not None:
        if letter not in _ESCAPED:
            raise OperatorError(f"unquote: no such escape: \\{letter}")
        return _ESCAPED[letter]
    code = int(octal, 8) if octal else int(byte or short or long, 16)
    if code > 0x10FFFF or 0xD800 <= code < 0xE000:
        raise OperatorError("unquote: no such character")
    return chr(code)


class SanitizeUtf8(_Text):
    """`sanitize_utf8`: what is no character becomes the sign for that."""

    default = "body"

    def transform(self, entry: Entry, now: int) -> None:
        value = self._field.get(entry)
        if isinstance(value, bytes):
            self._field.set(entry, value.decode("utf-8", "replace"))
        else:
            super().transform(entry, now)

    def changed(self, text: str) -> str:
        if text.isascii():
            return text
        return "".join("�" if "\ud800" <= char <= "\udfff" else char for char in text)


class KeyValueParser(Parser):
    """`key_value_parser`: `key=value` pairs become fields."""

    def __init__(self, options: Options, failures: Failures) -> None:
        super().__init__(options, failures)
        self._delimiter = options.text("delimiter", "=")
        self._between = options.text("pair_delimiter", " ")
        if not self._delimiter:
            options.wrong("delimiter", "may not be empty")
        if self._delimiter == self._between:
            options.wrong("pair_delimiter", "not the same as delimiter")

    def parse(self, value: Any) -> Any:
        if not isinstance(value, str) or not value:
            raise OperatorError("no text to find pairs in")
        found: dict[str, str] = {}
        for pair in _pairs(value, self._between):
            key, delimiter, text = pair.partition(self._delimiter)
            if not delimiter:
                raise OperatorError("a pair has no delimiter in it")
            found[_bare(key)] = _bare(text)
        return found


def _bare(text: str) -> str:
    return text.strip().strip("\"'")


def _pairs(text: str, between: str) -> list[str]:
    """The parts between delimiters that do not stand in quotes; quotes themselves are left out."""
    parts: list[str] = []
    part: list[str] = []
    quote = ""
    at = 0
    while at < len(text):
        char = text[at]
        if char == quote:
            quote = ""
        elif not quote and char in "\"'":
            quote = char
        elif not quote and text.startswith(between, at):
            parts.append("".join(part))
            part = []
            at += len(between)
            continue
        else:
            part.append(char)
        at += 1
    if quote:
        raise OperatorError("a quote is not closed")
    parts.append("".join(part))
    return [part for part in parts if part.strip()]
