"""The metrics recipes in the real OpenTelemetry Collector and here: the same points in, the same points out."""

from __future__ import annotations

import copy
import importlib.util
from pathlib import Path
from typing import Any

import pytest

from tracecore import recipes
from tracecore.ottl.otlpjson import decode, encode
from tracecore.ottl.processor import Processor
from tracecore.recipes.cases import cases_of, load_cases

pytestmark = pytest.mark.interop

HERE = Path(__file__).parent
FILE = recipes.directory() / "metrics.yaml"


def _module(name: str) -> Any:
    spec = importlib.util.spec_from_file_location(f"otelcol_{name}", HERE.parent / "otelcol" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _entry(name: str, attributes: dict[str, Any], value: dict[str, Any], kind: str) -> dict[str, Any]:
    data: dict[str, Any] = {
        "data_points": [{"attributes": attributes, "time_unix_nano": 1_794_700_800 * 10**9, **value}]
    }
    if kind == "sum":
        data |= {"aggregation_temporality": 2, "is_monotonic": True}
    metric = {"name": name, kind: data}
    return {"resource": {"attributes": {}}, "scope_metrics": [{"scope": {}, "metrics": [metric]}]}


def _payload(shared: Path | None) -> dict[str, Any]:
    """Every case, as a gauge and as a sum; and every line of other people's scrapes."""
    entries = []
    for case in load_cases(cases_of(FILE)):
        if case.metric is None or case.datapoint is None:
            continue
        value = {k.replace("value_", "as_"): v for k, v in case.datapoint.items() if k.startswith("value_")}
        attributes = case.datapoint["attributes"]
        entries += [_entry(case.metric["name"], dict(attributes), value, kind) for kind in ("gauge", "sum")]
    if shared is not None:
        from tracecore.signals.metrics.prometheus import parse

        lines = (shared / "peers" / "dcgm" / "samples.prom").read_text().splitlines()
        samples = [parse(line) for line in lines if line and not line.startswith("#")]
        entries += [_entry(one[0], dict(one[1]), {"as_double": one[2]}, "gauge") for one in samples if one is not None]
    return {"resource_metrics": entries}


def _points(payload: dict[str, Any]) -> list[Any]:
    found = []
    for entry in payload["resource_metrics"]:
        for scope in entry["scope_metrics"]:
            for metric in scope["metrics"]:
                (kind,) = {"gauge", "sum"} & metric.keys()
                for point in metric[kind]["data_points"]:
                    kept = {k: v for k, v in point.items() if v not in (None, 0, {}, "")}
                    if "as_double" in kept:
                        kept["as_double"] = float(kept["as_double"])  # JSON has whole numbers without a point
                    found.append((metric["name"], metric.get("unit") or "", kind, kept))
    return found


def test_every_point_is_the_same(tmp_path: Path, shared_data: Path) -> None:
    program = _module("build").collector()
    if isinstance(program, str):
        pytest.skip(program)
    running = _module("running")
    loaded = recipes.load_file(FILE)
    payload = _payload(shared_data)
    pipeline = running.Pipeline("metrics", "metrics", [processor.name for processor in loaded])
    theirs = running.transformed(
        Path(program), [FILE], [pipeline], {"metrics": encode(copy.deepcopy(payload))}, tmp_path
    )["metrics"]
    ours = decode(encode(copy.deepcopy(payload)))
    for processor in loaded:
        Processor(processor.config()).process_metrics(ours)
    got, expected = _points(ours), _points(decode(theirs))
    assert len(got) == len(expected) > 150
    for mine, other in zip(got, expected, strict=True):
        assert mine == other
