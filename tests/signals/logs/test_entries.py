"""Entries are encoded as the payload of the same records is."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from tracecore.signals.logs.operators.entry import Entry
from tracecore.signals.logs.tail.batch import LogBatch
from tracecore.signals.otlp import encoding
from tracecore.signals.otlp.messages import parse

_VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.floats(allow_nan=False)
    | st.integers(-(1 << 63), (1 << 63) - 1)
    | st.text()
    | st.binary(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
_MAPS = st.dictionaries(st.sampled_from(["a", "level", "log.file.name", "é", "x" * 200]), _VALUES, max_size=4)


@st.composite
def entries(draw: Any) -> Entry:
    one = Entry(
        draw(_VALUES), draw(_MAPS), draw(st.sampled_from([{}, {"r": "1"}, {"r": "2"}])), draw(st.integers(0, 3))
    )
    one.time = draw(st.none() | st.integers(0, 1 << 63))
    one.severity = draw(st.integers(0, 24))
    one.severity_text = draw(st.sampled_from(["", "info", "É"]))
    one.scope = draw(st.sampled_from(["", "trainer"]))
    return one


@given(st.lists(entries(), max_size=6))
def test_the_encoding_is_that_of_the_payload(held: list[Entry]) -> None:
    one = LogBatch("a.log", held)
    assert parse("logs", one.encoded()) == parse("logs", encoding.logs(one.payload()))
    assert one.count == len(list(one.records()))
