"""A queue on SQLite, and one on a real PostgreSQL server."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import Engine

from tracecore.queue.database import connect
from tracecore.queue.store import Queue


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.integration)])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The address of an empty queue, on either database."""
    if request.param == "sqlite":
        return str(tmp_path / "queue.db")
    address: str = request.getfixturevalue("postgres")
    return address


@pytest.fixture
def engine(place: str) -> Iterator[Engine]:
    opened = connect(place)
    yield opened
    opened.dispose()


class Clock:
    """Time that passes when told to."""

    def __init__(self) -> None:
        self.now = 1_800_000_000 * 10**9

    def __call__(self) -> int:
        return self.now

    def pass_(self, seconds: float) -> None:
        self.now += int(seconds * 10**9)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def queue(engine: Engine, clock: Clock) -> Queue:
    return Queue(engine, clock)
