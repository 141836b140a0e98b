"""Logs whose times have no date: the bundle ends when the last of them does, not at some midnight."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tracecore.signals.bundle.discovery import discover

if TYPE_CHECKING:
    from pathlib import Path

DAY = 86_400 * 1_000_000_000


def _clock(hours: int, minutes: int) -> int:
    return (hours * 60 + minutes) * 60 * 1_000_000_000


@pytest.mark.parametrize(
    ("ends", "latest"),
    [
        (["17:19"], (17, 19)),
        (["17:19", "16:58", "17:02"], (17, 19)),
        (["23:58", "00:03", "23:59"], (0, 3)),
        (["00:00"], (0, 0)),
    ],
)
def test_the_end_is_the_last_time_of_the_day(tmp_path: Path, ends: list[str], latest: tuple[int, int]) -> None:
    for rank, end in enumerate(ends):
        (tmp_path / f"rank{rank}.log").write_text(f"[{end}:00] step 1 loss 2.0\n")
    clock = discover([tmp_path]).clock
    assert clock.latest % DAY == _clock(*latest)
    assert not clock.exact


def test_a_date_anywhere_decides(tmp_path: Path) -> None:
    (tmp_path / "rank0.log").write_text("[17:19:00] step 1 loss 2.0\n")
    (tmp_path / "rank1.log").write_text("2026-10-03 17:20:00 step 1 loss 2.0\n")
    clock = discover([tmp_path]).clock
    assert clock.exact
    assert clock.latest % DAY == _clock(17, 20)
