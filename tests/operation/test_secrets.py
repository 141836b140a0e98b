"""What an operator types, and a neighbour might read: secrets, links, configurations that are bombs."""

from __future__ import annotations

import os
import re
import socket
import ssl
import threading
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from tracecore.agent.component import Setting
from tracecore.agent.exporters.file import FileExporter
from tracecore.agent.exporters.file import Options as FileOptions
from tracecore.agent.http_client import credentials, wrong_headers, wrong_url
from tracecore.agent.printing import discreet, indented, visible, visible_json
from tracecore.agent.telemetry import Meter
from tracecore.agent.tls import ClientTls
from tracecore.cli.components import command as components
from tracecore.cli.validate import command as validate
from tracecore.signals.logs.tail.links import trusted
from tracecore.signals.storage.file_storage import FileStorage, FileStorageConfig
from tracecore.signals.storage.journal import Journal, JournalError

ROOT = Path(__file__).resolve().parents[2]
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can make files of somebody else")
SOMEBODY = 54321


def check(tmp_path: Path, text: str) -> tuple[int, str]:
    path = tmp_path / "agent.yaml"
    path.write_text(text)
    done = CliRunner().invoke(validate, ["--config", str(path)], standalone_mode=False)
    return done.return_value, done.stderr


# -- an operator's mistakes --------------------------------------------------------------------------------------------


def test_aliases_of_aliases_end_at_a_bound(tmp_path: Path) -> None:
    lines = ["a0: &a0 [lol]", *(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 12))]
    code, said = check(tmp_path, "\n".join(lines) + "\nservice: {}\n")
    assert code == 2
    assert "aliases written out" in said


