"""The footprint of a verdict: the entities, places and times by which it can meet another."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from tracecore.facts.fact import Fact

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracecore.engine.emission import Emission
    from tracecore.patterns.contract import Suspects, Verdict

#: Fields of facts that name a process.
_PIDS = ("pid", "worker_pid", "victim_pid")


class Footprint(msgspec.Struct, frozen=True, kw_only=True):
    """A standing verdict with what it touches.

    Args:
        ranks, nodes, gpus, pods: of its suspects.
        around: all ranks in its evidence, those that only followed included.
        places: (path, first byte, last byte) of its evidence about the suspects.
        first, last: time of its evidence about the suspects.
        timed: these times were read, not inferred.
        attempt: which start of the job.
        fields: the verdict's own fields.
    """

    emission: Emission
    id: str
    verdict: Verdict
    suspects: Suspects
    evidence: tuple[Fact, ...]
    job: str
    attempt: int
    ranks: frozenset[int]
    around: frozenset[int]
    nodes: frozenset[str]
    gpus: frozenset[str]
    pods: frozenset[str]
    pids: frozenset[int]
    places: tuple[tuple[str, int, int], ...]
    first: int
    last: int
    timed: bool
    fields: dict[str, Any]

    @property
    def name(self) -> str:
        return self.verdict.pattern_name


def footprint_of(emission: Emission, job: str, attempt: int, evidence: Sequence[Fact] | None = None) -> Footprint:
    """Return the footprint of this verdict; `job` and `attempt` are where it belongs.

    Args:
        evidence: of the verdict, where the caller has it at hand.
    """
    verdict = emission.verdict
    evidence = tuple(verdict.evidence() if evidence is None else evidence)
    suspects = verdict.suspects()
    own = [f for f in evidence if f.rank is None or not suspects.ranks or f.rank in suspects.ranks] or list(evidence)
    exact = [f for f in own if not f.approximate]
    return Footprint(
        emission=emission,
        id=emission.id,
        verdict=verdict,
        suspects=suspects,
        evidence=evidence,
        job=job,
        attempt=attempt,
        ranks=frozenset(suspects.ranks),
        around=frozenset(f.rank for f in evidence if f.rank is not None),
        nodes=frozenset(suspects.nodes) or frozenset(f.node for f in own if f.node),
        gpus=frozenset(suspects.gpus) or frozenset(f.gpu for f in own if f.gpu),
        pods=frozenset(suspects.pods) or frozenset(f.pod for f in own if f.pod),
        pids=frozenset(pid for f in own for name in _PIDS if isinstance(pid := getattr(f, name, None), int)),
        places=tuple((f.source.path, f.source.offset, f.source.offset + max(f.source.length, 1)) for f in own),
        first=min((f.time for f in exact or own), default=verdict.time),
        last=max((f.end for f in exact or own), default=verdict.time),
        timed=bool(exact),
        fields=verdict.fields(),
    )


def share(one: Footprint, other: Footprint, bond: str) -> bool:
    """Whether two verdicts of one job and attempt share something.

    Args:
        bond: `record` the same lines of the same file, `pid`, `rank`, `gpu`, `node`, `pod`; `rank?` the same rank, or
            one of them does not know its rank; `node?` likewise; `host` the machine of the one is called as the pod of
            the other; `job` always.
    """
    if bond == "job":
        return True
    if bond == "record":
        return any(a[0] == b[0] and a[1] < b[2] and b[1] < a[2] for a in one.places for b in other.places)
    if bond == "host":
        return bool(_hosts(one) & _pod_names(other) or _hosts(other) & _pod_names(one))
    if bond.endswith("?"):
        mine, theirs = getattr(one, bond[:-1] + "s"), getattr(other, bond[:-1] + "s")
        return not mine or not theirs or not mine.isdisjoint(theirs)
    return not getattr(one, bond + "s").isdisjoint(getattr(other, bond + "s"))


def _hosts(touch: Footprint) -> set[str]:
    """The nodes by their short names: within a pod, the host is called as the pod."""
    return {node.partition(".")[0] for node in touch.nodes}


def _pod_names(touch: Footprint) -> set[str]:
    return {pod.rpartition("/")[2] for pod in touch.pods}
