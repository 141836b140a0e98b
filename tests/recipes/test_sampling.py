"""Sampling hides no stall, no value that is not finite, no checkpoint and no change of the order of steps."""

from __future__ import annotations

import io
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from itertools import pairwise

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tracecore.facts.fact import Fact
from tracecore.facts.progress import stalls
from tracecore.facts.projection import project
from tracecore.facts.training import CheckpointPhase, Progress
from tracecore.recipes import sampling
from tracecore.recipes.lanes import SKEW
from tracecore.recipes.plan import fresh, plan
from tracecore.recipes.sampling import MAX_EVENTS
from tracecore.signals.logs.reader import read
from tracecore.signals.logs.selector import Selector
from tracecore.signals.stream import Clock, Counters, Stream

START = 1_794_700_000

FORMATS: dict[str, Callable[[int, int, str], str]] = {
    "plain": lambda rank, step, loss: f"[rank{rank}]: step {step}/90000 | loss {loss} | lr 1.0e-04",
    "megatron": lambda rank, step, loss: (
        f"[default{rank}]: iteration {step:8d}/ 90000 | consumed samples: {step * 8:12d} | lm loss: {loss} |"
    ),
    "nanogpt": lambda rank, step, loss: f"iter {step}: loss {loss}, time 123.45ms, mfu 41.00%",
    "bars": lambda rank, step, loss: (
        f"Epoch 3: {step // 900:3d}%|{'█' * (step // 9000)} | {step}/90000 [01:02<03:04, 5.01it/s]"
    ),
    "no step": lambda rank, step, loss: f"{{'loss': {loss}, 'learning_rate': 5e-05, 'epoch': 0.5}}",
}


@pytest.fixture(autouse=True)
def _short_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """Logs of tests are short: without this all of them would be beginning and end."""
    monkeypatch.setattr(sampling, "RECENT", 10_000)


def _stream(data: bytes, form: str) -> Stream:
    return Stream(path="f", format=form, layer="stdout", open=lambda: io.BytesIO(data), size=len(data))


def _facts(data: bytes, form: str, selector: Callable[[Stream], Selector], size: int = 1 << 21) -> list[Fact]:
    stream = _stream(data, form)
    layer = plan("stdout")
    facts: list[Fact] = []
    for signal in read(stream, selector(stream), Clock(START * 10**9, True), Counters(), block_size=size):
        layer.run(signal)
        facts += project(signal)
    return facts


def _stamp(millis: int) -> str:
    when = datetime.fromtimestamp(START + millis / 1000, UTC)
    return when.strftime("%Y-%m-%dT%H:%M:%S") + f".{millis % 1000:03d}000000Z"


def _rewinds(facts: list[Fact]) -> list[tuple[int | None, int, int]]:
    """(rank, step before, step after) wherever a step is smaller than the one before it, and not a little only."""
    last: dict[int | None, int] = {}
    found = []
    for fact in facts:
        if isinstance(fact, Progress) and fact.step is not None:
            before = last.get(fact.rank, -1)
            if fact.step < before - SKEW:
                found.append((fact.rank, before, fact.step))
            last[fact.rank] = fact.step
    return found


events = st.sampled_from(["go"] * 12 + ["stall", "rewind", "nan", "checkpoint", "repeat", "other", "error"])


@st.composite
def logs(draw: st.DrawFn) -> tuple[bytes, int, str]:
    """A log in the CRI format, when it ends, and its kind."""
    kind = draw(st.sampled_from(sorted(FORMATS)))
    write = FORMATS[kind]
    ranks = draw(st.integers(1, 3)) if "rank" in write(7, 1, "1.0") or "default" in write(7, 1, "1.0") else 1
    pace = draw(st.sampled_from([20, 300, 1500]))
    now = 0
    step = [draw(st.integers(0, 9990))] * ranks
    lines: list[str] = []

    def add(rank: int, text: str) -> None:
        lines.append(f"{_stamp(now)} stdout F {text}\n")

    for event in draw(st.lists(events, min_size=5, max_size=25)):
        rank = draw(st.integers(0, ranks - 1))
        if event == "stall":
            now += draw(st.integers(61, 400)) * 1000
        elif event == "rewind":
            step[rank] = max(0, step[rank] - draw(st.integers(1, 50)))
        elif event == "nan":
            add(rank, write(rank, step[rank] + 1, "nan"))
        elif event == "checkpoint":
            add(rank, f"Saving checkpoint at step {step[rank]} to /ckpt/{step[rank]}")
        elif event == "repeat":
            for _ in range(draw(st.integers(2, 80))):
                add(rank, write(rank, step[rank], "1.5"))
                now += 1000
        elif event == "other":
            add(rank, "opened shard 12 of 99")
        elif event == "error":
            add(rank, "RuntimeError: CUDA error: an illegal memory access was encountered")
        for number in range(draw(st.integers(5, 60))):
            rank = number % ranks
            step[rank] += 1
            add(rank, write(rank, step[rank], f"{1 + number / 100:.4f}"))
            now += pace // ranks
    return "".join(lines).encode(), START * 10**9 + (now + 200_000) * 10**6, kind


