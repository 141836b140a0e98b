"""Whom the ranks of a hang wait for, by the reports of their watchdogs alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from tracecore.facts.nccl import GLOO, WatchdogReport
from tracecore.patterns.contract import IncidentContext
from tracecore.patterns.nccl_hang.reports import Blame, blame
from tracecore.patterns.nccl_hang.verdict import NcclHangVerdict
from tracecore.signals.record import Source

START = 1_794_700_000_000_000_000


def report(rank: int | None, seq: int | None = 7, **fields: Any) -> WatchdogReport:
    place = Source(f"rank{rank}.log", seq or 0)
    return WatchdogReport(time=START, source=place, rank=rank, **{"report": "timeout", "seq": seq} | fields)


def hang(*ranks: int, reports: Sequence[WatchdogReport] = (), **fields: Any) -> NcclHangVerdict:
    facts = tuple(reports) or tuple(report(rank) for rank in ranks)
    return NcclHangVerdict(
        **{"key": (), "episode": "", "time": START, "pg": "0", "seq": 7, "op": "ALLREDUCE", "hanging": facts} | fields
    )


def rest(
    ranks: int = 0, reports: Mapping[int, Sequence[WatchdogReport]] | None = None, **fields: Any
) -> IncidentContext:
    return IncidentContext(ranks=frozenset(range(ranks)), reports=reports or {}, **fields)


def culprits(found: Blame) -> list[tuple[int, str]]:
    return [(culprit.rank, culprit.why) for culprit in found.culprits]


ABORTED, WELL, STOPPED = (f"ended with exit status {how}" for how in ("-6 (SIGABRT)", "0", "-15 (SIGTERM)"))


@pytest.mark.parametrize(
    ("ended", "quiet"),
    [
        ({0: ABORTED, 1: ABORTED, 2: WELL, 3: ABORTED}, (2,)),
        ({0: ABORTED, 1: ABORTED, 2: WELL, 3: WELL}, (2, 3)),
        # Others were stopped, so that one which ended well may have been, too.
        ({0: ABORTED, 1: ABORTED, 2: WELL, 3: STOPPED}, (2, 3)),
        ({0: STOPPED, 1: STOPPED, 2: WELL, 3: STOPPED}, (2, 3)),
        # Nobody knows how those that wait ended, or all ended alike.
        ({2: WELL}, (2, 3)),
        ({0: WELL, 1: WELL, 2: WELL, 3: WELL}, (2, 3)),
        ({}, (2, 3)),
    ],
)
def test_a_rank_that_was_done_while_the_others_gave_up(ended: dict[int, str], quiet: tuple[int, ...]) -> None:
    assert blame(hang(0, 1), rest(4, ended=ended)).quiet == quiet


def test_a_rank_that_was_done_counts_in_a_group_of_all_ranks_alone() -> None:
    ended = {0: ABORTED, 1: ABORTED, 2: WELL, 3: ABORTED}
    assert blame(hang(0, 1, pg="5"), rest(4, ended=ended)).quiet == ()


# -- ranks that say nothing --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("verdict", "known", "quiet"),
    [
        (hang(0, 1, 2), rest(4), (3,)),
        (hang(0, 1, 2), rest(4, lost=frozenset({3})), ()),
        (hang(0, 1, 2), rest(4, {3: [report(3, 9)]}), ()),
        (hang(0, 1, 2), rest(4, {3: []}), (3,)),
        # In the group of all ranks as many as wait, in another a third of them.
        (hang(0, 1), rest(4), (2, 3)),
        (hang(0, 1), rest(5), ()),
        (hang(0, 1, pg="5"), rest(3), ()),
        (hang(0, 1, 2, pg="5"), rest(4), (3,)),
        (hang(0, 1, 2, pg="5"), rest(5), ()),
        *[(hang(0, 1, pg=name), rest(4), (2, 3)) for name in ("default_pg", "", GLOO)],
        (hang(0, 1, pg="5", pg_desc="default_pg"), rest(4), (2, 3)),
        # One that is looked for already, or an exchange of two.
        (hang(0, 1, unmeasured=(3,)), rest(4), ()),
        (hang(0, 1, 2, unmeasured=(3,)), rest(4), (3,)),
        (hang(0, 1, 2, is_p2p=True), rest(4), ()),
        (hang(reports=[report(None)]), rest(4), ()),
    ],
)
def test_ranks_whose_logs_say_nothing_of_the_hang(
    verdict: NcclHangVerdict, known: IncidentContext, quiet: tuple[int, ...]
) -> None:
    found = blame(verdict, known)
    assert (found.quiet, found.culprits) == (quiet, ())


# -- partners of an exchange -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("exchanging", "reports", "found"),
    [
        ((1,), {1: [report(1, op="ALLREDUCE")]}, [(1, "called_different")]),
        ((2,), {2: [report(2, op="SEND")]}, []),
        ((2,), {2: [report(2, op="ALLREDUCE"), report(2, op="RECV")]}, []),
        ((1,), {1: [report(1)]}, []),
        ((1,), {2: [report(2, op="ALLREDUCE")]}, []),
        ((0,), {0: [report(0, op="SEND")]}, [(0, "never_entered"), (1, "never_entered")]),
        ((0, 1), {0: [report(0, op="SEND")], 1: [report(1, op="SEND")]}, []),
        ((5,), {5: [report(5, op="SEND")]}, []),
    ],
)
def test_a_partner_without_a_dump(
    exchanging: tuple[int, ...], reports: Mapping[int, Sequence[WatchdogReport]], found: list[tuple[int, str]]
) -> None:
    assert culprits(blame(hang(0, 1, is_p2p=True, exchanging=exchanging), rest(2, reports))) == found


# -- a number in a group -----------------------------------------------------------------------------------------------


def numbered(rank: int | None, place: int | None, *missing: int) -> WatchdogReport:
    return report(rank, missing_in_group=missing, group_rank=place)


@pytest.mark.parametrize(
    ("reports", "waiting", "ranks", "found"),
    [
        ([numbered(2, 0, 1), numbered(4, 2, 1)], (), 8, [3]),
        ([numbered(2, 0, 1), numbered(5, 2, 1)], (), 8, []),
        ([numbered(2, 0, 1), numbered(5, 2, 1)], (4,), 8, [3]),
        ([numbered(6, 1, 2)], (), 8, [7]),
        ([numbered(6, 1, 2)], (), 9, []),
        ([numbered(1, 1, 0)], (), 8, [0]),
        ([numbered(5, 1, 1)], (0, 1, 2, 3, 4, 5), 7, [6]),
        ([numbered(2, 1, 0)], (), 8, []),
        ([numbered(2, 1, 1)], (), 3, []),
        ([numbered(2, 0, 1), report(4)], (), 8, []),
        ([numbered(None, 0, 1)], (), 8, []),
        ([numbered(1, 1, 0, 2), numbered(3, 3, 0, 2)], (), 8, [0, 2]),
    ],
)
def test_a_number_in_a_group_is_bounded_by_the_ranks_that_give_their_own(
    reports: list[WatchdogReport], waiting: tuple[int, ...], ranks: int, found: list[int]
) -> None:
    said = {rank: [report(rank, 3, op="SEND")] for rank in waiting}
    blamed = blame(hang(reports=reports), rest(ranks, said))
    assert culprits(blamed) == [(rank, "never_entered") for rank in found]


# -- another communicator ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rank", "setup", "found"),
    [
        (3, {"missing": (1,)}, True),
        (3, {"missing": (1, 0)}, True),
        (3, {"missing": (1, 5)}, False),
        (3, {"missing": ()}, False),
        (3, {"missing": (1,), "seq": 4}, False),
        (3, {"missing": (1,), "pg": "2"}, False),
        (1, {"missing": (0,)}, False),
    ],
)
def test_a_rank_that_sets_up_a_communicator_with_one_that_waits(rank: int, setup: dict[str, Any], found: bool) -> None:
    said = {rank: [report(rank, 2, pg="9"), report(rank, **{"seq": None} | setup)]}
    blamed = blame(hang(0, 1), rest(4, said, lost=frozenset({2})))
    assert culprits(blamed) == ([(rank, "called_different")] if found else [])


# -- another line of the program ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("frames", "found"),
    [
        ("aaab", [3]), ("aab", []), ("aaaabb", []), ("aaaaabb", [5, 6]), ("aaaa", []), ("aaaaabc", [5, 6]),
    ],
)  # fmt: skip
def test_the_few_that_wait_at_another_line_called_something_else(frames: str, found: list[int]) -> None:
    said = [report(rank, frame=frame) for rank, frame in enumerate(frames)]
    blamed = blame(hang(reports=said), rest(len(frames)))
    assert culprits(blamed) == [(rank, "called_different") for rank in found]
    more = blame(hang(reports=said), rest(len(frames) + 1))
    assert more.culprits == ()
    unknown = [*said[:-1], report(len(frames) - 1)]
    assert blame(hang(reports=unknown), rest(len(frames))).culprits == ()


# -- an earlier collective ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("completed", "mine", "changes", "found"),
    [
        (6, [report(2, 5, pg="0")], {}, True),
        (5, [report(2, 5, pg="0")], {}, True),
        (4, [report(2, 5, pg="0")], {}, False),
        (None, [report(2, 5, pg="0")], {}, False),
        (6, [report(2, 7, pg="0")], {}, False),
        (6, [report(2, 5, pg="1")], {}, False),
        (6, [report(2, None, pg="0")], {}, False),
        (6, [report(2, 5, pg="0"), report(2, 4, pg="9", op="SEND")], {}, False),
        # Where no group is named, the number just before.
        (None, [report(2, 6, op="ALLREDUCE")], {"pg": ""}, True),
        (None, [report(2, 5, op="ALLREDUCE")], {"pg": ""}, False),
        (None, [report(2, 6, op="BROADCAST")], {"pg": ""}, False),
        (None, [report(2, 6, pg="0", op="ALLREDUCE")], {}, False),
    ],
)
def test_a_rank_that_is_still_inside_an_earlier_collective(
    completed: int | None, mine: list[WatchdogReport], changes: dict[str, Any], found: bool
) -> None:
    waiting = [report(rank, last_completed=completed) for rank in (0, 1)]
    blamed = blame(hang(reports=waiting, **changes), rest(3, {2: mine}))
    assert culprits(blamed) == ([(2, "still_inside")] if found else [])
    if found:
        group = "their group" if "pg" in changes else "group 0"
        assert blamed.origin == (group, mine[0].seq)
        assert blame(hang(reports=waiting, **changes), rest(4, {2: mine})).culprits == (), "another says nothing"


def test_the_first_of_several_earlier_collectives_is_where_it_began() -> None:
    waiting = [report(rank, last_completed=6) for rank in (0, 1)]
    said = {2: [report(2, 6, pg="0", op="B"), report(2, 5, pg="0", op="A")], 3: [report(3, 4, pg="0", op="C")]}
    blamed = blame(hang(reports=waiting, pg_desc="tp"), rest(4, said))
    assert blamed.origin == ("tp", 4)
    assert [(culprit.rank, culprit.what) for culprit in blamed.culprits] == [(2, "A"), (3, "C")]
