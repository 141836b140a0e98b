"""Indexing: `attributes["a"][0]`, with keys that are constants or expressions."""

from __future__ import annotations

from typing import Any, Final, NoReturn, TypeAlias

from tracecore.ottl.context import Context
from tracecore.ottl.errors import OttlRuntimeError, OttlTypeError
from tracecore.ottl.signature import RawGetter, constant_value
from tracecore.ottl.values import Duration, ProfileID, SpanID, Time, TraceID, Value, go_type

Keys: TypeAlias = tuple[RawGetter, ...]

#: Setting an index of a list that does not exist yet makes the list that long; an index can come from a record.
MAX_INDEX: Final = 10_000

_VALUE_TYPES: Final[dict[type, str]] = {
    type(None): "Empty",
    str: "Str",
    bool: "Bool",
    int: "Int",
    float: "Double",
    bytes: "Bytes",
    dict: "Map",
    list: "Slice",
}


def value_type(value: Value) -> str:
    """The name of an OTLP value's type."""
    return _VALUE_TYPES.get(type(value), go_type(value))


def _map_key(ctx: Context, key: RawGetter) -> str:
    name = key(ctx)
    if isinstance(name, str):
        return name
    if type(constant_value(key)) is int:
        raise OttlTypeError("unable to resolve a string index in map: invalid key type")
    raise OttlTypeError(
        "unable to resolve a string index in map: "
        f"could not resolve key for map/slice, expecting 'string' but got '{go_type(name)}'"
    )


def _list_index(ctx: Context, key: RawGetter, length: int) -> int:
    index = key(ctx)
    if type(index) is not int:
        if type(constant_value(key)) is str:
            raise OttlTypeError("unable to resolve an integer index in slice: invalid key type")
        raise OttlTypeError(
            "unable to resolve an integer index in slice: "
            f"could not resolve key for map/slice, expecting 'int64' but got '{go_type(index)}'"
        )
    if not 0 <= index < length:
        raise OttlRuntimeError(f"index {index} out of bounds")
    return index


def get_keyed(ctx: Context, value: Value, keys: Keys) -> Value:
    """Return what the keys lead to; None where a map has no such key."""
    for key in keys:
        if isinstance(value, dict):
            name = _map_key(ctx, key)
            if name not in value:
                return None
            value = value[name]
        elif isinstance(value, list):
            value = value[_list_index(ctx, key, len(value))]
        else:
            raise OttlTypeError(f"type {value_type(value)} does not support string indexing")
    return value


def set_keyed(ctx: Context, container: dict[str, Any] | list[Any], keys: Keys, value: Value) -> None:
    """Store a value where the keys lead, making maps and lists on the way where there is nothing yet."""
    holder: Any = container
    slot: Any = _slot(ctx, holder, keys[0])
    for key in keys[1:]:
        inner = holder[slot]
        if inner is None:
            inner = holder[slot] = _grown(key(ctx))
            if isinstance(inner, list):
                holder, slot = inner, len(inner) - 1
                continue
        elif not isinstance(inner, (dict, list)):
            raise OttlTypeError(f"type {value_type(inner)} does not support string indexing")
        holder, slot = inner, _slot(ctx, inner, key)
    if isinstance(value, (dict, list)) and type(holder[slot]) is not type(value):
        # What is stored may contain the place it is stored in; that place is empty by then.
        holder[slot] = type(value)()
    stored = storable(value, holder[slot])
    if isinstance(value, list) and value and stored[-1] is None and value[-1] is not None:
        holder[slot] = stored
        _refuse(value[-1], None)
    holder[slot] = stored


def _slot(ctx: Context, holder: dict[str, Any] | list[Any], key: RawGetter) -> Any:
    if isinstance(holder, list):
        return _list_index(ctx, key, len(holder))
    name = _map_key(ctx, key)
    holder.setdefault(name, None)
    return name


def _grown(key: Value) -> dict[str, Any] | list[Any]:
    if isinstance(key, str):
        return {}
    if type(key) is int:
        if key > MAX_INDEX:
            raise OttlRuntimeError(f"index {key} out of bounds: a new list has at most {MAX_INDEX} items")
        return [None] * (max(key, 0) + 1)
    raise OttlTypeError("neither a string nor an int index was given")


_FOREIGN: Final = (Time, Duration, TraceID, SpanID, ProfileID)


def _refuse(value: Value, current: Value) -> NoReturn:
    raise OttlTypeError(
        f"unsupported type {go_type(value)} for set operation; current value type is {value_type(current)}"
    )


def storable(value: Value, current: Value = None) -> Value:
    """A value as an attribute or a body can hold it: a copy that shares nothing, unless it is what is held already.

    Times, durations and ids have no form in OTLP values and are refused.
    """
    if isinstance(value, (str, int, float, type(None))):
        return value
    if value is current:
        return value
    if isinstance(value, list):
        return [None if isinstance(item, _FOREIGN) else storable(item) for item in value]
    if isinstance(value, dict):
        return {key: storable(item) for key, item in value.items()}
    if isinstance(value, _FOREIGN) or not isinstance(value, bytes):
        _refuse(value, current)
    return value


def index_result(ctx: Context, value: Value, keys: Keys) -> Value:
    """Index the result of a converter, where a key that is not there is an error."""
    for key in keys:
        index = key(ctx)
        if index is None:
            raise OttlTypeError("key expression returned nil, expected an int or string")
        if isinstance(index, str):
            if not isinstance(value, dict):
                raise OttlTypeError(f"type {go_type(value)} does not support string indexing")
            if index not in value:
                raise OttlRuntimeError("key not found in map")
            value = value[index]
        elif type(index) is int:
            if not isinstance(value, (list, bytes)):
                raise OttlTypeError(f"type {go_type(value)} does not support int indexing")
            if not 0 <= index < len(value):
                raise OttlRuntimeError(f"index {index} out of bounds")
            value = value[index]
        else:
            raise OttlTypeError(f"key expression must evaluate to string or int, got {go_type(index)}")
    return value
