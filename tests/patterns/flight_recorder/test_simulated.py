"""Who is to blame in jobs that were played through, where it is known."""

from __future__ import annotations

import json
import pickle
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tracecore.engine.emission import Emission, standing
from tracecore.engine.engine import Engine
from tracecore.facts.collective_dumps import facts_of
from tracecore.patterns.collective_mismatch.detector import CollectiveMismatch, CollectiveMismatchVerdict
from tracecore.patterns.nccl_hang.detector import NcclHang, NcclHangVerdict
from tracecore.signals.flight_recorder import delta_reader
from tracecore.signals.flight_recorder.join import join
from tracecore.signals.flight_recorder.reading import entry_at, find, load, sets_of

sys.path.insert(0, str(Path(__file__).resolve().parent))
sys.path.insert(0, str(Path(__file__).resolve().parents[3]))
from bench.dumps import Writer
from simulated_job import Job, Op, stop

REDUCE = Op("all_reduce", line=10)
BARRIER = Op("all_reduce_barrier", size=1, line=11)
TENSOR = tuple((str(1 + i), "mesh_tp", (2 * i, 2 * i + 1)) for i in range(4))
PIPE = tuple((str(20 + i), "mesh_pp", (i, i + 4)) for i in range(4))
DATA = (("10", "mesh_dp", (0, 2, 4, 6)), ("11", "mesh_dp", (1, 3, 5, 7)))


def one_stops(rank: int) -> Iterator[Op]:
    for _ in range(20):
        yield from (REDUCE, BARRIER)
    yield stop() if rank == 5 else Op("all_reduce", line=33)


def runs_ahead(rank: int) -> Iterator[Op]:
    """What is enqueued does not block: the others are several collectives ahead of the one that stopped."""
    for step in range(6):
        if step == 5 and rank == 3:
            return
        for part in range(4):
            yield Op("_all_gather_base", size=16 * (part + 1), waits=False, line=60 + part)
        yield Op("_reduce_scatter_base", line=70)


