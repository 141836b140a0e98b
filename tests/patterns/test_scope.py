"""Which facts are about the same thing."""

from __future__ import annotations

import pytest

from tracecore.engine.window import FactWindow
from tracecore.facts.gpu import GpuLost, Xid
from tracecore.patterns.contract import Key
from tracecore.patterns.scope import (
    attempt_of,
    can_join,
    gpu_keys,
    job_keys,
    meet,
    namespace,
    pod_fields,
    pod_name,
    slack,
)
from tracecore.signals.record import Source


def xid(node: str | None = None, time: int = 1, **more: object) -> Xid:
    return Xid(**{"time": time, "source": Source("kern.log", time), "node": node, "gpu": "3b", "code": 79, **more})


@pytest.mark.parametrize(
    ("key", "nodes", "found"),
    [
        (("n1", "3b"), ("n1", "n1"), True),
        (("", "3b"), (None, None), True),
        (("", "3b"), (None, "n1"), True),
        (("", "3b"), (None, "n1", "n1"), True),
        # Two nodes would have to be one.
        (("", "3b"), (None, "n1", "n2"), False),
        # The window of their node says it.
        (("", "3b"), ("n1", "n1"), False),
        (("", "3b"), ("n1", "n2"), False),
    ],
)
def test_facts_meet_where_they_can_be_about_one_gpu(key: Key, nodes: tuple[str | None, ...], found: bool) -> None:
    assert meet(FactWindow(key, 1), *map(xid, nodes)) is found


@pytest.mark.parametrize(
    ("key", "nodes", "found"),
    [(("n1", "3b"), ("n1",), True), (("", "3b"), ("n1", "n2"), False), (("", "3b"), ("n1", None), True)],
)
def test_the_shared_window_speaks_only_where_a_node_is_not_known(
    key: Key, nodes: tuple[str | None, ...], found: bool
) -> None:
    window = FactWindow(key, 1)
    for time, node in enumerate(nodes):
        window.add(xid(node, time))
    assert can_join(window, GpuLost, Xid) is found
    assert can_join(window, GpuLost) is bool(key[0])


def test_windows_by_gpu() -> None:
    assert gpu_keys(xid("n1")) == (("n1", "3b"), ("", "3b"))
    assert gpu_keys(xid()) == (("", "3b"),)
    assert gpu_keys(xid("n1", gpu=None)) == ()


def test_windows_by_job() -> None:
    assert job_keys(xid(job="j", pod="ns/p")) == (("j", ""),)
    assert job_keys(xid(pod="ns/p")) == (("", "ns"),)
    assert job_keys(xid()) == (("", ""),)
    assert [attempt_of(xid(job="j", attempt=number)) for number in (0, 1, 2)] == ["j", "j#1", "j#2"]
    assert [attempt_of(xid(attempt=number)) for number in (0, 1)] == ["", "#1"]


def test_clocks_differ_between_two_nodes_only() -> None:
    assert slack(xid("n1"), xid("n2"), 7) == 7
    assert [slack(xid(one), xid(other), 7) for one, other in (("n1", "n1"), ("n1", None), (None, "n1"))] == [0, 0, 0]


def test_the_parts_of_a_pods_name() -> None:
    assert (namespace("ns/p"), pod_name("ns/p"), pod_name("p")) == ("ns", "p", "p")
    assert pod_fields("ns/p") == {"k8s.pod.name": "p", "k8s.namespace.name": "ns"}
    assert pod_fields(None) == pod_fields("") == {}
