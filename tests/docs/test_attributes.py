"""The scalars of verdicts in docs/attributes.md are those that verdicts have, and schemas know them."""

from __future__ import annotations

import json
import re
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tracecore.patterns import types
from tracecore.patterns.cases import folder

ROOT = Path(__file__).resolve().parents[2]
KINDS = {kind.name: kind for kind in types()}
TYPES = {"string": str, "int": int, "double": float}
SCHEMA_TYPES = {"string": {"string"}, "int": {"integer"}, "double": {"number", "integer"}}


class Scalar(NamedTuple):
    type: str
    field: str


@cache
def documented() -> dict[str, dict[str, Scalar]]:
    section = (ROOT / "docs" / "attributes.md").read_text().partition("\n## Verdicts\n")[2].partition("\n## ")[0]
    found: dict[str, dict[str, Scalar]] = {}
    for id, name, cell in re.findall(r"^\| (\d+) (\w+) \| (.*) \|$", section, re.M):
        assert KINDS[name].id == id
        found[name] = {}
        for entry in cell.split("; "):
            match = re.fullmatch(r"`([\w.]+)` (string|int|double)(?: \((?:`([\w.]+)`|its evidence)\))?", entry)
            assert match, entry
            scalar, kind, field = match.groups()
            found[name][scalar] = Scalar(kind, "" if entry.endswith("(its evidence)") else field or scalar)
    return found


def goldens(name: str) -> list[dict[str, Any]]:
    return [
        verdict
        for path in sorted((folder(KINDS[name]) / "cases" / "golden").glob("*.json"))
        for verdict in json.loads(path.read_text())
    ]


def test_every_pattern_is_listed() -> None:
    assert list(documented()) == list(KINDS), "docs/attributes.md, Verdicts: a row for each pattern, in their order"


@pytest.mark.parametrize("name", KINDS)
def test_the_scalars_are_those_of_the_verdicts(name: str) -> None:
    assert name in documented(), f"docs/attributes.md has no row for {name} under Verdicts"
    known = documented()[name]
    seen: set[str] = set()
    for verdict in goldens(name):
        promoted = {key: value for key, value in verdict["promoted"].items() if not key.startswith("verdict.")}
        seen |= promoted.keys()
        for scalar, value in promoted.items():
            assert scalar in known
            assert type(value) is TYPES[known[scalar].type], scalar
            if field := known[scalar].field:
                told = verdict[field]
                assert value == told or (isinstance(told, list) and value in told), scalar
    assert seen == known.keys()


@pytest.mark.parametrize("name", KINDS)
def test_the_schema_knows_them(name: str) -> None:
    schema = json.loads((folder(KINDS[name]) / "verdict.schema.json").read_text())
    for scalar, told in documented().get(name, {}).items():
        if not told.field:
            continue
        assert told.field in schema["properties"], scalar
        kinds = _types(schema["properties"][told.field], schema)
        assert not kinds or kinds & SCHEMA_TYPES[told.type], (scalar, kinds)


def _types(node: dict[str, Any], schema: dict[str, Any]) -> set[str]:
    """The plain types a schema allows; those of the entries of a list."""
    if "$ref" in node:
        return _types(schema["$defs"][node["$ref"].rpartition("/")[2]], schema)
    if node.get("type") == "array":
        return _types(node.get("items") or {}, schema)
    if "enum" in node or "const" in node:
        values = node.get("enum") or [node["const"]]
        return {"string" if isinstance(value, str) else "integer" for value in values}
    kinds = node.get("type") or []
    return {kinds} if isinstance(kinds, str) else set(kinds)
