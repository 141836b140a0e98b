"""Conditions of the precedence table: whether two verdicts, a cause and an effect, fit each other."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tracecore.facts.gpu import GpuDriverError, Sxid, Xid
from tracecore.facts.kubernetes import GIVEN_UP, NodeReadiness, PodEvicted
from tracecore.facts.process import LAST_WORDS, ExceptionRaised
from tracecore.facts.xid_catalog import entry
from tracecore.incidents.footprint import share

if TYPE_CHECKING:
    from tracecore.facts.fact import Fact
    from tracecore.incidents.footprint import Footprint

SECOND: Final = 1_000_000_000
#: How much later than its effect a cause may be dated: clocks differ, and logs are written late.
SLACK: Final = 5 * SECOND
#: What comes so much later in one log is another episode.
EPISODE: Final = 600 * SECOND
#: The same as SLACK where a line has no time of its own.
UNTIMED: Final = 120 * SECOND


def killed(cause: Footprint, effect: Footprint) -> bool:
    """The crash is a kill, not an exception of the program's own: by signal, a DataLoader worker's, or noticed only."""
    noticed = gone(effect) and not cause.nodes.isdisjoint(effect.nodes)
    return bool(died_of(effect)) or bool(cause.pids & effect.pids) or noticed


def asked(cause: Footprint, effect: Footprint) -> bool:
    """The process died of being told to."""
    if died_of(effect) in ("SIGTERM", "SIGINT", "SIGKILL", "SIGUSR1", "SIGUSR2", "SIGHUP"):
        return True
    if gone(effect):
        return _same_rank(cause, effect) and ((cause.timed and effect.timed) or taken_away(cause))
    kind = str(effect.fields.get("exception.type") or "").rpartition(".")[2]
    if kind in ("SignalException", "KeyboardInterrupt", "SystemExit", "CancelledError"):
        return True
    return _ended_by_scheduler(cause) and _lost_connection(effect) and not is_late(effect, cause)


def _ended_by_scheduler(stop: Footprint) -> bool:
    return stop.fields.get("reason") in ("time_limit", "cancelled", "preempted")


def _lost_connection(crash: Footprint) -> bool:
    """Whether a process lost a connection at a time that is not known."""
    raised = [fact for fact in crash.evidence if isinstance(fact, ExceptionRaised)]
    return bool(raised) and all(fact.lost_peer and fact.approximate for fact in raised) and not crash.timed


def gone(touch: Footprint) -> bool:
    """Somebody only noticed that a process is not there any more."""
    return touch.name == "worker_crash" and "tracecore.launcher" in touch.fields


def noticed_by_program(stop: Footprint, lost: Footprint) -> bool:
    """Whether only those who started processes on a machine miss it, after a scheduler had ended them."""
    return _is_only_missed(lost) and _ended_by_scheduler(stop)


def _is_only_missed(lost: Footprint) -> bool:
    return all(isinstance(fact, NodeReadiness) and fact.reason == GIVEN_UP for fact in lost.evidence)


def lost_the_pod(eviction: Footprint, lost: Footprint) -> bool:
    """Whether only a launcher misses a machine from which the kubelet had evicted a pod for lack of resources."""
    near = not (eviction.timed and lost.timed) or abs(eviction.first - lost.first) <= EPISODE
    return near and _is_only_missed(lost) and not _is_tainted(eviction)


def taken_away(stop: Footprint) -> bool:
    """The machine was taken away on purpose, which no failure of a process brings about."""
    return stop.fields.get("reason") in ("preempted", "spot", "maintenance", "drain")


def _same_rank(cause: Footprint, effect: Footprint) -> bool:
    return not cause.around or not effect.ranks or not cause.around.isdisjoint(effect.ranks)


def died_of(effect: Footprint) -> str:
    """The signal that a crash, or a DataLoader's loss of a worker, tells of; empty where there is none."""
    found = effect.fields.get("tracecore.process.signal") or effect.fields.get("signal") or ""
    return str(found)


def recomputed(cause: Footprint, effect: Footprint) -> bool:
    """Whether a value that is not finite is the result that was different when it was computed again."""
    step = cause.fields.get("gen_ai.training.step")
    return step is not None and effect.fields.get("began_step") == step


def ended_on_result(cause: Footprint, effect: Footprint) -> bool:
    """Whether a process ended without an exception or a signal after a result was computed again."""
    own = "exception.type" in effect.fields or died_of(effect)
    return "gen_ai.training.step" in cause.fields and not own


