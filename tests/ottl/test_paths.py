"""Where paths lead, in every context, when read and when set."""

from __future__ import annotations

from typing import Any

import pytest

from tracecore.ottl import evaluate, transform
from tracecore.ottl.contexts import CONTEXTS, FIELDS
from tracecore.ottl.errors import OttlCompileError, OttlError, OttlTypeError
from tracecore.ottl.values import SpanID, Time, TraceID

LOG: dict[str, Any] = {
    "resource": {"attributes": {"host": "h"}, "schema_url": "r"},
    "scope": {"name": "s", "version": "1", "attributes": {"a": 1}},
    "log": {
        "body": {"m": {"k": ["v", {"x": 1}]}},
        "attributes": {"a": {"b": [10, 20]}, "n": None, "s": "text", "key": "a", "one": 1},
        "time_unix_nano": 1_581_452_772_000_000_321,
        "severity_number": 9,
        "trace_id": "0102030405060708090a0b0c0d0e0f10",
    },
}


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("body", LOG["log"]["body"]),
        ('body["m"]["k"][1]["x"]', 1),
        ("body.string", '{"m":{"k":["v",{"x":1}]}}'),
        ("log.body.string", '{"m":{"k":["v",{"x":1}]}}'),
        ('attributes["a"]["b"][1]', 20),
        ('attributes["a"]["nope"]', None),
        ('attributes["nope"]["deeper"]', None),
        ('attributes[attributes["key"]]["b"][attributes["one"]]', 20),
        ('attributes[attributes["key"]]["b"][attributes["one"] - 1]', 10),
        ('attributes["n"]', None),
        ("time", Time(1_581_452_772_000_000_321)),
        ("time_unix_nano", 1_581_452_772_000_000_321),
        ("observed_time", Time(0)),
        ("observed_time_unix_nano", 0),
        ("severity_number", 9),
        ("severity_text", ""),
        ("flags", 0),
        ("event_name", ""),
        ("dropped_attributes_count", 0),
        ("trace_id", TraceID(bytes(range(1, 17)))),
        ("trace_id.string", "0102030405060708090a0b0c0d0e0f10"),
        ("span_id", SpanID(8)),
        ("span_id.string", "0000000000000000"),
        ('resource.attributes["host"]', "h"),
        ("resource.schema_url", "r"),
        ("instrumentation_scope.name", "s"),
        ("scope.version", "1"),
        ('scope.attributes["a"]', 1),
        ("cache", {}),
        ("SEVERITY_NUMBER_FATAL4", 24),
        ("SEVERITY_NUMBER_TRACE", 1),
        ("SEVERITY_NUMBER_UNSPECIFIED", 0),
    ],
)
def test_reading_a_log(path: str, value: Any) -> None:
    result = evaluate(LOG, path)
    assert result == value
    assert type(result) is type(value)


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ('attributes["s"]["x"]', "type Str does not support string indexing"),
        ('attributes["n"]["x"]', "type Empty does not support string indexing"),
        ('attributes["a"]["b"][2]', "index 2 out of bounds"),
        ('attributes["a"]["b"][-1]', "index -1 out of bounds"),
        ('attributes["a"]["b"]["0"]', "unable to resolve an integer index in slice: invalid key type"),
        ("attributes[0]", "unable to resolve a string index in map: invalid key type"),
        ('attributes[attributes["one"]]', "expecting 'string' but got 'int64'"),
        ('attributes["a"]["b"][attributes["s"]]', "expecting 'int64' but got 'string'"),
        ('body["m"]["k"]["x"]', "invalid key type"),
    ],
)
def test_reading_what_cannot_be_indexed(path: str, message: str) -> None:
    with pytest.raises(OttlTypeError if "bounds" not in message else OttlError) as caught:
        evaluate(LOG, path)
    assert message in caught.value.message


def changed(statement: str, part: str = "log", context: str = "log", record: dict[str, Any] | None = None) -> Any:
    """The part of a record after a statement."""
    return transform(LOG if record is None else record, statement, context)[part]


