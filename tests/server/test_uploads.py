"""A bundle is uploaded, diagnosed in a process of its own within limits, and its result is kept."""

from __future__ import annotations

import io
import os
import re
import tarfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest
from running import running

from tracecore.server.app import make_app
from tracecore.server.diagnosing import Diagnoses
from tracecore.server.settings import MIB, ServerSettings
from tracecore.store.store import Store

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def serving(sqlite_store: Store, tmp_path: Path) -> Iterator[Callable[..., httpx.Client]]:
    with ExitStack() as stack:

        def begin(**limits: Any) -> httpx.Client:
            settings = ServerSettings(rate=0, **limits)
            app = make_app(sqlite_store, settings)
            app.state.diagnoses = Diagnoses(sqlite_store, settings, tmp_path / "uploads", time.time_ns)
            app.state.diagnoses.start()
            stack.callback(app.state.diagnoses.stop)
            address = stack.enter_context(running(app))
            return stack.enter_context(httpx.Client(base_url=address, timeout=60))

        yield begin


def bundle() -> bytes:
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w:gz") as archive:
        archive.add(ROOT / "examples" / "incidents" / "nccl_hang_one_rank_missing", "run")
    return data.getvalue()


def finished(client: httpx.Client, id: str) -> dict[str, Any]:
    for _ in range(600):
        found: dict[str, Any] = client.get(f"/api/v1/diagnoses/{id}").json()
        if found["state"] in ("done", "failed"):
            return found
        time.sleep(0.1)
    raise AssertionError(found)


def test_an_upload_becomes_incidents_a_document_and_a_page(
    serving: Callable[..., httpx.Client], sqlite_store: Store, tmp_path: Path
) -> None:
    client = serving()
    taken = client.post("/api/v1/diagnoses", params={"name": "../../etc/run.tar.gz"}, content=bundle())
    assert taken.status_code == 202
    assert taken.json()["name"] == "run.tar.gz"
    done = finished(client, taken.json()["id"])
    assert (done["state"], len(done["incidents"])) == ("done", 1)
    row = sqlite_store.incidents.row(done["incidents"][0])
    assert row is not None
    assert (row.pattern, row.ranks, row.origin) == ("nccl_hang", [2], "upload")
    document = client.get(f"/api/v1/diagnoses/{done['id']}/document").json()
    assert document["status"] == "incident"
    assert str(tmp_path) not in client.get(f"/api/v1/diagnoses/{done['id']}/document").text
    page = client.get(f"/api/v1/diagnoses/{done['id']}/page")
    assert "rank 2 never entered it" in page.text
    assert page.headers["content-security-policy"].endswith("sandbox")
    assert [*(tmp_path / "uploads").iterdir()] == []


def test_the_form_takes_a_file(serving: Callable[..., httpx.Client], sqlite_store: Store) -> None:
    client = serving()
    csrf = re.search(r'name="csrf" value="([0-9a-f]+)"', client.get("/upload").text)
    assert csrf is not None
    files = {"file": ("run.tar.gz", bundle(), "application/gzip")}
    assert client.post("/upload", data={"csrf": "0" * 64}, files=files).status_code == 403
    answer = client.post("/upload", data={"csrf": csrf[1]}, files=files)
    assert answer.status_code == 303
    assert finished(client, answer.headers["location"].rpartition("/")[2])["state"] == "done"


@pytest.mark.parametrize(
    ("limits", "said"),
    [({"upload_seconds": 0}, "it took longer than 0 s"), ({"upload_memory": 60 * MIB}, "memory")],
)
def test_limits_end_a_diagnosis(serving: Callable[..., httpx.Client], limits: dict[str, int], said: str) -> None:
    client = serving(**limits)
    done = finished(client, client.post("/api/v1/diagnoses", content=bundle()).json()["id"])
    assert done["state"] == "failed"
    assert said in done["error"]


def test_empty_and_too_large_uploads_are_refused(serving: Callable[..., httpx.Client], tmp_path: Path) -> None:
    client = serving(max_upload=1000)
    assert client.post("/api/v1/diagnoses", content=b"").status_code == 400
    assert client.post("/api/v1/diagnoses", content=(bytes(600) for _ in range(3))).status_code == 413
    assert [*(tmp_path / "uploads").iterdir()] == []


def test_a_restart_goes_on_with_what_waited(sqlite_store: Store, tmp_path: Path) -> None:
    folder = tmp_path / "uploads" / "a1"
    folder.mkdir(parents=True)
    (folder / "bundle.tar.gz").write_bytes(bundle())
    sqlite_store.uploads.create("run.tar.gz", 1, who="ana", now=1, id="a1")
    sqlite_store.uploads.claim("a1", "killed", 2)
    worker = Diagnoses(sqlite_store, ServerSettings(), tmp_path / "uploads", time.time_ns)
    worker.start()
    for _ in range(300):
        upload = sqlite_store.uploads.get("a1")
        assert upload is not None
        if upload.state == "done":
            break
        time.sleep(0.1)
    worker.stop()
    assert upload.state == "done"


def test_the_worker_gets_no_secret(sqlite_store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRACECORE_OIDC_CLIENT_SECRET", "s3cret")
    seen: list[dict[str, str]] = []
    import subprocess

    begin = subprocess.Popen

    def popen(*args: Any, **more: Any) -> Any:
        seen.append(more["env"])
        return begin(*args, **more)

    monkeypatch.setattr("tracecore.server.diagnosing.subprocess.Popen", popen)
    worker = Diagnoses(sqlite_store, ServerSettings(), tmp_path, time.time_ns)
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "bundle.log").write_text("nothing\n")
    worker._diagnose("a", tmp_path / "a" / "bundle.log")
    assert "s3cret" not in str(seen)
    assert os.environ["TRACECORE_OIDC_CLIENT_SECRET"] == "s3cret"


def test_a_published_diagnosis_is_stored_once(client: httpx.Client, sqlite_store: Store) -> None:
    from tracecore.diagnose.offline import diagnose

    document = diagnose([ROOT / "examples" / "incidents" / "nccl_hang_one_rank_missing"]).document()
    import msgspec

    body = msgspec.json.encode(document)
    first = client.post("/api/v1/diagnoses/published", content=body).json()
    assert first["new"] == 1
    assert client.post("/api/v1/diagnoses/published", content=body).json() == first | {"new": 0}
    detail = sqlite_store.incidents.get(first["incidents"][0])
    assert detail is not None
    assert len(detail.evidence) > 3
    for broken in (b"", b"[]", b"{}", b'{"schema": "tracecore/diagnosis/v1", "incidents": [{}]}', b"[" * 100_000):
        assert client.post("/api/v1/diagnoses/published", content=broken).status_code == 400
