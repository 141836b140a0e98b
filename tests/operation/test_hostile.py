"""A running agent, attacked by each of those whom docs/threat-model.md names."""

from __future__ import annotations

import gzip
import random
import re
import socket
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tracecore.signals.otlp import bounds
from tracecore.signals.otlp.encoding import varint

#: Colours, a title for the terminal's window, a one-byte CSI, a turn of direction, and an erased line.
ESCAPES = "\x1b[31mred\x1b[2K \x1b]0;owned\x07 \x9b31m \u202egnorts \u2066x\u2069"
CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069]")


def field(number: int, content: bytes) -> bytes:
    return bytes((number << 3 | 2,)) + varint(len(content)) + content


def wait_bodies(node: Any, until: Any, wanted: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = until(lambda: [r for r in node.written() if (r["body"] or "").startswith(wanted)])
    return found


# -- a tenant who writes log lines -------------------------------------------------------------------------------------


def test_lines_of_any_bytes_are_taken_and_the_next_one_too(node: Any, until: Any) -> None:
    noise = random.Random(7)
    lines = [bytes(noise.randrange(256) for _ in range(noise.randrange(400))).replace(b"\n", b"") for _ in range(300)]
    path = node.pods / "ml_fuzz_u" / "main" / "0.log"
    path.parent.mkdir(parents=True)
    stamp = time.strftime("%Y-%m-%dT%H:%M:%S.000000000Z", time.gmtime()).encode()
    heads = (b"", stamp + b" stdout F ", stamp + b" stderr P ", b'{"log":"', stamp + b" std")
    path.write_bytes(b"".join(noise.choice(heads) + line + b"\n" for line in lines))
    node.write("ml", "fuzz", "main", "0.log", ["after the noise"])
    assert wait_bodies(node, until, "after the noise")
    assert node.agent.get("/healthz")[0] == 200


def test_a_line_cannot_colour_or_forge_the_agents_log(node: Any, until: Any) -> None:
    """Through a verdict, whose headline has the words of the exception, and the debug exporter, which prints all."""
    forged = "2026-01-01T00:00:00.000 INFO all is well"
    node.write(
        "ml", "forge", "main", "0.log",
        ["[rank5]: Traceback (most recent call last):", '[rank5]:   File "t.py", line 1, in <module>',
         f"[rank5]: ValueError: {ESCAPES}", f"marker {ESCAPES}\r{forged}"],
    )  # fmt: skip
    wait_bodies(node, until, "marker")
    until(lambda: [r for r in node.written() if r["attributes"].get("pattern.name") == "worker_crash"])
    until(lambda: "marker" in node.agent.log)
    log = node.agent.log
    assert not CONTROLS.search(log)
    assert not [line for line in log.splitlines() if line.startswith(forged)]
    # What is written for machines is what was read.
    assert any(f"marker {ESCAPES}" in (r["body"] or "") for r in node.written())


def test_a_line_cannot_pass_for_a_verdict(node: Any, until: Any) -> None:
    """Where JSON is parsed into attributes, a tenant chooses their names: no exporter of verdicts believes them."""
    from tracecore.agent.batch import Batch
    from tracecore.agent.exporters.webhook import told

    own = {"verdict.id": "v1", "pattern.name": "gpu_fault", "pattern.headline": "drain all nodes", "message": "forged"}
    node.write("ml", "liar", "main", "0.log", [msgspec.json.encode(own).decode()], tree="json")
    record = wait_bodies(node, until, "forged")[0]
    assert record["attributes"]["verdict.id"] == "v1"
    entry = {"attributes": record["attributes"], "body": "forged"}
    said = Batch("logs", {"resource_logs": [{"scope_logs": [{"scope": {}, "log_records": [entry]}]}]})
    assert list(told(said)) == []


def test_kernel_words_in_a_containers_output_accuse_no_gpu(node: Any, until: Any) -> None:
    line = "NVRM: Xid (PCI:0000:3b:00): 79, pid=1, name=python, GPU has fallen off the bus."
    node.write("ml", "xid", "main", "0.log", [f"kernel: [ 12.3] {line}", line, "marker of xid"])
    wait_bodies(node, until, "marker of xid")
    time.sleep(0.5)  # several evaluations
    said = [r["body"] for r in node.written() if r["attributes"].get("pattern.verdict_json")]
    assert not [headline for headline in said if "3b:00" in headline or "fallen off" in headline]


def test_series_do_not_multiply_with_what_tenants_call_things(node: Any, until: Any, post: Any, logs: Any) -> None:
    wait_bodies(node, until, "hello")
    before = {line.rpartition(" ")[0] for line in node.agent.get("/metrics")[1].splitlines() if "latency" not in line}
    for number in range(60):
        document = logs([f"[rank{number}]: line"], resource={"host.name": f"h{number}", "k8s.pod.name": f"p{number}"},
                        **{f"made.up.{number}": "x"})  # fmt: skip
        post(node.agent.port("http"), "/v1/logs", msgspec.json.encode(document), "application/json")
        node.write("ml", f"pod-{number}", "main", "0.log", ["line"])
    node.write("ml", "pod-last", "main", "0.log", ["the last of many"])
    wait_bodies(node, until, "the last of many")
    after = {line.rpartition(" ")[0] for line in node.agent.get("/metrics")[1].splitlines() if "latency" not in line}
    assert after - before == set()


# -- a peer on the network ---------------------------------------------------------------------------------------------


def test_a_client_that_sends_a_byte_now_and_then_is_ended(node: Any, until: Any) -> None:
    """All connections of the receiver are held by clients that drip; an honest one gets through all the same."""
    port = node.agent.port("http")
    slow = [socket.create_connection(("localhost", port)) for _ in range(8)]
    for one in slow:
        one.sendall(b"POST /v1/logs HTTP/1.1\r\nContent-Type: application/json\r\nX-Slow: ")

    def through() -> bool:
        for one in slow:
            try:
                one.sendall(b"a")
            except OSError:
                continue
        return bool(node.send(["honest"]) == 200)

    until(through)
    for one in slow:
        one.close()
    assert node.agent.metric("tracecore_component_events_total", event="connection_refused") >= 1


def test_own_pages_answer_while_others_hold_connections(node: Any) -> None:
    held = [socket.create_connection(("127.0.0.1", node.agent.own_port)) for _ in range(20)]
    for one in held:
        one.sendall(b"GET /healthz HTTP/1.1\r\nX: ")
    assert node.agent.get("/healthz")[0] == 200
    for one in held:
        one.close()


def _talk(port: int, data: bytes) -> bytes:
    with socket.create_connection(("localhost", port), timeout=30) as one:
        try:
            one.sendall(data)
            return one.recv(4096)
        except ConnectionError:
            return b""


@pytest.mark.parametrize(
    ("head", "status"),
    [
        (b"X-Large: " + b"a" * 70_000, b"431"),
        (b"\r\n".join(b"X-%d: " % n + b"a" * 900 for n in range(90)), b"431"),
        (b"\r\n".join(b"X-%d: a" % n for n in range(200)), b"431"),
        (b"Content-Length: 5\r\nTransfer-Encoding: chunked", b"400"),
        (b"Content-Length: 5\r\nContent-Length: 6", b"400"),
        (b"Content-Length: " + b"9" * 5000, b"411"),
        (b"Content-Length: +5", b"411"),
        (b"Content-Length: 99999999999", b"413"),
        (b"Transfer-Encoding: chunked\r\n\r\n0x10", b"400"),
        (b"Transfer-Encoding: chunked\r\n\r\n-5", b"400"),
        (b"Transfer-Encoding: chunked\r\n\r\n5\r\nabcdefgh", b"400"),
        (b"Transfer-Encoding: chunked\r\n\r\nffffffffff", b"413"),
    ],
)
def test_a_head_that_is_too_large_or_ambiguous_is_refused(node: Any, head: bytes, status: bytes) -> None:
    kind = b"POST /v1/logs HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\n"
    answer = _talk(node.agent.port("http"), kind + head + b"\r\n\r\n")
    assert answer[:13].split(b" ")[1:2] in ([status], [])
    assert answer or status == b"431"
    assert node.agent.get("/healthz")[0] == 200


@pytest.mark.parametrize("what", ["records", "attributes", "zeros", "resources", "scopes"])
def test_a_request_that_would_become_gigabytes_is_refused(node: Any, post: Any, what: str) -> None:
    """Ten million empty records are twenty kilobytes on the wire."""
    body = {
        "records": field(1, field(2, b"\x12\x00" * (bounds.MAX_RECORDS + 1))),
        "attributes": field(1, field(2, field(2, b"\x32\x00" * (bounds.MAX_ATTRIBUTES + 1)))),
        "zeros": b"\x00" * (64 << 20),
        "resources": b"\x0a\x00" * (bounds.MAX_GROUPS + 1),
        "scopes": field(1, b"\x12\x00" * (bounds.MAX_GROUPS + 1)),
    }[what]
    before = node.agent.metric("tracecore_component_dropped_total", reason="malformed")
    headers = {"Content-Encoding": "gzip"}
    status, said = post(node.agent.port("http"), "/v1/logs", gzip.compress(body, 1), "application/x-protobuf", headers)
    assert status == (413 if what == "zeros" else 400), said
    if what != "zeros":
        assert node.agent.metric("tracecore_component_dropped_total", reason="malformed") == before + 1
    resident = re.search(r"^tracecore_process_resident_bytes (\d+)", node.agent.get("/metrics")[1], re.MULTILINE)
    assert resident is not None
    assert int(resident.group(1)) < 800 << 20


@pytest.mark.parametrize("text", [b"\xff", b"\xed\xa0\x80", b"\\ud800"])
def test_text_that_is_none_is_refused_with_a_word(node: Any, post: Any, text: bytes) -> None:
    before, after = b'{"resourceLogs":[{"scopeLogs":[{"logRecords":[{"body":{"stringValue":"', b'"}}]}]}]}'
    status, said = post(node.agent.port("http"), "/v1/logs", before + text + after, "application/json", {})
    assert status == 400
    assert b"not an OTLP document" in said


def test_listeners_are_on_loopback_unless_told_otherwise() -> None:
    from tracecore.agent.configuration import OwnMetrics
    from tracecore.agent.extensions.health_check import Options as HealthCheck
    from tracecore.agent.receivers.otlp import Grpc, Http

    where = OwnMetrics().listen()
    assert where is not None
    assert where[0] == "127.0.0.1"
    assert {Grpc().endpoint, Http().endpoint, HealthCheck().endpoint} == {
        "localhost:4317",
        "localhost:4318",
        "localhost:13133",
    }


def test_listening_to_everybody_is_warned_about() -> None:
    from tracecore.agent.receivers.otlp import _is_loopback

    assert [_is_loopback(one) for one in ("localhost:1", "127.0.0.9:1", "[::1]:1")] == [True] * 3
    assert [_is_loopback(one) for one in (":4317", "0.0.0.0:4317", "[::]:4317", "10.0.0.1:4317")] == [False] * 4


# -- an endpoint that was taken over -----------------------------------------------------------------------------------


def test_an_endpoint_cannot_make_us_log_what_we_sent_it(node: Any, until: Any) -> None:
    assert node.send(["to the endpoint"]) == 200
    until(lambda: node.evil.requests)
    assert node.evil.requests[0][1]["authorization"] == "Bearer s3cr3t-of-the-operator"
    node.agent.wait_log("was rejected", 60.0)
    for text in (node.agent.log, node.agent.get("/readyz")[1], node.agent.get("/metrics")[1]):
        assert "s3cr3t-of-the-operator" not in text
        assert not CONTROLS.search(text)
    assert "[redacted]" in node.degraded()["exporter otlphttp"]
    assert not [line for line in node.agent.log.splitlines() if line.startswith("INFO all is well")]


def test_state_is_for_nobody_else(node: Any, until: Any) -> None:
    wait_bodies(node, until, "hello")
    state: Path = node.directory / "state"
    files = list(state.iterdir())
    assert files
    assert {oct(path.stat().st_mode & 0o777) for path in files} == {"0o600"}
    assert state.stat().st_mode & 0o007 == 0
    assert (node.directory / "out.json").stat().st_mode & 0o777 == 0o600
