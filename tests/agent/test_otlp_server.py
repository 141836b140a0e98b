"""The OTLP server under clients that are slow, many, large, or browsers."""

from __future__ import annotations

import http.client
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import grpc
import pytest

from tracecore.signals.otlp import encoding

Start = Callable[[str], Any]
Wait = Callable[..., Any]

AGENT = """\
receivers:
  otlp:
    protocols:
      grpc: {grpc}
      http: {http}
exporters:
  debug:
service:
  telemetry: {{metrics: {{address: "127.0.0.1:0"}}}}
  pipelines:
    logs: {{receivers: [otlp], exporters: [debug]}}
"""
EXPORT = "/opentelemetry.proto.collector.logs.v1.LogsService/Export"


def text(*, grpc: str = "", http: str = "") -> str:
    return AGENT.format(grpc=f'{{endpoint: "127.0.0.1:0"{grpc}}}', http=f'{{endpoint: "localhost:0"{http}}}')


def request(line: str) -> bytes:
    records = [{"body": line, "attributes": {}}]
    scope = [{"scope": {}, "log_records": records}]
    return encoding.logs({"resource_logs": [{"resource": {"attributes": {}}, "scope_logs": scope}]})


def export(port: int, line: str = "honest", timeout: float = 5.0) -> None:
    options = (("grpc.use_local_subchannel_pool", 1),)
    with grpc.insecure_channel(f"127.0.0.1:{port}", options=options) as channel:
        channel.unary_unary(EXPORT)(request(line), timeout=timeout)


@pytest.mark.parametrize("chunked", [False, True])
def test_a_body_that_is_too_large_is_answered_and_not_reset(agent: Start, chunked: bool) -> None:
    running = agent(text(http=", max_request_body_size: 1MiB"))
    for _ in range(3):
        connection = http.client.HTTPConnection("localhost", running.port("http"), timeout=20)
        pieces: Any = (b"x" * (1 << 16) for _ in range(400)) if chunked else b"x" * (25 << 20)
        connection.request(
            "POST", "/v1/logs", pieces, {"Content-Type": "application/x-protobuf"}, encode_chunked=chunked
        )
        assert connection.getresponse().status == 413
        connection.close()


def test_a_browser_is_told_whether_its_page_may_send(agent: Start) -> None:
    named = "allowed_headers: [X-Token], exposed_headers: [X-Id]"
    cors = f', cors: {{allowed_origins: ["https://*.example.com"], {named}, max_age: 600}}'
    running = agent(text(http=cors))
    connection = http.client.HTTPConnection("localhost", running.port("http"), timeout=20)
    asked = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "content-type"}
    connection.request("OPTIONS", "/v1/logs", headers={"Origin": "https://app.example.com", **asked})
    answer = connection.getresponse()
    answer.read()
    assert answer.status == 204
    assert answer.headers["Access-Control-Allow-Origin"] == "https://app.example.com"
    assert answer.headers["Access-Control-Allow-Methods"] == "POST"
    assert "X-Token" in answer.headers["Access-Control-Allow-Headers"]
    assert answer.headers["Access-Control-Max-Age"] == "600"
    headers = {"Origin": "https://app.example.com", "Content-Type": "application/x-protobuf"}
    connection.request("POST", "/v1/logs", request("x"), headers)
    answer = connection.getresponse()
    answer.read()
    assert (answer.status, answer.headers["Access-Control-Allow-Origin"]) == (200, "https://app.example.com")
    assert answer.headers["Access-Control-Expose-Headers"] == "X-Id"
    connection.request("OPTIONS", "/v1/logs", headers={"Origin": "https://evil.example.org", **asked})
    answer = connection.getresponse()
    assert (answer.status, answer.headers["Access-Control-Allow-Origin"]) == (403, None)
    answer.read()
    connection.close()


def test_slow_clients_of_http_shut_nobody_out(agent: Start) -> None:
    running = agent(text(http=", max_connections: 4"))
    port = running.port("http")
    slow = []
    for _ in range(8):
        one = socket.create_connection(("localhost", port))
        one.sendall(b"POST /v1/logs HTTP/1.1\r\nX-Slow: ")
        slow.append(one)
        time.sleep(0.05)
    began = time.monotonic()
    assert running.send(["honest"])[0] == 200
    assert time.monotonic() - began < 5
    assert running.metric("tracecore_component_events_total", event="connection_refused") >= 1
    for one in slow:
        one.close()


def test_slow_clients_of_grpc_shut_nobody_out(agent: Start) -> None:
    running = agent(text())
    port = running.port("grpc")
    over = threading.Event()

    def never() -> Iterator[bytes]:
        over.wait(60)
        yield from ()

    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        calls = [channel.stream_unary(EXPORT).future(never()) for _ in range(40)]
        time.sleep(1.0)
        began = time.monotonic()
        export(port)
        assert time.monotonic() - began < 5
        assert not any(call.done() for call in calls)
        over.set()


def test_many_requests_of_one_client_wait_for_their_turn(agent: Start) -> None:
    running = agent(text())
    with grpc.insecure_channel(f"127.0.0.1:{running.port('grpc')}") as channel:
        send = channel.unary_unary(EXPORT)
        calls = [send.future(request(f"line {n}"), timeout=60) for n in range(1000)]
        assert [call.exception() for call in calls] == [None] * 1000


def test_connections_of_grpc_are_bounded(agent: Start) -> None:
    running = agent(text(grpc=", max_connections: 2"))
    port = running.port("grpc")
    options = (("grpc.use_local_subchannel_pool", 1),)
    channels = [grpc.insecure_channel(f"127.0.0.1:{port}", options=options) for _ in range(2)]
    for channel in channels:
        channel.unary_unary(EXPORT)(request("x"), timeout=10)
    with pytest.raises(grpc.RpcError):
        export(port, timeout=2.0)
    for channel in channels:
        channel.close()
    time.sleep(0.5)
    export(port)


def test_what_grpc_refuses_is_said(agent: Start) -> None:
    running = agent(text())
    with (
        grpc.insecure_channel(f"127.0.0.1:{running.port('grpc')}") as channel,
        pytest.raises(grpc.RpcError) as caught,
    ):
        channel.unary_unary(EXPORT)(b"\xff\xff\xff", timeout=10)
    assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT
    assert running.stop() == 0
