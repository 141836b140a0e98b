"""Hostile and damaged bundles: whatever is in a directory, there is an answer, and what was not read is listed."""

from __future__ import annotations

import io
import json
import os
import random
import shutil
import tarfile
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tracecore.diagnose.offline import diagnose
from tracecore.incidents.page import page
from tracecore.incidents.text import report

INCIDENTS = Path(__file__).resolve().parents[2] / "examples" / "incidents"


def document(path: Path, **options: Any) -> dict[str, Any]:
    plain: dict[str, Any] = json.loads(msgspec.json.encode(diagnose([path], **options).document()))
    return plain


def reasons(found: dict[str, Any]) -> dict[str, str]:
    return {os.path.basename(item["path"]): item["reason"] for item in found["coverage"]["skipped"]}


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    """A copy of a real incident to spoil."""
    target = tmp_path / "bundle"
    shutil.copytree(INCIDENTS / "nccl_rank_exception", target)
    (target / "truth.json").unlink()
    return target


def root_of(found: dict[str, Any]) -> str:
    name: str = found["incidents"][0]["root_cause"]["pattern"]
    return name


def test_an_empty_directory_is_an_answer(tmp_path: Path) -> None:
    found = document(tmp_path)
    assert found["incidents"] == []
    assert found["coverage"]["files_read"] == 0


def test_rubbish_beside_the_evidence_does_not_change_the_answer(bundle: Path) -> None:
    before = root_of(document(bundle))
    noise = random.Random(1)
    (bundle / "core.12345").write_bytes(noise.randbytes(200_000))
    (bundle / "empty.bin").write_bytes(b"")
    (bundle / "half.tar.gz").write_bytes(b"\x1f\x8b\x08\x00" + noise.randbytes(500))
    (bundle / "nccl_trace_rank_9").write_bytes(b"\x80\x02}q\x00X\x07\x00\x00\x00versionq\x01" + noise.randbytes(64))
    (bundle / "weights.safetensors").write_bytes(noise.randbytes(4096))
    found = document(bundle)
    assert root_of(found) == before
    skipped = reasons(found)
    assert {"core.12345", "half.tar.gz", "nccl_trace_rank_9"} <= skipped.keys()
    assert all(skipped.values())


def test_a_truncated_dump_is_listed_and_the_rest_is_used(bundle: Path) -> None:
    dump = bundle / "fr" / "nccl_trace_rank_0"
    dump.write_bytes(dump.read_bytes()[:-200])
    found = document(bundle)
    assert "nccl_trace_rank_0" in reasons(found)
    assert root_of(found) == "worker_crash"


def test_a_dump_that_would_run_code_is_not_run(bundle: Path, tmp_path: Path) -> None:
    proof = tmp_path / "ran"
    evil = b"\x80\x02cos\nsystem\nq\x00X" + len(f"touch {proof}").to_bytes(4, "little") + f"touch {proof}".encode()
    (bundle / "fr" / "nccl_trace_rank_3").write_bytes(evil + b"q\x01\x85q\x02Rq\x03." + b"entries pg_config")
    found = document(bundle)
    assert not proof.exists()
    assert root_of(found) == "worker_crash"
    assert "nccl_trace_rank_3" in reasons(found)


def test_loops_of_links_and_links_that_lead_out_are_not_followed(bundle: Path, tmp_path: Path) -> None:
    (bundle / "again").symlink_to(bundle, target_is_directory=True)
    (bundle / "passwd.log").symlink_to("/etc/passwd")
    (bundle / "self.log").symlink_to(bundle / "self.log")
    found = document(bundle)
    assert root_of(found) == "worker_crash"
    assert "passwd.log" in reasons(found)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_files_without_permission_are_listed(bundle: Path) -> None:
    (bundle / "rank0.log").chmod(0)
    assert reasons(document(bundle))["rank0.log"] == "permission denied"


def test_pipes_and_sockets_are_left_alone(bundle: Path) -> None:
    os.mkfifo(bundle / "fifo.log")
    assert reasons(document(bundle))["fifo.log"].startswith("a pipe")


