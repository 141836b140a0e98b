"""Parts of one paste whose clocks are of different zones."""

from __future__ import annotations

from pathlib import Path

import pytest

from tracecore.diagnose.offline import diagnose
from tracecore.signals.bundle import clocks

HOUR = 3600 * 1_000_000_000
WORK = (
    "{0} 19:14:02{1} INFO step 77 loss 2.8\n"
    "{0} 19:14:20{1} ERROR: DataLoader worker (pid 812) is killed by signal: Killed.\n"
)
KILLED = "Out of memory: Killed process 812 (python3) total-vm:412345678kB, anon-rss:201234567kB, file-rss:0kB"


def ahead(kernel: str, zone: str = "", date: str = "2026-03-02") -> float:
    text = WORK.format(date, zone) + kernel
    part = "\n" * WORK.count("\n") + kernel
    return clocks.ahead(text.encode(), part.encode()) / HOUR


@pytest.mark.parametrize(
    ("kernel", "hours"),
    [
        ("[Mon Mar  2 14:14:18 2026] x\n", 5),
        ("[Tue Mar  3 03:14:18 2026] x\n", -8),
        ("[Tue Mar  3 00:44:18 2026] x\n", -5.5),
        ("Mar  2 14:14:18 n1 kernel: x\n", 5),
        ("[Mon Mar  2 19:14:18 2026] x\n", 0),  # one clock
        ("[Mon Mar  2 19:01:18 2026] x\n", 0),  # some minutes before
        ("[Mon Mar  2 14:52:18 2026] x\n", 0),  # no zone is 4 h 22 min away
        ("[Sun Mar  1 14:14:18 2026] x\n", 0),  # another day
        ("no time at all\n", 0),
    ],
)
def test_whole_hours_between_two_clocks_are_a_zone(kernel: str, hours: float) -> None:
    assert ahead(kernel) == hours


def test_times_that_say_their_zones_are_as_they_say() -> None:
    assert ahead("2026-03-02T14:14:18,123456+00:00 x\n", "Z") == 0
    assert ahead("2026-03-02T14:14:18,123456+00:00 x\n") == 5


def test_a_kill_of_another_zone_explains_the_worker_that_died(tmp_path: Path) -> None:
    text = WORK.format("2026-03-02", "") + f"\n$ dmesg -T\n[Mon Mar  2 14:14:18 2026] {KILLED}\n"
    (tmp_path / "issue.txt").write_text(text)
    (incident,) = diagnose([tmp_path]).incidents
    assert incident.root is not None
    assert incident.root.verdict.pattern_name == "host_oom"


def test_the_end_of_the_bundle_is_not_where_the_other_clock_has_it(tmp_path: Path) -> None:
    text = WORK.format("2026-03-02", "") + "\n$ dmesg -T\n[Tue Mar  3 03:14:18 2026] usb 1-1: new device\n"
    (tmp_path / "issue.txt").write_text(text)
    said = diagnose([tmp_path])
    assert "h" not in [word for fact in said.facts for word in fact.describe().split()]
