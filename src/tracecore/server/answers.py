"""Answers of the API: structs as JSON with RFC 3339 times, entity tags, and their schema for OpenAPI."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Mapping
from typing import Any, get_args, get_type_hints

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from tracecore.patterns.contract import rfc3339
from tracecore.store.records import Time

_TIME = get_args(Time)[1]


@functools.cache
def _time_fields(kind: type) -> frozenset[str]:
    """The fields of a struct that hold a time."""
    hints = get_type_hints(kind, include_extras=True)
    return frozenset(name for name, hint in hints.items() if _TIME in _metadata(hint))


def _metadata(hint: Any) -> tuple[Any, ...]:
    own = getattr(hint, "__metadata__", ())
    return (*own, *(found for inner in get_args(hint) if not isinstance(inner, str) for found in _metadata(inner)))


def plain(value: Any) -> Any:
    """A struct, or a list or dict of them, as JSON's types."""
    if isinstance(value, msgspec.Struct):
        times = _time_fields(type(value))
        found = {}
        for name, key in zip(value.__struct_fields__, value.__struct_encode_fields__, strict=True):
            own = getattr(value, name)
            found[key] = rfc3339(own) if name in times and type(own) is int else plain(own)
        return found
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    return value


def answer(request: Request, value: Any, status: int = 200, *, headers: Mapping[str, str] | None = None) -> Response:
    """A JSON answer with an entity tag; 304 where the caller has this one already."""
    body = msgspec.json.encode(plain(value))
    tag = f'"{hashlib.blake2b(body, digest_size=12).hexdigest()}"'
    said = {"ETag": tag, "Cache-Control": "private, no-cache", "Vary": "Authorization, Cookie", **(headers or {})}
    if status == 200 and request.method in ("GET", "HEAD") and _matches(request.headers.get("if-none-match", ""), tag):
        return Response(status_code=304, headers=said)
    return Response(body, status, media_type="application/json", headers=said)


def _matches(asked: str, tag: str) -> bool:
    return asked.strip() == "*" or any(one.strip().removeprefix("W/") == tag for one in asked.split(","))


def says(kind: type, status: int = 200, description: str = "It worked.") -> dict[int | str, dict[str, Any]]:
    """Return the documentation of a route's answer."""
    schema = {"$ref": f"#/components/schemas/{kind.__name__}"}
    return {status: {"description": description, "content": {"application/json": {"schema": schema}}}}


def schemas(*kinds: type) -> dict[str, Any]:
    """JSON Schemas of structs, for OpenAPI's components."""
    _, components = msgspec.json.schema_components(kinds, ref_template="#/components/schemas/{name}")
    return {name: _times(schema) for name, schema in components.items()}


def _times(schema: Any) -> Any:
    """The schema with times as they are written: text, not the integers of the structs."""
    if isinstance(schema, dict):
        found = {name: _times(value) for name, value in schema.items()}
        return found | {"type": "string"} if found.get("format") == "date-time" else found
    return [_times(value) for value in schema] if isinstance(schema, list) else schema
