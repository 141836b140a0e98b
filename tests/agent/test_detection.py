"""One engine behind all places of a detector: logs and metrics meet in it, and verdicts leave once."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tracecore.agent.batch import Batch
from tracecore.agent.component import Setting
from tracecore.agent.configuration import ConfigurationError, read
from tracecore.agent.processors.patterndetector import Options, PatternDetector
from tracecore.agent.processors.patterndetector.options import ProgressOptions
from tracecore.agent.processors.patterndetector.stalls import StallBridge
from tracecore.agent.telemetry import Meter
from tracecore.facts.training import Progress as ProgressFact
from tracecore.signals.record import Source

SECOND = 1_000_000_000
START = 1_790_000_000 * SECOND


class Clock:
    def __init__(self) -> None:
        self.now = START

    def __call__(self) -> int:
        return self.now


class Shared:
    """Places of one detector, as a graph makes them."""

    def __init__(self, **options: Any) -> None:
        self.clock = Clock()
        self._options = Options(**options)
        self._made: dict[str, Any] = {}

    def _share(self, make: Callable[[], Any]) -> Any:
        return self._made.setdefault("one", None) or self._made.__setitem__("one", make()) or self._made["one"]

    def place(self, pipeline: str) -> PatternDetector:
        meter = Meter("processor", "patterndetector", pipeline)
        health = lambda: (True, dict[str, str]())  # noqa: E731
        return PatternDetector(
            self._options,
            Setting("patterndetector", meter, self.clock, {}.__getitem__, Path(), health, None, self._share),
        )


def ecc(time: int, value: int) -> Batch:
    point = {
        "attributes": {"gpu": "0", "pci_bus_id": "00000000:3B:00.0", "Hostname": "node-7", "UUID": "GPU-1"},
        "value_double": float(value),
        "time_unix_nano": time,
    }
    metric = {
        "name": "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL",
        "sum": {"is_monotonic": True, "aggregation_temporality": 2, "data_points": [point]},
    }
    entry = {"resource": {"attributes": {}}, "scope_metrics": [{"scope": {}, "metrics": [metric]}]}
    return Batch("metrics", {"resource_metrics": [entry]})


def kernel(time: int, text: str) -> Batch:
    record = {"body": text, "attributes": {}, "time_unix_nano": time}
    resource = {"host.name": "node-7", "tracecore.layer": "kernel"}
    entry = {"resource": {"attributes": resource}, "scope_logs": [{"scope": {}, "log_records": [record]}]}
    return Batch("logs", {"resource_logs": [entry]})


XID = "NVRM: Xid (PCI:0000:3b:00): 48, pid=1234, name=python3, DBE (double bit error) ECC Error"


def verdicts(batches: Any) -> list[dict[str, Any]]:
    return [
        record["attributes"]
        for batch in batches
        if batch.signal == "logs"
        for entry in batch.view()["resource_logs"]
        for scope in entry["scope_logs"]
        for record in scope["log_records"]
        if "pattern.name" in record["attributes"]
    ]


def test_a_counter_and_the_kernel_meet_in_one_engine() -> None:
    shared = Shared()
    metrics, logs = shared.place("metrics/dcgm"), shared.place("logs/kernel")
    said: list[dict[str, Any]] = []
    for second in range(0, 120, 10):
        shared.clock.now = START + second * SECOND
        passed = list(metrics.process(ecc(shared.clock.now, int(second >= 60))))
        assert [batch.signal for batch in passed] == ["metrics"], "metrics go on as they came, and nothing else"
        if second == 60:
            said += verdicts(logs.process(kernel(shared.clock.now - SECOND, XID)))
        said += verdicts(logs.tick(shared.clock.now))
    found = {one["pattern.name"]: one for one in said}
    assert found["hbm_ecc"]["pattern.confidence"] == "full"
    assert metrics.due() == logs.due(), "what comes by either way may make the other speak sooner"
    assert list(metrics.tick(shared.clock.now + SECOND)) == []


def test_metrics_alone_say_what_metrics_can() -> None:
    shared = Shared(forward="verdicts")
    metrics, logs = shared.place("metrics"), shared.place("logs")
    said: list[dict[str, Any]] = []
    for second in range(0, 120, 10):
        shared.clock.now = START + second * SECOND
        assert list(metrics.process(ecc(shared.clock.now, 0))) == []
        said += verdicts(logs.tick(shared.clock.now))
    assert said == []


def test_a_verdict_leaves_once_whatever_the_number_of_pipelines() -> None:
    shared = Shared(forward="verdicts")
    first, second = shared.place("logs/a"), shared.place("logs/b")
    shared.clock.now = START
    crash = "RuntimeError: CUDA error: an illegal memory access was encountered"
    record = {"body": crash, "attributes": {}, "time_unix_nano": START}
    entry = {"resource": {"attributes": {"host.name": "n"}}, "scope_logs": [{"scope": {}, "log_records": [record]}]}
    told = verdicts(second.process(Batch("logs", {"resource_logs": [entry]})))
    for _ in range(20):
        shared.clock.now += SECOND // 10
        assert verdicts(second.tick(shared.clock.now)) == []
        told += verdicts(first.tick(shared.clock.now))
    assert [one["pattern.name"] for one in told] == ["worker_crash"]
    assert verdicts(second.drain(shared.clock.now)) == []


CONFIG = """\
receivers:
  otlp: {{protocols: {{http: {{endpoint: "127.0.0.1:0"}}}}}}
processors:
  patterndetector: {detector}
exporters:
  debug:
service:
  pipelines:
    {pipelines}
