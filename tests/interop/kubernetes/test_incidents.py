"""A whole agent over a real API server: what happens to pods and nodes there comes out as verdicts, by name."""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

pytestmark = pytest.mark.interop
ROOT = Path(__file__).resolve().parents[3]


class Agent:
    """The agent that is deployed for a cluster, with an exporter to a file and a short window for pattern 9."""

    def __init__(self, server: Any, place: Path) -> None:
        deployed = YAML(typ="safe").load((ROOT / "deploy/kustomize/base/config/cluster.yaml").read_text())
        base = ROOT / "deploy/kustomize/base/rbac.yaml"
        roles = [d for d in YAML(typ="safe").load_all(base.read_text()) if d and d["kind"] == "ClusterRole"]
        role = next(d for d in roles if d["metadata"]["name"].endswith("cluster"))
        token = server.account("incident-agent", role["rules"])
        self.out = place / "verdicts.json"
        receivers = {
            "k8sobjects": {**deployed["receivers"]["k8sobjects"], "auth_type": "kubeConfig"},
            "otlp": {"protocols": {"http": {"endpoint": "127.0.0.1:0"}}},
        }
        configuration = {
            "extensions": {"file_storage": {"directory": str(place / "state"), "create_directory": True}},
            "receivers": receivers,
            "processors": {
                "patterndetector": {"forward": "verdicts", "patterns": {"nccl_bootstrap": {"window": "5s"}}}
            },
            "exporters": {"file": {"path": str(self.out)}},
            "service": {
                "extensions": ["file_storage"],
                "telemetry": {"metrics": {"level": "none"}},
                "pipelines": {
                    "logs": {
                        "receivers": list(receivers),
                        "processors": ["patterndetector"],
                        "exporters": ["file"],
                    }
                },
            },
        }
        (place / "agent.json").write_text(json.dumps(configuration))
        self._log = place / "agent.log"
        kubeconfig = server.kubeconfig(place / "kubeconfig", token)
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tracecore", "run", "--config", str(place / "agent.json")],
                stdout=log, stderr=log, env={**os.environ, "KUBECONFIG": str(kubeconfig)},
            )  # fmt: skip

    @property
    def log(self) -> str:
        return self._log.read_text(errors="replace")

    def send(self, resource: dict[str, str], line: str) -> None:
        port = int(re.findall(r"over http on port (\d+)", self.log)[-1])
        entries = [{"key": key, "value": {"stringValue": value}} for key, value in resource.items()]
        record = {"timeUnixNano": str(time.time_ns()), "body": {"stringValue": line}}
        body = {"resourceLogs": [{"resource": {"attributes": entries}, "scopeLogs": [{"logRecords": [record]}]}]}
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
        connection.request("POST", "/v1/logs", json.dumps(body), {"Content-Type": "application/json"})
        assert connection.getresponse().status == 200
        connection.close()

    def verdicts(self) -> list[dict[str, Any]]:
        """Active verdicts, each with its attributes."""
        found = []
        for line in self.out.read_text().splitlines() if self.out.exists() else ():
            for entry in json.loads(line)["resourceLogs"]:
                for scope in entry["scopeLogs"]:
                    for record in scope["logRecords"]:
                        pairs = {a["key"]: next(iter(a["value"].values())) for a in record["attributes"]}
                        if pairs["verdict.status"] == "active":
                            found.append(pairs)
        return found

    def named(self, pattern: str, text: str) -> list[dict[str, Any]]:
        return [v for v in self.verdicts() if v["pattern.name"] == pattern and text in v["pattern.verdict_json"]]

    def stop(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        assert self.process.wait(30) == 0, self.log


@pytest.fixture(scope="module")
def agent(server: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Agent]:
    one = Agent(server, tmp_path_factory.mktemp("agent"))
    deadline = time.monotonic() + 60
    while "over http on port" not in one.log:
        assert one.process.poll() is None, one.log
        assert time.monotonic() < deadline, one.log
        time.sleep(0.1)
    yield one
    if one.process.poll() is None:
        one.process.kill()
        one.process.wait()


def ready(when: str) -> dict[str, Any]:
    return {"phase": "Running", "conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": when}]}


def now(seconds: float = 0.0) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() + seconds))


Until = Callable[..., Any]


def test_an_eviction_under_memory_pressure(server: Any, agent: Agent, until: Until) -> None:
    server.node("gpu-1", Ready="True", MemoryPressure="False")
    pod = server.pod("evicted-0", "gpu-1")
    server.status("evicted-0", ready(now()))
    server.condition("gpu-1", MemoryPressure="True")
    time.sleep(1.1)  # conditions have a resolution of a second, and the eviction comes after
    note = "The node was low on resource: memory. Threshold quantity: 100Mi, available: 81Mi."
    server.event(pod, "Evicted", note, "gpu-1")
    server.status("evicted-0", server.evicted(note))
    verdict = until(lambda: agent.named("pod_evicted", "evicted-0"))[-1]
    full = until(lambda: [v for v in agent.named("pod_evicted", "evicted-0") if v["pattern.confidence"] == "full"])
    assert "default/evicted-0 was evicted from gpu-1" in full[-1]["pattern.headline"]
    assert "memory pressure" in full[-1]["pattern.headline"]
    # The event and the pod's own state say the same thing: one verdict, told again only when more was known.
    assert {v["verdict.id"] for v in agent.named("pod_evicted", "evicted-0")} == {verdict["verdict.id"]}


