"""A node that fell silent, told from one that has nothing to say."""

from __future__ import annotations

import random
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from tracecore.facts.fact import Fact
from tracecore.facts.nccl import NcclError
from tracecore.facts.process import ExitStatus
from tracecore.facts.silence import SilenceBridge, silences
from tracecore.facts.stop import PlannedStop
from tracecore.facts.training import Progress, RunFinished, StepStalled
from tracecore.signals.record import Source

S = 1_000_000_000
T0 = 1_700_000_000 * S


def at(seconds: float) -> int:
    return T0 + int(seconds * S)


def step(seconds: float, node: str, **more: Any) -> Progress:
    return Progress(time=at(seconds), source=Source(node, int(seconds)), node=node, job="j", step=int(seconds), **more)


def error(seconds: float, node: str) -> NcclError:
    return NcclError(time=at(seconds), source=Source(node, int(seconds)), node=node, job="j", error="remote_error")


def training(until: int, *nodes: str) -> list[Fact]:
    return [step(t, node) for t in range(0, until, 10) for node in nodes]


def complaints(start: int, until: int, *nodes: str) -> list[Fact]:
    return [error(t, node) for t in range(start, until, 10) for node in nodes]


def test_a_node_stops_while_its_peers_complain() -> None:
    facts = [*training(100, "a", "b", "c"), *complaints(100, 200, "a", "b")]
    (found,) = silences(facts, at(300))
    assert (found.node, found.job, found.time, found.silent_s, found.peers) == ("c", "j", at(90), 100.0, 2)
    assert "2 peers" in found.describe()


def test_the_threshold_on_both_sides() -> None:
    base = training(100, "a", "b")
    assert len(silences([*base, *complaints(100, 141, "a"), error(150, "a")], at(300))) == 1
    assert silences([*base, *complaints(100, 141, "a"), error(149, "a")], at(300)) == []


def test_logging_from_one_node_alone_is_normal() -> None:
    assert silences([step(0, "b"), *training(600, "a")], at(700)) == []


def test_a_hang_that_silences_everybody_blames_nobody() -> None:
    assert silences([*training(100, "a", "b"), error(700, "a"), error(705, "b")], at(800)) == []
    assert silences([*training(100, "a", "b"), error(700, "a")], at(701)) == []


def test_an_end_in_order_is_no_silence() -> None:
    lost = [*training(100, "a", "b"), *complaints(100, 200, "a")]
    assert len(silences(lost, at(300))) == 1
    source = Source("x", 1)
    assert silences([*lost, RunFinished(time=at(95), source=source, node="a", job="j")], at(300)) == []
    assert silences([*lost, PlannedStop(time=at(95), source=source, reason="drain", node="b", job="j")], at(300)) == []
    assert silences([*lost, ExitStatus(time=at(95), source=source, exit_code=1, node="b", job="j")], at(300)) == []
    # The survivors are told to stop long after the node was lost.
    assert len(silences([*lost, PlannedStop(time=at(190), source=source, reason="sigterm", job="j")], at(300))) == 1


def test_a_restart_without_the_node_does_not_excuse_it() -> None:
    lost = [*training(100, "a", "b"), *complaints(100, 200, "a")]
    again = [step(t, "a", attempt=1) for t in range(200, 300, 10)]
    assert [f.node for f in silences([*lost, *again], at(300))] == ["b"]


def test_a_node_that_a_restart_left_out_is_silent_only_until_then() -> None:
    lost = [*training(100, "a", "b"), *complaints(100, 200, "a")]
    bridge = SilenceBridge()
    for fact in [*lost, *(step(t, "a", attempt=1) for t in range(200, 3000, 10))]:
        bridge.observe(fact)
    (found,) = bridge.tick(at(3000))
    assert found.silent_s == 110.0
    for fact in [step(t, "a", attempt=1) for t in range(3000, 9000, 10)]:
        bridge.observe(fact)
    assert bridge.tick(at(9000)) == []


def test_a_healthy_node_that_a_restart_left_out_is_not_silent() -> None:
    first = [*training(100, "a", "b"), *complaints(100, 290, "a", "b")]
    again = [step(t, "a", attempt=1) for t in range(300, 3000, 10)]
    assert silences([*first, *again], at(3000)) == []


def test_jobs_and_inferred_times_do_not_mix() -> None:
    other = [Progress(time=at(t), source=Source("z", t), node="z", job="k", step=t) for t in range(0, 500, 10)]
    assert silences([*training(100, "a"), *other], at(600)) == []
    approximate = [step(t, "b", approximate=True) for t in range(0, 50, 10)]
    assert silences([*approximate, *training(100, "a"), *complaints(100, 300, "a")], at(600)) == []


def test_lines_that_make_no_fact_are_signs_of_life() -> None:
    bridge = SilenceBridge()
    for fact in [*training(100, "a", "b"), *complaints(100, 200, "a")]:
        bridge.observe(fact)
    bridge.heard("b", at(180), Source("b", 9), job="j")
    assert bridge.tick(at(300)) == []


def test_a_silence_is_stated_again_only_when_it_grew() -> None:
    bridge = SilenceBridge()
    for fact in [*training(100, "a", "b"), *complaints(100, 200, "a")]:
        bridge.observe(fact)
    (first,) = bridge.tick(at(300))
    assert bridge.tick(at(310)) == []
    for fact in complaints(200, 250, "a"):
        bridge.observe(fact)
    (second,) = bridge.tick(at(320))
    assert second.uid == first.uid
    assert second.silent_s > first.silent_s


@given(seed=st.integers(0, 500), lost=st.sampled_from("abc"), until=st.integers(60, 200))
def test_order_does_not_matter(seed: int, lost: str, until: int) -> None:
    others = [n for n in "abc" if n != lost]
    facts = [*training(until, *"abc"), *complaints(until, until + 100, *others)]
    assert silences(random.Random(seed).sample(facts, len(facts)), at(500)) == silences(facts, at(500))


def test_a_stall_is_no_word_of_the_node_it_is_told_of() -> None:
    facts: list[Fact] = [*training(100, "a", "b")]
    for second in range(100, 200, 10):
        source = Source("a", second)
        facts.append(StepStalled(time=at(second), source=source, node="a", job="j", no_progress_s=60.0))
    assert silences(facts, at(300)) == []
