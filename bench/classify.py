"""Processor time to classify the last megabyte of a log, once everything is warm; the median of several."""

from __future__ import annotations

import statistics
import time

from bench import Measurement
from tracecore.actions.classify import classify

SIZE = 1 << 20
ROUNDS = 15

TRACEBACK = """Traceback (most recent call last):
  File "/work/train.py", line 71, in train
    loss.backward()
torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.
"""
SURVIVED = """Traceback (most recent call last):
  File "/work/data.py", line 12, in fetch
    raise ConnectionResetError(104, "Connection reset by peer")
ConnectionResetError: [Errno 104] Connection reset by peer
"""
REMOTE = (
    "[rank{rank}]:[E101 10:10:00.1 ProcessGroupNCCL.cpp:616] [Rank {rank}] Watchdog caught collective operation "
    "timeout: WorkNCCL(SeqNum=8, OpType=ALLREDUCE, NumelIn=9, NumelOut=9, Timeout(ms)=600000) ran for 600104 "
    "milliseconds before timing out.\n"
)


def progress(size: int) -> str:
    """Progress lines with now and then a line that a recipe looks at and lets go."""
    lines: list[str] = []
    length = number = 0
    while length < size:
        number += 1
        at = f"[2026-01-01 10:{number // 60 % 60:02d}:{number % 60:02d}]"
        line = f"{at} rank 0 | step {number} | loss {2 + number % 7 / 10:.4f} | iter_time 0.{number % 900:03d}\n"
        if number % 500 == 0:
            line += f"{at} WARNING:root:shard fetch failed, retrying in 1s (attempt 1/5)\n"
        lines.append(line)
        length += len(line)
    return "".join(lines)


def tails() -> dict[str, str]:
    """Logs of about a megabyte, by name."""
    long = progress(SIZE - 2000)
    middle = len(long) // 2
    middle = long.find("\n", middle) + 1
    many = "".join(
        "".join(f"[rank{rank}]: {line}\n" for line in TRACEBACK.splitlines()) + REMOTE.format(rank=rank)
        for rank in range(SIZE // 4 // (len(TRACEBACK) + len(REMOTE)))
    )
    return {
        "one_failure": long + TRACEBACK,
        "healthy": long,
        "survived_then_failed": long[:middle] + SURVIVED + long[middle:] + TRACEBACK,
        "many_ranks": long[: SIZE - len(many)] + many,
    }


def measure() -> list[Measurement]:
    """Milliseconds for each kind of tail."""
    found = []
    for name, tail in tails().items():
        data = tail.encode()
        classify(1, None, data)
        times = []
        for _ in range(ROUNDS):
            begin = time.process_time()
            classify(1, None, data)
            times.append((time.process_time() - begin) * 1000)
        how = f"median of {ROUNDS}, {len(data) / SIZE:.2f} MiB"
        found.append(Measurement(f"classify.{name}", statistics.median(times), "ms", note=how))
    return found
