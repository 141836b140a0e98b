"""Heartbeats: one for each job of a node, and one for the agent's own node while no job runs there."""

from __future__ import annotations

from tracecore.agent.processors.patterndetector.pulse import GONE, INTERVAL, Pulse

SECOND = 1_000_000_000


def places(pulse: Pulse, now: int) -> list[tuple[str | None, str | None]]:
    return [(beat.node, beat.job) for beat in pulse.beats(now)]


def test_a_node_beats_also_while_no_job_runs_there() -> None:
    pulse = Pulse(frozenset({"n1", "n1.example.com"}))
    assert places(pulse, SECOND) == [], "its name in records is not known yet"
    pulse.heard({"host.name": "n1"}, SECOND)
    # A gateway that reads another node's records does not speak for that node.
    pulse.heard({"host.name": "n2"}, SECOND)
    assert places(pulse, SECOND + INTERVAL) == [("n1", None)]
    pulse.heard({"host.name": "n1", "gen_ai.training.job_id": "a"}, SECOND + INTERVAL)
    assert places(pulse, SECOND + INTERVAL + 1) == [], "not due yet"
    assert places(pulse, SECOND + 2 * INTERVAL) == [("n1", "a")]
    assert places(pulse, SECOND + 2 * INTERVAL + GONE) == [("n1", None)]
