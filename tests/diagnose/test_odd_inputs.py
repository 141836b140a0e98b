"""Archives, encodings and names that nobody made for us."""

from __future__ import annotations

import gzip
import io
import json
import random
import tarfile
from pathlib import Path
from typing import Any

import pytest
import zstandard
from click.testing import CliRunner

from tracecore.cli.main import root
from tracecore.signals.bundle.archive import BundleLimits
from tracecore.signals.bundle.discovery import discover

CRASH = b"""2026-03-01 10:00:00 step 1 loss 2.0
Traceback (most recent call last):
  File "train.py", line 7, in <module>
    main()
ValueError: bad batch
"""


def document(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(CliRunner().invoke(root, ["diagnose", str(path), "-o", "json"]).stdout)
    return found


def tar(members: dict[str, bytes]) -> bytes:
    whole = io.BytesIO()
    with tarfile.open(fileobj=whole, mode="w") as archive:
        for name, data in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return whole.getvalue()


def test_a_zstd_file_that_was_cut_is_read_in_part_and_said(tmp_path: Path) -> None:
    noise = random.Random(7).randbytes(300_000).hex().encode() + b"\n"
    whole = zstandard.ZstdCompressor().compress(CRASH + noise * 2)
    (tmp_path / "rank0.log.zst").write_bytes(whole[:-50_000])
    found = document(tmp_path)
    assert found["status"] == "incident"
    (skipped,) = found["coverage"]["skipped"]
    assert skipped["reason"].startswith("read in part")


def test_several_zstd_frames_are_one_file(tmp_path: Path) -> None:
    one = zstandard.ZstdCompressor()
    (tmp_path / "rank0.log.zst").write_bytes(one.compress(CRASH[:60]) + one.compress(CRASH[60:]))
    found = document(tmp_path)
    assert found["status"] == "incident"
    assert found["coverage"]["skipped"] == []
    assert found["coverage"]["bytes_read"] == len(CRASH)


def test_the_member_in_which_a_tar_was_cut_is_read_as_far_as_it_goes(tmp_path: Path) -> None:
    (tmp_path / "bundle.tar").write_bytes(tar({"rank0.log": CRASH + b"later\n" * 10_000})[:3000])
    found = document(tmp_path)
    assert found["status"] == "incident"
    assert any(item["reason"].startswith("read in part") for item in found["coverage"]["skipped"])


def test_logs_without_times_that_are_packed_twice_are_read(tmp_path: Path) -> None:
    quiet = CRASH.partition(b"\n")[2]
    packed = {f"rank{n}.log.gz": gzip.compress(b"line\n" * 400_000 + (quiet if n == 1 else b"")) for n in range(3)}
    (tmp_path / "bundle.tar").write_bytes(tar(packed))
    found = document(tmp_path)
    assert found["status"] == "incident"
    assert found["coverage"]["skipped"] == []


def test_many_small_bombs_are_refused_together_and_hide_nothing(tmp_path: Path) -> None:
    bomb = gzip.compress(b"step 1 loss 2.0\n" * 20_000)
    packed = {**{f"b{number}.log.gz": bomb for number in range(40)}, "rank0.log": CRASH}
    (tmp_path / "bundle.tar").write_bytes(tar(packed))
    bundle = discover([tmp_path], BundleLimits(ratio=2, ratio_from=1 << 20))
    assert any(stream.path.endswith("rank0.log") for stream in bundle.streams)
    assert len(bundle.streams) < 20
    assert all("together" in skipped.reason for skipped in bundle.skipped)
    assert len(bundle.skipped) > 20


@pytest.mark.parametrize("content", [b"\n" * 1000, b" \t\r\n" * 50, b"\0" * 4096])
def test_blanks_are_nothing_read(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "rank0.log").write_bytes(content)
    assert document(tmp_path)["status"] == "nothing_read"


@pytest.mark.parametrize("form", ["text", "json", "html"])
def test_nothing_that_is_read_moves_a_cursor_or_turns_text_around(form: str, tmp_path: Path) -> None:
    evil = "\x1b]0;x\x07\x1b[2J\x9b31m\u202egol\u2066\x08\x7f"
    log = tmp_path / "\x1b[31mrank0\n.log"
    log.write_bytes(CRASH.replace(b"bad batch", f"bad {evil} batch".encode()))
    (tmp_path / "\u202ex.bin").write_bytes(random.Random(7).randbytes(500))
    shown = CliRunner().invoke(root, ["diagnose", str(tmp_path), "-o", form]).stdout
    assert "bad" in shown
    for character in ("\x1b", "\x07", "\x08", "\x9b", "\x7f", "\u202e", "\u2066"):
        assert character not in shown
