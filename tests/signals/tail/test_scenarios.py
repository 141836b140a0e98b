"""What a tailer must do, behaviour by behaviour: the checklist of another project's tests, answered one by one."""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tracecore.signals.logs.tail import fingerprint
from tracecore.signals.logs.tail.config import Ordering, Sort
from tracecore.signals.storage.journal import Journal, JournalError

Make = Callable[..., Any]
LONG = "a beginning that is longer than any fingerprint needs to be; " * 20 + "\n"


def append(path: Path, text: str) -> None:
    with path.open("a") as out:
        out.write(text)


def truncate_and_write(path: Path, text: str) -> None:
    os.truncate(path, 0)
    append(path, text)


# Rotation


def test_copy_and_truncate(logs: Path, tail: Make) -> None:
    """TestCopyTruncate"""
    log = logs / "a.log"
    t = tail()
    got: list[str] = []
    for n in range(5):
        for i in range(20):
            append(log, f"generation {n} line {i}\n")
            got += t.bodies() if i % 3 == 0 else []
        (logs / f"a.log.{n}").write_bytes(log.read_bytes())
        got += t.bodies()
        os.truncate(log, 0)
        got += t.bodies()
    assert sorted(got) == sorted(f"generation {n} line {i}" for n in range(5) for i in range(20))


def test_copy_and_truncate_with_lines_unread_in_both(logs: Path, tail: Make) -> None:
    """TestCopyTruncateWriteBoth"""
    log = logs / "a.log"
    log.write_text("first\n")
    t = tail()
    assert t.bodies() == ["first"]
    append(log, "unread\n")
    (logs / "a.log.1").write_bytes(log.read_bytes())
    truncate_and_write(log, "new\n")
    assert sorted(t.bodies(2)) == ["new", "unread"]


def test_move_and_create(logs: Path, tail: Make) -> None:
    """TestMoveCreate, TestMoveFile, TestTrackMovedAwayFiles"""
    log = logs / "a.log"
    t = tail()
    got: list[str] = []
    for n in range(6):
        append(log, f"{n} early\n")
        got += t.bodies() if n % 2 else []
        append(log, f"{n} late\n")
        log.rename(logs / f"a.log.{n}")
        got += t.bodies() if n % 3 else []
    assert sorted(got + t.bodies(2)) == sorted(f"{n} {when}" for n in range(6) for when in ("early", "late"))


def test_lines_of_the_rotated_file_come_before_those_of_the_new_one(logs: Path, tail: Make, tmp_path: Path) -> None:
    """TestTrackRotatedFilesLogOrder"""
    log = logs / "a.log"
    log.write_text("one\n")
    t = tail()
    assert t.bodies() == ["one"]
    append(log, "two\n")
    log.rename(tmp_path / "moved")
    log.write_text("three\n")
    assert t.bodies() == ["two", "three"]


def test_a_file_moved_out_of_sight_is_read_to_its_end(logs: Path, tail: Make, tmp_path: Path) -> None:
    """TestRotatedOutOfPatternMoveCreate; and what is written to it after the move"""
    log = logs / "a.log"
    log.write_text("one\n")
    t = tail()
    t.records()
    moved = tmp_path / "moved"
    log.rename(moved)
    append(moved, "two\n")
    log.write_text("new\n")
    assert t.bodies() == ["two", "new"]
    t.wait(3)
    append(moved, "three, by a writer that has not noticed\n")
    assert t.bodies() == ["three, by a writer that has not noticed"]
    t.wait(60)
    t.records()
    assert t.log.open_files == 1


def test_a_copy_out_of_sight_is_not_read_through_the_old_handle(logs: Path, tail: Make, tmp_path: Path) -> None:
    """TestRotatedOutOfPatternCopyTruncate"""
    log = logs / "a.log"
    log.write_text("one\ntwo\n")
    t = tail()
    t.records()
    (tmp_path / "copy").write_bytes(log.read_bytes())
    truncate_and_write(log, "three\n")
    assert t.bodies(3) == ["three"]


