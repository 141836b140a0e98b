"""`tracecore diagnose` as a user runs it: what it prints where, and how it exits."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from tracecore.cli.main import root

ROOT = Path(__file__).resolve().parents[2]
HANG = "examples/incidents/nccl_hang_one_rank_missing"


def run(*arguments: str) -> Result:
    return CliRunner().invoke(root, ["diagnose", *arguments])


@pytest.fixture(autouse=True)
def _from_the_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)


def test_the_answer_is_in_the_first_lines() -> None:
    lines = run(HANG).stdout.splitlines()
    assert lines[0].startswith("What   Ranks 0, 1 and 3 hang in all_reduce seq 6 of default_pg: rank 2 never")
    assert "Where  rank 2" in lines[:4]
    assert any(line.startswith("Do     Look at rank 2") for line in lines[:5])


@pytest.mark.parametrize("scenario", ["nccl_hang_one_rank_missing", "checkpoint_full", "preempted", "elastic_gives_up"])
def test_no_line_is_wider_than_80_columns_but_for_paths(scenario: str) -> None:
    for line in run(f"examples/incidents/{scenario}").stdout.splitlines():
        assert len(line) <= 80 or "/" in line.split()[0] or " " not in line.strip()


def test_nothing_is_coloured_on_a_pipe() -> None:
    assert "\x1b" not in run(HANG).stdout


def test_the_decisive_line_is_quoted_with_file_and_line() -> None:
    shown = run("examples/incidents/nccl_rank_exception").stdout
    place = re.search(r"^  (\S+rank3\.log):(\d+)$", shown, re.MULTILINE)
    assert place is not None
    lines = Path(place.group(1)).read_text().splitlines()
    assert "Traceback (most recent call last):" in lines[int(place.group(2)) - 1]
    assert "    | [rank3]: ValueError: bad batch: label 1001 out of range" in shown.splitlines()


def test_json_is_one_document_on_standard_output() -> None:
    result = run(HANG, "--format", "json")
    document = json.loads(result.stdout)
    assert document["schema"] == "tracecore/diagnosis/v1"
    assert document["incidents"][0]["suspects"]["ranks"] == [2]


def test_json_has_the_timeline_and_the_lines_that_prove_it() -> None:
    """Whoever gets the document has no bundle to quote from."""
    incident = json.loads(run("examples/incidents/nccl_rank_exception", "--format", "json").stdout)["incidents"][0]
    cause = [row for row in incident["timeline"] if row["role"] == "cause"]
    assert cause
    assert cause[0]["ranks"] == [[rank, rank] for rank in incident["suspects"]["ranks"]]
    quote = incident["quotes"][0]
    said = Path(quote["file"]).read_text(errors="replace").splitlines()
    assert all(line["text"].strip() in said[line["number"] - 1] for line in quote["lines"])


def test_exit_statuses() -> None:
    assert run(HANG).exit_code == 0
    assert CliRunner().invoke(root, ["diagnose", HANG, "--exit-code"], standalone_mode=False).return_value == 10
    healthy = CliRunner().invoke(root, ["diagnose", "examples/incidents/healthy", "--exit-code"], standalone_mode=False)
    assert healthy.return_value == 0


def test_the_exit_status_reaches_the_shell() -> None:
    command = [sys.executable, "-m", "tracecore", "diagnose", HANG, "--exit-code", "--format", "json"]
    assert subprocess.run(command, capture_output=True, check=False).returncode == 10


def test_a_path_that_is_not_there_is_bad_usage() -> None:
    result = run("/no/such/place")
    assert result.exit_code == 2
    assert "/no/such/place" in result.stderr
    assert result.stdout == ""


def test_the_page_is_written_and_needs_nothing_else(tmp_path: Path) -> None:
    target = tmp_path / "report.html"
    result = run(HANG, "--report", str(target))
    assert result.exit_code == 0
    page = target.read_text()
    assert page.startswith("<!doctype html>")
    assert "<svg" in page
    assert not re.search(r"(?:src|href)\s*=|@import|url\(|<script", page)


def test_a_page_that_cannot_be_written_is_bad_usage(tmp_path: Path) -> None:
    result = run(HANG, "--report", str(tmp_path / "missing" / "report.html"))
    assert result.exit_code == 2
    assert "report.html" in result.stderr


def test_a_healthy_run_is_said_to_be_one() -> None:
    assert run("examples/incidents/healthy").stdout.startswith("Nothing failed: the run ended well.")


def test_the_same_failure_in_a_later_attempt_is_told_once(tmp_path: Path) -> None:
    block = (
        '[rank1]: Traceback (most recent call last):\n[rank1]:   File "/a/train.py", line 5, in <module>\n'
        "[rank1]: KeyError: 'labels'\n"
        "E1115 02:21:{0}.991000 1029 torch/distributed/elastic/multiprocessing/api.py:986] failed (exitcode: 1) "
        "local_rank: 1 (pid: {0}) of binary: /usr/bin/python3\n"
    )
    step = (
        "[2026-11-15 02:21:{0:02d}] rank 0 | step 1 | loss 2.0\n[2026-11-15 02:21:{0:02d}] rank 1 | step 1 | loss 2.0\n"
    )
    (tmp_path / "out.log").write_text(step.format(10) + block.format(12) + step.format(30) + block.format(35))
    (tmp_path / "exit_codes.json").write_text('{"0": 1}')
    shown = run(str(tmp_path)).stdout
    assert "Incident 1 of 2, attempt 2 of 2" in shown
    assert shown.count("Evidence") == 1
    assert "The same failure as incident 1, in another attempt." in shown


def _slow_bundle(path: Path) -> None:
    line = b"2026-11-15T02:21:10.000000000Z stdout F loss goes down and down and down, nothing to see here, really\n"
    with open(path / "big.log", "wb") as file:
        for _ in range(60):
            file.write(line * 10_000)


def _until(descriptor: int, text: bytes, seconds: float) -> bytes:
    seen = b""
    end = time.monotonic() + seconds
    while time.monotonic() < end and text not in seen:
        if select.select([descriptor], [], [], 0.2)[0]:
            try:
                seen += os.read(descriptor, 65536)
            except OSError:
                break
    return seen


def test_a_terminal_sees_bytes_and_rate_and_an_interrupt_ends_it_cleanly(tmp_path: Path) -> None:
    _slow_bundle(tmp_path)
    parent, child = pty.openpty()
    command = [sys.executable, "-c", _SLOWLY, str(tmp_path)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=child, start_new_session=True)
    os.close(child)
    try:
        seen = _until(parent, b"MB/s", 60)
        assert re.search(rb"\d+ of \d+ MB, [\d,]+ MB/s", seen)
        process.send_signal(signal.SIGINT)
        rest = _until(parent, b"stopped", 30)
        assert b"stopped" in rest
        assert b"Traceback" not in rest
        assert process.wait(30) == 130
    finally:
        process.kill()
        process.wait()
        os.close(parent)


#: The command with a reader that takes its time over every block.
_SLOWLY = """
import sys, time
import tracecore.diagnose.facts as facts
whole = facts.selector_of
class Slow:
    def __init__(self, selector): self.selector = selector
    def __call__(self, block):
        time.sleep(0.4)
        return []
