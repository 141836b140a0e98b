"""The rights that pages speak of are the same everywhere, and the chart grants them."""

from __future__ import annotations

import re
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parents[2]
NEEDED = {"list", "watch"}


def page(name: str) -> str:
    return (ROOT / "docs" / name).read_text()


def test_one_page_says_what_is_needed_and_the_others_point_to_it() -> None:
    rights = page("kubernetes.md").partition("\n## Rights\n")[2].partition("\n## ")[0]
    assert "`list` and `watch` are needed. `get` is not" in rights
    assert "verbs: [list, watch]" in rights
    for name in ("operations.md", "install-kubernetes.md", "integrations/container-logs.md"):
        assert "kubernetes.md#rights" in page(name), name


def test_no_page_asks_for_more() -> None:
    """`get` stands only where a page says what the chart grants, or that it is not needed."""
    for path in sorted((ROOT / "docs").rglob("*.md")):
        for line in path.read_text().splitlines():
            if re.search(r"\b(?:list|watch)\b", line) and re.search(r"\bget,? (?:and |or )?(?:list|watch)\b", line):
                assert path.name in ("install-kubernetes.md", "requirements.md"), f"{path.name}: {line}"


def test_the_chart_grants_what_is_needed_and_nothing_that_writes() -> None:
    rules = [
        rule
        for document in yaml.safe_load_all((ROOT / "deploy/kustomize/base/rbac.yaml").read_text())
        if document and document["kind"] in ("ClusterRole", "Role")
        for rule in document["rules"]
    ]
    assert {"pods", "events", "nodes"} <= {resource for rule in rules for resource in rule["resources"]}
    for rule in rules:
        assert NEEDED <= set(rule["verbs"]) <= NEEDED | {"get"}
