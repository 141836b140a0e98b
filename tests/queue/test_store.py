"""What may happen to a task, on SQLite and on PostgreSQL."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections import Counter
from typing import Any

import pytest
from sqlalchemy import Engine

from tracecore.queue.database import DatabaseError, connect, ident
from tracecore.queue.store import LOST_AT_MOST, LOST_LIMIT, AttemptOutcome, LeaseLost, NoSuchTask, Queue
from tracecore.queue.task import Dataset, Spec, SpecError

DONE = AttemptOutcome(status="completed", exit_code=0)


def spec(name: str = "t", **fields: Any) -> Spec:
    return Spec(name=name, command=("true",), **fields)


def test_a_task_comes_back_as_it_was_put_in(queue: Queue) -> None:
    full = Spec(
        name="résnet",
        command=("torchrun", "--nproc-per-node", "8", "train.py", "a b"),
        cwd="/data",
        priority=-3,
        env={"A": "ü\n", "B": ""},
        datasets=(Dataset(uri="/data/x", checksum="md5:" + "0" * 32, name="x"),),
        tracking={"wandb": {"project": "p"}},
        policy="resilient",
        max_restarts=0,
        timeout_s=1.5,
        grace_s=0.0,
    )
    task = queue.get(queue.submit(full))
    assert task.spec == full
    assert (task.status, task.attempts, task.token) == ("queued", 0, 0)


def test_priority_then_age(queue: Queue) -> None:
    ids = [queue.submit(spec(priority=priority)) for priority in (0, 5, 0, 5, -1)]
    order = []
    while (claim := queue.claim("w", "h", 30)) is not None:
        order.append(claim.task.id)
    assert order == [ids[1], ids[3], ids[0], ids[2], ids[4]]


def test_a_retry_waits_for_its_time_and_lets_others_pass(queue: Queue, clock: Any) -> None:
    first, second = queue.submit(spec(priority=9)), queue.submit(spec())
    claim = queue.claim("w", "h", 30)
    assert claim is not None
    queue.finish(claim, AttemptOutcome(status="queued", exit_code=1, delay_s=30, reason="again", ledger={"retries": 1}))
    other = queue.claim("w", "h", 30)
    assert other is not None
    assert other.task.id == second
    assert queue.claim("w", "h", 30) is None
    clock.pass_(29)
    assert queue.claim("w", "h", 30) is None
    clock.pass_(2)
    again = queue.claim("w", "h", 30)
    assert again is not None
    assert (again.task.id, again.task.attempts, again.task.token, again.task.ledger) == (first, 2, 2, {"retries": 1})
    assert [attempt.retried for attempt in queue.attempts(first)] == [True, False]


def test_a_lease_that_ran_out_is_taken_away_and_its_holder_refused(queue: Queue, clock: Any) -> None:
    task = queue.submit(spec())
    slow = queue.claim("slow", "h", 30)
    assert slow is not None
    clock.pass_(29)
    assert queue.renew(slow) is False
    clock.pass_(30)
    assert queue.reap() == []
    clock.pass_(6)
    assert queue.reap() == [task]
    fast = queue.claim("fast", "h", 30)
    assert fast is not None
    assert fast.token == slow.token + 1
    with pytest.raises(LeaseLost):
        queue.renew(slow)
    with pytest.raises(LeaseLost):
        queue.finish(slow, DONE)
    with pytest.raises(LeaseLost):
        queue.requeue(slow, "late")
    queue.finish(fast, DONE)
    with pytest.raises(LeaseLost):
        queue.finish(fast, DONE)
    assert [(attempt.status, attempt.worker) for attempt in queue.attempts(task)] == [
        ("lost", "slow"),
        ("completed", "fast"),
    ]


def test_a_late_holder_may_still_finish_while_nobody_took_the_task(queue: Queue, clock: Any) -> None:
    task = queue.submit(spec())
    claim = queue.claim("w", "h", 30)
    assert claim is not None
    clock.pass_(3600)
    queue.finish(claim, DONE)
    assert queue.get(task).status == "completed"
    assert queue.reap() == []


def test_a_task_that_kills_its_workers_dies_in_the_end_and_can_be_raised(queue: Queue, clock: Any) -> None:
    task = queue.submit(spec())
    for _ in range(LOST_LIMIT):
        assert queue.claim("w", "h", 30) is not None
        clock.pass_(100)
        queue.reap()
    dead = queue.get(task)
    assert (dead.status, dead.failure_class) == ("dead", "infrastructure")
    failure = queue.attempts(task)[-1].failure
    assert failure is not None
    assert failure["context"]["reason"] == "worker_lost"
    assert queue.claim("w", "h", 30) is None
    assert queue.retry(task) == "queued"
    claim = queue.claim("w", "h", 30)
    assert claim is not None
    assert (claim.task.lost, claim.task.attempts) == (0, LOST_LIMIT + 1)


def test_a_task_is_not_blamed_where_others_lose_their_workers_as_well(queue: Queue, clock: Any) -> None:
    one, other, third = (queue.submit(spec()) for _ in range(3))
    for _ in range(LOST_LIMIT + 2):
        for _ in range(3):
            assert queue.claim("w", "h", 30) is not None
        clock.pass_(100)
        assert sorted(queue.reap()) == [one, other, third]
        assert {queue.get(task).status for task in (one, other, third)} == {"queued"}
        clock.pass_(60)
    # Now only one of them is left, and whoever takes it vanishes.
    queue.cancel(other)
    queue.cancel(third)
    for _ in range(LOST_AT_MOST):
        if queue.claim("w", "h", 30) is None:
            break
        clock.pass_(100)
        queue.reap()
        clock.pass_(60)
    dead = queue.get(one)
    assert dead.status == "dead"
    assert dead.lost < LOST_AT_MOST


def test_a_worker_that_is_asked_to_stop_costs_the_task_nothing(queue: Queue) -> None:
    task = queue.submit(spec())
    for _ in range(2 * LOST_LIMIT):
        claim = queue.claim("w", "h", 30)
        assert claim is not None
        queue.requeue(claim, "the worker was asked to stop")
    assert queue.get(task).status == "queued"
    assert {attempt.status for attempt in queue.attempts(task)} == {"preempted"}


def test_cancel(queue: Queue, clock: Any) -> None:
    waiting, running, lost, done = (queue.submit(spec(priority=-n)) for n in range(4))
    assert queue.cancel(waiting) == "cancelled"
    claim, gone, ended = (queue.claim("w", "h", 30) for _ in range(3))
    assert claim is not None
    assert gone is not None
    assert ended is not None
    assert queue.cancel(running) == "running"
    assert queue.renew(claim) is True
    # It would be tried again, but somebody wants it gone.
    queue.finish(claim, AttemptOutcome(status="queued", exit_code=1, reason="again"))
    assert queue.get(running).status == "cancelled"
    assert [attempt.retried for attempt in queue.attempts(running)] == [False]
    queue.finish(ended, DONE)
    assert queue.cancel(done) == "completed"
    queue.cancel(lost)
    clock.pass_(100)
    queue.reap()
    assert queue.get(lost).status == "cancelled"
    assert queue.claim("w", "h", 30) is None


def test_retry_refuses_what_makes_no_sense(queue: Queue) -> None:
    task = queue.submit(spec())
    claim = queue.claim("w", "h", 30)
    assert claim is not None
    with pytest.raises(SpecError, match="running"):
        queue.retry(task)
    queue.finish(claim, DONE)
    with pytest.raises(SpecError, match="completed"):
        queue.retry(task)
    with pytest.raises(NoSuchTask, match="no task 999"):
        queue.retry(999)
    with pytest.raises(NoSuchTask):
        queue.cancel(999)


def test_one_key_one_task(queue: Queue) -> None:
    first = queue.submit(spec(), key="nightly")
    assert queue.submit(spec(), key="nightly") == first
    with pytest.raises(SpecError, match="another task"):
        queue.submit(spec(priority=2), key="nightly")
    assert queue.submit(spec()) != first


def test_lists_in_the_order_in_which_things_happen(queue: Queue, clock: Any) -> None:
    names = ("done", "old", "urgent", "run")
    for name, priority in zip(names, (9, 0, 5, 8), strict=True):
        queue.submit(spec(name, priority=priority))
    done = queue.claim("w", "h", 30)
    assert done is not None
    queue.finish(done, DONE)
    queue.claim("w", "h", 30)
    assert [task.spec.name for task in queue.tasks()] == ["run", "urgent", "old", "done"]
    assert [task.spec.name for task in queue.tasks(("queued",))] == ["urgent", "old"]
    assert [task.spec.name for task in queue.tasks(name="r")] == ["run", "urgent"]
    assert [task.spec.name for task in queue.tasks(limit=2)] == ["run", "urgent"]
    assert queue.tasks(name="%") == []
    assert queue.counts() == {"queued": 2, "running": 1, "completed": 1, "failed": 0, "dead": 0, "cancelled": 0}
    clock.pass_(100)
    assert queue.prune(50) == 1
    assert len(queue.tasks()) == 3


WORKER = """
import json, os, sys
from tracecore.queue.database import connect
from tracecore.queue.store import AttemptOutcome, Queue
queue = Queue(connect(sys.argv[1], durable=False))
sys.stdin.read(1)
taken = []
while (claim := queue.claim(f"w{os.getpid()}", "h", 30)) is not None:
    taken.append((claim.task.id, claim.token))
    queue.renew(claim)
    queue.finish(claim, AttemptOutcome(status="completed", exit_code=0))
