"""The interpreter builds plain data and nothing else."""

from __future__ import annotations

import os
import pickle
import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracecore.signals.flight_recorder.pickled import DumpError, DumpLimits, loads

plain = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False) | st.text(max_size=300),
    lambda inner: (
        st.lists(inner, max_size=6)
        | st.tuples(inner)
        | st.tuples(inner, inner)
        | st.tuples(inner, inner, inner, inner)
        | st.dictionaries(st.text(max_size=8) | st.integers(-5, 500), inner, max_size=5)
    ),
    max_leaves=40,
)


@given(plain, st.sampled_from([2, 3, 4, 5]))
def test_plain_data_is_read_as_python_reads_it(value: object, protocol: int) -> None:
    assert loads(pickle.dumps(value, protocol)) == value


def test_real_dumps_are_read_as_python_reads_them(incidents: Path) -> None:
    files = [*incidents.glob("*/fr/*"), *Path(__file__).parents[2].glob("data/fr_gloo/*/fr_dump_*")]
    assert len(files) > 60
    for file in files:
        data = file.read_bytes()
        assert loads(data) == pickle.loads(data), file


class Evil:
    def __reduce__(self) -> tuple[object, ...]:
        return os.system, ("touch /nonexistent/owned",)


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_code_is_refused(protocol: int) -> None:
    with pytest.raises(DumpError, match="forbidden") as error:
        loads(pickle.dumps({"version": "2.10", "entries": [Evil()]}, protocol))
    assert error.value.reason == "forbidden"


@pytest.mark.parametrize(
    "body",
    [
        b"cos\nsystem\n",
        b"(ios\nsystem\n",
        b"\x93",
        b"R",
        b"b",
        b"o",
        b"\x81",
        b"\x92",
        b"\x82\x01",
        b"\x83\x01\x00",
        b"\x84\x01\x00\x00\x00",
        b"Pid\n",
        b"Q",
        b"\x97",
        b"\x98",
    ],
)
def test_every_opcode_that_names_or_calls_is_refused(body: bytes) -> None:
    with pytest.raises(DumpError) as error:
        loads(b"\x80\x02N" + body + b".")
    assert error.value.reason == "forbidden"


def test_a_huge_memo_index_takes_no_memory() -> None:
    with pytest.raises(DumpError) as error:
        loads(b"\x80\x02Nr\xff\xff\xff\x7f.")
    assert error.value.reason == "too_large"


def test_a_promised_string_that_is_not_there_takes_no_memory() -> None:
    for body in (b"X\xff\xff\xff\x7f", b"\x8d" + struct.pack("<Q", 1 << 60), b"B\xff\xff\xff\x7f"):
        with pytest.raises(DumpError) as error:
            loads(b"\x80\x04" + body + b"abc.")
        assert error.value.reason in ("too_large", "truncated")


def test_depth_is_bounded() -> None:
    with pytest.raises(DumpError) as error:
        loads(b"\x80\x02" + b"](" * 100_000 + b".")
    assert error.value.reason == "too_deep"


def test_values_are_bounded() -> None:
    with pytest.raises(DumpError) as error:
        loads(b"\x80\x02(" + b"]" * 2000 + b"t.", DumpLimits(values=1000))
    assert error.value.reason == "too_large"


def test_a_key_that_is_expensive_to_hash_is_refused() -> None:
    # (t, t) nested forty times through the memo: hashing it would take 2**40 steps.
    body = b"K\x00K\x00\x86q\x00"
    for index in range(40):
        body += b"h" + bytes((index,)) + b"h" + bytes((index,)) + b"\x86q" + bytes((index + 1,))
    with pytest.raises(DumpError) as error:
        loads(b"\x80\x02}(" + body + b"K\x01u.")
    assert error.value.reason == "forbidden"


def test_an_integer_of_many_bytes_is_refused() -> None:
    with pytest.raises(DumpError):
        loads(b"\x80\x02\x8a\xff" + b"\x01" * 255 + b".")


@pytest.mark.parametrize(
    "data", [b"", b"\x80", b"\x80\x02", b"\x80\x02K", b"\x80\x02}(X\x05\x00\x00\x00ab", b"\x80\x02\x95\x01"]
)
def test_an_end_in_the_middle_is_truncation(data: bytes) -> None:
    with pytest.raises(DumpError) as error:
        loads(data)
    assert error.value.reason == "truncated"


@given(st.binary(max_size=400))
def test_any_bytes_give_data_or_a_named_error(data: bytes) -> None:
    reason = ""
    try:
        loads(b"\x80\x02" + data)
    except DumpError as error:
        reason = error.reason
    assert reason in {"", "truncated", "corrupt", "forbidden", "too_large", "too_deep"}
