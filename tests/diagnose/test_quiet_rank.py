"""Whom to look at where only the logs of the waiting ranks speak."""

from __future__ import annotations

from pathlib import Path

from tracecore.diagnose.offline import diagnose
from tracecore.incidents.incident import Incident

STEP = "[2026-11-15 01:37:04] rank {0} | step 10 | loss 1.2634 | data_time 0.000 | iter_time 0.624\n"
WATCHDOG = (
    "[rank{0}]:[E1115 01:47:33.054163331 ProcessGroupNCCL.cpp:1785] [PG ID {1} PG GUID {1}({2}) Rank {0}] Exception "
    "(either an error or timeout) detected by watchdog at work: 73, last enqueued NCCL work: 73, last completed NCCL "
    "work: 72.\n"
)


def suspects(place: Path, waiting: tuple[int, ...], world: int, group: tuple[str, str]) -> tuple[int, ...]:
    for rank in range(world):
        text = STEP.format(rank) + (WATCHDOG.format(rank, *group) if rank in waiting else "")
        (place / f"rank{rank}.log").write_text(text)
    incidents = diagnose([place]).incidents
    assert [incident.root.verdict.pattern_name for incident in incidents if incident.root] == ["nccl_hang"]
    return incidents[0].suspects.ranks


def test_the_rank_that_reports_nothing_is_waited_for(tmp_path: Path) -> None:
    assert suspects(tmp_path, (0, 1, 3), 4, ("0", "default_pg")) == (2,)


def test_nobody_is_singled_out_where_all_report(tmp_path: Path) -> None:
    assert suspects(tmp_path, (0, 1, 2, 3), 4, ("0", "default_pg")) == ()


def test_ranks_outside_a_smaller_group_are_not_waited_for(tmp_path: Path) -> None:
    assert suspects(tmp_path, (0, 1), 3, ("7", "tp_0")) == ()


def test_a_rank_implies_those_below_it(tmp_path: Path) -> None:
    trace = (
        'Traceback (most recent call last):\n  File "/app/train.py", line 3, in <module>\n    go()\nValueError: bad\n'
    )
    (tmp_path / "out.log").write_text("".join(f"[rank3]: {line}\n" for line in trace.splitlines()))
    assert diagnose([tmp_path]).incidents[0].suspects.ranks == (3,)


def test_one_of_many_is_waited_for_whatever_the_group_is_called(tmp_path: Path) -> None:
    assert suspects(tmp_path, (0, 1, 2, 3, 5, 6, 7), 8, ("2", "")) == (4,)


GAVE_UP = """[rank{rank}]: Traceback (most recent call last):
[rank{rank}]:   File "/app/train.py", line {line}, in main
[rank{rank}]:     {call}
[rank{rank}]:   File "/usr/lib/python3/site-packages/torch/distributed/distributed_c10d.py", line 3651, in wait
[rank{rank}]:     work.wait()
[rank{rank}]: RuntimeError: [/b/gloo/transport/tcp/unbound_buffer.cc:78] Timed out waiting 12000ms for recv operation
"""
LOST_IT = "[rank{0}]: RuntimeError: [/b/gloo/transport/tcp/pair.cc:561] Connection closed by peer [127.0.0.1]:21890\n"


def over_gloo(place: Path, words: dict[int, str]) -> Incident:
    for rank, said in words.items():
        (place / f"rank{rank}.log").write_text(STEP.format(rank) + said)
    found = diagnose([place]).incidents[0]
    assert found.root is not None
    assert found.root.verdict.pattern_name == "nccl_hang"
    return found


def test_of_ranks_that_all_gave_up_the_one_that_waits_elsewhere_is_odd(tmp_path: Path) -> None:
    words = {rank: GAVE_UP.format(rank=rank, line=19, call="loss.backward()") for rank in range(3)}
    found = over_gloo(tmp_path, words | {3: GAVE_UP.format(rank=3, line=96, call="dist.barrier()")})
    assert found.suspects.ranks == (3,)
    assert "/app/train.py:96" in found.advice
    assert "/app/train.py:19" in found.advice


def test_nobody_is_odd_where_all_wait_at_one_line_or_two_stand_against_two(tmp_path: Path) -> None:
    for lines in ((19, 19, 19, 19), (19, 19, 96, 96)):
        words = {rank: GAVE_UP.format(rank=rank, line=line, call="wait()") for rank, line in enumerate(lines)}
        assert over_gloo(tmp_path, words).suspects.ranks == ()


def test_who_lost_a_connection_to_one_that_gave_up_is_not_waited_for(tmp_path: Path) -> None:
    words = {rank: GAVE_UP.format(rank=rank, line=19, call="wait()") for rank in (0, 2)}
    assert over_gloo(tmp_path, words | {1: "", 3: LOST_IT.format(3)}).suspects.ranks == (1,)
