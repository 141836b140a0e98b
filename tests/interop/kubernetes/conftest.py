"""A real API server, and our components over it."""

from __future__ import annotations

import importlib.util
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tracecore.agent.batch import Batch
from tracecore.agent.component import Setting
from tracecore.agent.processors import k8sattributes
from tracecore.agent.receivers import k8sobjects
from tracecore.agent.telemetry import Meter
from tracecore.signals.kubernetes import api, watch

HERE = Path(__file__).parent


def module(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"kubernetes_{name}", HERE / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """The server, shared by all tests: each uses names of its own."""
    serving = module("server")
    if reason := serving.missing():
        pytest.skip(reason)
    program = module("build").apiserver()
    if isinstance(program, str):
        pytest.skip(program)
    one = serving.Server(program, tmp_path_factory.mktemp("apiserver"))
    yield one
    one.close()


def until(condition: Callable[[], Any], seconds: float = 60.0) -> Any:
    """The first true value of a condition; fails when there is none in time."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if value := condition():
            return value
        time.sleep(0.05)
    raise AssertionError(f"not within {seconds} s")


@pytest.fixture(name="until")
def until_fixture() -> Callable[..., Any]:
    return until


class Store:
    """What survives a restart of a receiver."""

    def __init__(self) -> None:
        self.held: dict[str, bytes] = {}

    def client(self, name: str) -> Store:
        return self

    def items(self) -> Iterator[tuple[str, bytes]]:
        return iter(list(self.held.items()))

    def update(self, changes: dict[str, bytes]) -> None:
        self.held.update(changes)


class Receiving:
    """A `k8sobjects` receiver that runs in a thread."""

    def __init__(self, store: Store, **options: Any) -> None:
        self.meter = Meter("receiver", "k8sobjects")
        self.records: list[tuple[dict[str, Any], dict[str, Any]]] = []
        setting = Setting("k8sobjects", self.meter, time.time_ns, lambda _: store, Path(), lambda: (True, {}))
        self._receiver = k8sobjects.K8sObjects(k8sobjects.Options(storage="file_storage", **options), setting)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._receiver.run, args=(self._take, self._stop), daemon=True)
        self._thread.start()

    def _take(self, batch: Batch) -> None:
        for entry in batch.payload["resource_logs"]:
            for scope in entry["scope_logs"]:
                self.records += [(entry["resource"]["attributes"], record) for record in scope["log_records"]]
        batch.done()

    def ready(self) -> bool:
        """Every watch is open: what happens from now on is told."""
        followers = self._receiver._followers
        return len(followers) == len(self._receiver._feeds) and all(one.connections for one in followers)

    def bodies(self) -> list[dict[str, Any]]:
        return [record["body"] for _, record in list(self.records)]

    def names(self, kind: str = "") -> list[str]:
        """Names of the objects that were told, in order."""
        return [
            body["object"]["metadata"]["name"]
            for body in self.bodies()
            if "object" in body and (not kind or body["type"] == kind)
        ]

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(20)
        assert not self._thread.is_alive()
        self._receiver.close()


@pytest.fixture
def account(server: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Makes this process a pod that has the service account of a token."""
    monkeypatch.setattr(api, "ACCOUNT", tmp_path)
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "127.0.0.1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", str(server.port))
    # Tests wait for what a cluster would wait for longer.
    monkeypatch.setattr(watch, "POLL", 1.0)
    (tmp_path / "ca.crt").write_bytes(server.authority.read_bytes())

    def use(token: str) -> None:
        (tmp_path / "token").write_text(token)

    return use


@pytest.fixture
def receive(account: Any) -> Iterator[Callable[..., Receiving]]:
    """Starts receivers; they share a store and are stopped at the end."""
    store = Store()
    started: list[Receiving] = []

    def start(**options: Any) -> Receiving:
        one = Receiving(store, **options)
        started.append(one)
        return one

    yield start
    for one in started:
        one.stop()


@pytest.fixture
def naming(account: Any) -> Iterator[Callable[..., tuple[k8sattributes.K8sAttributes, Meter]]]:
    """Starts `k8sattributes`; they are stopped at the end."""
    started: list[k8sattributes.K8sAttributes] = []

    def start(**options: Any) -> tuple[k8sattributes.K8sAttributes, Meter]:
        meter = Meter("processor", "k8sattributes")
        setting = Setting("k8sattributes", meter, time.time_ns, {}.__getitem__, Path(), lambda: (True, {}))
        one = k8sattributes.K8sAttributes(k8sattributes.Options(**options), setting)
        one.start()
        started.append(one)
        return one, meter

    yield start
    for one in started:
        one.stop()
