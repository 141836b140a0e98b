"""The example of docs/adding-a-pattern.md runs as it stands there."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from tracecore.engine.emission import standing
from tracecore.engine.engine import Engine
from tracecore.facts.catalog import TYPES
from tracecore.facts.kubernetes import PodEvicted
from tracecore.facts.storage import StorageError
from tracecore.patterns.contract import Pattern
from tracecore.signals.record import Source

TEXT = (Path(__file__).resolve().parents[2] / "docs" / "adding-a-pattern.md").read_text()
SECOND = 1_000_000_000
START = 1_790_000_000 * SECOND


@pytest.fixture(scope="module")
def example() -> Pattern[Any]:
    blocks = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)
    code = next(block for block in blocks if "class DiskEviction(" in block)
    made: dict[str, Any] = {"__name__": "example"}
    exec(compile(code, "adding-a-pattern.md", "exec", dont_inherit=True), made)
    pattern: Pattern[Any] = made["DiskEviction"]()
    return pattern


@pytest.mark.parametrize(("after", "found"), [(0, 1), (300, 1), (301, 0), (-1, 0)])
def test_the_verdict_of_the_example_is_built(example: Pattern[Any], after: int, found: int) -> None:
    facts = [
        StorageError(time=START, source=Source("a", line=1), node="n1", error="io_error"),
        PodEvicted(time=START + after * SECOND, source=Source("b", line=1), node="n1", pod="ml/p", reason="Evicted"),
    ]
    said = standing(Engine((example,)).replay(facts, until=START + 3600 * SECOND))
    assert len(said) == found
    if said:
        assert "Pod ml/p was evicted from n1 after its disk failed" in said[0].verdict.headline()


def test_its_fact_types_exist() -> None:
    known = {kind.__name__ for kind in TYPES}
    named = set(re.findall(r"(?:needs|triggers) = \(([\w, ]+?),?\)", TEXT))
    words = {word for group in named for word in re.findall(r"\w+", group)}
    assert words
    assert words <= known


def test_it_names_the_tables_that_a_pattern_belongs_into() -> None:
    for table in ("src/tracecore/incidents/precedence.py", "src/tracecore/actions/classes.yaml"):
        assert table in TEXT
        assert (Path(__file__).resolve().parents[2] / table).exists()
