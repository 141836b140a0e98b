"""Groups, their contexts, conditions and error modes; payloads of every signal."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracecore.ottl import Processor, parse, transform
from tracecore.ottl.errors import OttlCompileError, OttlError
from tracecore.ottl.inference import SIGNALS, infer_context, qualify
from tracecore.ottl.otlpjson import PayloadError, decode, decode_value, encode, encode_value, signal_of


def logs(*bodies: Any) -> dict[str, Any]:
    """A payload of one resource and scope."""
    records = [{"body": body, "attributes": {}} for body in bodies]
    scope = {"scope": {"name": "s"}, "log_records": records}
    return {"resource_logs": [{"schema_url": "u", "resource": {"attributes": {}}, "scope_logs": [scope]}]}


def attributes(payload: dict[str, Any]) -> list[Any]:
    """The attributes of each record."""
    return [
        record["attributes"]
        for resource in payload["resource_logs"]
        for scope in resource["scope_logs"]
        for record in scope["log_records"]
    ]


def test_a_flat_list_is_one_group_with_an_inferred_context() -> None:
    processor = Processor({"log_statements": ['set(log.attributes["a"], log.body)', 'set(log.attributes["b"], 1)']})
    assert [group.context for group in processor.groups["logs"]] == ["log"]
    assert attributes(processor.process_logs(logs("x", "y"))) == [{"a": "x", "b": 1}, {"a": "y", "b": 1}]


def test_groups_run_one_after_another_over_the_whole_payload() -> None:
    config = {
        "log_statements": [
            {"context": "log", "statements": ['set(resource.attributes["last"], body)']},
            {"context": "resource", "statements": ['set(attributes["seen"], attributes["last"])']},
            {"context": "log", "statements": ['set(attributes["seen"], resource.attributes["seen"])']},
        ]
    }
    payload = Processor(config).process_logs(logs("x", "y"))
    assert attributes(payload) == [{"seen": "y"}, {"seen": "y"}]


def test_any_condition_lets_a_group_run() -> None:
    group = {
        "conditions": ['log.body == "a"', 'log.body == "b"'],
        "statements": ['set(log.attributes["hit"], true)'],
    }
    payload = Processor({"log_statements": [group]}).process_logs(logs("a", "b", "c"))
    assert attributes(payload) == [{"hit": True}, {"hit": True}, {}]


def test_a_condition_that_fails_is_passed_over(caplog: pytest.LogCaptureFixture) -> None:
    group: dict[str, Any] = {
        "context": "log",
        "conditions": ["-body == 1", 'body == "a"'],
        "statements": ['set(attributes["hit"], true)'],
    }
    processor = Processor({"log_statements": [group]})
    with caplog.at_level(logging.WARNING, "tracecore.ottl"):
        assert attributes(processor.process_logs(logs("a", "b"))) == [{"hit": True}, {}]
    assert processor.failures == 2
    assert "failed to eval condition" in caplog.text
    strict = Processor({"log_statements": [{**group, "error_mode": "propagate"}]})
    with pytest.raises(OttlError, match="unary minus"):
        strict.process_logs(logs("a"))


@pytest.mark.parametrize(("mode", "logged"), [("ignore", True), ("silent", False)])
def test_a_statement_that_fails_is_passed_over(mode: str, logged: bool, caplog: pytest.LogCaptureFixture) -> None:
    config = {
        "error_mode": mode,
        "log_statements": [{"context": "log", "statements": ["set(severity_number, body)", 'set(attributes["b"], 1)']}],
    }
    processor = Processor(config)
    with caplog.at_level(logging.WARNING, "tracecore.ottl"):
        assert attributes(processor.process_logs(logs("x"))) == [{"b": 1}]
    assert processor.failures == 1
    assert ("failed to execute statement" in caplog.text) is logged


def test_propagate_raises_with_the_place_and_a_group_can_differ() -> None:
    failing = {"context": "log", "statements": ["set(severity_number, body)"]}
    with pytest.raises(OttlError) as caught:
        Processor({"error_mode": "propagate", "log_statements": [failing]}).process_logs(logs("x"))
    assert caught.value.line == 1
    lenient = Processor({"error_mode": "propagate", "log_statements": [{**failing, "error_mode": "silent"}]})
    lenient.process_logs(logs("x"))
    assert lenient.failures == 1


def test_transform_error_modes(caplog: pytest.LogCaptureFixture) -> None:
    record = {"log": {"body": "x"}}
    statements = ["set(severity_number, body)", 'set(attributes["b"], 1)']
    with pytest.raises(OttlError):
        transform(record, statements)
    assert transform(record, statements, error_mode="silent")["log"]["attributes"] == {"b": 1}
    assert not caplog.records
    assert transform(record, statements, error_mode="ignore")["log"]["attributes"] == {"b": 1}
    assert len(caplog.records) == 1
    with pytest.raises(ValueError, match="unknown error mode"):
        transform(record, statements, error_mode="loud")


def test_schema_urls_are_seen_and_stay_where_otlp_has_them() -> None:
    config = {
        "log_statements": [
            {"context": "resource", "statements": ['set(attributes["was"], schema_url)', 'set(schema_url, "new")']},
            {"context": "scope", "statements": ['set(schema_url, "scope")']},
        ]
    }
    entry = Processor(config).process_logs(logs("x"))["resource_logs"][0]
    assert entry["schema_url"] == "new"
    assert entry["resource"] == {"attributes": {"was": "u"}}
    assert entry["scope_logs"][0]["schema_url"] == "scope"
    assert entry["scope_logs"][0]["scope"] == {"name": "s"}


def test_a_cache_is_of_one_record_unless_it_is_shared() -> None:
    count = {"context": "log", "statements": ['set(attributes["before"], cache["last"])', 'set(cache["last"], body)']}
    payload = Processor({"log_statements": [count]}).process_logs(logs("x", "y"))
    assert [found.get("before") for found in attributes(payload)] == [None, None]
    payload = Processor({"log_statements": [{**count, "shared_cache": True}]}).process_logs(logs("x", "y"))
    assert [found.get("before") for found in attributes(payload)] == [None, "x"]


def test_signals_that_share_a_resource_are_one_payload() -> None:
    resource = {"attributes": {"n": 0}}
    signals = [{"resource": resource, "log": {"body": body, "attributes": {}}} for body in "ab"]
    config = {
        "log_statements": [
            {"context": "resource", "statements": ['set(attributes["n"], attributes["n"] + 1)']},
            {"context": "log", "statements": ['set(attributes["n"], resource.attributes["n"])']},
        ]
    }
    Processor(config).process_signals(signals)
    assert resource == {"attributes": {"n": 1}}
    assert [signal["log"]["attributes"] for signal in signals] == [{"n": 1}, {"n": 1}]


def test_metrics_and_their_data_points() -> None:
    payload = {
        "resource_metrics": [
            {
                "resource": {"attributes": {"host": "h"}},
                "scope_metrics": [
                    {"metrics": [{"name": "m", "gauge": {"data_points": [{"as_int": 1}, {"as_int": 2}]}}]}
                ],
            }
        ]
    }
    config = {
        "metric_statements": [
            'set(datapoint.attributes["host"], resource.attributes["host"]) where metric.name == "m"',
            "set(datapoint.value_int, datapoint.value_int * 10)",
        ]
    }
    processor = Processor(config)
    assert processor.groups["metrics"][0].context == "datapoint"
    points = processor.process_metrics(payload)["resource_metrics"][0]["scope_metrics"][0]["metrics"][0]["gauge"]
    assert points["data_points"] == [
        {"as_int": 10, "attributes": {"host": "h"}},
        {"as_int": 20, "attributes": {"host": "h"}},
    ]


def test_traces_and_their_events() -> None:
    span = {"name": "n", "events": [{"name": "e"}], "status": {"code": 2}}
    payload = {"resource_spans": [{"resource": {}, "scope_spans": [{"spans": [span]}]}]}
    config = {
        "trace_statements": [
            {"context": "span", "statements": ['set(name, "error") where status.code == STATUS_CODE_ERROR']},
            {"context": "spanevent", "statements": ["set(name, span.name)"]},
        ]
    }
    Processor(config).process_traces(payload)
    assert span["name"] == "error"
    assert span["events"] == [{"name": "error"}]


@pytest.mark.parametrize(
    ("statements", "signal", "context"),
    [
        (['set(resource.attributes["a"], 1)'], "logs", "resource"),
        (['set(scope.name, "a")'], "logs", "scope"),
        (['set(instrumentation_scope.name, "a")'], "logs", "scope"),
        (['set(resource.attributes["a"], log.body)'], "logs", "log"),
        (['set(resource.attributes["a"], 1)', 'set(log.body, "x")'], "logs", "log"),
        (['set(metric.unit, datapoint.attributes["unit"])'], "metrics", "datapoint"),
        (['set(span.name, "x") where spanevent.name == "y"'], "traces", "spanevent"),
        (['set(resource.attributes["a"], SEVERITY_NUMBER_INFO)'], "logs", "log"),
    ],
)
def test_inference(statements: list[str], signal: str, context: str) -> None:
    assert infer_context([parse(text) for text in statements], SIGNALS[signal]) == context


@pytest.mark.parametrize(
    ("statement", "signal", "message"),
    [
        ('set(attributes["a"], 1)', "logs", "unable to infer context"),
        ('set(span.name, "a")', "logs", 'context "span" inferred'),
        ("set(log.body, NO_SUCH_SYMBOL)", "logs", 'does not support the enum symbol "NO_SUCH_SYMBOL"'),
        ("sett(log.body, 1)", "logs", 'does not support the function "sett" (did you mean "set"?)'),
    ],
)
def test_inference_that_fails(statement: str, signal: str, message: str) -> None:
    with pytest.raises(OttlCompileError) as caught:
        infer_context([parse(statement)], SIGNALS[signal])
    assert message in str(caught.value)


def test_qualify_puts_the_context_before_each_path() -> None:
    text = 'set(attributes["a"], resource.attributes[body]) where Len([x, log.y]) == 1'
    assert qualify(text, parse(text), "log") == (
        'set(log.attributes["a"], resource.attributes[log.body]) where Len([log.x, log.y]) == 1'
    )


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"log_statement": []}, 'did you mean "log_statements"?'),
        ({"log_statements": "set(log.body, 1)"}, "must be a list"),
        ({"log_statements": ["set(log.body, 1)", {"statements": []}]}, "not both"),
        ({"log_statements": [{"statement": []}]}, r"log_statements\[0\]"),
        ({"log_statements": [{"context": "log", "statements": "x"}]}, "must be a list of strings"),
        ({"log_statements": [{"context": "log", "statements": [1]}]}, "must be a list of strings"),
        ({"log_statements": [1]}, "must be a statement or a group"),
        ({"error_mode": "loud"}, "unknown error mode"),
        ({"log_statements": [{"context": "span", "statements": []}]}, None),
        ({"log_statements": [{"context": "lgo", "statements": []}]}, None),
    ],
)
def test_wrong_configurations(config: dict[str, Any], message: str | None) -> None:
    with pytest.raises(OttlCompileError if message is None else ValueError, match=message):
        Processor(config)


plain_values = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(-(2**63), 2**63 - 1),
        st.floats(allow_nan=False, allow_infinity=False),
        st.text(max_size=5),
        st.binary(max_size=5),
    ),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)


@given(plain_values)
def test_values_survive_otlp_json(value: Any) -> None:
    assert decode_value(encode_value(value)) == value


@given(st.dictionaries(st.text(max_size=4), plain_values, max_size=3), plain_values)
def test_payloads_survive_otlp_json(found: dict[str, Any], body: Any) -> None:
    payload = logs(body)
    payload["resource_logs"][0]["scope_logs"][0]["log_records"][0].update(
        attributes=found, time_unix_nano=2**63, severity_number=9
    )
    assert decode(encode(payload)) == payload


def test_otlp_json_spelling() -> None:
    document = {
        "resourceLogs": [
            {
                "resource": {"attributes": [{"key": "k", "value": {"intValue": "5"}}]},
                "scopeLogs": [
                    {
                        "logRecords": [
                            {"timeUnixNano": "7", "body": {"stringValue": "b"}, "traceId": "", "attributes": []}
                        ]
                    }
                ],
            }
        ]
    }
    assert signal_of(document) == "logs"
    payload = decode(document)
    assert payload["resource_logs"][0]["resource"] == {"attributes": {"k": 5}}
    record = payload["resource_logs"][0]["scope_logs"][0]["log_records"][0]
    assert record == {"time_unix_nano": 7, "body": "b", "trace_id": "", "attributes": {}}
    assert encode(payload) == document


@pytest.mark.parametrize(
    "value", [{"stringValue": "a", "intValue": "1"}, {"intValue": "x"}, {"bytesValue": "***"}, {"odd": 1}, "text"]
)
def test_values_that_are_none(value: Any) -> None:
    with pytest.raises(PayloadError):
        decode_value(value)


def test_zero_values_may_be_left_out() -> None:
    assert decode_value({"kvlistValue": {"values": [{"value": {"arrayValue": {}}}, {"key": "k"}]}}) == {
        "": [],
        "k": None,
    }


@pytest.mark.parametrize("held", [{"kvlistValue": {"values": [1]}}, {"arrayValue": {"values": 1}}])
def test_lists_that_are_none(held: Any) -> None:
    with pytest.raises(PayloadError):
        decode_value(held)


def test_deep_payloads_are_refused() -> None:
    value: Any = {"stringValue": "x"}
    for _ in range(200):
        value = {"arrayValue": {"values": [value]}}
    with pytest.raises(PayloadError, match="deeper"):
        decode_value(value)


def metrics(*names: str) -> dict[str, Any]:
    points = {"data_points": [{"as_int": 3, "attributes": {}}], "aggregation_temporality": 2, "is_monotonic": True}
    listed = [{"name": name, "sum": {**points}} for name in names]
    return {"resource_metrics": [{"resource": {}, "scope_metrics": [{"scope": {}, "metrics": listed}]}]}


def test_metrics_that_statements_add_are_in_the_output() -> None:
    processor = Processor({"metric_statements": ['copy_metric(name="copy") where metric.name == "jobs"']})
    payload = processor.process_metrics(metrics("jobs", "other"))
    listed = payload["resource_metrics"][0]["scope_metrics"][0]["metrics"]
    assert [metric["name"] for metric in listed] == ["jobs", "other", "copy"]


def test_metrics_that_beget_themselves_are_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tracecore.ottl.processor.MOST_ADDED", 50)
    processor = Processor({"metric_statements": [{"context": "metric", "statements": ["copy_metric()"]}]})
    with pytest.raises(OttlError, match="where clause"):
        processor.process_metrics(metrics("jobs"))
