"""The table of explanations that arbitration reads, by pattern name.

A rule says that a verdict of one of its causes explains a verdict of one of its effects when they belong to the same
job and attempt, share one of the bonds, and the cause did not come too late. Rules are tried in order and the first
that holds gives the reason. A name that no installed pattern has simply never occurs.
"""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING, Final

import msgspec

from tracecore.incidents.footprint import share

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tracecore.incidents.footprint import Footprint

SECOND: Final = 1_000_000_000
#: How much later than its effect a cause may be dated: clocks differ, and logs are written late.
SLACK: Final = 5 * SECOND
#: The same where a line has no time of its own.
UNTIMED: Final = 120 * SECOND

#: Failures of the machine under the job.
MACHINE: Final = (
    "gpu_fault", "hbm_ecc", "pcie_aer", "nvlink_degradation", "ib_link_flap", "host_lost", "xid_correlation",
)  # fmt: skip
#: Failures that take a process with them.
FATAL: Final = (
    "cuda_oom", "host_oom", "storage_failure", "gpu_fault", "gpu_app_fault", "hbm_ecc", "pod_evicted", "host_lost",
    "training_divergence", "xid_correlation", "worker_crash",
)  # fmt: skip
#: Those of them that say more than that a process ended.
NAMED: Final = tuple(name for name in FATAL if name != "worker_crash")
#: Patterns that are worth saying of a run that finished well: it was slow, wrong, or ran on ailing hardware.
STANDS_ALONE: Final = frozenset({
    "straggler", "training_divergence", "thermal_throttle", "hbm_ecc", "gpu_fault", "pcie_aer", "nvlink_degradation",
    "ib_link_flap", "silent_data_corruption", "planned_stop", "host_lost",
})  # fmt: skip
#: Conditions that slow a run down or spoil it, and by themselves end no process.
CONDITIONS: Final = frozenset({"straggler", "thermal_throttle", "silent_data_corruption"})

#: Where times do not tell, this order does: the machine, what ran out or broke, the program, symptoms, outcomes.
ORDER: Final = (
    "host_lost", "gpu_fault", "hbm_ecc", "pcie_aer", "nvlink_degradation", "ib_link_flap", "xid_correlation",
    "host_oom", "pod_evicted", "storage_failure", "cuda_oom", "gpu_app_fault", "training_divergence",
    "collective_mismatch", "checkpointer_hang", "dataloader_hang", "worker_crash", "thermal_throttle",
    "silent_data_corruption", "nccl_bootstrap", "nccl_hang", "straggler", "planned_stop",
)  # fmt: skip


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


# -- conditions --------------------------------------------------------------------------------------------------------


def _killed(cause: Footprint, effect: Footprint) -> bool:
    """The crash is a kill, not an exception of the program's own: by signal, or a DataLoader worker's."""
    return bool(died_of(effect)) or bool(cause.pids & effect.pids)


def _asked(cause: Footprint, effect: Footprint) -> bool:
    """The process died of being told to."""
    if died_of(effect) in ("SIGTERM", "SIGINT", "SIGKILL", "SIGUSR1", "SIGUSR2", "SIGHUP"):
        return True
    kind = str(effect.fields.get("exception.type") or "").rpartition(".")[2]
    return kind in ("SignalException", "KeyboardInterrupt", "SystemExit", "CancelledError")


def died_of(effect: Footprint) -> str:
    """The signal that a crash, or a DataLoader's loss of a worker, tells of; empty where there is none."""
    found = effect.fields.get("tracecore.process.signal") or effect.fields.get("signal") or ""
    return str(found)


def _not_waiting(cause: Footprint, effect: Footprint) -> bool:
    """Whether the failed rank is none of those that waited, and failed before the wait ended."""
    waiting = set(effect.fields.get("hanging_ranks") or ())
    if cause.ranks and cause.ranks <= waiting:
        return False
    if not (cause.timed and effect.timed) or cause.first <= gave_up(effect) + SLACK:
        return True
    # Later, only an error of its own of the very rank that did not come still says why it did not.
    return bool(cause.ranks & effect.ranks) and not died_of(cause)


def gave_up(hang: Footprint) -> int:
    """When the waiting ranks were told that they hang; the far future where nobody told them."""
    reports = [f.time for f in hang.evidence if f.kind == "nccl_watchdog" and not f.approximate]
    return min(reports, default=1 << 62)


def _was_waiting(cause: Footprint, effect: Footprint) -> bool:
    """The rank that ended is one of those that hung."""
    waiting = set(cause.fields.get("hanging_ranks") or ())
    return bool(effect.ranks) and effect.ranks <= waiting


