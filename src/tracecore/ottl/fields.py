"""Read and write the fields of a record: one factory for each kind of field.

Each factory is given what selects the dictionary a field lives in (`owner`), and gives a `GetSetter`. Fields that a
record leaves out have their zero value, as in OTLP.
"""

from __future__ import annotations

import binascii
from collections.abc import Callable
from typing import Any, Final, TypeAlias

from tracecore.ottl.context import Context
from tracecore.ottl.errors import OttlError, OttlRuntimeError, OttlTypeError
from tracecore.ottl.keys import Keys, get_keyed, set_keyed, storable, value_type
from tracecore.ottl.signature import GetSetter, constant_value
from tracecore.ottl.values import (
    ZERO_TIME_NANO,
    SpanID,
    Time,
    TraceID,
    Value,
    as_string,
    copy_value,
    go_type,
    wrap_int64,
)

Owner: TypeAlias = Callable[[Context], dict[str, Any]]
#: Makes the accessor of a field for the keys it is indexed with.
Field: TypeAlias = Callable[[Owner, Keys], GetSetter]

_GO_NAMES: Final[dict[type, str]] = {
    str: "string",
    int: "int64",
    float: "float64",
    bool: "bool",
    Time: "time.Time",
    TraceID: "pcommon.TraceID",
    SpanID: "pcommon.SpanID",
}
_UINT64: Final = (1 << 64) - 1
_EMPTY: Final[dict[str, Any]] = {}


def expect(value: Value, kind: type) -> Value:
    """The value, when it is of the type a field has."""
    if type(value) is kind:
        return value
    if value is None:
        raise OttlTypeError("setting a value to nil is not supported")
    raise OttlTypeError(f"expects {_GO_NAMES[kind]} but got {go_type(value)}")


def scalar(name: str, kind: type, *, bits: int = 0) -> Field:
    """A string, integer, float or boolean. `bits` is the width an integer is cut to (negative: signed)."""
    zero = kind()

    def field(owner: Owner, keys: Keys) -> GetSetter:
        def get(ctx: Context) -> Value:
            value = owner(ctx).get(name)
            return zero if value is None else value

        def set(ctx: Context, value: Value) -> None:
            number = expect(value, kind)
            if bits > 0:
                number &= (1 << bits) - 1
            elif bits < 0:
                half = 1 << (-bits - 1)
                number = (number + half) % (2 * half) - half
            owner(ctx)[name] = number

        return GetSetter(get, set)

    return field


def unix_nano(name: str) -> Field:
    """A time as integer nanoseconds."""

    def field(owner: Owner, keys: Keys) -> GetSetter:
        def get(ctx: Context) -> Value:
            return wrap_int64(owner(ctx).get(name) or 0)

        def set(ctx: Context, value: Value) -> None:
            owner(ctx)[name] = expect(value, int) & _UINT64

        return GetSetter(get, set)

    return field


def time(name: str) -> Field:
    """The same time as a `Time`."""

    def field(owner: Owner, keys: Keys) -> GetSetter:
        def get(ctx: Context) -> Value:
            return Time(wrap_int64(owner(ctx).get(name) or 0))

        def set(ctx: Context, value: Value) -> None:
            nanos = expect(value, Time).unix_nano
            owner(ctx)[name] = 0 if nanos == ZERO_TIME_NANO else nanos & _UINT64

        return GetSetter(get, set)

    return field


def identifier(name: str, kind: type[TraceID] | type[SpanID]) -> Field:
    """A trace or span id, which records hold as hex text (empty when unset)."""
    size = 16 if kind is TraceID else 8
    zero = kind(size)

    def field(owner: Owner, keys: Keys) -> GetSetter:
        def get(ctx: Context) -> Value:
            text = owner(ctx).get(name)
            return kind(_unhex(text, size)) if text else zero

        def set(ctx: Context, value: Value) -> None:
            owner(ctx)[name] = value.hex() if any(expect(value, kind)) else ""

        return GetSetter(get, set)

    return field


def identifier_text(name: str, kind: type[TraceID] | type[SpanID]) -> Field:
    """A trace or span id as hex text."""
    size = 16 if kind is TraceID else 8
    what = "trace ids must be 32" if kind is TraceID else "span ids must be 16"

    def field(owner: Owner, keys: Keys) -> GetSetter:
        def get(ctx: Context) -> Value:
            text = owner(ctx).get(name)
            return _unhex(text, size).hex() if text else "00" * size

        def set(ctx: Context, value: Value) -> None:
            if len(expect(value, str)) != 2 * size:
                raise OttlRuntimeError(f"{what} hex characters")
            raw = _unhex(value, size)
            owner(ctx)[name] = raw.hex() if any(raw) else ""

        return GetSetter(get, set)

    return field


