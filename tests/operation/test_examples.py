"""The example of the integration page, as it ships: refused until it is filled in, then run over a tree of pods."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
from click.testing import CliRunner

from tracecore.cli.validate import command as validate

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "examples" / "agent" / "filelog-container.yaml"
PAGE = ROOT / "docs" / "integrations" / "container-logs.md"
UID = "0a1b2c3d-0000-4000-8000-000000000001"
PLACEHOLDER = "REPLACE_WITH_OTLP_HTTP_ENDPOINT"
OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.18 GiB"


def validated(text: str, path: Path) -> Any:
    path.write_text(text)
    return CliRunner().invoke(validate, ["--config", str(path)], standalone_mode=False)


def test_the_page_shows_the_example_that_ships() -> None:
    shown = re.findall(r"^```yaml\n# examples/agent/filelog-container.yaml\n(.*?)^```", PAGE.read_text(), re.M | re.S)
    without_head = EXAMPLE.read_text().partition("extensions:")[2]
    assert shown == [f"extensions:{without_head}"]


def test_the_placeholder_is_the_only_mistake(tmp_path: Path) -> None:
    text = EXAMPLE.read_text()
    done = validated(text, tmp_path / "a.yaml")
    assert done.return_value == 2
    assert done.stderr.splitlines()[1:] == ["1 mistake"]
    assert f"{PLACEHOLDER} is a placeholder" in done.stderr
    done = validated(text.replace(PLACEHOLDER, "https://otlp.example.com:4318"), tmp_path / "a.yaml")
    assert done.return_value == 0, done.stderr


def test_an_endpoint_that_is_no_url_is_refused(tmp_path: Path) -> None:
    for wrong in ("otlp.example.com:4318", "grpc://otlp.example.com", "http://"):
        assert validated(EXAMPLE.read_text().replace(PLACEHOLDER, wrong), tmp_path / "a.yaml").return_value == 2


def pod(name: str, uid: str) -> dict[str, Any]:
    owner = {"kind": "StatefulSet", "name": "trainer", "uid": "s0", "controller": True}
    return {
        "metadata": {
            "name": name,
            "namespace": "ml",
            "uid": uid,
            "labels": {"app.kubernetes.io/name": "trainer", "team": "vision"},
            "ownerReferences": [owner],
        },
        "spec": {"nodeName": "node-7", "containers": [{"name": "main", "image": "i.example/t:1"}]},
    }


def test_it_sends_records_with_their_pods_and_goes_on_after_a_restart(
    agent: Callable[[str], Any],
    backend: Any,
    peer_kind: Any,
    tmp_path: Path,
    monkeypatch: Any,
    until: Any,
) -> None:
    listed = {"kind": "PodList", "metadata": {"resourceVersion": "1"}, "items": [pod("trainer-0", UID)]}
    api = peer_kind(200, msgspec.json.encode(listed))
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "127.0.0.1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", str(api.port))
    monkeypatch.setenv("K8S_NODE_NAME", "node-7")
    text = EXAMPLE.read_text().replace(PLACEHOLDER, f"http://127.0.0.1:{backend.port}")
    for old, new in (
        ("/var/l", f"{tmp_path}/var/l"),  # directories of the test
        ("auth_type: serviceAccount", "auth_type: none"),  # and a server that asks for no token
        ("timeout: 5s", "timeout: 200ms"),
        ("service:\n", 'service:\n  telemetry: {metrics: {address: "127.0.0.1:0"}}\n'),
    ):
        assert old in text
        text = text.replace(old, new)
    log, own = (
        tmp_path / "var/log/pods" / name / "0.log"
        for name in (f"ml_trainer-0_{UID}/main", f"tracecore_agent-x_{UID[:-1]}2/tracecore")
    )
    for path in (log, own):
        path.parent.mkdir(parents=True)
        path.write_text(line("before the agent came"))

    def bodies() -> list[str]:
        return [record["body"] for _, record in backend.records]

    running = agent(text)
    # It begins at the end: nothing may be written before it has looked.
    until(lambda: running.metric("tracecore_watched_files", component="filelog/container") == 1)
    for path in (log, own):
        append(path, line("step 1 loss 2.1"), line(OOM, "stderr"))
    until(lambda: any("ran out of GPU memory" in body for body in bodies()))
    found = {record["body"]: (resource, record) for resource, record in backend.records}
    resource, record = found["step 1 loss 2.1"]
    assert resource.items() >= {
        "k8s.namespace.name": "ml", "k8s.pod.name": "trainer-0", "k8s.pod.uid": UID, "k8s.container.name": "main",
        "k8s.statefulset.name": "trainer", "k8s.node.name": "node-7", "app": "trainer",
    }.items()  # fmt: skip
    assert "team" not in resource
    assert record["attributes"]["log.iostream"] == "stdout"
    assert (record["severity_number"], record["severity_text"]) == (9, "stdout")
    assert (found[OOM][1]["severity_number"], found[OOM][1]["severity_text"]) == (17, "stderr")
    assert bodies().count("step 1 loss 2.1") == 1  # and nothing of the agent's own
    assert running.stop() == 0
    append(log, line("while nobody looked"))
    running.start()
    until(lambda: "while nobody looked" in bodies())
    append(log, line("the last"))
    until(lambda: "the last" in bodies())
    assert running.stop() == 0
    lines = [body for body in bodies() if "GPU memory" not in body]
    assert lines.count(OOM) == lines.count("step 1 loss 2.1") == lines.count("while nobody looked") == 1
    assert "before the agent came" not in lines
    api.close()


def line(text: str, stream: str = "stdout") -> str:
    return f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime())}.123456789Z {stream} F {text}\n"


def append(path: Path, *lines: str) -> None:
    with path.open("a") as file:
        file.writelines(lines)
