"""Facts that cannot change a verdict start no evaluation: a detector asks only for what it needs."""

from __future__ import annotations

from tracecore.engine.engine import Engine
from tracecore.facts.fact import Fact
from tracecore.facts.gpu import GpuDriverError, Xid
from tracecore.facts.kubernetes import ContainerTerminated, PodEvicted
from tracecore.facts.memory import OomKill
from tracecore.facts.process import CudaError
from tracecore.patterns.contract import Pattern
from tracecore.patterns.gpu_app_fault.detector import GpuAppFault
from tracecore.patterns.host_oom.detector import HostOom
from tracecore.signals.record import Source

SECOND = 1_000_000_000
PLACE = {"node": "n1", "pod": "train/p1"}


def line(number: int) -> Source:
    return Source(path="/var/log/n1.log", offset=number)


def evaluations(pattern: Pattern, first: Fact, rest: list[Fact], last: Fact) -> tuple[int, int]:
    """Return the number of evaluations after the first facts and the rest, and after the last."""
    engine = Engine([pattern])
    for fact in (first, *rest):
        engine.add([fact])
        engine.advance(fact.time)
    before = engine.stats.evaluations
    engine.add([last])
    engine.advance(last.time)
    return before, engine.stats.evaluations


def test_an_eviction_matters_only_where_an_exit_status_is_all_that_is_known() -> None:
    kill = OomKill(time=SECOND, source=line(0), victim_pid=7, victim_name="python3", **PLACE)
    evictions: list[Fact] = [PodEvicted(time=n * SECOND, source=line(n), reason="Evicted", **PLACE) for n in (2, 3, 4)]
    killed = ContainerTerminated(time=5 * SECOND, source=line(5), reason="Error", exit_code=137, **PLACE)
    assert evaluations(HostOom(), kill, evictions, killed) == (1, 2)


def test_an_xid_matters_only_where_a_program_met_an_error() -> None:
    timeout = GpuDriverError(time=SECOND, source=line(0), error="gsp_timeout", node="n1")
    xids: list[Fact] = [Xid(time=n * SECOND, source=line(n), code=31, node="n1") for n in (2, 3, 4)]
    error = CudaError(time=5 * SECOND, source=line(5), error="illegal_address", node="n1", rank=0)
    # The fact goes to the window of its node and to the one where nodes that are not known meet theirs.
    assert evaluations(GpuAppFault(), timeout, xids, error) == (2, 4)