def _unhex(text: Value, size: int) -> bytes:
    if isinstance(text, bytes):
        raw = text
    else:
        try:
            raw = binascii.unhexlify(text)
        except (binascii.Error, ValueError, TypeError) as error:
            raise OttlRuntimeError(f"not a hex id: {text!r}") from error
    if len(raw) != size:
        raise OttlRuntimeError(f"an id of {size} bytes has {len(raw)}")
    return raw


def mapping(name: str) -> Field:
    """A map such as `attributes`, whole or indexed."""

    def field(owner: Owner, keys: Keys) -> GetSetter:
        if not keys:
            return _whole_map(name, owner)
        if len(keys) == 1 and isinstance(key := constant_value(keys[0]), str):
            return _map_entry(name, owner, key)

        def get(ctx: Context) -> Value:
            try:
                return get_keyed(ctx, owner(ctx).get(name) or _EMPTY, keys)
            except OttlError as error:
                raise prefixed("cannot get map value", error) from None

        def set(ctx: Context, value: Value) -> None:
            try:
                set_keyed(ctx, held_map(owner(ctx), name), keys, value)
            except OttlError as error:
                raise prefixed("cannot set map value", error) from None

        return GetSetter(get, set)

    return field


def prefixed(prefix: str, error: OttlError) -> OttlError:
    """The same error, saying first what failed because of it."""
    error.message = f"{prefix}: {error.message}"
    return error


def held_map(holder: dict[str, Any], name: str) -> dict[str, Any]:
    """The live map under a name, made when it is missing."""
    found = holder.get(name)
    if found is None:
        found = holder[name] = {}
    if not isinstance(found, dict):
        raise OttlTypeError(f"{name} is {go_type(found)}, not a map")
    return found


def _whole_map(name: str, owner: Owner) -> GetSetter:
    def get(ctx: Context) -> Value:
        return held_map(owner(ctx), name)

    def set(ctx: Context, value: Value) -> None:
        holder = owner(ctx)
        if value is not holder.get(name):
            holder[name] = as_map(value)

    return GetSetter(get, set)


def as_map(value: Value) -> dict[str, Any]:
    """A copy of a map to replace another one with; nil is the empty map."""
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise OttlTypeError(f"unsupported type provided for setting a pcommon.Map: {go_type(value)}")
    copied: dict[str, Any] = storable(value)
    return copied


def _map_entry(name: str, owner: Owner, key: str) -> GetSetter:
    """The common case, `attributes["key"]`."""

    def get(ctx: Context) -> Value:
        found = owner(ctx).get(name)
        return found.get(key) if found else None

    keys = (_always(key),)

    def set(ctx: Context, value: Value) -> None:
        if isinstance(value, (str, int, float)):
            held_map(owner(ctx), name)[key] = value
        else:
            set_keyed(ctx, held_map(owner(ctx), name), keys, value)

    return GetSetter(get, set)


def _always(key: str) -> Callable[[Context], Value]:
    return lambda ctx: key


def cache(owner: Owner, keys: Keys) -> GetSetter:
    """The scratch map of the statements that run on a record."""
    if not keys:

        def get_all(ctx: Context) -> Value:
            return ctx.cache

        def set_all(ctx: Context, value: Value) -> None:
            if value is not ctx.cache:
                replacement = as_map(value)
                ctx.cache.clear()
                ctx.cache.update(replacement)

        return GetSetter(get_all, set_all)

    def get(ctx: Context) -> Value:
        return get_keyed(ctx, ctx.cache, keys)

    def get_entry(ctx: Context) -> Value:
        return ctx.cache.get(key)

    def set(ctx: Context, value: Value) -> None:
        set_keyed(ctx, ctx.cache, keys, value)

    def set_entry(ctx: Context, value: Value) -> None:
        if isinstance(value, (str, int, float)):
            ctx.cache[key] = value
        else:
            set_keyed(ctx, ctx.cache, keys, value)

    key = constant_value(keys[0])
    if len(keys) == 1 and isinstance(key, str):
        return GetSetter(get_entry, set_entry)
    return GetSetter(get, set)