def mesh(rank: int, culprit: int = 3) -> Iterator[Op]:
    tensor, data = str(1 + rank // 2), str(10 + rank % 2)
    for step in range(10):
        yield Op("all_reduce", tensor, line=20)
        if rank == culprit and step == 9:
            return
        yield Op("all_reduce", tensor, size=64, line=21)
        yield Op("all_reduce", data, size=4096, line=22)


def chain(rank: int) -> Iterator[Op]:
    """0 keeps 1 waiting, 1 keeps 2, 2 keeps 3, and 3 the rest."""
    for step in range(6):
        if step == 5 and rank == 0:
            return
        for number, pair in enumerate(((0, 1), (1, 2), (2, 3)), 1):
            if rank in pair:
                yield Op("all_reduce", str(number), line=number)
        yield BARRIER


def two_by_two(rank: int) -> Iterator[Op]:
    """Groups of two: nobody waits together with anybody."""
    for step in range(10):
        if rank == 3 and step == 9:
            return
        yield Op("all_reduce", "1" if rank < 2 else "2", line=20)
        yield Op("all_reduce", "3" if rank % 2 == 0 else "4", line=21)


def stages(rank: int, lazy: int | None = None, skips: int | None = None) -> Iterator[Op]:
    for batch in range(8):
        if rank > 0:
            yield Op("recv", peer=rank - 1, line=30)
        if rank == lazy and batch == 5:
            return
        if rank < 3 and not (rank == skips and batch == 7):
            yield Op("send", peer=rank + 1, line=31)
    yield BARRIER


def ring(rank: int) -> Iterator[Op]:
    for step in range(6):
        if rank == 1 and step == 5:
            return
        parts = (Op("send", peer=(rank + 1) % 4, line=50), Op("recv", peer=(rank - 1) % 4, line=50))
        yield Op("coalesced", parts=parts, line=50)
        yield REDUCE


def three_dimensions(rank: int) -> Iterator[Op]:
    """Tensor, pipeline and data parallel at once; rank 6 stops before it receives."""
    tensor, data, pipe = str(1 + rank // 2), str(10 + rank % 2), str(20 + rank % 4)
    for step in range(4):
        yield Op("all_reduce", tensor, line=20)
        if rank < 4:
            yield Op("send", pipe, peer=rank + 4, line=21)
        elif rank == 6 and step == 3:
            return
        else:
            yield Op("recv", pipe, peer=rank - 4, line=22)
        yield Op("all_reduce", tensor, size=8, line=23)
        yield Op("all_reduce", data, size=16, line=24)


def uneven_rings(rank: int) -> Iterator[Op]:
    """Half of the ranks record twice as much, so their rings reach back half as far."""
    for step in range(40):
        if rank % 2 == 0:
            yield Op("all_reduce", "1", line=7)
        if rank == 3 and step == 39:
            return
        yield REDUCE


def another_order(rank: int) -> Iterator[Op]:
    """Rank 1 takes the two groups in another order than the others."""
    for step in range(4):
        first, second = ("2", "1") if rank == 1 and step == 3 else ("1", "2")
        yield Op("all_reduce", first, line=90)
        yield Op("all_reduce", second, line=91)


def skips_an_exchange(rank: int) -> Iterator[Op]:
    """Rank 1 has no tokens and leaves out an exchange of its experts; four groups then wait in a circle."""
    experts, data = str(1 + rank // 4), str(3 + rank % 4)
    for step in range(5):
        if rank != 1 or step != 4:
            yield Op("all_to_all", experts, line=40)
        yield Op("all_reduce", data, line=41)
        yield REDUCE


EXPERTS = (("1", "ep", (0, 1, 2, 3)), ("2", "ep", (4, 5, 6, 7)), *((str(3 + i), "dp", (i, i + 4)) for i in range(4)))


def sends_to_each_other(rank: int) -> Iterator[Op]:
    yield REDUCE
    if rank in (1, 2):
        yield Op("send", peer=3 - rank, line=5)
        yield Op("recv", peer=3 - rank, line=6)
    yield REDUCE


HANGS = {
    "one stops": (Job(8, one_stops), [5]),
    "the others run ahead": (Job(8, runs_ahead), [3]),
    "two stop": (Job(8, lambda rank: [REDUCE, *([] if rank in (2, 6) else [REDUCE])]), [2, 6]),
    "in a group, and the others behind it": (Job(8, mesh, (*TENSOR, *DATA)), [3]),
    "three groups before": (Job(8, chain, (("1", "a", (0, 1)), ("2", "b", (1, 2)), ("3", "c", (2, 3)))), [0]),
    "groups of two": (
        Job(4, two_by_two, (("1", "tp", (0, 1)), ("2", "tp", (2, 3)), ("3", "dp", (0, 2)), ("4", "dp", (1, 3)))),
        [3],
    ),
    "a stage stops": (Job(4, lambda rank: stages(rank, lazy=2)), [2]),
    "a stage does not send": (Job(4, lambda rank: stages(rank, skips=2)), [2]),
    "both send first": (Job(4, sends_to_each_other), [1, 2]),
    "another order": (Job(4, another_order, (("1", "experts", (0, 1, 2, 3)), ("2", "gradients", (0, 1, 2, 3)))), [1]),
    "an exchange is left out": (Job(8, skips_an_exchange, EXPERTS), [1]),
    "three dimensions": (Job(8, three_dimensions, (*TENSOR, *DATA, *PIPE)), [6]),
    "exchange in a ring": (Job(4, ring), [1]),
    "rings of different reach": (Job(6, uneven_rings, (("1", "evens", (0, 2, 4)),), ring=16), [3]),
    "another left no dump": (Job(8, one_stops, lost=[1]), [5]),
    "it left no dump itself": (Job(8, one_stops, lost=[5]), [5]),
    "most left none": (Job(8, one_stops, lost=[1, 2, 3, 4, 5]), []),
    "a link fails": (Job(8, one_stops, frozen=[("0", 33)]), []),
    "a link fails in a group": (Job(8, lambda rank: mesh(rank, 99), (*TENSOR, *DATA), frozen=[("2", 20)]), []),
}


def judged(folder: Path) -> list[Emission]:
    (dumps,) = sets_of(load(find([folder])).dumps)
    facts = facts_of(join(dumps), entry_at)
    return standing(Engine([NcclHang(), CollectiveMismatch()]).replay(facts))


def hangs(emissions: list[Emission]) -> list[NcclHangVerdict]:
    return [e.verdict for e in emissions if isinstance(e.verdict, NcclHangVerdict)]


def written(folder: Path, job: Job, name: str = "nccl_trace_rank_{}") -> Path:
    for rank, document in job.documents():
        (folder / name.format(rank)).write_bytes(pickle.dumps(document, 2))
    return folder


@pytest.mark.parametrize("name", HANGS)
def test_the_culprit_is_named_and_nobody_else(tmp_path: Path, name: str) -> None:
    job, culprits = HANGS[name]
    found = hangs(judged(written(tmp_path, job)))
    assert found
    for verdict in found:
        assert list(verdict.suspects().ranks) == culprits, verdict.headline()
        assert len(verdict.hanging_ranks) >= 2


def test_what_is_behind_says_what_it_is_behind(tmp_path: Path) -> None:
    job, _ = HANGS["three groups before"]
    (verdict,) = hangs(judged(written(tmp_path, job)))
    assert verdict.headline() == (
        "Ranks 4, 5, 6 and 7 hang in all_reduce_barrier seq 6 of default_pg, behind seq 6 of a, which rank 0 never "
        "entered"
    )


@pytest.mark.parametrize(
    ("name", "headline"),
    [
        ("another order", "Ranks 0, 2 and 3 hang in all_reduce seq 4 of experts: rank 1 called something else"),
        (
            "a stage does not send",
            "Ranks 0, 1, 2 and 3 hang in point-to-point operations of default_pg: rank 2 called something else",
        ),
        (
            "both send first",
            "Ranks 0, 1, 2 and 3 hang in point-to-point operations of default_pg: ranks 1 and 2 wait for each other",
        ),
    ],
)
def test_ranks_that_wait_in_a_circle(tmp_path: Path, name: str, headline: str) -> None:
    (verdict,) = hangs(judged(written(tmp_path, HANGS[name][0])))
    assert verdict.headline() == headline


def test_ranks_that_wait_each_in_a_group_of_its_own_wait_together(tmp_path: Path) -> None:
    job, _ = HANGS["groups of two"]
    (verdict,) = hangs(judged(written(tmp_path, job)))
    assert verdict.headline() == "Ranks 0, 1 and 2 hang in or behind all_reduce seq 10 of tp: rank 3 never entered it"
    assert any(
        "waits in all_reduce seq 10 of group dp, behind seq 10 of group tp" in f.describe() for f in verdict.hanging
    )


def test_the_last_call_of_the_culprit_is_its_last_in_any_group(tmp_path: Path) -> None:
    job, _ = HANGS["in a group, and the others behind it"]
    frames = {
        verdict.culprits[0].frame for verdict in hangs(judged(written(tmp_path, job))) if verdict.culprits[0].frame
    }
    assert frames == {"/workspace/train.py:20 in step"}


def test_that_no_dump_is_no_proof_of_guilt_is_said(tmp_path: Path) -> None:
    job, _ = HANGS["most left none"]
    (verdict,) = hangs(judged(written(tmp_path, job)))
    assert "ranks 1, 2, 3, 4 and 5 left no dump or watchdog report" in verdict.headline()
    assert "No rank is missing" not in verdict.remediation()


def differs(rank: int, odd: Op) -> Iterator[Op]:
    for _ in range(5):
        yield from (REDUCE, BARRIER)
    yield odd if rank == 6 else REDUCE
    yield BARRIER


@pytest.mark.parametrize(
    ("odd", "what"),
    [
        (Op("broadcast", line=40), "operation"),
        (Op("all_reduce", size=1000, line=40), "size"),
        (Op("all_reduce", dtype="Half", line=40), "type"),
    ],
)
def test_the_odd_one_out(tmp_path: Path, odd: Op, what: str) -> None:
    emissions = judged(written(tmp_path, Job(8, lambda rank: differs(rank, odd))))
    (mismatch,) = [e.verdict for e in emissions if isinstance(e.verdict, CollectiveMismatchVerdict)]
    assert (mismatch.seq, mismatch.differs, mismatch.odd_ranks) == (11, what, [6])
    (hang,) = hangs(emissions)
    assert hang.suspects().ranks == (6,)


def test_of_coalesced_calls_the_one_that_differs_is_named(tmp_path: Path) -> None:
    def program(rank: int) -> Iterator[Op]:
        for step in range(3):
            size = 201 if step == 2 and rank == 2 else 200
            parts = (Op("all_reduce", size=100, line=80), Op("all_reduce", size=size, line=81))
            yield Op("coalesced", size=size, parts=parts, line=82)

    emissions = judged(written(tmp_path, Job(4, program)))
    (mismatch,) = [e.verdict for e in emissions if isinstance(e.verdict, CollectiveMismatchVerdict)]
    assert mismatch.headline() == (
        "Rank 2 called all_reduce of 201 Float at seq 3 of default_pg, where ranks 0, 1 and 3 called all_reduce of 200 "
        "Float"
    )


def test_who_waits_behind_a_disagreement_of_others(tmp_path: Path) -> None:
    def program(rank: int) -> Iterator[Op]:
        for step in range(5):
            size = 65 if step == 4 and rank == 5 else 64
            yield Op("all_reduce", str(1 + rank // 2), size=size, line=21)
            yield Op("all_reduce", str(10 + rank % 2), line=22)

    emissions = judged(written(tmp_path, Job(8, program, (*TENSOR, *DATA))))
    (mismatch,) = [e.verdict for e in emissions if isinstance(e.verdict, CollectiveMismatchVerdict)]
    assert mismatch.odd_ranks == [4, 5]
    behind = [verdict for verdict in hangs(emissions) if verdict.pg_desc == "mesh_dp"]
    assert [verdict.headline().partition(", behind ")[2] for verdict in behind] == [
        "seq 5 of mesh_tp, where rank 4 called something else",
        "seq 5 of mesh_tp, where rank 5 called something else",
    ]


def finished(rank: int) -> Iterator[Op]:
    for _ in range(20):
        yield from (REDUCE, BARRIER)


@pytest.mark.parametrize(
    "job",
    [
        Job(8, finished),
        Job(8, finished, ring=7),
        Job(8, lambda rank: mesh(rank, 99), (*TENSOR, *DATA)),
        Job(8, lambda rank: mesh(rank, 99), (*TENSOR, *DATA), ring=11),
        Job(4, stages),
        Job(8, finished, lost=[2, 3]),
        Job(8, finished, slow={3: 0.05}),
    ],
    ids=["plain", "wrapped", "mesh", "mesh, wrapped", "pipeline", "dumps missing", "one is late"],
)
def test_silence_where_all_is_well(tmp_path: Path, job: Job) -> None:
    assert judged(written(tmp_path, job)) == []


def test_one_rank_alone_may_be_late(tmp_path: Path) -> None:
    def program(rank: int) -> Iterator[Op]:
        for step in range(5):
            if rank == 3 and step == 4:
                return
            yield Op("all_reduce", str(1 + rank // 2), line=20)

    assert judged(written(tmp_path, Job(8, program, TENSOR))) == []


def second_life(rank: int, broken: bool, before: int) -> dict[str, Any]:
    """A group that was aborted or ended, and another of the same name in the same process: numbers begin anew."""
    first = Job(4, lambda _: [REDUCE] * before)
    second = Job(4, lambda rank: [REDUCE] * (10 if broken and rank == 1 else 11))
    old, new = first.document(rank), second.document(rank)
    for entry in new["entries"]:
        entry["record_id"] += len(old["entries"])
        entry["pg_id"] = 1
        entry["time_created_ns"] += 10**12
    new["pg_status"] = {"0": old["pg_status"]["0"], "1": new["pg_status"]["0"]}
    new["entries"] = old["entries"] + new["entries"]
    return new


@pytest.mark.parametrize("broken", [True, False])
@pytest.mark.parametrize("before", [1, 40])
def test_numbers_that_begin_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, broken: bool, before: int) -> None:
    monkeypatch.setattr(delta_reader, "WORTHWHILE", 0)
    for rank in range(4):
        (tmp_path / f"nccl_trace_rank_{rank}").write_bytes(Writer().document(second_life(rank, broken, before)))
    assert [list(verdict.suspects().ranks) for verdict in hangs(judged(tmp_path))] == ([[1]] if broken else [])


def as_of(document: dict[str, Any], version: str) -> dict[str, Any]:
    """The document as recorders of an older version wrote it."""
    number = tuple(map(int, version.split(".")))
    older: dict[str, Any] = {**document, "version": version}
    dropped: list[str] = []
    if number < (2, 10):
        older["nccl_version"] = older.pop("comm_lib_version")
    if number < (2, 9):
        dropped += ["thread_name", "thread_id"]
    if number < (2, 4):
        del older["pg_status"]
        dropped += ["timeout_ms"]
    if number < (2, 2):
        dropped += ["input_dtypes", "output_dtypes"]
    if number < (2, 1):
        dropped += ["is_p2p"]
    if number < (2, 0):
        del older["pg_config"], older["nccl_version"]
        dropped += ["process_group", "collective_seq_id", "p2p_seq_id", "op_id"]
    entries = []
    for entry in document["entries"]:
        row = {key: value for key, value in entry.items() if key not in dropped}
        if number < (2, 0):
            row["seq_id"] = entry["collective_seq_id"]
        entries.append(row)
    return {**older, "entries": entries}


@pytest.mark.parametrize(
    ("version", "name"),
    [
        *((version, "nccl_trace_rank_{}") for version in ("1.1", "1.5", "2.0", "2.1", "2.3", "2.4", "2.9", "2.10")),
        *(("2.5", name) for name in ("{}", "rank{}.pkl", "host-7.dump.{}", "job_42_rank_{}.json")),
        ("1.5", "dump_{}.json"),
    ],
)
def test_every_version_and_every_name(tmp_path: Path, version: str, name: str) -> None:
    for rank, document in HANGS["one stops"][0].documents():
        older = as_of(document, version)
        content = json.dumps(older).encode() if name.endswith("json") else pickle.dumps(older, 2)
        (tmp_path / name.format(rank)).write_bytes(content)
    (verdict,) = hangs(judged(tmp_path))
    assert (verdict.seq, list(verdict.suspects().ranks)) == (41, [5])


def test_entries_alone(tmp_path: Path) -> None:
    for rank, document in HANGS["one stops"][0].documents():
        (tmp_path / f"dump.{rank}").write_bytes(pickle.dumps(as_of(document, "1.1")["entries"], 2))
    (verdict,) = hangs(judged(tmp_path))
    assert (verdict.seq, list(verdict.suspects().ranks)) == (41, [5])


@pytest.mark.parametrize("state", ["scheduled", "started"])
def test_the_state_of_what_is_unfinished_does_not_matter(tmp_path: Path, state: str) -> None:
    for rank, document in HANGS["one stops"][0].documents():
        for entry in document["entries"]:
            if not entry["retired"]:
                entry.update(state=state, time_discovered_started_ns=entry["time_created_ns"] + 5)
        (tmp_path / f"nccl_trace_rank_{rank}").write_bytes(pickle.dumps(document, 2))
    (verdict,) = hangs(judged(tmp_path))
    assert list(verdict.suspects().ranks) == [5]


def test_groups_that_share_a_name_are_told_apart(tmp_path: Path) -> None:
    job, culprits = HANGS["in a group, and the others behind it"]
    for rank, document in job.documents():
        for entry in document["entries"]:
            name, desc = entry["process_group"]
            entry["process_group"] = ("tp" if desc == "mesh_tp" else name, desc)
        document["pg_config"] = {
            "tp" if item["desc"] == "mesh_tp" else name: item for name, item in document["pg_config"].items()
        }
        (tmp_path / f"nccl_trace_rank_{rank}").write_bytes(pickle.dumps(document, 2))
    found = hangs(judged(tmp_path))
    assert found
    assert {tuple(verdict.suspects().ranks) for verdict in found} == {tuple(culprits)}


def test_the_players_are_as_meant() -> None:
    for name, (job, culprits) in HANGS.items():
        waiting = {rank for rank, items in job.entered.items() if any(item.done is None for item in items)}
        circle = name in ("a stage does not send", "both send first", "another order", "an exchange is left out")
        assert set(culprits) <= waiting if circle else not set(culprits) & waiting, name
