"""Actions on attributes, as the `attributes` and `resource` processors have them."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable, Iterator
from typing import Any, Final, Literal

import msgspec
import re2

from tracecore.agent import elsewhere
from tracecore.agent.batch import LEVELS

_TRUE: Final = {"1", "t", "T", "true", "TRUE", "True"}
_FALSE: Final = {"0", "f", "F", "false", "FALSE", "False"}


class AttributeAction(msgspec.Struct, frozen=True, kw_only=True):
    """One thing to do.

    Args:
        key: the attribute; `extract` reads it, the others set or delete it.
        action: `insert` sets what is not there, `update` what is there, `upsert` either.
        value: what to set.
        from_attribute: whose value to set.
        pattern: `extract`: a regular expression whose named groups become attributes; `delete`, `hash`: which keys.
        converted_type: `convert`: to what.
    """

    key: str = ""
    action: Literal["insert", "update", "upsert", "delete", "hash", "extract", "convert"]
    value: str | int | float | bool | list[Any] | None = None
    from_attribute: str | None = None
    pattern: str | None = None
    converted_type: Literal["int", "double", "string", "boolean"] | None = None

    @staticmethod
    def elsewhere(name: str) -> str:
        """Return what to do about a setting that is not here on purpose."""
        return f'"{name}" {elsewhere.HERE}' if name == "from_context" else ""

    def check(self) -> Iterator[tuple[tuple[str | int, ...], str]]:
        if self.action in ("insert", "update", "upsert"):
            if (self.value is None) == (self.from_attribute is None):
                yield ("action",), f"{self.action} needs one of value and from_attribute"
        elif self.action == "convert" and self.converted_type is None:
            yield ("action",), "convert needs converted_type"
        if not self.key and (self.action not in ("delete", "hash") or self.pattern is None):
            yield ("key",), '"key" is missing'
        if self.action == "extract" and self.pattern is None:
            yield ("action",), "extract needs pattern"
        if self.pattern is not None:
            try:
                expression = re2.compile(self.pattern)
            except re2.error as error:
                yield ("pattern",), f"not a regular expression: {error}"
                return
            if self.action == "extract" and (not expression.groups or len(expression.groupindex) != expression.groups):
                yield ("pattern",), "extract needs named groups only, like (?P<name>.*)"


def compile_actions(actions: list[AttributeAction]) -> Callable[[dict[str, Any]], None]:
    """All of them, in their order, as one function on attributes."""
    steps = [_step(action) for action in actions]

    def run(attributes: dict[str, Any]) -> None:
        for step in steps:
            step(attributes)

    return run


def _step(action: AttributeAction) -> Callable[[dict[str, Any]], None]:
    key, pattern = action.key, re2.compile(action.pattern) if action.pattern is not None else None
    missing = object()

    def value(attributes: dict[str, Any]) -> Any:
        return action.value if action.from_attribute is None else attributes.get(action.from_attribute, missing)

    def insert(attributes: dict[str, Any]) -> None:
        if key not in attributes and (found := value(attributes)) is not missing:
            attributes[key] = found

    def update(attributes: dict[str, Any]) -> None:
        if key in attributes and (found := value(attributes)) is not missing:
            attributes[key] = found

    def upsert(attributes: dict[str, Any]) -> None:
        if (found := value(attributes)) is not missing:
            attributes[key] = found

    def delete(attributes: dict[str, Any]) -> None:
        if key:
            attributes.pop(key, None)
        if pattern is not None:
            for name in [name for name in attributes if pattern.search(name)]:
                del attributes[name]

    def hash_(attributes: dict[str, Any]) -> None:
        for name in [n for n in attributes if n == key or (pattern is not None and pattern.search(n))]:
            attributes[name] = digest(attributes[name])

    def extract(attributes: dict[str, Any]) -> None:
        text = attributes.get(key)
        assert pattern is not None
        if isinstance(text, str) and (match := pattern.search(text)) is not None:
            attributes.update({name: found or "" for name, found in match.groupdict().items()})

    def convert(attributes: dict[str, Any]) -> None:
        if key in attributes:
            attributes[key] = converted(attributes[key], str(action.converted_type))

    table = {
        "insert": insert, "update": update, "upsert": upsert, "delete": delete, "hash": hash_, "extract": extract,
        "convert": convert,
    }  # fmt: skip
    return table[action.action]


def digest(value: Any) -> str:
    """The Collector's hash of a value: SHA-256 of its text or of its eight bytes."""
    if isinstance(value, bool):
        data = bytes((int(value),))
    elif isinstance(value, int):
        data = struct.pack("<q", value)
    elif isinstance(value, float):
        data = struct.pack("<d", value)
    else:
        data = value if isinstance(value, bytes) else str(value).encode("utf-8", "replace")
    return hashlib.sha256(data).hexdigest()


def converted(value: Any, kind: str) -> Any:
    """The value as another type; as it is where that cannot be."""
    try:
        if kind == "string":
            if isinstance(value, bool):
                return str(value).lower()
            return f"{value:.15g}" if isinstance(value, float) else value if isinstance(value, str) else str(value)
        if kind == "int":
            return int(value)
        if kind == "double":
            return float(value)
    except (TypeError, ValueError, OverflowError):
        return value
    if isinstance(value, str) and value in _TRUE | _FALSE:
        return value in _TRUE
    return value != 0 if isinstance(value, int | float) else value


def records(signal: str, payload: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Whatever has attributes of its own: log records, spans, metric points."""
    resources, scopes, items = LEVELS[signal]
    for resource in payload.get(resources) or ():
        for scope in resource.get(scopes) or ():
            for item in scope.get(items) or ():
                yield from own(signal, item)


def own(signal: str, item: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """A log record or a span; of a metric its points."""
    if signal != "metrics":
        yield item
        return
    for kind in ("gauge", "sum", "histogram", "exponential_histogram", "summary"):
        yield from (item.get(kind) or {}).get("data_points") or ()
