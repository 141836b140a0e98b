"""The recipes in the real OpenTelemetry Collector and here: the same records in, the same records out."""

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
from tracecore.recipes.plan import LayerPlan, prepare

pytestmark = pytest.mark.interop

HERE = Path(__file__).parent
FILES = tuple(dict.fromkeys(name for layer in recipes.FILES for name in recipes.FILES[layer]))
INCIDENTS = HERE.parents[1] / "examples" / "incidents"
#: Lines of recorded logs that go through every recipe of text, besides the cases.
MAX_RECORDED = 4000


def _module(name: str) -> Any:
    spec = importlib.util.spec_from_file_location(f"otelcol_{name}", HERE / "otelcol" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def collector() -> Path:
    program = _module("build").collector()
    if isinstance(program, str):
        pytest.skip(program)
    return Path(program)


def _recorded() -> list[str]:
    """Different lines of the recorded incidents."""
    lines: dict[str, None] = {}
    for path in sorted(INCIDENTS.glob("*/*")):
        if path.suffix in (".log", ".txt") and path.is_file():
            lines.update(dict.fromkeys(path.read_text(errors="replace").splitlines()))
    return [line for line in lines if line.strip()][:MAX_RECORDED]


def _log_payload(name: str) -> dict[str, Any]:
    cases = load_cases(cases_of(recipes.directory() / name))
    entries = [
        ({"attributes": dict(case.resource)}, {"body": case.body, "attributes": dict(case.attributes)})
        for case in cases
    ]
    entries += [({"attributes": {}}, {"body": line, "attributes": {}}) for line in _recorded()]
    return {
        "resource_logs": [
            {"resource": resource, "scope_logs": [{"scope": {}, "log_records": [log]}]} for resource, log in entries
        ]
    }


def _records(payload: dict[str, Any]) -> list[tuple[Any, Any]]:
    """(resource attributes, record) of a payload, what is empty left out."""
    return [
        (
            entry.get("resource", {}).get("attributes") or {},
            {key: value for key, value in log.items() if value not in (None, {}, "", 0, [])},
        )
        for entry in payload["resource_logs"]
        for scope in entry["scope_logs"]
        for log in scope["log_records"]
    ]


def test_every_record_is_the_same(
    collector: Path, tmp_path: Path, record_property: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    running = _module("running")
    loaded = {name: recipes.load_file(recipes.directory() / name) for name in FILES}
    texts = {name: found for name, found in loaded.items() if all(p.signal == "log" for p in found)}
    pipelines = [running.Pipeline(Path(name).stem, "logs", [p.name for p in found]) for name, found in texts.items()]
    payloads = {Path(name).stem: _log_payload(name) for name in texts}
    theirs = running.transformed(
        collector,
        [recipes.directory() / name for name in texts],
        pipelines,
        {name: encode(copy.deepcopy(payload)) for name, payload in payloads.items()},
        tmp_path,
    )
    count = 0
    for name, found in texts.items():
        stem = Path(name).stem
        expected = _records(decode(theirs[stem]))
        ours = decode(encode(copy.deepcopy(payloads[stem])))
        planned = copy.deepcopy(ours)
        for processor in found:
            Processor(processor.config()).process_logs(ours)
        plan = LayerPlan(prepare(found))
        for entry in planned["resource_logs"]:
            for scope in entry["scope_logs"]:
                for log in scope["log_records"]:
                    log.setdefault("attributes", {})
                    plan.run({"resource": entry["resource"], "scope": scope.get("scope", {}), "log": log})
        for mine in (ours, planned):
            got = _records(mine)
            assert len(got) == len(expected)
            for a, b in zip(got, expected, strict=True):
                assert a == b, f"{name}: {a[1].get('body')!r}"
        count += len(expected)
    record_property("records", count)
    with capsys.disabled():
        print(f"\n{count} records of {len(texts)} recipe files are equal to the Collector's")
    assert count > 1000
