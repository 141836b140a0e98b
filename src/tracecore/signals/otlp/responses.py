"""Answers of an OTLP server: partial success, and errors."""

from __future__ import annotations

from functools import cache
from typing import Any

import msgspec

#: The field of a partial success that counts what was refused.
REJECTED = {"logs": "rejected_log_records", "metrics": "rejected_data_points", "traces": "rejected_spans"}
_JSON = {"logs": "rejectedLogRecords", "metrics": "rejectedDataPoints", "traces": "rejectedSpans"}


@cache
def response_type(signal: str) -> Any:
    """The answer to an export request."""
    if signal == "logs":
        from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceResponse

        return ExportLogsServiceResponse
    if signal == "metrics":
        from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceResponse

        return ExportMetricsServiceResponse
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse

    return ExportTraceServiceResponse


def success(signal: str, json: bool, refused: int = 0, why: str = "") -> bytes:
    """An answer; with a partial success where something was refused."""
    if json:
        partial = {_JSON[signal]: str(refused), "errorMessage": why}
        return msgspec.json.encode({"partialSuccess": partial} if refused or why else {})
    message = response_type(signal)()
    if refused or why:
        setattr(message.partial_success, REJECTED[signal], refused)
        message.partial_success.error_message = why
    encoded: bytes = message.SerializeToString()
    return encoded


def failure(code: int, text: str, json: bool) -> bytes:
    """A `google.rpc.Status`."""
    if json:
        return msgspec.json.encode({"code": code, "message": text})
    from tracecore.signals.otlp.encoding import varint

    data = text.encode("utf-8", "replace")[:4096]
    return bytes((8, code, 18)) + varint(len(data)) + data


def rejected(signal: str, content: bytes, kind: str) -> tuple[int, str] | None:
    """Return how many records a server refused, and why; None where the answer cannot be read."""
    from google.protobuf.message import DecodeError

    try:
        if "json" in kind:
            found = (msgspec.json.decode(content) if content else {}).get("partialSuccess") or {}
            return int(found.get(_JSON[signal]) or 0), str(found.get("errorMessage") or "")
        message = response_type(signal)()
        message.ParseFromString(content)
    except (ValueError, AttributeError, TypeError, DecodeError):
        return None
    return getattr(message.partial_success, REJECTED[signal]), message.partial_success.error_message


def error_message(content: bytes, kind: str) -> str:
    """The text of an error, bounded, for a log."""
    if "json" in kind:
        try:
            found = msgspec.json.decode(content)
        except msgspec.DecodeError:
            return ""
        return str(found.get("message", ""))[:300] if isinstance(found, dict) else ""
    if "protobuf" in kind:
        return "".join(chr(byte) for byte in content if 32 <= byte < 127)[:300]
    return content[:300].decode("utf-8", "replace").replace("\n", " ") if kind.startswith("text/plain") else ""
