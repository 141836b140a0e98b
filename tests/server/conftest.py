"""A store, and the application over it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tracecore.server.app import make_app
from tracecore.server.settings import ServerSettings
from tracecore.store.store import Store

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1] / "store")]
from running import running  # noqa: E402


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


@pytest.fixture
def sqlite_store(tmp_path: Path) -> Iterator[Store]:
    """A store where the kind of database does not matter."""
    opened = Store.open(str(tmp_path / "one.db"), durable=False)
    yield opened
    opened.close()


@pytest.fixture
def client(sqlite_store: Store) -> Iterator[httpx.Client]:
    """A caller on this machine."""
    app = make_app(sqlite_store, ServerSettings(rate=0))
    with running(app) as address, httpx.Client(base_url=address, timeout=30) as made:
        yield made
