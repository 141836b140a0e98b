"""Searches near an instant find what a look at every fact finds."""

from __future__ import annotations

from operator import attrgetter

from hypothesis import given
from hypothesis import strategies as st

from tracecore.engine.window import FactWindow
from tracecore.facts.collective import CollectiveEntry
from tracecore.facts.fact import Fact, order
from tracecore.facts.process import ExitStatus
from tracecore.patterns.nccl_hang.detector import MOST, NcclHang, NcclHangVerdict
from tracecore.patterns.related import Related
from tracecore.patterns.timeline import Others, Timeline, ValueChanges, grouped, in_order
from tracecore.signals.record import Source

TIMES = st.integers(0, 20)


@st.composite
def statuses(draw: st.DrawFn) -> list[ExitStatus]:
    made = []
    for number in range(draw(st.integers(0, 12))):
        time = draw(TIMES)
        made.append(
            ExitStatus(
                time=time,
                last_time=draw(st.one_of(st.none(), st.integers(time, 25))),
                source=Source(path="/a.log", offset=number),
                rank=draw(st.sampled_from([None, 0, 1])),
                pod=draw(st.sampled_from([None, "a/b"])),
                exit_code=1,
            )
        )
    return sorted(made, key=order)


@given(statuses(), TIMES, TIMES)
def test_the_first_and_the_latest_near_an_instant(facts: list[ExitStatus], oldest: int, newest: int) -> None:
    near = [fact for fact in facts if fact.end >= oldest and fact.time <= newest]
    assert Timeline(facts).first(oldest, newest) == next(iter(near), None)
    latest = Timeline(facts).latest(oldest, newest)
    assert (latest is None) == (not near)
    if latest is not None:
        assert latest in near
        assert latest == near[-1] or latest.end == max(fact.end for fact in near)


@given(statuses(), TIMES, TIMES, st.sampled_from([None, 0, 1]))
def test_the_first_of_another(facts: list[ExitStatus], oldest: int, newest: int, rank: int | None) -> None:
    near = (fact for fact in facts if fact.end >= oldest and fact.time <= newest and fact.rank != rank)
    assert Others(facts, attrgetter("rank")).first(rank, oldest, newest) == next(near, None)


@given(statuses(), statuses(), TIMES, TIMES)
def test_related_facts(facts: list[ExitStatus], asked: list[ExitStatus], oldest: int, newest: int) -> None:
    known = Related(facts)
    for fact in asked:
        related = [other for other in facts if _agree(other.rank, fact.rank) and _agree(other.pod, fact.pod)]
        begun = [other for other in related if oldest <= other.time <= newest]
        assert known.any(fact, oldest, newest) == bool(begun)
        assert known.last(fact, oldest, newest) == (begun[-1] if begun else None)
        assert known.some(fact, oldest, newest, 99) == begun
        lasting = (other for other in related if other.end >= oldest and other.time <= newest)
        assert known.lasting(fact, oldest, newest) == next(lasting, None)


@given(st.lists(st.integers(0, 2)), st.integers(0, 10), st.integers(0, 10))
def test_changes(values: list[int], begin: int, end: int) -> None:
    assert ValueChanges(values).between(begin, min(end, len(values))) == (len(set(values[begin:end])) > 1)


@given(statuses(), statuses())
def test_facts_in_order_and_in_groups(one: list[ExitStatus], other: list[ExitStatus]) -> None:
    both: list[Fact] = [*one, *other]
    assert list(map(order, in_order(one, other))) == sorted(map(order, both))
    groups = grouped(both, attrgetter("rank"))
    assert {rank: [fact for fact in both if fact.rank == rank] for rank in groups} == groups


def test_of_very_many_collectives_that_hang_the_first_says_how_many_more() -> None:
    window = FactWindow(("job", "0"), 0)
    for seq in range(MOST + 7):
        for rank in range(2):
            source = Source(path=f"/{rank}.log", offset=seq)
            entry = CollectiveEntry(
                time=seq, source=source, rank=rank, pg="0", seq=seq, op="all_reduce", state="started"
            )
            window.add(entry)
    found = NcclHang().evaluate(window, 10**15)
    assert len(found) == MOST
    first, *others = found
    assert isinstance(first, NcclHangVerdict)
    assert first.document()["further_hanging_collectives"] == 7
    assert "Another 7 later collectives of this group hang" in first.remediation()
    assert not any("further_hanging_collectives" in other.document() for other in others)


def _agree(one: object, other: object) -> bool:
    return one is None or other is None or one == other


def test_the_last_that_still_goes_on_is_preferred_to_one_that_lasts_longer() -> None:
    def status(begin: int, end: int) -> ExitStatus:
        return ExitStatus(time=begin, last_time=end, source=Source("a", begin), exit_code=1)

    facts = [status(0, 100), status(10, 50)]
    assert Timeline(facts).latest(40, 60) is facts[1]
    assert Timeline(facts).latest(50, 60) is facts[1]
    assert Timeline(facts).latest(51, 60) is facts[0]
    assert Timeline(facts).latest(101, 120) is None
