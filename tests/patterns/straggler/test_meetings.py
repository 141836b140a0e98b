"""Who came last to a collective that every rank of its group came to."""

from __future__ import annotations

from tracecore.facts.collective import Arrival, CollectiveEntry
from tracecore.patterns.straggler.meetings import Meetings
from tracecore.signals.record import Source


def entry(rank: int | None, created: int | None, seq: int = 1, pg: str = "0", attempt: int = 0) -> CollectiveEntry:
    source = Source(f"rank{rank}", (created or 0) + 1000 * seq)
    return CollectiveEntry(
        time=5, source=source, rank=rank, attempt=attempt, pg=pg, seq=seq, state="completed", created=created
    )


def arrivals(*entries: CollectiveEntry, cohort: int = 2) -> list[tuple[str, int, int, int, int | None, int, int]]:
    found: list[Arrival] = list(Meetings(entries).arrivals(cohort))
    return [(one.pg, one.attempt, one.seq, one.time, one.rank, one.lateness, one.ranks) for one in found]


def test_the_last_is_late_by_what_the_middle_one_waited_for_it() -> None:
    assert arrivals(entry(0, 10), entry(1, 12), entry(2, 50)) == [("0", 0, 1, 50, 2, 38, 3)]
    assert arrivals(entry(0, 10), entry(1, 12), entry(2, 50), entry(3, 13)) == [("0", 0, 1, 50, 2, 37, 4)]


def test_of_two_that_came_last_together_it_is_the_lower_rank() -> None:
    assert arrivals(entry(2, 50), entry(1, 50), entry(0, 10)) == [("0", 0, 1, 50, 1, 0, 3)]


def test_a_rank_came_when_it_came_first() -> None:
    assert arrivals(entry(0, 10), entry(1, 90), entry(1, 20)) == [("0", 0, 1, 20, 1, 0, 2)]


def test_a_collective_that_somebody_did_not_come_to_does_not_count() -> None:
    assert arrivals(entry(0, 10), entry(1, 12), entry(0, 20, seq=2)) == [("0", 0, 1, 12, 1, 0, 2)]


def test_groups_attempts_and_collectives_are_apart() -> None:
    found = arrivals(
        entry(0, 10), entry(1, 12), entry(0, 30, seq=2), entry(1, 29, seq=2),
        entry(0, 50, pg="1"), entry(1, 60, pg="1"), entry(0, 70, attempt=1), entry(1, 80, attempt=1),
    )  # fmt: skip
    assert [one[:4] for one in found] == [("0", 0, 1, 12), ("0", 0, 2, 30), ("1", 0, 1, 60), ("0", 1, 1, 80)]


def test_a_small_group_does_not_count_and_the_others_do() -> None:
    found = arrivals(entry(0, 1, pg="a"), entry(0, 10), entry(1, 12), entry(0, 1, pg="z"), cohort=2)
    assert [one[0] for one in found] == ["0"]
    assert arrivals(entry(0, 10), entry(1, 12), cohort=3) == []


def test_entries_without_a_rank_or_a_time_are_passed_over() -> None:
    entries = [entry(None, 5), entry(3, None), entry(0, 10), entry(1, 12)]
    assert arrivals(*entries) == arrivals(*entries[2:]) == [("0", 0, 1, 12, 1, 0, 2)]
