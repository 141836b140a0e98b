"""What has arrived is not read again, and everything else is: in whatever order batches arrive, over restarts."""

from __future__ import annotations

import os
import random
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tracecore.signals.logs.tail import watched
from tracecore.signals.logs.tail.batch import LogBatch
from tracecore.signals.logs.tail.config import FileLogConfig
from tracecore.signals.logs.tail.filelog import FileLog
from tracecore.signals.storage.journal import Journal, JournalError

Make = Callable[..., Any]
STEP = 200_000_000


def bodies(batches: list[LogBatch]) -> list[Any]:
    return [record["body"] for batch in batches for _, record in batch.records()]


class Run:
    """A receiver that is told what has arrived, and that is started again and again over one store."""

    def __init__(self, place: Path, store: Journal, **options: Any) -> None:
        options.setdefault("include", (str(place / "*"),))
        self.config = FileLogConfig(start_at="beginning", **options)
        self.store = store
        self.now = 1_794_706_624_000_000_000
        self.log = self.start()

    def start(self) -> FileLog:
        self.log = FileLog(self.config, self.store, lambda: self.now)
        return self.log

    def poll(self) -> list[LogBatch]:
        self.now += STEP
        found = self.log.poll()
        while self.log.more:
            found += self.log.poll()
        return found

    def arrive(self, batch: LogBatch) -> None:
        self.log.delivered(batch)
        self.log.commit()

    def kill(self) -> None:
        """It ends without a word: files are closed, nothing is written."""
        for file in self.log._known:
            file.close()
        if self.log._watches is not None:
            self.log._watches.close()


def append(path: Path, text: str) -> None:
    with path.open("a") as out:
        out.write(text)


def test_holes_are_read_again_and_nothing_else(logs: Path, tmp_path: Path) -> None:
    run = Run(logs, Journal(tmp_path / "store"), include_file_record_number=True, include_file_record_offset=True)
    given: list[LogBatch] = []
    for n in range(10):
        append(logs / "a.log", f"{n} a\n{n} b\n")
        given += run.poll()
    for n in (9, 1, 4, 5, 7):
        run.arrive(given[n])
    run.kill()
    append(logs / "a.log", "new\n")
    run.start()
    again = run.poll()
    expected = [f"{n} {what}" for n in (0, 2, 3, 6, 8) for what in "ab"] + ["new"]
    assert bodies(again) == expected
    found = {
        record["body"]: (
            record["attributes"]["log.file.record_number"],
            record["attributes"]["log.file.record_offset"],
        )
        for batch in again
        for _, record in batch.records()
    }
    assert found["0 a"] == (1, 0)
    assert found["6 b"] == (14, 52)
    assert found["new"] == (21, 80)
    # What arrived in the first run still has, when the second is killed before all of the rest has.
    for batch in again[1:]:
        run.arrive(batch)
    run.kill()
    run.start()
    assert bodies(run.poll()) == bodies(again[:1])


def test_a_stored_position_that_makes_no_sense_is_left_out(logs: Path, tmp_path: Path) -> None:
    import msgspec

    store = Journal(tmp_path / "store")
    append(logs / "a.log", "one\ntwo\n")
    run = Run(logs, store)
    run.arrive(run.poll()[0])
    ((key, value),) = store.items("file/")
    fields = msgspec.msgpack.decode(value)
    fields[-1] = [[6, 4, 0]]
    store.set(key, msgspec.msgpack.encode(fields))
    append(logs / "a.log", "three\n")
    run.kill()
    run.start()
    assert run.log.counters.positions_lost == 1
    assert bodies(run.poll()) == ["three"]


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 1 << 32), container=st.booleans(), announced=st.booleans())
def test_every_line_arrives_exactly_once(seed: int, container: bool, announced: bool) -> None:
    """Any order of arrival, kills between any two of them, rotation: positions are exact."""
    chance = random.Random(seed)
    with tempfile.TemporaryDirectory() as directory:
        logs = Path(directory) / "logs"
        logs.mkdir()
        options: dict[str, Any] = {"force_flush_period": 0, "inotify": announced}
        if container:
            options["operators"] = ({"type": "container", "add_metadata_from_filepath": False},)
        run = Run(logs, Journal(Path(directory) / "store"), **options)
        under_way: list[LogBatch] = []
        arrived: Counter[str] = Counter()
        written = turn = 0
        for _ in range(chance.randrange(5, 40)):
            choice = chance.random()
            if choice < 0.45:
                for _ in range(chance.randrange(1, 6)):
                    append(logs / "a.log", _line(written, container, chance))
                    written += 1
            elif choice < 0.55:
                if (logs / "a.log").exists():
                    os.rename(logs / "a.log", logs / f"a.log.{turn}")
                    turn += 1
            elif choice < 0.75:
                under_way += run.poll()
            elif choice < 0.95 and under_way:
                batch = under_way.pop(chance.randrange(len(under_way)))
                arrived.update(bodies([batch]))
                run.arrive(batch)
            else:
                run.kill()
                under_way.clear()
                run.start()
        run.kill()
        run.start()
        for _ in range(3):
            for batch in run.poll():
                arrived.update(bodies([batch]))
                run.arrive(batch)
        run.log.close()
        assert arrived == Counter(f"line {n}" for n in range(written))