@settings(
    max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture]
)
@given(logs(), st.sampled_from([700, 4000, 1 << 21]))
def test_sampling_changes_no_conclusion(log: tuple[bytes, int, str], size: int) -> None:
    data, end, _ = log
    layer = plan("stdout")
    every = _facts(data, "cri", layer.every, size)
    _same(_facts(data, "cri", partial(layer.selector, live=True), size), every, end)
    spanning = sorted(_facts(data, "cri", layer.selector, size), key=_place)
    _same(spanning, sorted(every, key=_place), end)
    _followed(spanning, every)


def _place(fact: Fact) -> tuple[int, str]:
    return fact.source.offset, type(fact).__name__


def _followed(sampled: list[Fact], every: list[Fact]) -> None:
    """After each trouble, the next report of its rank is there; the next one of any rank if it does not tell."""
    kept = {fact.uid for fact in sampled}
    reports = [fact for fact in every if isinstance(fact, Progress)]
    for trouble in [fact for fact in every if not isinstance(fact, Progress | CheckpointPhase)][-MAX_EVENTS:]:
        later = [f for f in reports if trouble.rank in (None, f.rank) and _place(f) > _place(trouble)]
        assert not later or later[0].uid in kept


def _same(sampled: list[Fact], every: list[Fact], end: int) -> None:
    # Everything but progress is there, fact by fact: non-finite values, checkpoints, errors.
    assert [f for f in sampled if not isinstance(f, Progress)] == [f for f in every if not isinstance(f, Progress)]
    # What is there of progress is as it was.
    kept = {fact.uid for fact in sampled}
    assert [f for f in every if f.uid in kept] == [
        msgspec.structs.replace(f, last_time=None, count=1) if isinstance(f, Progress) else f for f in sampled
    ]
    assert _rewinds(sampled) == _rewinds(every)
    said, known = stalls(sampled, end), stalls(every, end)
    assert [(s.since, s.no_progress_s, s.step, s.rank) for s in said] == [
        (s.since, s.no_progress_s, s.step, s.rank) for s in known
    ]


@pytest.mark.parametrize("kind", ["plain", "megatron", "nanogpt"])
@pytest.mark.parametrize(("live", "most"), [(True, 3000), (False, 60)])
def test_most_progress_lines_are_never_parsed(kind: str, live: bool, most: int) -> None:
    lines = [f"{_stamp(number * 10)} stdout F {FORMATS[kind](0, number, '1.5')}\n" for number in range(1, 30_000)]
    data = "".join(lines).encode()
    sampled = _facts(data, "cri", partial(plan("stdout").selector, live=live), 100_000)
    assert len(sampled) < most
    assert [f.step for f in sampled if isinstance(f, Progress)][-1] == 29_999
    assert not stalls(sampled, START * 10**9 + 300_000 * 10**6)


@pytest.mark.parametrize("digits", ["{:.4f}", "{:.3e}"])
def test_a_loss_that_becomes_ten_times_as_large_is_not_left_out(digits: str) -> None:
    losses = [1.5] * 5_000 + [25.0] * 5_000 + [180.5] * 5_000
    lines = [
        f"{_stamp(at * 20)} stdout F [rank0]: step {1000 + at} | loss {digits.format(loss)} | grad 0.5\n"
        for at, loss in enumerate(losses)
    ]
    facts = _facts("".join(lines).encode(), "cri", plan("stdout").selector, 50_000)
    reports = [fact for fact in facts if isinstance(fact, Progress)]
    assert len(reports) < 120
    first = {fact.loss: fact.step for fact in sorted(reports, key=_place, reverse=True)}
    assert first == {1.5: 1000, 25.0: 6000, 180.5: 11_000}
    assert sum(fact.count for fact in reports) == len(lines)


