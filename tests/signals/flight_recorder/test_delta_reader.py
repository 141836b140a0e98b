"""A dump read by reference to another gives what it gives when it is read alone, or is not taken for its like."""

from __future__ import annotations

import pickle
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tracecore.signals.flight_recorder import delta_reader
from tracecore.signals.flight_recorder.delta_reader import Reference, reference_of
from tracecore.signals.flight_recorder.dump import RankDump, decode, dump_of
from tracecore.signals.flight_recorder.pickled import DumpError, DumpLimits, Interpreter

ROOT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT))
from bench.dumps import Writer, document  # noqa: E402

Change = Callable[[dict[str, Any]], None]


def dumped(*changes: Change, entries: int = 120, last: int = 300, stuck: int = 295, seed: int = 1) -> bytes:
    root = document(8, entries, last, stuck, seed)
    for change in changes:
        change(root)
    return Writer().document(root)


def reference(data: bytes) -> Reference:
    machine = Interpreter(data, DumpLimits())
    root = machine.run()
    found = reference_of(machine, root, dump_of("first", 0, root))
    assert found is not None
    return found


def same(one: RankDump, other: RankDump) -> None:
    for name in ("seq", "sig", "created", "flags"):
        np.testing.assert_array_equal(getattr(one.columns, name), getattr(other.columns, name), err_msg=name)
    assert [one.groups[g] for g in one.columns.group] == [other.groups[g] for g in other.columns.group]
    assert sorted(one.groups, key=repr) == sorted(other.groups, key=repr)
    used = set(one.columns.sig.tolist())
    assert {k: v for k, v in one.signatures.items() if k in used} == {
        k: v for k, v in other.signatures.items() if k in used
    }
    # Offsets are of bytes here, and positions where the whole was decoded; groups may be numbered otherwise.
    fields = [field for field in other.notable[0].__struct_fields__ if field not in ("offset", "group")]
    assert [[getattr(entry, f) for f in fields] for entry in one.notable] == [
        [getattr(entry, f) for f in fields] for entry in other.notable
    ]
    assert (one.rank, one.version, one.entries, one.wrapped, one.latest) == (
        other.rank,
        other.version,
        other.entries,
        other.wrapped,
        other.latest,
    )


def alone(data: bytes) -> RankDump:
    return dump_of("second", 1, decode(data))


def rename_threads(root: dict[str, Any]) -> None:
    for row in root["entries"]:
        row["thread_name"] = row["thread_name"].replace("python3", "pt_main_thread")
        row["thread_id"] = row["thread_id"].replace("1404", "97")


def in_mesh(number: int) -> Change:
    def change(root: dict[str, Any]) -> None:
        name, ranks = str(number), str([number, number + 1])
        root["pg_config"][name] = {"name": name, "desc": f"mesh_{number}", "ranks": ranks}
        root["pg_status"]["1"] = {"last_enqueued_collective": 7 * number, "last_completed_collective": 6}
        for row in root["entries"][::5]:
            row.update(pg_id=1, process_group=(name, f"mesh_{number}"))

    return change


def pipeline(stage: int) -> Change:
    """Every fourth entry is a send to the next stage, every other fourth a receive from the one before."""

    def change(root: dict[str, Any]) -> None:
        for number, row in enumerate(root["entries"]):
            if number % 2 == 0:
                name = f"send {stage}->{stage + 1}" if number % 4 else f"recv {stage}<-{stage - 1}"
                row.update(profiling_name=f"nccl:{name}", is_p2p=True, p2p_seq_id=number)

    return change


def uneven(seed: int) -> Change:
    def change(root: dict[str, Any]) -> None:
        for number, row in enumerate(root["entries"][3::3]):
            row["input_sizes"] = [[1000 + seed * number]]

    return change


def call_otherwise(root: dict[str, Any]) -> None:
    for row in root["entries"]:
        if row["profiling_name"] == "nccl:all_reduce":
            row["profiling_name"] = "nccl:all_redoce"