def test_an_xid_and_then_an_eviction(server: Any, agent: Agent, until: Until) -> None:
    server.node("gpu-2", Ready="True")
    pod = server.pod("doomed-0", "gpu-2")
    line = "NVRM: Xid (PCI:0000:3b:00): 79, pid=4711, name=python, GPU has fallen off the bus."
    agent.send({"host.name": "gpu-2", "tracecore.layer": "kernel"}, line)
    time.sleep(1.1)
    server.event(pod, "Evicted", "Pod was evicted: the node had condition: [DiskPressure].", "gpu-2")
    verdict = until(lambda: agent.named("xid_correlation", "doomed-0"))[-1]
    assert re.match(r"Xid 79 on gpu-2 → default/doomed-0 evicted \d+s later", verdict["pattern.headline"])


def test_a_container_that_was_killed_for_memory(server: Any, agent: Agent, until: Until) -> None:
    server.node("gpu-3", Ready="True")
    server.pod("greedy-0", "gpu-3", labels={"training.kubeflow.org/job-name": "llama"})
    ended = {"reason": "OOMKilled", "exitCode": 137, "startedAt": now(-60), "finishedAt": now()}
    container = {
        "name": "main", "image": "registry.example/train:2.1", "imageID": "", "ready": False, "restartCount": 1,
        "state": {"running": {"startedAt": now()}}, "lastState": {"terminated": ended},
    }  # fmt: skip
    server.status("greedy-0", {"phase": "Running", "containerStatuses": [container]})
    verdict = until(lambda: agent.named("host_oom", "greedy-0"))[-1]
    assert verdict["k8s.node.name"] == "gpu-3"
    # The kubelet tells the pod's state again and again: it was killed once.
    for restarts in (2, 3):
        server.status("greedy-0", {"message": f"told again {restarts}"})
    time.sleep(3)
    assert len({v["verdict.id"] for v in agent.named("host_oom", "greedy-0")}) == 1
    assert json.loads(verdict["pattern.verdict_json"])["evidence_trail"]


def test_a_rank_whose_network_could_not_be_set_up(server: Any, agent: Agent, until: Until) -> None:
    server.node("gpu-4", Ready="True")
    pods = []
    for rank in range(4):
        labels = {"jobset.sigs.k8s.io/jobset-name": "mixtral", "gen-ai.training.io/rank": str(rank)}
        pods.append(server.pod(f"joins-{rank}", "gpu-4", labels=labels))
    for rank in range(3):
        server.status(f"joins-{rank}", ready(now()))
    note = 'Failed to create pod sandbox: plugin type="calico" failed (add): no IP addresses available'
    server.event(pods[3], "FailedCreatePodSandBox", note, "gpu-4")
    verdict = until(lambda: agent.named("nccl_bootstrap", "mixtral"))[-1]
    assert verdict["tracecore.alert.nccl_bootstrap_timeout.discriminator"] == "cni_error"
    assert verdict["gen_ai.training.job_id"] == "default/mixtral"


def test_a_pod_whose_eviction_was_asked_for_stopped_as_planned(server: Any, agent: Agent, until: Until) -> None:
    server.node("gpu-6", Ready="True")
    server.pod("drained-0", "gpu-6", labels={"volcano.sh/job-name": "qwen"})
    server.status("drained-0", ready(now()))
    eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "drained-0"}}
    server.call("POST", "/api/v1/namespaces/default/pods/drained-0/eviction", eviction)
    verdict = until(lambda: agent.named("planned_stop", "drained-0"))[-1]
    assert verdict["gen_ai.training.job_id"] == "default/qwen"
    assert agent.named("pod_evicted", "drained-0") == []


def test_a_node_that_is_not_heard_of(server: Any, agent: Agent, until: Until) -> None:
    server.node("gpu-9", Ready="True")
    server.pod("stranded-0", "gpu-9")
    time.sleep(1.1)
    server.condition("gpu-9", Ready="Unknown")
    verdict = until(lambda: agent.named("host_lost", "gpu-9"))[-1]
    assert "gpu-9" in verdict["pattern.headline"]


def test_healthy_pods_and_nodes_say_nothing(server: Any, agent: Agent, until: Until) -> None:
    server.node("gpu-5", Ready="True", MemoryPressure="False", DiskPressure="False")
    pod = server.pod("quiet-0", "gpu-5")
    server.status("quiet-0", ready(now()))
    for reason in ("Scheduled", "Pulled", "Created", "Started"):
        server.event(pod, reason, f"{reason} container main", "gpu-5", type="Normal")
    done = {"reason": "Completed", "exitCode": 0, "startedAt": now(-60), "finishedAt": now()}
    container = {"name": "main", "image": "i", "imageID": "", "ready": False, "restartCount": 0,
                 "state": {"terminated": done}}  # fmt: skip
    server.status("quiet-0", {"phase": "Succeeded", "containerStatuses": [container]})
    time.sleep(3)
    assert [v["pattern.headline"] for v in agent.verdicts() if "quiet-0" in v["pattern.verdict_json"]] == []
    assert [v["pattern.headline"] for v in agent.verdicts() if "gpu-5" in v["pattern.verdict_json"]] == []
    agent.stop()
