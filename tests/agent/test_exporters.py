"""Exporters that write files and post verdicts."""

from __future__ import annotations

import http.server
import struct
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tracecore.agent.batch import Ack, Batch
from tracecore.agent.component import Setting
from tracecore.agent.exporters.file import FileExporter, Options, Rotation
from tracecore.agent.exporters.webhook import alert
from tracecore.agent.telemetry import Meter
from tracecore.signals.otlp import decoding

Start = Callable[[str], Any]
Wait = Callable[..., Any]


def setting(id: str = "file", clock: Callable[[], int] = time.time_ns) -> Setting:
    return Setting(id, Meter("exporter", id), clock, {}.__getitem__, Path(), lambda: (True, {}))


def batch(text: str, acks: tuple[Ack, ...] = ()) -> Batch:
    records = [
        {"body": text, "attributes": {"n": 1, "d": 1.5, "l": [True, None], "nan": float("nan")}, "time_unix_nano": 5}
    ]
    return Batch("logs", {"resource_logs": [{"resource": {}, "scope_logs": [{"log_records": records}]}]}, acks=acks)


@pytest.mark.parametrize("clock", [time.time_ns, lambda: 1_750_000_000_123_000_000], ids=["running", "one millisecond"])
def test_a_file_is_set_aside_when_it_is_full_and_old_ones_go(tmp_path: Path, clock: Callable[[], int]) -> None:
    path = tmp_path / "out.json"
    options = Options(path=str(path), rotation=Rotation(max_megabytes=1, max_backups=2))
    exporter = FileExporter(options, setting(clock=clock))
    exporter.start()
    for n in range(9):
        exporter.export(batch(f"{n} " + "x" * 600_000))
    exporter.stop(time.monotonic() + 1)
    names = sorted(p.name for p in tmp_path.iterdir())
    assert len(names) == 3
    assert names[2] == "out.json"
    texts = [(tmp_path / name).read_text() for name in names]
    kept = [msgspec.json.decode(text)["resourceLogs"][0]["scopeLogs"][0]["logRecords"][0] for text in texts]
    assert [record["body"]["stringValue"][0] for record in kept] == ["6", "7", "8"]


def test_what_cannot_be_written_is_kept_and_written_later(tmp_path: Path) -> None:
    path = tmp_path / "out.json"
    path.symlink_to("/dev/full")
    done: list[int] = []
    one = setting()
    exporter = FileExporter(Options(path=str(path), append=True), one)
    exporter.start()
    exporter.export(batch("first", (Ack(lambda: done.append(1)),)))
    assert (exporter.ready(), done, one.meter.degraded) == (False, [], True)
    path.unlink()
    assert exporter._file is not None
    exporter._file.close()
    exporter._file = None
    exporter._again = 0.0
    assert exporter.ready()
    assert (done, one.meter.degraded) == ([1], False)
    assert path.read_bytes().count(b"\n") == 1
    exporter.stop(time.monotonic() + 1)


def test_protobuf_with_lengths_is_read_back(tmp_path: Path) -> None:
    path = tmp_path / "out.pb"
    exporter = FileExporter(Options(path=str(path), format="proto"), setting())
    exporter.start()
    exporter.export(batch("a"))
    exporter.export(batch("b"))
    exporter.stop(time.monotonic() + 1)
    data, found = path.read_bytes(), []
    while data:
        (size,) = struct.unpack(">I", data[:4])
        found.append(decoding.decode("logs", data[4 : 4 + size]))
        data = data[4 + size :]
    assert [f["resource_logs"][0]["scope_logs"][0]["log_records"][0]["body"] for f in found] == ["a", "b"]


def test_a_file_is_nobody_elses(tmp_path: Path) -> None:
    exporter = FileExporter(Options(path=str(tmp_path / "deep" / "out.json"), create_directory=True), setting())
    exporter.start()
    exporter.stop(time.monotonic() + 1)
    assert (tmp_path / "deep" / "out.json").stat().st_mode & 0o777 == 0o600


CRASH = [
    "[rank1]: Traceback (most recent call last):",
    '[rank1]:   File "/a.py", line 1, in <module>',
    "[rank1]: ValueError: bad",
]


@pytest.fixture
def hook() -> Iterator[tuple[int, list[Any]]]:
    got: list[Any] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            got.append((self.path, self.headers.get("Authorization"), msgspec.json.decode(body)))
            self.send_response(500 if len(got) == 1 else 200)
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    yield server.server_address[1], got
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize("form", ["alertmanager", "json"])
def test_verdicts_are_posted_and_nothing_else(agent: Start, hook: Any, wait_for: Wait, form: str) -> None:
    port, got = hook
    running = agent(f"""\
receivers:
  otlp: {{protocols: {{http: {{endpoint: "localhost:0"}}}}}}
processors:
  patterndetector:
exporters:
  webhook:
    url: http://127.0.0.1:{port}/hook?key=s3cret
    format: {form}
    headers: {{Authorization: Bearer t0ken}}
    labels: {{cluster: c1}}
    retry_on_failure: {{initial_interval: 20ms, max_interval: 50ms}}
service:
  telemetry: {{metrics: {{level: none}}}}
  pipelines:
    logs: {{receivers: [otlp], processors: [patterndetector], exporters: [webhook]}}
""")
    running.send(["nothing to see", "still nothing"])
    running.send(CRASH, resource={"k8s.pod.name": "w-1", "k8s.namespace.name": "ml"})
    wait_for(lambda: len(got) == 2)
    path, authorization, document = got[-1]
    assert (path, authorization) == ("/hook?key=s3cret", "Bearer t0ken")
    if form == "alertmanager":
        labels = document[0]["labels"]
        found = [labels[name] for name in ("alertname", "pod", "namespace", "cluster")]
        assert found == ["worker_crash", "w-1", "ml", "c1"]
        assert "ValueError" in document[0]["annotations"]["summary"]
        assert "endsAt" not in document[0]
    else:
        assert (document["pattern"], document["status"], document["revision"]) == ("worker_crash", "active", 1)
        assert document["verdict"]["evidence_trail"]
    assert running.stop() == 0
    assert len(got) == 2
    assert "s3cret" not in running.log
    assert "t0ken" not in running.log


def test_a_verdict_that_was_taken_back_ends_its_alert() -> None:
    attributes = {"pattern.name": "p", "verdict.id": "p-1", "verdict.status": "cleared", "pattern.role": "cause"}
    made = alert(attributes, {"time_unix_nano": 10**18, "observed_time_unix_nano": 2 * 10**18}, {})
    assert (made["startsAt"], made["endsAt"]) == ("2001-09-09T01:46:40Z", "2033-05-18T03:33:20Z")
    assert made["labels"]["severity"] == "critical"
