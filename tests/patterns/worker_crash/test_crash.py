"""Crashes among facts that may be failures: which failure is the first, and how few of them need a judgement."""

from __future__ import annotations

import pytest

from tracecore.facts.fact import Fact
from tracecore.facts.process import CudaError, ExceptionRaised, ExitStatus, FatalSignal, LauncherFailure, LoaderError
from tracecore.patterns.worker_crash.crash import Crash, JudgedFailures, crashes
from tracecore.signals.record import Source

SECOND = 1_000_000_000
WINDOW = 10 * SECOND


def raised(time: float, rank: int | None = None, **more: object) -> ExceptionRaised:
    return ExceptionRaised(type="ValueError", **_where(time, rank), **more)


def killed(time: float, rank: int | None = None, **more: object) -> FatalSignal:
    return FatalSignal(signal="SIGSEGV", **_where(time, rank), **more)


def reported(time: float, rank: int | None = None, **more: object) -> LauncherFailure:
    return LauncherFailure(launcher="torchrun", **_where(time, rank), **more)


def _where(time: float, rank: int | None) -> dict[str, object]:
    return {"time": int(time * SECOND), "rank": rank, "source": Source(path=f"rank{rank}.log", offset=int(time * 10))}


class Judge:
    """Says of each fact that it is a failure, unless its time is among those survived; remembers what it was asked."""

    def __init__(self, *survived: float) -> None:
        self.survived = {int(time * SECOND) for time in survived}
        self.asked: list[Fact] = []

    def own(self, fact: Fact) -> bool:
        self.asked.append(fact)
        return fact.time not in self.survived

    def crashes(self, *facts: Fact) -> list[Crash]:
        return list(crashes(facts, JudgedFailures(self.own, lambda fact: fact.rank), WINDOW))


@pytest.mark.parametrize(
    ("times", "survived", "starts"),
    [
        ((), (), []),
        ((1,), (1,), []),
        ((1, 11), (), [1]),
        ((1, 11.5), (), [1, 11.5]),
        # Each is close to the one before: one crash, however long it takes.
        ((1, 11, 21, 31), (), [1]),
        ((1, 11, 21, 32), (), [1, 32]),
        # One that was survived joins nothing.
        ((1, 11, 21), (11,), [1, 21]),
        ((1, 9, 18, 20), (18,), [1, 20]),
        ((1, 9, 11, 20, 21), (11, 20), [1, 21]),
        ((1, 2, 13), (1,), [2, 13]),
        ((1, 5, 9, 10, 19.5, 40), (5, 10), [1, 19.5, 40]),
    ],
)
def test_failures_close_to_each_other_are_one_crash(
    times: tuple[float, ...], survived: tuple[float, ...], starts: list[float]
) -> None:
    found = Judge(*survived).crashes(*[raised(time, number) for number, time in enumerate(times)])
    assert [crash.start.time / SECOND for crash in found] == starts


def test_attempts_are_crashes_of_their_own() -> None:
    one, other = raised(1, 0), raised(2, 0, attempt=1)
    assert [crash.start for crash in Judge().crashes(one, other)] == [one, other]


@pytest.mark.parametrize(
    ("facts", "survived", "first", "ranks"),
    [
        # What the launcher calls the root counts, with the most telling failure of its rank.
        ([raised(1, 0), killed(2, 3), raised(3, 3), reported(4, 3, root=True)], (), 2, {3}),
        ([raised(1, 0), killed(2, 3), raised(3, 3), reported(4, 3, root=True)], (3,), 1, {3}),
        ([raised(1, 0), killed(2, 3), reported(4, 3, root=True)], (4,), 0, {0}),
        ([raised(1, 0), reported(4, root=True)], (), 0, {0}),
        # A failure without a rank gives way to one that has one, unless it is an exception.
        ([killed(1), killed(2, 5)], (), 1, {5}),
        ([killed(1), killed(2, 5)], (2,), 0, set()),
        ([raised(1), killed(2, 5)], (), 0, set()),
        # All that failed in the same way, and only those that did fail.
        ([killed(1, 0), killed(1.5, 1), killed(2.5, 2), killed(1.2, 4)], (1.2,), 0, {0, 1}),
        # Of one instant, those that were survived do not count.
        ([raised(1, 7), raised(1, 8)], (), 0, {7}),
    ],
)
def test_the_first_failure(facts: list[Fact], survived: tuple[float, ...], first: int, ranks: set[int]) -> None:
    [crash] = Judge(*survived).crashes(*sorted(facts, key=lambda fact: fact.time))
    assert crash.first == facts[first]
    assert crash.ranks == ranks


SAID = "row 600 has 17 tokens and not 512"


@pytest.mark.parametrize(
    ("status", "others", "everybody"),
    [
        ({}, [raised(2, count=4, message=SAID)], True),
        ({}, [raised(2, count=3, message=SAID)], False),
        ({"rank": 0}, [raised(2, count=2, message=SAID)], True),
        ({"rank": 0}, [raised(2, message=SAID)], False),
        ({"rank": 0, "other_rank": 2}, [raised(2, count=2, message=SAID)], False),
        ({"rank": 0, "other_rank": 2}, [raised(2, count=3, message=SAID)], True),
        # What several lines say alike is counted together; what was survived, or is another message, is not.
        ({}, [raised(2, message=SAID), raised(3, count=3, message=SAID + " again")], True),
        ({}, [raised(2, message=SAID), raised(4, count=3, message=SAID)], False),
        ({}, [raised(2, message=SAID), raised(3, count=3, message="another thing altogether")], False),
        # Neither a signal nor somebody's exception is what nobody's exception says.
        ({}, [raised(1.2, 5, message=SAID), killed(1.5), raised(2, count=4, message=SAID)], True),
    ],
)
def test_an_exception_without_a_rank_explains_the_status_of_the_launcher(
    status: dict[str, int], others: list[Fact], everybody: bool
) -> None:
    report = reported(1, **{"rank": 3, "root": True, "exit_code": 1, **status})
    [crash] = Judge(4).crashes(report, *others)
    assert crash.everybody is everybody
    assert crash.start == report
    assert crash.first == next(fact for fact in others if isinstance(fact, ExceptionRaised) and fact.rank is None)
    assert crash.rank == (None if everybody else report.rank)