def _line(number: int, container: bool, chance: random.Random) -> str:
    if not container:
        return f"line {number}\n"
    stamp = "2026-11-15T01:37:04.123456789Z stdout"
    if chance.random() < 0.4:
        return f"{stamp} P line\n{stamp} F  {number}\n"
    return f"{stamp} F line {number}\n"


def test_a_line_that_is_cut_by_the_rotation_is_joined_and_noted(logs: Path, tmp_path: Path) -> None:
    options = {
        "include": (str(logs / "*.log"),),
        "include_file_path": True,
        "operators": ({"type": "container", "add_metadata_from_filepath": False},),
    }
    for operators in (
        options["operators"],
        # By the long way, too: an expression about the body keeps entries from being treated by the column.
        (*options["operators"], {"type": "remove", "field": "body.x", "if": "false"}),
    ):
        store = Journal(tmp_path / f"store{len(operators)}")
        for path in logs.iterdir():
            path.unlink()
        run = Run(logs, store, **{**options, "operators": operators})
        stamp = "2026-11-15T01:37:04.1Z stdout"
        append(logs / "0.log", f"{stamp} F whole\n{stamp} P begun, \n")
        first = run.poll()
        assert bodies(first) == ["whole"]
        os.rename(logs / "0.log", logs / "0.log.20261115-013705")
        append(logs / "0.log", f"{stamp} F ended\n{stamp} F next\n")
        second = run.poll()
        assert bodies(second) == ["begun,ended", "next"]
        for batch in (*first, *second):
            run.arrive(batch)
        run.kill()
        os.rename(logs / "0.log.20261115-013705", logs / "1.log")
        run.start()
        assert bodies(run.poll()) == []
        run.now += 60_000_000_000
        assert bodies(run.poll()) == []
        run.kill()


