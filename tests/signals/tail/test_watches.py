"""What the kernel announces is enough: nothing is looked at for nothing, and nothing is missed."""

from __future__ import annotations

import errno
import os
import random
import shutil
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tracecore.signals.logs.tail import inotify, places, schedule, watches
from tracecore.signals.logs.tail.config import FileLogConfig
from tracecore.signals.logs.tail.filelog import FileLog
from tracecore.signals.logs.tail.watches import WatchedChanges, Watches

Make = Callable[..., Any]
STEP = 200_000_000


@pytest.fixture
def announced() -> bool:
    return True


@pytest.fixture
def only_announced(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is found because it was its turn."""
    _no_turns(monkeypatch)


def _no_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    turns = schedule.LookSchedule._turns

    def none(self: Any, held: Any, count: int) -> Any:
        return {} if held is self._calm else turns(self, held, count)

    monkeypatch.setattr(schedule.LookSchedule, "_turns", none)
    monkeypatch.setattr(places, "SAFETY", 1 << 62)


def append(path: Path, text: str) -> None:
    with path.open("a") as out:
        out.write(text)


def test_files_that_nobody_writes_to_are_not_looked_at(logs: Path, tail: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    for n in range(300):
        (logs / f"{n}").mkdir()
        (logs / f"{n}" / "0.log").write_text(f"{n}\n")
    t = tail(include=(str(logs / "*/*.log"),))
    assert len(t.bodies(3)) == 300
    asked: list[str] = []
    real = os.stat

    def stat(path: Any, **rest: Any) -> os.stat_result:
        asked.append(str(path))
        return real(path, **rest)

    monkeypatch.setattr(os, "stat", stat)
    for n in range(10):
        append(logs / "7" / "0.log", f"line {n}\n")
        assert t.bodies() == [f"line {n}"]
    # In ten looks: one file, and of the others those whose turn it is, two in a look.
    assert len(asked) <= 40


@pytest.mark.usefixtures("only_announced")
def test_directories_that_come_and_are_filled_at_once(logs: Path, tail: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    t = tail(include=(str(logs / "*/*/*.log"),))
    assert t.bodies() == []
    add = inotify.Inotify.add

    def late(self: inotify.Inotify, path: str, mask: int) -> int:
        """What comes just before a directory is watched, and just after."""
        place = Path(path)
        if place.parent == logs:
            (place / "early").mkdir(exist_ok=True)
            (place / "early" / "0.log").write_text(f"{place.name} early\n")
        number = add(self, path, mask)
        if place.parent == logs:
            (place / "late").mkdir(exist_ok=True)
            (place / "late" / "0.log").write_text(f"{place.name} late\n")
        return number

    monkeypatch.setattr(inotify.Inotify, "add", late)
    for n in range(3):
        (logs / f"pod{n}").mkdir()
        assert sorted(t.bodies(2)) == [f"pod{n} early", f"pod{n} late"]
        append(logs / f"pod{n}" / "early" / "0.log", "more\n")
        assert t.bodies() == ["more"]


@pytest.mark.usefixtures("only_announced")
def test_links_into_other_directories_as_the_kubelet_makes_them(logs: Path, tail: Make, tmp_path: Path) -> None:
    pod = tmp_path / "pods" / "ml_trainer-0_1" / "main"
    pod.mkdir(parents=True)
    (pod / "0.log").write_text("one\n")
    (logs / "trainer.log").symlink_to(pod / "0.log")
    t = tail(include=(str(logs / "*.log"),))
    assert t.bodies(3) == ["one"]
    append(pod / "0.log", "two\n")
    assert t.bodies() == ["two"]
    t.wait(3600)
    assert t.bodies(3) == []
    append(pod / "0.log", "three\n")
    (pod / "0.log").rename(pod / "0.log.20261115")
    (pod / "0.log").write_text("four\n")
    assert t.bodies(2) == ["three", "four"]
    # The link leads elsewhere, and then there is nothing where it leads, and then there is.
    other = tmp_path / "pods" / "ml_trainer-0_2"
    (logs / "new").symlink_to(other / "1.log")
    (logs / "new").rename(logs / "trainer.log")
    assert t.bodies(2) == []
    other.mkdir()
    (other / "1.log").write_text("five\n")
    assert t.bodies(2) == ["five"]
    t.bodies(3)
    append(other / "1.log", "six\n")
    assert t.bodies() == ["six"]
    shutil.rmtree(other)
    assert t.bodies(2) == []
    other.mkdir()
    (other / "1.log").write_text("seven\n")
    assert t.bodies(2) == ["seven"]


@pytest.mark.usefixtures("only_announced")
def test_a_directory_that_another_one_takes_the_place_of(logs: Path, tail: Make, tmp_path: Path) -> None:
    for name in ("old", "new"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "a.log").write_text(f"{name} a\n")
    (logs / "link").symlink_to(tmp_path / "old")
    (logs / "plain").mkdir()
    (logs / "plain" / "a.log").write_text("plain\n")
    t = tail(include=(str(logs / "link" / "*.log"), str(logs / "*" / "a.log")))
    assert sorted(t.bodies(3)) == ["old a", "plain"]
    (logs / "other").symlink_to(tmp_path / "new")
    (logs / "other").rename(logs / "link")
    assert t.bodies(2) == ["new a"]
    append(tmp_path / "new" / "a.log", "more\n")
    assert t.bodies() == ["more"]
    (logs / "plain").rename(tmp_path / "away")
    (logs / "plain").mkdir()
    (logs / "plain" / "a.log").write_text("anew\n")
    assert t.bodies(2) == ["anew"]
    append(tmp_path / "away" / "a.log", "the last of it\n")
    assert t.bodies() == ["the last of it"]
    append(logs / "plain" / "a.log", "and on\n")
    assert t.bodies() == ["and on"]


@pytest.mark.usefixtures("only_announced")
def test_a_path_that_is_not_there_yet(logs: Path, tail: Make) -> None:
    t = tail(include=(str(logs / "a" / "b" / "c.log"), str(logs / "d" / "**" / "*.log")))
    assert t.bodies(2) == []
    (logs / "a").mkdir()
    assert t.bodies(2) == []
    (logs / "a" / "b").mkdir()
    (logs / "a" / "b" / "c.log").write_text("c\n")
    assert t.bodies() == ["c"]
    (logs / "d" / "e" / "f").mkdir(parents=True)
    (logs / "d" / "e" / "f" / "x.log").write_text("x\n")
    assert t.bodies() == ["x"]
    shutil.rmtree(logs / "d")
    t.bodies(2)
    (logs / "d" / "e").mkdir(parents=True)
    (logs / "d" / "e" / "y.log").write_text("y\n")
    assert t.bodies(2) == ["y"]


def test_more_happens_than_the_kernel_can_note(logs: Path, tail: Make) -> None:
    for name in "abc":
        (logs / name).write_text(f"{name}\n")
    t = tail()
    t.bodies(3)
    most = int(Path("/proc/sys/fs/inotify/max_queued_events").read_text())
    with (logs / "a").open("ab", 0) as one, (logs / "b").open("ab", 0) as other:
        for _ in range(most // 2 + 1):
            one.write(b"x\n")
            other.write(b"y\n")
    append(logs / "c", "after that\n")
    (logs / "d").write_text("new\n")
    assert Counter(t.bodies(2)) == {"x": most // 2 + 1, "y": most // 2 + 1, "after that": 1, "new": 1}
    assert t.log.counters.announcements_lost == 1


def test_a_file_with_two_names_is_looked_at_again_and_again(logs: Path, tail: Make, tmp_path: Path) -> None:
    (logs / "a.log").write_text("one\n")
    os.link(logs / "a.log", tmp_path / "other")
    t = tail()
    t.bodies(3)
    append(tmp_path / "other", "two\n")
    assert t.bodies() == ["two"]


def test_a_file_whose_changes_are_not_announced_is_found_out(
    logs: Path, tail: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Written through memory, or below another file system's upper layer: it is found in its turn, and then polled."""
    for n in range(3):
        (logs / f"{n}.log").write_text(f"{n}\n")
    t = tail()
    t.bodies(3)
    monkeypatch.setattr(Watches, "read", lambda self: WatchedChanges())
    append(logs / "1.log", "two\n")
    found = []
    for _ in range(int(schedule.SAFETY // STEP)):
        found += t.bodies()
    assert found == ["two"]
    append(logs / "1.log", "three\n")
    assert t.bodies(2) == ["three"]


@pytest.mark.parametrize(
    ("number", "reason"), [(errno.EMFILE, "max_user_instances"), (errno.ENOSYS, "not implemented")]
)
def test_without_inotify_files_are_polled(
    logs: Path, tail: Make, monkeypatch: pytest.MonkeyPatch, number: int, reason: str
) -> None:
    def none(self: inotify.Inotify) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(inotify.Inotify, "__init__", none)
    t = tail()
    _is_polled(t, logs, reason)


def test_a_watch_that_there_is_no_room_for(logs: Path, tail: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """What others of the same user need is given back, and everything is polled."""
    add = inotify.Inotify.add

    def full(self: inotify.Inotify, path: str, mask: int) -> int:
        if Path(path).name == "sub2":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return add(self, path, mask)

    monkeypatch.setattr(inotify.Inotify, "add", full)
    for n in range(2):
        (logs / f"sub{n}").mkdir()
        (logs / f"sub{n}" / "x").write_text(f"in {n}\n")
    t = tail(include=(str(logs / "*"), str(logs / "*" / "*")))
    assert sorted(t.bodies(3)) == ["in 0", "in 1"]
    assert t.log.polled == ()
    (logs / "sub2").mkdir()
    (logs / "sub2" / "x").write_text("in 2\n")
    assert t.bodies(2) == ["in 2"]
    _is_polled(t, logs, "max_user_watches")
    assert len(t.log._watches) == 0


def test_no_more_than_a_share_of_all_watches_is_taken(logs: Path, tail: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watches, "_most", lambda: 8)
    for n in range(10):
        (logs / f"sub{n}").mkdir()
    t = tail(include=(str(logs / "*"), str(logs / "*" / "*")))
    t.bodies()
    _is_polled(t, logs, "more than 8 directories")


def test_what_others_write_to_a_network_is_looked_for(logs: Path, tail: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inotify, "foreign", lambda path: "nfs")
    _is_polled(tail(), logs, "changes on nfs")


def test_where_nothing_can_happen_unannounced_it_is_looked_once_a_second(logs: Path, tail: Make) -> None:
    (logs / "a").write_text("one\n")
    t = tail()
    assert t.bodies(3) == ["one"]
    assert t.log._longest() == 1.0
    append(logs / "a", "begun")
    t.bodies()
    assert t.log._longest() == 0.2, "the rest of a line is waited for"
    append(logs / "a", " and done\n")
    assert t.bodies(2) == ["begun and done"]
    assert t.log._longest() == 1.0
    (logs / "a").unlink()
    t.bodies()
    assert t.log._longest() == 0.2, "somebody may still write to it"
    t.wait(11)
    t.bodies(2)
    assert t.log._longest() == 1.0


def test_part_of_a_line_that_waits_for_the_rest_is_not_forgotten(logs: Path, tail: Make) -> None:
    t = tail(include_file_path=True, operators=({"type": "container", "add_metadata_from_filepath": False},))
    (logs / "a").write_text("2026-11-15T01:00:00.000000001Z stdout P one,\n")
    assert t.bodies(3) == []
    assert t.log._longest() == 0.2
    append(logs / "a", "2026-11-15T01:00:00.000000002Z stdout F two\n")
    assert t.bodies(2) == ["one,two"]
    assert t.log._longest() == 1.0


def test_many_files_that_are_polled_are_looked_at_in_turns(
    logs: Path, tail: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(schedule, "TURN", STEP // 4)  # a round takes ten looks
    for n in range(40):
        (logs / f"{n}").write_text(f"{n}\n")
    t = tail(inotify=False)
    assert len(t.bodies(2)) == 40
    assert t.log.polled_files == 40
    asked: list[str] = []
    real = os.stat

    def stat(path: Any, **rest: Any) -> os.stat_result:
        asked.append(str(path))
        return real(path, **rest)

    monkeypatch.setattr(os, "stat", stat)

    def looked(seconds: int) -> int:
        t.wait(seconds)
        t.bodies(2)
        asked.clear()
        t.bodies(80)
        return sum(path == str(logs / "7") for path in asked)

    assert looked(11) == 8
    append(logs / "7", "more\n")
    assert t.bodies(40) == ["more"]


def test_files_that_are_gone_and_closed_are_not_looked_at(
    logs: Path, tail: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    t = tail()
    for n in range(30):
        (logs / "a").write_text(f"{n} {'x' * 1000}\n")
        assert len(t.bodies(2)) == 1
        (logs / "a").unlink()
    t.bodies()
    t.wait(11)
    t.bodies(2)
    assert t.log.open_files == 0
    asked: list[int] = []
    real = os.fstat

    def fstat(fd: int) -> os.stat_result:
        asked.append(fd)
        return real(fd)

    monkeypatch.setattr(os, "fstat", fstat)
    t.bodies(5)
    assert asked == []
    (logs / "b").write_text(f"29 {'x' * 1000}\nmore\n")
    assert t.bodies(2) == ["more"], "it is known again"


def _is_polled(t: Any, logs: Path, reason: str) -> None:
    (logs / "a").write_text("one\n")
    assert t.bodies(2) == ["one"]
    append(logs / "a", "two\n")
    assert t.bodies() == ["two"]
    (logs / "a").rename(logs / "b")
    (logs / "a").write_text("three\n")
    assert t.bodies(2) == ["three"]
    assert len(t.log.polled) == 1
    assert t.log.polled_files > 0
    assert reason in t.log.polled[0].lower()


def test_local_file_systems_are_known(tmp_path: Path) -> None:
    assert inotify.foreign("/proc") == "proc"
    assert "cannot be asked" in inotify.foreign(str(tmp_path / "nothing"))


def test_whoever_waits_wakes_when_a_file_grows(logs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With all that comes at once; and looking for files is slow, and so done seldom."""
    (logs / "a").write_text("one\n")
    config = FileLogConfig(include=(str(logs / "**" / "*"),), start_at="beginning", poll_interval=3600 * 1_000_000_000)
    log = FileLog(config, None, time.time_ns)
    find = log._places._finder.find

    def slow(now: int) -> list[str]:
        time.sleep(0.02)
        return find(now)

    monkeypatch.setattr(log._places._finder, "find", slow)
    stop = threading.Event()
    got: list[Any] = []

    def follow() -> None:
        while not stop.is_set():
            got.extend(record["body"] for batch in log.poll() for _, record in batch.records())
            log.wait(stop)

    thread = threading.Thread(target=follow)
    thread.start()
    try:
        words = ["one"]
        for path, word in (("a", "two"), ("a", "three"), ("b/c/d", "four"), ("e", "five"), ("f/g", "six"), ("", "")):
            deadline = time.monotonic() + 60
            while len(got) < len(words) and time.monotonic() < deadline:
                time.sleep(0.01)
            assert got == words
            if path:
                (logs / path).parent.mkdir(parents=True, exist_ok=True)
                append(logs / path, f"{word}\n")
                words.append(word)
    finally:
        stop.set()
        thread.join(60)
        log.close()
    assert not thread.is_alive()


def test_who_has_always_much_to_read_looks_less_often(logs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    passed, spent = 0, 0
    monkeypatch.setattr(time, "monotonic_ns", lambda: passed)
    monkeypatch.setattr(time, "thread_time_ns", lambda: spent)
    log = FileLog(FileLogConfig(include=(str(logs / "*"),)), None, time.time_ns)
    stop = threading.Event()
    stop.set()
    pauses = []
    # In milliseconds: what goes by, and what is spent of it. A burst, then much for a second, then little again.
    for step, cost, times in ((200, 1, 5), (200, 40, 1), (200, 20, 5), (200, 0, 20)):
        for _ in range(times):
            passed += step * 1_000_000
            spent += cost * 1_000_000
            log.wait(stop)
            pauses.append(log.pause // 1_000_000)
    log.close()
    assert pauses == [25] * 6 + [200] * 15 + [25] * 10


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 1 << 32), polled=st.booleans())
def test_announcements_alone_are_enough(seed: int, polled: bool) -> None:
    """Whatever happens to files, links and directories, with nobody looking but where something was announced."""
    chance = random.Random(seed)
    with tempfile.TemporaryDirectory() as directory, pytest.MonkeyPatch.context() as patch:
        _no_turns(patch)
        tree = Tree(Path(directory), chance)
        now = 1_794_706_624_000_000_000
        include = (f"{directory}/logs/*.log*", f"{directory}/logs/*/*.log*", f"{directory}/deep/**/*.log*")
        config = FileLogConfig(include=include, start_at="beginning", force_flush_period=0, inotify=not polled)
        log = FileLog(config, None, lambda: now)
        got: Counter[Any] = Counter()

        def look() -> None:
            nonlocal now
            now += STEP
            while True:
                got.update(record["body"] for batch in log.poll() for _, record in batch.records())
                if not log.more:
                    return

        for _ in range(chance.randrange(5, 40)):
            tree.change(look)
            if chance.random() < 0.4:
                look()
        for _ in range(3):
            look()
        log.close()
        assert bool(log.polled) == polled
        assert got == Counter(f"line {n}" for n in range(tree.written))


class Tree:
    """Files that are written to, moved, deleted and linked, each in a way that loses nothing by itself."""

    def __init__(self, place: Path, chance: random.Random) -> None:
        self._place = place
        self._chance = chance
        self.written = 0
        self._moved = 0
        for name in ("logs", "deep", "away"):
            (place / name).mkdir()
        self._files = ["logs/a.log", "logs/x/a.log", "logs/y/b.log", "deep/1/2/c.log", "deep/d.log"]
        for n in range(2):
            (place / "away" / f"{n}").mkdir()
            (place / "logs" / f"link{n}.log").symlink_to(place / "away" / f"{n}" / "0.log")
            self._files.append(f"away/{n}/0.log")

    def change(self, look: Callable[[], None]) -> None:
        path = self._place / self._chance.choice(self._files)
        choice = self._chance.random()
        if choice < 0.6:
            path.parent.mkdir(parents=True, exist_ok=True)
            append(path, "".join(f"line {self.written + n}\n" for n in range(3)))
            self.written += 3
        elif choice < 0.75 and path.exists():
            if path.parts[-3] == "away":
                # What was moved nobody finds by the link.
                look()
            self._moved += 1
            path.rename(path.with_name(f"{path.name}.{self._moved}"))
        elif choice < 0.9:
            look()
            if path.exists():
                path.unlink()
        elif "away" not in path.parts and path.parent.name in ("x", "y", "1", "2"):
            look()
            shutil.rmtree(path.parent, ignore_errors=True)
