"""The page about threats says which test shows what; they are there, and no adversary is without one."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

from tracecore.agent.processors.blocks import Blocks
from tracecore.agent.processors.numbers import EngineNumbers
from tracecore.agent.processors.patterndetector.detection import LIMITS
from tracecore.agent.telemetry import Meter
from tracecore.engine.engine import EngineLimits, EngineStats
from tracecore.signals.record import Resource, Source

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "threat-model.md").read_text()
ADVERSARIES = (
    "A tenant who writes hostile log lines",
    "A hostile dump or bundle",
    "A peer on the network",
    "An endpoint that was taken over",
    "A curious neighbour on the node",
    "The supply chain",
    "An operator's mistake",
    "Whoever reaches the server",
)


@cache
def _tests(path: str) -> frozenset[str]:
    tree = ast.parse((ROOT / path).read_text())
    return frozenset(node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef))


def test_every_test_that_is_named_exists() -> None:
    named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", PAGE)
    assert len(named) > 40
    for path, name in named:
        assert (ROOT / path).is_file(), path
        assert name in _tests(path), f"{path} has no {name}"


def test_every_adversary_is_there_and_every_row_has_a_test() -> None:
    sections = re.split(r"^## ", PAGE, flags=re.MULTILINE)[1:]
    assert tuple(section.partition("\n")[0] for section in sections) == ADVERSARIES
    for section in sections:
        rows = [line for line in section.splitlines() if line.startswith("| ")][1:]
        assert len(rows) >= 4
        for row in rows:
            assert re.search(r"`tests/[\w/]+\.py::\w+` \|$", row), row


def test_what_detectors_forget_under_a_flood_is_counted() -> None:
    assert LIMITS.total < EngineLimits().total
    assert LIMITS.windows < EngineLimits().windows
    meter, stats = Meter("processor", "patterndetector"), EngineStats()
    numbers = EngineNumbers(meter, stats, ["cuda_oom"])
    assert meter.events["facts_evicted"] == 0
    stats.evicted_window, stats.evicted_total, stats.late = 3, 2, 7
    numbers.update()
    numbers.update()
    assert meter.events["facts_evicted"] == 5
    assert meter.events["facts_late"] == 7
    stats.evicted_total = 3
    numbers.update()
    assert meter.events["facts_evicted"] == 6
    numbers.verdict("cuda_oom")
    assert meter.verdicts == {"cuda_oom": 1}


def test_open_blocks_are_bounded_whoever_opens_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """Many streams, each in the middle of a long traceback: the oldest are closed early."""
    monkeypatch.setattr("tracecore.agent.processors.blocks.MAX_OPEN", 100_000)
    blocks, resource = Blocks(quiet=10**9), Resource(attributes={})
    closed = 0

    def feed(stream: int, text: str) -> int:
        record = {"body": text, "attributes": {}, "time_unix_nano": 1}
        return sum(1 for _ in blocks.feed((stream,), resource, record, Source("x"), 0))

    for stream in range(50):
        closed += feed(stream, "Traceback (most recent call last):")
    for _ in range(30):
        for stream in range(50):
            if blocks.expects((stream,)):
                closed += feed(stream, f'  File "{"a" * 200}.py", line 1, in f')
        assert blocks._open <= 100_000
    assert blocks.evicted == closed > 0
    rest = list(blocks.finish())
    assert len(rest) + closed == 50
    assert blocks._open == 0
