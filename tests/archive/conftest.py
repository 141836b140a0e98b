"""Workers without processes, for tests of what is done with outcomes."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator

import pytest

from tracecore.archive.tasks import Outcome, Task, TaskLimits, perform


class Inline:
    """Does each task when its outcome is asked for."""

    capacity = 4

    def __init__(self, limits: TaskLimits) -> None:
        self.limits = limits
        self.tasks: deque[tuple[int, Task]] = deque()
        self.seen: list[Task] = []

    def submit(self, key: int, task: Task) -> None:
        self.tasks.append((key, task))
        self.seen.append(task)

    def finished(self) -> Iterator[tuple[int, Outcome]]:
        while self.tasks:
            # The last first: outcomes come in any order.
            key, task = self.tasks.pop()
            yield key, perform(task, self.limits)

    def close(self) -> None:
        self.tasks.clear()


@pytest.fixture
def inline() -> Callable[..., Inline]:
    return lambda limits=None: Inline(limits or TaskLimits())
