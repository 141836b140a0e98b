"""Ports that change their state, seen or counted."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from tracecore.signals.metrics.point import Sample

Make = Callable[..., Sample]
Bridged = Callable[..., list[dict[str, Any]]]
STATE = "hw.network.ib.port.state"
PORT = {"hw__network__ib__device": "mlx5_0", "hw__network__ib__port__num": 1}


def states(make: Make, values: Sequence[float | None], every: float = 15, **more: Any) -> list[Sample]:
    return [
        make(STATE, value, every * place, None, **{**PORT, **more})
        for place, value in enumerate(values)
        if value is not None
    ]


def counters(make: Make, values: Sequence[float], kind: str = "link_downed") -> list[Sample]:
    return [
        make("hw.errors", value, 15 * place, None, **PORT, error__type=kind, hw__type="network")
        for place, value in enumerate(values)
    ]


@pytest.mark.parametrize(
    ("values", "stated"),
    [
        pytest.param([4, 4, 4], [(0, 4)], id="nothing happens"),
        pytest.param([4, 4, 1, 4], [(0, 4), (15, 4), (30, 1), (45, 4)], id="down and up"),
        pytest.param([4, 1, 2, 3, 4], [(0, 4), (15, 1), (30, 2), (45, 3), (60, 4)], id="through all states"),
        pytest.param([1], [(0, 1)], id="down from the beginning"),
        pytest.param([4, 0, 5, 4], [(0, 4)], id="no change, and active but deferred"),
        pytest.param([4, None, 1], [(0, 4), (30, 1)], id="a missing scrape"),
    ],
)
def test_states(sample: Make, bridged: Bridged, values: list[float | None], stated: list[tuple[float, int]]) -> None:
    assert [(made["at"], made[STATE]) for made in bridged(states(sample, values))] == stated


def test_a_state_is_repeated_so_that_a_window_knows_it(sample: Make, bridged: Bridged) -> None:
    assert [made["at"] for made in bridged(states(sample, [4] * 50))] == [0, 300, 600]


def test_a_record_names_the_port(sample: Make, bridged: Bridged) -> None:
    (made,) = bridged(states(sample, [4]))
    assert (made["host.name"], made["hw.network.ib.device"], made["hw.network.ib.port.num"]) == ("node-7", "mlx5_0", 1)


def test_ports_are_apart(sample: Make, bridged: Bridged) -> None:
    both = states(sample, [4, 4]) + states(sample, [1, 1], hw__network__ib__port__num=2)
    assert sorted((made["hw.network.ib.port.num"], made[STATE]) for made in bridged(both)) == [(1, 4), (2, 1)]


def test_downs_between_two_scrapes_are_counted(sample: Make, bridged: Bridged) -> None:
    found = bridged(states(sample, [4, 4]) + counters(sample, [7, 9]), STATE)
    assert [(made["at"], made[STATE], made.get("tracecore.time.inferred", False)) for made in found] == [
        (0, 4, False),
        (3, 1, True),
        (6, 4, True),
        (9, 1, True),
        (12, 4, True),
        (15, 4, False),
    ]


def test_a_down_that_was_seen_is_not_counted_again(sample: Make, bridged: Bridged) -> None:
    found = bridged(states(sample, [4, 1, 4]) + counters(sample, [0, 1, 1]), STATE)
    assert [(made["at"], made[STATE]) for made in found] == [(0, 4), (15, 1), (30, 4)]


def test_counted_where_no_state_is_measured(sample: Make, bridged: Bridged) -> None:
    found = bridged(counters(sample, [0, 1]), STATE)
    assert [made[STATE] for made in found] == [1, 4]


def test_a_counter_that_jumps_is_bounded(sample: Make, bridged: Bridged) -> None:
    assert len(bridged(states(sample, [4, 4]) + counters(sample, [0, 10**9]), STATE)) == 34


def test_old_downs_and_a_reset_say_nothing(sample: Make, bridged: Bridged) -> None:
    assert len(bridged(states(sample, [4, 4, 4]) + counters(sample, [7, 7, 0]), STATE)) == 1


def test_every_unseen_change_has_a_place_of_its_own(sample: Make) -> None:
    from tracecore.signals.metrics.bridges import all_bridges

    bridges = all_bridges()
    for one in states(sample, [4, 4]) + counters(sample, [0, 4]):
        bridges.observe(one)
    places = [made["source"].uid for made in bridges.finish() if made["log"]["event_name"] == STATE]
    assert len(places) == len(set(places)) == 10


def test_errors_and_how_fast_they_come(sample: Make, bridged: Bridged) -> None:
    found = bridged(counters(sample, [100, 100, 400], "symbol_error"))
    assert [(made["error.type"], made["hw.errors.delta"], made["hw.errors.rate"]) for made in found] == [
        ("symbol_error", 300, 20.0)
    ]


def test_discards_are_the_networks_business(sample: Make, bridged: Bridged) -> None:
    assert bridged(counters(sample, [0, 5], "port_transmit_discards_sent")) == []
