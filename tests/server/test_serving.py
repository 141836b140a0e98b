"""`tracecore serve` and the commands beside it, before anything is served."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from running import running

from tracecore.cli.main import main
from tracecore.notify.config import read
from tracecore.notify.notifier import Notifier
from tracecore.server.app import make_app
from tracecore.server.serving import ServeError, ServeOptions, _token_command, settings_of
from tracecore.server.settings import ServerSettings
from tracecore.store.store import Store


@pytest.fixture
def taken() -> Iterator[socket.socket]:
    """A listening socket; its address is in use."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        held.listen()
        yield held


def _place(taken: socket.socket) -> str:
    return f"127.0.0.1:{taken.getsockname()[1]}"


def test_a_demo_refuses_to_notify(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", "--demo", "--notify", str(tmp_path / "notify.yaml")]) == 2
    assert "would tell people about simulated incidents" in capsys.readouterr().err
    with pytest.raises(ServeError, match="notifies nobody"):
        settings_of(ServeOptions(demo=True, notify="notify.yaml"))


def test_a_demo_ignores_the_environment_s_notifications(
    taken: socket.socket, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TRACECORE_NOTIFY", "/nowhere/notify.yaml")
    # The address is in use, so that the command ends at once.
    assert main(["serve", "--demo", "--listen", _place(taken)]) == 1
    said = capsys.readouterr().err
    assert "TRACECORE_NOTIFY is ignored" in said
    assert "/nowhere" not in said


def test_a_busy_address_is_one_line(taken: socket.socket, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    place = _place(taken)
    assert main(["serve", "--listen", place, "--database", str(tmp_path / "a.db")]) == 1
    said = capsys.readouterr().err
    assert f"the address {place} is in use" in said
    assert said.count("\n") == 1
    assert not (tmp_path / "a.db").exists()


@pytest.mark.parametrize(
    "command",
    [
        ["incidents", "list"], ["incidents", "ack", "incident-1"], ["nodes", "list"], ["tokens", "list"],
        ["tokens", "revoke", "x"], ["backup", "copy.db"], ["mcp"],
    ],
    ids=" ".join,
)  # fmt: skip
def test_readers_make_no_database(command: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    place = tmp_path / "typo.db"
    assert main([*command, "--database", str(place)]) == 1
    assert f"there is no database {place}" in capsys.readouterr().err
    assert not place.exists()


def test_no_folder_is_made_for_a_database(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", "--listen", "127.0.0.1:0", "--database", str(tmp_path / "typo" / "a.db")]) == 1
    assert f"there is no folder {tmp_path / 'typo'}" in capsys.readouterr().err
    assert not (tmp_path / "typo").exists()


def test_a_new_token_says_where_it_is_kept(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tokens", "create", "--scope", "read", "a", "--database", str(tmp_path / "a.db")]) == 0
    assert f"kept in {tmp_path / 'a.db'}" in capsys.readouterr().err
    assert _token_command("/a b.db") == "tracecore tokens create --database '/a b.db' --scope admin NAME"


def test_a_wrong_token_is_called_so(sqlite_store: Store) -> None:
    with running(make_app(sqlite_store, ServerSettings(rate=0, auth=True))) as address:
        unknown = httpx.get(f"{address}/api/v1/incidents", headers={"Authorization": "Bearer tc_nope"})
        nobody = httpx.get(f"{address}/api/v1/incidents")
    assert (unknown.status_code, nobody.status_code) == (401, 401)
    assert unknown.json()["detail"] == "this token is not known, has expired or was revoked"
    assert nobody.json()["detail"] == "sign in, or send an API token"


def test_who_publishes_an_old_incident_is_told_that_nobody_is_notified(
    sqlite_store: Store, incidents: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "notify.yaml"
    config.write_text("receivers: [{name: a}]\nroute: {receiver: a}\n")
    app = make_app(sqlite_store, ServerSettings(rate=0))
    app.state.notifier = Notifier(sqlite_store, read(config), time.time_ns)
    with running(app) as address:
        assert main(["diagnose", str(incidents / "nccl_hang_one_rank_missing"), "--publish", address]) == 0
        assert "1 new; nobody is notified of 1: older than an hour" in capsys.readouterr().err
        (row,) = sqlite_store.incidents.find().incidents
        page = httpx.get(f"{address}/incidents/{row.id}", headers={"Accept": "text/html"}).text
    assert "Not sent: older than an hour when it arrived." in page


def test_help_names_the_environment(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", "--help"]) == 0
    said = capsys.readouterr().out
    assert all(name in said for name in ("TRACECORE_NOTIFY", "TRACECORE_DATABASE", "TRACECORE_OIDC_CLIENT_SECRET"))
