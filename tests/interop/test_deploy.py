"""The chart and the base before a real helm, kustomize and API server; and the agents they start."""

from __future__ import annotations

import copy
import http.server
import importlib.util
import json
import os
import shutil
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

pytestmark = pytest.mark.interop

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "tests" / "deploy"
CHART = ROOT / "deploy" / "helm" / "tracecore"
BASE = ROOT / "deploy" / "kustomize" / "base"
SERVER = ROOT / "tests" / "interop" / "kubernetes" / "server.py"
FOREIGN = ("PodMonitor", "PrometheusRule")
EVERYTHING: dict[str, Any] = {
    "dumps": {"enabled": True},
    "metrics": {"scrape": {"enabled": True}, "nvml": {"enabled": True}},
    "otlp": {"enabled": True},
    "clusterName": "one",
    "outputs": {"alertmanager": {"enabled": True, "url": "http://alertmanager:9093/api/v2/alerts"}},
    "dashboards": {"enabled": True},
    "image": {"digest": "sha256:" + "0" * 64, "pullSecrets": [{"name": "pull"}]},
    "agent": {"affinity": {"nodeAffinity": {}}, "seLinuxOptions": {"type": "container_logreader_t"}},
}
#: Nothing of the node is mounted.
NOTHING_OF_THE_NODE: dict[str, Any] = {
    "logs": {"enabled": False},
    "kernel": {"enabled": False},
    "otlp": {"enabled": True},
    "agent": {"state": {"ephemeral": True}},
}


def _module(path: Path) -> Any:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


programs = _module(DEPLOY / "programs.py")
generate = _module(ROOT / "deploy" / "kustomize" / "generate.py")
policy = _module(DEPLOY / "policy.py")
broken = _module(DEPLOY / "test_policy.py").BROKEN
#: Pod Security knows nothing of these: they are the policy's own.
OWN_RULES = ("writable", "limit", "node", "propagat", "root that sees", "out of an allowed", "socket", "directory")


def _program(found: Path | str) -> Path:
    if isinstance(found, str):
        pytest.skip(found)
    return found


@pytest.fixture(scope="module")
def helm() -> Path:
    return _program(programs.helm(build=True))


