# ruff: noqa: E501 (lines of logs are as long as they are)
"""Diagnose the incidents of the demo fleet and write what `tracecore serve --demo` replays.

    .venv/bin/python examples/demo-fleet/record.py

Most of them are the recorded incidents of this repository. Faults of hardware, which cannot be recorded at will, are
written here as the lines that a kernel, NCCL and Kubernetes print, and diagnosed like everything else.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import msgspec
import zstandard

from tracecore.diagnose.offline import diagnose

ROOT: Final = Path(__file__).resolve().parents[2]
TARGET: Final = ROOT / "src/tracecore/server/demo/incidents.json.zst"
BEGIN: Final = datetime(2026, 3, 1, 10, 0, tzinfo=UTC)
#: The demo puts the name of a node of its fleet here: the suspect, then its neighbours.
NODES: Final = [f"demo-node-{number}" for number in range(8)]
JOB: Final = "demo-job"

RECORDED: Final = (
    "incidents/nccl_hang_one_rank_missing", "incidents/fsdp8_loader_stuck", "incidents/mesh_hang",
    "incidents/two_stop", "incidents/tp_dp_flock", "incidents/spinning_kernel", "incidents/network_down",
    "incidents/nccl_rank_exception", "incidents/oom_one_rank", "incidents/fsdp_oom", "incidents/keeps_everything",
    "incidents/cgroup_oom_loader", "incidents/torchrun_cgroup_oom", "incidents/checkpoint_stuck",
    "incidents/sharded_save", "incidents/checkpoint_full", "incidents/dl_stale", "incidents/disk_answers_wrong",
    "incidents/mount_is_gone", "incidents/late_rank", "incidents/half_a_cluster", "incidents/duplicate_rank",
    "incidents/nan_in_one", "incidents/nan_raises", "incidents/exploding", "incidents/slow_rank",
    "incidents/slow_in_json", "incidents/mismatch_op", "incidents/uneven_gather", "incidents/moe_splits",
    "incidents/device_assert", "incidents/out_of_bounds", "incidents/segfault", "incidents/import_error",
    "incidents/loader_killed_then_hangs", "incidents/loader_bad_row", "incidents/preempted",
    "incidents/late_to_the_barrier", "incidents/second_node_raises", "incidents-2/experts_disagree",
    "incidents-2/sharded_save_full", "incidents-2/wrong_checkpoint", "incidents-2/loader_worker_killed",
)  # fmt: skip


def stamp(seconds: float) -> str:
    return (BEGIN + timedelta(seconds=seconds)).strftime("%Y-%m-%dT%H:%M:%S.%f")


class Bundle:
    """The leftovers of a run of `ranks` ranks, eight on each node."""

    def __init__(self, folder: Path, ranks: int) -> None:
        self.folder, self.ranks = folder, ranks
        self._logs: dict[str, list[tuple[float, str]]] = {}
        for rank in range(ranks):
            node = NODES[rank // 8]
            self.say(
                rank,
                0,
                f"{node}:{2200 + rank}:{2200 + rank} [{rank % 8}] NCCL INFO comm 0x5581 rank {rank} nranks "
                f"{ranks} cudaDev {rank % 8} nvmlDev {rank % 8} busId {self.bus(rank)[5:7]}000 commId 0x77a1 - Init START",
            )
            for step in range(1, 31):
                self.say(
                    rank,
                    step * 10,
                    f"step {step * 100} loss {2.4 - step / 40:.4f} iter_time {1.04 + (rank % 5) / 100:.3f}",
                )

    def bus(self, rank: int) -> str:
        return f"0000:{(0x1B, 0x43, 0x52, 0x61, 0x9D, 0xC3, 0xD1, 0xDF)[rank % 8]:02x}:00.0"

    def say(self, rank: int, at: float, text: str) -> None:
        self._logs.setdefault(f"rank{rank}.log", []).append((at, f"{stamp(at)[:23]}Z {text}"))

    def kernel(self, node: str, at: float, text: str) -> None:
        self._logs.setdefault(f"{node}/dmesg.log", []).append((at, f"{stamp(at)[:26]}+00:00 {node} kernel: {text}"))

    def event(
        self, node: str, at: float, reason: str, note: str, kind: str = "Pod", name: str = "train-worker-1"
    ) -> None:
        item = {
            "apiVersion": "v1", "kind": "Event", "metadata": {"name": f"{name}.{reason.lower()}", "namespace": "train"},
            "involvedObject": {"kind": kind, "name": node if kind == "Node" else name, "namespace": "train"},
            "reason": reason, "message": note, "type": "Warning", "firstTimestamp": f"{stamp(at)[:19]}Z",
            "lastTimestamp": f"{stamp(at)[:19]}Z", "source": {"component": "kubelet", "host": node},
        }  # fmt: skip
        self._logs.setdefault("events.json", []).append((at, json.dumps(item)))

    def timeout(self, at: float, gone: range = range(0)) -> None:
        """The other ranks wait in a collective until the watchdog ends them."""
        for rank in range(self.ranks):
            if rank not in gone:
                self.say(
                    rank,
                    at + rank / 1000,
                    f"[rank{rank}]:[E ProcessGroupNCCL.cpp:616] [Rank {rank}] Watchdog caught collective "
                    "operation timeout: WorkNCCL(SeqNum=3021, OpType=ALLREDUCE, NumelIn=4194304, NumelOut=4194304, "
                    "Timeout(ms)=600000) ran for 600021 milliseconds before timing out.",
                )

    def write(self) -> None:
        for name, lines in self._logs.items():
            path = self.folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            said = [text for _, text in sorted(lines, key=lambda line: line[0])]
            if name == "events.json":
                path.write_text(
                    json.dumps({"apiVersion": "v1", "kind": "List", "items": [json.loads(one) for one in said]})
                )
            else:
                path.write_text("\n".join(said) + "\n")


def lost_gpu(run: Bundle) -> None:
    """A GPU falls off the bus; its rank dies and everybody else waits for it."""
    run.kernel(
        NODES[0], 305.2, f"NVRM: Xid (PCI:{run.bus(5)[:-2]}): 79, pid=2205, name=python3, GPU has fallen off the bus."
    )
    run.kernel(NODES[0], 305.3, f"NVRM: GPU {run.bus(5)}: GPU has fallen off the bus.")
    run.say(5, 306, "[rank5]: Traceback (most recent call last):")
    run.say(5, 306.001, '[rank5]:   File "/workspace/train.py", line 214, in <module>')
    run.say(5, 306.002, "[rank5]:     loss.backward()")
    run.say(5, 306.003, "[rank5]: RuntimeError: CUDA error: unspecified launch failure")
    run.timeout(905, range(5, 6))


def memory_error(run: Bundle) -> None:
    """A double-bit error in GPU memory."""
    run.kernel(
        NODES[0],
        304.5,
        f"NVRM: Xid (PCI:{run.bus(3)[:-2]}): 48, pid=2203, name=python3, DBE (double bit error) ECC Error has occurred in row 0x1a4f",
    )
    run.kernel(
        NODES[0],
        304.6,
        f"NVRM: Xid (PCI:{run.bus(3)[:-2]}): 63, pid=2203, name=python3, Row Remapper: New row marked for remapping, reset gpu to activate.",
    )
    run.say(3, 305, "[rank3]: Traceback (most recent call last):")
    run.say(3, 305.001, '[rank3]:   File "/workspace/train.py", line 214, in <module>')
    run.say(3, 305.003, "[rank3]: RuntimeError: CUDA error: uncorrectable ECC error encountered")
    run.timeout(904, range(3, 4))


def nvlink(run: Bundle) -> None:
    """A link between GPUs reports a fatal error."""
    run.kernel(
        NODES[0],
        305,
        f"NVRM: Xid (PCI:{run.bus(2)[:-2]}): 74, pid=2202, name=python3, NVLink: fatal error detected on link 5(0x10000, 0x0, 0x0, 0x0, 0x0, 0x0, 0x0)",
    )
    run.timeout(905)


def port_flap(run: Bundle) -> None:
    """A port of the fabric goes down and up, and connections break."""
    for at in (301, 303, 305):
        run.kernel(NODES[0], at, "mlx5_core 0000:5e:00.0 mlx5_1: Port: 1 Link DOWN")
        run.kernel(NODES[0], at + 0.8, "mlx5_core 0000:5e:00.0 mlx5_1: Port: 1 Link ACTIVE")
    run.say(
        1,
        306,
        f"{NODES[0]}:2201:2390 [1] NCCL WARN NET/IB : Got completion from peer 10.2.0.14<48123> with status=12 opcode=0 len=0 vendor err 129 (Recv) hca mlx5_1",
    )
    run.say(
        1,
        306.2,
        "[rank1]: torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:2036, remote process exited or there was a network error, NCCL version 2.21.5",
    )


def evicted(run: Bundle) -> None:
    """A node runs short of memory and a pod is evicted."""
    run.event(NODES[0], 300, "EvictionThresholdMet", "Attempting to reclaim memory", "Node")
    run.event(
        NODES[0],
        304,
        "Evicted",
        "The node was low on resource: memory. Container train was using 812Gi, request is 0, has larger consumption of memory.",
    )


def host_gone(run: Bundle) -> None:
    """A machine is not heard any more."""
    run.event(NODES[0], 320, "NodeNotReady", f"Node {NODES[0]} status is now: NodeNotReady", "Node")
    for rank in range(8, 16):
        run.say(
            rank,
            330,
            f"[rank{rank}]: torch.distributed.DistBackendError: NCCL error: remote process exited or there was a network error. Last error: socketProgress: Connection closed by remote peer {NODES[0]}<41812>",
        )


def pcie(run: Bundle) -> None:
    """The PCIe link of a GPU errs and everything through it is slow, then the device is gone."""
    for at in range(290, 305, 2):
        run.kernel(NODES[0], at, f"pcieport 0000:97:01.0: AER: Corrected error message received from {run.bus(4)}")
        run.kernel(
            NODES[0],
            at + 0.1,
            f"nvidia {run.bus(4)}: PCIe Bus Error: severity=Corrected, type=Physical Layer, (Receiver ID)",
        )
    run.kernel(
        NODES[0], 305, f"pcieport 0000:97:01.0: AER: Uncorrected (Fatal) error message received from {run.bus(4)}"
    )
    run.kernel(
        NODES[0],
        305.1,
        f"nvidia {run.bus(4)}: PCIe Bus Error: severity=Uncorrected (Fatal), type=Transaction Layer, (Requester ID)",
    )
    run.timeout(905, range(4, 5))


WRITTEN: Final[tuple[tuple[Callable[[Bundle], None], int], ...]] = (
    (lost_gpu, 64), (memory_error, 32), (nvlink, 16), (port_flap, 32), (evicted, 16), (host_gone, 16), (pcie, 32),
)  # fmt: skip


def main() -> None:
    found: list[dict[str, Any]] = []
    for name in RECORDED:
        found += _incidents(ROOT / "examples" / name, name.rpartition("/")[2])
    for play, ranks in WRITTEN:
        with tempfile.TemporaryDirectory() as folder:
            run = Bundle(Path(folder), ranks)
            play(run)
            run.write()
            found += _incidents(Path(folder), play.__name__, ranks)
    TARGET.parent.mkdir(parents=True, exist_ok=True)
    text = "[\n" + ",\n".join(msgspec.json.encode(one).decode() for one in found) + "\n]\n"
    TARGET.write_bytes(zstandard.compress(text.encode(), 19))
    for one in found:
        print(f"{one['name']:28} {one['pattern'] or '-':22} {one['ranks']:4} {one['incident']['headline'][:110]}")
    print(f"{len(found)} incidents, {TARGET.stat().st_size:,} bytes")


def _incidents(folder: Path, name: str, ranks: int = 0) -> list[dict[str, Any]]:
    text = msgspec.json.encode(diagnose([folder]).document()).decode().replace(f"{folder}/", "")
    document = json.loads(text)
    held = {verdict["verdict.id"]: verdict for verdict in document["verdicts"]}
    made = []
    for incident in document["incidents"][:1]:
        root = incident["root_cause"]
        own = [
            *([root["verdict"]] if root else []),
            *incident["explains"],
            *(one["verdict"] for one in incident["alternatives"]),
        ]
        known = [rank for row in incident["timeline"] for pair in row.get("ranks", ()) for rank in pair]
        made.append(
            {
                "name": name,
                "pattern": root["pattern"] if root else "",
                "ranks": ranks or max([*known, *incident["suspects"]["ranks"], 3]) + 1,
                "incident": incident,
                "verdicts": [held[one] for one in own[:8] if one in held],
            }
        )
    return made


if __name__ == "__main__":
    main()