def test_what_is_written_after_a_truncation_is_read(logs: Path, tail: Make) -> None:
    """TestTruncateThenWrite"""
    log = logs / "a.log"
    log.write_text("one\ntwo\n")
    t = tail()
    t.records()
    truncate_and_write(log, "three\n")
    assert t.bodies() == ["three"]
    truncate_and_write(log, "a line that makes it longer than it was\n")
    assert t.bodies() == ["a line that makes it longer than it was"]


def test_a_large_file_that_moved_while_nobody_read(logs: Path, tail: Make, tmp_path: Path) -> None:
    """TestFileMovedWhileOff_BigFiles"""
    log = logs / "a.log"
    log.write_text(LONG + "one\n")
    store = Journal(tmp_path / "store")
    first = tail(store=store)
    assert len(first.bodies()) == 2
    first.log.close()
    append(log, "two\n")
    log.rename(logs / "b.log")
    assert tail(store=store).bodies() == ["two"]


@pytest.mark.parametrize(("choice", "want"), [("read_whole_file", ["a", "b"]), ("read_new", []), ("ignore", [])])
def test_a_file_that_became_shorter_and_begins_as_before(logs: Path, tail: Make, choice: str, want: list[str]) -> None:
    """TestOnTruncateReadWholeFile, TestOnTruncateReadNew, TestOnTruncateIgnore"""
    log = logs / "a.log"
    log.write_text(LONG + "a\nb\nc\nd\n")
    t = tail(on_truncate=choice)
    t.records()
    os.truncate(log, len(LONG) + 4)
    assert t.bodies()[1:] == want
    append(log, "e\n")
    assert t.bodies() == ([] if choice == "ignore" else ["e"])
    append(log, "ffffff\n")
    assert t.bodies()[-1:] == (["ffff"] if choice == "ignore" else ["ffffff"])


# Reading


def test_defaults(logs: Path, tail: Make) -> None:
    """TestDefaultBehaviors, TestStartAtEnd, TestStartAtEndNewFile, TestReadNewLogs"""
    (logs / "a.log").write_text("old\n")
    t = tail(start_at="end")
    assert t.bodies() == []
    append(logs / "a.log", "  new \t\nlast")
    (logs / "b.log").write_text("another\n")
    found = t.records()
    assert [(r["body"], r["attributes"]) for _, r in found] == [
        ("new", {"log.file.name": "a.log"}),
        ("another", {"log.file.name": "b.log"}),
    ]
    t.records()
    t.wait(1)
    assert t.bodies() == ["last"]


def test_existing_and_new_lines(logs: Path, tail: Make) -> None:
    """TestReadExistingLogs, TestReadExistingAndNewLogs, TestManyLogsDelivered"""
    (logs / "a.log").write_text("".join(f"{n}\n" for n in range(20_000)))
    t = tail()
    assert t.bodies() == [str(n) for n in range(20_000)]
    append(logs / "a.log", "new\n")
    assert t.bodies() == ["new"]


@pytest.mark.parametrize("size", [8, 64])
def test_bytes_as_they_are(logs: Path, tail: Make, size: int) -> None:
    """TestReadUsingNopEncoding, TestNopEncodingDifferentLogSizes"""
    data = b" \x00\xff 1\n2\r\n" + bytes(range(100))
    (logs / "a.bin").write_bytes(data)
    found = tail(encoding="nop", max_log_size=size).bodies()
    assert b"".join(found) == data
    assert max(map(len, found)) <= size


def test_a_link_that_goes_elsewhere_again_and_again(logs: Path, tail: Make, tmp_path: Path) -> None:
    """TestSymlinkedFiles"""
    t = tail(include=(str(logs / "link.log"),))
    got = []
    for n in range(8):
        (tmp_path / f"{n}").write_text("".join(f"{n} {i}\n" for i in range(10)))
        (logs / "new").symlink_to(tmp_path / f"{n}")
        (logs / "new").rename(logs / "link.log")
        got += t.bodies()
    assert got == [f"{n} {i}" for n in range(8) for i in range(10)]