def body(owner: Owner, keys: Keys) -> GetSetter:
    """The body of a log record: any value, indexed when it is a map or a list."""
    if not keys:

        def get_whole(ctx: Context) -> Value:
            return owner(ctx).get("body")

        def set_whole(ctx: Context, value: Value) -> None:
            record = owner(ctx)
            record["body"] = storable(value, record.get("body"))

        return GetSetter(get_whole, set_whole)

    def indexable(ctx: Context) -> Any:
        value = owner(ctx).get("body")
        if not isinstance(value, (dict, list)):
            raise OttlTypeError(f"log bodies of type {value_type(value)} cannot be indexed")
        return value

    def get(ctx: Context) -> Value:
        return get_keyed(ctx, indexable(ctx), keys)

    def set(ctx: Context, value: Value) -> None:
        set_keyed(ctx, indexable(ctx), keys, value)

    return GetSetter(get, set)


def body_text(owner: Owner, keys: Keys) -> GetSetter:
    """The body of a log record as text."""

    def get(ctx: Context) -> Value:
        return as_string(owner(ctx).get("body"))

    def set(ctx: Context, value: Value) -> None:
        owner(ctx)["body"] = expect(value, str)

    return GetSetter(get, set)


def records(name: str) -> Field:
    """A list of sub-records, such as a span's events. Replaced as a whole; nil empties it."""

    def field(owner: Owner, keys: Keys) -> GetSetter:
        def get(ctx: Context) -> Value:
            return owner(ctx).setdefault(name, [])

        def set(ctx: Context, value: Value) -> None:
            holder = owner(ctx)
            if value is None:
                holder[name] = []
            elif not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
                raise OttlTypeError(f"expects a list of {name} but got {go_type(value)}")
            elif value is not holder.get(name):
                holder[name] = copy_value(value)

        return GetSetter(get, set)

    return field


def numbers(name: str, kind: type) -> Field:
    """A list of numbers, such as the bucket counts of a histogram."""

    def field(owner: Owner, keys: Keys) -> GetSetter:
        def get(ctx: Context) -> Value:
            return list(owner(ctx).get(name) or ())

        def set(ctx: Context, value: Value) -> None:
            if value is not None and not isinstance(value, list):
                raise OttlTypeError(f"cannot set a slice of {_GO_NAMES[kind]} from a value type: {go_type(value)}")
            for item in value or ():
                if type(item) is not kind:
                    raise OttlTypeError(
                        f"invalid value type provided for a slice of {_GO_NAMES[kind]}: {go_type(item)}"
                    )
            owner(ctx)[name] = list(value or ())

        return GetSetter(get, set)

    return field


def inside(name: str, field: Field) -> Field:
    """A field of a nested record, such as `status.code`."""

    def nested(owner: Owner, keys: Keys) -> GetSetter:
        def inner(ctx: Context) -> dict[str, Any]:
            return held_map(owner(ctx), name)

        return field(inner, keys)

    return nested


def whole(name: str) -> Field:
    """A nested record as one value, such as `status`."""

    def field(owner: Owner, keys: Keys) -> GetSetter:
        def get(ctx: Context) -> Value:
            return held_map(owner(ctx), name)

        def set(ctx: Context, value: Value) -> None:
            if not isinstance(value, dict):
                raise OttlTypeError(
                    "setting a value to nil is not supported"
                    if value is None
                    else f"expects a {name} but got {go_type(value)}"
                )
            holder = owner(ctx)
            if value is not holder.get(name):
                holder[name] = copy_value(value)

        return GetSetter(get, set)

    return field


def names(name: str, table: tuple[str, ...], what: str) -> Field:
    """An integer shown as one of a few names, such as a span's kind."""

    def field(owner: Owner, keys: Keys) -> GetSetter:
        def get(ctx: Context) -> Value:
            number = owner(ctx).get(name) or 0
            return table[number] if isinstance(number, int) and 0 <= number < len(table) else ""

        def set(ctx: Context, value: Value) -> None:
            if expect(value, str) not in table:
                raise OttlRuntimeError(f"unknown {what}, {value}")
            owner(ctx)[name] = table.index(value)

        return GetSetter(get, set)

    return field


def bounded(name: str, limit: int) -> Field:
    """An integer from zero to a limit, checked."""

    def field(owner: Owner, keys: Keys) -> GetSetter:
        def get(ctx: Context) -> Value:
            return owner(ctx).get(name) or 0

        def set(ctx: Context, value: Value) -> None:
            if not 0 <= expect(value, int) <= limit:
                raise OttlRuntimeError(f"value {value} is out of range for uint32")
            owner(ctx)[name] = value

        return GetSetter(get, set)

    return field


def read_only(name: str) -> Field:
    """Return what a statement may look at and not change."""

    def field(owner: Owner, keys: Keys) -> GetSetter:
        def get(ctx: Context) -> Value:
            return owner(ctx).get(name)

        def set(ctx: Context, value: Value) -> None:
            raise OttlRuntimeError(f'the "{name}" path cannot be modified')

        return GetSetter(get, set)

    return field
