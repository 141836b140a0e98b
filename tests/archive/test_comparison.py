"""What became of an incident between two diagnoses."""

from __future__ import annotations

from typing import Any

import pytest

from tracecore.archive.comparison import RunComparison, compare


def incident(ident: str = "i", root: str | None = "nccl_hang", **more: Any) -> dict[str, Any]:
    return {
        "id": ident,
        "status": "diagnosed" if root else "insufficient_evidence",
        "headline": "h",
        "root_cause": None if root is None else {"pattern": root, "verdict": "v"},
        "suspects": {"ranks": [2], "nodes": [], "gpus": [], "pods": []},
        "failure": {"class": "infrastructure", "retry": {"decision": "retry"}},
    } | more


@pytest.mark.parametrize(
    ("before", "now", "kind", "serious"),
    [
        ([incident()], [incident()], "same", False),
        ([incident(root=None)], [incident()], "named", False),
        ([incident()], [incident(root=None)], "unnamed", True),
        ([incident()], [incident(root="straggler")], "changed", True),
        ([incident()], [incident(suspects={"ranks": [3], "nodes": [], "gpus": [], "pods": []})], "changed", True),
        ([incident()], [incident(failure={"class": "user"})], "changed", True),
        ([incident()], [incident(headline="other words")], "reworded", False),
        ([], [incident()], "appeared", True),
        ([incident()], [], "gone", True),
    ],
)
def test_kinds_of_change(before: list[Any], now: list[Any], kind: str, serious: bool) -> None:
    (change,) = compare("b", {"incidents": before}, {"incidents": now})
    assert change.kind == kind
    found = RunComparison()
    found.add("b", {"incidents": before}, {"incidents": now})
    assert found.serious is serious
    assert found.incidents == {kind: 1}
    assert [told["kind"] for told in found.document()["changes"]] == ([] if kind == "same" else [kind])


def test_what_differs_beside_incidents_is_no_incident() -> None:
    found = RunComparison()
    found.add("b", {"incidents": [], "notes": []}, {"incidents": [], "notes": ["new"]})
    assert found.incidents == {}
    assert not found.serious
    assert len(found.changes) == 1
