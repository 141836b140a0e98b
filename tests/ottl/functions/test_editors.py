"""Every editor: what it changes, what it leaves, and how it fails."""

from __future__ import annotations

import copy
import re
from typing import Any

import pytest

from tracecore.ottl import functions
from tracecore.ottl.compare import deep_equal
from tracecore.ottl.compile import compile_statement
from tracecore.ottl.context import Context
from tracecore.ottl.errors import OttlError
from tracecore.ottl.signature import declared


class Fails(str):
    """The row must fail with a message that has this text."""

    __slots__ = ()


START: dict[str, Any] = {
    "text": "hello world",
    "number": 42,
    "list": ["a", "b", "c"],
    "map": {"a": "one", "b": {"c": "two"}, "d": ["x", {"e": "y"}]},
}


def _with(**changes: Any) -> dict[str, Any]:
    return {**copy.deepcopy(START), **changes}


def _without(*names: str) -> dict[str, Any]:
    return {key: value for key, value in copy.deepcopy(START).items() if key not in names}


#: A statement on a record whose attributes are `START`, and what they are then.
ROWS: dict[str, list[tuple[str, Any]]] = {
    "set": [
        ('set(attributes["new"], attributes["map"]["b"])', _with(new={"c": "two"})),
        ('set(attributes["text"], attributes["none"])', _with()),
        ('set("text", 1)', Fails("path")),
    ],
    "clear": [
        ('clear(attributes["text"])', _with(text="")),
        ('clear(attributes["map"])', _with(map={})),
        ('clear(1)', Fails("path")),
    ],
    "append": [
        ('append(attributes["list"], "d")', _with(list=["a", "b", "c", "d"])),
        ('append(attributes["number"], values=[1, "x"])', _with(number=[42, 1, "x"])),
        ('append(attributes["new"], 1)', _with(new=[1])),
        ('append(attributes["list"])', Fails("at least one of the optional arguments")),
        ('append(attributes["map"], 1)', Fails("unsupported type of target field")),
    ],
    "delete_index": [
        ('delete_index(attributes["list"], 1)', _with(list=["a", "c"])),
        ('delete_index(attributes["list"], 0, 3)', _with(list=[])),
        ('delete_index(attributes["list"], 3)', Fails("startIndex 3 out of bounds for slice of length 3")),
        ('delete_index(attributes["list"], 2, 1)', Fails("cannot be less than startIndex")),
        ('delete_index(attributes["text"], 1)', Fails("expected pcommon.Slice but got string")),
    ],
    "delete_key": [
        ('delete_key(attributes, "text")', _without("text")),
        ('delete_key(attributes, "none")', _with()),
        ('delete_key(attributes["text"], "a")', Fails("expected pcommon.Map but got string")),
    ],
    "delete_matching_keys": [
        ('delete_matching_keys(attributes, "^(text|n.*)$")', _without("text", "number")),
        ('delete_matching_keys(attributes, "zzz")', _with()),
        ('delete_matching_keys(attributes, "(")', Fails("is not a valid pattern")),
    ],
    "keep_matching_keys": [
        ('keep_matching_keys(attributes, "t$")', _without("number", "map")),
        ('keep_matching_keys(attributes, "zzz")', {}),
        ('keep_matching_keys(attributes, "(")', Fails("is not a valid pattern")),
    ],
    "keep_keys": [
        ('keep_keys(attributes, ["text", "none"])', {"text": "hello world"}),
        ("keep_keys(attributes, [])", {}),
        ("keep_keys(attributes, [1])", Fails("expected string but got int64")),
    ],
    "limit": [
        ('limit(attributes, 2, ["map"])', {"text": "hello world", "map": START["map"]}),
        ("limit(attributes, 9, [])", _with()),
        ('limit(attributes, 0, ["a"])', Fails("cannot be less than number of priority attributes 1")),
        ("limit(attributes, -1, [])", Fails("limit")),
    ],
    "truncate_all": [
        ("truncate_all(attributes, 5)", _with(text="hello")),
        ('truncate_all(attributes, 8, truncationMarker="...")', _with(text="hello...")),
        ("truncate_all(attributes, 100)", _with()),
        ('truncate_all(attributes, 1, true, "...")', Fails("cannot be greater than limit 1")),
    ],
    "stringify_all": [
        ("stringify_all(attributes)", {
            "text": "hello world",
            "number": "42",
            "list": '["a","b","c"]',
            "map": '{"a":"one","b":{"c":"two"},"d":["x",{"e":"y"}]}',
        }),
        ('stringify_all(attributes["map"]["b"])', _with()),
        ('stringify_all(attributes["list"])', Fails("expected pcommon.Map")),
    ],
    "merge_maps": [
        ('merge_maps(attributes, {"text": "x", "new": 1}, "insert")', _with(new=1)),
        ('merge_maps(attributes, {"text": "x", "new": 1}, "update")', _with(text="x")),
        ('merge_maps(attributes, attributes["map"]["b"], "upsert")', _with(c="two")),
        ('merge_maps(attributes, {}, "replace")', Fails("must be 'insert', 'update' or 'upsert'")),
    ],
    "flatten": [
        ('flatten(attributes["map"])', _with(map={"a": "one", "b.c": "two", "d.0": "x", "d.1.e": "y"})),
        ('flatten(attributes["map"], "p", 1)', _with(
            map={"p.a": "one", "p.b.c": "two", "p.d.0": "x", "p.d.1": {"e": "y"}}
        )),
        ("flatten(attributes, resolveConflicts=true)", {
            "text": "hello world", "number": 42, "list": "a", "list.0": "b", "list.1": "c",
            "map.a": "one", "map.b.c": "two", "map.d": "x", "map.d.1.e": "y",
        }),
        ("flatten(attributes, depth=0)", Fails("must be greater than 0")),
    ],
    "replace_match": [
        ('replace_match(attributes["text"], "hello*", "bye")', _with(text="bye")),
        ('replace_match(attributes["text"], "hel[!l]*", "bye")', _with()),
        ('replace_match(attributes["number"], "*", "bye")', _with()),
        ('replace_match(attributes["text"], "{h,x}*", "a", SHA1, "h=%s")', _with(
            text="h=86f7e437faa5a7fce15d1ddcb9eaeaea377667b8"
        )),
        ('replace_match(attributes["text"], "[", "bye")', Fails("is not a valid pattern")),
    ],
    "replace_all_matches": [
        ('replace_all_matches(attributes, "*world", "bye")', _with(text="bye")),
        ('replace_all_matches(attributes, "", "bye")', _with()),
        ('replace_all_matches(attributes, "*", "bye", SHA1, "%d")', Fails("single %s")),
    ],
    "replace_pattern": [
        (r'replace_pattern(attributes["text"], "(\\w+) (\\w+)", "$2 ${1}x $$")', _with(text="world hellox $")),
        ('replace_pattern(attributes["text"], "l+", "$0x")', _with(text="heo word")),
        ('replace_pattern(attributes["text"], "x*", "-")', _with(text="-h-e-l-l-o- -w-o-r-l-d-")),
        ('replace_pattern(attributes["number"], "4", "5")', _with()),
        ('replace_pattern(attributes["text"], "o", "$0", SHA1, "<%s>")', _with(
            text="hell<7a81af3e591ac713f81ea1efe93dcf36157d8376> w<7a81af3e591ac713f81ea1efe93dcf36157d8376>rld"
        )),
        ('replace_pattern(attributes["text"], "(", "x")', Fails("is not a valid pattern")),
    ],
    "replace_all_patterns": [
        ('replace_all_patterns(attributes, "value", "o", "0")', _with(text="hell0 w0rld")),
        ('replace_all_patterns(attributes, "key", "^(t)ext$", "$1")', {
            "t": "hello world", "number": 42, "list": START["list"], "map": START["map"],
        }),
        ('replace_all_patterns(attributes, "both", "o", "0")', Fails("must be either 'key' or 'value'")),
    ],
}  # fmt: skip

