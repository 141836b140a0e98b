"""Log lines that attack the person who reads a report: escapes on a terminal, scripts in a page."""

from __future__ import annotations

import re
import time
from pathlib import Path

import pytest
from click.testing import CliRunner

from tracecore.cli.classify import command as classify
from tracecore.cli.diagnose import command as diagnose
from tracecore.recipes.plan import plan
from tracecore.signals.record import LogSignal, Source

ESCAPES = "\x1b[31mred\x1b[2K \x1b]0;owned\x07 \x1b]8;;http://evil\x07click\x1b]8;;\x07 \x9b31m \u202egnorts\u2066"
SCRIPT = "</pre></td><script>alert(1)</script><img src=x onerror=alert(2)>"
SEEDS = (
    "a", "CUDA out of memory. Tried to allocate ", " " * 7 + "at ", "Traceback (most recent call last):\n  ",
    "[rank0]: ", "((((", "1.1.1.1:", "NCCL WARN ",
)  # fmt: skip
CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069]")


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    """A crash whose every word is hostile, in files whose names are."""
    folder = tmp_path / f"run{SCRIPT.replace('/', '')}"
    folder.mkdir()
    text = (
        f"[rank0]: step 1 loss 2.0 {ESCAPES}\n[rank0]: Traceback (most recent call last):\n"
        f'[rank0]:   File "/app/{ESCAPES}.py", line 10, in {SCRIPT}\n[rank0]:     main()\n'
        f"[rank0]: ValueError: {ESCAPES} {SCRIPT}\n"
    )
    (folder / "rank0.log").write_text(text)
    (folder / f"rank1{ESCAPES.replace('/', '')}.log").write_text(text.replace("rank0", "rank1"))
    (folder / "exit_codes.json").write_text('{"0": 1, "1": 1}')
    return folder


def test_a_report_on_a_terminal_has_no_escapes_of_others(bundle: Path) -> None:
    done = CliRunner().invoke(diagnose, [str(bundle)], standalone_mode=False)
    assert "ValueError" in done.output
    assert not CONTROLS.search(done.output)


def test_a_report_as_json_has_no_raw_control_bytes(bundle: Path) -> None:
    done = CliRunner().invoke(diagnose, [str(bundle), "--format", "json"], standalone_mode=False)
    assert "ValueError" in done.stdout
    assert not re.search(r"[\x00-\x08\x0b-\x1f]", done.stdout)


def test_a_page_runs_nothing_and_fetches_nothing(bundle: Path, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    CliRunner().invoke(diagnose, [str(bundle), "--report", str(page)], standalone_mode=False)
    text = page.read_text()
    assert "ValueError" in text
    assert not CONTROLS.search(text)
    assert "<script" not in text.lower()
    assert "<img" not in text.lower()
    assert not re.search(r"<[^>]*\son\w+\s*=", text)


def test_what_classify_says_has_no_escapes_of_others(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text(f"ValueError: {ESCAPES}\n")
    done = CliRunner().invoke(classify, ["--exit-code", "1", "--log", str(log)], standalone_mode=False)
    assert done.exception is None, done.exception
    assert not CONTROLS.search(done.output)


def test_no_line_takes_more_than_linear_time() -> None:
    """Lines made to go back and forth in, of two sizes: four times the size takes about four times the time."""

    def spent(size: int) -> float:
        reader = plan("stdout")
        began = time.process_time()
        for seed in SEEDS:
            body = seed * (size // len(seed))
            signal: LogSignal = {
                "resource": {"attributes": {}},
                "log": {"body": body, "attributes": {}, "time_unix_nano": 1},
                "source": Source("x"),
            }
            reader.run(signal)
        return time.process_time() - began

    spent(1000)
    small, large = spent(16_000), spent(64_000)
    assert large < 12 * small + 0.5
