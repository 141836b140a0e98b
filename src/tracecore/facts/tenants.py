"""The owner of the job that a fact is about, where several teams share a cluster.

Two namespaces may have jobs of the same name, and a pod may say any name. In Kubernetes a job is therefore known by its
namespace and its name (`team-a/llm-7b`). The namespace is the one of the pod, which the kubelet says, so nothing that a
pod writes can name the job of another namespace.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

import msgspec

from tracecore.facts.fact import Fact

#: Names of jobs whose namespaces are remembered.
NAMES: Final = 16_384
#: Namespaces of one name beyond two: it is ambiguous anyway.
_AMBIGUOUS: Final = 2


def qualified(job: str, namespace: str | None) -> str:
    """Return the name of a job within its namespace."""
    return job if not namespace or job.startswith(f"{namespace}/") else f"{namespace}/{job}"


def owned(fact: Fact) -> Fact:
    """Return the fact with its job named within the namespace of its pod."""
    if fact.job is None or fact.pod is None:
        return fact
    job = qualified(fact.job, fact.pod.partition("/")[0])
    return fact if job == fact.job else msgspec.structs.replace(fact, job=job)


class Tenants:
    """Names the jobs of facts within their namespaces, also of facts that know no pod (a dump, a heartbeat)."""

    def __init__(self) -> None:
        self._namespaces: OrderedDict[str, set[str]] = OrderedDict()

    def name(self, fact: Fact) -> Fact:
        """Return the fact with the full name of its job.

        A fact without a pod belongs to the namespace in which a job of this name was seen, where that is only one.
        """
        job = fact.job
        if job is None:
            return fact
        if fact.pod is not None:
            namespace = fact.pod.partition("/")[0]
            self._learn(job.removeprefix(f"{namespace}/"), namespace)
            return owned(fact)
        known = self._namespaces.get(job)
        if known is None or len(known) != 1:
            return fact
        return msgspec.structs.replace(fact, job=qualified(job, next(iter(known))))

    def _learn(self, name: str, namespace: str) -> None:
        known = self._namespaces.get(name)
        if known is None:
            known = self._namespaces[name] = set()
            if len(self._namespaces) > NAMES:
                self._namespaces.popitem(last=False)
        if len(known) < _AMBIGUOUS:
            known.add(namespace)
