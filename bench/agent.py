"""The agent on a node: detection and shipping on one core, beside a real Collector; how soon a verdict is out.

Rates are for each second of processor time. The Collector is the one that `make interop` builds (it is not built
here), with the same recipe files, on one core (`GOMAXPROCS=1`), over the same files; its time is what the kernel
charged to its process from the start of the reading to the last line.
"""

from __future__ import annotations

import gzip
import http.client
import http.server
import importlib.util
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from bench import Measurement, mixed_logs, overhead, scan
from bench.training_log import training_log
from tracecore import recipes
from tracecore.agent.batch import Batch
from tracecore.agent.component import Setting
from tracecore.agent.processors.patterndetector import Options, PatternDetector
from tracecore.agent.telemetry import Meter
from tracecore.recipes.live import LiveSelectors
from tracecore.recipes.plan import plan
from tracecore.signals.logs.tail.config import FileLogConfig
from tracecore.signals.logs.tail.filelog import FileLog

#: Bytes of a log for the detection here, and of one for the Collector, which takes its time.
SIZE: Final = 48 << 20
COLLECTOR_SIZE: Final = 1 << 18
FILES: Final = 4
SEEDS: Final = (1, 2)
RECORDS: Final = 240_000
RUNS: Final = 2
CRASHES: Final = 40
SECONDS: Final = 6.0
WARM: Final = 3.0
MANY: Final = 5_000
PATIENCE: Final = 60.0
LAST: Final = "an illegal memory access was encountered"
MARK: Final = b"the last line of all"
#: What an agent logs before it says why.
POLLED: Final = "looked at every poll_interval only:"


def measure() -> list[Measurement]:
    rows = [*_detection(), *_mixed(), *_shipping(), *_latency()]
    busy, idle, polled = _busy(), _idle(), _idle(inotify=False)
    how = f"polled: {idle[2]}" if idle[2] else "seven grow by a line now and then"
    rows += [
        Measurement("agent.busy.core", 100 * busy[0], "% of a core", "≤ 5", "10,000 lines/s, verdicts only"),
        Measurement("agent.busy.memory", busy[1], "MiB", "≤ 150", "the most while it ran"),
        Measurement("agent.idle.core", 100 * idle[0], "% of a core", "≤ 2", f"5,000 files, {how}"),
        Measurement("agent.idle.polled", 100 * polled[0], "% of a core", "", "the same with inotify: false"),
        Measurement("agent.idle.memory", idle[1], "MiB", "≤ 200", "the most while it ran"),
    ]
    return rows


# -- detection -------------------------------------------------------------------------------------------------------


