"""Pods and, where they are needed, their namespaces and nodes, followed in the Kubernetes API."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from tracecore.agent.following import Objects
from tracecore.agent.processors.podfields import SYSTEM, Extract, Extraction, Surrounding
from tracecore.agent.processors.pods import KnownPod, Pods
from tracecore.signals.kubernetes.api import Way
from tracecore.signals.kubernetes.watch import Collection


class Cluster:
    """Follows what records are to get something of.

    Args:
        way: to the server.
        pods: which pods.
        node: the node whose pods they are; all when empty.
        wanted: what to take.
        excluded: regular expressions for names of pods that give nothing.
        state: told what is wrong, or nothing when all is well.
        grace: seconds for which a pod that is gone is still known.
    """

    def __init__(
        self,
        way: Callable[[], Way],
        pods: Collection,
        node: str,
        wanted: Extract,
        excluded: list[str],
        state: Callable[[str], None],
        grace: float,
    ) -> None:
        self._state = state
        self._wrong: dict[str, str] = {}
        extraction = Extraction(wanted, excluded)
        #: Attributes that labels and annotations of pods became.
        self.names = extraction.names
        self.pods = Pods(way, pods, extraction, partial(self._told, "pods"), grace)
        self._spaces = self._nodes = None
        if wanted.asks("namespace"):
            named = f"metadata.name={pods.namespace}" if pods.namespace else ""
            every = "k8s.cluster.uid" in wanted.metadata
            spaces = Collection("namespaces", fields="" if every else named)
            extract = Surrounding(wanted, "namespace")
            self._spaces = Objects(way, spaces, "name", extract, partial(self._told, "namespaces"))
        if wanted.asks("node"):
            nodes = Collection("nodes", fields=f"metadata.name={node}" if node else "")
            self._nodes = Objects(way, nodes, "name", Surrounding(wanted, "node"), partial(self._told, "nodes"))
        around = [one for one in (self._spaces, self._nodes) if one is not None]
        self._followed = [self.pods.following, *(one.following for one in around)]
        #: Whether records get something of more than their pod.
        self.wide = bool(around)

    def start(self) -> None:
        for one in self._followed:
            one.start()

    def stop(self) -> None:
        for one in self._followed:
            one.stop()

    @property
    def running(self) -> bool:
        return any(one.running for one in self._followed)

    def wait(self, seconds: float) -> None:
        """Until everything is known, for at most so long."""
        for one in self._followed:
            one.synced.wait(seconds)

    @property
    def awaited(self) -> bool:
        """Return whether a pod that is not known yet may still come: one that cannot be asked for is not waited for."""
        return self.pods.following.synced.is_set() or "pods" not in self._wrong

    @property
    def overflow(self) -> int:
        return sum(one.overflow for one in self._followed)

    @property
    def malformed(self) -> int:
        return sum(one.malformed for one in self._followed)

    def around(self, known: KnownPod | None, own: dict[str, Any]) -> dict[str, Any]:
        """Return what a resource gets of its namespace and its node: those of its pod, else those it names itself."""
        space = known.name[0] if known is not None else own.get("k8s.namespace.name")
        node = (known.node if known is not None else "") or own.get("k8s.node.name")
        found: dict[str, Any] = {}
        if self._nodes is not None and isinstance(node, str):
            found |= self._nodes.known.get(node, {})
        if self._spaces is not None:
            if (uid := self._spaces.known.get(SYSTEM, {}).get("k8s.cluster.uid")) is not None:
                found["k8s.cluster.uid"] = uid
            if isinstance(space, str):
                found |= self._spaces.known.get(space, {})
        return found

    def _told(self, part: str, wrong: str) -> None:
        if wrong:
            self._wrong[part] = wrong
        else:
            self._wrong.pop(part, None)
        self._state("; ".join(self._wrong[part] for part in sorted(self._wrong)))
