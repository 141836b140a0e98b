"""Incidents, played as what a machine would show: kernel lines, output, numbers, objects; never as facts."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from stage.cluster import stamp
from stage.node import dump
from stage.play import Stage

OOM = (
    "Traceback (most recent call last):\n"
    '  File "/workspace/train.py", line 214, in <module>\n'
    "    loss = step(batch)\n"
    '  File "/workspace/train.py", line 88, in step\n'
    "    logits = model(batch)\n"
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 GiB. GPU 0 has a total capacity of 79.18 GiB "
    "of which 1.20 GiB is free. Process 2211 has 77.98 GiB memory in use. Of the allocated memory 75.10 GiB is "
    "allocated by PyTorch, and 1.31 GiB is reserved by PyTorch but unallocated."
)


class Incident(NamedTuple):
    """
    Args:
        name: of the incident.
        pattern: whose verdict must come out.
        story: what happens, in a line.
        play: shows it; gives the time of the raw signal that decides.
        says: what the verdict must have, by the name of the field; a callable is asked.
        confidence: with all layers that are played.
        others: verdicts of other patterns that come with it, and why they may.
        within: seconds from the deciding signal to the webhook, with the thresholds of `fast.yaml`.
        unscaled: the same with the defaults.
    """

    name: str
    pattern: str
    story: str
    play: Callable[[Stage], float]
    says: Callable[[Stage], Mapping[str, Any]]
    confidence: str = "full"
    others: Mapping[str, str] = {}
    within: float = 2.0
    unscaled: float = 2.0


def nvlink(stage: Stage) -> float:
    """A link of a GPU carries a tenth of what the others do, the driver reports it, and the ranks wait for ever."""
    stage.begin()
    stage.gpus[2].nvlink[5] *= 0.1
    stage.kernel.say(
        f"NVRM: Xid (PCI:{stage.gpus[2].bus[:-2]}): 74, pid=2213, name=python3, NVLink: fatal error detected on link 5"
        "(0x10000, 0x0, 0x0, 0x0, 0x0, 0x0, 0x0)"
    )
    stage.halt()
    began = time.time()
    for rank in range(len(stage.ranks)):
        dump(stage.dumps, rank, len(stage.ranks), 1207, stage.clock())
    return began


def port_flap(stage: Stage) -> float:
    """A port goes down and up twice, and a rank's connection breaks."""
    stage.begin()
    port = stage.ports["mlx5_1"]
    for state in (1, 4, 1):
        port.state = state
        port.link_downed += state == 1
        began = time.time()
        stage.scraped(2)
    stage.ranks[1].print(
        "node-7:2212:2390 [1] NCCL WARN NET/IB : Got completion from peer 10.2.0.14<48123> with status=12 opcode=0 "
        "len=0 vendor err 129 (Recv) hca mlx5_1",
        "stderr",
    )
    port.state = 4
    return began


def memory_error(stage: Stage) -> float:
    """The counter of double-bit errors rises, and the driver reports the error."""
    stage.begin()
    gpu = stage.gpus[3]
    began = time.time()
    gpu.double_bit, gpu.last_xid = 1, 48
    bus = gpu.bus[:-2]
    stage.kernel.say(
        f"NVRM: Xid (PCI:{bus}): 48, pid=2214, name=python3, DBE (double bit error) ECC Error has occurred in row "
        "0x1a4f",
        f"NVRM: Xid (PCI:{bus}): 63, pid=2214, name=python3, Row Remapper: New row marked for remapping, reset gpu to "
        "activate.",
    )
    return began


def heat(stage: Stage) -> float:
    """One GPU is hot and lowers its clock to half of that of the others."""
    stage.begin()
    gpu = stage.gpus[6]
    began = time.time()
    gpu.temperature, gpu.sm_clock, gpu.reasons = 91.0, 990.0, 0x20
    for _ in range(45):
        time.sleep(1)
        gpu.thermal_violation_ns += 1_000_000_000
        if stage.webhook.of("thermal_throttle"):
            break
    return began


def cooling(stage: Stage) -> float:
    """All GPUs get hot and lower their clocks."""
    stage.begin()
    began = time.time()
    for _ in range(45):
        for gpu in stage.gpus.gpus:
            gpu.temperature, gpu.sm_clock, gpu.reasons = 90.0, 1200.0, 0x20
            gpu.thermal_violation_ns += 1_000_000_000
        time.sleep(1)
        if stage.webhook.of("thermal_throttle"):
            break
    return began


def pcie(stage: Stage) -> float:
    """The link of a GPU errs, trains down, and carries a quarter of what it did."""
    stage.begin()
    gpu = stage.gpus[4]
    stage.kernel.say(
        f"pcieport 0000:97:01.0: AER: Corrected error message received from {gpu.bus}",
        f"nvidia {gpu.bus}: PCIe Bus Error: severity=Corrected, type=Physical Layer, (Receiver ID)",
        f"nvidia {gpu.bus}:   device [10de:2330] error status/mask=00000001/0000a000",
        f"nvidia {gpu.bus}:    [ 0] RxErr                 (First)",
    )
    stage.read_kernel()
    began = time.time()
    gpu.pcie *= 0.25
    return began


