"""`include` and `exclude` of filter and attributes, filter's conditions without a place, and batches of a queue."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tracecore.agent.batch import Batch
from tracecore.agent.component import Setting
from tracecore.agent.configuration import ConfigurationError, read
from tracecore.agent.document import ConfigReport, Node
from tracecore.agent.options import decode
from tracecore.agent.processors import attributes, filter
from tracecore.agent.processors.matching import Severity
from tracecore.agent.telemetry import Meter


def setting() -> Setting:
    return Setting("p", Meter("processor", "p"), lambda: 0, {}.__getitem__, Path(), lambda: (True, {}))


def options(kind: Any, values: dict[str, Any]) -> Any:
    report = ConfigReport()

    def node(value: Any) -> Node:
        if isinstance(value, dict):
            return Node({name: node(child) for name, child in value.items()}, "f", 1, 1)
        if isinstance(value, list):
            return Node([node(child) for child in value], "f", 1, 1)
        return Node(value, "f", 1, 1, raw=str(value))

    made = decode(node(values), kind, report, Node(None, "f", 1, 1))
    assert not report.problems, report.problems
    return made


def logs() -> Batch:
    def entry(service: str, records: list[dict[str, Any]]) -> dict[str, Any]:
        resource = {"attributes": {"service.name": service, "zone": "a"}}
        return {
            "resource": resource,
            "scope_logs": [{"scope": {"name": "lib", "version": "1"}, "log_records": records}],
        }

    records = [
        {"body": "step 1", "severity_number": 9, "severity_text": "INFO", "attributes": {"rank": 0}},
        {"body": "GET /healthz", "severity_number": 5, "severity_text": "DEBUG", "attributes": {"rank": 1}},
        {"body": "no level", "attributes": {"team": "vision"}},
    ]
    return Batch("logs", {"resource_logs": [entry("train", records), entry("serve", [{"body": "other"}])]})


def bodies(batches: Any) -> list[str]:
    return [
        record["body"]
        for batch in batches
        for entry in batch.payload["resource_logs"]
        for scope in entry["scope_logs"]
        for record in scope["log_records"]
    ]


ALL = ["step 1", "GET /healthz", "no level", "other"]


@pytest.mark.parametrize(
    ("values", "kept"),
    [
        ({"log_conditions": ['IsMatch(body, "healthz")', 'log.attributes["rank"] == 0']}, ["no level", "other"]),
        ({"logs": {"log_record": ['body == "other"']}, "log_conditions": ['body == "no level"']}, ALL[:2]),
        ({"logs": {"exclude": {"match_type": "regexp", "bodies": ["^GET "]}}}, ["step 1", "no level", "other"]),
        ({"logs": {"include": {"match_type": "strict", "severity_texts": ["INFO", "WARN"]}}}, ["step 1"]),
        ({"logs": {"include": {"match_type": "strict", "severity_number": {"min": "INFO"}}}}, ["step 1"]),
        (
            {
                "logs": {
                    "exclude": {"match_type": "strict", "severity_number": {"min": "INFO", "match_undefined": True}}
                }
            },
            ["GET /healthz"],
        ),
        ({"logs": {"include": {"match_type": "strict", "record_attributes": [{"key": "rank", "value": 1}]}}}, [ALL[1]]),
        ({"logs": {"include": {"match_type": "strict", "record_attributes": [{"key": "rank"}]}}}, ALL[:2]),
        (
            {
                "logs": {
                    "exclude": {
                        "match_type": "strict",
                        "resource_attributes": [{"key": "service.name", "value": "train"}],
                    }
                }
            },
            ["other"],
        ),
        (
            {
                "logs": {
                    "include": {"match_type": "regexp", "resource_attributes": [{"key": "zone", "value": "^[ab]$"}]},
                    "exclude": {"match_type": "strict", "bodies": ["other"]},
                }
            },
            ALL[:3],
        ),
    ],
)
def test_filter(values: dict[str, Any], kept: list[str]) -> None:
    assert bodies(filter.FilterProcessor(options(filter.Options, values), setting()).process(logs())) == kept


def metrics() -> Batch:
    def metric(name: str, pod: str) -> dict[str, Any]:
        return {"name": name, "gauge": {"data_points": [{"attributes": {"pod": pod}}]}}

    held = [metric("up", "a"), metric("dcgm_temp", "a"), metric("dcgm_temp", "b")]
    return Batch("metrics", {"resource_metrics": [{"resource": {}, "scope_metrics": [{"metrics": held}]}]})


@pytest.mark.parametrize(
    ("values", "left"),
    [
        ({"metrics": {"include": {"match_type": "regexp", "metric_names": ["^dcgm_"]}}}, 2),
        ({"metrics": {"exclude": {"match_type": "strict", "metric_names": ["up"]}}}, 2),
        ({"metric_conditions": ['metric.name == "up"', 'datapoint.attributes["pod"] == "b"']}, 1),
    ],
)
def test_filter_of_metrics(values: dict[str, Any], left: int) -> None:
    (batch,) = filter.FilterProcessor(options(filter.Options, values), setting()).process(metrics())
    assert batch.count == left


@pytest.mark.parametrize(
    ("match", "changed"),
    [
        ({"include": {"match_type": "strict", "services": ["train"]}}, ALL[:3]),
        ({"include": {"match_type": "regexp", "services": ["^s"]}}, ["other"]),
        ({"exclude": {"match_type": "strict", "attributes": [{"key": "rank", "value": 0}]}}, ALL[1:]),
        ({"include": {"match_type": "strict", "libraries": [{"name": "lib", "version": "2"}]}}, []),
        ({"include": {"match_type": "regexp", "log_bodies": ["o"]},
          "exclude": {"match_type": "strict", "services": ["serve"]}}, ["no level"]),
    ],
)  # fmt: skip
def test_attributes(match: dict[str, Any], changed: list[str]) -> None:
    values = {"actions": [{"key": "seen", "action": "insert", "value": True}], **match}
    (batch,) = attributes.RecordAttributes(options(attributes.Options, values), setting()).process(logs())
    found = [
        record["body"]
        for entry in batch.payload["resource_logs"]
        for scope in entry["scope_logs"]
        for record in scope["log_records"]
        if (record.get("attributes") or {}).get("seen")
    ]
    assert found == changed


@pytest.mark.parametrize(("text", "number"), [("INFO", 9), ("warn2", 14), ("FATAL4", 24), (13, 13), ("LOUD", None)])
def test_severities(text: Any, number: int | None) -> None:
    assert Severity(min=text).number == number


@pytest.mark.parametrize(
    ("processor", "wrong"),
    [
        ("filter: {logs: {include: {match_type: strict}}}", "nothing to match"),
        ("filter: {logs: {exclude: {match_type: regexp, bodies: ['(']}}}", "not a regular expression"),
        ("filter: {log_conditions: ['IsMatch(body']}", ""),
        ("filter: {logs: {include: {match_type: strict, severity_number: {min: LOUD}}}}", "expected a severity"),
    ],
)
def test_mistakes(tmp_path: Path, processor: str, wrong: str) -> None:
    path = tmp_path / "agent.yaml"
    name = processor.partition(":")[0]
    path.write_text(
        f"receivers: {{nop: }}\nprocessors:\n  {processor}\nexporters: {{nop: }}\n"
        f"service: {{pipelines: {{logs: {{receivers: [nop], processors: [{name}], exporters: [nop]}}}}}}\n"
    )
    with pytest.raises(ConfigurationError) as caught:
        read([path], {})
    assert len(caught.value.problems) == 1
    assert wrong in caught.value.problems[0].message


def test_an_exporter_collects_small_batches(
    agent: Callable[[str], Any], sink: Any, wait_for: Any, request_of: Any, tmp_path: Path
) -> None:
    running = agent(
        'receivers: {otlp: {protocols: {http: {endpoint: "127.0.0.1:0"}}}}\n'
        f"exporters:\n  otlp_http:\n    endpoint: http://127.0.0.1:{sink.port}\n    sending_queue:\n"
        "      batch: {flush_timeout: 400ms, min_size: 50, max_size: 50}\n"
        'service:\n  telemetry: {metrics: {address: "127.0.0.1:0"}}\n'
        "  pipelines: {logs: {receivers: [otlp], exporters: [otlp_http]}}\n"
    )
    for number in range(12):
        lines = [f"line {number}.{n}" for n in range(10)]
        assert running.send(lines)[0] == 200
    wait_for(lambda: len(sink.bodies) == 120)
    assert len(set(sink.bodies)) == 120
    assert len(sink.requests) <= 5
    assert running.send(["the last"])[0] == 200
    assert running.stop() == 0
    assert sink.bodies[-1] == "the last"
    assert msgspec.json.encode(request_of(["x"]))
