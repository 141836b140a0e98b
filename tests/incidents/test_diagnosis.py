"""Which attempt of its job an incident is of, as people count."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tracecore.incidents.diagnosis import Diagnosis


@pytest.mark.parametrize(
    ("numbers", "attempt", "told"),
    [([0], 0, (1, 1)), ([0, 1, 4], 4, (3, 3)), ([1, 2], 1, (1, 2)), ([1, 2], 0, (1, 2)), ([], 0, (1, 0))],
)
def test_attempts_are_counted_from_one(numbers: list[int], attempt: int, told: tuple[int, int]) -> None:
    run = SimpleNamespace(of=lambda job: [SimpleNamespace(number=number) for number in numbers])
    diagnosis: Any = SimpleNamespace(run=run)
    incident: Any = SimpleNamespace(job="j", attempt=attempt)
    assert Diagnosis.attempt_of(diagnosis, incident) == told
