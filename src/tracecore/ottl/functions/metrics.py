"""Editors of metrics: from one type to another, and new metrics taken out of one."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tracecore.ottl.context import Context
from tracecore.ottl.datapoints import data_of, metric_type
from tracecore.ottl.errors import OttlCompileError, OttlRuntimeError
from tracecore.ottl.functions import percentiles
from tracecore.ottl.functions.gofmt import sprintf
from tracecore.ottl.signature import Getter, StringGetter, editor
from tracecore.ottl.values import copy_value, float_to_int

_METRIC = ("metric",)
_DATAPOINT = ("datapoint",)
_DELTA, _CUMULATIVE = 1, 2
_TEMPORALITIES = {"delta": _DELTA, "cumulative": _CUMULATIVE}

Metric = dict[str, Any]
Point = dict[str, Any]


def points(metric: Metric) -> list[Point]:
    """The data points of a metric."""
    held: list[Point] = data_of(metric).get("data_points") or []
    return held


def retype(metric: Metric, kind: str, data: dict[str, Any]) -> None:
    """Make a metric one of another type, with this data."""
    before = metric_type(metric)
    if before not in metric:  # written flat: the type is a field, and the data lie in the metric itself
        for name in ("data_points", "aggregation_temporality", "is_monotonic", "type"):
            metric.pop(name, None)
    metric.pop(before, None)
    metric[kind] = data


def _temporality(name: str) -> int:
    if name not in _TEMPORALITIES:
        raise OttlCompileError(f"unknown aggregation temporality: {name}")
    return _TEMPORALITIES[name]


def _add_metric(
    ctx: Context, metric: Metric, suffix: str, made: list[Point], temporality: int = 0, monotonic: bool = False
) -> Metric:
    """Add a metric of these points, named after another: a sum where a temporality is given, else a gauge."""
    added: Metric = {"name": f"{metric.get('name', '')}{suffix}"}
    for name in ("description", "unit"):
        if metric.get(name):
            added[name] = metric[name]
    if temporality:
        added["sum"] = {"data_points": made, "aggregation_temporality": temporality, "is_monotonic": monotonic}
    else:
        added["gauge"] = {"data_points": made}
    ctx.siblings.append(added)
    return added


def _number_point(point: Point, value: float | int) -> Point:
    made: Point = {"attributes": copy_value(point.get("attributes") or {})}
    for name in ("start_time_unix_nano", "time_unix_nano"):
        if name in point:
            made[name] = point[name]
    made["as_int" if isinstance(value, int) else "as_double"] = value
    return made


@editor("convert_sum_to_gauge", contexts=_METRIC)
def convert_sum_to_gauge() -> Getter:
    """Make a sum a gauge."""

    def run(ctx: Context) -> None:
        if metric_type(ctx.item) == "sum":
            retype(ctx.item, "gauge", {"data_points": points(ctx.item)})

    return run


@editor("convert_gauge_to_sum", contexts=_METRIC)
def convert_gauge_to_sum(string_agg_temp: str, monotonic: bool) -> Getter:
    """Make a gauge a sum, `delta` or `cumulative`."""
    temporality = _temporality(string_agg_temp)

    def run(ctx: Context) -> None:
        if metric_type(ctx.item) == "gauge":
            data = {
                "data_points": points(ctx.item),
                "aggregation_temporality": temporality,
                "is_monotonic": monotonic,
            }
            retype(ctx.item, "sum", data)

    return run


def _summary_to_sum(string_agg_temp: str, monotonic: bool, suffix: str, field: str) -> Getter:
    temporality = _temporality(string_agg_temp)

    def run(ctx: Context) -> None:
        metric = ctx.parent
        if metric is None or metric_type(metric) != "summary":
            return
        made = [
            _number_point(point, point.get(field, 0) if field == "count" else float(point.get(field, 0.0)))
            for point in points(metric)
        ]
        _add_metric(ctx, metric, suffix, made, temporality, monotonic)

    return run


@editor("convert_summary_sum_val_to_sum", contexts=_DATAPOINT)
def convert_summary_sum_val_to_sum(string_agg_temp: str, monotonic: bool, suffix: str = "_sum") -> Getter:
    """Add a sum metric of a summary's sums."""
    return _summary_to_sum(string_agg_temp, monotonic, suffix, "sum")


@editor("convert_summary_count_val_to_sum", contexts=_DATAPOINT)
def convert_summary_count_val_to_sum(string_agg_temp: str, monotonic: bool, suffix: str = "_count") -> Getter:
    """Add a sum metric of a summary's counts."""
    return _summary_to_sum(string_agg_temp, monotonic, suffix, "count")


@editor("convert_summary_quantile_val_to_gauge", contexts=_METRIC)
def convert_summary_quantile_val_to_gauge(attribute_key: str = "quantile", suffix: str = ".quantiles") -> Getter:
    """Add a gauge metric of a summary's quantiles, each with its quantile in an attribute."""

    def run(ctx: Context) -> None:
        metric = ctx.item
        if metric_type(metric) != "summary":
            return
        made: list[Point] = []
        for point in points(metric):
            for quantile in point.get("quantile_values") or ():
                new = _number_point(point, float(quantile.get("value", 0.0)))
                new["attributes"][attribute_key] = float(quantile.get("quantile", 0.0))
                made.append(new)
        _add_metric(ctx, metric, suffix, made)

    return run


@editor("copy_metric", contexts=_METRIC)
def copy_metric(
    name: StringGetter | None = None, description: StringGetter | None = None, unit: StringGetter | None = None
) -> Getter:
    """Add a copy of a metric, with another name, description or unit."""
    changes = {"name": name, "description": description, "unit": unit}

    def run(ctx: Context) -> None:
        made = copy_value(ctx.item)
        # Upstream appends before it reads the arguments, so a failing one leaves the copy as far as it came.
        ctx.siblings.append(made)
        for field, get in changes.items():
            if get is not None:
                made[field] = get(ctx)

    return run


