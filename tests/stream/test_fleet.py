"""The simulated fleet through the partitions of a topic: its incidents are those of one process."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from functools import cache
from operator import itemgetter
from pathlib import Path
from typing import Any

import msgspec
import pytest
from bench.kafka_brokers import Brokers

from tracecore.agent.kafka.partitions import FactPartitioner, PartitionGroups
from tracecore.facts import wire
from tracecore.facts.fact import Fact
from tracecore.signals.otlp import encoding
from tracecore.simulation.fleet import Fleet, SimulatedJob, draw
from tracecore.simulation.run import Story, play
from tracecore.store.store import Store

sys.path.insert(0, str(Path(__file__).resolve().parent))
from recorded import PARTITIONS, SECOND, SEED, Sent, assert_same, stored
from test_kafka import name
from test_partitions import joined
from workers import Sender, Workers


def fleet() -> Fleet:
    """Two days of 96 GPUs that fail sixty times as often as published."""
    return draw(12, 2, 11 + SEED, rate=60, noise=10)


@cache
def looks() -> list[tuple[int, list[Fact]]]:
    """When facts arrive, and which.

    The clock of a story jumps from window to window, and that of a log does not: the time between them is cut out.
    """
    drawn = fleet()
    found: list[tuple[int, list[Fact]]] = []
    cut = before = 0
    for now, facts in Story(drawn, [*range(len(drawn.slots))]):
        least = before - cut
        if before and now - before > 60 * SECOND:
            cut += now - before - 5 * SECOND
        found.append((now - cut, [_earlier(fact, cut, least) for fact in facts]))
        before = now
    return found


def _earlier(fact: Fact, cut: int, least: int) -> Fact:
    last = None if fact.last_time is None else max(fact.last_time - cut, least)
    return msgspec.structs.replace(fact, time=max(fact.time - cut, least), last_time=last)


def messages(groups: PartitionGroups) -> Iterator[Sent]:
    """The messages that exporters send, in the order in which brokers have them; then time passes."""
    partitioner = FactPartitioner(groups, "a")
    layout = groups.layout.encode()
    for now, facts in filter(itemgetter(1), looks()):
        divided, _ = partitioner.divide(wire.payload(facts, now))
        for partition, entries in divided.items():
            yield Sent(partition, now, encoding.encode("logs", {"resource_logs": entries}), layout)
    for later in (30, 60, 4500):
        for partition in range(groups.partitions):
            yield Sent(partition, looks()[-1][0] + later * SECOND, b"", layout)


@cache
def alone() -> dict[str, Any]:
    """What one process says."""
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        return partitioned(1, Path(folder))


def partitioned(partitions: int, folder: Path) -> dict[str, Any]:
    store = Store.open(str(folder / f"{partitions}.db"), durable=False)
    joined(messages(PartitionGroups(partitions)), PartitionGroups(partitions), store)
    found = stored(store)
    store.close()
    return found


def roots(found: dict[str, Any]) -> dict[str, str | None]:
    """The root cause that each incident names."""
    documents = {id: msgspec.json.decode(entry[1]) for id, entry in found.items()}
    return {id: (document["root_cause"] or {}).get("pattern") for id, document in documents.items()}


def jobs(found: dict[str, Any]) -> dict[str, str]:
    return {id: msgspec.json.decode(entry[1])["job"] for id, entry in found.items()}


def _last_jobs() -> list[SimulatedJob]:
    drawn = fleet()
    return [drawn.job_at(slot, drawn.end) for slot in range(len(drawn.slots))]


@pytest.mark.heavy
@pytest.mark.parametrize("partitions", [PARTITIONS or 5, 16])
def test_partitions_say_of_a_simulated_fleet_what_one_process_says(tmp_path: Path, partitions: int) -> None:
    assert len(alone()) > 3
    assert_same(partitioned(partitions, tmp_path), alone())


@pytest.mark.heavy
def test_one_partition_names_the_roots_that_the_simulation_scores() -> None:
    last = {one.document["id"]: one.document for one in play(fleet(), 0, 1).told}
    scored = {id: (document["root_cause"] or {}).get("pattern") for id, document in last.items()}
    found = roots(alone())
    # When the log ends nobody makes steps any more, and each job that ran stands still.
    still = {job.name for job in _last_jobs()}
    late = {id for id in found.keys() - scored.keys() if found[id] is None and jobs(alone())[id] in still}
    assert {id: root for id, root in found.items() if id not in late} == scored


@pytest.mark.integration
def test_two_workers_on_a_real_broker_say_of_a_simulated_fleet_what_one_process_says(
    one_broker: Brokers, workers: Workers
) -> None:
    partitions = PARTITIONS or 5
    topic = one_broker.topic(name("fleet"), partitions)
    for _ in range(2):
        workers.start(one_broker, topic)
    sender = Sender(one_broker, topic)
    sender.send(messages(PartitionGroups(partitions)))
    workers.wait(sender.flush(), 500)
    assert_same(workers.found(), alone())