POINT = {"attributes": {"k": "a"}, "start_time_unix_nano": 1, "time_unix_nano": 2}


def _metric(kind: str, *points: dict[str, Any], **data: Any) -> dict[str, Any]:
    return {
        "name": "m",
        "unit": "s",
        kind: {"data_points": [{**copy.deepcopy(POINT), **point} for point in points], **data},
    }


HISTOGRAM = {"count": 4, "sum": 10.0, "min": 1.0, "max": 5.0, "bucket_counts": [1, 2, 1], "explicit_bounds": [2.0, 4.0]}
EXPONENTIAL = {
    "count": 3,
    "sum": 6.0,
    "scale": 0,
    "zero_count": 1,
    "positive": {"offset": 0, "bucket_counts": [1, 1]},
    "negative": {"offset": 0, "bucket_counts": []},
}
SUMMARY = {"count": 3, "sum": 6.0, "quantile_values": [{"quantile": 0.5, "value": 2.0}]}


def _new(kind: str, name: str, value: dict[str, Any], unit: str = "s", **data: Any) -> dict[str, Any]:
    return {"name": name, "unit": unit, kind: {"data_points": [{**copy.deepcopy(POINT), **value}], **data}}


#: (statement, metric, the metric afterwards, the metrics that were added)
METRICS: dict[str, list[tuple[str, dict[str, Any], Any, list[Any]]]] = {
    "convert_sum_to_gauge": [
        (
            "convert_sum_to_gauge()",
            _metric("sum", {"as_int": 1}, aggregation_temporality=2, is_monotonic=True),
            _metric("gauge", {"as_int": 1}),
            [],
        ),
        ("convert_sum_to_gauge()", _metric("gauge", {"as_int": 1}), _metric("gauge", {"as_int": 1}), []),
        ("convert_sum_to_gauge(1)", _metric("gauge"), Fails("argument"), []),
    ],
    "convert_gauge_to_sum": [
        (
            'convert_gauge_to_sum("delta", true)',
            _metric("gauge", {"as_int": 1}),
            _metric("sum", {"as_int": 1}, aggregation_temporality=1, is_monotonic=True),
            [],
        ),
        ('convert_gauge_to_sum("delta", true)', _metric("summary"), _metric("summary"), []),
        ('convert_gauge_to_sum("total", true)', _metric("gauge"), Fails("unknown aggregation temporality: total"), []),
    ],
    "copy_metric": [
        (
            'copy_metric(name="n", unit="ms")',
            _metric("gauge", {"as_int": 1}),
            None,
            [{**_metric("gauge", {"as_int": 1}), "name": "n", "unit": "ms"}],
        ),
        ("copy_metric()", _metric("gauge"), None, [_metric("gauge")]),
        ("copy_metric(name=metric.type)", _metric("gauge"), Fails("expected string"), []),
    ],
    "scale_metric": [
        (
            'scale_metric(10.0, "ms")',
            _metric("gauge", {"as_int": 7}, {"as_double": 0.5}),
            {**_metric("gauge", {"as_int": 70}, {"as_double": 5.0}), "unit": "ms"},
            [],
        ),
        (
            "scale_metric(2.0)",
            _metric("histogram", HISTOGRAM),
            _metric("histogram", {**HISTOGRAM, "sum": 20.0, "min": 2.0, "max": 10.0, "explicit_bounds": [4.0, 8.0]}),
            [],
        ),
        ("scale_metric(2.0)", _metric("exponential_histogram", EXPONENTIAL), Fails("are not supported"), []),
    ],
    "extract_sum_metric": [
        (
            "extract_sum_metric(true)",
            _metric("histogram", HISTOGRAM, aggregation_temporality=1),
            None,
            [_new("sum", "m_sum", {"as_double": 10.0}, aggregation_temporality=1, is_monotonic=True)],
        ),
        ("extract_sum_metric(true)", _metric("histogram", {"count": 1}, aggregation_temporality=1), None, []),
        ("extract_sum_metric(true)", _metric("gauge"), Fails("got Gauge"), []),
    ],
    "extract_count_metric": [
        (
            'extract_count_metric(false, ".n")',
            _metric("summary", SUMMARY),
            None,
            [_new("sum", "m.n", {"as_int": 3}, "1", aggregation_temporality=2, is_monotonic=False)],
        ),
        ("extract_count_metric(false)", _metric("summary"), None, []),
        ("extract_count_metric(false)", _metric("sum"), Fails("got Sum"), []),
    ],
    "extract_avg_metric": [
        ("extract_avg_metric()", _metric("histogram", HISTOGRAM), None, [_new("gauge", "m_avg", {"as_double": 2.5})]),
        ("extract_avg_metric()", _metric("histogram", {"count": 0, "sum": 0.0}), None, []),
        ("extract_avg_metric()", _metric("gauge"), Fails("got Gauge"), []),
    ],
    "extract_percentile_metric": [
        (
            "extract_percentile_metric(50.0)",
            _metric("histogram", HISTOGRAM),
            None,
            [{**_new("gauge", "m_p50", {"as_double": 3.0}), "description": "p50"}],
        ),
        (
            "extract_percentile_metric(99.0)",
            _metric("exponential_histogram", EXPONENTIAL),
            None,
            [{**_new("gauge", "m_p99", {"as_double": 4.0}), "description": "p99"}],
        ),
        ("extract_percentile_metric(50.0)", _metric("gauge"), None, []),
        ("extract_percentile_metric(100.0)", _metric("gauge"), Fails("less than 100"), []),
    ],
    "convert_summary_quantile_val_to_gauge": [
        (
            "convert_summary_quantile_val_to_gauge()",
            _metric("summary", SUMMARY),
            None,
            [_new("gauge", "m.quantiles", {"as_double": 2.0, "attributes": {"k": "a", "quantile": 0.5}})],
        ),
        ("convert_summary_quantile_val_to_gauge()", _metric("gauge"), None, []),
        ("convert_summary_quantile_val_to_gauge(1)", _metric("gauge"), Fails(""), []),
    ],
    "aggregate_on_attributes": [
        (
            'aggregate_on_attributes("sum", ["k"])',
            _metric("gauge", {"as_int": 1, "attributes": {"k": "a", "z": 1}}, {"as_int": 2}),
            _metric("gauge", {"as_int": 3}),
            [],
        ),
        (
            'aggregate_on_attributes("median", [])',
            _metric("gauge", {"as_double": 1.0}, {"as_double": 4.0}, {"as_double": 9.0}),
            _metric("gauge", {"as_double": 4.0, "attributes": {}}),
            [],
        ),
        (
            'aggregate_on_attributes("sum")',
            _metric("histogram", HISTOGRAM, HISTOGRAM),
            _metric("histogram", {**HISTOGRAM, "count": 8, "sum": 20.0, "bucket_counts": [2, 4, 2]}),
            [],
        ),
        ('aggregate_on_attributes("sum")', _metric("summary"), Fails("does not support aggregating Summary"), []),
        ('aggregate_on_attributes("mode")', _metric("gauge"), Fails("sum, mean, min, max, median, count"), []),
    ],
    "aggregate_on_attribute_value": [
        (
            'aggregate_on_attribute_value("max", "k", ["a", "b"], "ab")',
            _metric("gauge", {"as_int": 1}, {"as_int": 2, "attributes": {"k": "b"}}),
            _metric("gauge", {"as_int": 2, "attributes": {"k": "ab"}}),
            [],
        ),
        (
            'aggregate_on_attribute_value("max", "k", ["z"], "ab")',
            _metric("gauge", {"as_int": 1}),
            _metric("gauge", {"as_int": 1}),
            [],
        ),
        ('aggregate_on_attribute_value("x", "k", ["z"], "ab")', _metric("gauge"), Fails("invalid aggregation"), []),
    ],
    "convert_exponential_histogram_to_histogram": [
        (
            'convert_exponential_histogram_to_histogram("upper", [1.0, 2.0, 4.0])',
            _metric("exponential_histogram", EXPONENTIAL, aggregation_temporality=1),
            _metric(
                "histogram",
                {"count": 3, "sum": 6.0, "explicit_bounds": [1.0, 2.0, 4.0], "bucket_counts": [1, 1, 1, 0]},
                aggregation_temporality=1,
            ),
            [],
        ),
        ('convert_exponential_histogram_to_histogram("upper", [1.0])', _metric("gauge"), _metric("gauge"), []),
        ('convert_exponential_histogram_to_histogram("upper", [2.0, 1.0])', _metric("gauge"), Fails("increasing"), []),
        (
            'convert_exponential_histogram_to_histogram("upper", [1.0])',
            _metric("exponential_histogram", {**EXPONENTIAL, "count": 9}),
            Fails("source histogram count 9 does not match bucket count 3"),
            [],
        ),
    ],
}