def _render(helm: Path, values: dict[str, Any], place: Path, release: str = "probe", namespace: str = "watch") -> str:
    file = place / "values.yaml"
    file.write_text(yaml.safe_dump(values))
    command = [str(helm), "template", release, str(CHART), "--namespace", namespace, "--values", str(file)]
    done = subprocess.run(
        [*command, "--kube-version", generate.KUBERNETES], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def _objects(text: str) -> list[dict[str, Any]]:
    return [one for one in yaml.safe_load_all(text) if one]


def test_every_pair_of_toggles(helm: Path, tmp_path: Path) -> None:
    rendering = _module(DEPLOY / "test_rendering.py")
    for values in rendering.rows():
        rendering.check_row(values, lambda chosen: _objects(_render(helm, chosen, tmp_path)), policy, tmp_path)


def test_prometheus_understands_every_expression_of_the_dashboards(tmp_path: Path) -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool is not installed (Debian: prometheus)")
    rules = []
    for path in sorted((ROOT / "deploy" / "dashboards").glob("*.json")):
        for panel in json.loads(path.read_text())["panels"]:
            for target in panel.get("targets", ()):
                expression = target["expr"].replace("$__rate_interval", "5m").replace("$__range", "1h")
                rules.append({"record": f"dashboard:panel:{len(rules)}", "expr": expression.replace("$pod", ".*")})
    assert len(rules) > 30
    file = tmp_path / "rules.yaml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "dashboards", "rules": rules}]}))
    done = subprocess.run([promtool, "check", "rules", file], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{len(rules)} rules found" in done.stdout


# -- kustomize ------------------------------------------------------------------------------------------------------


def test_kustomize_builds_what_helm_renders(helm: Path) -> None:
    kustomize = _program(programs.kustomize(build=True))
    done = subprocess.run([kustomize, "build", BASE], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    built = {(one["kind"], one["metadata"]["name"]): one for one in _objects(done.stdout)}
    rendered = {(one["kind"], one["metadata"]["name"]): one for one in _objects(generate.rendered(helm))}
    assert built.pop(("Namespace", "tracecore"))["metadata"]["labels"]
    hashed = {
        name: next(found for kind, found in built if kind == "ConfigMap" and found.startswith(name))
        for name in ("tracecore-agent", "tracecore-cluster")
    }
    assert len(built) == len(rendered)
    for (kind, name), theirs in rendered.items():
        ours = built[kind, hashed[name] if kind == "ConfigMap" else name]
        assert _substance(ours, hashed) == _substance(theirs, {}), f"{kind} {name}"


def _substance(one: dict[str, Any], hashed: dict[str, str]) -> dict[str, Any]:
    """An object without what only helm or only kustomize says."""
    made = copy.deepcopy(one)
    for metadata in (made["metadata"], made.get("spec", {}).get("template", {}).get("metadata", {})):
        for name in ("helm.sh/chart", "app.kubernetes.io/managed-by"):
            metadata.get("labels", {}).pop(name, None)
        metadata.get("annotations", {}).pop("checksum/config", None)
    if made["kind"] == "ConfigMap":
        made.pop("metadata")
    text = json.dumps(made, sort_keys=True)
    for name, found in hashed.items():
        text = text.replace(f'"{found}"', f'"{name}"')
    return dict(json.loads(text))


# -- Kubernetes' own types and Pod Security ----------------------------------------------------------------------------


def _judged(text: str) -> list[dict[str, Any]]:
    judge = _program(programs.judge(build=True))
    done = subprocess.run([judge], input=text, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.parametrize("values", [{}, EVERYTHING, NOTHING_OF_THE_NODE], ids=["defaults", "everything", "nothing"])
def test_kubernetes_own_types_hold_every_object(helm: Path, tmp_path: Path, values: dict[str, Any]) -> None:
    judged = _judged(_render(helm, values, tmp_path))
    assert len(judged) > 10
    assert [one for one in judged if one.get("error") and one["kind"] not in FOREIGN] == []
    violations = {
        one["kind"]: one.get("violations", []) for one in judged if one["kind"] in ("DaemonSet", "Deployment")
    }
    assert violations["Deployment"] == []
    if values is NOTHING_OF_THE_NODE:
        assert violations["DaemonSet"] == []
    else:
        reasons = sorted(text.partition(":")[0] for text in violations["DaemonSet"])
        # What the named exceptions are about, and nothing else.
        assert [text for text in reasons if text not in (
            "restricted volume types", "runAsNonRoot != true", "runAsUser=0", "seLinuxOptions")] == []  # fmt: skip
        assert all("prepare-state" in text for text in violations["DaemonSet"] if text.startswith("runAs"))


def test_a_mistake_in_a_manifest_is_noticed() -> None:
    service = "apiVersion: v1\nkind: Service\nmetadata: {name: a}\nspec: {portz: []}\n"
    assert "portz" in _judged(service)[0]["error"]


def test_our_policy_and_pod_security_agree(helm: Path) -> None:
    """What Pod Security forbids beyond the defaults, our policy forbids; it forbids more, not less."""
    objects = _objects(generate.rendered(helm))
    accepted = {text for one in _judged(yaml.safe_dump_all(objects)) for text in one.get("violations", ())}
    agreed = 0
    for name, (change, said) in broken.items():
        variant = copy.deepcopy(objects)
        change(variant)
        theirs = {text for one in _judged(yaml.safe_dump_all(variant)) for text in one.get("violations", ())} - accepted
        ours = policy.violations(variant)
        assert any(said in text for text in ours), name
        agreed += bool(theirs)
    assert agreed >= 20


# -- a real API server ---------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    serving = _module(SERVER)
    if reason := serving.missing():
        pytest.skip(reason)
    program = _program(_module(ROOT / "tests" / "interop" / "kubernetes" / "build.py").apiserver())
    one = serving.Server(program, tmp_path_factory.mktemp("apiserver"))
    yield one
    one.close()


GROUPS = {
    "ServiceAccount": "/api/v1/namespaces/{namespace}/serviceaccounts",
    "ConfigMap": "/api/v1/namespaces/{namespace}/configmaps",
    "Service": "/api/v1/namespaces/{namespace}/services",
    "Namespace": "/api/v1/namespaces",
    "DaemonSet": "/apis/apps/v1/namespaces/{namespace}/daemonsets",
    "Deployment": "/apis/apps/v1/namespaces/{namespace}/deployments",
    "ClusterRole": "/apis/rbac.authorization.k8s.io/v1/clusterroles",
    "ClusterRoleBinding": "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings",
    "Role": "/apis/rbac.authorization.k8s.io/v1/namespaces/{namespace}/roles",
    "RoleBinding": "/apis/rbac.authorization.k8s.io/v1/namespaces/{namespace}/rolebindings",
    "NetworkPolicy": "/apis/networking.k8s.io/v1/namespaces/{namespace}/networkpolicies",
    "PriorityClass": "/apis/scheduling.k8s.io/v1/priorityclasses",
}


def _apply(server: Any, objects: list[dict[str, Any]]) -> None:
    for one in objects:
        path = GROUPS[one["kind"]].format(namespace=one["metadata"].get("namespace", ""))
        server.call("POST", f"{path}?fieldValidation=Strict", one)


def _namespace(server: Any, name: str, level: str = "privileged") -> None:
    labels = {"pod-security.kubernetes.io/enforce": level}
    server.call("POST", "/api/v1/namespaces", {"metadata": {"name": name, "labels": labels}})


def test_the_server_takes_every_object(server: Any, helm: Path, tmp_path: Path) -> None:
    for number, values in enumerate(({}, EVERYTHING, {"objects": {"namespaces": ["apply-0"]}})):
        _namespace(server, f"apply-{number}")
        text = _render(helm, values, tmp_path, f"release-{number}", f"apply-{number}")
        _apply(server, [one for one in _objects(text) if one["kind"] not in FOREIGN])


def test_helm_installs_changes_and_removes_it(server: Any, helm: Path, tmp_path: Path) -> None:
    kubeconfig = server.kubeconfig(tmp_path / "admin.kubeconfig", _module(SERVER).ADMIN)
    environment = {**os.environ, "KUBECONFIG": str(kubeconfig), "HELM_CACHE_HOME": str(tmp_path)}

    def run(*arguments: str) -> str:
        command = [str(helm), *arguments, "--namespace", "by-helm"]
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def kinds() -> set[str]:
        found = set()
        for kind, path in GROUPS.items():
            for one in server.call("GET", path.format(namespace="by-helm"))["items"]:
                if one["metadata"].get("labels", {}).get("app.kubernetes.io/instance") == "tracecore-by-helm":
                    found.add(kind)
        return found

    said = run("install", "tracecore-by-helm", str(CHART), "--create-namespace")
    assert "On every node (tracecore-by-helm-agent) it reads: logs kernel(journald)" in said
    assert "For the cluster (tracecore-by-helm-cluster) it reads: events pods nodes" in said
    assert "pod-security.kubernetes.io/enforce=privileged" in said
    assert "Verdicts go to the log only." in said
    assert kinds() >= {"DaemonSet", "Deployment", "ClusterRole", "NetworkPolicy", "PriorityClass"}
    said = run("upgrade", "tracecore-by-helm", str(CHART), "--set", "detection.scope=node,objects.enabled=false")
    assert "by every agent, over its own node" in said
    assert "Deployment" not in kinds()
    assert "DaemonSet" in kinds()
    run("uninstall", "tracecore-by-helm")
    assert kinds() == set()


def test_the_server_takes_the_base(server: Any) -> None:
    kustomize = _program(programs.kustomize(build=True))
    built = subprocess.run([kustomize, "build", BASE], capture_output=True, text=True, check=True).stdout
    _apply(server, sorted(_objects(built), key=lambda one: one["kind"] != "Namespace"))


def test_pods_are_admitted_where_the_docs_say(server: Any, helm: Path, tmp_path: Path) -> None:
    for level in ("restricted", "privileged"):
        _namespace(server, f"psa-{level}", level)

    def admit(values: dict[str, Any], kind: str, level: str) -> None:
        (one,) = [one for one in _objects(_render(helm, values, tmp_path)) if one["kind"] == kind]
        template = one["spec"]["template"]
        template["metadata"]["name"] = "probe"
        template["spec"].pop("priorityClassName")
        server.call("POST", f"/api/v1/namespaces/psa-{level}/pods?dryRun=All", template)

    admit({}, "Deployment", "restricted")
    admit(EVERYTHING, "Deployment", "restricted")
    admit(NOTHING_OF_THE_NODE, "DaemonSet", "restricted")
    admit({}, "DaemonSet", "privileged")
    with pytest.raises(Exception, match="hostPath"):
        admit({}, "DaemonSet", "restricted")


def test_accounts_may_do_what_they_need_and_nothing_else(server: Any, helm: Path, tmp_path: Path) -> None:
    _namespace(server, "rights")
    _apply(server, _objects(_render(helm, {}, tmp_path, "r", "rights")))

    def may(account: str, verb: str, resource: str, group: str = "", sub: str = "") -> bool:
        attributes = {"verb": verb, "resource": resource, "group": group, "subresource": sub, "namespace": "default"}
        review = {"spec": {"user": f"system:serviceaccount:rights:{account}", "resourceAttributes": attributes}}
        answer = server.call("POST", "/apis/authorization.k8s.io/v1/subjectaccessreviews", review)
        return bool(answer["status"]["allowed"])

    agent, cluster = "r-tracecore-agent", "r-tracecore-cluster"
    for verb in ("get", "list", "watch"):
        assert may(agent, verb, "pods")
        assert not may(agent, verb, "nodes")
        for resource in ("pods", "events", "nodes"):
            assert may(cluster, verb, resource)
    for account in (agent, cluster):
        for verb in ("create", "update", "patch", "delete", "deletecollection"):
            for resource in ("pods", "nodes", "events", "configmaps"):
                assert not may(account, verb, resource)
        for resource in ("secrets", "configmaps", "serviceaccounts"):
            assert not may(account, "get", resource)
        assert not may(account, "create", "pods", sub="exec")
        assert not may(account, "get", "nodes", sub="proxy")
        assert not may(account, "list", "deployments", "apps")


# -- the agents it starts ------------------------------------------------------------------------------------------


def _free() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port


#: A process with the files of a service account where a pod has them.
AS_POD = """
set -eu
mount -t tmpfs none /run
mkdir -p /run/secrets/kubernetes.io/serviceaccount
cp "$1/ca.crt" "$1/token" /run/secrets/kubernetes.io/serviceaccount
shift
exec "$@"
"""


class Exporter(http.server.BaseHTTPRequestHandler):
    """A GPU with one counter, as dcgm-exporter tells it."""

    errors = 0

    def do_GET(self) -> None:
        labels = 'gpu="0",UUID="GPU-1",pci_bus_id="00000000:3B:00.0",device="nvidia0",Hostname="node-7"'
        body = (
            "# TYPE DCGM_FI_DEV_ECC_DBE_VOL_TOTAL counter\n"
            f"DCGM_FI_DEV_ECC_DBE_VOL_TOTAL{{{labels}}} {Exporter.errors}\n"
        ).encode()
        self.send_response(200)
        self.send_header("Content-Type", "text/plain; version=0.0.4")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture
def exporter() -> Iterator[int]:
    """Its port."""
    serving = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Exporter)
    thread = threading.Thread(target=serving.serve_forever, args=(0.1,), daemon=True)
    thread.start()
    yield serving.server_address[1]
    serving.shutdown()
    serving.server_close()
    thread.join()


@pytest.fixture
def agents(server: Any, helm: Path, exporter: int, tmp_path: Path) -> Iterator[dict[str, Any]]:
    """Both agents of a release, as processes, with the chart's configuration and accounts."""
    alone = subprocess.run(["unshare", "--mount", "true"], capture_output=True, check=False)
    if os.geteuid() != 0 or alone.returncode:
        pytest.skip("a place for the files of an account needs root")
    namespace = f"live-{os.getpid()}"
    _namespace(server, namespace)
    ports = {name: _free() for name in ("gather", "agent", "cluster", "agent-own", "cluster-own")}
    logs, kernel = tmp_path / "pods", tmp_path / "kern.log"
    dumps = tmp_path / "dumps"
    logs.mkdir()
    dumps.mkdir()
    kernel.touch()

    def own(name: str) -> dict[str, Any]:
        reader = {"pull": {"exporter": {"prometheus": {"host": "127.0.0.1", "port": ports[f"{name}-own"]}}}}
        return {
            "extensions": {
                "file_storage": {"directory": str(tmp_path / f"{name}-state")},
                "health_check": {"endpoint": f"127.0.0.1:{ports[name]}"},
            },
            "service": {"telemetry": {"metrics": {"readers": [reader]}}},
        }

    values = {
        "logs": {"hostPath": str(logs), "startAt": "beginning"},
        "kernel": {"source": "file"},
        "dumps": {"enabled": True, "hostPath": str(dumps)},
        "metrics": {
            "scrape": {
                "enabled": True,
                "interval": "1s",
                "jobs": [{"name": "dcgm", "port": exporter, "path": "/metrics", "labels": {"app": "dcgm"}}],
            }
        },
        "agent": {
            "config": {
                **own("agent"),
                "receivers": {"filelog/kernel": {"include": [str(kernel)]}},
                "exporters": {"otlp/cluster": {"endpoint": f"127.0.0.1:{ports['gather']}"}},
            }
        },
        "cluster": {
            "config": {
                **own("cluster"),
                "receivers": {
                    "otlp": {"protocols": {"grpc": {"endpoint": f"127.0.0.1:{ports['gather']}"}}},
                },
                "exporters": {"file": {"path": str(tmp_path / "verdicts.json")}},
                "service": {**own("cluster")["service"], "pipelines": {"logs": {"exporters": ["file"]}}},
            }
        },
    }
    objects = _objects(_render(helm, values, tmp_path, "live", namespace))
    _apply(server, objects)
    started = []
    for name in ("cluster", "agent"):
        (config,) = [one["data"][f"{name}.yaml"] for one in objects
                     if one["kind"] == "ConfigMap" and f"{name}.yaml" in one["data"]]  # fmt: skip
        (tmp_path / f"{name}.yaml").write_text(config)
        account = f"/api/v1/namespaces/{namespace}/serviceaccounts/live-tracecore-{name}/token"
        token = server.call("POST", account, {"spec": {"expirationSeconds": 3600}})["status"]["token"]
        environment = {
            **os.environ,
            "K8S_NODE_NAME": "node-7",
            "KUBERNETES_SERVICE_HOST": "127.0.0.1",
            "KUBERNETES_SERVICE_PORT": str(server.port),
        }
        account_files = tmp_path / f"{name}-account"
        account_files.mkdir()
        (account_files / "token").write_text(token)
        (account_files / "ca.crt").write_bytes(server.authority.read_bytes())
        log = (tmp_path / f"{name}.log").open("w")
        command = ["unshare", "--mount", "sh", "-c", AS_POD, "pod", str(account_files), sys.executable]
        command += ["-c", "from tracecore.cli.main import main; import sys; sys.exit(main())"]
        command += ["run", "--config", str(tmp_path / f"{name}.yaml")]
        started.append(subprocess.Popen(command, stderr=log, stdout=log, env=environment))
        log.close()
    try:
        for name in ("cluster", "agent"):
            _until(lambda name=name: _ready(ports[name]), lambda name=name: (tmp_path / f"{name}.log").read_text())
        yield {"logs": logs, "dumps": dumps, "kernel": kernel, "place": tmp_path, "metrics": ports["agent-own"]}
    finally:
        for process in started:
            process.terminate()
        for process in started:
            process.wait(60)


def _ready(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=30) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def _number(port: int, beginning: str) -> float:
    """The largest of the numbers at `/metrics` whose lines begin so."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as answer:
        lines = answer.read().decode().splitlines()
    return max((float(line.rpartition(" ")[2]) for line in lines if line.startswith(beginning)), default=0.0)


def _until(condition: Any, otherwise: Any, seconds: float = 120.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, otherwise()
        time.sleep(0.2)


def test_what_shows_on_a_node_and_in_the_api_is_put_together(server: Any, agents: dict[str, Any]) -> None:
    server.node("node-7", Ready="True")
    pod = server.pod(
        "train-0",
        "node-7",
        labels={"training.kubeflow.org/job-name": "job-1", "training.kubeflow.org/replica-index": "3"},
    )
    folder = agents["logs"] / f"default_train-0_{pod['metadata']['uid']}" / "main"
    folder.mkdir(parents=True)
    now = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime())
    oom = (
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 GiB. GPU 0 has a total capacity of "
        "79.18 GiB of which 1.00 GiB is free. Process 1 has 78.18 GiB memory in use. Of the allocated memory 70.00 GiB "
        "is allocated by PyTorch, and 1.00 GiB is reserved by PyTorch but unallocated."
    )
    (folder / "0.log").write_text(f"{now}.000000000Z stderr F {oom}\n")
    found = server.pod("dcgm-0", "node-7", labels={"app": "dcgm"})
    server.status(
        found["metadata"]["name"], {"phase": "Running", "podIP": "127.0.0.1", "podIPs": [{"ip": "127.0.0.1"}]}
    )
    scraped = 'tracecore_component_emitted_total{kind="receiver",component="prometheus"'
    _until(lambda: _number(agents["metrics"], scraped) >= 3, lambda: (agents["place"] / "agent.log").read_text())
    Exporter.errors = 1
    with agents["kernel"].open("a") as file:
        local = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime()) + ".000000+00:00"
        file.write(f"{local} node-7 kernel: NVRM: Xid (PCI:0000:3b:00): 48, pid=1234, DBE (double bit error) at FBPA\n")
        file.write(f"{local} node-7 kernel: NVRM: Xid (PCI:0000:3b:00): 79, pid=1234, GPU has fallen off the bus.\n")
    # The eviction comes after the Xid, by clocks that count in seconds.
    time.sleep(1.5)
    server.event(pod, "Evicted", "The node was low on resource: memory.", host="node-7")
    verdicts = agents["place"] / "verdicts.json"

    def told() -> set[str]:
        found: set[str] = set()
        if verdicts.exists():
            for line in verdicts.read_text().splitlines():
                for resource in json.loads(line)["resourceLogs"]:
                    for scope in resource["scopeLogs"]:
                        for record in scope["logRecords"]:
                            found |= {a["value"].get("stringValue", "") for a in record["attributes"]
                                      if a["key"] == "pattern.name"}  # fmt: skip
        return found

    for path in (ROOT / "examples" / "incidents" / "nccl_hang_one_rank_missing" / "fr").glob("nccl_trace_rank_*"):
        shutil.copy(path, agents["dumps"])
    wanted = {"cuda_oom", "gpu_fault", "hbm_ecc", "nccl_hang", "pod_evicted", "xid_correlation"}
    _until(
        lambda: wanted <= told(),
        lambda: f"{told()}\n" + "".join((agents["place"] / f"{name}.log").read_text() for name in ("agent", "cluster")),
    )
