"""Plain payloads as OTLP export requests.

Logs are written byte by byte, which is several times faster than filling messages; a test compares the two. Metrics and
traces are rare here and go through messages.
"""

from __future__ import annotations

import struct
from typing import Any, Final

from tracecore.signals.otlp.messages import MAX_DEPTH, OtlpError, fill, request_type

_fixed64 = struct.Struct("<Q").pack
_double = struct.Struct("<d").pack
_fixed32 = struct.Struct("<I").pack
_U64: Final = (1 << 64) - 1
_SMALL: Final = tuple(bytes((n,)) for n in range(128))
#: Attributes have few names: their encoding is remembered.
_KEYS: dict[str, bytes] = {}
_KEYS_LIMIT: Final = 8192


def encode(signal: str, payload: dict[str, Any]) -> bytes:
    """The encoded request of a payload.

    Raises:
        OtlpError: a value has no place in OTLP.
    """
    if signal == "logs":
        try:
            return logs(payload)
        except (TypeError, AttributeError, ValueError, struct.error, RecursionError) as error:
            raise OtlpError(f"no OTLP payload: {error}") from None
    message = request_type(signal)()
    fill(message, payload)
    encoded: bytes = message.SerializeToString()
    return encoded


def logs(payload: dict[str, Any]) -> bytes:
    """An `ExportLogsServiceRequest`."""
    return b"".join([_part(b"\x0a", _resource_logs(entry)) for entry in payload.get("resource_logs") or ()])


def _resource_logs(entry: dict[str, Any]) -> bytes:
    out = [_part(b"\x0a", _resource(entry.get("resource") or {}))]
    out += [_part(b"\x12", _scope_logs(scope)) for scope in entry.get("scope_logs") or ()]
    if schema := entry.get("schema_url"):
        out.append(_part(b"\x1a", schema.encode()))
    return b"".join(out)


def _resource(resource: dict[str, Any]) -> bytes:
    out = _entries(b"\x0a", resource.get("attributes") or {}, 0)
    if dropped := resource.get("dropped_attributes_count"):
        out += b"\x10" + varint(dropped)
    return out


def _scope_logs(entry: dict[str, Any]) -> bytes:
    out: list[bytes] = []
    if (scope := entry.get("scope")) is not None:
        out.append(_part(b"\x0a", _scope(scope)))
    for record in entry.get("log_records") or ():
        encoded = _record(record)
        size = len(encoded)
        out += (b"\x12", _SMALL[size] if size < 128 else varint(size), encoded)
    if schema := entry.get("schema_url"):
        out.append(_part(b"\x1a", schema.encode()))
    return b"".join(out)


def _scope(scope: dict[str, Any]) -> bytes:
    out = b""
    if name := scope.get("name"):
        out += _part(b"\x0a", name.encode())
    if version := scope.get("version"):
        out += _part(b"\x12", version.encode())
    out += _entries(b"\x1a", scope.get("attributes") or {}, 0)
    if dropped := scope.get("dropped_attributes_count"):
        out += b"\x20" + varint(dropped)
    return out


def _record(record: dict[str, Any]) -> bytes:
    get = record.get
    out: list[bytes] = []
    if time := get("time_unix_nano"):
        out += (b"\x09", _fixed64(time))
    if number := get("severity_number"):
        out += (b"\x10", varint(number))
    if text := get("severity_text"):
        out.append(_part(b"\x1a", text.encode()))
    body = get("body")
    if body is not None:
        out.append(_part(b"\x2a", value(body)))
    if attributes := get("attributes"):
        out.append(_entries(b"\x32", attributes, 0))
    if dropped := get("dropped_attributes_count"):
        out += (b"\x38", varint(dropped))
    if flags := get("flags"):
        out += (b"\x45", _fixed32(flags))
    if trace := get("trace_id"):
        out.append(_part(b"\x4a", bytes.fromhex(trace)))
    if span := get("span_id"):
        out.append(_part(b"\x52", bytes.fromhex(span)))
    if observed := get("observed_time_unix_nano"):
        out += (b"\x59", _fixed64(observed))
    if name := get("event_name"):
        out.append(_part(b"\x62", name.encode()))
    return b"".join(out)


def _entries(tag: bytes, attributes: dict[str, Any], depth: int) -> bytes:
    out: list[bytes] = []
    for name, held in attributes.items():
        key = _KEYS.get(name)
        if key is None:
            key = _part(b"\x0a", name.encode("utf-8", "replace"))
            if len(_KEYS) < _KEYS_LIMIT and len(name) <= 128:
                _KEYS[name] = key
        encoded = value(held, depth)
        entry = key + b"\x12" + varint(len(encoded)) + encoded
        out += (tag, varint(len(entry)), entry)
    return b"".join(out)


def value(held: Any, depth: int = 0) -> bytes:
    """An `AnyValue`, without its tag and length."""
    if type(held) is str:
        text = held.encode("utf-8", "replace")
        return b"\x0a" + varint(len(text)) + text
    if held is None:
        return b""
    if isinstance(held, bool):
        return b"\x10\x01" if held else b"\x10\x00"
    if isinstance(held, int):
        if not -(1 << 63) <= held < 1 << 63:
            raise OtlpError(f"{held} does not fit into 64 bits")
        return b"\x18" + varint(held & _U64)
    if isinstance(held, float):
        return b"\x21" + _double(held)
    if depth > MAX_DEPTH:
        raise OtlpError("nested too deep")
    if isinstance(held, bytes):
        return b"\x3a" + varint(len(held)) + held
    if isinstance(held, list | tuple):
        return _part(b"\x2a", b"".join([_part(b"\x0a", value(item, depth + 1)) for item in held]))
    if isinstance(held, dict):
        return _part(b"\x32", _entries(b"\x0a", held, depth + 1))
    raise OtlpError(f"no OTLP value: {type(held).__name__}")


def _part(tag: bytes, encoded: bytes) -> bytes:
    return tag + varint(len(encoded)) + encoded


def varint(number: int) -> bytes:
    """A number in groups of seven bits, the lowest first."""
    if 0 <= number < 128:
        return _SMALL[number]
    if not 0 <= number <= _U64:
        raise OtlpError(f"{number} does not fit")
    out = bytearray()
    while number > 127:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)
