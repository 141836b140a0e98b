"""Answers of targets, read as another parser reads them, and never with anything but an answer or a reason."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client.openmetrics.parser import text_string_to_metric_families as read_open_metrics
from prometheus_client.parser import text_string_to_metric_families as read_text

from tracecore.signals.metrics.exposition import ExpositionError, about, amount, number, written

NAMES = st.from_regex(r"[a-zA-Z_:][a-zA-Z0-9_:]{0,12}", fullmatch=True)
LABELS = st.dictionaries(
    st.from_regex(r"[a-zA-Z_][a-zA-Z0-9_]{0,8}", fullmatch=True).filter(lambda n: not n.startswith("__")),
    st.text(st.characters(codec="utf-8", exclude_characters="\r\x0b\x0c\x1c\x1d\x1e\x85\u2028\u2029"), max_size=12),
    max_size=4,
)
#: The other parser stumbles over quotes in exemplars.
PLAIN = st.dictionaries(
    st.from_regex(r"[a-z]{1,8}", fullmatch=True), st.from_regex(r"[a-zA-Z0-9 ,{}=#]{0,12}", fullmatch=True), max_size=4
)
VALUES = st.floats() | st.integers(-(10**18), 10**18).map(float)


def escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')


def line(name: str, labels: dict[str, str], value: float) -> str:
    inside = ",".join(f'{label}="{escaped(text)}"' for label, text in labels.items())
    shown = (
        "NaN" if math.isnan(value) else "+Inf" if value == math.inf else "-Inf" if value == -math.inf else repr(value)
    )
    return f"{name}{{{inside}}} {shown}" if labels else f"{name} {shown}"


def same(a: float, b: float) -> bool:
    return a == b or (a != a and b != b)


@settings(max_examples=60)
@given(NAMES, LABELS, VALUES)
def test_a_line_is_what_another_parser_reads(name: str, labels: dict[str, str], value: float) -> None:
    text = line(name, labels, value)
    (family,) = read_text(text + "\n")
    (expected,) = family.samples
    found = written(text)
    assert (found.name, found.labels) == (name, labels)
    assert found.labels == expected.labels
    got = amount(text[found.end :], open_metrics=False)
    assert same(got[0], expected.value)
    assert got[1:] == (None, None)


@settings(max_examples=60)
@given(LABELS, st.floats(0, 1e6), st.integers(0, 4_000_000_000), PLAIN, st.floats(0, 1e6))
def test_open_metrics_with_exemplars(
    labels: dict[str, str], value: float, time: int, behind: dict[str, str], measured: float
) -> None:
    inside = ",".join(f'{label}="{escaped(text)}"' for label, text in behind.items())
    text = f"{line('a_total', labels, value)} {time} # {{{inside}}} {measured!r}"
    (family,) = read_open_metrics(f"# TYPE a counter\n{text}\n# EOF\n")
    (expected,) = family.samples
    found = written(text)
    got, at, exemplar = amount(text[found.end :], open_metrics=True)
    assert found.labels == expected.labels
    assert (got, at) == (expected.value, time * 1000)
    assert exemplar is not None
    assert (exemplar.labels, exemplar.value) == (expected.exemplar.labels, expected.exemplar.value)


@settings(max_examples=60)
@given(st.text(max_size=80))
def test_any_text_is_a_line_or_is_none(text: str) -> None:
    """Anything but the one error would end the test."""
    refused = 0
    for read in (written, about, number, lambda text: amount(text, False), lambda text: amount(text, True)):
        try:
            read(text)
        except ExpositionError:
            refused += 1
    assert refused < 5, "what is no comment at all is passed over"


@pytest.mark.parametrize(
    "text",
    [
        "", " ", "{", "}", "{}", 'a{b="c"', 'a{b=c} 1', "a{b=} 1", 'a{="c"} 1', 'a{b="c"x} 1', "é 1", 'a{b "c"} 1',
        'a{b="\\"} 1', "a{,} 1", 'a{"b"="c"} 1',
    ],
)  # fmt: skip
def test_what_is_no_series(text: str) -> None:
    with pytest.raises(ExpositionError):
        written(text)


@pytest.mark.parametrize(
    ("rest", "open_metrics"),
    [("", False), ("x", False), ("1_0", False), ("1 2 3", False), ("1 # {} 2", False), ("1 # 2", True), ("1 nan", True),
     ("1 # {} 2 3 4", True), ("1 inf", False)],
)  # fmt: skip
def test_what_is_no_amount(rest: str, open_metrics: bool) -> None:
    with pytest.raises(ExpositionError):
        amount(rest, open_metrics)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("# TYPE a counter", ("TYPE", "a", "counter")),
        ("# TYPE a untyped", ("TYPE", "a", "unknown")),
        ("#  HELP a  what it\\nis \\\\ ", ("HELP", "a", "what it\nis \\ ")),
        ("# UNIT a_seconds seconds", ("UNIT", "a_seconds", "seconds")),
        ("# HELP a", ("HELP", "a", "")),
        ("# a comment", None),
        ("#", None),
        ("# EOF", None),
    ],
)
def test_comments(text: str, expected: Any) -> None:
    assert about(text) == expected
