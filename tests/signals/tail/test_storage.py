"""What is stored survives kills, full disks and rubbish."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tracecore.signals.storage.file_storage import Compaction, FileStorage, FileStorageConfig
from tracecore.signals.storage.journal import Corrupt, Journal, JournalError


def storage(directory: Path, said: list[str] | None = None, **options: Any) -> FileStorage:
    made = FileStorage(
        FileStorageConfig(directory=str(directory), **options), (said if said is not None else []).append
    )
    made.start()
    return made


def test_what_was_set_is_there_after_a_restart(tmp_path: Path) -> None:
    first = storage(tmp_path)
    client = first.client("receiver_filelog/container")
    client.update({"a": b"1", "b": b"2"})
    client.set("a", b"3")
    client.delete("b")
    first.stop()
    again = storage(tmp_path).client("receiver_filelog/container")
    assert dict(again.items()) == {"a": b"3"}
    assert again.get("b") is None


def test_components_do_not_see_each_other_and_names_stay_inside_the_directory(tmp_path: Path) -> None:
    made = storage(tmp_path / "s", create_directory=True)
    made.client("receiver_filelog/a").set("k", b"a")
    made.client("../../outside").set("k", b"b")
    assert made.client("receiver_filelog/a").get("k") == b"a"
    assert {path.parent for path in tmp_path.rglob("*") if path.is_file()} == {tmp_path / "s"}


def test_only_the_owner_can_read_it(tmp_path: Path) -> None:
    made = storage(tmp_path)
    made.client("x").set("k", b"v")
    made.client("x").compact()
    assert {path.name for path in tmp_path.iterdir()} == {"x", "x-wal", ".x.reserve"}
    assert {stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()} == {0o600}


def test_a_missing_directory_is_made_only_where_asked_for(tmp_path: Path) -> None:
    with pytest.raises(JournalError, match="create_directory"):
        storage(tmp_path / "no")
    storage(tmp_path / "yes" / "deep", create_directory=True)
    assert stat.S_IMODE((tmp_path / "yes" / "deep").stat().st_mode) == 0o750


def test_the_configuration_names_its_mistakes(tmp_path: Path) -> None:
    wrong = FileStorageConfig(directory=str(tmp_path / "no"), directory_permissions="rwx")
    assert [path for path, _ in wrong.check()] == [("directory_permissions",), ("directory",)]
    assert not list(FileStorageConfig(directory=str(tmp_path)).check())


@pytest.mark.parametrize("damage", ["flip", "garbage", "lengths", "version"])
def test_what_cannot_be_trusted_is_set_aside_and_reported(tmp_path: Path, damage: str) -> None:
    first = storage(tmp_path)
    for n in range(20):
        first.client("x").set(f"k{n}", b"v" * n)
    first.stop()
    path = tmp_path / "x"
    data = bytearray(path.read_bytes())
    if damage == "flip":
        data[data.rindex(b"v" * 19) + 5] ^= 0x20
    elif damage == "garbage":
        data = bytearray(random.Random(7).randbytes(500))
    elif damage == "lengths":
        data[103:105] = b"\xff\xff"  # cells of the first page
    else:
        data = bytearray(bytes(data).replace(b"format 3", b"format 9", 1))
    path.write_bytes(data)
    said: list[str] = []
    made = storage(tmp_path, said)
    client = made.client("x")
    assert dict(client.items()) == {}
    assert (tmp_path / "x.corrupt-1").read_bytes()[100:] == data[100:]  # behind SQLite's counters
    assert made.set_aside == [tmp_path / "x.corrupt-1"]
    assert "cannot be trusted" in said[0]
    client.set("k", b"new")
    assert client.get("k") == b"new"


@settings(deadline=None)
@given(st.integers(0, 40_000))
def test_a_change_that_was_cut_off_never_happened(tmp_path_factory: pytest.TempPathFactory, cut: int) -> None:
    """A copy of the files at any instant, with the end of the log missing, has the state after some change."""
    place = tmp_path_factory.mktemp("cut")
    journal = Journal(place / "x")
    states: list[dict[str, bytes]] = [{}]
    for n in range(12):
        journal.update({f"k{n % 4}": b"%d" % n, "other": b"x" * n, f"k{(n + 1) % 4}": None})
        states.append(dict(journal.items()))
    shutil.copy(place / "x", place / "y")
    log = (place / "x-wal").read_bytes()
    (place / "y-wal").write_bytes(log[: max(len(log) - cut, 0)])
    journal.close()
    again = Journal(place / "y")
    found = dict(again.items())
    assert found in states
    assert cut or found == states[-1]
    again.set("after", b"1")
    again.close()
    assert Journal(place / "y").get("after") == b"1"


def test_a_flipped_bit_is_never_taken_for_a_value(tmp_path: Path) -> None:
    path = tmp_path / "x"
    journal = Journal(path)
    journal.update({"key": b"value"})
    journal.close()
    data = path.read_bytes()
    used = [at for at, byte in enumerate(data) if byte]
    for at in used:
        path.write_bytes(data[:at] + bytes((data[at] ^ 1,)) + data[at + 1 :])
        with contextlib.suppress(Corrupt):
            journal = Journal(path)
            found = dict(journal.items())
            journal.close()
            assert found in ({}, {"key": b"value"}), at
        path.with_name("x-wal").unlink(missing_ok=True)
    assert len(used) > 50


def test_a_full_disk_changes_nothing(tmp_path: Path) -> None:
    script = f"""
