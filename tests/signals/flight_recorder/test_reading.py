"""Files to dumps: names, formats, versions, damage."""

from __future__ import annotations

import json
import os
import pickle
import shutil
from pathlib import Path
from typing import Any

import pytest

from tracecore.signals.flight_recorder.dump import decode
from tracecore.signals.flight_recorder.join import join
from tracecore.signals.flight_recorder.pickled import DumpError, DumpLimits
from tracecore.signals.flight_recorder.reading import find, load, looks_like_dump, read_dump, read_file, sets_of

GLOO = Path(__file__).resolve().parents[2] / "data" / "fr_gloo"


@pytest.mark.parametrize(
    ("name", "rank"),
    [
        ("nccl_trace_rank_12", 12),
        ("fr_dump_3", 3),
        ("fr_json_dump_0.json", 0),
        ("job7_rank3.pickle", 3),
        ("nccl_trace_rank_5_20261115", 5),
        ("dump", None),
    ],
)
def test_rank_in_the_name(name: str, rank: int | None) -> None:
    data = pickle.dumps({"version": "2.5", "entries": []}, 2)
    if rank is None:
        with pytest.raises(DumpError) as error:
            read_dump(data, name)
        assert error.value.reason == "no_rank"
    else:
        assert read_dump(data, f"some/where9/{name}").rank == rank


def test_rank_in_the_content() -> None:
    config = {"0": {"ranks": "[0, 1, 2, 3]"}, "5": {"ranks": "[0, 2]"}, "6": {"ranks": "[2, 3]"}}
    dump = read_dump(pickle.dumps({"version": "2.5", "pg_config": config, "entries": []}, 2), "dump")
    assert dump.rank == 2
    rows = [{"process_group": ("0", "default_pg"), "profiling_name": "nccl:recv 7<-6", "is_p2p": True}]
    assert read_dump(pickle.dumps({"version": "2.5", "entries": rows}, 2), "dump").rank == 7


def test_json_and_pickle_say_the_same() -> None:
    for folder in sorted(GLOO.iterdir()):
        if not folder.is_dir():
            continue
        pickles = join([read_file(str(p)) for p in sorted(folder.glob("fr_dump_*"))])
        texts = join([read_file(str(p)) for p in sorted(folder.glob("fr_json_dump_*"))])
        for one, other in zip(pickles.groups, texts.groups, strict=True):
            assert (one.label, one.stuck, one.waiting, one.missing) == (
                other.label,
                other.stuck,
                other.waiting,
                other.missing,
            )


def test_versions_before_two_have_numbers_only() -> None:
    rows = [
        {"pg_id": 0, "seq_id": n, "record_id": n, "profiling_name": "nccl:all_reduce", "state": "completed"}
        for n in (1, 2)
    ]
    dump = read_dump(pickle.dumps({"version": "1.5", "entries": rows}, 2), "rank_0")
    assert [group.name for group in dump.groups] == ["0"]
    assert dump.columns.seq.tolist() == [1, 2]


def test_a_bare_ring_without_entries_is_a_dump() -> None:
    dump = read_dump(
        pickle.dumps({"version": "2.10", "pg_config": {}, "comm_lib_version": "", "pg_status": {}}, 2), "rank_1"
    )
    assert dump.entries == 0


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "empty"),
        (b"hello", "not_a_dump"),
        (b"{", "truncated"),
        (b"{]", "corrupt"),
        (b"[1]", "not_a_dump"),
        (b'{"a": 1}', "not_a_dump"),
        (pickle.dumps([1, 2], 2), "not_a_dump"),
        (b'{"version":' + b"[" * 100_000, "too_deep"),
        (b"\x80\x02cos\nsystem\n.", "forbidden"),
    ],
)
def test_what_is_no_dump_is_named(data: bytes, reason: str) -> None:
    with pytest.raises(DumpError) as error:
        decode(data)
    assert error.value.reason == reason


def test_too_large_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "nccl_trace_rank_0"
    path.write_bytes(b"\x80\x02" + bytes(5000))
    with pytest.raises(DumpError) as error:
        read_file(str(path), DumpLimits(file_bytes=1000))
    assert error.value.reason == "too_large"


@pytest.mark.parametrize("jobs", [1, 2])
def test_damaged_files_never_end_the_rest(tmp_path: Path, jobs: int) -> None:
    source = GLOO / "hang_one_rank" / "fr_dump_0"
    for rank in range(70):
        shutil.copy(source, tmp_path / f"nccl_trace_rank_{rank}")
    (tmp_path / "nccl_trace_rank_7").write_bytes(source.read_bytes()[:500])
    (tmp_path / "nccl_trace_rank_9").write_bytes(b"\x80\x02cos\nsystem\n(X\x02\x00\x00\x00idtR.")
    (tmp_path / "nccl_trace_rank_11").write_bytes(b"")
    (tmp_path / "notes.txt").write_text("not a dump")
    (tmp_path / "truth.json").write_text('{"culprit_ranks": [1]}')
    loaded = load(find([tmp_path]), jobs)
    assert [dump.rank for dump in loaded.dumps] == [r for r in range(70) if r not in (7, 9, 11)]
    assert {(Path(s.path).name, s.reason) for s in loaded.skipped} == {
        ("nccl_trace_rank_7", "truncated"),
        ("nccl_trace_rank_9", "forbidden"),
        ("nccl_trace_rank_11", "empty"),
    }


