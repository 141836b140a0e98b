"""When a rate has collapsed, by how much, and how long an error is why."""

from __future__ import annotations

import pytest

from tracecore.engine.emission import standing
from tracecore.engine.engine import Engine
from tracecore.facts.gpu import AerError, PcieRateCollapse
from tracecore.patterns.pcie_aer.detector import PcieAer, collapsed, drop_of
from tracecore.signals.record import Source

START = 1_794_700_000_000_000_000
WINDOW = PcieAer().config.window


def fallen(
    time: int = START, rate: float = 1.0, baseline: float | None = 10.0, ratio: float | None = None
) -> PcieRateCollapse:
    return PcieRateCollapse(
        time=time, source=Source("dcgm", time - START), node="n1", gpu="g0", bytes_per_second=rate,
        baseline_bytes_per_second=baseline, drop_ratio=ratio,
    )  # fmt: skip


def error(time: int, kind: str | None = "BadTLP", *, last: int | None = None, severity: str = "corrected") -> AerError:
    return AerError(
        time=time, source=Source("kern.log", time - START, ident=f"{kind}"), node="n1", gpu="g0", severity=severity,
        error_type=kind, last_time=last,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("rate", "baseline", "ratio", "fell", "drop"),
    [
        (5.0, 10.0, None, True, 0.5),
        (5.1, 10.0, 0.9, False, 0.49),
        (0.25, 1.0, 0.1, True, 0.75),
        # Without a baseline the stated share counts.
        (0.0, 0.0, 0.1, False, 0.1),
        (0.0, None, 0.5, True, 0.5),
        (0.0, None, 0.49, False, 0.49),
        (0.0, None, None, False, None),
    ],
)
def test_a_rate_collapses_where_half_of_its_baseline_is_gone(
    rate: float, baseline: float | None, ratio: float | None, fell: bool, drop: float | None
) -> None:
    collapse = fallen(rate=rate, baseline=baseline, ratio=ratio)
    assert collapsed(collapse, 0.5) is fell
    assert drop_of(collapse) == (drop if drop is None else pytest.approx(drop))


@pytest.mark.parametrize(("after", "told"), [(0, 2), (1, 1)])
def test_a_storm_is_why_until_a_window_after_its_end(after: int, told: int) -> None:
    end = START + WINDOW // 2
    facts = [error(START, last=end), fallen(START + 1), fallen(end + WINDOW + after)]
    assert len(standing(Engine([PcieAer()]).replay(facts))) == told


def test_of_two_storms_that_end_together_the_first_lasts() -> None:
    end = START + WINDOW // 2
    facts = [error(START, last=end), error(START + 1, "BadDLLP", last=end), fallen(START + 2), fallen(end + WINDOW)]
    first, second = standing(Engine([PcieAer()]).replay(facts))
    assert first.verdict.fields()["kernelevents.pcie_aer.type"] == "BadDLLP"
    assert second.verdict.fields()["kernelevents.pcie_aer.type"] == "BadTLP"


@pytest.mark.parametrize(
    ("errors", "count"),
    [
        ([error(START)], 1),
        ([error(START, None), error(START)], 1),
        ([error(START, None), error(START), error(START + 1)], 2),
        ([error(START, None), error(START + 1, None), error(START)], 2),
        ([error(START, None), error(START, severity="fatal")], 2),
    ],
)
def test_the_line_of_the_port_and_that_of_the_device_are_one_error(errors: list[AerError], count: int) -> None:
    (said,) = standing(Engine([PcieAer()]).replay([*errors, fallen(START + 2)]))
    assert said.verdict.fields()["errors"] == count
