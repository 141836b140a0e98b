"""`filter` and `attributes` with the options that configurations in use have: the same records as the Collector's."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from tracecore.agent.batch import Batch
from tracecore.agent.component import Setting
from tracecore.agent.configuration import read
from tracecore.agent.telemetry import Meter
from tracecore.ottl.otlpjson import decode

pytestmark = pytest.mark.interop
HERE = Path(__file__).parent

CASES: dict[str, dict[str, Any]] = {
    "filter/conditions": {"error_mode": "ignore",
                          "log_conditions": ['IsMatch(log.body, "healthz")', 'log.attributes["rank"] == 0']},
    "filter/bodies": {"logs": {"exclude": {"match_type": "regexp", "bodies": ["^GET "]}}},
    "filter/levels": {"logs": {"include": {"match_type": "strict", "severity_texts": ["INFO", "WARN"]}}},
    "filter/least": {"logs": {"include": {"match_type": "strict", "severity_number": {"min": "INFO"}}}},
    "filter/undefined": {"logs": {"exclude": {
        "match_type": "strict", "severity_number": {"min": "WARN", "match_undefined": True}}}},
    "filter/attributes": {"logs": {"include": {
        "match_type": "strict", "record_attributes": [{"key": "rank", "value": 1}]}}},
    "filter/any": {"logs": {"include": {"match_type": "strict", "record_attributes": [{"key": "rank"}]}}},
    "filter/resource": {"logs": {"exclude": {
        "match_type": "strict", "resource_attributes": [{"key": "service.name", "value": "train"}]}}},
    "filter/both": {"logs": {
        "include": {"match_type": "regexp", "resource_attributes": [{"key": "zone", "value": "^[ab]$"}]},
        "exclude": {"match_type": "strict", "bodies": ["other"]}}},
    "filter/two": {"logs": {"include": {"match_type": "regexp", "record_attributes": [
        {"key": "team", "value": "vis"}, {"key": "rank", "value": "2"}]}}},
    "attributes/service": {"actions": [{"key": "seen", "action": "insert", "value": True}],
                           "include": {"match_type": "strict",
                                       "resources": [{"key": "service.name", "value": "train"}]}},
    "attributes/pattern": {"actions": [{"key": "seen", "action": "insert", "value": 1}],
                           "include": {"match_type": "regexp",
                                       "resources": [{"key": "service.name", "value": "^[st]"}]},
                           "exclude": {"match_type": "regexp", "log_bodies": ["level"]}},
    "attributes/without": {"actions": [{"key": "rank", "action": "delete"}],
                           "exclude": {"match_type": "strict", "attributes": [{"key": "rank", "value": 0}]}},
    "attributes/library": {"actions": [{"key": "seen", "action": "insert", "value": "x"}],
                           "include": {"match_type": "strict", "libraries": [{"name": "lib", "version": "1"}]}},
    "attributes/severity": {"actions": [{"key": "seen", "action": "insert", "value": "x"}],
                            "include": {"match_type": "strict", "log_severity_texts": ["DEBUG"]}},
}  # fmt: skip


def module(name: str) -> Any:
    spec = importlib.util.spec_from_file_location(f"otelcol_{name}", HERE / "otelcol" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


def text(value: str) -> dict[str, Any]:
    return {"stringValue": value}


def payload() -> dict[str, Any]:
    def entry(service: str, zone: str, version: str, records: list[dict[str, Any]]) -> dict[str, Any]:
        named = {"service.name": service, "zone": zone}
        attributes = [{"key": key, "value": text(value)} for key, value in named.items()]
        scope = {"name": "lib", "version": version}
        return {"resource": {"attributes": attributes}, "scopeLogs": [{"scope": scope, "logRecords": records}]}

    def record(body: str, number: int = 0, level: str = "", **attributes: dict[str, Any]) -> dict[str, Any]:
        made: dict[str, Any] = {"body": text(body), "timeUnixNano": "1794706624000000000"}
        made |= {"severityNumber": number} if number else {}
        made |= {"severityText": level} if level else {}
        return {**made, "attributes": [{"key": key, "value": value} for key, value in attributes.items()]}

    train = [
        record("step 1", 9, "INFO", rank={"intValue": "0"}),
        record("GET /healthz", 5, "DEBUG", rank={"intValue": "1"}),
        record("no level", team=text("vision")),
        record("warned", 13, "WARN", team=text("vision"), rank={"intValue": "2"}),
    ]
    other = [record("other"), record("step 2", 9, "INFO")]
    return {"resourceLogs": [entry("train", "a", "1", train), entry("serve", "c", "2", other)]}


def shown(document: Any) -> list[str]:
    """Bodies and attributes of what is left, in order."""
    made = decode(document) if "resourceLogs" in document else document
    return [
        json.dumps([record.get("body"), record.get("attributes") or {}], sort_keys=True)
        for entry in made.get("resource_logs") or ()
        for scope in entry.get("scope_logs") or ()
        for record in scope.get("log_records") or ()
    ]


def test_the_same_records(tmp_path: Path) -> None:
    program = module("build").collector()
    if isinstance(program, str):
        pytest.skip(program)
    running = module("running")
    config = tmp_path / "processors.yaml"
    with config.open("w") as file:
        YAML(typ="safe").dump({"processors": CASES}, file)
    pipelines = [running.Pipeline(f"p{number}", "logs", [name]) for number, name in enumerate(CASES)]
    theirs = running.transformed(Path(program), [config], pipelines, {p.name: payload() for p in pipelines}, tmp_path)
    whole = tmp_path / "agent.yaml"
    with whole.open("w") as file:
        pipeline = {"receivers": ["nop"], "processors": list(CASES), "exporters": ["nop"]}
        service = {"pipelines": {"logs": pipeline}}
        YAML(typ="safe").dump(
            {"receivers": {"nop": None}, "processors": CASES, "exporters": {"nop": None}, "service": service}, file
        )
    configuration, _ = read([whole], {})
    for number, name in enumerate(CASES):
        component = configuration.of("processor")[name]
        setting = Setting(name, Meter("processor", name), lambda: 0, {}.__getitem__, tmp_path, lambda: (True, {}))
        made = component.factory.create(component.options, setting)
        ours = [line for batch in made.process(Batch("logs", decode(payload()))) for line in shown(batch.payload)]
        assert ours == shown(theirs[f"p{number}"] or {"resourceLogs": []}), name