def test_a_line_stands_for_those_that_follow_it_across_blocks() -> None:
    lines = [f"{_stamp(at * 100)} stdout F [rank0]: step {1000 + at} | loss 1.5\n" for at in range(4_000)]
    facts = _facts("".join(lines).encode(), "cri", plan("stdout").selector, 10_000)
    reports = sorted((fact for fact in facts if isinstance(fact, Progress)), key=_place)
    assert [fact.source.line for fact in reports] == [fact.step - 999 for fact in reports if fact.step is not None]
    for one, following in pairwise(reports):
        assert one.end <= following.time <= one.end + 10**9


def test_steps_change_their_width_within_a_block() -> None:
    numbers = [*range(95, 1200), *range(1100, 1300)]
    text = FORMATS["plain"]
    lines = [f"{_stamp(at * 5)} stdout F {text(0, step, '1.5')}\n" for at, step in enumerate(numbers)]
    data = "".join(lines).encode()
    sampled = _facts(data, "cri", plan("stdout").selector)
    assert (0, 1199, 1100) in _rewinds(sampled)
    assert len(sampled) < 60


@pytest.mark.parametrize("size", [20_000, 1 << 20])
def test_rare_lines_pause_only_where_their_writer_does(size: int) -> None:
    """A steady logger and a rare one write for two hours, with a stop of four minutes in the middle."""
    lines = []
    for at in range(7200):
        millis = at * 1000 + 240_000 * (at >= 3600)
        lines.append(f"{_stamp(millis)} stdout F step {100 + at} | loss 1.5\n")
        if at % 70 == 0:
            lines.append(f"{_stamp(millis + 1)} stdout F iter {50 + at // 70}: loss 1.5, time 123.45ms, mfu 41.00%\n")
        if at % 50 == 0:
            lines.append(f"{_stamp(millis + 2)} stdout F {{'loss': 1.5, 'learning_rate': 5e-05, 'epoch': 0.5}}\n")
    data = "".join(lines).encode()
    sampled = _facts(data, "cri", plan("stdout").selector, size)
    every = _facts(data, "cri", plan("stdout").every)
    assert len(sampled) < 150
    end = START * 10**9 + 7_500_000 * 10**6
    said, known = stalls(sampled, end), stalls(every, end)
    assert [(s.since, s.no_progress_s) for s in said] == [(s.since, s.no_progress_s) for s in known]
    assert [s.no_progress_s for s in known] == [240.0, 60.0]


