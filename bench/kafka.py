"""`tracecore detect` on a Kafka of one broker: one worker against two, and how long incidents wait after a kill.

Facts are those of a healthy fleet, with a failing job now and then. Counted is from the first message that is sent to
the last write of the store, without the start of the programs. Everything shares this machine: broker,
store (SQLite) and workers. Processor time is that of the workers alone.
"""

from __future__ import annotations

import os
import random
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from bench import Measurement
from bench.kafka_brokers import Brokers, NoKafka, running, stored_offsets, worker
from tracecore.agent.kafka.client import Connection, ProducerOptions
from tracecore.agent.kafka.partitions import FactPartitioner, PartitionGroups
from tracecore.facts import wire
from tracecore.facts.fact import Fact
from tracecore.facts.gpu import Xid
from tracecore.facts.host import Heartbeat
from tracecore.facts.process import ExceptionRaised
from tracecore.facts.training import Progress
from tracecore.signals.otlp import encoding
from tracecore.signals.record import Source
from tracecore.store.store import Store

SECOND = 10**9
SEED = int(os.environ.get("TRACECORE_STREAM_SEED", "1"))
PARTITIONS = int(os.environ.get("BENCH_PARTITIONS", "4"))
#: Nodes with eight ranks each, in jobs of so many nodes.
NODES, RANKS, TOGETHER = 512, 8, 8
#: A rank reports a step in so many seconds.
EVERY = 10
#: Facts of a throughput run, and seconds of the log that they fill.
FACTS = int(os.environ.get("BENCH_FACTS", "120000"))
SECONDS = max(FACTS // (NODES * RANKS // EVERY + NODES // 15), 20)
T0 = 1_780_000_000 * SECOND


def measure() -> list[Measurement]:
    try:
        with running(1) as brokers:
            return [*_throughput(brokers), *_kill(brokers)]
    except NoKafka as error:
        return [Measurement("kafka.scaling", 0, "", skipped=str(error))]


def fleet(seconds: int, begin: int = T0, nodes: int = NODES) -> Iterator[tuple[int, list[Fact]]]:
    """Facts of each second: a step of each rank in ten, a heartbeat of each node in fifteen, a failure now and then."""
    chance = random.Random(SEED)
    for second in range(seconds):
        now = begin + second * SECOND
        facts: list[Fact] = []
        for node in range(nodes):
            name, job = f"node-{node:05d}", f"team/job-{node // TOGETHER}"
            pod = f"team/job-{node // TOGETHER}-{node % TOGETHER}"
            for rank in range(RANKS):
                if (node * RANKS + rank + second) % EVERY == 0:
                    path = f"/var/log/pods/{pod}/{rank}.log"
                    facts.append(
                        Progress(
                            time=now, source=Source(path, second * 200, second), node=name, pod=pod, job=job,
                            rank=node % TOGETHER * RANKS + rank, step=second, loss=2.0 + chance.random() / 10,
                            iter_time_s=1.0 + chance.random() / 100,
                        )
                    )  # fmt: skip
            if (node + second) % 15 == 0:
                ident = f"heartbeat:{name}:{job}:{now}"
                facts.append(Heartbeat(time=now, source=Source("agent", ident=ident), node=name, job=job))
        if second % 20 == 10:
            node = chance.randrange(nodes)
            name, job = f"node-{node:05d}", f"team/job-{node // TOGETHER}"
            facts.append(Xid(time=now, source=Source("kmsg", second), node=name, gpu="0000:3b:00.0", code=79))
            facts.append(
                ExceptionRaised(
                    time=now, source=Source("rank0.log", second, second), node=name, job=job, rank=0,
                    type="RuntimeError", message="CUDA error: unspecified launch failure",
                )
            )  # fmt: skip
        yield now, facts


def _encoded(seconds: int) -> tuple[int, list[tuple[int, int, bytes]]]:
    """Return the number of facts, and partition, time and bytes of each message that exporters make of them."""
    partitioner = FactPartitioner(PartitionGroups(PARTITIONS), "bench")
    messages: list[tuple[int, int, bytes]] = []
    count = 0
    for now, facts in fleet(seconds):
        count += len(facts)
        # An agent of a node sends its own facts; a gateway those of many. Here one for 64 nodes.
        for begin in range(0, len(facts), 64):
            divided, _ = partitioner.divide(wire.payload(facts[begin : begin + 64], now))
            messages += [
                (partition, now, encoding.encode("logs", {"resource_logs": entries}))
                for partition, entries in divided.items()
            ]
    return count, messages


def _send(brokers: Brokers, topic: str, messages: list[tuple[int, int, bytes]]) -> None:
    from confluent_kafka import Producer

    producer = Producer(Connection(brokers=brokers.addresses).settings() | ProducerOptions().settings(60 * SECOND))
    for partition, now, raw in messages:
        headers = [("tracecore-layout", PartitionGroups(PARTITIONS).layout.encode())]
        producer.produce(topic, raw, partition=partition, timestamp=now // 1_000_000, headers=headers)
        while len(producer) > 5_000:
            producer.poll(0.05)
    assert producer.flush(60) == 0


class _Run:
    """Workers on a topic, with a store of their own."""

    def __init__(self, stack: ExitStack, brokers: Brokers, topic: str, clock: str) -> None:
        self.folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tracecore-bench-")))
        self.store = Store.open(str(self.folder / "store.db"))
        stack.callback(self.store.close)
        self._config: dict[str, Any] = {
            "brokers": brokers.addresses, "topic": topic, "group_id": self.folder.name, "metrics": "", "clock": clock,
            "database": str(self.folder / "store.db"), "incidents_topic": "", "dead_letter_topic": "",
        }  # fmt: skip
        self.processes: list[subprocess.Popen[bytes]] = []
        stack.callback(self._stop)

    def start(self) -> subprocess.Popen[bytes]:
        self.processes.append(worker(self.folder, len(self.processes), self._config))
        return self.processes[-1]

    def _stop(self) -> None:
        for process in self.processes:
            process.kill()
            process.wait()

    def offsets(self) -> dict[int, int]:
        return stored_offsets(self.store)

    def owners(self) -> dict[int, int]:
        """The worker of each partition, as their logs say."""
        said = [
            (line, number)
            for number in range(len(self.processes))
            for line in (self.folder / f"{number}.log").read_text(errors="replace").splitlines()
            if " are ours after" in line
        ]
        found: dict[int, int] = {}
        for line, number in sorted(said):  # a line begins with its time
            held = line.partition("partitions ")[2].partition(" are ours")[0]
            found |= {int(partition): number for partition in held.split(", ")}
        return found

    def processor_s(self) -> list[float]:
        """Seconds of processor time of each worker."""
        ticks = os.sysconf("SC_CLK_TCK")
        spent = []
        for process in self.processes:
            fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
            spent.append((int(fields[11]) + int(fields[12])) / ticks)
        return spent

    def memory(self) -> list[int]:
        """Bytes of memory of each worker."""
        found = []
        for process in self.processes:
            text = Path(f"/proc/{process.pid}/status").read_text()
            found.append(int(text.partition("VmRSS:")[2].split()[0]) << 10)
        return found


def _read(brokers: Brokers, messages: list[tuple[int, int, bytes]], workers: int) -> tuple[float, float, int]:
    """Let workers read messages; seconds, the most processor seconds of a worker, and the most memory of one."""
    topic = brokers.topic(f"bench-{time.monotonic_ns()}", PARTITIONS)
    wanted = dict(Counter(partition for partition, _, _ in messages))
    with ExitStack() as stack:
        run = _Run(stack, brokers, topic, "log")
        for _ in range(workers):
            run.start()
        deadline = time.monotonic() + 180
        while len(set(run.owners().values())) < workers or len(run.owners()) < PARTITIONS:
            if time.monotonic() > deadline:
                raise RuntimeError("workers do not share the partitions")
            time.sleep(0.1)
        time.sleep(1)
        spent, began = run.processor_s(), time.monotonic()
        _send(brokers, topic, messages)
        while run.offsets() != wanted:
            if any(process.poll() is not None for process in run.processes):
                raise RuntimeError((run.folder / "0.log").read_text()[-500:])
            time.sleep(0.05)
        took = time.monotonic() - began
        busiest = max(after - before for after, before in zip(run.processor_s(), spent, strict=True))
        return took, busiest, max(run.memory())


def costs() -> tuple[float, float]:
    """Return the bytes of a fact on the topic, and the facts of one worker in a second of its processor time.

    Raises:
        NoKafka: Kafka cannot be started here.
    """
    count, messages = _encoded(SECONDS)
    with running(1) as brokers:
        _, processor, _ = _read(brokers, messages, 1)
    return sum(len(raw) for _, _, raw in messages) / count, count / processor


def _throughput(brokers: Brokers) -> list[Measurement]:
    count, messages = _encoded(SECONDS)
    size = sum(len(raw) for _, _, raw in messages)
    rates: dict[int, list[float]] = {1: [], 2: []}
    spent: dict[int, list[float]] = {1: [], 2: []}
    memory = 0
    # In turn, because what else runs here changes.
    for _ in range(2):
        for workers in (1, 2):
            took, processor, held = _read(brokers, messages, workers)
            rates[workers].append(count / took)
            spent[workers].append(count / processor)
            memory = max(memory, held)
    one, two = (sorted(rates[n])[len(rates[n]) // 2] for n in (1, 2))
    each = ", ".join(f"{b / a:.2f}" for a, b in zip(rates[1], rates[2], strict=True))
    simulated = f"{count:,} facts of {NODES * RANKS:,} ranks, {PARTITIONS} partitions"
    by_time = f"by the processor time of the busiest worker {max(spent[1]):,.0f}, of two {max(spent[2]):,.0f}"
    idle = max(spent[2]) / max(spent[1])
    return [
        Measurement("kafka.bytes", size / count, "bytes/fact", "", f"{simulated}, copies included, not compressed"),
        Measurement("kafka.one", one, "facts/s", "", f"{simulated}; {by_time}"),
        Measurement("kafka.two", two, "facts/s", "", "two workers"),
        Measurement("kafka.scaling", two / one, "times", "≥ 1.6", f"in turn: {each}"),
        Measurement("kafka.scaling_processor", idle, "times", "≥ 1.6", "the same by processor time: on idle cores"),
        Measurement("kafka.memory", memory / 2**20, "MiB", "", "the largest worker"),
    ]


def _kill(brokers: Brokers) -> list[Measurement]:
    """Kill a worker and wait until its partitions are written again."""
    from confluent_kafka import Producer

    topic = brokers.topic("bench-kill", PARTITIONS)
    producer = Producer(Connection(brokers=brokers.addresses).settings() | ProducerOptions().settings(60 * SECOND))
    groups = PartitionGroups(PARTITIONS)
    partitioner = FactPartitioner(groups, "bench")
    chance = random.Random(SEED)
    waits: list[float] = []

    def send(facts: list[Fact]) -> None:
        now = time.time_ns()
        divided, _ = partitioner.divide(wire.payload(facts, now))
        for partition, entries in divided.items():
            raw = encoding.encode("logs", {"resource_logs": entries})
            producer.produce(topic, raw, partition=partition, headers=[("tracecore-layout", groups.layout.encode())])
        producer.flush(10)

    with ExitStack() as stack:
        run = _Run(stack, brokers, topic, "wall")
        alive = [run.start(), run.start()]
        begin = time.time_ns()
        live = fleet(3600, begin, nodes=64)
        deadline = time.monotonic() + 120
        while (len(run.offsets()) < PARTITIONS or len(run.owners()) < PARTITIONS) and time.monotonic() < deadline:
            send(next(live)[1])
            time.sleep(0.2)
        for _ in range(3):
            victim = chance.choice(alive)
            time.sleep(chance.uniform(0.5, 3))
            before = run.offsets()
            victim.kill()
            victim.wait()
            alive.remove(victim)
            killed = time.monotonic()
            send(next(live)[1])
            while (now := run.offsets()) and any(now.get(p, 0) <= before.get(p, 0) for p in range(PARTITIONS)):
                send(next(live)[1])
                time.sleep(0.1)
            waits.append(time.monotonic() - killed)
            alive.append(run.start())
            until = time.monotonic() + 20
            while set(run.owners().values()) & {run.processes.index(alive[-1])} == set() and time.monotonic() < until:
                send(next(live)[1])
                time.sleep(0.2)
        run.processes = [process for process in run.processes if process.poll() is None]
    each = ", ".join(f"{wait:.1f}" for wait in waits)
    return [Measurement("kafka.killed", max(waits), "s", "≤ 10", f"until all partitions are written again: {each}")]
