"""The quick reader gives what the general one gives, or nothing."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tracecore.signals.flight_recorder import lockstep, reading
from tracecore.signals.flight_recorder.dump import Dump, decode, dump_of
from tracecore.signals.flight_recorder.pickled import DumpError, Limits

ROOT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT))
from bench.dumps import Writer, document  # noqa: E402

GLOO = ROOT / "tests" / "data" / "fr_gloo"


def same(one: Dump, other: Dump) -> None:
    for name in ("seq", "sig", "created", "flags"):
        np.testing.assert_array_equal(getattr(one.columns, name), getattr(other.columns, name), err_msg=name)
    # Groups may be numbered in another order.
    assert [one.groups[g] for g in one.columns.group] == [other.groups[g] for g in other.columns.group]
    assert sorted(one.groups, key=repr) == sorted(other.groups, key=repr)
    assert one.signatures == other.signatures
    assert [(e.record_id, e.name, e.frames, e.signature, e.done) for e in one.notable] == [
        (e.record_id, e.name, e.frames, e.signature, e.done) for e in other.notable
    ]
    assert (one.entries, one.wrapped, one.latest) == (other.entries, other.wrapped, other.latest)


def written(entries: int = 300, world: int = 16, last: int = 70_000, **changes: object) -> bytes:
    root = document(world, entries, last)
    for row in root["entries"]:
        row.update(changes)
    return Writer().document(root)


def test_every_recorded_dump(incidents: Path) -> None:
    quick = 0
    for file in sorted([*incidents.glob("*/fr/*"), *GLOO.glob("*/fr_dump_*")]):
        data = file.read_bytes()
        try:
            dump = lockstep.read("f", 0, data, Limits())
        except lockstep.UnfamiliarLayout:
            continue
        quick += 1
        same(dump, dump_of("f", 0, decode(data)))
    assert quick > 50


@pytest.mark.parametrize("last", [300, 65_600, 2**31 + 200])
def test_numbers_of_every_width(last: int) -> None:
    data = written(last=last)
    same(lockstep.read("f", 0, data, Limits()), dump_of("f", 0, decode(data)))


def test_many_groups_push_keys_beyond_the_short_references() -> None:
    root = document(8, 200, 400)
    root["pg_config"] = {str(i): {"name": str(i), "desc": f"mesh_{i}", "ranks": "[0, 1]"} for i in range(150)}
    for i, row in enumerate(root["entries"]):
        row["process_group"] = (str(i % 150), f"mesh_{i % 150}")
        row["pg_id"] = i % 150
    data = Writer().document(root)
    same(lockstep.read("f", 0, data, Limits()), dump_of("f", 0, decode(data)))


def test_entries_of_different_layouts_are_each_learned() -> None:
    root = document(8, 400, 900)
    rows = []
    for i, row in enumerate(root["entries"]):
        if i % 3 == 1:  # timing switched on: a duration in the middle
            row = {
                k: v
                for key, value in row.items()
                for k, v in (
                    [(key, value)] if key != "input_sizes" else [("duration_ms", 1.0 * i and None), (key, value)]
                )
            }
        if i % 5 == 2:
            row["is_p2p"], row["profiling_name"], row["p2p_seq_id"] = True, "nccl:send 0->1", i
        rows.append(row)
    root["entries"] = rows
    data = Writer().document(root)
    same(lockstep.read("f", 0, data, Limits()), dump_of("f", 0, decode(data)))


def test_sizes_that_look_like_the_next_key() -> None:
    # 0x2c6865 is `e h ,` in memory order: the end of a list and a reference, inside a tensor's size.
    for value in range(0x206865, 0x3A6865, 0x10000):
        data = written(entries=40, input_sizes=[[value]], output_sizes=[[value, 2]])
        expected = dump_of("f", 0, decode(data))
        try:
            same(lockstep.read("f", 0, data, Limits()), expected)
        except lockstep.UnfamiliarLayout:
            same(reading.read_dump(data, "rank_0"), expected)


BASE = written(entries=60, world=4, last=300)


@settings(max_examples=300)
@given(st.data())
def test_damage_gives_a_dump_or_a_named_error(data: st.DataObject) -> None:
    damaged = bytearray(BASE)
    for _ in range(data.draw(st.integers(1, 8))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.one_of(st.none(), st.integers(0, len(damaged))))
    content = bytes(damaged[:cut])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lockstep, "WORTHWHILE", 0)
        try:
            quick = reading.read_dump(content, "rank_0")
        except DumpError as error:
            quick, reason = None, error.reason
            assert reason
    try:
        general = dump_of("rank_0", 0, decode(content))
    except DumpError:
        general = None
    if quick is not None and general is not None and quick.entries == general.entries:
        np.testing.assert_array_equal(quick.columns.seq, general.columns.seq)
