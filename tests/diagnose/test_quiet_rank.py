"""Whom to look at where only the logs of the waiting ranks speak."""

from __future__ import annotations

from pathlib import Path

from tracecore.pipeline.offline import diagnose

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
