# ruff: noqa: E501  a line of a log is as long as it is
"""What the numbers of a line mean is learned from the recipes, and a shape that turns out wrong is not used again."""

from __future__ import annotations

import io
import json
import random
import re

import pytest

from tracecore.recipes.columns import HIDDEN, Lines, Mask, read
from tracecore.recipes.known_shapes import WORTH, Shapes
from tracecore.recipes.plan import fresh
from tracecore.recipes.shapes import ALONE, NOTHING, Said, Shape, learn
from tracecore.recipes.variants import Rows
from tracecore.signals.arrays import np
from tracecore.signals.stream import Stream

LINES = {
    "plain": "2026-11-15 01:37:{second:02d},123 INFO step {step} loss 2.{step} trace={step:x}a9f3e",
    "megatron": "[2026-11-15 01:37:{second:02d}] iteration {step:8d}/ 90000 | lm loss: 2.345678E+00 | number of nan iterations: 0 |",
    "glog": "I1115 01:37:{second:02d}.123456 77 train.py:88] completed step: {step}, seconds: 1.2, loss: 2.3",
    "json": '{{"ts": 17947000{second:02d}.25, "msg": "some words", "rank": 3, "step": {step}, "loss": 2.5}}',
    "colours": "\x1b[2m2026-11-15 01:37:{second:02d}\x1b[0m \x1b[36mstep\x1b[0m=\x1b[35m{step}\x1b[0m \x1b[36mloss\x1b[0m=\x1b[35m2.5\x1b[0m",
}


def _stream(data: bytes = b"") -> Stream:
    return Stream(path="f", format="text", layer="stdout", open=lambda: io.BytesIO(data), size=len(data))


