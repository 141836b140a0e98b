"""The table of explanations that arbitration reads, by pattern name.

A rule says that a verdict of one of its causes explains a verdict of one of its effects when they belong to the same
job and attempt, share one of the bonds, and the cause did not come too late. Rules are tried in order and the first
that holds gives the reason. A name that no installed pattern has simply never occurs.
"""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING, Final

import msgspec

from tracecore.incidents import rule_conditions as when
from tracecore.incidents.footprint import share
from tracecore.incidents.pattern_groups import FATAL, MACHINE, NAMED
from tracecore.incidents.rule_conditions import SLACK

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tracecore.incidents.footprint import Footprint


class Rule(msgspec.Struct, frozen=True, kw_only=True):
    """One line of the table.

    Args:
        causes, effects: pattern names.
        bonds: any of which the two must share (see `footprint.share`).
        reason: why the effect follows, as a sentence; `{cause}` and `{effect}` are who they are about.
        test: a further condition on (cause, effect).
        before: the cause must not be later than the effect.
    """

    causes: tuple[str, ...]
    effects: tuple[str, ...]
    bonds: tuple[str, ...]
    reason: str
    test: Callable[[Footprint, Footprint], bool] | None = None
    before: bool = True


RULES: Final[tuple[Rule, ...]] = (
    # One event seen twice: the pattern that knows more about it is the cause.
    Rule(
        causes=("host_lost",),
        effects=("host_lost",),
        bonds=("job",),
        reason="it is the same loss, reported without the name of the node",
        test=lambda cause, effect: bool(cause.nodes) and not effect.nodes,
        before=False,
    ),
    Rule(
        causes=("host_lost",),
        effects=("pod_evicted",),
        bonds=("job",),
        reason="the cluster takes pods off a node that does not answer",
        test=when.by_taint,
        before=False,
    ),
    Rule(
        causes=("pod_evicted",),
        effects=("host_lost",),
        bonds=("pod", "node", "host"),
        reason="the launcher lost contact with the pod because the pod was evicted",
        test=when.lost_the_pod,
        before=False,
    ),
    Rule(
        causes=("pod_evicted",),
        effects=("pod_evicted",),
        bonds=("node",),
        reason="the same shortage took a pod of the cluster itself off the node",
        test=when.takes_a_pod_of_the_cluster,
        before=False,
    ),
    Rule(
        causes=("ib_link_flap",),
        effects=("ib_link_flap",),
        bonds=("job",),
        reason="it is the same link, as reported by NCCL",
        test=when.told_by_nccl,
        before=False,
    ),
    Rule(
        causes=("gpu_fault",),
        effects=("gpu_fault",),
        bonds=("node?",),
        reason="it is the same failure, in a line that does not name the GPU",
        test=when.names_the_gpu,
        before=False,
    ),
    Rule(
        causes=("gpu_fault",),
        effects=("gpu_fault",),
        bonds=("node",),
        reason="it is the same memory, which a diagnostic found by the number of the GPU",
        test=when.found_its_memory,
        before=False,
    ),
    Rule(
        causes=("nvlink_degradation",),
        effects=("gpu_fault",),
        bonds=("node?",),
        reason="it is the same link, in a line that does not name the GPU",
        test=when.names_the_gpu_of_a_link,
        before=False,
    ),
    Rule(
        causes=("gpu_fault",),
        effects=("gpu_fault",),
        bonds=("node?",),
        reason="the NVLink fabric of its GPUs had failed",
        test=when.fabric_failed,
    ),
    Rule(
        causes=("cuda_oom",),
        effects=("cuda_oom",),
        bonds=("job",),
        reason="it is the same failure, in a line that names no rank",
        test=when.names_the_rank,
        before=False,
    ),
    Rule(
        causes=("cuda_oom",),
        effects=("cuda_oom",),
        bonds=("job",),
        reason="it is the same shortage of memory, on another rank",
        test=when.same_shortage,
    ),
    Rule(
        causes=("silent_data_corruption",),
        effects=("training_divergence",),
        bonds=("job",),
        reason="the value was right when it was computed again",
        test=when.recomputed,
        before=False,
    ),
    Rule(
        causes=("silent_data_corruption",),
        effects=("worker_crash",),
        bonds=("job",),
        reason="the program ends when a result is different the second time",
        test=when.ended_on_result,
    ),
    Rule(
        causes=("hbm_ecc",),
        effects=("gpu_fault", "gpu_app_fault", "xid_correlation"),
        bonds=("gpu", "record"),
        reason="it is the same memory error, seen by the driver",
    ),
    Rule(
        causes=("gpu_fault",),
        effects=("gpu_app_fault", "xid_correlation", "nvlink_degradation", "pcie_aer"),
        bonds=("gpu", "record"),
        reason="the GPU itself had failed",
    ),
    Rule(
        causes=("gpu_app_fault", "gpu_fault"),
        effects=("xid_correlation",),
        bonds=("record", "gpu", "node"),
        reason="it is the same driver error, and the eviction followed it",
    ),
    Rule(
        causes=("xid_correlation",),
        effects=("pod_evicted",),
        bonds=("pod", "record"),
        reason="the pod was evicted seconds after the driver error on its node",
    ),
    Rule(
        causes=(
            "cuda_oom",
            "storage_failure",
            "gpu_app_fault",
            "gpu_fault",
            "training_divergence",
            "nccl_bootstrap",
            "dataloader_hang",
            "checkpointer_hang",
            "collective_mismatch",
        ),
        effects=("worker_crash",),
        bonds=("record",),
        reason="it is the same exception",
        before=False,
    ),
    Rule(
        causes=("host_oom",),
        effects=("host_oom",),
        bonds=("job",),
        reason="it is the same kill, reported without the name of the process",
        test=lambda cause, effect: bool(cause.ranks or cause.pids) and not (effect.ranks or effect.pids or effect.pods),
        before=False,
    ),
    Rule(
        causes=("host_oom",),
        effects=("worker_crash",),
        bonds=("record",),
        reason="its process was killed for memory",
        before=False,
    ),
    Rule(
        causes=("host_oom",),
        effects=("worker_crash", "dataloader_hang"),
        bonds=("pid",),
        reason="the process that died is the one that was killed for memory",
        before=False,
    ),
    Rule(
        causes=("host_oom", "pod_evicted"),
        effects=("worker_crash",),
        bonds=("pod", "rank", "node?", "host"),
        reason="this kill or eviction ended its process",
        test=when.killed,
    ),
    Rule(
        causes=("storage_failure",),
        effects=("storage_failure",),
        bonds=("node?",),
        reason="it is the same storage, which kept failing",
        test=when.same_storage,
    ),
    Rule(
        causes=("storage_failure",),
        effects=("storage_failure",),
        bonds=("node?",),
        reason="it is the same failed write, in a line that does not say why",
        test=when.says_why,
        before=False,
    ),
    Rule(
        causes=("storage_failure",),
        effects=("storage_failure",),
        bonds=("node?",),
        reason="it is the same mount, in a line that does not name the pod",
        test=when.same_mount,
        before=False,
    ),
    Rule(
        causes=("storage_failure",),
        effects=("storage_failure",),
        bonds=("job",),
        reason="{cause} had lost its storage, and the program then reported it",
        test=when.met_by_program,
        before=False,
    ),
    Rule(
        causes=("storage_failure",),
        effects=("dataloader_hang", "checkpointer_hang"),
        bonds=("pod", "rank?", "node", "record"),
        reason="the storage it reads from or writes to had failed",
    ),
    Rule(
        causes=("gpu_fault", "hbm_ecc"),
        effects=("worker_crash",),
        bonds=("pid", "gpu", "rank", "node?"),
        reason="its GPU had stopped working",
    ),
    Rule(
        causes=("gpu_app_fault",),
        effects=("worker_crash",),
        bonds=("pid", "gpu", "rank", "node?"),
        reason="the error of the program on the GPU ended it",
        test=lambda cause, effect: "cuda" in str(effect.fields).lower() or "accelerator" in str(effect.fields).lower(),
    ),
    Rule(
        causes=("cuda_oom", "storage_failure", "training_divergence"),
        effects=("worker_crash",),
        bonds=("rank", "pid"),
        reason="the same rank had reported it before it ended",
    ),
    Rule(
        causes=("planned_stop",),
        effects=("worker_crash", "nccl_hang", "dataloader_hang", "checkpointer_hang", "nccl_bootstrap"),
        bonds=("job",),
        reason="the process ended because it was told to",
        test=lambda cause, effect: (
            when.asked(cause, effect)
            if effect.name == "worker_crash"
            else not (when.ended_hang(effect, cause) or when.unable_by_itself(effect))
        ),
    ),
    Rule(
        causes=("planned_stop",),
        effects=("host_lost",),
        bonds=("job",),
        reason="the program only noticed that its processes there were stopped",
        test=when.noticed_by_program,
    ),
    Rule(
        causes=("worker_crash",),
        effects=("dataloader_hang",),
        bonds=("rank",),
        reason="{cause} lost the connection to its data and raised an exception, so it read no more",
        test=when.lost_data,
    ),
    # The program disagrees with itself.
    Rule(
        causes=("collective_mismatch",),
        effects=("collective_mismatch",),
        bonds=("job",),
        reason="it is the same difference, as reported by the watchdogs",
        test=lambda cause, effect: when.told_by_watchdogs(effect) and not when.told_by_watchdogs(cause),
        before=False,
    ),
    Rule(
        causes=("nccl_hang", *FATAL),
        effects=("collective_mismatch",),
        bonds=("job",),
        reason="NCCL only suspects a mismatch, because ranks wait",
        test=lambda cause, effect: when.only_suspected(effect),
        before=False,
    ),
    Rule(
        causes=("collective_mismatch",),
        effects=("nccl_hang",),
        bonds=("job",),
        reason="ranks send other sizes than their peers expect, so the exchange does not complete on all of them",
        test=lambda cause, effect: when.splits_differ(cause) and when.same_group(cause, effect),
        before=False,
    ),
    Rule(
        causes=("collective_mismatch",),
        effects=("nccl_hang",),
        bonds=("job",),
        reason="ranks called different collectives, so none of these can complete",
        test=lambda cause, effect: not when.only_suspected(cause) and when.same_group(cause, effect),
        before=False,
    ),
    Rule(
        causes=("collective_mismatch",),
        effects=("training_divergence",),
        bonds=("job",),
        reason="ranks whose calls differ in type or step mix up each other's numbers",
        test=when.mixes_numbers,
        before=False,
    ),
    Rule(
        causes=("collective_mismatch",),
        effects=("checkpointer_hang",),
        bonds=("job",),
        reason="ranks called different collectives, so the ranks that save wait for others that never join",
        test=lambda cause, effect: not any(f.kind in ("storage_error", "storage_event") for f in effect.evidence),
        before=False,
    ),
    Rule(
        causes=("collective_mismatch",),
        effects=("worker_crash",),
        bonds=("job",),
        reason="the collectives did not match, and the library gave up",
        test=lambda cause, effect: (
            not when.only_suspected(cause)
            and (
                any(f.kind in ("nccl_error", "nccl_watchdog") for f in effect.evidence)
                or "Dist" in str(effect.fields.get("exception.type"))
            )
        ),
        before=False,
    ),
    # A hang behind a hang, and the end of those that hung.
    Rule(
        causes=("nccl_hang",),
        effects=("nccl_hang",),
        bonds=("job",),
        reason="it waits behind the first hang",
        test=when.cascade,
        before=False,
    ),
    # One rank or machine is gone, the others wait for it.
    Rule(
        causes=FATAL,
        effects=("nccl_hang",),
        bonds=("job",),
        reason="{cause} had failed, so the next collective could not complete",
        test=when.not_waiting,
        before=False,
    ),
    Rule(
        causes=("nccl_hang",),
        effects=("worker_crash",),
        bonds=("job",),
        reason="the watchdog ended the ranks that hung",
        test=when.was_waiting,
        before=False,
    ),
    Rule(
        causes=("nccl_bootstrap",),
        effects=("worker_crash",),
        bonds=("node?",),
        reason="its collective failed of what kept it from joining the others",
        test=when.unable_to_join,
        before=False,
    ),
    Rule(
        causes=FATAL,
        effects=("nccl_bootstrap",),
        bonds=("job",),
        reason="{cause} failed before it could join the others",
        test=when.missing,
    ),
    Rule(
        causes=("checkpointer_hang", "dataloader_hang"),
        effects=("nccl_hang", "straggler"),
        bonds=("job",),
        reason="a rank that is stuck there cannot join the collective",
        test=when.stuck_there,
        before=False,
    ),
    Rule(
        causes=("nvlink_degradation", "ib_link_flap", "pcie_aer"),
        effects=("nccl_hang", "worker_crash", "straggler", "nccl_bootstrap"),
        bonds=("node?",),
        reason="collectives cross the link that failed",
        test=lambda cause, effect: (
            effect.name != "worker_crash" or any(f.kind in ("nccl_error", "nccl_watchdog") for f in effect.evidence)
        ),
    ),
    Rule(
        causes=("thermal_throttle",),
        effects=("straggler",),
        bonds=("rank", "node?"),
        reason="a GPU that slows itself down makes its rank late",
        before=False,
    ),
    Rule(
        causes=MACHINE,
        effects=("worker_crash", "cuda_oom", "dataloader_hang", "checkpointer_hang", "storage_failure", "pod_evicted"),
        bonds=("node", "gpu", "pod"),
        reason="its machine had failed",
        test=lambda cause, effect: not (effect.name == "pod_evicted" and when.lost_the_pod(effect, cause)),
    ),
    Rule(
        causes=("host_lost",),
        effects=("worker_crash",),
        bonds=("node?",),
        reason="its machine was lost, and other processes only noticed that it was gone",
        test=lambda cause, effect: when.gone(effect),
    ),
    Rule(
        causes=NAMED,
        effects=("worker_crash",),
        bonds=("job",),
        reason="one rank failed first, and the others lost their connections to it",
        test=lambda cause, effect: (
            cause.timed and effect.timed and bool(cause.ranks) and not cause.ranks & effect.ranks
        ),
    ),
    Rule(
        causes=FATAL,
        effects=("planned_stop",),
        bonds=("job",),
        reason="the stop came after the failure",
        test=when.is_late,
    ),
    Rule(
        causes=("nccl_hang",),
        effects=("planned_stop",),
        bonds=("job",),
        reason="the processes that were left were ended after the watchdogs had given up",
        test=when.ended_hang,
    ),
)