print(json.dumps(taken))
"""


def test_many_workers_never_hold_one_task_together(place: str, engine: Engine) -> None:
    queue = Queue(engine)
    ids = [queue.submit(spec()) for _ in range(120)]
    workers = [
        subprocess.Popen(
            [sys.executable, "-c", WORKER, place], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        for _ in range(4)
    ]
    claims: Counter[tuple[int, int]] = Counter()
    # All are told to go before anyone is waited for.
    for worker in workers:
        assert worker.stdin is not None
        worker.stdin.write("g")
        worker.stdin.flush()
    for worker in workers:
        said, _ = worker.communicate(timeout=60)
        claims.update((task, token) for task, token in json.loads(said))
    assert claims == {(task, 1): 1 for task in ids}
    assert queue.counts()["completed"] == 120


def test_a_queue_made_by_many_at_once_is_one_queue(place: str) -> None:
    found: list[str] = []

    def make() -> None:
        opened = connect(place)
        found.append(ident(opened))
        opened.dispose()

    threads = [threading.Thread(target=make) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 6
    assert len(set(found)) == 1


@pytest.mark.integration
def test_on_postgresql_a_locked_task_is_passed_over(postgres: str) -> None:
    engine = connect(postgres)
    queue = Queue(engine)
    first, second = queue.submit(spec()), queue.submit(spec())
    from sqlalchemy import select

    from tracecore.queue.database import tasks

    with engine.begin() as holding:
        holding.execute(select(tasks).where(tasks.c.id == first).with_for_update())
        begun = time.monotonic()
        claim = queue.claim("w", "h", 30)
        assert time.monotonic() - begun < 25  # the lease is longer
    assert claim is not None
    assert claim.task.id == second
    engine.dispose()


@pytest.mark.integration
def test_on_postgresql_the_clock_is_the_servers(postgres: str) -> None:
    engine = connect(postgres)
    queue = Queue(engine)
    assert abs(queue.now() - time.time_ns()) < 5 * 10**9
    queue.submit(spec())
    claim = queue.claim("w", "h", 30)
    assert claim is not None
    assert claim.task.lease_until is not None
    assert 30 * 10**9 < claim.task.lease_until - queue.now() < 36 * 10**9
    engine.dispose()


@pytest.mark.parametrize(
    ("address", "message"),
    [
        ("mysql://x/y", "no queue in mysql"),
        ("sqlite://", "needs a file"),
        ("http:://x", "not a database address|no queue in http"),
        ("postgresql://nobody@127.0.0.1:1/none", "cannot open the queue"),
        ("/proc/none/queue.db", "cannot make /proc/none"),
    ],
)
def test_an_address_that_cannot_be_says_why(address: str, message: str) -> None:
    with pytest.raises(DatabaseError, match=message):
        connect(address)


def test_what_is_no_queue_says_so(tmp_path: Any) -> None:
    (tmp_path / "x.db").write_bytes(b"this is a text file, not a database" * 100)
    with pytest.raises(DatabaseError, match="not a database"):
        connect(str(tmp_path / "x.db"))


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"command": ()}, "needs a command"),
        ({"command": ("a\0b",)}, "NUL"),
        ({"command": ("x" * 200_000,)}, "script"),
        ({"name": ""}, "name"),
        ({"priority": 10**9}, "priority"),
        ({"env": {"1A": "x"}}, "environment variable"),
        ({"env": {"TRACECORE_QUEUE_TASK": "x"}}, "queue itself"),
        ({"datasets": (Dataset(uri="/x", checksum="sha256:12"),)}, "64 hexadecimal"),
        ({"datasets": (Dataset(uri="/x", checksum="crc:12"),)}, "algorithm:hex"),
        ({"datasets": (Dataset(uri="s3://b/x", checksum="md5:" + "0" * 32),)}, "for a path only"),
        ({"tracking": {"wandb": {"projct": "x"}}}, "did you mean 'project'"),
        ({"tracking": {"wandb": {"api_key": "x"}}}, "where the worker runs"),
        ({"tracking": {"neptune": {}, "comet": {"a": "b"}}}, "unknown tracker"),
        ({"timeout_s": 0.0}, "timeout"),
        ({"max_restarts": -1}, "max_restarts"),
    ],
)
def test_a_task_that_cannot_be_run_is_refused_with_a_reason(wrong: dict[str, Any], message: str, tmp_path: Any) -> None:
    queue = Queue(connect(str(tmp_path / "q.db")))
    with pytest.raises(SpecError, match=message):
        queue.submit(Spec(**{"name": "t", "command": ("true",), **wrong}))
    assert queue.tasks() == []
