"""Functions of spans."""

from __future__ import annotations

import re
from typing import Any

from tracecore.ottl.context import Context
from tracecore.ottl.errors import OttlCompileError
from tracecore.ottl.signature import Getter, converter, editor
from tracecore.ottl.values import as_string, quote

_SPAN = ("span",)
_KNOWN_VERSIONS = ((1, 37, 0), (1, 43, 0))


@converter("IsRootSpan", pure=False, contexts=_SPAN)
def is_root_span() -> Getter:
    """Whether a span has no parent."""

    def run(ctx: Context) -> bool:
        parent = ctx.item.get("parent_span_id") or ""
        return not any(parent) if isinstance(parent, bytes) else not parent.strip("0")

    return run


@editor("set_semconv_span_name", contexts=_SPAN)
def set_semconv_span_name(semconv_version: str, original_span_name_attribute: str | None = None) -> Getter:
    """Name a span as the semantic conventions say, from its attributes."""
    _check_version(semconv_version)
    if original_span_name_attribute == "":
        raise OttlCompileError("originalSpanNameAttribute cannot be an empty string")

    def run(ctx: Context) -> None:
        span = ctx.item
        before = span.get("name", "")
        name = _span_name(span) or before
        span["name"] = name
        if name != before and original_span_name_attribute is not None:
            span.setdefault("attributes", {})[original_span_name_attribute] = before

    return run


def _check_version(text: str) -> None:
    found = re.fullmatch(r"v?(\d{1,9})(?:\.(\d{1,9}))?(?:\.(\d{1,9}))?", text, re.ASCII)
    if found is None:
        raise OttlCompileError(f"failed to parse semconv version {quote(text)}: invalid semantic version")
    version = tuple(int(part or 0) for part in found.groups())
    low, high = _KNOWN_VERSIONS
    if not low <= version <= high:
        raise OttlCompileError(
            f"unsupported semconv version {quote(text)}: must be between {'.'.join(map(str, low))} and "
            f"{'.'.join(map(str, high))}"
        )


_SERVER, _CLIENT, _PRODUCER, _CONSUMER = 2, 3, 4, 5
_KINDS = {"SERVER": _SERVER, "CLIENT": _CLIENT, "PRODUCER": _PRODUCER, "CONSUMER": _CONSUMER}


def _span_name(span: dict[str, Any]) -> str:
    attributes = span.get("attributes") or {}
    kind = span.get("kind", 0)
    if isinstance(kind, str):
        kind = _KINDS.get(kind.removeprefix("SPAN_KIND_").upper(), 0)
    if kind == _SERVER:
        return _http(attributes, "http.route") or _rpc(attributes) or _messaging(attributes)
    if kind == _CLIENT:
        return _http(attributes, "url.template") or _rpc(attributes) or _database(attributes) or _messaging(attributes)
    return _messaging(attributes) if kind in (_PRODUCER, _CONSUMER) else ""


def _text(attributes: dict[str, Any], *names: str) -> str | None:
    for name in names:
        if name in attributes:
            return as_string(attributes[name])
    return None


def _http(attributes: dict[str, Any], subject: str) -> str:
    method = _text(attributes, "http.request.method", "http.method")
    if method is None:
        return ""
    target = _text(attributes, subject)
    return method if target is None else f"{method} {target}"


def _rpc(attributes: dict[str, Any]) -> str:
    system = _text(attributes, "rpc.system.name", "rpc.system")
    if system is None:
        return ""
    method = _text(attributes, "rpc.method", "rpc.grpc.method")
    service = _text(attributes, "rpc.service", "rpc.grpc.service")
    if service is not None:
        return f"{service}/{'*' if method is None else method}"
    return system if method is None else method


def _database(attributes: dict[str, Any]) -> str:
    system = _text(attributes, "db.system.name", "db.system")
    if system is None:
        return ""
    summary = _text(attributes, "db.query.summary")
    if summary is not None:
        return summary
    operation = _text(attributes, "db.operation.name", "db.operation") or ""
    return " ".join(part for part in (operation, _database_target(attributes)) if part) or system


def _database_target(attributes: dict[str, Any]) -> str:
    namespace = _text(attributes, "db.namespace", "db.name") or ""
    target = _text(attributes, "db.collection.name", "db.stored_procedure.name")
    if target is not None:
        return f"{namespace}.{target}" if namespace else target
    return namespace or _server(attributes)


def _server(attributes: dict[str, Any]) -> str:
    address, port = _text(attributes, "server.address"), _text(attributes, "server.port")
    if address is None:
        return ""
    return address if port is None else f"{address}:{port}"


def _messaging(attributes: dict[str, Any]) -> str:
    system = _text(attributes, "messaging.system")
    if system is None:
        return ""
    operation = _text(attributes, "messaging.operation.name", "messaging.operation")
    destination = _destination(attributes)
    if destination:
        return destination if operation is None else f"{operation} {destination}"
    return system if operation is None else operation


def _destination(attributes: dict[str, Any]) -> str:
    if attributes.get("messaging.destination.temporary") is True:
        return "(temporary)"
    if attributes.get("messaging.destination.anonymous") is True:
        return "(anonymous)"
    named = _text(attributes, "messaging.destination.template", "messaging.destination.name", "messaging.destination")
    return _server(attributes) if named is None else named
