"""The page of a diagnosis: what stands on it, and that it needs nothing else."""

from __future__ import annotations

import re
import shutil
import subprocess
import time
from html.parser import HTMLParser
from pathlib import Path

import pytest

from tracecore.diagnose.offline import diagnose
from tracecore.incidents.drawings import lanes_of, read_rows, ticks, timeline_picture
from tracecore.incidents.page import page

CRASH = (
    'Traceback (most recent call last):\n  File "train.py", line 7, in <module>\n    main()\nValueError: bad batch\n'
)
NOW = 1_794_800_000_000_000_000


@pytest.fixture
def many(tmp_path: Path) -> Path:
    """256 ranks, one of which raises."""
    said = "2026-03-01 10:21:00 [rank{rank}]: torch.distributed.DistBackendError: NCCL error: remote process exited\n"
    for rank in range(256):
        lines = [
            f"2026-03-01 10:{step:02d}:00 step {step} loss {2 - step / 100:.3f} | iter_time {1 + rank / 1000:.3f}\n"
            for step in range(20)
        ]
        end = CRASH if rank == 200 else said.format(rank=rank)
        (tmp_path / f"rank{rank}.log").write_text("".join(lines) + end)
    return tmp_path


class _Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.attributes: list[tuple[str, str, str]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.attributes += [(tag, name, value or "") for name, value in attrs]
        if tag not in ("meta", "br"):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.attributes += [(tag, name, value or "") for name, value in attrs]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_a_page_is_sound_and_asks_nobody_else(incidents: Path) -> None:
    for scenario in ("nccl_hang_one_rank_missing", "exploding", "healthy", "nccl_rank_exception"):
        reader = _Reader()
        reader.feed(page(diagnose([incidents / scenario])))
        assert reader.open == []
        assert [
            entry for entry in reader.attributes if entry[1] in ("src", "href", "style") or entry[1][:2] == "on"
        ] == []
        assert "script" not in {tag for tag, _, _ in reader.attributes}


def test_code_runbook_version_and_time(incidents: Path) -> None:
    shown = page(diagnose([incidents / "nccl_hang_one_rank_missing"]), NOW)
    assert "<code>py-spy dump --pid PID</code>" in shown
    assert "`" not in re.sub(r"<pre>.*?</pre>|<style>.*?</style>", "", shown, flags=re.DOTALL)
    assert "<code>tracecore patterns show nccl_hang</code>" in shown
    assert "<h3>What to do</h3>" in shown
    assert "Written by tracecore 0.1.0, 2026-11-16 " in shown
    assert "UTC" in shown


def test_ranks_that_say_the_same_share_a_lane_and_the_suspect_has_its_own(many: Path) -> None:
    shown = page(diagnose([many]))
    assert "rank 200</text>" in shown
    assert "ranks 0–199, 201–255</text>" in shown
    assert "+248 more ranks" in shown  # of the charts


def test_evidence_can_be_folded(incidents: Path) -> None:
    shown = page(diagnose([incidents / "elastic_gives_up"]))
    assert '<details class="evidence" open><summary>' in shown
    assert shown.count("<details") == shown.count("</details>")


def test_progress_is_drawn_where_it_is_known(incidents: Path, many: Path) -> None:
    shown = page(diagnose([many]))
    assert "Time of a step (s)" in shown
    assert ">Loss</text>" in shown
    assert '<polyline class="bad"' in shown
    exploding = page(diagnose([incidents / "exploding"]))
    assert "Loss, logarithmic" in exploding


def test_nothing_is_drawn_where_no_progress_is_known(tmp_path: Path) -> None:
    (tmp_path / "rank0.log").write_text(CRASH)
    assert "<polyline" not in page(diagnose([tmp_path]))


@pytest.mark.parametrize("span", [0.0007, 0.04, 0.9, 3, 59, 61, 601, 7000, 90_000, 400_000, 3e6, 4e8])
def test_marks_are_where_people_expect_them(span: float) -> None:
    found = ticks(span)
    assert 1 <= len(found) <= 6
    assert found[0] == (0, "+0")
    for at, label in found:
        assert 0 <= at <= span * 1.0001
        assert re.fullmatch(r"\+(0|[\d.]+ (ms|s|min|h|d)( \d+ (s|min|h))?)", label), label


def test_hostile_text_stays_text(tmp_path: Path) -> None:
    said = CRASH.replace("bad batch", "</code><script>alert(1)</script> `<img src=x onerror=alert(1)>`")
    (tmp_path / "rank0.log").write_text("step 1 loss 2\n" + said)
    reader = _Reader()
    reader.feed(page(diagnose([tmp_path])))
    assert {tag for tag, _, _ in reader.attributes}.isdisjoint({"script", "img"})


@pytest.mark.skipif(shutil.which("chromium") is None, reason="no chromium here")
def test_a_browser_draws_it_on_a_phone(incidents: Path, tmp_path: Path) -> None:
    (tmp_path / "page.html").write_text(page(diagnose([incidents / "nccl_hang_one_rank_missing"]), NOW))
    picture = tmp_path / "page.png"
    command = ["chromium", "--headless", "--no-sandbox", "--disable-gpu", "--window-size=420,2000"]
    command += [f"--screenshot={picture}", f"file://{tmp_path}/page.html"]
    done = subprocess.run(command, capture_output=True, timeout=120, check=False)
    assert done.returncode == 0
    assert picture.stat().st_size > 20_000


def test_thousands_of_ranks_become_a_few_lanes() -> None:
    rows = [
        {"time": "2026-03-01T10:00:00Z", "text": "waits", "role": "symptom", "ranks": [[0, 4099], [4101, 16383]]},
        {"time": "2026-03-01T10:00:01Z", "text": "never came", "role": "cause", "ranks": [[4100, 4100]]},
        {"time": "2026-03-01T10:00:09Z", "text": "Xid 79", "layer": "kernel", "where": "gpu-a", "node": "node-a"},
    ]
    lanes = lanes_of(read_rows(rows))
    assert [(lane.name, lane.members) for lane in lanes] == [
        ("rank 4100", 1),
        ("ranks 0–4099, 4101–16383", 16_383),
        ("gpu-a", 1),
    ]
    assert [lane.name for lane in lanes_of(read_rows(rows), "node")][-1] == "node-a"


def test_a_hostile_timeline_is_drawn_in_bounded_time() -> None:
    runs = [[number, 10**15 - number] for number in range(10_000)] + [["a", None], [5, 1], 7]
    rows = [{"time": f"2026-03-01T10:00:{n % 60:02d}Z", "text": "x", "ranks": runs} for n in range(10_000)]
    began = time.process_time()
    drawn = "".join(timeline_picture(read_rows([*rows, 3, {"time": "never"}])))
    assert "ranks 0–1000000000000000" in drawn
    assert time.process_time() - began < 5
