"""Editors of histogram buckets."""

from __future__ import annotations

import bisect
import itertools
import math
import random
from typing import Any

from tracecore.ottl.context import Context
from tracecore.ottl.datapoints import data_of, metric_type, point_type
from tracecore.ottl.errors import OttlCompileError, OttlRuntimeError
from tracecore.ottl.functions.gofmt import value_text
from tracecore.ottl.functions.metrics import Point, points, retype
from tracecore.ottl.functions.percentiles import bucket_bound
from tracecore.ottl.signature import MISSING, FloatLikeGetter, Getter, constant_value, editor
from tracecore.ottl.values import quote

_REMOVE, _LIMIT = "remove_explicit_bound", "limit_buckets"


@editor("merge_histogram_buckets", contexts=("datapoint",))
def merge_histogram_buckets(target_value: FloatLikeGetter, method: str = _REMOVE) -> Getter:
    """Join buckets of a histogram: those on both sides of a bound, or neighbours until there are at most so many."""
    if method not in (_REMOVE, _LIMIT):
        raise OttlCompileError(f"unsupported method {quote(method)}, expected {quote(_REMOVE)} or {quote(_LIMIT)}")
    literal = constant_value(target_value)
    if literal is None:
        raise OttlCompileError("target_value must not be nil")
    if literal is not MISSING and method == _LIMIT:
        try:
            _whole(literal)
        except OttlRuntimeError as error:
            raise OttlCompileError(error.message) from error

    def run(ctx: Context) -> None:
        if point_type(ctx) != "histogram":
            return
        value = target_value(ctx)
        if value is None:
            raise OttlRuntimeError("target_value must not be nil")
        point = ctx.item
        counts, bounds = point.get("bucket_counts") or [], point.get("explicit_bounds") or []
        most = _whole(value) if method == _LIMIT else 0
        if len(counts) != len(bounds) + 1 or len(counts) <= 1:
            return
        if method == _REMOVE:
            _remove_bound(point, counts, bounds, value)
        elif len(counts) > most and all(low < high for low, high in itertools.pairwise(bounds)):
            size = -(-len(counts) // most)
            point["bucket_counts"] = [sum(counts[at : at + size]) for at in range(0, len(counts), size)]
            point["explicit_bounds"] = bounds[size - 1 :: size]

    return run


def _whole(value: float) -> int:
    if not (value >= 1 and math.isfinite(value) and value == int(value) and value <= 2.0**63):
        raise OttlRuntimeError(
            f"target_value must be a positive integer when method is {quote(_LIMIT)}, got {value_text(value)}"
        )
    return int(value)


def _remove_bound(point: Point, counts: list[int], bounds: list[float], bound: float) -> None:
    index = next((place for place, held in enumerate(bounds) if abs(held - bound) < 1e-12), -1)
    if index >= 0:
        joined = counts[index] + counts[index + 1]
        point["bucket_counts"] = [*counts[:index], joined, *counts[index + 2 :]]
        point["explicit_bounds"] = bounds[:index] + bounds[index + 1 :]


@editor("convert_exponential_histogram_to_histogram", contexts=("metric",))
def convert_exponential_histogram_to_histogram(distribution_fn: str, explicit_bounds: list[float]) -> Getter:
    """Make an exponential histogram one with these bounds; buckets go `upper`, `midpoint`, `uniform` or `random`."""
    distribution = distribution_fn or "random"
    if not explicit_bounds:
        raise OttlCompileError("explicit bounds cannot be empty")
    for index, (low, high) in enumerate(itertools.pairwise(explicit_bounds), 1):
        if not low < high:
            raise OttlCompileError(
                f"explicit bounds are not strictly increasing at index {index}: {value_text(high)} <= {value_text(low)}"
            )
    if distribution not in ("upper", "midpoint", "uniform", "random"):
        raise OttlCompileError(f"invalid distribution {quote(distribution)}")

    def run(ctx: Context) -> None:
        metric = ctx.item
        if metric_type(metric) != "exponential_histogram":
            return
        converted = []
        for index, point in enumerate(points(metric)):
            try:
                converted.append(_convert(point, explicit_bounds, distribution))
            except OttlRuntimeError as error:
                raise OttlRuntimeError(
                    f"converting exponential histogram data point {index}: {error.message}"
                ) from error
        data: dict[str, Any] = {"data_points": converted}
        if "aggregation_temporality" in data_of(metric):
            data["aggregation_temporality"] = data_of(metric)["aggregation_temporality"]
        retype(metric, "histogram", data)

    return run


_KEPT = ("attributes", "start_time_unix_nano", "time_unix_nano", "count", "flags", "sum", "min", "max", "exemplars")


def _convert(point: Point, bounds: list[float], distribution: str) -> Point:
    zeros, threshold = point.get("zero_count") or 0, point.get("zero_threshold") or 0.0
    scale = point.get("scale") or 0
    if not (math.isfinite(threshold) and threshold >= 0):
        raise OttlRuntimeError(f"invalid zero threshold: {value_text(threshold)}")
    if not -10 <= scale <= 20:
        raise OttlRuntimeError(f"invalid exponential histogram scale {scale}")
    sides = [(point.get(side) or {}, side) for side in ("negative", "positive")]
    total = zeros + sum(sum(buckets.get("bucket_counts") or ()) for buckets, _ in sides)
    if total != (point.get("count") or 0):
        raise OttlRuntimeError(f"source histogram count {point.get('count') or 0} does not match bucket count {total}")
    counts = [0] * (len(bounds) + 1)
    if zeros:
        _spread(counts, bounds, -threshold, threshold, zeros, distribution)
    for buckets, side in sides:
        offset, held = buckets.get("offset") or 0, buckets.get("bucket_counts") or []
        for index, count in enumerate(held):
            low, high = bucket_bound(offset + index, scale), bucket_bound(offset + index + 1, scale)
            if math.isinf(high) and index == len(held) - 1:
                high = 1.7976931348623157e308
            if not (low < high < math.inf):
                raise OttlRuntimeError(f"{side} buckets: invalid bucket interval ({low}, {high}]")
            if count:
                ends = (-high, -low) if side == "negative" else (low, high)
                _spread(counts, bounds, *ends, count, distribution)
    made = {name: point[name] for name in _KEPT if name in point}
    return {**made, "explicit_bounds": list(bounds), "bucket_counts": counts}


def _spread(counts: list[int], bounds: list[float], low: float, high: float, count: int, distribution: str) -> None:
    if low == high or distribution == "upper":
        counts[bisect.bisect_left(bounds, high)] += count
    elif distribution == "midpoint":
        counts[bisect.bisect_left(bounds, low / 2 + high / 2)] += count
    else:
        offset = (1 << 64) - 1 if distribution == "uniform" else random.getrandbits(64)
        _spread_evenly(counts, bounds, low, high, count, offset)


def _spread_evenly(counts: list[int], bounds: list[float], low: float, high: float, count: int, offset: int) -> None:
    """By the part of the bucket that lies in each target; sums are rounded, not parts, so that no count is lost."""
    first, last = bisect.bisect_left(bounds, low), bisect.bisect_left(bounds, high)
    width = high - low
    if not math.isfinite(width):
        raise OttlRuntimeError(f"cannot distribute bucket interval ({value_text(low)}, {value_text(high)}]")
    given, share = 0, 0.0
    for bucket in range(first, last + 1):
        start = max(low, bounds[bucket - 1] if bucket else -math.inf)
        end = min(high, bounds[bucket] if bucket < len(bounds) else math.inf)
        if start >= end:
            continue
        upto = count
        if bucket != last:
            share += (end - start) / width
            upto = max(given, _rounded(count, share, offset))
        counts[bucket] += upto - given
        given = upto


def _rounded(count: int, share: float, offset: int) -> int:
    if share >= 1:
        return count
    fraction = min(int(math.ldexp(share, 64)), (1 << 64) - 1)
    return min((count * fraction + offset) >> 64, count)