def test_a_last_line_without_an_end(logs: Path, tail: Make) -> None:
    """TestNoNewline, TestSplitWrite, TestFlushPeriodEOF, TestUntermintedLogEntryGrows"""
    log = logs / "a.log"
    log.write_text("one\ntw")
    t = tail()
    assert t.bodies(2) == ["one"]
    append(log, "o")
    assert t.bodies(2) == []
    t.wait(0.3)
    append(log, " and a half")
    assert t.bodies(2) == []
    t.wait(0.6)
    assert t.bodies() == ["two and a half"]
    append(log, "\nthree\n")
    assert t.bodies() == ["three"]


def test_a_last_line_that_never_ends_stays_when_asked_to(logs: Path, tail: Make) -> None:
    """force_flush_period: 0"""
    (logs / "a.log").write_text("one\ntwo")
    t = tail(force_flush_period=0)
    assert t.bodies() == ["one"]
    t.wait(5)
    assert t.bodies(3) == []


def test_empty_lines_and_files(logs: Path, tail: Make) -> None:
    """TestEmptyLine, TestMultipleEmpty, TestLeadingEmpty, TestIgnoreEmptyFiles"""
    (logs / "a.log").write_text("\n\n\none\n\n\n  \ntwo\n\n")
    (logs / "empty").write_text("")
    t = tail()
    assert t.bodies() == ["one", "two"]
    assert t.bodies(2) == []
    append(logs / "empty", "no longer\n")
    assert t.bodies() == ["no longer"]


def test_long_lines(logs: Path, tail: Make) -> None:
    """TestDecodeBufferIsResized, TestUntermintedLongLogEntry"""
    (logs / "a.log").write_text("x" * 3_000_000 + "\n" + "y" * 100 + "\n")
    t = tail()
    assert [len(body) for body in t.bodies()] == [1 << 20, 1 << 20, 3_000_000 - (2 << 20), 100]
    append(logs / "a.log", "z" * 1_500_000)
    assert [len(body) for body in t.bodies()] == [1 << 20]
    t.records()
    t.wait(1)
    assert [len(body) for body in t.bodies()] == [1_500_000 - (1 << 20)]


def test_long_lines_cut_off(logs: Path, tail: Make) -> None:
    """max_log_size_behavior: truncate"""
    (logs / "a.log").write_text("x" * 3_000_000 + "\nshort\n" + "y" * 5000 + "\nend\n")
    t = tail(max_log_size=1000, max_log_size_behavior="truncate")
    assert t.bodies() == ["x" * 1000, "short", "y" * 1000, "end"]
    assert t.log.counters.lines_capped == 2
    assert t.log.counters.bytes_dropped >= 3_000_000 + 5000 - 2000


def test_many_files(logs: Path, tail: Make) -> None:
    """TestMultiFileSimple, TestMultiFileParallel_*, TestFileBatching, TestMaxConcurrentFilesOne"""
    for most in (1, 10, 1024):
        for n in range(30):
            (logs / f"{most}-{n}.log").write_text(f"{most} {n} one\n")
        t = tail(max_concurrent_files=most, include=(str(logs / f"{most}-*"),))
        got = t.bodies()
        for n in range(30):
            append(logs / f"{most}-{n}.log", f"{most} {n} two\n")
        got += t.bodies()
        assert sorted(got) == sorted(f"{most} {n} {word}" for n in range(30) for word in ("one", "two"))
        assert t.log.open_files <= max(most // 2, 1)


def test_no_more_files_than_batches_allow(logs: Path, tail: Make) -> None:
    """TestMaxBatching, TestFileBatchingRespectsStartAtEnd"""
    for n in range(10):
        (logs / f"{n}.log").write_text(f"{n}\n")
    assert tail(max_concurrent_files=4, max_batches=2).bodies() == ["0", "1", "2", "3"]
    assert tail(max_concurrent_files=4, start_at="end").bodies() == []


def sorted_by(kind: str, **options: Any) -> Sort:
    return Sort(sort_type=kind, regex_key="key", **options)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("sort", "want"),
    [
        (sorted_by("numeric"), ["10", "9", "2"]),
        (sorted_by("numeric", ascending=True), ["2", "9", "10"]),
        (sorted_by("alphabetical"), ["9", "2", "10"]),
        (sorted_by("timestamp", layout="%d", ascending=True), ["02", "10", "11"]),
    ],
)
def test_files_in_order(logs: Path, tail: Make, sort: Sort, want: list[str]) -> None:
    """TestMultiFileSort, TestMultiFileSortTimestamp, TestTopNZeroNoDuplication"""
    for name in want:
        (logs / f"err.{name}.log").write_text(f"{name}\n")
    (logs / "other.log").write_text("does not match\n")
    order = Ordering(regex=r"err\.(?P<key>\d+)\.log", sort_by=(sort,), top_n=0)
    t = tail(ordering_criteria=order)
    assert t.bodies() == want
    assert t.bodies(5) == []
    only = Ordering(regex=r"err\.(?P<key>\d+)\.log", sort_by=(sort,))
    assert tail(ordering_criteria=only).bodies() == want[:1]


