"""Facts from plain fields and as bytes."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from tracecore.facts.catalog import BY_NAME, TYPES, FactError, build, fields_of, snake
from tracecore.facts.codec import decode, encode
from tracecore.facts.gpu import Xid
from tracecore.signals.record import LAYERS

T0 = 1_700_000_000_000_000_000


def test_every_type_keeps_the_contract() -> None:
    assert len({t.__name__ for t in TYPES}) == len(TYPES)
    for kind in TYPES:
        assert kind.__struct_config__.frozen, kind
        assert not kind.__struct_config__.gc, kind
        assert kind.layer in LAYERS, kind
        assert kind.kind != "fact", kind
        assert kind.__doc__, kind
        assert kind.varying <= set(kind.__struct_fields__), kind
        assert "__dict__" not in dir(kind), kind


def test_the_kinds_that_verdicts_promise() -> None:
    kinds = {snake(t.__name__): t.kind for t in TYPES}
    assert {
        name: kinds[name]
        for name in (
            "ecc_delta",
            "xid",
            "aer_error",
            "pcie_rate_collapse",
            "step_stalled",
            "loader_error",
            "mount_event",
            "pod_evicted",
        )
    } == {
        "ecc_delta": "hw_error",
        "xid": "kernel_event",
        "aer_error": "pcie_aer",
        "pcie_rate_collapse": "hw_io_collapse",
        "step_stalled": "training_step_stall",
        "loader_error": "dataloader_error",
        "mount_event": "storage_event",
        "pod_evicted": "pod_event",
    }


def test_a_fact_is_built_from_fields() -> None:
    fact = build("xid", {"code": 48, "node": "n", "gpu": "0000:3b:00.0"}, time=T0, uid="u")
    assert isinstance(fact, Xid)
    assert (fact.code, fact.node, fact.time, fact.uid) == (48, "n", T0, "u")
    assert fact == build("Xid", {"code": 48, "node": "n", "gpu": "0000:3b:00.0"}, time=T0, uid="u")


@pytest.mark.parametrize(
    ("name", "fields", "says"),
    [
        ("xidd", {}, "did you mean 'xid'"),
        ("Xid", {"cod": 1}, "no field 'cod'; its fields: node, pod, job"),
        ("Xid", {"code": "48"}, "Expected `int`, got `str`"),
        ("Xid", {"code": True}, "Expected `int`"),
        ("Xid", {}, "missing required field `code`"),
        ("Xid", {"code": 1, "time": 5}, "no field 'time'"),
        ("Xid", {"code": 1, "source": "x"}, "no field 'source'"),
    ],
)
def test_a_wrong_case_is_told_what_is_right(name: str, fields: dict[str, Any], says: str) -> None:
    with pytest.raises(FactError, match=says):
        build(name, fields, time=T0, uid="u")


def test_facts_survive_the_journey() -> None:
    facts = []
    for kind in TYPES:
        fields: dict[str, Any] = {}
        for field in msgspec.structs.fields(kind):
            if field.required and field.name in fields_of(kind):
                # A new type needs a sample here.
                fields[field.name] = {int: 3, float: 0.5, bool: True, str: "a", tuple[int, ...]: [3]}[field.type]
        facts.append(build(kind.__name__, {**fields, "node": "n", "count": 2, "last_time": T0 + 1}, time=T0, uid="u"))
    assert decode(encode(facts)) == facts
    assert [type(f) for f in decode(encode(facts))] == list(TYPES)


def test_bytes_that_are_no_facts_are_refused() -> None:
    with pytest.raises(msgspec.ValidationError):
        decode(msgspec.msgpack.encode([{"fact": "Xid", "time": 1}]))
    with pytest.raises(msgspec.ValidationError):
        decode(msgspec.msgpack.encode([{"fact": "Nothing"}]))
    with pytest.raises(msgspec.DecodeError):
        decode(b"\xc1")
    assert set(BY_NAME.values()) == set(TYPES)