@pytest.mark.parametrize("status", [{"exit_code": None}, {"exit_code": 137}, {"exception_type": "KeyError"}])
def test_a_launcher_that_says_more_is_believed(status: dict[str, object]) -> None:
    report = reported(1, 3, **{"root": True, "exit_code": 1, **status})
    [crash] = Judge().crashes(report, raised(2, count=4, message=SAID))
    assert (crash.first, crash.everybody) == (report, False)


def ended(time: float, rank: int, exit_code: int = 1) -> ExitStatus:
    return ExitStatus(exit_code=exit_code, **_where(time, rank))


ABORTED, TERMINATED = 134, 143


@pytest.mark.parametrize(
    ("facts", "first"),
    [
        ([ended(1, 0), killed(1, 1)], 1),
        ([ended(1, 0, ABORTED), ended(1, 1)], 1),
        ([ended(1, 0, TERMINATED), ended(1, 1, ABORTED)], 1),
        ([ended(1, 0), ended(1, 1)], 0),
        ([ended(1, 0), killed(1.5, 1)], 0),
    ],
)
def test_of_one_instant_the_one_that_follows_least_is_first(facts: list[Fact], first: int) -> None:
    [crash] = Judge().crashes(*facts)
    assert crash.first == facts[first]


def test_an_exception_without_a_rank_gives_way_to_what_was_read_from_the_same_line() -> None:
    line = raised(1)
    worker = {"error_class": "DataLoader worker killed", "source": line.source}
    survived, own = LoaderError(time=2 * SECOND, **worker), LoaderError(time=3 * SECOND, **worker)
    elsewhere = LoaderError(time=SECOND, error_class="x", source=Source(path="z"))
    assert [crash.first for crash in Judge(2).crashes(line, elsewhere, survived)] == [line]
    assert [crash.first for crash in Judge(2).crashes(line, elsewhere, survived, own)] == [own]


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ({"message": SAID}, {"message": SAID + "!"}, True),
        ({"message": SAID + "!"}, {"message": SAID}, True),
        ({"message": "x" * 20}, {"message": "x" * 20}, True),
        ({"message": "x" * 19}, {"message": "x" * 19}, False),
        ({"message": SAID}, {"message": SAID, "type": "KeyError"}, False),
        ({"message": SAID, "file": "a.py", "line": 1}, {"message": SAID}, False),
        ({"message": SAID}, {"message": SAID, "file": "a.py", "line": 1}, False),
        ({"file": "a.py", "line": 1}, {"file": "a.py", "line": 1}, True),
        ({"file": "a.py", "line": 1}, {"file": "a.py", "line": 2}, False),
        ({"file": "a.py", "line": 1}, {"file": "b.py", "line": 1}, False),
    ],
)
def test_ranks_that_raise_the_same(one: dict[str, object], other: dict[str, object], same: bool) -> None:
    first, second = (
        ExceptionRaised(**{"type": "ValueError", **_where(1 + rank, rank), **fields})
        for rank, fields in enumerate((one, other))
    )
    [crash] = Judge().crashes(first, second)
    assert crash.ranks == ({0, 1} if same else {0})


@pytest.mark.parametrize(
    ("second", "same"),
    [
        (killed(2, 1), True),
        (killed(2.1, 1), False),
        (killed(2.1, 1, approximate=True), True),
        (FatalSignal(signal="SIGBUS", **_where(2, 1)), False),
    ],
)
def test_ranks_that_die_of_the_same(second: FatalSignal, same: bool) -> None:
    [crash] = Judge().crashes(killed(1, 0), second)
    assert crash.ranks == ({0, 1} if same else {0})


@pytest.mark.parametrize(
    ("facts", "first"),
    [
        ([killed(1, 0), raised(2, 0)], 1),
        # An exception of C++ says more than a signal where it has a message, and less than a GPU's error where not.
        ([ExceptionRaised(type="c10::Error", message="", **_where(1, 0)), killed(2, 0)], 0),
        ([ExceptionRaised(type="c10::Error", message="", **_where(1, 0)), raised(2, 0)], 1),
        ([ExceptionRaised(type="c10::Error", message="x", **_where(1, 0)), raised(2, 0)], 0),
        ([CudaError(error="device_assert", **_where(1, 0)), raised(2, 0)], 1),
        ([reported(1, 0), killed(2, 0)], 1),
        ([ended(1, 0), reported(2, 0)], 1),
    ],
)
def test_of_one_rank_the_most_telling_failure_is_cited(facts: list[Fact], first: int) -> None:
    [crash] = Judge().crashes(*facts)
    assert crash.first == facts[first]


def test_few_of_many_failures_are_judged() -> None:
    judge = Judge()
    many = [raised(1 + number / 100, number % 50, file=f"f{number}.py", line=1) for number in range(500)]
    [crash] = judge.crashes(reported(0, 3, root=True), *many)
    assert crash.rank == 3
    assert len(judge.asked) == 11  # the report, and the ten of its rank
