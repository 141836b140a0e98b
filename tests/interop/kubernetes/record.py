"""Records what a real API server answers, for tests on machines that cannot have one.

    python tests/interop/kubernetes/record.py

writes `tests/data/kubernetes`: one file for each answer, the body as it came.
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

import build

import server as serving

DATA = Path(__file__).resolve().parents[2] / "data" / "kubernetes"


def main() -> None:
    program = build.apiserver()
    if isinstance(program, str) or serving.missing():
        sys.exit(str(program) if isinstance(program, str) else serving.missing())
    shutil.rmtree(DATA, ignore_errors=True)
    DATA.mkdir(parents=True)
    with tempfile.TemporaryDirectory() as place:
        server = serving.Server(program, Path(place))
        try:
            record(server)
        finally:
            server.close()


def keep(name: str, raw: bytes) -> None:
    (DATA / name).write_bytes(raw)


def record(server: Any) -> None:
    start = json.loads(server.raw("/api/v1/pods"))["metadata"]["resourceVersion"]
    play(server)
    for resource in ("pods", "nodes", "events"):
        keep(f"{resource}.list.json", server.raw(f"/api/v1/{resource}"))
        keep(f"{resource}.page.json", server.raw(f"/api/v1/{resource}?limit=2"))
        query = f"watch=1&resourceVersion={start}&timeoutSeconds=2&allowWatchBookmarks=true"
        keep(f"{resource}.watch.jsonl", server.raw(f"/api/v1/{resource}?{query}"))
    keep(
        "events.new.watch.jsonl",
        server.raw(f"/apis/events.k8s.io/v1/events?watch=1&resourceVersion={start}&timeoutSeconds=2"),
    )
    nobody = server.account("nobody", [])
    keep("forbidden.json", server.raw("/api/v1/pods", nobody))
    keep("unauthorized.json", server.raw("/api/v1/pods", "no-such-token"))
    keep("groups.json", server.raw("/apis"))
    keep("leases.resources.json", server.raw("/apis/coordination.k8s.io/v1"))
    keep("core.resources.json", server.raw("/api/v1"))
    server.compact()
    keep("expired.watch.jsonl", server.raw(f"/api/v1/events?watch=1&resourceVersion={start}&timeoutSeconds=2"))
    keep("start.txt", start.encode())


def play(server: Any) -> None:
    """A small training job to which most things happen."""
    server.namespace("ml")
    server.node("gpu-7", Ready="True", MemoryPressure="False", DiskPressure="False", PIDPressure="False")
    server.node("gpu-8", Ready="True", MemoryPressure="False", DiskPressure="False", PIDPressure="False")
    labels = {"training.kubeflow.org/job-name": "llama"}
    pods = [
        server.pod(
            f"llama-worker-{rank}", f"gpu-{7 + rank % 2}", "ml",
            labels={**labels, "gen-ai.training.io/rank": str(rank)},
            annotations={"nvidia.com/gpu-PCIDeviceBusID": f"0000:{0x3B + rank:02X}:00.0"},
        )
        for rank in range(4)
    ]  # fmt: skip
    for rank in range(4):
        status = {
            "phase": "Running", "podIP": f"10.42.0.{10 + rank}", "podIPs": [{"ip": f"10.42.0.{10 + rank}"}],
            "startTime": serving.stamp(),
            "conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": serving.stamp()}],
        }  # fmt: skip
        server.status(f"llama-worker-{rank}", status, "ml")
    time.sleep(1.1)
    server.condition("gpu-7", MemoryPressure="True")
    ended = {"reason": "OOMKilled", "exitCode": 137, "startedAt": serving.stamp(-60), "finishedAt": serving.stamp()}
    container = {
        "name": "main", "image": "registry.example/train:2.1", "imageID": "", "ready": False, "restartCount": 0,
        "state": {"terminated": ended},
    }  # fmt: skip
    server.status("llama-worker-1", {"containerStatuses": [container]}, "ml")
    time.sleep(1.1)
    note = "The node was low on resource: memory. Threshold quantity: 100Mi, available: 81Mi."
    server.event(pods[0], "Evicted", note, "gpu-7")
    server.status("llama-worker-0", serving.evicted(note), "ml")
    event = server.event(pods[2], "FailedMount", 'MountVolume.SetUp failed for volume "data"', "gpu-7")
    path = f"/api/v1/namespaces/ml/events/{event['metadata']['name']}"
    server.call("PATCH", path, {"count": 5, "lastTimestamp": serving.stamp()})
    # An eviction that somebody asked for marks the pod before it is deleted.
    eviction = {
        "apiVersion": "policy/v1",
        "kind": "Eviction",
        "metadata": {"name": "llama-worker-3", "namespace": "ml"},
    }
    server.call("POST", "/api/v1/namespaces/ml/pods/llama-worker-3/eviction", eviction)


if __name__ == "__main__":
    main()