def rules_by_names() -> dict[tuple[str, str], list[Rule]]:
    """The rules between each two patterns, in their order."""
    found: dict[tuple[str, str], list[Rule]] = {}
    for rule in RULES:
        for names in product(dict.fromkeys(rule.causes), dict.fromkeys(rule.effects)):
            found.setdefault(names, []).append(rule)
    return found


def explanation(cause: Footprint, effect: Footprint, rules: Sequence[Rule] | None = None) -> str | None:
    """Why the first explains the second; None where it does not.

    Args:
        rules: those between their patterns (`rules_by_names`); looked up where they are not given.
    """
    for rule in rules_by_names().get((cause.name, effect.name), ()) if rules is None else rules:
        if rule.before and cause.timed and effect.timed and cause.first > effect.last + SLACK:
            continue
        if not any(share(cause, effect, bond) for bond in rule.bonds):
            continue
        if rule.test is None or rule.test(cause, effect):
            return rule.reason.format(cause=who(cause), effect=who(effect))
    return None


def who(touch: Footprint) -> str:
    """Return the entity that a verdict is about, in two words."""
    if touch.ranks and len(touch.ranks) <= 4:
        ranks = ", ".join(map(str, sorted(touch.ranks)))
        return f"rank {ranks}" if len(touch.ranks) == 1 else f"ranks {ranks}"
    for names in (touch.gpus, touch.nodes, touch.pods):
        if len(names) == 1:
            return next(iter(names))
    return "a process"
