"""OTLP export requests as plain payloads."""

from __future__ import annotations

from typing import Any

from tracecore.signals.otlp.messages import any_value, entries, parse, plain


def decode(signal: str, raw: bytes) -> dict[str, Any]:
    """The plain payload of an encoded request.

    Raises:
        OtlpError: the bytes are no such request.
    """
    message = parse(signal, raw)
    if signal != "logs":
        return plain(message)
    return (
        {"resource_logs": [_resource_logs(entry) for entry in message.resource_logs]} if message.resource_logs else {}
    )


def _resource_logs(message: Any) -> dict[str, Any]:
    resource: dict[str, Any] = plain(message.resource)
    resource.setdefault("attributes", {})
    found: dict[str, Any] = {
        "resource": resource,
        "scope_logs": [_scope_logs(scope) for scope in message.scope_logs],
    }
    if message.schema_url:
        found["schema_url"] = message.schema_url
    return found


def _scope_logs(message: Any) -> dict[str, Any]:
    found: dict[str, Any] = {
        "scope": plain(message.scope),
        "log_records": [_record(record) for record in message.log_records],
    }
    if message.schema_url:
        found["schema_url"] = message.schema_url
    return found


def _record(message: Any) -> dict[str, Any]:
    body = message.body
    kind = body.WhichOneof("value")
    record: dict[str, Any] = {
        "body": body.string_value if kind == "string_value" else None if kind is None else any_value(body, kind),
        "attributes": entries(message.attributes),
        "time_unix_nano": message.time_unix_nano,
        "observed_time_unix_nano": message.observed_time_unix_nano,
    }
    if message.severity_number:
        record["severity_number"] = message.severity_number
    if message.severity_text:
        record["severity_text"] = message.severity_text
    if message.trace_id:
        record["trace_id"] = message.trace_id.hex()
    if message.span_id:
        record["span_id"] = message.span_id.hex()
    if message.flags:
        record["flags"] = message.flags
    if message.event_name:
        record["event_name"] = message.event_name
    if message.dropped_attributes_count:
        record["dropped_attributes_count"] = message.dropped_attributes_count
    return record
