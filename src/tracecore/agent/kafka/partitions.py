"""The partitions of a topic that a fact goes to (docs/decisions/0011-partitions-of-facts.md).

A cluster has a group of at most `copies` partitions. Frequent facts of a job (steps, heartbeats, dumps) go to the
partition of the job. All other facts are few, and patterns join them by node, GPU, pod and fabric: they go to every
partition of the group. So the partition of a job has every fact that bears on the job, and it alone tells of the job.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

import xxhash

from tracecore.agent.options import SECOND
from tracecore.facts import wire
from tracecore.facts.catalog import snake
from tracecore.facts.collective import Arrival, CollectiveEntry, GroupProgress
from tracecore.facts.host import Heartbeat
from tracecore.facts.training import Progress
from tracecore.incidents.jobs import LONE
from tracecore.recent import Recent
from tracecore.signals.record import Source

#: The most partitions that one fact is copied to.
COPIES: Final = 8
#: Kinds that only patterns by job join, and that are nearly all facts.
FREQUENT: Final = frozenset(
    snake(kind.__name__) for kind in (Progress, Heartbeat, CollectiveEntry, GroupProgress, Arrival)
)
#: Nanoseconds between two statements that a job runs on a node.
PLACED: Final = 60 * SECOND
#: Nodes and pods of jobs that are remembered; of one that is forgotten it is said again.
PLACES: Final = 65_536

_KIND: Final = "tracecore.fact.kind"
_JOB: Final = "gen_ai.training.job_id"
_CLUSTER: Final = "k8s.cluster.name"


def _hash(name: str) -> int:
    return xxhash.xxh64_intdigest(name.encode("utf-8", "surrogatepass"))


def _base(job: str) -> str:
    """Return the name of a job without its namespace: a dump or a heartbeat may not know it."""
    return job.rpartition("/")[2]


class PartitionGroups:
    """The groups of a topic's partitions.

    Args:
        partitions: of the topic.
        copies: the most partitions of a group.
    """

    def __init__(self, partitions: int, copies: int = COPIES) -> None:
        if partitions < 1 or copies < 1:
            raise ValueError("a topic has at least one partition, and a group too")
        self.partitions, self.copies = partitions, copies
        count = -(-partitions // copies)
        self._groups = [range(n * partitions // count, (n + 1) * partitions // count) for n in range(count)]

    @property
    def layout(self) -> str:
        """Name the layout, so that a reader notices a sender that has another."""
        return f"{self.partitions}/{self.copies}"

    def of_cluster(self, cluster: str) -> range:
        """Return the partitions of a cluster."""
        return self._groups[_hash(cluster) % len(self._groups)]

    def containing(self, partition: int) -> range:
        """Return the group of a partition."""
        return next(group for group in self._groups if partition in group)

    def ownership(self, partition: int) -> Callable[[str], bool]:
        """Return a function that tells by the name of a job (`incidents.jobs`) whether this partition tells of it."""
        group = self.containing(partition)
        return lambda name: owner(name, group) == partition


def owner(name: str, group: range) -> int:
    """Return the partition that tells of a job, of a node on which no job is known, or of runs without a name."""
    return group[_hash(name if name.startswith(LONE) else _base(name)) % len(group)]


class FactPartitioner:
    """Divides OTLP payloads with facts among the partitions of a topic.

    Args:
        groups: of the topic.
        cluster: of facts whose resource names none.
    """

    def __init__(self, groups: PartitionGroups, cluster: str = "") -> None:
        self._groups = groups
        self._cluster = cluster
        self._placed: Recent[tuple[str, str, str, str], int] = Recent(PLACES)

    def divide(self, payload: Mapping[str, Any]) -> tuple[dict[int, list[dict[str, Any]]], list[dict[str, Any]]]:
        """Return entries of `resource_logs` by partition, and those with records that are no facts."""
        divided: dict[int, list[dict[str, Any]]] = {}
        others: list[dict[str, Any]] = []
        for entry in payload.get("resource_logs") or ():
            attributes = (entry.get("resource") or {}).get("attributes") or {}
            for held in entry.get("scope_logs") or ():
                if (held.get("scope") or {}).get("name") == wire.SCOPE:
                    self._divide(entry, attributes, held, divided)
                else:
                    others.append({**entry, "scope_logs": [held]})
        return divided, others

    def _divide(
        self,
        entry: dict[str, Any],
        attributes: Mapping[str, Any],
        held: dict[str, Any],
        divided: dict[int, list[dict[str, Any]]],
    ) -> None:
        group = self._groups.of_cluster(_text(attributes.get(_CLUSTER)) or self._cluster)
        job = _text(attributes.get(_JOB))
        records = held.get("log_records") or []
        shared = [record for record in records if not job or not _is_frequent(record)]
        home = owner(job, group)
        for partition in group:
            mine = records if partition == home else shared
            if mine:
                divided.setdefault(partition, []).append({**entry, "scope_logs": [{**held, "log_records": mine}]})
        if job and records:
            times = [time for record in records if type(time := record.get("time_unix_nano")) is int and time > 0]
            if times:
                self._place(attributes, job, max(times), group, home, divided)

    def _place(
        self,
        attributes: Mapping[str, Any],
        job: str,
        time: int,
        group: range,
        home: int,
        divided: dict[int, list[dict[str, Any]]],
    ) -> None:
        """Say where a job runs to the partitions that tell of its nodes and of runs without a name."""
        node = _text(attributes.get("k8s.node.name")) or _text(attributes.get("host.name"))
        pod, namespace = _text(attributes.get("k8s.pod.name")), _text(attributes.get("k8s.namespace.name"))
        if not node and not pod:
            return
        key = (node, pod, namespace, job)
        if time < self._placed.get(key, 0) + PLACED:
            return
        self._placed[key] = time
        told = {owner(LONE + node, group)} if node else set()
        beat = Heartbeat(
            time=time,
            source=Source("agent", ident=f"heartbeat:{node}:{pod}:{job}:{time}"),
            node=node or None,
            pod=f"{namespace or 'default'}/{pod}" if pod else None,
            job=job,
        )
        (entry,) = wire.payload([beat], time)["resource_logs"]
        for partition in sorted(({owner("", group)} | told) - {home}):
            divided.setdefault(partition, []).append(entry)


def halves(entries: list[dict[str, Any]]) -> Iterable[list[dict[str, Any]]]:
    """Cut entries of `resource_logs` into two lists of about as many records; into one where there is one record."""
    if len(entries) > 1:
        middle = len(entries) // 2
        return entries[:middle], entries[middle:]
    (entry,) = entries
    held = entry["scope_logs"]
    if len(held) > 1:
        return [{**entry, "scope_logs": held[:1]}], [{**entry, "scope_logs": held[1:]}]
    records = held[0]["log_records"] if held else []
    if len(records) < 2:
        return (entries,)
    middle = len(records) // 2
    return tuple(
        [{**entry, "scope_logs": [{**held[0], "log_records": some}]}] for some in (records[:middle], records[middle:])
    )


def _is_frequent(record: Mapping[str, Any]) -> bool:
    return (record.get("attributes") or {}).get(_KIND) in FREQUENT


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""
