"""Members whose dumps do not have a group that others wait in."""

from __future__ import annotations

from typing import Any

import pytest

from tracecore.signals.flight_recorder.dump import RankDump, dump_of
from tracecore.signals.flight_recorder.join import join
from tracecore.signals.flight_recorder.state import GroupMember


def entry(record: int, group: str, seq: int, name: str, state: str, retired: bool = True) -> dict[str, Any]:
    return {
        "record_id": record,
        "pg_id": int(group),
        "process_group": (group, f"group{group}"),
        "collective_seq_id": seq,
        "profiling_name": f"nccl:{name}",
        "time_created_ns": 1_000 + record,
        "state": state,
        "retired": retired and state == "completed",
        "input_sizes": [[4]],
        "output_sizes": [[4]],
    }


def dump(rank: int, *entries: dict[str, Any], config: bool = True, first: int = 0) -> RankDump:
    """A dump that lists the groups of its entries."""
    used = {row["process_group"][0] for row in entries}
    rows = [{**row, "record_id": row["record_id"] + first} for row in entries]
    listed = {name: {"name": name, "desc": f"group{name}", "ranks": "[0, 1, 2]"} for name in used}
    return dump_of(f"rank_{rank}", rank, {"version": "2.10", "pg_config": listed if config else {}, "entries": rows})


WORLD = entry(0, "0", 1, "all_reduce", "completed")


def last(*dumps: RankDump) -> GroupMember:
    """The place of rank 2 in the second group."""
    return next(group for group in join(dumps).groups if group.name == "1").present[2]


@pytest.mark.parametrize("name", ["all_reduce", "broadcast", "_reduce_scatter_base"])
def test_a_rank_that_does_not_list_the_group_has_not_entered_its_first_collective(name: str) -> None:
    waiting = [dump(rank, WORLD, entry(1, "1", 1, name, "scheduled")) for rank in (0, 1)]
    member = last(*waiting, dump(2, WORLD))
    assert (member.last_enqueued, member.listed, member.path) == (0, False, "rank_2")
    (stuck,) = (group for group in join([*waiting, dump(2, WORLD)]).groups if group.name == "1")
    assert all(stuck.present[rank].roots == (2,) for rank in (0, 1))


def test_the_root_of_a_broadcast_may_have_gone_on_alone() -> None:
    ends = entry(1, "1", 1, "broadcast", "completed"), entry(2, "1", 2, "broadcast", "scheduled")
    assert last(*(dump(rank, WORLD, *ends) for rank in (0, 1)), dump(2, WORLD)).last_enqueued == 0


def test_a_rank_that_must_have_been_there_is_not_known_to_be_missing() -> None:
    ends = entry(1, "1", 1, "all_reduce", "completed"), entry(2, "1", 2, "all_reduce", "scheduled")
    assert last(*(dump(rank, WORLD, *ends) for rank in (0, 1)), dump(2, WORLD)).last_enqueued is None


def test_what_an_aborted_communicator_calls_completed_did_not_end() -> None:
    ends = entry(1, "1", 1, "all_reduce", "completed", retired=False)
    dumps = [dump(rank, WORLD, ends) for rank in (0, 1)]
    assert last(*dumps, dump(2, WORLD)).last_enqueued == 0
    group = next(group for group in join([*dumps, dump(2, WORLD)]).groups if group.name == "1")
    assert [group.present[rank].first_waiting for rank in (0, 1)] == [1, 1]


def test_a_ring_that_wrapped_and_names_no_members_tells_nothing() -> None:
    waiting = [dump(rank, WORLD, entry(1, "1", 1, "all_reduce", "scheduled")) for rank in (0, 1)]
    assert last(*waiting, dump(2, WORLD, config=False, first=7)).last_enqueued is None
    assert last(*waiting, dump(2, WORLD, config=False)).last_enqueued == 0
    assert last(*waiting, dump(2, WORLD, first=7)).last_enqueued == 0
    assert last(*waiting, dump(2, config=False)).last_enqueued is None


def test_nothing_is_wrong_where_a_group_was_not_used_by_one_and_nobody_waits() -> None:
    ended = [dump(rank, WORLD, entry(1, "1", 1, "broadcast", "completed")) for rank in (0, 1)]
    assert not any(group.open for group in join([*ended, dump(2, WORLD)]).groups)


def pair(record: int, name: str, state: str, retired: bool = True) -> dict[str, Any]:
    return {**entry(record, "1", 0, name, state, retired), "p2p_seq_id": record, "is_p2p": True}


@pytest.mark.parametrize(
    ("second", "roots"),
    [
        # The send was never posted: the receive, which reads as completed after an abort, did not end.
        ((), (0, 1)),
        # The send was posted, so that the receive may well have ended.
        ((pair(2, "send 1->0", "scheduled"),), (0,)),
    ],
)
def test_a_receive_that_nobody_sent_for_did_not_end(second: tuple[dict[str, Any], ...], roots: tuple[int, ...]) -> None:
    dumps = [
        dump(0, WORLD, pair(1, "recv 0<-1", "completed", retired=False)),
        dump(1, WORLD, pair(1, "recv 1<-0", "scheduled"), *second),
        dump(2, WORLD),
    ]
    group = next(group for group in join(dumps).groups if group.name == "1")
    assert group.present[1].roots == roots


def test_a_send_may_end_before_anybody_receives_it() -> None:
    dumps = [
        dump(0, WORLD, pair(1, "send 0->1", "completed", retired=False)),
        dump(1, WORLD, pair(1, "recv 1<-2", "scheduled")),
        dump(2, WORLD),
    ]
    group = next(group for group in join(dumps).groups if group.name == "1")
    assert not group.present[0].pending
