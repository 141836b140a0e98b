"""Exporters over a network, against servers that fail in the ways servers do."""

from __future__ import annotations

import json
import select
import socket
import socketserver
import subprocess
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from urllib.parse import urlsplit

import grpc
import pytest
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest

from tracecore.agent.batch import Ack, Batch
from tracecore.agent.component import Setting
from tracecore.agent.exporters.queue_options import RetryOnFailure, SendingQueue
from tracecore.agent.exporters.sending import RetryLater, Sender
from tracecore.agent.telemetry import Meter
from tracecore.signals.otlp.responses import success
from tracecore.signals.otlp.services import METHODS
from tracecore.signals.storage.journal import Journal, JournalError

Start = Callable[[str], Any]
Wait = Callable[..., Any]

TEXT = """\
receivers:
  otlp:
    protocols:
      grpc: {{endpoint: "localhost:0"{grpc_tls}}}
      http: {{endpoint: "localhost:0"{http_tls}}}
exporters:
  {exporter}
service:
  telemetry: {{metrics: {{address: "127.0.0.1:0"}}}}
  pipelines:
    logs: {{receivers: [otlp], exporters: [{name}]}}
    metrics: {{receivers: [otlp], exporters: [{name}]}}
"""
STORAGE = """\
extensions:
  file_storage: {directory: kept, create_directory: true}
service:
  extensions: [file_storage]
"""
FAST = "retry_on_failure: {initial_interval: 20ms, max_interval: 50ms, max_elapsed_time: 0s}"


def text(exporter: str, grpc_tls: str = "", http_tls: str = "") -> str:
    return TEXT.format(exporter=exporter, name=exporter.partition(":")[0], grpc_tls=grpc_tls, http_tls=http_tls)


@pytest.mark.parametrize(
    ("options", "encoding", "kind"),
    [
        ("compression: gzip", "gzip", "application/x-protobuf"),
        ("compression: zstd", "zstd", "application/x-protobuf"),
        ("compression: none, encoding: json", None, "application/json"),
    ],
)
def test_everything_arrives_in_every_encoding(
    agent: Start, sink: Any, wait_for: Wait, options: str, encoding: str | None, kind: str
) -> None:
    running = agent(
        text(f'otlphttp: {{endpoint: "http://127.0.0.1:{sink.port}", {options}, headers: {{x-key: s3cret}}}}')
    )
    lines = [f"line {n} ü" for n in range(50)]
    assert running.send(lines)[0] == 200
    wait_for(lambda: sink.bodies == lines)
    request = sink.requests[0]
    assert (request.get("content-encoding"), request["content-type"], request["x-key"]) == (encoding, kind, "s3cret")
    assert running.stop() == 0
    assert "s3cret" not in running.log


def test_what_a_server_cannot_take_now_is_sent_again(agent: Start, sink: Any, wait_for: Wait) -> None:
    sink.answers = [(503, {}, b""), (429, {"Retry-After": "0"}, b""), (502, {}, b""), (504, {}, b"")]
    running = agent(text(f'otlphttp: {{endpoint: "http://127.0.0.1:{sink.port}", {FAST}}}'))
    running.send(["again"])
    wait_for(lambda: sink.bodies == ["again"])
    wait_for(lambda: running.get("/readyz")[0] == 200)
    assert running.metric("tracecore_component_retries_total", component="otlphttp") == 4
    assert "cannot send, trying again: HTTP 503" in running.log
    assert "sending again" in running.log


def test_what_a_server_rejects_is_dropped_and_counted(agent: Start, sink: Any, wait_for: Wait) -> None:
    sink.answers = [(400, {"Content-Type": "application/json"}, b'{"message": "no such tenant"}')]
    running = agent(text(f'otlphttp: {{endpoint: "http://127.0.0.1:{sink.port}", {FAST}}}'))
    running.send(["one", "two"])
    wait_for(lambda: running.metric("tracecore_component_dropped_total", reason="rejected") == 2)
    assert "no such tenant" in running.log
    running.send(["three"])
    wait_for(lambda: sink.bodies == ["three"])


