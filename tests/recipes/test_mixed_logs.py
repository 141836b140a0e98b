# ruff: noqa: E501  a line of a log is as long as it is
"""Of logs in which many programs write, what columns keep leads to what the evaluation of every line leads to."""

from __future__ import annotations

import io
import json
import random
from collections.abc import Iterator
from datetime import UTC, datetime

import msgspec
import pytest

from bench import mixed_logs
from tracecore.facts.fact import Fact
from tracecore.facts.progress import stalls
from tracecore.facts.projection import project
from tracecore.facts.training import Preparation, Progress, StepStalled
from tracecore.recipes import known_shapes
from tracecore.recipes.plan import fresh, plan
from tracecore.signals.logs.reader import read
from tracecore.signals.logs.selector import Selector, reports
from tracecore.signals.stream import Clock, Counters, Stream

START = mixed_logs.START
TRACEBACK = (
    "Traceback (most recent call last):",
    '  File "/app/train.py", line 88, in <module>',
    "    main()",
    "ValueError: row 600: expected 512 tokens, got 17",
)
TABLE = (
    "=" * 60,
    "/app/train.py FAILED",
    "-" * 60,
    "Failures:",
    "  <NO_OTHER_FAILURES>",
    "-" * 60,
    "Root Cause (first observed failure):",
    "[0]:",
    "  time      : 2026-11-15_00:10:00",
    "  host      : node-1",
    "  rank      : 0 (local_rank: 0)",
    "  exitcode  : 1 (pid: 4242)",
    "=" * 60,
)
EVENTS = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.11 GiB of which 1.1 GiB is free",
    "node-1:77:99 [0] misc/socket.cc:484 NCCL WARN socketStartConnect: Connect to 10.0.0.7<4242> failed : Connection refused",
    "Saving checkpoint at step 1100 to /checkpoints/step_1100",
    "`Trainer.fit` stopped: `max_steps=100` reached.",
)


