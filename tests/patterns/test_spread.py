"""A look at the buckets of numbers never hides one that stands out."""

from __future__ import annotations

from math import nan

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracecore.patterns.spread import bucket, close

NUMBERS = st.one_of(st.floats(), st.floats(0.1, 10.0), st.sampled_from([0.0, 1.0, 1.5, 2.0, 3.0]))


@given(st.lists(st.one_of(st.none(), NUMBERS), max_size=8), st.floats(1.0, 20.0))
def test_numbers_in_close_buckets_are_close(numbers: list[float | None], factor: float) -> None:
    known = [number for number in numbers if number is not None]
    if close([bucket(number) for number in numbers], factor) and known:
        assert 0 < max(known) < factor * min(known)


@pytest.mark.parametrize("odd", [0.0, -1.0, nan, float("inf")])
def test_a_number_that_no_bucket_holds_is_never_close(odd: float) -> None:
    assert not close([bucket(odd)], 10.0)
    assert not close([bucket(1.0), bucket(odd)], 10.0)


def test_losses_of_a_healthy_run_are_close() -> None:
    assert close([bucket(2.5), bucket(None), bucket(4.0)], 10.0)
    assert close([bucket(0.40), bucket(0.44)], 1.5)
    assert not close([bucket(0.40), bucket(0.62)], 1.5)
