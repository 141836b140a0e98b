"""Runs over bundles: each has one result, a second start does what is missing, nothing ends the run."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import tarfile
import time
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tracecore.archive import running
from tracecore.archive.bundles import fingerprint, listed
from tracecore.archive.dataset import Archive, ArchiveError, Result
from tracecore.archive.ray_workers import RayWorkers
from tracecore.archive.running import diagnose_all, diagnose_spread, rediagnose_all
from tracecore.archive.tasks import Diagnose, Failed, Join, ReadPart, TaskLimits, perform
from tracecore.archive.workers import LocalProcesses
from tracecore.diagnose import facts as reading
from tracecore.diagnose.offline import diagnose

INCIDENTS = Path(__file__).resolve().parents[2] / "examples/incidents"
NAMES = ("assert_in_one", "bus_error", "checkpoint_full", "nccl_hang_one_rank_missing")


@pytest.fixture
def bundles(tmp_path: Path) -> list[str]:
    for name in NAMES:
        shutil.copytree(INCIDENTS / name, tmp_path / "bundles" / name)
    return listed([str(tmp_path / "bundles")], each=True)


def documents(archive: Archive) -> dict[str, Any]:
    found = [(stored.bundle, stored.document) for stored in archive.results()]
    assert len(found) == len(dict(found)), "a bundle has two results"
    return dict(found)


def test_local_processes_give_what_diagnose_gives(bundles: list[str], tmp_path: Path) -> None:
    workers = LocalProcesses(2, TaskLimits())
    archive = Archive.create(tmp_path / "archive")
    sunk: list[dict[str, Any]] = []
    try:
        summary = diagnose_all([*bundles, "/nonexistent"], archive, workers, sink=sunk.append)
        assert summary.done == len(NAMES) + 1
        assert [bundle for bundle, _ in summary.errors] == ["/nonexistent"]
        assert "there is no /nonexistent" in summary.errors[0][1]
        expected = {bundle: diagnose([bundle]).document() for bundle in bundles}
        assert documents(archive) == expected | {"/nonexistent": None}
        assert len(sunk) == len(bundles)
        assert sum(summary.causes.values()) + summary.unexplained == summary.incidents
        found = rediagnose_all(archive, workers)
        assert found.incidents == {"same": summary.incidents}
        assert not found.serious
    finally:
        workers.close()


def test_a_second_start_does_what_is_missing(bundles: list[str], tmp_path: Path, inline: Callable[..., Any]) -> None:
    archive = Archive.create(tmp_path / "archive")
    diagnose_all(bundles[:2], archive, inline())
    workers = inline()
    summary = diagnose_all(bundles, archive, workers)
    assert [task.bundle for task in workers.seen] == bundles[2:]
    assert (summary.before, summary.done) == (2, 2)
    assert summary.incidents == sum(len(document["incidents"]) for document in documents(archive).values())
    # A changed bundle, and one that failed, are done again.
    with open(Path(bundles[0]) / "rank0.log", "a") as file:
        file.write("one more line\n")
    shutil.rmtree(bundles[1])
    workers = inline()
    assert diagnose_all(bundles, archive, workers).errors
    assert [task.bundle for task in workers.seen] == bundles[:2]
    workers = inline()
    diagnose_all(bundles, archive, workers)
    assert [task.bundle for task in workers.seen] == [bundles[1]]
    assert set(documents(archive)) == set(bundles)


def test_an_interrupted_run_goes_on(
    bundles: list[str], tmp_path: Path, inline: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A crash between the two files of a batch leaves facts that nobody counts, and the bundles are done again."""
    archive = Archive.create(tmp_path / "archive")
    diagnose_all(bundles[:1], archive, inline())
    written: list[Path] = []

    def write(self: Archive, path: Path, table: Any) -> None:
        if path.parent.name == "bundles":
            raise KeyboardInterrupt
        written.append(path)
        original(self, path, table)

    original = Archive._write
    with monkeypatch.context() as patch:
        patch.setattr(Archive, "_write", write)
        with pytest.raises(KeyboardInterrupt):
            diagnose_all(bundles, archive, inline())
    assert [path.exists() for path in written] == [True]
    assert set(documents(archive)) == {bundles[0]}
    workers = inline()
    diagnose_all(bundles, archive, workers)
    assert [task.bundle for task in workers.seen] == bundles[1:]
    assert documents(archive) == {bundle: diagnose([bundle]).document() for bundle in bundles}
    assert len(list((archive.folder / "facts").iterdir())) == 2