def test_a_partial_success_is_counted(agent: Start, sink: Any, wait_for: Wait) -> None:
    sink.answers = [(200, {"Content-Type": "application/x-protobuf"}, success("logs", False, 3, "too old"))]
    running = agent(text(f'otlphttp: {{endpoint: "http://127.0.0.1:{sink.port}"}}'))
    running.send(["a", "b", "c", "d"])
    wait_for(lambda: running.metric("tracecore_component_dropped_total", reason="partial_success") == 3)


def test_a_full_queue_asks_the_source_to_wait_and_nothing_is_lost(agent: Start, sink: Any, wait_for: Wait) -> None:
    port = sink.port
    sink.close()
    queueing = "sending_queue: {queue_size: 3, num_consumers: 1}"
    running = agent(text(f'otlphttp: {{endpoint: "http://127.0.0.1:{port}", {queueing}, {FAST}}}'))
    taken = []
    for n in range(6):
        status, _ = running.send([f"line {n}"])
        if status == 200:
            taken.append(f"line {n}")
    assert taken == ["line 0", "line 1", "line 2"]
    assert running.metric("tracecore_component_queue_depth", component="otlphttp") == 3
    assert running.metric("tracecore_component_refused_total", kind="receiver") == 3
    # Records wait: that is degraded, and no reason to take the agent out of service.
    status, body = running.get("/readyz")
    assert status == 200
    assert '"status":"degraded"' in body
    assert "exporter otlphttp" in body
    again = type(sink)(port)
    try:
        wait_for(lambda: sorted(again.bodies) == taken)
        wait_for(lambda: running.send(["later"])[0] == 200)
        wait_for(lambda: "later" in again.bodies)
        assert running.stop() == 0
    finally:
        again.close()


def test_a_stop_sends_what_waits(agent: Start, sink: Any, wait_for: Wait) -> None:
    sink.answers = [(503, {}, b"")] * 3
    running = agent(text(f'otlphttp: {{endpoint: "http://127.0.0.1:{sink.port}", {FAST}}}'))
    for n in range(20):
        running.send([f"line {n}"])
    assert running.stop() == 0
    assert sorted(sink.bodies) == sorted(f"line {n}" for n in range(20))


def test_metrics_pass_too(agent: Start, sink: Any, wait_for: Wait, post: Wait) -> None:
    running = agent(text(f'otlphttp: {{endpoint: "http://127.0.0.1:{sink.port}"}}'))
    body = (
        b'{"resourceMetrics":[{"resource":{},"scopeMetrics":[{"metrics":[{"name":"m","sum":{"aggregationTemporality":2,'
        b'"isMonotonic":true,"dataPoints":[{"asInt":"5","timeUnixNano":"7"},{"asDouble":1.5}]}}]}]}]}'
    )
    assert post(running.port("http"), "/v1/metrics", body, "application/json")[0] == 200
    wait_for(lambda: sink.metrics)
    metric = sink.metrics[0]["resource_metrics"][0]["scope_metrics"][0]["metrics"][0]
    assert metric["sum"]["data_points"] == [{"as_int": 5, "time_unix_nano": 7}, {"as_double": 1.5}]
    assert running.metric("tracecore_component_received_total", kind="receiver") == 2


def export(channel: Any, body: str) -> bytes:
    request = ExportLogsServiceRequest()
    request.resource_logs.add().scope_logs.add().log_records.add().body.string_value = body
    answer: bytes = channel.unary_unary(METHODS["logs"])(request.SerializeToString(), timeout=20)
    return answer