def _detection() -> list[Measurement]:
    log = training_log(SIZE)
    with tempfile.TemporaryDirectory() as place:
        pods = _tree(Path(place), log)
        best, alone, found = 0.0, 0.0, 0
        for _ in range(RUNS + 2):
            rate, found = _detect(pods, f"{pods}/*/*/*.log", told=LAST)
            best, alone = max(best, rate), max(alone, _scanned(log))
    note = f"{FILES * len(log) >> 20} MiB of container logs; {found} lines are parsed"
    rows = [
        Measurement("agent.detection", best / 1e6, "MB/s", "≥ 50", note),
        Measurement("agent.detection.of_scan", 100 * best / alone, "%", "", "of the scan to facts of the same bytes"),
    ]
    program = collector()
    if isinstance(program, str):
        return [*rows, Measurement("agent.detection.ratio", 0.0, "×", skipped=program)]
    short = training_log(COLLECTOR_SIZE // FILES)
    with tempfile.TemporaryDirectory() as place:
        theirs = _collected(program, Path(place), short)
    return [
        *rows,
        Measurement(
            "agent.detection.collector", theirs / 1e6, "MB/s", "", f"{COLLECTOR_SIZE >> 10} KiB, the same recipes"
        ),
        Measurement("agent.detection.ratio", best / theirs, "×", "≥ 10", "the Collector with the same recipes"),
    ]


def _mixed(megabytes: int = 30) -> list[Measurement]:
    """Logs in which several programs write, in files of each layout; of each the worst of some seeds."""
    rows = []
    for mixture in mixed_logs.MIXTURES:
        for layout in mixed_logs.LAYOUTS:
            rates = []
            for seed in SEEDS:
                with tempfile.TemporaryDirectory() as place:
                    mixed_logs.write(Path(place), mixture, layout, megabytes * 10**6, seed)
                    rates.append(_detect(Path(place), f"{place}/**/*.log", container=layout in ("cri", "docker"))[0])
            how = f"{megabytes} MB, the worst of {len(SEEDS)} seeds"
            rows.append(Measurement(f"agent.mixed.{mixture}.{layout}", min(rates) / 1e6, "MB/s", "≥ 50", how))
    return [*rows, *_mixed_beside_collector()]


def _mixed_beside_collector() -> list[Measurement]:
    """One mixture here and in the Collector, which gets less of it."""
    program = collector()
    if isinstance(program, str):
        return [Measurement("agent.mixed.ratio", 0.0, "×", skipped=program)]
    with tempfile.TemporaryDirectory() as folder:
        mixed_logs.write(Path(folder), "torch", "cri", 30 * 10**6, 1)
        ours, _ = _detect(Path(folder), f"{folder}/**/*.log")
        some = next(Path(folder).rglob("*.log")).read_bytes()[: COLLECTOR_SIZE // FILES]
    end = _stamp(time.time()) + b" stderr F " + LAST.encode() + b"\n"
    with tempfile.TemporaryDirectory() as place:
        theirs = _collected(program, Path(place), some[: some.rfind(b"\n") + 1] + end)
    how = "the Collector with the same recipes"
    return [
        Measurement("agent.mixed.collector", theirs / 1e6, "MB/s", "", f"{COLLECTOR_SIZE >> 10} KiB, the same recipes"),
        Measurement("agent.mixed.ratio", ours / theirs, "×", "≥ 100", how),
    ]


def _tree(place: Path, log: bytes) -> Path:
    """The log as that of some pods."""
    for number in range(FILES):
        path = place / f"ml_trainer-{number}_0a1b2c3d-0000-4000-8000-{number:012d}" / "worker" / "0.log"
        path.parent.mkdir(parents=True)
        path.write_bytes(log.replace(b"[rank0]", b"[rank%d]" % number))
    return place


def _detect(pods: Path, files: str, *, container: bool = True, told: str = "") -> tuple[float, int]:
    """Bytes for each second of processor time from files to verdicts, and how many lines were parsed.

    Args:
        pods: the folder.
        files: the pattern of the files in it.
        container: a container runtime wrote them.
        told: what a verdict must say.
    """
    size = sum(path.stat().st_size for path in pods.rglob("*.log"))
    setting = Setting("p", Meter("processor", "p", "logs"), time.time_ns, _none, Path(), lambda: (True, {}))
    detector = PatternDetector(Options(forward="verdicts"), setting)
    config = FileLogConfig(
        include=(files,),
        start_at="beginning",
        include_file_path=True,
        operators=({"type": "container", "add_metadata_from_filepath": bool(told)},) if container else (),
    )
    log = FileLog(config, None, time.time_ns, selector=LiveSelectors("stdout", container=container))
    count, said = 0, []
    begin = time.process_time()
    while (batches := log.poll()) or log.more:
        for found in batches:
            count += found.count
            said += list(detector.process(Batch("logs", source=found, count=found.count)))
    said += list(detector.drain(time.time_ns()))
    spent = time.process_time() - begin
    log.close()
    if told and not any(told in str(batch.view()) for batch in said):
        raise AssertionError("the failure at the end of the logs was not told")
    return size / spent, count


def _scanned(log: bytes) -> float:
    """Bytes for each second of processor time from memory to facts, as `scan.rate` has it."""
    begin = time.process_time()
    scan._facts(plan("stdout"), log, FILES)
    return FILES * len(log) / (time.process_time() - begin)


def _none(name: str) -> Any:
    raise KeyError(name)


def collector() -> Path | str:
    """The Collector that was built before, or why there is none."""
    path = Path(__file__).parents[1] / "tests" / "interop" / "otelcol" / "build.py"
    spec = importlib.util.spec_from_file_location("otelcol_build", path)
    if spec is None or spec.loader is None:
        return "tests/interop/otelcol is not there"
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    built = sorted(module.cache().glob("otelcol-*/otelcol-tracecore"), key=lambda found: found.stat().st_mtime_ns)
    return built[-1] if built else "the OpenTelemetry Collector is not built: `make interop` builds it"


def _collected(program: Path, place: Path, log: bytes) -> float:
    """Bytes for each second of the Collector's processor time, through all recipes of worker output."""
    pods = place / "pods"
    _tree(place / "staged", log)
    first = pods / "ml_first_0a1b2c3d-0000-4000-8000-000000000009" / "worker" / "0.log"
    first.parent.mkdir(parents=True)
    first.write_bytes(_stamp(time.time()) + b" stderr F " + LAST.encode() + b"\n")
    out = place / "out.json"
    names = [processor.name for processor in recipes.load("stdout")]
    others = f'not IsMatch(body, "{LAST}")'
    base: dict[str, Any] = {
        "receivers": {"filelog": _filelog(pods)},
        "processors": {"filter": {"logs": {"log_record": [others]}}},
        "exporters": {"file": {"path": str(out), "flush_interval": "100ms"}},
        "service": {
            "telemetry": {"metrics": {"level": "none"}, "logs": {"level": "error"}},
            "pipelines": {"logs": {"receivers": ["filelog"], "processors": [*names, "filter"], "exporters": ["file"]}},
        },
    }
    (place / "base.json").write_text(json.dumps(base))
    files = [place / "base.json", *(recipes.directory() / name for name in recipes.FILES["stdout"])]
    command = [str(program), *(part for path in files for part in ("--config", str(path)))]
    with _running(command, place) as process:

        def done(count: int) -> bool:
            return out.exists() and out.read_bytes().count(LAST.encode()) >= count

        # A first line shows that it runs; its start is not counted.
        _until(lambda: done(1), process)
        before = _cpu(process.pid)
        for path in (place / "staged").iterdir():
            path.rename(pods / path.name)
        _until(lambda: done(1 + FILES), process)
        return FILES * len(log) / (_cpu(process.pid) - before)


def _filelog(pods: Path) -> dict[str, Any]:
    return {
        "include": [f"{pods}/*/*/*.log"],
        "start_at": "beginning",
        "include_file_path": True,
        "operators": [{"type": "container"}],
    }


# -- shipping --------------------------------------------------------------------------------------------------------


def _shipping() -> list[Measurement]:
    sink = Sink()
    rows: list[Measurement] = []
    rates: dict[str, float] = {}
    program = collector()
    ours = [sys.executable, "-m", "tracecore", "run"]
    for name, command in (("ours", ours), ("theirs", [str(program)])):
        if name == "theirs" and isinstance(program, str):
            continue
        with tempfile.TemporaryDirectory() as place:
            rates[name] = _shipped(command, Path(place), sink)
    sink.close()
    rows.append(
        Measurement(
            "agent.shipping", rates["ours"], "records/s", "≥ 200,000", f"{RECORDS:,} container lines to OTLP/HTTP"
        )
    )
    if "theirs" in rates:
        rows += [
            Measurement("agent.shipping.collector", rates["theirs"], "records/s", "", "the same in the Collector"),
            Measurement("agent.shipping.ratio", rates["ours"] / rates["theirs"], "×", "≥ 2", "the Collector"),
        ]
    else:
        rows.append(Measurement("agent.shipping.ratio", 0.0, "×", skipped=str(program)))
    return rows


def _shipped(command: list[str], place: Path, sink: Sink) -> float:
    """Records for each second of processor time, start-up not counted."""
    pods = place / "pods"
    pods.mkdir()
    base = {
        "receivers": {"filelog": _filelog(pods)},
        # The Collector drops what does not fit its queue: it has to hold all of this.
        "exporters": {
            "otlphttp": {
                "endpoint": f"http://127.0.0.1:{sink.port}",
                "compression": "none",
                "sending_queue": {"queue_size": RECORDS},
            }
        },
        "service": {
            "telemetry": {"metrics": {"level": "none"}, "logs": {"level": "error"}},
            "pipelines": {"logs": {"receivers": ["filelog"], "exporters": ["otlphttp"]}},
        },
    }
    (place / "base.json").write_text(json.dumps(base))
    with _running([*command, "--config", str(place / "base.json")], place) as process:
        # A first record shows that it runs; its start is not counted.
        _staged(pods, 9, _lines(1, 9))
        sink.requests = 0
        sink.marks.clear()
        _until(lambda: sink.requests > 0, process)
        for number in range(FILES):
            _staged(place / "staged", number, _lines(RECORDS // FILES, number))
        before = _settled(process.pid)
        for path in sorted((place / "staged").iterdir()):
            path.rename(pods / path.name)
        _until(lambda: len(sink.marks - {b"9"}) >= FILES, process)
        return RECORDS / (_settled(process.pid) - before)


def _staged(pods: Path, number: int, lines: bytes) -> None:
    """A pod's log, with a line at its end that tells that all has arrived."""
    folder = pods / f"ml_trainer-{number}_0a1b2c3d-0000-4000-8000-{number:012d}" / "worker"
    folder.mkdir(parents=True)
    last = _stamp(time.time()) + b" stdout F " + MARK + b" %d\n" % number
    (folder / "0.log").write_bytes(lines + last)


def _lines(count: int, rank: int) -> bytes:
    line = b" stdout F [rank%d]: step %d loss 2.%04d lr 3.0e-04 tokens/s 51234 grad_norm 0.%03d\n"
    return b"".join(_stamp(1_790_000_000 + n / 1000) + line % (rank, n, n % 9999, n % 999) for n in range(count))


def _stamp(seconds: float) -> bytes:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S.%f000Z").encode()


# -- latency ---------------------------------------------------------------------------------------------------------

AGENT: Final = """\
receivers:
  filelog:
    include: ["{pods}/*/*/*.log"]
    include_file_path: true
    inotify: {inotify}
    operators: [{{type: container}}]
processors:
  patterndetector: {{forward: verdicts}}
exporters:
  otlphttp: {{endpoint: "http://127.0.0.1:{port}", compression: none}}
service:
  telemetry: {{metrics: {{level: none}}}}
  pipelines:
    logs: {{receivers: [filelog], processors: [patterndetector], exporters: [otlphttp]}}
"""


def _latency() -> list[Measurement]:
    """With the defaults, and where changes are not announced."""
    waits, polled = _waits(CRASHES, inotify=True), _waits(CRASHES // 2, inotify=False)
    late = waits[min(int(len(waits) * 0.99), len(waits) - 1)]
    note = f"{CRASHES} crashes in {CRASHES} pods, all options as they are by default"
    return [
        Measurement("agent.latency.p50", 1000 * waits[len(waits) // 2], "ms", "≤ 200", note),
        Measurement("agent.latency.p99", 1000 * late, "ms", "≤ 1000", "line written to verdict received"),
        Measurement("agent.latency.polled", 1000 * polled[len(polled) // 2], "ms", "", "p50 with inotify: false"),
    ]


def _waits(crashes: int, *, inotify: bool) -> list[float]:
    """Seconds from the last line of a crash to its verdict, sorted."""
    sink = Sink()
    chance = random.Random(7)
    waits: list[float] = []
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        logs = []
        for number in range(crashes):
            path = place / "pods" / f"ml{number}_job-0_0a1b2c3d-0000-4000-8000-{number:012d}" / "worker" / "0.log"
            path.parent.mkdir(parents=True)
            path.write_bytes(_lines(2, number))
            logs.append(path)
        (place / "agent.yaml").write_text(_configuration(place / "pods", sink.port, inotify=inotify))
        command = [sys.executable, "-m", "tracecore", "run", "--config", str(place / "agent.yaml")]
        with _running(command, place) as process:
            _until(lambda: b"running" in (place / "log").read_bytes(), process)
            time.sleep(1.0)
            for number, path in enumerate(logs):
                time.sleep(chance.uniform(0.02, 0.2))
                word = b"failure%04d" % number
                sink.wanted = word
                text = (
                    b"Traceback (most recent call last):",
                    b'  File "/app/train.py", line 7, in <module>',
                    b"    run()",
                )
                with path.open("ab") as file:
                    now = time.time()
                    file.write(
                        b"".join(_stamp(now) + b" stderr F " + line + b"\n" for line in (*text, b"ValueError: " + word))
                    )
                began = time.monotonic()
                _until(lambda: sink.seen >= began, process, 0.002)  # noqa: B023
                waits.append(sink.seen - began)
    sink.close()
    return sorted(waits)


def _configuration(pods: Path, port: int, *, inotify: bool = True) -> str:
    return AGENT.format(pods=pods, port=port, inotify=str(inotify).lower())


# -- what it costs ---------------------------------------------------------------------------------------------------


@contextmanager
def _watching(place: Path, files: int, *, inotify: bool = True) -> Iterator[tuple[int, list[Path]]]:
    """The process of an agent that watches files, with all else as it is by default."""
    logs = []
    for number in range(files):
        path = place / "pods" / f"ml_trainer-{number}_{number:08x}" / "main" / "0.log"
        path.parent.mkdir(parents=True)
        path.write_bytes(_lines(20, number))
        logs.append(path)
    (place / "agent.yaml").write_text(_configuration(place / "pods", 1, inotify=inotify))
    command = [sys.executable, "-m", "tracecore", "run", "--config", str(place / "agent.yaml")]
    with _running(command, place) as process:
        _until(lambda: b"running" in (place / "log").read_bytes(), process)
        yield process.pid, logs


def _busy() -> tuple[float, float]:
    """Share of a core, and MiB, of an agent while eight trainers write 10,000 lines a second."""
    with tempfile.TemporaryDirectory() as name, _watching(Path(name), 8) as (pid, logs):
        time.sleep(1.0)
        began, used, written = time.monotonic(), 0.0, 0
        # What is read at first is not what it costs from then on.
        while (now := time.monotonic() - began) < WARM + SECONDS:
            if not used and now >= WARM:
                used, since = _cpu(pid), now
            while written < now * 10_000:
                stamp = _stamp(time.time())
                for rank, path in enumerate(logs):
                    line = stamp + b" stdout F [rank%d]: epoch 1 step %d loss 2.1%03d lr 3.0e-04 tokens/s 41234.5\n"
                    lines = [line % (rank, written // 8 + n, n) for n in range(50)]
                    with path.open("ab") as file:
                        file.write(b"".join(lines))
                written += 50 * len(logs)
            time.sleep(0.01)
        return (_cpu(pid) - used) / (now - since), overhead._peak(pid)


def _idle(*, inotify: bool = True) -> tuple[float, float, str]:
    """Share of a core, and MiB, of an agent that watches many files which hardly change; and why it polls them."""
    with tempfile.TemporaryDirectory() as name, _watching(Path(name), MANY, inotify=inotify) as (pid, logs):
        # Files count as idle once they have not changed for ten seconds; on a busy machine finding them takes its time.
        time.sleep(13.0)
        _settled(pid)
        used, began, count = _cpu(pid), time.monotonic(), 0
        while time.monotonic() - began < SECONDS:
            count += 1
            with logs[count % 7].open("ab") as file:
                file.write(_stamp(time.time()) + b" stdout F [rank0]: step %d loss 2.1\n" % count)
            time.sleep(0.2)
        said = (Path(name) / "log").read_text().partition(POLLED)[2].partition("\n")[0]
        return (_cpu(pid) - used) / (time.monotonic() - began), overhead._peak(pid), said.strip()


# -- programs --------------------------------------------------------------------------------------------------------


class Sink:
    """An OTLP/HTTP server that looks for a few words in what it gets."""

    def __init__(self) -> None:
        self.requests = 0
        self.marks: set[bytes] = set()
        self.wanted = b"\x00"
        self.seen = 0.0
        sink = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                if self.headers.get("Content-Encoding") == "gzip":
                    body = gzip.decompress(body)
                if sink.wanted in body:
                    sink.seen, sink.wanted = time.monotonic(), b"\x00\x00never"
                at = body.find(MARK)
                while at >= 0:
                    sink.marks.add(body[at + len(MARK) + 1 : at + len(MARK) + 2])
                    at = body.find(MARK, at + 1)
                sink.requests += 1
                self.send_response(200)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, format: str, *args: Any) -> None:
                pass

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.port: int = self._server.server_address[1]
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@contextmanager
def _running(command: list[str], place: Path) -> Iterator[subprocess.Popen[bytes]]:
    with (place / "log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, cwd=place, env={**os.environ, "GOMAXPROCS": "1"})
    try:
        yield process
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _until(condition: Callable[[], object], process: subprocess.Popen[bytes], pause: float = 0.02) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        if process.poll() is not None:
            raise RuntimeError(f"{process.args!r} ended with {process.returncode}")
        if time.monotonic() > deadline:
            raise TimeoutError(f"{process.args!r} takes too long")
        time.sleep(pause)


def _settled(pid: int) -> float:
    """Processor time of a process once it spends hardly any more."""
    last, quiet, deadline = _cpu(pid), 0, time.monotonic() + PATIENCE
    while quiet < 3 and time.monotonic() < deadline:
        time.sleep(0.3)
        now = _cpu(pid)
        quiet = quiet + 1 if now - last < 0.03 else 0
        last = now
    return last


def _cpu(pid: int) -> float:
    return overhead._cpu(pid)


if __name__ == "__main__":
    for row in measure():
        print(row)