def loader(stage: Stage) -> float:
    """A data loader's worker dies, and the run waits for its batch."""
    stage.begin()
    stage.ranks[1].print(
        "[rank1]: WARNING loader: ERROR: Unexpected bus error encountered in worker. DataLoader worker (pid 3307) is "
        "killed by signal: Bus error. Retrying with the remaining workers",
        "stderr",
    )
    stage.ranks[1].rotate()
    stage.halt()
    return time.time()


def mount(stage: Stage) -> float:
    """A volume of the node cannot be mounted, and the run waits for its input."""
    stage.begin()
    stage.api.event(
        stage.pods[2],
        "FailedMount",
        'MountVolume.SetUp failed for volume "shards" : rpc error: code = DeadlineExceeded desc = context deadline '
        "exceeded",
        stage.node,
    )
    stage.halt()
    return time.time()


def bootstrap(stage: Stage) -> float:
    """The pods of a job are ready, one after another; three wait for the fourth, and say so."""
    stage.start_job()
    began = time.time()
    for rank in range(3):
        stage.ready(rank)
    stage.api.event(
        stage.pods[3],
        "FailedCreatePodSandBox",
        'Failed to create pod sandbox: rpc error: code = Unknown desc = failed to setup network for sandbox "5f3a": '
        'plugin type="calico" failed (add): no IP addresses available in range set: 10.2.0.1-10.2.3.254',
        stage.node,
    )
    return began


def gpu_memory(stage: Stage) -> float:
    """A rank runs out of GPU memory."""
    stage.begin()
    stage.gpus[2].used_mib = 79_850
    stage.scraped(2)
    stage.halt()
    began = time.time()
    stage.ranks[2].print("\n".join(f"[rank2]: {line}" for line in OOM.splitlines()), "stderr")
    stage.ranks[2].rotate()
    return began


def eviction(stage: Stage) -> float:
    """The node runs short of memory, and the kubelet evicts a pod."""
    stage.begin()
    stage.api.condition(stage.node, MemoryPressure="True")
    time.sleep(1.5)
    return _evict(stage, 0, "The node was low on resource: memory. Threshold quantity: 100Mi, available: 81Mi. ")


def host_memory(stage: Stage) -> float:
    """The kernel kills a process for its cgroup's memory, and the kubelet says OOMKilled."""
    stage.begin()
    stage.halt()
    began = time.time()
    kernel_kills(stage, 1)
    stage.read_kernel()
    time.sleep(1.0)  # the kubelet looks once a second
    kubelet_tells(stage, 1)
    return began


def kernel_kills(stage: Stage, rank: int) -> None:
    """What the kernel prints when it kills the process of a rank."""
    uid = stage.pods[rank]["metadata"]["uid"]
    slice_ = f"/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{uid.replace('-', '_')}.slice"
    scope = f"{slice_}/cri-containerd-6f1c0a.scope"
    stage.kernel.say(
        "python3 invoked oom-killer: gfp_mask=0xcc0(GFP_KERNEL), order=0, oom_score_adj=985",
        "memory: usage 67108864kB, limit 67108864kB, failcnt 5512",
        f"oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=cri-containerd-6f1c0a.scope,mems_allowed=0-1,"
        f"oom_memcg={slice_},task_memcg={scope},task=python3,pid=48211,uid=0",
        "Memory cgroup out of memory: Killed process 48211 (python3) total-vm:98123456kB, anon-rss:66912344kB, "
        "file-rss:8192kB, shmem-rss:0kB, UID:0 pgtables:140212kB oom_score_adj:985",
    )


def kubelet_tells(stage: Stage, rank: int) -> None:
    """What the kubelet reports when the container of a rank was killed for memory."""
    now = stage.clock()
    ended = {"reason": "OOMKilled", "exitCode": 137, "startedAt": stamp(now - 600), "finishedAt": stamp(now)}
    container = {
        "name": "main", "image": "registry.example/train:2.1", "imageID": "", "ready": False, "restartCount": 0,
        "state": {"terminated": ended},
    }  # fmt: skip
    stage.api.status(stage.pods[rank]["metadata"]["name"], {"phase": "Failed", "containerStatuses": [container]})


def lost_gpu(stage: Stage) -> float:
    """A GPU falls off the bus, and the pod that had it is evicted."""
    stage.begin()
    stage.kernel.say(
        f"NVRM: Xid (PCI:{stage.gpus[0].bus[:-2]}): 79, pid=2211, name=python3, GPU has fallen off the bus."
    )
    stage.read_kernel()
    time.sleep(1.5)  # the API counts in seconds, and the eviction comes after
    return _evict(stage, 0, "Pod was rejected by the remediation controller: GPU unhealthy. ")