#: The same for data points: (statement, metric, the point afterwards, added metrics)
POINTS: dict[str, list[tuple[str, dict[str, Any], Any, list[Any]]]] = {
    "convert_summary_sum_val_to_sum": [
        (
            'convert_summary_sum_val_to_sum("delta", false)',
            _metric("summary", SUMMARY),
            None,
            [_new("sum", "m_sum", {"as_double": 6.0}, aggregation_temporality=1, is_monotonic=False)],
        ),
        ('convert_summary_sum_val_to_sum("delta", false)', _metric("gauge", {"as_int": 1}), None, []),
        ('convert_summary_sum_val_to_sum("x", false)', _metric("summary", SUMMARY), Fails("unknown aggregation"), []),
    ],
    "convert_summary_count_val_to_sum": [
        (
            'convert_summary_count_val_to_sum("cumulative", true, ".c")',
            _metric("summary", SUMMARY),
            None,
            [_new("sum", "m.c", {"as_int": 3}, aggregation_temporality=2, is_monotonic=True)],
        ),
        ('convert_summary_count_val_to_sum("delta", false)', _metric("gauge", {"as_int": 1}), None, []),
        ('convert_summary_count_val_to_sum("x", false)', _metric("summary", SUMMARY), Fails("unknown aggregation"), []),
    ],
    "merge_histogram_buckets": [
        (
            "merge_histogram_buckets(2.0)",
            _metric("histogram", HISTOGRAM),
            {**POINT, **HISTOGRAM, "bucket_counts": [3, 1], "explicit_bounds": [4.0]},
            [],
        ),
        (
            'merge_histogram_buckets(2, "limit_buckets")',
            _metric("histogram", HISTOGRAM),
            {**POINT, **HISTOGRAM, "bucket_counts": [3, 1], "explicit_bounds": [4.0]},
            [],
        ),
        ("merge_histogram_buckets(9.0)", _metric("histogram", HISTOGRAM), {**POINT, **HISTOGRAM}, []),
        (
            'merge_histogram_buckets(1.5, "limit_buckets")',
            _metric("histogram", HISTOGRAM),
            Fails("positive integer"),
            [],
        ),
        ('merge_histogram_buckets(1, "x")', _metric("histogram", HISTOGRAM), Fails("unsupported method"), []),
    ],
}