def not_waiting(cause: Footprint, effect: Footprint) -> bool:
    """Whether the failed rank is none of those that waited, and failed before the wait ended."""
    waiting = set(effect.fields.get("hanging_ranks") or ())
    if cause.ranks and cause.ranks <= waiting:
        return False
    if long_before(effect, cause):
        return False
    if not (cause.timed and effect.timed) or cause.first <= gave_up(effect) + SLACK:
        return True
    # Later, only an error of its own of the very rank that did not come still says why it did not.
    return bool(cause.ranks & effect.ranks) and not died_of(cause)


def long_before(earlier: Footprint, later: Footprint) -> bool:
    """Whether a log without all times shows that one was over long before the other: by the times around its lines."""
    if (earlier.timed and later.timed) or later.first - earlier.last <= EPISODE:
        return False
    pairs = [(a, b) for a in earlier.places for b in later.places if a[0] == b[0]]
    return bool(pairs) and all(a[2] <= b[1] for a, b in pairs)


def gave_up(hang: Footprint) -> int:
    """When the waiting ranks were told that they hang; the far future where nobody told them."""
    reports = [f.time for f in hang.evidence if f.kind == "nccl_watchdog" and not f.approximate]
    return min(reports, default=1 << 62)


def was_waiting(cause: Footprint, effect: Footprint) -> bool:
    """The rank that ended is one of those that hung."""
    waiting = set(cause.fields.get("hanging_ranks") or ())
    return bool(effect.ranks) and effect.ranks <= waiting


def lost_data(cause: Footprint, effect: Footprint) -> bool:
    """The rank raised over a connection that its loader had lost, and did not wait for it any longer."""
    lost = any(isinstance(fact, ExceptionRaised) and fact.lost_peer for fact in cause.evidence)
    return lost and not died_of(cause) and not share(cause, effect, "record")


def gave_up_on_speed(crash: Footprint, *, by_itself: bool) -> bool:
    """The program ended because it had become slow, or nothing says why.

    One rank that failed before others is no such end: a bare exit status of its own then still says who it was.

    Args:
        by_itself: the program itself must say that it was slow.
    """
    raised = [fact for fact in crash.evidence if isinstance(fact, ExceptionRaised)]
    if raised or "exception.type" in crash.fields:
        return bool(raised) and all(fact.too_slow or (fact.type == LAST_WORDS and not by_itself) for fact in raised)
    bare = "tracecore.process.exit_code" in crash.fields and not died_of(crash)
    return bare and not by_itself and not crash.fields.get("followed")


def same_group(cause: Footprint, effect: Footprint) -> bool:
    """The hang is in the group of the mismatch, at or after it; or in another group, behind it."""
    if cause.fields.get("nccl.fr.pg_id") != effect.fields.get("nccl.fr.pg_id"):
        return True
    mine, its = cause.fields.get("nccl.fr.collective_seq_id"), effect.fields.get("nccl.fr.collective_seq_id")
    return not isinstance(mine, int) or not isinstance(its, int) or mine <= its


def splits_differ(mismatch: Footprint) -> bool:
    return mismatch.fields.get("differs") == "splits"


def mixes_numbers(mismatch: Footprint, divergence: Footprint) -> bool:
    """Whether ranks reduce different types or values of different steps, as they do since before the loss was lost.

    Such a call ends and gives wrong numbers. It is reported only when a later one does not end, so the report may come
    after the divergence, and long after it where only steps tell. A branch that a rank takes because of a bad loss
    leads to another operation, not another type.
    """
    differs = mismatch.fields.get("differs")
    return differs == "steps" or (differs == "type" and mismatch.first - divergence.first <= EPISODE)


def only_suspected(mismatch: Footprint) -> bool:
    """Whether the library only suspects it of ranks that wait."""
    return mismatch.fields.get("differs") == "suspected"


def told_by_watchdogs(mismatch: Footprint) -> bool:
    return any(fact.kind == "nccl_watchdog" for fact in mismatch.evidence)


def cascade(cause: Footprint, effect: Footprint) -> bool:
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


def missing(cause: Footprint, effect: Footprint) -> bool:
    """Whether the crash was no consequence of a failure to join."""
    joining = any(f.kind == "rendezvous_failure" for f in cause.evidence) or unable_to_join(effect, cause)
    return not joining and not _joined(cause, effect)


def unable_by_itself(joining: Footprint) -> bool:
    """Whether a rank could not join the others for what is wrong with its own start, which no stop brings about."""
    why = joining.fields.get("discriminator")
    return joining.name == "nccl_bootstrap" and why not in (None, "rendezvous_unreachable", "unknown")


def unable_to_join(cause: Footprint, effect: Footprint) -> bool:
    """Whether a collective failed of what the rank's own machine lacks to join the others."""
    unable = cause.fields.get("discriminator") in ("socket_ifname_mismatch", "setup_failed")
    kind = str(effect.fields.get("exception.type") or "").rpartition(".")[2]
    return unable and kind.startswith("Dist") and kind.endswith("Error")