def test_what_is_written_anew_while_it_is_read_is_not_mixed_up(
    logs: Path, tail: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Truncated between the look and the read: the bytes at the old place are others now."""
    log = logs / "a.log"
    log.write_text("".join(f"old {n}\n" for n in range(100)))
    t = tail()
    assert len(t.bodies()) == 100
    append(log, "one more\n")
    read = watched.WatchedFile.read

    def late(file: watched.WatchedFile, size: int) -> bytes:
        monkeypatch.undo()
        os.truncate(log, 0)
        append(log, "".join(f"new {n} of another kind\n" for n in range(100)))
        return read(file, size)

    monkeypatch.setattr(watched.WatchedFile, "read", late)
    assert t.bodies() == []
    assert t.log.counters.truncated_while_read == 1
    assert t.bodies() == [f"new {n} of another kind" for n in range(100)]


def test_files_that_come_and_go_while_nobody_takes_more_are_read_later(logs: Path, tail: Make) -> None:
    (logs / "a.log").write_text("a\n")
    t = tail()
    assert t.bodies() == ["a"]
    (logs / "b.log").write_text("b\n")
    t.now += t.config.poll_interval
    t.log.watch()
    (logs / "b.log").unlink()
    t.now += t.config.poll_interval
    t.log.watch()
    assert t.bodies() == ["b"]


def test_what_is_left_in_deleted_files_is_given_at_the_end(logs: Path, tail: Make) -> None:
    (logs / "a.log").write_text("a\n")
    (logs / "b.log").write_text("b\n")
    t = tail()
    assert sorted(t.bodies()) == ["a", "b"]
    append(logs / "a.log", "".join(f"{n}\n" for n in range(3)))
    append(logs / "b.log", "stays\n")
    (logs / "a.log").unlink()
    assert t.log.only_here([]) == []
    assert bodies(list(t.log.rest())) == ["0", "1", "2"]


def test_bytes_of_deleted_files_that_did_not_arrive_are_told(logs: Path, tmp_path: Path) -> None:
    said: list[str] = []
    (logs / "a.log").write_text("a\n")
    config = FileLogConfig(include=(str(logs / "*"),), start_at="beginning")
    log = FileLog(config, Journal(tmp_path / "store"), lambda: 1_794_706_624_000_000_000, said.append)
    (batch,) = log.poll()
    (logs / "a.log").unlink()
    assert log.only_here([batch]) == [batch]
    log.close()
    assert log.counters.bytes_out_of_reach == 2
    assert "2 bytes of 1 deleted files did not arrive" in said[0]


def test_a_position_that_could_not_be_written_is_written_with_the_next(logs: Path, tmp_path: Path) -> None:
    class Full(Journal):
        full = False

        def update(self, changes: Any) -> None:
            if self.full:
                raise JournalError("no room")
            super().update(changes)

    store = Full(tmp_path / "store")
    run = Run(logs, store)
    append(logs / "a.log", "one\n")
    store.full = True
    run.arrive(run.poll()[0])
    store.full = False
    assert run.poll() == []
    run.kill()
    run.start()
    assert bodies(run.poll()) == []


class Remembering:
    """A selector for each file: it wants every third line that it has seen of it."""

    def __init__(self) -> None:
        self.blocks: dict[int, list[bytes]] = {}

    def of(self, file: int) -> Callable[[bytes], list[int]]:
        seen = self.blocks.setdefault(file, [])

        def select(block: bytes) -> list[int]:
            first = sum(held.count(b"\n") for held in seen)
            seen.append(block)
            at, found = 0, []
            for number in range(block.count(b"\n")):
                if (first + number) % 3 == 0:
                    found.append(at)
                at = block.index(b"\n", at) + 1
            return found

        return select


def test_lines_that_nobody_wants_are_passed_over_for_good(logs: Path, tmp_path: Path) -> None:
    """Each file has a selector of its own that sees each byte once; positions go on over what is left out."""
    store = Journal(tmp_path / "store")
    config = FileLogConfig(include=(str(logs / "*"),), start_at="beginning", include_file_record_offset=True)
    now = 1_794_706_624_000_000_000

    def run(selectors: Remembering) -> FileLog:
        return FileLog(config, store, lambda: now, selector=selectors)

    selectors = Remembering()
    log = run(selectors)
    given: list[LogBatch] = []
    for n in range(4):
        for name in "ab":
            append(logs / name, "".join(f"{name} {n} {m}\n" for m in range(2)))
        now += STEP
        given += log.poll()
    found = [
        (str(record["body"]), record["attributes"]["log.file.record_offset"])
        for batch in given
        for _, record in batch.records()
    ]
    lines = {name: [f"{name} {n} {m}" for n in range(4) for m in range(2)] for name in "ab"}
    assert sorted(found) == sorted((lines[name][n], 6 * n) for name in "ab" for n in (0, 3, 6))
    assert sorted(b"".join(blocks) for blocks in selectors.blocks.values()) == [
        "".join(f"{line}\n" for line in lines[name]).encode() for name in "ab"
    ]
    # Of `a` all but the second has arrived, of `b` only the second: what was left out before and behind is left out.
    for batch in given:
        for _, record in batch.records():
            if (str(record["body"])[0] == "a") != (record["body"] in ("a 1 1", "b 1 1")):
                log.delivered(batch)
    log.commit()
    log.close()
    again = Remembering()
    log = run(again)
    now += STEP
    log.poll()
    seen = sorted(b"".join(blocks) for blocks in again.blocks.values())
    assert seen == [b"a 1 0\na 1 1\n", b"b 0 0\nb 0 1\nb 3 0\nb 3 1\n"]
    log.close()
