"""Name jobs with their namespaces, for clusters that several teams share.

Two namespaces may have jobs of the same name, and a pod may claim any name. So the full name of a job in Kubernetes is
its namespace and its name (`team-a/llm-7b`). The namespace is that of the pod, which the kubelet reports, so text that
a pod writes cannot name a job of another namespace.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

import msgspec

from tracecore.facts.fact import Fact

#: Maximum number of job names whose namespaces are remembered.
NAMES: Final = 16_384
#: Namespaces to remember for one name. With two the name is already ambiguous.
_AMBIGUOUS: Final = 2


def qualified(job: str, namespace: str | None) -> str:
    """Return the name of a job within its namespace."""
    return job if not namespace or job.startswith(f"{namespace}/") else f"{namespace}/{job}"


def owned(fact: Fact) -> Fact:
    """Return the fact with the full name of its job, in the namespace of its pod."""
    if fact.job is None or fact.pod is None:
        return fact
    job = qualified(fact.job, fact.pod.partition("/")[0])
    return fact if job == fact.job else msgspec.structs.replace(fact, job=job)


class Tenants:
    """Gives facts the full names of their jobs, also facts without a pod (a dump, a heartbeat)."""

    def __init__(self) -> None:
        self._namespaces: OrderedDict[str, set[str]] = OrderedDict()

    def name(self, fact: Fact) -> Fact:
        """Return the fact with the full name of its job.

        A fact without a pod gets the namespace in which a job of this name was seen, if there is only one.
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
