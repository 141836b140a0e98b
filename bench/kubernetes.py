"""What Kubernetes costs an agent: the pods of a large cluster, the look-up for each record, a storm of events.

An HTTP server here speaks as an API server does; pods and events have the size that real ones have.
"""

from __future__ import annotations

import http.client
import http.server
import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from bench import Measurement

PODS = 10_000
LOOKUPS = 200_000
#: Records of one resource in a batch: what one container writes in the time of one batch.
TOGETHER = 16
EVENTS = 5_000
SECONDS = 12
#: Times the watch is cut off in the middle of the storm.
CUTS = 3


def pod(number: int) -> dict[str, Any]:
    """A training pod of eight kilobytes, most of which nobody needs."""
    job, rank = divmod(number, 64)
    names = ("image", "name", "resources", "env", "ports", "volumeMounts", "command")
    fields: dict[str, Any] = {f"f:{name}": {} for name in names}
    owned = {f"f:spec{n}": fields for n in range(8)}
    managed = {"manager": "training-operator", "operation": "Update", "fieldsV1": owned}
    labels = {
        "training.kubeflow.org/job-name": f"llama-{job}", "training.kubeflow.org/replica-index": str(rank),
        "training.kubeflow.org/replica-type": "worker", "gen-ai.training.io/rank": str(rank),
        "training.kubeflow.org/operator-name": "pytorchjob-controller", "app.kubernetes.io/name": "trainer",
        "team": f"team-{job % 40}",
    }  # fmt: skip
    annotations = {
        "kubectl.kubernetes.io/last-applied-configuration": "x" * 3000,
        "cni.projectcalico.org/podIP": "10.0.0.1/32",
        "nvidia.com/gpu-PCIDeviceBusID": f"0000:{number % 200 + 16:02x}:00.0",
    }
    main = {
        "name": "pytorch", "image": "registry.example/ml/train:2.11-cuda13",
        "env": [{"name": f"NCCL_SETTING_{n}", "value": "some-value"} for n in range(20)],
        "resources": {"limits": {"nvidia.com/gpu": "1", "memory": "200Gi"}},
        "volumeMounts": [{"name": f"data-{n}", "mountPath": f"/data/{n}"} for n in range(6)],
    }  # fmt: skip
    at = "2026-11-15T01:00:20Z"
    conditions = [
        {"type": kind, "status": "True", "lastTransitionTime": at} for kind in ("Ready", "Initialized", "PodScheduled")
    ]
    state = {"name": "pytorch", "ready": True, "restartCount": 0, "containerID": f"containerd://{number:064x}"}
    return {
        "metadata": {
            "name": f"llama-{job}-worker-{rank}", "namespace": f"team-{job % 40}",
            "uid": f"0000{number:04x}-6505-4702-86eb-0c68d084677d", "resourceVersion": str(1000 + number),
            "creationTimestamp": at, "managedFields": [managed], "labels": labels, "annotations": annotations,
            "ownerReferences": [{"kind": "PyTorchJob", "name": f"llama-{job}", "uid": "j"}],
        },
        "spec": {
            "nodeName": f"gpu-{number // 8}",
            "containers": [main, {"name": "sidecar", "image": "registry.example/ops/side:1.0"}],
            "tolerations": [{"key": f"node.kubernetes.io/{n}", "operator": "Exists"} for n in range(6)],
        },
        "status": {
            "phase": "Running", "podIP": f"10.{number >> 16}.{number >> 8 & 255}.{number & 255}",
            "startTime": at, "conditions": conditions, "containerStatuses": [state],
        },
    }  # fmt: skip


def _template() -> bytes:
    """A line of a watch, with places for what differs: made once, since this machine also runs the agent."""
    pod = {"kind": "Pod", "namespace": "ml", "name": "worker-%(pod)d", "uid": "p-%(pod)d", "apiVersion": "v1"}
    managed = {"manager": "kubelet", "operation": "Update", "fieldsV1": {"f:count": {}, "f:reason": {}}}
    body = {
        "kind": "Event", "apiVersion": "v1",
        "metadata": {
            "name": "worker-%(pod)d.%(number)x", "namespace": "ml", "uid": "e-%(number)d",
            "resourceVersion": "%(version)d", "creationTimestamp": "%(now)s", "managedFields": [managed],
        },
        "involvedObject": pod, "reason": "%(reason)s",
        "message": "%(reason)s: container pytorch of the training job, attempt %(number)d",
        "source": {"component": "kubelet", "host": "gpu-%(node)d"}, "firstTimestamp": "%(now)s",
        "lastTimestamp": "%(now)s", "count": 1, "type": "Normal", "reportingComponent": "kubelet",
    }  # fmt: skip
    return json.dumps({"type": "ADDED", "object": body}, separators=(",", ":")).encode() + b"\n"


TEMPLATE = _template()
#: One in ten is of a kind that the detector looks at.
REASONS = (b"Pulled", b"Created", b"Started", b"Scheduled", b"SuccessfulCreate", b"Killing", b"Pulling", b"BackOff",
           b"NodeReady", b"Completed")  # fmt: skip


