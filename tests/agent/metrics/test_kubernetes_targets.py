"""Targets that the Kubernetes API knows: their labels, and how they come and go."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

import msgspec
import pytest

from tracecore.agent.receivers.prometheus.families import resource
from tracecore.agent.receivers.prometheus.kubernetes import Kubernetes
from tracecore.agent.receivers.prometheus.options import KubernetesSd, Namespaces, RoleSelector
from tracecore.signals.kubernetes import api

META = "__meta_kubernetes_"


def pod(name: str, address: str = "10.1.2.3", ports: tuple[int, ...] = (9400,), node: str = "node-7") -> dict[str, Any]:
    return {
        "kind": "Pod",
        "apiVersion": "v1",
        "metadata": {
            "name": name,
            "namespace": "gpu-operator",
            "uid": f"uid-{name}",
            "resourceVersion": "5",
            "labels": {"app.kubernetes.io/name": "dcgm-exporter"},
            "annotations": {"prometheus.io/scrape": "true"},
            "ownerReferences": [{"kind": "DaemonSet", "name": "dcgm-exporter", "controller": True}],
        },
        "spec": {
            "nodeName": node,
            "containers": [
                {
                    "name": "exporter",
                    "image": "dcgm-exporter:4",
                    "ports": [{"name": "metrics", "containerPort": port} for port in ports],
                }
            ],
        },
        "status": {
            "podIP": address,
            "hostIP": "10.0.0.7",
            "phase": "Running",
            "conditions": [{"type": "Ready", "status": "True"}],
            "containerStatuses": [{"name": "exporter", "containerID": "containerd://c1"}],
        },
    }


class Server:
    """An API server with these objects by path, which tells of changes."""

    def __init__(self) -> None:
        self.objects: dict[str, list[dict[str, Any]]] = {}
        self.changes: dict[str, list[dict[str, Any]]] = {}
        self.queries: list[tuple[str, dict[str, list[str]]]] = []
        self.refuse = False
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                parts = urlsplit(self.path)
                query = parse_qs(parts.query)
                outer.queries.append((parts.path, query))
                if outer.refuse:
                    self.send_response(403)
                    self.end_headers()
                    return
                self.send_response(200)
                self.end_headers()
                if "watch" not in query:
                    items = outer.objects.get(parts.path, [])
                    kind = {"pods": "PodList"}.get(parts.path.rpartition("/")[2], "List")
                    document = {"kind": kind, "apiVersion": "v1", "metadata": {"resourceVersion": "10"}, "items": items}
                    self.wfile.write(msgspec.json.encode(document))
                    return
                told = 0
                for _ in range(3000):
                    for change in outer.changes.get(parts.path, [])[told:]:
                        told += 1
                        self.wfile.write(msgspec.json.encode(change) + b"\n")
                        self.wfile.flush()
                    if outer.closed.wait(0.01):
                        return

            def log_message(self, format: str, *args: Any) -> None: ...

        self.closed = threading.Event()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._server.handle_error = lambda *_: None  # type: ignore[method-assign]
        self.port = self._server.server_address[1]
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()

    def close(self) -> None:
        self.closed.set()
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def server() -> Iterator[Server]:
    one = Server()
    yield one
    one.close()


Follow = Callable[..., Kubernetes]


@pytest.fixture
def follow(server: Server) -> Iterator[Follow]:
    made: list[Kubernetes] = []

    way = api.Way("127.0.0.1", server.port, api.Credentials(dict, None))

    def start(**more: Any) -> Kubernetes:
        made.append(Kubernetes(KubernetesSd(role="pod", **more), lambda: way))
        made[-1].start()
        return made[-1]

    yield start
    for one in made:
        one.stop()


def until(condition: Callable[[], Any], seconds: float = 60.0) -> Any:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if value := condition():
            return value
        time.sleep(0.01)
    raise AssertionError(f"not within {seconds} s")


def test_pods(server: Server, follow: Follow) -> None:
    server.objects["/api/v1/pods"] = [pod("dcgm-a", ports=(9400, 9401)), pod("pending", address="")]
    found = follow(selectors=[RoleSelector(role="pod", field="spec.nodeName=node-7")])
    first, second = until(lambda: list(found.labels()))
    assert (first["__address__"], second["__address__"]) == ("10.1.2.3:9400", "10.1.2.3:9401")
    expected = {
        "namespace": "gpu-operator",
        "pod_name": "dcgm-a",
        "pod_uid": "uid-dcgm-a",
        "pod_ip": "10.1.2.3",
        "pod_host_ip": "10.0.0.7",
        "pod_node_name": "node-7",
        "pod_phase": "Running",
        "pod_ready": "true",
        "pod_label_app_kubernetes_io_name": "dcgm-exporter",
        "pod_labelpresent_app_kubernetes_io_name": "true",
        "pod_annotation_prometheus_io_scrape": "true",
        "pod_controller_kind": "DaemonSet",
        "pod_controller_name": "dcgm-exporter",
        "pod_container_name": "exporter",
        "pod_container_image": "dcgm-exporter:4",
        "pod_container_id": "containerd://c1",
        "pod_container_init": "false",
        "pod_container_port_name": "metrics",
        "pod_container_port_number": "9400",
        "pod_container_port_protocol": "TCP",
    }
    assert {META + name: value for name, value in expected.items()}.items() <= first.items()
    assert (
        resource("gpus", "10.1.2.3:9400", first).items()
        >= {
            "k8s.pod.name": "dcgm-a",
            "k8s.node.name": "node-7",
            "k8s.daemonset.name": "dcgm-exporter",
        }.items()
    )
    assert all(query["fieldSelector"] == ["spec.nodeName=node-7"] for _, query in server.queries)


def test_pods_come_and_go(server: Server, follow: Follow) -> None:
    path = "/api/v1/namespaces/gpu-operator/pods"
    server.objects[path] = [pod("a")]
    found = follow(namespaces=Namespaces(names=["gpu-operator"]))
    until(lambda: [one[f"{META}pod_name"] for one in found.labels()] == ["a"])
    before = found.version()
    server.changes[path] = [{"type": "ADDED", "object": {**pod("b", "10.1.2.4"), "metadata": {
        **pod("b")["metadata"], "resourceVersion": "11"}}}]  # fmt: skip
    until(lambda: [one[f"{META}pod_name"] for one in found.labels()] == ["a", "b"])
    assert found.version() > before
    server.changes[path].append({"type": "DELETED", "object": {**pod("a"), "metadata": {
        **pod("a")["metadata"], "resourceVersion": "12"}}})  # fmt: skip
    until(lambda: [one[f"{META}pod_name"] for one in found.labels()] == ["b"])


def test_a_missing_right_is_said(server: Server, follow: Follow) -> None:
    server.refuse = True
    found = follow()
    assert "missing right" in until(found.wrong)
    server.refuse = False
    server.objects["/api/v1/pods"] = [pod("a")]
    until(lambda: list(found.labels()) and not found.wrong())


def test_objects_that_are_none(server: Server, follow: Follow) -> None:
    server.objects["/api/v1/pods"] = [
        {},
        {"metadata": {"uid": "1"}, "spec": [], "status": {"podIP": 5}},
        {"metadata": {"uid": "2", "labels": 7}, "spec": {"containers": [3, {"ports": "x"}]}, "status": {"podIP": "1"}},
        pod("a"),
    ]
    found = follow()
    until(lambda: any(one.get(f"{META}pod_name") == "a" for one in found.labels()))