def _same_group(cause: Footprint, effect: Footprint) -> bool:
    """The hang is in the group of the mismatch, at or after it; or in another group, behind it."""
    if cause.fields.get("nccl.fr.pg_id") != effect.fields.get("nccl.fr.pg_id"):
        return True
    mine, its = cause.fields.get("nccl.fr.collective_seq_id"), effect.fields.get("nccl.fr.collective_seq_id")
    return not isinstance(mine, int) or not isinstance(its, int) or mine <= its


def _told_by_watchdogs(mismatch: Footprint) -> bool:
    return any(fact.kind == "nccl_watchdog" for fact in mismatch.evidence)


def _cascade(cause: Footprint, effect: Footprint) -> bool:
    """One hang holds up another: the second begins behind the first, or waits for the same ranks with fewer facts."""
    origin = effect.fields.get("origin")
    if isinstance(origin, dict):
        group = cause.fields.get("pg_desc") or f"group {cause.fields.get('nccl.fr.pg_id')}"
        return "origin" not in cause.fields and origin.get("group") == group
    if "origin" in cause.fields:
        return False
    mine, its = set(cause.fields.get("culprit_ranks") or ()), set(effect.fields.get("culprit_ranks") or ())
    if mine and (not its or its <= set(cause.fields.get("hanging_ranks") or ())):
        return True
    return bool(mine) and mine == its and _place(cause) < _place(effect)


def _place(hang: Footprint) -> tuple[bool, int, int, str]:
    """The order of two hangs with the same culprits: the one in which more ranks wait, then the earlier, is first."""
    waiting = len(hang.fields.get("hanging_ranks") or ())
    return not hang.fields.get("culprit_ranks"), -waiting, hang.first if hang.timed else 0, hang.id


def _missing(cause: Footprint, effect: Footprint) -> bool:
    """Whether the crash was no consequence of a failure to join."""
    return not any(f.kind == "rendezvous_failure" for f in cause.evidence) and not _joined(cause, effect)


def _joined(cause: Footprint, effect: Footprint) -> bool:
    return any(a[0] == b[0] and a[1] < b[2] and b[1] < a[2] for a in cause.places for b in effect.places)


def _stuck_there(cause: Footprint, effect: Footprint) -> bool:
    """Whether the rank that is waited for is one of the stuck ranks, as far as either is known."""
    stuck = cause.ranks | frozenset(cause.fields.get("ranks") or ())
    return not stuck or not effect.ranks or not stuck.isdisjoint(effect.ranks)


def _names_the_gpu(cause: Footprint, effect: Footprint) -> bool:
    """The first knows which GPU it is; a line without a time stands some time after the one above it."""
    if not cause.gpus or effect.gpus:
        return False
    return abs(cause.first - effect.first) <= (SLACK if cause.timed and effect.timed else UNTIMED)


#: Reasons for which a cluster, not a kubelet that is short of something, takes a pod off its node.
TAINTS: Final = frozenset({"TaintManagerEviction", "DeletionByTaintManager", "NodeControllerEviction"})


def _by_taint(cause: Footprint, effect: Footprint) -> bool:
    """The node of the eviction, where it is known, is the lost one."""
    known = not effect.nodes or not cause.nodes.isdisjoint(effect.nodes)
    return known and effect.fields.get("k8s.event.reason") in TAINTS


def _same_storage(cause: Footprint, effect: Footprint) -> bool:
    """The later error is of the same device or path."""
    names = ("tracecore.storage.device", "tracecore.storage.path")
    mine, its = ({touch.fields.get(name) for name in names} - {None} for touch in (cause, effect))
    return cause.first <= effect.first and not mine.isdisjoint(its)


def _is_late(cause: Footprint, effect: Footprint) -> bool:
    """The stop came after something had failed already. Without times, the order of lines in one file tells."""
    if cause.timed and effect.timed:
        return cause.first < effect.first
    orders = {failed[1] < stopped[1] for failed in cause.places for stopped in effect.places if failed[0] == stopped[0]}
    return True in orders or not orders


# -- the table ---------------------------------------------------------------------------------------------------------

