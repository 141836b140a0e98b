"""Vendor series through the metrics recipe: names, units, blanks and labels, on whole scrapes."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from tracecore.ottl import Processor
from tracecore.recipes import directory, load_file


def transform(name: str, points: list[tuple[dict[str, Any], float]]) -> dict[str, Any]:
    """The metric after all processors of the recipe, as they run in a pipeline."""
    metric = {
        "name": name,
        "unit": "",
        "gauge": {
            "data_points": [{"attributes": dict(attributes), "value_double": value} for attributes, value in points]
        },
    }
    payload = {
        "resource_metrics": [{"resource": {"attributes": {}}, "scope_metrics": [{"scope": {}, "metrics": [metric]}]}]
    }
    for processor in load_file(directory() / "metrics.yaml"):
        Processor(processor.config()).process_metrics(payload)
    return metric


def points(metric: dict[str, Any]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = metric["gauge"]["data_points"]
    return found


@pytest.mark.parametrize(
    ("name", "given", "new_name", "value"),
    [
        ("DCGM_FI_DEV_FB_FREE", 2.0, "hw.gpu.memory.free", 2097152.0),
        ("DCGM_FI_DEV_GPU_UTIL", 97.0, "hw.gpu.utilization", 0.97),
        ("DCGM_FI_DEV_THERMAL_VIOLATION", 3e9, "hw.gpu.throttle.duration", 3.0),
        ("DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", 5000.0, "hw.energy", 5.0),
        ("DCGM_FI_DEV_SM_CLOCK", 1980.0, "hw.gpu.clock.sm", 1980.0),
    ],
)
def test_units(name: str, given: float, new_name: str, value: float) -> None:
    metric = transform(name, [({"gpu": "0"}, given)])
    assert metric["name"] == new_name
    assert points(metric)[0]["value_double"] == pytest.approx(value)


def test_amd_memory_is_bytes() -> None:
    metric = transform("gpu_total_vram", [({"gpu_id": "1"}, 196592.0)])
    assert (metric["name"], points(metric)[0]["value_double"]) == ("hw.gpu.memory.total", 196592.0 * 1048576)


def test_a_blank_is_marked_and_left_as_it_is() -> None:
    """Scaling a blank would make it look like a measurement."""
    for name in ("DCGM_FI_DEV_FB_FREE", "DCGM_FI_DEV_GPU_UTIL", "DCGM_FI_DEV_THERMAL_VIOLATION"):
        for blank in (9223372036854775794.0, 2147483632.0, 2147483635.0, 140737488355328.0):
            point = points(transform(name, [({"gpu": "0"}, blank)]))[0]
            assert point["attributes"]["tracecore.metric.blank"] is True
            assert point["value_double"] == blank


def test_all_points_of_a_metric_are_treated_alike() -> None:
    """The metric is renamed once, after its points were read under the old name."""
    metric = transform("DCGM_FI_DEV_FB_USED", [({"gpu": str(index)}, float(index)) for index in range(8)])
    assert [point["value_double"] for point in points(metric)] == [index * 1048576.0 for index in range(8)]
    assert [point["attributes"]["hw.gpu.index"] for point in points(metric)] == list(range(8))


SAMPLE = re.compile(r"^(?P<name>[A-Za-z_:][\w:]*)\{(?P<labels>.*)\} (?P<value>\S+)$")


def test_real_scrapes(shared_data: Path) -> None:
    seen = {}
    for line in (shared_data / "peers" / "dcgm" / "samples.prom").read_text(encoding="utf-8").splitlines():
        if sample := SAMPLE.match(line):
            labels = dict(re.findall(r'(\w+)="([^"]*)"', sample["labels"]))
            metric = transform(sample["name"], [(labels, float(sample["value"]))])
            attributes = points(metric)[0]["attributes"]
            seen[metric["name"]] = attributes
            assert attributes["gpu.vendor"] == "nvidia"
            assert attributes["gpu.uuid"] == labels["UUID"]
            assert ("tracecore.metric.blank" in attributes) == (float(sample["value"]) > 9e18)
            assert not any(name.startswith("kernelevents.") for name in attributes), "a sticky gauge is not an event"
            assert attributes.get("hw.gpu.mig.id") == labels.get("GPU_I_ID")
            assert "k8s.pod.name" not in attributes
    assert {"hw.gpu.temperature", "hw.gpu.memory.free", "hw.gpu.xid.last", "hw.gpu.clock.sm"} <= seen.keys()


def test_every_default_counter_that_patterns_need_is_renamed(shared_data: Path) -> None:
    text = (shared_data / "peers" / "dcgm" / "default-counters.csv").read_text(encoding="utf-8")
    names = sorted(set(re.findall(r"^#? ?(DCGM_FI_(?:DEV|PROF)_\w+)", text, re.MULTILINE)))
    needed = re.compile(r"ECC_|FB_|TEMP|SM_CLOCK|VIOLATION|PCIE_|NVLINK_BANDWIDTH|XID|POWER_USAGE")
    kept = [name for name in names if needed.search(name) and transform(name, [({"gpu": "0"}, 1.0)])["name"] == name]
    assert kept == ["DCGM_FI_DEV_ECC_INFOROM_VER"]
