"""What the tests of the language share: other projects' cases, and a few functions of their own."""

from __future__ import annotations

import base64
import json
import os
from pathlib import Path
from typing import Any

import pytest

from tracecore.ottl.values import Time

ROOT = Path(__file__).resolve().parents[2]


def peer_cases(section: str) -> list[Any]:
    """A section of the peers' cases at collection time; empty where the data is absent."""
    for candidate in (os.environ.get("TRACECORE_SHARED_DATA"), ROOT.parent / "shared" / "data"):
        path = Path(candidate) / "peers" / "ottl_cases.json" if candidate else None
        if path is not None and path.is_file():
            found: list[Any] = json.loads(path.read_text())[section]
            return found
    return []


def decode(value: Any) -> Any:
    """A value of the peers' cases as the language holds it."""
    if isinstance(value, dict):
        if value.keys() == {"$double"}:
            return float(value["$double"])
        if value.keys() == {"$bytes"}:
            return base64.b64decode(value["$bytes"])
        if value.keys() == {"$unix_nano"}:
            return Time(value["$unix_nano"])
        for wrapper in ("$map", "$slice", "$value"):
            if value.keys() == {wrapper}:
                return decode(value[wrapper])
        return {key: decode(item) for key, item in value.items()}
    if isinstance(value, list):
        return [decode(item) for item in value]
    return value


@pytest.fixture(scope="session")
def peer_data(shared_data: Path) -> dict[str, Any]:
    """All of the peers' OTTL cases."""
    loaded: dict[str, Any] = json.loads((shared_data / "peers" / "ottl_cases.json").read_text())
    return loaded
