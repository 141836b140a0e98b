"""What we write, protobuf reads; what protobuf wrote, we read."""

from __future__ import annotations

import struct
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest

from tracecore.signals.otlp import decoding, encoding
from tracecore.signals.otlp.messages import OtlpError, fill, parse, plain

VALUES: Any = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False)
    | st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
    | st.binary(max_size=20),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.text(st.characters(exclude_categories=["Cs"]), max_size=8), inner, max_size=4)
    ),
    max_leaves=12,
)
ATTRIBUTES = st.dictionaries(st.text(st.characters(exclude_categories=["Cs"]), max_size=12), VALUES, max_size=5)
TEXT = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=200)
RECORDS = st.fixed_dictionaries(
    {
        "body": VALUES,
        "attributes": ATTRIBUTES,
        "time_unix_nano": st.integers(0, 2**64 - 1),
        "observed_time_unix_nano": st.integers(0, 2**64 - 1),
    },
    optional={
        "severity_number": st.integers(1, 24),
        "severity_text": TEXT,
        "flags": st.integers(1, 2**32 - 1),
        "trace_id": st.binary(min_size=16, max_size=16).map(bytes.hex),
        "span_id": st.binary(min_size=8, max_size=8).map(bytes.hex),
        "event_name": TEXT,
        "dropped_attributes_count": st.integers(1, 2**32 - 1),
    },
)
PAYLOADS = st.fixed_dictionaries(
    {
        "resource_logs": st.lists(
            st.fixed_dictionaries(
                {
                    "resource": st.fixed_dictionaries({"attributes": ATTRIBUTES}),
                    "scope_logs": st.lists(
                        st.fixed_dictionaries(
                            {
                                "scope": st.fixed_dictionaries({}, optional={"name": TEXT, "version": TEXT}),
                                "log_records": st.lists(RECORDS, max_size=4),
                            },
                            optional={"schema_url": TEXT},
                        ),
                        max_size=3,
                    ),
                },
                optional={"schema_url": TEXT},
            ),
            min_size=1,
            max_size=3,
        )
    }
)


@settings(max_examples=40)
@given(PAYLOADS)
def test_written_by_hand_is_what_messages_write(payload: dict[str, Any]) -> None:
    message = ExportLogsServiceRequest()
    fill(message, payload)
    by_hand = ExportLogsServiceRequest()
    by_hand.ParseFromString(encoding.encode("logs", payload))
    assert plain(by_hand) == plain(message)


@settings(max_examples=40)
@given(PAYLOADS)
def test_encoded_and_decoded_is_the_same(payload: dict[str, Any]) -> None:
    assert decoding.decode("logs", encoding.encode("logs", payload)) == payload


@pytest.mark.parametrize("signal", ["metrics", "traces"])
def test_other_signals_survive_the_way_there_and_back(signal: str) -> None:
    point = {"attributes": {"a": 1}, "time_unix_nano": 5, "as_int": -7}
    metrics = [
        {"name": "m", "unit": "By", "gauge": {"data_points": [point]}},
        {
            "name": "h",
            "histogram": {
                "aggregation_temporality": 2,
                "data_points": [{"count": 3, "sum": 1.5, "bucket_counts": [1, 2], "explicit_bounds": [0.5]}],
            },
        },
    ]
    span = {
        "trace_id": "00112233445566778899aabbccddeeff",
        "span_id": "0011223344556677",
        "name": "step",
        "kind": 1,
        "events": [{"name": "e", "time_unix_nano": 3, "attributes": {"x": [1, "a"]}}],
    }
    payload = {
        "metrics": {
            "resource_metrics": [{"resource": {"attributes": {"r": "x"}}, "scope_metrics": [{"metrics": metrics}]}]
        },
        "traces": {"resource_spans": [{"resource": {"attributes": {"r": "x"}}, "scope_spans": [{"spans": [span]}]}]},
    }[signal]
    assert decoding.decode(signal, encoding.encode(signal, payload)) == payload


@pytest.mark.parametrize("value", [2**63, object(), {"a": 2**70}])
def test_values_without_a_place_in_otlp_are_refused(value: Any) -> None:
    payload = {"resource_logs": [{"resource": {}, "scope_logs": [{"log_records": [{"body": value}]}]}]}
    with pytest.raises(OtlpError):
        encoding.encode("logs", payload)


def test_a_tower_of_lists_is_refused_and_ends_nothing() -> None:
    tower: Any = "x"
    for _ in range(5000):
        tower = [tower]
    with pytest.raises(OtlpError):
        encoding.encode("logs", {"resource_logs": [{"scope_logs": [{"log_records": [{"body": tower}]}]}]})


def test_a_hostile_tower_of_bytes_is_refused() -> None:
    body = b"\x0a\x01x"
    for _ in range(300):
        inner = b"\x0a" + encoding.varint(len(body)) + body
        body = b"\x2a" + encoding.varint(len(inner)) + inner
    raw = body
    for tag in (b"\x2a", b"\x12", b"\x12", b"\x0a"):
        raw = tag + encoding.varint(len(raw)) + raw
    with pytest.raises(OtlpError):
        parse("logs", raw)


@pytest.mark.parametrize("raw", [b"\xff\xff\xff", b"{}", struct.pack("<Q", 1 << 60)])
def test_bytes_that_are_no_request_are_refused(raw: bytes) -> None:
    with pytest.raises(OtlpError, match="not an OTLP request"):
        parse("logs", raw)


def test_half_a_surrogate_pair_is_replaced_and_the_record_kept() -> None:
    payload = {"resource_logs": [{"resource": {}, "scope_logs": [{"log_records": [{"body": "a\ud800b"}]}]}]}
    decoded = decoding.decode("logs", encoding.encode("logs", payload))
    assert decoded["resource_logs"][0]["scope_logs"][0]["log_records"][0]["body"] == "a?b"