def test_of_two_formats_the_one_with_frames_is_read() -> None:
    loaded = load(find([GLOO / "healthy"]))
    assert [Path(dump.path).name for dump in loaded.dumps] == [f"fr_dump_{rank}" for rank in range(4)]
    assert {item.reason for item in loaded.skipped} == {"duplicate"}


def test_attempts_in_folders_of_their_own_are_sets_of_their_own(tmp_path: Path) -> None:
    for attempt in ("attempt_0", "attempt_1"):
        shutil.copytree(GLOO / "hang_one_rank", tmp_path / attempt)
    assert [[d.rank for d in one] for one in sets_of(load(find([tmp_path])).dumps)] == [[0, 1, 2, 3]] * 2
    for rank in range(4):
        (tmp_path / "nodes" / f"n{rank}").mkdir(parents=True)
        shutil.copy(GLOO / "healthy" / f"fr_dump_{rank}", tmp_path / "nodes" / f"n{rank}")
    assert [[d.rank for d in one] for one in sets_of(load(find([tmp_path / "nodes"])).dumps)] == [[0, 1, 2, 3]]


def test_other_json_is_not_taken_for_a_dump(tmp_path: Path) -> None:
    for name, content in (("events.json", {"items": []}), ("exit_codes.json", {"0": 1}), ("x.json", {"version": 1})):
        path = tmp_path / name
        path.write_text(json.dumps(content))
        assert not looks_like_dump(str(path))


def ring(rank: int, first: int, last: int, done: int, **more: Any) -> dict[str, Any]:
    rows = [
        {
            "record_id": seq - 1,
            "pg_id": 0,
            "process_group": ("0", "default_pg"),
            "collective_seq_id": seq,
            "profiling_name": "nccl:all_reduce",
            "input_sizes": [[8]],
            "output_sizes": [[8]],
            "input_dtypes": ["Float"],
            "output_dtypes": ["Float"],
            "state": "completed" if seq <= done else "started",
            "retired": seq <= done,
            "time_created_ns": 10**18 + seq,
        }
        for seq in range(first, last + 1)
    ]
    config = {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1, 2, 3]"}}
    return {"version": "2.10", "pg_config": config, "entries": rows, **more}


def test_wrapped_rings_are_compared_only_where_all_hold_data() -> None:
    roots = [ring(0, 50, 100, 100), ring(1, 80, 100, 100), ring(2, 1, 100, 100), ring(3, 90, 100, 100)]
    roots[0]["entries"][10]["profiling_name"] = "nccl:broadcast"  # seq 60: rank 1 and 3 no longer hold it
    joined = join([read_dump(pickle.dumps(root, 2), f"rank_{rank}") for rank, root in enumerate(roots)])
    assert joined.groups[0].common == (90, 100)
    assert joined.groups[0].settled is None
    roots[0]["entries"][45]["profiling_name"] = "nccl:broadcast"  # seq 95
    joined = join([read_dump(pickle.dumps(root, 2), f"rank_{rank}") for rank, root in enumerate(roots)])
    assert joined.groups[0].settled is not None
    assert (joined.groups[0].settled.seq, joined.groups[0].settled.minority) == (95, (0,))


def test_missing_dump_is_not_measured() -> None:
    roots = {0: ring(0, 1, 6, 5), 1: ring(1, 1, 6, 5), 3: ring(3, 1, 5, 5)}
    joined = join([read_dump(pickle.dumps(root, 2), f"rank_{rank}") for rank, root in roots.items()])
    group = joined.groups[0]
    assert (group.stuck, group.waiting, group.missing, group.absent) == (6, (0, 1), (3,), (2,))
    assert joined.unseen == (2,)


def bomb(levels: int) -> bytes:
    """A key whose hash takes 2**levels steps, after one harmless entry and enough of nothing to be worth while."""
    body = b"K\x00K\x00\x86r\x00\x10\x00\x00"
    for index in range(levels):
        use = b"j" + (0x1000 + index).to_bytes(4, "little")
        body += use + use + b"\x86r" + (0x1001 + index).to_bytes(4, "little")
    padding = b"X\x03\x00\x00\x00padN" * 4000
    head = b"\x80\x02}(X\x07\x00\x00\x00versionX\x03\x00\x00\x002.5X\x07\x00\x00\x00entries]("
    return head + b"}(X\x01\x00\x00\x00aK\x01u}(" + padding + b"u}(" + body + b"K\x01ueu."


def test_a_bomb_among_the_files_is_refused(tmp_path: Path) -> None:
    for rank in range(40):
        shutil.copy(GLOO / "hang_one_rank" / "fr_dump_0", tmp_path / f"nccl_trace_rank_{rank}")
    (tmp_path / "nccl_trace_rank_3").write_bytes(bomb(60))
    loaded = load(find([tmp_path]), 2)
    assert [dump.rank for dump in loaded.dumps] == [rank for rank in range(40) if rank != 3]
    assert [(Path(item.path).name, item.reason) for item in loaded.skipped] == [("nccl_trace_rank_3", "forbidden")]


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_pickles_of_pythons_own_writer(protocol: int) -> None:
    dump = read_dump(pickle.dumps(ring(0, 1, 400, 399), protocol), "rank_0")
    assert dump.columns.seq.tolist() == list(range(1, 401))
    assert [entry.seq for entry in dump.notable] == [400]


def test_a_pipe_is_never_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "nccl_trace_rank_0")
    assert find([tmp_path]) == []
    loaded = load([str(tmp_path / "nccl_trace_rank_0")])
    assert loaded.dumps == []
    assert [(item.path, item.detail) for item in loaded.skipped] == [
        (str(tmp_path / "nccl_trace_rank_0"), "not a regular file")
    ]
