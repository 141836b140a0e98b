"""Repeated entries of a case count: in texts, and as numbers."""

from __future__ import annotations

from pathlib import Path

from tracecore.patterns.cases import read_cases

CASE = """
case: counted
kind: storm
why: every repetition is another step of another node
facts:
  - t+2s progress x3 every 1s: {node: "node-{i}", rank: 0, step: "{i+5}"}
expect_none_at: [t+9s]
"""


def test_a_whole_value_counts_as_a_number_and_a_part_of_one_as_text(tmp_path: Path) -> None:
    path = tmp_path / "counted.yaml"
    path.write_text(CASE)
    (case,) = read_cases(path)
    facts = [arrival.fact for arrival in case.arrivals]
    assert [getattr(fact, "step", None) for fact in facts] == [5, 6, 7]
    assert [fact.node for fact in facts] == ["node-0", "node-1", "node-2"]
