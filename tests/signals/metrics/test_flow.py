"""A series is read as a rate whether it counts bytes or tells bytes per second; PCIe against its own baseline."""

from __future__ import annotations

from collections.abc import Callable
from itertools import accumulate
from typing import Any

import pytest

from tracecore.signals.metrics.point import Sample

Make = Callable[..., Sample]
Bridged = Callable[..., list[dict[str, Any]]]
PREFIX = "tracecore.alert.pcie_rate_collapse."
RATES = [4.0e9, 4.4e9, 3.9e9, 4.2e9, 4.1e9, 4.3e9]
PROF, DEV = "DCGM_FI_PROF_PCIE_TX_BYTES", "DCGM_FI_DEV_PCIE_TX_BYTES"


def counts(rates: list[float], every: float = 15, start: float = 1e12) -> list[float]:
    return list(accumulate((rate * every for rate in rates), initial=start))


def series(make: Make, values: list[float | None], every: float = 15, gpu: int = 0, **more: Any) -> list[Sample]:
    more = {"network__io__direction": "transmit", "origin": "hw.gpu.io", **more}
    return [
        make("hw.gpu.io", value, every * place, gpu, **more) for place, value in enumerate(values) if value is not None
    ]


def collapses(found: list[dict[str, Any]]) -> list[tuple[float, int]]:
    return [(made["at"], round(100 * made[PREFIX + "drop_ratio"])) for made in found]


@pytest.mark.parametrize(
    ("origin", "declared"),
    [(PROF, "gauge"), (PROF, "counter"), (PROF, ""), (DEV, "gauge"), (DEV, "counter"), (DEV, "")],
)
def test_rates_are_rates_whatever_they_are_called(sample: Make, bridged: Bridged, origin: str, declared: str) -> None:
    found = bridged(series(sample, [*RATES, 1e9, 1e9], origin=origin, declared=declared))
    assert collapses(found) == [(90, 76)]


@pytest.mark.parametrize(
    ("origin", "declared"), [(PROF, "counter"), (PROF, ""), (DEV, "counter"), (DEV, ""), ("hw.gpu.io", "")]
)
@pytest.mark.parametrize("start", [0, 5e11, 9e15])
def test_counts_are_counts_whatever_they_are_called(
    sample: Make, bridged: Bridged, origin: str, declared: str, start: float
) -> None:
    found = bridged(series(sample, counts([*RATES, 1e9, 1e9], start=start), origin=origin, declared=declared))
    assert collapses(found) == [(105, 76)]


@pytest.mark.parametrize("declared", ["gauge", "counter", ""])
def test_a_rate_that_never_moves_until_it_falls(sample: Make, bridged: Bridged, declared: str) -> None:
    found = bridged(series(sample, [2e10] * 6 + [1e9] * 3, origin=PROF, declared=declared))
    assert collapses(found) == [(90, 95)]


def test_what_a_record_says(sample: Make, bridged: Bridged) -> None:
    (made,) = bridged(series(sample, [4e9] * 5 + [1e9] * 3, declared="gauge"))
    assert made[PREFIX + "bytes_per_second"] == 1e9
    assert made[PREFIX + "baseline_bytes_per_second"] == 4e9
    assert made[PREFIX + "drop_ratio"] == 0.75
    assert made[PREFIX + "direction"] == "transmit"
    assert made["gpu.id"] == "0000:18:00.0"


@pytest.mark.parametrize(
    ("low", "fires"), [pytest.param(2e9, True, id="exactly half"), pytest.param(2.01e9, False, id="a bit more")]
)
def test_half_of_the_baseline(sample: Make, bridged: Bridged, low: float, fires: bool) -> None:
    assert bool(bridged(series(sample, [4e9] * 5 + [low] * 3, declared="gauge"))) is fires


