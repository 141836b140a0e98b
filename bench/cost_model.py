"""What a fleet of a size needs: brokers, workers, store and server, from measured costs of a fact and an incident.

    python -m bench.cost_model            print the tables of docs/scale.md from the committed measurements
    python -m bench.cost_model --measure  measure again, write bench/cost_inputs.json, and print

Nothing in docs/scale.md is written by hand that this does not print.
"""

from __future__ import annotations

import argparse
import math
import os
import tempfile
import time
from pathlib import Path

import msgspec
from sqlalchemy import text

from bench.fleet import HEARTBEAT, PROGRESS
from bench.mixed_logs import MIXTURES, write
from tracecore.simulation.fleet import GPUS, SIZES, TABLE_DAYS, TABLE_GPUS
from tracecore.simulation.plays import catalogue
from tracecore.store.store import Store

INPUTS = Path(__file__).with_name("cost_inputs.json")
FLEETS = (1_000, 16_384, 100_000)
#: Chosen, not measured.
BUSY = 0.5  # share of a core that a process may use on the average
REPLICAS = 3
RETENTION_H = 24
COPIES = 8
DAYS = 30
STORED_RANKS = 64  # of a job: server/observing.py
STORED_EVERY_S = 10
#: Facts a second of a healthy rank: a report of its own, and its share of the node's heartbeat.
STEADY = 1 / PROGRESS + 1 / (HEARTBEAT * GPUS)


class Inputs(msgspec.Struct, kw_only=True):
    """Measured numbers.

    Args:
        start_rank: facts a second of one rank in the first minute of a run, of the mixture of logs that sends most.
        bytes_fact: of one fact in an OTLP request.
        packed_fact: the same with zstd.
        topic_fact: bytes of one fact on the topic, copies for other partitions included, not compressed.
        worker_facts: facts that a worker on Kafka manages in a second of processor time, its store included.
        join_us: microseconds of processor time to decode and join a fact without Kafka and store.
        join_mib: memory of the process that joins 16,384 ranks.
        incident_bytes: of one incident in the store.
        point_bytes: of one stored report of progress.
    """

    start_rank: float
    bytes_fact: float
    packed_fact: float
    topic_fact: float
    worker_facts: float
    join_us: float
    join_mib: float
    incident_bytes: float
    point_bytes: float
    load: float


SOURCES = {
    "start_rank": ("facts a second and rank, first minute of a run", "the mixture of logs that sends the most"),
    "bytes_fact": ("bytes of a fact in a request", "the same"),
    "packed_fact": ("the same with zstd", "the same"),
    "topic_fact": ("bytes of a fact on the topic, copies included", "a real broker, one worker, 120,000 facts"),
    "worker_facts": ("facts a worker manages in a second of processor time", "the same"),
    "join_us": ("µs of processor time to decode and join a fact", "16,384 healthy ranks, a minute"),
    "join_mib": ("MiB of the process that joins 16,384 ranks", "the same"),
    "incident_bytes": ("bytes of an incident in the store (SQLite)", "400 recorded incidents"),
    "point_bytes": ("bytes of a stored report of progress", "100,000 reports"),
    "load": ("load of the two cores at the end", "the system"),
}


def measure() -> Inputs:
    """Measure all inputs, on a Kafka of our own among others.

    Raises:
        NoKafka: Kafka cannot be started here.
    """
    from bench.kafka import costs

    topic_fact, worker_facts = costs()
    start_rank, bytes_fact, packed_fact = _wire()
    join_us, join_mib = _join()
    incident_bytes, point_bytes = _store()
    return Inputs(
        start_rank=round(start_rank, 2), bytes_fact=round(bytes_fact), packed_fact=round(packed_fact),
        topic_fact=round(topic_fact), worker_facts=round(worker_facts, -2),
        join_us=round(join_us), join_mib=round(join_mib), incident_bytes=round(incident_bytes, -2),
        point_bytes=round(point_bytes), load=round(os.getloadavg()[0], 1),
    )  # fmt: skip


