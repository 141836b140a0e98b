"""An hour in which nothing is wrong: what a node, its job and the other pods of the cluster show meanwhile.

Training with checkpoints and evaluations, warnings, kernel chatter, a corrected PCIe error, GPUs that get warm and hit
their power cap, counters that grow or stand, other people's pods that fail, restart and are deleted.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from typing import Any

from stage.cluster import Cluster, stamp
from stage.node import Container, report
from stage.play import Stage, running

HOUR = 3600.0
STEP = 2.0
CHECKPOINT = 450
EVALUATION = 600

#: What programs say in passing, by the second of the hour.
WARNINGS = (
    (20, "/opt/conda/lib/python3.11/site-packages/torch/nn/utils/clip_grad.py:43: FutureWarning: the default of "
         "foreach will change in a future release."),
    (95, "[W1115 06:10:11.123456789 ProcessGroupNCCL.cpp:4561] [PG ID 0 PG GUID 0 Rank 0]  using GPU 0 as device "
         "used by this process is currently unknown."),
    (310, "wandb: WARNING Network error (ConnectTimeout), entering retry loop."),
    (340, "wandb: Network connection re-established."),
    (700, "WARNING:root:learning rate schedule: warmup finished at step 1550"),
    (1300, "huggingface/tokenizers: The current process just got forked, after parallelism has already been used."),
    (1800, "NCCL INFO Channel 05/16 : 3[3] -> 0[0] via P2P/CUMEM/read"),
    (2100, "INFO dataloader: shard 0412 took 3.2 s to open, timeout=1800"),
    (2500, "WARNING: skipped 2 samples longer than 8192 tokens"),
    (2900, "Gradient overflow. Skipping step, loss scaler reducing loss scale to 32768.0"),
    (3300, "INFO checkpointing: kept the last 3 checkpoints, removed /checkpoints/step_450"),
)  # fmt: skip
CHATTER = (
    (5, "perf: interrupt took too long (3132 > 3131), lowering kernel.perf_event_max_sample_rate to 63750"),
    (60, "IPv6: ADDRCONF(NETDEV_CHANGE): caliab12: link becomes ready"),
    (400, "audit: type=1400 audit(1763187011.123:88): apparmor=\"STATUS\" operation=\"profile_load\" name=\"cri\""),
    (900, "EXT4-fs (nvme1n1p1): mounted filesystem with ordered data mode. Quota mode: none."),
    (1199, "pcieport 0000:97:01.0: AER: Corrected error message received from 0000:ab:00.0"),
    (1200, "nvidia 0000:ab:00.0: PCIe Bus Error: severity=Corrected, type=Data Link Layer, (Transmitter ID)"),
    (1201, "nvidia 0000:ab:00.0:   device [10de:2330] error status/mask=00001000/0000a000"),
    (1202, "nvidia 0000:ab:00.0:    [12] Timeout"),
    (1700, "EDAC MC0: 1 CE memory read error on CPU_SrcID#0_MC#0_Chan#0_DIMM#0 (channel:0 slot:0 page:0x1a2b3c)"),
    (2300, "veth12ab34cd: renamed from eth0"),
    (2301, "cali77aa88: Link DOWN"),
    (2700, "TCP: request_sock_TCP: Possible SYN flooding on port 8080. Sending cookies."),
    (3100, "mlx5_core 0000:5e:00.0: mlx5e_fs_set_rx_mode_work:843:(pid 912): S-tagged traffic will be dropped"),
)  # fmt: skip


def live(stage: Stage, began: float) -> None:
    """The hour, at the pace of the stage's clock, from `began` on."""
    tasks = sorted(_happenings(stage), key=lambda task: task[0])
    step, training = 1200, began
    while (now := stage.clock() - began) < HOUR:
        while tasks and tasks[0][0] <= now:
            tasks.pop(0)[1]()
        _machine(stage, now)
        if stage.clock() < training:
            time.sleep(0.02)
            continue
        training = max(training + STEP, stage.clock() - STEP)
        step += 1
        for number, rank in enumerate(stage.ranks):
            rank.print(report(step, number, STEP + 0.02 * math.sin(step + number)))
        if step % CHECKPOINT == 0:
            training += _checkpoint(stage, step, tasks, now)
        elif step % EVALUATION == 0:
            training += _evaluation(stage, step, tasks, now)
    for _, task in tasks:
        task()


def _machine(stage: Stage, now: float) -> None:
    """Temperatures that go up and down, power caps that come and go, counters that grow."""
    for gpu in stage.gpus.gpus:
        if gpu.utilization:
            gpu.temperature = 68 + 9 * math.sin(now / 240 + gpu.index)
            capped = math.sin(now / 90 + 2 * gpu.index) > 0.7
            gpu.reasons = 0x4 if capped else 0
            gpu.sm_clock = 1815.0 if capped else 1980.0
    warm = stage.gpus[6]
    if 2000 <= now < 2006 and warm.utilization:
        warm.temperature, warm.reasons, warm.sm_clock = 86.0, 0x20, 1830.0


def _busy(stage: Stage, busy: bool) -> None:
    """Whether the GPUs work; without work there is hardly any traffic."""
    for gpu in stage.gpus.gpus:
        gpu.utilization = 97 if busy else 0
        gpu.pcie = 9.0e9 if busy else 3.0e7
        gpu.nvlink = [2.1e10 if busy else 0.0] * len(gpu.nvlink)
        gpu.sm_clock, gpu.reasons = (1980.0, 0) if busy else (1155.0, 0x1)


