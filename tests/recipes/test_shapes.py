# ruff: noqa: E501  a line of a log is as long as it is
"""What the numbers of a line mean is learned from the recipes, and a shape that turns out wrong is not used again."""

from __future__ import annotations

import io
import json
import random
import re

import pytest

from tracecore.recipes.columns import HIDDEN, Lines, Mask
from tracecore.recipes.known_shapes import LINES_BEFORE_LEARNING, Answers, Shapes
from tracecore.recipes.plan import fresh
from tracecore.recipes.sampling import Sampler
from tracecore.recipes.shapes import EVALUATE, NOTHING, UNKNOWN, Reading, Shape, learn
from tracecore.signals import compiled
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


def _evaluate(line: bytes) -> Reading:
    """A recipe that says something else of large steps."""
    found = re.search(rb"step (\d+)", line)
    step = int(found.group(1)) if found else None
    odd = step is not None and step >= 5000
    return Reading(found is not None, True, False, step + 1 if odd and step is not None else step, (), (), None, ())


def test_a_shape_is_what_numbers_move() -> None:
    assert learn(b"no number", [], _evaluate) == NOTHING
    line = b"7 of 9: step 12"
    shape = learn(line, [match.span() for match in re.finditer(rb"\d+", line)], _evaluate)
    assert isinstance(shape, Shape)
    assert shape.steps == ((2, 1),)
    assert shape.timeless


def test_a_shape_that_is_wrong_is_not_used_again() -> None:
    shapes = Shapes(_evaluate)
    for number in range(LINES_BEFORE_LEARNING):
        line = b"step %d" % number
        assert shapes.find(7, line, [(5, 6)]) == UNKNOWN, "nothing is learned from a line that is rare"
    variant = shapes.find(7, b"step 2", [(5, 6)])
    assert variant >= 0
    shapes.answers.add(*_lines(7), variant)
    shapes.variants.build()
    assert shapes.agrees(variant, b"step 77", 77)
    assert not shapes.agrees(variant, b"step 7777", 7777)
    assert shapes.refused == 1
    assert not len(shapes.answers)
    assert shapes.find(7, b"step 3", [(5, 6)]) == EVALUATE


