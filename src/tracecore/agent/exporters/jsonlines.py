"""Batches as OTLP in JSON, one document on a line."""

from __future__ import annotations

import base64
import math
from typing import Any

import msgspec

from tracecore.agent.batch import Batch
from tracecore.ottl.otlpjson import encode as encode_document

_encoder = msgspec.json.Encoder()


def document(batch: Batch) -> bytes:
    """The OTLP JSON of a batch, without a line break."""
    payload = batch.view()
    if batch.signal != "logs":
        return _encoder.encode(encode_document(payload))
    return _encoder.encode({"resourceLogs": [_resource_logs(entry) for entry in payload.get("resource_logs") or ()]})


def _resource_logs(entry: dict[str, Any]) -> dict[str, Any]:
    resource = entry.get("resource") or {}
    made: dict[str, Any] = {
        "resource": {"attributes": _entries(attributes)} if (attributes := resource.get("attributes")) else {},
        "scopeLogs": [_scope_logs(scope) for scope in entry.get("scope_logs") or ()],
    }
    if schema := entry.get("schema_url"):
        made["schemaUrl"] = schema
    return made


def _scope_logs(entry: dict[str, Any]) -> dict[str, Any]:
    scope = dict(entry.get("scope") or {})
    if attributes := scope.pop("attributes", None):
        scope["attributes"] = _entries(attributes)
    made: dict[str, Any] = {
        "scope": scope,
        "logRecords": [_record(record) for record in entry.get("log_records") or ()],
    }
    if schema := entry.get("schema_url"):
        made["schemaUrl"] = schema
    return made


def _record(record: dict[str, Any]) -> dict[str, Any]:
    get = record.get
    made: dict[str, Any] = {}
    if time := get("time_unix_nano"):
        made["timeUnixNano"] = str(time)
    if observed := get("observed_time_unix_nano"):
        made["observedTimeUnixNano"] = str(observed)
    for name, key in _PLAIN:
        if value := get(name):
            made[key] = value
    if (body := get("body")) is not None:
        made["body"] = _value(body)
    if attributes := get("attributes"):
        made["attributes"] = _entries(attributes)
    return made


_PLAIN = (
    ("severity_number", "severityNumber"),
    ("severity_text", "severityText"),
    ("event_name", "eventName"),
    ("flags", "flags"),
    ("trace_id", "traceId"),
    ("span_id", "spanId"),
    ("dropped_attributes_count", "droppedAttributesCount"),
)


def _entries(attributes: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"key": _sound(name), "value": _value(value)} for name, value in attributes.items()]


def _value(value: Any) -> dict[str, Any]:
    if type(value) is str:
        return {"stringValue": _sound(value)}
    if isinstance(value, bool):
        return {"boolValue": value}
    if isinstance(value, int):
        return {"intValue": str(value)}
    if isinstance(value, float):
        if math.isfinite(value):
            return {"doubleValue": value}
        return {"doubleValue": "NaN" if value != value else "Infinity" if value > 0 else "-Infinity"}
    if isinstance(value, bytes):
        return {"bytesValue": base64.b64encode(value).decode()}
    if isinstance(value, dict):
        return {"kvlistValue": {"values": _entries(value)}}
    return {"arrayValue": {"values": [_value(item) for item in value]}} if isinstance(value, list | tuple) else {}


def _sound(text: str) -> str:
    """Without halves of surrogate pairs, which no encoding has."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode()
