"""Steps and a clock make stalls."""

from __future__ import annotations

import random
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracecore.facts.fact import Fact
from tracecore.facts.host import SlurmState
from tracecore.facts.process import ExitStatus
from tracecore.facts.progress import PENDING, ProgressBridge, stalls
from tracecore.facts.stop import PlannedStop
from tracecore.facts.training import CheckpointPhase, Progress, RunFinished, StepStalled
from tracecore.signals.record import Source

S = 1_000_000_000
T0 = 1_700_000_000 * S


def at(seconds: float) -> int:
    return T0 + int(seconds * S)


def step(seconds: float, number: int | None, **more: Any) -> Progress:
    return Progress(time=at(seconds), source=Source("rank0.log", int(seconds * 1000)), step=number, **more)


def checkpoint(seconds: float, phase: str, event: str) -> CheckpointPhase:
    return CheckpointPhase(time=at(seconds), source=Source("rank0.log", int(seconds * 1000)), phase=phase, event=event)


def brief(found: list[StepStalled]) -> list[tuple[float, int | None, str | None]]:
    return [(f.no_progress_s, f.step, f.phase) for f in found]


def test_a_stall_starts_at_the_threshold_and_grows_under_one_uid() -> None:
    bridge = ProgressBridge()
    for n in range(5):
        bridge.observe(step(n, n))
    assert bridge.tick(at(4 + 60) - 1) == []
    (first,) = bridge.tick(at(4 + 60))
    assert (first.no_progress_s, first.time, first.since, first.step) == (60.0, at(64), at(4), 4)
    assert bridge.tick(at(4 + 69)) == []
    (second,) = bridge.tick(at(4 + 125))
    assert (second.no_progress_s, second.time, second.since) == (120.0, at(64), at(4))
    assert second.uid == first.uid
    assert second.last_time == at(124)


def test_lines_that_share_a_second_come_in_the_order_they_were_written() -> None:
    facts = [
        Progress(time=at(1), source=Source("rank0.log", offset), step=number)
        for number, offset in enumerate((80, 160, 900, 1_000))
    ]
    assert brief(stalls(facts, at(100))) == [(90.0, 3, None)]


def test_steps_end_a_stall_and_the_next_is_another() -> None:
    facts = [step(0, 5), step(100, 6), step(300, 7)]
    found = stalls(facts, at(400))
    assert brief(found) == [(100.0, 5, None), (200.0, 6, None), (100.0, 7, None)]
    assert len({f.uid for f in found}) == 3


def test_a_bar_redrawn_at_the_same_step_is_no_progress() -> None:
    assert brief(stalls([step(n * 10, 5) for n in range(13)], at(120))) == [(120.0, 5, None)]


def test_going_back_is_progress_too() -> None:
    assert stalls([step(0, 500), step(50, 400), step(100, 401)], at(150)) == []


def test_evaluation_is_named_and_lets_the_clock_start_again() -> None:
    facts = [step(0, 9), step(10, 0, phase="eval"), step(90, 0, phase="eval"), step(95, 9, phase="train")]
    assert brief(stalls(facts, at(100))) == [(80.0, 0, "eval")]
    assert brief(stalls(facts, at(160))) == [(80.0, 0, "eval"), (60.0, 9, "train")]


def test_a_checkpoint_is_named_and_its_end_is_progress() -> None:
    begun = [step(0, 9), checkpoint(5, "write", "begin")]
    assert brief(stalls(begun, at(310))) == [(310.0, 9, "checkpoint")]
    ended = [*begun, checkpoint(55, "write", "end")]
    assert stalls(ended, at(114)) == []
    assert brief(stalls(ended, at(120))) == [(60.0, 9, None)]


def test_a_checkpoint_in_the_background_does_not_colour_a_later_stall() -> None:
    facts = [step(0, 9), checkpoint(1, "write", "begin"), step(2, 10)]
    assert brief(stalls(facts, at(70))) == [(60.0, 10, None)]


def test_a_checkpoint_before_any_step_starts_the_clock() -> None:
    assert brief(stalls([checkpoint(0, "barrier", "begin")], at(60))) == [(60.0, None, "checkpoint")]


@pytest.mark.parametrize(
    "end",
    [
        RunFinished(time=at(5), source=Source("x", 1)),
        ExitStatus(time=at(5), source=Source("x", 1), exit_code=1, job="j"),
        PlannedStop(time=at(5), source=Source("x", 1), reason="preempted", job="j"),
        SlurmState(time=at(5), source=Source("x", 1), state="COMPLETED", job="j"),
    ],
)
def test_after_the_end_nothing_stalls(end: Fact) -> None:
    assert stalls([step(0, 5, job="j"), end], at(1000)) == []
    assert brief(stalls([step(0, 5, job="j"), end, step(6, 6, job="j")], at(70))) == [(60.0, 6, None)]