facts.selector_of = lambda stream, **options: Slow(whole(stream, **options))
from tracecore.cli.main import main
sys.exit(main(["diagnose", *sys.argv[1:]]))
"""


def _children(parent: int) -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                status = (entry / "stat").read_text()
            except OSError:
                continue
            if int(status.rpartition(")")[2].split()[1]) == parent:
                found.append(int(entry.name))
    return found


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc to look for what is left behind")
def test_an_interrupt_leaves_no_process_behind(tmp_path: Path) -> None:
    line = "2026-11-15T02:21:10.000000000Z stdout F nothing to see here\n" * 500
    for number in range(200):
        (tmp_path / f"{number}.log").write_text(line)
    command = [sys.executable, "-c", _SLOWLY, str(tmp_path), "--jobs", "2"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, start_new_session=True)
    try:
        workers: list[int] = []
        end = time.monotonic() + 60
        while len(workers) < 2 and time.monotonic() < end:
            workers = _children(process.pid)
            time.sleep(0.1)
        assert len(workers) == 2
        time.sleep(0.5)
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=30)
        assert process.returncode == 130
        assert b"Traceback" not in said
        end = time.monotonic() + 10
        while any(Path(f"/proc/{worker}").exists() for worker in workers) and time.monotonic() < end:
            time.sleep(0.1)
        assert not any(Path(f"/proc/{worker}").exists() for worker in workers)
    finally:
        process.kill()
        process.wait()