@pytest.mark.parametrize(
    ("encoding", "text"),
    [
        ("utf-8", "naïve ✓"),
        ("utf-16le", "naïve ✓"),
        ("utf-16be", "模型"),
        ("latin1", "naïve"),
        ("gbk", "模型"),
        ("ascii", "x"),
    ],
)
def test_encodings(logs: Path, tail: Make, encoding: str, text: str) -> None:
    """TestEncodings"""
    (logs / "a.log").write_bytes(f"{text}\r\n{text} 2\n".encode(encoding))
    assert tail(encoding=encoding).bodies() == [text, f"{text} 2"]


def test_bytes_that_are_no_text_become_a_sign_that_they_were_there(logs: Path, tail: Make) -> None:
    (logs / "a.log").write_bytes(b"good\nbad \xff\xfe\n")
    t = tail()
    assert t.bodies() == ["good", "bad \ufffd\ufffd"]


def test_files_are_deleted_when_read_and_delivered(logs: Path, tail: Make) -> None:
    """TestDeleteAfterRead, TestDeleteAfterRead_SkipPartials"""
    log = logs / "a.log"
    log.write_text("one\nlast without end")
    t = tail(delete_after_read=True)
    assert t.bodies() == ["one", "last without end"]
    t.records()
    assert not log.exists()


def test_what_is_not_delivered_is_not_deleted(logs: Path, tail: Make) -> None:
    (logs / "a.log").write_text("one\n")
    t = tail(delete_after_read=True)
    t.delivers = False
    t.records()
    t.records()
    assert (logs / "a.log").exists()
    t.log.delivered(t.batches[0])
    t.records()
    assert not (logs / "a.log").exists()


def test_a_file_that_began_as_another_did(logs: Path, tail: Make) -> None:
    """TestStalePartialFingerprintDiscarded, TestDelayedDisambiguation, TestNoLostPartial"""
    (logs / "a.log").write_text("same\n")
    t = tail()
    assert t.bodies() == ["same"]
    (logs / "b.log").write_text("same\n")
    assert t.bodies() == []  # it may be a copy
    append(logs / "b.log", "and now another\n")
    assert t.bodies(2) == ["same", "and now another"]
    append(logs / "a.log", "a goes on\n")
    assert t.bodies(2) == ["a goes on"]
    (logs / "a.log").unlink()
    (logs / "b.log").unlink()
    t.wait(60)
    t.bodies(6)
    (logs / "c.log").write_text("same\nbut much later\n")
    assert t.bodies() == ["same", "but much later"]


def test_files_that_come_at_once_are_no_copies_of_each_other(logs: Path, tail: Make) -> None:
    for name in ("a", "b"):
        (logs / f"{name}.log").write_text("same\n")
    (logs / "link.log").symlink_to(logs / "a.log")
    t = tail(include=(str(logs / "*.log"), str(logs / "*/*.log")))
    assert t.bodies(2) == ["same", "same"]
    for name in ("c", "d"):
        (logs / name).mkdir()
        (logs / name / "x.log").write_text("pods that start alike\n")
    assert t.bodies(2) == ["pods that start alike"] * 2
    append(logs / "a.log", "more\n")
    append(logs / "d" / "x.log", "more of it\n")
    assert t.bodies(2) == ["more", "more of it"]