#: (statement, span, its name afterwards)
SPANS: list[tuple[str, dict[str, Any], Any]] = [
    (
        'set_semconv_span_name("1.37.0", "was")',
        {"name": "x", "kind": 2, "attributes": {"http.request.method": "GET", "http.route": "/a"}},
        "GET /a",
    ),
    (
        'set_semconv_span_name("1.37.0")',
        {"name": "x", "kind": 3, "attributes": {"rpc.system": "grpc", "rpc.service": "S"}},
        "S/*",
    ),
    (
        'set_semconv_span_name("1.37.0")',
        {
            "name": "x",
            "kind": 3,
            "attributes": {"db.system": "pg", "db.operation": "SELECT", "db.name": "n", "db.collection.name": "t"},
        },
        "SELECT n.t",
    ),
    (
        'set_semconv_span_name("1.37.0")',
        {
            "name": "x",
            "kind": 4,
            "attributes": {
                "messaging.system": "kafka",
                "messaging.operation": "send",
                "messaging.destination.name": "q",
            },
        },
        "send q",
    ),
    ('set_semconv_span_name("1.37.0")', {"name": "x", "kind": 1, "attributes": {"http.method": "GET"}}, "x"),
    ('set_semconv_span_name("1.0.0")', {"name": "x"}, Fails("must be between 1.37.0 and 1.43.0")),
    ('set_semconv_span_name("one")', {"name": "x"}, Fails("failed to parse semconv version")),
]


