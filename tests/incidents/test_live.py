"""Live incidents: the same as an offline diagnosis says, told once, updated, resolved."""

from __future__ import annotations

import random
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tracecore.diagnose.offline import PATIENCE, diagnose
from tracecore.engine.emission import Emission
from tracecore.engine.engine import LATENESS, Engine
from tracecore.facts.fact import Fact
from tracecore.facts.process import ExitStatus
from tracecore.facts.training import Progress
from tracecore.incidents.live import LiveIncidents, LiveLimits, Update
from tracecore.patterns import catalogue
from tracecore.signals.record import Source

sys.path.insert(0, str(Path(__file__).resolve().parent))
from made_verdicts import SECOND, T0, ended, seen, steps, verdict, watchdog

INCIDENTS = Path(__file__).resolve().parents[2] / "examples" / "incidents"
RECORDED = sorted(path.name for path in INCIDENTS.iterdir() if (path / "truth.json").exists())


def essence(incident: dict[str, Any]) -> dict[str, Any]:
    """What an incident says; which layers were read is known to a bundle, not to a stream."""
    return {
        name: incident[name] for name in ("id", "status", "headline", "root_cause", "suspects", "explains", "edges")
    }


def played(facts: Sequence[Fact], end: int, seed: int) -> LiveIncidents:
    """Facts as they arrive: late by up to the lateness bound, in batches of any size, the clock running."""
    chance = random.Random(seed)
    arrivals = sorted(
        ((fact.end + chance.randrange(LATENESS), n, fact) for n, fact in enumerate(facts)), key=lambda a: a[:2]
    )
    engine, live = Engine(catalogue(), strict=True), LiveIncidents()
    at = 0
    while at < len(arrivals):
        batch = arrivals[at : at + chance.randint(1, 40)]
        at += len(batch)
        now = min(batch[-1][0], end)
        some = [fact for _, _, fact in batch]
        live.take(some, now)
        engine.add(some)
        live.hear(engine.advance(now), now)
        if chance.random() < 0.3:
            live.advance(now)
    live.hear(engine.close(end), end)
    live.advance(end)
    live.advance(end + live.settle)
    return live


def found(live: LiveIncidents) -> list[dict[str, Any]]:
    return [
        essence(known.incident.document())
        for job in live._jobs.values()
        for known in job.incidents.values()
        if known.state != "resolved"
    ]


@pytest.mark.parametrize("scenario", RECORDED)
def test_live_ends_with_what_an_offline_diagnosis_says(scenario: str) -> None:
    diagnosis = diagnose([INCIDENTS / scenario])
    facts = diagnosis.facts
    watched = PATIENCE if any(isinstance(fact, ExitStatus) and fact.alive for fact in facts) else 0
    end = max(diagnosis.bundle.clock.latest, *(fact.end for fact in facts)) + watched if facts else 0
    # A stop that was asked for opens nothing live.
    expected = [
        essence(incident.document())
        for incident in diagnosis.incidents
        if incident.root is None or incident.root.verdict.pattern_name != "planned_stop"
    ]
    for seed in (1, 2):
        assert sorted(map(repr, found(played(facts, end, seed)))) == sorted(map(repr, expected))


class Story:
    """A live stream, by seconds."""

    def __init__(self, **options: Any) -> None:
        self.live = LiveIncidents(**options)
        self.told: list[Update] = []

    def at(self, second: float, *facts: Fact, said: Sequence[Emission] = ()) -> list[Update]:
        now = T0 + int(second * SECOND)
        self.live.take(facts, now)
        self.live.hear(said, now)
        updates = self.live.advance(now)
        self.told += updates
        return updates


def crash(at: float, rank: int = 3, **identity: Any) -> Emission:
    return verdict("worker_crash", at, seen(at, rank=rank, **identity), ranks=[rank])


def hang(at: float, **identity: Any) -> Emission:
    facts = [msgspec.structs.replace(watchdog(at, rank), **identity) for rank in (0, 1)]
    return verdict("nccl_hang", at, *facts, ranks=[3], hanging_ranks=[0, 1])


def cleared(emission: Emission) -> Emission:
    return msgspec.structs.replace(emission, status="cleared", revision=emission.revision + 1)


