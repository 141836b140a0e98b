"""`tracecore archive`, as a user calls it."""

from __future__ import annotations

import json
import re
import shutil
import tarfile
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest

from tracecore.archive.dataset import Archive
from tracecore.cli import archive as cli
from tracecore.cli.main import main

INCIDENTS = Path(__file__).resolve().parents[2] / "examples/incidents"
NAMES = ("checkpoint_full", "nccl_hang_one_rank_missing")


class Called(NamedTuple):
    exit_code: int
    stdout: str
    stderr: str


@pytest.fixture
def called(tmp_path: Path, inline: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    """The command, its tasks done in this process."""
    monkeypatch.setattr(cli, "_make_workers", lambda ray, jobs, limits: inline(limits))
    for name in NAMES:
        shutil.copytree(INCIDENTS / name, tmp_path / "bundles" / name)

    def call(*words: str) -> Called:
        status = main(["archive", *words])
        return Called(status, *capsys.readouterr())

    return call


def test_diagnose_rediagnose_and_query(called: Any, tmp_path: Path) -> None:
    # The archive lies among the bundles, and is none.
    bundles, out = str(tmp_path / "bundles"), str(tmp_path / "bundles" / "out")
    done = called("diagnose", "--each", bundles, "--out", out)
    assert done.exit_code == 0, done.stderr
    assert done.stdout.startswith("2 bundles: 2 diagnosed now, 0 before\n2 incidents: 2 with a cause, 0 unexplained")
    again = json.loads(called("diagnose", "--each", bundles, "--out", out, "-o", "json").stdout)
    assert (again["done"], again["before"], again["incidents"]) == (0, 2, 2)
    assert set(again["causes"]) == {"nccl_hang", "storage_failure"}

    same = called("rediagnose", out)
    assert (same.exit_code, same.stdout) == (0, "2 bundles, 2 incidents: 2 the same, 0 reworded\n")

    asked = called("query", out, "SELECT root, ranks FROM incidents ORDER BY root", "-o", "json")
    assert json.loads(asked.stdout)[0] == {"root": "nccl_hang", "ranks": [2]}
    table = called("query", out, "SELECT kind, count(*) AS n FROM facts GROUP BY kind ORDER BY n DESC, kind")
    assert table.stdout.splitlines()[0].split() == ["kind", "n"]
    assert called("query", out, "SELECT count(DISTINCT pattern) FROM verdicts").exit_code == 0
    refused = called("query", out, "SELECT * FROM read_csv('/etc/passwd')")
    assert refused.exit_code == 1
    assert "root:" not in refused.stdout
    assert called("query", out, "SELEKT").exit_code == 1


def test_rediagnose_says_what_another_release_answers(called: Any, tmp_path: Path) -> None:
    """An archive as an older release would have left it: one incident had no name, one had another."""
    out = tmp_path / "out"
    called("diagnose", "--each", str(tmp_path / "bundles"), "--out", str(out))
    archive = Archive(out)
    results = list(archive.results())
    for stored in results:
        document = stored.document
        assert document is not None
        incident = document["incidents"][0]
        if incident["root_cause"]["pattern"] == "nccl_hang":
            incident["root_cause"] = None
        else:
            incident["root_cause"]["pattern"] = "worker_crash"
        stored.row["document"] = msgspec.json.encode(document).decode()
    archive.append(results)
    found = called("rediagnose", str(out))
    assert found.exit_code == 10
    assert "1 unexplained incident has a name now\n1 incident has changed\n" in found.stdout
    assert f"changed: {tmp_path}/bundles/checkpoint_full" in found.stdout
    assert "  before: worker_crash; " in found.stdout
    assert called("rediagnose", str(out)).exit_code == 10
    saved = called("rediagnose", str(out), "--save", "-o", "json")
    assert json.loads(saved.stdout)["incidents"] == {"changed": 1, "named": 1}
    assert called("rediagnose", str(out)).exit_code == 0
    assert len(archive.files("bundles")) == 1, "older batches are removed"


def test_results_also_go_to_a_store(called: Any, tmp_path: Path) -> None:
    from tracecore.store.incidents import IncidentQuery
    from tracecore.store.store import Store

    place = str(tmp_path / "incidents.db")
    for _ in range(2):
        done = called(
            "diagnose", "--again", "--each", str(tmp_path / "bundles"), "--out", str(tmp_path / "out"), "--store", place
        )
        assert done.exit_code == 0, done.stderr
    store = Store.open(place)
    try:
        found = store.incidents.find(IncidentQuery(), limit=10).incidents
        assert sorted(incident.pattern for incident in found) == ["nccl_hang", "storage_failure"]
    finally:
        store.close()


def test_errors_are_one_line(called: Any, tmp_path: Path) -> None:
    out = str(tmp_path / "out")
    for words in (
        ("diagnose", "/nonexistent", "--out", out),
        ("diagnose", "s3://bucket/x*", "--out", out),
        ("diagnose", "nosuch://bucket/x*", "--out", out),
        ("rediagnose", str(tmp_path)),
        ("query", str(tmp_path), "SELECT 1"),
    ):
        done = called(*words)
        assert done.exit_code in (1, 2), words
        assert "Traceback" not in done.stderr
    assert "pip install s3fs\n" in called("diagnose", "s3://bucket/x*", "--out", out).stderr


def test_every_documented_column_can_be_asked_for(called: Any, tmp_path: Path) -> None:
    out = tmp_path / "out"
    called("diagnose", str(tmp_path / "bundles" / NAMES[0]), "--out", str(out))
    documented = (Path(__file__).resolve().parents[2] / "docs/archive.md").read_text()
    tables = {name: re.search(rf"### `{name}`.*?\n\n(\|.*?)\n\n", documented, re.S) for name in ("bundles", "facts")}
    columns = {
        name: [column for row in table[1].splitlines()[2:] for column in re.findall(r"`(\w+)`", row.split("|")[1])]
        for name, table in tables.items()
        if table is not None
    }
    for view in ("incidents", "verdicts"):
        told = re.search(rf"`{view}`: (.*?)\. ", documented, re.S)
        assert told is not None
        columns[view] = re.findall(r"`(\w+)`", re.sub(r"\(.*?\)", "", told[1]))
    assert {"diagnosed_at", "streams"} < set(columns["bundles"])
    assert {"first_seen", "last_seen", "document"} < set(columns["incidents"])
    for view, names in columns.items():
        for name in names:
            for form in ("text", "json"):
                asked = called("query", str(out), f"SELECT {name} FROM {view} LIMIT 1", "-o", form)
                assert (asked.exit_code, asked.stderr) == (0, ""), (view, name)
    recent = "SELECT count(*) AS n FROM bundles WHERE diagnosed_at > now() - INTERVAL 1 DAY"
    assert json.loads(called("query", str(out), recent, "-o", "json").stdout) == [{"n": 1}]
    zone = called("query", str(out), "SELECT now()")
    assert "Traceback" not in zone.stderr


def test_a_file_url_may_have_patterns(called: Any, tmp_path: Path) -> None:
    done = called("diagnose", f"file://{tmp_path}/bundles/check*", "--out", str(tmp_path / "out"), "-o", "json")
    assert done.exit_code == 0, done.stderr
    assert json.loads(done.stdout)["bundles"] == 1
    none = called("diagnose", f"file://{tmp_path}/bundles/nothing*", "--out", str(tmp_path / "out"))
    assert none.exit_code == 2
    odd = tmp_path / "bundles" / "check*"
    shutil.copytree(INCIDENTS / NAMES[1], odd)
    done = called("diagnose", f"file://{odd}", "--out", str(tmp_path / "other"), "-o", "json")
    assert json.loads(done.stdout)["causes"] == {"nccl_hang": 1}, "a name with such a sign is itself"


def test_broken_archives_are_named(called: Any, tmp_path: Path) -> None:
    whole = tmp_path / "whole.tar.gz"
    with tarfile.open(whole, "w:gz") as tar:
        tar.add(INCIDENTS / NAMES[0], "run")
    data = whole.read_bytes()
    (tmp_path / "cut.tar.gz").write_bytes(data[: len(data) * 2 // 3])
    (tmp_path / "corrupt.tar.gz").write_bytes(data[:20] + bytes(range(256)) * 8)
    words = (str(tmp_path / "cut.tar.gz"), "--out", str(tmp_path / "out"))
    cut = called("diagnose", *words)
    assert cut.exit_code == 0
    assert f"  {tmp_path}/cut.tar.gz: unexpected end of data" in cut.stdout.split("1 read in part")[1]
    for _ in range(2):
        broken = called("diagnose", str(tmp_path / "corrupt.tar.gz"), *words)
        assert broken.exit_code == 1
        assert f"  {tmp_path}/corrupt.tar.gz: " in broken.stdout.split("1 without a diagnosis:")[1]
    found = json.loads(called("diagnose", str(tmp_path / "corrupt.tar.gz"), *words, "-o", "json").stdout)
    assert [one["bundle"] for one in found["nothing_read"]] == [str(tmp_path / "corrupt.tar.gz")]
    document = next(r.document for r in Archive(tmp_path / "out").results() if r.bundle.endswith("cut.tar.gz"))
    assert document is not None
    assert any("cut.tar.gz was read in part" in note for note in document["notes"])


def test_an_archive_without_a_bundle_says_so(called: Any, tmp_path: Path) -> None:
    Archive.create(tmp_path / "out")
    asked = called("query", str(tmp_path / "out"), "SELECT 1")
    assert asked.exit_code == 1
    assert "no bundle is finished yet; run `tracecore archive diagnose` again" in asked.stderr
