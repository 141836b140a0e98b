"""Events that repeat are thinned, and nothing that is said of them is lost but the lines in between."""

from __future__ import annotations

import io
from collections.abc import Iterable

import pytest

from tracecore.facts.fact import Fact
from tracecore.facts.fold import fold
from tracecore.facts.projection import project
from tracecore.recipes.plan import plan
from tracecore.recipes.repeats import FIRST, MAX_ALIKE
from tracecore.signals.logs.reader import read
from tracecore.signals.stream import Clock, Counters, Stream

START = 1_794_700_000
REFUSED = "node-1:77:99 [0] misc/socket.cc:484 NCCL WARN socketStartConnect: Connect to 10.0.0.7<4242> failed : Connection refused"  # noqa: E501


def _facts(lines: Iterable[str], *, every: bool = False) -> tuple[list[Fact], int]:
    data = "".join(
        f"2026-11-15T00:{second // 60:02d}:{second % 60:02d}.000000000Z stderr F {line}\n"
        for second, line in enumerate(lines)
    ).encode()
    stream = Stream(path="f", format="cri", layer="stdout", open=lambda: io.BytesIO(data), size=len(data))
    layer = plan("stdout")
    selector = layer.every(stream) if every else layer.selector(stream)
    counters = Counters()
    facts: list[Fact] = []
    for record in read(stream, selector, Clock(START * 10**9, True), counters):
        layer.run(record)
        facts += project(record)
    return fold(facts), counters.records


def test_a_storm_is_the_same_fact_with_the_same_count() -> None:
    lines = [REFUSED, "INFO all is well"] * 1000
    (every, _), (thinned, records) = _facts(lines, every=True), _facts(lines)
    assert thinned == every
    assert thinned[0].count == 1000
    assert records <= FIRST + 6


def test_of_ranks_that_say_the_same_none_is_left_out() -> None:
    lines = [f"[rank{rank}]: {REFUSED}" for _ in range(12) for rank in range(MAX_ALIKE - 1)]
    (every, _), (thinned, _) = _facts(lines, every=True), _facts(lines)
    assert {fact.rank for fact in thinned} == {fact.rank for fact in every}
    assert sum(fact.count for fact in thinned) == sum(fact.count for fact in every)


def test_lines_that_name_a_rank_and_say_nothing_else_are_thinned_together() -> None:
    """Their words are those of a recipe. Below each of them a bar is wiped out with blanks."""
    said = [f"[rank {number % 32}] retry policy: Error budget {number / 7:.3f}" for number in range(3000)]
    facts, records = _facts([text for line in said for text in (line, " " * 60)])
    assert facts == []
    assert FIRST <= records < 64


@pytest.mark.parametrize("error", ["torch.OutOfMemoryError: CUDA out of memory.", "ConnectionResetError: peer"])
def test_another_error_among_many_is_kept(error: str) -> None:
    def line(number: int, text: str) -> str:
        frames = 'Traceback (most recent call last):\\n  File \\"/app/a.py\\", line 3, in f\\n'
        return f'{{"level": "error", "sample": {number}, "exc_info": "{frames}{text}"}}'

    many = [line(number, f"ValueError: row {number}") for number in range(2000)]
    facts, records = _facts([*many[:1500], line(7, error), *many[1500:]])
    assert any(error.partition(":")[0].rpartition(".")[2] in str(fact) for fact in facts)
    assert records < 200


def _tracebacks(count: int, error: str = "ValueError: row {}: bad") -> list[str]:
    return [
        line
        for number in range(count)
        for line in (
            f"ERROR dataset.reader: failed to decode sample {number}, skipping",
            "Traceback (most recent call last):",
            '  File "/app/data/reader.py", line 81, in __next__',
            "    sample = self.decode(next(self.source))",
            error.format(number),
            "INFO all is well",
        )
    ]


def test_tracebacks_that_repeat_are_thinned_and_counted() -> None:
    lines = _tracebacks(300)
    (every, _), (thinned, records) = _facts(lines, every=True), _facts(lines)
    assert {type(fact) for fact in thinned} == {type(fact) for fact in every}
    assert sum(fact.count for fact in thinned) == sum(fact.count for fact in every) == 300
    assert records < 40


