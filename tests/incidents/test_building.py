"""Whom an incident suspects, and what it knows of the transport before the ranks gave up."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from tracecore.facts.network import LinkState, PortState
from tracecore.facts.process import ExitStatus
from tracecore.incidents import whereabouts
from tracecore.incidents.building import _suspects, _transport
from tracecore.incidents.footprint import Footprint, footprint_of
from tracecore.incidents.run import JobAttempt, JobRun
from tracecore.patterns.contract import Suspects, rfc3339
from tracecore.signals.bundle.placement import Placement
from tracecore.signals.record import Source

sys.path.insert(0, str(Path(__file__).resolve().parent))
from made_verdicts import SECOND, T0, seen, verdict, watchdog


def touch(name: str = "worker_crash", ranks: tuple[int, ...] = (), at: float = 10, **fields: Any) -> Footprint:
    return footprint_of(verdict(name, at, seen(at, path="told.log"), ranks=ranks, fields=fields), "", 0)


def attempt(ranks: int = 0, **fields: Any) -> JobAttempt:
    return JobAttempt(**{"job": "", "number": 0, "ranks": set(range(ranks)), **fields})


def status(path: str) -> ExitStatus:
    return ExitStatus(time=T0, source=Source(path), exit_code=1)


def suspected(
    root: Footprint,
    known: JobAttempt | None,
    *,
    ranks: tuple[int, ...] = (),
    nodes: tuple[str, ...] = (),
    pods: tuple[str, ...] = (),
    local: object = None,
    symptoms: tuple[Footprint, ...] = (),
) -> tuple[int, ...]:
    said: Any = SimpleNamespace(
        suspects=lambda: Suspects(ranks=ranks, nodes=nodes, pods=pods),
        fields=lambda: {"gen_ai.training.local_rank": local},
    )
    return _suspects(root, said, symptoms, known, JobRun(attempts={}, end=0)).ranks


def test_the_ranks_that_the_root_names() -> None:
    assert suspected(touch(), attempt(4), ranks=(1, 2)) == (1, 2)
    assert suspected(touch(), None, ranks=(1, 2)) == (1, 2)
    assert suspected(touch("planned_stop"), attempt(4), ranks=(1,)) == ()


def test_all_ranks_are_nobody_in_particular() -> None:
    assert suspected(touch(), attempt(4), ranks=(0, 1, 2, 3)) == ()
    assert suspected(touch(), attempt(ranks=0, progress=1), ranks=(0, 1)) == (0, 1)
    assert suspected(touch(), JobAttempt(job="", number=0, ranks={3}), ranks=(0, 1, 2)) == (0, 1, 2)
    assert suspected(touch(told=2), attempt(4), ranks=(0, 1, 2, 3)) == (0, 1, 2, 3)


def test_of_a_checkpoint_the_lowest_rank_writes() -> None:
    assert suspected(touch("checkpointer_hang"), attempt(4), ranks=(0, 1, 2, 3)) == (0,)
    assert suspected(touch("checkpointer_hang"), attempt(4), ranks=(1, 2)) == (1, 2)
    assert suspected(touch("checkpointer_hang"), attempt(1, progress=1), ranks=(0,)) == (0,)


@pytest.mark.parametrize(
    ("known", "ranks"),
    [
        (attempt(1), (0,)),
        (attempt(1, progress=1), (0,)),
        (attempt(1, ended={0: status("exit_codes.json")}), ()),
        (attempt(1, ended={0: status("told.log")}), (0,)),
    ],
)
def test_a_lone_rank_is_the_whole_run_where_a_list_of_ends_has_no_other(
    known: JobAttempt, ranks: tuple[int, ...]
) -> None:
    assert suspected(touch(), known, ranks=(0,)) == ranks


def test_ranks_are_known_by_where_they_run() -> None:
    known = attempt(4, places={"n1": {2, 1}, "p": {3}})
    assert suspected(touch(), known, nodes=("n1",)) == (1, 2)
    assert suspected(touch(), known, nodes=("n1",), pods=("p",)) == (3,)
    assert suspected(touch(), known, ranks=(0,), nodes=("n1",)) == (0,)
    assert suspected(touch(), known, nodes=("n2",)) == ()
    assert suspected(touch(), None, nodes=("n1",)) == ()


@pytest.mark.parametrize(
    ("nodes", "lost", "ranks"),
    [
        ({0: "a", 1: "a", 4: "c", 5: "c"}, "b", (2, 3)),
        ({0: "a", 1: "a", 4: "c", 5: "c"}, "c.dc", ()),  # its ranks are known, and no others
        ({0: "a", 1: "a", 5: "c", 6: "c"}, "b", ()),  # another machine may have one of the three
        ({0: "a", 2: "a", 4: "c", 5: "c"}, "b", ()),  # they do not follow each other
        ({0: "a", 1: "a"}, "b", ()),
        ({}, "b", ()),
    ],
)
def test_the_ranks_of_a_lost_machine_are_those_that_no_other_has(
    nodes: dict[int, str], lost: str, ranks: tuple[int, ...]
) -> None:
    run = JobRun(attempts={}, end=0, placement=Placement(nodes=nodes))
    suspects = Suspects(nodes=(lost,))
    assert whereabouts.ranks_at(touch("host_lost"), suspects, attempt(6), run) == ranks
    assert whereabouts.ranks_at(touch("pcie_aer"), suspects, attempt(6), run) == ()


def test_pods_on_a_lost_machine_are_those_of_the_job() -> None:
    run = JobRun(attempts={}, end=0, pod_nodes={"t-0": "a", "t-1": "b", "probe-1": "b"}, full_names={"t-1": "ml/t-1"})
    known = attempt(pods={"ml/t-0"})
    assert whereabouts.pods_on(touch("host_lost"), ("b",), known, run) == ("ml/t-1",)
    assert whereabouts.pods_on(touch("gpu_fault"), ("b",), known, run) == ()
    assert whereabouts.pods_on(touch("host_lost"), ("b",), attempt(), run) == ()


def test_a_local_rank_counts_where_no_rank_is_known() -> None:
    assert suspected(touch(), attempt(), local=2) == (2,)
    assert suspected(touch(), attempt(4), local=2) == ()
    assert suspected(touch(), attempt(), local="2") == ()
    assert suspected(touch(), attempt(hosts={"a"}), local=2) == (2,)
    assert suspected(touch(), attempt(hosts={"a", "b"}), local=2) == ()
    assert suspected(touch(), None, local=2) == ()
    assert suspected(touch(), attempt(), ranks=(1,), local=2) == (1,)


def test_transport_trouble_counts_that_came_before_the_ranks_gave_up() -> None:
    def trouble(at: float, approximate: bool = False) -> Any:
        words = f"link down at {at:g}"
        return SimpleNamespace(time=T0 + int(at * SECOND), approximate=approximate, describe=lambda: words)

    hang = footprint_of(verdict("nccl_hang", 10, watchdog(10, 1)), "", 0)

    def told(*facts: Any, root: Footprint = hang) -> list[str]:
        run: Any = SimpleNamespace(transport=list(facts))
        return [words.removeprefix("link down at ").partition(",")[0] for words in _transport(root, run)]

    assert told(trouble(9), trouble(10), trouble(11)) == ["9", "10"]
    assert told(trouble(11), root=touch("nccl_hang")) == ["11"], "nobody told the ranks that they hang"
    assert told(trouble(11, approximate=True)) == ["11"]
    assert told(*(trouble(at) for at in (1, 2, 3, 4))) == ["2", "3", "4"]
    assert told(trouble(1), trouble(1)) == ["1"]


def test_transport_trouble_says_when_and_what_a_port_became() -> None:
    def port(at: float, state: int, path: str = "dmesg.txt", **more: Any) -> PortState:
        source = Source(path, 0, 1, 1)
        return PortState(time=T0 + int(at * SECOND), source=source, device="mlx5_2", port=1, state=state, **more)

    def link(at: float) -> LinkState:
        return LinkState(time=T0 + int(at * SECOND), source=Source("syslog", 0, 1, 1), interface="ib5", up=False)

    hang = footprint_of(verdict("nccl_hang", 10, watchdog(10, 1)), "", 0)

    def told(*facts: Any) -> list[str]:
        run: Any = SimpleNamespace(transport=list(facts))
        return list(_transport(hang, run))

    start = rfc3339(T0 + SECOND)
    assert told(port(1, 1)) == [f"port mlx5_2/1 is Down, at {start}"]
    assert told(port(0, 4), port(1, 1), port(2, 1)) == [f"port mlx5_2/1 is Down since {start}"]
    assert told(port(-1, 1), port(0, 4), port(1, 1)) == [f"port mlx5_2/1 is Down since {start}, its last of 2 changes"]
    looks = [port(1, 1, "a/1.txt", approximate=True, node="n1"), port(1, 4, "a/2.txt", approximate=True, node="n1")]
    assert told(*looks) == ["port mlx5_2/1 on n1 is Down in 1.txt, Active in 2.txt"]
    assert told(*looks, port(1, 1, "a/2.txt", approximate=True, node="n1")) == [
        "port mlx5_2/1 is Down on n1 (it changed 2 times, at times that are not known)"
    ]
    interface = msgspec.structs.replace(port(1, 1), device="ib5")
    assert told(link(1), interface) == [f"port ib5 is Down, at {start}"], "an interface and its port are one"
    assert told(link(1)) == [f"link of ib5 is down, at {start}"]
