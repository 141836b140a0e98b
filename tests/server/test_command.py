"""`tracecore incidents` and `nodes` say the same of a server and of a store on this machine."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest
from made import T0, incident

from tracecore.cli.main import main
from tracecore.store.store import Store


@pytest.fixture(params=["server", "database"])
def where(request: pytest.FixtureRequest, client: httpx.Client, sqlite_store: Store, tmp_path: Path) -> list[str]:
    sqlite_store.put_incident(incident(), T0)
    return ["--server", str(client.base_url)] if request.param == "server" else ["--database", str(tmp_path / "one.db")]


def test_incidents_are_listed_shown_and_acted_upon(where: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    id = incident()["id"]
    assert main(["incidents", "list", *where]) == 0
    assert "GPU 3 of gpu-node-17 fell off the bus" in capsys.readouterr().out
    assert main(["incidents", "list", "--state", "acknowledged", *where]) == 0
    assert capsys.readouterr().out == "no incidents\n"
    assert main(["incidents", "ack", id, *where]) == 0
    assert main(["incidents", "list", "--state", "acknowledged", *where]) == 0
    line = capsys.readouterr().out
    assert f"  acknowledged  {id}  [llama-7b] GPU 3" in line
    assert line.rstrip().endswith(incident()["headline"]), "a pipe gets the whole headline"
    assert main(["incidents", "note", id, "ticket 4711", *where]) == 0
    assert main(["incidents", "resolve", id, "--comment", "replaced", *where]) == 0
    assert "is resolved, acknowledged by local" in capsys.readouterr().err
    assert main(["incidents", "show", id, *where]) == 0
    out = capsys.readouterr().out
    assert "Drain the node." in out
    assert "note by local: ticket 4711" in out
    assert main(["incidents", "list", "--state", "active", *where]) == 0
    assert capsys.readouterr().out == "no incidents\n"
    assert main(["incidents", "resolve", "--undo", id, *where]) == 0


def test_nodes_are_listed_and_shown(where: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["nodes", "list", *where]) == 0
    assert "gpu-node-17" in capsys.readouterr().out
    assert main(["nodes", "show", "gpu-node-17", *where]) == 0
    assert "fell off the bus" in capsys.readouterr().out


def test_what_is_not_there_is_one_line(where: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["incidents", "show", "nope/../x", *where]) == 1
    assert main(["nodes", "show", "nope", *where]) == 1
    assert capsys.readouterr().err.count("\n") == 2


def test_a_server_that_is_not_there(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["incidents", "list", "--server", "http://127.0.0.1:9"]) == 1
    assert "does not answer" in capsys.readouterr().err
    assert main(["incidents", "list", "--server", "127.0.0.1"]) == 2


def test_tokens_are_made_listed_and_revoked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    place = ["--database", str(tmp_path / "t.db")]
    assert main(["tokens", "create", "--scope", "ingest", "agents", *place]) == 0
    text = capsys.readouterr().out.strip()
    store = Store.open(place[1])
    token = store.tokens.verify(text, T0)
    assert token is not None
    assert token.scopes == ["ingest"]
    assert main(["tokens", "list", *place]) == 0
    assert text.split("_", 2)[2] not in capsys.readouterr().out
    assert main(["tokens", "revoke", token.id, *place]) == 0
    store.close()
    assert main(["tokens", "revoke", "nope", *place]) == 1


def test_diagnose_publishes_to_a_server(
    client: httpx.Client, sqlite_store: Store, incidents: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["diagnose", str(incidents / "nccl_hang_one_rank_missing"), "-q", "--publish", str(client.base_url)]
    assert main(command) == 0
    assert main(command) == 0
    (row,) = sqlite_store.incidents.find().incidents
    assert (row.pattern, row.origin, row.revision) == ("nccl_hang", "publish", 1)
    assert main([*command[:-1], "http://127.0.0.1:9"]) == 1
    assert "does not answer" in capsys.readouterr().err


def test_supervise_publishes_what_failed_and_goes_on_without_a_server(
    client: httpx.Client, sqlite_store: Store, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    fail = ["--", "sh", "-c", "echo 'torch.OutOfMemoryError: CUDA out of memory'; echo 'KeyError: 1'; exit 1"]
    state = ["supervise", "--max-restarts", "0", "--state-dir"]
    assert main([*state, str(tmp_path / "a"), "--publish", str(client.base_url), *fail]) == 1
    assert len(sqlite_store.incidents.find().incidents) == 1
    assert main([*state, str(tmp_path / "b"), "--publish", "http://127.0.0.1:9", *fail]) == 1
    assert "the diagnosis is not published" in capfd.readouterr().err


def test_a_backup_is_restored_by_putting_it_in_place(tmp_path: Path) -> None:
    store = Store.open(str(tmp_path / "a.db"))
    store.put_incident(incident(), T0)
    assert main(["backup", str(tmp_path / "copy.db"), "--database", str(tmp_path / "a.db")]) == 0
    store.put_incident(incident(2), T0)
    store.close()
    for name in ("a.db-wal", "a.db-shm"):
        (tmp_path / name).unlink(missing_ok=True)
    (tmp_path / "copy.db").replace(tmp_path / "a.db")
    restored = Store.open(str(tmp_path / "a.db"))
    assert [row.id for row in restored.incidents.find().incidents] == [incident()["id"]]
    restored.close()
    assert main(["backup", str(tmp_path / "no" / "x.db"), "--database", str(tmp_path / "a.db")]) == 1