@pytest.mark.parametrize(
    "other",
    [
        ExitStatus(time=at(5), source=Source("x", 1), exit_code=None, alive=True, job="j"),
        ExitStatus(time=at(5), source=Source("x", 1), exit_code=0, job="other"),
        ExitStatus(time=at(5), source=Source("x", 1), exit_code=0, job="j", rank=3),
        SlurmState(time=at(5), source=Source("x", 1), state="RUNNING", job="j"),
    ],
)
def test_the_end_of_something_else_is_not_its_end(other: Fact) -> None:
    assert len(stalls([step(0, 5, job="j", rank=0), other], at(100))) == 1


def test_streams_are_followed_by_themselves() -> None:
    facts = [step(0, 5, rank=0, pod="ns/a"), step(0.5, 5, rank=1, pod="ns/b"), step(100, 6, rank=1, pod="ns/b")]
    assert [(f.rank, f.no_progress_s) for f in stalls(facts, at(110))] == [(0, 110.0), (1, 90.0)]


def test_a_restart_begins_anew() -> None:
    facts = [step(0, 5), step(50, 5, attempt=1)]
    (found,) = stalls(facts, at(115))
    assert (found.attempt, found.since) == (1, at(50))


def test_a_stream_that_never_says_its_step_lives_by_its_reports() -> None:
    assert stalls([step(n * 30, None, loss=1.0) for n in range(5)], at(150)) == []


def test_a_report_without_a_step_hides_no_stall_of_a_stream_that_tells_its_steps() -> None:
    """It may be the first line of another phase, and stand for lines behind the stall."""
    report = step(2, None, loss=1.0, last_time=at(200), count=9)
    assert brief(stalls([step(1, 7, phase="eval"), report, step(3, 8), step(100, 9)], at(100))) == [(90, 8, None)]


def test_a_checkpoint_of_another_step_that_was_saved_is_progress() -> None:
    saved = [msgspec.structs.replace(checkpoint(50 * n, "write", "end"), step=100 * n) for n in range(1, 9)]
    assert stalls(saved, at(450)) == []
    again = [msgspec.structs.replace(fact, step=100) for fact in saved]
    assert brief(stalls(again, at(450))) == [(400.0, None, None)]


def test_bounds_are_counted() -> None:
    bridge = ProgressBridge(streams=3)
    for rank in range(5):
        bridge.observe(step(0, 1, rank=rank))
    assert bridge.evicted == 2
    bridge = ProgressBridge()
    for n in range(PENDING + 10):
        bridge.observe(step(n, n))
    assert bridge.hurried == 10
    bridge.tick(at(5))
    bridge.observe(step(1, 7))
    assert bridge.late == 1
    with pytest.raises(ValueError, match="1 s"):
        ProgressBridge(threshold=1)


EVENTS = st.lists(
    st.one_of(
        st.builds(
            lambda t, n, r, p: Progress(time=at(t), source=Source("l", t), step=n, rank=r, phase=p),
            st.integers(0, 600),
            st.integers(0, 5),
            st.integers(0, 1),
            st.sampled_from([None, "train", "eval"]),
        ),
        st.builds(
            lambda t, p, e, r: CheckpointPhase(time=at(t), source=Source("l", t), phase=p, event=e, rank=r),
            st.integers(0, 600),
            st.sampled_from(["write", "barrier"]),
            st.sampled_from(["begin", "end"]),
            st.integers(0, 1),
        ),
        st.builds(
            lambda t, r: ExitStatus(time=at(t), source=Source("l", t), exit_code=0, rank=r),
            st.integers(0, 600),
            st.integers(0, 1),
        ),
    ),
    max_size=25,
    unique_by=lambda fact: fact.time,
)


@given(facts=EVENTS, seed=st.integers(0, 1000), ticks=st.lists(st.integers(0, 700), max_size=8))
def test_batching_and_order_do_not_matter(facts: list[Fact], seed: int, ticks: list[int]) -> None:
    """The last statement of every stall is the same, whenever the clock was looked at and whatever came first."""
    whole = {stall.uid: stall for stall in stalls(facts, at(700))}
    bridge = ProgressBridge()
    said: dict[str, StepStalled] = {}
    waiting = random.Random(seed).sample(facts, len(facts))
    for moment in [*sorted(ticks), 700]:
        for fact in [f for f in waiting if f.time <= at(moment)]:
            bridge.observe(fact)
            waiting.remove(fact)
        for stall in bridge.tick(at(moment)):
            assert stall.uid not in said or stall.no_progress_s > said[stall.uid].no_progress_s
            said[stall.uid] = stall
    assert bridge.late == 0
    assert said == whole


def test_lines_without_a_time_of_their_own_do_not_tell_how_long_nothing_came() -> None:
    assert stalls([step(1, 1, approximate=True), step(1, 2, approximate=True)], at(500)) == []
    assert brief(stalls([step(1, 1, approximate=True), step(2, 2)], at(100))) == [(90.0, 2, None)]


def test_the_same_end_of_two_hosts_in_files_of_one_name_is_taken_twice() -> None:
    bridge = ProgressBridge()
    for node in ("n1", "n2"):
        bridge.observe(RunFinished(time=at(5), source=Source("a.log", 50), node=node))
    assert bridge.tick(at(100)) == []


