"""Which facts a fault of a GPU program is judged by, and in which windows."""

from __future__ import annotations

import pytest

from tracecore.facts.fact import Fact
from tracecore.facts.gpu import Xid, XidGauge
from tracecore.facts.process import CudaError
from tracecore.patterns.gpu_app_fault.detector import GpuAppFault
from tracecore.signals.record import Source

WHERE = {"time": 1, "source": Source(path="a"), "gpu": "0000:18:00.0"}
BOTH, SHARED = (("n1",), ("",)), (("",),)


@pytest.mark.parametrize(
    ("fact", "keys"),
    [
        (CudaError(error="illegal_address", node="n1", **WHERE), BOTH),
        (CudaError(error="illegal_address", **WHERE), SHARED),
        (CudaError(error="out_of_memory", node="n1", **WHERE), ()),
        (XidGauge(code=31, node="n1", **WHERE), BOTH),
        (XidGauge(code=79, node="n1", **WHERE), ()),
        (Xid(code=31, node="n1", **WHERE), BOTH),
        (Xid(code=79, node="n1", **WHERE), BOTH),
        (Xid(code=63, node="n1", **WHERE), ()),
    ],
)
def test_windows_of_a_fact(fact: Fact, keys: tuple[tuple[str, ...], ...]) -> None:
    assert GpuAppFault().keys(fact) == keys
