"""The kernel's lines about one kill, and the kill that another's report speaks of."""

from __future__ import annotations

from typing import Any

import pytest

from tracecore.facts.memory import MemoryKillReport, OomKill
from tracecore.patterns.host_oom.detector import BLOCK, SHOWN, HostOom, _blocks, _Episode
from tracecore.signals.record import Source

START = 1_794_700_000_000_000_000
WINDOW = HostOom().config.window


def kill(at: int, pid: int | None = None, cgroup: str | None = None, last: int | None = None, **more: Any) -> OomKill:
    end = None if last is None else START + last
    return OomKill(
        time=START + at, source=Source("kern.log", at), node="n1", victim_pid=pid, cgroup=cgroup, last_time=end, **more
    )


@pytest.mark.parametrize(
    ("kills", "blocks"),
    [
        ([], []),
        ([kill(0, 7), kill(BLOCK, 7)], [[0, BLOCK]]),
        ([kill(0, 7), kill(BLOCK + 1, 7)], [[0], [BLOCK + 1]]),
        ([kill(0, 7, last=5), kill(BLOCK + 5, 7)], [[0, BLOCK + 5]]),
        # Some lines name the process, some the cgroup, and some neither.
        ([kill(0, 7), kill(1, None, "c"), kill(2)], [[0, 1, 2]]),
        ([kill(0), kill(1, 7), kill(2, 8)], [[0, 1], [2]]),
        ([kill(0), kill(1, None, "c"), kill(2, None, "d")], [[0, 1], [2]]),
        ([kill(0, 7, "c"), kill(1, 7, "d")], [[0], [1]]),
        # Two kills that are told at the same time.
        ([kill(0, 7), kill(1, 8), kill(2, 7), kill(3, 8)], [[0, 2], [1, 3]]),
    ],
)
def test_lines_about_one_kill_are_together(kills: list[OomKill], blocks: list[list[int]]) -> None:
    assert [[line.time - START for line in block.lines] for block in _blocks(kills)] == blocks


@pytest.mark.parametrize(("before", "apart"), [(SHOWN, False), (SHOWN + 1, True)])
def test_only_the_last_kills_are_looked_at(before: int, apart: bool) -> None:
    kills = [kill(n, 100 + n) for n in range(before)]
    assert (len(_blocks([*kills, kill(before, 100)])) > before) is apart


def episode(*kills: OomKill) -> _Episode:
    found = _Episode(kills[0].time)
    for one in kills:
        found.kill(one)
    return found


def report(at: int = 0, last: int | None = None, **fields: Any) -> MemoryKillReport:
    end = None if last is None else START + last
    return MemoryKillReport(
        time=START + at, source=Source("k8s", 1), node="n1", reporter="kubernetes", last_time=end, **fields
    )


@pytest.mark.parametrize(
    ("kills", "told", "pid", "nearest"),
    [
        ([], report(), None, None),
        ([kill(-WINDOW)], report(), None, 0),
        ([kill(-WINDOW - 1)], report(), None, None),
        ([kill(-WINDOW - 1, last=-WINDOW)], report(), None, 0),
        ([kill(WINDOW)], report(), None, 0),
        ([kill(WINDOW + 1)], report(), None, None),
        ([kill(WINDOW + 1)], report(last=1), None, 0),
        # The nearest in time, the first of two as near.
        ([kill(-5), kill(4)], report(), None, 1),
        ([kill(-5), kill(5)], report(), None, 0),
        # The one of its process, else that of its pod.
        ([kill(-5, 7), kill(4, 8)], report(), 7, 0),
        ([kill(-5, 7), kill(4, 8)], report(), 9, 1),
        ([kill(-5, pod_uid="u"), kill(4, pod_uid="v")], report(pod_uid="u"), None, 0),
        ([kill(-5), kill(4, pod_uid="v")], report(pod_uid="u"), None, 0),
        ([kill(-5, pod="a/p"), kill(4, pod="a/q")], report(pod="a/p"), None, 0),
        ([kill(4, pod="a/q")], report(pod="a/p"), None, None),
        ([kill(4, pod="a/q")], report(), None, 0),
        ([kill(4)], report(pod="a/p"), None, 0),
    ],
)
def test_the_kill_that_a_report_speaks_of(
    kills: list[OomKill], told: MemoryKillReport, pid: int | None, nearest: int | None
) -> None:
    episodes = [episode(one) for one in kills]
    found = HostOom()._nearest(episodes, told, pid)
    assert (None if found is None else episodes.index(found)) == nearest


def test_a_kill_of_two_pods_is_of_neither() -> None:
    both = episode(kill(0, pod="a/p"), kill(1, pod="a/q"))
    assert HostOom()._nearest([both], report(pod="a/p"), None) is None
    assert HostOom()._nearest([both], report(), None) is both