@pytest.mark.parametrize("kept", ["text", "docker"])
def test_what_another_program_writes_behind_a_bar_makes_no_new_shape(kept: str) -> None:
    # The bar alone is known before others write behind it.
    tails = [""] * 8 + [
        f"[2026-11-15 01:37:22] {'abcdefgh'[n]}{'ijklmnop'[n]} took {n} ms, {n}{':' * n}" for n in range(8)
    ]
    lines = [
        f"train:  3%|█▍  | {n}/23637 [1:03<27:15, 4.30s/step, loss=4.{n:03d}]{tails[8 * (n > 99) + n % 8]}"
        for n in range(1, 900)
    ]
    if kept == "docker":
        time = "2026-11-15T01:{:02d}:{:02d}.000000000Z"
        texts = [{"log": line + "\n", "time": time.format(n // 60, n % 60)} for n, line in enumerate(lines)]
        lines = [json.dumps(text, ensure_ascii=False) for text in texts]
    stream = Stream(path="f", format=kept, layer="stdout", open=lambda: io.BytesIO(b""), size=1 << 20)
    picked = fresh("stdout").selector(stream)
    assert isinstance(picked, Sampler)
    for some in (lines[:99], lines[99:]):
        found = picked("".join(line + "\n" for line in some).encode())
        assert len(found) + len(getattr(found, "reports", ())) < 20
    assert len(picked._shapes.shapes) == 1


def test_what_means_nothing_is_hidden_and_stays_in_its_place() -> None:
    mask = Mask(["loss", "step", "batch"])
    text = b"step 5 loss=2.5e-05 trace=ab12cd34ef words batch_7 rank0 3.000000e+00 0x7fab12 x1y2z3"
    hidden = mask(text)
    assert len(hidden) == len(text)
    assert hidden.replace(HIDDEN, b"") == b"step 5 loss=2.5e-05 =  _7 rank0 3.000000e+00  "


def test_a_number_after_a_word_that_recipes_name_is_not_hidden() -> None:
    assert Mask(["step"])(b"step 70ea1d54 of 70ea1d54") == b"step 70ea1d54 of " + HIDDEN * 8


def test_an_identifier_of_several_parts_is_hidden_whatever_its_parts_are() -> None:
    assert Mask(["step"])(b"id 1234-5678-90ab step 7") == b"id " + HIDDEN * 14 + b" step 7"
    assert Mask(["step"])(b"at 2026-1118-1200 step 7") == b"at 2026-1118-1200 step 7", "that may be a time"


ALIKE = {
    "numbers": (b"step 7 of 9", b"step 12345 of 9"),
    "words that no recipe names": (b"the cat sat: step 7", b"many dogs: step 7"),
    "words that no number follows": (b"loss of the batch: step 7", b"of words: step 7"),
    "identifiers": (b"step 7 id=12ab", b"step 7 id=a1b2c3d4-1234-5678"),
    "padding and bars": (b"[==>      ] step 7", b"[=>  ] step 7"),
}
APART = {
    "a number or none": (b"step 7 of 9", b"step 7 of many"),
    "the word that a number follows": (b"step 7", b"loss 7"),
    "what stands between": (b"step 7", b"step: 7"),
    "a word between": (b"step 7", b"step of words 7"),
    "a unit": (b"step 7K", b"step 7s"),
}


def _outlined(*texts: bytes) -> tuple[list[int], list[list[int]]]:
    keys, sets, _ = Mask(["loss", "step", "batch"]).outlined(Lines(b"\n".join(texts) + b"\n"))
    return keys.tolist(), sets.tolist()


@pytest.mark.skipif(compiled.part is None, reason="other keys are used without the compiled part")
def test_lines_have_one_key_where_they_differ_in_what_means_nothing() -> None:
    assert [kind for kind, lines in ALIKE.items() if len(set(_outlined(*lines)[0])) > 1] == []
    assert [kind for kind, lines in APART.items() if len(set(_outlined(*lines)[0])) < 2] == []


@pytest.mark.skipif(compiled.part is None, reason="other keys are used without the compiled part")
def test_words_that_no_number_follows_are_told_in_a_set() -> None:
    _, (one, other, none, turned) = _outlined(b"step and loss", b"loss and step", b"and", b"and loss step")
    assert none == [1, 0, 0, 0]
    words = compiled.WORDS // 64
    assert one[:words] == other[:words] == turned[:words] != none[:words]
    assert one != other
    assert one != turned, "it matters which word follows which"


def _lines(key: int, words: int = 1, count: int = 1) -> tuple[np.ndarray[tuple[int], np.dtype[np.int64]], object]:
    return np.full(count, key, np.int64), np.full((count, compiled.SET), (words, 0, 0, 0), np.uint64)


def _found(answers: Answers, key: int, words: int = 1) -> int:
    return int(answers.find(*_lines(key, words))[0])


def test_words_that_meant_nothing_mean_nothing_together() -> None:
    answers = Answers()
    for words in (0b001, 0b010):
        assert _found(answers, 5, words) == UNKNOWN
        answers.add(*_lines(5, words), 3)
    assert _found(answers, 5, 0b011) == 3
    assert _found(answers, 5) == 3
    assert _found(answers, 5, 0b100) == UNKNOWN, "a word that was not there before"
    assert _found(answers, 6) == UNKNOWN


def test_where_recipes_say_different_things_the_words_have_to_be_the_same() -> None:
    answers = Answers()
    for words, found in ((0b001, 3), (0b010, 3), (0b100, 4)):
        answers.add(*_lines(5, words), found)
    assert [_found(answers, 5, words) for words in (0b001, 0b011, 0b100)] == [UNKNOWN, UNKNOWN, 4]
    answers.add(*_lines(5, 0b001), 3)
    assert [_found(answers, 5, words) for words in (0b001, 0b011, 0b100)] == [3, UNKNOWN, 4]


def test_lines_without_anything_that_recipes_need_are_known_apart_from_others() -> None:
    answers = Answers()
    answers.add(*_lines(5, 0b001), 3)
    answers.add(*_lines(5, 0b110), NOTHING, evaluated=False)
    assert [_found(answers, 5, words) for words in (0b001, 0b010, 0b100)] == [UNKNOWN, NOTHING, NOTHING]
    answers.add(*_lines(5, 0b001), 3)
    assert [_found(answers, 5, words) for words in (0b001, 0b010, 0b011)] == [3, NOTHING, UNKNOWN]


def test_what_says_nothing_can_be_doubted() -> None:
    answers = Answers()
    answers.add(*_lines(5, 0b011), NOTHING, evaluated=False)
    answers.forget_silence(5)
    assert _found(answers, 5, 0b011) == UNKNOWN
    answers.add(*_lines(5, 0b011), 3)
    assert _found(answers, 5, 0b011) == 3


def test_a_line_of_prose_that_says_something_is_found_later() -> None:
    """Lines of one outline say nothing, until one does whose words are all known from other lines."""
    selector = fresh("stdout").selector(_stream())
    prose = [b"at %d we read the loss again" % n for n in range(400)] + [
        b"at %d we read nan again" % n for n in range(400)
    ]
    assert selector(b"\n".join(prose) + b"\n") == []
    assert selector(b"at 7 we read loss: 0.5, step 3\n") is not None
    said = b"".join(b"at %d we read grad norm inf\n" % n for n in range(9))
    assert selector(said), "which word follows which is new"


def test_lines_without_a_word_of_progress_are_not_remembered() -> None:
    layer = fresh("stdout")
    selector = layer.selector(_stream())
    lines = [b"comm 0x%08x channel %d via P2P\n" % (n * 7919 * 104729 % 2**32, n) for n in range(50)]
    assert selector(b"".join(lines)) == []
    ((shapes, _),) = layer._known.values()
    assert not len(shapes._outlines)
