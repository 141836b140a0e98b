"""Numbers, times and comparisons as Go has them."""

from __future__ import annotations

import datetime
import math
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracecore.ottl.arithmetic import add, divide, multiply, negate, subtract
from tracecore.ottl.compare import COMPARATORS, deep_equal, equal, greater, greater_equal, less, less_equal, not_equal
from tracecore.ottl.errors import OttlRuntimeError, OttlTypeError, nearest
from tracecore.ottl.values import (
    INT64_MAX,
    INT64_MIN,
    Duration,
    SpanID,
    Time,
    TraceID,
    as_string,
    copy_value,
    float_to_int,
    format_duration,
    format_float,
    parse_bool,
    parse_float,
    parse_int,
    to_json,
    wrap_int64,
)

int64 = st.integers(INT64_MIN, INT64_MAX)
scalars = st.one_of(
    st.none(),
    st.booleans(),
    int64,
    st.floats(),
    st.text(max_size=4),
    st.binary(max_size=4),
    int64.map(Time),
    int64.map(Duration),
    st.binary(min_size=8, max_size=8).map(SpanID),
)
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)


def go_int64(number: int) -> int:
    """The reference: what is left of a number in 64 bits."""
    return int.from_bytes((number % (1 << 64)).to_bytes(8, "big"), "big", signed=True)


@given(int64, int64)
def test_integers_wrap_around(a: int, b: int) -> None:
    assert add(a, b) == go_int64(a + b)
    assert subtract(a, b) == go_int64(a - b)
    assert multiply(a, b) == go_int64(a * b)
    assert negate(a) == go_int64(-a)
    assert wrap_int64(a) == a


@given(int64, int64.filter(bool))
def test_division_truncates(a: int, b: int) -> None:
    quotient = divide(a, b)
    if (a, b) == (INT64_MIN, -1):
        assert quotient == INT64_MIN
    else:
        assert abs(quotient) == abs(a) // abs(b)
        assert quotient == 0 or (quotient < 0) == ((a < 0) != (b < 0))
        assert abs(a - quotient * b) < abs(b)


@given(int64, st.floats())
def test_mixed_numbers_are_floats(a: int, b: float) -> None:
    for operate in (add, subtract, multiply):
        assert type(operate(a, b)) is float
        assert type(operate(b, a)) is float


@pytest.mark.parametrize("zero", [0, 0.0, -0.0])
def test_division_by_zero_is_an_error(zero: float) -> None:
    with pytest.raises(OttlRuntimeError, match="divide by 0"):
        divide(1, zero)
    with pytest.raises(OttlRuntimeError, match="divide by 0"):
        divide(1.5, zero)


def test_float_division_overflows_to_infinity() -> None:
    assert divide(1e308, 1e-308) == math.inf
    assert divide(-1e308, 1e-308) == -math.inf


def test_times_and_durations() -> None:
    second = Duration(1_000_000_000)
    assert subtract(Time(5), Time(2)) == Duration(3)
    assert add(Time(5), second) == Time(1_000_000_005)
    assert add(second, Time(5)) == Time(1_000_000_005)
    assert subtract(Time(1_000_000_005), second) == Time(5)
    assert add(second, second) == Duration(2_000_000_000)
    assert subtract(second, second) == Duration(0)
    assert subtract(Time(1 << 64), Time(0)) == Duration(INT64_MAX)
    for operate, left, right in [
        (add, Time(1), Time(1)),
        (add, Time(1), 1),
        (add, second, 1),
        (subtract, second, Time(1)),
        (multiply, second, 2),
        (divide, Time(1), 2),
        (add, 1, second),
        (add, "a", "b"),
        (add, True, 1),
        (add, None, 1),
        (multiply, 1, None),
    ]:
        with pytest.raises(OttlTypeError):
            operate(left, right)


@given(values, values)
def test_comparison_laws(a: Any, b: Any) -> None:
    assert not_equal(a, b) is (not equal(a, b))
    assert equal(a, b) is equal(b, a)
    assert less(a, b) is greater(b, a)
    assert less_equal(a, b) is greater_equal(b, a)
    assert not (less(a, b) and greater(a, b))
    if less(a, b):
        assert not equal(a, b)
        assert less_equal(a, b)
    for compare in COMPARATORS.values():
        assert type(compare(a, b)) is bool


@given(values)
def test_equality_is_reflexive_but_for_nan(a: Any) -> None:
    if "nan" not in repr(a):
        assert equal(a, a)
        assert equal(a, copy_value(a))
        assert deep_equal(a, copy_value(a))


@given(st.text(), st.binary())
def test_text_and_bytes_never_compare(text: str, raw: bytes) -> None:
    assert not equal(text, raw)
    assert not any(compare(text, raw) for compare in (less, less_equal, greater, greater_equal))


@pytest.mark.parametrize(
    ("a", "b", "same"),
    [
        (1, 1.0, True),
        (True, 1, False),
        (0, False, False),
        (2**53 + 1, float(2**53), True),
        ({"a": 1}, {"a": 1.0}, False),
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}, True),
        ([1, [2]], [1, [2]], True),
        ([True], [1], False),
        (b"", None, True),
        (b"a", None, False),
        ("", None, False),
        (TraceID(16), bytes(16), False),
        (TraceID(16), TraceID(16), True),
        (Time(1), Time(1, ZoneInfo("Asia/Tokyo")), True),
        (Time(1), 1, False),
        (Duration(1), 1, False),
    ],
)
def test_equality(a: Any, b: Any, same: bool) -> None:
    assert equal(a, b) is same
    assert equal(b, a) is same