def states(updates: Sequence[Update]) -> list[tuple[int, str, str]]:
    return [(u.revision, u.state, u.incident.root.verdict.pattern_name if u.incident.root else "") for u in updates]


def test_symptoms_wait_for_their_cause_and_one_incident_is_told() -> None:
    story = Story(settle=10 * SECOND)
    assert story.at(40, *steps(1, 2), said=[hang(40)]) == []
    assert story.at(45, said=[crash(30)]) == []
    assert states(story.at(50)) == [(1, "diagnosed", "worker_crash")]
    assert story.at(51) == []
    assert len(story.told) == 1


def test_a_reclassification_is_a_revision_of_the_same_incident() -> None:
    story = Story()
    story.at(40, *steps(1, 2), said=[hang(40)])
    first = story.at(50)
    assert states(first) == [(1, "diagnosed", "nccl_hang")]
    second = story.at(55, said=[crash(30)])
    assert states(second) == [(2, "diagnosed", "worker_crash")]
    assert first[0].id == second[0].id
    assert second[0].reason == "there is new evidence"


def test_a_stall_opens_an_incident_that_learns_its_cause() -> None:
    story = Story()
    story.at(100, *steps(1, 2), *ended({0: 1, 3: 1}))
    assert states(story.at(110)) == [(1, "open", "")]
    assert states(story.at(115, said=[crash(90)])) == [(2, "diagnosed", "worker_crash")]
    assert len({update.id for update in story.told}) == 1


def test_a_cause_that_nothing_can_outrank_is_told_sooner() -> None:
    story = Story(settle=10 * SECOND)
    kill = verdict("host_oom", 30, seen(30, node="n1", pid=7, rank=0))
    story.at(31, *steps(1, 2), said=[kill])
    assert story.at(32) == []
    assert states(story.at(33)) == [(1, "diagnosed", "host_oom")]


def test_an_incident_is_resolved_when_the_job_makes_steps_again() -> None:
    story = Story()
    story.at(10, *steps(1, 2), said=[crash(9)])
    assert states(story.at(20)) == [(1, "diagnosed", "worker_crash")]
    assert story.at(40, *steps(30, attempt=1)) == []
    (resolved,) = story.at(100, *steps(95, attempt=1))
    assert (resolved.state, resolved.reason, resolved.revision) == ("resolved", "the job makes steps again", 2)
    assert resolved.incident.headline == "worker_crash of [3]"
    assert story.at(200, *steps(190, attempt=1)) == []


def test_a_failure_that_was_over_before_it_could_be_told_is_not_told() -> None:
    story = Story()
    story.at(10, *steps(1, 2), said=[crash(9)])
    story.at(11, *steps(80))
    assert story.at(100) == []


def test_a_new_failure_of_the_same_episode_reopens_it_under_its_id() -> None:
    story = Story()
    story.at(10, *steps(1, 2), said=[crash(9)])
    story.at(20)
    story.at(100, *steps(95))
    (update,) = story.at(200, said=[crash(150, rank=2), hang(190)])
    assert (update.state, update.reason, update.revision) == ("diagnosed", "reopened", 3)
    assert len({update.id for update in story.told}) == 1


def test_a_verdict_that_is_taken_back_resolves_what_rested_on_it() -> None:
    story = Story()
    story.at(40, *steps(1, 2), said=[hang(40)])
    story.at(50)
    (update,) = story.at(60, said=[cleared(hang(40))])
    assert (update.state, update.reason) == ("resolved", "what it rested on no longer holds")
    quiet = Story()
    quiet.at(40, *steps(1, 2), said=[hang(40)])
    quiet.at(45, said=[cleared(hang(40))])
    assert quiet.at(60) == []


def test_a_planned_stop_opens_nothing() -> None:
    story = Story()
    told = verdict("worker_crash", 12, seen(12, rank=0), ranks=[0], tracecore__process__signal="SIGTERM")
    story.at(12, *steps(1, 2), said=[verdict("planned_stop", 10), told])
    assert story.at(60) == []


def test_two_jobs_never_mix() -> None:
    story = Story()
    facts = [msgspec.structs.replace(fact, job=job, node=f"n-{job}") for job in "ab" for fact in steps(1, 2)]
    fault = verdict("gpu_fault", 8, seen(8, node="n-b", gpu="0000:3b:00.0"))
    story.at(10, *facts, said=[crash(9, job="a"), crash(9, job="b"), fault])
    updates = {update.incident.job: update for update in story.at(30)}
    assert {job: states([update]) for job, update in updates.items()} == {
        "a": [(1, "diagnosed", "worker_crash")],
        "b": [(1, "diagnosed", "gpu_fault")],
    }
    assert updates["a"].id != updates["b"].id


