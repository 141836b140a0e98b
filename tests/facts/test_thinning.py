"""What leaves a node: what conclusions rest on, and few of the rest."""

from __future__ import annotations

import itertools
import math
import random

import msgspec
import pytest

from tracecore.facts.fact import Fact
from tracecore.facts.gpu import Xid
from tracecore.facts.thinning import HEAD, INTERVAL, REPEAT, STREAMS, FactThinner
from tracecore.facts.training import Progress
from tracecore.signals.record import Source

SECOND = 1_000_000_000
T0 = 1_790_000_000 * SECOND


def step(at: float, number: int, rank: int = 0, **more: float | str) -> Progress:
    source = Source(f"rank{rank}.log", number * 100, number)
    return Progress(time=T0 + int(at * SECOND), source=source, step=number, rank=rank, job="a", **more)  # type: ignore[arg-type]


def sent(facts: list[Progress], every: float = 0.1) -> list[Progress]:
    """Those of reports that leave, the clock running."""
    thinner = FactThinner()
    left: list[Fact] = []
    at = 0
    now = facts[0].time
    while at < len(facts):
        batch = []
        while at < len(facts) and facts[at].time <= now:
            batch.append(facts[at])
            at += 1
        left += thinner.take(batch, now)
        now += int(every * SECOND)
    left += thinner.take([], now + 60 * SECOND)
    assert thinner.stayed + len(left) == len(facts)
    return [fact for fact in left if isinstance(fact, Progress)]


def test_a_long_steady_run_sends_few_reports_and_no_gap_looks_like_a_stall() -> None:
    left = sent([step(n * 0.5, n, loss=3.0 - n / 5000, iter_time_s=0.5) for n in range(7200)])
    assert len(left) < HEAD + 2 + 3600 * SECOND // INTERVAL * 1.5
    assert max(b.time - a.time for a, b in itertools.pairwise(left)) <= 2 * INTERVAL


def test_the_last_report_before_silence_leaves_soon() -> None:
    left = sent([step(n, n) for n in range(100)])
    assert left[-1].step == 99