def test_it_is_said_once_until_it_recovers(sample: Make, bridged: Bridged) -> None:
    values: list[float | None] = [*[4e9] * 5, *[1e9] * 9, *[4e9] * 3, *[1e9] * 3]
    assert collapses(bridged(series(sample, values, declared="gauge"))) == [(75, 75), (255, 75)]


def test_a_moment_is_the_rhythm_of_the_program(sample: Make, bridged: Bridged) -> None:
    values: list[float | None] = ([4e9] * 20 + [1e8] * 9) * 4
    assert bridged(series(sample, values, every=1, declared="gauge")) == []
    assert collapses(bridged(series(sample, [4e9] * 20 + [1e9] * 10, every=1, declared="gauge"))) == [(29, 75)]


def test_little_traffic_is_no_baseline(sample: Make, bridged: Bridged) -> None:
    assert bridged(series(sample, [9e5] * 9 + [0.0] * 9, declared="gauge")) == []


def test_too_few_values_are_no_baseline(sample: Make, bridged: Bridged) -> None:
    assert bridged(series(sample, [4e9] + [1e8] * 9, declared="gauge")) == []


def test_a_counter_that_is_reset_has_not_collapsed(sample: Make, bridged: Bridged) -> None:
    values: list[float | None] = [*counts(RATES), *counts(RATES, start=0)]
    assert bridged(series(sample, values, declared="counter")) == []


def test_missing_scrapes_of_a_counter_are_averaged(sample: Make, bridged: Bridged) -> None:
    values: list[float | None] = list(counts([4e9] * 20))
    values[8:14] = [None] * 6
    assert bridged(series(sample, values, declared="counter")) == []


def test_what_was_before_a_long_gap_does_not_count(sample: Make, bridged: Bridged) -> None:
    values: list[float | None] = [*[4e9] * 6, *[None] * 60, *[1e9] * 6]
    assert bridged(series(sample, values, declared="gauge")) == []


def test_an_idle_gpu_has_no_traffic_to_lose(sample: Make, bridged: Bridged) -> None:
    traffic = series(sample, [4e9] * 6 + [1e6] * 6, declared="gauge")
    idle = [sample("hw.gpu.utilization", 0.97 if place < 6 else 0, 15 * place) for place in range(12)]
    assert bridged(traffic + idle) == []
    busy = [sample("hw.gpu.utilization", 0.97, 15 * place) for place in range(12)]
    assert len(bridged(traffic + busy)) == 1


def test_all_gpus_alike_each_against_itself(sample: Make, bridged: Bridged) -> None:
    """Whether that is the workload is for the pattern to say, which asks the kernel."""
    samples = [one for gpu in range(4) for one in series(sample, [4e9] * 6 + [1e9] * 3, gpu=gpu, declared="gauge")]
    assert [made["hw.gpu.index"] for made in bridged(samples)] == [0, 1, 2, 3]


def test_a_new_pod_on_the_gpu_goes_on_with_its_series(sample: Make, bridged: Bridged) -> None:
    before = series(sample, [4e9] * 6, declared="gauge", k8s__pod__name="train-0")
    after = series(sample, [None] * 6 + [1e9] * 3, declared="gauge", k8s__pod__name="train-1")
    assert len(bridged(before + after)) == 1


def test_instances_of_a_gpu_are_left_out(sample: Make, bridged: Bridged) -> None:
    assert bridged(series(sample, [4e9] * 6 + [1e9] * 3, declared="gauge", hw__gpu__mig__id="3")) == []


def test_a_count_that_is_declared_a_gauge(sample: Make, bridged: Bridged) -> None:
    """It does nothing but rise, for long: such a rate there is not."""
    found = bridged(series(sample, counts([*RATES, *RATES, 1e9, 1e9]), origin=DEV, declared="gauge"))
    assert collapses(found) == [(195, 76)]


def test_three_scrapes_are_a_baseline_for_a_rate(sample: Make, bridged: Bridged) -> None:
    assert collapses(bridged(series(sample, [4e9, 4.2e9, 4.1e9, 1e9], declared="gauge"))) == [(45, 76)]
