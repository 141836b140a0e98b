"""Partitions of facts: every partition has what bears on its jobs, and exactly one tells of each."""

from __future__ import annotations

import random
import sys
import time
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from bench.kafka import fleet

from tracecore.agent.kafka.partitions import COPIES, PartitionGroups, owner
from tracecore.agent.telemetry import Meter
from tracecore.facts.fact import Fact
from tracecore.facts.gpu import Xid
from tracecore.facts.process import CudaError
from tracecore.facts.training import Progress
from tracecore.incidents.jobs import LONE
from tracecore.signals.record import Source
from tracecore.store.store import Store
from tracecore.stream.config import WorkerOptions
from tracecore.stream.partition import Partition, TopicMessage

sys.path.insert(0, str(Path(__file__).resolve().parent))
from recorded import PARTITIONS, RECORDED, SECOND, SEED, Sent, assert_same, messages, stored, story

#: Any time in the past, always the same.
END = 1_780_000_000 * SECOND


def logs_of(sent: Iterable[Sent]) -> dict[int, list[TopicMessage]]:
    """Return the messages of each partition."""
    logs: dict[int, list[TopicMessage]] = {}
    for one in sent:
        log = logs.setdefault(one.partition, [])
        log.append(TopicMessage(len(log), one.time, one.value, one.layout))
    return logs


def joined(sent: Iterable[Sent], groups: PartitionGroups, store: Store, portion: int = 50) -> None:
    """Let the detectors of all partitions read their logs."""
    for number, log in logs_of(sent).items():
        partition = Partition(number, groups, store, WorkerOptions(), Meter("partition", str(number)))
        partition.restore()
        for begin in range(0, len(log), portion):
            assert partition.take(log[begin : begin + portion], time.time_ns()) == []
        partition.write()


@pytest.mark.parametrize("count", [PARTITIONS or 3])
def test_partitions_end_with_what_one_process_says(tmp_path: Path, count: int) -> None:
    arrivals = story(RECORDED[SEED % 60 :: 60], END)
    alone = told(arrivals, PartitionGroups(1), tmp_path)
    assert alone
    assert_same(told(arrivals, PartitionGroups(count), tmp_path), alone)


def told(arrivals: list[tuple[int, Fact]], groups: PartitionGroups, folder: Path) -> dict[str, Any]:
    """What the store says when the partitions of this layout have read these facts."""
    store = Store.open(str(folder / f"{groups.partitions}.db"), durable=False)
    joined(messages(arrivals, groups, END), groups, store)
    found = stored(store)
    store.close()
    return found


def test_a_simulated_fleet_ends_with_what_one_process_says(tmp_path: Path) -> None:
    seconds = 25
    arrivals = [(now, fact) for now, facts in fleet(seconds, END - seconds * SECOND, nodes=16) for fact in facts]
    alone = told(arrivals, PartitionGroups(1), tmp_path)
    assert alone
    assert_same(told(arrivals, PartitionGroups(PARTITIONS or 5), tmp_path), alone)


def test_jobs_that_fail_on_one_gpu_after_each_other_are_counted_across_partitions(tmp_path: Path) -> None:
    """A pattern by GPU needs the errors of all jobs, whichever partition tells of each."""
    arrivals: list[tuple[int, Fact]] = []
    for number in range(4):
        at, who = END - (5 - number) * 900 * SECOND, {"node": "n1", "job": f"team/job-{number}", "rank": 0}
        path = f"rank0-{number}.log"
        xid = Xid(time=at, source=Source("kmsg", number), node="n1", gpu="0000:3b:00.0", code=31, pid=100 + number)
        step = Progress(time=at - 5 * SECOND, source=Source(path, 1), step=7, **who)
        error = CudaError(
            time=at + SECOND, source=Source(path, 2), error="illegal_access", pid=100 + number, **who
        )  # fmt: skip
        arrivals += [(fact.time, fact) for fact in (step, xid, error)]
    alone = told(arrivals, PartitionGroups(1), tmp_path)
    assert len(alone) >= 4
    assert_same(told(arrivals, PartitionGroups(PARTITIONS or 8), tmp_path), alone)


@pytest.mark.parametrize("partitions", [1, 2, 7, 8, 9, 64, 100])
@pytest.mark.parametrize("copies", [1, 3, 8])
def test_groups_cover_all_partitions_once_and_are_no_larger_than_the_copies(partitions: int, copies: int) -> None:
    groups = PartitionGroups(partitions, copies)
    covered = [partition for group in groups._groups for partition in group]
    assert covered == list(range(partitions))
    assert all(0 < len(group) <= copies for group in groups._groups)
    for partition in range(partitions):
        owns = groups.ownership(partition)
        assert sum(owns(name) for name in ("a/job", "job", "", LONE + "n1")) <= 4


@pytest.mark.parametrize("name", ["llm", "team/llm", "", LONE + "node-7"])
def test_exactly_one_partition_of_a_group_tells_of_a_job(name: str) -> None:
    groups = PartitionGroups(20, 8)
    for group in groups._groups:
        assert sum(groups.ownership(partition)(name) for partition in group) == 1


def test_a_job_is_in_one_partition_with_and_without_its_namespace() -> None:
    group = PartitionGroups(8).of_cluster("")
    assert owner("llm", group) == owner("team-a/llm", group)


