"""Where the rank that the others wait for stands: what it printed itself, and what py-spy said of it."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from tracecore.diagnose.offline import diagnose
from tracecore.facts.process import StackPrinted

SPIED = b"""Process 2841: python3 train.py
Python v3.12.3 (/usr/bin/python3.12)

Thread 2841 (idle): "MainThread"
    get (queue.py:171)
    next_batch (data/loader.py:88)
    <module> (train.py:240)
Thread 2900 (idle): "Thread-1"
    wait (threading.py:331)
"""


def _incident(folder: Path) -> dict[str, Any]:
    (incident,) = diagnose([folder]).document()["incidents"]
    assert isinstance(incident, dict)
    return incident


def test_a_rank_that_prints_its_stack_now_and_then(incidents: Path) -> None:
    diagnosis = diagnose([incidents / "dumps_stacks"])
    (incident,) = diagnosis.incidents
    assert incident.suspects.ranks == (0,)
    assert "train_further.py:230 in dumps_stacks" in incident.advice
    assert [fact.line for fact in incident.evidence if isinstance(fact, StackPrinted)] == [230]


def test_what_py_spy_says_is_read(incidents: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(incidents / "holds_the_interpreter", tmp_path / "run")
    assert "loader.py" not in _incident(folder)["remediation"]
    (folder / "py-spy-rank2.txt").write_bytes(SPIED)
    incident = _incident(folder)
    assert incident["suspects"]["ranks"] == [2]
    assert "data/loader.py:88 in next_batch, which called get" in incident["remediation"]


def test_where_a_rank_stands_that_saves(incidents: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(incidents / "checkpoint_stuck", tmp_path / "run")
    (folder / "py-spy-rank0.txt").write_bytes(SPIED.replace(b"next_batch (data/loader.py:88)", b"save (ckpt.py:12)"))
    incident = _incident(folder)
    assert incident["root_cause"]["pattern"] == "checkpointer_hang"
    assert incident["suspects"]["ranks"] == [0]
    assert "rank 0 stood at ckpt.py:12 in save, which called get" in incident["remediation"]


def test_a_stack_of_a_rank_that_made_steps_since_says_nothing(incidents: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(incidents / "dumps_stacks", tmp_path / "run")
    log = folder / "rank0.log"
    before, _, after = log.read_bytes().partition(b"Timeout (0:00:12)!\n")
    after = after.partition(b"iter 0:")[2]
    log.write_bytes(before + b"Timeout (0:00:12)!\n" + _FIRST + b"iter 0:" + after.partition(b"Timeout (0:00:12)!")[0])
    assert "when its stack" not in _incident(folder)["remediation"]


_FIRST = b"""Thread 0x00007f51a3977140 (most recent call first):
  File "/app/train.py", line 12 in warm_up
"""


TIMER = """Timeout (0:00:10)!
Thread 0x00007fc3b2495b80 (most recent call first):
{inner}  File "/app/train.py", line {line} in {function}
  File "/app/train.py", line 308 in <module>
"""
WAITS = '  File "/usr/lib/python3/site-packages/torch/autograd/graph.py", line 1113 in _engine_run_backward\n'


def test_of_ranks_that_their_timers_ended_the_one_that_stood_elsewhere_is_named(tmp_path: Path) -> None:
    for rank in range(3):
        step = f"2026-10-03 04:12:0{rank} rank {rank} step 8 loss 0.0410\n"
        waits = {"inner": WAITS, "line": 19, "function": "step"}
        elsewhere = {"inner": "", "line": 109, "function": "load"}
        (tmp_path / f"rank{rank}.log").write_text(step + TIMER.format_map(elsewhere if rank == 1 else waits))
    (tmp_path / "exit_codes.json").write_text('{"0": 1, "1": 1, "2": 1}')
    incident = _incident(tmp_path)
    assert (incident["root_cause"]["pattern"], incident["suspects"]["ranks"]) == ("nccl_hang", [1])
    assert "rank 1 at /app/train.py:109 in load" in incident["headline"]
    assert incident["failure"]["class"] == "infrastructure"