def _evict(stage: Stage, rank: int, note: str) -> float:
    """What the kubelet records: an event, and the pod's own state."""
    name = stage.pods[rank]["metadata"]["name"]
    began = time.time()
    stage.api.event(stage.pods[rank], "Evicted", note, stage.node)
    now = stamp(stage.clock())
    conditions = [
        {"type": "DisruptionTarget", "status": "True", "reason": "TerminationByKubelet", "message": note,
         "lastTransitionTime": now},
        {"type": "Ready", "status": "False", "reason": "PodFailed", "lastTransitionTime": now},
    ]  # fmt: skip
    stage.api.status(name, {"phase": "Failed", "reason": "Evicted", "message": note, "conditions": conditions})
    return began


def _pod(stage: Stage, rank: int) -> dict[str, Any]:
    return {"k8s.pod.name": stage.pods[rank]["metadata"]["name"], "k8s.namespace.name": "default",
            "k8s.node.name": stage.node}  # fmt: skip


def _gpu(stage: Stage, index: int) -> dict[str, Any]:
    return {"gpu.id": stage.gpus[index].bus, "k8s.node.name": stage.node}


INCIDENTS: tuple[Incident, ...] = (
    Incident(
        "nvlink", "nvlink_degradation", "a link of GPU 2 carries a tenth, Xid 74, all ranks wait", nvlink,
        lambda s: {**_gpu(s, 2), "hw.gpu.nvlink.link": 5, "kernelevents.xid": 74, "stuck_ranks": [0, 1, 2, 3]},
        others={"nccl_hang": "ranks wait in a collective that crosses the link"},
        within=14, unscaled=310,
    ),
    Incident(
        "port-flap", "ib_link_flap", "port mlx5_1 goes down twice, a connection breaks", port_flap,
        lambda s: {"hw.network.ib.device": "mlx5_1", "hw.network.ib.port.num": 1, "k8s.node.name": s.node},
        within=8, unscaled=8,
    ),
    Incident(
        "memory-error", "hbm_ecc", "the double-bit counter of GPU 3 rises, Xid 48", memory_error,
        lambda s: {**_gpu(s, 3), "errors": 1, "xids": [48, 63]},
        others={"gpu_fault": "it is the same memory error, seen by the driver"},
        within=8, unscaled=8,
    ),
    Incident(
        "heat", "thermal_throttle", "GPU 6 at 91 °C lowers its clock to half", heat,
        lambda s: {**_gpu(s, 6), "scope": "gpu", "reference": "peers"},
        within=14, unscaled=40,
    ),
    Incident(
        "cooling", "thermal_throttle", "all GPUs of the node are hot", cooling,
        lambda s: {"scope": "node", "k8s.node.name": s.node, "gpus": sorted(gpu.bus for gpu in s.gpus.gpus)},
        within=14, unscaled=40,
    ),
    Incident(
        "pcie", "pcie_aer", "GPU 4 errs on its PCIe link and carries a quarter", pcie,
        lambda s: {**_gpu(s, 4), "kernelevents.pcie_aer.severity": "corrected"},
        within=18, unscaled=18,
    ),
    Incident(
        "loader", "dataloader_hang", "a loader's worker of rank 1 dies, the run stops", loader,
        lambda s: {**_pod(s, 1), "discriminator": "worker_killed", "dataloader.worker_pid": 3307},
        others={"worker_crash": "it is the same report of a lost worker"},
        within=8, unscaled=125,
    ),
    Incident(
        "mount", "dataloader_hang", "a volume cannot be mounted, the run stops", mount,
        lambda s: {"discriminator": "storage_event", "k8s.event.reason": "FailedMount", "k8s.node.name": s.node},
        others={"storage_failure": "the storage it reads from had failed"},
        within=8, unscaled=125,
    ),
    Incident(
        "bootstrap", "nccl_bootstrap", "the network of one pod fails, the others wait for it", bootstrap,
        lambda s: {"discriminator": "cni_error", "gen_ai.training.job_id": s.job},
        within=8, unscaled=303,
    ),
    Incident(
        "gpu-memory", "cuda_oom", "rank 2 runs out of GPU memory", gpu_memory,
        lambda s: {**_pod(s, 2), **_gpu(s, 2), "kind": "exhaustion", "gen_ai.training.rank": 2},
        others={"worker_crash": "it is the same exception"},
    ),
    Incident(
        "eviction", "pod_evicted", "the node runs short of memory, the pod of rank 0 is evicted", eviction,
        lambda s: {**_pod(s, 0), "pressure": "memory"},
    ),
    Incident(
        "host-memory", "host_oom", "the kernel kills rank 1 for memory", host_memory,
        lambda s: {**_pod(s, 1), "kernelevents.oom.victim_pid": 48211},
        others={"worker_crash": "its process was killed for memory"},
    ),
    Incident(
        "lost-gpu", "xid_correlation", "GPU 0 falls off the bus, its pod is evicted", lost_gpu,
        lambda s: {**_pod(s, 0), "kernelevents.xid": 79, "gpu.id": s.gpus[0].bus},
        others={
            "gpu_fault": "the GPU itself had failed",
            "pod_evicted": "the pod was evicted seconds after the driver error",
        },
    ),
)  # fmt: skip