def test_what_was_said_of_a_node_belongs_to_the_job_that_is_found_there() -> None:
    story = Story()
    fault = verdict("gpu_fault", 8, seen(8, node="n1", gpu="0000:3b:00.0"))
    story.at(10, said=[fault])
    (alone,) = story.at(25)
    assert (alone.state, alone.incident.job) == ("diagnosed", "")
    moved = story.at(
        30, *(msgspec.structs.replace(fact, job="a", node="n1") for fact in (*steps(1, 2), *ended({0: 1})))
    )
    assert [(u.id, u.state, u.reason) for u in moved] == [(alone.id, "resolved", "it belongs to job a")]
    (update,) = story.at(45)
    assert (update.state, update.incident.job) == ("diagnosed", "a")


def test_two_nodes_that_fail_in_the_same_second_are_two_incidents() -> None:
    story = Story()
    faults = [verdict("gpu_fault", 8, seen(8, node=node, gpu="0000:3b:00.0")) for node in ("n1", "n2")]
    story.at(10, said=faults)
    assert len({update.id for update in story.at(30)}) == 2


def test_an_incident_can_be_resolved_by_hand_and_stays_so() -> None:
    story = Story()
    story.at(40, *steps(1, 2), said=[hang(40)])
    (update,) = story.at(50)
    closed = story.live.close(update.id, T0 + 60 * SECOND)
    assert closed is not None
    assert (closed.state, closed.reason) == ("resolved", "resolved by hand")
    assert story.live.close(update.id, T0 + 61 * SECOND) is None
    assert story.at(70) == []


def test_a_resolved_incident_is_forgotten_after_the_window_in_which_it_can_reopen() -> None:
    story = Story(reopen=100 * SECOND)
    story.at(10, *steps(1, 2), said=[crash(9)])
    story.at(20)
    story.at(100, *steps(95))
    story.at(201)
    assert [job.incidents for job in story.live._jobs.values()] == [{}]
    assert [len(job.verdicts) for job in story.live._jobs.values()] == [0]


def test_a_job_without_end_is_bounded() -> None:
    story = Story(limits=LiveLimits(jobs=8, facts=50, verdicts=5))
    for n in range(200):
        at = T0 + n * SECOND
        job = f"job-{n % 20}" if n % 2 else "busy"
        many: list[Fact] = [Progress(time=at, source=Source("a", n), step=n, rank=n % 4, job=job, node=f"n{n}")]
        story.at(n, *many, seen(n, rank=0, job=job), said=[crash(n, job=job)] if job == "busy" else ())
    held = story.live._jobs
    assert len(held) <= 8
    assert all(len(job.facts) <= 50 and len(job.verdicts) <= 5 and len(job.progress) <= 4 for job in held.values())
    assert {"jobs", "facts", "verdicts"} <= set(story.live.dropped)
    # Where a forgotten job was seen is forgotten, too.
    assert set().union(*story.live._where.values()) <= set(held)


def test_every_update_follows_the_published_schema() -> None:
    story = Story()
    story.at(40, *steps(1, 2), said=[hang(40)])
    (update,) = story.at(50)
    document = update.document()
    assert document["state"] == "diagnosed"
    assert document["revision"] == 1
    assert {name: document[name] for name in update.incident.document()} == update.incident.document()


def test_what_named_no_job_belongs_to_the_first_that_has_a_name() -> None:
    story = Story()
    story.at(40, *steps(1, 2), said=[hang(40)])
    (alone,) = story.at(50)
    assert (alone.incident.job, alone.state) == ("", "diagnosed")
    named = msgspec.structs.replace(ended({0: 1})[0], job="a", time=T0 + 60 * SECOND)
    (moved, *_) = story.at(60, named)
    assert (moved.id, moved.state, moved.reason) == (alone.id, "resolved", "it belongs to job a")
    assert moved.at == T0 + 60 * SECOND
    (update,) = story.at(75)
    assert (update.incident.job, update.state) == ("a", "diagnosed")