def test_ranks_that_report_each_minute_do_not_pause_each_minute() -> None:
    """Thirty-two ranks report each minute for four hours. One of them stops for ten minutes in the middle."""
    lines = []
    for minute in range(240):
        for rank in range(32):
            if rank != 5 or not 100 <= minute < 110:
                stamp = _stamp(minute * 60_000 + rank * 1000)
                lines.append(f"{stamp} stdout F [rank{rank}]: step {8 * minute + 7} | loss 1.5 | lr 1.0e-04\n")
    data = "".join(lines).encode()
    sampled = _facts(data, "cri", plan("stdout").selector)
    assert len(sampled) < 600
    steps = [fact for fact in sampled if isinstance(fact, Progress) and fact.rank == 5]
    assert max((later.time - fact.end) // 10**9 for fact, later in pairwise(steps)) == 660


def test_each_of_many_ranks_is_seen_to_survive_its_own_trouble() -> None:
    """Sixteen ranks retry requests all day; only the step of the rank itself shows that it went on."""
    lines = []
    for minute in range(600):
        for rank in range(16):
            stamp = _stamp(minute * 60_000 + rank * 1000)
            lines.append(f"{stamp} stdout F [rank{rank}]: step {8 * minute + 7} | loss 1.5 | lr 1.0e-04\n")
            if (minute + rank) % 16 == 0:
                lines.append(f"{stamp} stdout F [rank{rank}]: RuntimeError: CUDA error: unspecified launch failure\n")
    facts = sorted(_facts("".join(lines).encode(), "cri", plan("stdout").selector), key=_place)
    troubles = [fact for fact in facts if not isinstance(fact, Progress)]
    assert {fact.rank for fact in troubles} == set(range(16))
    assert len(facts) < 1500
    for trouble in troubles[:-16]:
        later = [f.time for f in facts if isinstance(f, Progress) and f.rank == trouble.rank and f.time > trouble.end]
        assert later[0] - trouble.end <= 120 * 10**9


def test_few_lines_are_handed_on_where_two_loggers_have_different_clocks() -> None:
    """One writes no year, and what it says of the time is far from what the other says."""
    lines = []
    for at in range(20_000):
        moment = datetime.fromtimestamp(START + at // 10, UTC)
        if at % 2:
            lines.append(f"{moment:%Y-%m-%d %H:%M:%S} INFO step {100 + at} | loss 1.5\n")
        else:
            lines.append(f"[{moment:%m/%d %H:%M:%S}] INFO: iter: {100 + at}  total_loss: 1.5  time: 0.4390\n")
    sampled = _facts("".join(lines).encode(), "text", partial(plan("stdout").selector, live=True), 1 << 20)
    assert len(sampled) < 1000
    assert not stalls(sampled, (START + 2010) * 10**9)


@pytest.mark.parametrize("rare", [7, 20])
def test_two_clocks_of_one_writer_are_no_pause(rare: int) -> None:
    """One of them has no year, and what it counts is told every so many seconds; both stop once for two minutes."""
    lines = []
    for at in range(20_000):
        moment = datetime.fromtimestamp(START + at // 10 + 120 * (at >= 9000), UTC)
        lines.append(f"{moment:%Y-%m-%d %H:%M:%S} INFO step {100 + at} | loss 1.5\n")
        if at % (10 * rare) == 0:
            lines.append(f"[{moment:%m/%d %H:%M:%S}] INFO: iter: {100 + at}  total_loss: 1.5  time: 0.4390\n")
    block = "".join(lines).encode()
    found = list(fresh("stdout").selector(_stream(block, "text"), live=True)(block) or ())
    # One of an interval of each clock, the first lines and the last; and those beside the pause.
    assert len(found) < 2 * 2120 / 40 + 30
    raised = block.index(f"step {100 + 9000} ".encode())
    before, after = (block.rfind(b"\n", 0, raised), block.find(b"\n", raised))
    assert {before, after} <= set(found)


@pytest.mark.parametrize("apart", [0, 1])
def test_ranks_that_do_not_say_who_they_are_repeat_steps(apart: int) -> None:
    """Eight ranks write to one log; a second of it, then the next; they stop for two minutes, and later for good."""

    def line(millis: int, step: int) -> str:
        return f"{_stamp(millis)} stdout F step {step} | loss 1.5\n"

    lines = [line(at * 50 + 120_000 * (at >= 6400), 100 + at // 8 - apart * (at % 3 == 0)) for at in range(9600)]
    lines += [line(9600 * 50 + 120_000 + at * 1000, 1300) for at in range(200)]
    data = "".join(lines).encode()
    every = _facts(data, "cri", plan("stdout").every, 60_000)
    sampled = _facts(data, "cri", plan("stdout").selector, 60_000)
    assert len(sampled) < 400
    end = START * 10**9 + 900_000 * 10**6
    said, known = stalls(sampled, end), stalls(every, end)
    # Of steps that ranks make a little apart the highest is named, whoever spoke last.
    assert [(s.no_progress_s, s.step - apart <= t.step <= s.step) for s, t in zip(said, known, strict=True)] == [
        (120.0, True),
        (300.0, True),
    ]


@pytest.mark.parametrize(
    "line", [b"RuntimeError: CUDA error: an illegal memory access", b"\x1b[1mstep\x1b[0m 7 loss 1.5"]
)
def test_a_line_that_ends_as_on_windows_is_read(line: bytes) -> None:
    for above in (b"", b"some other line\r\n"):
        stream = _stream(above + line + b"\r\n" + b"the end\r\n", "text")
        for select in (
            plan("stdout").every(stream),
            fresh("stdout").selector(stream),
            fresh("stdout").selector(stream, live=True),
        ):
            (record,) = read(stream, select, Clock(), Counters())
            assert record["source"].offset == len(above)
