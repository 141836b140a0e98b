"""Facts of recorded incidents through a real Collector: none is lost, changed or doubled on the way."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import time
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

from tracecore.diagnose.offline import diagnose
from tracecore.facts import wire
from tracecore.facts.fact import Fact
from tracecore.server.app import make_app
from tracecore.server.settings import ServerSettings
from tracecore.signals.otlp import decoding, encoding
from tracecore.store.inbox import Inbox
from tracecore.store.store import Store

pytestmark = pytest.mark.interop
HERE = Path(__file__).parent
INCIDENTS = HERE.parents[1] / "examples" / "incidents"


def _module(path: Path) -> Any:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _kept(facts: list[Fact]) -> list[bytes]:
    return sorted({msgspec.json.encode([wire.uid(fact), type(fact).kind, fact]) for fact in facts})


def test_facts_pass_through_a_collector(tmp_path: Path) -> None:
    program = _module(HERE / "otelcol" / "build.py").collector()
    if isinstance(program, str):
        pytest.skip(program)
    free_port = _module(HERE / "otelcol" / "running.py").free_port
    running = _module(HERE.parent / "server" / "running.py").running
    facts = [fact for bundle in sorted(INCIDENTS.iterdir())[:20] for fact in diagnose([bundle]).facts]
    # What travels is what the wire keeps of a fact.
    sent = wire.read(decoding.decode("logs", encoding.encode("logs", wire.payload(facts, 1)))).facts
    assert len(sent) > 200
    store = Store.open(str(tmp_path / "store.db"), durable=False)
    port = free_port()
    with running(make_app(store, ServerSettings(rate=0))) as address:
        config = {
            "receivers": {"otlp": {"protocols": {"http": {"endpoint": f"127.0.0.1:{port}"}}}},
            "processors": {"batch": {"timeout": "200ms", "send_batch_size": 100, "send_batch_max_size": 100}},
            "exporters": {"otlphttp": {"endpoint": address}},
            "service": {
                "telemetry": {"metrics": {"level": "none"}, "logs": {"level": "error"}},
                "pipelines": {"logs": {"receivers": ["otlp"], "processors": ["batch"], "exporters": ["otlphttp"]}},
            },
        }
        (tmp_path / "config.yaml").write_text(json.dumps(config))
        with (tmp_path / "log").open("wb") as log:
            command = [str(program), "--config", str(tmp_path / "config.yaml")]
            collector = subprocess.Popen(command, stdout=log, stderr=log)
        try:
            _send(f"http://127.0.0.1:{port}/v1/logs", encoding.encode("logs", wire.payload(facts, 1)))
            deadline = time.monotonic() + 60
            while len(_received(store)) < len(sent) and time.monotonic() < deadline:
                time.sleep(0.2)
        finally:
            collector.terminate()
            collector.wait(30)
    found = _received(store)
    store.close()
    assert len(found) == len(sent)
    assert _kept(found) == _kept(sent)


def _send(url: str, request: bytes) -> None:
    for _ in range(300):
        try:
            answer = httpx.post(url, content=request, headers={"Content-Type": "application/x-protobuf"}, timeout=30)
        except httpx.TransportError:
            time.sleep(0.1)
        else:
            assert answer.status_code == 200, answer.text
            return
    raise AssertionError("the Collector does not listen")


def _received(store: Store) -> list[Fact]:
    requests = Inbox(store.database).oldest(10_000)
    return [fact for one in requests for fact in wire.read(decoding.decode("logs", one.payload)).facts]