def test_files_with_the_same_first_kilobyte_are_both_read(logs: Path, tail: Make) -> None:
    """Two ranks print the same banner: unlike the Collector we look further."""
    for rank in (0, 1):
        (logs / f"rank{rank}.log").write_text(LONG + f"rank {rank} begins\n")
    t = tail()
    assert sorted(t.bodies()) == sorted([LONG.strip()] * 2 + ["rank 0 begins", "rank 1 begins"])
    for n in range(3):
        for rank in (0, 1):
            append(logs / f"rank{rank}.log", f"{rank} step {n}\n")
        assert sorted(t.bodies()) == [f"0 step {n}", f"1 step {n}"]


def test_files_with_the_same_first_megabytes_are_told_apart_by_their_end(logs: Path, tail: Make) -> None:
    same = "".join(f"step {n} of a run that prints the same everywhere\n" for n in range(40_000))
    for rank in (0, 1):
        (logs / f"rank{rank}.log").write_text(same + f"rank {rank} ends\n")
    t = tail()
    found = t.bodies(2)
    assert len(found) == 80_002
    assert {"rank 0 ends", "rank 1 ends"} <= set(found)
    (logs / "rank0.log.1").write_text(same)  # a copy that is made to truncate it
    assert t.bodies(2) == []
    (logs / "rank2.log").write_text(same + "rank 2 ends\n")
    assert len(t.bodies(2)) == 40_001


# Restarts


def test_after_a_restart_reading_goes_on(logs: Path, tail: Make, tmp_path: Path) -> None:
    """TestRestartOffsets, TestArchive, TestLoadNothing"""
    store = Journal(tmp_path / "store")
    log = logs / "a.log"
    got = []
    for n in range(5):
        t = tail(store=store, start_at="end" if n else "beginning")
        append(log, f"{n} one\n{n} two\n")
        got += t.bodies(2)
        t.log.close()
        append(log, f"{n} while away\n")
    got += tail(store=store, start_at="end").bodies()
    assert got == [f"{n} {what}" for n in range(5) for what in ("one", "two", "while away")]


def test_many_short_files_are_all_known_after_a_restart(logs: Path, tail: Make, tmp_path: Path) -> None:
    """TestFileBatching, over a restart: more files than may be open, each shorter than a fingerprint"""
    store = Journal(tmp_path / "store")
    for n in range(40):
        (logs / f"{n}.log").write_text(f"{n} short\n")
    first = tail(store=store, max_concurrent_files=4)
    assert len(first.bodies(2)) == 40
    first.log.close()
    for n in range(40):
        append(logs / f"{n}.log", "new\n")
    assert tail(store=store, max_concurrent_files=4).bodies(3) == ["new"] * 40


def test_what_did_not_arrive_is_read_again_and_nothing_else(logs: Path, tail: Make, tmp_path: Path) -> None:
    store = Journal(tmp_path / "store")
    (logs / "a.log").write_text("one\n")
    t = tail(store=store)
    t.delivers = False
    t.records()
    append(logs / "a.log", "two\n")
    t.records()
    append(logs / "a.log", "three\n")
    t.records()
    one, _, three = t.batches
    t.log.delivered(three)
    t.log.delivered(one)
    t.records()
    t.log.close()
    append(logs / "a.log", "four\n")
    again = tail(store=store)
    assert again.bodies(2) == ["two", "four"]
    assert tail(store=store).bodies() == []


def test_another_beginning_than_the_stored_one_is_another_file(logs: Path, tail: Make, tmp_path: Path) -> None:
    """TestCopyTruncateResetsOffsetOnRestart_IdenticalFirstKB, with a beginning that differs"""
    store = Journal(tmp_path / "store")
    (logs / "a.log").write_text("one\ntwo\n")
    t = tail(store=store)
    t.bodies(2)
    t.log.close()
    truncate_and_write(logs / "a.log", "three\n")
    assert tail(store=store).bodies() == ["three"]


