"""Throttling for heat: how it adds up, what a clock is compared with, and when it is the whole node."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec
import pytest

from tracecore.engine.window import FactWindow
from tracecore.facts.fact import Fact
from tracecore.facts.gpu import ThrottleSample
from tracecore.patterns.thermal_throttle.detector import MOST, ThermalThrottle, ThermalThrottleVerdict
from tracecore.patterns.thermal_throttle.heat import GpuHeat, Span
from tracecore.signals.record import Source

SECOND = 1_000_000_000
START = 1_794_700_000 * SECOND
GAP, ACTIVE, WINDOW = 60, 30, 300
HOT = "thermal_hardware"


def sample(
    at: float, gpu: str | None = "g0", clock: float | None = None, reason: str | None = None, **fields: Any
) -> ThrottleSample:
    place = Source(f"{gpu}", int(at * 10) + 5 * (clock is not None))
    return ThrottleSample(
        time=START + round(at * SECOND), source=place, node="n1", gpu=gpu, sm_clock_mhz=clock, reason=reason, **fields
    )


def found(*facts: Iterable[Fact]) -> list[ThermalThrottleVerdict]:
    window = FactWindow(("n1",), 0)
    for several in facts:
        for fact in several:
            window.add(fact)
    verdicts = ThermalThrottle().evaluate(window, START + 10_000 * SECOND)
    assert all(isinstance(verdict, ThermalThrottleVerdict) for verdict in verdicts)
    return verdicts  # type: ignore[return-value]


def run(gpu: str = "g0", clock: float | None = 800, times: Iterable[float] = range(100, 131, 10), **fields: Any) -> Any:
    """A GPU that is hot at these times."""
    return [sample(at, gpu, clock, **{"reason": HOT} | fields) for at in times]


def cool(gpu: str, clock: float | None = 1000, times: Iterable[float] = range(100, 131, 10), **fields: Any) -> Any:
    return [sample(at, gpu, clock, **fields) for at in times]


@pytest.mark.parametrize(
    ("facts", "seconds"),
    [
        # Between two samples that say hot, if they are near.
        ([run(), cool("g1")], 30), ([run(times=(100, 129)), cool("g1")], None),
        ([run(times=(100, 130)), cool("g1")], 30),
        ([run(times=(100, 160)), cool("g1", times=(160,))], 60),
        ([run(times=(100, 160.1)), cool("g1", times=(160,))], None),
        # Slow is at most 0.8 of the others' median.
        ([run(clock=801), cool("g1")], None), ([run(clock=None), cool("g1")], None),
        ([run(), cool("g1"), cool("g2", 990)], None), ([run(), cool("g1"), cool("g2", 1001)], 30),
        ([run(), cool("g1"), cool("g2", 500), cool("g3", 2000)], 30),
        ([run(clock=801), cool("g1"), cool("g2", 500), cool("g3", 2000)], None),
        # A clock of another that is long ago says nothing.
        ([run(), cool("g1", times=(40, 70))], 30), ([run(), cool("g1", times=(39, 69))], None),
        # As counted.
        ([[sample(100, clock=800, reason=HOT, throttled_s=30.0)], cool("g1")], 30),
        ([[sample(100, clock=800, reason=HOT, throttled_s=29.9)], cool("g1")], None),
        ([[sample(100, clock=800, reason=HOT, throttled_s=0.0)], cool("g1")], None),
        ([run(times=range(100, 160), throttled_s=0.5), cool("g1", times=range(100, 160))], 30),
        ([run(times=(100, 399), throttled_s=15.0), cool("g1", times=(100, 399))], 30),
        ([run(times=(100, 400), throttled_s=15.0), cool("g1", times=(100, 400))], 30),
        ([run(times=(100, 401), throttled_s=15.0), cool("g1", times=(100, 401))], None),
        # Other reasons are no heat.
        ([run(reason="power"), cool("g1")], None), ([run(reason="thermal_software"), cool("g1")], 30),
        # What said that it is over.
        ([run(times=(100, 120, 130)), [sample(110, reason="none")], cool("g1")], None),
        ([run(times=(100, 120, 130, 140)), [sample(110, reason="none")], cool("g1", times=(120, 140))], None),
        ([run(times=(100, 120, 130, 150)), [sample(110, reason="none")], cool("g1", times=(120, 150))], 30),
        ([run(times=(100, 120, 130)), [sample(110, reason=HOT, throttled_s=0.0)], cool("g1")], None),
        ([run(times=(100, 120, 130)), [sample(110, reason="power", throttled_s=0.0)], cool("g1")], 30),
        ([run(), [sample(105, reason="none"), sample(110, reason="none")], cool("g1")], None),
    ],
)  # fmt: skip
def test_throttling_adds_up_while_the_clock_is_low(facts: list[Any], seconds: float | None) -> None:
    said = found(*facts)
    assert [verdict.seconds for verdict in said] == ([] if seconds is None else [seconds])


def test_the_verdict_names_clock_reference_and_samples() -> None:
    (said,) = found(run(temperature_c=90.0), cool("g1"), cool("g2", 1100), cool("g3", 1300))
    assert (said.clock, said.reference, said.time - START) == (800, 1100, 130 * SECOND)
    assert (said.first.time - START, said.last.time - START) == (100 * SECOND, 130 * SECOND)
    assert said.peer is not None
    assert said.peer.gpu == "g2"
    assert said.fields()["reference"] == "peers"
    (even,) = found(run(), cool("g1"), cool("g2", 1100))
    assert even.reference == 1050
    assert even.peer is not None
    assert even.peer.gpu == "g1"


@pytest.mark.parametrize(
    ("free", "reference"),
    [
        ([sample(90, clock=1000)], 1000), ([sample(90, clock=1000, reason="none")], 1000),
        ([sample(90, clock=1000, reason="power")], None), ([], None),
        ([sample(130 - 2 * WINDOW, clock=1000)], 1000), ([sample(129 - 2 * WINDOW, clock=1000)], None),
        ([sample(80, clock=2000), sample(90, clock=1000)], 1000),
    ],
)  # fmt: skip
def test_alone_on_its_node_a_gpu_is_compared_with_its_own_clock_before(
    free: list[ThrottleSample], reference: float | None
) -> None:
    said = found(free, run())
    assert [verdict.reference for verdict in said] == ([] if reference is None else [reference])
    if said:
        assert said[0].peer is None
        assert said[0].fields()["reference"] == "own"


def test_a_clock_while_it_is_throttled_is_not_its_own_free_clock() -> None:
    # Between two hot samples another exporter tells a clock without a reason.
    still = [sample(at, clock=800) for at in (105, 115)]
    (said,) = found([sample(90, clock=1000)], run(), still)
    assert said.reference == 1000
    (said,) = found([sample(90, clock=1000)], run(), [sample(110, reason="none"), sample(115, clock=700)])
    assert said.reference == 1000
    over = [sample(103, reason="none"), sample(105, clock=700)]
    assert found([sample(90, clock=1000)], run(times=(100, 110, 120, 130, 140)), over) == []


def test_of_samples_of_one_instant_the_one_that_says_hot_is_right() -> None:
    both = [sample(at, reason="none") for at in (100, 110, 120, 130)]
    (said,) = found(run(), both, cool("g1"))
    assert said.seconds == 30
    own = [sample(at, clock=801, gpu="g0") for at in (110,)]
    (alone,) = found([sample(90, clock=1000)], run(), own)
    assert alone.reference == 1000
    again = [msgspec.structs.replace(fact, source=Source("again")) for fact in own]
    (alone,) = found([sample(90, clock=1000)], run(), own, again)
    assert alone.reference == 1000


def test_of_two_counters_that_run_at_once_the_longer_counts() -> None:
    def counted(reason: str, seconds: float) -> ThrottleSample:
        return ThrottleSample(
            time=START + 100 * SECOND, source=Source(reason), node="n1", gpu="g0", sm_clock_mhz=800,
            reason=reason, throttled_s=seconds,
        )  # fmt: skip

    assert found([counted(HOT, 20.0), counted("thermal_software", 20.0)], cool("g1")) == []
    nearly = 29.999999999
    assert found([counted(HOT, nearly), counted("thermal_software", nearly)], cool("g1")) == []
    (said,) = found([counted(HOT, 20.0), counted("thermal_software", 30.0)], cool("g1"))
    assert said.seconds == 30


@pytest.mark.parametrize(
    ("facts", "gpus"),
    [
        ([run("g0"), run("g1")], ("g0", "g1")),
        ([run("g0")], None),
        ([run("g0"), run("g1", times=(100, 110, 120, 129))], None),
        # Not sampled in this window: not present.
        ([run("g0"), run("g1"), cool("g2", times=(130 - WINDOW - 1,))], ("g0", "g1")),
        ([run("g0"), run("g1"), cool("g2", None, times=(130 - WINDOW,))], None),
        ([run("g0"), run("g1"), run("g2", times=(100 - WINDOW, 129 - WINDOW))], ("g0", "g1")),
        ([run("g0"), run("g1"), run("g2", times=(100 - WINDOW, 130 - WINDOW))], None),
        # One that keeps its clock is no failed cooling.
        ([cool("g0", times=(50,)), run("g0", 801), run("g1")], None),
        ([cool("g0", times=(50,)), run("g0", 800), run("g1")], ("g0", "g1")),
        ([cool("g0", times=(50,)), run("g0", 801), cool("g1", times=(50,)), run("g1", 700)], ("g0", "g1")),
        ([cool("g0", times=(130 - 2 * WINDOW,)), run("g0", 900), run("g1", 900)], None),
        ([cool("g0", times=(129 - 2 * WINDOW,)), run("g0", 900), run("g1", 900)], ("g0", "g1")),
    ],
)
def test_all_gpus_of_a_node_at_once_are_its_cooling(facts: list[Any], gpus: tuple[str, ...] | None) -> None:
    whole = [verdict for verdict in found(*facts) if verdict.gpus]
    assert [verdict.gpus for verdict in whole] == ([] if gpus is None else [gpus])
    for verdict in whole:
        assert verdict.seconds == 30
        assert (verdict.first.time - START, verdict.time - START) == (100 * SECOND, 130 * SECOND)
        known = any(fact.reason is None for several in facts for fact in several if fact.gpu in verdict.gpus)
        near = any(fact.time >= START + (130 - 2 * WINDOW) * SECOND for fact in facts[0] if fact.reason is None)
        assert verdict.confidence == ("full" if known and near else "partial")


@pytest.mark.parametrize(("at", "kept"), [(130 + WINDOW, 1), (131 + WINDOW, 2)])
def test_a_gpu_is_not_told_beside_its_node_unless_it_is_another_time(at: float, kept: int) -> None:
    later = [sample(at, "g0", 100, reason=HOT, throttled_s=30.0)]
    facts = [run("g0", None), run("g1", None), later, cool("g2", times=(at,))]
    assert len(found(*facts)) == kept


def test_very_many_gpus_are_not_taken_for_one_node() -> None:
    assert [len(verdict.gpus) for verdict in found(*(run(f"g{n}", None) for n in range(MOST)))] == [MOST]
    assert found(*(run(f"g{n}", None) for n in range(MOST + 1))) == []


def test_a_sample_without_a_gpu_is_of_no_node() -> None:
    assert ThermalThrottle().keys(sample(1, None)) == ()
    assert ThermalThrottle().keys(sample(1)) == (("n1",),)


def test_verdicts_of_one_instant_are_in_order_of_the_gpus() -> None:
    hot, others = [f"g{n}" for n in range(6)], [cool(f"h{n}") for n in range(8)]
    assert [verdict.last.gpu for verdict in found(*(run(gpu) for gpu in hot), *others)] == hot


def test_throttled_time_is_told_in_milliseconds() -> None:
    (said,) = found([sample(100, clock=800, reason=HOT, throttled_s=30.00061)], cool("g1"))
    assert said.fields()["throttled_seconds"] == 30.001
    assert said.promoted()["tracecore.alert.thermal_throttle.seconds"] == 30.001


def test_a_span_forgets_what_began_before_the_window() -> None:
    span = Span()
    for at, length in ((1, 5), (2, 7), (3, 9)):
        span.parts.append((sample(at), length))
        span.total += length
    assert span.since(START + 2 * SECOND) == 16
    assert span.since(START + 2 * SECOND + 1) == 9
    assert span.since(START + 9 * SECOND) == 0


@pytest.mark.parametrize(
    ("state", "part"),
    [
        ({"throttled": sample(50)}, (50, 50)), ({"throttled": sample(40)}, (40, 60)), ({"throttled": sample(39)}, None),
        ({"throttled": sample(100)}, None), ({}, None), ({"throttled": sample(50, throttled_s=1.0)}, None),
        ({"throttled": sample(50), "ended": sample(60)}, None),
        ({"throttled": sample(50), "ended": sample(50)}, (50, 50)),
        ({"throttled": sample(50), "ended": sample(100), "ended_before": sample(60)}, None),
        ({"throttled": sample(50), "ended": sample(100), "ended_before": sample(40)}, (50, 50)),
        ({"throttled": sample(50), "ended": sample(100)}, (50, 50)),
    ],
)  # fmt: skip
def test_the_throttled_time_that_a_hot_sample_ends(state: dict[str, Any], part: tuple[float, float] | None) -> None:
    gpu = GpuHeat()
    for name, value in state.items():
        setattr(gpu, name, value)
    now = sample(100)
    heated = gpu.heated(now, GAP * SECOND)
    assert (heated and ((heated[0].time - START) / SECOND, heated[1] / SECOND)) == part
    assert gpu.throttled is now


@pytest.mark.parametrize(("free", "kept"), [(99, 99), (100, 7)])
def test_a_clock_of_the_same_instant_is_none_without_throttling(free: float, kept: float) -> None:
    gpu = GpuHeat()
    gpu.free, gpu.free_before = sample(free), sample(7)
    gpu.heated(sample(100), GAP)
    assert gpu.free == sample(kept)


def test_a_counter_says_how_long() -> None:
    now = sample(100, throttled_s=2.5)
    assert GpuHeat().heated(now, GAP) == (now, 2_500_000_000)
    assert GpuHeat().heated(sample(100, throttled_s=1e12), GAP) == (sample(100, throttled_s=1e12), 10**18)


@pytest.mark.parametrize(
    ("degrees", "said"), [((None, 90.0), " at 90 °C"), ((90.0, None), ""), ((80.0, 90.0), " at 90")]
)
def test_the_headline_has_the_last_temperature(degrees: tuple[float | None, float | None], said: str) -> None:
    first, last = (
        ThrottleSample(time=1, source=Source(path="a", offset=n), node="n1", gpu="0000:18:00.0", temperature_c=value)
        for n, value in enumerate(degrees)
    )
    verdict = ThermalThrottleVerdict(key=("n1",), episode="e", time=1, first=first, last=last, seconds=60.0)
    assert f"because of heat{said}" in verdict.headline()
    assert ("°C" in verdict.headline()) is bool(said)
