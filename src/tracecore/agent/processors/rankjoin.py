"""The `rankjoin` processor: what one stream of a pod says about its rank and job, said of its other streams too.

A pod's records wait for its rank at most once and for at most the window: a pod that has not said it by then is taken
to have none. The records of others do not wait. A pod in which several ranks speak gives its job only.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator
from typing import Any, Final

import msgspec
import re2

from tracecore.agent.batch import Batch
from tracecore.agent.component import Setting
from tracecore.agent.options import SECOND, Count, Duration
from tracecore.recent import Recent

RANK: Final = "gen_ai.training.rank"
JOB: Final = "gen_ai.training.job_id"
#: Labels of pods that say it, as `k8sattributes` may have put them on a resource.
_RANK_LABELS: Final = (
    "k8s.pod.labels.gen-ai.training.io/rank",
    "k8s.pod.labels.gen_ai.training.io/rank",
    "gen_ai.training.io/rank",
)
_JOB_LABELS: Final = (
    "k8s.pod.labels.gen-ai.training.io/job-id",
    "k8s.pod.labels.gen_ai.training.io/job-id",
    "gen_ai.training.io/job-id",
)
_PREFIX = re2.compile(r"^\[rank(\d{1,7})\]:")


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """
    Args:
        window: how long the records of a pod may wait for its rank.
        max_pods: pods remembered; the one not heard for longest is forgotten.
        max_held: records that may wait in all; when there are more, those of the pod that waits for longest go on.
    """

    window: Duration = 5 * SECOND
    max_pods: Count = 10_000
    max_held: Count = 100_000

    def check(self) -> Iterator[tuple[tuple[str | int, ...], str]]:
        if not self.max_pods:
            yield ("max_pods",), "at least one"


class _Pod:
    """State of a pod, and its records that wait for more."""

    __slots__ = ("held", "job", "key", "ranks", "since")

    def __init__(self, key: tuple[str, ...], now: int) -> None:
        self.key = key
        self.ranks: set[int] = set()
        self.job: str | None = None
        self.since = now
        self.held: list[Batch] = []

    def learn(self, attributes: dict[str, Any], entry: dict[str, Any]) -> None:
        """Take in what these records say."""
        self.job = self.job or _text(attributes, (JOB, *_JOB_LABELS))
        labelled = _rank(attributes, (RANK, *_RANK_LABELS))
        if labelled is not None:
            self.ranks = {labelled}
            return
        for scope in entry.get("scope_logs") or ():
            for record in scope.get("log_records") or ():
                own = record.get("attributes") or {}
                rank = _rank(own, (RANK,))
                body = record.get("body")
                if rank is None and type(body) is str and body[:5] == "[rank" and (match := _PREFIX.match(body)):
                    rank = int(match.group(1))
                if rank is not None and len(self.ranks) < 2:
                    self.ranks.add(rank)
                self.job = self.job or _text(own, (JOB,))

    def stamp(self, attributes: dict[str, Any]) -> None:
        """Say it of a resource."""
        if len(self.ranks) == 1:
            attributes.setdefault(RANK, next(iter(self.ranks)))
        if self.job is not None:
            attributes.setdefault(JOB, self.job)


class RankJoin:
    """Stamps `gen_ai.training.rank` and `.job_id` on records that lack them."""

    def __init__(self, options: Options, setting: Setting) -> None:
        self._options = options
        self._clock = setting.clock
        # First the one that was not heard for longest; and the one whose records have waited for longest.
        self._pods: Recent[tuple[str, ...], _Pod] = Recent(options.max_pods)
        self._waiting: OrderedDict[tuple[str, ...], _Pod] = OrderedDict()
        self._count = 0

    def process(self, batch: Batch) -> Iterable[Batch]:
        now = self._clock()
        goes: list[tuple[dict[str, Any], _Pod | None]] = []
        waits: dict[tuple[str, ...], tuple[_Pod, list[dict[str, Any]]]] = {}
        heard = [(entry, self._heard(entry, now)) for entry in batch.view().get("resource_logs") or ()]
        for entry, pod in heard:
            if pod is None or self._settled(pod, now):
                goes.append((entry, pod))
            else:
                waits.setdefault(pod.key, (pod, []))[1].append(entry)
        # What has waited is older.
        out = self._released(now)
        if any(pod is not None for _, pod in heard):
            batch.payload["resource_logs"] = [entry for entry, _ in goes]
            batch.recount()
            batch.hold(len(waits))
        for entry, pod in goes:
            if pod is not None:
                pod.stamp(entry["resource"]["attributes"])
        for pod, entries in waits.values():
            self._hold(pod, Batch("logs", {"resource_logs": entries}, acks=batch.acks, pause=batch.pause))
        if goes or not waits:
            out.append(batch)
        else:
            batch.done()
        return [*out, *self._overfull()]

    def due(self) -> int | None:
        return next(iter(self._waiting.values())).since + self._options.window if self._waiting else None

    def tick(self, now: int) -> Iterable[Batch]:
        return self._released(now)

    def drain(self, now: int) -> Iterable[Batch]:
        return [batch for pod in list(self._waiting.values()) for batch in self._let_go(pod)]

    def _heard(self, entry: dict[str, Any], now: int) -> _Pod | None:
        """The pod of some records, with what they say of it; None where they are of none."""
        attributes = (entry.get("resource") or {}).get("attributes") or {}
        key = _key(attributes)
        if key is None:
            return None
        pod = self._pods.get(key) or self._waiting.get(key) or _Pod(key, now)
        self._pods[key] = pod
        pod.learn(attributes, entry)
        return pod

    def _settled(self, pod: _Pod, now: int) -> bool:
        """Whether its records need not wait: its rank is known, or it had its time, or the clock was set back."""
        return bool(pod.ranks) or not 0 <= now - pod.since < self._options.window

    def _hold(self, pod: _Pod, batch: Batch) -> None:
        self._waiting[pod.key] = pod
        pod.held.append(batch)
        self._count += batch.count

    def _released(self, now: int) -> list[Batch]:
        settled = [pod for pod in self._waiting.values() if self._settled(pod, now)]
        return [batch for pod in settled for batch in self._let_go(pod)]

    def _overfull(self) -> Iterator[Batch]:
        while self._count > self._options.max_held:
            yield from self._let_go(next(iter(self._waiting.values())))

    def _let_go(self, pod: _Pod) -> list[Batch]:
        """The records of a pod that waited, in the order in which they came."""
        del self._waiting[pod.key]
        held, pod.held = pod.held, []
        for batch in held:
            self._count -= batch.count
            for entry in batch.payload["resource_logs"]:
                pod.stamp(entry["resource"]["attributes"])
        return held


def _key(attributes: dict[str, Any]) -> tuple[str, ...] | None:
    uid = attributes.get("k8s.pod.uid")
    if isinstance(uid, str):
        return (uid,)
    name = attributes.get("k8s.pod.name")
    return (str(attributes.get("k8s.namespace.name") or ""), name) if isinstance(name, str) else None


def _rank(attributes: dict[str, Any], names: tuple[str, ...]) -> int | None:
    for name in names:
        value = attributes.get(name)
        if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 8:
            return int(value)
        if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
            return value
    return None


def _text(attributes: dict[str, Any], names: tuple[str, ...]) -> str | None:
    return next((value for name in names if isinstance(value := attributes.get(name), str) and value), None)