"""


def problems(tmp_path: Path, detector: str, *pipelines: str) -> list[str]:
    path = tmp_path / "agent.yaml"
    wired = [f"{name}: {{receivers: [otlp], processors: [patterndetector], exporters: [debug]}}" for name in pipelines]
    path.write_text(CONFIG.format(detector=detector, pipelines="\n    ".join(wired)))
    try:
        read([path])
    except ConfigurationError as error:
        return [f"{problem.line}: {problem.message}" for problem in error.problems]
    return []


def test_a_detector_needs_a_pipeline_for_what_it_says(tmp_path: Path) -> None:
    assert problems(tmp_path, "{forward: verdicts}", "metrics", "logs") == []
    (wrong,) = problems(tmp_path, "{forward: verdicts}", "metrics")
    assert "name it in a logs pipeline too" in wrong
    assert wrong.startswith("9: ")


@pytest.mark.parametrize(
    ("detector", "said"),
    [
        ("{patterns: {nccl_hang: {threshold: 10s, min_ranks: 3}, hbm_ecc: {enabled: false}}}", []),
        ("{patterns: {ncl_hang: {}}}", ["nccl_hang"]),
        ("{patterns: {nccl_hang: {treshold: 10s}}}", ["threshold"]),
        ("{patterns: {nccl_hang: {threshold: soon}}}", ["soon"]),
        ("{patterns: {nccl_hang: {min_ranks: -1}}}", ["min_ranks", ">="]),
        ("{patterns: {nccl_hang: 7}}", ["settings by name"]),
        ("{patterns: {nccl_hang: {enabled: perhaps}}}", ["true or false"]),
        ("{partial_verdicts: sometimes}", ["expected true or false"]),
        ("{forward: some}", ["there are all, verdicts"]),
        ("{progress: {stall_after: 60s, eval_after: 10s}}", ["stall_after"]),
    ],
)
def test_thresholds_are_checked(tmp_path: Path, detector: str, said: list[str]) -> None:
    found = problems(tmp_path, detector, "logs")
    if not said:
        assert found == []
        return
    assert len(found) == 1
    assert found[0].startswith("4: ")
    assert any(word in found[0] for word in said), found


# -- stalls ------------------------------------------------------------------------------------------------------------


def reports(count: int, phase: str | None = None) -> list[ProgressFact]:
    return [
        ProgressFact(
            time=START + n * SECOND,
            source=Source("log", n),
            job="j",
            rank=0,
            step=n,
            phase=phase if n == count - 1 else None,
        )
        for n in range(count)
    ]


def stalled(settings: ProgressOptions, facts: list[ProgressFact], seconds: int) -> list[float]:
    """How long stalls were when they were stated."""
    stalls = StallBridge(settings)
    found = stalls.tick(facts, facts[-1].time)
    for second in range(10, seconds + 1, 10):
        found += stalls.tick((), facts[-1].time + second * SECOND)
    return [stall.no_progress_s for stall in found]


def test_a_step_that_does_not_end_is_a_stall() -> None:
    assert stalled(ProgressOptions(), reports(9), 50) == []
    assert stalled(ProgressOptions(), reports(9), 70) == [60.0, 70.0]


def test_an_evaluation_may_take_longer_where_that_is_said() -> None:
    settings = ProgressOptions(eval_after=120 * SECOND)
    assert stalled(settings, reports(9, "eval"), 110) == []
    assert stalled(settings, reports(9, "eval"), 120) == [120.0]
    assert stalled(settings, reports(9), 60) == [60.0]


def test_a_warm_up_may_take_longer_where_that_is_said() -> None:
    settings = ProgressOptions(warmup_steps=3, warmup_after=300 * SECOND)
    assert stalled(settings, reports(3), 290) == []
    assert stalled(settings, reports(3), 300)[0] == 300.0
    assert stalled(settings, reports(4), 60) == [60.0]


AGENT = """\
receivers:
  otlp: {protocols: {http: {endpoint: "127.0.0.1:0"}}}
processors:
  patterndetector: {forward: verdicts}
exporters:
  file: {path: out.json}
service:
  pipelines:
    metrics: {receivers: [otlp], processors: [patterndetector], exporters: [file]}
    logs: {receivers: [otlp], processors: [patterndetector], exporters: [file]}
"""


def test_a_running_agent_joins_metrics_and_logs(
    agent: Callable[[str], Any], wait_for: Callable[..., Any], post: Callable[..., tuple[int, bytes]]
) -> None:
    running = agent(AGENT)
    now = time.time_ns()

    def counted(at: int, value: int) -> bytes:
        attributes = [
            {"key": key, "value": {"stringValue": text}}
            for key, text in (("pci_bus_id", "00000000:3B:00.0"), ("Hostname", "node-7"), ("gpu", "0"))
        ]
        point = {"attributes": attributes, "asDouble": value, "timeUnixNano": str(at)}
        total = {"dataPoints": [point], "isMonotonic": True, "aggregationTemporality": 2}
        metric = {"name": "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL", "sum": total}
        return msgspec.json.encode({"resourceMetrics": [{"resource": {}, "scopeMetrics": [{"metrics": [metric]}]}]})

    for ago, value in ((40, 0), (25, 0), (10, 1)):
        body = counted(now - ago * SECOND, value)
        assert post(running.port("http"), "/v1/metrics", body, "application/json")[0] == 200
    resource = {"host.name": "node-7", "tracecore.layer": "kernel"}
    assert running.send([XID], resource=resource, times=[now - 11 * SECOND])[0] == 200
    verdict = wait_for(
        lambda: next((r for r in running.written() if r["attributes"].get("pattern.name") == "hbm_ecc"), None), 60
    )
    assert verdict["attributes"]["pattern.confidence"] == "full"
    assert running.stop() == 0