def _wire() -> tuple[float, float, float]:
    """Take the mixture of logs that sends the most facts."""
    from bench.wire_bytes import played

    found = []
    for mixture in MIXTURES:
        with tempfile.TemporaryDirectory() as folder:
            write(Path(folder), mixture, "cri", 3 << 20, seed=3, files=4)
            node, _, seconds = played(sorted(Path(folder).rglob("*.log")))
        if seconds and node.facts:
            found.append((node.facts / seconds / 4, node.sent / node.facts, node.packed / node.facts))
    return max(found)


def _join() -> tuple[float, float]:
    import subprocess
    import sys

    done = subprocess.run(
        [sys.executable, "-c", "from bench.cost_model import joined; joined()"],
        check=True, capture_output=True, text=True, cwd=Path(__file__).resolve().parents[1],
    )  # fmt: skip
    microseconds, mib = map(float, done.stdout.split()[-2:])
    return microseconds, mib


def joined() -> None:
    """Print the cost of a fact and the memory of a joining process, as a child does."""
    import resource

    from bench.fleet import healthy

    _, core, rate = healthy(1)
    print(1e6 * core / rate, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)


def _store() -> tuple[float, float]:
    from tracecore.server.demo.recordings import recordings, restamped
    from tracecore.store.update import read_update

    held = [*recordings().values()]
    now = time.time_ns()
    with tempfile.TemporaryDirectory() as folder:
        store = Store.open(f"{folder}/store.db", durable=False)
        size = [_size(store)]
        for number in range(400):
            document = restamped(
                held[number % len(held)], key=str(number), at=now, job=f"job-{number % 40}", attempt=0, nodes=["a", "b"]
            )
            store.put([read_update({**document, "state": "diagnosed", "reason": "new"}, now=now, revision=1)], now)
        size.append(_size(store))
        for job in range(20):
            rows = [
                {"job": f"job-{job}", "time": now + at * 10**10, "rank": rank, "attempt": 0, "step": at, "loss": 2.0,
                 "step_s": 1.0, "data_s": 0.1}
                for at in range(50) for rank in range(100)
            ]  # fmt: skip
            store.jobs.report([], rows)
        size.append(_size(store))
        store.close()
    return (size[1] - size[0]) / 400, (size[2] - size[1]) / 100_000


def _size(store: Store) -> int:
    """Return the bytes of the pages that a SQLite database uses."""
    with store.database.read() as connection:
        pages, free, size = (
            int(connection.execute(text(f"PRAGMA {name}")).scalar_one())
            for name in ("page_count", "freelist_count", "page_size")
        )
    return (pages - free) * size


class Need(msgspec.Struct):
    """What a fleet needs."""

    gpus: int
    facts_s: float
    peak_s: float
    mb_s: float
    workers: int
    memory_gib: float
    topic_gb: float
    incidents: float
    incidents_gb: float
    jobs: int
    points_gb: float


def need(gpus: int, inputs: Inputs) -> Need:
    """Work out what a fleet needs."""
    facts = gpus * STEADY
    mb = facts * inputs.topic_fact / 1e6
    # The largest job starts anew while the others run.
    largest = SIZES[0][0] * gpus
    peak = largest * inputs.start_rank + (gpus - largest) * STEADY
    cores = max(facts / inputs.worker_facts / BUSY, peak / inputs.worker_facts)
    failures = sum(cause.count for cause in catalogue().causes) * DAYS / TABLE_DAYS * gpus / TABLE_GPUS
    sizes = jobs(gpus)
    points = sum(min(STORED_RANKS, size) for size in sizes) * DAYS * 86_400 / STORED_EVERY_S
    return Need(
        gpus=gpus,
        facts_s=facts,
        peak_s=peak,
        mb_s=mb,
        workers=max(1, math.ceil(cores)),
        memory_gib=inputs.join_mib * gpus / TABLE_GPUS / 1024,
        topic_gb=facts * inputs.topic_fact * RETENTION_H * 3600 * REPLICAS / 1e9,
        incidents=failures,
        incidents_gb=failures * inputs.incident_bytes / 1e9,
        jobs=len(sizes),
        points_gb=points * inputs.point_bytes / 1e9,
    )


