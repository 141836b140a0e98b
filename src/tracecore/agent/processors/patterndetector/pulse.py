"""Heartbeats: of the jobs whose streams are read on a node, and of the agent's own node where no job runs."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from typing import Any, Final

from tracecore.agent.options import SECOND
from tracecore.facts.host import Heartbeat
from tracecore.facts.tenants import qualified
from tracecore.recent import Recent
from tracecore.signals.record import Source

INTERVAL: Final = 15 * SECOND
#: A job none of whose streams spoke for so long has left the node.
GONE: Final = 3600 * SECOND
#: Jobs of one node that are followed; the one quiet for longest is forgotten.
MOST: Final = 1_024


class Pulse:
    """The jobs that write on each node, and when the next heartbeat is due.

    Args:
        names: what the agent's own node may be called.
    """

    def __init__(self, names: frozenset[str]) -> None:
        self._names = names
        self._own = ""
        self._heard: Recent[tuple[str, str], int] = Recent(MOST)
        self._next = 0

    def heard(self, resource: Mapping[str, Any], now: int) -> None:
        """Note that a stream of this resource spoke."""
        node = resource.get("k8s.node.name") or resource.get("host.name")
        job = resource.get("gen_ai.training.job_id")
        if node in self._names:
            # The name that records of this machine have.
            self._own = node
        if not isinstance(node, str) or not isinstance(job, str):
            return
        namespace = resource.get("k8s.namespace.name")
        if isinstance(namespace, str) and resource.get("k8s.pod.name"):
            job = qualified(job, namespace)
        self._heard[node, job] = now

    def beats(self, now: int) -> list[Heartbeat]:
        """The heartbeats that are due."""
        if now < self._next:
            return []
        self._next = now + INTERVAL
        for key in [key for key, last in self._heard.items() if last <= now - GONE]:
            del self._heard[key]
        places: list[tuple[str, str | None]] = [*self._heard]
        if self._own and not any(node == self._own for node, _ in places):
            places.append((self._own, None))
        return [
            Heartbeat(time=now, source=Source("agent", ident=f"heartbeat:{node}:{job or ''}:{now}"), node=node, job=job)
            for node, job in places
        ]


def own_names() -> frozenset[str]:
    """The names that this machine may have in records."""
    return frozenset(name for name in (os.environ.get("K8S_NODE_NAME"), socket.gethostname()) if name)
