"""One stamped entry to one fact, gate first."""

from __future__ import annotations

from typing import Any

import pytest

from tracecore.facts.projection import project
from tracecore.facts.projectors.collective import COLLECTIVE
from tracecore.signals.record import LogSignal

collective_entry = COLLECTIVE[0]
ENTRY: dict[str, Any] = {
    "nccl.fr.collective_seq_id": 42,
    "nccl.fr.pg_id": 0,
    "nccl.fr.state": "started",
    "nccl.fr.profiling_name": "nccl:all_reduce",
    "nccl.fr.time_created_ns": 10,
    "nccl.fr.time_discovered_started_ns": 20,
    "nccl.fr.time_discovered_completed_ns": 0,
}


def signal(attributes: dict[str, Any], resource: dict[str, Any] | None = None) -> LogSignal:
    return {"resource": {"attributes": resource or {}}, "log": {"attributes": attributes, "time_unix_nano": 99}}


def test_an_entry() -> None:
    fact = collective_entry(signal({**ENTRY, "nccl.fr.rank": 3}, {"gen_ai.training.job_id": "run-1"}))
    assert fact is not None
    assert (fact.rank, fact.job, fact.pg, fact.seq, fact.op, fact.state) == (
        3,
        "run-1",
        "0",
        42,
        "all_reduce",
        "started",
    )
    assert (fact.created, fact.started, fact.completed, fact.done) == (10, 20, None, False)
    assert (fact.final, fact.layer, fact.time) == (False, "flight_recorder", 99)


@pytest.mark.parametrize(
    ("attributes", "rank"),
    [
        ({"gen_ai.training.rank": 1, "nccl.rank": 2, "nccl.fr.rank": 3}, 1),
        ({"nccl.rank": 2, "nccl.fr.rank": 3}, 2),
        ({"nccl.fr.rank": 0}, 0),
    ],
)
def test_rank_by_the_first_name_that_has_one(attributes: dict[str, Any], rank: int) -> None:
    fact = collective_entry(signal({**ENTRY, **attributes}))
    assert fact is not None
    assert fact.rank == rank


def test_no_rank_or_no_sequence_no_fact() -> None:
    assert collective_entry(signal(ENTRY)) is None
    without = {key: value for key, value in ENTRY.items() if key != "nccl.fr.collective_seq_id"}
    assert collective_entry(signal({**without, "nccl.rank": 1})) is None
    assert collective_entry(signal({**ENTRY, "nccl.rank": 1, "nccl.fr.collective_seq_id": "many"})) is None


def test_it_is_among_the_projectors() -> None:
    assert [type(fact).__name__ for fact in project(signal({**ENTRY, "nccl.rank": 1}))] == ["CollectiveEntry"]
