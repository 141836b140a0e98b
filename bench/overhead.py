"""What an agent costs a node: processor time and memory of a real agent process, as the kernel counts them.

    python -m bench.overhead [SECONDS]

The cases: no lines at all; 10,000 lines in each second in detection mode (verdicts leave, nothing else); the same
with every record sent by OTLP to a server on this machine; 5,000 files of which none or ten grow. Time is what the
kernel charged to the process (`utime + stime`), so that it does not matter what else the machine does; memory is the
highest resident size. The writer and the server are other processes and not counted.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

LINES: Final = 10_000
PIECES: Final = 20

DETECT: Final = """\
receivers:
  filelog:
    include: ["{pods}/*/*/*.log"]
    include_file_path: true
    storage: file_storage
    operators: [{{type: container}}]
processors:
  memory_limiter: {{limit_mib: 512}}
  patterndetector: {{forward: verdicts}}
  batch:
exporters:
  file: {{path: out.json}}
  otlphttp: {{endpoint: "http://127.0.0.1:{port}"}}
extensions:
  file_storage: {{directory: state, create_directory: true}}
service:
  extensions: [file_storage]
  telemetry: {{metrics: {{level: none}}}}
  pipelines:
    logs: {{receivers: [filelog], processors: [{processors}], exporters: [{exporter}]}}
"""
SINK: Final = """\
import http.server, sys
class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()
    def log_message(self, *args): pass
server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
print(server.server_address[1], flush=True)
server.serve_forever()
"""


def measure(seconds: float, *, rate: int, files: int, busy: int, ship: bool) -> tuple[float, float]:
    """Share of one core, and MiB, of an agent under this load."""
    with tempfile.TemporaryDirectory() as name, _sink() as port:
        directory = Path(name)
        logs = []
        for number in range(files):
            path = directory / "pods" / f"ml_trainer-{number}_{number:08x}" / "main" / "0.log"
            path.parent.mkdir(parents=True)
            path.write_text(_lines(number, 3, number))
            logs.append(path)
        processors, exporter = (
            ("memory_limiter, batch", "otlphttp") if ship else ("memory_limiter, patterndetector", "file")
        )
        text = DETECT.format(pods=directory / "pods", port=port, processors=processors, exporter=exporter)
        (directory / "agent.yaml").write_text(text)
        with (directory / "agent.log").open("wb") as log:
            command = [sys.executable, "-m", "tracecore", "run", "--config", "agent.yaml"]
            agent = subprocess.Popen(command, cwd=directory, stderr=log)
        try:
            while b"running" not in (directory / "agent.log").read_bytes():
                assert agent.poll() is None, (directory / "agent.log").read_text()
                time.sleep(0.05)
            # A file counts as idle when it has not changed for ten seconds.
            time.sleep(15.0 if files > 100 else 2.0)
            used, began = _cpu(agent.pid), time.monotonic()
            step = 0
            while (now := time.monotonic() - began) < seconds:
                # Lines that should be there by now, in pieces of a twentieth of a second.
                due = int(now * PIECES) + 1
                while rate and step < due:
                    step += 1
                    for number in range(busy):
                        with logs[number].open("a") as file:
                            file.write(_lines(number, rate // PIECES // busy, step))
                time.sleep(max(0.0, (int(now * PIECES) + 1) / PIECES - (time.monotonic() - began)))
            return (_cpu(agent.pid) - used) / (time.monotonic() - began), _peak(agent.pid)
        finally:
            agent.send_signal(signal.SIGTERM)
            agent.wait(30)


def _lines(number: int, count: int, step: int) -> str:
    """What a trainer prints while it trains."""
    stamp = time.strftime("%Y-%m-%dT%H:%M:%S.000000000Z", time.gmtime())
    return "".join(
        f"{stamp} stdout F [rank{number}]: epoch 1 step {step * 100 + n} loss {2.0 + n % 7 / 10:.4f} lr 3.0e-04 "
        f"grad_norm 0.91 tokens/s 41234.5 mem 61.2GiB\n"
        for n in range(count)
    )


def _cpu(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _peak(pid: int) -> float:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(next(line for line in status.splitlines() if line.startswith("VmHWM")).split()[1]) / 1024


@contextmanager
def _sink() -> Iterator[int]:
    server = subprocess.Popen([sys.executable, "-c", SINK], stdout=subprocess.PIPE)
    assert server.stdout is not None
    try:
        yield int(server.stdout.readline())
    finally:
        server.kill()
        server.wait()


def main() -> None:
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 20.0
    cases = {
        "no lines, 8 files": {"rate": 0, "files": 8, "busy": 8, "ship": False},
        "10,000 lines/s, detection": {"rate": LINES, "files": 8, "busy": 8, "ship": False},
        "10,000 lines/s, every record sent": {"rate": LINES, "files": 8, "busy": 8, "ship": True},
        "5,000 files, none grows": {"rate": 0, "files": 5000, "busy": 10, "ship": False},
        "5,000 files, ten grow": {"rate": 1000, "files": 5000, "busy": 10, "ship": False},
    }
    print(f"{'case':36} {'core':>8} {'peak':>9}")
    for name, case in cases.items():
        share, peak = measure(seconds, **case)  # type: ignore[arg-type]
        print(f"{name:36} {share:8.1%} {peak:5.0f} MiB", flush=True)


if __name__ == "__main__":
    main()