@pytest.mark.parametrize(
    ("statement", "name", "value"),
    [
        ('set(body, "x")', "body", "x"),
        ('set(body, {"a": [1, 2.5, nil]})', "body", {"a": [1, 2.5, None]}),
        ('set(body["m"]["k"][0], 7)', "body", {"m": {"k": [7, {"x": 1}]}}),
        ('set(body["new"]["deep"], 1)', "body", {"m": {"k": ["v", {"x": 1}]}, "new": {"deep": 1}}),
        ('set(body.string, "x")', "body", "x"),
        ("set(time_unix_nano, 5)", "time_unix_nano", 5),
        ("set(observed_time, time)", "observed_time_unix_nano", 1_581_452_772_000_000_321),
        ("set(severity_number, SEVERITY_NUMBER_ERROR)", "severity_number", 17),
        ('set(severity_text, "ERROR")', "severity_text", "ERROR"),
        ("set(flags, 4294967297)", "flags", 1),
        ('set(span_id.string, "0102030405060708")', "span_id", "0102030405060708"),
        ('set(trace_id.string, "00000000000000000000000000000000")', "trace_id", ""),
        ('set(event_name, "e")', "event_name", "e"),
        ("set(dropped_attributes_count, 3)", "dropped_attributes_count", 3),
        ("set(attributes, {})", "attributes", {}),
    ],
)
def test_setting_a_log(statement: str, name: str, value: Any) -> None:
    assert changed(statement)[name] == value


def test_setting_makes_maps_and_lists_on_the_way() -> None:
    assert changed('set(attributes["x"]["y"][2]["z"], 1)')["attributes"]["x"] == {"y": [None, None, {"z": 1}]}
    assert changed('set(attributes["n"]["y"], 1)')["attributes"]["n"] == {"y": 1}


def test_setting_copies_what_it_stores() -> None:
    result = transform(LOG, ['set(attributes["copy"], attributes["a"])', 'set(attributes["copy"]["b"][0], "changed")'])[
        "log"
    ]["attributes"]
    assert result["a"] == {"b": [10, 20]}
    assert result["copy"] == {"b": ["changed", 20]}


def test_a_literal_is_not_shared_between_records() -> None:
    statements = ['set(attributes["m"], {"list": []})', 'set(attributes["m"]["x"], body)']
    first = transform({"log": {"body": "1"}}, statements)
    second = transform({"log": {"body": "2"}}, statements)
    assert first["log"]["attributes"]["m"] == {"list": [], "x": "1"}
    assert second["log"]["attributes"]["m"] == {"list": [], "x": "2"}


@pytest.mark.parametrize(
    ("statement", "message"),
    [
        ('set(severity_number, "x")', "expects int64 but got string"),
        ("set(severity_text, 1)", "expects string but got int64"),
        ("set(time, 1)", "expects time.Time but got int64"),
        ("set(trace_id, 0x0102)", "expects pcommon.TraceID but got []uint8"),
        ('set(trace_id.string, "00")', "trace ids must be 32 hex characters"),
        ('set(span_id.string, "zzzzzzzzzzzzzzzz")', "not a hex id"),
        ("set(attributes, 1)", "unsupported type provided for setting a pcommon.Map: int64"),
        ('set(attributes["t"], time)', "unsupported type time.Time for set operation"),
        ('set(attributes["t"], trace_id)', "unsupported type pcommon.TraceID for set operation"),
        ('set(attributes["s"]["x"], 1)', "type Str does not support string indexing"),
        ('set(attributes["a"]["b"][5], 1)', "index 5 out of bounds"),
        ('set(attributes["new"][100000000], 1)', "at most 10000 items"),
    ],
)
def test_setting_what_does_not_fit(statement: str, message: str) -> None:
    with pytest.raises(OttlError) as caught:
        transform(LOG, statement)
    assert message in caught.value.message
    assert (caught.value.line, caught.value.column) == (1, 1)


def test_a_body_that_is_no_map_cannot_be_indexed() -> None:
    with pytest.raises(OttlError, match="log bodies of type Str cannot be indexed"):
        transform({"log": {"body": "text"}}, 'set(body["a"], 1)')


def test_the_cache_lives_as_long_as_the_record() -> None:
    statements = ['set(cache["a"]["b"], body)', 'set(attributes["out"], cache["a"]["b"])', "set(cache, {})"]
    result = transform({"log": {"body": "x"}}, [*statements, 'set(attributes["gone"], "yes") where cache["a"] == nil'])
    assert result == {"log": {"body": "x", "attributes": {"out": "x", "gone": "yes"}}}


def test_resource_and_scope_contexts() -> None:
    assert changed('set(attributes["x"], 1)', "resource", "resource")["attributes"] == {"host": "h", "x": 1}
    assert changed('set(schema_url, "n")', "resource", "resource")["schema_url"] == "n"
    assert changed("set(name, resource.schema_url)", "scope", "scope")["name"] == "r"
    assert changed('set(scope.attributes["x"], version)', "scope", "scope")["attributes"] == {"a": 1, "x": "1"}


