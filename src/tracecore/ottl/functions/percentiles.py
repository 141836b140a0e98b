"""Percentiles of histogram points, interpolated: evenly in explicit buckets, by logarithm in exponential ones."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Final

from tracecore.ottl.errors import OttlRuntimeError

Point = dict[str, Any]


def _linear(low: float, high: float, ratio: float) -> float:
    if not 0 <= ratio <= 1:
        raise OttlRuntimeError(f"linear interpolation: invalid ratio {ratio:.6f}, must be between 0 and 1")
    return low + ratio * (high - low)


def _logarithmic(low: float, high: float, ratio: float) -> float:
    if not 0 <= ratio <= 1:
        raise OttlRuntimeError(f"logarithmic interpolation: invalid ratio {ratio:.6f}, must be between 0 and 1")
    if low <= 0 or high <= 0:
        raise OttlRuntimeError(
            f"logarithmic interpolation: bounds must be positive, got lowerBound={low:.6f}, upperBound={high:.6f}"
        )
    return math.exp2(math.log2(low) + (math.log2(high) - math.log2(low)) * ratio)


def _unreached(what: str, target: int, total: int) -> OttlRuntimeError:
    return OttlRuntimeError(
        f"calculating {what} percentile: malformed data: cumulative count doesn't reach target count corresponding to "
        f"percentile. targetCount={target}, total count={total}"
    )


def histogram(point: Point, percentile: float) -> float | None:
    """The percentile of a histogram point; None where it holds nothing to tell it from."""
    counts, bounds = point.get("bucket_counts") or [], point.get("explicit_bounds") or []
    total = point.get("count") or 0
    if not total or not counts:
        return None
    if len(counts) != len(bounds) + 1:
        raise OttlRuntimeError(
            f"calculating histogram percentile: malformed data: bucketCounts length ({len(counts)}) != explicitBounds "
            f"length ({len(bounds)}) + 1"
        )
    target = math.ceil(total * (percentile / 100.0))
    least, most = point.get("min"), point.get("max")
    if not bounds:
        if least is None or most is None or not counts[0]:
            return None
        return _linear(least, most, target / counts[0])
    seen = 0
    for index, count in enumerate(counts):
        before, seen = seen, seen + count
        if seen < target:
            continue
        if index == 0:
            low, high = 0.0, bounds[0]
            if least is not None and least < high:
                low = least
            elif high < 0:
                return float(high)
        else:
            low = bounds[index - 1]
            if index == len(bounds):
                if most is None or most <= low:
                    return float(low)
                high = most
            else:
                high = bounds[index]
        return _linear(low, high, (target - before) / count)
    raise _unreached("histogram", target, seen)


def bucket_bound(index: int, scale: int) -> float:
    """The lower bound of an exponential bucket."""
    try:
        return math.ldexp(1.0, index << -scale) if scale <= 0 else math.exp(index * math.ldexp(math.log(2), -scale))
    except OverflowError:
        return math.inf


def exponential(point: Point, percentile: float) -> float | None:
    """The percentile of an exponential histogram point; None where it holds nothing to tell it from."""
    negative, positive = point.get("negative") or {}, point.get("positive") or {}
    below, above = negative.get("bucket_counts") or [], positive.get("bucket_counts") or []
    zeros, total = point.get("zero_count") or 0, point.get("count") or 0
    if not total or not (below or above or zeros):
        return None
    target = math.ceil(total * (percentile / 100.0))
    scale = point.get("scale") or 0
    if not -64 <= scale <= 64:
        raise OttlRuntimeError(f"invalid exponential histogram scale {scale}")
    seen = 0
    for index in reversed(range(len(below))):
        before, seen = seen, seen + below[index]
        if seen >= target:
            place = (negative.get("offset") or 0) + index
            ratio = (target - before) / below[index]
            return -_logarithmic(bucket_bound(place, scale), bucket_bound(place + 1, scale), 1 - ratio)
    if seen + zeros >= target:
        width = point.get("zero_threshold") or 0.0
        low = 0.0 if above and not below else -width
        high = 0.0 if below and not above else width
        return _linear(low, high, (target - seen) / zeros)
    seen += zeros
    for index, count in enumerate(above):
        before, seen = seen, seen + count
        if seen >= target:
            place = (positive.get("offset") or 0) + index
            return _logarithmic(bucket_bound(place, scale), bucket_bound(place + 1, scale), (target - before) / count)
    raise _unreached("exponential histogram", target, seen)


BY_TYPE: Final[dict[str, Callable[[Point, float], float | None]]] = {
    "histogram": histogram,
    "exponential_histogram": exponential,
}