def jobs(gpus: int) -> list[int]:
    """Return the ranks of the jobs of a fleet, in the sizes that the simulated fleet has."""
    nodes = gpus // GPUS
    sizes: list[int] = []
    for size, share in SIZES:
        each = max(1, int(nodes * size))
        sizes += [each * GPUS] * int(nodes * share / each)
    return sizes + [GPUS] * (nodes - sum(sizes) // GPUS)


def tables(inputs: Inputs) -> str:
    """Return the tables of docs/scale.md."""
    lines = ["| input | measured | with |", "|---|---|---|"]
    for name, (what, source) in SOURCES.items():
        lines.append(f"| {what} | {getattr(inputs, name):,g} | {source} |")
    needs = [need(gpus, inputs) for gpus in FLEETS]
    lines += [
        "",
        "| | how | " + " | ".join(f"{one.gpus:,} GPUs" for one in needs) + " |",
        "|---|---|" + "---|" * len(needs),
    ]

    def row(what: str, how: str, *values: str) -> None:
        lines.append(f"| {what} | {how} | " + " | ".join(values) + " |")

    row("facts/s, healthy", f"GPUs × {STEADY:.3f}", *(f"{one.facts_s:,.0f}" for one in needs))
    row(
        "facts/s, largest job starts",
        f"half of the GPUs × {inputs.start_rank:g}, half × {STEADY:.3f}",
        *(f"{one.peak_s:,.0f}" for one in needs),
    )
    row("MB/s into the topic", f"facts/s × {inputs.topic_fact:g} B", *(f"{one.mb_s:.2f}" for one in needs))
    row(
        "cores busy, healthy",
        f"facts/s ÷ {inputs.worker_facts:,g}",
        *(f"{one.facts_s / inputs.worker_facts:.2f}" for one in needs),
    )
    row("cores busy, largest job starts", "the same", *(f"{one.peak_s / inputs.worker_facts:.2f}" for one in needs))
    row(
        "of these, the largest job alone",
        "half of the GPUs; above 1, its worker lags for the minute",
        *(f"{SIZES[0][0] * one.gpus * inputs.start_rank / inputs.worker_facts:.2f}" for one in needs),
    )
    row(
        "workers (`tracecore detect`)",
        f"healthy cores ÷ {BUSY:g} or those at a start, the larger, rounded up",
        *(str(one.workers) for one in needs),
    )
    row(
        "memory of the workers, GiB",
        f"{inputs.join_mib:g} MiB × GPUs ÷ {TABLE_GPUS:,}",
        *(f"{one.memory_gib:.1f}" for one in needs),
    )
    row(
        "brokers",
        f"{REPLICAS} replicas need {REPLICAS}; we estimate tens of MB/s for one, not measured",
        *("none" if one.workers == 1 else str(REPLICAS) for one in needs),
    )
    row(
        "disk of the topic, GB",
        f"MB/s × {RETENTION_H} h × {REPLICAS} replicas",
        *(f"{one.topic_gb:,.0f}" for one in needs),
    )
    total = sum(cause.count for cause in catalogue().causes)
    row(
        f"incidents in {DAYS} days",
        f"{total} × {DAYS} ÷ {TABLE_DAYS} × GPUs ÷ {TABLE_GPUS:,}",
        *(f"{one.incidents:,.0f}" for one in needs),
    )
    row(
        f"store, incidents of {DAYS} days, GB",
        f"incidents × {inputs.incident_bytes:,g} B",
        *(f"{one.incidents_gb:.3f}" for one in needs),
    )
    row("jobs at a time", "sizes of the simulated fleet", *(f"{one.jobs:,}" for one in needs))
    row(
        f"store, progress of {DAYS} days, GB",
        f"≤ {STORED_RANKS} ranks a job × 1 in {STORED_EVERY_S} s × {inputs.point_bytes:g} B",
        *(f"{one.points_gb:,.0f}" for one in needs),
    )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description="What a fleet of a size needs.")
    parser.add_argument("--measure", action="store_true", help="measure the inputs again")
    if parser.parse_args().measure:
        INPUTS.write_bytes(msgspec.json.format(msgspec.json.encode(measure()), indent=2) + b"\n")
    print(tables(msgspec.json.decode(INPUTS.read_bytes(), type=Inputs)))


if __name__ == "__main__":
    main()
