"""Nodes and GPUs that the next attempt should do without, in the words of those who place it.

A verdict names them; the policy says for which patterns. A GPU cannot be left out by a scheduler, so its node is
left out where it is known; the GPU itself is told to the launcher.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec

from tracecore.patterns.contract import Suspects, Verdict

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tracecore.actions.policy import Policy

#: What the next attempt finds in its environment.
NODES_VARIABLE: Final = "TRACECORE_EXCLUDE_NODES"
GPUS_VARIABLE: Final = "TRACECORE_EXCLUDE_GPUS"
#: The label that every node has with its own name.
HOSTNAME_LABEL: Final = "kubernetes.io/hostname"
#: More than this and it is not the nodes that are at fault.
MAX_ENTRIES: Final = 64


class Exclusions(msgspec.Struct, frozen=True):
    """Nodes by name, GPUs by PCI bus id (with their node before a slash where it is known); sorted, no repeats."""

    nodes: tuple[str, ...] = ()
    gpus: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.nodes or self.gpus)

    def __or__(self, other: Exclusions) -> Exclusions:
        return Exclusions(_merged(self.nodes, other.nodes), _merged(self.gpus, other.gpus))

    def environment(self) -> dict[str, str]:
        """Variables for the launcher; none where nothing is excluded."""
        found = {NODES_VARIABLE: ",".join(self.nodes), GPUS_VARIABLE: ",".join(self.gpus)}
        return {name: value for name, value in found.items() if value}

    def slurm(self) -> str:
        """`--exclude=n1,n2` for srun and sbatch; empty where no node is excluded."""
        return f"--exclude={','.join(self.nodes)}" if self.nodes else ""

    def kubernetes(self) -> dict[str, Any]:
        """The `affinity` of a pod; empty where no node is excluded."""
        if not self.nodes:
            return {}
        names = {"key": HOSTNAME_LABEL, "operator": "NotIn", "values": list(self.nodes)}
        required = {"nodeSelectorTerms": [{"matchExpressions": [names]}]}
        return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}

    def document(self) -> dict[str, Any]:
        """All of it as plain data; empty where nothing is excluded."""
        plain: dict[str, Any] = {"nodes": list(self.nodes), "gpus": list(self.gpus), "env": self.environment()}
        if self.nodes:
            plain |= {"slurm": self.slurm(), "kubernetes": {"affinity": self.kubernetes()}}
        return {name: value for name, value in plain.items() if value}


def _merged(one: tuple[str, ...], other: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(sorted({*one, *other}))[:MAX_ENTRIES]


def exclusions(verdict: Verdict | Mapping[str, Any], policy: Policy) -> Exclusions:
    """Return what a verdict wants left out, by the policy; nothing for patterns of which hardware is not the cause."""
    if isinstance(verdict, Verdict):
        pattern, suspects = verdict.pattern_name, verdict.suspects()
    else:
        pattern, suspects = str(verdict.get("pattern.name") or verdict.get("pattern") or ""), _named(verdict)
    nodes = suspects.nodes if pattern in policy.exclude.get("nodes", ()) else ()
    gpus = suspects.gpus if pattern in policy.exclude.get("gpus", ()) else ()
    if len(suspects.nodes) == 1:
        gpus = tuple(f"{suspects.nodes[0]}/{gpu}" for gpu in gpus)
    found = Exclusions(tuple(filter(_nameable, nodes)), tuple(filter(_nameable, gpus)))
    return found | Exclusions()


def _named(document: Mapping[str, Any]) -> Suspects:
    """Suspects of a verdict's document, or of an incident's `suspects`."""
    listed = document.get("suspects")
    if isinstance(listed, dict):
        return Suspects(
            nodes=tuple(str(node) for node in listed.get("nodes", ())),
            gpus=tuple(str(gpu) for gpu in listed.get("gpus", ())),
        )
    node, gpu = document.get("k8s.node.name"), document.get("gpu.id")
    return Suspects(nodes=(node,) if isinstance(node, str) else (), gpus=(gpu,) if isinstance(gpu, str) else ())


def _nameable(name: str) -> bool:
    """Return whether a name can stand in a list for a shell: it comes from a log, so it may be anything."""
    return 0 < len(name) <= 253 and all(c.isascii() and (c.isalnum() or c in "-._:/") for c in name)