def test_no_fact_has_more_copies_than_the_bound() -> None:
    groups = PartitionGroups(64)
    arrivals = story(RECORDED[:5], END)
    used = Counter(one.partition for one in messages(arrivals, groups, END) if one.value)
    assert 0 < len(used) <= COPIES


def test_another_worker_goes_on_where_one_was_killed(tmp_path: Path) -> None:
    groups = PartitionGroups(1)
    sent = [*messages(story(RECORDED[SEED % 60 :: 60], END), groups, END, largest=5)]
    log = [TopicMessage(offset, one.time, one.value, one.layout) for offset, one in enumerate(sent)]
    store = Store.open(str(tmp_path / "whole.db"), durable=False)
    joined(sent, groups, store)
    expected = stored(store)
    store.close()
    store = Store.open(str(tmp_path / "killed.db"), durable=False)
    offset, round_ = 0, 0
    while offset < len(log):
        partition = Partition(0, groups, store, WorkerOptions(), Meter("partition", "0"))
        partition.restore()
        offset = partition.offset or 0
        for _ in range(3):
            partition.take(log[offset : offset + 7], time.time_ns())
            offset += 7
            partition.write()
        # Taken and not written: the next worker reads it again.
        round_ += 1
        partition.take(log[offset : offset + 5], time.time_ns())
    assert round_ > 3
    assert_same(stored(store), expected)
    store.close()


def test_a_verdict_that_is_final_stays_as_it_was_when_its_partition_moves(tmp_path: Path) -> None:
    """A stall goes on after the verdict about it is final; who reads the facts again must not find a longer one."""
    groups = PartitionGroups(1)
    stalled = next(path for path in RECORDED if path.name == "thread_of_prefetch_raises")
    sent = [*messages(story([stalled], END), groups, END)][:-3]
    sent += [sent[-1]._replace(time=END + minute * 60 * SECOND, value=b"") for minute in range(30)]
    ((_, log),) = logs_of(sent).items()
    store = Store.open(str(tmp_path / "stayed.db"), durable=False)
    joined(sent, groups, store)
    expected = stored(store)
    store.close()
    assert any(b"stall_seconds" in verdict for _, _, *verdicts in expected.values() for verdict in verdicts)
    store = Store.open(str(tmp_path / "moved.db"), durable=False)
    for message in log:
        partition = Partition(0, groups, store, WorkerOptions(), Meter("partition", "0"))
        partition.restore()
        partition.take([message], time.time_ns())
        partition.write()
    found = stored(store)
    store.close()
    assert_same(found, expected)


@pytest.mark.heavy
@pytest.mark.parametrize("count", [PARTITIONS or 3, 10])
def test_partitions_that_move_at_any_moment_end_with_what_one_process_says(tmp_path: Path, count: int) -> None:
    arrivals = story(RECORDED, END)
    alone = told(arrivals, PartitionGroups(1), tmp_path)
    assert len(alone) > 200
    store = Store.open(str(tmp_path / "moved.db"), durable=False)
    groups = PartitionGroups(count)
    for number, log in logs_of(messages(arrivals, groups, END)).items():
        chance, at, partition = random.Random(f"{SEED} {number}"), 0, None
        while at < len(log):
            if partition is None or chance.random() < 0.1:
                partition = Partition(number, groups, store, WorkerOptions(), Meter("partition", str(number)))
                partition.restore()
                at = partition.offset or 0
            some = chance.randint(1, 40)
            assert partition.take(log[at : at + some], time.time_ns()) == []
            at += some
            if chance.random() < 0.7 or at >= len(log):
                partition.write()
    found = stored(store)
    store.close()
    assert_same(found, alone)


def test_a_worker_that_was_asleep_writes_nothing(tmp_path: Path) -> None:
    from tracecore.stream.partition import PartitionLost

    groups = PartitionGroups(1)
    log = [TopicMessage(n, END + n * SECOND, b"") for n in range(4)]
    store = Store.open(str(tmp_path / "store.db"), durable=False)
    asleep, awake = (Partition(0, groups, store, WorkerOptions(), Meter("partition", "0")) for _ in range(2))
    asleep.restore()
    asleep.take(log[:2], time.time_ns())
    awake.restore()
    awake.take(log[:3], time.time_ns())
    awake.write()
    with pytest.raises(PartitionLost):
        asleep.write()
    again = Partition(0, groups, store, WorkerOptions(), Meter("partition", "0"))
    again.restore()
    assert again.offset == 3
    store.close()


def test_messages_that_expired_before_they_were_read_are_counted(tmp_path: Path) -> None:
    store = Store.open(str(tmp_path / "store.db"), durable=False)
    meter = Meter("partition", "0")
    partition = Partition(0, PartitionGroups(1), store, WorkerOptions(), meter)
    partition.restore()
    partition.take([TopicMessage(0, END, b""), TopicMessage(25, END, b"")], time.time_ns())
    assert meter.events["messages_expired"] == 24
    store.close()


def test_a_message_that_is_no_payload_is_given_back_with_the_reason(tmp_path: Path) -> None:
    store = Store.open(str(tmp_path / "store.db"), durable=False)
    partition = Partition(0, PartitionGroups(1), store, WorkerOptions(), Meter("partition", "0"))
    partition.restore()
    ((message, reason),) = partition.take(
        [TopicMessage(0, END, b"\xff\xff\xff"), TopicMessage(1, END, b"")], time.time_ns()
    )
    assert message.offset == 0
    assert reason
    assert partition.offset == 2
    store.close()
