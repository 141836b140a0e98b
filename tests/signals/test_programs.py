"""Programs are looked for in named directories only."""

from __future__ import annotations

from pathlib import Path

import pytest

from tracecore.actions.supervisor.dumps import py_spy
from tracecore.diagnose.collection import Item, collect
from tracecore.signals import programs


@pytest.mark.parametrize("here", [".", "", "./", "sub/.."])
def test_the_current_directory_is_no_place_for_programs(
    here: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sub").mkdir()
    for name in ("py-spy", "dmesg-of-this-test"):
        (tmp_path / name).write_text(f"#!/bin/sh\ntouch {tmp_path}/ran\necho hello\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", f"{here}:/usr/bin:/bin")
    assert programs.find("py-spy") in (None, "/usr/bin/py-spy")
    assert programs.find("sh") in ("/bin/sh", "/usr/bin/sh")
    found = py_spy()
    assert found is None or Path(found).parent != tmp_path
    item = Item(name="x.txt", what="x", commands=(("dmesg-of-this-test",),))
    (got,) = collect([item], tmp_path / "out.tar.gz")
    assert got.missing == "dmesg-of-this-test is not installed"
    assert not (tmp_path / "ran").exists()