def event(number: int, now: str) -> bytes:
    """A line of a watch: an ordinary event of a busy cluster."""
    return TEMPLATE % {
        b"pod": number % 5000, b"number": number, b"version": number + 2, b"now": now.encode(),
        b"reason": REASONS[number % 10], b"node": number % 600,
    }  # fmt: skip


class Cluster:
    """An API server that lists pods in pages and, once told to, tells events at a pace."""

    def __init__(self, pods: int = 0) -> None:
        self._items = [json.dumps(pod(number), separators=(",", ":")).encode() for number in range(pods)]
        self.told = 0
        self.go = threading.Event()
        self.watching = threading.Event()
        self._end = threading.Event()
        cluster = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                parts = urlsplit(self.path)
                query = {name: values[0] for name, values in parse_qs(parts.query).items()}
                if query.get("watch"):
                    cluster.watch(self, query)
                    return
                start, limit = int(query.get("continue", "0")), int(query.get("limit", "500"))
                some = cluster._items[start : start + limit]
                more = str(start + limit) if start + limit < len(cluster._items) else ""
                version = str(max(len(cluster._items) + 2000, cluster.told + 1))
                meta = json.dumps({"resourceVersion": version if cluster._items else "1", "continue": more})
                body = b'{"kind":"PodList","apiVersion":"v1","metadata":%s,"items":[%s]}' % (
                    meta.encode(),
                    b",".join(some),
                )
                self.send_response(200)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: Any) -> None:
                pass

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()
        self.environment = {
            **os.environ, "KUBERNETES_SERVICE_HOST": "127.0.0.1",
            "KUBERNETES_SERVICE_PORT": str(self._server.server_address[1]),
        }  # fmt: skip

    def watch(self, request: Any, query: dict[str, str]) -> None:
        request.send_response(200)
        request.send_header("Transfer-Encoding", "chunked")
        request.end_headers()
        self.watching.set()
        if self._items:
            self._end.wait()
            return
        # A watch goes on after the version it asks for, as a real one does: what was cut off is told again.
        number = max(int(query["resourceVersion"]) - 1, 0)
        stop = min(
            (number // (EVENTS * SECONDS // (CUTS + 1)) + 1) * (EVENTS * SECONDS // (CUTS + 1)), EVENTS * SECONDS
        )
        self.go.wait()
        now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        begin, first = time.monotonic(), number
        while number < stop and not self._end.is_set():
            due = min(first + int((time.monotonic() - begin) * EVENTS) + 1, stop)
            if due > number:
                chunk = b"".join(event(n, now) for n in range(number, due))
                request.wfile.write(b"%x\r\n%s\r\n" % (len(chunk), chunk))
                number = due
                self.told = max(self.told, number)
            time.sleep(0.01)
        if number >= EVENTS * SECONDS:
            self._end.wait()
        # Cut off, without the end of the body.
        request.close_connection = True
        request.connection.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._end.set()
        self.go.set()
        self._server.shutdown()
        self._server.server_close()


# -- pods --------------------------------------------------------------------------------------------------------------

CHILD = """
import json, sys, time
from pathlib import Path
from tracecore.agent.component import Setting
from tracecore.agent.memory import resident_bytes
from tracecore.agent.telemetry import Meter
from tracecore.agent.processors.k8sattributes import K8sAttributes
from tracecore.agent.processors.k8sattributes_options import Options
from bench.kubernetes import lookups
meter = Meter("processor", "k8sattributes")
setting = Setting("k8sattributes", meter, time.time_ns, {}.__getitem__, Path(), lambda: (True, {}))
before = resident_bytes()
processor = K8sAttributes(Options(auth_type="none"), setting)
processor.start()
assert processor._pods.following.synced.wait(300), meter.degraded_reason
after = resident_bytes()
json.dump({"known": len(processor._pods), "before": before, "after": after, "lookup": lookups(processor)}, sys.stdout)
processor.stop()
"""


def lookups(processor: Any) -> dict[str, float]:
    """Seconds of CPU for each record: one that has a resource of its own, and one of several of a resource."""
    from tracecore.agent.batch import Batch

    numbers = [(n * 7919) % PODS for n in range(LOOKUPS)]
    named = [pod(number)["metadata"] for number in range(PODS)]
    found = {}
    for name, together in (("alone", 1), ("together", TOGETHER)):
        records = [{"body": "x"}] * together
        batches = [
            Batch(
                "logs",
                {
                    "resource_logs": [
                        {
                            "resource": {
                                "attributes": {
                                    "k8s.pod.uid": named[n]["uid"],
                                    "k8s.container.name": "pytorch",
                                    "log.file.path": "/var/log/pods/x/0.log",
                                }
                            },
                            "scope_logs": [{"log_records": records}],
                        }
                        for n in numbers[at : at + 512]
                    ]
                },
                count=512 * together,
            )
            for at in range(0, LOOKUPS // together, 512)
        ]
        begin = time.process_time()
        for batch in batches:
            (_,) = processor.process(batch)
        spent = time.process_time() - begin
        last = batches[-1].payload["resource_logs"][0]["resource"]["attributes"]
        assert last["gen_ai.training.job_id"].startswith("llama-"), last
        found[name] = spent / sum(len(b.payload["resource_logs"]) * together for b in batches)
    return found


def cache() -> dict[str, Any]:
    cluster = Cluster(PODS)
    try:
        done = subprocess.run(
            [sys.executable, "-c", CHILD],
            env=cluster.environment,
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )
        if done.returncode:
            raise RuntimeError(done.stderr[-2000:])
        found: dict[str, Any] = json.loads(done.stdout)
    finally:
        cluster.close()
    if found["known"] != PODS:
        raise RuntimeError(f"{found['known']} pods are known")
    return found


# -- events ------------------------------------------------------------------------------------------------------------

CONFIGURATION = """
receivers:
  k8sobjects:
    auth_type: none
    objects: [{name: events, mode: watch}]
processors:
  patterndetector: {forward: verdicts}
exporters:
  debug: {}
service:
  telemetry: {metrics: {readers: [{pull: {exporter: {prometheus: {host: 127.0.0.1, port: 0}}}}]}}
  pipelines:
    logs: {receivers: [k8sobjects], processors: [patterndetector], exporters: [debug]}
"""


class Agent:
    def __init__(self, place: Path, environment: dict[str, str]) -> None:
        (place / "agent.yaml").write_text(CONFIGURATION)
        self._log = place / "log"
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tracecore", "run", "--config", str(place / "agent.yaml")],
                stdout=log, stderr=log, env=environment,
            )  # fmt: skip
        deadline = time.monotonic() + 60
        while not (found := re.findall(r"own metrics and health on http://[^:]+:(\d+)", self._log.read_text())):
            if time.monotonic() > deadline or self.process.poll() is not None:
                raise RuntimeError(self._log.read_text()[-2000:])
            time.sleep(0.1)
        self._port = int(found[-1])

    def numbers(self) -> dict[str, float]:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=30)
        connection.request("GET", "/metrics")
        text = connection.getresponse().read().decode()
        connection.close()
        return {name: float(value) for name, value in _numbers(text)}

    def spent(self) -> float:
        """Seconds of CPU."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def stop(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(30)


def _numbers(text: str) -> Iterator[tuple[str, str]]:
    for line in text.splitlines():
        if line.startswith('tracecore_component_received_total{kind="receiver"'):
            yield "received", line.rpartition(" ")[2]
        elif line.startswith("tracecore_process_resident_bytes "):
            yield "memory", line.rpartition(" ")[2]


def storm() -> dict[str, float]:
    cluster = Cluster()
    total = EVENTS * SECONDS
    with tempfile.TemporaryDirectory() as place:
        agent = Agent(Path(place), cluster.environment)
        try:
            if not cluster.watching.wait(60):
                raise RuntimeError("no watch was opened")
            spent, begin = agent.spent(), time.monotonic()
            cluster.go.set()
            peaks: list[tuple[float, float]] = []
            while time.monotonic() - begin < 5 * SECONDS:
                numbers = agent.numbers()
                peaks.append((numbers["received"], numbers["memory"]))
                if numbers["received"] >= total:
                    break
                time.sleep(0.25)
            took = time.monotonic() - begin
            time.sleep(1.0)
            received = agent.numbers()["received"]
            half = max(memory for count, memory in peaks if count <= total / 2)
            return {
                "lost": total - min(received, total),
                "doubled": max(received - total, 0),
                "memory": max(memory for _, memory in peaks) / (1 << 20),
                "growth": (max(memory for _, memory in peaks) - half) / (1 << 20),
                "core": 100 * EVENTS * (agent.spent() - spent) / received,
                "rate": received / took,
            }
        finally:
            agent.stop()
            cluster.close()


def measure() -> list[Measurement]:
    pods, found = cache(), storm()
    mib = 1 << 20
    about = f"{PODS:,} pods of 8 kB; the process has {pods['before'] / mib:.0f} MiB without them"
    events = f"{EVENTS:,} a second for {SECONDS} s, the watch cut off {CUTS} times"
    return [
        Measurement("kubernetes.pods.memory", round(pods["after"] / mib, 1), "MiB", "≤ 150", about),
        Measurement(
            "kubernetes.lookup", round(1e6 * pods["lookup"]["together"], 3), "µs for each record", "≤ 1",
            f"{TOGETHER} records of a resource; alone {1e6 * pods['lookup']['alone']:.2f} µs",
        ),
        Measurement("kubernetes.events.lost", found["lost"], "events", "≤ 0", events),
        Measurement("kubernetes.events.doubled", found["doubled"], "events", "≤ 0", "told again after a cut"),
        Measurement("kubernetes.events.memory", round(found["memory"], 1), "MiB", "≤ 250",
                    f"{found['growth']:.0f} MiB of it since half of them"),
        Measurement("kubernetes.events.core", round(found["core"], 1), "% of a core", "≤ 100",
                    f"at {EVENTS:,} a second, by the CPU time of each; {found['rate']:,.0f} came"),
    ]  # fmt: skip