def finish(root: dict[str, Any]) -> None:
    for row in root["entries"][-4:]:
        row.update(state="completed", retired=True, time_discovered_completed_ns=row["time_created_ns"] + 5)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (dumped(), dumped(seed=2)),
        (dumped(), dumped(rename_threads, seed=2)),
        (dumped(), dumped(finish, seed=3)),
        (dumped(finish), dumped(seed=3)),
        (dumped(entries=200, last=200, stuck=190), dumped(entries=195, last=195, stuck=190, seed=2)),
        (dumped(entries=195, last=195, stuck=190), dumped(entries=200, last=200, stuck=196, seed=2)),
        (dumped(in_mesh(3)), dumped(in_mesh(4), seed=2)),
        (dumped(in_mesh(3)), dumped(in_mesh(1234), seed=2)),
        (dumped(pipeline(3)), dumped(pipeline(3), seed=2)),
    ],
    ids=[
        "times",
        "threads",
        "further",
        "not as far",
        "shorter",
        "longer",
        "mesh",
        "mesh with a longer name",
        "stage of a pipeline",
    ],
)
def test_ranks_of_one_job_are_alike(first: bytes, second: bytes) -> None:
    known = reference(first)
    found = known.read("second", 1, second, DumpLimits())
    assert found is not None
    same(found, alone(second))
    # The reference is as it was.
    again = known.read("second", 1, second, DumpLimits())
    assert again is not None
    same(again, alone(second))


def test_half_of_the_entries_may_differ() -> None:
    known, second = reference(dumped(uneven(7))), dumped(uneven(9), seed=2)
    assert known.read("second", 1, second, DumpLimits(), most=20) is None
    found = known.read("second", 1, second, DumpLimits(), most=60)
    assert found is not None
    same(found, alone(second))


def test_every_recorded_dump(incidents: Path) -> None:
    for folder in sorted(incidents.glob("*/fr")):
        files = sorted(folder.iterdir())
        for file in (*files, *reversed(files)):
            data = file.read_bytes()
            dump = delta_reader.read("second", 1, data, DumpLimits())
            assert dump is not None
            same(dump, alone(data))


def test_equal_columns_are_shared() -> None:
    known = reference(dumped())
    found = known.read("second", 1, dumped(seed=2), DumpLimits())
    assert found is not None
    assert found.columns.sig is known.dump.columns.sig


def no_times(root: dict[str, Any]) -> None:
    for row in root["entries"]:
        row["time_discovered_completed_ns"] = -(1 << 60)


@pytest.mark.parametrize(
    "second",
    [
        dumped(call_otherwise),
        dumped(last=301),
        dumped(no_times),
        dumped(entries=40, last=300),
        dumped(pipeline(4)),
    ],
    ids=[
        "another operation by the same name",
        "a ring that begins later",
        "times that are none",
        "another ring",
        "sends and receives",
    ],
)
def test_what_is_not_alike_is_read_alone(second: bytes) -> None:
    found = reference(dumped()).read("second", 1, second, DumpLimits())
    if found is not None:
        same(found, alone(second))
    delta_reader.read("first", 0, dumped(), DumpLimits())
    again = delta_reader.read("second", 1, second, DumpLimits())
    assert again is not None
    same(again, alone(second))


BASE = dumped()
KNOWN = reference(BASE)


@settings(max_examples=100)
@given(st.data())
def test_damage_is_never_overlooked(data: st.DataObject) -> None:
    damaged = bytearray(BASE)
    for _ in range(data.draw(st.integers(1, 4))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    if data.draw(st.booleans()):
        cut = data.draw(st.integers(0, len(damaged)))
        del damaged[cut : cut + data.draw(st.integers(0, 40))]
    found = KNOWN.read("second", 1, bytes(damaged), DumpLimits())
    try:
        general = alone(bytes(damaged))
    except DumpError:
        return
    if found is not None:
        same(found, general)


def test_the_bench_writes_what_pytorch_writes(incidents: Path) -> None:
    files = sorted(incidents.glob("*/fr/nccl_trace_rank_*"))
    assert files
    for file in files:
        data = file.read_bytes()
        assert Writer().document(pickle.loads(data)) == data, file
