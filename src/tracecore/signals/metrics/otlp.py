"""Points of OTLP metrics, in the plain shape that `tracecore.ottl` transforms."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from tracecore.signals.metrics.point import Point
from tracecore.signals.record import Source

#: A sum's temporality, as OTLP numbers it: each point counts since the one before, or since the start.
DELTA: Final = 1
_NO_VALUE: Final = 1


def points(payload: Mapping[str, Any], path: str = "otlp") -> Iterator[Point]:
    """The number points of `{"resource_metrics": [...]}`; histograms and summaries have none.

    A sum of differences has no total that could be compared with an earlier one: it is left out. A point without a time
    cannot be put in order: it is left out too.

    Args:
        path: what the points are cited as.
    """
    place = 0
    for resource in payload.get("resource_metrics") or ():
        shared = (resource.get("resource") or {}).get("attributes") or {}
        for scope in resource.get("scope_metrics") or ():
            for metric in scope.get("metrics") or ():
                kind = next((name for name in ("gauge", "sum") if name in metric), None)
                if kind is None:
                    continue
                data = metric[kind] or {}
                if data.get("aggregation_temporality") == DELTA:
                    continue
                declared = "counter" if kind == "sum" and data.get("is_monotonic") else "gauge"
                for point in data.get("data_points") or ():
                    place += 1
                    value = point.get("value_double", point.get("value_int"))
                    time = point.get("time_unix_nano")
                    if value is None or not time or int(point.get("flags") or 0) & _NO_VALUE:
                        continue
                    labels = {**shared, **(point.get("attributes") or {})}
                    yield Point(
                        name=str(metric.get("name", "")),
                        labels={str(name): str(given) for name, given in labels.items() if given is not None},
                        value=float(value),
                        time=int(time),
                        source=Source(path, place, ident=f"{path}@{time}#{place}"),
                        declared=declared,
                    )