def _failing(statement: str, context: str, ctx: Context, text: str) -> None:
    with pytest.raises(OttlError) as caught:
        compile_statement(statement, context).run(ctx)
    assert text in str(caught.value)


@pytest.mark.parametrize(("statement", "wanted"), [row for rows in ROWS.values() for row in rows])
def test_editor(statement: str, wanted: Any) -> None:
    attributes = copy.deepcopy(START)
    ctx = Context({"attributes": {}}, {}, {"attributes": attributes})
    if isinstance(wanted, Fails):
        _failing(statement, "log", ctx, wanted)
    else:
        compile_statement(statement).run(ctx)
        assert deep_equal(ctx.item["attributes"], wanted), ctx.item["attributes"]


def _check(statement: str, context: str, ctx: Context, before: Any, wanted: Any, new: list[Any]) -> None:
    if isinstance(wanted, Fails):
        _failing(statement, context, ctx, wanted)
        return
    compile_statement(statement, context).run(ctx)
    assert ctx.item == (before if wanted is None else wanted)
    assert ctx.siblings == new


@pytest.mark.parametrize(("statement", "metric", "wanted", "new"), [row for rows in METRICS.values() for row in rows])
def test_metric_editor(statement: str, metric: dict[str, Any], wanted: Any, new: list[Any]) -> None:
    item = copy.deepcopy(metric)
    _check(statement, "metric", Context({}, {}, item), metric, wanted, new)


