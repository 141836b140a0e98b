"""Editors and converters of lists."""

from __future__ import annotations

from typing import Any

from tracecore.ottl.compare import equal
from tracecore.ottl.context import Context
from tracecore.ottl.errors import OttlCompileError, OttlRuntimeError, OttlTypeError
from tracecore.ottl.keys import value_type
from tracecore.ottl.signature import (
    AnyValue,
    Getter,
    IntGetter,
    PathGetSetter,
    PSliceGetSetter,
    Slice,
    converter,
    editor,
    value_converter,
)
from tracecore.ottl.values import Value, as_string, copy_value, go_type


@editor("append")
def append(target: PathGetSetter, value: Getter | None = None, values: list[Getter] | None = None) -> Getter:
    """Put values at the end of a list; what is not yet a list becomes one."""
    if value is None and values is None:
        raise OttlCompileError("at least one of the optional arguments ('value' or 'values') must be provided")
    getters = ([] if value is None else [value]) + (values or [])

    def run(ctx: Context) -> None:
        held = target.get(ctx)
        if isinstance(held, dict):
            raise OttlTypeError('unsupported type of target field: "Map"')
        kept = held if isinstance(held, list) else [held]
        items = [] if held is None else list(kept)
        items += [get(ctx) for get in getters]
        target.set(ctx, items)

    return run


@editor("delete_index")
def delete_index(target: PSliceGetSetter, start_index: IntGetter, end_index: IntGetter | None = None) -> Getter:
    """Remove the items of a list from one index up to another, or the one item."""

    def run(ctx: Context) -> None:
        items = target.get(ctx)
        start = start_index(ctx)
        size = len(items)
        end = start + 1 if end_index is None else end_index(ctx)
        if start == 0 and end == size:
            target.set(ctx, [])
            return
        if not 0 <= start < size:
            raise OttlRuntimeError(f"startIndex {start} out of bounds for slice of length {size}")
        if end < start:
            raise OttlRuntimeError(f"endIndex {end} cannot be less than startIndex {start}")
        if end > size:
            raise OttlRuntimeError(f"deletion range [{start}:{end}] out of bounds for slice of length {size}")
        target.set(ctx, items[:start] + items[end:])

    return run


@converter("Coalesce")
def coalesce(values: list[Getter]) -> Getter:
    """The first value that is not nil."""
    if not values:
        raise OttlCompileError("Coalesce requires at least one argument")

    def run(ctx: Context) -> Value:
        for get in values:
            value = get(ctx)
            if value is not None:
                return value
        return None

    return run


@value_converter("ContainsValue")
def contains_value(target: Slice, item: AnyValue) -> bool:
    """Whether a list has an item of this value."""
    return any(equal(held, item) for held in target)


@value_converter("Index")
def index(target: AnyValue, value: AnyValue) -> int:
    """The index of the first item of a list that equals a value, or of the byte where a string begins; else -1."""
    if isinstance(target, str):
        if not isinstance(value, str):
            raise OttlTypeError("invalid value type for Index function, value must be a string")
        place = target.find(value)
        return place if place < 0 else len(target[:place].encode("utf-8", "surrogateescape"))
    if not isinstance(target, list):
        raise OttlTypeError(f"expected pcommon.Slice but got {go_type(target)}")
    return next((place for place, item in enumerate(target) if equal(item, value)), -1)


@converter("Sort")
def sort(target: Getter, order: str = "asc") -> Getter:
    """A list in ascending (`asc`) or descending (`desc`) order. One that holds lists, maps or bytes stays as it is."""
    if order not in ("asc", "desc"):
        raise OttlCompileError(f'invalid arguments: {order}. Order should be either "asc" or "desc"')

    def run(ctx: Context) -> list[Any]:
        items = target(ctx)
        if not isinstance(items, list):
            raise OttlTypeError(f"sort with unsupported type: '{go_type(items)}'. Target is not a list")
        kinds = {type(item) for item in items}
        if not kinds <= {int, float, str, bool, type(None)}:
            return items
        if kinds <= {int}:
            return sorted(items, reverse=order == "desc")
        if kinds <= {int, float}:
            # NaN comes before every number, as Go's cmp.Compare has it.
            return sorted(items, key=lambda item: (item == item, float(item)), reverse=order == "desc")
        return sorted(items, key=_bytes, reverse=order == "desc")

    return run


def _bytes(value: Value) -> bytes:
    return as_string(value).encode("utf-8", "surrogateescape")


@value_converter("SliceToMap")
def slice_to_map(
    target: Slice, key_path: list[str] | None = None, value_path: list[str] | None = None
) -> dict[str, Any]:
    """A map from a list: keyed by what lies at `key_path` in each item, else by its index."""
    made: dict[str, Any] = {}
    for place, item in enumerate(target):
        if (key_path is not None or value_path is not None) and not isinstance(item, dict):
            raise OttlTypeError(
                "slice elements must be maps when using `key_path` or `value_path`, but could not cast element "
                f"of type `{value_type(item)}` to a map"
            )
        key = str(place)
        if key_path is not None:
            key = _at(item, key_path, "key", place)
            if not isinstance(key, str):
                raise OttlTypeError(
                    f'element {place}: extracted key attribute is not of type string, got "{value_type(key)}"'
                )
        value = item if value_path is None else _at(item, value_path, "value", place)
        made[key] = copy_value(value)
    return made


def _at(item: Any, path: list[str], what: str, place: int) -> Any:
    if not path:
        raise OttlRuntimeError(f"could not extract {what} from element {place}: must provide at least one path item")
    for depth, name in enumerate(path):
        if not isinstance(item, dict) or name not in item:
            raise OttlRuntimeError(
                f"could not extract {what} from element {place}: provided object does not contain the path "
                f"[{' '.join(path[depth:] if isinstance(item, dict) else path[depth - 1 :])}]"
            )
        item = item[name]
    return item