def _story(mixture: str, dice: random.Random) -> Iterator[tuple[float, str]]:
    """Lines and when they are written: a run that pauses, goes back, restarts, and fails now and then."""
    now, bodies = 0.0, mixed_logs.bodies(mixture, 0, dice.randrange(10**6), 2400)
    for number, body in enumerate(bodies):
        now += 0.02
        yield now, body
        match dice.randrange(400) if number % 3 == 0 else -1:
            case 0:
                now += dice.choice([20, 45, 70, 400])
            case 1:
                yield from ((now, line) for line in dice.choice([TRACEBACK, TABLE]))
            case 2 | 3:
                yield now, dice.choice(EVENTS)
            case 4:
                # Of a rank of its own: to one that also counts otherwise it would be progress, now and then.
                for _ in range(dice.randrange(3, 90)):
                    now += 1
                    yield (
                        now,
                        "[rank9]: step 1555/1000000 | loss 1.5000 | grad_norm 0.900 | lr 1.00e-04 | 300.0 ms | 9 tok/s",
                    )
            case 5:
                yield from ((now, bodies[n]) for n in range(number // 2, number // 2 + 40))


def _kept(layout: str, story: Iterator[tuple[float, str]]) -> bytes:
    lines = []
    for at, text in story:
        when = datetime.fromtimestamp(START + at, UTC)
        time = f"{when:%Y-%m-%dT%H:%M:%S}.{when.microsecond:06d}000Z"
        if layout == "cri":
            lines.append(f"{time} stdout F {text}\n")
        elif layout == "docker":
            lines.append(json.dumps({"log": text + "\n", "stream": "stdout", "time": time}, ensure_ascii=False) + "\n")
        else:
            lines.append(f"{text}\n")
    return "".join(lines).encode()


def _facts(data: bytes, layout: str, selector: Selector, stream: Stream, size: int) -> list[Fact]:
    layer = plan("stdout")
    found: list[Fact] = []
    for record in read(stream, selector, Clock((START + 10_000) * 10**9, True), Counters(), block_size=size):
        layer.run(record)
        found += project(record)
    return sorted(found, key=lambda fact: (fact.source.offset, fact.uid))


def _without_time(facts: list[Fact]) -> list[Fact]:
    """What has no time of its own gets one from the lines above that are read, which need not be all."""
    return [msgspec.structs.replace(fact, time=0) if fact.approximate else fact for fact in facts]


def _writer(stall: StepStalled) -> tuple[int, int]:
    """Stalls of two writers may begin at nearly the same moment: in which order does not matter."""
    return (-1 if stall.rank is None else stall.rank, stall.time)


MIXTURES = sorted(mixed_logs.MIXTURES)
#: Of each mixture one log in every run. The last one ends a stretch with a line without a time before a pause.
FEW = [*((mixture, "cri", 0) for mixture in MIXTURES), ("ray", "cri", 12)]
MANY = [(name, layout, seed) for name in MIXTURES for layout in ("cri", "docker", "text") for seed in range(1, 12)]


@pytest.mark.parametrize(
    ("mixture", "layout", "seed"), [*FEW, *(pytest.param(*each, marks=pytest.mark.heavy) for each in MANY)]
)
def test_the_same_is_concluded_as_from_every_line(mixture: str, layout: str, seed: int) -> None:
    dice = random.Random(f"{mixture} {layout} {seed}")
    data = _kept(layout, _story(mixture, dice))
    stream = Stream(path="f", format=layout, layer="stdout", open=lambda: io.BytesIO(data), size=len(data))
    every = _facts(data, layout, plan("stdout").every(stream), stream, 1 << 20)
    size = dice.choice([9_000, 60_000, 1 << 20])
    # A plan of its own: shapes that another test's lines refused are not counted here.
    selector = fresh("stdout").selector(stream)
    kept = _facts(data, layout, selector, stream, size)
    assert _without_time([fact for fact in kept if not isinstance(fact, Progress | Preparation)]) == _without_time(
        [fact for fact in every if not isinstance(fact, Progress | Preparation)]
    )
    # Bars of work before the steps are sampled like progress. The last one is kept.
    bars, all_bars = ([fact for fact in facts if isinstance(fact, Preparation)] for facts in (kept, every))
    assert [(bar.what, bar.done) for bar in bars[-1:]] == [(bar.what, bar.done) for bar in all_bars[-1:]]
    # What is kept of progress is as it was.
    whole = _without_time([fact for fact in every if isinstance(fact, Progress)])
    alone = [msgspec.structs.replace(fact, last_time=None, count=1) for fact in kept if isinstance(fact, Progress)]
    assert all(fact in whole for fact in _without_time(list(alone)))
    end = (START + 10_000) * 10**9
    if layout != "text":
        # Programs that count differently seem to make progress as they take turns: of that, a moment may be missing.
        said, known = (sorted(stalls(facts, end), key=_writer) for facts in (kept, every))
        assert [(stall.rank, stall.no_progress_s) for stall in said] == [(s.rank, s.no_progress_s) for s in known]
        assert all(abs(one.since - other.since) < 2 * 10**9 for one, other in zip(said, known, strict=True))
    assert reports(selector)
    # Free text with numbers in it has no fixed shape: lines of a refused shape are evaluated one by one.
    assert selector.refused <= (8 if mixture in ("vision", "rlhf") else 0)


def test_a_line_without_a_step_stands_for_none_after_the_first_step() -> None:
    """Lines that come before the first step are progress; behind it they are not, and hide no stall."""
    lines = [f"mean loss: 1.2{number:03d}" for number in range(20)]
    for number in range(60):
        lines += [f"step {100 + number}/5000 | loss 1.5", f"mean loss: 1.3{number:03d}"]
    story = ((number / 10 + (70 if number > 100 else 0), line) for number, line in enumerate(lines))
    data = _kept("cri", story)
    stream = Stream(path="f", format="cri", layer="stdout", open=lambda: io.BytesIO(data), size=len(data))
    every = _facts(data, "cri", plan("stdout").every(stream), stream, 1 << 20)
    kept = _facts(data, "cri", fresh("stdout").selector(stream), stream, 1 << 20)
    end = max(fact.end for fact in every)
    expected = [(stall.since, stall.no_progress_s) for stall in stalls(every, end)]
    assert [length for _, length in expected] == [70.0]
    assert [(stall.since, stall.no_progress_s) for stall in stalls(kept, end)] == expected
    assert len(kept) < len(every) / 2


@pytest.mark.parametrize("mixture", ["ray", "jax", "cluster"])
def test_the_same_is_concluded_where_shapes_are_forgotten_again_and_again(
    mixture: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    renewed = []
    forget = known_shapes.Shapes.renew

    def renew(self: known_shapes.Shapes, lines: int) -> None:
        before = len(self.shapes)
        forget(self, lines)
        renewed.append(len(self.shapes) < before)

    monkeypatch.setattr(known_shapes, "MAX_SHAPES", 6)
    monkeypatch.setattr(known_shapes, "RENEWED", 400)
    monkeypatch.setattr(known_shapes.Shapes, "renew", renew)
    test_the_same_is_concluded_as_from_every_line(mixture, "cri", 3)
    test_the_same_is_concluded_as_from_every_line(mixture, "cri", 8)
    assert any(renewed)
