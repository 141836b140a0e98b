"""Which exporter's gauge shows an Xid of the kernel's log."""

from __future__ import annotations

import pytest

from tracecore.facts.gpu import Xid, XidGauge
from tracecore.patterns.gpu_fault.gauge import LINK, PEERS, Gauges, gauge_keys
from tracecore.signals.record import Source


def gauge(time: int, code: int = 79, gpu: str | None = "g", node: str | None = "n") -> XidGauge:
    return XidGauge(time=time, source=Source("metrics", time), node=node, gpu=gpu, code=code)


def xid(node: str | None = "n") -> Xid:
    return Xid(time=100, source=Source("kern.log"), node=node, gpu="g", code=79)


@pytest.mark.parametrize(
    ("gauges", "codes", "time"),
    [
        ([], (79,), None),
        ([gauge(100)], (79,), 100),
        ([gauge(100)], (48,), None),
        ([gauge(100)], (), None),
        ([gauge(100, gpu="h")], (79,), None),
        # Near in time, which counts at both ends; the first of several.
        ([gauge(89), gauge(111)], (79,), None),
        ([gauge(90)], (79,), 90),
        ([gauge(110)], (79,), 110),
        ([gauge(95), gauge(105)], (79,), 95),
        ([gauge(80), gauge(105)], (79,), 105),
        ([gauge(95, 48), gauge(105)], (79, 48), 95),
        # Exporters of two machines are none.
        ([gauge(95), gauge(105, node="m")], (79,), None),
        ([gauge(80, node="m"), gauge(105)], (79,), 105),
        ([gauge(95, 48, node="m"), gauge(105)], (79, 48), None),
    ],
)
def test_the_gauge_that_shows_an_xid(gauges: list[XidGauge], codes: tuple[int, ...], time: int | None) -> None:
    found = Gauges(gauges).near(xid(None), codes, 10)
    assert (None if found is None else found.time) == time


@pytest.mark.parametrize(
    ("node", "gauges", "time"),
    [
        ("n", [gauge(105), gauge(95, node="m")], 105),
        ("n", [gauge(105, node=None)], 105),
        ("n", [gauge(105, node="m")], None),
        ("n", [gauge(111)], None),
        ("n", [gauge(89)], None),
        ("n", [gauge(90), gauge(110)], 90),
        (None, [gauge(105, node="m")], 105),
    ],
)
def test_the_gauge_of_the_node(node: str | None, gauges: list[XidGauge], time: int | None) -> None:
    found = Gauges(gauges).near_on(xid(node), 79, 10)
    assert (None if found is None else found.time) == time


def test_windows_of_a_gauge() -> None:
    assert gauge_keys(gauge(1)) == (("n", "g"), ("", "g"))
    assert gauge_keys(gauge(1, LINK)) == (("n", PEERS),)
    assert gauge_keys(gauge(1, LINK, node=None)) == (("", PEERS),)
    assert gauge_keys(gauge(1, LINK, gpu=None)) == ()
    assert bool(Gauges([gauge(1)])) is True
    assert bool(Gauges([])) is False