RULES: Final[tuple[Rule, ...]] = (
    # One event seen twice: the pattern that knows more about it is the cause.
    Rule(
        causes=("host_lost",),
        effects=("host_lost",),
        bonds=("job",),
        reason="it is the same loss, by somebody who does not name the node",
        test=lambda cause, effect: bool(cause.nodes) and not effect.nodes,
        before=False,
    ),
    Rule(
        causes=("host_lost",),
        effects=("pod_evicted",),
        bonds=("job",),
        reason="the cluster takes pods off a node that does not answer",
        test=_by_taint,
        before=False,
    ),
    Rule(
        causes=("ib_link_flap",),
        effects=("ib_link_flap",),
        bonds=("job",),
        reason="it is the same link, as NCCL tells it, which does not name the node",
        test=lambda cause, effect: bool(cause.nodes) and not effect.nodes,
        before=False,
    ),
    Rule(
        causes=("gpu_fault",),
        effects=("gpu_fault",),
        bonds=("node?",),
        reason="it is the same failure, by a line that does not name the GPU",
        test=_names_the_gpu,
        before=False,
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
        reason="it is the same kill, by somebody who does not name the process",
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
        bonds=("pod", "rank", "node?"),
        reason="its process was killed by that",
        test=_killed,
    ),
    Rule(
        causes=("storage_failure",),
        effects=("storage_failure",),
        bonds=("node?",),
        reason="it is the same storage, which failed further",
        test=_same_storage,
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
        reason="its GPU had stopped working for it",
    ),
    Rule(
        causes=("gpu_app_fault",),
        effects=("worker_crash",),
        bonds=("pid", "gpu", "rank", "node?"),
        reason="what it did on the GPU ended it",
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
        test=lambda cause, effect: effect.name != "worker_crash" or _asked(cause, effect),
    ),
    # The program disagrees with itself.
    Rule(
        causes=("collective_mismatch",),
        effects=("collective_mismatch",),
        bonds=("job",),
        reason="it is the same difference, as the watchdogs tell it",
        test=lambda cause, effect: _told_by_watchdogs(effect) and not _told_by_watchdogs(cause),
        before=False,
    ),
    Rule(
        causes=("collective_mismatch",),
        effects=("nccl_hang",),
        bonds=("job",),
        reason="ranks called different collectives, so none of them can end",
        test=_same_group,
        before=False,
    ),
    Rule(
        causes=("collective_mismatch",),
        effects=("checkpointer_hang",),
        bonds=("job",),
        reason="ranks called different collectives, so those that save wait in vain for the others",
        test=lambda cause, effect: not any(f.kind in ("storage_error", "storage_event") for f in effect.evidence),
        before=False,
    ),
    Rule(
        causes=("collective_mismatch",),
        effects=("worker_crash",),
        bonds=("job",),
        reason="the collectives did not match, and the library gave up",
        test=lambda cause, effect: (
            any(f.kind in ("nccl_error", "nccl_watchdog") for f in effect.evidence)
            or "Dist" in str(effect.fields.get("exception.type"))
        ),
        before=False,
    ),
    # A hang behind a hang, and the end of those that hung.
    Rule(
        causes=("nccl_hang",),
        effects=("nccl_hang",),
        bonds=("job",),
        reason="it waits behind the first hang",
        test=_cascade,
        before=False,
    ),
    # One rank or machine is gone, the others wait for it.
    Rule(
        causes=FATAL,
        effects=("nccl_hang",),
        bonds=("job",),
        reason="{cause} had failed, and the others waited for it in their next collective",
        test=_not_waiting,
        before=False,
    ),
    Rule(
        causes=("nccl_hang",),
        effects=("worker_crash",),
        bonds=("job",),
        reason="the watchdog ended the ranks that hung",
        test=_was_waiting,
        before=False,
    ),
    Rule(
        causes=FATAL,
        effects=("nccl_bootstrap",),
        bonds=("job",),
        reason="{cause} failed before it could join the others",
        test=_missing,
    ),
    Rule(
        causes=("checkpointer_hang", "dataloader_hang"),
        effects=("nccl_hang", "straggler"),
        bonds=("job",),
        reason="a rank that is stuck there cannot join the collective",
        test=_stuck_there,
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
        causes=("straggler",),
        effects=("nccl_hang",),
        bonds=("rank",),
        reason="the rank that was late all along did not come at all",
    ),
    Rule(
        causes=MACHINE,
        effects=("worker_crash", "cuda_oom", "dataloader_hang", "checkpointer_hang", "storage_failure", "pod_evicted"),
        bonds=("node", "gpu", "pod"),
        reason="the machine under it had failed",
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
        test=_is_late,
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


def same_death(cause: Footprint, crash: Footprint) -> bool:
    """Whether a crash that is explained is the very death that the cause speaks of.

    A kernel counts processes by its own numbers, which a container does not see: a rank that was killed, where the
    kernel says that it killed one, is that one.
    """
    if share(cause, crash, "record") or share(cause, crash, "pid"):
        return True
    if cause.name in ("gpu_fault", "hbm_ecc"):
        # The rank whose own log has the GPU error is the rank of the failed GPU.
        return "CUDA error" in str(crash.fields.get("exception.message")) or "CUDA" in str(
            crash.fields.get("exception.type")
        )
    return cause.name == "host_oom" and not cause.ranks and died_of(crash) == "SIGKILL"