def test_grpc_from_one_agent_to_another(agent: Start, tmp_path: Path, wait_for: Wait) -> None:
    first = agent(text("file: {path: out.json}"))
    (tmp_path / "second").mkdir()
    second = type(first)(tmp_path / "second", "")
    second.path.write_text(
        text(f'otlp: {{endpoint: "localhost:{first.port("grpc")}", tls: {{insecure: true}}, {FAST}}}')
    )
    second.start()
    try:
        with grpc.insecure_channel(f"localhost:{second.port('grpc')}") as channel:
            assert export(channel, "through two") == b""
            with pytest.raises(grpc.RpcError) as wrong:
                channel.unary_unary(METHODS["logs"])(b"\xff\xff", timeout=20)
            assert wrong.value.code() is grpc.StatusCode.INVALID_ARGUMENT
            with pytest.raises(grpc.RpcError) as large:
                export(channel, "x" * (5 << 20))
            assert large.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        wait_for(lambda: [record["body"] for record in first.written()] == ["through two"])
    finally:
        assert second.stop() == 0


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An authority, a server's and a client's certificate, and a stranger's."""
    base = tmp_path_factory.mktemp("certificates")

    def run(*arguments: str) -> None:
        subprocess.run(["openssl", *arguments], cwd=base, check=True, capture_output=True)

    for authority in ("ca", "other"):
        run("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2",
            "-subj", f"/CN={authority}", "-keyout", f"{authority}.key", "-out", f"{authority}.pem",
            "-addext", "keyUsage=critical,keyCertSign")  # fmt: skip
    (base / "names").write_text("subjectAltName=DNS:localhost\n")
    for name, authority in (("server", "ca"), ("client", "ca"), ("stranger", "other")):
        run("req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-subj", f"/CN={name}",
            "-keyout", f"{name}.key", "-out", f"{name}.csr")  # fmt: skip
        run("x509", "-req", "-in", f"{name}.csr", "-CA", f"{authority}.pem", "-CAkey", f"{authority}.key", "-days", "2",
            "-CAcreateserial", "-extfile", "names", "-out", f"{name}.pem")  # fmt: skip
    return base


@pytest.mark.parametrize("protocol", ["grpc", "http"])
def test_with_mutual_tls_only_a_known_client_is_heard(
    agent: Start, certificates: Path, tmp_path: Path, wait_for: Wait, protocol: str
) -> None:
    c = certificates
    tls = f", tls: {{cert_file: {c}/server.pem, key_file: {c}/server.key, client_ca_file: {c}/ca.pem}}"
    server = agent(text("file: {path: out.json}", tls, tls))
    port = server.port(protocol)
    for name, heard in (("stranger", False), ("client", True)):
        (tmp_path / name).mkdir()
        mine = f"tls: {{ca_file: {c}/ca.pem, cert_file: {c}/{name}.pem, key_file: {c}/{name}.key}}"
        exporter = f'otlp: {{endpoint: "localhost:{port}", {mine}, {FAST}}}'
        if protocol == "http":
            exporter = f'otlphttp: {{endpoint: "https://localhost:{port}", {mine}, {FAST}}}'
        client = type(server)(tmp_path / name, text(exporter)).start()
        try:
            client.send([f"from {name}"])
            if heard:
                wait_for(lambda: [r["body"] for r in server.written()] == ["from client"])
            else:
                client.wait_log("cannot send")
        finally:
            assert client.process is not None
            client.process.kill()
            client.process.wait()
    assert [record["body"] for record in server.written()] == ["from client"]


@pytest.mark.parametrize("protocol", ["grpc", "http"])
def test_certificates_may_stand_in_the_configuration(
    agent: Start, certificates: Path, tmp_path: Path, wait_for: Wait, protocol: str
) -> None:
    c = certificates
    tls = f", tls: {{cert_file: {c}/server.pem, key_file: {c}/server.key, client_ca_file: {c}/ca.pem}}"
    server = agent(text("file: {path: out.json}", tls, tls))
    ca, cert, key = (json.dumps((c / name).read_text()) for name in ("ca.pem", "client.pem", "client.key"))
    mine = f"tls: {{ca_pem: {ca}, include_system_ca_certs_pool: true, cert_pem: {cert}, key_pem: {key}}}"
    port = server.port(protocol)
    exporter = f'otlp: {{endpoint: "localhost:{port}", {mine}, {FAST}}}'
    if protocol == "http":
        exporter = f'otlphttp: {{endpoint: "https://localhost:{port}", {mine}, {FAST}}}'
    (tmp_path / "client").mkdir()
    client = type(server)(tmp_path / "client", text(exporter)).start()
    try:
        client.send(["from client"])
        wait_for(lambda: [record["body"] for record in server.written()] == ["from client"])
        assert client.stop() == 0
        assert "PRIVATE KEY" not in client.log
    finally:
        client.process.kill()


