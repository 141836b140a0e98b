"""How long facts about a port matter, and which adapters a failure names."""

from __future__ import annotations

import pytest

from tracecore.engine.emission import standing
from tracecore.engine.engine import Engine
from tracecore.facts.nccl import NcclError
from tracecore.patterns.config import MINUTE
from tracecore.patterns.ib_link_flap.detector import Config, IbLinkFlap
from tracecore.signals.record import Source

START = 1_794_700_000_000_000_000


@pytest.mark.parametrize(("window", "horizon"), [(10, 40), (30, 60)])
def test_facts_matter_for_two_windows_or_the_aftermath(window: int, horizon: int) -> None:
    assert IbLinkFlap(Config(window=window * MINUTE)).horizon == horizon * MINUTE


def test_a_failure_names_the_first_four_adapters() -> None:
    errors = [
        NcclError(time=START + n, source=Source("r0.log", n), node="n1", error="ib_port_error", device=f"mlx5_{n}:1")
        for n in range(5)
    ]
    end = NcclError(time=START + 9, source=Source("r0.log", 9), node="n1", error="timeout")
    (said,) = standing(Engine([IbLinkFlap()]).replay([*errors, end]))
    assert said.verdict.fields()["devices"] == ["mlx5_0:1", "mlx5_1:1", "mlx5_2:1", "mlx5_3:1"]
    assert said.verdict.fields()["port_errors"] == 5