def test_another_traceback_among_many_is_kept() -> None:
    other = _tracebacks(1, "torch.OutOfMemoryError: CUDA out of memory.")
    facts, _ = _facts([*_tracebacks(200), *other, *_tracebacks(200)])
    assert any("OutOfMemory" in str(fact) for fact in facts)


def test_a_chain_of_tracebacks_is_thinned_as_one() -> None:
    def chain(number: int) -> list[str]:
        first, second = _tracebacks(1, "KeyError: {}")[1:5], _tracebacks(1, f"RuntimeError: no row {number}")[1:5]
        return [
            *first,
            "",
            "During handling of the above exception, another exception occurred:",
            "",
            *second,
            "INFO on",
        ]

    lines = [line for number in range(200) for line in chain(number)]
    (every, _), (thinned, records) = _facts(lines, every=True), _facts(lines)
    assert sum(fact.count for fact in thinned) == sum(fact.count for fact in every)
    assert {getattr(fact, "type", "") for fact in thinned} == {getattr(fact, "type", "") for fact in every}
    assert records < 40


def test_what_says_nothing_but_progress_is_no_event() -> None:
    lines = [f"validation loss at iteration {n} on test set | lm loss value: 2.068536E+00 |" for n in range(3000)]
    (every, _), (thinned, records) = _facts(lines, every=True), _facts(lines)
    assert {type(fact) for fact in thinned} == {type(fact) for fact in every}
    assert records < 100


def test_numbers_that_name_nothing_do_not_tell_events_apart() -> None:
    lines = [f"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate {n}.00 GiB" for n in range(1, 500)]
    (every, _), (thinned, records) = _facts(lines, every=True), _facts(lines)
    assert sum(fact.count for fact in thinned) == sum(fact.count for fact in every)
    assert records < FIRST + 8


def test_what_is_thinned_has_the_time_of_the_lines_above_it() -> None:
    lines = [
        line
        for second in range(1200)
        for line in (f"2026-11-15 00:{second // 60:02d}:{second % 60:02d},000 INFO all is well", REFUSED)
    ]
    data = "".join(f"{line}\n" for line in lines).encode()
    stream = Stream(path="f", format="text", layer="stdout", open=lambda: io.BytesIO(data), size=len(data))
    layer = plan("stdout")
    found = []
    for record in read(stream, layer.selector(stream), Clock(START * 10**9, True), Counters()):
        layer.run(record)
        found += [fact for fact in project(record) if type(fact).__name__ == "NcclError"]
    assert len(found) < FIRST + 10
    assert [fact.time for fact in found] == sorted(fact.time for fact in found)
    assert found[-1].time - found[0].time == 1199 * 10**9


def test_a_time_that_stands_far_above_is_found() -> None:
    """Programs that print a time once for many lines of a bar; an event below them is of that time."""
    lines = []
    for minute in range(4):
        lines += [f"2026-11-15 00:{minute:02d}:00,000 INFO all is well"]
        lines += [f" {n}/80 ━━━━━━━━━━ 4s 50ms/item of something that says nothing" for n in range(300)]
        lines += [REFUSED]
    data = "".join(f"{line}\n" for line in lines).encode()
    stream = Stream(path="f", format="text", layer="stdout", open=lambda: io.BytesIO(data), size=len(data))
    layer = plan("stdout")
    times = []
    for record in read(stream, layer.selector(stream), Clock(START * 10**9, True), Counters()):
        layer.run(record)
        times += [fact.time for fact in project(record) if type(fact).__name__ == "NcclError"]
    assert [time - times[0] for time in times] == [minute * 60 * 10**9 for minute in range(4)]


def test_steps_after_a_thinned_event_are_handed_on() -> None:
    """Two steps after a failure show that it was survived: each one that is told needs them."""
    lines = []
    for second in range(3000):
        lines.append(f"step {second} | loss 2.{second % 10}")
        if second % 10 == 5:
            lines.append(f"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate {second}.00 MiB")
    facts, records = _facts(lines)
    last = max(fact.source.offset for fact in facts if type(fact).__name__ == "CudaOom")
    assert sum(type(fact).__name__ == "Progress" and fact.source.offset > last for fact in facts) >= 2
    assert records < 130