class Proxy(socketserver.ThreadingTCPServer):
    """An HTTP proxy: CONNECT, and requests with a whole address; it keeps the first line and headers of each."""

    daemon_threads = True
    allow_reuse_address = True

    def __init__(self) -> None:
        self.asked: list[str] = []
        super().__init__(("127.0.0.1", 0), ProxyHandler)
        threading.Thread(target=self.serve_forever, args=(0.05,), daemon=True).start()


class ProxyHandler(socketserver.BaseRequestHandler):
    def handle(self) -> None:
        head = b""
        while b"\r\n\r\n" not in head:
            head += self.request.recv(65536)
        first, _, rest = head.partition(b"\r\n")
        cast("Proxy", self.server).asked.append(head.partition(b"\r\n\r\n")[0].decode())
        method, target, version = first.split(b" ")
        place = target if method == b"CONNECT" else urlsplit(target).netloc
        host, _, port = place.decode().rpartition(":")
        with socket.create_connection((host, int(port))) as other:
            if method == b"CONNECT":
                self.request.sendall(b"HTTP/1.1 200 yes\r\n\r\n")
            else:
                other.sendall(b" ".join((method, urlsplit(target).path, version)) + b"\r\n" + rest)
            while True:
                for ready in select.select([self.request, other], [], [])[0]:
                    data = ready.recv(65536)
                    if not data:
                        return
                    (other if ready is self.request else self.request).sendall(data)


def test_a_proxy_is_asked_for_http(agent: Start, sink: Any, wait_for: Wait) -> None:
    with Proxy() as proxy:
        through = f"proxy_url: http://joe:s3cret@127.0.0.1:{proxy.server_address[1]}"
        running = agent(text(f'otlphttp: {{endpoint: "http://127.0.0.1:{sink.port}", {through}, {FAST}}}'))
        running.send(["through a proxy"])
        wait_for(lambda: sink.bodies == ["through a proxy"])
        assert proxy.asked[0].startswith(f"POST http://127.0.0.1:{sink.port}/v1/logs HTTP/1.1")
        assert "Proxy-Authorization: Basic am9lOnMzY3JldA==" in proxy.asked[0]
        assert running.stop() == 0
        assert "s3cret" not in running.log
        proxy.shutdown()


def test_a_proxy_is_tunnelled_through_for_https(
    agent: Start, certificates: Path, tmp_path: Path, wait_for: Wait
) -> None:
    tls = f", tls: {{cert_file: {certificates}/server.pem, key_file: {certificates}/server.key}}"
    server = agent(text("file: {path: out.json}", "", tls))
    with Proxy() as proxy:
        options = f"proxy_url: http://127.0.0.1:{proxy.server_address[1]}, tls: {{ca_file: {certificates}/ca.pem}}"
        place = f"https://localhost:{server.port('http')}"
        (tmp_path / "client").mkdir()
        client = type(server)(
            tmp_path / "client", text(f'otlphttp: {{endpoint: "{place}", {options}, {FAST}}}')
        ).start()
        try:
            client.send(["tunnelled"])
            wait_for(lambda: [record["body"] for record in server.written()] == ["tunnelled"])
            assert proxy.asked[0].startswith(f"CONNECT localhost:{server.port('http')} HTTP/1.")
            assert client.stop() == 0
        finally:
            client.process.kill()
            proxy.shutdown()


