"""What launchers put before a line: whose it is, and what is left of it."""

from __future__ import annotations

import pytest

from tracecore.signals.logs.dialects import announced, plain


@pytest.mark.parametrize(
    ("line", "rank", "text"),
    [
        (b"[1,3]<stdout>:step 4", 3, b"step 4"),
        (b"[1,mpirank:12,algo-1]<stderr>:step 4", 12, b"step 4"),
        (b"[2]<stderr>:step 4", 2, b"step 4"),
        (b"[12]<stdout>:step 4", 12, b"step 4"),
        (b"2021-03-10T13:22:37.442Z: [1,5]<stderr>:step 4", 5, b"step 4"),
        (b"Sun Oct  1 17:01:10 2017[1,30]<stdout>:step 4", 30, b"step 4"),
        (b"Sun Oct  1 17:01:10 2017[a] step 4", None, b"Sun Oct  1 17:01:10 2017[a] step 4"),
        (b"[rank7]: step 4", 7, b"step 4"),
        (b"[rank 40 | tn-52]   File", 40, b"  File"),
        (b"[tn-52 rank=40]: step 4", 40, b"step 4"),
        (b"[Rank 17] Watchdog caught", None, b"[Rank 17] Watchdog caught"),
        (b"[rank 3 step 12] loss 2.5", None, b"[rank 3 step 12] loss 2.5"),
        (b"[rank 3 epoch2] loss 2.5", None, b"[rank 3 epoch2] loss 2.5"),
        (b"[rank 3 | gpu0] loss 2.5", None, b"[rank 3 | gpu0] loss 2.5"),
        (b"[step12 rank 3] loss 2.5", None, b"[step12 rank 3] loss 2.5"),
        (b"[rank 3, epoch1, step12] loss 2.5", None, b"[rank 3, epoch1, step12] loss 2.5"),
        (b"[12:47:09] step 4", None, b"[12:47:09] step 4"),
        (b"[12] step 4", None, b"[12] step 4"),
        (b"(DTensorPolicyWorker[rank=3] pid=2323, ip=10.0.0.4) step 4", 3, b"step 4"),
        (b"(WorkerDict pid=2323) step 4", None, b"step 4"),
    ],
)
def test_the_rank_is_taken_from_the_prefix(line: bytes, rank: int | None, text: bytes) -> None:
    found = plain()(line)
    assert (found.rank, found.text) == (rank, text)


@pytest.mark.parametrize(
    ("line", "rank"),
    [
        (b"2026-10-03 04:12:00 ERROR [rank 5] failed", 5),
        (b"----------Begin global rank 12 STDERR----------", 12),
        (b"-- Process 2 terminated with the following error:", 2),
        (b"09:15:49.002 [r2] CRITICAL uncaught exception", 2),
        (b"2026-02-02 10:00:09 rank:3 ERROR training failed", 3),
        (b"2026-02-02 10:00:03,000 | ERROR | rank=7 | Uncaught exception", 7),
        (b"[2026-10-03 04:12:00][Rank 3][ERROR] exception in the loop", 3),
        (b"[2026-10-03 04:12:00][Rank 3][INFO] done", None),
        (b"[NeMo E 2025-05-05 01:01:01 nemo_logging:417 rank:9] uncaught", 9),
        (b"[NeMo I 2025-05-05 01:01:01 nemo_logging:417 rank:9] done", None),
        (b"2026-02-02 10:00:09 ERROR no answer from rank=3 any more", None),
        (b"2026-02-02 10:00:09 rank 3 was lost, ERROR follows", None),
        (b"2026-02-02 10:00:09 rank:3 INFO done", None),
        (b"----------End global rank 12 STDERR----------", None),
        (b"2026-10-03 04:12:00 INFO [rank 5] done", None),
    ],
)
def test_the_line_above_a_traceback_may_say_whose_it_is(line: bytes, rank: int | None) -> None:
    assert announced(line) == rank


def test_lines_of_pdsh_name_their_machine() -> None:
    """Nor is the local rank on one of several machines the rank."""
    found = plain("pdsh")(b"worker-1: [default5]:step 4")
    assert (found.host, found.rank, found.text) == ("worker-1", None, b"step 4")
    assert plain("pdsh")(b"10.20.0.5: step 4").host == "10.20.0.5"
