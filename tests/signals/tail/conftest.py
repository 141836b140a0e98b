"""A receiver over a temporary directory, and a clock that tests move."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tracecore.signals.logs.tail.batch import LogBatch
from tracecore.signals.logs.tail.config import FileLogConfig
from tracecore.signals.logs.tail.filelog import FileLog
from tracecore.signals.storage.journal import Journal

START = 1_794_706_624_000_000_000


class Tail:
    """A receiver whose clock moves a poll interval at every look."""

    def __init__(self, place: Path, store: Journal | None = None, **options: Any) -> None:
        options.setdefault("include", (str(place / "*"),))
        options.setdefault("start_at", "beginning")
        self.config = FileLogConfig(**options)
        assert list(self.config.check()) == []
        self.now = START
        self.said: list[str] = []
        self.batches: list[LogBatch] = []
        #: Whether batches arrive as soon as they are read.
        self.delivers = True
        self.log = FileLog(self.config, store, self.clock, self.said.append)

    def clock(self) -> int:
        return self.now

    def records(self) -> list[Any]:
        """The records of one look, all of them."""
        self.now += self.config.poll_interval
        found: list[Any] = []
        while True:
            batches = self.log.poll()
            self.batches += batches
            for batch in batches if self.delivers else ():
                self.log.delivered(batch)
            found += [(resource, record) for batch in batches for resource, record in batch.records()]
            if not self.log.more:
                return found

    def bodies(self, looks: int = 1) -> list[Any]:
        """The texts of some looks."""
        return [record["body"] for _ in range(looks) for _, record in self.records()]

    def wait(self, seconds: float) -> None:
        self.now += int(seconds * 1_000_000_000)


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    place = tmp_path / "logs"
    place.mkdir()
    return place


@pytest.fixture(params=[True, False], ids=["announced", "polled"])
def announced(request: pytest.FixtureRequest) -> bool:
    """Whether the kernel announces changes, or files are looked at again and again."""
    return bool(request.param)


@pytest.fixture
def tail(logs: Path, announced: bool, request: pytest.FixtureRequest) -> Callable[..., Tail]:
    def make(**options: Any) -> Tail:
        made = Tail(logs, **{"inotify": announced, **options})
        request.addfinalizer(made.log.close)
        return made

    return make
