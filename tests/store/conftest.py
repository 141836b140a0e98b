"""A store on SQLite, and one on a real PostgreSQL server of its own."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tracecore.store.store import Store

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.integration)])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The address of an empty database of either kind."""
    if request.param == "sqlite":
        return str(tmp_path / "store.db")
    address: str = request.getfixturevalue("postgres")
    return address


@pytest.fixture
def store(place: str) -> Iterator[Store]:
    opened = Store.open(place, durable=False)
    yield opened
    opened.close()
