"""Operators of `filelog`, files to OTLP/HTTP, beside a real Collector: records for each second of processor time.

The Collector is the one that `make interop` builds (it is not built here), on one core, over the same files.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any, Final

from bench import Measurement
from bench.agent import MARK, Sink, _running, _settled, _until, collector

FILES: Final = 4
LINES: Final = 240_000
#: Lines of each entry that `recombine` joins.
JOINED: Final = 4

#: The operators, and how a line is written.
KINDS: Final[dict[str, list[dict[str, Any]]]] = {
    "plain": [],
    "regex_parser": [{"type": "regex_parser", "regex": r"^(?P<time>\S+) (?P<level>[A-Z]+) (?P<message>.*)$"}],
    "json_parser": [{"type": "json_parser"}],
    "recombine": [
        {"type": "recombine", "combine_field": "body", "is_first_entry": 'body matches "^[0-9]{4}-[0-9]{2}-[0-9]{2}T"'}
    ],
}


def measure() -> list[Measurement]:
    rows: list[Measurement] = []
    program = collector()
    sink = Sink()
    try:
        for kind in KINDS:
            rows += _compared(kind, program, sink)
    finally:
        sink.close()
    return rows


def _compared(kind: str, program: Path | str, sink: Sink) -> list[Measurement]:
    lines = LINES // JOINED if kind == "recombine" else LINES
    ours = _rate(kind, [sys.executable, "-m", "tracecore", "run"], sink)
    rows = [Measurement(f"operators.{kind}", ours, "records/s", "", f"{lines:,} records to OTLP/HTTP")]
    if isinstance(program, str):
        return [*rows, Measurement(f"operators.{kind}.ratio", 0.0, "×", skipped=program)]
    theirs = _rate(kind, [str(program)], sink)
    return [
        *rows,
        Measurement(f"operators.{kind}.collector", theirs, "records/s", "", "the same in the Collector"),
        Measurement(f"operators.{kind}.ratio", ours / theirs, "×", "≥ 1", "the Collector"),
    ]


def _rate(kind: str, command: list[str], sink: Sink) -> float:
    """Records for each second of processor time, start-up not counted."""
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        logs, staged = place / "logs", place / "staged"
        logs.mkdir()
        staged.mkdir()
        exporter = {
            "endpoint": f"http://127.0.0.1:{sink.port}",
            "compression": "none",
            # The Collector drops what does not fit its queue: it has to hold all of this.
            "sending_queue": {"queue_size": LINES},
        }
        base = {
            "receivers": {"filelog": {"include": [f"{logs}/*.log"], "start_at": "beginning", "operators": KINDS[kind]}},
            "exporters": {"otlphttp": exporter},
            "service": {
                "telemetry": {"metrics": {"level": "none"}, "logs": {"level": "error"}},
                "pipelines": {"logs": {"receivers": ["filelog"], "exporters": ["otlphttp"]}},
            },
        }
        (place / "base.json").write_text(json.dumps(base))
        with _running([*command, "--config", str(place / "base.json")], place) as process:
            # A first record shows that it runs; its start is not counted.
            sink.requests = 0
            sink.marks.clear()
            _written(logs, 9, 8, kind)
            _until(lambda: b"9" in sink.marks, process)
            count = sum(_written(staged, number, LINES // FILES, kind) for number in range(FILES))
            before = _settled(process.pid)
            for path in sorted(staged.iterdir()):
                path.rename(logs / path.name)
            _until(lambda: len(sink.marks - {b"9"}) >= FILES, process)
            return count / (_settled(process.pid) - before)


def _written(place: Path, number: int, lines: int, kind: str) -> int:
    """A file; near its end stands a word that tells that all has arrived. Gives its records."""
    stamps = [f"2026-01-01T{n // 3600 % 24:02d}:{n // 60 % 60:02d}:{n % 60:02d}.{n % 1000:03d}Z" for n in range(lines)]
    word = f"{MARK.decode()} {number}"
    if kind == "json_parser":
        text = "".join(
            f'{{"time":"{stamp}","level":"info","rank":{number},"step":{n},"loss":2.{n % 9999:04d},"lr":0.0003,'
            f'"message":"step {n} done"}}\n'
            for n, stamp in enumerate(stamps)
        )
        text += f'{{"time":"{stamps[-1]}","level":"info","message":"{word}"}}\n'
        count = lines + 1
    elif kind == "recombine":
        text = "".join(
            f"{stamp} INFO rank {number} step {n} loss 2.{n % 9999:04d}\n"
            if n % JOINED == 0
            else f'File "/app/train.py", line {n % 700}, in step\n'
            for n, stamp in enumerate(stamps)
        )
        # An entry ends where the next one begins.
        text += f"{stamps[-1]} INFO {word}\n{stamps[-1]} INFO the next one\n"
        count = lines // JOINED + 1
    else:
        text = "".join(
            f"{stamp} INFO rank {number} step {n} loss 2.{n % 9999:04d} lr 3.0e-04 tokens/s 5123 norm 0.{n % 999:03d}\n"
            for n, stamp in enumerate(stamps)
        )
        text += f"{stamps[-1]} INFO {word}\n"
        count = lines + 1
    (place / f"{number}.log").write_text(text)
    return count


if __name__ == "__main__":
    for row in measure():
        print(row)