def test_a_value_from_the_environment_is_in_no_message(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOKEN", "s3cr3t-of-mine")
    code, said = check(
        tmp_path,
        "receivers: {otlp: {protocols: {http: {endpoint: '${env:TOKEN}'}}}}\n"
        "processors: {batch: {timeout: '${env:TOKEN}'}, '${env:TOKEN}': }\n"
        "exporters:\n"
        "  otlphttp:\n    endpoint: '${env:TOKEN}'\n"
        '    headers: {Authorization: "${env:TOKEN}\\n"}\n'
        "service: {pipelines: {logs: {receivers: [otlp], processors: ['x${env:TOKEN}'], exporters: [otlphttp]}}}\n",
    )
    assert code == 2
    assert "s3cr3t" not in said
    assert said.count("${env:TOKEN}") >= 3
    assert "the value of a header is one line of ASCII" in said


def test_a_password_in_a_url_is_sent_as_a_header_and_said_nowhere(tmp_path: Path) -> None:
    from urllib.parse import urlsplit

    assert credentials(urlsplit("https://me:p%40ss@h/v1")) == {"Authorization": "Basic bWU6cEBzcw=="}
    assert credentials(urlsplit("https://h/v1")) == {}
    for url in (
        "https://me:hunter2 x@h:port/",
        "https://h:hunter2/",
        "https://[hunter2/",
        "ftp://hunter2@h",
        "http://h/hun ter2",
    ):
        assert wrong_url(url)
        assert "hunter2" not in wrong_url(url)
    assert not wrong_url("https://me:hunter2@h:4318/base?x=y")
    wrong = list(wrong_headers({"A": "ok", "B b": "x", "C": "secret-line\n", "D": "sécret"}))
    assert [where for where, _ in wrong] == [("headers", "B b"), ("headers", "C"), ("headers", "D")]
    assert "secret-line" not in str([text for _, text in wrong])
    code, said = check(
        tmp_path,
        "receivers: {otlp: {protocols: {http: }}}\nexporters: {webhook: {url: 'https://me:hunter2@h:x/'}}\n"
        "service: {pipelines: {logs: {receivers: [otlp], exporters: [webhook]}}}\n",
    )
    assert code == 2
    assert "hunter2" not in said


def test_help_and_options_never_show_a_value(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "authorization=s3cr3t-of-mine")
    for arguments in (["--help"], ["otlphttp"], ["webhook"], ["--schema"]):
        done = CliRunner().invoke(components, arguments, standalone_mode=False)
        assert "s3cr3t" not in done.output


def test_a_directory_that_others_can_write_to_is_warned_about(tmp_path: Path) -> None:
    told: list[str] = []
    (tmp_path / "state").mkdir()
    (tmp_path / "state").chmod(0o777)
    FileStorage(FileStorageConfig(directory=str(tmp_path / "state")), told.append).start()
    assert len(told) == 1
    assert "can be written by others (mode 0777)" in told[0]


# -- an endpoint that was taken over -----------------------------------------------------------------------------------


def test_certificates_are_checked_by_default() -> None:
    context = ClientTls().context()
    assert context.verify_mode is ssl.CERT_REQUIRED
    assert context.check_hostname
    assert context.minimum_version >= ssl.TLSVersion.TLSv1_2


def test_a_redirect_is_not_followed_and_carries_no_credentials(peer_kind: Any, tmp_path: Path) -> None:
    from tracecore.agent.batch import Batch
    from tracecore.agent.exporters.otlp_http import Options, OtlpHttp
    from tracecore.agent.exporters.sending import Rejected

    thief = peer_kind(200, b"")
    endpoint = peer_kind(307, b"", Location=f"http://127.0.0.1:{thief.port}/v1/logs")
    options = Options(endpoint=f"http://127.0.0.1:{endpoint.port}", headers={"Authorization": "Bearer s3cr3t-of-mine"})
    exporter = OtlpHttp(options, _setting("exporter", tmp_path))
    with pytest.raises(Rejected, match="HTTP 307"):
        exporter._send(Batch("logs", {"resource_logs": []}))
    exporter._hang_up()
    assert len(endpoint.requests) == 1
    assert thief.requests == []
    endpoint.close()
    thief.close()


def test_an_endpoint_cannot_make_us_wait_for_ever_or_read_without_end(peer_kind: Any, tmp_path: Path) -> None:
    from tracecore.agent.batch import Batch
    from tracecore.agent.exporters.otlp_http import MAX_ANSWER, Options, OtlpHttp
    from tracecore.agent.exporters.sending import RetryLater

    endpoint = peer_kind(503, b"x" * (MAX_ANSWER + 1000), "text/plain", **{"Retry-After": "99999999999"})
    exporter = OtlpHttp(Options(endpoint=f"http://127.0.0.1:{endpoint.port}"), _setting("exporter", tmp_path))
    with pytest.raises(RetryLater) as said:
        exporter._send(Batch("logs", {"resource_logs": []}))
    exporter._hang_up()
    endpoint.close()
    assert said.value.after <= 600
    assert len(str(said.value)) < 400


@pytest.mark.parametrize("part", ["head", "body"])
def test_an_endpoint_that_answers_a_byte_now_and_then_is_given_up(tmp_path: Path, part: str) -> None:
    from tracecore.agent.batch import Batch
    from tracecore.agent.exporters.otlp_http import Options, OtlpHttp
    from tracecore.agent.exporters.sending import RetryLater

    done = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as server:

        def drip() -> None:
            one, _ = server.accept()
            with one:
                one.recv(65536)
                one.sendall(
                    b"HTTP/1.1 200 OK\r\n" + (b"Content-Length: 100000\r\n\r\n" if part == "body" else b"X-A: ")
                )
                while not done.wait(0.1):
                    try:
                        one.sendall(b"a")
                    except OSError:
                        return

        thread = threading.Thread(target=drip)
        thread.start()
        where = f"http://127.0.0.1:{server.getsockname()[1]}"
        exporter = OtlpHttp(Options(endpoint=where, timeout=1_000_000_000), _setting("exporter", tmp_path))
        try:
            with pytest.raises(RetryLater):
                exporter._send(Batch("logs", {"resource_logs": []}))
        finally:
            done.set()
            thread.join()
            exporter._hang_up()


def _setting(kind: str, base: Path) -> Setting:
    return Setting(f"{kind}/x", Meter(kind, f"{kind}/x"), lambda: 0, lambda id: None, base, lambda: (True, {}))


def test_what_others_say_is_printed_so_that_it_does_nothing() -> None:
    hostile = "a\x1b[2Jb\r\nINFO fine\x9b\u202e\u2028\x00"
    assert visible(hostile) == "a\\x1b[2Jb\\x0d\\x0aINFO fine\\x9b\\u202e\\u2028\\x00"
    assert indented("one\ntwo\x07") == "one\n    two\\x07"
    assert visible_json('{"a":"\x9b\u202eé"}') == '{"a":"\\u009b\\u202eé"}'
    assert discreet("no Bearer abcdefgh12 here", ["Bearer abcdefgh12", "x"]) == "no Bearer [redacted] here"


# -- a neighbour on the node -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["link", "hard link", "pipe", "link to nothing"])
def test_state_is_never_written_through_what_somebody_put_there(tmp_path: Path, kind: str) -> None:
    victim = tmp_path / "victim"
    victim.write_text("precious")
    victim.chmod(0o644)
    state = tmp_path / "state"
    state.mkdir()
    place = state / "receiver_filelog"
    if kind == "link":
        place.symlink_to(victim)
    elif kind == "hard link":
        place.hardlink_to(victim)
    elif kind == "pipe":
        os.mkfifo(place)
    else:
        place.symlink_to(tmp_path / "made")
    storage = FileStorage(FileStorageConfig(directory=str(state)))
    storage.start()
    with pytest.raises(JournalError, match=r"link is not followed|not a file of ours"):
        storage.client("receiver_filelog")
    assert victim.read_text() == "precious"
    assert victim.stat().st_mode & 0o777 == 0o644
    assert not (tmp_path / "made").exists()


def test_what_belongs_to_the_state_is_no_link(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("precious")
    state = tmp_path / "state"
    state.mkdir()
    for name in ("j-wal", ".j.reserve"):
        (state / name).symlink_to(victim)
        with pytest.raises(OSError, match="not a file of ours"):
            Journal(state / "j")
        (state / name).unlink()
    assert victim.read_text() == "precious"


@as_root
def test_the_file_exporter_follows_no_link_of_somebody_else(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("precious")
    place = tmp_path / "out.json"
    place.symlink_to(victim)
    os.lchown(place, SOMEBODY, SOMEBODY)
    exporter = FileExporter(FileOptions(path=str(place)), _setting("exporter", tmp_path))
    with pytest.raises(PermissionError, match="not followed"):
        exporter.start()
    assert victim.read_text() == "precious"
    os.lchown(place, 0, 0)  # an operator's own link is theirs to make
    exporter.start()
    exporter.stop(0)


@as_root
@pytest.mark.parametrize("where", ["name", "directory"])
def test_a_tenants_link_to_what_is_not_theirs_is_not_read(tmp_path: Path, where: str) -> None:
    """The agent may read everything; a tenant who links a log to another's file must not read it through the agent."""
    tmp_path.chmod(0o755)
    (tmp_path / "root").mkdir()
    secret = tmp_path / "root" / "0.log"
    secret.write_text("key\n")
    logs = tmp_path / "logs"
    if where == "name":
        logs.mkdir()
        path = logs / "0.log"
        path.symlink_to(secret)
        link = path
    else:
        logs.symlink_to(tmp_path / "root")
        path, link = logs / "0.log", logs
    with path.open("rb") as file:
        assert trusted(str(path), file.fileno())  # root's own link, as the kubelet makes them
        os.lchown(link, SOMEBODY, SOMEBODY)
        assert not trusted(str(path), file.fileno())
        os.chown(secret, SOMEBODY, SOMEBODY)  # now it leads to a file of theirs
        assert trusted(str(path), file.fileno())


def test_a_file_that_was_renamed_or_deleted_meanwhile_is_still_the_file(tmp_path: Path) -> None:
    path = tmp_path / "0.log"
    path.write_text("a\n")
    with path.open("rb") as file:
        assert trusted(str(path), file.fileno())
        path.rename(tmp_path / "0.log.1")
        assert trusted(str(path), file.fileno())
        (tmp_path / "0.log.1").unlink()
        assert trusted(str(path), file.fileno())
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "x").write_text("b\n")
    with (elsewhere / "x").open("rb") as file:
        # No link is there now, and the file is of another place: somebody exchanged it.
        assert not trusted(str(path), file.fileno())


# -- what is built upon ------------------------------------------------------------------------------------------------


def test_every_dependency_is_locked_by_its_hash() -> None:
    text = (ROOT / "requirements" / "lock.txt").read_text()
    entries = re.split(r"\n(?=\S)", text.strip())
    assert len(entries) > 20
    for entry in entries:
        assert re.match(r"[\w.\[\]-]+==[^\s;]+", entry), entry[:80]
        assert "--hash=sha256:" in entry, entry[:80]
    assert "--require-hashes" in (ROOT / "Makefile").read_text()
    assert "http" not in text.replace("httptools", "").replace("httpcore", "").replace("httpx", "")
