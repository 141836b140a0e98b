"""Links that carried little, events by when they began, and whose GPU it was."""

from __future__ import annotations

import pytest

from tracecore.facts.gpu import NvlinkRate, Xid
from tracecore.facts.nccl import WatchdogReport
from tracecore.facts.training import StepStalled
from tracecore.patterns.nvlink_degradation.detector import (
    Events,
    LowRates,
    NvlinkDegradation,
    StalledRanks,
    _low_for,
)
from tracecore.signals.record import Source

SECOND = 1_000_000_000


def rate(time: int, low_s: float | None = None, last: int | None = None, **fields: object) -> NvlinkRate:
    given = {"bytes_per_second": 1.0, "low_s": low_s, "last_time": None if last is None else last * SECOND, **fields}
    return NvlinkRate(time=time * SECOND, source=Source("rates", time), **given)


def stall(time: int, rank: int | None = 1, step: int = 7, gpu: str | None = None, seconds: float = 10) -> StepStalled:
    source = Source("stalls", 100 * time + step)
    return StepStalled(time=time * SECOND, source=source, rank=rank, gpu=gpu, step=step, no_progress_s=seconds)


def xid(**fields: object) -> Xid:
    return Xid(time=0, source=Source("kern.log"), code=74, **fields)


def waits(rank: int | None, gpu: str | None = None) -> WatchdogReport:
    return WatchdogReport(time=0, source=Source("a.log"), report="timeout", rank=rank, gpu=gpu)


@pytest.mark.parametrize(
    ("low_s", "last", "seconds"),
    [
        (None, None, 0),
        (5.0, None, 5),
        (-5.0, None, 0),
        (1e12, None, 10**9),
        (None, 130, 30),
        (5.0, 130, 30),
        (60.0, 130, 60),
    ],
)
def test_a_link_was_low_as_long_as_it_says_or_as_it_was_said(
    low_s: float | None, last: int | None, seconds: int
) -> None:
    assert _low_for(rate(100, low_s, last)) == seconds * SECOND


def test_the_first_link_that_was_low_at_some_time() -> None:
    rates = [rate(100, 10), rate(200, 50, last=210), rate(220, 5)]

    def first(oldest: int, newest: int) -> int | None:
        found = LowRates(rates).first(oldest * SECOND, newest * SECOND)
        return None if found is None else found.time // SECOND

    assert [first(0, 89), first(0, 90), first(100, 120), first(101, 149)] == [None, 100, 100, None]
    assert [first(101, 150), first(210, 300), first(211, 300), first(221, 300)] == [200, 200, 220, None]


def test_links_are_asked_about_later_and_later() -> None:
    low = LowRates([rate(100, 10), rate(200, 50)])
    found = [low.first(time * SECOND, (time + 10) * SECOND) for time in (80, 101, 150)]
    assert [None if one is None else one.time // SECOND for one in found] == [100, None, 200]


def test_events_are_found_by_when_they_began() -> None:
    facts = [rate(30), rate(10), rate(20)]
    events = Events(facts, lambda fact: fact.time)
    assert [fact.time // SECOND for fact in events.between(10 * SECOND, 20 * SECOND)] == [10, 20]
    assert [fact.time // SECOND for fact in events.between(10 * SECOND + 1, 30 * SECOND - 1)] == [20]


@pytest.mark.parametrize(
    ("stalls", "xid_", "low", "stuck", "rank"),
    [
        ([], xid(rank=3), rate(0, rank=4), [], 3),
        ([], None, rate(0, rank=4), [waits(5)], 4),
        # The GPU's rank, by a stall or by who is stuck on it.
        ([stall(1, 6, gpu="g")], xid(gpu="g"), None, [waits(5)], 6),
        ([stall(1, 6, gpu="other")], xid(gpu="g"), None, [waits(5)], 5),
        ([], xid(gpu="g"), None, [waits(5), waits(6, "g")], 6),
        ([stall(1, 6, gpu="g"), stall(2, 7, gpu="g")], xid(gpu="g"), None, [waits(5)], None),
        ([stall(1, None, gpu="g")], xid(gpu="g"), None, [waits(5)], 5),
        # Else the only one that is stuck.
        ([], None, None, [waits(5), waits(5), waits(None)], 5),
        ([], None, None, [waits(5), waits(6)], None),
        ([], None, None, [waits(None)], None),
    ],
)
def test_whose_gpu_it_is(
    stalls: list[StepStalled], xid_: Xid | None, low: NvlinkRate | None, stuck: list[WatchdogReport], rank: int | None
) -> None:
    assert StalledRanks(stalls).rank(xid_, low, stuck) == rank


def test_the_step_that_was_reached_where_the_stall_began() -> None:
    found = StalledRanks([stall(110, 1, 7), stall(120, 1, 8), stall(130, 2, 9)])

    def step(rank: int | None, oldest: int, newest: int) -> int | None:
        return found.step(rank, oldest * SECOND, newest * SECOND)

    # A stall of ten seconds began ten seconds before it is stated.
    assert [step(1, 100, 100), step(1, 101, 109), step(1, 100, 110), step(1, 101, 110)] == [7, None, 7, 8]
    assert [step(2, 0, 200), step(None, 0, 200), step(None, 111, 200), step(3, 0, 200)] == [9, 7, 9, None]


@pytest.mark.parametrize(
    ("elapsed", "timeout", "before"),
    [(None, None, 0), (-5, None, 0), (0, None, 0), (None, 5, 5), (7, 5, 7), (10**9, None, 3_600_000)],
)
def test_a_watchdog_reports_what_began_before(elapsed: int | None, timeout: int | None, before: int) -> None:
    told = WatchdogReport(
        time=10_000 * SECOND, source=Source("a.log"), report="timeout", elapsed_ms=elapsed, timeout_ms=timeout
    )
    assert told.time - NvlinkDegradation()._begin(told) == before * 1_000_000