SPAN: dict[str, Any] = {
    "span": {
        "name": "n",
        "kind": 2,
        "trace_state": "a=1,b=2",
        "start_time_unix_nano": 1,
        "end_time_unix_nano": 4,
        "status": {"code": 2, "message": "bad"},
        "events": [{"name": "e"}],
        "attributes": {},
    }
}


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("name", "n"),
        ("span.name", "n"),
        ("kind", 2),
        ("kind.string", "Server"),
        ("kind.deprecated_string", "SPAN_KIND_SERVER"),
        ("kind == SPAN_KIND_SERVER", None),
        ("status.code", 2),
        ("status.message", "bad"),
        ("STATUS_CODE_ERROR", 2),
        ("trace_state", "a=1,b=2"),
        ('trace_state["b"]', "2"),
        ('trace_state["c"]', ""),
        ("end_time_unix_nano - start_time_unix_nano", 3),
        ("events", [{"name": "e"}]),
        ("links", []),
        ("dropped_links_count", 0),
        ("parent_span_id.string", "0" * 16),
    ],
)
def test_reading_a_span(path: str, value: Any) -> None:
    if value is None:
        with pytest.raises(OttlError):
            evaluate(SPAN, path, "span")
    else:
        assert evaluate(SPAN, path, "span") == value


@pytest.mark.parametrize(
    ("statement", "name", "value"),
    [
        ('set(kind.string, "Client")', "kind", 3),
        ('set(kind.deprecated_string, "SPAN_KIND_PRODUCER")', "kind", 4),
        ("set(status.code, STATUS_CODE_OK)", "status", {"code": 1, "message": "bad"}),
        ('set(status.message, "x")', "status", {"code": 2, "message": "x"}),
        ('set(trace_state["b"], "3")', "trace_state", "b=3,a=1"),
        ('set(trace_state["new"], "3")', "trace_state", "new=3,a=1,b=2"),
        ('set(trace_state["BAD"], "3")', "trace_state", "a=1,b=2"),
        ("set(flags, 4294967295)", "flags", 4294967295),
        ("set(events, links)", "events", []),
    ],
)
def test_setting_a_span(statement: str, name: str, value: Any) -> None:
    assert changed(statement, "span", "span", SPAN)[name] == value


@pytest.mark.parametrize("statement", ['set(kind.string, "Odd")', "set(flags, -1)", "set(events, 1)", "set(status, 1)"])
def test_setting_a_span_wrongly(statement: str) -> None:
    with pytest.raises(OttlError):
        changed(statement, "span", "span", SPAN)


def test_span_events_see_their_span() -> None:
    record = {"span": {"name": "n"}, "spanevent": {"name": "e", "time_unix_nano": 3}}
    assert changed("set(name, span.name)", "spanevent", "spanevent", record)["name"] == "n"
    assert changed("set(span.name, name)", "span", "spanevent", record)["name"] == "e"
    assert evaluate(record, "time", "spanevent") == Time(3)


METRIC: dict[str, Any] = {
    "metric": {
        "name": "m",
        "sum": {"data_points": [{"as_int": 1}], "aggregation_temporality": 2, "is_monotonic": True},
    }
}


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("name", "m"),
        ("type", 2),
        ("METRIC_DATA_TYPE_SUM", 2),
        ("aggregation_temporality", 2),
        ("is_monotonic", True),
        ("data_points", [{"as_int": 1}]),
        ("unit", ""),
        ("metadata", {}),
    ],
)
def test_reading_a_metric(path: str, value: Any) -> None:
    assert evaluate(METRIC, path, "metric") == value


def test_setting_a_metric() -> None:
    statements = [
        'set(unit, "By")',
        "set(is_monotonic, false)",
        "set(aggregation_temporality, AGGREGATION_TEMPORALITY_DELTA)",
        'set(metadata["k"], "v")',
        "set(type, METRIC_DATA_TYPE_GAUGE)",
    ]
    assert transform(METRIC, statements, "metric")["metric"] == {
        "name": "m",
        "unit": "By",
        "metadata": {"k": "v"},
        "sum": {"data_points": [{"as_int": 1}], "aggregation_temporality": 1, "is_monotonic": False},
    }


