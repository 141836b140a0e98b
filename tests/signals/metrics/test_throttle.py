"""One look at each GPU for each scrape."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tracecore.signals.metrics.bridges import all_bridges
from tracecore.signals.metrics.point import Sample

Make = Callable[..., Sample]
Bridged = Callable[..., list[dict[str, Any]]]
REASON = "hw.gpu.throttle.reason"
LASTED = "hw.gpu.throttle.duration"


@pytest.mark.parametrize(
    ("mask", "reason"),
    [
        (0x0, "none"),
        (0x1, "none"),
        (0x2, "none"),
        (0x4, "power"),
        (0x8, "slowdown_hardware"),
        (0x10, "sync_boost"),
        (0x20, "thermal_software"),
        (0x40, "thermal_hardware"),
        (0x48, "thermal_hardware"),
        (0x80, "power_brake"),
        (0x88, "power_brake"),
        (0x64, "thermal_hardware"),
        (0x24, "thermal_software"),
        (0x100, "none"),
    ],
)
def test_bits(sample: Make, bridged: Bridged, mask: int, reason: str) -> None:
    assert [made[REASON] for made in bridged([sample("hw.gpu.throttle.mask", mask, 0)])] == [reason]


def test_one_record_holds_what_one_scrape_says(sample: Make, bridged: Bridged) -> None:
    (made,) = bridged(
        [
            sample("hw.gpu.temperature", 88, 0),
            sample("hw.gpu.clock.sm", 1200, 0),
            sample("hw.gpu.throttle.mask", 0x20, 0),
        ]
    )
    assert (made["hw.gpu.temperature"], made["hw.gpu.clock.sm"], made[REASON]) == (88, 1200, "thermal_software")


def test_what_is_not_measured_is_not_said(sample: Make, bridged: Bridged) -> None:
    (made,) = bridged([sample("hw.gpu.clock.sm", 1980, 0)])
    assert not {REASON, LASTED, "hw.gpu.temperature"} & made.keys()


def durations(make: Make, values: list[float], reason: str = "thermal_software", every: float = 15) -> list[Sample]:
    return [make(LASTED, value, every * place, hw__gpu__throttle__reason=reason) for place, value in enumerate(values)]


def test_a_counter_of_throttled_time(sample: Make, bridged: Bridged) -> None:
    found = bridged(durations(sample, [100, 100, 112, 112]))
    assert [(made["at"], made[REASON], made.get(LASTED)) for made in found] == [
        (15, "none", None),
        (30, "thermal_software", 12),
        (45, "none", None),
    ]


def test_no_reason_holds_longer_than_time_has_passed(sample: Make, bridged: Bridged) -> None:
    assert [made[LASTED] for made in bridged(durations(sample, [0, 1e6]))] == [15]


@pytest.mark.parametrize("values", [[100], [100, 3], [100, 0]])
def test_first_sample_and_reset_say_nothing(sample: Make, bridged: Bridged, values: list[float]) -> None:
    assert bridged(durations(sample, values)) == []


def test_a_gap_in_the_scrapes_says_nothing(sample: Make, bridged: Bridged) -> None:
    assert bridged(durations(sample, [100, 200], every=301)) == []


def test_power_is_not_heat(sample: Make, bridged: Bridged) -> None:
    both = durations(sample, [0, 15, 30], "power") + durations(sample, [0, 0, 0])
    assert [made[REASON] for made in bridged(both)] == ["power", "power"]


def test_silence_about_power_says_nothing_about_heat(sample: Make, bridged: Bridged) -> None:
    assert bridged(durations(sample, [0, 0], "power")) == []


def test_heat_is_named_before_power(sample: Make, bridged: Bridged) -> None:
    both = durations(sample, [0, 15], "power") + durations(sample, [0, 4])
    assert [(made[REASON], made[LASTED]) for made in bridged(both)] == [("thermal_software", 4)]


def test_active_now_though_the_counter_stands(sample: Make, bridged: Bridged) -> None:
    """Not every GPU keeps the counter: an active reason without counted time is active all the same."""
    mask = [sample("hw.gpu.throttle.mask", 0x40, second) for second in (0, 15)]
    found = bridged(mask + durations(sample, [0, 0]))
    assert [(made[REASON], made.get(LASTED)) for made in found] == [("thermal_hardware", None)] * 2


def test_dcgms_one_counter_is_for_heat_of_both_kinds(sample: Make, bridged: Bridged) -> None:
    mask = [sample("hw.gpu.throttle.mask", 0x40, second) for second in (0, 15)]
    assert bridged(mask + durations(sample, [0, 9]))[-1][LASTED] == 9


def test_reasons_by_name(sample: Make, bridged: Bridged) -> None:
    active = [
        sample("hw.gpu.throttle.active", value, 0, hw__gpu__throttle__reason=reason)
        for reason, value in (("power", 1), ("thermal_hardware", 0), ("thermal_software", 0), ("idle", 0))
    ]
    assert [made[REASON] for made in bridged(active)] == ["power"]
    assert [made[REASON] for made in bridged(active[1:])] == ["none"]


def test_counts_of_a_window_matter_when_they_rise(sample: Make, bridged: Bridged) -> None:
    counts = [
        sample("hw.gpu.throttle.events", value, 15 * place, hw__gpu__throttle__reason="thermal_hardware")
        for place, value in enumerate([3, 3, 5, 4])
    ]
    assert [(made["at"], made[REASON]) for made in bridged(counts)] == [(15, "none"), (30, "thermal_hardware")]


def test_only_the_system_clock_of_several(sample: Make, bridged: Bridged) -> None:
    clocks = [sample("hw.gpu.clock", 2100, 0, hw__gpu__clock__kind="sm")]
    clocks += [sample("hw.gpu.clock", 900, 0, hw__gpu__clock__kind="memory")]
    assert [made["hw.gpu.clock.sm"] for made in bridged(clocks)] == [2100]


def test_each_gpu_has_its_own_record(sample: Make, bridged: Bridged) -> None:
    found = bridged([sample("hw.gpu.clock.sm", 1000 + gpu, 0, gpu) for gpu in range(4)])
    assert [(made["hw.gpu.index"], made["hw.gpu.clock.sm"]) for made in found] == [
        (0, 1000),
        (1, 1001),
        (2, 1002),
        (3, 1003),
    ]


def test_instances_of_a_gpu_are_one_look(sample: Make, bridged: Bridged) -> None:
    found = bridged([sample("hw.gpu.clock.sm", 1200, 0, hw__gpu__mig__id=mig) for mig in "123"])
    assert [made["hw.gpu.clock.sm"] for made in found] == [1200]


@pytest.mark.parametrize(("mask", "cited"), [(0x44, "hw.gpu.throttle.mask"), (0x4, "hw.gpu.clock.sm")])
def test_heat_is_cited_by_what_tells_of_it(sample: Make, mask: int, cited: str) -> None:
    samples = [*durations(sample, [0, 15], "power"), sample("hw.gpu.temperature", 90, 15)]
    samples += [sample("hw.gpu.clock.sm", 1200, 15), sample("hw.gpu.throttle.mask", mask, 15)]
    bridges = all_bridges()
    for one in samples:
        bridges.observe(one)
    made = bridges.finish()[-1]
    assert made["source"] == next(one.source for one in samples if one.series.name == cited)


@pytest.mark.parametrize(
    ("rise", "lasted"), [(0.015, 15), (0.0045, 4.5), (0.0016, 0.0016), (15, 15), (4.5, 4.5), (0.02, 0.02)]
)
def test_older_versions_of_dcgm_count_violations_in_microseconds(
    sample: Make, bridged: Bridged, rise: float, lasted: float
) -> None:
    told = {"hw__gpu__throttle__reason": "thermal_software", "origin": "DCGM_FI_DEV_THERMAL_VIOLATION"}
    counter = [sample(LASTED, 7 + rise * place, 15 * place, **told) for place in range(2)]
    assert bridged(counter)[-1][LASTED] == pytest.approx(lasted)
