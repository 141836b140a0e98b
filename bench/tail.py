"""Following files: container lines to OTLP requests on one core, and many files that hardly change.

Speeds are records for each second of processor time; reading, unwrapping and encoding are in them, sending is not.
"""

from __future__ import annotations

import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from bench import Measurement
from tracecore.signals.logs.tail.config import FileLogConfig
from tracecore.signals.logs.tail.filelog import FileLog
from tracecore.signals.storage.file_storage import FileStorage, FileStorageConfig

LINES = 400_000
FILES = 5_000
SECONDS = 10
OPERATORS: tuple[dict[str, Any], ...] = (
    {"type": "container"},
    {
        "type": "severity_parser",
        "parse_from": 'attributes["log.iostream"]',
        "mapping": {"error": "stderr", "info": "stdout"},
    },
)


def measure() -> list[Measurement]:
    with tempfile.TemporaryDirectory() as place:
        rows = _speed(Path(place) / "speed")
    with tempfile.TemporaryDirectory() as place:
        rows += _idle(Path(place) / "idle")
    return rows


def _pod(place: Path, number: int) -> Path:
    log = place / f"ml_trainer-{number}_0a1b2c3d-0000-4000-8000-{number:012d}" / "worker" / "0.log"
    log.parent.mkdir(parents=True)
    return log


def _lines(count: int, number: int) -> str:
    return "".join(
        f"2026-11-15T01:{n // 60_000 % 60:02d}:{n // 1000 % 60:02d}.{n % 1000:03d}456789Z "
        f"{'stderr' if n % 50 == 0 else 'stdout'} F [rank {number}] step {n} loss {2 + n % 7 / 10:.4f} lr 3.0e-04 "
        f"tokens/s {51_234 + n % 100} grad_norm 0.{n % 1000:03d}\n"
        for n in range(count)
    )


def _speed(place: Path) -> list[Measurement]:
    for number in range(4):
        _pod(place, number).write_text(_lines(LINES // 4, number))
    config = FileLogConfig(
        include=(f"{place}/*/*/*.log",), start_at="beginning", include_file_path=True, operators=OPERATORS
    )
    best = {"read": float("inf"), "encoded": float("inf")}
    for _ in range(3):
        for kind in best:
            log = FileLog(config, None, time.time_ns)
            begin = time.process_time()
            count = 0
            while (batches := log.poll()) or log.more:
                for batch in batches:
                    count += batch.count
                    if kind == "encoded":
                        batch.encoded()
            best[kind] = min(best[kind], time.process_time() - begin)
            log.close()
            if count != LINES:
                raise AssertionError(f"{count} records of {LINES} lines")
    return [
        Measurement(
            "tail.records", LINES / best["encoded"], "records/s", "≥ 200,000", "container lines to OTLP requests"
        ),
        Measurement("tail.parsed", LINES / best["read"], "records/s", "", "the same without encoding"),
    ]


def _idle(place: Path) -> list[Measurement]:
    logs = [_pod(place / "pods", number) for number in range(FILES)]
    for number, log in enumerate(logs):
        log.write_text(_lines(20, number))
    (place / "state").mkdir()
    storage = FileStorage(FileStorageConfig(directory=str(place / "state")))
    config = FileLogConfig(include=(f"{place}/pods/*/*/*.log",), include_file_path=True, operators=OPERATORS)
    offset = 0
    receiver = FileLog(config, storage.client("receiver_filelog"), lambda: time.time_ns() + offset)
    receiver.poll()
    offset = 60_000_000_000  # nothing has changed for long
    receiver.poll()
    stop = threading.Event()
    begin, wall, count = time.process_time(), time.monotonic(), 0
    while time.monotonic() - wall < SECONDS:
        with logs[count % 7].open("a") as out:
            out.write(_lines(1, 0))
        for batch in receiver.poll():
            count += batch.count
            receiver.delivered(batch)
        receiver.wait(stop)
    spent = (time.process_time() - begin) / (time.monotonic() - wall)
    receiver.close()
    storage.stop()
    return [
        Measurement("tail.idle", 100 * spent, "% of a core", "≤ 2", f"{FILES:,} files, five lines a second"),
        Measurement("tail.delivered", count / SECONDS, "records/s", "", "of them while idle"),
    ]
