"""The same server, read by the Collector's own receiver and by ours at the same time: the same records come out."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tracecore.agent.receivers.k8sobjects import Object
from tracecore.agent.receivers.otlp_http import from_json
from tracecore.signals.otlp.decoding import decode

pytestmark = pytest.mark.interop


class Theirs:
    """The Collector's receiver in a process."""

    def __init__(self, program: Path, kubeconfig: Path, options: dict[str, Any], out: Path) -> None:
        self._out = out
        with out.open("wb") as file:
            self._process = subprocess.Popen(
                [program], stdin=subprocess.PIPE, stdout=file, stderr=subprocess.DEVNULL,
                env={**os.environ, "KUBECONFIG": str(kubeconfig)},
            )  # fmt: skip
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"auth_type": "kubeConfig", **options}).encode())
        self._process.stdin.close()

    def records(self) -> list[tuple[dict[str, Any], dict[str, Any]]]:
        found = []
        *lines, _ = self._out.read_text().split("\n")
        for line in lines:
            for entry in decode("logs", from_json("logs", line.encode()))["resource_logs"]:
                for scope in entry["scope_logs"]:
                    found += [(entry["resource"].get("attributes", {}), r) for r in scope["log_records"]]
        return found

    def stop(self) -> None:
        self._process.terminate()
        self._process.wait(20)


@pytest.fixture(scope="module")
def program(server: Any, request: pytest.FixtureRequest) -> Path:
    import importlib.util

    spec = importlib.util.spec_from_file_location("kubernetes_build", Path(__file__).with_name("build.py"))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    found = module.receiver()
    if isinstance(found, str):
        pytest.skip(found)
    return Path(found)


@pytest.fixture
def theirs(program: Path, server: Any, tmp_path: Path) -> Iterator[Any]:
    started: list[Theirs] = []

    def start(**options: Any) -> Theirs:
        kubeconfig = server.kubeconfig(tmp_path / "kubeconfig", "interop-admin-token")
        started.append(Theirs(program, kubeconfig, options, tmp_path / f"theirs-{len(started)}.json"))
        return started[-1]

    yield start
    for one in started:
        one.stop()


def comparable(records: list[tuple[dict[str, Any], dict[str, Any]]]) -> list[str]:
    """Attributes and bodies, in an order of their own: two watches of two kinds have none together."""
    return sorted(json.dumps({"attributes": r["attributes"], "body": r["body"]}, sort_keys=True) for _, r in records)


def test_a_watch_gives_the_same_records(server: Any, account: Any, receive: Any, theirs: Any, until: Any) -> None:
    account("interop-admin-token")
    server.namespace("compared")
    kinds = ("pods", "events")
    collector = theirs(objects=[{"name": kind, "mode": "watch", "namespaces": ["compared"]} for kind in kinds])
    ours = receive(objects=[Object(name=kind, mode="watch", namespaces=["compared"]) for kind in kinds])
    until(ours.ready)
    # Theirs does not tell when its watches are open: until it tells of one pod and one event, they are made.
    started = time.monotonic()
    while len({r["attributes"]["k8s.resource.name"] for _, r in collector.records()}) < 2:
        assert time.monotonic() - started < 60
        pod = server.pod(f"early-{time.monotonic_ns()}", "node-of-none", "compared")
        server.event(pod, "Scheduled", "early")
        time.sleep(0.5)
    pod = server.pod("compared-0", "node-of-none", "compared", labels={"a": "b"})
    server.status("compared-0", {"phase": "Running", "podIP": "10.3.2.1"}, "compared")
    server.event(pod, "Evicted", "The node was low on resource: memory.", "node-of-none")
    server.call("DELETE", "/api/v1/namespaces/compared/pods/compared-0")
    server.event(pod, "Killing", "the last")

    def since(records: Any) -> Any:
        """Those about what both were there for."""
        return [(a, r) for a, r in records if "compared-0" in json.dumps(r["body"])]

    def complete(records: Any) -> bool:
        bodies = [r["body"] for _, r in records]
        ended = any(b["type"] == "DELETED" and b["object"]["metadata"]["name"] == "compared-0" for b in bodies)
        return ended and any(b["object"].get("message") == "the last" for b in bodies)

    until(lambda: complete(collector.records()) and complete(ours.records))
    assert len(since(ours.records)) >= 5
    assert comparable(since(ours.records)) == comparable(since(collector.records()))
    # Since that version, the Collector too says the namespace of what it watches.
    assert {json.dumps(a) for a, _ in ours.records} == {'{"k8s.namespace.name": "compared"}'}


def test_a_pull_gives_the_same_records(server: Any, account: Any, receive: Any, theirs: Any, until: Any) -> None:
    account("interop-admin-token")
    server.namespace("pulled")
    for number in range(3):
        server.pod(f"pulled-{number}", "node-of-none", "pulled")
    collector = theirs(objects=[{"name": "pods", "mode": "pull", "interval": "1h", "namespaces": ["pulled"]}])
    ours = receive(objects=[Object(name="pods", namespaces=["pulled"])])
    until(lambda: len(collector.records()) == 3 and len(ours.records) == 3)
    assert comparable(ours.records) == comparable(collector.records())
    assert [a for a, _ in ours.records] == [a for a, _ in collector.records()]
