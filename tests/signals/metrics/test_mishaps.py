"""What happens to every exporter sooner or later, told to every bridge: nothing false is said, nothing true is missed.

Each bridge has a story of twenty scrapes in which GPU 1 (or its port, or rank 1) has its trouble from the twelfth on.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import pytest

from tracecore.signals.metrics.bridge import LATENESS
from tracecore.signals.metrics.bridges import all_bridges
from tracecore.signals.metrics.point import Sample
from tracecore.signals.stamps import SECOND

EVERY, SCRAPES, TROUBLE = 15, 20, 12
GPUS = (0, 1, 2, 3)
Make = Callable[..., Sample]
Values = list[tuple[str, float, dict[str, Any]]]


class Kind(NamedTuple):
    """A bridge.

    Args:
        values: what a GPU's exporter says in a scrape: (name, value, attributes), in trouble since so many scrapes.
        event: what the bridge says.
        tells: whether a record is about the trouble.
        who: the attribute that names whom it is about.
        counters: names of series that count, which begin anew when the driver is loaded anew.
        alike: whether the trouble of all at once is told of each.
    """

    values: Callable[[int, int, int], Values]
    event: str
    tells: Callable[[dict[str, Any]], bool]
    who: str
    counters: frozenset[str] = frozenset()
    alike: bool = True


def ecc(gpu: int, scrape: int, bad: int) -> Values:
    about = {"error__type": "uncorrected", "error__subtype": "double_bit", "error__persistence": "volatile"}
    return [("hw.errors", 3 + bad, about)]


def heat(gpu: int, scrape: int, bad: int) -> Values:
    return [
        ("hw.gpu.throttle.duration", 100 + 12 * bad, {"hw__gpu__throttle__reason": "thermal_software"}),
        ("hw.gpu.throttle.duration", 15 * scrape, {"hw__gpu__throttle__reason": "power"}),
        ("hw.gpu.clock.sm", 1200 if bad else 1980, {}),
        ("hw.gpu.temperature", 92 if bad else 60, {}),
    ]


def pcie(gpu: int, scrape: int, bad: int) -> Values:
    carried = 4e9 * EVERY * (scrape - bad) + 4e8 * EVERY * bad
    return [
        ("hw.gpu.io", 1e12 + carried, {"network__io__direction": "transmit", "declared": "counter"}),
        ("hw.gpu.utilization", 0.97, {}),
    ]


def nvlink(gpu: int, scrape: int, bad: int) -> Values:
    made: Values = []
    for link in range(6):
        slow = bad if link == 2 else 0
        carried = 2e10 * EVERY * (scrape - slow) + 1e9 * EVERY * slow
        made.append(("hw.gpu.nvlink.io", 8e12 + carried, {"hw__gpu__nvlink__link": link, "declared": "counter"}))
    return made


def port(gpu: int, scrape: int, bad: int) -> Values:
    about = {"hw__network__ib__device": f"mlx5_{gpu}", "hw__network__ib__port__num": 1}
    return [
        ("hw.network.ib.port.state", 1 if bad % 2 else 4, about),
        ("hw.errors", 2, {**about, "error__type": "link_downed"}),
    ]


def memory(gpu: int, scrape: int, bad: int) -> Values:
    free = 1 << 20 if bad else 9 << 30
    return [("hw.gpu.memory.free", free, {}), ("hw.gpu.memory.total", 80 << 30, {})]


def steps(gpu: int, scrape: int, bad: int) -> Values:
    who = {"gen_ai__training__rank": gpu, "gen_ai__training__job_id": "j"}
    return [
        ("gen_ai.training.step", 1000 + scrape, who),
        ("tracecore.training.iter_time_s", 3.0 if bad else 1.0, who),
    ]


KINDS = {
    "ecc": Kind(ecc, "hw.errors.rise", lambda r: r["hw.errors.delta"] >= 1, "hw.gpu.index", frozenset({"hw.errors"})),
    "heat": Kind(
        heat,
        "hw.gpu.throttle",
        lambda r: r.get("hw.gpu.throttle.reason") == "thermal_software",
        "hw.gpu.index",
        frozenset({"hw.gpu.throttle.duration"}),
    ),
    "pcie": Kind(pcie, "hw.gpu.io.collapse", lambda r: True, "hw.gpu.index", frozenset({"hw.gpu.io"})),
    "nvlink": Kind(nvlink, "hw.gpu.nvlink.low", lambda r: True, "hw.gpu.index", frozenset({"hw.gpu.nvlink.io"})),
    "port": Kind(
        port,
        "hw.network.ib.port.state",
        lambda r: r["hw.network.ib.port.state"] != 4,
        "hw.network.ib.device",
        frozenset({"hw.errors"}),
    ),
    "memory": Kind(memory, "hw.gpu.memory", lambda r: r["hw.gpu.memory.free"] < 1 << 21, "hw.gpu.index"),
    "steps": Kind(
        steps, "training.step", lambda r: r["tracecore.training.iter_time_s"] > 2, "gen_ai.training.rank", frozenset()
    ),
}
#: Whom the trouble of GPU 1 is told of.
CULPRIT = {name: {"mlx5_1"} if name == "port" else {1} for name in KINDS}


def story(
    make: Make,
    kind: Kind,
    gpus: Iterable[int] = GPUS,
    troubled: Iterable[int] = (1,),
    change: Callable[[int, str, float], float | None] = lambda scrape, name, value: value,
) -> list[Sample]:
    """Samples of all scrapes; a change gives another value, or None for none."""
    made: list[Sample] = []
    for scrape in range(SCRAPES):
        for gpu in gpus:
            bad = max(scrape - TROUBLE + 1, 0) if gpu in troubled else 0
            for name, value, about in kind.values(gpu, scrape, bad):
                changed = change(scrape, name, value)
                if changed is not None:
                    whose = None if kind.event == "training.step" or "hw__network__ib__device" in about else gpu
                    made.append(make(name, changed, EVERY * scrape, whose, **about))
    return made


@pytest.fixture(params=list(KINDS))
def named(request: pytest.FixtureRequest) -> str:
    return str(request.param)


Bridged = Callable[..., list[dict[str, Any]]]


def told(found: list[dict[str, Any]], kind: Kind) -> set[Any]:
    """Of whom trouble is told."""
    return {made[kind.who] for made in found if kind.tells(made)}


def first(found: list[dict[str, Any]], kind: Kind) -> float:
    return min(made["at"] for made in found if kind.tells(made))


def test_the_story_as_it_is(named: str, sample: Make, bridged: Bridged) -> None:
    kind = KINDS[named]
    found = bridged(story(sample, kind), kind.event)
    assert told(found, kind) == CULPRIT[named]
    assert first(found, kind) >= EVERY * TROUBLE - 45, "not before it began, but for how far a counter reaches back"
    assert told(bridged(story(sample, kind, troubled=()), kind.event), kind) == set()


def test_counters_begin_anew(named: str, sample: Make, bridged: Bridged) -> None:
    """The driver was loaded anew at the sixth scrape: counters stand at what they have counted since."""
    kind = KINDS[named]
    before: dict[str, float] = {}

    def reset(scrape: int, name: str, value: float) -> float:
        if name not in kind.counters:
            return value
        usual = {"ecc": 3.0, "port": 2.0, "heat": 100.0}.get(named)
        if scrape == 5:
            before[name] = max(before.get(name, 0.0), value)
        if scrape < 6:
            return value
        return value - usual if usual is not None and value >= usual else max(value - before[name], 0.0)

    if named == "steps":  # no counter of a driver: the run goes on from its checkpoint
        found = bridged(story(sample, kind, change=_from_checkpoint), kind.event)
        assert [made["gen_ai.training.step"] for made in found if made["gen_ai.training.rank"] == 0][5:8] == [
            506,
            507,
            508,
        ]
    else:
        found = bridged(story(sample, kind, change=reset), kind.event)
    assert told(found, kind) == CULPRIT[named]
    assert first(found, kind) >= EVERY * TROUBLE - 45
    assert told(bridged(story(sample, kind, troubled=(), change=reset), kind.event), kind) == set()


def _from_checkpoint(scrape: int, name: str, value: float) -> float:
    return value - 500 if name == "gen_ai.training.step" and scrape >= 6 else value


@pytest.mark.parametrize("missing", [range(6, 9), range(12, 14)], ids=["before", "when it begins"])
def test_scrapes_are_missing(named: str, sample: Make, bridged: Bridged, missing: range) -> None:
    kind = KINDS[named]

    def change(scrape: int, name: str, value: float) -> float | None:
        return None if scrape in missing else value

    found = bridged(story(sample, kind, change=change), kind.event)
    assert told(found, kind) == CULPRIT[named]
    assert told(bridged(story(sample, kind, troubled=(), change=change), kind.event), kind) == set()


def test_the_exporter_is_restarted(named: str, sample: Make, bridged: Bridged) -> None:
    """It is away for a scrape, then knows nothing of its counters for another, then all is as before."""
    kind = KINDS[named]

    def change(scrape: int, name: str, value: float) -> float | None:
        if scrape == 7:
            return None
        return 0.0 if scrape == 8 and name in kind.counters else value

    found = bridged(story(sample, kind, change=change), kind.event)
    assert told(found, kind) == CULPRIT[named]
    assert first(found, kind) >= EVERY * TROUBLE - 45
    assert told(bridged(story(sample, kind, troubled=(), change=change), kind.event), kind) == set()


def test_samples_are_late(named: str, sample: Make) -> None:
    """Within the bound their order does not matter; later than that they are dropped and counted."""
    kind = KINDS[named]
    samples = story(sample, kind)
    chance = random.Random(named)
    arriving = sorted(
        [(one.time + (chance.randrange(LATENESS) if chance.random() < 0.3 else 0), n) for n, one in enumerate(samples)]
    )
    whole, shuffled = all_bridges(), all_bridges()
    for one in samples:
        whole.observe(one)
    expected = whole.finish()
    got = []
    for time, place in arriving:
        shuffled.observe(samples[place])
        got += shuffled.advance(time)
    got += shuffled.finish()
    assert got == expected
    assert shuffled.dropped == {}
    wrong = samples[len(samples) // 4]  # from long ago, and something else than it was
    shuffled.observe(Sample(wrong.series, wrong.value + 1e6, wrong.time, wrong.source))
    assert shuffled.advance(samples[-1].time + 60 * SECOND) == []
    assert shuffled.dropped == {"late": 1}


def test_there_is_only_one_gpu(named: str, sample: Make, bridged: Bridged) -> None:
    kind = KINDS[named]
    found = bridged(story(sample, kind, gpus=(1,)), kind.event)
    assert told(found, kind) == CULPRIT[named]
    assert told(bridged(story(sample, kind, gpus=(1,), troubled=()), kind.event), kind) == set()


def test_all_gpus_are_alike(named: str, sample: Make, bridged: Bridged) -> None:
    """What is all GPUs' trouble is told of each, and no GPU is singled out by it."""
    kind = KINDS[named]
    found = bridged(story(sample, kind, troubled=GPUS), kind.event)
    everyone = {f"mlx5_{gpu}" for gpu in GPUS} if named == "port" else set(GPUS)
    assert told(found, kind) == everyone


def test_all_links_of_all_gpus_slow_down_with_the_job(sample: Make, bridged: Bridged) -> None:
    def all_slow(gpu: int, scrape: int, bad: int) -> Values:
        carried = 2e10 * EVERY * (scrape - bad) + 1e9 * EVERY * bad
        return [
            ("hw.gpu.nvlink.io", 8e12 + carried, {"hw__gpu__nvlink__link": link, "declared": "counter"})
            for link in range(6)
        ]

    kind = KINDS["nvlink"]._replace(values=all_slow)
    assert bridged(story(sample, kind, troubled=GPUS), kind.event) == []
