"""Which rank is slow by the times that ranks report, and in which part of a step."""

from __future__ import annotations

from typing import Any

import pytest

from tracecore.engine.window import FactWindow
from tracecore.facts.collective import Arrival, CollectiveEntry
from tracecore.facts.fact import Fact
from tracecore.facts.training import Progress
from tracecore.patterns.config import SECOND
from tracecore.patterns.straggler.detector import RankLag, Straggler, StragglerVerdict
from tracecore.signals.record import Source

START = 1_794_700_000 * SECOND
HOUR = 3600
PATTERN = Straggler()


def report(rank: int, step: int = 10, whole: float | None = 1.0, data: float | None = None, **fields: Any) -> Progress:
    at = fields.pop("at", step)
    return Progress(
        time=START + int(at * SECOND), source=Source(f"rank{rank}.log", step), job="j", rank=rank, step=step,
        iter_time_s=whole, data_time_s=data, **fields,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("values", "ahead"),
    [
        ([1.0, 1.0, 1.0], {}),
        ([1.0, 1.0, 1.0, 1.5], {3: (1.5, 1.0, 1)}),
        ([1.0, 1.0, 1.0, 1.49], {}),
        # The median of an even number is between the two in the middle.
        ([1.0, 1.0, 2.0, 2.25], {3: (2.25, 1.5, 1)}),
        ([1.0, 1.0, 1.0, 3.0, 3.0], {3: (3.0, 1.0, 2), 4: (3.0, 1.0, 2)}),
        # Nothing matters below 5 ms.
        ([0.001, 0.001, 0.001, 0.0059], {}),
        ([0.0, 0.0, 0.0, 0.005], {3: (0.005, 0.0, 1)}),
        ([0.0, 0.0, 0.0, 0.0], {}),
    ],
)
def test_ranks_that_are_far_above_the_median(values: list[float], ahead: dict[int, tuple[float, float, int]]) -> None:
    cohort = {rank: report(rank, whole=value) for rank, value in enumerate(values)}
    found = PATTERN._ahead(cohort, [(value, rank) for rank, value in enumerate(values)])
    assert found == {rank: pytest.approx(lag) for rank, lag in ahead.items()}


@pytest.mark.parametrize(
    ("whole", "data", "part"),
    [
        (7.5, None, "unknown"),
        (7.5, 0.25, "compute"),
        # Half of the delay is waiting for data.
        (7.5, 2.75, "data"),
        (7.5, 2.74, "compute"),
        (2.5, 0.75, "data"),
        # A wait that is no fifth of the step does not matter.
        (2.5, 0.74, None),
        (None, 0.5, "data"),
        (2.5, 0.25, None),
    ],
)
def test_the_part_of_a_step_that_is_slow(whole: float | None, data: float | None, part: str | None) -> None:
    cohort = {rank: report(rank, data=0.25, whole=2.5) for rank in range(5)}
    cohort[5] = report(5, whole=whole, data=data)
    slow = PATTERN._slow(cohort)
    assert {rank: lag.part for rank, lag in slow.items()} == ({} if part is None else {5: part})
    assert all(lag.ranks == 6 and lag.report is cohort[5] and lag.peer is cohort[2] for lag in slow.values())


def window(*reports: Progress) -> FactWindow:
    found = FactWindow(("j", ""), 0)
    for one in reports:
        found.add(one)
    return found


def steps(times: dict[int, float], count: int = 5, **fields: Any) -> list[Progress]:
    return [
        report(rank, step, whole, **fields) for step in range(10, 10 + count) for rank, whole in sorted(times.items())
    ]


def times_of(slow: int, ranks: int, fast: float = 1.0, long: float = 2.0) -> dict[int, float]:
    """Return the time of each rank: the last ones are slow."""
    return {rank: long if rank >= ranks - slow else fast for rank in range(ranks)}


@pytest.mark.parametrize(
    ("reports", "named"),
    [
        (steps(times_of(1, 8)), [7]),
        (steps(times_of(1, 8), 4), []),
        (steps(times_of(1, 4)), [3]),
        (steps(times_of(1, 3)), []),
        # One that is named already does not hide another.
        (
            [report(r, n, 2.0 if r == 6 or (r == 7 and n >= 12) else 1.0) for n in range(10, 17) for r in range(8)],
            [6, 7],
        ),
        # When more than a quarter is slow, nobody is named.
        (steps(times_of(2, 8)), [6, 7]),
        (steps(times_of(3, 8)), []),
        # A step that too few report says nothing, one in which the rank is not slow ends the run.
        ([*steps(times_of(1, 8), 3), *(report(rank, 14, 2.0 if rank == 7 else 1.0) for rank in range(8))], []),
        ([one for one in steps(times_of(1, 8), 6) if one.step != 12 or one.rank in (0, 1, 2)], [7]),
        ([one if one.step != 12 else report(one.rank or 0, 12) for one in steps(times_of(1, 8), 6)], []),
        # Steps of another attempt begin anew.
        ([*steps(times_of(1, 8), 4), *(report(r, 14, 2.0 if r == 7 else 1.0, attempt=1) for r in range(8))], []),
        # Differences of less than 5 ms say nothing, and neither do those of less than half.
        (steps(times_of(1, 8, 0.001, 0.0059)), []),
        (steps(times_of(1, 8, 0.001, 0.0061)), [7]),
        (steps(times_of(1, 8, 1.0, 1.49)), []),
        (steps(times_of(1, 8, 1.0, 1.5)), [7]),
    ],
)
def test_the_rank_that_is_slow_in_steps_in_a_row(reports: list[Progress], named: list[int]) -> None:
    found = PATTERN.evaluate(window(*reports), START)
    assert [verdict.fields()["gen_ai.training.rank"] for verdict in found] == named