def test_both_reports_around_a_pause_and_a_step_back_leave() -> None:
    facts = [step(n, n) for n in range(100)] + [step(n + 100, n) for n in range(100, 200)]
    facts += [step(n + 250, n) for n in range(150, 250)]
    numbers = [(fact.time - T0) // SECOND for fact in sent(facts)]
    assert {99, 200, 299, 400} <= set(numbers)


def test_a_divergence_leaves_as_it_happens() -> None:
    losses = [3.0] * 100 + [3.0 * 8 ** min(n, 20) for n in range(1, 30)]
    left = sent([step(n, n, loss=loss) for n, loss in enumerate(losses)])
    jumps = [fact.step for fact in left if fact.step is not None and 100 <= fact.step < 115]
    assert jumps == list(range(100, 115))


def test_ranks_of_one_job_send_the_same_steps() -> None:
    chance = random.Random(3)
    by_rank = [
        {fact.step for fact in sent([step(n + chance.random() / 5, n, rank, iter_time_s=1.0) for n in range(900)])}
        for rank in range(4)
    ]
    common = set.intersection(*by_rank)
    assert len(common) >= 0.6 * max(map(len, by_rank))
    assert len([number for number in common if number is not None and number > 100]) >= 10


def test_loggers_that_take_turns_do_not_wake_each_other() -> None:
    facts = [step(n, n, loss=2.0) if n % 2 else step(n, n, iter_time_s=1.0) for n in range(3600)]
    assert len(sent(facts)) < 2 * HEAD + 3600 // 10 * 1.7


def test_counters_that_jump_about_are_no_reason_to_send_more() -> None:
    chance = random.Random(5)
    left = sent([step(n / 10, chance.randrange(1000)) for n in range(6000)])
    assert len(left) < 3 * 600 // 10


def xid(count: int) -> Xid:
    last = None if count == 1 else T0 + count
    return Xid(time=T0, source=Source("kern.log", 1, 1), node="n", code=13, count=count, last_time=last)


def test_a_storm_of_one_statement_leaves_at_once_and_then_with_its_count() -> None:
    thinner = FactThinner()
    left: list[tuple[float, int]] = []
    for n in range(200):
        now = T0 + n * SECOND // 10
        left += [((now - T0) / SECOND, fact.count) for fact in thinner.take([xid(n + 1)], now)]
    left += [(20.0, fact.count) for fact in thinner.finish()]
    assert left[:2] == [(0.0, 1), (0.1, 2)]
    assert len(left) <= 3 + 20 * SECOND // REPEAT
    assert left[-1][1] == 200


def test_single_statements_always_leave() -> None:
    thinner = FactThinner()
    facts: list[Fact] = [Xid(time=T0 + n, source=Source("k", n), node="n", code=n) for n in range(100)]
    assert thinner.take(facts, T0) == facts


def test_memory_is_bounded() -> None:
    thinner = FactThinner()
    for n in range(STREAMS + 500):
        thinner.take([step(n, 1, rank=n)], T0 + n * SECOND)
    assert len(thinner._streams) <= STREAMS
    assert len(thinner._last_sent) <= STREAMS


@pytest.mark.parametrize("loss", [math.inf, -1.0, 0.0])
def test_odd_values_do_no_harm(loss: float) -> None:
    assert sent([step(n, n, loss=loss) for n in range(50)])


def test_of_a_stream_that_jumps_about_all_the_time_few_reports_leave() -> None:
    chance = random.Random(5)
    facts = [step(n * 0.5, chance.randrange(1000), iter_time_s=chance.choice((0.1, 9.0))) for n in range(7200)]
    left = sent(facts)
    # Sixteen jumps leave at once, then fewer and fewer, and one report now and then as of any stream.
    assert len(left) < 3600 * SECOND // INTERVAL * 1.5


def test_a_stream_that_was_calm_is_followed_closely_again() -> None:
    chance = random.Random(5)
    wild = [step(n, n, loss=chance.choice((0.1, 9.0))) for n in range(300)]
    calm = [step(n, n, loss=9.0) for n in range(300, 600)]
    jump = [step(n, n, loss=9.0 * 6 ** (n - 599)) for n in range(600, 605)]
    left = {fact.step for fact in sent([*wild, *calm, *jump])}
    assert {600, 601, 602, 603, 604} <= left


def test_a_stream_that_pauses_while_its_rank_reports_other_things_is_no_silence() -> None:
    seldom = [step(n * 4, n, loss=2.0) for n in range(250)]
    often = [step(n, n, iter_time_s=1.0) for n in range(1000)]
    left = sent(sorted([*seldom, *often], key=lambda fact: fact.time))
    assert sum(fact.loss is not None for fact in left) < 140  # of 250


def folded(at: float, number: int, lasted: float) -> Progress:
    fact = step(at, number)
    return msgspec.structs.replace(fact, last_time=fact.time + int(lasted * SECOND), count=9)


def test_a_report_that_stands_for_several_waits_until_the_last_of_them_is_quiet() -> None:
    thinner = FactThinner()
    thinner.take([step(n / 10, n) for n in range(2 * HEAD)], T0 + 2 * SECOND)
    thinner.take([], T0 + 10 * SECOND)
    assert thinner.take([folded(2.1, 17, lasted=8)], T0 + 11 * SECOND) == []
    assert thinner.take([], T0 + 12 * SECOND + 99_999_999) == []
    assert [fact.time for fact in thinner.take([], T0 + 12 * SECOND + 100_000_000)] == [T0 + 2_100_000_000]


def test_a_pause_begins_where_the_last_of_several_reports_ended() -> None:
    def around(lasted: float) -> int:
        thinner = FactThinner()
        facts = [step(n / 10, n) for n in range(40)]
        left = thinner.take([*facts, folded(4, 41, lasted), step(34.5, 42)], T0 + 5 * SECOND)
        return sum(fact.time == T0 + 4 * SECOND for fact in left)

    # From 4 s to 34.5 s is a pause; from 5 s it is none, and nothing but the last report leaves.
    assert (around(0.5), around(1)) == (1, 0)
