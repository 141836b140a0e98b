"""Keys: facts about the same thing meet in one window.

A PCI bus id names a GPU on its node only, and not every source knows its node: a `dmesg` without a host name, a counter
without labels. Facts that know their node meet on it; facts that do not meet the others in one shared window, and
there only where no two nodes would have to be one.
"""

from __future__ import annotations

from operator import attrgetter
from typing import TYPE_CHECKING

from tracecore.patterns.contract import tolerance

if TYPE_CHECKING:
    from tracecore.facts.fact import Fact
    from tracecore.patterns.contract import Key, Window


node_of = attrgetter("node")


def gpu_keys(fact: Fact) -> tuple[Key, ...]:
    """Windows by GPU: `(node, gpu)`, and the shared `("", gpu)` for facts that do not know their node."""
    if fact.gpu is None:
        return ()
    return ((fact.node, fact.gpu), ("", fact.gpu)) if fact.node else (("", fact.gpu),)


def can_join(window: Window, *kinds: type[Fact]) -> bool:
    """Whether this window may say more than the windows of single nodes: the shared one only with a fact whose node is
    not known."""
    return bool(window.key[0]) or any(None in window.distinct(kind, node_of) for kind in kinds)


def meet(window: Window, *facts: Fact) -> bool:
    """Whether these facts of a window by GPU can be about one GPU, and this window is the one to say so."""
    if window.key[0]:
        return True
    nodes = {fact.node for fact in facts}
    return None in nodes and len(nodes) <= 2


def slack(one: Fact, other: Fact, skew: int) -> int:
    """Return how far clocks may put one of these past the edge of a window: 0 unless they name different nodes."""
    return tolerance(one, other, skew) if one.node and other.node else 0


def namespace(pod: str) -> str:
    """The namespace of `namespace/name`."""
    return pod.partition("/")[0]


def pod_name(pod: str) -> str:
    """The name of `namespace/name`."""
    return pod.rpartition("/")[2]


def pod_fields(pod: str | None) -> dict[str, str]:
    """Return the fields of a verdict that name this pod; none where it is not known."""
    return {"k8s.pod.name": pod_name(pod), "k8s.namespace.name": namespace(pod)} if pod else {}


def attempt_of(fact: Fact) -> str:
    """Return the job of a fact and which start of it, for keys: sequence numbers begin anew with each start."""
    job = fact.job or ""
    return f"{job}#{fact.attempt}" if fact.attempt else job


def job_keys(fact: Fact) -> tuple[Key, ...]:
    """Windows by job: `(job, "")`; without a job by namespace, and without a pod the one of a bare directory.

    Two jobs are never one, nor are two namespaces. What knows no job cannot meet what does: it may be any job's.
    """
    return ((fact.job, ""),) if fact.job else (("", namespace(fact.pod) if fact.pod else ""),)
