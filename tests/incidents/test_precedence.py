"""The precedence table, proved: each rule, name, bond, condition and time limit has a case that fails without it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tracecore.engine.emission import Emission
from tracecore.facts.fact import Fact
from tracecore.facts.gpu import GpuDriverError, Sxid, Xid
from tracecore.facts.kubernetes import GIVEN_UP, NodeReadiness, PodEvicted
from tracecore.facts.network import PortState
from tracecore.facts.process import CudaError, ExceptionRaised
from tracecore.facts.storage import StorageError
from tracecore.incidents import precedence
from tracecore.incidents.footprint import footprint_of
from tracecore.incidents.pattern_groups import FATAL, MACHINE, ORDER
from tracecore.incidents.precedence import RULES, Rule, explanation
from tracecore.incidents.rule_conditions import EPISODE, NOTICED, SLACK, UNTIMED
from tracecore.patterns import PATTERNS

sys.path.insert(0, str(Path(__file__).resolve().parent))
from made_verdicts import SECOND, T0, Hung, Seen, place, seen, verdict, watchdog

LATE = SLACK // SECOND + 1


class Case(msgspec.Struct, frozen=True):
    """A cause and an effect, and why the first explains the second (None: it does not)."""

    title: str
    cause: Emission
    effect: Emission
    reason: str | None


def about(at: float, **identity: Any) -> Seen:
    """A fact in a file of its own, so that two of them share only what their identity says."""
    name = "-".join(f"{key}{value}" for key, value in identity.items())
    return seen(at, path=f"{at}-{name}.log", **identity)


def pairs(
    causes: tuple[str, ...],
    effects: tuple[str, ...],
    reason: str | None,
    cause: tuple[Fact, ...],
    effect: tuple[Fact, ...],
    *,
    ranks: tuple[tuple[int, ...], tuple[int, ...]] = ((), ()),
    cause_fields: dict[str, Any] | None = None,
    effect_fields: dict[str, Any] | None = None,
) -> Iterator[Case]:
    for one, other in product(causes, effects):
        yield Case(
            f"{one} -> {other}: {reason}",
            verdict(one, (cause[0].time - T0) / SECOND, *cause, ranks=ranks[0], fields=cause_fields),
            verdict(other, (effect[0].time - T0) / SECOND, *effect, ranks=ranks[1], fields=effect_fields),
            reason,
        )


def by_bond(
    causes: tuple[str, ...], effects: tuple[str, ...], reason: str, *bonds: str, **fields: dict[str, Any]
) -> Iterator[Case]:
    """A case for each bond: the two share that and nothing else, or (the last ones) nothing and are strangers."""
    line = {"path": "shared.log", "line": 7}
    shared: dict[str, tuple[Fact, Fact]] = {
        "record": (seen(10, **line, node="n1", rank=1), seen(10, **line, node="n2", rank=2)),
        "pid": (about(10, pid=77, node="n1"), about(11, pid=77, node="n2")),
        "rank": (about(10, rank=3, node="n1"), about(11, rank=3, node="n2")),
        "rank?": (about(10, node="n1"), about(11, rank=3, node="n2")),
        "gpu": (about(10, gpu="0000:3b:00.0", node="n1"), about(11, gpu="0000:3b:00.0", node="n2")),
        "node": (about(10, node="n1", rank=1), about(11, node="n1", rank=2)),
        "node?": (about(10, rank=1), about(11, node="n1", rank=2)),
        "pod": (about(10, pod="ml/a", node="n1", rank=1), about(11, pod="ml/a", node="n2", rank=2)),
        "host": (about(10, pod="ml/worker-2", node="n1"), about(11, node="worker-2.train.svc", rank=2)),
    }
    for bond in bonds:
        one, other = shared[bond]
        yield from pairs(causes, effects, reason, (one,), (other,), **fields)
    stranger = about(10, node="n1", rank=1) if "rank?" in bonds else about(10, node="n1")
    yield from pairs(causes, effects, None, (stranger,), (about(11, node="n2", rank=2),), **fields)


def lost_peer(at: float, rank: int) -> ExceptionRaised:
    return ExceptionRaised(
        time=T0 + int(at * SECOND), source=place(f"{at}.log"), rank=rank, type="ConnectionError", lost_peer=True
    )


def hang(at: float, culprits: tuple[int, ...], waiting: tuple[int, ...], *facts: Fact, **fields: Any) -> Emission:
    return verdict(
        "nccl_hang", at, *facts, ranks=culprits, hanging_ranks=list(waiting), culprit_ranks=list(culprits), **fields
    )


def one_event_seen_twice() -> Iterator[Case]:
    same_loss = "it is the same loss, reported without the name of the node"
    lost = ("host_lost",)
    yield from pairs(lost, lost, same_loss, (about(30, node="n1"),), (about(10, rank=2),))
    yield from pairs(lost, lost, None, (about(10, rank=2),), (about(30, node="n1"),))
    yield from pairs(lost, lost, None, (about(10, node="n2"),), (about(30, node="n1"),))

    taken_off = "the cluster takes pods off a node that does not answer"
    evicted = ("pod_evicted",)
    taint = PodEvicted(time=T0 + 10 * SECOND, source=place("events.txt"), pod="ml/a", by_taint=True)
    node = (about(30, node="n1"),)
    yield from pairs(lost, evicted, taken_off, node, (taint,))
    yield from pairs(lost, evicted, taken_off, node, (msgspec.structs.replace(taint, node="n1"),))
    yield from pairs(lost, evicted, None, node, (msgspec.structs.replace(taint, node="n2"),))
    yield from pairs(lost, evicted, None, node, (msgspec.structs.replace(taint, by_taint=False),))

    missed = "the launcher lost contact with the pod because the pod was evicted"
    out = msgspec.structs.replace(taint, by_taint=False, node="n1")
    told = NodeReadiness(time=T0 + 12 * SECOND, source=place("mpirun.log"), node="n1", ready=False, reason=GIVEN_UP)
    for eviction, report in (
        (out, told),
        (out, msgspec.structs.replace(told, time=T0 + (10 - LATE) * SECOND)),
        (out, msgspec.structs.replace(told, time=out.time + EPISODE)),
        (out, msgspec.structs.replace(told, node=None, pod="ml/a")),
        (msgspec.structs.replace(out, pod="ml/worker-2"), msgspec.structs.replace(told, node="worker-2.train.svc")),
    ):
        yield from pairs(evicted, lost, missed, (eviction,), (report,))
        yield from pairs(lost, evicted, None, (report,), (eviction,))
    yield from pairs(evicted, lost, None, (out,), (msgspec.structs.replace(told, node="n2"),))
    yield from pairs(evicted, lost, None, (out,), (msgspec.structs.replace(told, reason="NodeNotReady"),))
    yield from pairs(evicted, lost, None, (out,), (msgspec.structs.replace(told, time=out.time + EPISODE + 1),))
    yield from pairs(evicted, lost, None, (msgspec.structs.replace(taint, node="n1"),), (told,))

    shortage = "the same shortage took a pod of the cluster itself off the node"
    trainer = (PodEvicted(time=T0, source=place("events.txt"), pod="ml/a", node="n1"),)
    agent = PodEvicted(
        time=T0 - 30 * SECOND, source=place("events.txt"), pod="kube-system/b", node="n1", of_cluster=True
    )
    yield from pairs(evicted, evicted, shortage, trainer, (agent,))
    yield from pairs(evicted, evicted, None, (agent,), trainer)
    yield from pairs(evicted, evicted, None, trainer, (msgspec.structs.replace(agent, node="n2"),))
    yield from pairs(evicted, evicted, None, trainer, (msgspec.structs.replace(agent, time=T0 - 7200 * SECOND),))

    same_link = "it is the same link, as reported by NCCL"
    link = ("ib_link_flap",)
    told = PortState(time=T0, source=place("train.log"), node="n1", device="mlx5_0", port=1, state=1, process="n1:7")
    yield from pairs(link, link, same_link, (about(30, node="n1.example"),), (told,))
    yield from pairs(link, link, None, (about(30, node="n2"),), (told,))
    yield from pairs(link, link, None, (told,), (told,))
    yield from pairs(link, link, None, (about(30, node="n1"),), (about(10, node="n1"),))
    yield from pairs(link, link, same_link, (about(30, node="n1"),), (about(10, rank=2),))
    yield from pairs(link, link, None, (about(10, rank=2),), (about(30, node="n1"),))
    yield from pairs(link, link, None, (about(10, node="n2"),), (about(30, node="n1"),))

    same_mount = "it is the same mount, in a line that does not name the pod"
    storage = ("storage_failure",)
    mount = {"cause_fields": {"tracecore.storage.error": "mount_failed"}}
    mounts = {**mount, "effect_fields": {"tracecore.storage.error": "mount_failed"}}
    of_pod, apart = (about(1000, pod="ml/a", node="n1"),), NOTICED // SECOND
    for at in (1000, 1000 - apart, 1000 + apart):
        yield from pairs(storage, storage, same_mount, of_pod, (about(at, node="n1"),), **mounts)
    yield from pairs(storage, storage, same_mount, of_pod, (about(1000),), **mounts)
    for at in (1000 - apart - 1, 1000 + apart + 1):
        yield from pairs(storage, storage, None, of_pod, (about(at, node="n1"),), **mounts)
    yield from pairs(storage, storage, None, of_pod, (about(1000, node="n2"),), **mounts)
    yield from pairs(storage, storage, None, of_pod, (about(1000, pod="ml/b"),), **mounts)
    yield from pairs(storage, storage, None, of_pod, (about(1000, rank=3),), ranks=((), (3,)), **mounts)
    yield from pairs(storage, storage, None, (about(1000, node="n1"),), (about(1000, node="n1"),), **mounts)
    yield from pairs(storage, storage, None, of_pod, (about(1000, node="n1"),), **mount)

    same_kill = "it is the same kill, reported without the name of the process"
    memory_kill = ("host_oom",)
    nobody = (about(10, node="n2"),)
    yield from pairs(memory_kill, memory_kill, same_kill, (about(30, pid=77),), nobody)
    yield from pairs(memory_kill, memory_kill, same_kill, (about(30, rank=3),), nobody, ranks=((3,), ()))
    yield from pairs(memory_kill, memory_kill, None, (about(30, node="n1"),), nobody)
    yield from pairs(memory_kill, memory_kill, None, (about(30, pid=77),), (about(10, pod="ml/a"),))
    yield from pairs(memory_kill, memory_kill, None, (about(30, pid=77),), (about(10, pid=78),))
    yield from pairs(memory_kill, memory_kill, None, (about(30, pid=77),), (about(10, rank=4),), ranks=((), (4,)))

    same_fault = "it is the same failure, in a line that does not name the GPU"
    fault = ("gpu_fault",)
    named, unnamed = about(10, gpu="0000:3b:00.0", node="n1"), about(10 - LATE + 1, node="n1")
    yield from pairs(fault, fault, same_fault, (named,), (unnamed,))
    yield from pairs(fault, fault, same_fault, (named,), (about(10),))
    yield from pairs(fault, fault, None, (unnamed,), (named,))
    yield from pairs(fault, fault, None, (named,), (about(10, node="n2"),))
    yield from pairs(fault, fault, None, (named,), (about(10 - LATE, node="n1"),))
    untimed = UNTIMED // SECOND
    yield from pairs(fault, fault, same_fault, (named,), (about(10 - untimed, node="n1", approximate=True),))
    yield from pairs(fault, fault, None, (named,), (about(10 - untimed - 1, node="n1", approximate=True),))

    fabric = "the NVLink fabric of its GPUs had failed"
    switch = Sxid(time=T0 + 10 * SECOND, source=place("dmesg.txt"), node="n1", code=20034, fatal=True)
    abort = GpuDriverError(time=T0 + 10 * SECOND, source=place("fabricmanager.log"), node="n1", error="fabric_abort")
    error = CudaError(time=T0 + 12 * SECOND, source=place("train.log"), rank=6, error="nvlink_uncorrectable")
    untold = msgspec.structs.replace(error, approximate=True)
    early = msgspec.structs.replace(error, time=T0 + 10 * SECOND - SLACK)
    late = msgspec.structs.replace(error, time=T0 + 10 * SECOND + NOTICED)
    for whole in (switch, abort):
        for broken in (error, early, late):
            yield from pairs(fault, fault, fabric, (whole,), (broken,))
        yield from pairs(fault, fault, None, (msgspec.structs.replace(whole, node=None),), (error,))
        yield from pairs(fault, fault, None, (whole,), (msgspec.structs.replace(error, node="n2"),))
        yield from pairs(fault, fault, None, (whole,), (msgspec.structs.replace(early, time=early.time - 1),))
        yield from pairs(fault, fault, None, (whole,), (msgspec.structs.replace(late, time=late.time + 1),))
        earlier = msgspec.structs.replace(untold, time=T0 + 10 * SECOND - UNTIMED)
        yield from pairs(fault, fault, fabric, (whole,), (earlier,))
        yield from pairs(fault, fault, None, (whole,), (msgspec.structs.replace(earlier, time=earlier.time - 1),))
        yield from pairs(fault, fault, None, (whole,), (about(12),))
    yield from pairs(fault, fault, None, (error,), (error,))
    yield from pairs(fault, fault, fabric, (switch,), (abort,))
    yield from pairs(fault, fault, None, (abort,), (abort,))
    yield from pairs(fault, fault, None, (abort,), (switch,))
    lost_fan = msgspec.structs.replace(abort, error="gsp_timeout")
    yield from pairs(fault, fault, None, (switch,), (lost_fan,))
    yield from pairs(fault, fault, None, (lost_fan,), (error,))

    found = "it is the same memory, which a diagnostic found by the number of the GPU"
    xid = Xid(time=T0 + 10 * SECOND, source=place("dmesg.txt"), node="n1", gpu="0000:3b:00.0", code=48)
    check = GpuDriverError(
        time=T0 + 10 * SECOND + EPISODE, source=place("diag.txt"), node="n1", error="memory_check_failed", device="3"
    )
    later = msgspec.structs.replace(check, time=check.time + 1)
    yield from pairs(fault, fault, found, (xid,), (check,))
    yield from pairs(fault, fault, found, (xid,), (msgspec.structs.replace(check, time=T0),))
    yield from pairs(fault, fault, found, (xid,), (msgspec.structs.replace(later, approximate=True),))
    yield from pairs(fault, fault, None, (xid,), (later,))
    yield from pairs(fault, fault, None, (xid,), (msgspec.structs.replace(check, node="n2"),))
    yield from pairs(fault, fault, None, (xid,), (msgspec.structs.replace(check, error="health_check_failed"),))
    yield from pairs(fault, fault, None, (xid,), (msgspec.structs.replace(check, gpu="0000:5d:00.0"),))
    yield from pairs(fault, fault, None, (msgspec.structs.replace(xid, code=79),), (check,))
    yield from pairs(fault, fault, None, (msgspec.structs.replace(xid, gpu=None),), (check,))

    its_link = "it is the same link, in a line that does not name the GPU"
    link = ("nvlink_degradation",)
    unable = GpuDriverError(time=T0 + 11 * SECOND, source=place("kern.log"), node="n1", error="nvlink_init_failed")
    yield from pairs(link, fault, its_link, (named,), (unable,))
    yield from pairs(link, fault, None, (named,), (msgspec.structs.replace(unable, node="n2"),))
    yield from pairs(link, fault, None, (named,), (msgspec.structs.replace(unable, error="gsp_timeout"),))
    yield from pairs(link, fault, None, (named,), (msgspec.structs.replace(unable, time=T0 + (10 + LATE) * SECOND),))
    yield from pairs(link, fault, None, (about(10, node="n1"),), (unable,))

    same_memory = "it is the same failure, in a line that names no rank"
    oom = ("cuda_oom",)
    its = (about(10, rank=3),)
    yield from pairs(oom, oom, same_memory, its, (about(10 - LATE + 1),))
    yield from pairs(oom, oom, None, its, (about(10 - LATE),))
    other_rank = "it is the same shortage of memory, on another rank"
    yield from pairs(oom, oom, other_rank, its, (about(11, rank=4),), ranks=((3,), (4,)))
    yield from pairs(oom, oom, other_rank, its, (about(10 + untimed, rank=4),), ranks=((3,), (4,)))
    yield from pairs(oom, oom, None, its, (about(10 + untimed + 1, rank=4),), ranks=((3,), (4,)))
    yield from pairs(oom, oom, None, its, (about(9, rank=4),), ranks=((3,), (4,)))
    yield from pairs(oom, oom, None, its, (about(11, rank=3),), ranks=((3,), (3,)))
    yield from pairs(oom, oom, None, its, (about(10, node="n2"),))
    yield from pairs(oom, oom, same_memory, its, (about(10 - untimed, approximate=True),))
    yield from pairs(oom, oom, None, its, (about(10 - untimed - 1, approximate=True),))

    late_gpu = (about(20 + LATE, gpu="0000:3b:00.0"),), (about(20, gpu="0000:3b:00.0"),)
    memory = "it is the same memory error, seen by the driver"
    yield from pairs(("hbm_ecc",), ("gpu_fault", "gpu_app_fault", "xid_correlation"), None, *late_gpu)
    yield from pairs(fault, ("gpu_app_fault", "xid_correlation", "nvlink_degradation", "pcie_aer"), None, *late_gpu)
    yield from pairs(("gpu_app_fault",), ("xid_correlation",), None, *late_gpu)
    yield from by_bond(("hbm_ecc",), ("gpu_fault", "gpu_app_fault", "xid_correlation"), memory, "gpu", "record")
    broken = "the GPU itself had failed"
    yield from by_bond(
        fault, ("gpu_app_fault", "xid_correlation", "nvlink_degradation", "pcie_aer"), broken, "gpu", "record"
    )
    driver = "it is the same driver error, and the eviction followed it"
    yield from by_bond(("gpu_app_fault",), ("xid_correlation",), driver, "record", "gpu", "node")
    yield from by_bond(fault, ("xid_correlation",), driver, "node")
    evicted = "the pod was evicted seconds after the driver error on its node"
    yield from by_bond(("xid_correlation",), ("pod_evicted",), evicted, "pod", "record")
    late = (about(20 + LATE, pod="ml/a"),), (about(20, pod="ml/a"),)
    yield from pairs(("xid_correlation",), ("pod_evicted",), None, *late)

    same = "it is the same exception"
    causes = (
        "cuda_oom", "storage_failure", "gpu_app_fault", "gpu_fault", "training_divergence", "nccl_bootstrap",
        "dataloader_hang", "checkpointer_hang", "collective_mismatch",
    )  # fmt: skip
    crash = ("worker_crash",)
    line = {"path": "rank2.log", "line": 7}
    yield from pairs(causes, crash, same, (seen(10, **line),), (seen(10, **line),))
    yield from pairs(causes, crash, same, (seen(90, **line),), (seen(10, **line),))
    killed = "its process was killed for memory"
    yield from pairs(("host_oom",), crash, killed, (seen(90, **line),), (seen(10, **line),))
    that_one = "the process that died is the one that was killed for memory"
    pid = (about(90, pid=77, node="n1"),)
    yield from pairs(("host_oom",), ("worker_crash", "dataloader_hang"), that_one, pid, (about(10, pid=77),))
    yield from pairs(("host_oom",), ("worker_crash", "dataloader_hang"), None, pid, (about(10, pid=78, node="n2"),))


def deaths() -> Iterator[Case]:
    crash = ("worker_crash",)
    by_signal = {"tracecore__process__signal": "SIGKILL"}
    taken = "this kill or eviction ended its process"
    killers = ("host_oom", "pod_evicted")
    yield from by_bond(killers, crash, taken, "pod", "rank", "node?", "host", effect_fields=by_signal)
    on_node = (about(10, node="n1"),), (about(11, node="n1"),)
    yield from pairs(killers, crash, None, *on_node, effect_fields={"exception__type": "KeyError"})
    too_late = (about(20 + LATE, node="n1"),), (about(20, node="n1"),)
    yield from pairs(killers, crash, None, *too_late, effect_fields=by_signal)
    just = (about(20 + LATE - 1, node="n1"),), (about(20, node="n1"),)
    yield from pairs(killers, crash, taken, *just, effect_fields=by_signal)

    further = "it is the same storage, which kept failing"
    storage = ("storage_failure",)
    for name in ("device", "path"):
        field = {f"tracecore__storage__{name}": "/mnt/data"}
        other = {f"tracecore__storage__{name}": "/mnt/logs"}
        both = {"cause_fields": field, "effect_fields": field}
        yield from pairs(storage, storage, further, (about(10),), (about(30, node="n1"),), **both)
        yield from pairs(storage, storage, further, (about(10),), (about(10, rank=1),), **both)
        yield from pairs(storage, storage, None, (about(31),), (about(30),), **both)
        yield from pairs(storage, storage, None, (about(10, node="n1"),), (about(30, node="n2"),), **both)
        yield from pairs(storage, storage, None, (about(10),), (about(30),), cause_fields=field, effect_fields=other)
    cut = "it is the same failed write, in a line that does not say why"
    full, part = {"tracecore__storage__error": "enospc"}, {"tracecore__storage__error": "write_failed"}
    why = {"cause_fields": full, "effect_fields": part}
    noticed = NOTICED // SECOND
    yield from pairs(storage, storage, cut, (about(30),), (about(10, rank=3),), **why)
    yield from pairs(storage, storage, cut, (about(10, node="n1"),), (about(10 + noticed, rank=3),), **why)
    yield from pairs(storage, storage, None, (about(10, node="n1"),), (about(11 + noticed, rank=3),), **why)
    yield from pairs(storage, storage, None, (about(10, node="n1"),), (about(10, node="n2", rank=3),), **why)
    yield from pairs(storage, storage, None, (about(10, rank=2),), (about(10, rank=3),), ranks=((2,), (3,)), **why)
    yield from pairs(storage, storage, None, (about(30),), (about(10, rank=3),), cause_fields=full, effect_fields=full)
    met = "n1 had lost its storage, and the program then reported it"
    evicted, eio = {"tracecore__storage__error": "evicted"}, {"tracecore__storage__error": "eio"}
    told = {"cause_fields": evicted, "effect_fields": eio}
    kernel, program = (about(100, node="n1"),), (about(400, rank=3),)
    yield from pairs(storage, storage, met, kernel, program, **told)
    yield from pairs(storage, storage, met, kernel, (about(97, rank=3),), **told)
    yield from pairs(storage, storage, met, kernel, (seen(0, path="r.log", rank=3, approximate=True),), **told)
    yield from pairs(storage, storage, None, kernel, (about(700 + LATE, rank=3),), **told)
    yield from pairs(storage, storage, None, kernel, (about(100 - LATE, rank=3),), **told)
    yield from pairs(storage, storage, None, (about(100),), program, **told)
    device = {"cause_fields": evicted | {"tracecore__storage__device": "lfs-OST0004"}, "effect_fields": eio}
    unnamed = "a process had lost its storage, and the program then reported it"
    yield from pairs(storage, storage, unnamed, (about(100),), program, **device)
    yield from pairs(storage, storage, None, kernel, (about(400, rank=3, node="n2"),), **told)
    yield from pairs(storage, storage, None, (about(100, node="n1", rank=1),), program, ranks=((1,), (3,)), **told)
    full = {"tracecore__storage__error": "enospc"}
    yield from pairs(storage, storage, None, kernel, program, cause_fields=evicted, effect_fields=full)
    yield from pairs(storage, storage, None, kernel, program, cause_fields=full, effect_fields=eio)
    lustre, nfs = {"tracecore__storage__backend": "lustre"}, {"tracecore__storage__backend": "nfs"}
    same = {"cause_fields": evicted | lustre, "effect_fields": eio | lustre}
    yield from pairs(storage, storage, met, kernel, program, **same)
    yield from pairs(storage, storage, None, kernel, program, cause_fields=evicted | lustre, effect_fields=eio | nfs)
    under = "the storage it reads from or writes to had failed"
    hangs = ("dataloader_hang", "checkpointer_hang")
    yield from by_bond(storage, hangs, under, "pod", "rank?", "node", "record")
    yield from pairs(storage, hangs, None, (about(20 + LATE, node="n1"),), (about(20, node="n1"),))

    stopped = "its GPU had stopped working"
    gpus = ("gpu_fault", "hbm_ecc")
    yield from by_bond(gpus, crash, stopped, "pid", "gpu", "rank", "node?")
    yield from pairs(gpus, crash, None, (about(20 + LATE, node="n1"),), (about(20, node="n1"),))
    program = "the error of the program on the GPU ended it"
    for error in ("CUDA error: misaligned address", "AcceleratorError"):
        its = {"effect_fields": {"exception__message": error}}
        yield from by_bond(("gpu_app_fault",), crash, program, "pid", "gpu", "rank", "node?", **its)
        yield from pairs(("gpu_app_fault",), crash, None, (about(20 + LATE),), (about(20),), **its)
    yield from pairs(
        ("gpu_app_fault",), crash, None, (about(10, node="n1"),), (about(11, node="n1"),),
        effect_fields={"exception__type": "KeyError"},
    )  # fmt: skip
    before = "the same rank had reported it before it ended"
    told = ("cuda_oom", "storage_failure", "training_divergence")
    for both in ({"rank": 3}, {"pid": 77}):
        yield from pairs(told, crash, before, (about(10, **both),), (about(11, **both),))
        yield from pairs(told, crash, None, (about(11 + LATE, **both),), (about(11, **both),))

    raised = "rank 3 lost the connection to its data and raised an exception, so it read no more"
    loader = ("dataloader_hang",)
    yield from pairs(crash, loader, raised, (lost_peer(10, 3),), (about(12, rank=3),))
    yield from pairs(crash, loader, None, (lost_peer(10, 3),), (about(12, rank=4),))
    yield from pairs(crash, loader, None, (lost_peer(12 + LATE, 3),), (about(12, rank=3),))
    yield from pairs(crash, loader, None, (about(10, rank=3),), (about(12, rank=3),))
    yield from pairs(crash, loader, None, (lost_peer(10, 3),), (about(12, rank=3),), cause_fields={"signal": "SIGKILL"})

    asked = "the process ended because it was told to"
    stop = ("planned_stop",)
    effects = ("nccl_hang", "dataloader_hang", "checkpointer_hang", "nccl_bootstrap")
    yield from pairs(stop, effects, asked, (about(10),), (about(11),))
    yield from pairs(stop, effects, None, (about(11 + LATE),), (about(11),))
    for why, reason in (("rendezvous_unreachable", asked), ("unknown", asked), ("socket_ifname_mismatch", None)):
        by = {"effect_fields": {"discriminator": why}}
        yield from pairs(stop, ("nccl_bootstrap",), reason, (about(10),), (about(11),), **by)
    yield from pairs(stop, ("nccl_hang",), asked, (about(10),), (about(11),), effect_fields={"discriminator": "x"})
    for signal in ("SIGTERM", "SIGINT", "SIGKILL", "SIGUSR1", "SIGUSR2", "SIGHUP"):
        yield from pairs(stop, crash, asked, (about(10),), (about(11),), effect_fields={"signal": signal})
    for kind in ("a.SignalException", "KeyboardInterrupt", "SystemExit", "CancelledError"):
        yield from pairs(stop, crash, asked, (about(10),), (about(11),), effect_fields={"exception__type": kind})
    taken = "the program only noticed that its processes there were stopped"
    lost = NodeReadiness(time=T0 + 11 * SECOND, source=place("train.log", 9), ready=False, reason="NodeDead")
    told = seen(10, path="train.log", line=7)
    for reason, why in (("time_limit", taken), ("cancelled", taken), ("preempted", taken), ("sigterm", None)):
        by = {"cause_fields": {"reason": reason}}
        yield from pairs(stop, ("host_lost",), why, (told,), (lost,), **by)
    limit = {"cause_fields": {"reason": "time_limit"}}
    later = seen(12 + LATE, path="train.log", line=7)
    yield from pairs(stop, ("host_lost",), None, (later,), (lost,), **limit)
    of_cluster = msgspec.structs.replace(lost, reason="NodeStatusUnknown")
    yield from pairs(stop, ("host_lost",), None, (told,), (of_cluster,), **limit)
    for own in ({"signal": "SIGSEGV"}, {"exception__type": "KeyError"}):
        yield from pairs(stop, crash, None, (about(10),), (about(11),), effect_fields=own)


def collectives() -> Iterator[Case]:
    crash = ("worker_crash",)
    mismatch = ("collective_mismatch",)
    differ = "ranks called different collectives, so none of these can complete"
    same = "it is the same difference, as reported by the watchdogs"
    yield from pairs(mismatch, mismatch, same, (about(90),), (watchdog(20, 1),))
    yield from pairs(mismatch, mismatch, None, (watchdog(20, 1),), (about(90),))
    yield from pairs(mismatch, mismatch, None, (watchdog(20, 1),), (watchdog(21, 2),))

    def at(group: str, number: int) -> dict[str, Any]:
        return {"nccl__fr__pg_id": group, "nccl__fr__collective_seq_id": number}

    for its, reason in ((at("0", 7), differ), (at("0", 8), differ), (at("0", 6), None), (at("1", 3), differ)):
        hung = {"hanging_ranks": [0, 2], **its}
        yield from pairs(
            mismatch, ("nccl_hang",), reason, (about(90),), (about(20),), cause_fields=at("0", 7), effect_fields=hung
        )
        apart = "ranks send other sizes than their peers expect, so the exchange does not complete on all of them"
        yield from pairs(
            mismatch,
            ("nccl_hang",),
            reason and apart,
            (about(90),),
            (about(20),),
            cause_fields={**at("0", 7), "differs": "splits"},
            effect_fields=hung,
        )
    mixed = "ranks whose calls differ in type or step mix up each other's numbers"
    for until, differs, reason in (
        (610, "type", mixed),
        (611, "type", None),
        (611, "steps", mixed),
        (610, "operation", None),
    ):
        fields = {"differs": differs}
        yield from pairs(mismatch, ("training_divergence",), reason, (about(until),), (about(10),), cause_fields=fields)
    sdc, at_step = ("silent_data_corruption",), {"gen_ai.training.step": 411}
    right, ends = (
        "the value was right when it was computed again",
        "the program ends when a result is different the second time",
    )
    for began, found in ((411, right), (410, None)):
        for one, other in ((10, 90), (90, 10)):
            fields = {"cause_fields": at_step, "effect_fields": {"began_step": began}}
            yield from pairs(sdc, ("training_divergence",), found, (about(one),), (about(other),), **fields)
    yield from pairs(sdc, ("training_divergence",), None, (about(10),), (about(10),))
    yield from pairs(sdc, crash, ends, (about(10),), (about(20),), cause_fields=at_step)
    yield from pairs(sdc, crash, None, (about(90),), (about(20),), cause_fields=at_step)
    yield from pairs(sdc, crash, None, (about(10),), (about(20),))
    for own in ({"exception.type": "ValueError"}, {"tracecore.process.signal": "SIGSEGV"}):
        yield from pairs(sdc, crash, None, (about(10),), (about(20),), cause_fields=at_step, effect_fields=own)
    doubt = {"differs": "suspected"}
    only = "NCCL only suspects a mismatch, because ranks wait"
    named_for_it = ("nccl_hang", *FATAL)
    yield from pairs(named_for_it, mismatch, only, (about(90),), (about(20),), effect_fields=doubt)
    yield from pairs(named_for_it, mismatch, None, (about(90),), (about(20),), effect_fields=at("0", 7))
    yield from pairs(mismatch, ("nccl_hang",), None, (about(10),), (about(20),), cause_fields=doubt)
    yield from pairs(mismatch, crash, None, (about(10),), (watchdog(20, 1),), cause_fields=doubt)
    saving = "ranks called different collectives, so the ranks that save wait for others that never join"
    yield from pairs(mismatch, ("checkpointer_hang",), saving, (about(90),), (about(20),))
    broken = StorageError(time=T0 + 20 * SECOND, source=place("b.log"), error="eio")
    yield from pairs(mismatch, ("checkpointer_hang",), None, (about(90),), (broken,))
    gave_up = "the collectives did not match, and the library gave up"
    yield from pairs(mismatch, crash, gave_up, (about(90),), (watchdog(20, 1),))
    dist_error = {"effect_fields": {"exception__type": "DistBackendError"}}
    yield from pairs(mismatch, crash, gave_up, (about(90),), (about(20),), **dist_error)
    yield from pairs(mismatch, crash, None, (about(10),), (about(20),), effect_fields={"exception__type": "KeyError"})

    behind = "it waits behind the first hang"
    first = hang(90, (4,), (0, 1), about(90, rank=4))
    yield Case("blames nobody", first, hang(5, (), (2, 3), about(5, rank=2)), behind)
    yield Case("blames those who wait", first, hang(5, (0, 1), (2, 3), about(5, rank=0)), behind)
    yield Case("blames another rank", first, hang(95, (5,), (2, 3), about(95, rank=5)), None)
    nobody = hang(1, (), (0, 1), about(1, rank=0))
    yield Case("blames nobody itself", nobody, hang(5, (), (2, 3), about(5, rank=2)), None)
    more = hang(90, (4,), (0, 1, 2), about(90, rank=4))
    fewer = hang(5, (4,), (3,), about(5, rank=4))
    yield Case("more ranks wait in the first", more, fewer, behind)
    yield Case("fewer ranks wait in the first", fewer, more, None)
    early, late = hang(5, (4,), (0,), about(5, rank=4)), hang(9, (4,), (1,), about(9, rank=4))
    yield Case("the earlier of two equal hangs is first", early, late, behind)
    yield Case("the later of two equal hangs is not", late, early, None)
    origin = hang(9, (4,), (1,), about(9, rank=4), origin={"group": "tp0"})
    yield Case("origin names the group", hang(5, (4,), (0,), about(5), pg_desc="tp0"), origin, behind)
    yield Case("origin names another group", hang(5, (4,), (0,), about(5), pg_desc="tp1"), origin, None)
    numbered = hang(9, (4,), (1,), about(9, rank=4), origin={"group": "group 3"})
    yield Case("origin by number", hang(5, (4,), (0,), about(5), nccl__fr__pg_id=3), numbered, behind)
    yield Case(
        "an origin has none itself",
        hang(5, (4,), (0,), about(5), pg_desc="tp0", origin={"group": "x"}),
        origin,
        None,
    )
    yield Case("what has an origin is no first hang", origin, hang(5, (), (2, 3), about(5, rank=2)), None)


def the_others_wait() -> Iterator[Case]:
    waiting = {"hanging_ranks": [0, 1, 2]}
    told = (watchdog(40, 0), watchdog(41, 1))
    gone = "rank 3 had failed, so the next collective could not complete"
    hung = ("nccl_hang",)
    both = {"ranks": ((3,), (3,)), "effect_fields": waiting}
    yield from pairs(FATAL, hung, gone, (about(10, rank=3),), told, **both)
    yield from pairs(FATAL, hung, gone, (about(40 + LATE - 1, rank=3),), told, **both)
    late = (about(40 + LATE, rank=3),)
    yield from pairs(FATAL, hung, gone, late, told, **both)
    yield from pairs(FATAL, hung, gone, (about(60, rank=3),), told, **both)
    by_signal = {"tracecore__process__signal": "SIGKILL"}
    yield from pairs(FATAL, hung, None, late, told, **both, cause_fields=by_signal)
    strangers = {"ranks": ((4,), (3,)), "effect_fields": waiting}
    yield from pairs(FATAL, hung, None, (about(40 + LATE, rank=4),), told, **strangers)
    victim = {"ranks": ((1,), (3,)), "effect_fields": waiting}
    yield from pairs(FATAL, hung, None, (about(10, rank=1),), told, **victim)

    ended = "the watchdog ended the ranks that hung"
    crash = ("worker_crash",)
    yield from pairs(hung, crash, ended, told, (about(10, rank=0),), ranks=((3,), (0,)), cause_fields=waiting)
    yield from pairs(hung, crash, None, told, (about(50, rank=3),), ranks=((3,), (3,)), cause_fields=waiting)
    yield from pairs(hung, crash, None, told, (about(50),), cause_fields=waiting)

    joining = "rank 3 failed before it could join the others"
    start = ("nccl_bootstrap",)
    yield from pairs(FATAL, start, joining, (about(10, rank=3),), (about(20),), ranks=((3,), ()))
    yield from pairs(FATAL, start, None, (about(20 + LATE, rank=3),), (about(20),))

    class Failed(Seen, frozen=True, kw_only=True):
        kind = "rendezvous_failure"

    refused = Failed(time=T0 + 10 * SECOND, source=place("rank3.log"), rank=3)
    yield from pairs(FATAL, start, None, (refused,), (about(20),), ranks=((3,), ()))
    line = {"path": "rank3.log", "line": 4}
    shared = tuple(name for name in FATAL if name != "worker_crash")
    yield from pairs(shared, start, None, (seen(10, **line),), (seen(10, **line),))

    unable = "its collective failed of what kept it from joining the others"
    words = {
        "cause_fields": {"discriminator": "socket_ifname_mismatch"},
        "effect_fields": {"exception__type": "torch.distributed.DistBackendError"},
    }
    yield from by_bond(start, ("worker_crash",), unable, "node?", **words)
    yield from pairs(start, ("worker_crash",), unable, (about(20 + LATE),), (about(20),), **words)
    words["cause_fields"] = {"discriminator": "rendezvous_unreachable"}
    yield from pairs(start, ("worker_crash",), None, (about(10),), (about(20),), **words)

    stuck = "a rank that is stuck there cannot join the collective"
    hangs, waits = ("checkpointer_hang", "dataloader_hang"), ("nccl_hang", "straggler")
    yield from pairs(hangs, waits, stuck, (about(90, rank=3),), (about(20, rank=3),), ranks=((3,), (3,)))
    yield from pairs(hangs, waits, stuck, (about(90),), (about(20, rank=3),), ranks=((), (3,)))
    yield from pairs(hangs, waits, stuck, (about(90, rank=3),), (about(20),), ranks=((3,), ()))
    yield from pairs(hangs, waits, None, (about(90, rank=1),), (about(20, rank=3),), ranks=((1,), (3,)))
    more = {"ranks": ((1,), (3,)), "cause_fields": {"ranks": [3]}}
    yield from pairs(hangs, waits, stuck, (about(90, rank=1),), (about(20, rank=3),), **more)


def machines() -> Iterator[Case]:
    link = "collectives cross the link that failed"
    links = ("nvlink_degradation", "ib_link_flap", "pcie_aer")
    yield from by_bond(links, ("nccl_hang", "straggler", "nccl_bootstrap"), link, "node?")
    yield from pairs(links, ("nccl_hang",), None, (about(20 + LATE, node="n1"),), (about(20, node="n1"),))
    yield from pairs(links, ("worker_crash",), link, (about(10, node="n1"),), (watchdog(20, 1),))
    own = {"effect_fields": {"exception__type": "KeyError"}}
    yield from pairs(links, ("worker_crash",), None, (about(10, rank=1),), (about(20, node="n1"),), **own)

    slow = "a GPU that slows itself down makes its rank late"
    yield from by_bond(("thermal_throttle",), ("straggler",), slow, "rank", "node?")
    yield from pairs(("thermal_throttle",), ("straggler",), slow, (about(90, node="n1"),), (about(10, node="n1"),))
    under = "its machine had failed"
    effects = ("cuda_oom", "dataloader_hang", "checkpointer_hang", "storage_failure")
    yield from by_bond(MACHINE, effects, under, "node", "gpu", "pod")
    yield from pairs(MACHINE, effects, None, (about(20 + LATE, node="n1"),), (about(20, node="n1"),))
    rest = tuple(name for name in MACHINE if name != "xid_correlation")
    yield from by_bond(rest, ("pod_evicted",), under, "node", "gpu", "pod")
    dead = tuple(name for name in MACHINE if name not in ("gpu_fault", "hbm_ecc"))
    for both in ({"node": "n1"}, {"gpu": "0000:3b:00.0"}, {"pod": "ml/a"}):
        yield from pairs(dead, ("worker_crash",), under, (about(10, **both),), (about(11, **both),))

    noticed = "its machine was lost, and other processes only noticed that it was gone"
    machine, is_gone = ("host_lost",), {"effect_fields": {"tracecore__launcher": "jax"}}
    yield from pairs(machine, ("worker_crash",), noticed, (about(10, node="n1"),), (about(20, rank=6),), **is_gone)
    yield from pairs(machine, ("worker_crash",), None, (about(10, node="n1"),), (about(20, rank=6),))
    yield from pairs(machine, ("worker_crash",), None, (about(10, node="n1"),), (about(20, node="n2"),), **is_gone)
    late = (about(20 + LATE, node="n1"),)
    yield from pairs(machine, ("worker_crash",), None, late, (about(20, rank=6),), **is_gone)

    lost = "one rank failed first, and the others lost their connections to it"
    first = tuple(name for name in FATAL if name != "worker_crash")
    crash = ("worker_crash",)
    apart = (about(10, rank=3, node="n1"),), (about(11, rank=1, node="n2"),)
    yield from pairs(first, crash, lost, *apart, ranks=((3,), (1,)))
    yield from pairs(("worker_crash",), crash, None, *apart, ranks=((3,), (1,)))
    yield from pairs(first, crash, None, (about(11 + LATE, rank=3, node="n1"),), apart[1], ranks=((3,), (1,)))
    nobody = (about(10, node="n1"),), (about(11, rank=1, node="n2"),)
    yield from pairs(first, crash, None, *nobody, ranks=((), (1,)))

    after = "the stop came after the failure"
    yield from pairs(FATAL, ("planned_stop",), after, (about(10, rank=3),), (about(60),))
    yield from pairs(FATAL, ("planned_stop",), None, (about(60, rank=3),), (about(60),))
    above = Seen(time=T0 + 3, source=place("out.log", 3), approximate=True)
    below = Seen(time=T0 + 4, source=place("out.log", 4), approximate=True)
    yield from pairs(FATAL, ("planned_stop",), after, (above,), (below,))
    yield from pairs(FATAL, ("planned_stop",), None, (below,), (above,))
    elsewhere = Seen(time=T0 + 4, source=place("err.log", 4), approximate=True)
    yield from pairs(FATAL, ("planned_stop",), after, (elsewhere,), (above,))

    gave_up = "the processes that were left were ended after the watchdogs had given up"
    hang, stop, bare = ("nccl_hang",), ("planned_stop",), {"reason": "sigterm"}
    told = Hung(time=T0 + 3, source=place("out.log", 3), approximate=True)
    late = Hung(time=T0 + 5, source=place("out.log", 5), approximate=True)
    elsewhere = Hung(time=T0 + 3, source=place("err.log", 3), approximate=True)
    yield from pairs(hang, stop, gave_up, (watchdog(10, 3),), (about(12),), effect_fields=bare)
    yield from pairs(hang, stop, None, (watchdog(13, 3),), (about(12),), effect_fields=bare)
    yield from pairs(hang, stop, None, (watchdog(10, 3),), (about(12),), effect_fields={"reason": "time_limit"})
    yield from pairs(hang, stop, None, (about(10, rank=3),), (about(12),), effect_fields=bare)
    yield from pairs(hang, stop, gave_up, (told,), (below,), effect_fields=bare)
    yield from pairs(hang, stop, None, (late,), (below,), effect_fields=bare)
    yield from pairs(hang, stop, None, (elsewhere,), (below,), effect_fields=bare)
    yield from pairs(stop, hang, None, (below,), (told,), cause_fields=bare)
    yield from pairs(stop, hang, "the process ended because it was told to", (below,), (late,), cause_fields=bare)


CASES = [
    *one_event_seen_twice(),
    *deaths(),
    *collectives(),
    *the_others_wait(),
    *machines(),
]


def wrong(cases: list[Case]) -> list[str]:
    """Titles of the cases that the table does not decide as they say."""
    titles = []
    for case in cases:
        found = explanation(footprint_of(case.cause, "", 0), footprint_of(case.effect, "", 0))
        if found != case.reason:
            titles.append(f"{case.title} (found: {found})")
    return titles


def test_the_table_decides_every_case() -> None:
    assert wrong(CASES) == []


def name_of(rule: Rule) -> str:
    return f"{RULES.index(rule)}: {rule.reason[:40]}"


#: Rules whose own condition is stricter about times than `before`, so that neither value of it changes anything.
COMPARES_TIMES_ITSELF = {
    "it is the same failure, in a line that does not name the GPU",
    "it is the same link, in a line that does not name the GPU",
    "it is the same failure, in a line that names no rank",
    "it is the same shortage of memory, on another rank",
    "it is the same storage, which kept failing",
    "{cause} had lost its storage, and the program then reported it",
    "the stop came after the failure",
    "the processes that were left were ended after the watchdogs had given up",
}


def without(rule: Rule) -> Iterator[tuple[str, Rule | None]]:
    """The rule with one thing taken away at a time."""
    yield "the whole rule", None
    for field in ("causes", "effects", "bonds"):
        values = getattr(rule, field)
        for value in values:
            left = tuple(other for other in values if other != value)
            yield f"{field} without {value}", msgspec.structs.replace(rule, **{field: left})
    if rule.bonds != ("job",):
        yield "any bond", msgspec.structs.replace(rule, bonds=("job",))
    if rule.test is not None:
        yield "its condition", msgspec.structs.replace(rule, test=None)
    if rule.reason not in COMPARES_TIMES_ITSELF:
        yield "the other order of times", msgspec.structs.replace(rule, before=not rule.before)


@pytest.mark.parametrize("rule", RULES, ids=name_of)
def test_a_case_fails_without_each_part_of_the_rule(rule: Rule, monkeypatch: pytest.MonkeyPatch) -> None:
    names = {*rule.causes}
    mine = [case for case in CASES if case.cause.verdict.pattern_name in names]
    unnoticed = []
    for what, changed in without(rule):
        rules = [changed if other is rule else other for other in RULES]
        monkeypatch.setattr(precedence, "RULES", tuple(other for other in rules if other is not None))
        if not wrong(mine):
            unnoticed.append(what)
    assert unnoticed == []


def test_every_pattern_has_a_place_where_times_do_not_tell() -> None:
    assert sorted(ORDER) == sorted(kind.name for kind in PATTERNS)
