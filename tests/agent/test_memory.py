"""An agent whose output was away accepts batches again, and stays below its limit meanwhile."""

from __future__ import annotations

import re
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tracecore.agent.batch import Batch
from tracecore.agent.component import Setting
from tracecore.agent.exporters.queue_options import RetryOnFailure, SendingQueue
from tracecore.agent.exporters.sending import Rejected, Sender
from tracecore.agent.memory import release, resident_bytes
from tracecore.agent.processors import memory_limiter
from tracecore.agent.telemetry import Meter

Start = Callable[[str], Any]
Wait = Callable[..., Any]

LINE = (
    '{"time":"2026-01-01T00:00:00Z","level":"info","step":%d,"loss":2.1234,"lr":0.0003,"tokens":51234,"msg":"done"}\n'
)

AGENT = """\
receivers:
  filelog: {{include: ["{logs}/*.log"], start_at: beginning, operators: [{{type: json_parser}}]}}
processors:
  memory_limiter: {{limit_mib: {limit}, spike_limit_mib: {spike}, check_interval: 200ms}}
exporters:
  otlphttp:
    endpoint: "http://127.0.0.1:{port}"
    retry_on_failure: {{initial_interval: 200ms, max_interval: 300ms}}
service:
  telemetry: {{metrics: {{address: "127.0.0.1:0"}}}}
  pipelines:
    logs: {{receivers: [filelog], processors: [memory_limiter], exporters: [otlphttp]}}
"""


def setting(now: list[int] | None = None) -> Setting:
    clock = [0] if now is None else now
    meter = Meter("processor", "memory_limiter", "logs")
    return Setting("memory_limiter", meter, lambda: clock[0], {}.__getitem__, Path(), lambda: (True, {}))


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port: int = one.getsockname()[1]
        return port


def peak(pid: int) -> int:
    """MiB that a process held at most."""
    match = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    assert match is not None
    return int(match[1]) // 1024


def backlog(place: Path, lines: int) -> None:
    place.mkdir()
    text = "".join(LINE % n for n in range(lines // 2))
    for name in ("a.log", "b.log"):
        (place / name).write_text(text)


def test_an_agent_recovers_after_its_output_was_away(
    agent: Start, tmp_path: Path, wait_for: Wait, sink_kind: Any
) -> None:
    lines = 300_000
    backlog(tmp_path / "logs", lines)
    port = free_port()
    running = agent(AGENT.format(logs=tmp_path / "logs", limit=130, spike=10, port=port))
    running.wait_log("batches are refused from 120 MiB on")
    sink = sink_kind(port)
    try:
        wait_for(lambda: len(sink.bodies) >= lines, 90)
    finally:
        sink.close()
    assert "batches are accepted again" in running.log
    assert len(sink.bodies) == lines


def test_an_agent_stays_below_the_limit_of_its_pod(agent: Start, tmp_path: Path, wait_for: Wait) -> None:
    """The chart's default is 512 MiB, of which the limiter gets 80 %, and a fifth for what comes between two looks."""
    backlog(tmp_path / "logs", 600_000)
    running = agent(AGENT.format(logs=tmp_path / "logs", limit=409, spike=102, port=free_port()))
    wait_for(lambda: running.metric("tracecore_component_refused_total", component="filelog") > 0, 60)
    assert running.process is not None
    assert peak(running.process.pid) < 300


def test_memory_that_was_freed_is_returned() -> None:
    before = resident_bytes()
    held = [bytes(1000) for _ in range(200_000)]
    assert resident_bytes() > before + (150 << 20)
    del held
    assert release() < before + (50 << 20)


def test_where_nothing_is_under_way_one_batch_at_a_time_is_accepted() -> None:
    now = [10**18]
    one = memory_limiter.MemoryLimiter(memory_limiter.Options(limit_mib=1), setting(now))
    with pytest.raises(memory_limiter.Refused):
        one.admit()
    now[0] += memory_limiter.SECOND
    one.admit()
    (batch,) = one.process(Batch("logs", {"resource_logs": []}, count=0))
    with pytest.raises(memory_limiter.Refused):
        one.admit()
    batch.done()
    one.admit()


@pytest.mark.parametrize(("sizer", "of_one"), [("requests", 1), ("items", 10), ("bytes", 0)])
def test_a_queue_is_bounded_by_what_its_sizer_counts(sizer: Any, of_one: int) -> None:
    def send(batch: Batch) -> None:
        raise Rejected("never called: there are no workers")

    where = setting()
    records = [{"body": "x" * 20, "attributes": {}} for _ in range(10)]
    entry = {"resource": {"attributes": {}}, "scope_logs": [{"scope": {}, "log_records": records}]}
    most = 3 * (of_one or Batch("logs", {"resource_logs": [entry]}).pack())
    sender = Sender(send, where, SendingQueue(sizer=sizer, queue_size=most), RetryOnFailure(), lambda: None)
    taken = 0
    while sender.ready():
        sender.export(Batch("logs", {"resource_logs": [entry]}))
        taken += 1
    assert taken == 3
    assert where.meter.queue_depth is not None
    assert where.meter.queue_depth() == most
    assert where.meter.queue_capacity == most


def test_a_queue_of_large_requests_is_bounded_in_bytes_too() -> None:
    where = setting()
    sender = Sender(lambda batch: None, where, SendingQueue(), RetryOnFailure(), lambda: None)
    record = {"body": "x" * (8 << 20), "attributes": {}}
    entry = {"resource": {"attributes": {}}, "scope_logs": [{"scope": {}, "log_records": [record]}]}
    taken = 0
    while sender.ready():
        sender.export(Batch("logs", {"resource_logs": [entry]}))
        taken += 1
    assert taken == 8
    assert where.meter.gauges["queue_bytes"]() > 64 << 20
