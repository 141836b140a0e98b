"""Stages for incidents: with the chart's rendering before a real API server, or, where that cannot be had, the base."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[3]
EXAMPLE = ROOT / "examples" / "end-to-end"
CHART = ROOT / "deploy" / "helm" / "tracecore"
#: Where a rendered object is made.
PLACES = {
    "ServiceAccount": "/api/v1/namespaces/{namespace}/serviceaccounts",
    "ConfigMap": "/api/v1/namespaces/{namespace}/configmaps",
    "ClusterRole": "/apis/rbac.authorization.k8s.io/v1/clusterroles",
    "ClusterRoleBinding": "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings",
}
#: A process with the files of a service account where a pod has them.
AS_POD = """
set -eu
mount -t tmpfs none /run
mkdir -p /run/secrets/kubernetes.io/serviceaccount
cp "$1/ca.crt" "$1/token" /run/secrets/kubernetes.io/serviceaccount
shift
exec "$@"
"""
TIMINGS = pytest.StashKey[list[str]]()

sys.path.insert(0, str(EXAMPLE))
from stage.agents import Agent, free_port  # noqa: E402
from stage.play import Local, Stage  # noqa: E402


def module(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"end_to_end_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


class Theatre(NamedTuple):
    """What stages are made with.

    Args:
        server: a real API server.
        helm: the program.
    """

    server: Any
    helm: Path


@pytest.fixture(scope="session")
def theatre(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Theatre | str]:
    """A real API server and a real helm, or the reason there are none."""
    serving = module(ROOT / "tests" / "interop" / "kubernetes" / "server.py")
    helm = module(ROOT / "tests" / "deploy" / "programs.py").helm(build=True)
    alone = subprocess.run(["unshare", "--mount", "true"], capture_output=True, check=False)
    reason = serving.missing()
    if isinstance(helm, str):
        reason = reason or helm
    if os.geteuid() != 0 or alone.returncode:
        reason = reason or "a place for the files of an account needs root"
    program = reason or module(ROOT / "tests" / "interop" / "kubernetes" / "build.py").apiserver()
    if isinstance(program, str):
        yield program
        return
    one = serving.Server(program, tmp_path_factory.mktemp("apiserver"))
    yield Theatre(one, helm)
    one.close()


Opening = Callable[..., AbstractContextManager[Stage]]


@pytest.fixture
def opening(theatre: Theatre | str, tmp_path: Path) -> Opening:
    """Opens a stage whose agents are ready: `opening("node-3", "job-3", fast=True)`."""
    if isinstance(theatre, str):
        return lambda node, job, fast=True: Local(tmp_path, node, job, fast=fast)
    return lambda node, job, fast=True: deployed(theatre, tmp_path, node, job, fast=fast)


@contextlib.contextmanager
def deployed(theatre: Theatre, place: Path, node: str, job: str, *, fast: bool) -> Iterator[Stage]:
    """A stage whose agents have what the chart renders: configuration, accounts, rights."""
    server = theatre.server
    namespace = f"agents-of-{node}"
    server.namespace(namespace)
    stage = Stage(place, node, job, server)
    ports = {name: free_port() for name in ("gather", "agent", "cluster", "agent-own", "cluster-own")}
    started: list[Agent] = []
    try:
        objects = rendered(theatre.helm, place, namespace, node, values(stage, ports, fast=fast))
        for one in objects:
            if one["kind"] in PLACES:
                server.call("POST", PLACES[one["kind"]].format(namespace=namespace), one)
        started += [start(server, place, namespace, node, name, objects, ports) for name in ("cluster", "agent")]
        for agent in started:
            agent.ready()
        stage.cluster, stage.agent = started
        for name, app in (("dcgm", "dcgm"), ("node", "node-exporter")):
            server.pod(f"{name}-{node}", node, labels={"app": app})
            server.status(f"{name}-{node}", {"phase": "Running", "podIP": "127.0.0.1", "podIPs": [{"ip": "127.0.0.1"}]})
        yield stage
    finally:
        for agent in reversed(started):
            agent.stop()
        stage.close()
        for kind in ("pods", "events"):
            server.call("DELETE", f"/api/v1/namespaces/default/{kind}?gracePeriodSeconds=0")
        server.call("DELETE", "/api/v1/nodes")


def values(stage: Stage, ports: dict[str, int], *, fast: bool) -> dict[str, Any]:
    """Values of the chart for a node that is a directory."""
    scaled = yaml.safe_load((EXAMPLE / "fast.yaml").read_text())["processors"]["patterndetector"] if fast else {}

    def own(name: str) -> dict[str, Any]:
        reader = {"pull": {"exporter": {"prometheus": {"host": "127.0.0.1", "port": ports[f"{name}-own"]}}}}
        return {
            "extensions": {
                "file_storage": {"directory": str(stage.place / f"{name}-state")},
                "health_check": {"endpoint": f"127.0.0.1:{ports[name]}"},
            },
            "service": {"telemetry": {"metrics": {"readers": [reader]}}},
        }

    jobs = [
        {"name": "dcgm", "port": stage.dcgm.port, "path": "/metrics", "labels": {"app": "dcgm"}},
        {"name": "node", "port": stage.node_exporter.port, "path": "/metrics", "labels": {"app": "node-exporter"}},
    ]
    return {
        "logs": {"hostPath": str(stage.place / "pods")},
        "kernel": {"source": "file"},
        "dumps": {"enabled": True, "hostPath": str(stage.dumps)},
        "metrics": {"scrape": {"enabled": True, "interval": "1s", "jobs": jobs}},
        "outputs": {"webhook": {"enabled": True, "url": stage.webhook.url}},
        "detection": {"patterns": scaled.get("patterns", {})},
        "agent": {
            "config": {
                **own("agent"),
                "receivers": {"filelog/kernel": {"include": [str(stage.kernel.path)]}},
                "exporters": {"otlp/cluster": {"endpoint": f"127.0.0.1:{ports['gather']}"}},
            }
        },
        "cluster": {
            "config": {
                **own("cluster"),
                "receivers": {"otlp": {"protocols": {"grpc": {"endpoint": f"127.0.0.1:{ports['gather']}"}}}},
                **({"processors": {"patterndetector": {"progress": scaled["progress"]}}} if fast else {}),
            }
        },
    }


def rendered(helm: Path, place: Path, namespace: str, release: str, values: dict[str, Any]) -> list[dict[str, Any]]:
    """What the chart makes of values."""
    file = place / "values.yaml"
    file.write_text(yaml.safe_dump(values))
    command = [str(helm), "template", release, str(CHART), "--namespace", namespace, "--values", str(file)]
    command += ["--kube-version", module(ROOT / "deploy" / "kustomize" / "generate.py").KUBERNETES]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return [one for one in yaml.safe_load_all(done.stdout) if one]


def start(
    server: Any,
    place: Path,
    namespace: str,
    release: str,
    name: str,
    objects: list[dict[str, Any]],
    ports: dict[str, int],
) -> Agent:
    """One of the two agents, as its pod would run it."""
    (text,) = [o["data"][f"{name}.yaml"] for o in objects if o["kind"] == "ConfigMap" and f"{name}.yaml" in o["data"]]
    (place / f"{name}.yaml").write_text(text)
    account = f"/api/v1/namespaces/{namespace}/serviceaccounts/{release}-tracecore-{name}/token"
    files = place / f"{name}-account"
    files.mkdir()
    token = server.call("POST", account, {"spec": {"expirationSeconds": 3600}})["status"]["token"]
    (files / "token").write_text(token)
    (files / "ca.crt").write_bytes(server.authority.read_bytes())
    environment = {
        "K8S_NODE_NAME": release,
        "KUBERNETES_SERVICE_HOST": "127.0.0.1",
        "KUBERNETES_SERVICE_PORT": str(server.port),
    }
    before = ["unshare", "--mount", "sh", "-c", AS_POD, "pod", str(files)]
    return Agent(
        [place / f"{name}.yaml"], environment, place / f"{name}.log", ports[name], ports[f"{name}-own"], before
    )


# -- what it took ------------------------------------------------------------------------------------------------------


@pytest.fixture
def timing(request: pytest.FixtureRequest) -> Callable[[str], None]:
    """Notes a line that is printed when all tests are done."""
    return request.config.stash.setdefault(TIMINGS, []).append


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    if lines := config.stash.get(TIMINGS, []):
        terminalreporter.section("from the raw signal to the webhook")
        for line in lines:
            terminalreporter.write_line(line)
