"""Commands among odd names, full disks, closed outputs and devices: one line, no traceback, nothing replaced."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
from click.testing import CliRunner

from tracecore.cli.main import root
from tracecore.signals import private

CRASH = 'Traceback (most recent call last):\n  File "t.py", line 7, in <module>\nValueError: bad row\n'
NAMES = (b"-rf.log", b"a\nb.log", b"\xff\xfe.log", b"%s\"'.log", b"x" * 250 + b".log", b"\x1b[2J.log", b"$(id).log")


@pytest.fixture
def odd(tmp_path: Path) -> Path:
    folder = tmp_path / "odd"
    folder.mkdir()
    for name in NAMES:
        (folder / os.fsdecode(name)).write_text(CRASH)
    return folder


def shell(script: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "TRACECORE": f"{sys.executable} -m tracecore"}
    return subprocess.run(["bash", "-c", script], cwd=cwd, env=env, capture_output=True, text=True, timeout=120)


def test_odd_names_are_collected_and_listed(odd: Path, tmp_path: Path) -> None:
    archive = tmp_path / "bundle.tar.gz"
    done = CliRunner().invoke(root, ["collect", "--logs", str(odd), "--output", str(archive)])
    assert done.exception is None or isinstance(done.exception, SystemExit)
    assert "\x1b" not in done.output
    with tarfile.open(archive) as tar:
        manifest = tar.extractfile("tracecore-manifest.json")
        assert manifest is not None
        told = json.load(manifest)
    assert len([item for item in told["items"] if item["bytes"] == len(CRASH)]) == len(NAMES)


def test_odd_names_are_diagnosed_in_every_form(odd: Path) -> None:
    for form in ("text", "json", "html"):
        done = CliRunner().invoke(root, ["diagnose", str(odd), "--format", form])
        assert "ValueError" in done.stdout
        assert "\x1b" not in done.stdout
        done.stdout.encode()


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full")
@pytest.mark.parametrize(
    "words", ["diagnose .", "diagnose . -o json", "queue --db q.db list", "patterns list", "completion bash"]
)
def test_a_full_disk_is_told_in_a_line(words: str, tmp_path: Path) -> None:
    (tmp_path / "rank0.log").write_text(CRASH)
    done = shell(f"$TRACECORE queue --db q.db submit -- true >/dev/null; $TRACECORE {words} > /dev/full", tmp_path)
    assert done.returncode == 1
    assert done.stderr == "Error: the output: no space left on device\n"


def test_a_closed_output_is_no_mistake(tmp_path: Path) -> None:
    (tmp_path / "rank0.log").write_text(CRASH)
    for script in ("$TRACECORE diagnose . >&-", "$TRACECORE diagnose . | true"):
        done = shell(script, tmp_path)
        assert (done.returncode, done.stderr) == (0, "")


def test_a_folder_that_is_not_there_is_told_in_a_line(tmp_path: Path) -> None:
    done = shell(
        "$TRACECORE queue --db q.db submit -- true && $TRACECORE queue --db q.db metrics --output no/x", tmp_path
    )
    assert done.stderr == "Error: cannot write no/x: No such file or directory\n"
    assert shell("$TRACECORE queue --db q.db show 99999999999999999999", tmp_path).returncode == 2


def test_a_device_or_pipe_is_written_to_and_not_replaced(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = subprocess.Popen(["cat", str(pipe)], stdout=subprocess.PIPE)
    private.write(pipe, b"hello")
    assert reader.communicate(timeout=30)[0] == b"hello"
    assert pipe.is_fifo()
    done = CliRunner().invoke(root, ["collect", "--output", str(pipe)])
    assert "not a regular file" in done.output
    assert pipe.is_fifo()


def test_status_takes_its_options_after_it_too(tmp_path: Path) -> None:
    done = shell("$TRACECORE supervise status --state-dir nowhere", tmp_path)
    assert (done.returncode, done.stdout) == (1, "")
    assert "there is no supervised run in nowhere" in done.stderr
    assert not (tmp_path / ".tracecore").exists()


def test_supervise_needs_no_environment_and_no_output(tmp_path: Path) -> None:
    source = os.pathsep.join(sys.path)
    script = f"env -i PYTHONPATH={source!r} $TRACECORE supervise --no-diagnose --state-dir s -- /bin/echo hi >&-"
    assert shell(script, tmp_path).returncode == 0
    kept = (tmp_path / "s" / "attempts" / "0001" / "evidence").glob("*.log")
    assert "".join(path.read_text() for path in kept) == "hi\n"
