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


def scraped(name: str, attributes: dict[str, Any], resource: dict[str, Any], *more: dict[str, Any]) -> dict[str, Any]:
    metric = {
        "name": name,
        "gauge": {"data_points": [{"attributes": attributes, "time_unix_nano": 5, "as_double": 1.0}]},
    }
    return {
        "resource_metrics": [
            {"resource": {"attributes": resource}, "scope_metrics": [{"scope": {}, "metrics": [metric, *more]}]}
        ]
    }


@pytest.mark.parametrize(
    ("name", "value"), [("as_double", 2.5), ("as_int", 7), ("value_double", 2.5), ("value_int", 7)]
)
def test_values_by_any_of_their_names(name: str, value: float) -> None:
    payload = {"resource_metrics": [{"scope_metrics": [{"metrics": [
        {"name": "m", "gauge": {"data_points": [{"time_unix_nano": 5, name: value}]}}]}]}]}  # fmt: skip
    assert [point.value for point in points(payload)] == [float(value)]


def test_zero_is_a_value() -> None:
    payload = {"resource_metrics": [{"scope_metrics": [{"metrics": [
        {"name": "m", "gauge": {"data_points": [{"time_unix_nano": 5, "as_double": 0.0}]}}]}]}]}  # fmt: skip
    assert [point.value for point in points(payload)] == [0.0]


TARGET = {
    "service.instance.id": "10.1.2.3:9400",
    "service.name": "dcgm",
    "k8s.node.name": "node-7",
    "k8s.pod.name": "dcgm-exporter-x",
    "k8s.namespace.name": "gpu-operator",
}


def test_an_exporters_pod_is_not_the_gpus() -> None:
    (point,) = points(scraped("DCGM_FI_DEV_GPU_TEMP", {"gpu": "0"}, TARGET))
    assert point.labels == {"k8s.node.name": "node-7", "service.instance.id": "10.1.2.3:9400", "gpu": "0"}


def test_a_training_programs_pod_is_its_own() -> None:
    (point,) = points(scraped("gen_ai_training_step", {"rank": "3"}, TARGET))
    assert point.labels["k8s.pod.name"] == "dcgm-exporter-x"


def test_node_exporter_names_its_machine() -> None:
    uname = {"name": "node_uname_info", "gauge": {"data_points": [
        {"attributes": {"nodename": "node-9"}, "time_unix_nano": 5, "as_double": 1.0}]}}  # fmt: skip
    local = {"service.instance.id": "localhost:9100"}
    first = next(points(scraped("node_infiniband_state_id", {"device": "mlx5_0"}, local, uname)))
    assert first.labels["host.name"] == "node-9"
    known = next(points(scraped("node_infiniband_state_id", {}, {**local, "k8s.node.name": "node-7"}, uname)))
    assert "host.name" not in known.labels


def test_points_of_two_targets_at_one_time_are_two() -> None:
    one, two = (
        next(points(scraped("DCGM_FI_DEV_GPU_TEMP", {"gpu": "0"}, {**TARGET, "service.instance.id": address})))
        for address in ("10.1.2.3:9400", "10.1.2.4:9400")
    )
    assert one.source.uid != two.source.uid
