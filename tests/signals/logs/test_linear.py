"""The quick engine finds what RE2 finds, and is only used where it takes linear time."""

from __future__ import annotations

import time

import pytest
import re2
from hypothesis import given, settings
from hypothesis import strategies as st

from tracecore.signals.logs.operators.linear import Searcher, quick

USUAL = [
    r"^(?P<time>\S+) (?P<level>[A-Z]+) (?P<message>.*)$",
    r"^(?P<time>\d{4}-\d{2}-\d{2}) (?P<level>INFO|WARN|ERROR): (?P<message>.*)",
    r"^\[(?P<rank>[^\]]*)\]: (?P<message>.*)$",
    r"^(?P<key>[a-z_]+)=(?P<value>[^,]*),(?P<rest>.*)$",
    r"^[0-9]{4}-[0-9]{2}-[0-9]{2}T",
    r"^(?P<a>\w+)\t(?P<b>\d+)$",
]
OTHERS = [
    r"(?P<message>x.*)$",  # not anchored: tried at every place
    r"^(?P<a>.*) (?P<b>.*)$",  # the first takes what the second needs
    r"^(?P<a>a*)*b",
    r"^(?P<a>(?:ab)+)c",
    r"^(?P<a>\S*)(?P<b>\S*)x",
    r"(?i)^(?P<a>[a-z]+) ",
    r"^(?P<a>[[:alpha:]]+) ",
    r"^(?P<a>x?)(?P<b>x?)(?P<c>x?)xxx",
]


@pytest.mark.parametrize("pattern", USUAL)
def test_usual_expressions_take_the_quick_engine(pattern: str) -> None:
    assert quick(pattern) is not None


@pytest.mark.parametrize("pattern", OTHERS)
def test_what_may_backtrack_is_left_to_re2(pattern: str) -> None:
    assert quick(pattern) is None
    began = time.process_time()
    Searcher(pattern).groups("a x " * 50_000)
    assert time.process_time() - began < 2


@settings(max_examples=400, deadline=None)
@given(
    st.sampled_from([*USUAL, *OTHERS]),
    st.text(st.sampled_from("a\u00e9 x=,[]:\t\v\n\r-0TA\u2028"), max_size=30)
    | st.sampled_from(
        ["2026-01-01 INFO: x y", "[rank 3]: a é", "k=v,", "2026-01-01T00:00:00Z INFO step\v1", "ab\t12\n"]
    ),
)
def test_both_engines_find_the_same(pattern: str, text: str) -> None:
    one = Searcher(pattern)
    match = re2.compile(pattern).search(text)
    assert one.found(text) is (match is not None)
    expected = None if match is None else {name: held or "" for name, held in match.groupdict().items()}
    assert one.groups(text) == expected


_SETS = st.sampled_from([r"\d", r"\w", r"\S", r"\s", ".", "a", "[a-c]", "[^ ]", "x", " ", "é", r"[^\d]", r"\."])
_ITEMS = st.builds(lambda one, times: one + times, _SETS, st.sampled_from(["", "*", "+", "?", "{2}", "{1,3}", "*?"]))


@settings(max_examples=600, deadline=None)
@given(st.lists(_ITEMS, min_size=1, max_size=5), st.text(st.sampled_from("abcx é.1_\v"), max_size=16), st.booleans())
def test_any_expression_that_is_quick_finds_the_same(items: list[str], text: str, end: bool) -> None:
    pattern = "^" + "".join(f"(?P<g{n}>{item})" for n, item in enumerate(items)) + ("$" if end else "")
    match = re2.compile(pattern).search(text)
    expected = None if match is None else {name: held or "" for name, held in match.groupdict().items()}
    assert Searcher(pattern).groups(text) == expected


def test_a_long_line_takes_linear_time() -> None:
    one = Searcher(USUAL[0])
    took = []
    for size in (200_000, 400_000):
        text = "x" * size
        began = time.process_time()
        for _ in range(20):
            assert one.groups(text) is None
        took.append(time.process_time() - began)
    assert took[1] < 4 * took[0] + 0.05
