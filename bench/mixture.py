"""Facts of every kind that a pattern needs, mixed over a cluster of 1,000 nodes on a bad day.

Three in four are what a healthy cluster says all the time: progress of 16 jobs of 62 or 63 ranks, samples of 8,000
GPUs, collectives, ports, links, checkpoints. One in four is trouble, of every kind: a fifth of all are the Xids, rises
of ECC counters, evictions and pressures of nodes. The shares are in the tables below; no pattern is left without the
facts that can make it speak.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgspec

from tracecore.facts.catalog import BY_NAME
from tracecore.facts.fact import Fact
from tracecore.signals.record import Source

SECOND = 1_000_000_000
START = 1_767_225_600 * SECOND
NODES = 1000
JOBS = 16
BUSES = tuple(f"0000:{bus:02x}:00.0" for bus in (0x18, 0x2A, 0x3B, 0x5E, 0x86, 0x9A, 0xAF, 0xDB))
VOLATILE = {"subtype": "double_bit", "persistence": "volatile"}
XIDS = (13, 31, 43, 48, 63, 74, 79, 94)

#: Of 1,000 facts so many are of this kind; `n` is how many of its kind came before.
Make = Callable[[int], dict[str, Any]]
ROUTINE: tuple[tuple[str, int, Make], ...] = (
    (
        "Progress",
        350,
        lambda n: {"step": 100 + n // NODES, "loss": 2.5 + n % 7 / 100, "iter_time_s": 0.4 + n % 5 / 100},
    ),
    (
        "ThrottleSample",
        120,
        lambda n: {"reason": "thermal_hardware" if n % 50 == 0 else "none", "sm_clock_mhz": 1980.0},
    ),
    ("FramebufferSample", 120, lambda _: {"free_bytes": 10**10, "total_bytes": 8 * 10**10}),
    (
        "NvlinkRate",
        40,
        lambda n: {"link": n % 18, "bytes_per_second": 1e9 if n % 50 == 0 else 2e10, "peer_median": 2e10},
    ),
    ("CollectiveEntry", 39, lambda n: {"pg": "0", "seq": n // NODES, "op": "all_reduce", "state": "completed"}),
    ("GroupProgress", 20, lambda n: {"pg": "0", "last_enqueued": n // NODES + 1, "last_completed": n // NODES}),
    ("Arrival", 20, lambda n: {"pg": "0", "seq": n // JOBS, "lateness": 1_000_000, "ranks": 64}),
    (
        "CheckpointPhase",
        20,
        lambda n: {"phase": "write", "event": ("begin", "end")[n // NODES % 2], "step": n // NODES},
    ),
    ("PortState", 20, lambda n: {"device": "mlx5_0", "port": 1, "state": 4 if n % 10 else 1}),
)
TROUBLE: tuple[tuple[str, int, Make], ...] = (
    ("Xid", 60, lambda n: {"code": XIDS[n % 8]}),
    ("EccDelta", 60, lambda n: {"delta": 1, "error_type": ("corrected", "uncorrected")[n % 4 == 0], **VOLATILE}),
    ("PodEvicted", 60, lambda _: {"reason": "Evicted"}),
    ("NodePressure", 20, lambda _: {"condition": "MemoryPressure"}),
    ("AerError", 8, lambda _: {"severity": "corrected", "error_type": "RxErr"}),
    ("AerRecovery", 1, lambda n: {"succeeded": n % 2 == 0}),
    ("PcieRateCollapse", 2, lambda _: {"bytes_per_second": 1e9, "baseline_bytes_per_second": 2e10}),
    ("GpuDriverError", 2, lambda _: {"error": "gsp_timeout"}),
    ("GpuCondition", 1, lambda _: {"condition": "remap_failed"}),
    ("GpuLost", 2, lambda _: {}),
    ("Sxid", 2, lambda _: {"code": 12028}),
    ("SdcCounter", 1, lambda _: {"delta": 1}),
    ("EvalAccuracy", 1, lambda _: {"observed": 0.5, "baseline": 0.7, "checksum": "a", "baseline_checksum": "a"}),
    ("OomKill", 2, lambda n: {"victim_pid": n, "victim_name": "python3"}),
    ("MemoryKillReport", 1, lambda n: {"reporter": "slurm", "pid": n}),
    ("ContainerTerminated", 2, lambda _: {"reason": "OOMKilled", "exit_code": 137}),
    ("HostEvent", 1, lambda _: {"event": "panic"}),
    ("NodeReadiness", 2, lambda n: {"ready": n % 2 == 0}),
    ("NodeSilence", 1, lambda _: {"silent_s": 120.0, "peers": 63}),
    ("SlurmState", 1, lambda _: {"state": "NODE_FAIL"}),
    ("StorageError", 2, lambda n: {"error": ("enospc", "estale", "eio")[n % 3], "path": "/data/checkpoints"}),
    ("MountEvent", 2, lambda _: {"reason": "FailedMount"}),
    ("ContainerStarted", 1, lambda _: {}),
    ("StepStalled", 2, lambda n: {"no_progress_s": 90.0, "step": 100 + n}),
    ("LoaderError", 2, lambda n: {"error_class": "DataLoader worker killed", "signal": "SIGKILL", "worker_pid": n}),
    ("CudaOom", 1, lambda _: {"tried_bytes": 2 << 30, "free_bytes": 1 << 30, "total_bytes": 80 << 30}),
    ("CudaOomUnmeasured", 1, lambda _: {"backend": "cublas"}),
    ("CudaError", 1, lambda n: {"error": ("device_assert", "ecc_uncorrectable")[n % 2]}),
    ("WatchdogReport", 1, lambda n: {"report": "timeout", "seq": n, "pg": "0", "timeout_ms": 600_000}),
    ("NcclError", 2, lambda n: {"error": ("no_socket_interface", "remote_error")[n % 2]}),
    ("RendezvousRetry", 1, lambda _: {"problem": "connection_refused", "endpoint": "10.0.0.1:29500"}),
    ("RendezvousFailure", 1, lambda _: {"failure": "connect_timeout", "joined": 63, "expected": 64}),
    ("CniEvent", 1, lambda _: {"reason": "FailedCreatePodSandBox"}),
    ("PodReady", 1, lambda n: {"ready_time": START + n * SECOND}),
    ("ExceptionRaised", 1, lambda _: {"type": "ValueError", "message": "row 600: expected 512 tokens, got 17"}),
    ("ExitStatus", 1, lambda n: {"exit_code": n % 3}),
    ("FatalSignal", 1, lambda _: {"signal": "SIGSEGV"}),
    ("LauncherFailure", 1, lambda _: {"launcher": "torchrun", "root": True, "exit_code": 1}),
    ("PlannedStop", 1, lambda _: {"reason": "preempted"}),
    ("NonFinite", 1, lambda n: {"what": "loss", "step": 100 + n}),
    ("RunFinished", 1, lambda n: {"step": n}),
    ("StackPrinted", 1, lambda n: {"inner": "all_reduce" if n % 4 else "get", "waits": n % 4 > 0}),
    ("SlowRanks", 1, lambda n: {"reporter": "the straggler detector", "slow": (n % 64,)}),
    ("ResultRecomputed", 1, lambda n: {"outcome": ("changed", "repeated")[n % 2], "step": n}),
    ("WrongResult", 1, lambda n: {"index": n % 8, "wrong": 3}),
    ("RankStarted", 1, lambda n: {"world": 64}),
    ("SaveAwaited", 1, lambda n: {"missing": (n % 64,)}),
    ("ReplicaMismatch", 1, lambda n: {"odd": n % 64, "step": n}),
    ("GroupCrossed", 1, lambda n: {"pg": "5", "members": (0, n % 8), "odd": n % 2 == 1}),
    ("XidGauge", 1, lambda n: {"code": XIDS[n % 8]}),
)
Share = tuple[type[Fact], int, Make]
MIXTURE: tuple[Share, ...] = tuple((BY_NAME[name], share, make) for name, share, make in ROUTINE + TROUBLE)
EVICTED = BY_NAME["PodEvicted"]
#: What a rank says knows its GPU only by way of its node.
OF_GPU = frozenset(
    BY_NAME[name]
    for name in (
        "ThrottleSample",
        "FramebufferSample",
        "NvlinkRate",
        "Xid",
        "EccDelta",
        "AerError",
        "AerRecovery",
        "PcieRateCollapse",
        "GpuDriverError",
        "GpuCondition",
        "GpuLost",
        "XidGauge",
    )
)


def mixed(number: int, spread: int, mixture: Sequence[Share] = MIXTURE) -> Iterator[Fact]:
    """So many facts over so much time, in order of time; the same every time."""
    nodes = [f"node-{index:04d}" for index in range(NODES)]
    paths = [f"/var/log/{node}.log" for node in nodes]
    jobs = [f"job-{index}" for index in range(JOBS)]
    pods = [f"train/{jobs[index % JOBS]}-{index // JOBS}" for index in range(NODES)]
    total = sum(share for _, share, _ in mixture)
    order = sorted((place / share, index) for index, (_, share, _) in enumerate(mixture) for place in range(share))
    turns = [index for _, index in order]
    seen = [index * 37 for index in range(len(mixture))]
    for count in range(number):
        turn = turns[count % total]
        kind, _, make = mixture[turn]
        nth = seen[turn]
        seen[turn] += 1
        place = nth % NODES
        yield kind(
            time=START + count * spread // number,
            source=Source(path=paths[place], offset=count * 120, line=count),
            node=nodes[place],
            pod=f"train/evicted-{nth}" if kind is EVICTED else pods[place],
            job=jobs[place % JOBS],
            rank=place // JOBS,
            gpu=BUSES[nth // NODES % 8] if kind in OF_GPU else None,
            **make(nth),
        )


def alike(number: int, spread: int) -> Iterator[Fact]:
    """The same with as many facts of each kind as of any other: nine in ten are trouble."""
    return mixed(number, spread, [(kind, 1, make) for kind, _, make in MIXTURE])


def one_job(number: int, spread: int) -> Iterator[Fact]:
    """The same where all nodes work for one job, each with a rank of its own."""
    for fact in mixed(number, spread):
        yield msgspec.structs.replace(fact, job="job-0", rank=int((fact.node or "-0").rpartition("-")[2]))


def without(*fields: str) -> Callable[[int, int], Iterator[Fact]]:
    """The same where nobody knows this of what a fact is about."""
    gone = dict.fromkeys(fields)

    def facts(number: int, spread: int) -> Iterator[Fact]:
        for fact in mixed(number, spread):
            yield msgspec.structs.replace(fact, **gone)

    return facts


#: Other clusters: what makes one kind of window large.
OTHERS: dict[str, Callable[[int, int], Iterator[Fact]]] = {
    "alike": alike,
    "one_job": one_job,
    "no_ranks": without("rank"),
    "no_jobs": without("job", "pod"),
    "nobody": without("node", "pod", "job", "rank"),
}