@pytest.mark.parametrize(("last", "named"), [(10 + HOUR, 1), (10.000000001 + HOUR, 0)])
def test_slow_steps_lie_within_the_window_of_all_ranks(last: float, named: int) -> None:
    reports = steps(times_of(1, 8))
    reports[-8] = report(0, 14, at=last)
    assert len(PATTERN.evaluate(window(*reports), START)) == named


def test_a_verdict_tells_of_the_last_step() -> None:
    reports = [
        report(3, step, 2.0, node="old" if step < 14 else "new", gpu="g0" if step < 14 else "g1") for step in (13, 14)
    ]
    peer = report(0, 14)
    lags = tuple(RankLag(one, peer, 2.0, 1.0, "compute", 8 + n) for n, one in enumerate(reports))
    said = StragglerVerdict(key=("j", ""), episode="rank 3", time=START, rank=3, lags=lags)
    assert said.headline() == (
        "Rank 3 on new computes 2 times as long as the median of 9 ranks, in 2 steps in a row from step 13"
    )
    assert said.remediation().startswith("On new, look at its GPU")
    assert "-i g1" in said.remediation()
    assert (said.fields()["cohort"], said.fields()["k8s.node.name"]) == (9, "new")
    assert said.promoted()["k8s.node.name"] == "new"
    assert sorted((fact.rank, fact.time - START) for fact in said.evidence() if fact.rank is not None) == [
        (0, 14 * SECOND),
        (3, 13 * SECOND),
        (3, 14 * SECOND),
    ]


def test_a_verdict_by_arrivals_tells_of_the_last_and_the_least_lateness() -> None:
    arrivals = tuple(
        Arrival(
            time=START + n, source=Source("fr", n), job="j", rank=3, node=f"n{n}", pg="0", seq=4 + n,
            lateness=lateness * SECOND // 1000, ranks=8 + n,
        )
        for n, lateness in enumerate((30, 10, 20))
    )  # fmt: skip
    said = StragglerVerdict(key=("j", ""), episode="rank 3", time=START, rank=3, arrivals=arrivals)
    assert said.headline() == (
        "Rank 3 on n2 comes last to 3 steps in a row of group 0, from seq 4, at least 10 ms after the middle rank"
    )
    assert (said.fields()["cohort"], said.fields()["k8s.node.name"]) == (10, "n2")
    assert said.promoted()["k8s.node.name"] == "n2"
    assert said.remediation().startswith("On n2, first")


@pytest.mark.parametrize(
    ("ratios", "ratio"), [((2.0,), 2.0), ((2.0, 4.0), 4.0), ((2.0, 3.0, 4.0), 3.0), ((2.004, 2.006, 9.0), 2.01)]
)
def test_the_ratio_is_the_median_of_the_steps(ratios: tuple[float, ...], ratio: float) -> None:
    lags = tuple(RankLag(report(3), report(0), took, 1.0, "compute", 8) for took in ratios)
    unmeasured = RankLag(report(3), report(0), 1.0, 0.0, "compute", 8)
    said = StragglerVerdict(key=("j", ""), episode="rank 3", time=START, rank=3, lags=(*lags, unmeasured))
    assert said.ratio == ratio
    alone = StragglerVerdict(key=("j", ""), episode="rank 3", time=START, rank=3, lags=(unmeasured,))
    assert alone.ratio is None
    assert "computes longer than the median" in alone.headline()


def entered(rank: int | None = 1, **fields: Any) -> CollectiveEntry:
    given = {"created": START, "pg": "0", "seq": 1, "state": "started"} | fields
    return CollectiveEntry(time=START, source=Source("fr"), job="j", rank=rank, **given)


@pytest.mark.parametrize(
    ("fact", "counts"),
    [
        (entered(), True),
        (entered(None), False),
        (entered(created=None), False),
        (entered(final=True), False),
        (entered(is_p2p=True), False),
        (report(1, 2), True),
        (report(1, 1), False),
        (report(1, whole=None), False),
        (report(1, whole=None, data=0.1), True),
        (report(1, phase="train"), True),
        (report(1, phase="eval"), False),
    ],
)
def test_facts_that_count(fact: Fact, counts: bool) -> None:
    assert bool(PATTERN.keys(fact)) is counts
