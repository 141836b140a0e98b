"""Lines of one shape, read by the block, say what they say one by one."""

from __future__ import annotations

import io
import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tracecore.recipes.columns import Reader, Starts, seconds, steps, together
from tracecore.recipes.plan import plan
from tracecore.recipes.templates import Ask, Lessons, learn
from tracecore.signals.stream import Stream

#: What stands before a step: times at any place, ranks before and after them.
PREFIXES = (
    "",
    "12:0{m}:{s} ",
    "[12:0{m}:{s}] ",
    "2026-11-15 12:0{m}:{s},123 - INFO - ",
    "[rank{r}]: ",
    "[rank{r}]: [2026-11-15 12:0{m}:{s}] trainer: ",
    "12:0{m}:{s} | rank {r} | ",
)


@pytest.mark.parametrize("prefix", PREFIXES)
@pytest.mark.parametrize("pad", range(9))
def test_lines_are_read_as_they_are(prefix: str, pad: int) -> None:
    lines = []
    expected = []
    for number in range(600):
        minute, second, rank, step = number // 60, f"{number % 60:02d}", number // 3 % 4, 950 + number // 4
        if number % 7 == 3:
            lines.append(f"{'x' * (number % 50)} shard {number} opened")
            continue
        before = prefix.format(m=minute, s=second, r=rank)
        lines.append(
            f"{before}{'train ' * (pad > 0)}{'.' * pad}{' ' * (pad > 0)}step {step} | loss 1.{number:04d} | lr 1e-4"
        )
        time = 12 * 3600 + minute * 60 + int(second) if "{s}" in prefix else -1
        expected.append((number, step, time, rank if "{r}" in prefix else -1))
    lines.append("the end of the block is far enough from the last of them" * 2)
    text = "\n".join(lines).encode() + b"\n"
    stream = Stream(path="f", format="text", layer="stdout", open=lambda: io.BytesIO(text), size=len(text))
    template = learn(lines[0].encode(), 0, plan("stdout")._asking(stream))
    assert template is not None
    starts = Starts()(text)
    reader = Reader(template, 5)
    found, others = reader.read(text, starts)
    read = together(found)
    lane = np.broadcast_to(np.asarray(read.lane), len(read.number))
    lanes = {lane: rank for lane, (_, _, _, rank) in zip(lane.tolist(), expected, strict=True)}
    assert len(lanes) == (4 if "{r}" in prefix else 1)
    rows = list(
        zip(read.number.tolist(), steps(read.step).tolist(), seconds(read.clock).tolist(), lane.tolist(), strict=True)
    )
    assert [(number, step, second, lanes[lane]) for number, step, second, lane in rows] == expected
    assert sorted([*read.number.tolist(), *others.tolist()]) == list(range(len(lines)))
    assert all(re.search(r"step \d", lines[number]) for number in read.number.tolist())
    # A reader that has seen such lines before reads the same, from any lines, and also where the text ends with them.
    chosen = np.arange(2, len(lines) - 1, 3)
    text = text[: starts[chosen[-1] + 1]]
    again, _ = reader.read(text, Starts()(text), chosen)
    few = together(again)
    wanted = set(chosen.tolist())
    assert list(zip(few.number.tolist(), steps(few.step).tolist(), seconds(few.clock).tolist(), strict=True)) == [
        row[:3] for row in rows if row[0] in wanted
    ]


SHAPES = (
    "[rank{0}]: step {1} | loss {2}.{3} | lr {0}.00e-0{5} | {1} tok/s",
    "12:0{0}:1{5} | rank {4} | iteration {1}/{3} | lm loss: {0}.{1}E+0{5} | grad norm: {2}.{3}",
    "{{'loss': {2}.{1}, 'grad_norm': {0}.{3}, 'learning_rate': {5}.5e-0{4}, 'epoch': {4}.{5}}}",
    "Epoch {5}:  {4}{5}%|##  | {1}/{3} [0{4}:1{0}<0{5}:00, {2}.0{4}it/s, loss={0}.{1}]",
    "epoch {4} step {4} loss {4}.{4} took {4}.{4} s on rank {5}",
)
DIGIT = st.integers(1, 9)


@settings(max_examples=40, deadline=None)
@given(
    st.sampled_from(SHAPES),
    st.lists(
        st.tuples(DIGIT, st.integers(100, 999), DIGIT, st.integers(100, 999), DIGIT, DIGIT), min_size=2, max_size=6
    ),
)
def test_what_was_learned_from_a_line_is_what_the_next_of_its_shape_would_teach(
    shape: str, rows: list[tuple[int, ...]]
) -> None:
    ask: Ask = plan("stdout")._asking(Stream(path="f", format="text", layer="stdout", open=io.BytesIO, size=0))
    lessons = Lessons()
    for row in rows:
        line = shape.format(*row).encode()
        assert lessons.learn(line, 0, ask) == learn(line, 0, ask)
