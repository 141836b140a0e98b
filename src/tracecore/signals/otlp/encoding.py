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
#: Numbers whose encoding is at hand: the lengths of nearly all lines and records.
_COMMON: Final = 2048
_SMALL: Final = tuple(bytes((n,)) if n < 128 else bytes((n & 0x7F | 0x80, n >> 7)) for n in range(_COMMON))
#: Attributes have few names: what stands before their value is remembered.
_KEYS_LIMIT: Final = 8192
_NAME_LIMIT: Final = 128
#: Lengths of texts for which it is.
_TEXT_LIMIT: Final = 256
#: Texts of an attribute whose whole entry is remembered: so many, shorter than this.
_KNOWN_LIMIT: Final = 64
_SHORT: Final = 32


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
        out += (b"\x12", _SMALL[size] if size < _COMMON else varint(size), encoded)
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


def parsed_record(
    body: Any, time: int | None, severity: int, severity_text: str, attributes: bytes, observed: bytes
) -> bytes:
    """A log record with its tag and length, of what operators of a file's lines may set.

    Args:
        attributes: encoded by `record_attributes`; many share them.
        observed: its encoded time of observation, which many share.

    Raises:
        OtlpError: a value has no place in OTLP.
    """
    out = _beginning(time, severity, severity_text, body)
    out += (attributes, observed)
    encoded = b"".join(out)
    return b"\x12" + varint(len(encoded)) + encoded


def record_attributes(attributes: dict[str, Any]) -> bytes:
    """The encoded attributes of a record."""
    return _entries(b"\x32", attributes, 0)


def observed_time(time: int) -> bytes:
    """The encoded time of observation."""
    return b"\x59" + _fixed64(time) if time else b""


def resource_logs(resource: dict[str, Any], scopes: dict[str, list[bytes]]) -> bytes:
    """A request with records of one resource by the name of their scope, encoded by `parsed_record`."""
    out = [_part(b"\x0a", _entries(b"\x0a", resource, 0))]
    for scope, records in scopes.items():
        name = _part(b"\x0a", scope.encode()) if scope else b""
        out.append(_part(b"\x12", b"".join((b"\x0a", varint(len(name)), name, *records))))
    return _part(b"\x0a", b"".join(out))


def _beginning(time: int | None, severity: int | None, severity_text: str | None, body: Any) -> list[bytes]:
    """Return the parts of a log record up to its attributes."""
    out: list[bytes] = []
    if time:
        out += (b"\x09", _fixed64(time))
    if severity:
        out += (b"\x10", varint(severity))
    if severity_text:
        out.append(_part(b"\x1a", severity_text.encode()))
    if type(body) is str:
        plain = body.encode("utf-8", "replace")
        length = varint(len(plain))
        out += (b"\x2a", varint(len(plain) + len(length) + 1), b"\x0a", length, plain)
    elif body is not None:
        out.append(_part(b"\x2a", value(body)))
    return out


def _record(record: dict[str, Any]) -> bytes:
    get = record.get
    out = _beginning(get("time_unix_nano"), get("severity_number"), get("severity_text"), get("body"))
    if attributes := get("attributes"):
        out.append(record_attributes(attributes))
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


class _Key:
    """The encoded name of an attribute, and what stands before a value of a length or type that is common."""

    __slots__ = ("before_float", "before_text", "known", "name", "tag")

    def __init__(self, tag: bytes, name: str) -> None:
        self.tag = tag
        self.name = _part(b"\x0a", name.encode("utf-8", "replace"))
        self.before_float = self.before(9) + b"\x21"
        self.before_text: dict[int, bytes] = {}
        #: Whole entries of texts that came before: levels, names of files.
        self.known: dict[str, bytes] = {}

    def before(self, size: int) -> bytes:
        """Return what stands before an `AnyValue` of so many bytes."""
        length = varint(size)
        return self.tag + varint(len(self.name) + 1 + len(length) + size) + self.name + b"\x12" + length

    def text(self, size: int) -> bytes:
        """Return what stands before a text of so many bytes."""
        length = varint(size)
        found = self.before(1 + len(length) + size) + b"\x0a" + length
        if size < _TEXT_LIMIT:
            self.before_text[size] = found
        return found


#: By tag, then by name.
_KEYS: Final[dict[bytes, dict[str, _Key]]] = {}


def _entries(tag: bytes, attributes: dict[str, Any], depth: int) -> bytes:
    out: list[bytes] = []
    append = out.append
    keys = _KEYS.get(tag)
    if keys is None:
        keys = _KEYS[tag] = {}
    for name, held in attributes.items():
        key = keys.get(name)
        if key is None:
            key = _Key(tag, name)
            if len(keys) < _KEYS_LIMIT and len(name) <= _NAME_LIMIT:
                keys[name] = key
        kind = type(held)
        if kind is str:
            known = key.known.get(held)
            if known is not None:
                append(known)
                continue
            try:
                text = held.encode()
            except UnicodeEncodeError:  # half of a surrogate pair
                text = held.encode("utf-8", "replace")
            size = len(text)
            before = key.before_text.get(size) or key.text(size)
            append(before)
            append(text)
            if size < _SHORT and len(key.known) < _KNOWN_LIMIT:
                key.known[held] = before + text
        elif kind is float:
            append(key.before_float)
            append(_double(held))
        else:
            encoded = value(held, depth)
            append(key.before(len(encoded)))
            append(encoded)
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
    if 0 <= number < _COMMON:
        return _SMALL[number]
    if not 0 <= number <= _U64:
        raise OtlpError(f"{number} does not fit")
    out = bytearray()
    while number > 127:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)
