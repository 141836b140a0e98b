"""Read and write the fields of a record: one factory for each kind of field.

A factory gives a `Field`: told what selects the dictionary that the field lives in (`owner`), that gives a `GetSetter`.
Fields that a record leaves out have their zero value, as in OTLP.
"""

from __future__ import annotations

import binascii
from collections.abc import Callable
from operator import attrgetter
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

Record: TypeAlias = dict[str, Any]
Owner: TypeAlias = Callable[[Context], Record]
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


def plain(read: Callable[[Record], Value], write: Callable[[Record, Value], None]) -> Field:
    """A field that only depends on the dictionary it lives in."""

    def field(owner: Owner, keys: Keys) -> GetSetter:
        return GetSetter(lambda ctx: read(owner(ctx)), lambda ctx, value: write(owner(ctx), value))

    return field


def scalar(name: str, kind: type, *, bits: int = 0) -> Field:
    """A string, integer, float or boolean. `bits` is the width an integer is cut to (negative: signed)."""
    zero = kind()

    def read(record: Record) -> Value:
        value = record.get(name)
        return zero if value is None else value

    def write(record: Record, value: Value) -> None:
        number = expect(value, kind)
        if bits > 0:
            number &= (1 << bits) - 1
        elif bits < 0:
            half = 1 << (-bits - 1)
            number = (number + half) % (2 * half) - half
        record[name] = number

    return plain(read, write)


def unix_nano(name: str) -> Field:
    """A time as integer nanoseconds."""

    def write(record: Record, value: Value) -> None:
        record[name] = expect(value, int) & _UINT64

    return plain(lambda record: wrap_int64(record.get(name) or 0), write)


def time(name: str) -> Field:
    """The same time as a `Time`."""

    def write(record: Record, value: Value) -> None:
        nanos = expect(value, Time).unix_nano
        record[name] = 0 if nanos == ZERO_TIME_NANO else nanos & _UINT64

    return plain(lambda record: Time(wrap_int64(record.get(name) or 0)), write)


def identifier(name: str, kind: type[TraceID] | type[SpanID]) -> Field:
    """A trace or span id, which records hold as hex text (empty when unset)."""
    size = 16 if kind is TraceID else 8
    zero = kind(size)

    def read(record: Record) -> Value:
        text = record.get(name)
        return kind(_unhex(text, size)) if text else zero

    def write(record: Record, value: Value) -> None:
        record[name] = value.hex() if any(expect(value, kind)) else ""

    return plain(read, write)


def identifier_text(name: str, kind: type[TraceID] | type[SpanID]) -> Field:
    """A trace or span id as hex text."""
    size = 16 if kind is TraceID else 8
    what = "trace ids must be 32" if kind is TraceID else "span ids must be 16"

    def read(record: Record) -> Value:
        text = record.get(name)
        return _unhex(text, size).hex() if text else "00" * size

    def write(record: Record, value: Value) -> None:
        if len(expect(value, str)) != 2 * size:
            raise OttlRuntimeError(f"{what} hex characters")
        raw = _unhex(value, size)
        record[name] = raw.hex() if any(raw) else ""

    return plain(read, write)


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

    def whole_map(record: Record, value: Value) -> None:
        if value is not record.get(name):
            record[name] = as_map(value)

    whole = plain(lambda record: held_map(record, name), whole_map)

    def field(owner: Owner, keys: Keys) -> GetSetter:
        if not keys:
            return whole(owner, keys)
        if len(keys) == 1 and isinstance(key := constant_value(keys[0]), str):
            return entry(key, lambda ctx: owner(ctx).get(name), lambda ctx: held_map(owner(ctx), name))

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


def entry(key: str, found: Callable[[Context], Record | None], made: Owner) -> GetSetter:
    """The common case, `attributes["key"]`.

    Args:
        found: gives the map, if there is one.
        made: gives the map, and makes it where there is none.
    """

    def get(ctx: Context) -> Value:
        held = found(ctx)
        return held.get(key) if held else None

    def set(ctx: Context, value: Value) -> None:
        if isinstance(value, (str, int, float)):
            made(ctx)[key] = value
        else:
            set_keyed(ctx, made(ctx), (lambda ctx: key,), value)

    return GetSetter(get, set)


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