@pytest.mark.parametrize(("statement", "metric", "wanted", "new"), [row for rows in POINTS.values() for row in rows])
def test_data_point_editor(statement: str, metric: dict[str, Any], wanted: Any, new: list[Any]) -> None:
    parent = copy.deepcopy(metric)
    kind = next(key for key in parent if isinstance(parent[key], dict))
    point = parent[kind]["data_points"][0]
    _check(statement, "datapoint", Context({}, {}, point, parent), copy.deepcopy(point), wanted, new)


@pytest.mark.parametrize(("statement", "span", "wanted"), SPANS)
def test_span_editor(statement: str, span: dict[str, Any], wanted: Any) -> None:
    item = copy.deepcopy(span)
    ctx = Context({}, {}, item)
    if isinstance(wanted, Fails):
        _failing(statement, "span", ctx, wanted)
        return
    compile_statement(statement, "span").run(ctx)
    assert item["name"] == wanted
    assert item["attributes"].get("was") == ("x" if '"was"' in statement else None)


@pytest.mark.parametrize("distribution", ["uniform", "random", "midpoint"])
def test_no_count_is_lost_when_buckets_are_spread(distribution: str) -> None:
    item = _metric(
        "exponential_histogram", {**EXPONENTIAL, "positive": {"offset": 0, "bucket_counts": [700, 1300]}, "count": 2001}
    )
    bounds = "[0.5, 1.1, 1.7, 2.3, 2.9, 3.5]"
    compile_statement(f'convert_exponential_histogram_to_histogram("{distribution}", {bounds})', "metric").run(
        Context({}, {}, item)
    )
    assert sum(item["histogram"]["data_points"][0]["bucket_counts"]) == 2001


def test_metrics_go_where_the_context_says() -> None:
    class Listed(Context):
        siblings: list[dict[str, Any]]

    ctx = Listed({}, {}, _metric("gauge"))
    ctx.siblings = [ctx.item]
    compile_statement('copy_metric(name="copy")', "metric").run(ctx)
    assert [metric["name"] for metric in ctx.siblings] == ["m", "copy"]


def test_every_editor_has_a_row_that_works_and_one_that_fails() -> None:
    names = {name for name in declared(functions.MODULES) if name[0].islower()}
    assert names == {*ROWS, *METRICS, *POINTS, "set_semconv_span_name"}
    for table in (ROWS, METRICS, POINTS):
        for name, rows in table.items():
            failing = sum(any(isinstance(part, Fails) for part in row) for row in rows)
            assert failing >= 1, name
            assert len(rows) - failing >= 2, name
            assert all(re.search(rf"\b{name}\(", str(row[0])) for row in rows), name
