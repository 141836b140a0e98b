"""Points under their `hw.*` names: the recipes decide, and run once for each series."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tracecore import recipes
from tracecore.diagnose.facts import processors
from tracecore.diagnose.metrics import Stamper
from tracecore.ottl.processor import Processor
from tracecore.recipes.cases import load_cases
from tracecore.signals.metrics.bridges import BRIDGES
from tracecore.signals.metrics.point import Point
from tracecore.signals.record import Source

CASES = [
    case
    for case in load_cases(recipes.directory() / "metrics.cases.yaml")
    if case.metric is not None and "value_double" in (case.datapoint or {})
]
USED = frozenset(name for bridge in BRIDGES for name in bridge.names)
PLACE = Source("s.prom", 0, 1, 1)


def point(name: str, value: float, **labels: str) -> Point:
    return Point(name=name, labels=labels, value=value, time=1, source=PLACE)


def by_recipes(name: str, labels: dict[str, Any], value: float) -> tuple[str, dict[str, Any], float]:
    data = {"attributes": dict(labels), "value_double": value}
    metric = {"name": name, "unit": "", "gauge": {"data_points": [data]}}
    for processor in processors("metrics"):
        processor.process_metrics(
            {"resource_metrics": [{"resource": {}, "scope_metrics": [{"scope": {}, "metrics": [metric]}]}]}
        )
    return str(metric["name"]), data["attributes"], data["value_double"]  # type: ignore[return-value]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_remembering_a_series_changes_nothing(case: Any) -> None:
    """The first point of a series, and later ones, come out as if the recipes had run on each."""
    labels, stamper = case.datapoint["attributes"], Stamper()
    for value in (case.datapoint["value_double"], 0.0, 7.0, 123456789.0):
        name, attributes, expected = by_recipes(case.metric["name"], labels, value)
        found = stamper.sample(point(case.metric["name"], value, **labels))
        if name not in USED or "tracecore.metric.blank" in attributes:
            assert found is None
            continue
        assert found is not None
        assert (found.series.name, found.value) == (name, pytest.approx(expected))
        # The host's name may be added from the scrape's own labels; nothing else is.
        assert {**found.series.attributes, "host.name": None} == {**attributes, "host.name": None}


def test_another_unit_of_nought_is_nought() -> None:
    found = Stamper().sample(point("DCGM_FI_DEV_GPU_UTIL", 0, gpu="0"))
    assert found is not None
    assert found.value == 0


def test_recipes_run_once_for_each_series(monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[object] = []
    monkeypatch.setattr(Processor, "process_metrics", lambda self, payload: ran.append(payload))
    stamper = Stamper([Processor({"metric_statements": []})])
    for value in range(100):
        stamper.sample(point("DCGM_FI_DEV_OTHER", value, gpu=str(value)))
    assert len(ran) == 1, "a name that nobody uses is known after one look"
    monkeypatch.setattr(Processor, "process_metrics", _rename(ran))
    for value in range(100):
        stamper.sample(point("DCGM_FI_DEV_GPU_TEMP", value, gpu="0"))
        stamper.sample(point("DCGM_FI_DEV_GPU_TEMP", value, gpu="1"))
    assert len(ran) == 3
    assert stamper.unused == 100


def _rename(ran: list[object]) -> Any:
    def process(self: Processor, payload: dict[str, Any]) -> None:
        ran.append(payload)
        payload["resource_metrics"][0]["scope_metrics"][0]["metrics"][0]["name"] = "hw.gpu.temperature"

    return process


def test_a_recipe_that_looks_at_values_sees_every_one() -> None:
    statements = [
        'set(metric.name, "hw.gpu.temperature")',
        'set(datapoint.attributes["hot"], true) where datapoint.value_double > 2.0',
    ]
    stamper = Stamper([Processor({"metric_statements": statements})])
    found = [stamper.sample(point("t", value, gpu="0")) for value in (1.0, 50.0, 1.5)]
    assert [one is not None and one.series.attributes.get("hot", False) for one in found] == [False, True, False]
    assert [one is not None and one.value for one in found] == [1.0, 50.0, 1.5]


@pytest.mark.parametrize("blank", [2147483632, 2147483635, 9223372036854775794, 140737488355328])
def test_blanks_are_not_measured(blank: float) -> None:
    stamper = Stamper()
    labels = {"gpu": "0", "UUID": "GPU-0"}
    assert stamper.sample(point("DCGM_FI_DEV_SM_CLOCK", blank, **labels)) is None
    assert stamper.blank == 1
    assert stamper.sample(point("DCGM_FI_DEV_SM_CLOCK", 1980, **labels)) is not None


@pytest.mark.parametrize(
    ("written", "labels", "name", "attributes"),
    [
        ("gen_ai_training_step", {"rank": "3"}, "gen_ai.training.step", {"gen_ai.training.rank": "3"}),
        ("hw_gpu_sdc_total", {"gpu_id": "0000:3b:00.0"}, "hw.gpu.sdc", {"gpu.id": "0000:3b:00.0"}),
        ("hw.gpu.temperature", {"gpu.id": "0000:3b:00.0"}, "hw.gpu.temperature", {"gpu.id": "0000:3b:00.0"}),
    ],
)
def test_our_own_names_as_prometheus_writes_them(
    written: str, labels: dict[str, str], name: str, attributes: dict[str, str]
) -> None:
    found = Stamper().sample(point(written, 5.0, **labels))
    assert found is not None
    assert (found.series.name, found.value) == (name, 5.0)
    assert found.series.attributes.items() >= attributes.items()


@pytest.mark.parametrize(
    ("labels", "node"),
    [
        ({"Hostname": "node-7", "instance": "10.0.0.7:9400"}, "node-7"),
        ({"instance": "node-8:9400"}, "node-8"),
        ({"instance": "localhost:9400"}, ""),
        ({"node": "node-9", "instance": "10.0.0.7:9400"}, "node-9"),
        ({}, ""),
    ],
)
def test_whose_machine_it_is(labels: dict[str, str], node: str) -> None:
    found = Stamper().sample(point("DCGM_FI_DEV_GPU_TEMP", 5.0, gpu="0", **labels))
    assert found is not None
    assert found.series.node == node


def test_cases_are_there() -> None:
    assert len(CASES) > 40
    assert Path(CASES[0].path).name == "metrics.cases.yaml"
