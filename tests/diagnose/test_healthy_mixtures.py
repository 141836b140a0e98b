"""Logs of many loggers that run well, as long as the benchmark's: nothing failed in them, and nothing is told."""

from __future__ import annotations

from pathlib import Path

import pytest
from bench.mixed_logs import MIXTURES, write

from tracecore.diagnose.offline import diagnose


@pytest.mark.parametrize("mixture", MIXTURES)
def test_a_healthy_mixture_has_no_incident(mixture: str, tmp_path: Path) -> None:
    write(tmp_path, mixture, "plain", 3_000_000, 7001)
    assert [incident["headline"] for incident in diagnose([tmp_path]).document()["incidents"]] == []
