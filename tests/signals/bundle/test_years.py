"""Logs whose times have no year: a complete time decides, else when the file was modified."""

from __future__ import annotations

import io
import os
import tarfile
import zipfile
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pytest

from tracecore.signals.bundle.discovery import discover
from tracecore.signals.stamps import SECOND

if TYPE_CHECKING:
    from pathlib import Path

LINE = b"E%s 11:50:00.5 x.cpp:1] boom\n"


def _seconds(day: str) -> int:
    return int(datetime.fromisoformat(day).replace(tzinfo=UTC).timestamp())


def _year(*paths: Path) -> int:
    return datetime.fromtimestamp(discover(paths).clock.latest // SECOND, UTC).year


def _log(path: Path, day: bytes, modified: str) -> Path:
    path.write_bytes(LINE % day)
    os.utime(path, (_seconds(modified), _seconds(modified)))
    return path


@pytest.mark.parametrize(
    ("day", "modified", "year"),
    [
        (b"1116", "2026-11-16T12:00:00", 2026),
        (b"0601", "2026-11-16T12:00:00", 2026),
        (b"1116", "2026-11-15T23:00:00", 2026),  # written on a machine whose clock is ahead, or of another zone
        (b"1118", "2026-11-16T12:00:00", 2025),
        (b"1231", "2031-01-01T00:10:00", 2030),
        (b"0101", "2030-12-31T23:50:00", 2031),
        (b"0229", "2027-03-01T00:00:00", 2024),
    ],
)
def test_the_year_is_the_latest_before_the_file_was_modified(
    tmp_path: Path, day: bytes, modified: str, year: int
) -> None:
    assert _year(_log(tmp_path / "rank0.log", day, modified)) == year


def test_a_copy_made_later_does_not_decide(tmp_path: Path) -> None:
    _log(tmp_path / "rank0.log", b"0301", "2025-03-01T12:00:00")
    _log(tmp_path / "rank1.log", b"0302", "2026-11-16T12:00:00")
    assert _year(tmp_path) == 2025


def test_a_complete_time_decides(tmp_path: Path) -> None:
    _log(tmp_path / "rank0.log", b"0301", "2026-11-16T12:00:00")
    (tmp_path / "rank1.log").write_text("2023-03-01 11:49:00 step 1 loss 2.0\n")
    assert _year(tmp_path) == 2023


@pytest.mark.parametrize(("modified", "year"), [("2024-03-01T12:00:00", 2024), ("1980-01-01T00:00:00", 2022)])
def test_a_member_of_an_archive_has_its_own_time(tmp_path: Path, modified: str, year: int) -> None:
    data = LINE % b"0301"
    info = tarfile.TarInfo("rank0.log")
    info.size, info.mtime = len(data), _seconds(modified)
    with tarfile.open(tmp_path / "a.tar", "w") as tar:
        tar.addfile(info, io.BytesIO(data))
    moment = datetime.fromisoformat(modified)
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as file:
        file.writestr(zipfile.ZipInfo("rank0.log", moment.timetuple()[:6]), data)
    for name in ("a.tar", "a.zip"):
        os.utime(tmp_path / name, (_seconds("2022-06-01"), _seconds("2022-06-01")))
        assert _year(tmp_path / name) == year


def test_a_member_whose_time_is_none_is_read(tmp_path: Path) -> None:
    data = LINE % b"0301"
    info = zipfile.ZipInfo("rank0.log", (2026, 15, 0, 0, 0, 0))
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as file:
        file.writestr(info, data)
    odd = tarfile.TarInfo("rank0.log")
    odd.size, odd.pax_headers = len(data), {"mtime": "inf"}
    with tarfile.open(tmp_path / "a.tar", "w", format=tarfile.PAX_FORMAT) as tar:
        tar.addfile(odd, io.BytesIO(data))
    for name in ("a.tar", "a.zip"):
        bundle = discover([tmp_path / name])
        assert (len(bundle.streams), bundle.skipped) == (1, [])


def test_a_time_without_a_date_is_of_the_day_the_file_was_modified(tmp_path: Path) -> None:
    log = tmp_path / "rank0.log"
    log.write_text("[23:58:00] step 1 loss 2.0\n")
    os.utime(log, (_seconds("2026-11-16T00:05:00"),) * 2)
    assert discover([log]).clock.latest == _seconds("2026-11-15T23:58:00") * SECOND


def test_a_log_of_most_of_a_year_begins_in_it(tmp_path: Path) -> None:
    from tracecore.diagnose.offline import diagnose

    log = tmp_path / "syslog"
    when = "{} 10:00:0{} node1 kernel: NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus.\n"
    log.write_text(when.format("Jan 12", 1) + "Nov 16 11:00:00 node1 systemd[1]: Started Daily apt activities.\n")
    os.utime(log, (_seconds("2026-11-16T11:00:01"),) * 2)
    (time,) = {fact.time for fact in diagnose([log]).facts if type(fact).__name__ == "Xid"}
    assert datetime.fromtimestamp(time // SECOND, UTC).isoformat() == "2026-01-12T10:00:01+00:00"
