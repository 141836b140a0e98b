"""One episode of one job is one incident, and the same kind of failure has one fingerprint."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tracecore.incidents import run as runs
from tracecore.incidents.arbitration import arbitrate
from tracecore.incidents.fingerprint import fingerprint, normalised
from tracecore.incidents.incident import Incident
from tracecore.signals.record import LAYERS

sys.path.insert(0, str(Path(__file__).resolve().parent))
from made_verdicts import SECOND, T0, ended, seen, steps, verdict


def incidents(verdicts: list, facts: list) -> list[Incident]:
    run = runs.look(facts, T0 + 9000 * SECOND)
    return arbitrate(verdicts, run, dict.fromkeys(LAYERS, 1)).incidents


FAILED = [*steps(1, 2, 3), *ended({0: 1, 1: -6})]


def test_a_better_diagnosis_is_the_same_incident() -> None:
    (unexplained,) = incidents([], FAILED)
    (crash,) = incidents([verdict("worker_crash", 10, seen(10, rank=0), ranks=[0])], FAILED)
    (memory,) = incidents([verdict("cuda_oom", 9, seen(9, rank=0), ranks=[0])], FAILED)
    assert unexplained.id == crash.id == memory.id
    assert len({unexplained.fingerprint, crash.fingerprint, memory.fingerprint}) == 3


def test_another_attempt_another_job_and_another_start_are_other_incidents() -> None:
    def only(job: str | None, attempt: int, begun: float) -> str:
        line = seen(begun + 10, rank=0, job=job, attempt=attempt)
        facts = [seen(begun, rank=0, job=job, attempt=attempt), *ended({0: 1}, attempt=attempt)]
        return incidents([verdict("worker_crash", begun + 10, line, ranks=[0])], facts)[0].id

    ids = [only("a", 0, 1), only("a", 1, 1), only("b", 0, 1), only(None, 0, 1), only(None, 0, 50)]
    assert len(set(ids)) == 5
    # A job that has a name is the same whatever of its beginning was read.
    assert only("a", 0, 1) == only("a", 0, 5)


def test_two_episodes_of_one_attempt_are_two_incidents() -> None:
    facts = [*steps(*range(0, 3000, 50)), *ended({0: 1})]
    early = verdict("storage_failure", 10, seen(10, rank=0), ranks=[0])
    late = verdict("cuda_oom", 2990, seen(2990, rank=0), ranks=[0])
    last, first = incidents([early, late], facts)
    assert (first.slot, last.slot) == ("0", "1")
    assert first.id != last.id


def test_a_slow_rank_beside_a_crash_has_an_incident_of_its_own() -> None:
    crash = verdict("worker_crash", 10, seen(10, rank=0), ranks=[0])
    slow = verdict("straggler", 5, seen(5, rank=1), ranks=[1])
    one, other = incidents([crash, slow], FAILED)
    assert one.id != other.id
    assert incidents([crash], FAILED)[0].id == one.id


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (
            "Rank 3 failed: KeyError 'labels' at /home/ann/train.py:12",
            "Rank 17 failed: KeyError 'text' at /scratch/bob/run 7/train.py:99".replace(" 7", "-7"),
        ),
        (
            "Ranks 0, 1 and 3 hang in all_reduce seq 6 of default_pg: rank 2 never entered it",
            "Ranks 4 and 5 hang in all_reduce seq 91234 of default_pg: rank 6 never entered it",
        ),
        ("Xid 79 on gpu-node-17 at 0000:3b:00.0", "Xid 79 on gpu-node-3 at 0000:86:00.0"),
        (
            "out of GPU memory: tried to allocate 2.00 GiB with 1.25 GiB free",
            "out of GPU memory: tried to allocate 64.00 MiB with 12 MiB free",
        ),
        (
            "Rank 1 lost its connection to 10.1.2.3<49901>",
            "Rank 0 lost its connection to 192.168.17.4<1>",
        ),
        ("cannot read s3://a/b/c.tar (request 4f1c2a9b8d7e)", "cannot read s3://z/q.tar (request 0badc0ffee12)"),
    ],
)
def test_the_same_failure_elsewhere_has_the_same_fingerprint(one: str, other: str) -> None:
    assert normalised(one) == normalised(other)
    assert fingerprint("x", one) == fingerprint("x", other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("Rank 3 failed: KeyError", "Rank 3 failed: ValueError"),
        ("Ranks 0 and 1 hang in all_reduce seq 6", "Ranks 0 and 1 hang in broadcast seq 6"),
        ("Xid 79 on gpu-node-17", "Xid 48 on gpu-node-17"),
        ("Rank 3 failed with exit status 1", "Rank 3 failed with exit status 7"),
        ("no space left on /data/x", "read-only file system at /data/x"),
    ],
)
def test_another_failure_has_another_fingerprint(one: str, other: str) -> None:
    assert fingerprint("x", one) != fingerprint("x", other)


def test_the_pattern_and_the_version_are_part_of_it() -> None:
    assert fingerprint("nccl_hang", "a") != fingerprint("worker_crash", "a")
    assert fingerprint("nccl_hang", "a").startswith("v1-nccl_hang-")
    assert fingerprint("", "a").startswith("v1-unexplained-")