def test_a_store_that_fails_is_reported_and_reading_goes_on(logs: Path, tail: Make, tmp_path: Path) -> None:
    """TestSaveErr, TestLoadErr"""
    store = Journal(tmp_path / "store")
    store.set("file/7", b"rubbish")
    (logs / "a.log").write_text("one\n")
    t = tail(store=store)
    assert t.log.counters.positions_lost == 1
    assert "made no sense" in t.said[0]
    assert t.bodies() == ["one"]
    t.log.close()


def test_a_full_disk_is_survived_and_made_up_for(logs: Path, tail: Make, tmp_path: Path) -> None:
    """Positions that could not be written are written when there is room again"""

    class Full(Journal):
        full = True

        def update(self, changes: Any) -> None:
            if self.full:
                raise JournalError("no space")
            super().update(changes)

    store = Full(tmp_path / "store")
    (logs / "a.log").write_text("one\n")
    t = tail(store=store)
    assert t.bodies(2) == ["one"]
    assert t.log.counters.checkpoint_failures >= 1
    assert any("no space" in text for text in t.said)
    store.full = False
    append(logs / "a.log", "two\n")
    t.bodies(2)
    t.log.close()
    assert tail(store=store).bodies() == []


# Compressed files


def test_compressed_files(logs: Path, tail: Make) -> None:
    """TestReadGzipCompressedLogsFromBeginning"""
    (logs / "a.gz").write_bytes(gzip.compress(b"one\ntwo\nthree"))
    assert tail(compression="gzip").bodies() == ["one", "two", "three"]


def test_what_is_added_to_a_compressed_file(logs: Path, tail: Make) -> None:
    """TestReadGzipCompressedLogsFromEnd, TestNewFromFileGzipOffset"""
    (logs / "a.gz").write_bytes(gzip.compress(LONG.encode() + b"old\n"))
    t = tail(compression="gzip", start_at="end")
    assert t.bodies() == []
    with (logs / "a.gz").open("ab") as out:
        out.write(gzip.compress(b"new\n"))
    assert t.bodies() == ["new"]


def test_a_file_that_was_compressed_meanwhile_is_the_same(logs: Path, tail: Make) -> None:
    """TestCompressionFingerprint"""
    log = logs / "a.log"
    log.write_text(LONG + "one\n")
    t = tail(compression="auto")
    t.records()
    data = log.read_bytes() + b"two\n"
    log.unlink()
    (logs / "a.log.gz").write_bytes(gzip.compress(data))
    assert t.bodies(2) == ["two"]


def test_a_damaged_compressed_file_gives_what_came_before_the_damage(logs: Path, tail: Make) -> None:
    (logs / "a.gz").write_bytes(gzip.compress(b"one\ntwo\n") + b"this is not compressed")
    t = tail(compression="gzip")
    assert t.bodies(2) == ["one", "two"]
    assert t.log.counters.damaged >= 1
    assert "damaged" in t.said[0]


# Fingerprints


def test_fingerprints_grow_and_stop(logs: Path) -> None:
    """TestNew, TestNewFromFile, TestEqual, TestStartsWith*, TestFingerprintGrowsAndStops,
    TestFileReader_FingerprintUpdated
    """
    path = logs / "a"
    before = fingerprint.of(b"x")
    for length in range(1, 60):
        path.write_bytes(b"x" + bytes(range(1, length)))
        with path.open("rb") as file:
            data, _ = fingerprint.first_bytes(file.fileno(), 32, False)
        assert len(data) == min(length, 32)
        assert before.begins(data)
        before = fingerprint.of(data)
    assert not before.begins(b"y" * 32)
    assert not before.begins(data[:-1])
    assert not fingerprint.of(b"").begins(b"anything")


