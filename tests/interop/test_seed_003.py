"""A node's configuration, run by the OpenTelemetry Collector and by us over the same tree of pods.

Both follow `/var/log/pods` through rotation and a restart, ask the same real API server who the pods are, and write
what they have to a file: the same records.
"""

from __future__ import annotations

import gzip
import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

pytestmark = pytest.mark.interop
HERE = Path(__file__).parent
ROOT = HERE.parent.parent


def module(place: str, name: str) -> Any:
    spec = importlib.util.spec_from_file_location(f"{place}_{name}", HERE / place / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


records = module("otelcol", "records")


@pytest.fixture(scope="module")
def collector() -> Path:
    found = module("otelcol", "build").collector()
    if isinstance(found, str):
        pytest.skip(found)
    return Path(found)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    serving = module("kubernetes", "server")
    if reason := serving.missing():
        pytest.skip(reason)
    program = module("kubernetes", "build").apiserver()
    if isinstance(program, str):
        pytest.skip(program)
    one = serving.Server(program, tmp_path_factory.mktemp("apiserver"))
    yield one
    one.close()


def written() -> str:
    """The configuration as people are told to write it."""
    seeds = (Path(os.environ.get("TRACECORE_SHARED_DATA") or ROOT.parent / "shared" / "data")).parent / "seeds"
    for path in sorted(seeds.glob("003_*.txt")):
        text = path.read_text()
        return text[text.index("extensions:\n") : text.index("Validate with")]
    pytest.skip("no shared seeds: set TRACECORE_SHARED_DATA to the directory beside them")


def adapted(text: str, place: Path, name: str, auto: bool) -> dict[str, Any]:
    """The same with a file instead of the network, and directories of the test."""
    config: dict[str, Any] = json.loads(json.dumps(YAML(typ="safe").load(text)))
    storage = config["extensions"]["file_storage/checkpoints"]
    storage["directory"] = storage["compaction"]["directory"] = str(place / f"{name}-state")
    files = config["receivers"]["filelog/container"]
    for key in ("include", "exclude"):
        files[key] = [f"{place}{path}" for path in files[key]]
    parser = files["operators"][0]
    assert parser["format"] == "auto"
    if not auto:
        # The Collector looks at each line when it is told no format, and knows no word for that.
        del parser["format"]
    # As written, what is read in the first instant may know its pod or not, here as there.
    config["processors"]["k8sattributes"] |= {"auth_type": "kubeConfig", "wait_for_metadata": True}
    config["exporters"] = {"file": {"path": str(place / f"{name}.json"), "append": True}}
    config["service"]["pipelines"]["logs/container"]["exporters"] = ["file"]
    config["service"]["telemetry"] = {"metrics": {"level": "none"}, "logs": {"level": "error"}}
    (place / f"{name}.yaml").write_text(json.dumps(config))
    return config


class Program:
    """One of the two."""

    def __init__(self, command: list[str], place: Path, name: str, kubeconfig: Path) -> None:
        self._command = [*command, str(place / f"{name}.yaml")]
        self._environment = {**os.environ, "KUBECONFIG": str(kubeconfig)}
        self._log = place / f"{name}.log"
        self.out = place / f"{name}.json"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(self._command, stdout=log, stderr=log, env=self._environment)

    def stop(self) -> None:
        assert self._process is not None
        assert self._process.poll() is None, self._log.read_text()[-3000:]
        self._process.send_signal(signal.SIGTERM)
        assert self._process.wait(60) == 0, self._log.read_text()[-3000:]

    def kill(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
            self._process.wait()

    def found(self) -> Counter[Any]:
        return Counter(records.theirs(self.out)) if self.out.exists() else Counter()


def line(number: int, text: str, stream: str = "stdout", tag: str = "F") -> str:
    return f"2026-11-15T01:37:{4 + number // 1000 % 50:02d}.{number:09d}Z {stream} {tag} {text}\n"


def append(path: Path, text: str) -> None:
    with path.open("a") as out:
        out.write(text)


@pytest.fixture
def pods(cluster: Any, tmp_path: Path) -> list[Path]:
    """Logs of pods that have owners of every kind, of one that nobody knows, and of the agent itself."""
    cluster.namespace("ml")
    cluster.node("node-7")
    apps = "/apis/apps/v1/namespaces/ml/replicasets"
    template = {
        "metadata": {"labels": {"app": "x"}},
        "spec": {"containers": [{"name": "main", "image": "i.example/t"}]},
    }
    owner = {"apiVersion": "apps/v1", "kind": "Deployment", "name": "serve", "uid": "d0", "controller": True}
    made = cluster.call(
        "POST",
        apps,
        {
            "metadata": {"name": "serve-5d4f8c7b9", "ownerReferences": [owner]},
            "spec": {"replicas": 0, "selector": {"matchLabels": {"app": "x"}}, "template": template},
        },
    )
    owners = {
        "trainer-0": ("StatefulSet", "trainer", "s0"),
        "serve-5d4f8c7b9-x2x4z": ("ReplicaSet", "serve-5d4f8c7b9", made["metadata"]["uid"]),
        "probe-abcde": ("DaemonSet", "probe", "p0"),
    }
    logs = []
    for name, (kind, of, uid) in owners.items():
        reference = {"apiVersion": "apps/v1", "kind": kind, "name": of, "uid": uid, "controller": True}
        labels = {"app.kubernetes.io/name": of, "team": "vision"}
        if kind == "ReplicaSet":
            labels["pod-template-hash"] = of.partition("-")[2]
        pod = cluster.pod(name, "node-7", "ml", ownerReferences=[reference], labels=labels)
        logs.append(f"ml_{name}_{pod['metadata']['uid']}/main/0.log")
    logs.append("ml_stranger_0a1b2c3d-0000-4000-8000-000000000001/main/0.log")
    logs.append("kube-system_etcd-node-7_9b1deb4d3b7d4bad9bdd2b0d7b3dcb6d/etcd/3.log")
    logs.append("ml_agent_0a1b2c3d-0000-4000-8000-000000000002/tracecore/0.log")
    paths = [tmp_path / "var/log/pods" / log for log in logs]
    for path in paths:
        path.parent.mkdir(parents=True)
    return paths


def test_the_same_records_come_out(collector: Path, cluster: Any, pods: list[Path], tmp_path: Path) -> None:
    token = cluster.account(
        "interop-seed",
        [
            {"apiGroups": [""], "resources": ["pods", "namespaces", "nodes"], "verbs": ["get", "list", "watch"]},
            {"apiGroups": ["apps"], "resources": ["replicasets"], "verbs": ["get", "list", "watch"]},
        ],
    )
    kubeconfig = cluster.kubeconfig(tmp_path / "kubeconfig", token)
    text = written()
    for number, path in enumerate(pods):
        path.write_text("".join(line(n, f"pod {number} long ago {n}") for n in range(50)))
    adapted(text, tmp_path, "theirs", auto=False)
    adapted(text, tmp_path, "ours", auto=True)
    both = [
        Program([str(collector), "--config"], tmp_path, "theirs", kubeconfig),
        Program([sys.executable, "-m", "tracecore", "run", "--config"], tmp_path, "ours", kubeconfig),
    ]
    try:
        for one in both:
            one.start()
        # They begin at the end of what is there: nothing may be written before they have looked.
        time.sleep(12)
        told(pods)
        settle(both)
        rotated(pods)
        settle(both)
        for one in both:
            one.stop()
        for number, path in enumerate(pods):
            append(path, "".join(line(7000 + n, f"pod {number} while nobody looked {n}") for n in range(20)))
        for one in both:
            one.start()
        settle(both)
        for one in both:
            one.stop()
    finally:
        for one in both:
            one.kill()
    want, got = (one.found() for one in both)
    assert sum(want.values()) > 1000
    assert got - want == Counter()
    assert want - got == Counter()
    assert any('"k8s.statefulset.name": "trainer"' in record[0] for record in want)
    assert any('"k8s.deployment.name": "serve"' in record[0] for record in want)


def told(pods: list[Path]) -> None:
    """All kinds of lines."""
    for number, path in enumerate(pods):
        text = "".join(
            line(100 + n, f"pod {number} step {n}", "stderr" if n % 7 == 0 else "stdout") for n in range(150)
        )
        text += line(400, "cut in ", tag="P") + line(401, "three ", tag="P") + line(402, "pieces")
        text += line(403, "on two streams ", tag="P") + line(404, "other stream ", "stderr") + line(405, "after")
        text += line(406, "") + line(407, "   indented\t") + line(408, "naïve ✓ 模型")
        text += f'{{"log":"docker {number}\\n","stream":"stderr","time":"2026-11-15T01:37:05.5Z"}}\n'
        text += '{"log":"escaped \\u2713 \\ud83d\\ude00 \\"","stream":"stdout","time":"2026-11-15T01:37:05.12Z"}\n'
        text += f"2026-11-15T01:37:05.25+02:00 stdout F crio {number}\n2026-11-15T01:37:05.5-10:00 stderr P crio cut\n"
        text += f"2026-11-15T01:37:05.6-10:00 stderr F  in two {number}\n"
        text += f"no line of a runtime {number}\n\n   \n2026-11-15T01:37:05.1Z stdout\n"
        append(path, text)


def rotated(pods: list[Path]) -> None:
    """As a kubelet rotates: moved aside, and the one before compressed; a line is cut by it."""
    for number, path in enumerate(pods):
        old = path.open("a")
        old.write(line(500, "begun before the rotation, ", tag="P"))
        old.flush()
        aside = path.with_name(path.name + ".20261115-013805")
        path.rename(aside)
        old.write(line(501, f"ended after it {number}"))
        old.close()
        path.write_text("".join(line(600 + n, f"pod {number} in the new file {n}") for n in range(40)))
    time.sleep(2)
    for path in pods:
        aside = path.with_name(path.name + ".20261115-013805")
        (aside.with_name(aside.name + ".gz")).write_bytes(gzip.compress(aside.read_bytes()))
        aside.unlink()
    # One is deleted with its directory, another restarts.
    second = pods[1].with_name("1.log")
    second.write_text("".join(line(800 + n, f"after a restart {n}") for n in range(30)))


def settle(both: list[Program], seconds: float = 90.0) -> None:
    """Waits until both have written as much, and nothing more comes; batches wait for five seconds."""
    until = time.monotonic() + seconds
    before: list[int] = []
    calm = 0
    while calm < 8:
        now = [sum(one.found().values()) for one in both]
        calm = calm + 1 if now == before and now[0] == now[1] else 0
        before = now
        if time.monotonic() > until:
            return
        time.sleep(1)
