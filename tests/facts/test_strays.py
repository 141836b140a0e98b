"""A rank that calls in one group what all others call in another kind of group."""

from __future__ import annotations

from typing import Any

import pytest

from tracecore.facts.collective import CollectiveEntry, odd_ones, sides_of
from tracecore.facts.collective_dumps import facts_of
from tracecore.signals.flight_recorder.dump import RankDump, dump_of
from tracecore.signals.flight_recorder.join import join

#: Two kinds of groups of four ranks, by name.
GROUPS = {"1": ("tensor", [0, 1]), "2": ("tensor", [2, 3]), "3": ("data", [0, 2]), "4": ("data", [1, 3])}


def entry(record: int, group: str, line: int, elements: int, state: str = "scheduled") -> dict[str, Any]:
    return {
        "record_id": record, "pg_id": int(group), "process_group": (group, GROUPS[group][0]), "collective_seq_id": 1,
        "profiling_name": "nccl:all_reduce", "time_created_ns": 1_000 + record, "state": state, "retired": False,
        "input_sizes": [[elements]], "output_sizes": [[elements]],
        "frames": [{"name": "main", "filename": "/app/train.py", "line": line}],
    }  # fmt: skip


def dump(rank: int, *entries: dict[str, Any]) -> RankDump:
    listed = {name: {"name": name, "desc": desc, "ranks": str(mine)} for name, (desc, mine) in GROUPS.items()}
    return dump_of(f"rank_{rank}", rank, {"version": "2.10", "pg_config": listed, "entries": list(entries)})


def odd(*dumps: RankDump) -> list[int | None]:
    facts = [fact for fact in facts_of(join(dumps)) if isinstance(fact, CollectiveEntry) and fact.pg == "4"]
    return [fact.rank for fact in odd_ones(sides_of(facts))]


@pytest.mark.parametrize(
    ("second", "ranks"),
    [
        (entry(1, "2", 49, 1), [3]),
        (entry(1, "2", 51, 1), [1, 3]),  # one of the others does not call it there
        (entry(1, "3", 49, 1), [1, 3]),  # another calls it in this kind of group, too
    ],
)
def test_whose_line_all_others_use_in_another_group(second: dict[str, Any], ranks: list[int]) -> None:
    first = dump(0, entry(1, "1", 49, 1, "completed"), entry(2, "3", 87, 64))
    assert (
        odd(first, dump(1, entry(1, "1", 49, 1), entry(2, "4", 87, 64)), dump(2, second), dump(3, entry(1, "4", 49, 1)))
        == ranks
    )


def test_a_line_of_both_sides_tells_nothing() -> None:
    mine = [dump(rank, entry(1, group, 49, 1)) for rank, group in ((0, "1"), (2, "2"))]
    assert odd(*mine, dump(1, entry(1, "4", 49, 64)), dump(3, entry(1, "4", 49, 1))) == [1, 3]
