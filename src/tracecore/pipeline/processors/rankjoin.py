"""The `rankjoin` processor: what one stream of a pod says about its rank and job, said of its other streams too.

A pod's records wait for its rank at most once and for at most the window: a pod that has not said it by then is taken
to have none. A pod in which several ranks speak gives its job only.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterable, Iterator
from typing import Any, Final

import msgspec
import re2

from tracecore.pipeline.agent.batch import Batch
from tracecore.pipeline.agent.component import Factory, Setting
from tracecore.pipeline.agent.options import SECOND, Count, Duration

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
        max_held: records that may wait in all; when there are more, the oldest go on.
    """

    window: Duration = 5 * SECOND
    max_pods: Count = 10_000
    max_held: Count = 100_000

    def check(self) -> Iterator[tuple[tuple[str | int, ...], str]]:
        if not self.max_pods:
            yield ("max_pods",), "at least one"


class _Pod:
    __slots__ = ("job", "ranks", "since")

    def __init__(self, now: int) -> None:
        self.ranks: set[int] = set()
        self.job: str | None = None
        self.since = now


class RankJoin:
    """Stamps `gen_ai.training.rank` and `.job_id` on records that lack them."""

    def __init__(self, options: Options, setting: Setting) -> None:
        self._options = options
        self._clock = setting.clock
        self._meter = setting.meter
        self._pods: OrderedDict[tuple[str, ...], _Pod] = OrderedDict()
        self._held: deque[tuple[int, Batch, list[_Pod]]] = deque()
        self._count = 0

    def process(self, batch: Batch) -> Iterable[Batch]:
        now = self._clock()
        waits = [pod for pod in self._learn(batch, now) if not self._settled(pod, now)]
        self._held.append((now, batch, waits))
        self._count += batch.count
        return self._released(now)

    def due(self) -> int | None:
        return self._held[0][0] + self._options.window if self._held else None

    def tick(self, now: int) -> Iterable[Batch]:
        return self._released(now)

    def drain(self, now: int) -> Iterable[Batch]:
        return self._released(now, everything=True)

    def _released(self, now: int, *, everything: bool = False) -> list[Batch]:
        """Batches go on in the order in which they came."""
        out: list[Batch] = []
        while self._held:
            since, batch, waits = self._held[0]
            over = everything or now - since >= self._options.window or now < since
            if not over and self._count <= self._options.max_held and not all(self._settled(p, now) for p in waits):
                break
            self._held.popleft()
            self._count -= batch.count
            self._stamp(batch)
            out.append(batch)
        return out

    def _settled(self, pod: _Pod, now: int) -> bool:
        return bool(pod.ranks) or now - pod.since >= self._options.window

    def _learn(self, batch: Batch, now: int) -> list[_Pod]:
        """Take in what these records say; gives their pods."""
        seen: list[_Pod] = []
        for entry in batch.view().get("resource_logs") or ():
            attributes = (entry.get("resource") or {}).get("attributes") or {}
            key = _key(attributes)
            if key is None:
                continue
            pod = self._pods.get(key)
            if pod is None:
                pod = self._pods[key] = _Pod(now)
                if len(self._pods) > self._options.max_pods:
                    self._pods.popitem(last=False)
            else:
                self._pods.move_to_end(key)
            seen.append(pod)
            pod.job = pod.job or _text(attributes, (JOB, *_JOB_LABELS))
            labelled = _rank(attributes, (RANK, *_RANK_LABELS))
            if labelled is not None:
                pod.ranks = {labelled}
                continue
            for scope in entry.get("scope_logs") or ():
                for record in scope.get("log_records") or ():
                    own = record.get("attributes") or {}
                    rank = _rank(own, (RANK,))
                    body = record.get("body")
                    if rank is None and type(body) is str and body[:5] == "[rank" and (match := _PREFIX.match(body)):
                        rank = int(match.group(1))
                    if rank is not None and len(pod.ranks) < 2:
                        pod.ranks.add(rank)
                    pod.job = pod.job or _text(own, (JOB,))
        return seen

    def _stamp(self, batch: Batch) -> None:
        for entry in batch.payload.get("resource_logs") or ():
            attributes = entry.setdefault("resource", {}).setdefault("attributes", {})
            key = _key(attributes)
            pod = self._pods.get(key) if key is not None else None
            if pod is None:
                continue
            if len(pod.ranks) == 1:
                attributes.setdefault(RANK, next(iter(pod.ranks)))
            if pod.job is not None:
                attributes.setdefault(JOB, pod.job)


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


FACTORY = Factory(
    kind="processor",
    type="rankjoin",
    summary="Stamps rank and job on all streams of a pod, once one of them says them.",
    options=Options,
    create=RankJoin,
    signals=("logs",),
)
