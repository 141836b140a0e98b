"""Samples in any order within the lateness bound give the same records; what is left out is counted."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tracecore.signals.metrics.bridge import BridgeLimits, BridgeMemory
from tracecore.signals.metrics.bridges import all_bridges
from tracecore.signals.metrics.names import GpuNames
from tracecore.signals.metrics.point import Sample, Series
from tracecore.signals.record import LogSignal, Source
from tracecore.signals.stamps import SECOND

START = 1_794_700_800 * SECOND
Make = Callable[..., Sample]


def story() -> list[Sample]:
    """A minute of four GPUs in which something of every kind happens."""
    made: list[Sample] = []

    def add(name: str, value: float, second: int, gpu: int | None, **more: object) -> None:
        attributes = {"host.name": "node-7", **{key.replace("__", "."): given for key, given in more.items()}}
        if gpu is not None:
            attributes |= {"gpu.id": f"0000:{gpu:02x}:00.0", "hw.gpu.index": gpu}
        series = Series.of(name, name, attributes)  # type: ignore[arg-type]
        made.append(Sample(series, value, START + second * SECOND, Source("s.prom", len(made), 1, 1)))

    for second in range(0, 120, 5):
        late = second >= 60
        for gpu in range(4):
            slow = gpu == 1 and late
            add("hw.errors", float(slow), second, gpu, error__type="uncorrected", error__subtype="double_bit")
            add("hw.gpu.temperature", 90 if slow else 60, second, gpu)
            add("hw.gpu.clock.sm", 1000 if slow else 1980, second, gpu)
            add("hw.gpu.throttle.mask", 0x40 if slow else 0, second, gpu)
            add("hw.gpu.io", 1e9 * min(second, 60) + 1e8 * max(second - 60, 0) * (1 if slow else 10), second, gpu)
            add("hw.gpu.memory.free", 1e9, second, gpu)
            for link in range(5):
                weak = slow and link == 3
                value = 2e9 * min(second, 60) + (1e8 if weak else 2e9) * max(second - 60, 0)
                add("hw.gpu.nvlink.io", value, second, gpu, hw__gpu__nvlink__link=link)
        state = 1 if second in (20, 40, 60) else 4
        add("hw.network.ib.port.state", state, second, None, hw__network__ib__device="mlx5_0")
        add("gen_ai.training.step", second, second, None, gen_ai__training__rank=0)
        add("hw.gpu.sdc", float(late), second, 2)
    return made


STORY = story()


def all_at_once(samples: list[Sample]) -> list[LogSignal]:
    bridges = all_bridges()
    for sample in samples:
        bridges.observe(sample)
    return bridges.finish()


EXPECTED = all_at_once(STORY)


def test_the_story_has_every_kind_of_record() -> None:
    assert {made["log"]["event_name"] for made in EXPECTED} == {
        "hw.errors.rise",
        "hw.gpu.throttle",
        "hw.gpu.io.collapse",
        "hw.gpu.nvlink.low",
        "hw.network.ib.port.state",
        "hw.gpu.memory",
        "training.step",
        "hw.gpu.sdc.rise",
    }


@settings(max_examples=25)
@given(st.randoms(use_true_random=False), st.integers(1, 40))
def test_any_order_and_batching_within_the_bound_gives_the_same(random: object, most: int) -> None:
    """Every sample is delayed by up to the bound, and the clock advances after batches of any size."""
    lateness = 20 * SECOND
    bridges = all_bridges(lateness=lateness)
    delays = [random.randint(0, lateness - 1) for _ in STORY]  # type: ignore[attr-defined]
    arriving = sorted(zip(STORY, delays, strict=True), key=lambda pair: pair[0].time + pair[1])
    out: list[LogSignal] = []
    for place, (sample, delay) in enumerate(arriving):
        bridges.observe(sample)
        if place % most == 0:
            out += bridges.advance(sample.time + delay)
    out += bridges.finish()
    assert bridges.dropped == {}
    assert out == EXPECTED


def test_what_comes_too_late_is_dropped_and_counted(sample: Make) -> None:
    bridges = all_bridges(lateness=5 * SECOND)
    bridges.observe(sample("hw.gpu.temperature", 60, 0))
    assert bridges.advance(START + 4 * SECOND) == []
    assert len(bridges.advance(START + 5 * SECOND)) == 1
    bridges.observe(sample("hw.gpu.temperature", 61, 0))
    assert bridges.finish() == []
    assert bridges.dropped == {"late": 1}


def test_a_time_far_ahead_of_the_clock_is_not_believed(sample: Make) -> None:
    bridges = all_bridges()
    bridges.observe(sample("hw.gpu.temperature", 60, 86400))
    assert bridges.advance(START) == []
    assert bridges.finish() == []
    assert bridges.dropped == {"ahead": 1}


def test_values_that_are_no_numbers_are_left_out(sample: Make) -> None:
    bridges = all_bridges()
    bridges.observe(sample("hw.gpu.temperature", math.inf, 0))
    assert bridges.finish() == []
    assert bridges.dropped == {"not a number": 1}


def test_waiting_samples_are_bounded(sample: Make) -> None:
    bridges = all_bridges(limits=BridgeLimits(waiting=2))
    for second in range(5):
        bridges.observe(sample("hw.gpu.temperature", 60, second))
    assert len(bridges.finish()) == 2
    assert bridges.dropped == {"waiting": 3}


def test_series_are_bounded(sample: Make) -> None:
    bridges = all_bridges(limits=BridgeLimits(series=3))
    for second in (0, 15):
        for gpu in range(10):
            bridges.observe(sample("hw.errors", second, second, gpu, error__type="uncorrected", gpu__uuid=f"G{gpu}"))
    rises = [made for made in bridges.finish() if made["log"]["event_name"] == "hw.errors.rise"]
    assert len(rises) == 3
    assert bridges.dropped["series"] >= 7


def test_what_was_silent_for_long_makes_room() -> None:
    memory: BridgeMemory[int] = BridgeMemory(BridgeLimits(series=2))
    memory.put("a", 1, 0)
    memory.put("b", 2, 200 * SECOND)
    memory.put("c", 3, 250 * SECOND)
    assert (memory.get("c"), memory.dropped) == (None, 1)
    memory.put("c", 3, 301 * SECOND)
    assert (memory.get("a"), memory.get("b"), memory.get("c"), memory.dropped) == (None, 2, 3, 1)


def test_series_of_other_names_cost_nothing(sample: Make) -> None:
    bridges = all_bridges()
    bridges.observe(sample("hw.gpu.power", 600, 0))
    bridges.observe(sample("hw.gpu.xid.window_count", 3, 0))
    assert bridges.finish() == []
    assert bridges.dropped == {}


def test_a_sticky_xid_is_shown_once(sample: Make, bridged: Callable[..., list[dict[str, object]]]) -> None:
    samples = [sample("hw.gpu.xid.last", 79 if second > 30 else 0, second) for second in range(0, 90, 15)]
    assert [(made["hw.gpu.xid.last"], made["at"]) for made in bridged(samples)] == [(79, 45.0)]


def test_a_sticky_xid_that_was_there_before_is_shown_once(
    sample: Make, bridged: Callable[..., list[dict[str, object]]]
) -> None:
    """Of every instance of a GPU that is cut in several the same gauge is exported."""
    samples = [
        sample("hw.gpu.xid.last", 31, second, hw__gpu__mig__id=part) for second in (0, 15) for part in ("1", "2", None)
    ]
    assert [(made["hw.gpu.xid.last"], made["at"]) for made in bridged(samples)] == [(31, 0.0)]


@pytest.mark.parametrize("value", [0, -1, 31.5, 2147483632, 9.2e18])
def test_what_is_no_xid_is_not_shown(
    sample: Make, bridged: Callable[..., list[dict[str, object]]], value: float
) -> None:
    assert bridged([sample("hw.gpu.xid.last", value, 0)]) == []


@pytest.mark.parametrize("by", ["gpu__uuid", "hw__gpu__index"])
def test_a_gpu_without_bus_id_is_found_by_its_other_names(sample: Make, by: str) -> None:
    """The sample that tells the name stands behind the one that needs it."""
    other = {"gpu__uuid": None, "hw__gpu__index": None} | {by: "GPU-1" if by == "gpu__uuid" else 1}
    bridges = all_bridges()
    bridges.observe(sample("hw.gpu.memory.free", 5, 0, 1, gpu__id=None, **other))
    bridges.observe(sample("hw.gpu.temperature", 50, 1, 1))
    first, _ = bridges.finish()
    assert first["resource"]["attributes"]["gpu.id"] == "0000:2a:00.0"


def test_a_name_that_two_gpus_have_is_nobodys(sample: Make) -> None:
    names = GpuNames()
    names.learn("0000:18:00.0", node="node-7", index=0)
    assert names.find(sample("hw.gpu.temperature", 50, 0, 0, gpu__id=None, gpu__uuid=None).series) == "0000:18:00.0"
    names.learn("0000:2a:00.0", node="node-7", index=0)
    assert names.find(sample("hw.gpu.temperature", 50, 0, 0, gpu__id=None, gpu__uuid=None).series) is None


def test_an_index_of_another_node_names_nothing(sample: Make) -> None:
    names = GpuNames()
    names.learn("0000:18:00.0", node="node-8", index=0)
    assert names.find(sample("hw.gpu.temperature", 50, 0, 0, gpu__id=None, gpu__uuid=None).series) is None


def test_names_are_bounded() -> None:
    names = GpuNames(most=2)
    for gpu in range(4):
        names.learn(f"0000:{gpu:02x}:00.0", uuid=f"GPU-{gpu}")
    assert names.dropped == 2