def test_many_small_files(tmp_path: Path) -> None:
    for number in range(3_000):
        folder = tmp_path / f"{number % 30:02d}"
        folder.mkdir(exist_ok=True)
        (folder / f"rank{number}.log").write_text(
            f"[2026-11-15 02:21:{number % 60:02d}] rank {number} | step 1 | loss 1.0\n"
        )
    found = document(tmp_path, jobs=2)
    assert found["coverage"]["files_read"] == 3_000
    assert found["incidents"] == []


def test_escape_sequences_reach_neither_the_terminal_nor_the_page(tmp_path: Path) -> None:
    (tmp_path / "rank0.log").write_bytes(
        b"[rank0]: Traceback (most recent call last):\n"
        b'[rank0]:   File "/a.py", line 1, in <module>\n'
        b"[rank0]: ValueError: \x1b]0;owned\x07\x1b[2J<script>alert(1)</script>\xe2\x80\xae\x9b31m \x00 end\n"
    )
    (tmp_path / "exit_codes.json").write_text('{"0": 1, "1": -6}')
    found = diagnose([tmp_path])
    assert found.incidents
    shown = report(found)
    assert "ValueError" in shown
    assert not {"\x1b", "\x9b", "\x07", "\x00", "\u202e"} & set(shown)
    drawn = page(found)
    assert "<script" not in drawn
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in drawn
    assert not {"\x1b", "\x9b", "\x07", "\x00", "\u202e"} & set(drawn)


def test_a_bundle_and_its_archive_give_the_same_incident(bundle: Path, tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "bundle.tar.gz", "w:gz") as tar:
        tar.add(bundle, arcname="bundle")
    plain, packed = document(bundle), document(tmp_path / "bundle.tar.gz")
    assert root_of(plain) == root_of(packed)
    assert plain["incidents"][0]["suspects"] == packed["incidents"][0]["suspects"]
    shown = report(diagnose([tmp_path / "bundle.tar.gz"]))
    assert "bundle.tar.gz!/bundle/rank3.log:" in shown
    assert "ValueError: bad batch" in shown


RAISED = b'Traceback (most recent call last):\n  File "/a.py", line 1, in <module>\n    go()\nValueError: no\n'


@pytest.mark.parametrize(
    "name",
    [
        b"\xff\xfe.log",
        b"a\nWhat   All is well\n.log",
        b"\x1b[2J\x1b]0;owned\x07.log",
        "r\u202egol.log".encode(),
        b"<img src=x onerror=alert(1)>.log",
    ],
)
def test_names_of_files_are_as_hostile_as_what_is_in_them(tmp_path: Path, name: bytes) -> None:
    with open(os.path.join(os.fsencode(tmp_path), name), "wb") as file:
        file.write(RAISED)
    diagnosis = diagnose([tmp_path])
    assert [incident.root.verdict.pattern_name for incident in diagnosis.incidents if incident.root] == ["worker_crash"]
    assert msgspec.json.encode(diagnosis.document())
    shown, drawn = report(diagnosis), page(diagnosis)
    assert not any(line.startswith("What   All is well") for line in shown.splitlines())
    assert not {"\x1b", "\x9b", "\x07", "\x00", "\u202e"} & set(shown + drawn)
    assert "<img" not in drawn
    shown.encode(), drawn.encode()  # whatever the name was, what is said of it is text


def test_a_name_in_an_archive_that_is_no_text(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "bundle.tar", "w") as tar:
        member = tarfile.TarInfo(os.fsdecode(b"logs/\xff\xfe.log"))
        member.size = len(RAISED)
        tar.addfile(member, io.BytesIO(RAISED))
    assert root_of(document(tmp_path)) == "worker_crash"


@pytest.mark.parametrize("text", ["1", "null", '"x"', "[[]]", '{"0": {}}', "[" * 5_000])
def test_exit_codes_that_are_none(tmp_path: Path, text: str) -> None:
    (tmp_path / "exit_codes.json").write_text(text)
    assert diagnose([tmp_path]).document()["incidents"] == []