def as_map(value: Value) -> dict[str, Any]:
    """A copy of a map to replace another one with; nil is the empty map."""
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise OttlTypeError(f"unsupported type provided for setting a pcommon.Map: {go_type(value)}")
    copied: dict[str, Any] = storable(value)
    return copied


def cache(owner: Owner, keys: Keys) -> GetSetter:
    """The scratch map of the statements that run on a record."""
    if len(keys) == 1 and isinstance(key := constant_value(keys[0]), str):
        return entry(key, attrgetter("cache"), attrgetter("cache"))
    if keys:
        return GetSetter(
            lambda ctx: get_keyed(ctx, ctx.cache, keys), lambda ctx, value: set_keyed(ctx, ctx.cache, keys, value)
        )

    def set_all(ctx: Context, value: Value) -> None:
        if value is not ctx.cache:
            replacement = as_map(value)
            ctx.cache.clear()
            ctx.cache.update(replacement)

    return GetSetter(attrgetter("cache"), set_all)


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


def _set_body_text(record: Record, value: Value) -> None:
    record["body"] = expect(value, str)


#: The body of a log record as text.
body_text = plain(lambda record: as_string(record.get("body")), _set_body_text)


def records(name: str) -> Field:
    """A list of sub-records, such as a span's events. Replaced as a whole; nil empties it."""

    def write(record: Record, value: Value) -> None:
        if value is None:
            record[name] = []
        elif not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
            raise OttlTypeError(f"expects a list of {name} but got {go_type(value)}")
        elif value is not record.get(name):
            record[name] = copy_value(value)

    return plain(lambda record: record.setdefault(name, []), write)


def numbers(name: str, kind: type) -> Field:
    """A list of numbers, such as the bucket counts of a histogram."""

    def write(record: Record, value: Value) -> None:
        if value is not None and not isinstance(value, list):
            raise OttlTypeError(f"cannot set a slice of {_GO_NAMES[kind]} from a value type: {go_type(value)}")
        for item in value or ():
            if type(item) is not kind:
                raise OttlTypeError(f"invalid value type provided for a slice of {_GO_NAMES[kind]}: {go_type(item)}")
        record[name] = list(value or ())

    return plain(lambda record: list(record.get(name) or ()), write)


def inside(name: str, field: Field) -> Field:
    """A field of a nested record, such as `status.code`."""
    return lambda owner, keys: field(lambda ctx: held_map(owner(ctx), name), keys)


def whole(name: str) -> Field:
    """A nested record as one value, such as `status`."""

    def write(record: Record, value: Value) -> None:
        if value is None:
            raise OttlTypeError("setting a value to nil is not supported")
        if not isinstance(value, dict):
            raise OttlTypeError(f"expects a {name} but got {go_type(value)}")
        if value is not record.get(name):
            record[name] = copy_value(value)

    return plain(lambda record: held_map(record, name), write)


def names(name: str, table: tuple[str, ...], what: str) -> Field:
    """An integer shown as one of a few names, such as a span's kind."""

    def read(record: Record) -> Value:
        number = record.get(name) or 0
        return table[number] if isinstance(number, int) and 0 <= number < len(table) else ""

    def write(record: Record, value: Value) -> None:
        if expect(value, str) not in table:
            raise OttlRuntimeError(f"unknown {what}, {value}")
        record[name] = table.index(value)

    return plain(read, write)


def bounded(name: str, limit: int) -> Field:
    """An integer from zero to a limit, checked."""

    def write(record: Record, value: Value) -> None:
        if not 0 <= expect(value, int) <= limit:
            raise OttlRuntimeError(f"value {value} is out of range for uint32")
        record[name] = value

    return plain(lambda record: record.get(name) or 0, write)


def read_only(name: str) -> Field:
    """A field that a statement may look at and not change."""

    def write(record: Record, value: Value) -> None:
        raise OttlRuntimeError(f'the "{name}" path cannot be modified')

    return plain(lambda record: record.get(name), write)
