"""OTLP's messages and plain values, one to one: names as in the protocol, attributes as dictionaries, ids in hex."""

from __future__ import annotations

from functools import cache
from typing import Any, Final

_IDS: Final = frozenset(("trace_id", "span_id", "parent_span_id"))
_PREFIX: Final = "opentelemetry.proto.common.v1."
#: Deeper values are hostile: protobuf itself stops at a hundred messages.
MAX_DEPTH: Final = 64


class OtlpError(ValueError):
    """Bytes or values that are no OTLP."""


@cache
def request_type(signal: str) -> Any:
    """The export request of `logs`, `metrics` or `traces`."""
    if signal == "logs":
        from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest

        return ExportLogsServiceRequest
    if signal == "metrics":
        from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest

        return ExportMetricsServiceRequest
    if signal == "traces":
        from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

        return ExportTraceServiceRequest
    raise ValueError(f"no such signal: {signal}")


def parse(signal: str, raw: bytes) -> Any:
    """The request in these bytes.

    Raises:
        OtlpError: there is none.
    """
    from google.protobuf.message import DecodeError

    message = request_type(signal)()
    try:
        message.ParseFromString(raw)
    except (DecodeError, RecursionError) as error:
        raise OtlpError(f"not an OTLP request for {signal}: {error}") from None
    return message


def plain(message: Any) -> dict[str, Any]:
    """A message as plain values; fields that are not set are left out."""
    found: dict[str, Any] = {}
    for field, value in message.ListFields():
        name = field.name
        kind = field.message_type
        if kind is None:
            if field.is_repeated:
                found[name] = list(value)
            else:
                found[name] = value.hex() if name in _IDS else value
        elif kind.full_name == f"{_PREFIX}KeyValue":
            found[name] = entries(value)
        elif kind.full_name == f"{_PREFIX}AnyValue":
            found[name] = any_value(value)
        elif field.is_repeated:
            found[name] = [plain(item) for item in value]
        else:
            found[name] = plain(value)
    return found


def entries(values: Any) -> dict[str, Any]:
    """Attributes; of a key given twice the last counts."""
    found: dict[str, Any] = {}
    for entry in values:
        value = entry.value
        kind = value.WhichOneof("value")
        found[entry.key] = value.string_value if kind == "string_value" else any_value(value, kind)
    return found


def any_value(value: Any, kind: str | None = None) -> Any:
    """The Python value."""
    kind = kind or value.WhichOneof("value")
    if kind is None:
        return None
    if kind == "array_value":
        return [any_value(item) for item in value.array_value.values]
    if kind == "kvlist_value":
        return entries(value.kvlist_value.values)
    return getattr(value, kind)


def fill(message: Any, values: Any, depth: int = 0) -> None:
    """Set a message's fields from plain values; names it does not have are passed over, as the protocol asks.

    Raises:
        OtlpError: a value does not fit.
    """
    if not isinstance(values, dict):
        raise OtlpError(f"expected an object for {message.DESCRIPTOR.name}, got {type(values).__name__}")
    if depth > MAX_DEPTH:
        raise OtlpError("nested too deep")
    fields = message.DESCRIPTOR.fields_by_name
    for name, value in values.items():
        field = fields.get(name)
        if field is None or value is None:
            continue
        try:
            _set(message, field, value, depth)
        except (TypeError, ValueError, OverflowError, UnicodeError) as error:
            if isinstance(error, OtlpError):
                raise
            raise OtlpError(f"{message.DESCRIPTOR.name}.{name}: {error}") from None


def _set(message: Any, field: Any, value: Any, depth: int) -> None:
    name, kind = field.name, field.message_type
    if kind is None:
        if field.is_repeated:
            if not isinstance(value, list):
                raise OtlpError(f"{name}: expected a list")
            getattr(message, name).extend([_scalar(field, item) for item in value])
        else:
            setattr(message, name, _scalar(field, value))
    elif kind.full_name == f"{_PREFIX}KeyValue":
        if not isinstance(value, dict):
            raise OtlpError(f"{name}: expected attributes")
        _fill_entries(getattr(message, name), value, depth + 1)
    elif kind.full_name == f"{_PREFIX}AnyValue":
        _fill_value(getattr(message, name), value, depth + 1)
    elif field.is_repeated:
        if not isinstance(value, list):
            raise OtlpError(f"{name}: expected a list")
        held = getattr(message, name)
        for item in value:
            fill(held.add(), item, depth + 1)
    else:
        part = getattr(message, name)
        part.SetInParent()
        fill(part, value, depth + 1)


def _scalar(field: Any, value: Any) -> Any:
    if field.cpp_type == field.CPPTYPE_STRING:
        if field.type == field.TYPE_BYTES and isinstance(value, str):
            return bytes.fromhex(value)
        return value
    if field.cpp_type == field.CPPTYPE_ENUM and isinstance(value, str):
        named = field.enum_type.values_by_name.get(value)
        if named is None:
            raise OtlpError(f"{field.name}: no such value: {value[:80]}")
        return named.number
    if isinstance(value, str):
        return float(value) if field.cpp_type in (field.CPPTYPE_DOUBLE, field.CPPTYPE_FLOAT) else int(value)
    return value


def _fill_entries(held: Any, values: dict[str, Any], depth: int) -> None:
    for key, value in values.items():
        entry = held.add()
        entry.key = key
        entry.value.SetInParent()
        _fill_value(entry.value, value, depth)


def _fill_value(message: Any, value: Any, depth: int) -> None:
    if depth > MAX_DEPTH:
        raise OtlpError("nested too deep")
    message.SetInParent()
    if isinstance(value, str):
        message.string_value = value
    elif isinstance(value, bool):
        message.bool_value = value
    elif isinstance(value, int):
        message.int_value = value
    elif isinstance(value, float):
        message.double_value = value
    elif isinstance(value, bytes):
        message.bytes_value = value
    elif isinstance(value, list | tuple):
        message.array_value.SetInParent()
        for item in value:
            _fill_value(message.array_value.values.add(), item, depth + 1)
    elif isinstance(value, dict):
        message.kvlist_value.SetInParent()
        _fill_entries(message.kvlist_value.values, value, depth + 1)
    elif value is not None:
        raise OtlpError(f"no OTLP value: {type(value).__name__}")
