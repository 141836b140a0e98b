"""Hostile records: a statement changes them or fails with an error that says where, and nothing else happens."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracecore.ottl import OttlError, Processor, transform
from tracecore.ottl.compare import deep_equal
from tracecore.ottl.values import copy_value

values = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(-(2**63), 2**63 - 1),
        st.floats(),
        st.text(max_size=6),
        st.binary(max_size=4),
        st.just("a\udcff"),
    ),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["a", "b", "c"]), inner, max_size=3),
    max_leaves=8,
)
paths = st.sampled_from(
    [
        "body",
        "body.string",
        'body["a"]',
        "body[0]",
        'attributes["a"]',
        'attributes["a"]["b"]',
        'attributes["a"][1]',
        'attributes[attributes["c"]]',
        'attributes["b"][attributes["c"]]["a"]',
        "attributes",
        'cache["x"]["y"]',
        "time",
        "severity_number",
        "severity_text",
        "trace_id",
        "span_id.string",
        'resource.attributes["a"]',
        "instrumentation_scope.name",
    ]
)
expressions = st.one_of(
    paths,
    st.sampled_from(["nil", "1", "-2.5", '"a"', "true", "0x00ff", "[1, body]", '{"a": body}', "SEVERITY_NUMBER_INFO"]),
    st.builds("{} {} {}".format, paths, st.sampled_from("+-*/"), paths),
    st.builds("-({})".format, paths),
)
conditions = st.builds("{} {} {}".format, expressions, st.sampled_from(["==", "!=", "<", "<=", ">", ">="]), expressions)
statements = st.builds("set({}, {})".format, paths, expressions) | st.builds(
    "set({}, {}) where {} and not {}".format, paths, expressions, conditions, conditions
)


def record_of(body: Any, attributes: Any) -> dict[str, Any]:
    return {
        "resource": {"attributes": {"a": 1}},
        "scope": {"name": "s"},
        "log": {"body": body, "attributes": attributes if isinstance(attributes, dict) else {"a": attributes}},
    }


@given(st.lists(statements, min_size=1, max_size=3), values, values)
def test_a_record_is_changed_or_an_error_says_where(texts: list[str], body: Any, attributes: Any) -> None:
    record = record_of(body, attributes)
    before = copy_value(record)
    try:
        transform(record, texts)
    except OttlError as error:
        place = (error.line, error.source in texts)
    else:
        place = (1, True)
    assert place == (1, True)
    assert repr(record) == repr(before)


@given(st.lists(statements, min_size=1, max_size=3), values, values)
def test_silent_is_propagate_without_the_failing_statements(texts: list[str], body: Any, attributes: Any) -> None:
    record = record_of(body, attributes)
    expected: dict[str, Any] = copy_value(record)
    # With the cache apart, one statement at a time gives what all of them give.
    kept = [text for text in texts if "cache" not in text]
    for text in kept:
        expected = transform(expected, text, error_mode="silent")
    result = transform(record, kept, error_mode="silent")
    assert repr(result) == repr(expected)


@given(st.lists(statements, min_size=1, max_size=3), st.lists(values, min_size=1, max_size=3))
def test_the_processor_is_transform_for_each_record(texts: list[str], bodies: list[Any]) -> None:
    kept = [text for text in texts if "resource" not in text and "scope" not in text]
    records = [record_of(body, {"a": body, "c": "b"}) for body in bodies]
    one_by_one = [transform(record, kept, error_mode="silent")["log"] for record in records]
    items = [copy_value(record["log"]) for record in records]
    payload = {"resource_logs": [{"resource": {"attributes": {"a": 1}}, "scope_logs": [{"log_records": items}]}]}
    Processor({"error_mode": "silent", "log_statements": [{"context": "log", "statements": kept}]}).process_logs(
        payload
    )
    assert repr(items) == repr(one_by_one)


def test_a_record_that_nests_too_deep_is_an_error() -> None:
    deep: Any = "x"
    for _ in range(100_000):
        deep = [deep]
    with pytest.raises(OttlError, match="nested too deep"):
        transform({"log": {"body": deep}}, 'set(attributes["a"], 1)')
    item = {"body": deep, "attributes": {}}
    payload = {"resource_logs": [{"resource": {}, "scope_logs": [{"log_records": [item]}]}]}
    statements = ['set(attributes["copy"], body)', 'set(attributes["text"], body.string)', 'set(attributes["a"], 1)']
    processor = Processor({"error_mode": "silent", "log_statements": [{"context": "log", "statements": statements}]})
    processor.process_logs(payload)
    assert processor.failures == 2
    assert item["attributes"]["a"] == 1


def test_the_same_statements_give_the_same_record_again() -> None:
    record = record_of("x", {"a": {"b": 1}})
    texts = ['set(attributes["d"], attributes)', 'set(body, {"x": attributes})']
    assert deep_equal(transform(record, texts), transform(record, texts))
