"""A link against its peers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tracecore.signals.metrics.point import Sample

Make = Callable[..., Sample]
Bridged = Callable[..., list[dict[str, Any]]]
Rate = Callable[[int, int, float], float]


def links(
    make: Make, rate: Rate, *, gpus: int = 2, count: int = 6, until: int = 90, total: bool = False, **more: Any
) -> list[Sample]:
    """Counters of links whose rate by (gpu, link, second) is given, scraped every 15 s."""
    made: list[Sample] = []
    for gpu in range(gpus):
        for link in range(count):
            value = 7e12
            name = {} if total else {"hw__gpu__nvlink__link": link}
            for second in range(0, until + 1, 15):
                made.append(make("hw.gpu.nvlink.io", value, second, gpu, **name, **more))
                value += 15 * rate(gpu, link, second)
    return made


def test_one_slow_link(sample: Make, bridged: Bridged) -> None:
    found = bridged(links(sample, lambda gpu, link, t: 1e9 if (gpu, link) == (1, 4) and t >= 30 else 2e10))
    assert [(made["at"], made["hw.gpu.nvlink.low_seconds"]) for made in found] == [
        (45, 15),
        (60, 30),
        (75, 45),
        (90, 60),
    ]
    assert {(made["gpu.id"], made["hw.gpu.nvlink.link"]) for made in found} == {("0000:2a:00.0", 4)}
    assert found[0]["hw.gpu.nvlink.rate"] == pytest.approx(1e9)
    assert found[0]["hw.gpu.nvlink.peer_median"] == pytest.approx(2e10)


@pytest.mark.parametrize(("share", "low"), [(0.5, True), (0.51, False)])
def test_half_of_the_peers(sample: Make, bridged: Bridged, share: float, low: bool) -> None:
    found = bridged(links(sample, lambda gpu, link, t: 2e10 * (share if link == 0 else 1), gpus=1))
    assert bool(found) is low


def test_a_dead_link(sample: Make, bridged: Bridged) -> None:
    found = bridged(links(sample, lambda gpu, link, t: 0 if (gpu, link) == (0, 2) else 2e10))
    assert {made["hw.gpu.nvlink.rate"] for made in found} == {0}


def test_one_gpu_is_enough(sample: Make, bridged: Bridged) -> None:
    assert bridged(links(sample, lambda gpu, link, t: 1e9 if link == 3 else 2e10, gpus=1))


@pytest.mark.parametrize("rate", [0.0, 10.0, 2e10])
def test_all_alike(sample: Make, bridged: Bridged, rate: float) -> None:
    assert bridged(links(sample, lambda gpu, link, t: rate, gpus=4)) == []


def test_all_slow_together_is_the_job(sample: Make, bridged: Bridged) -> None:
    assert bridged(links(sample, lambda gpu, link, t: 2e10 if t < 45 else 1e9, gpus=4)) == []


def test_it_recovers(sample: Make, bridged: Bridged) -> None:
    slow = {15, 30, 60, 75}
    found = bridged(links(sample, lambda gpu, link, t: 1e9 if link == 1 and t in slow else 2e10, gpus=1))
    assert [made["hw.gpu.nvlink.low_seconds"] for made in found] == [15, 30, 15, 30]


def test_a_gap_begins_anew(sample: Make, bridged: Bridged) -> None:
    """A counter knows what it carried meanwhile; for how long it was low, scrapes have to tell."""
    samples = links(sample, lambda gpu, link, t: 1e9 if link == 1 else 2e10, gpus=1, until=900)
    held = [one for one in samples if not 90 < (one.time // 10**9 - samples[0].time // 10**9) < 600]
    lasted = [made["hw.gpu.nvlink.low_seconds"] for made in bridged(held)]
    assert max(lasted) == 900
    gauge = _gauges(sample, lambda link: 1e9 if link == 1 else 2e10, [0, 15, 30, 600, 615])
    assert [made["hw.gpu.nvlink.low_seconds"] for made in bridged(gauge)] == [0, 15, 30, 0, 15]


def _gauges(make: Make, rate: Callable[[int], float], seconds: list[int]) -> list[Sample]:
    return [
        make("hw.gpu.nvlink.io", rate(link), second, hw__gpu__nvlink__link=link, declared="gauge")
        for second in seconds
        for link in range(6)
    ]


def test_a_reset_of_all_is_no_low_rate(sample: Make, bridged: Bridged) -> None:
    before = links(sample, lambda gpu, link, t: 2e10, until=60)
    after = [
        sample("hw.gpu.nvlink.io", 2e10 * (second - 70), second, gpu, hw__gpu__nvlink__link=link)
        for second in range(75, 150, 15)
        for gpu in range(2)
        for link in range(6)
    ]
    assert bridged(before + after) == []


def busy(make: Make, gpus: int, idle: tuple[int, ...] = ()) -> list[Sample]:
    return [
        make("hw.gpu.utilization", 0 if gpu in idle else 0.9, second, gpu)
        for second in range(0, 91, 15)
        for gpu in range(gpus)
    ]


def test_a_whole_gpu_among_its_peers(sample: Make, bridged: Bridged) -> None:
    slow = links(sample, lambda gpu, link, t: 1e9 if gpu == 1 else 2e10, gpus=4)
    assert {made["hw.gpu.index"] for made in bridged(slow + busy(sample, 4))} == {1}
    assert bridged(slow + busy(sample, 4, idle=(1,))) == [], "a GPU that nobody uses"
    assert bridged(slow) == [], "not measured whether anybody uses it"


def test_half_of_the_gpus_is_another_job(sample: Make, bridged: Bridged) -> None:
    slow = links(sample, lambda gpu, link, t: 1e9 if gpu < 2 else 2e10, gpus=4)
    assert bridged(slow + busy(sample, 4)) == []


def test_totals_where_there_are_no_links(sample: Make, bridged: Bridged) -> None:
    slow = links(sample, lambda gpu, link, t: 1e9 if gpu == 2 else 2e10, gpus=4, count=1, total=True)
    found = bridged(slow + busy(sample, 4))
    assert {made["hw.gpu.index"] for made in found} == {2}
    assert all("hw.gpu.nvlink.link" not in made for made in found)


def test_few_links_are_measured_against_the_nodes(sample: Make, bridged: Bridged) -> None:
    slow = links(sample, lambda gpu, link, t: 1e9 if (gpu, link) == (0, 1) else 2e10, gpus=2, count=2)
    assert {(made["hw.gpu.index"], made["hw.gpu.nvlink.link"]) for made in bridged(slow)} == {(0, 1)}


def test_directions_are_apart(sample: Make, bridged: Bridged) -> None:
    sent = links(sample, lambda gpu, link, t: 2e10, gpus=1, network__io__direction="transmit")
    received = links(sample, lambda gpu, link, t: 1e9, gpus=1, network__io__direction="receive")
    assert bridged(sent + received) == []


def test_nodes_are_apart(sample: Make, bridged: Bridged) -> None:
    fast = links(sample, lambda gpu, link, t: 2e10, gpus=1, count=2)
    slow = links(sample, lambda gpu, link, t: 1e9, gpus=1, count=2, host__name="node-8")
    assert bridged(fast + slow) == []
