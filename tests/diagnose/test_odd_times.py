"""Times that cannot be, and times across days."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tracecore.diagnose.offline import diagnose
from tracecore.incidents.text import report

CRASH = """Traceback (most recent call last):
  File "train.py", line 7, in <module>
    main()
ValueError: bad batch
"""


@pytest.fixture(autouse=True)
def _utc(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


def steps(first: int, last: int) -> str:
    return "".join(f"2026-03-01 10:00:{n % 60:02d} step {n} loss 2.0\n" for n in range(first, last))


@pytest.mark.parametrize("places", ["begin", "middle", "end", "everywhere"])
@pytest.mark.parametrize(
    "odd",
    [
        "1970-01-01 00:00:01 clock not set",
        "0001-01-01 00:00:00 nobody set this",
        "9999-12-31 23:59:59 never",
        "2099-12-31 23:59:59 the certificate ends",
        "2014-06-01 00:00:00 taken from the cache",
    ],
)
def test_a_time_that_cannot_be_hides_no_exception(odd: str, places: str, tmp_path: Path) -> None:
    at = {name: f"{odd}\n" if places in (name, "everywhere") else "" for name in ("begin", "middle", "end")}
    text = at["begin"] + steps(1, 25) + at["middle"] + steps(25, 50) + CRASH + at["end"]
    (tmp_path / "rank0.log").write_text(text)
    found = diagnose([tmp_path])
    assert "ValueError: bad batch" in found.incidents[0].headline
    shown = report(found)
    assert "No progress" not in shown
    assert "2026-03-01" in shown


def test_a_kubernetes_event_of_the_year_one_is_no_end_of_time(tmp_path: Path) -> None:
    (tmp_path / "rank0.log").write_text(steps(1, 50) + CRASH)
    (tmp_path / "events.json").write_text(
        '{"apiVersion":"v1","kind":"List","items":[{"apiVersion":"v1","kind":"Event","metadata":{"name":"e",'
        '"namespace":"ml"},"involvedObject":{"kind":"Pod","name":"p","namespace":"ml"},"reason":"BackOff","message":'
        '"Back-off","lastTimestamp":"9999-12-31T23:59:59Z","firstTimestamp":"0001-01-01T00:00:00Z"}]}'
    )
    assert "ValueError: bad batch" in diagnose([tmp_path]).incidents[0].headline


def test_a_log_of_a_clock_that_was_never_set_is_read_in_its_order(tmp_path: Path) -> None:
    (tmp_path / "rank0.log").write_text(steps(1, 50).replace("2026-03-01", "1970-01-01") + CRASH)
    assert "ValueError: bad batch" in diagnose([tmp_path]).incidents[0].headline


def test_a_timeline_across_days_shows_dates(tmp_path: Path) -> None:
    (tmp_path / "rank0.log").write_text(
        "2026-03-01 23:59:58 step 1 loss 2.0\n2026-03-01 23:59:59 step 2 loss 2.0\n"
        "2026-03-02 00:00:04 torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 GiB\n"
    )
    shown = report(diagnose([tmp_path]))
    lines = shown[shown.index("Timeline") :].splitlines()
    assert "  2026-03-01" in lines
    assert "  2026-03-02" in lines
    assert lines.index("  2026-03-01") < lines.index("  2026-03-02")


def test_evidence_and_advice_agree_on_the_line(tmp_path: Path) -> None:
    log = tmp_path / "rank0.log"
    log.write_text(steps(1, 50) + CRASH)
    shown = " ".join(report(diagnose([tmp_path])).split())
    assert f"`{log}`, line 50)" in shown
    assert f"{log}:50 | Traceback" in shown
    long = "".join(f'  File "m{n}.py", line {n}, in f\n    g()\n' for n in range(2000))
    log.write_text(steps(1, 50) + CRASH.replace("  File", f"{long}  File"))
    shown = " ".join(report(diagnose([tmp_path])).split())
    assert f"`{log}`, line 50)" in shown
    assert f"{log}:50 | " in shown
    assert os.fspath(log) in shown
