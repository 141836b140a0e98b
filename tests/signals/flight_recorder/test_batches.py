"""Batches of sends and receives: when one has ended, and which half of a transfer was never posted."""

from __future__ import annotations

from typing import Any

from tracecore.signals.flight_recorder.dump import RankDump, dump_of
from tracecore.signals.flight_recorder.join import join

MEMBERS = "[0, 1, 2]"


def entry(record: int, name: str, p2p: int, state: str, seq: int = 0, pair: bool = True) -> dict[str, Any]:
    return {
        "record_id": record,
        "pg_id": 0,
        "process_group": ("0", "default_pg"),
        "collective_seq_id": seq,
        "p2p_seq_id": p2p,
        "profiling_name": f"nccl:{name}",
        "time_created_ns": 1_000 + record,
        "state": state,
        "is_p2p": pair,
        "retired": state == "completed",
        "input_sizes": [[4]],
        "output_sizes": [[4]],
    }


def batch(record: int, p2p: int, names: tuple[str, str], state: str, seq: int = 0) -> list[dict[str, Any]]:
    """Two operations that stay `scheduled`, and the row that closes their batch."""
    one, other = (entry(record + place, name, p2p, "scheduled", seq) for place, name in enumerate(names))
    return [one, other, entry(record + 2, "coalesced", p2p, state, seq, pair=False)]


def dump(rank: int, *batches: list[dict[str, Any]]) -> RankDump:
    root = {
        "version": "2.10",
        "pg_config": {"0": {"name": "0", "desc": "default_pg", "ranks": MEMBERS}},
        "entries": [row for rows in batches for row in rows],
    }
    return dump_of(f"nccl_trace_rank_{rank}", rank, root)


def ring(rank: int) -> tuple[str, str]:
    return f"send {rank}->{(rank + 1) % 3}", f"recv {rank}<-{(rank - 1) % 3}"


def test_what_a_completed_batch_holds_is_not_pending() -> None:
    dumps = [dump(rank, batch(0, 1, ring(rank), "completed")) for rank in range(3)]
    assert not any(group.open for group in join(dumps).groups)


def test_the_row_that_closes_a_batch_is_no_collective() -> None:
    """It carries the number of the last collective, which all ranks have ended."""
    before = [entry(0, "all_reduce", 0, "completed", seq=1, pair=False)]
    dumps = [
        dump(0, before, batch(1, 1, ring(0), "scheduled", seq=1)),
        dump(1, before, batch(1, 1, ring(1), "completed", seq=1)),
        dump(2, before),
    ]
    (group,) = join(dumps).groups
    assert group.stuck is None
    assert group.disagreement is None
    assert group.settled is None


def test_a_batch_waits_for_who_never_posted_its_half() -> None:
    """Rank 1 sent to the wrong peer: rank 2 misses its send, and all of rank 0's partners came."""
    dumps = [
        dump(0, batch(0, 1, ring(0), "completed"), batch(3, 2, ring(0), "scheduled")),
        dump(1, batch(0, 1, ring(1), "completed"), batch(3, 2, ("send 1->0", "recv 1<-0"), "completed")),
        dump(2, batch(0, 1, ring(2), "completed"), batch(3, 2, ring(2), "scheduled")),
    ]
    (group,) = join(dumps).groups
    assert group.present[2].roots == (1,)
    assert group.present[0].roots in ((1,), (0, 2))


def test_a_ring_that_wrapped_is_not_counted() -> None:
    late = dump(0, batch(90, 31, ring(0), "scheduled"))
    (group,) = join([late, dump(1, batch(0, 1, ring(1), "completed"))]).groups
    assert late.wrapped
    assert group.present[0].unmatched == frozenset()