def test_maps_and_ids_have_no_order() -> None:
    for a, b in [({}, {}), ([], [1]), (SpanID(8), SpanID(b"\1" * 8))]:
        assert not any(compare(a, b) for compare in (less, less_equal, greater, greater_equal))


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (1.0, "1"),
        (-0.0, "-0"),
        (0.1, "0.1"),
        (100.0, "100"),
        (1e20, "100000000000000000000"),
        (1.2345678901234568e20, "123456789012345680000"),
        (1e21, "1e+21"),
        (1e-6, "0.000001"),
        (-2.5e-6, "-0.0000025"),
        (1e-7, "1e-7"),
        (5e-324, "5e-324"),
        (1.5e300, "1.5e+300"),
        (math.nan, "NaN"),
        (-math.inf, "-Inf"),
    ],
)
def test_float_text(number: float, text: str) -> None:
    assert format_float(number) == text


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_float_text_is_exact(number: float) -> None:
    assert parse_float(format_float(number)) == number


@pytest.mark.parametrize(
    ("nanos", "text"),
    [
        (0, "0s"),
        (1, "1ns"),
        (1500, "1.5µs"),
        (1_500_000, "1.5ms"),
        (90_000_000_000, "1m30s"),
        (3_600_000_000_000, "1h0m0s"),
        (3_661_500_000_000, "1h1m1.5s"),
        (-1, "-1ns"),
        (INT64_MIN, "-2562047h47m16.854775808s"),
    ],
)
def test_duration_text(nanos: int, text: str) -> None:
    assert format_duration(nanos) == text
    assert str(Duration(nanos)) == text


@given(int64)
def test_integer_text(number: int) -> None:
    assert parse_int(str(number)) == number
    assert parse_int(f"{number:+d}") == number


@pytest.mark.parametrize("text", ["", "+", "1_0", " 1", "0x1", "١", "1.0", str(2**63), "9" * 10_000, "-"])
def test_text_that_is_no_integer(text: str) -> None:
    with pytest.raises(OttlRuntimeError):
        parse_int(text)


@pytest.mark.parametrize("text", ["", "1_0", "1e999", "0x", "abc", "1e", "--1", " 1"])
def test_text_that_is_no_float(text: str) -> None:
    with pytest.raises(OttlRuntimeError):
        parse_float(text)


def test_float_spellings() -> None:
    assert parse_float("1.") == 1.0
    assert parse_float(".5e1") == 5.0
    assert parse_float("0x1p-2") == 0.25
    assert parse_float("+Inf") == math.inf
    assert parse_float("-infinity") == -math.inf
    assert math.isnan(parse_float("NaN"))


def test_bool_spellings() -> None:
    assert [parse_bool(text) for text in ("1", "t", "TRUE", "0", "False")] == [True, True, True, False, False]
    with pytest.raises(OttlRuntimeError):
        parse_bool("yes")


def test_float_to_int_saturates_to_the_least() -> None:
    assert float_to_int(1.9) == 1
    assert float_to_int(-1.9) == -1
    assert float_to_int(1e19) == INT64_MIN
    assert float_to_int(math.nan) == INT64_MIN
    assert float_to_int(-(2.0**63)) == INT64_MIN


def test_json_is_written_as_go_writes_it() -> None:
    value = {"b": [1, 1.0, 2.5, None, True], "a": "<é&>\u2028", "c": b"\x01", "d": {}}
    assert to_json(value) == '{"a":"\\u003cé\\u0026\\u003e\\u2028","b":[1,1,2.5,null,true],"c":"AQ==","d":{}}'
    assert as_string(value["a"]) == "<é&>\u2028"
    assert as_string(None) == ""
    assert as_string(b"\x01") == "AQ=="
    assert as_string(1.5) == "1.5"
    with pytest.raises(OttlTypeError):
        to_json(math.nan)


def test_time_text_and_fields() -> None:
    moment = Time(1_581_452_772_000_000_321)
    assert moment.rfc3339_nano() == "2020-02-11T20:26:12.000000321Z"
    assert Time(0, datetime.timezone(datetime.timedelta(hours=-5, minutes=-30))).rfc3339_nano() == (
        "1969-12-31T18:30:00-05:30"
    )
    with pytest.raises(OttlRuntimeError):
        Time(10**30).to_datetime()


def test_a_copy_shares_nothing() -> None:
    original: dict[str, Any] = {"a": [{"b": 1}]}
    copied = copy_value(original)
    copied["a"][0]["b"] = 2
    assert original == {"a": [{"b": 1}]}


def test_nearest_names() -> None:
    assert nearest("IsMach", ["IsMap", "IsMatch"]) == 'did you mean "IsMatch"?'
    assert nearest("ismatch", ["IsMatch"]) == 'did you mean "IsMatch"?'
    assert nearest("zzz", ["IsMatch"]) == ""
