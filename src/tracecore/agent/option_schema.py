"""JSON Schema of options, and options written back as a configuration has them."""

from __future__ import annotations

import types
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import msgspec

from tracecore.agent.options import SIZE_PATTERN
from tracecore.durations import (
    DURATION_PATTERN,
    format_duration,
)


def schema(kind: Any) -> dict[str, Any]:
    """The JSON Schema (draft 2020-12) of a type of options."""
    origin = get_origin(kind)
    if kind is Any:
        return {}
    if origin is Annotated:
        return _bounded_schema(*get_args(kind))
    if origin in (Union, types.UnionType):
        inner = [schema(k) for k in get_args(kind)]
        return {"anyOf": inner}
    if origin is Literal:
        return {"enum": list(get_args(kind))}
    if origin in (list, tuple):
        return {"type": "array", "items": schema(get_args(kind)[0])}
    if origin is dict:
        return {"type": "object", "additionalProperties": schema(get_args(kind)[1])}
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        return _struct_schema(kind)
    names = {str: "string", bool: "boolean", int: "integer", float: "number", type(None): "null"}
    return {"type": ["string", "number"] if kind is str else names[kind]}


def _bounded_schema(base: Any, *metas: Any) -> dict[str, Any]:
    found = schema(base)
    for meta in metas:
        extra = meta.extra or {}
        if extra.get("unit") == "duration":
            return {"anyOf": [{"type": "string", "pattern": DURATION_PATTERN}, {"const": 0}]}
        if extra.get("unit") == "size":
            return {"anyOf": [{"type": "string", "pattern": SIZE_PATTERN.pattern}, {"type": "integer", "minimum": 0}]}
        for name, key in (
            ("ge", "minimum"),
            ("gt", "exclusiveMinimum"),
            ("le", "maximum"),
            ("min_length", "minLength"),
        ):
            if (bound := getattr(meta, name)) is not None:
                found[key] = bound
    return found


def _struct_schema(kind: type[Any]) -> dict[str, Any]:
    properties: dict[str, Any] = {}
    required = []
    about = descriptions(kind)
    for field in msgspec.structs.fields(kind):
        entry = schema(field.type)
        if text := about.get(field.name):
            entry = {**entry, "description": text}
        # `key:` with nothing behind it is the default.
        properties[field.encode_name] = (
            entry if field.required else {"anyOf": [entry, {"type": "null"}], **_told(entry)}
        )
        if field.required:
            required.append(field.encode_name)
    for name in getattr(kind, "IGNORED", ()):
        properties[name] = {"description": "Of the Collector; has no effect here."}
    made: dict[str, Any] = {"type": "object", "properties": properties, "additionalProperties": False}
    if required:
        made["required"] = required
    return made


def _told(entry: dict[str, Any]) -> dict[str, Any]:
    return {"description": entry.pop("description")} if "description" in entry else {}


def descriptions(kind: type[Any]) -> dict[str, str]:
    """Return what the docstrings of a structure and of those it extends say about its fields."""
    found: dict[str, str] = {}
    name = ""
    told = [(base.__doc__ or "").partition("Args:")[2] for base in reversed(kind.__mro__)]
    for line in "\n".join(told).splitlines():
        text = line.strip()
        head, colon, rest = text.partition(":")
        if colon and head.isidentifier() and head in kind.__struct_fields__:
            name = head
            found[name] = rest.strip()
        elif text and name:
            found[name] += f" {text}"
    return found


def plain(value: Any, kind: Any) -> Any:
    """A value of options as a configuration would have it: durations and sizes as texts."""
    if get_origin(kind) in (Union, types.UnionType):
        if value is None:
            return None
        inner = [k for k in get_args(kind) if k is not type(None)]
        return plain(value, inner[0])
    if get_origin(kind) is Annotated:
        base, *metas = get_args(kind)
        for meta in metas:
            unit = (meta.extra or {}).get("unit")
            if unit == "duration":
                return format_duration(value)
            if unit == "size":
                return _size(value)
        return plain(value, base)
    if isinstance(value, msgspec.Struct):
        return {f.encode_name: plain(getattr(value, f.name), f.type) for f in msgspec.structs.fields(type(value))}
    return list(value) if isinstance(value, tuple) else value


def _size(value: int) -> str | int:
    for unit, scale in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if value and value % scale == 0:
            return f"{value // scale}{unit}"
    return value