@pytest.mark.parametrize("kind", sorted(LINES))
def test_few_lines_of_a_shape_are_handed_on_whatever_wrote_them(kind: str) -> None:
    lines = [LINES[kind].format(step=100 + n, second=n // 100) + "\n" for n in range(3000)]
    picked = fresh("stdout").selector(_stream())
    found = picked("".join(lines).encode())
    assert found is not None
    assert len(found) + len(getattr(found, "reports", ())) < 60


#: Lines that somebody might take for each one of a kind: `{n}` is a number, `{words}` are other words in each.
ODD = {
    "decimals of many digits, now and then": "step {n} loss 2.5 kl 0.{decimals}",
    "identifiers of many digits": "step {n} loss 2.5 uid=78021018499565{n:05d}{n:05d}",
    "nanoseconds": "17947000004{n:08d} step {n} loss 2.5",
    "a counter that overflowed once": "step {n} loss 2.5 grad_norm {overflow}.5",
    "escapes of JSON": '{{"{escaped}": "{escaped}", "step": {n}, "loss": 2.5, "note": "{escaped}"}}',
    "JSON with escapes that says nothing": '{{"level": "{escaped}", "text": "{escaped}", "took": {n}}}',
    "bytes as Python writes them": "INFO text={bytes!r} step {n} loss 2.5",
    "Chinese": "{words}：step {n}，loss={n}.25 {words}",
}


@pytest.mark.parametrize("live", [False, True])
@pytest.mark.parametrize("kind", sorted(ODD))
def test_few_lines_are_handed_on_where_each_has_something_of_its_own(kind: str, live: bool) -> None:
    dice = random.Random(kind)
    lines = []
    for n in range(3000):
        words = "".join(dice.choices("模型数据训练损失梯度加载节点通信", k=dice.randint(1, 12)))
        lines.append(
            ODD[kind].format(
                n=n,
                words=words,
                escaped=json.dumps(words)[1:-1],
                bytes=words.encode(),
                decimals="0067839617885480435" if n in (3, 4, 7) else "058169567229782",
                overflow="9" * 25 if n in (3, 4) else "7",
            )
            + "\n"
        )
    picked = fresh("stdout").selector(_stream(), live=live)
    # A full block, of which nothing is recent.
    found = picked("".join(lines).encode() + b"some other line\n" * 60_000)
    assert found is not None
    assert len(found) + len(getattr(found, "reports", ())) < 60


def _ask(line: bytes) -> Said:
    """A recipe that says something else of large steps."""
    found = re.search(rb"step (\d+)", line)
    step = int(found.group(1)) if found else None
    odd = step is not None and step >= 5000
    return Said(found is not None, True, step + 1 if odd and step is not None else step, (), (), None, ())


def test_a_shape_is_what_numbers_move() -> None:
    assert learn(b"no number", [], _ask) == NOTHING
    line = b"7 of 9: step 12"
    shape = learn(line, [match.span() for match in re.finditer(rb"\d+", line)], _ask)
    assert isinstance(shape, Shape)
    assert shape.steps == ((2, 1),)
    assert shape.timeless


def test_a_shape_that_is_wrong_is_not_used_again() -> None:
    shapes = Shapes(_ask)
    for number in range(WORTH):
        line = b"step %d" % number
        assert shapes.find(line, line, [(5, 6)]) == ALONE, "nothing is learned from a line that is rare"
    variant = shapes.find(b"step 2", b"step 2", [(5, 6)])
    assert variant >= 0
    shapes.keys.add(7, variant)
    shapes.rows.columns()
    assert shapes.agrees(variant, b"step 77", 77)
    assert not shapes.agrees(variant, b"step 7777", 7777)
    assert shapes.refused == 1
    assert not shapes.keys
    assert shapes.find(b"step 3", b"step 3", [(5, 6)]) == ALONE


def test_what_means_nothing_is_hidden_and_stays_in_its_place() -> None:
    mask = Mask(["loss", "step", "batch"])
    text = b"step 5 loss=2.5e-05 trace=ab12cd34ef words batch_7 rank0 3.000000e+00 0x7fab12 x1y2z3"
    hidden = mask(text)
    assert len(hidden) == len(text)
    assert hidden.replace(HIDDEN, b"") == b"step 5 loss=2.5e-05 =  _7 rank0 3.000000e+00  "


def test_a_number_after_a_word_that_recipes_name_is_not_hidden() -> None:
    assert Mask(["step"])(b"step 70ea1d54 of 70ea1d54") == b"step 70ea1d54 of " + HIDDEN * 8


def test_numbers_on_both_sides_of_an_identifier_are_read() -> None:
    rows = Rows()
    variant = rows.add(0, Shape(steps=((1, 1),), who=(0,), stream=(0,)), 2)
    line = b"rank 3 id=ab12 step 17"
    loose = rows.loosened(variant, line, line.replace(b"ab12", HIDDEN * 4))
    rows.columns()
    lines = Lines(line + b"\nrank 4 id=1a2b3c step 18\nrank 5 id=abc step 19\nrank 6 id=12 step 20 30\n")
    found, wrong = read(lines.keyed(b"")[1], np.full(4, loose), rows)
    assert found.step.tolist() == [17, 18, 19]
    assert np.diff(found.who).tolist() == [1, 1]
    assert wrong.tolist() == [3], "the last number is not the step"
    assert rows.loosened(variant, b"1 id=ab12 2 id=ab12 3", b"1 id=%b 2 id=%b 3" % (HIDDEN * 4, HIDDEN * 4)) == ALONE


def test_words_that_meant_nothing_mean_nothing_together() -> None:
    asked: list[bytes] = []

    def ask(line: bytes) -> Said:
        asked.append(line)
        return _ask(line)

    shapes = Shapes(ask)

    def found(words: bytes) -> int:
        line = b"(%b) step 7" % words
        return shapes.find(line, line, [(line.index(b"7"), len(line))])

    for _ in range(WORTH):
        found(b"data")
    variant = found(b"data")
    assert variant >= 0
    assert found(b"rank") == variant
    asked.clear()
    assert found(b"rank data") == variant
    assert not asked, "both words are known"
    assert found(b"eval") == variant
    assert asked, "a word that was not there before"


def test_lines_without_a_word_of_progress_are_not_remembered() -> None:
    layer = fresh("stdout")
    selector = layer.selector(_stream())
    lines = [b"comm 0x%08x channel %d via P2P\n" % (n * 7919 * 104729 % 2**32, n) for n in range(50)]
    assert selector(b"".join(lines)) == []
    (shapes,) = layer._shapes.values()
    assert not shapes.keys
    assert not shapes.masked
