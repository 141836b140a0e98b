"""Metrics and their data points: which field belongs to which type.

A metric is `{"name", "description", "unit", "metadata", "gauge" | "sum" | "histogram" | "exponential_histogram" |
"summary": {"data_points": [...]}}` as in OTLP. A data point's type follows from its metric, or where that is not at
hand from the fields it has.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from tracecore.ottl import fields
from tracecore.ottl.context import Context
from tracecore.ottl.errors import OttlTypeError
from tracecore.ottl.fields import Field, Owner, Record, expect
from tracecore.ottl.keys import Keys
from tracecore.ottl.signature import GetSetter
from tracecore.ottl.values import Value, copy_value, go_type

#: The metric types, at the index that is their number.
TYPES: Final = ("", "gauge", "sum", "histogram", "exponential_histogram", "summary")
_NUMBER: Final = ("gauge", "sum")
_TEMPORAL: Final = ("sum", "histogram", "exponential_histogram")
_DISTRIBUTIONS: Final = ("histogram", "exponential_histogram", "summary")


def metric_type(metric: Mapping[str, Any]) -> str:
    """Return which of `TYPES` a metric is; empty for a metric without data."""
    for name in TYPES[1:]:
        if name in metric:
            return name
    named = metric.get("type")
    if isinstance(named, int) and 0 <= named < len(TYPES):
        return TYPES[named]
    return named.lower() if isinstance(named, str) and named.lower() in TYPES else ""


def data_of(metric: dict[str, Any]) -> dict[str, Any]:
    """The part of a metric that holds its data points; the metric itself where it is written flat."""
    kind = metric_type(metric)
    return fields.held_map(metric, kind) if kind in metric else metric


def point_type(ctx: Context) -> str:
    """The metric type of the data point at hand."""
    if ctx.parent and (kind := metric_type(ctx.parent)):
        return kind
    point = ctx.item
    if "quantile_values" in point:
        return "summary"
    if not point.keys().isdisjoint(("scale", "zero_count", "positive", "negative")):
        return "exponential_histogram"
    if not point.keys().isdisjoint(("bucket_counts", "explicit_bounds", "count")):
        return "histogram"
    return "gauge"


def _of_metric(field: Field, kinds: tuple[str, ...]) -> Field:
    """A field that only metrics of some types have: nil when read and ignored when set in others."""

    def made(owner: Owner, keys: Keys) -> GetSetter:
        access = field(lambda ctx: data_of(owner(ctx)), keys)

        def get(ctx: Context) -> Value:
            return access.get(ctx) if metric_type(owner(ctx)) in kinds else None

        def set(ctx: Context, value: Value) -> None:
            if metric_type(owner(ctx)) in kinds:
                access.set(ctx, value)

        return GetSetter(get, set)

    return made


def _of_point(field: Field, kinds: tuple[str, ...]) -> Field:
    """A field that only data points of some types have: nil when read, an error when set in others."""

    def made(owner: Owner, keys: Keys) -> GetSetter:
        access = field(owner, keys)

        def get(ctx: Context) -> Value:
            return access.get(ctx) if point_type(ctx) in kinds else None

        def set(ctx: Context, value: Value) -> None:
            if (kind := point_type(ctx)) not in kinds:
                raise OttlTypeError(f"unsupported data point type: {kind}")
            access.set(ctx, value)

        return GetSetter(get, set)

    return made


def _number(kind: type[int] | type[float]) -> Field:
    """The value of a number data point. One point holds one number: setting the other kind replaces it."""
    suffix, other = ("int", "double") if kind is int else ("double", "int")

    def read(point: Record) -> Value:
        value = point.get(f"as_{suffix}", point.get(f"value_{suffix}"))
        return kind() if value is None else value

    def write(point: Record, value: Value) -> None:
        number = expect(value, kind)
        stem = "value" if "value_int" in point or "value_double" in point else "as"
        point.pop(f"{stem}_{other}", None)
        point[f"{stem}_{suffix}"] = number

    return fields.plain(read, write)


def _keep_type(metric: Record, value: Value) -> None:
    """Changing the type is ignored, as in the Collector."""


def _data_points(metric: Record) -> Value:
    return data_of(metric).setdefault("data_points", []) if metric_type(metric) else None


def _set_data_points(metric: Record, value: Value) -> None:
    if not metric_type(metric):
        return
    if value is not None and not isinstance(value, list):
        raise OttlTypeError(f"expects data points but got {go_type(value)}")
    data = data_of(metric)
    if value is not data.get("data_points"):
        data["data_points"] = copy_value(value or [])


METRIC_FIELDS: Final[dict[str, Field]] = {
    "name": fields.scalar("name", str),
    "description": fields.scalar("description", str),
    "unit": fields.scalar("unit", str),
    "type": fields.plain(lambda metric: TYPES.index(metric_type(metric)), _keep_type),
    "aggregation_temporality": _of_metric(fields.scalar("aggregation_temporality", int, bits=-32), _TEMPORAL),
    "is_monotonic": _of_metric(fields.scalar("is_monotonic", bool), ("sum",)),
    "data_points": fields.plain(_data_points, _set_data_points),
    "metadata": fields.mapping("metadata"),
}


def _exponential(field: Field) -> Field:
    return _of_point(field, ("exponential_histogram",))


DATAPOINT_FIELDS: Final[dict[str, Field]] = {
    "start_time_unix_nano": fields.unix_nano("start_time_unix_nano"),
    "time_unix_nano": fields.unix_nano("time_unix_nano"),
    "start_time": fields.time("start_time_unix_nano"),
    "time": fields.time("time_unix_nano"),
    "value_double": _of_point(_number(float), _NUMBER),
    "value_int": _of_point(_number(int), _NUMBER),
    "exemplars": _of_point(fields.records("exemplars"), (*_NUMBER, "histogram", "exponential_histogram")),
    "flags": fields.scalar("flags", int, bits=32),
    "count": _of_point(fields.scalar("count", int, bits=64), _DISTRIBUTIONS),
    "sum": _of_point(fields.scalar("sum", float), _DISTRIBUTIONS),
    "bucket_counts": _of_point(fields.numbers("bucket_counts", int), ("histogram",)),
    "explicit_bounds": _of_point(fields.numbers("explicit_bounds", float), ("histogram",)),
    "scale": _exponential(fields.scalar("scale", int, bits=-32)),
    "zero_count": _exponential(fields.scalar("zero_count", int, bits=64)),
    **{
        dotted: _exponential(field)
        for side in ("positive", "negative")
        for dotted, field in (
            (side, fields.whole(side)),
            (f"{side}.offset", fields.inside(side, fields.scalar("offset", int, bits=-32))),
            (f"{side}.bucket_counts", fields.inside(side, fields.numbers("bucket_counts", int))),
        )
    },
    "quantile_values": _of_point(fields.records("quantile_values"), ("summary",)),
}