def test_a_stored_queue_survives_a_kill(agent: Start, sink: Any, tmp_path: Path, wait_for: Wait) -> None:
    port = sink.port
    sink.close()
    options = f'endpoint: "http://127.0.0.1:{port}", sending_queue: {{storage: file_storage, num_consumers: 1}}, {FAST}'
    configuration = text(f"otlphttp: {{{options}}}").replace(
        "service:\n",
        STORAGE,
    )
    running = agent(configuration)
    lines = [f"line {n}" for n in range(30)]
    for line in lines:
        assert running.send([line])[0] == 200
    running.process.kill()
    running.process.wait()
    again = type(sink)(port)
    try:
        running.start()
        wait_for(lambda: sorted(again.bodies) == sorted(lines))
        assert again.bodies == lines  # in their order
        assert "30 batches of an earlier run are sent first" in running.log
        assert running.send(["new"])[0] == 200
        wait_for(lambda: again.bodies[-1] == "new")
        assert running.stop() == 0
        running.start()
        assert running.stop() == 0
        assert again.bodies == [*lines, "new"]
    finally:
        again.close()


def test_what_is_sent_again_is_called_the_same(agent: Start, sink: Any, tmp_path: Path, wait_for: Wait) -> None:
    options = f'endpoint: "http://127.0.0.1:{sink.port}", sending_queue: {{storage: file_storage}}, {FAST}'
    running = agent(text(f"otlphttp: {{{options}}}").replace("service:\n", STORAGE))
    # The connection breaks before an answer; the process ends; and then it works.
    sink.answers += [(503, {}, b"")] * 1000
    assert running.send(["one"])[0] == 200
    wait_for(lambda: len(sink.requests) >= 2)
    running.process.kill()
    running.process.wait()
    sink.answers.clear()
    running.start()
    wait_for(lambda: sink.bodies == ["one"])
    assert running.send(["two"])[0] == 200
    wait_for(lambda: sink.bodies == ["one", "two"])
    names = [request["idempotency-key"] for request in sink.requests]
    assert len(set(names[:-1])) == 1
    assert names[-1] not in names[:-1]
    assert running.stop() == 0


def test_a_storage_that_is_not_enabled_is_a_mistake(tmp_path: Path) -> None:
    from tracecore.agent.configuration import ConfigurationError, read

    path = tmp_path / "agent.yaml"
    path.write_text(text("otlphttp: {endpoint: 'http://x', sending_queue: {storage: file_storage}}"))
    with pytest.raises(ConfigurationError, match='there is no extension "file_storage"'):
        read([path])
    path.write_text(path.read_text() + "extensions:\n  file_storage: {directory: /tmp}\n")
    with pytest.raises(ConfigurationError, match=r"is not in service\.extensions"):
        read([path])


@pytest.mark.parametrize("full", [True, False])
def test_what_could_not_be_stored_and_not_be_sent_is_said_at_the_end(tmp_path: Path, full: bool) -> None:
    """Whoever stops has to know what is read again; what is stored is sent after a restart."""

    class Full(Journal):
        def set(self, key: str, value: bytes) -> None:
            if full:
                raise JournalError("no room")
            super().set(key, value)

    def busy(batch: Batch) -> None:
        raise RetryLater("not now")

    meter, store = Meter("exporter", "otlp"), Full(tmp_path / "store")
    extension = SimpleNamespace(client=lambda name: store)
    setting = Setting("otlp", meter, time.time_ns, lambda id: extension, tmp_path, lambda: (True, {}))
    retry = RetryOnFailure(initial_interval=20_000_000, max_elapsed_time=0)
    sender = Sender(busy, setting, SendingQueue(storage="file_storage", num_consumers=1), retry, lambda: None)
    sender.start()
    done: list[int] = []
    for number in range(3):
        acks = (Ack(partial(done.append, number)),)
        sender.export(Batch("logs", {"resource_logs": []}, count=10, acks=acks))
    sender.stop(time.monotonic() + 0.5)
    assert meter.dropped["shutdown"] == (30 if full else 0)
    assert done == ([] if full else [0, 1, 2])
    store.close()
