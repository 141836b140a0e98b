"""Thinning hides no pause, no step back and no change of phase, and keeps the end whole."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tracecore.diagnose.thinning import EDGES, SPREAD, TAIL, Thinning
from tracecore.facts.progress import stalls
from tracecore.facts.training import Progress
from tracecore.signals.record import Source

SECOND = 1_000_000_000
T0 = 1_790_000_000 * SECOND


def report(number: int, second: int, step: int, rank: int | None = 0, phase: str | None = "train") -> Progress:
    source = Source("a.log", number * 100, number + 1, 90)
    return Progress(time=T0 + second * SECOND, source=source, rank=rank, step=step, phase=phase)


def thinned(reports: list[Progress]) -> list[Progress]:
    thinning = Thinning()
    assert all(thinning.take(fact) for fact in reports)
    return [fact for fact in thinning.kept() if isinstance(fact, Progress)]


def test_a_long_run_keeps_a_bounded_number_of_reports() -> None:
    for length in (10_000, 100_000):
        kept = thinned([report(n, n, n) for n in range(length)])
        assert len(kept) <= 2 * SPREAD + TAIL + 2
        assert kept[-1].step == length - 1


def test_even_a_run_of_nothing_but_pauses_is_bounded() -> None:
    assert len(thinned([report(n, n * 40, n) for n in range(50_000)])) <= EDGES + 1 + 2 * SPREAD + TAIL


def test_the_end_is_whole() -> None:
    kept = thinned([report(n, n, n) for n in range(5_000)])
    assert [fact.step for fact in kept[-TAIL:]] == list(range(5_000 - TAIL, 5_000))


def test_a_short_run_is_kept_whole() -> None:
    reports = [report(n, n, n) for n in range(TAIL)]
    assert thinned(reports) == reports


def test_what_is_no_progress_is_not_taken() -> None:
    from tracecore.facts.training import RunFinished

    assert not Thinning().take(RunFinished(time=T0, source=Source("a.log")))


def assert_same_stalls(reports: list[Progress], end: int) -> None:
    """Stalls of the whole and of what is kept are the same: where they began, how long they were."""
    found = sorted((stall.time, stall.no_progress_s) for stall in stalls(reports, end))
    assert sorted((stall.time, stall.no_progress_s) for stall in stalls(thinned(reports), end)) == found


def test_a_run_without_a_stall_has_none_after_thinning() -> None:
    reports = [report(n, n, n) for n in range(60_000)]
    assert stalls(thinned(reports), T0 + 60_010 * SECOND) == []


@given(
    st.lists(
        st.tuples(
            st.sampled_from([1, 1, 2, 29, 30, 70, 400]),  # a pause before this stretch
            st.sampled_from([1, 1, 0, -5]),  # how the step changes over it
            st.sampled_from(["goes on", "goes on", "stands still"]),
            st.integers(1, 400),
        ),
        min_size=1,
        max_size=12,
    )
)
def test_the_same_stalls_are_found(stretches: list[tuple[int, int, str, int]]) -> None:
    reports: list[Progress] = []
    second, step = 0, 1_000
    for pause, rise, kind, length in stretches:
        second += pause
        step += rise
        for _ in range(length):
            reports.append(report(len(reports), second, step))
            second += 1
            step += kind == "goes on"
    assert_same_stalls(reports, T0 + (second + 200) * SECOND)
