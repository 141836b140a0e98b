"""Which process writes a file: real processes of this machine, and bounds."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tracecore.signals.processes import writers
from tracecore.signals.processes.writers import find_writers, read_process

pytestmark = pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="no /proc on this machine")


@pytest.fixture
def worker(tmp_path: Path) -> Iterator[tuple[Path, subprocess.Popen[bytes]]]:
    """A process with the environment of rank 3 whose output goes to a file."""
    path = tmp_path / "rank3.log"
    with path.open("wb") as file:
        process = subprocess.Popen(
            [sys.executable, "-c", "import time; print('step 1', flush=True); time.sleep(60)"],
            stdout=file,
            env={**os.environ, "RANK": "3", "TORCHELASTIC_RUN_ID": "llm", "SECRET_TOKEN": "s3cret"},
        )
    deadline = time.monotonic() + 20
    while not path.stat().st_size and time.monotonic() < deadline:
        time.sleep(0.02)
    yield path, process
    process.kill()
    process.wait()


def test_the_process_that_writes_a_file_is_found(
    worker: tuple[Path, subprocess.Popen[bytes]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, process = worker
    monkeypatch.setattr(writers, "MAX_SECONDS", 10)  # this machine may do other things, too
    other = tmp_path / "read.log"
    other.write_text("nobody writes this")
    with other.open() as reader:
        found, whole = find_writers({str(path), str(other), str(tmp_path / "missing")})
        assert reader.read()
    assert whole
    assert {name: one.pid for name, one in found.items()} == {str(path): process.pid}
    assert found[str(path)].environment == {"RANK": "3", "TORCHELASTIC_RUN_ID": "llm"}  # and nothing secret


def test_a_look_is_bounded(worker: tuple[Path, subprocess.Popen[bytes]], monkeypatch: pytest.MonkeyPatch) -> None:
    path, _ = worker
    monkeypatch.setattr(writers, "MAX_PROCESSES", 0)
    assert find_writers({str(path)}) == ({}, False)
    monkeypatch.setattr(writers, "MAX_PROCESSES", 1000)
    ticks = iter(range(10_000))
    assert find_writers({str(path)}, clock=lambda: next(ticks)) == ({}, False)


def test_a_process_that_has_ended_gives_nothing() -> None:
    assert read_process(2**22 + 1) is None