def _joined(cause: Footprint, effect: Footprint) -> bool:
    return any(a[0] == b[0] and a[1] < b[2] and b[1] < a[2] for a in cause.places for b in effect.places)


def stuck_there(cause: Footprint, effect: Footprint) -> bool:
    """Whether the rank that is waited for is one of the stuck ranks, as far as either is known."""
    stuck = cause.ranks | frozenset(cause.fields.get("ranks") or ())
    return not stuck or not effect.ranks or not stuck.isdisjoint(effect.ranks)


def _names_device(touch: Footprint) -> bool:
    return bool(touch.gpus) or "kernelevents.gpu.device" in touch.fields


def names_the_gpu(cause: Footprint, effect: Footprint) -> bool:
    """The first knows which GPU it is; a line without a time stands some time after the one above it."""
    if not _names_device(cause) or _names_device(effect):
        return False
    return abs(cause.first - effect.first) <= (SLACK if cause.timed and effect.timed else UNTIMED)


def found_its_memory(cause: Footprint, effect: Footprint) -> bool:
    """The driver tells of damaged memory by bus id, and a diagnostic that ran then by number."""
    memory = any(isinstance(fact, Xid) and _is_of_memory(fact.code) for fact in cause.evidence)
    checked = all(isinstance(fact, GpuDriverError) and fact.error == "memory_check_failed" for fact in effect.evidence)
    near = not (cause.timed and effect.timed) or abs(cause.first - effect.first) <= EPISODE
    return memory and checked and near and bool(cause.gpus) and not effect.gpus


def _is_of_memory(code: int) -> bool:
    known = entry(code)
    return known is not None and known.fault == "memory"


def names_the_gpu_of_a_link(cause: Footprint, effect: Footprint) -> bool:
    """The driver tells of a link of a GPU, and in the next line that it could not bring up links."""
    links = all(isinstance(fact, GpuDriverError) and fact.error.startswith("nvlink_") for fact in effect.evidence)
    return links and names_the_gpu(cause, effect)


def fabric_failed(cause: Footprint, effect: Footprint) -> bool:
    """A switch or the fabric manager tells of its fabric, and programs, or the manager, only of what followed."""
    switch = any(isinstance(fact, Sxid) for fact in cause.evidence)
    manager = any(_is_abort(fact) for fact in cause.evidence)
    if not (switch or manager) or not cause.nodes:
        return False
    programs = all(fact.kind == "cuda_error" for fact in effect.evidence)
    follows = programs or (switch and bool(effect.nodes) and all(map(_is_abort, effect.evidence)))
    return follows and cause.first - UNTIMED <= effect.first <= cause.last + NOTICED


def _is_abort(fact: Fact) -> bool:
    return isinstance(fact, GpuDriverError) and fact.error == "fabric_abort"


def names_the_rank(cause: Footprint, effect: Footprint) -> bool:
    """The first knows its rank; libraries warn of what then ends a process, and do not know whose they are."""
    if not cause.ranks or effect.ranks or not cause.nodes >= effect.nodes:
        return False
    return abs(cause.first - effect.first) <= (SLACK if cause.timed and effect.timed else UNTIMED)


def same_shortage(cause: Footprint, effect: Footprint) -> bool:
    """Other ranks ran out of memory in the same step, as all of a stage of a pipeline do; the first stands for them."""
    if not cause.ranks or not effect.ranks or not cause.ranks.isdisjoint(effect.ranks):
        return False
    return (cause.first, cause.id) < (effect.first, effect.id) and effect.first - cause.first <= UNTIMED


def told_by_nccl(cause: Footprint, effect: Footprint) -> bool:
    """The machine tells of its port, and NCCL of the same machine's, or of one that it does not name."""
    if not cause.nodes or not effect.nodes:
        return bool(cause.nodes)
    mine, its = ({node.partition(".")[0] for node in touch.nodes} for touch in (cause, effect))
    return not mine.isdisjoint(its) and _is_nccls(effect) and not _is_nccls(cause)


def _is_nccls(link: Footprint) -> bool:
    return "port_errors" in link.fields or any(getattr(fact, "process", None) for fact in link.evidence)


def by_taint(cause: Footprint, effect: Footprint) -> bool:
    """The node of the eviction, where it is known, is the lost one."""
    known = not effect.nodes or not cause.nodes.isdisjoint(effect.nodes)
    return known and _is_tainted(effect)


def _is_tainted(eviction: Footprint) -> bool:
    return any(isinstance(fact, PodEvicted) and fact.by_taint for fact in eviction.evidence)