def test_a_gauge_has_no_temporality() -> None:
    gauge = {"metric": {"name": "m", "gauge": {"data_points": []}}}
    assert evaluate(gauge, "aggregation_temporality", "metric") is None
    assert evaluate(gauge, "is_monotonic", "metric") is None
    assert transform(gauge, "set(is_monotonic, true)", "metric") == gauge


def point(kind: str, **fields: Any) -> dict[str, Any]:
    """A data point in a metric of a type."""
    return {"metric": {"name": "m", kind: {"data_points": []}}, "datapoint": {"attributes": {}, **fields}}


def test_number_data_points() -> None:
    record = point("gauge", as_int=4)
    assert evaluate(record, "value_int", "datapoint") == 4
    assert evaluate(record, "value_double", "datapoint") == 0.0
    assert evaluate(record, "count", "datapoint") is None
    assert evaluate(record, ["metric.type", "==", "METRIC_DATA_TYPE_GAUGE"][0], "datapoint") == 1
    assert changed("set(value_double, 2.5)", "datapoint", "datapoint", record) == {"attributes": {}, "as_double": 2.5}
    assert changed('set(metric.name, "x")', "metric", "datapoint", record)["name"] == "x"
    with pytest.raises(OttlError):
        changed("set(count, 1)", "datapoint", "datapoint", record)


def test_histogram_data_points() -> None:
    record = point("histogram", count=3, sum=4.5, bucket_counts=[1, 2], explicit_bounds=[0.5])
    assert evaluate(record, "bucket_counts", "datapoint") == [1, 2]
    assert changed("set(explicit_bounds, [1.0, 2.0])", "datapoint", "datapoint", record)["explicit_bounds"] == [
        1.0,
        2.0,
    ]
    for statement in ('set(bucket_counts, ["x"])', "set(bucket_counts, 1)", "set(value_int, 1)", "set(scale, 1)"):
        with pytest.raises(OttlTypeError):
            changed(statement, "datapoint", "datapoint", record)


def test_exponential_histogram_and_summary_data_points() -> None:
    record = point("exponential_histogram", scale=2, positive={"offset": 1, "bucket_counts": [1]})
    assert evaluate(record, "positive.offset", "datapoint") == 1
    changed_point = changed("set(negative.bucket_counts, [3])", "datapoint", "datapoint", record)
    assert changed_point["negative"] == {"bucket_counts": [3]}
    summary = point("summary", quantile_values=[{"quantile": 0.5, "value": 1.0}])
    assert evaluate(summary, "quantile_values", "datapoint") == [{"quantile": 0.5, "value": 1.0}]
    assert evaluate(summary, "exemplars", "datapoint") is None


@pytest.mark.parametrize(
    ("text", "context", "message", "column"),
    [
        ("set(atributes, 1)", "log", 'did you mean "attributes"', 5),
        ("set(resource.atributes, 1)", "log", 'did you mean "attributes"', 14),
        ("set(body.strin, 1)", "log", 'did you mean "string"', 5),
        ("set(attributes.x, 1)", "log", "extra path sections", 5),
        ('set(attributes["a"].x, 1)', "log", "extra path sections", 21),
        ('set(severity_text["a"], 1)', "log", "does not support indexing", 5),
        ("set(resource.cache, 1)", "log", 'replace "resource.cache" with "log.cache"', 14),
        ("set(nme, 1)", "span", 'did you mean "name"', 5),
        ('set(trace_state["a"]["b"], 1)', "span", "exactly 1 key", 5),
        ("set(body, SEVERITY_NUMBER_EROR)", "log", 'did you mean "SEVERITY_NUMBER_ERROR"', 11),
        ("set(name, SEVERITY_NUMBER_ERROR)", "span", "not found", 11),
    ],
)
def test_unknown_paths_and_symbols(text: str, context: str, message: str, column: int) -> None:
    with pytest.raises(OttlCompileError) as caught:
        transform({}, text, context)
    assert message in str(caught.value)
    assert caught.value.column == column


def test_unknown_context() -> None:
    with pytest.raises(OttlCompileError, match='did you mean "log"'):
        transform({}, "set(body, 1)", "logs")


@pytest.mark.parametrize("context", CONTEXTS)
def test_every_path_reads_with_and_without_its_prefix(context: str) -> None:
    for path in FIELDS[context]:
        empty: dict[str, Any] = {}
        assert evaluate(empty, path, context) == evaluate(empty, f"{context}.{path}", context)
