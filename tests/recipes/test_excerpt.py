"""Of a long log that goes on as before stretches are read, and what happens between them is seen all the same."""

from __future__ import annotations

import io
import json
import random
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import BinaryIO

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracecore.facts.fact import Fact
from tracecore.facts.progress import stalls
from tracecore.facts.projection import project
from tracecore.facts.training import Progress
from tracecore.recipes import excerpt, sampling
from tracecore.recipes.columns import Starts
from tracecore.recipes.plan import plan
from tracecore.signals.logs.blocks import MAX_LINE, Again, Block
from tracecore.signals.logs.reader import read
from tracecore.signals.logs.selector import Answer, Holding, Picked, Report, Selector
from tracecore.signals.stream import Clock, Counters, Stream

START = 1_794_700_000
BLOCK = 36 << 10
LINES = 2400

#: How a line of a rank is written at so many hundredths of a second.
Write = Callable[[int, int, int, str], str]


def _time(now: int, form: str = "{:02d}:{:02d}:{:02d}.{:02d}") -> str:
    seconds, part = divmod(now, 100)
    return form.format(8 + seconds // 3600, seconds // 60 % 60, seconds % 60, part)


FORMS: dict[str, Write] = {
    "text": lambda now, rank, step, loss: (
        f"[rank{rank}]: 2026-11-15 {_time(now)} INFO step {step} loss {loss} lr 3.0e-4"
    ),
    "cri": lambda now, rank, step, loss: (
        f"2026-11-15T{_time(now)}0000000Z stdout F rank {rank} | step {step} | loss {loss}"
    ),
    "docker": lambda now, rank, step, loss: json.dumps(
        {
            "log": f"[rank{rank}]: step {step} loss {loss}\n",
            "stream": "stdout",
            "time": f"2026-11-15T{_time(now)}0000001Z",
        },
        separators=(",", ":"),
    ),
    "colours": lambda now, rank, step, loss: (
        f"[rank{rank}]: 2026-11-15 {_time(now)} - \x1b[32mstep: {step}  \x1b[31mloss: {loss}\x1b[39m"
    ),
}
HAPPENINGS = (
    "nothing", "rank stalls", "all stall", "rank ends", "back", "explodes", "nan", "error", "other reports",
    "error without a time", "line too long",
)  # fmt: skip


@pytest.fixture(autouse=True)
def _short_periods(monkeypatch: pytest.MonkeyPatch) -> None:
    """Logs of tests are short, and so is what is left out of them."""
    monkeypatch.setattr(excerpt, "PERIOD", 4 << 10)
    monkeypatch.setattr(excerpt, "WIDTH", 256)
    monkeypatch.setattr(excerpt, "PART", 5)
    monkeypatch.setattr(sampling, "SMALL", 12 << 10)
    monkeypatch.setattr(sampling, "TOGETHER", 30 << 10)
    monkeypatch.setattr(sampling, "BLOCK", 14 << 10)


def _log(form: str, happening: str, where: int, ranks: int) -> bytes:
    """A log in which something happens after so many lines."""
    write, dice = FORMS[form], random.Random(where)
    lines: list[str] = []
    now, first = 0, 0
    for number in range(LINES):
        rank, step = number % ranks, 1000 + number // ranks
        loss = f"{2 + dice.random():.4f}"
        now += 5
        happened = number >= where
        if number == where and happening == "all stall":
            now += 12_000
        first = first or (now if happened else 0)
        silent = happening == "rank ends" or (happening == "rank stalls" and now < first + 9000)
        if happened and silent and rank == 0:
            continue
        if happened and happening == "back":
            step -= 400
        if happened and happening == "explodes":
            loss = f"{40 + dice.random():.4f}"
        if number == where:
            extra = {
                "nan": write(now, rank, step, "nan"),
                "error": write(now, rank, step, "2.1").replace(
                    "step", "RuntimeError: CUDA error: an illegal memory access"
                ),
            }
            extra["error without a time"] = "RuntimeError: CUDA error: an illegal memory access was encountered"
            extra["line too long"] = "x" * (MAX_LINE + 150_000)
            lines += [extra[happening]] if happening in extra else []
        if happened and happening == "other reports" and number % 7 == 0:
            lines.append(write(now, rank, step, "2.1").replace("step", "validated after epoch 3, at step"))
        lines.append(write(now, rank, step, loss))
        if dice.random() < 0.05:
            lines.append(write(now, rank, step, "").replace("loss", "gc took 12 ms for"))
    return "".join(line + "\n" for line in lines).encode()


class _Watched:
    """A selector that takes one block at a time, and counts those of which stretches were enough."""

    def __init__(self, selector: Selector) -> None:
        assert isinstance(selector, Holding)
        self._selector = selector
        self.glances = 0

    def __call__(self, block: bytes) -> object:
        assert callable(self._selector)
        picked = self._selector(block)
        self._count(picked)
        return picked

    def finish(self) -> Sequence[Report]:
        return self._selector.finish()

    def _count(self, picked: Sequence[int] | None) -> None:
        self.glances += isinstance(picked, Picked) and picked.newlines is None


class _WatchedTogether(_Watched):
    """The same for one that takes them together."""

    def size(self, most: int) -> int:
        return self._selector.size(most)

    def take(self, block: Block, again: Again | None, *, hold: bool) -> Sequence[Answer]:
        return self._counted(self._selector.take(block, again, hold=hold))

    def rest(self) -> Sequence[Answer]:
        return self._counted(self._selector.rest())

    def _counted(self, answers: Sequence[Answer]) -> Sequence[Answer]:
        for _, picked in answers:
            self._count(picked)
        return answers


def _facts(
    data: bytes, form: str, selector: Callable[[Stream], object], file: Path | None = None
) -> tuple[list[Fact], object]:
    kind = form if form in ("cri", "docker") else "text"
    if file is None:
        opened: Callable[[], BinaryIO] = partial(io.BytesIO, data)
    else:
        file.write_bytes(data)
        opened = partial(io.FileIO, file)
    stream = Stream(path="f", format=kind, layer="stdout", open=opened, size=len(data))
    layer, select = plan("stdout"), selector(stream)
    facts: list[Fact] = []
    for signal in read(stream, select, Clock(START * 10**9, True), Counters(), block_size=BLOCK):  # type: ignore[arg-type]
        layer.run(signal)
        facts += project(signal)
    return sorted(facts, key=lambda fact: (fact.source.offset, type(fact).__name__)), select


def _last(facts: list[Fact]) -> dict[int | None, tuple[int | None, int, int]]:
    """The last report of each rank: step, time, line."""
    return {f.rank: (f.step, f.time, f.source.line or 0) for f in facts if isinstance(f, Progress)}


CASES = [("text", happening, 3) for happening in HAPPENINGS]
CASES += [(form, happening, 2) for form in FORMS for happening in ("nothing", "rank stalls", "explodes")]
CASES += [(form, "all stall", 1) for form in FORMS]


TAKEN = ("one by one", "together", "together, from a file")
#: Whoever takes blocks one by one is not told that some bytes of a line were left out.
WAYS = [(*case, taken) for case in CASES for taken in TAKEN if (case[1], taken) != ("line too long", TAKEN[0])]


@pytest.mark.parametrize(("form", "happening", "ranks", "taken"), WAYS)
def test_nothing_is_lost_between_stretches(form: str, happening: str, ranks: int, taken: str, tmp_path: Path) -> None:
    where = random.Random(f"{form} {happening}").randrange(LINES // 3, LINES * 3 // 4)
    data = _log(form, happening, where, ranks)
    layer = plan("stdout")
    every, _ = _facts(data, form, layer.every)
    watch = _Watched if taken == "one by one" else _WatchedTogether
    file = tmp_path / "log" if taken.endswith("file") else None
    found, watched = _facts(data, form, lambda stream: watch(layer.selector(stream, spans=True)), file)
    assert isinstance(watched, _Watched)
    assert watched.glances >= (2 if happening == "nothing" else 0)
    assert [f for f in found if not isinstance(f, Progress)] == [f for f in every if not isinstance(f, Progress)]
    assert {fact.uid for fact in found} <= {fact.uid for fact in every}
    assert _last(found) == _last(every)
    end = max(fact.time for fact in every) + 10**9
    assert [(s.since, s.step, s.rank) for s in stalls(found, end)] == [
        (s.since, s.step, s.rank) for s in stalls(every, end)
    ]
    assert _back(found) == _back(every)
    if happening == "explodes":
        high = [next(f for f in facts if isinstance(f, Progress) and (f.loss or 0) > 30) for facts in (found, every)]
        assert high[0].source == high[1].source
    if happening in ("nothing", "nan"):
        assert sum(isinstance(fact, Progress) for fact in found) < 60 * ranks


def _back(facts: list[Fact]) -> list[tuple[int | None, int]]:
    """(rank, step) where a step is smaller than the one before."""
    last: dict[int | None, int] = {}
    found = []
    for fact in facts:
        if isinstance(fact, Progress) and fact.step is not None:
            if fact.step < last.get(fact.rank, -1):
                found.append((fact.rank, fact.step))
            last[fact.rank] = fact.step
    return found


@given(st.lists(st.integers(0, 60), min_size=50, max_size=200), st.integers(20, 90), st.integers(100, 400))
def test_lines_of_an_excerpt_are_where_it_says(lengths: list[int], width: int, period: int) -> None:
    lines = [b"%d" % number * (length // 4) + b"\n" for number, length in enumerate(lengths)]
    block = b"".join(lines)
    run = excerpt.Run(excerpt.Pace(frozenset(), width, period, True), Starts())
    for first in range(0, len(lines), 40):
        part = b"".join(lines[first : first + 40])
        counted = run.add(part)
        if counted is None:
            return
        assert counted == part.count(b"\n")
    seen = run.excerpt()
    assert run.size == len(block)
    assert run.data(0) == block
    assert seen.offset[0] == 0
    assert seen.lines == len(lengths)
    assert block.endswith(seen.text[seen.starts[(seen.stretch == seen.stretch[-1]).argmax()] :])
    for line, (offset, number) in enumerate(zip(seen.offset.tolist(), seen.number.tolist(), strict=True)):
        text = seen.text[seen.starts[line] : seen.starts[line + 1]]
        assert block[offset : offset + len(text)] == text
        assert block.count(b"\n", 0, offset) == number
