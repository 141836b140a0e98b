"""Pods come from an API server: here a real HTTP server that answers as one."""

from __future__ import annotations

import http.server
import queue
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tracecore.agent.batch import Batch
from tracecore.agent.component import Setting
from tracecore.agent.processors.k8sattributes import K8sAttributes
from tracecore.agent.processors.k8sattributes_options import Association, AssociationSource, Options
from tracecore.agent.processors.podfields import Annotation, Extract, PodLabel
from tracecore.agent.telemetry import Meter

Wait = Callable[..., Any]


def pod(name: str, uid: str, **status: str) -> dict[str, Any]:
    return {
        "metadata": {
            "name": name,
            "namespace": "ml",
            "uid": uid,
            "resourceVersion": "8",
            "labels": {"app.kubernetes.io/name": "trainer", "team": "vision"},
            "annotations": {"nvidia.com/gpu-bus": "0000:3b:00.0"},
            "ownerReferences": [{"kind": "ReplicaSet", "name": "trainer-5d4f8c7b9"}],
        },
        "spec": {"nodeName": "node-1", "containers": [{"name": "main", "image": "reg.example:5000/ml/train:1.2"}]},
        "status": status,
    }


class Cluster:
    def __init__(self) -> None:
        self.pods = [pod("w-0", "u0", podIP="10.0.0.1")]
        self.queries: list[str] = []
        self.events: queue.Queue[Any] = queue.Queue()
        self.status = 200
        cluster = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                cluster.queries.append(self.path)
                self.send_response(cluster.status)
                self.end_headers()
                if cluster.status != 200:
                    return
                if "watch=1" not in self.path:
                    self.wfile.write(msgspec.json.encode({"metadata": {"resourceVersion": "7"}, "items": cluster.pods}))
                    return
                while (event := cluster.events.get()) is not None:
                    self.wfile.write(msgspec.json.encode(event) + b"\n")
                    self.wfile.flush()

            def log_message(self, format: str, *args: Any) -> None:
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        threading.Thread(target=self.server.serve_forever, args=(0.05,), daemon=True).start()


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    one = Cluster()
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "127.0.0.1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", str(one.server.server_address[1]))
    monkeypatch.setenv("NODE", "node-1")
    yield one
    one.events.put(None)
    one.server.shutdown()
    one.server.server_close()


@pytest.fixture
def made() -> Iterator[Callable[..., tuple[K8sAttributes, Meter]]]:
    started: list[K8sAttributes] = []

    def make(**options: Any) -> tuple[K8sAttributes, Meter]:
        meter = Meter("processor", "k8sattributes")
        setting = Setting("k8sattributes", meter, time.time_ns, {}.__getitem__, Path(), lambda: (True, {}))
        one = K8sAttributes(Options(auth_type="none", wait_for_pod=0, **options), setting)
        one.start()
        started.append(one)
        return one, meter

    yield make
    for one in started:
        one.stop()


def through(processor: K8sAttributes, attributes: dict[str, Any]) -> dict[str, Any]:
    entry = {"resource": {"attributes": attributes}, "scope_logs": [{"log_records": [{"body": "x"}]}]}
    (batch,) = processor.process(Batch("logs", {"resource_logs": [entry]}))
    found: dict[str, Any] = batch.payload["resource_logs"][0]["resource"]["attributes"]
    return found


def test_a_resource_gets_what_the_api_knows_and_keeps_what_it_has(cluster: Cluster, made: Any) -> None:
    extract = Extract(
        metadata=(
            "k8s.pod.name",
            "k8s.node.name",
            "k8s.deployment.name",
            "k8s.container.name",
            "container.image.name",
            "container.image.tag",
        ),
        labels=[
            PodLabel(tag_name="app", key="app.kubernetes.io/name"),
            PodLabel(key_regex="te(.*)", tag_name="label.$1"),
        ],
        annotations=[Annotation(tag_name="gpu.id", key="nvidia.com/gpu-bus")],
    )
    processor, _ = made(extract=extract, wait_for_metadata=True)
    assert through(processor, {"k8s.pod.uid": "u0", "k8s.node.name": "mine"}) == {
        "k8s.pod.uid": "u0",
        "k8s.node.name": "mine",
        "k8s.pod.name": "w-0",
        "k8s.deployment.name": "trainer",
        "k8s.container.name": "main",
        "container.image.name": "reg.example:5000/ml/train",
        "container.image.tag": "1.2",
        "app": "trainer",
        "label.am": "vision",
        "gpu.id": "0000:3b:00.0",
    }
    assert through(processor, {"k8s.pod.uid": "stranger"}) == {"k8s.pod.uid": "stranger"}


@pytest.mark.parametrize(
    ("attributes", "found"),
    [
        ({"k8s.pod.ip": "10.0.0.1"}, False),
        ({"k8s.namespace.name": "ml", "k8s.pod.name": "w-0"}, True),
        ({"k8s.pod.name": "w-0"}, False),
        ({"k8s.pod.uid": 5}, False),
    ],
)
def test_pods_are_found_only_by_what_is_asked_for(cluster: Cluster, made: Any, attributes: Any, found: bool) -> None:
    names = ("k8s.namespace.name", "k8s.pod.name")
    association = Association(sources=[AssociationSource(from_="resource_attribute", name=name) for name in names])  # type: ignore[arg-type]
    processor, _ = made(pod_association=[association], wait_for_metadata=True)
    assert ("k8s.node.name" in through(processor, dict(attributes))) is found


def test_new_pods_are_learned_from_the_watch(cluster: Cluster, made: Any, wait_for: Wait) -> None:
    from tracecore.agent.processors.k8sattributes_options import Filter

    processor, _ = made(filter=Filter(node_from_env_var="NODE"), wait_for_metadata=True)
    assert "k8s.pod.name" not in through(processor, {"k8s.pod.uid": "u1"})
    cluster.events.put({"type": "ADDED", "object": pod("w-1", "u1")})
    wait_for(lambda: through(processor, {"k8s.pod.uid": "u1"}).get("k8s.pod.name") == "w-1")
    assert "fieldSelector=spec.nodeName%3Dnode-1" in cluster.queries[0]
    assert "resourceVersion=7" in cluster.queries[1]


def test_a_server_that_says_no_is_degraded_until_it_says_yes(cluster: Cluster, made: Any, wait_for: Wait) -> None:
    cluster.status = 403
    processor, meter = made()
    wait_for(lambda: meter.degraded)
    assert meter.degraded_reason == "missing right: list pods; missing right: watch pods"
    assert through(processor, {"k8s.pod.uid": "u0"}) == {"k8s.pod.uid": "u0"}
    cluster.status = 200
    wait_for(lambda: not meter.degraded)
    assert through(processor, {"k8s.pod.uid": "u0"})["k8s.pod.name"] == "w-0"
