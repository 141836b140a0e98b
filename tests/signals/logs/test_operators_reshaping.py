"""The Collector's operators that reshape entries, by the examples of their documentation and what goes wrong."""

from __future__ import annotations

from typing import Any

import pytest

from tracecore.signals.logs.operators.chain import Chain, problems
from tracecore.signals.logs.operators.entry import Entry
from tracecore.signals.logs.tail.counters import TailCounters


def through(operator: dict[str, Any], body: Any, attributes: Any = None, resource: Any = None) -> tuple[Entry, int]:
    counters = TailCounters()
    (entry,) = Chain([operator], counters).process([Entry(body, attributes or {}, resource or {})], 0)
    return entry, counters.entries_failed


def body(operator: dict[str, Any], given: Any) -> Any:
    entry, failed = through(operator, given)
    return entry.body if not failed else ("failed", entry.body)


NESTED = {"wrapper": {"key1": {"a": "1", "b": "2"}, "key2": "3"}}


@pytest.mark.parametrize(
    ("operator", "given", "made"),
    [
        ({"type": "noop"}, "x", "x"),
        ({"type": "copy", "from": "body.a", "to": "body.b"}, {"a": [1]}, {"a": [1], "b": [1]}),
        ({"type": "copy", "from": "body.c", "to": "body.b"}, {"a": 1}, ("failed", {"a": 1})),
        ({"type": "retain", "fields": ["body.a", "body.o"]}, {"a": 1, "b": 2, "o": {"n": 3}}, {"a": 1, "o": {"n": 3}}),
        ({"type": "retain", "fields": ["body.o.n"]}, {"a": 1, "o": {"n": 3, "m": 4}}, {"o": {"n": 3}}),
        ({"type": "retain", "fields": ["attributes.x"]}, {"a": 1}, {"a": 1}),
        ({"type": "retain", "fields": ["body.a"]}, "text", "text"),
        ({"type": "flatten", "field": "body.k"}, {"k": {"a": 1}, "b": 2}, {"a": 1, "b": 2}),
        ({"type": "flatten", "field": "body.wrapper.key1"}, NESTED, {"wrapper": {"a": "1", "b": "2", "key2": "3"}}),
        ({"type": "flatten", "field": "body.k"}, {"k": 1}, ("failed", {"k": 1})),
        ({"type": "assign_keys", "field": "body", "keys": ["a", "b"]}, [1, "x"], {"a": 1, "b": "x"}),
        ({"type": "assign_keys", "field": "body", "keys": ["a"]}, [1, 2], ("failed", [1, 2])),
        ({"type": "regex_replace", "field": "body", "regex": " +", "replace_with": " "}, "Hello  World", "Hello World"),
        ({"type": "regex_replace", "field": "body", "regex": r"\{(\w+)\}", "replace_with": "${1}"}, "{a}{bb}", "abb"),
        ({"type": "regex_replace", "field": "body", "regex": "(?P<k>a)", "replace_with": "<$k$$>"}, "aa", "<a$><a$>"),
        ({"type": "regex_replace", "field": "body", "regex": "a", "replace_with": "$9"}, "bab", "bb"),
        (
            {"type": "regex_replace", "field": "body", "regex_name": "ansi_control_sequences"},
            "\x1b[31mred\x1b[0m",
            "red",
        ),
        ({"type": "regex_replace", "field": "body", "regex": "a"}, 7, ("failed", 7)),
        ({"type": "unquote", "field": "body"}, '"say \\"hi\\"\\n\\u2713"', 'say "hi"\n✓'),
        ({"type": "unquote", "field": "body"}, "`a\\nb`", "a\\nb"),
        ({"type": "unquote", "field": "body"}, "'v'", "v"),
        ({"type": "unquote", "field": "body"}, "'vv'", ("failed", "'vv'")),
        ({"type": "unquote", "field": "body"}, '"a"b"', ("failed", '"a"b"')),
        ({"type": "unquote", "field": "body"}, "plain", ("failed", "plain")),
        ({"type": "sanitize_utf8"}, "a\ud800b", "a�b"),
        ({"type": "sanitize_utf8", "field": "body"}, b"a\xffb", "a�b"),
        ({"type": "key_value_parser", "parse_to": "body"}, "name=stanza age=2", {"name": "stanza", "age": "2"}),
        ({"type": "key_value_parser", "parse_to": "body"}, "a=\"x y=z\"  b='q'", {"a": "x y=z", "b": "q"}),
        ({"type": "key_value_parser", "parse_to": "body", "delimiter": ":"}, "a:b:c", {"a": "b:c"}),
        (
            {"type": "key_value_parser", "parse_to": "body", "pair_delimiter": "!"},
            "name=stanza ! org=otel      ! group=dev",
            {"name": "stanza", "org": "otel", "group": "dev"},
        ),
        ({"type": "key_value_parser", "parse_to": "body"}, "a=1 stray", ("failed", "a=1 stray")),
        ({"type": "key_value_parser", "parse_to": "body"}, 'a="open', ("failed", 'a="open')),
    ],
)
def test_operators(operator: dict[str, Any], given: Any, made: Any) -> None:
    assert body(operator, given) == made


def test_attributes_and_resources() -> None:
    entry, failed = through({"type": "copy", "from": "body", "to": "attributes.line"}, "x")
    assert (entry.attributes, failed) == ({"line": "x"}, 0)
    operator = {"type": "retain", "fields": ["attributes.a", "resource.r"]}
    entry, _ = through(operator, "x", {"a": 1, "b": 2}, {"r": 1, "s": 2})
    assert (entry.attributes, entry.resource, entry.body) == ({"a": 1}, {"r": 1}, "x")
    entry, _ = through({"type": "key_value_parser"}, "step=3 loss=2.1")
    assert entry.attributes == {"step": "3", "loss": "2.1"}
    entry, _ = through({"type": "flatten", "field": "attributes.k"}, "x", {"k": {"a": 1}})
    assert entry.attributes == {"a": 1}


@pytest.mark.parametrize(
    ("operator", "wrong"),
    [
        ({"type": "copy", "from": "body"}, '"to" is missing'),
        ({"type": "retain"}, '"fields" is missing'),
        ({"type": "retain", "fields": ["x.y"]}, "does not begin with"),
        ({"type": "flatten", "field": "body"}, "name a field in it"),
        ({"type": "assign_keys", "field": "body", "keys": [1]}, "expected a list of names"),
        ({"type": "regex_replace", "field": "body"}, "one of regex and regex_name is needed"),
        ({"type": "regex_replace", "field": "body", "regex": "("}, "no regular expression"),
        ({"type": "regex_replace", "field": "body", "regex_name": "html"}, "is none of ansi_control_sequences"),
        ({"type": "key_value_parser", "delimiter": "!", "pair_delimiter": "!"}, "not the same"),
        ({"type": "unquote"}, '"field" is missing'),
        ({"type": "csv_parser", "header": "a,b"}, "is not supported here; run it in a Collector in front"),
    ],
)
def test_mistakes(operator: dict[str, Any], wrong: str) -> None:
    found = problems([operator])
    assert len(found) == 1
    assert wrong in found[0][1]
