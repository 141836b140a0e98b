"""Editors that bring the data points of a metric together: those that agree in attributes and time become one."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from typing import Any

from tracecore.ottl.context import Context
from tracecore.ottl.datapoints import data_of, metric_type
from tracecore.ottl.errors import OttlCompileError, OttlRuntimeError
from tracecore.ottl.functions.metrics import Metric, Point, points
from tracecore.ottl.signature import Getter, editor
from tracecore.ottl.values import float_to_int, to_json, wrap_int64

_FUNCTIONS = ("sum", "mean", "min", "max", "median", "count")
_DELTA = 1


@editor("aggregate_on_attributes", contexts=("metric",))
def aggregate_on_attributes(aggregation_function: str, attributes: list[str] | None = None) -> Getter:
    """Keep the named attributes of a metric's data points (all, without a list) and join the points that then agree."""
    _check(aggregation_function)

    def run(ctx: Context) -> None:
        metric = ctx.item
        if metric_type(metric) == "summary":
            raise OttlRuntimeError("aggregate_on_attributes does not support aggregating Summary metrics")
        if attributes is not None:
            for point in points(metric):
                held = point.get("attributes") or {}
                point["attributes"] = {key: value for key, value in held.items() if key in attributes}
        aggregate(metric, aggregation_function)

    return run


@editor("aggregate_on_attribute_value", contexts=("metric",))
def aggregate_on_attribute_value(
    aggregation_function: str, attribute: str, values: list[str], new_value: str
) -> Getter:
    """Give the listed values of an attribute one new value, and join the data points that then agree."""
    _check(aggregation_function)

    def run(ctx: Context) -> None:
        for point in points(ctx.item):
            held = point.get("attributes") or {}
            if attribute in held:
                value = held[attribute] if isinstance(held[attribute], str) else ""
                if value in values:
                    held[attribute] = new_value
        aggregate(ctx.item, aggregation_function)

    return run


def _check(function: str) -> None:
    if function not in _FUNCTIONS:
        raise OttlCompileError(
            f"invalid aggregation function: 'unsupported function: '{function}'', valid options: "
            f"{', '.join(_FUNCTIONS)}"
        )


def aggregate(metric: Metric, function: str) -> None:
    """Join the data points of a metric that have the same attributes and time."""
    kind = metric_type(metric)
    if not kind:
        return
    data = data_of(metric)
    by_start = kind != "gauge" and data.get("aggregation_temporality") == _DELTA
    groups: dict[str, list[Point]] = {}
    for point in points(metric):
        groups.setdefault(_key(point, kind, by_start), []).append(point)
    merge: Callable[[list[Point]], Point] = {
        "histogram": _merge_histograms,
        "exponential_histogram": _merge_exponential,
    }.get(kind, lambda group: _merge_numbers(group, function))
    # A summary has nothing that could be joined; upstream leaves it without points.
    data["data_points"] = [] if kind == "summary" else [merge(group) for group in groups.values()]


def _key(point: Point, kind: str, by_start: bool) -> str:
    parts: list[Any] = [point.get("attributes") or {}, point.get("time_unix_nano", 0)]
    if by_start:
        parts.append(point.get("start_time_unix_nano", 0))
    if kind == "histogram":
        parts += point.get("explicit_bounds") or []
    elif kind == "exponential_histogram":
        parts.append(point.get("scale", 0))
    if kind not in ("gauge", "sum"):
        parts += [point.get("min") is not None, point.get("max") is not None, point.get("flags") or 0]
    return to_json(parts)


def _earliest(first: Point, group: list[Point]) -> None:
    starts = [point.get("start_time_unix_nano", 0) for point in group]
    if "start_time_unix_nano" in first or any(starts):
        first["start_time_unix_nano"] = min(starts)


def _value_name(point: Point) -> str:
    return next(
        (name for name in ("as_int", "as_double", "value_int", "value_double") if point.get(name) is not None), ""
    )