def test_a_bundle_cut_into_parts_gives_the_same(
    tmp_path: Path, inline: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "_CHUNK_FILES", 2)
    limits = TaskLimits(large_files=1, large_bytes=1)
    names = ("nccl_hang_one_rank_missing", "ddp_straggler", "checkpoint_stuck", "denied")
    bundles = [str(INCIDENTS / name) for name in names]
    archive = Archive.create(tmp_path / "archive")
    workers = inline(limits)
    diagnose_all(bundles, archive, workers)
    kinds = [type(task) for task in workers.seen]
    assert kinds.count(ReadPart) > 2 * len(bundles)
    assert kinds.count(Join) >= 3
    expected = {bundle: diagnose([bundle]).document() for bundle in bundles}
    assert documents(archive) == expected
    assert diagnose_spread([bundles[0]], inline(limits), limits).document() == expected[bundles[0]]


def test_a_lost_part_is_an_error_of_its_bundle(tmp_path: Path, inline: Callable[..., Any]) -> None:
    limits = TaskLimits(large_files=1, large_bytes=1)
    many = tmp_path / "many"
    many.mkdir()
    for rank in range(130):
        (many / f"rank{rank}.log").write_text("2026-11-15 10:00:01 step 1 loss 2.0\n")

    class Losing(inline().__class__):  # type: ignore[misc]
        def finished(self) -> Any:
            for key, outcome in super().finished():
                lost = not isinstance(outcome, Result) and key == 3
                yield key, Failed("its process ended") if lost else outcome

    archive = Archive.create(tmp_path / "archive")
    summary = diagnose_all([str(many), str(INCIDENTS / NAMES[0])], archive, Losing(limits))
    assert len(summary.errors) == 1
    assert "its process ended" in summary.errors[0][1]
    assert summary.done == 2


def test_hostile_and_broken_bundles_end_nothing(tmp_path: Path, inline: Callable[..., Any]) -> None:
    bad = tmp_path / "bad"
    bad.mkdir()
    (bad / "cut.tar.gz").write_bytes(b"\x1f\x8b\x08\x00" + b"\0" * 40)
    (bad / "zeros.zip").write_bytes(b"PK\x03\x04" + b"\0" * 100)
    with zipfile.ZipFile(bad / "up.zip", "w") as file:
        file.writestr("../../etc/rank0.log", "step 1\n")
    with tarfile.open(bad / "links.tar", "w") as tar:
        link = tarfile.TarInfo("rank0.log")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        tar.addfile(link)
    (bad / "empty").mkdir()
    os.mkfifo(bad / "pipe")
    bundles = listed([str(bad)], each=True)
    archive = Archive.create(tmp_path / "archive")
    summary = diagnose_all([*bundles, str(INCIDENTS / NAMES[0])], archive, inline())
    assert summary.done == 7
    reasons = dict(summary.nothing_read)
    assert sorted(map(os.path.basename, reasons)) == [
        "cut.tar.gz", "empty", "links.tar", "pipe", "up.zip", "zeros.zip"
    ]  # fmt: skip
    assert reasons[str(bad / "empty")] == "it has no files"
    assert reasons[str(bad / "links.tar")] == "rank0.log: a link or device in an archive"
    assert reasons[str(bad / "pipe")].startswith("a pipe")
    assert summary.incidents == 1
    assert not any("root:" in str(document) for document in documents(archive).values())


# The alarm can strike between the opening of a file and the `with` that would close it; the collector closes it then.
@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_limits_of_a_task_are_outcomes() -> None:
    task = Diagnose(str(INCIDENTS / NAMES[0]), "")
    outcome = perform(task, TaskLimits(seconds=0.001))
    assert isinstance(outcome, Failed)
    assert "took longer than" in outcome.error
    outcome = perform(task, TaskLimits(), version="0.0.0")
    assert isinstance(outcome, Failed)
    assert "install the same version" in outcome.error
    assert isinstance(perform(task, TaskLimits()), Result)


def test_a_task_that_needs_too_much_memory_is_an_error(tmp_path: Path) -> None:
    large = tmp_path / "bundle"
    large.mkdir()
    (large / "exit_codes.json").write_text('{"0": 1}')
    line = "2026-11-15 10:00:01 RuntimeError: {} " + "x" * 900 + "\n"
    (large / "rank0.log").write_text("".join(line.format(n) for n in range(8_000)))
    workers = LocalProcesses(1, TaskLimits(memory=1 << 20))
    try:
        summary = diagnose_all([str(large), str(INCIDENTS / NAMES[0])], Archive.create(tmp_path / "archive"), workers)
    finally:
        workers.close()
    assert summary.done == 2
    assert dict(summary.errors)[str(large)]


def test_one_writer_at_a_time(tmp_path: Path) -> None:
    first, second = Archive.create(tmp_path / "archive"), Archive(tmp_path / "archive")
    with first.writing(), pytest.raises(ArchiveError, match="another process writes"), second.writing():
        pass


@pytest.mark.parametrize("content", [None, b"{}", b"{", b'{"schema": "tracecore/archive/v9"}'])
def test_a_folder_that_is_no_archive_is_refused(content: bytes | None, tmp_path: Path) -> None:
    (tmp_path / "other").write_text("")
    if content is not None:
        (tmp_path / "archive.json").write_bytes(content)
    with pytest.raises(ArchiveError):
        Archive(tmp_path)
    with pytest.raises(ArchiveError):
        Archive.create(tmp_path)
    assert (tmp_path / "other").exists()


