"""Lines that are cut out on demand are those that are cut out at once."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracecore.signals.logs.tail.lines import lines
from tracecore.signals.logs.tail.splitting import at_newlines, on_demand

blocks = st.lists(st.sampled_from([b"a", b"bb", b"\n", b"\r", b"\r\n", b"\xff", b""])).map(b"".join)


@given(blocks, st.integers(1, 12))
def test_the_same_as_at_once(data: bytes, most: int) -> None:
    tokens, starts = on_demand(data, most)
    assert (list(tokens), list(starts)) == at_newlines(data, most)
    assert len(tokens) == len(starts) - 1
    assert starts[-1] == at_newlines(data, most)[1][-1]


@given(blocks)
def test_every_byte_is_in_the_line_that_begins_before_it(data: bytes) -> None:
    tokens, starts = lines(data)
    for position in range(starts[-1]):
        number = starts.holding(position)
        assert starts[number] <= position < starts[number + 1]
        assert tokens[number] == tokens[number - len(tokens)]


def test_who_knows_the_ends_says_so_and_is_not_believed_when_they_are_not_all() -> None:
    tokens, starts = lines(b"one\ntwo\nthree\n")
    tokens.ends = np.array([3])
    assert list(tokens) == [b"one", b"two", b"three"]
    tokens, starts = lines(b"one\ntwo\nthree\n")
    tokens.ends = np.array([3, 7, 13])
    assert tokens[1:] == [b"two", b"three"]
    assert starts[1:3] == [4, 8]
    with pytest.raises(IndexError):
        tokens[3]
    with pytest.raises(IndexError):
        starts[4]