def _merge_numbers(group: list[Point], function: str) -> Point:
    first = group[0]
    name = _value_name(first)
    _earliest(first, group)
    if not name:
        return first
    numbers = [point.get(_value_name(point), 0) if _value_name(point) else 0 for point in group]
    whole = name.endswith("int")
    if whole and function in ("sum", "mean"):
        # Upstream reads the integer of each further point, which is 0 in one that holds a float.
        numbers = [number if isinstance(number, int) else 0 for number in numbers]
    kept = (
        [float_to_int(number) if isinstance(number, float) else number for number in numbers]
        if whole
        else [float(number) for number in numbers]
    )
    first[name] = _joined(kept, function, whole)
    return first


def _joined(numbers: list[Any], function: str, whole: bool) -> Any:
    if function == "count":
        # One point alone keeps its value, as upstream.
        return numbers[0] if len(numbers) == 1 else (len(numbers) if whole else float(len(numbers)))
    if function == "min":
        return min(numbers)
    if function == "max":
        return max(numbers)
    if function == "median":
        if not whole:
            return statistics.median(numbers)
        ordered = sorted(numbers)
        middle = len(ordered) // 2
        return ordered[middle] if len(ordered) % 2 else _whole_division(ordered[middle - 1] + ordered[middle], 2)
    total = sum(numbers[1:], numbers[0])
    if whole:
        total = wrap_int64(total)
    if function == "mean":
        return _whole_division(total, len(numbers)) if whole else total / len(numbers)
    return total


def _whole_division(number: int, by: int) -> int:
    return number // by if number >= 0 else -(-number // by)


def _merge_common(first: Point, other: Point) -> None:
    first["count"] = (first.get("count") or 0) + (other.get("count") or 0)
    if first.get("sum") is not None and other.get("sum") is not None:
        first["sum"] += other["sum"]
    else:
        # Where one part is unknown the whole is.
        first.pop("sum", None)
    if first.get("min") is not None:
        first["min"] = min(first["min"], other.get("min") or 0.0)
    if first.get("max") is not None:
        first["max"] = max(first["max"], other.get("max") or 0.0)
    if other.get("exemplars"):
        first["exemplars"] = (first.get("exemplars") or []) + other["exemplars"]


def _merged(group: list[Point], merge_buckets: Callable[[Point, Point], None]) -> Point:
    """Merge the points that counted something into the first."""
    first, others = group[0], [other for other in group[1:] if other.get("count")]
    for other in others:
        _merge_common(first, other)
        merge_buckets(first, other)
    _earliest(first, [first, *others])
    return first


def _merge_histograms(group: list[Point]) -> Point:
    return _merged(group, _merge_explicit)


def _merge_exponential(group: list[Point]) -> Point:
    return _merged(group, _merge_sides)


def _merge_explicit(first: Point, other: Point) -> None:
    counts = list(first.get("bucket_counts") or [])
    for index, count in enumerate(other.get("bucket_counts") or []):
        if index < len(counts):
            counts[index] += count
    first["bucket_counts"] = counts


def _merge_sides(first: Point, other: Point) -> None:
    first["zero_count"] = (first.get("zero_count") or 0) + (other.get("zero_count") or 0)
    for side in ("negative", "positive"):
        _merge_side(first, other, side)


def _merge_side(first: Point, other: Point, side: str) -> None:
    mine, theirs = first.get(side) or {}, other.get(side) or {}
    counts, more = list(mine.get("bucket_counts") or []), theirs.get("bucket_counts") or []
    offset, other_offset = mine.get("offset") or 0, theirs.get("offset") or 0
    if not more:
        return
    if other_offset < offset:
        # As upstream: the other's buckets that are not empty come before, whatever the distance.
        counts = [count for count in more if count] + counts
    else:
        shift = other_offset - offset
        if shift + len(more) > 1_000_000:
            raise OttlRuntimeError("the buckets of exponential histograms lie too far apart to be joined")
        counts += [0] * (shift + len(more) - len(counts))
        for index, count in enumerate(more):
            counts[shift + index] += count
        while shift and counts and not counts[-1]:
            counts.pop()
    if other_offset != offset:
        offset = min(offset, other_offset)
        while counts and not counts[0]:
            counts.pop(0)
    first[side] = {**mine, "offset": offset, "bucket_counts": counts}
