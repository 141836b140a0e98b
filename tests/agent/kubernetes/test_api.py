"""Who we are at an API server."""

from __future__ import annotations

import base64
import json
import socket
import ssl
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from tracecore.signals.kubernetes import api, kubeconfig


def config(path: Path, port: int, user: dict[str, Any], **cluster: Any) -> Path:
    document = {
        "current-context": "here",
        "contexts": [{"name": "here", "context": {"cluster": "c", "user": "u"}}],
        "clusters": [{"name": "c", "cluster": {"server": f"http://127.0.0.1:{port}", **cluster}}],
        "users": [{"name": "u", "user": user}],
    }
    path.write_text(json.dumps(document))
    return path


def ask(way: api.Way) -> bytes:
    with way.get("/api/v1/nodes", {"limit": "1"}, verb="list", resource="nodes") as answer:
        return answer.read()


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "config"))
    return tmp_path


@pytest.mark.parametrize(
    ("user", "header"),
    [
        ({"token": "abc"}, "Bearer abc"),
        ({"tokenFile": "token"}, "Bearer from-file"),
        ({"username": "me", "password": "secret"}, "Basic " + base64.b64encode(b"me:secret").decode()),
        ({}, None),
    ],
)
def test_a_kubeconfig_says_who_we_are(replay: Any, here: Path, user: dict[str, Any], header: str | None) -> None:
    (here / "token").write_text("from-file\n")
    config(here / "config", replay.port, user)
    assert b"NodeList" in ask(api.connect("kubeConfig"))
    assert replay.headers[-1].get("Authorization") == header


def test_a_program_gives_credentials_until_they_expire(replay: Any, here: Path) -> None:
    program = here / "give.py"
    program.write_text(
        "import json, os, pathlib\n"
        "asked = json.loads(os.environ['KUBERNETES_EXEC_INFO'])\n"
        "count = pathlib.Path(os.environ['COUNT'])\n"
        "count.write_text(count.read_text() + '.' if count.exists() else '.')\n"
        "times = len(count.read_text())\n"
        "expires = '2020-01-01T00:00:00Z' if times == 1 else '2199-01-01T00:00:00Z'\n"
        "status = {'token': f't{times}', 'expirationTimestamp': expires}\n"
        "print(json.dumps({'kind': asked['kind'], 'status': status}))\n"
    )
    environment = [{"name": "COUNT", "value": str(here / "count")}]
    entry = {"exec": {"command": sys.executable, "args": [str(program)], "env": environment}}
    config(here / "config", replay.port, entry)
    way = api.connect("kubeConfig")
    for _ in range(3):
        ask(way)
    assert [headers["Authorization"] for headers in replay.headers] == ["Bearer t1", "Bearer t2", "Bearer t2"]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("[]", "is no kubeconfig"),
        ("a: [", "is no kubeconfig"),
        ("{}", "no current context"),
        ("current-context: x", 'no context "x"'),
        ("{current-context: x, contexts: [{name: x, context: {cluster: y}}]}", 'no cluster "y"'),
        (
            "{current-context: x, contexts: [{name: x, context: {cluster: y}}], clusters: [{name: y, cluster: {}}]}",
            "no server address",
        ),
    ],
)
def test_what_is_wrong_with_a_kubeconfig_is_said(here: Path, text: str, problem: str) -> None:
    (here / "config").write_text(text)
    with pytest.raises(api.ApiError, match=problem):
        api.connect("kubeConfig")


def test_no_kubeconfig_and_no_pod_are_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "absent"))
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    with pytest.raises(api.ApiError, match="no kubeconfig"):
        api.connect("kubeConfig")
    with pytest.raises(api.ApiError, match="this is no pod"):
        api.connect("serviceAccount")


def test_a_failing_program_is_quoted(replay: Any, here: Path) -> None:
    entry = {"exec": {"command": sys.executable, "args": ["-c", "import sys; sys.exit('not logged in')"]}}
    config(here / "config", replay.port, entry)
    with pytest.raises(api.ApiError, match="not logged in"):
        ask(api.connect("kubeConfig"))


def test_the_first_of_several_files_counts(replay: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    first.write_text(json.dumps({"users": [{"name": "u", "user": {"token": "first"}}]}))
    config(second, replay.port, {"token": "second"})
    monkeypatch.setenv("KUBECONFIG", f"{first}:{second}:{tmp_path / 'absent'}")
    ask(kubeconfig.way("here"))
    assert replay.headers[-1]["Authorization"] == "Bearer first"


def test_an_account_without_its_files_is_said(replay: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api, "ACCOUNT", tmp_path)
    with pytest.raises(api.ApiError, match="token cannot be read"):
        ask(api.connect("serviceAccount"))


def test_a_server_that_speaks_tls_only_is_spoken_to_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Go's servers answer a plain request on a TLS port in words; with `none` nothing is given away by asking so."""
    words = b"Client sent an HTTP request to an HTTPS server.\n"
    listener = socket.create_server(("127.0.0.1", 0))
    firsts: list[bytes] = []

    def serve() -> None:
        plain, _ = listener.accept()
        plain.recv(65536)
        plain.sendall(b"HTTP/1.0 400 Bad Request\r\n\r\n" + words)
        plain.close()
        second, _ = listener.accept()
        firsts.append(second.recv(1))
        second.close()

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "127.0.0.1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", str(listener.getsockname()[1]))
    with pytest.raises(api.ApiError):
        ask(api.connect("none"))
    thread.join(20)
    listener.close()
    assert firsts == [b"\x16"], "the first byte of a TLS handshake"
    assert api.unverified().verify_mode is ssl.CERT_NONE
