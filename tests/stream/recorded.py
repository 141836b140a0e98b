"""Recorded incidents as one stream of a fleet: each bundle is a job on nodes of its own."""

from __future__ import annotations

import os
import random
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
from sqlalchemy import select

from tracecore.agent.kafka.partitions import FactPartitioner, PartitionGroups
from tracecore.diagnose.offline import diagnose
from tracecore.facts import wire
from tracecore.facts.fact import Fact
from tracecore.facts.host import NodeSilence
from tracecore.facts.training import StepStalled
from tracecore.signals.otlp import encoding
from tracecore.store.store import Store
from tracecore.store.tables import incident_verdicts, incidents, verdicts

SECOND = 10**9
EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
RECORDED = sorted(
    path.parent for folder in ("incidents", "incidents-2") for path in EXAMPLES.glob(f"{folder}/*/truth.json")
)
#: Other seeds play other arrival orders, batches and kills: `TRACECORE_STREAM_SEED=7 pytest …`.
SEED = int(os.environ.get("TRACECORE_STREAM_SEED", "1"))
#: Other numbers of partitions: `TRACECORE_STREAM_PARTITIONS=5`.
PARTITIONS = int(os.environ.get("TRACECORE_STREAM_PARTITIONS", "0"))
#: Layers in which a job speaks of itself; the others name a node only.
_OF_JOBS = ("stdout", "flight_recorder", "scheduler")


class Sent(NamedTuple):
    """A message, and the partition it is sent to."""

    partition: int
    time: int
    value: bytes
    layout: bytes


@cache
def facts_of(bundle: Path) -> tuple[Fact, ...]:
    # Agents do not send what follows from the facts and a clock: whoever joins the facts finds it.
    return tuple(fact for fact in diagnose([bundle]).facts if not isinstance(fact, StepStalled | NodeSilence))


def story(bundles: Sequence[Path], end: int, seed: object = "") -> list[tuple[int, Fact]]:
    """Facts with the times at which they arrive. Bundles overlap; all are over by `end`."""
    chance = random.Random(f"{SEED} {seed}")
    arrivals: list[tuple[int, Fact]] = []
    for bundle in bundles:
        facts = facts_of(bundle)
        if not facts:
            continue
        last = max(fact.end for fact in facts)
        # What has no time in its logs begins at the epoch, and stays as long as it was.
        shift = end - last - chance.randrange(60, 600) * SECOND
        for fact in facts:
            moved = _placed(fact, f"{bundle.parent.name}-{bundle.name}", shift)
            arrivals.append((moved.end + chance.randrange(2 * SECOND), moved))
    return sorted(arrivals, key=lambda one: one[0])


def _placed(fact: Fact, name: str, shift: int) -> Fact:
    """The fact as an agent of a fleet would send it: with a node, and with a job where its layer knows one."""
    node = f"{name}-{fact.node or f'n{(fact.rank or 0) // 2}'}"
    spoken = fact.layer in _OF_JOBS
    return msgspec.structs.replace(
        fact,
        node=node,
        pod=f"team/{name}-{fact.pod.rpartition('/')[2]}" if fact.pod else None,
        job=f"team/{name}" if spoken else None,
        time=fact.time + shift,
        last_time=None if fact.last_time is None else fact.last_time + shift,
    )


def messages(
    arrivals: Sequence[tuple[int, Fact]], groups: PartitionGroups, end: int, *, largest: int = 40, cluster: str = "a"
) -> Iterable[Sent]:
    """The messages that exporters send, in the order in which brokers have them; then time passes."""
    chance = random.Random(SEED)
    partitioner = FactPartitioner(groups, cluster)
    layout = groups.layout.encode()
    at = 0
    while at < len(arrivals):
        batch = arrivals[at : at + chance.randint(1, largest)]
        at += len(batch)
        now = batch[-1][0]
        divided, _ = partitioner.divide(wire.payload([fact for _, fact in batch], now))
        for partition, entries in divided.items():
            yield Sent(partition, now, encoding.encode("logs", {"resource_logs": entries}), layout)
    # So late that stalls, which go on for ever, grow by ten minutes only.
    for later in (30, 60, 4500):
        for partition in range(groups.partitions):
            yield Sent(partition, end + later * SECOND, b"", layout)


def stored(store: Store) -> dict[str, Any]:
    """What the store says of each incident, apart from when it was said."""
    with store.database.read() as connection:
        found = {
            row.number: [row.id, row.state, row.document]
            for row in connection.execute(
                select(incidents.c.number, incidents.c.id, incidents.c.state, incidents.c.document)
            )
        }
        held = connection.execute(
            select(incident_verdicts.c.incident, verdicts.c.document)
            .join(verdicts, verdicts.c.id == incident_verdicts.c.verdict)
            .order_by(incident_verdicts.c.incident, incident_verdicts.c.position)
        ).all()
    for number, document in held:
        told = msgspec.json.decode(document)
        told.pop("verdict.revision", None)
        found[number].append(msgspec.json.encode(told))
    return {entry[0]: entry[1:] for entry in found.values()}


def assert_same(found: dict[str, Any], expected: dict[str, Any]) -> None:
    """Compare what two stores say, and name the fields that differ."""
    differ: list[str] = []
    for id in sorted(found.keys() | expected.keys()):
        one, other = found.get(id), expected.get(id)
        if one is None or other is None:
            differ.append(f"{id} is {'missing' if one is None else 'new'}: {str(one or other)[:300]}")
        elif one != other:
            pairs = [*zip(map(_plain, one), map(_plain, other), strict=False)]
            differ += [
                f"{id} {name}: {a.get(name)!r} is not {b.get(name)!r}"
                for a, b in pairs
                for name in {*a, *b}
                if a.get(name) != b.get(name)
            ]
            differ += [f"{id}: {len(one)} documents, not {len(other)}"] * (len(one) != len(other))
    assert not differ, "\n".join(line[:1000] for line in differ[:20])


def _plain(text: Any) -> dict[str, Any]:
    return msgspec.json.decode(text) if text[:1] in ("{", b"{") else {"state": text}
