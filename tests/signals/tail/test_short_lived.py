"""Files that come and go while a backlog is read."""

from __future__ import annotations

import threading
import time
from pathlib import Path

from tracecore.signals.logs.tail.config import FileLogConfig
from tracecore.signals.logs.tail.filelog import FileLog


def test_new_files_are_opened_while_a_backlog_is_read(tmp_path: Path) -> None:
    """A file every 0.25 s, deleted after 2 s."""
    line = '{"step":%d,"loss":2.1234,"lr":0.0003,"message":"%s"}\n'
    (tmp_path / "backlog.log").write_text("".join(line % (n, "the backlog") for n in range(250_000)))
    config = FileLogConfig(include=(f"{tmp_path}/*.log",), start_at="beginning", operators=({"type": "json_parser"},))
    log = FileLog(config, None, time.time_ns)
    stop = threading.Event()
    written: list[int] = []

    def write() -> None:
        made: list[tuple[float, Path]] = []
        while not stop.is_set():
            number = len(made)
            path = tmp_path / f"short{number}.log"
            path.write_text("".join(line % (n, f"file {number}") for n in range(100)))
            made.append((time.monotonic(), path))
            written.append(number)
            for since, old in made:
                if time.monotonic() - since > 2:
                    old.unlink(missing_ok=True)
            stop.wait(0.25)

    writer = threading.Thread(target=write)
    found: dict[str, int] = {}

    def read() -> None:
        for batch in log.poll():
            for _, record in batch.records():
                message = str(record["attributes"]["message"])
                found[message] = found.get(message, 0) + 1

    read()
    writer.start()
    deadline = time.monotonic() + 60
    while (found["the backlog"] < 250_000 or len(written) < 6) and time.monotonic() < deadline:
        read()
    stop.set()
    writer.join()
    for _ in range(10):
        read()
        time.sleep(0.1)
    log.close()
    assert len(written) > 4
    assert {f"file {n}": found.get(f"file {n}", 0) for n in written} == {f"file {n}": 100 for n in written}


def test_what_was_deleted_before_it_was_opened_is_counted_and_said(tmp_path: Path) -> None:
    said: list[str] = []
    now = [10**18]
    for name in "abcd":
        (tmp_path / f"{name}.log").write_text(f"{name}\n" * 1000)
    config = FileLogConfig(include=(f"{tmp_path}/*.log",), start_at="beginning", max_concurrent_files=2, inotify=False)
    log = FileLog(config, None, lambda: now[0], said.append)
    log.poll()
    # One was opened, the others have to wait. One of those is deleted, another one is moved.
    (tmp_path / "c.log").unlink()
    (tmp_path / "d.log").rename(tmp_path / "e.log")
    total = 0
    for _ in range(20):
        now[0] += 1_000_000_000
        total += sum(batch.count for batch in log.poll())
    log.close()
    assert log.counters.files_deleted_unread == 1
    assert log.counters.bytes_out_of_reach == 2000
    assert [text for text in said if "deleted before it could be opened" in text] == [
        f"{tmp_path}/c.log was deleted before it could be opened: 2000 bytes at least are lost"
    ]
