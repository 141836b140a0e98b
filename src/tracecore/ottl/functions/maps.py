"""Editors and converters of maps, and `set` and `clear`, which take any value."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tracecore.ottl.context import Context
from tracecore.ottl.errors import OttlCompileError, OttlRuntimeError, OttlTypeError
from tracecore.ottl.functions import regex
from tracecore.ottl.functions.bounds import MAX_DEPTH
from tracecore.ottl.signature import (
    Getter,
    Map,
    PathGetSetter,
    PMapGetSetter,
    PMapGetter,
    Setter,
    StringGetter,
    converter,
    editor,
    prepared,
    value_converter,
)
from tracecore.ottl.values import (
    ZERO_TIME_NANO,
    Duration,
    ProfileID,
    SpanID,
    Time,
    TraceID,
    Value,
    as_string,
    copy_value,
    go_type,
    quote,
)


@editor("set")
def set_(target: Setter, value: Getter) -> Getter:
    """Give a path a value. Nil, such as an attribute that is not there, changes nothing."""
    put = target.set

    def run(ctx: Context) -> None:
        new = value(ctx)
        if new is not None:
            put(ctx, new)

    return run


@editor("clear")
def clear(target: PathGetSetter) -> Getter:
    """Give a path the zero of the type it holds: an empty string, 0, an empty map."""

    def run(ctx: Context) -> None:
        target.set(ctx, _zero(target.get(ctx)))

    return run


def _zero(value: Value) -> Value:
    if isinstance(value, Time):
        return Time(ZERO_TIME_NANO)
    if isinstance(value, Duration):
        return Duration(0)
    if isinstance(value, (TraceID, SpanID, ProfileID)):
        return type(value)(len(value))
    return None if value is None else type(value)()


@editor("delete_key")
def delete_key(target: PMapGetSetter, key: StringGetter) -> Getter:
    """Remove an entry."""

    def run(ctx: Context) -> None:
        entries = target.get(ctx)
        entries.pop(key(ctx), None)
        target.set(ctx, entries)

    return run


def _filter(target: PMapGetSetter, pattern: Callable[[Context], regex.CompiledRegex], keep: bool) -> Getter:
    def run(ctx: Context) -> None:
        matches = pattern(ctx).matches
        entries = target.get(ctx)
        for key in [key for key in entries if matches(key) != keep]:
            del entries[key]
        target.set(ctx, entries)

    return run


@editor("delete_matching_keys")
def delete_matching_keys(target: PMapGetSetter, pattern: StringGetter) -> Getter:
    """Remove the entries whose keys match a regular expression."""
    return _filter(target, regex.dynamic("delete_matching_keys", pattern), keep=False)


@editor("keep_matching_keys")
def keep_matching_keys(target: PMapGetSetter, pattern: StringGetter) -> Getter:
    """Remove the entries whose keys do not match a regular expression."""
    return _filter(target, regex.dynamic("keep_matching_keys", pattern), keep=True)


@editor("keep_keys")
def keep_keys(target: PMapGetSetter, keys: Getter) -> Getter:
    """Remove every entry whose key is not listed."""
    wanted = prepared(keys, _key_set)

    def run(ctx: Context) -> None:
        entries = target.get(ctx)
        kept = wanted(ctx)
        for key in [key for key in entries if key not in kept]:
            del entries[key]
        target.set(ctx, entries)

    return run


def _key_set(keys: Value) -> frozenset[str]:
    if keys is None:
        raise OttlRuntimeError("keys cannot be nil")
    if not isinstance(keys, list):
        raise OttlTypeError(f"expected a list but got {go_type(keys)}")
    for key in keys:
        if not isinstance(key, str):
            raise OttlTypeError(f"expected string but got {go_type(key)}")
    return frozenset(keys)


@editor("limit")
def limit(target: PMapGetSetter, limit: int, priority_keys: list[str]) -> Getter:
    """Remove entries past a number of them, those of the given keys last."""
    if limit < 0:
        raise OttlCompileError(f"invalid limit for limit function, {limit} cannot be negative")
    if limit < len(priority_keys):
        raise OttlCompileError(
            f"invalid limit for limit function, {limit} cannot be less than number of priority attributes "
            f"{len(priority_keys)}"
        )
    wanted = frozenset(priority_keys)

    def run(ctx: Context) -> None:
        entries = target.get(ctx)
        if len(entries) <= limit:
            return
        room = limit - sum(key in entries for key in priority_keys)
        others = [key for key in entries if key not in wanted]
        for key in others[max(room, 0) :]:
            del entries[key]
        target.set(ctx, entries)

    return run


@editor("truncate_all")
def truncate_all(target: PMapGetSetter, limit: int, utf8_safe: bool = True, truncation_marker: str = "") -> Getter:
    """Cut every string of a map to a number of bytes, by default never inside a character."""
    if limit < 0:
        raise OttlCompileError(f"invalid limit for truncate_all function, {limit} cannot be negative")
    marker = truncation_marker.encode("utf-8", "surrogateescape")
    if len(marker) > limit:
        raise OttlCompileError(
            f"invalid truncation marker for truncate_all function, length of marker {len(marker)} cannot be greater "
            f"than limit {limit}"
        )

    def run(ctx: Context) -> None:
        entries = target.get(ctx)
        for key, value in entries.items():
            # Four bytes are the most a character takes, so a short string needs no encoding to be measured.
            if isinstance(value, str) and len(value) * 4 > limit:
                data = value.encode("utf-8", "surrogateescape")
                if len(data) > limit:
                    entries[key] = _cut(data, limit - len(marker), utf8_safe) + truncation_marker
        target.set(ctx, entries)

    return run


def _cut(data: bytes, size: int, utf8_safe: bool) -> str:
    if utf8_safe:
        while size > 0 and data[size] & 0xC0 == 0x80:
            size -= 1
    return data[:size].decode("utf-8", "surrogateescape")


@editor("stringify_all")
def stringify_all(target: PMapGetSetter) -> Getter:
    """Turn every value of a map into its text."""

    def run(ctx: Context) -> None:
        entries = target.get(ctx)
        for key, value in entries.items():
            if not isinstance(value, str):
                entries[key] = as_string(value)
        target.set(ctx, entries)

    return run


@editor("merge_maps")
def merge_maps(target: PMapGetSetter, source: PMapGetter, strategy: str) -> Getter:
    """Bring the entries of one map into another: `insert` new ones, `update` those it has, or `upsert` all."""
    if strategy not in ("insert", "update", "upsert"):
        raise OttlCompileError(f"invalid value for strategy, {strategy}, must be 'insert', 'update' or 'upsert'")

    def run(ctx: Context) -> None:
        entries = target.get(ctx)
        found = source(ctx)
        if not found:
            target.set(ctx, entries)
            return
        # A copy of the items: source and target may be one map.
        for key, value in list(found.items()):
            if strategy == "upsert" or (key in entries) == (strategy == "update"):
                entries[key] = copy_value(value)
        target.set(ctx, entries)

    return run


@editor("flatten")
def flatten(
    target: PMapGetSetter, prefix: str = "", depth: int | None = None, resolve_conflicts: bool = False
) -> Getter:
    """Move what is nested in a map to its root, under keys joined by dots."""
    if depth is not None and depth < 1:
        raise OttlCompileError(f"invalid depth '{depth}' for flatten function, must be greater than 0")

    def run(ctx: Context) -> None:
        flat = _Flat(resolve_conflicts, MAX_DEPTH if depth is None else min(depth, MAX_DEPTH))
        flat.add_map(target.get(ctx), prefix, 0)
        target.set(ctx, flat.entries)

    return run


class _Flat:
    def __init__(self, resolve: bool, depth: int) -> None:
        self.entries: dict[str, Any] = {}
        self.counts: dict[str, int] = {}
        self.resolve = resolve
        self.depth = depth

    def add_map(self, entries: dict[str, Any], prefix: str, depth: int) -> None:
        if prefix:
            prefix += "."
        for key, value in entries.items():
            self.add(prefix, key, value, depth)

    def add(self, prefix: str, key: str, value: Any, depth: int) -> None:
        name = prefix + key
        if isinstance(value, dict) and depth < self.depth:
            self.add_map(value, name, depth + 1)
        elif isinstance(value, list) and depth < self.depth:
            for index, item in enumerate(value):
                self._add_item(name, index, item, depth)
        else:
            self._put(name, value, name)

    def _add_item(self, name: str, index: int, item: Any, depth: int) -> None:
        numbered = f"{name}.{index}"
        if isinstance(item, dict) and depth + 1 < self.depth:
            self.add_map(item, numbered, depth + 2)
        elif isinstance(item, list) and depth + 1 < self.depth:
            for inner, part in enumerate(item):
                # Without a dot between, as the Collector does it.
                self.add(numbered, str(inner), part, depth + 3)
        else:
            self._put(name, item, numbered)

    def _put(self, name: str, value: Any, numbered: str) -> None:
        if not self.resolve:
            name = numbered
        elif name in self.entries:
            name, taken = f"{name}.{self.counts[name]}", name
            self.counts[taken] += 1
        else:
            self.counts[name] = 0
        self.entries[name] = copy_value(value)


@value_converter("Keys")
def keys(target: Map) -> list[str]:
    """The keys of a map, as a list."""
    return list(target)


@value_converter("Values")
def values(target: Map) -> list[Any]:
    """The values of a map, as a list."""
    return [copy_value(value) for value in target.values()]


@converter("ToKeyValueString")
def to_key_value_string(
    target: PMapGetter, delimiter: str = "=", pair_delimiter: str = " ", sort_output: bool = False
) -> Getter:
    """A map as text: `key=value key=value`, in quotes where a delimiter occurs."""
    check_delimiters(delimiter, pair_delimiter)

    def run(ctx: Context) -> str:
        entries = target(ctx)
        names = sorted(entries, key=lambda key: key.encode("utf-8", "surrogateescape")) if sort_output else entries
        return pair_delimiter.join(f"{quoted(key)}{delimiter}{quoted(as_string(entries[key]))}" for key in names)

    def quoted(text: str) -> str:
        text = text.replace('"', '\\"')
        return f'"{text}"' if pair_delimiter in text or delimiter in text else text

    return run


def check_delimiters(delimiter: str, pair_delimiter: str) -> None:
    """OttlCompileError when two delimiters cannot be told apart."""
    if not delimiter:
        raise OttlCompileError("delimiter cannot be set to an empty string")
    if not pair_delimiter:
        raise OttlCompileError("pair delimiter cannot be set to an empty string")
    if delimiter == pair_delimiter:
        raise OttlCompileError(
            f"pair delimiter {quote(pair_delimiter)} cannot be equal to delimiter {quote(delimiter)}"
        )
