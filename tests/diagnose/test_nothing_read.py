"""An answer without evidence is never an all-clear: it says that nothing was read, and exits with 1."""

from __future__ import annotations

import gzip
import io
import json
import os
import random
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from click.testing import CliRunner, Result

from tracecore.cli.main import root
from tracecore.diagnose.offline import diagnose
from tracecore.incidents.page import page

ROOT = Path(__file__).resolve().parents[2]
CRASH = b"""step 1 loss 2.0
Traceback (most recent call last):
  File "train.py", line 7, in <module>
    main()
ValueError: bad batch
"""


def run(*arguments: str, given: bytes | None = None) -> Result:
    return CliRunner().invoke(root, ["diagnose", *arguments], input=given, standalone_mode=False)


def shell(*arguments: str, given: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    command = [sys.executable, "-m", "tracecore", "diagnose", *arguments]
    return subprocess.run(command, input=given, capture_output=True, check=False)


def document(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(run(str(path), "--format", "json").stdout)
    jsonschema.validate(found, json.loads((ROOT / "docs" / "diagnosis.schema.json").read_text()))
    return found


def _empty_directory(at: Path) -> Path:
    return at


def _empty_file(at: Path) -> Path:
    (at / "rank0.log").write_bytes(b"")
    return at


def _bomb(at: Path) -> Path:
    with zipfile.ZipFile(at / "bomb.zip", "w", zipfile.ZIP_DEFLATED) as bundle:
        bundle.writestr("rank0.log", b"\0" * (300 << 20))
    return at / "bomb.zip"


def _cut_archive(at: Path) -> Path:
    whole = io.BytesIO()
    with tarfile.open(fileobj=whole, mode="w:gz") as tar:
        info = tarfile.TarInfo("rank0.log")
        info.size = 1 << 20
        tar.addfile(info, io.BytesIO(random.Random(9).randbytes(1 << 20)))
    (at / "bundle.tar.gz").write_bytes(whole.getvalue()[:200])
    return at / "bundle.tar.gz"


def _broken_dump(at: Path) -> Path:
    (at / "nccl_trace_rank_9").write_bytes(b"\x80\x02}q\x00X\x07\x00\x00\x00versionq\x01" + bytes(range(64)))
    return at


@pytest.mark.parametrize("make", [_empty_directory, _empty_file, _bomb, _cut_archive, _broken_dump])
def test_nothing_read_is_said_and_fails(make: Any, tmp_path: Path) -> None:
    path = make(tmp_path)
    result = run(str(path))
    assert result.return_value == 1
    assert result.stdout.startswith("Nothing could be read")
    assert "No incident" not in result.stdout
    found = document(path)
    assert found["status"] == "nothing_read"
    assert found["incidents"] == []
    shown = page(diagnose([path]))
    assert "Nothing could be read" in shown
    assert "No incident" not in shown


def test_statuses_of_an_incident_and_of_a_healthy_run() -> None:
    assert document(ROOT / "examples/incidents/nccl_rank_exception")["status"] == "incident"
    assert document(ROOT / "examples/incidents/healthy")["status"] == "no_incident"


@pytest.mark.parametrize("name", ["-", "/dev/stdin", "/dev/fd/0", "/proc/self/fd/0"])
def test_standard_input_is_read(name: str) -> None:
    done = shell(name, "--format", "json", given=CRASH)
    found = json.loads(done.stdout)
    assert done.returncode == 0
    assert found["status"] == "incident"
    assert "ValueError" in found["incidents"][0]["headline"]
    assert found["coverage"]["files_read"] == 1


def test_an_archive_on_standard_input_is_read(tmp_path: Path) -> None:
    assert json.loads(shell("-", "--format", "json", given=gzip.compress(CRASH)).stdout)["status"] == "incident"


def test_standard_input_without_a_byte_is_nothing() -> None:
    done = shell("-")
    assert done.returncode == 1
    assert done.stdout.startswith(b"Nothing could be read")


def test_a_pipe_that_a_shell_made_is_read() -> None:
    script = f"{sys.executable} -m tracecore diagnose --format json <(printf '%s' \"$0\")"
    done = subprocess.run(["bash", "-c", script, CRASH], capture_output=True, check=False)
    assert json.loads(done.stdout)["status"] == "incident"


def test_a_pipe_in_a_directory_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "rank0.log")
    assert run(str(tmp_path)).return_value == 1
    assert run(str(tmp_path / "rank0.log")).return_value == 1


def test_a_bomb_beside_good_files_hides_nothing(tmp_path: Path) -> None:
    path = tmp_path / "bundle.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as bundle:
        for number in range(3):
            bundle.writestr(f"bomb{number}.log", b"\0" * (200 << 20))
        bundle.writestr("rank0.log", CRASH)
    found = document(path)
    assert found["status"] == "incident"
    skipped = {item["path"].rpartition("/")[2] for item in found["coverage"]["skipped"]}
    assert skipped >= {"bomb1.log", "bomb2.log"}
    assert "rank0.log" not in skipped


def test_what_is_left_of_a_cut_log_is_read_to_its_last_line(tmp_path: Path) -> None:
    noise = b"".join(b"step %d %s\n" % (n, random.Random(n).randbytes(8).hex().encode()) for n in range(60_000))
    whole = gzip.compress(noise + CRASH) + gzip.compress(random.Random(7).randbytes(90_000))
    (tmp_path / "rank0.log.gz").write_bytes(whole[:-50_000])
    found = document(tmp_path)
    assert found["status"] == "incident"
    (skipped,) = found["coverage"]["skipped"]
    assert skipped["reason"].startswith("read in part")
    shown = run(str(tmp_path)).stdout
    assert "Read in part:" in shown


def test_what_is_left_of_a_cut_archive_is_read(tmp_path: Path) -> None:
    whole = io.BytesIO()
    with tarfile.open(fileobj=whole, mode="w:gz") as tar:
        for name, data in (("rank0.log", CRASH), ("rank1.log", random.Random(7).randbytes(1 << 20).hex().encode())):
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    (tmp_path / "bundle.tar.gz").write_bytes(whole.getvalue()[: len(whole.getvalue()) // 2])
    found = document(tmp_path)
    assert found["status"] == "incident"
    assert any("bundle.tar.gz" in item["path"] for item in found["coverage"]["skipped"])


def test_a_clean_answer_says_what_it_does_not_know(tmp_path: Path) -> None:
    (tmp_path / "rank0.log").write_bytes(b"step 1 loss 2.0\nstep 2 loss 1.9\n")
    (tmp_path / "rank1.log.gz").write_bytes(b"\x1f\x8b\x08\x00" + random.Random(7).randbytes(400))
    first = run(str(tmp_path)).stdout.partition("\n\n")[0]
    assert "1 file could not be read" in " ".join(first.split())