def takes_a_pod_of_the_cluster(cause: Footprint, effect: Footprint) -> bool:
    """A pod that is none of the cluster's own was evicted within an hour of one that is."""
    mine, its = (
        any(isinstance(fact, PodEvicted) and fact.of_cluster for fact in touch.evidence) for touch in (cause, effect)
    )
    near = not (cause.timed and effect.timed) or abs(cause.last - effect.last) <= 3600 * SECOND
    return its and not mine and near


def same_storage(cause: Footprint, effect: Footprint) -> bool:
    """The later error is of the same device or path."""
    names = ("tracecore.storage.device", "tracecore.storage.path")
    mine, its = ({touch.fields.get(name) for name in names} - {None} for touch in (cause, effect))
    return cause.first <= effect.first and not mine.isdisjoint(its)


def same_mount(cause: Footprint, effect: Footprint) -> bool:
    """A kubelet tells of a mount twice, and names the pod once."""
    mounts = all(touch.fields.get("tracecore.storage.error") == "mount_failed" for touch in (cause, effect))
    told = bool(cause.pods) and not effect.pods and not effect.ranks
    return mounts and told and cause.first - NOTICED <= effect.first <= cause.last + NOTICED


#: Errors of storage that say why it took only a part of what was written.
WHY_CUT: Final = frozenset({"enospc", "quota", "erofs", "eio", "evicted"})


def says_why(cause: Footprint, effect: Footprint) -> bool:
    """A library says that a write failed and not why, and somebody else why."""
    errors = [touch.fields.get("tracecore.storage.error") for touch in (cause, effect)]
    near = abs(cause.first - effect.first) <= NOTICED or not (cause.timed and effect.timed)
    ranks = not cause.ranks or not cause.ranks.isdisjoint(effect.ranks)
    return errors[0] in WHY_CUT and errors[1] == "write_failed" and near and ranks


#: Errors that a program gets from storage which its machine has lost.
LOST_STORAGE: Final = frozenset({"eio", "estale", "enotconn", "erofs", "timeout", "not_responding", "write_failed"})
#: How long after a machine has lost its storage a program may notice.
NOTICED: Final = 600 * SECOND


def met_by_program(cause: Footprint, effect: Footprint) -> bool:
    """A machine lost its storage, and a program that does not say where it ran then had such an error."""
    backends = [touch.fields.get("tracecore.storage.backend") for touch in (cause, effect)]
    alike = None in backends or backends[0] == backends[1]
    later = cause.first - SLACK <= effect.first <= cause.last + NOTICED
    near = later or not (cause.timed and effect.timed)
    lost = effect.fields.get("tracecore.storage.error") in LOST_STORAGE
    told = bool(cause.nodes or cause.fields.get("tracecore.storage.device"))  # a kernel that may not name its node
    machine = told and not cause.ranks and cause.fields.get("tracecore.storage.error") != "enospc"
    return machine and not effect.nodes and lost and alike and near


def is_late(cause: Footprint, effect: Footprint) -> bool:
    """The stop came after something had failed already. Without times, the order of lines in one file tells."""
    if cause.timed and effect.timed:
        return cause.first < effect.first
    if cause.name == "host_lost" and noticed_by_program(effect, cause):
        return False
    if gone(cause) and taken_away(effect):
        return False
    orders = {failed[1] < stopped[1] for failed in cause.places for stopped in effect.places if failed[0] == stopped[0]}
    return True in orders or not (orders or (_ended_by_scheduler(effect) and _lost_connection(cause)))


def ended_hang(hang: Footprint, stop: Footprint) -> bool:
    """Whether a SIGTERM for which nobody gives a reason came after the watchdogs had given up."""
    if stop.fields.get("reason") != "sigterm" or not any(fact.kind == "nccl_watchdog" for fact in hang.evidence):
        return False
    if hang.timed and stop.timed:
        return gave_up(hang) <= stop.first
    return any(told[0] == ended[0] and told[1] < ended[1] for told in hang.places for ended in stop.places)


def same_death(cause: Footprint, crash: Footprint) -> bool:
    """Whether a crash that is explained is the very death that the cause speaks of.

    A kernel counts processes by its own numbers, which a container does not see: a rank that was killed, where the
    kernel says that it killed one, is that one.
    """
    if share(cause, crash, "record") or share(cause, crash, "pid"):
        return True
    if cause.name in ("gpu_fault", "hbm_ecc"):
        # The rank whose own log has the GPU error is the rank of the failed GPU. Where the driver has names of its own
        # for devices, the program's errors have none that tell, and the rank that failed first is the one.
        return (
            "kernelevents.gpu.device" in cause.fields
            or "CUDA error" in str(crash.fields.get("exception.message"))
            or "CUDA" in str(crash.fields.get("exception.type"))
        )
    return cause.name == "host_oom" and not cause.ranks and (died_of(crash) == "SIGKILL" or gone(crash))