import resource, signal, sys
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (65536, 65536))
from pathlib import Path
from tracecore.signals.storage.journal import Journal, JournalError
journal = Journal(Path({str(tmp_path / "x")!r}))
journal.set("k", b"old")
try:
    journal.set("k", b"n" * 80_000)
except JournalError:
    print(journal.get("k"))
journal.set("small", b"fits")
"""
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "b'old'"
    assert dict(Journal(tmp_path / "x").items()) == {"k": b"old", "small": b"fits"}


def test_a_change_stands_although_the_file_cannot_be_made_shorter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = Journal(tmp_path / "x")

    def full() -> None:
        raise JournalError("no room")

    monkeypatch.setattr(journal, "compact", full)
    journal.update({"k": bytes(4 << 20), "other": b"1"})
    journal.delete("k")
    assert journal.failed_compactions
    journal.close()
    assert dict(Journal(tmp_path / "x").items()) == {"other": b"1"}


def test_an_empty_file_becomes_short_where_it_is(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "x")
    journal.set("k", b"v" * (2 << 20))
    inode = os.stat(tmp_path / "x").st_ino
    journal.delete("k")
    assert (os.stat(tmp_path / "x").st_size, os.stat(tmp_path / "x").st_ino) == (journal.size, inode)
    assert journal.size < 1 << 15


def test_on_a_full_disk_what_was_done_can_still_be_noted(tmp_path: Path) -> None:
    script = f"""
from pathlib import Path
from tracecore.signals.storage.journal import Journal, JournalError
place = Path({str(tmp_path)!r})
journal = Journal(place / "x")
for n in range(5):
    journal.set(f"batch/{{n}}", bytes(100_000))
with (place / "ballast").open("wb", 0) as file:
    try:
        while True:
            file.write(bytes(4096))
    except OSError:
        pass
try:
    for n in range(5, 100):
        journal.set(f"batch/{{n}}", bytes(100_000))
except JournalError:
    print("refused")
for n in range(1000):
    journal.set("position", str(n).encode())
for name, _ in list(journal.items("batch/")):
    journal.delete(name)
journal.close()
print(dict(Journal(place / "x").items()))
"""
    mounted = f'mount -t tmpfs -o size=8m x "{tmp_path}" && exec "$0" -c "$1"'
    command = ["unshare", "--map-root-user", "--mount", "sh", "-c", mounted, sys.executable, script]
    try:
        run = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        pytest.skip("no unshare here: no small file system can be mounted")
    if "mount" in run.stderr or "unshare" in run.stderr:
        pytest.skip(f"no small file system can be mounted: {run.stderr.strip()}")
    assert run.stdout.split("\n")[:2] == ["refused", "{'position': b'999'}"], run.stderr


def test_the_file_stays_small(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "x")
    for n in range(3000):
        journal.set("k", b"%04d" % n * 1000)
    assert journal.size < 3 << 20
    assert journal.get("k") == b"2999" * 1000


def test_it_is_made_shorter_at_the_start_and_after_a_rebound(tmp_path: Path) -> None:
    large = bytes(900_000)  # less than what is given back by itself
    first = storage(tmp_path)
    first.client("x").update({"k": large, "small": b"1"})
    first.client("x").delete("k")
    first.stop()
    assert (tmp_path / "x").stat().st_size > len(large)
    second = storage(tmp_path, compaction=Compaction(on_start=True))
    assert second.client("x").get("small") == b"1"
    assert (tmp_path / "x").stat().st_size < len(large) / 10
    second.stop()
    third = storage(
        tmp_path,
        compaction=Compaction(on_rebound=True, rebound_needed_threshold_mib=0, rebound_trigger_threshold_mib=1),
    )
    third.client("x").set("k", large)
    third.client("x").delete("k")
    third.tick()
    assert (tmp_path / "x").stat().st_size < len(large) / 10
    assert third.client("x").get("small") == b"1"


def test_two_processes_do_not_share_a_file(tmp_path: Path) -> None:
    first = storage(tmp_path)
    first.client("x")
    second = storage(tmp_path, timeout=20_000_000)
    with pytest.raises(JournalError, match="another process"):
        second.client("x")
    first.stop()
    second.client("x").set("k", b"v")


def test_a_kill_at_any_instant_loses_at_most_what_was_not_finished(tmp_path: Path) -> None:
    script = f"""
from pathlib import Path
from tracecore.signals.storage.journal import Journal
journal = Journal(Path({str(tmp_path / "x")!r}))
n = 0
while True:
    n += 1
    journal.update({{"a": b"%d" % n, "b": b"%d" % n * 200}})
    print(n, flush=True)
"""
    last = 0
    for seed in range(4):
        with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            process.stdout.readline()
            time.sleep(0.05 * (seed + 1))
            process.send_signal(signal.SIGKILL)
            said = process.stdout.read().splitlines()
        journal = Journal(tmp_path / "x")
        found = int(journal.get("a") or b"0")
        assert journal.get("b") == b"%d" % found * 200
        whole = [int(line) for line in said[:-1]]
        assert found >= (whole[-1] if whole else 0)
        last = max(last, found)
        journal.close()
    assert last > 10
