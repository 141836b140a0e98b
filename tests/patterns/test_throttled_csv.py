"""`nvidia-smi` tables, read and judged: a power cap is not heat, and heat is."""

from __future__ import annotations

import io
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec

from tracecore.engine.emission import standing
from tracecore.engine.engine import Engine
from tracecore.facts.fact import Fact
from tracecore.facts.gpu import ThrottleSample
from tracecore.facts.projection import project
from tracecore.patterns.contract import Verdict
from tracecore.patterns.thermal_throttle.detector import ThermalThrottle
from tracecore.signals.nvidia import smi_csv
from tracecore.signals.stream import Clock, Counters, Stream

RECORDED = Path(__file__).parents[2] / "examples" / "telemetry" / "power_cap_not_thermal.csv"
HEADER = (
    "timestamp, pci.bus_id, temperature.gpu, clocks.current.sm [MHz], clocks_event_reasons.sw_power_cap, "
    "clocks_event_reasons.hw_thermal_slowdown, clocks_event_reasons.sw_thermal_slowdown\n"
)


def facts_of(text: bytes) -> list[Fact]:
    stream = Stream(path="smi.csv", format="nvidia_csv", layer="metrics", open=lambda: io.BytesIO(text))
    facts: list[Fact] = []
    for point in smi_csv.read_csv(stream, Clock(), Counters()):
        series = f"{point.source.uid}#{point.name}/{point.labels.get('hw.gpu.throttle.reason')}"
        facts += project(
            {
                "resource": {"attributes": {}},
                "log": {"attributes": {**point.labels, point.name: point.value}, "time_unix_nano": point.time},
                "source": msgspec.structs.replace(point.source, ident=series),
            }
        )
    return facts


def verdicts_of(facts: list[Fact]) -> list[Verdict]:
    return [emission.verdict for emission in standing(Engine([ThermalThrottle()]).replay(facts))]


def test_a_recorded_power_cap_is_not_heat() -> None:
    facts = facts_of(RECORDED.read_bytes())
    samples = [fact for fact in facts if isinstance(fact, ThrottleSample)]
    assert any(sample.reason == "power" and sample.throttled_s is None for sample in samples)
    assert not any(sample.thermal for sample in samples)
    assert verdicts_of(facts) == []


def test_the_same_table_with_heat_in_it_names_the_gpu() -> None:
    rows = [HEADER]
    start = datetime(2026, 11, 15, 1, 36, tzinfo=UTC)
    for number in range(6):
        for bus, clock, heat in (("3B", 1200, "Active"), ("5E", 1980, "Not Active"), ("86", 1965, "Not Active")):
            stamp = (start + timedelta(seconds=10 * number)).strftime("%Y/%m/%d %H:%M:%S.000")
            rows.append(f"{stamp}, 00000000:{bus}:00.0, 91, {clock} MHz, Active, {heat}, Not Active\n")
    (verdict,) = verdicts_of(facts_of("".join(rows).encode()))
    assert verdict.document()["gpu.id"] == "0000:3b:00.0"
    assert verdict.document()["throttled_seconds"] == 30.0
