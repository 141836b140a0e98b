"""OTLP in its JSON form, to the plain payloads the processor works on, and back.

In JSON the names are in camel case, 64-bit integers are strings, attributes are lists of keys and wrapped values,
and bytes are base64. A plain payload has names in snake case and Python values. What is not a value is carried through
unchanged, so that nothing is lost between the two.
"""

from __future__ import annotations

import base64
import binascii
import math
import re
from typing import Any, Final

#: The three payloads, by their JSON key.
PAYLOADS: Final = {"resourceLogs": "logs", "resourceMetrics": "metrics", "resourceSpans": "traces"}

#: Names of the three levels of a payload, by signal.
LEVELS: Final = {
    "logs": ("resource_logs", "scope_logs", "log_records"),
    "metrics": ("resource_metrics", "scope_metrics", "metrics"),
    "traces": ("resource_spans", "scope_spans", "spans"),
}

#: How deep a payload may nest; JSON readers allow more than a recursive walk should.
MAX_DEPTH: Final = 100

_ATTRIBUTES: Final = frozenset(("attributes", "filtered_attributes", "metadata"))
# Integers of 64 bits, which JSON carries as strings.
_INT64: Final = frozenset(
    (
        "time_unix_nano",
        "observed_time_unix_nano",
        "start_time_unix_nano",
        "end_time_unix_nano",
        "as_int",
        "count",
        "zero_count",
    )
)
_INT64_LISTS: Final = frozenset(("bucket_counts",))


class PayloadError(ValueError):
    """The text is not OTLP."""


def signal_of(document: Any) -> str:
    """`logs`, `metrics` or `traces` for an OTLP document in either spelling; empty for anything else."""
    if isinstance(document, dict):
        for key, signal in PAYLOADS.items():
            if key in document or _snake(key) in document:
                return signal
    return ""


def _snake(name: str) -> str:
    return re.sub(r"(?<=[a-z0-9])([A-Z])", r"_\1", name).lower()


def _camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(part.capitalize() for part in rest)


def decode(document: dict[str, Any]) -> dict[str, Any]:
    """The plain payload of an OTLP JSON document.

    Raises:
        PayloadError: a value is none, or it nests too deep.
    """
    decoded: dict[str, Any] = _decode_node(document, 0)
    return decoded


def _decode_node(node: Any, depth: int) -> Any:
    if depth > MAX_DEPTH:
        raise PayloadError(f"nested deeper than {MAX_DEPTH} levels")
    if isinstance(node, list):
        return [_decode_node(item, depth + 1) for item in node]
    if not isinstance(node, dict):
        return node
    out: dict[str, Any] = {}
    for key, value in node.items():
        name = _snake(key)
        out[name] = _decode_field(name, value, depth)
    return out


def _decode_field(name: str, value: Any, depth: int) -> Any:
    if name in _ATTRIBUTES and isinstance(value, list):
        return _decode_entries(value, depth)
    if name == "body":
        return decode_value(value, depth)
    if name in _INT64 and isinstance(value, str):
        return _int(value)
    if name in _INT64_LISTS and isinstance(value, list):
        return [_int(item) for item in value]
    return _decode_node(value, depth + 1)


def _int(value: Any) -> int:
    try:
        return int(value)
    except (TypeError, ValueError) as error:
        raise PayloadError(f"not an integer: {value!r}") from error


def decode_value(value: Any, depth: int = 0) -> Any:
    """The Python value of `{"stringValue": ...}` and its like."""
    if depth > MAX_DEPTH:
        raise PayloadError(f"nested deeper than {MAX_DEPTH} levels")
    if value is None or value == {}:
        return None
    if not isinstance(value, dict) or len(value) != 1:
        raise PayloadError(f"not an OTLP value: {value!r:.80}")
    ((key, held),) = value.items()
    match _snake(key):
        case "string_value" | "bool_value":
            return held
        case "int_value":
            return _int(held)
        case "double_value":
            return _double(held)
        case "bytes_value":
            try:
                return base64.b64decode(held, validate=True)
            except (binascii.Error, TypeError, ValueError) as error:
                raise PayloadError(f"not base64: {held!r:.80}") from error
        case "array_value":
            return [decode_value(item, depth + 1) for item in _values(held)]
        case "kvlist_value":
            return _decode_entries(_values(held), depth + 1)
    raise PayloadError(f"not an OTLP value: {key}")


def _values(held: Any) -> list[Any]:
    values = held.get("values", []) if isinstance(held, dict) else []
    if not isinstance(values, list):
        raise PayloadError(f"not a list of values: {values!r:.80}")
    return values


def _decode_entries(entries: list[Any], depth: int) -> dict[str, Any]:
    """Keys and wrapped values. An empty key is left out of JSON, as all zero values are."""
    if not all(isinstance(entry, dict) for entry in entries):
        raise PayloadError("an attribute is not an object")
    return {str(entry.get("key", "")): decode_value(entry.get("value"), depth) for entry in entries}


def _double(held: Any) -> float:
    try:
        return float(held)
    except (TypeError, ValueError) as error:
        raise PayloadError(f"not a number: {held!r:.80}") from error


def encode(payload: dict[str, Any]) -> dict[str, Any]:
    """The OTLP JSON document of a plain payload."""
    encoded: dict[str, Any] = _encode_node(payload)
    return encoded


def _encode_node(node: Any) -> Any:
    if isinstance(node, list):
        return [_encode_node(item) for item in node]
    if not isinstance(node, dict):
        return node
    return {_camel(name): _encode_field(name, value) for name, value in node.items()}


def _encode_field(name: str, value: Any) -> Any:
    if name in _ATTRIBUTES and isinstance(value, dict):
        return _encode_entries(value)
    if name == "body":
        return encode_value(value)
    if name in _INT64 and isinstance(value, int):
        return str(value)
    if name in _INT64_LISTS and isinstance(value, list):
        return [str(item) for item in value]
    return _encode_node(value)


def _encode_entries(entries: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"key": _sound(key), "value": encode_value(value)} for key, value in entries.items()]


def encode_value(value: Any) -> dict[str, Any]:
    """Return a Python value as `{"stringValue": ...}` and its like."""
    if value is None:
        return {}
    if isinstance(value, str):
        return {"stringValue": _sound(value)}
    if isinstance(value, bool):
        return {"boolValue": value}
    if isinstance(value, int):
        return {"intValue": str(value)}
    if isinstance(value, float):
        return {"doubleValue": value if math.isfinite(value) else _non_finite(value)}
    if isinstance(value, bytes):
        return {"bytesValue": base64.b64encode(value).decode()}
    if isinstance(value, list | tuple):
        return {"arrayValue": {"values": [encode_value(item) for item in value]}}
    if isinstance(value, dict):
        return {"kvlistValue": {"values": _encode_entries(value)}}
    raise PayloadError(f"no OTLP value: {type(value).__name__}")


def _sound(text: str) -> str:
    """Return a text without halves of surrogate pairs, which no encoding has."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


def _non_finite(value: float) -> str:
    return "NaN" if value != value else "Infinity" if value > 0 else "-Infinity"