def test_files_that_did_not_change_are_not_opened(logs: Path, tail: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """TestSkipUnmodifiedFiles, TestTryReuseByPathMtime_*"""
    for n in range(5):
        (logs / f"{n}").write_text(f"{n}\n")
    t = tail()
    t.records()
    opened: list[str] = []
    real = os.open

    def watched(path: Any, *rest: Any) -> int:
        opened.append(str(path))
        return real(path, *rest)

    monkeypatch.setattr(os, "open", watched)
    for _ in range(5):
        t.records()
    assert opened == []
    t.wait(3600)
    t.bodies(4)
    append(logs / "3", "again\n")
    assert t.bodies() == ["again"]


@pytest.mark.skipif(os.geteuid() == 0, reason="root can read everything")
def test_a_file_that_cannot_be_read_is_reported_once(logs: Path, tail: Make) -> None:
    """TestUnreadableFileLoggedOnce, TestNonPermissionErrorsAlwaysLogged"""
    log = logs / "a.log"
    log.write_text("secret\n")
    log.chmod(0)
    t = tail()
    assert t.bodies(3) == []
    assert len(t.said) == 1
    log.chmod(0o600)
    assert t.bodies() == ["secret"]


def test_pipes_and_devices_are_left_alone(logs: Path, tail: Make) -> None:
    os.mkfifo(logs / "fifo")
    (logs / "directory").mkdir()
    (logs / "dangling").symlink_to("nowhere")
    assert tail().bodies(2) == []


def test_a_file_that_nobody_rotates_is_named(logs: Path, tail: Make) -> None:
    (logs / "a.log").write_bytes(b"x\n" * (6 << 20))
    t = tail(start_at="end", operators=({"type": "container"},))
    t.records()
    assert t.log.stalled() == []
    t.wait(31)
    assert t.log.stalled() == [str(logs / "a.log")]


#: Tests of the checklist that say nothing about us.
NOT_OURS = {
    "TestReadExistingLogsWithHeader": "no `header` option",
    "TestHeaderPersistance": "no `header` option",
    "TestHeaderPersistanceInHeader": "no `header` option",
    "TestMigrateHeaderAttributes": "no `header` option",
    "TestMigrateHeaderAttributesWithProtobuf": "no `header` option",
    "TestWindowsFilesClosedImmediately": "Windows",
    "TestNormalizePath": "Windows",
    "TestNoTracking": "an option of other programs that embed the Collector's reader",
    "TestFileCacheAdvise": "accepted, without effect",
    "TestProtobufEncodingDifferentLogSizes": "their format of checkpoints",
    "TestCrossFormatCompatibility": "their format of checkpoints",
    "TestFeatureGateToggle": "their format of checkpoints",
    "TestProtobufWithComplexMetadata": "their format of checkpoints",
    "TestMarshalUnmarshal": "their format of checkpoints; ours is in test_after_a_restart_reading_goes_on",
    "TestNewDoesNotModifyOffset": "reads of the first bytes do not move a position here",
    "TestCopy": "fingerprints are immutable here",
    "TestFingerprintChangeSize": "a longer stored fingerprint matches as before, by its own length",
    "TestFingerprint_Bytes": "inside their data structure",
    "TestFingerprint_Bytes_Empty": "inside their data structure",
    "TestFingerprintKeyCaching": "inside their data structure",
    "TestFingerprintCopyDoesNotShareKey": "inside their data structure",
    "TestFingerprintKeyWithNilOrEmpty": "inside their data structure",
    "TestFileTrackerReusesFilesetsBetweenPolls": "inside their data structure",
    "TestFileTrackerReusesUnmatchedSlices": "inside their data structure",
    "TestFileTrackerReusesKnownFilesAcrossPolls": "inside their data structure",
    "TestNoStateTrackerReusesUnmatchedSlices": "inside their data structure",
    "TestArchiveNoRollover": "there is no archive: files are remembered",
    "TestArchiveRollOver": "there is no archive: files are remembered",
    "TestNopArchive": "there is no archive: files are remembered",
}


def test_every_behaviour_of_the_checklist_is_answered(shared_data: Path) -> None:
    listed = {t["test"] for t in json.loads((shared_data / "peers" / "tail_scenarios.json").read_text())["tests"]}
    answered = " ".join(held.__doc__ or "" for name, held in globals().items() if name.startswith("test_"))
    named = {word.strip(",;") for word in answered.split()}
    prefixes = tuple(word[:-1] for word in named if word.endswith("*"))
    missing = {t for t in listed if t not in NOT_OURS and t not in named and not t.startswith(prefixes)}
    assert missing == set()