def _temporality_of(metric: Metric, function: str) -> int:
    kind = metric_type(metric)
    if kind == "summary":
        return _CUMULATIVE
    temporality = data_of(metric).get("aggregation_temporality", 0) if "histogram" in kind else 0
    if temporality not in (_DELTA, _CUMULATIVE):
        raise _wrong_type(metric, function)
    return int(temporality)


_TYPE_NAMES = {
    "": "Empty",
    "gauge": "Gauge",
    "sum": "Sum",
    "histogram": "Histogram",
    "exponential_histogram": "ExponentialHistogram",
    "summary": "Summary",
}


def _wrong_type(metric: Metric, function: str) -> OttlRuntimeError:
    return OttlRuntimeError(
        f"{function} requires an input metric of type Histogram, ExponentialHistogram or Summary, got "
        f"{_TYPE_NAMES[metric_type(metric)]}"
    )


def _with_sum(metric: Metric) -> Iterable[Point]:
    """The points that have a sum. A summary's always has one."""
    summary = metric_type(metric) == "summary"
    return (point for point in points(metric) if summary or point.get("sum") is not None)


@editor("extract_sum_metric", contexts=_METRIC)
def extract_sum_metric(monotonic: bool, suffix: str = "_sum") -> Getter:
    """Add a sum metric of the sums of a histogram or summary."""

    def run(ctx: Context) -> None:
        metric = ctx.item
        temporality = _temporality_of(metric, "extract_sum_metric")
        made = [_number_point(point, float(point.get("sum") or 0.0)) for point in _with_sum(metric)]
        if made:
            _add_metric(ctx, metric, suffix, made, temporality, monotonic)

    return run


@editor("extract_count_metric", contexts=_METRIC)
def extract_count_metric(monotonic: bool, suffix: str = "_count") -> Getter:
    """Add a sum metric of the counts of a histogram or summary."""

    def run(ctx: Context) -> None:
        metric = ctx.item
        temporality = _temporality_of(metric, "extract_count_metric")
        made = [_number_point(point, int(point.get("count") or 0)) for point in points(metric)]
        if made:
            # The metric's own unit is not that of a count.
            _add_metric(ctx, metric, suffix, made, temporality, monotonic)["unit"] = "1"

    return run


@editor("extract_avg_metric", contexts=_METRIC)
def extract_avg_metric(suffix: str = "_avg") -> Getter:
    """Add a gauge metric of the averages of a histogram or summary."""

    def run(ctx: Context) -> None:
        metric = ctx.item
        if metric_type(metric) not in ("histogram", "exponential_histogram", "summary"):
            raise _wrong_type(metric, "extract_avg_metric")
        made = [
            _number_point(point, float(point.get("sum") or 0.0) / point["count"])
            for point in _with_sum(metric)
            if (point.get("count") or 0) > 0
        ]
        if made:
            _add_metric(ctx, metric, suffix, made)

    return run


@editor("extract_percentile_metric", contexts=_METRIC)
def extract_percentile_metric(percentile: float, suffix: str = "") -> Getter:
    """Add a gauge metric of a percentile of a histogram, interpolated within its bucket."""
    if not 0 < percentile < 100:
        raise OttlCompileError(sprintf("percentile must be greater than 0 and less than 100, got %f", [percentile]))
    label = sprintf("p%g", [percentile])
    name_suffix = suffix or f"_{label}"

    def run(ctx: Context) -> None:
        metric = ctx.item
        calculate = percentiles.BY_TYPE.get(metric_type(metric))
        if calculate is None:
            return
        values = ((point, calculate(point, percentile)) for point in points(metric))
        made = [_number_point(point, value) for point, value in values if value is not None]
        if made:
            description = metric.get("description")
            added = _add_metric(ctx, metric, name_suffix, made)
            added["description"] = f"{description} ({label})" if description else label

    return run


@editor("scale_metric", contexts=_METRIC)
def scale_metric(multiplier: float, unit: StringGetter | None = None) -> Getter:
    """Multiply the values of a metric, and give it another unit."""

    def run(ctx: Context) -> None:
        metric = ctx.item
        new_unit = None if unit is None else unit(ctx)
        kind = metric_type(metric)
        if kind == "exponential_histogram":
            raise OttlRuntimeError("exponential histograms are not supported by the 'scale_metric' function")
        if not kind:
            raise OttlRuntimeError("unsupported metric type: 'Empty'")
        for point in points(metric):
            if kind in ("gauge", "sum"):
                _scale_number(point, multiplier)
            else:
                _scale_distribution(point, multiplier)
        if new_unit is not None:
            metric["unit"] = new_unit

    return run


def _scale_number(point: Point, by: float) -> None:
    for name in ("as_int", "value_int"):
        if point.get(name) is not None:
            point[name] = float_to_int(float(point[name]) * by)
    for name in ("as_double", "value_double"):
        if point.get(name) is not None:
            point[name] *= by


def _scale_distribution(point: Point, by: float) -> None:
    for name in ("sum", "min", "max"):
        if point.get(name) is not None:
            point[name] *= by
    if "explicit_bounds" in point:
        point["explicit_bounds"] = [bound * by for bound in point["explicit_bounds"]]
    for quantile in point.get("quantile_values") or ():
        quantile["value"] = quantile.get("value", 0.0) * by
    for exemplar in point.get("exemplars") or ():
        _scale_number(exemplar, by)
