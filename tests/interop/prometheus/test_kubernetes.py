"""Targets of a real Kubernetes API server that checks rights."""

from __future__ import annotations

import importlib.util
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tracecore.agent.component import Setting
from tracecore.agent.receivers.prometheus.options import (
    KubernetesSd,
    Options,
    PrometheusConfig,
    RoleSelector,
    ScrapeConfig,
)
from tracecore.agent.receivers.prometheus.receiver import Prometheus as Receiver
from tracecore.agent.receivers.prometheus.relabel import Relabel
from tracecore.agent.telemetry import Meter
from tracecore.signals.kubernetes import api

pytestmark = pytest.mark.interop
SECOND = 1_000_000_000
HERE = Path(__file__).parent


def _module(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"kubernetes_{name}", HERE.parent / "kubernetes" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    serving = _module("server")
    if reason := serving.missing():
        pytest.skip(reason)
    program = _module("build").apiserver()
    if isinstance(program, str):
        pytest.skip(program)
    one = serving.Server(program, tmp_path_factory.mktemp("apiserver"))
    yield one
    one.close()


def until(condition: Callable[[], Any], seconds: float = 90.0) -> Any:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if value := condition():
            return value
        time.sleep(0.05)
    raise AssertionError(f"not within {seconds} s")


class Running:
    """A receiver whose targets the API server knows."""

    def __init__(self, place: Path, **discovery: Any) -> None:
        config = ScrapeConfig(
            job_name="dcgm",
            scrape_interval=SECOND // 5,
            scrape_timeout=SECOND // 5,
            kubernetes_sd_configs=[KubernetesSd(**discovery)],
            relabel_configs=[
                Relabel(source_labels=["__meta_kubernetes_pod_label_app"], regex="dcgm", action="keep"),
                Relabel(source_labels=["__meta_kubernetes_pod_annotation_rack"], target_label="rack"),
            ],
        )
        self.meter = Meter("receiver", "prometheus")
        setting = Setting("prometheus", self.meter, time.time_ns, {}.__getitem__, place, lambda: (True, {}))
        self.payloads: list[dict[str, Any]] = []
        self._stop = threading.Event()
        receiver = Receiver(Options(config=PrometheusConfig(scrape_configs=[config])), setting)
        self._thread = threading.Thread(target=receiver.run, args=(self._take, self._stop))
        self._thread.start()

    def _take(self, batch: Any) -> None:
        self.payloads.append(batch.payload)

    def pods(self, since: int = 0) -> set[str]:
        return {
            entry["resource"]["attributes"].get("k8s.pod.name", "")
            for payload in self.payloads[since:]
            for entry in payload["resource_metrics"]
        }

    def close(self) -> None:
        self._stop.set()
        self._thread.join(30)


@pytest.fixture
def run(cluster: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Running]]:
    made: list[Running] = []
    (tmp_path / "ca.crt").write_bytes(Path(cluster.authority).read_bytes())
    monkeypatch.setattr(api, "ACCOUNT", tmp_path)
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "127.0.0.1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", str(cluster.port))

    def start(token: str, **discovery: Any) -> Running:
        (tmp_path / "token").write_text(token)
        made.append(Running(tmp_path, **discovery))
        return made[-1]

    yield start
    for one in made:
        one.close()


def pod(cluster: Any, name: str, node: str, port: int, app: str = "dcgm") -> None:
    body = {
        "metadata": {"name": name, "labels": {"app": app}, "annotations": {"rack": "r1"}},
        "spec": {
            "nodeName": node,
            "terminationGracePeriodSeconds": 0,
            "containers": [
                {"name": "exporter", "image": "x:1", "ports": [{"name": "metrics", "containerPort": port}]},
            ],
        },
    }
    cluster.call("POST", "/api/v1/namespaces/default/pods", body)
    cluster.status(name, {"phase": "Running", "podIP": "127.0.0.1", "podIPs": [{"ip": "127.0.0.1"}]})


RIGHTS = {"apiGroups": [""], "resources": ["pods"]}


def test_pods_of_a_node_are_scraped(cluster: Any, run: Any, exporter: Any) -> None:
    exporter.text = "a 1\n"
    port = int(exporter.address.rpartition(":")[2])
    pod(cluster, "mine", "scrape-node", port)
    pod(cluster, "elsewhere", "scrape-other", port)
    pod(cluster, "unwanted", "scrape-node", port, app="web")
    token = cluster.account("scraper", [{**RIGHTS, "verbs": ["list", "watch"]}])
    chosen = [RoleSelector(role="pod", field="spec.nodeName=scrape-node")]
    one = run(token, role="pod", selectors=chosen)
    until(lambda: "mine" in one.pods())
    resource = one.payloads[0]["resource_metrics"][0]["resource"]["attributes"]
    assert resource["k8s.node.name"] == "scrape-node"
    assert resource["k8s.container.name"] == "exporter"
    metric = one.payloads[0]["resource_metrics"][0]["scope_metrics"][0]["metrics"][0]
    assert metric["gauge"]["data_points"][0]["attributes"] == {"rack": "r1"}
    pod(cluster, "later", "scrape-node", port)
    until(lambda: "later" in one.pods())
    cluster.call("DELETE", "/api/v1/namespaces/default/pods/mine")
    until(lambda: "mine" not in one.pods(len(one.payloads) - 4) and len(one.payloads) > 8)
    assert one.pods() == {"mine", "later"}


@pytest.mark.parametrize("verb", ["list", "watch"])
def test_without_a_right(cluster: Any, run: Any, exporter: Any, verb: str) -> None:
    """Without one of both the other one does; what is missing is said."""
    exporter.text = "a 1\n"
    pod(cluster, f"without-{verb}", f"node-without-{verb}", int(exporter.address.rpartition(":")[2]))
    left = [{**RIGHTS, "verbs": [{"list": "watch", "watch": "list"}[verb]]}]
    token = cluster.account(f"without-{verb}", left)
    one = run(token, role="pod", selectors=[RoleSelector(role="pod", field=f"spec.nodeName=node-without-{verb}")])
    until(lambda: f"missing right: {verb} pods" in one.meter.degraded_reason)
    until(lambda: one.pods() == {f"without-{verb}"})


def test_without_any_right(cluster: Any, run: Any) -> None:
    token = cluster.account("no-rights", [])
    one = run(token, role="pod", selectors=[RoleSelector(role="pod", field="spec.nodeName=nowhere")])
    until(lambda: "missing right" in one.meter.degraded_reason)
    assert one.payloads == []
    cluster.grant("no-rights", [{**RIGHTS, "verbs": ["list", "watch"]}])
    until(lambda: not one.meter.degraded)
