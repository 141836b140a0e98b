"""Keys of windows: facts about the same thing are joined in one window.

A PCI bus id is unique only on its node, and not every source knows its node: a `dmesg` without a host name, a counter
without labels. Facts with a node are joined in the window of the node. Facts without a node are joined with the others
in one shared window, unless that would join two different nodes.
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
    """Return the windows of a GPU: `(node, gpu)`, and the shared `("", gpu)` for facts without a node."""
    if fact.gpu is None:
        return ()
    return ((fact.node, fact.gpu), ("", fact.gpu)) if fact.node else (("", fact.gpu),)


def can_join(window: Window, *kinds: type[Fact]) -> bool:
    """Return whether this window may add verdicts. The shared window does only if it has a fact without a node."""
    return bool(window.key[0]) or any(None in window.distinct(kind, node_of) for kind in kinds)


def meet(window: Window, *facts: Fact) -> bool:
    """Return whether these facts can be about one GPU and this window, and not another, should join them."""
    if window.key[0]:
        return True
    nodes = {fact.node for fact in facts}
    return None in nodes and len(nodes) <= 2


def slack(one: Fact, other: Fact, skew: int) -> int:
    """Return the clock tolerance between two facts: 0 unless they name different nodes."""
    return tolerance(one, other, skew) if one.node and other.node else 0


def namespace(pod: str) -> str:
    """Return the namespace of `namespace/name`."""
    return pod.partition("/")[0]


def pod_name(pod: str) -> str:
    """Return the name of `namespace/name`."""
    return pod.rpartition("/")[2]


def pod_fields(pod: str | None) -> dict[str, str]:
    """Return the fields of a verdict that name this pod; none if it is not known."""
    return {"k8s.pod.name": pod_name(pod), "k8s.namespace.name": namespace(pod)} if pod else {}


def attempt_of(fact: Fact) -> str:
    """Return `job#attempt` of a fact for keys, because each attempt counts its sequence numbers from the beginning."""
    job = fact.job or ""
    return f"{job}#{fact.attempt}" if fact.attempt else job


def job_keys(fact: Fact) -> tuple[Key, ...]:
    """Return the window of a job: `(job, "")`, or `("", namespace)` without a job, where the namespace may be empty.

    Facts without a job are never joined with facts of a job, because they may be of any job.
    """
    return ((fact.job, ""),) if fact.job else (("", namespace(fact.pod) if fact.pod else ""),)
