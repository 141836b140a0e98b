"""Windows by which detectors are measured: one of 1,024 facts for every pattern, and crowds that can grow.

A shape is a function of the number of facts. The first shape of a pattern is the one whose allocations are counted. The
others are crowds: many facts that could decide, and beside each as many that could be joined to it, all within the
pattern's reach and all but one of them in vain. They show whether a detector looks at every pair.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from tracecore.facts.catalog import BY_NAME
from tracecore.facts.fact import Fact
from tracecore.signals.record import Source

SECOND = 1_000_000_000
MILLISECOND = 1_000_000
START = 1_767_225_600 * SECOND
EVENTS = 1024
GPU = "0000:3b:00.0"


def fact(kind: str, number: int, at: float, **fields: Any) -> Any:
    """A fact of this kind, so many seconds after the start, on node-7."""
    fields.setdefault("node", "node-7")
    path = fields.pop("path_read", "/var/log/train.log")
    source = Source(path=path, offset=number * 100, ident=f"event-{number:06d}")
    return BY_NAME[kind](time=START + int(at * SECOND), source=source, **fields)


def gpu(index: int) -> str:
    """The bus id of a GPU; there are 65,536 of them."""
    return f"{index >> 8:04x}:{index & 255:02x}:00.0"


# -- one window for each pattern --------------------------------------------------------------------------------------


def xid_correlation(n: int = EVENTS) -> list[Fact]:
    """Xids, each followed by seven evictions."""
    facts: list[Fact] = []
    for number in range(n // 8):
        facts.append(fact("Xid", number * 8, number * 10, gpu=GPU, code=79))
        for pod in range(1, 8):
            name = f"train/worker-{number}-{pod}"
            facts.append(fact("PodEvicted", number * 8 + pod, number * 10 + pod, pod=name, reason="Evicted"))
    return facts


def pod_evicted(n: int = EVENTS) -> list[Fact]:
    """Four evictions in five on one pressure in sixteen; the rest are evictions long after any pressure."""
    pressures, joined = n // 16, n * 820 // 1024
    facts: list[Fact] = [
        fact("NodePressure", number, number * 20, condition="DiskPressure") for number in range(pressures)
    ]
    note = "The node was low on resource: ephemeral-storage."
    for number in range(n - pressures):
        late = 86_400 if number >= joined else 0
        pod = f"train/worker-{number}"
        facts.append(fact("PodEvicted", n + number, number + late, pod=pod, reason="Evicted", note=note))
    return facts


def hbm_ecc(n: int = EVENTS) -> list[Fact]:
    """Rises, each confirmed by its own Xid."""
    facts: list[Fact] = []
    rise = {"delta": 1, "error_type": "uncorrected", "subtype": "double_bit", "persistence": "volatile"}
    for number in range(n // 2):
        facts.append(fact("EccDelta", 2 * number, number * 600, gpu=GPU, **rise))
        facts.append(fact("Xid", 2 * number + 1, number * 600 + 1, gpu=GPU, code=48))
    return facts


def thermal_throttle(n: int = EVENTS) -> list[Fact]:
    """Scrapes of eight GPUs, of which one throttles for heat all the time."""
    return [
        fact(
            "ThrottleSample",
            scrape * 8 + index,
            scrape * 10,
            gpu=f"0000:{index:02x}:00.0",
            reason="thermal_hardware" if index == 2 else "none",
            temperature_c=91.0 if index == 2 else 60.0,
            sm_clock_mhz=1200.0 if index == 2 else 1980.0,
        )
        for scrape in range(n // 8)
        for index in range(8)
    ]


def pcie_aer(n: int = EVENTS) -> list[Fact]:
    """Errors of one GPU, each followed by a collapse of its own."""
    facts: list[Fact] = []
    rates = {"bytes_per_second": 1e9, "baseline_bytes_per_second": 2e10, "direction": "receive"}
    for number in range(n // 2):
        at = number * 600
        facts.append(fact("AerError", 2 * number, at, gpu=GPU, severity="corrected", error_type="RxErr"))
        facts.append(fact("PcieRateCollapse", 2 * number + 1, at + 1, gpu=GPU, **rates))
    return facts


def collectives(cohorts: int, ranks: int, hangs: Callable[[int, int], bool], step: float = 0.016) -> list[Fact]:
    """Entries of so many collectives of one group, each of so many ranks.

    Args:
        hangs: says whether this collective does not end for this rank.
        step: seconds from one collective to the next.
    """
    return [
        fact(
            "CollectiveEntry",
            seq * ranks + rank,
            seq * step + rank * step / ranks,
            job="job-1",
            rank=rank,
            pg="0",
            seq=seq,
            op="all_reduce",
            state="scheduled" if hangs(seq, rank) else "completed",
            created=START + int(seq * step * SECOND),
            completed=None if hangs(seq, rank) else START + int((seq * step + 0.005) * SECOND),
        )
        for seq in range(cohorts)
        for rank in range(ranks)
    ]


def nccl_hang(n: int = EVENTS) -> list[Fact]:
    """Collectives of 16 ranks, of which every other one hangs."""
    return collectives(n // 16, 16, lambda seq, _: bool(seq % 2))


def nccl_hang_cohorts(n: int = EVENTS) -> list[Fact]:
    """Collectives of 8 ranks, of which every other one hangs: of 1,024 entries 64 cohorts of 8."""
    return collectives(n // 8, 8, lambda seq, _: bool(seq % 2))


def collective_mismatch(n: int = EVENTS) -> list[Fact]:
    """Collectives of 16 ranks, in the last of which one rank calls something else."""
    facts = collectives(n // 16, 16, lambda *_: False)
    return [*facts[:-1], msgspec.structs.replace(facts[-1], op="broadcast")]


def checkpointer_hang(n: int = EVENTS) -> list[Fact]:
    """Ranks that save again and again and in the end hang, with a stall and trouble of the storage."""
    ranks, number = 64, 0
    facts: list[Fact] = []
    for save in range(n // (4 * ranks)):
        for rank in range(ranks):
            begin = save * 600 + rank / 100
            own = {"job": "job-1", "rank": rank}
            step = {"step": save * 100, **own}
            facts.append(fact("Progress", number, begin - 1, loss=2.0, **step))
            facts.append(fact("CheckpointPhase", number + 1, begin, phase="write", event="begin", **step))
            if save < n // (4 * ranks) - 1:
                facts.append(fact("CheckpointPhase", number + 2, begin + 30, phase="write", event="end", **step))
                facts.append(fact("Progress", number + 3, begin + 31, loss=2.0, **step))
            else:
                facts.append(fact("StepStalled", number + 2, begin + 400, no_progress_s=399.0, **step))
                facts.append(fact("StorageError", number + 3, begin + 20, error="not_responding", **own))
            number += 4
    return facts


def cuda_oom(n: int = EVENTS) -> list[Fact]:
    """Allocations that fail every two minutes on one GPU, and a sample of its memory before each."""
    facts: list[Fact] = []
    for number in range(n // 2):
        at = number * 130
        facts.append(
            fact("FramebufferSample", 2 * number, at, gpu=GPU, free_bytes=1 << 30, total_bytes=80 << 30),
        )
        facts.append(fact("CudaOom", 2 * number + 1, at + 1, gpu=GPU, rank=0, tried_bytes=2 << 30))
    return facts


def dataloader_hang(n: int = EVENTS) -> list[Fact]:
    """Loader errors, each followed by a stall of the same pod."""
    facts: list[Fact] = []
    for number in range(n // 2):
        at, pod = number * 10, f"train/worker-{number % 64}"
        killed = {"error_class": "DataLoader worker killed", "signal": "SIGKILL", "worker_pid": number}
        facts.append(fact("LoaderError", 2 * number, at, pod=pod, **killed))
        facts.append(fact("StepStalled", 2 * number + 1, at + 125, pod=pod, no_progress_s=125.0, step=100 + number))
    return facts


def gpu_app_fault(n: int = EVENTS) -> list[Fact]:
    """Processes that each make an illegal access, which the driver reports once and CUDA seven times."""
    facts: list[Fact] = []
    for number in range(n // 8):
        at = number * 100
        facts.append(fact("Xid", 8 * number, at, gpu=GPU, code=31, pid=number, process="python3"))
        for more in range(1, 8):
            told = {"job": "job-1", "error": "illegal_access", "pid": number}
            facts.append(fact("CudaError", 8 * number + more, at + more, **told))
    return facts


def gpu_fault(n: int = EVENTS) -> list[Fact]:
    """Failures of one GPU, each of sixteen Xids."""
    return [
        fact("Xid", 16 * number + more, number * 600 + more, gpu=GPU, code=95 if more % 2 else 79)
        for number in range(n // 16)
        for more in range(16)
    ]


def host_lost(n: int = EVENTS) -> list[Fact]:
    """A node that works, is lost and comes back again and again: not ready, failed for the scheduler, booted, ready."""
    facts: list[Fact] = []
    for number in range(n // 32):
        at, first = number * 3600, number * 32
        facts += [fact("Progress", first + step, at - 30 + step, step=step, rank=0) for step in range(28)]
        facts.append(fact("NodeReadiness", first + 28, at, ready=False))
        facts.append(fact("SlurmState", first + 29, at + 30, state="NODE_FAIL"))
        facts.append(fact("HostEvent", first + 30, at + 300, event="boot"))
        facts.append(fact("NodeReadiness", first + 31, at + 400, ready=True))
    return facts


def host_oom(n: int = EVENTS) -> list[Fact]:
    """Kills for memory in containers, each told by four lines of the kernel, by Kubernetes and by three loaders."""
    facts: list[Fact] = []
    for number in range(n // 8):
        at, pod = number * 300, f"train/worker-{number}"
        killed = {"victim_pid": number, "victim_name": "python3", "cgroup": f"/kubepods/pod{number}", "pod": pod}
        facts += [fact("OomKill", 8 * number + line, at, **killed) for line in range(4)]
        facts.append(fact("ContainerTerminated", 8 * number + 4, at + 2, pod=pod, reason="OOMKilled", exit_code=137))
        loader = {"error_class": "DataLoader worker killed", "signal": "SIGKILL", "worker_pid": number, "pod": pod}
        facts += [fact("LoaderError", 8 * number + 5 + more, at + 1, **loader) for more in range(3)]
    return facts


def ib_link_flap(n: int = EVENTS) -> list[Fact]:
    """Scrapes of eight ports, of which one flaps every half hour, and an error of a collective each time."""
    facts: list[Fact] = []
    for scrape in range(n // 8):
        at = scrape * 60
        for port in range(7):
            down = port == 3 and scrape % 30 in (1, 3)
            state = {"device": f"mlx5_{port}", "port": 1, "state": 1 if down else 4}
            facts.append(fact("PortState", scrape * 8 + port, at, **state))
        facts.append(fact("NcclError", scrape * 8 + 7, at + 40, rank=0, error="remote_error"))
    return facts


def nccl_bootstrap(n: int = EVENTS) -> list[Fact]:
    """Jobs of eight ranks, of which one never joins."""
    facts: list[Fact] = []
    for job in range(n // 16):
        for rank in range(8):
            number, pod = job * 16 + rank * 2, f"train/job-{job}-{rank}"
            own = {"pod": pod, "job": f"job-{job}", "rank": rank}
            facts.append(fact("PodReady", number, rank, ready_time=START + rank * SECOND, **own))
            if rank:
                facts.append(fact("CollectiveEntry", number + 1, 60, pg="0", seq=1, state="started", **own))
            else:
                facts.append(fact("RendezvousRetry", number + 1, 60, problem="connection_refused", **own))
    return facts


def nvlink_degradation(n: int = EVENTS) -> list[Fact]:
    """Errors of one link, each with two watchdogs and a rate that is low for minutes."""
    facts: list[Fact] = []
    for number in range(n // 16):
        at, first = number * 1800, number * 16
        facts.append(fact("Xid", first, at, gpu=GPU, code=74, link=3))
        for more in range(13):
            low = {"link": 3, "bytes_per_second": 1e9, "peer_median": 2e10, "low_s": 60.0 * more}
            facts.append(fact("NvlinkRate", first + 1 + more, at + 60 * more, gpu=GPU, **low))
        waits = {"report": "timeout", "elapsed_ms": 600_000, "pg": "0", "seq": number}
        facts += [fact("WatchdogReport", first + 14 + rank, at + 610, rank=rank, **waits) for rank in range(2)]
    return facts


def planned_stop(n: int = EVENTS) -> list[Fact]:
    """Runs of fifteen ranks that are preempted, each rank with an exit by SIGTERM."""
    facts: list[Fact] = []
    for number in range(n // 16):
        at = number * 3600
        facts.append(fact("PlannedStop", 16 * number, at, job="job-1", reason="preempted"))
        for rank in range(15):
            status = {"job": "job-1", "rank": rank, "exit_code": -15}
            facts.append(fact("ExitStatus", 16 * number + 1 + rank, at + 20 + rank / 100, **status))
    return facts


def silent_data_corruption(n: int = EVENTS) -> list[Fact]:
    """Jobs whose accuracy is low, each with a counter that rose seven times while it ran."""
    facts: list[Fact] = []
    for number in range(n // 8):
        at, job = number * 60, f"job-{number}"
        start = START + (number * 60 - 30) * SECOND
        facts += [fact("SdcCounter", 8 * number + rise, at + rise, job=job, delta=1) for rise in range(7)]
        told = {"observed": 0.5, "baseline": 0.7, "baseline_checksum": "a", "checksum": "a", "job_start": start}
        facts.append(fact("EvalAccuracy", 8 * number + 7, at + 10, job=job, **told))
    return facts


def storage_failure(n: int = EVENTS) -> list[Fact]:
    """Errors of the storage, of which every sixth ends a process."""
    facts: list[Fact] = []
    for number in range(n // 8):
        at, own = number * 1300, {"job": "job-1", "rank": 0}
        stale = {"error": "estale", "path": "/data", **own}
        facts += [fact("StorageError", 8 * number + more, at + more, **stale) for more in range(6)]
        facts.append(fact("ExceptionRaised", 8 * number + 6, at + 7, type="OSError", message="stale", **own))
        facts.append(fact("ExitStatus", 8 * number + 7, at + 8, exit_code=1, **own))
    return facts


def straggler(n: int = EVENTS) -> list[Fact]:
    """Steps of 16 ranks of which one is twice as slow as the others."""
    return [
        fact(
            "Progress",
            step * 16 + rank,
            step + rank / 100,
            job="job-1",
            rank=rank,
            step=10 + step,
            iter_time_s=1.0 if rank == 3 else 0.5,
            data_time_s=0.1,
        )
        for step in range(n // 16)
        for rank in range(16)
    ]


def training_divergence(n: int = EVENTS) -> list[Fact]:
    """Sixteen ranks whose loss is finite for long, and then is not."""
    steps = n // 16
    return [
        fact("Progress", step * 16 + rank, step + rank / 100, job="job-1", rank=rank, step=step, loss=2.0)
        if step < steps - 4
        else fact("NonFinite", step * 16 + rank, step + rank / 100, job="job-1", rank=rank, step=step, what="loss")
        for step in range(steps)
        for rank in range(16)
    ]


def worker_crash(n: int = EVENTS) -> list[Fact]:
    """Steps of 32 ranks of which one raises; the others lose it, and all end."""
    ranks, number = 32, 0
    facts: list[Fact] = []
    for step in range(n // ranks - 2):
        for rank in range(ranks):
            own = {"job": "job-1", "rank": rank, "path_read": f"/var/log/rank-{rank}.log"}
            facts.append(fact("Progress", number, step, step=step, **own))
            number += 1
    for rank in range(ranks):
        own = {"job": "job-1", "rank": rank, "path_read": f"/var/log/rank-{rank}.log"}
        kind = "ValueError" if rank == 5 else "DistBackendError"
        at = n if rank == 5 else n + 1
        facts.append(fact("ExceptionRaised", number, at, type=kind, message="row 600", **own))
        facts.append(fact("ExitStatus", number + 1, n + 60, exit_code=1, **own))
        number += 2
    return facts


# -- crowds -----------------------------------------------------------------------------------------------------------


def loaders_of_others(n: int) -> list[Fact]:
    """Stalls beside as many loader errors of other pods of the node."""
    half = n // 2
    facts: list[Fact] = []
    for number in range(half):
        killed = {"error_class": "S3 throttle", "pod": f"train/other-{number}"}
        facts.append(fact("LoaderError", number, number * 0.001, **killed))
        pod = f"train/worker-{number}"
        stall = {"no_progress_s": 125.0, "step": 100, "pod": pod, "job": "job-1", "rank": number}
        facts.append(fact("StepStalled", half + number, 130 + number * 0.001, **stall))
    return facts


def long_loader_storms(n: int) -> list[Fact]:
    """Stalls beside folded loader errors of which all began long before and only the first goes on."""
    half = n // 2
    facts: list[Fact] = []
    for number in range(half):
        last = START + 3600 * SECOND if number == 0 else None
        facts.append(fact("LoaderError", number, number * 0.001, error_class="S3 throttle", pod="a/b", last_time=last))
        stall = {"no_progress_s": 125.0, "step": 100, "pod": "a/b", "job": f"job-{number}"}
        facts.append(fact("StepStalled", half + number, 415 + number * 0.001, **stall))
    return facts


def samples_without_a_number(n: int) -> list[Fact]:
    """Failed allocations of many processes of one GPU, beside samples that do not say what is free and steps of
    others."""
    third = n // 3
    facts: list[Fact] = []
    for number in range(third):
        at = number * 0.001
        facts.append(fact("FramebufferSample", number, at, gpu=GPU, total_bytes=80 << 30))
        facts.append(fact("CudaOom", third + number, 10 + at, gpu=GPU, rank=number, tried_bytes=2 << 30))
        facts.append(fact("Progress", 2 * third + number, 20 + at, gpu=GPU, rank=third, step=number))
    return facts


def cuda_errors_of_others(n: int) -> list[Fact]:
    """Xids of one GPU beside as many CUDA errors of other processes, and one that names none."""
    half = n // 2
    facts: list[Fact] = [fact("CudaError", n, 40, error="illegal_access", job="job-1")]
    for number in range(half):
        at = number * 0.001
        facts.append(fact("Xid", number, at, gpu=GPU, code=31, pid=number))
        facts.append(fact("CudaError", half + number, at, error="illegal_access", job=f"job-{number}", pid=n + number))
    return facts


def faults_of_many_jobs(n: int) -> list[Fact]:
    """Xids of one GPU, each of another process and another job within a day, beside the exporter's gauge."""
    facts: list[Fact] = []
    for number in range(n // 3):
        at = number * 0.01
        facts.append(fact("Xid", number, at, gpu=GPU, code=31, pid=number))
        facts.append(fact("CudaError", n + number, at, error="illegal_access", job=f"job-{number}", pid=number))
        facts.append(fact("XidGauge", 2 * n + number, at, gpu=GPU, code=31))
    return facts


def chains_beside_gauges(n: int) -> list[Fact]:
    """Failures of a GPU far apart, beside gauges that show other Xids."""
    facts: list[Fact] = []
    for number in range(n // 2):
        facts.append(fact("Xid", number, number * 301, gpu=GPU, code=79))
        facts.append(fact("XidGauge", n + number, number * 301, gpu=GPU, code=48))
    return facts


def links_without_peers(n: int) -> list[Fact]:
    """Link errors of many GPUs, long after as many failures of other GPUs and beside what programs say."""
    third = n // 3
    facts: list[Fact] = []
    for number in range(third):
        at = number * 0.001
        facts.append(fact("Xid", third + number, 10_000 + number * 400, gpu=gpu(number), code=74, link=1))
        facts.append(fact("Xid", number, at, gpu=gpu(number), code=79))
        facts.append(fact("CudaError", 2 * third + number, 9_000 + number * 400, error="ecc_uncorrectable"))
    return facts


def confirmations(n: int) -> list[Fact]:
    """Rises at one time, and Xids that all could confirm them."""
    rise = {"delta": 1, "error_type": "uncorrected", "subtype": "double_bit", "persistence": "volatile"}
    facts: list[Fact] = []
    for number in range(n // 2):
        facts.append(fact("EccDelta", number, number * 0.001, gpu=GPU, **rise))
        facts.append(fact("Xid", n + number, 60 + number * 0.001, gpu=GPU, code=(48, 63, 64)[number % 3]))
    return facts


def boots(n: int) -> list[Fact]:
    """Boots one after the other, of which none is known to be a reboot, beside states of readiness and old drains."""
    third = n // 3
    facts: list[Fact] = []
    for number in range(third):
        at = number * 0.01
        facts.append(fact("HostEvent", number, at, event="boot"))
        facts.append(fact("NodeReadiness", third + number, at, ready=number == third - 1))
        facts.append(fact("PlannedStop", 2 * third + number, at - 10_000, reason="drain"))
    return facts


def losses_and_drains(n: int) -> list[Fact]:
    """Episodes far apart beside drains that end before all of them."""
    facts: list[Fact] = []
    for number in range(n // 2):
        facts.append(fact("SlurmState", number, number * 700, state="NODE_FAIL"))
        facts.append(fact("PlannedStop", n + number, -20_000 + number * 0.001, reason="drain"))
    return facts


def one_long_kill(n: int) -> list[Fact]:
    """Kills of one cgroup at one time, beside reports of other processes and stops of other pods."""
    quarter = n // 4
    facts: list[Fact] = []
    for number in range(quarter):
        at = number * 0.001
        killed = {"cgroup": "/kubepods/a", "victim_pid": number}
        facts.append(fact("OomKill", number, at, **killed))
        facts.append(fact("MemoryKillReport", quarter + number, at + 1, reporter="slurm", pid=n + number))
        facts.append(fact("ContainerTerminated", 2 * quarter + number, at + 2, pod=f"a/{number}", exit_code=137))
        facts.append(fact("PlannedStop", 3 * quarter + number, at - 20, pod=f"b/{number}", reason="drain"))
    return facts


def one_block(n: int) -> list[Fact]:
    """Lines about one kill of which only the first names the process, and loader errors of others."""
    facts: list[Fact] = []
    for number in range(n // 2):
        at = number * 0.0001
        facts.append(fact("OomKill", number, at, victim_pid=None if number else 1, cgroup="/a"))
        loader = {"error_class": "DataLoader worker killed", "signal": "SIGKILL", "worker_pid": n + number}
        facts.append(fact("LoaderError", n + number, at, **loader))
    return facts


def ports_and_old_errors(n: int) -> list[Fact]:
    """A port that flaps in many episodes, beside errors of collectives from before all of them."""
    facts: list[Fact] = []
    for number in range(n // 2):
        for_three = {"device": "mlx5_0", "port": 1, "state": 1 + 3 * (number % 2)}
        at = number // 4 * 1300 + number % 4
        facts.append(fact("PortState", number, at, **for_three))
        facts.append(fact("NcclError", n + number, -5000 + number * 0.001, rank=0, error="remote_error"))
    return facts


def many_ports(n: int) -> list[Fact]:
    """Ports that all flap at one time, beside errors from just before."""
    eighth = n // 8
    facts: list[Fact] = []
    for number in range(eighth):
        for place in range(4):
            port = {"device": f"mlx5_{number}", "port": 1, "state": 1 + 3 * (place % 2)}
            facts.append(fact("PortState", number * 4 + place, place * 10 + number * 0.001, **port))
            old = {"rank": 0, "error": "remote_error"}
            facts.append(fact("NcclError", n + number * 4 + place, -700 + number * 0.001, **old))
    return facts


def cohorts_and_networks(n: int) -> list[Fact]:
    """Jobs of one rank that never joined, beside failures of the network in other namespaces."""
    facts: list[Fact] = []
    for number in range(n // 2):
        own = {"pod": f"ns-{number}/a", "job": f"job-{number}", "rank": 0}
        facts.append(fact("PodReady", number, number * 0.001, ready_time=START + number * MILLISECOND, **own))
        other = {"reason": "FailedCreatePodSandBox", "namespace": f"other-{number}"}
        facts.append(fact("CniEvent", n + number, number * 0.001, **other))
    return facts


def hangs_and_bystanders(n: int) -> list[Fact]:
    """Collectives of two ranks that all hang, beside as many ranks that came to none of them."""
    facts = collectives(n // 4, 2, lambda *_: True)
    for number in range(n // 2):
        own = {"job": "job-1", "rank": 2 + number, "pg": "0", "seq": 0, "op": "all_reduce"}
        facts.append(fact("CollectiveEntry", n + number, -10, state="completed", completed=START, **own))
    return facts


def hangs_and_reports(n: int) -> list[Fact]:
    """Collectives of two ranks that all hang, beside reports of watchdogs about others that never came."""
    facts = collectives(n // 4, 2, lambda *_: True)
    for number in range(n // 2):
        report = {"report": "timeout", "pg": "0", "seq": n + number, "job": "job-1", "rank": 2 + number}
        facts.append(fact("WatchdogReport", n + number, 10, missing=(number,), last_enqueued=0, **report))
    return facts


def mismatches(n: int) -> list[Fact]:
    """Collectives of two ranks that are described in different words and are the same, the last is not."""
    return [
        fact(
            "CollectiveEntry",
            2 * seq + rank,
            seq * 0.001,
            job="job-1",
            rank=rank,
            pg="0",
            seq=seq,
            op="all_reduce",
            state="completed",
            signature=None if rank else "all_reduce|[1]|float|[1]|float",
        )
        for seq in range(n // 2)
        for rank in range(2)
    ]


def low_links_elsewhen(n: int) -> list[Fact]:
    """Xids of links, beside links that were low at another time, and stalls of other ranks."""
    third = n // 3
    facts: list[Fact] = []
    for number in range(third):
        low = {"link": 3, "bytes_per_second": 1e9, "peer_median": 2e10, "low_s": 400.0}
        facts.append(fact("Xid", number, number * 0.001, gpu=gpu(number), code=74))
        facts.append(fact("NvlinkRate", third + number, 20_000 + number * 0.001, gpu=GPU, **low))
        stall = {"no_progress_s": 125.0, "step": 100, "rank": number}
        facts.append(fact("StepStalled", 2 * third + number, 30_000 + number * 0.001, **stall))
    return facts


def links_and_stalls(n: int) -> list[Fact]:
    """Episodes of a link far apart, each beside a watchdog, and stalls that began long before them."""
    quarter = n // 4
    facts: list[Fact] = []
    for number in range(quarter):
        at = number * 700
        facts.append(fact("Xid", number, at, gpu=GPU, code=74))
        facts.append(fact("WatchdogReport", quarter + number, at, report="timeout", rank=number % 64, elapsed_ms=1000))
        stall = {"no_progress_s": 125.0, "step": 100, "rank": 100 + number}
        for more in range(2):
            place = (2 + more) * quarter + number
            facts.append(fact("StepStalled", place, -50_000 + number * 0.001, **stall))
    return facts


def collapses(n: int) -> list[Fact]:
    """Errors at one time, and collapses that all could be theirs."""
    facts: list[Fact] = []
    for number in range(n // 2):
        at = number * 0.001
        facts.append(fact("AerError", number, at, gpu=GPU, severity="corrected", error_type="RxErr"))
        rates = {"bytes_per_second": 1e9, "baseline_bytes_per_second": 2e10}
        facts.append(fact("PcieRateCollapse", n + number, 60 + at, gpu=GPU, **rates))
    return facts


def stops_and_failures(n: int) -> list[Fact]:
    """Ends by SIGTERM far apart, each after a failure and beside an old one."""
    facts: list[Fact] = []
    for number in range(n // 2):
        facts.append(fact("ExitStatus", number, number * 400, job="job-1", rank=0, exit_code=-15))
        facts.append(fact("NcclError", n + number, number * 0.001, job="job-1", rank=0, error="remote_error"))
    return facts


def evictions(n: int) -> list[Fact]:
    """Pressures at one time, and evictions that all could be theirs."""
    facts: list[Fact] = []
    for number in range(n // 2):
        facts.append(fact("NodePressure", number, number * 0.001, condition="DiskPressure"))
        facts.append(fact("PodEvicted", n + number, 60 + number * 0.001, pod=f"a/{number}", reason="Evicted"))
    return facts


def xids_and_evictions(n: int) -> list[Fact]:
    """Xids at one time, and evictions that all could be theirs."""
    facts: list[Fact] = []
    for number in range(n // 2):
        facts.append(fact("Xid", number, number * 0.001, gpu=GPU, code=79))
        facts.append(fact("PodEvicted", n + number, 30 + number * 0.001, pod=f"a/{number}", reason="Evicted"))
    return facts


def evaluations_of_one_job(n: int) -> list[Fact]:
    """Evaluations of one job that are low in turn, beside counters of other nodes."""
    facts: list[Fact] = []
    for number in range(n // 2):
        told = {"observed": 0.6 if number % 2 else 0.6992, "baseline": 0.7, "job_start": START, "node": "node-1"}
        facts.append(fact("EvalAccuracy", number, number * 0.001, job="job-1", checksum="a", **told))
        facts.append(fact("SdcCounter", n + number, number * 0.001, delta=1, node=f"other-{number}"))
    return facts


def evaluations_and_baselines(n: int) -> list[Fact]:
    """Evaluations that are a little low, each after a record of a baseline that was measured on something else."""
    facts: list[Fact] = []
    for number in range(n // 2):
        own = {"job": "job-1", "job_start": START}
        facts.append(fact("EvalAccuracy", number, number * 0.001, observed=0.7, checksum="b", **own))
        told = {"observed": 0.6, "baseline": 0.7, "checksum": "a"}
        facts.append(fact("EvalAccuracy", n + number, 60 + number * 0.001, **told, **own))
    return facts


def storage_and_bystanders(n: int) -> list[Fact]:
    """Errors of the storage of many ranks, beside exceptions, phases, stalls, statuses and steps of others."""
    part = n // 6
    facts: list[Fact] = []
    for number in range(part):
        at, other = number * 0.001, {"job": "job-1", "rank": 2 * part + number}
        facts.append(fact("StorageError", number, at, error="estale", job="job-1", rank=number))
        facts.append(fact("ExceptionRaised", part + number, 60 + at, type="ValueError", **other))
        facts.append(fact("CheckpointPhase", 2 * part + number, 60 + at, phase="write", event="error", **other))
        facts.append(fact("StepStalled", 3 * part + number, 60 + at, no_progress_s=30.0, step=5, **other))
        facts.append(fact("ExitStatus", 4 * part + number, 60 + at, exit_code=1, **other))
        facts.append(fact("Progress", 5 * part + number, 60 + at, step=number, **other))
    return facts


def storage_and_recoveries(n: int) -> list[Fact]:
    """Errors of many devices, beside recoveries of others and mounts of many pods beside pods that are ready."""
    part = n // 4
    facts: list[Fact] = []
    for number in range(part):
        at = number * 0.001
        facts.append(fact("StorageError", number, at, error="eio", device=f"sd{number}"))
        facts.append(fact("StorageError", part + number, 60 + at, error="recovered", device=f"other{number}"))
        facts.append(fact("MountEvent", 2 * part + number, at, reason="FailedMount", pod=f"a/{number}"))
        ready = {"ready_time": START, "pod": f"b/{number}", "rank": 0}
        facts.append(fact("PodReady", 3 * part + number, 60 + at, **ready))
    return facts


def steps_of_passing_cohorts(n: int) -> list[Fact]:
    """Steps of four ranks each, of which one is slow and never heard of again."""
    return [
        fact(
            "Progress",
            step * 4 + rank,
            step * 0.01,
            job="job-1",
            rank=step * 4 + rank if rank == 3 else rank,
            step=10 + step,
            iter_time_s=1.0 if rank == 3 else 0.5,
        )
        for step in range(n // 4)
        for rank in range(4)
    ]


def steps_of_many_slow_ranks(n: int) -> list[Fact]:
    """Few steps of many ranks of which a fifth is slow, too far apart to count together."""
    ranks = n // 8
    return [
        fact(
            "Progress",
            step * ranks + rank,
            step * 1000,
            job="job-1",
            rank=rank,
            step=10 + step,
            iter_time_s=1.0 if rank % 5 == 0 else 0.5,
        )
        for step in range(8)
        for rank in range(ranks)
    ]


def hot_gpus(n: int) -> list[Fact]:
    """Many GPUs of one node, of which all throttle and none is slower than the others."""
    half = n // 2
    return [
        fact(
            "ThrottleSample",
            scrape * half + index,
            scrape * 40,
            gpu=gpu(index),
            reason="thermal_hardware",
            sm_clock_mhz=1200.0,
        )
        for scrape in range(2)
        for index in range(half)
    ]


def hot_gpus_in_turn(n: int) -> list[Fact]:
    """The same where each is sampled at a time of its own, and some are cool."""
    quarter = n // 4
    return [
        fact(
            "ThrottleSample",
            scrape * quarter + index,
            scrape * 40 + index * 0.001,
            gpu=gpu(index),
            reason="thermal_hardware" if index % 2 else "none",
            sm_clock_mhz=1200.0 if index % 2 else 1400.0,
        )
        for scrape in range(4)
        for index in range(quarter)
    ]


def complaints_of_nobody(n: int) -> list[Fact]:
    """Complaints without a rank, beside ranks that each report one finite loss."""
    facts: list[Fact] = []
    half = n // 2
    for number in range(half):
        at, job = number * 0.001, {"job": "job-1"}
        complaint = {"what": "loss", "explicit": True, "step": 5}
        facts.append(fact("NonFinite", number, at, **complaint, **job))
        late = 4 * 3600 if number < half - 1 else 1
        facts.append(fact("Progress", half + number, at + late, rank=number, step=6, loss=2.0, **job))
    late = {"rank": n, "loss": 2.0, "job": "job-1"}
    facts += [fact("Progress", n + more, half * 0.001 + more, step=7 + more, **late) for more in range(5)]
    return facts


def many_exits(n: int) -> list[Fact]:
    """Ranks that all end with a status, at one time, and say nothing."""
    return [
        fact("ExitStatus", rank, 0, job="job-1", rank=rank, exit_code=1, approximate=True, node=None)
        for rank in range(n)
    ]


def many_aborts(n: int) -> list[Fact]:
    """Ranks that all abort, half of which said that they lost a peer, and one that was killed."""
    facts: list[Fact] = []
    ranks = n * 2 // 3
    for rank in range(ranks):
        own = {"job": "job-1", "rank": rank, "node": None}
        code = -9 if rank == 7 else -6
        facts.append(fact("ExitStatus", rank, 100, exit_code=code, approximate=True, **own))
        if rank % 2:
            facts.append(fact("WatchdogReport", n + rank, 50 + rank * 0.0001, report="abort", **own))
    return facts


def crash_reports(n: int) -> list[Fact]:
    """Exceptions of ranks, each with a report of its launcher, an end of its container, a stop of another and a
    complaint of a peer."""
    part = n // 6
    facts: list[Fact] = []
    for number in range(part):
        at, own = number * 0.001, {"job": "job-1", "rank": number, "pod": f"a/{number}"}
        own["path_read"] = f"/var/log/rank-{number}.log"
        facts.append(fact("ExceptionRaised", number, at, type="ValueError", pid=number, **own))
        launched = {"launcher": "torchrun", "exit_code": 1, "job": "job-1"}
        facts.append(fact("LauncherFailure", part + number, 5 + at, pid=n + number, rank=number, **launched))
        facts.append(fact("ContainerTerminated", 2 * part + number, 6 + at, exit_code=1, **own))
        stop = {"reason": "drain", "node": f"other-{number}", "job": "job-1"}
        facts.append(fact("PlannedStop", 3 * part + number, -60 + at, **stop))
        facts.append(fact("NcclError", 4 * part + number, 2 + at, error="remote_error", **own))
        facts.append(fact("ExitStatus", 5 * part + number, 9 + at, exit_code=1, **own))
    return facts


def nobodys_crashes(n: int) -> list[Fact]:
    """Exceptions without a rank in one stream, beside steps, ends of runs and reports without one."""
    part = n // 5
    facts: list[Fact] = []
    for number in range(part):
        at, job = number * 0.001, {"job": "job-1"}
        facts.append(fact("ExceptionRaised", 5 * number, at, type="ValueError", **job))
        facts.append(fact("Progress", 5 * number + 1, at, step=number // part, rank=number, **job))
        facts.append(fact("LauncherFailure", 5 * number + 2, at, launcher="torchrun", exit_code=1, pid=number, **job))
        facts.append(fact("FatalSignal", 5 * number + 3, at, signal="SIGSEGV", pid=number, **job))
        facts.append(fact("CudaError", 5 * number + 4, at, error="illegal_access", **job))
    return facts


def crashes_far_apart(n: int) -> list[Fact]:
    """Crashes of one rank far apart, beside ranks that lost a peer once, long before or at other attempts."""
    facts: list[Fact] = []
    for number in range(n // 2):
        own = {"job": "job-1", "rank": 0}
        facts.append(fact("FatalSignal", number, number * 1000, signal="SIGSEGV", **own))
        other = {"job": "job-1", "rank": 1 + number, "attempt": 1}
        facts.append(fact("NcclError", n + number, number * 0.001, error="remote_error", **other))
    return facts


def saves_that_failed(n: int) -> list[Fact]:
    """Saves that began and did not end, each after an exception, beside stalls, statuses and trouble of the storage."""
    part = n // 5
    facts: list[Fact] = []
    for number in range(part):
        at, own = number * 0.001, {"job": "job-1", "rank": number}
        own["path_read"] = f"/var/log/rank-{number}.log"
        facts.append(fact("CheckpointPhase", number, at, phase="write", event="begin", step=5, **own))
        facts.append(fact("ExceptionRaised", part + number, 60 + at, type="ValueError", **own))
        facts.append(fact("StepStalled", 2 * part + number, 400 + at, no_progress_s=400.0, step=5, **own))
        facts.append(fact("ExitStatus", 3 * part + number, 400 + at, exit_code=None, alive=True, **own))
        facts.append(fact("StorageError", 4 * part + number, 20 + at, error="eio", job="job-2", rank=0))
    return facts


def saves_and_reports(n: int) -> list[Fact]:
    """Saves that began and did not end, beside collectives that had waited since long before any of them."""
    half = n // 2
    facts: list[Fact] = []
    for number in range(half):
        at, own = number * 0.001, {"job": "job-1", "rank": number}
        facts.append(fact("CheckpointPhase", number, at, phase="write", event="begin", step=5, **own))
        report = {"report": "timeout", "elapsed_ms": 3_600_000}
        facts.append(fact("WatchdogReport", half + number, 60 + at, **report, **own))
    return facts


Shape = Callable[[int], list[Fact]]
#: By pattern name: how many verdicts its window gives, the window, and its crowds.
SHAPES: dict[str, tuple[int, Shape, tuple[Shape, ...]]] = {
    "checkpointer_hang": (1, checkpointer_hang, (saves_that_failed, saves_and_reports)),
    "collective_mismatch": (1, collective_mismatch, (mismatches,)),
    "cuda_oom": (512, cuda_oom, (samples_without_a_number,)),
    "dataloader_hang": (512, dataloader_hang, (loaders_of_others, long_loader_storms)),
    "gpu_app_fault": (128, gpu_app_fault, (cuda_errors_of_others, faults_of_many_jobs)),
    "gpu_fault": (64, gpu_fault, (chains_beside_gauges, links_without_peers)),
    "hbm_ecc": (512, hbm_ecc, (confirmations,)),
    "host_lost": (32, host_lost, (boots, losses_and_drains)),
    "host_oom": (128, host_oom, (one_long_kill, one_block)),
    "ib_link_flap": (5, ib_link_flap, (ports_and_old_errors, many_ports)),
    "nccl_bootstrap": (64, nccl_bootstrap, (cohorts_and_networks,)),
    "nccl_hang": (32, nccl_hang, (hangs_and_bystanders, hangs_and_reports)),
    "nvlink_degradation": (64, nvlink_degradation, (low_links_elsewhen, links_and_stalls)),
    "pcie_aer": (512, pcie_aer, (collapses,)),
    "planned_stop": (64, planned_stop, (stops_and_failures,)),
    "pod_evicted": (960, pod_evicted, (evictions,)),
    "silent_data_corruption": (128, silent_data_corruption, (evaluations_of_one_job, evaluations_and_baselines)),
    "storage_failure": (128, storage_failure, (storage_and_bystanders, storage_and_recoveries)),
    "straggler": (1, straggler, (steps_of_passing_cohorts, steps_of_many_slow_ranks)),
    "thermal_throttle": (1, thermal_throttle, (hot_gpus, hot_gpus_in_turn)),
    "training_divergence": (1, training_divergence, (complaints_of_nobody,)),
    "worker_crash": (
        1,
        worker_crash,
        (many_exits, many_aborts, crash_reports, nobodys_crashes, crashes_far_apart),
    ),
    "xid_correlation": (896, xid_correlation, (xids_and_evictions,)),
}
