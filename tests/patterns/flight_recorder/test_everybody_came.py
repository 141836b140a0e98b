"""Hangs in which every rank entered the collective, in jobs of several dimensions: who is named, and who never is."""

from __future__ import annotations

import json
import pickle
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent))
from simulated_job import Job, Op
from test_simulated import as_of, hangs, judged, written

from tracecore.engine.emission import Emission
from tracecore.patterns.collective_mismatch.detector import CollectiveMismatchVerdict

#: 2 ranks of a tensor group x 4 of a data group x 2 stages of a pipeline.
WORLD = 16
TENSOR = tuple((f"t{i}", f"tp{i}", (2 * i, 2 * i + 1)) for i in range(8))
DATA = tuple((f"d{i}", f"dp{i}", tuple(8 * (i // 2) + i % 2 + 2 * n for n in range(4))) for i in range(4))
PIPE = tuple((f"p{i}", f"pp{i}", (i, i + 8)) for i in range(8))
GROUPS = (*TENSOR, *DATA, *PIPE)
#: Calls of one rank in one step of `train`.
STEP = 6


def train(rank: int, stops: int | None = None, at: int = 0, steps: int = 6) -> Iterator[Op]:
    """A step of a model that is cut in three dimensions; rank `stops` makes no call from call `at` of the last on."""
    tensor, data, pipe = f"t{rank // 2}", f"d{2 * (rank // 8) + rank % 2}", f"p{rank % 8}"
    yield Op("scatter", tensor, size=8192, root=rank // 2 * 2, line=10)
    for step in range(steps):
        calls = [
            Op("all_reduce", tensor, size=64, waits=False, line=20),
            Op("all_reduce", tensor, size=64, waits=False, line=21),
            Op("send", pipe, peer=rank + 8, line=22) if rank < 8 else Op("recv", pipe, peer=rank - 8, line=23),
            Op("all_reduce", tensor, size=64, waits=False, line=24),
            Op("_reduce_scatter_base", data, size=128, waits=False, line=25),
            Op("_all_gather_base", data, size=128, line=26),
        ]
        yield from calls[:at] if rank == stops and step == steps - 1 else calls
        if rank == stops and step == steps - 1:
            return


def mismatches(emissions: list[Emission]) -> list[CollectiveMismatchVerdict]:
    return [e.verdict for e in emissions if isinstance(e.verdict, CollectiveMismatchVerdict)]


def named(folder: Path) -> set[tuple[int, ...]]:
    return {verdict.suspects().ranks for verdict in hangs(judged(folder))}


def job(program: Callable[[int], Iterator[Op]] = train, **options: Any) -> Job:
    return Job(WORLD, program, GROUPS, **options)


def test_a_mesh_that_runs_well_is_silent(tmp_path: Path) -> None:
    assert judged(written(tmp_path, job())) == []


@pytest.mark.parametrize("rank", [0, 5, 9, 15])
@pytest.mark.parametrize("at", range(STEP))
def test_a_rank_that_stops_calling_is_named(tmp_path: Path, rank: int, at: int) -> None:
    assert named(written(tmp_path, job(lambda r: train(r, rank, at)))) == {(rank,)}


@pytest.mark.parametrize("rank", [0, 5, 9, 15])
@pytest.mark.parametrize("call", [1, 2, 4, 5, 6])
def test_the_rank_whose_gpu_stopped_is_named(tmp_path: Path, rank: int, call: int) -> None:
    """It has sent its part, so that the others complete the call, and hang further on."""
    emissions = judged(written(tmp_path, job(halted={rank: 4 * STEP + call})))
    found = hangs(emissions)
    assert {verdict.suspects().ranks for verdict in found} == {(rank,)}
    assert {culprit.why for verdict in found for culprit in verdict.culprits} == {"still_inside"}
    assert mismatches(emissions) == []
    assert any("and only rank" in verdict.headline() for verdict in found)


def test_two_gpus_that_stopped_are_both_named(tmp_path: Path) -> None:
    def program(rank: int) -> Iterator[Op]:
        for step in range(5):
            yield Op("all_reduce", size=100 + step, waits=False, line=7)

    assert named(written(tmp_path, Job(8, program, halted={2: 3, 6: 3}))) == {(2, 6)}


def test_the_smallest_form_one_scheduled_and_one_completed(tmp_path: Path) -> None:
    (verdict,) = hangs(judged(written(tmp_path, Job(2, lambda rank: [Op("all_reduce", line=7)], halted={1: 0}))))
    assert (verdict.hanging_ranks, verdict.suspects().ranks) == ([1], (1,))
    assert verdict.headline() == (
        "Rank 1 hangs in all_reduce seq 1 of default_pg: all ranks entered it, and only rank 1 has not completed it"
    )
    assert "nvidia-smi" in verdict.remediation()


def test_of_several_that_are_behind_the_one_that_holds_back_most_groups_is_named(tmp_path: Path) -> None:
    def program(rank: int) -> Iterator[Op]:
        for step in range(4):
            yield Op("all_reduce", "a", size=8 + step, waits=False, line=1)
            yield Op("all_reduce", "b" if rank % 2 else "c", size=8 + step, waits=False, line=2)

    groups = (("a", "wide", tuple(range(6))), ("b", "odd", (1, 3, 5)), ("c", "even", (0, 2, 4)))
    documents = dict(Job(6, program, groups).documents())
    # Rank 3 ended nothing of the last step. Rank 2 is behind in one group only, as a consequence.
    for rank, kept in ((3, ("wide", "odd")), (2, ("wide",))):
        for row in documents[rank]["entries"]:
            if row["collective_seq_id"] == 4 and row["process_group"][1] in kept:
                row.update(state="scheduled", time_discovered_completed_ns=None, retired=False)
    for rank, document in documents.items():
        (tmp_path / f"nccl_trace_rank_{rank}").write_bytes(pickle.dumps(document, 2))
    assert named(tmp_path) == {(3,)}


def test_a_gpu_that_never_started_what_the_others_started(tmp_path: Path) -> None:
    def program(rank: int) -> Iterator[Op]:
        for step in range(5):
            yield Op("all_reduce", size=100 + step, waits=False, line=7)

    (verdict,) = hangs(judged(written(tmp_path, Job(8, program, timed=True, unstarted={3: 4}))))
    assert verdict.suspects().ranks == (3,)
    assert verdict.headline().endswith("all ranks entered it, and only the GPU of rank 3 never started it")


def test_nobody_is_blamed_where_nobody_has_completed_it(tmp_path: Path) -> None:
    found = hangs(judged(written(tmp_path, job(frozen=[("t2", 17)]))))
    assert found
    assert {verdict.suspects().ranks for verdict in found} == {()}
    assert all("seq 17 of tp2" in verdict.headline() for verdict in found)


def test_nobody_is_blamed_where_a_dump_is_missing_in_its_group(tmp_path: Path) -> None:
    def program(rank: int) -> Iterator[Op]:
        for step in range(5):
            yield Op("all_reduce", size=100 + step, waits=False, line=7)

    found = hangs(judged(written(tmp_path, Job(8, program, halted={3: 3}, lost=[5]))))
    assert {verdict.culprits for verdict in found} == {()}


@pytest.mark.parametrize("at", range(STEP))
def test_a_rank_without_a_dump_is_looked_for_from_every_group(tmp_path: Path, at: int) -> None:
    found = hangs(judged(written(tmp_path, job(lambda rank: train(rank, 9, at), lost=[9]))))
    assert found
    for verdict in found:
        assert (verdict.culprits, verdict.suspects().ranks, verdict.confidence) == ((), (9,), "partial")
        assert "rank 9 left no dump or watchdog report" in verdict.headline()


def test_what_an_aborted_communicator_calls_completed_blames_nobody(tmp_path: Path) -> None:
    documents = dict(Job(4, lambda rank: [Op("all_reduce", line=7)] * 3, frozen=[("0", 3)]).documents())
    for rank in (0, 1):
        documents[rank]["entries"][-1].update(state="completed", time_discovered_completed_ns=10**18, retired=False)
    for rank, document in documents.items():
        (tmp_path / f"nccl_trace_rank_{rank}").write_bytes(pickle.dumps(document, 2))
    assert named(tmp_path) == {()}


@pytest.mark.parametrize("ring", [9, 16, 30])
def test_wrapped_rings(tmp_path: Path, ring: int) -> None:
    assert named(written(tmp_path, job(halted={5: 4 * STEP + 1}, ring=ring))) == {(5,)}


@pytest.mark.parametrize("version", ["2.0", "2.1", "2.4", "2.9", "2.10"])
@pytest.mark.parametrize("as_json", [False, True])
def test_other_versions(tmp_path: Path, version: str, as_json: bool) -> None:
    for rank, document in job(halted={5: 4 * STEP + 1}).documents():
        older = as_of(document, version)
        content = json.dumps(older).encode() if as_json else pickle.dumps(older, 2)
        (tmp_path / f"nccl_trace_rank_{rank}").write_bytes(content)
    assert named(tmp_path) == {(5,)}


# -- calls that differ -----------------------------------------------------------------------------------------------


def test_a_call_that_differed_and_ended_never_outranks_a_hang(tmp_path: Path) -> None:
    def program(rank: int) -> Iterator[Op]:
        for _ in range(10):
            yield Op("all_reduce", line=20)
        if rank != 5:
            yield Op("all_reduce", line=21)

    documents = dict(Job(8, program).documents())
    documents[2]["entries"][3].update(input_sizes=[[7]], output_sizes=[[7]])
    for rank, document in documents.items():
        (tmp_path / f"nccl_trace_rank_{rank}").write_bytes(pickle.dumps(document, 2))
    emissions = judged(tmp_path)
    assert mismatches(emissions) == []
    (hang,) = hangs(emissions)
    assert hang.suspects().ranks == (5,)
    assert "at seq 4 rank 2 called all_reduce of 7 Float" in hang.remediation()


def test_a_call_that_differed_and_ended_is_told_where_nothing_hangs(tmp_path: Path) -> None:
    documents = dict(Job(4, lambda rank: [Op("all_reduce", line=20)] * 5).documents())
    documents[2]["entries"][3].update(input_sizes=[[7]], output_sizes=[[7]])
    for rank, document in documents.items():
        (tmp_path / f"nccl_trace_rank_{rank}").write_bytes(pickle.dumps(document, 2))
    (mismatch,) = mismatches(judged(tmp_path))
    assert mismatch.odd_ranks == [2]


def exchange(rank: int, sends: dict[tuple[int, int], int], waits: bool = True) -> Iterator[Op]:
    """An all-to-all of lists among four; `sends`: what differs from 10 x sender + receiver, by (sender, receiver)."""
    yield Op("all_reduce", line=30)
    given = tuple(sends.get((rank, peer), 10 * rank + peer + 1) for peer in range(4))
    yield Op("all_to_all", sends=given, expects=tuple(10 * peer + rank + 1 for peer in range(4)), line=31, waits=waits)


def test_uneven_splits_that_fit_are_no_mismatch(tmp_path: Path) -> None:
    emissions = judged(written(tmp_path, Job(4, lambda rank: exchange(rank, {}), frozen=[("0", 2)])))
    assert mismatches(emissions) == []
    assert [verdict.suspects().ranks for verdict in hangs(emissions)] == [()]


def test_the_pair_whose_splits_do_not_fit_is_named(tmp_path: Path) -> None:
    found = judged(written(tmp_path, Job(4, lambda rank: exchange(rank, {(1, 3): 99}), frozen=[("0", 2)])))
    (mismatch,) = mismatches(found)
    assert (mismatch.differs, mismatch.odd_ranks) == ("splits", [1, 3])
    assert mismatch.headline() == (
        "Rank 1 sends 99 elements to rank 3, which expects 14, in all_to_all seq 2 of default_pg"
    )


def test_the_rank_in_all_the_pairs_is_the_odd_one(tmp_path: Path) -> None:
    wrong = {(2, peer): 77 for peer in range(4)}
    (mismatch,) = mismatches(judged(written(tmp_path, Job(4, lambda r: exchange(r, wrong), frozen=[("0", 2)]))))
    assert mismatch.odd_ranks == [2]


def single(rank: int, expects: dict[int, int]) -> Iterator[Op]:
    """`all_to_all_single` is recorded as one tensor for all peers."""
    sends = (100, 110, 120, 130)[rank]
    taken = expects.get(rank, (130, 120, 110, 100)[rank])
    yield Op("all_to_all", sends=(sends,), expects=(taken,), waits=False, line=40)
    yield Op("all_reduce", line=41)


def test_one_tensor_for_all_peers_the_whole_must_fit(tmp_path: Path) -> None:
    emissions = judged(written(tmp_path, Job(4, lambda rank: single(rank, {3: 600}), halted={3: 0})))
    (mismatch,) = mismatches(emissions)
    assert mismatch.odd_ranks == [3]
    assert mismatch.headline() == (
        "Ranks send 460 elements and expect 960 in all_to_all seq 1 of default_pg: rank 3 sends 130 and expects "
        "600, and has not completed it"
    )
    (tmp_path / "fits").mkdir()
    assert mismatches(judged(written(tmp_path / "fits", Job(4, lambda rank: single(rank, {}), halted={3: 0})))) == []


def test_the_rank_whose_amount_is_another_than_that_of_most_is_named(tmp_path: Path) -> None:
    def program(rank: int) -> Iterator[Op]:
        yield Op("all_to_all", sends=(380 if rank == 2 else 400,), expects=(400,), line=40)

    (mismatch,) = mismatches(judged(written(tmp_path, Job(4, program, frozen=[("0", 1)]))))
    assert mismatch.odd_ranks == [2]


def test_a_headline_shows_what_differs(tmp_path: Path) -> None:
    documents = dict(Job(4, lambda rank: [Op("all_reduce", line=20)] * 3, frozen=[("0", 3)]).documents())
    documents[2]["entries"][2].update(output_sizes=[[7]])
    for rank, document in documents.items():
        (tmp_path / f"nccl_trace_rank_{rank}").write_bytes(pickle.dumps(document, 2))
    (mismatch,) = mismatches(judged(tmp_path))
    mine, _, theirs = mismatch.headline().partition(", where ")
    assert mine.partition(" called ")[2].partition(" at ")[0] != theirs.partition(" called ")[2]