def _checkpoint(stage: Stage, step: int, tasks: list[Any], now: float) -> float:
    stage.ranks[0].print(f"[rank0]: saving checkpoint to /checkpoints/step_{step}")
    _busy(stage, False)

    def saved() -> None:
        stage.ranks[0].print(f"[rank0]: saved checkpoint /checkpoints/step_{step} in 38.42 s")
        _busy(stage, True)

    _later(tasks, now + 38, saved)
    return 40.0


def _evaluation(stage: Stage, step: int, tasks: list[Any], now: float) -> float:
    stage.ranks[0].print(f"[rank0]: running evaluation at step {step}")

    def done() -> None:
        numbers = "{'eval_loss': 2.2811, 'eval_runtime': 48.2, 'eval_samples_per_second': 210.3, 'epoch': 0.31}"
        stage.ranks[0].print(numbers)

    _later(tasks, now + 48, done)
    return 50.0


def _later(tasks: list[Any], when: float, task: Any) -> None:
    tasks.append((when, task))
    tasks.sort(key=lambda one: one[0])


def _happenings(stage: Stage) -> Iterator[tuple[float, Any]]:
    """What happens at its time, beside the training."""
    for second, line in WARNINGS:
        rank = stage.ranks[second % len(stage.ranks)]
        yield second, lambda rank=rank, line=line: rank.print(line, "stderr")
    for second, line in CHATTER:
        yield second, lambda line=line: stage.kernel.say(line)
    for second in range(300, int(HOUR), 300):
        yield second, lambda: stage.api.condition(stage.node, Ready="True")
    for second, attribute, value in ((1500, "blank", True), (1560, "blank", False)):
        yield second, lambda attribute=attribute, value=value: setattr(stage.gpus, attribute, value)
    for second, value in ((2400, True), (2520, False)):
        yield second, lambda value=value: setattr(stage.dcgm, "down", value)
        yield second, lambda value=value: setattr(stage.node_exporter, "down", value)
    yield from _others(stage)


def _others(stage: Stage) -> Iterator[tuple[float, Any]]:
    """Pods of other people: one crashes and is restarted, one ends, one is deleted and does not listen."""
    api, node = stage.api, stage.node
    assert isinstance(api, Cluster)
    pods: dict[str, Any] = {}
    logs: dict[str, Container] = {}

    def make(name: str) -> None:
        pods[name] = api.pod(name, node, labels={"app": name})
        logs[name] = Container(stage.place / "pods", pods[name], stage.clock)
        stage.others.append(logs[name])
        for reason in ("Scheduled", "Pulled", "Created", "Started"):
            api.event(pods[name], reason, f"{reason} container main", node, type="Normal")
        api.status(name, running(stage.clock()))

    def ended(name: str, reason: str, code: int, restarts: int) -> None:
        end = {"reason": reason, "exitCode": code, "startedAt": stamp(stage.clock() - 90),
               "finishedAt": stamp(stage.clock())}  # fmt: skip
        again = {"running": {"startedAt": stamp(stage.clock())}} if restarts else {"terminated": end}
        status = {"name": "main", "image": "i", "imageID": "", "ready": bool(restarts), "restartCount": restarts,
                  "state": again, **({"lastState": {"terminated": end}} if restarts else {})}  # fmt: skip
        api.status(name, {"phase": "Running" if restarts else "Succeeded" if code == 0 else "Failed",
                          "containerStatuses": [status]})  # fmt: skip

    def job(name: str, rank: int) -> None:
        labels = {"training.kubeflow.org/job-name": "tune", "gen-ai.training.io/rank": str(rank)}
        pods[name] = api.pod(name, node, labels=labels)
        logs[name] = Container(stage.place / "pods", pods[name], stage.clock)
        stage.others.append(logs[name])
        logs[name].print(report(3, rank, 4.0))
        api.status(name, running(stage.clock()))

    # Another job, which trains for some minutes until somebody deletes it.
    for rank in range(2):
        name = f"tune-worker-{rank}"
        yield 1400, lambda name=name, rank=rank: job(name, rank)
        for step in range(4, 80):
            yield 1400 + 4 * step, lambda name=name, rank=rank, step=step: logs[name].print(report(step, rank, 4.0))
        yield 1730, lambda name=name: api.delete(name)
        yield 1731, lambda name=name: api.event(pods[name], "Killing", "Stopping container main", node, type="Normal")
        yield 1732 + 29 * rank, lambda name=name, rank=rank: ended(name, "Error", 137 if rank else 143, 0)
    yield 100, lambda: make("web-0")
    yield 150, lambda: logs["web-0"].print('INFO: 10.2.0.9 - "GET /healthz HTTP/1.1" 200 OK')
    yield 800, lambda: api.event(pods["web-0"], "Unhealthy", "Readiness probe failed: HTTP probe failed with "
                                 "statuscode: 503", node)  # fmt: skip
    yield 1000, lambda: ended("web-0", "Error", 1, 1)
    yield (
        1010,
        lambda: api.event(pods["web-0"], "BackOff", "Back-off restarting failed container main in pod web-0", node),
    )
    yield 1500, lambda: make("report-28901")
    yield 1620, lambda: ended("report-28901", "Completed", 0, 0)
    yield 2200, lambda: make("notebook-0")
    yield 2600, lambda: api.delete("notebook-0")
    yield 2601, lambda: api.event(pods["notebook-0"], "Killing", "Stopping container main", node, type="Normal")
    yield 2631, lambda: ended("notebook-0", "Error", 137, 0)
    yield 2800, lambda: api.event(api.pod("pending-0", ""), "FailedScheduling", "0/12 nodes are available: 12 "
                                  "Insufficient nvidia.com/gpu.", "")  # fmt: skip