def test_a_fingerprint_changes_with_its_files(tmp_path: Path) -> None:
    seen = {fingerprint(str(tmp_path))}
    (tmp_path / "a").write_text("x")
    seen.add(fingerprint(str(tmp_path)))
    (tmp_path / "a").write_text("xy")
    seen.add(fingerprint(str(tmp_path)))
    os.utime(tmp_path / "a", ns=(1, 1))
    seen.add(fingerprint(str(tmp_path)))
    (tmp_path / "a").rename(tmp_path / "b")
    seen.add(fingerprint(str(tmp_path)))
    assert len(seen) == 5
    assert fingerprint(str(tmp_path / "gone")) == ""


def test_names_that_are_no_text_and_secrets_in_them(tmp_path: Path, inline: Callable[..., Any]) -> None:
    odd = os.fsdecode(os.fsencode(tmp_path) + b"/odd-\xff\n-name")
    secret = str(tmp_path / "run?token=hf_Ab3dEf6hIj9kLm2nOp5q")
    for path in (odd, secret):
        shutil.copytree(INCIDENTS / NAMES[0], path)
    archive = Archive.create(tmp_path / "archive")
    assert diagnose_all([odd, secret, "/gone/token=hf_Ab3dEf6hIj9kLm2nOp5q"], archive, inline()).incidents == 2
    again = diagnose_all([odd, secret], archive, inline())
    assert (again.before, again.done) == (2, 0)
    kept = repr([(stored.bundle, stored.error, stored.row, stored.facts) for stored in archive.results()])
    assert "hf_Ab3d" not in kept


def test_a_result_that_cannot_be_written_is_an_error_of_its_bundle(
    bundles: list[str], tmp_path: Path, inline: Callable[..., Any]
) -> None:
    class Spoiling(inline().__class__):  # type: ignore[misc]
        def finished(self) -> Any:
            for key, outcome in super().finished():
                if outcome.bundle == bundles[1]:
                    outcome.row["files"] = 1 << 70
                yield key, outcome

    archive = Archive.create(tmp_path / "archive")
    diagnose_all(bundles, archive, Spoiling(TaskLimits()))
    found = documents(archive)
    assert [bundle for bundle in bundles if found[bundle] is None] == [bundles[1]]


def test_a_damaged_file_of_the_archive_is_one_line(
    bundles: list[str], tmp_path: Path, inline: Callable[..., Any]
) -> None:
    archive = Archive.create(tmp_path / "archive")
    diagnose_all(bundles[:1], archive, inline())
    for path in (*archive.files("facts"), *archive.files("bundles")):
        path.write_bytes(path.read_bytes()[:100])
        with pytest.raises(ArchiveError, match="cannot be read"):
            rediagnose_all(archive, inline())


def test_ray_that_is_not_there_is_said_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        for address in (f"127.0.0.1:{free.getsockname()[1]}", f"ray://127.0.0.1:{free.getsockname()[1]}"):
            with pytest.raises(ArchiveError, match="there is no Ray cluster at"):
                RayWorkers(address, TaskLimits())
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ArchiveError, match="pip install"):
        RayWorkers("local", TaskLimits())


def test_results_are_kept_while_the_next_is_long_in_coming(
    bundles: list[str], tmp_path: Path, inline: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A kill loses the results of the last seconds, however long the bundle that is being read takes."""
    archive = Archive.create(tmp_path / "archive")
    monkeypatch.setattr(running, "BATCH_S", 0.05)
    kept: list[int] = []

    class Slow(type(inline())):  # type: ignore[misc]
        def finished(self) -> Any:
            for number, found in enumerate(super().finished()):
                if number == 3:
                    deadline = time.monotonic() + 30
                    while not archive.newest() and time.monotonic() < deadline:
                        time.sleep(0.01)
                    kept.append(len(archive.newest()))
                yield found

    summary = diagnose_all(bundles, archive, Slow(TaskLimits()))
    assert 0 < kept[0] <= 3
    assert (summary.done, len(documents(archive))) == (4, 4)


def test_the_server_that_forks_does_not_hear_ctrl_c() -> None:
    program = (
        "import signal, time\n"
        "from tracecore.archive.tasks import TaskLimits\n"
        "from tracecore.archive.workers import LocalProcesses\n"
        "from multiprocessing import forkserver\n"
        "workers = LocalProcesses(1, TaskLimits())\n"
        "print(forkserver._forkserver._forkserver_pid, flush=True)\n"
        "time.sleep(60)\n"
    )
    command = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    try:
        assert command.stdout is not None
        os.kill(int(command.stdout.readline()), signal.SIGINT)
        time.sleep(0.5)
    finally:
        command.terminate()
        _, told = command.communicate(timeout=30)
    assert told == b""