def test_a_rank_that_a_restart_left_out_does_not_stall_for_ever() -> None:
    first = [step(t, t, rank=rank, job="j") for t in range(0, 30, 10) for rank in (0, 1)]
    again = [step(t, t, rank=0, job="j", attempt=1) for t in range(120, 4000, 10)]
    found = stalls([*first, *again], at(4000))
    assert {(stall.rank, stall.attempt, stall.no_progress_s) for stall in found} == {(0, 0, 100.0), (1, 0, 100.0)}


def test_a_report_that_comes_late_is_no_step_back() -> None:
    bridge = ProgressBridge()
    bridge.observe(step(4, 4))
    bridge.tick(at(5))
    bridge.observe(step(1, 1))
    assert brief(bridge.tick(at(64))) == [(60.0, 4, None)]


def test_a_report_that_comes_late_does_not_end_a_checkpoint_that_began_after_it() -> None:
    bridge = ProgressBridge()
    bridge.observe(step(1, 1))
    bridge.observe(checkpoint(4, "write", "begin"))
    bridge.tick(at(5))
    bridge.observe(step(3, 3))
    assert brief(bridge.tick(at(63))) == [(60.0, 3, "checkpoint")]


def test_a_checkpoint_that_is_told_late_does_not_begin_after_the_next_step() -> None:
    bridge = ProgressBridge()
    bridge.observe(step(4, 4))
    bridge.tick(at(5))
    bridge.observe(checkpoint(2, "write", "begin"))
    assert brief(bridge.tick(at(64))) == [(60.0, 4, None)]


def test_a_tick_does_not_look_at_streams_that_an_attempt_has_left() -> None:
    """A job that is started again and again leaves thousands of streams behind, and each tick would look at them."""
    bridge = ProgressBridge()
    for rank in range(500):
        bridge.observe(step(10, 1, job="a", rank=rank))
    assert len(bridge.tick(at(100))) == 500
    bridge.observe(step(110, 1, job="a", rank=0, attempt=1))
    bridge.tick(at(200))
    assert len(bridge._due) <= 1
    assert [stall.attempt for stall in bridge.tick(at(400))] == [1]


def test_a_rank_that_only_writes_checkpoints_is_missed_while_it_does_so() -> None:
    others = [step(10 * n, n) for n in range(100)]
    mute = [msgspec.structs.replace(checkpoint(300, "write", event), rank=7, step=30) for event in ("begin", "end")]
    assert [stall for stall in stalls([*others, *mute], at(990)) if stall.rank == 7] == []
    begun = msgspec.structs.replace(checkpoint(600, "write", "begin"), rank=7, step=60)
    found = [stall for stall in stalls([*others, *mute, begun], at(990)) if stall.rank == 7]
    assert brief(found) == [(390.0, None, "checkpoint")]


def test_a_stream_that_pauses_again_and_again_stands_still_after_a_longer_time() -> None:
    paused = [step(100 * n, n) for n in range(10)]
    assert [stall for stall in stalls(paused, at(1_090)) if stall.step is not None and stall.step > 2] == []
    assert brief(stalls(paused, at(900 + 1_200)))[-1] == (1_200.0, 9, None)
    fast = [step(5 * n, n) for n in range(100)]
    assert brief(stalls(fast, at(495 + 70))) == [(70.0, 99, None)]


def test_a_rank_that_reports_rarely_stalls_only_while_the_others_stand_still() -> None:
    often = [step(5 * n, n, rank=0) for n in range(200)]
    rarely = [step(150 * n, 30 * n, rank=1) for n in range(7)]
    assert stalls([*often, *rarely], at(995)) == []
    found = stalls([*often, *rarely], at(995 + 300))
    assert {stall.rank for stall in found} == {0, 1}
    assert {(stall.since, stall.no_progress_s) for stall in found} == {(at(995), 300.0)}


def test_ranks_that_report_no_evaluation_wait_for_the_one_that_does() -> None:
    before = [step(n, n, rank=rank) for n in range(5) for rank in (0, 1)]
    assert stalls([*before, *(step(5 + 30 * n, None, rank=0, phase="eval") for n in range(10))], at(290)) == []
    found = stalls([*before, step(5, None, rank=0, phase="eval")], at(100))
    assert {(stall.rank, stall.phase) for stall in found} == {(0, "eval"), (1, "eval")}


def test_a_run_of_other_pods_says_nothing_of_a_stall() -> None:
    facts = [step(0, 5, pod="ns/a-worker-0"), *(step(10 * n, n, pod="ns/b-worker-0") for n in range(20))]
    assert [stall.pod for stall in stalls(facts, at(200))] == ["ns/a-worker-0"]
    same = [step(0, 5, pod="ns/a-worker-1"), *(step(10 * n, n, pod="ns/a-worker-0") for n in range(20))]
    assert stalls(same, at(200)) == []
