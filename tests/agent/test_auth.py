"""`auth:` of clients and servers: what an exporter sends, and whom a receiver believes."""

from __future__ import annotations

import base64
import http.client
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tracecore.agent.component import Setting
from tracecore.agent.configuration import ConfigurationError, read
from tracecore.agent.extensions import basicauth, bearertokenauth
from tracecore.agent.extensions.basicauth import matches
from tracecore.agent.telemetry import Meter

SERVER = """\
receivers:
  otlp:
    protocols:
      http: {{endpoint: "127.0.0.1:0", auth: {{authenticator: {id}}}}}
      grpc: {{endpoint: "127.0.0.1:0", auth: {{authenticator: {id}}}}}
exporters: {{file: {{path: out.json, append: true}}}}
extensions:
  bearertokenauth: {{filename: {place}/token}}
  basicauth/server: {{htpasswd: {{inline: "ann:s3cret\\nbob:{{SHA}}W6ph5Mm5Pz8GgiULbPgzG37mj9g="}}}}
service:
  extensions: [bearertokenauth, basicauth/server]
  telemetry: {{metrics: {{address: "127.0.0.1:0"}}}}
  pipelines: {{logs: {{receivers: [otlp], exporters: [file]}}}}
"""


def basic(pair: str) -> str:
    return "Basic " + base64.b64encode(pair.encode()).decode()


def sent(port: int, authorization: str, document: dict[str, Any]) -> int:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    headers = {"Content-Type": "application/json"} | ({"Authorization": authorization} if authorization else {})
    connection.request("POST", "/v1/logs", msgspec.json.encode(document), headers)
    status = connection.getresponse().status
    connection.close()
    return status


@pytest.mark.parametrize(
    ("id", "good", "bad"),
    [
        ("bearertokenauth", ["Bearer first", "Bearer second"], ["", "Bearer third", "first", "Bearer first "]),
        ("basicauth/server", [basic("ann:s3cret"), basic("bob:password")], ["", basic("ann:x"), "Basic %%%"]),
    ],
)
def test_a_server_believes_only_whom_it_knows(
    agent: Callable[[str], Any],
    tmp_path: Path,
    request_of: Any,
    wait_for: Any,
    id: str,
    good: list[str],
    bad: list[str],
) -> None:
    (tmp_path / "token").write_text("first\nsecond\n")
    running = agent(SERVER.format(id=id, place=tmp_path))
    for authorization in bad:
        assert sent(running.port("http"), authorization, request_of(["x"])) == 401
    for number, authorization in enumerate(good):
        assert sent(running.port("http"), authorization, request_of([f"line {number}"])) == 200
    wait_for(lambda: {"line 0", "line 1"} <= {record["body"] for record in running.written()})

    import grpc

    from tracecore.signals.otlp.services import METHODS

    with grpc.insecure_channel(f"127.0.0.1:{running.port('grpc')}") as channel:
        call = channel.unary_unary(METHODS["logs"])
        with pytest.raises(grpc.RpcError) as caught:
            call(b"", timeout=10)
        assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED
        assert call(b"", timeout=10, metadata=[("authorization", good[0])]) is not None
    assert "s3cret" not in running.log
    assert running.stop() == 0


@pytest.mark.parametrize(
    ("extension", "header"),
    [
        ('bearertokenauth: {token: "t0k"}', ("authorization", "Bearer t0k")),
        ('bearertokenauth: {token: "t0k", scheme: "", header: X-Key}', ("x-key", "t0k")),
        ("basicauth: {client_auth: {username: ann, password: s3cret}}", ("authorization", basic("ann:s3cret"))),
    ],
)
def test_a_client_says_who_it_is(
    agent: Callable[[str], Any], sink: Any, wait_for: Any, tmp_path: Path, extension: str, header: tuple[str, str]
) -> None:
    name = extension.partition(":")[0]
    (tmp_path / "a.log").write_text("hello\n")
    agent(
        f"receivers: {{filelog: {{include: [{tmp_path}/a.log], start_at: beginning}}}}\n"
        f"exporters: {{otlphttp: {{endpoint: 'http://127.0.0.1:{sink.port}', auth: {{authenticator: {name}}}}}}}\n"
        f"extensions:\n  {extension}\nservice:\n  extensions: [{name}]\n"
        '  telemetry: {metrics: {address: "127.0.0.1:0"}}\n'
        "  pipelines: {logs: {receivers: [filelog], exporters: [otlphttp]}}\n"
    )
    wait_for(lambda: sink.bodies == ["hello"])
    assert sink.requests[0][header[0]] == header[1]


@pytest.mark.parametrize(
    ("auth", "said"),
    [
        ("nobody", 'there is no extension "nobody"'),
        ("file_storage", 'the extension "file_storage" authenticates nobody'),
        ("basicauth/idle", "is not in service.extensions"),
    ],
)
def test_a_wrong_authenticator_is_refused(tmp_path: Path, auth: str, said: str) -> None:
    path = tmp_path / "agent.yaml"
    path.write_text(
        f"receivers: {{otlp: {{protocols: {{http: {{auth: {{authenticator: {auth}}}}}}}}}}}\nexporters: {{nop: }}\n"
        f"extensions:\n  file_storage: {{directory: {tmp_path}}}\n"
        "  basicauth/idle: {htpasswd: {inline: 'a:b'}}\n"
        "service:\n  extensions: [file_storage]\n  pipelines: {logs: {receivers: [otlp], exporters: [nop]}}\n"
    )
    with pytest.raises(ConfigurationError) as caught:
        read([path], {})
    assert [said in problem.message for problem in caught.value.problems] == [True]


def test_passwords_as_htpasswd_writes_them() -> None:
    assert matches("password", "{SHA}W6ph5Mm5Pz8GgiULbPgzG37mj9g=")
    assert not matches("other", "{SHA}W6ph5Mm5Pz8GgiULbPgzG37mj9g=")
    assert not matches("x", "$unknown$hash")
    hashed = basicauth._crypt("pw", "$6$abcdefgh$")
    if hashed:
        assert matches("pw", hashed)
        assert not matches("no", hashed)


def test_a_token_that_cannot_be_read_lets_nobody_in(tmp_path: Path) -> None:
    setting = Setting("b", Meter("extension", "b"), lambda: 0, {}.__getitem__, tmp_path, lambda: (True, {}))
    one = bearertokenauth.BearerTokenAuth(bearertokenauth.Options(filename=str(tmp_path / "gone")), setting)
    assert not one.allows({"authorization": "Bearer "})
    with pytest.raises(OSError, match="gone"):
        one.headers()
