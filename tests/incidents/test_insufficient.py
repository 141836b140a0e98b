"""A run that failed or hung without a verdict: what is known is said, and whom to look at."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tracecore.facts.fact import Fact
from tracecore.facts.nccl import NcclError, WatchdogReport
from tracecore.facts.process import ExceptionRaised, StackPrinted
from tracecore.facts.training import CheckpointPhase, Progress, StepStalled
from tracecore.incidents import run as runs
from tracecore.incidents.arbitration import arbitrate
from tracecore.incidents.incident import Incident
from tracecore.patterns.contract import LastLines
from tracecore.signals.record import LAYERS

sys.path.insert(0, str(Path(__file__).resolve().parent))
from made_verdicts import SECOND, T0, ended, place

SAYS_WHY = "; the logs do not show why"


def told(facts: Sequence[Fact], lines: dict[int, LastLines] | None = None) -> tuple[str, tuple[int, ...]]:
    """Return the headline and the suspected ranks of the only incident."""
    run = runs.look(facts, T0 + 3600 * SECOND)
    if lines is not None:
        run.last_lines = lambda rank, _attempt: lines.get(rank)
    (incident,) = arbitrate([], run, dict.fromkeys(LAYERS, 1)).incidents
    assert isinstance(incident, Incident)
    assert incident.status == "insufficient_evidence"
    return incident.headline, incident.suspects.ranks


def step(rank: int, at: float = 0, number: int = 7) -> Fact:
    return Progress(time=T0 + int(at * SECOND), source=place(f"rank{rank}.log"), rank=rank, step=number)


def stack(rank: int, line: int, at: float = 10) -> Fact:
    source = place(f"rank{rank}.log", 5)
    return StackPrinted(time=T0 + int(at * SECOND), source=source, rank=rank, inner="wait", file="train.py", line=line)


def lost(rank: int) -> Fact:
    return NcclError(time=T0 + SECOND, source=place(f"rank{rank}.log", 3), rank=rank, error="remote_error")


@pytest.mark.parametrize(
    ("codes", "headline", "ranks"),
    [
        ({0: 1, 1: 1}, "2 of 2 ranks failed (exit status 1)", ()),
        ({0: 0, 1: 3}, "1 of 2 ranks failed (exit status 3)", (1,)),
        ({0: -6, 1: -6, 2: 3}, "3 of 3 ranks failed (2 with SIGABRT, 1 with exit status 3)", (2,)),
        ({0: 9}, "The job ended with exit status 9", ()),
    ],
)
def test_ends_that_nobody_explains(codes: dict[int, int | None], headline: str, ranks: tuple[int, ...]) -> None:
    assert told(ended(codes)) == (headline + SAYS_WHY, ranks)


def test_a_single_status_beside_several_ranks_is_the_launchers() -> None:
    assert told([step(0), step(1), *ended({0: 1})]) == (f"The job ended with exit status 1{SAYS_WHY}", ())


def test_ranks_that_did_not_come_are_named() -> None:
    def report(rank: int, *missing: int) -> Fact:
        source = place(f"rank{rank}.log")
        return WatchdogReport(time=T0, source=source, rank=rank, report="timeout", seq=4, missing=missing)

    headline, ranks = told([report(0, 3), report(1, 3, 2), *ended({0: 1, 1: 1})])
    assert headline == f"Ranks 2 and 3 did not reach the point where the others waited{SAYS_WHY}"
    assert ranks == (2, 3)


@pytest.mark.parametrize(
    ("codes", "how", "silent"),
    [
        ({0: 1, 1: 1}, "logged nothing after step 7", (2,)),
        ({0: 1, 1: 1, 2: 0}, "ended before them, with status 0", (2,)),
    ],
)
def test_who_said_nothing_was_at_the_other_end(codes: dict[int, int | None], how: str, silent: tuple[int, ...]) -> None:
    facts = [step(0), step(1), step(2), lost(0), lost(1), *ended(codes)]
    assert told(facts) == (f"Ranks 0 and 1 lost their connections, and rank 2 {how}", silent)


def test_where_more_are_silent_than_lost_a_connection_nobody_is_blamed() -> None:
    headline, _ = told([*(step(rank) for rank in range(4)), lost(0), *ended({0: 1})])
    assert "lost their connections" not in headline


def test_the_few_that_stood_elsewhere_are_named() -> None:
    facts = [stack(0, 5), stack(1, 5), stack(2, 9), *ended({0: None, 1: None, 2: None})]
    headline, ranks = told(facts)
    assert ranks == (2,)
    assert headline.startswith("No progress: when stacks were printed, ranks 0 and 1 stood at ")
    assert ", rank 2 at " in headline


def test_where_as_many_stand_elsewhere_or_one_made_a_step_nobody_is_named() -> None:
    half = [stack(0, 5), stack(1, 5), stack(2, 9), stack(3, 9), *ended(dict.fromkeys(range(4)))]
    assert told(half)[1] == ()
    moved = [stack(0, 5), stack(1, 5), stack(2, 9), step(2, at=11), *ended(dict.fromkeys(range(3)))]
    assert told(moved)[1] == ()
    raised = ExceptionRaised(time=T0 + 5, source=place("rank0.log", 2), rank=0, type="ValueError", message="x")
    assert "stood at" not in told([raised, *half[:3], *ended(dict.fromkeys(range(3)))])[0]


@pytest.mark.parametrize(("savers", "who", "suspects"), [((1,), "rank 1", (1,)), ((0, 1, 2), "ranks 0, 1, 2", (0,))])
def test_a_checkpoint_that_began_is_the_last_word(savers: tuple[int, ...], who: str, suspects: tuple[int, ...]) -> None:
    def begins(rank: int) -> Fact:
        source = place(f"rank{rank}.log", 3)
        return CheckpointPhase(time=T0 + 5, source=source, rank=rank, phase="write", event="begin", step=7)

    facts = [*(step(rank) for rank in range(3)), *map(begins, savers), *ended(dict.fromkeys(range(3)))]
    what = f"the last message of {who} says that a checkpoint began"
    assert told(facts) == (f"3 processes were still running when this was recorded, and {what}", suspects)


def test_processes_that_are_still_there_may_be_at_work() -> None:
    headline, ranks = told([step(0, number=3), step(1, at=1, number=9), *ended({0: None, 1: None})])
    alive = (
        "2 processes were still running when this was recorded; the logs do not show whether they were hung or at work"
    )
    assert (headline, ranks) == (f"{alive}; the last step reported is 9", ())
    assert told([step(0), *ended({0: None})])[0].startswith("The process was still running")


def lines(rank: int, doing: str | None) -> LastLines:
    named: dict[str, Any] = {"rank": rank, "path": f"rank{rank}.log", "lines": ((1, "first"), (2, f"busy {rank}"))}
    return LastLines(**{**named, "doing": doing})


def test_the_rank_that_says_what_it_does_is_named() -> None:
    facts = [*(step(rank) for rank in range(3)), *ended(dict.fromkeys(range(3)))]
    said = {0: lines(0, None), 1: lines(1, "was reading data"), 2: lines(2, None)}
    headline, ranks = told(facts, said)
    assert ranks == (1,)
    assert "after step 7 rank 1 was reading data (“busy 1”), and the others logged nothing" in headline
    assert told(facts, {**said, 2: lines(2, "was reading data")})[1] == ()
    assert told([*facts, step(0, at=5, number=8)], said)[1] == ()
    assert told(facts, {rank: lines(rank, None) for rank in range(3)})[1] == ()
    assert told(facts, {1: said[1], 2: said[2]})[1] == ()


def test_the_longest_stall_is_told() -> None:
    def stall(rank: int, seconds: float, number: int) -> Fact:
        source = place(f"rank{rank}.log", 4)
        return StepStalled(time=T0 + rank, source=source, rank=rank, no_progress_s=seconds, step=number)

    headline, ranks = told([stall(0, 100.0, 3), stall(1, 400.0, 5)])
    assert headline.startswith("No progress past step 5 for ")
    assert headline.endswith(SAYS_WHY)
    assert ranks == ()


def test_a_library_that_says_what_is_wrong_is_quoted() -> None:
    error = NcclError(time=T0, source=place("rank0.log"), rank=0, error="version_mismatch", detail="2.18 and 2.20")
    headline, ranks = told([error, *ended({0: 1, 1: 1})])
    assert headline == "The collectives could not be set up: ranks run different versions of NCCL (2.18 and 2.20)"
    assert ranks == (0,)
