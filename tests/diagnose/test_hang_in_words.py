"""What a person reads about a hang: whom to look at, what it was doing, and nothing that the evidence contradicts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tracecore.diagnose.offline import diagnose
from tracecore.incidents.activity import activity
from tracecore.incidents.text import report

CAUGHT = (
    "[rank{rank}]:[E1115 20:44:2{rank}.887872571 ProcessGroupNCCL.cpp:689] [Rank {number}] Watchdog caught collective "
    "operation timeout: WorkNCCL(SeqNum={seq}, OpType={op}, NumelIn={numel}, NumelOut={numel}, Timeout(ms)=18000) ran "
    "for 18022 milliseconds before timing out.\n"
    "[rank{rank}]:[E1115 20:44:2{rank}.888107934 ProcessGroupNCCL.cpp:2303] [PG ID {local} PG GUID {guid}({desc}) Rank "
    "{number}]  failure detected by watchdog at work sequence id: {seq} PG status: last enqueued work: {enqueued}, "
    "last completed work: {completed}\n"
)


def steps(rank: int, last: int = 9) -> str:
    return "".join(
        f"2026-11-15 20:44:{step:02},100 INFO rank {rank} step {step} loss 6.9\n" for step in range(last + 1)
    )


def caught(
    rank: int,
    seq: int = 33,
    op: str = "ALLREDUCE",
    numel: int = 1024,
    completed: int | None = None,
    group: tuple[int, str, str, int] | None = None,
) -> str:
    local, guid, desc, number = group or (0, "0", "default_pg", rank)
    done = seq - 1 if completed is None else completed
    return CAUGHT.format(
        rank=rank,
        number=number,
        seq=seq,
        op=op,
        numel=numel,
        local=local,
        guid=guid,
        desc=desc,
        enqueued=34,
        completed=done,
    )


def written(folder: Path, logs: dict[int, str], alive: bool = True) -> Path:
    for rank, text in logs.items():
        (folder / f"rank{rank}.log").write_text(steps(rank) + text)
    if alive:
        (folder / "exit_codes.json").write_text(json.dumps({str(rank): None for rank in logs}))
    return folder


def test_all_are_in_the_same_call(tmp_path: Path) -> None:
    (incident,) = diagnose([written(tmp_path, {rank: caught(rank) for rank in range(4)})]).incidents
    assert incident.headline == (
        "Ranks 0, 1, 2 and 3 hang in ALLREDUCE seq 33 of default_pg: all ranks entered it, and none has completed it"
    )
    assert incident.advice.startswith(
        "No rank is missing or late, so look at the transport between ranks 0, 1, 2 and 3"
    )
    assert "The logs hold no measurements of these links" in incident.advice
    assert "do not complain" not in incident.advice
    assert incident.suspects.ranks == ()


def test_what_was_measured_of_the_transport_is_said(tmp_path: Path) -> None:
    written(tmp_path, {rank: caught(rank) for rank in range(4)})
    (tmp_path / "dmesg.txt").write_text(
        "[Sun Nov 15 20:44:12 2026] mlx5_core 0000:3b:00.0 ib0: Link down\n"
        "[Sun Nov 15 20:44:12 2026] mlx5_core 0000:3b:00.0: Port module event: module 0, Cable unplugged\n"
    )
    (incident,) = diagnose([tmp_path]).incidents
    assert "Measurements: port ib0 is Down, at 2026-11-15T20:44:12Z; " in incident.advice


def test_one_is_still_in_what_the_others_completed(tmp_path: Path) -> None:
    logs = {rank: caught(rank) for rank in range(3)} | {3: caught(3, seq=32, op="ALLTOALL_BASE", completed=31)}
    (incident,) = diagnose([written(tmp_path, logs)]).incidents
    assert incident.suspects.ranks == (3,)
    assert incident.headline == (
        "Ranks 0, 1 and 2 hang in ALLREDUCE seq 33 of default_pg, behind seq 32 of default_pg, which all ranks entered "
        "and only rank 3 has not completed"
    )
    assert "reports no hang" not in report(diagnose([tmp_path]))


def test_a_rank_that_reports_a_hang_elsewhere_is_not_called_silent(tmp_path: Path) -> None:
    """Two groups of data parallel ranks, and rank 5, which alone says nothing."""
    logs = {rank: caught(rank, seq=10, group=(1, "1", "dp0", rank // 2)) for rank in (0, 2, 4, 6)}
    logs |= {rank: caught(rank, seq=10, group=(1, "2", "dp1", rank // 2)) for rank in (1, 3, 7)}
    (incident,) = diagnose([written(tmp_path, logs | {5: ""})]).incidents
    assert incident.suspects.ranks == (5,)


def test_two_runs_in_one_file_are_told_apart(tmp_path: Path) -> None:
    first = "".join(map(steps, range(4))) + "".join(caught(rank) for rank in (0, 1, 2))
    second = "".join(map(steps, range(4))) + "".join(caught(rank, seq=12, op="ALLGATHER") for rank in (0, 1, 3))
    second = second.replace("2026-11-15", "2026-11-16").replace("E1115", "E1116")
    (tmp_path / "out.log").write_text(f"{first}\n----- the next day -----\n{second}")
    found = diagnose([tmp_path]).incidents
    assert [incident.suspects.ranks for incident in found] == [(2,), (3,)]
    assert [" seq 12 " in incident.headline for incident in found] == [True, False]


@pytest.mark.parametrize(
    ("last", "doing"),
    [
        ("validation:  39%|███▉      | 938/2400 [01:01<01:18, 18.60it/s]", "was in validation"),
        (
            "2026-11-15 20:44:12,000 WARNING GET shard-3.mds failed: timed out; retry 4/20",
            "was downloading, with retries",
        ),
        ("2026-11-15 20:44:12,000 INFO Saving checkpoint to /mnt/ckpt/step_9", "was saving"),
        ("2026-11-15 20:44:12,000 INFO step 10 loss 6.9", None),
    ],
)
def test_what_the_suspect_was_doing(tmp_path: Path, last: str, doing: str | None) -> None:
    logs = {rank: caught(rank) for rank in range(3)} | {3: f"{last}\n"}
    logs[3] += (
        "[rank3]:[E1115 20:44:46.521109754 ProcessGroupNCCL.cpp:1849] [PG ID 0 PG GUID 0(default_pg) Rank 3] Observed "
        "flight recorder dump signal from another rank via TCPStore.\n"
    )
    found = diagnose([written(tmp_path, logs)])
    document = found.document()["incidents"][0]
    assert document["suspects"]["ranks"] == [3]
    (quoted,) = document["last_lines"]
    assert (quoted["rank"], quoted.get("doing"), len(quoted["text"])) == (3, doing, 3)
    assert quoted["text"][-1] == last
    if document["root_cause"]["pattern"] != "nccl_hang":
        assert doing == "was saving"  # a pattern of its own
        return
    assert last in document["remediation"]
    if doing is not None:
        assert document["remediation"].startswith(f"Rank 3 {doing}: it wrote “")
    assert "the last lines of rank 3" in report(found)


def test_the_last_lines_are_found_in_a_log_of_all_ranks(tmp_path: Path) -> None:
    lines = [f"{rank}: INFO step {step} loss 6.9" for step in range(5) for rank in range(4)]
    lines.append(
        "3: \rvalidation:  1%| | 9/2400\rvalidation:  2%| | 54/2400 [00:04<02:56][rank3]:[E1115 20:44:41.1 a.cpp:1] x"
    )
    for rank in range(3):
        lines += [f"{rank}: {line}" for line in caught(rank).splitlines()]
    (tmp_path / "slurm-77.out").write_text("\n".join(lines) + "\n")
    (incident,) = diagnose([tmp_path]).incidents
    assert [(own.rank, own.lines[-1][1], own.doing) for own in incident.last_lines] == [
        (3, "validation:  2%| | 54/2400 [00:04<02:56]", "was in validation")
    ]


def test_steps_like_any_other_are_no_activity() -> None:
    assert activity(["step 1 loss 2.0", "step 2 loss 2.0"]) is None
    assert activity(["Evaluating on 3 shards", "step 2 loss 2.0"]) == "was in validation"


STALL = (
    "[2024-03-11 10:22:01.123456: W horovod/common/stall_inspector.cc:107] One or more tensors were submitted to be "
    "reduced, gathered or broadcasted by subset of ranks and are waiting for remainder of ranks for more than 60 "
    "seconds. This may indicate that different ranks are trying to submit different tensors.\n"
    "Missing ranks:\n2: [grads_14_0]\n3: [grads_14_0]\n"
)
JAX = (
    "E1115 20:51:02.123456 1301 coordination_service.cc:1431] Barrier timed out. Id: ckpt_101. # of tasks that reached "
    "the barrier: 3/4. The first task at the barrier: /job:jax_worker/replica:0/task:0. Some timed out task names:\n"
    "/job:jax_worker/replica:0/task:2\n"
)
BARRIER = (
    '[rank0]: Traceback (most recent call last):\n[rank0]:   File "/workspace/train.py", line 31, in <module>\n'
    "[rank0]:     dist.monitored_barrier()\n[rank0]: RuntimeError: Rank 2 failed to pass monitoredBarrier in 30000 ms\n"
)


@pytest.mark.parametrize(
    ("text", "ranks"), [(STALL, [2, 3]), (JAX, [2]), (BARRIER, [2])], ids=["stall", "jax", "barrier"]
)
def test_one_process_speaks_for_all(tmp_path: Path, text: str, ranks: list[int]) -> None:
    (tmp_path / "out.log").write_text(f"step 10 loss 2.31\nstep 20 loss 2.21\n{text}")
    document = diagnose([tmp_path]).document()
    incident = document["incidents"][0]
    assert (incident["root_cause"]["pattern"], incident["suspects"]["ranks"]) == ("nccl_hang", ranks)
    (verdict,) = [v for v in document["verdicts"] if v["pattern.name"] == "nccl_hang"]
    assert (verdict["confidence"], verdict["culprit_ranks"]) == ("partial", ranks)


def test_a_stall_that_a_step_followed_was_only_slow(tmp_path: Path) -> None:
    (tmp_path / "out.log").write_text(
        f"step 10 loss 2.31\nstep 20 loss 2.21\n{STALL}step 30 loss 2.2\nstep 40 loss 2.1\n"
    )
    assert diagnose([tmp_path]).incidents == []


SETUP = (
    "[rank{rank}]: Traceback (most recent call last):\n"
    '[rank{rank}]:   File "/app/train.py", line 30, in <module>\n'
    "[rank{rank}]:     dist.all_reduce(x, group=experts)\n"
    "[rank{rank}]: torch.distributed.DistBackendError: [{number}] is setting up NCCL communicator and retrieving "
    "ncclUniqueId from [0] via c10d key-value store by key '0', but store->get('0') got error: wait timeout after "
    "15000ms, keys: /default_pg/0//1//cuda//0\n"
)


def test_a_number_in_a_group_is_not_taken_for_a_rank(tmp_path: Path) -> None:
    """Ranks 2 and 3 call themselves 1 and 2, so number 0 of their group is below rank 2; rank 0 waits elsewhere."""
    logs = {0: caught(0), 1: "", 2: SETUP.format(rank=2, number=1), 3: SETUP.format(rank=3, number=2)}
    (incident, *_) = diagnose([written(tmp_path, logs)]).incidents
    assert incident.suspects.ranks == (1,)
    assert "rank 1 never entered it" in incident.headline


def test_a_number_that_fits_several_ranks_names_none(tmp_path: Path) -> None:
    logs = {0: "", 1: "", 2: SETUP.format(rank=2, number=1), 3: SETUP.format(rank=3, number=2)}
    (incident, *_) = diagnose([written(tmp_path, logs)]).incidents
    assert 0 not in incident.suspects.ranks or 1 in incident.suspects.ranks


def test_who_is_one_collective_behind_is_the_one(tmp_path: Path) -> None:
    """Without dumps or counters: the others are in the next collective, so they have completed this one."""
    line = (
        "[rank{rank}]:[E607 21:52:19.7 ProcessGroupNCCL.cpp:632] [Rank {rank}] Watchdog caught collective operation "
        "timeout: WorkNCCL(SeqNum={seq}, OpType=ALLREDUCE, NumelIn=8, NumelOut=8, Timeout(ms)=600000) ran for 600034 "
        "milliseconds before timing out.\n"
    )
    text = "".join(line.format(rank=rank, seq=3105 if rank == 1 else 3106) for rank in range(4))
    (tmp_path / "train.log").write_text(text)
    (incident, *_) = diagnose([tmp_path]).incidents
    assert incident.suspects.ranks == (1,)
    assert "behind seq 3105 of their group" in incident.headline


def test_the_last_words_are_not_those_of_the_traceback(tmp_path: Path) -> None:
    """Rank 3 gave up waiting for rank 0: what it did before that is worth reading, the C++ frames are not."""
    doing = "2026-11-15 20:44:11,000 INFO fetching the latest embedding table from rank 0\n"
    raised = (
        SETUP.format(rank=3, number=3) + "[rank3]: frame #0: c10::Error::Error() + 0x9d\n[rank3]: . This may follow\n"
    )
    logs = {**{rank: caught(rank) for rank in range(3)}, 3: doing + raised}
    said = report(diagnose([written(tmp_path, logs)]))
    assert "fetching the latest embedding table" in said
    assert "it wrote “. This" not in said
    assert "rank 3, the only rank that reports no hang" not in said


def test_who_is_busy_while_the_others_are_silent(tmp_path: Path) -> None:
    """No watchdog and no dump yet: the one rank that says what it does after the last step is worth looking at."""
    logs = dict.fromkeys(range(4), "")
    logs[2] = "2026-11-15 20:44:11,000 INFO rank 2 tokenizing the corpus: 12% of 88211 documents\n"
    (incident, *_) = diagnose([written(tmp_path, logs)]).incidents
    assert incident.suspects.ranks == (2,)
    assert incident.root is not None
    assert (incident.root.verdict.pattern_name, incident.root.verdict.confidence) == ("nccl_hang", "partial")
    assert incident.headline.startswith("The other ranks wait for rank 2: after step ")
    assert "rank 2 was loading data" in incident.headline


@pytest.mark.parametrize(
    ("more", "named"),
    [
        ({2: "all epochs complete, writing the model card\n"}, (2,)),
        ({0: "a\n", 1: "b\n", 2: "c\n"}, ()),  # most of them say something
        ({1: "rank 1 | 300 tokens/s\n"}, ()),  # it says so after each step
    ],
)
def test_who_says_something_new_while_the_others_are_silent(
    tmp_path: Path, more: dict[int, str], named: tuple[int, ...]
) -> None:
    usual = {1: "rank 1 | 290 tokens/s\n"} if named == () and 1 in more and len(more) == 1 else {}
    for rank in range(4):
        steps = [f"rank {rank} | step {step} | loss 1.26\n{usual.get(rank, '')}" for step in (8, 9)]
        (tmp_path / f"rank{rank}.log").write_text(
            "".join(steps) + f"rank {rank} | step 10 | loss 1.25\n" + more.get(rank, "")
        )
    (tmp_path / "exit_codes.json").write_text('{"0": null, "1": null, "2": null, "3": null}')
    (incident, *_) = diagnose([tmp_path]).incidents
    assert incident.suspects.ranks == named
    assert (incident.root is not None) is bool(named)


def test_nobody_is_named_where_all_are_busy(tmp_path: Path) -> None:
    line = "2026-11-15 20:44:11,000 INFO rank {} tokenizing the corpus: 12% of 88211 documents\n"
    (incident, *_) = diagnose([written(tmp_path, {rank: line.format(rank) for rank in range(4)})]).incidents
    assert incident.suspects.ranks == ()
