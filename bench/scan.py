"""Raw container logs through all recipes to facts, on one core: scan, select, parse, stamp, type.

Speeds are bytes for each second of processor time, the best of a few runs. What is compared is run in turn, so that a
machine that others use slows all of it. The bare scan is Hyperscan alone over the
same bytes in the same run, with all that any guard of the layer's recipes needs in one database that reports each at
most once in a block, in blocks of the size the reader uses for it. `scan.bare_less` is the same without the one literal
that the reader looks for by other means (`selection`), because it slows Hyperscan down.
"""

from __future__ import annotations

import io
import re
import time
from collections.abc import Callable, Sequence
from typing import BinaryIO, cast

import msgspec

from bench import Measurement
from bench.training_log import training_log
from tracecore import recipes
from tracecore.facts.fact import Fact
from tracecore.facts.projection import project
from tracecore.ottl.planner.database import ScanDatabase, Searched, search
from tracecore.ottl.planner.expressions import FOLDING
from tracecore.ottl.planner.selection import PIECE, line_search
from tracecore.recipes.plan import SAMPLED, LayerPlan, plan, prepare
from tracecore.signals.logs import reader
from tracecore.signals.stream import Clock, Counters, Stream

#: The log is a piece of this size, read so many times over: as a file that goes back to its first step each time.
SIZE = 32 << 20
TIMES = 8
RUNS = 8


def measure() -> list[Measurement]:
    dense, ranks, slow = training_log(SIZE), training_log(SIZE, ranks=8), training_log(SIZE >> 5, per_second=10)
    stdout = plan("stdout")
    facts = _facts(stdout, dense)
    if not any(type(fact).__name__ == "CudaError" for fact in facts):
        raise AssertionError("the failure at the end of the log was not seen")
    size = len(dense) * TIMES
    twice = LayerPlan(prepare((*recipes.load("stdout"), *map(_other, recipes.load("stdout")))))
    _facts(twice, dense, 1)
    less = line_search(stdout.patterns).entries
    full, bare, bare_less, doubled, of_ranks, of_slow = _bests(
        (lambda: _facts(stdout, dense), size),
        (_bare((*less, *search([], lines=True, extra=FOLDING).entries), dense), size),
        (_bare(less, dense), size),
        (lambda: _facts(twice, dense), size),
        (lambda: _facts(stdout, ranks, 1), len(ranks)),
        (lambda: _facts(stdout, slow, 1), len(slow)),
    )
    return [
        Measurement("scan.rate", full / 1e6, "MB/s", "≥ 60", f"{size >> 20} MiB of CRI log to {len(facts)} facts"),
        Measurement("scan.bare", bare / 1e6, "MB/s", "", "Hyperscan alone, each guard at most once in a block"),
        Measurement("scan.of_bare", 100 * full / bare, "%", "", "of the bare scan"),
        Measurement("scan.bare_less", bare_less / 1e6, "MB/s", "", "Hyperscan without one literal that slows it down"),
        Measurement("scan.twice", 100 * (full / doubled - 1), "% slower", "≤ 10", "with twice as many statements"),
        Measurement("scan.ranks", of_ranks / 1e6, "MB/s", "", "8 ranks write to one log"),
        Measurement("scan.slow", of_slow / 1e6, "MB/s", "", "10 lines a second"),
    ]


def _bests(*works: tuple[Callable[[], object], int]) -> list[float]:
    """Bytes for each second of processor time, for each work on so many bytes."""
    best = [float("inf")] * len(works)
    for _ in range(RUNS):
        for number, (work, _) in enumerate(works):
            begin = time.process_time()
            work()
            best[number] = min(best[number], time.process_time() - begin)
    return [size / seconds for (_, size), seconds in zip(works, best, strict=True)]


class _Repeated(io.BytesIO):
    """The same bytes several times over."""

    def __init__(self, data: bytes, times: int) -> None:
        super().__init__()
        self._data, self._size, self._at = data, len(data) * times, 0

    def read(self, size: int | None = -1) -> bytes:
        if size is None or size < 0 or self._at >= self._size:
            return b""
        begin = self._at % len(self._data)
        found = self._data[begin : begin + size]
        self._at += len(found)
        return found

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._at = offset + (self._at if whence == io.SEEK_CUR else 0)
        return self._at

    def tell(self) -> int:
        return self._at


def _facts(layer: LayerPlan, log: bytes, times: int = TIMES) -> list[Fact]:
    stream = Stream(
        path="0.log",
        format="cri",
        layer="stdout",
        open=lambda: cast("BinaryIO", _Repeated(log, times)),
        size=len(log) * times,
    )
    facts: list[Fact] = []
    for signal in reader.read(stream, layer.selector(stream), Clock(), Counters()):
        layer.run(signal)
        facts += project(signal)
    return facts


def _bare(entries: Sequence[Searched], log: bytes) -> Callable[[], None]:
    database = ScanDatabase(entries, once=True)
    blocks = [log[at : at + PIECE] for at in range(0, len(log), PIECE)]

    def scan() -> None:
        for _ in range(TIMES):
            for block in blocks:
                database.scan(block, _report)

    return scan


def _report(number: int, start: int, end: int, flags: int, context: object) -> None:
    return None


_GUARD = re.compile(r'(IsMatch\(body, ")((?:[^"\\]|\\.)*)(")')
_WORD = re.compile(r"(?<![\\A-Za-z])[a-z]{4,}")
_ROTATED = str.maketrans("abcdefghijklmnopqrstuvwxyz", "nopqrstuvwxyzabcdefghijklm")


def _other(processor: recipes.Processor) -> recipes.Processor:
    """The same statements about other words."""

    def changed(line: recipes.RecipeLine) -> recipes.RecipeLine:
        text = _GUARD.sub(lambda m: m[1] + _WORD.sub(lambda w: w[0].translate(_ROTATED), m[2]) + m[3], line.text)
        return recipes.RecipeLine(text, line.line)

    groups = tuple(
        recipes.StatementGroup(g.context, tuple(map(changed, g.conditions)), tuple(map(changed, g.statements)))
        for g in processor.groups
    )
    # Those of progress keep their name, so that they are sampled as well: words of theirs are too short to be changed.
    name = processor.name if processor.name in SAMPLED else f"{processor.name}_other"
    return msgspec.structs.replace(processor, name=name, groups=groups)
