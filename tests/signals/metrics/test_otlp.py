"""OTLP metrics as points."""

from __future__ import annotations

from typing import Any

import pytest

from tracecore.signals.metrics.otlp import points


def payload(metric: dict[str, Any]) -> dict[str, Any]:
    resource = {"attributes": {"host.name": "node-7", "gpu.id": "0000:3b:00.0"}}
    return {"resource_metrics": [{"resource": resource, "scope_metrics": [{"metrics": [metric]}]}]}


def test_a_gauge() -> None:
    data = [
        {"attributes": {"hw.gpu.index": 3, "gpu.id": "0000:5d:00.0"}, "value_double": 61.5, "time_unix_nano": 7},
        {"attributes": {}, "value_int": 60, "time_unix_nano": 8},
    ]
    one, two = points(payload({"name": "hw.gpu.temperature", "gauge": {"data_points": data}}))
    assert (one.name, one.value, one.time, one.declared) == ("hw.gpu.temperature", 61.5, 7, "gauge")
    assert one.labels == {"host.name": "node-7", "gpu.id": "0000:5d:00.0", "hw.gpu.index": "3"}
    assert (two.value, two.labels["gpu.id"]) == (60, "0000:3b:00.0")
    assert one.source.uid != two.source.uid


@pytest.mark.parametrize(
    ("data", "declared"),
    [
        ({"is_monotonic": True, "aggregation_temporality": 2}, ["counter"]),
        ({"is_monotonic": False, "aggregation_temporality": 2}, ["gauge"]),
        ({"is_monotonic": True, "aggregation_temporality": 1}, []),
    ],
)
def test_a_sum(data: dict[str, Any], declared: list[str]) -> None:
    data["data_points"] = [{"value_int": 5, "time_unix_nano": 7}]
    assert [point.declared for point in points(payload({"name": "hw.errors", "sum": data}))] == declared


@pytest.mark.parametrize(
    "point", [{"value_int": 5}, {"time_unix_nano": 7}, {"value_int": 5, "time_unix_nano": 7, "flags": 1}, {}]
)
def test_what_was_not_measured_is_no_point(point: dict[str, Any]) -> None:
    assert list(points(payload({"name": "x", "gauge": {"data_points": [point]}}))) == []


@pytest.mark.parametrize("given", [{}, {"resource_metrics": [{}]}, payload({"name": "x", "histogram": {}})])
def test_nothing_to_read(given: dict[str, Any]) -> None:
    assert list(points(given)) == []
