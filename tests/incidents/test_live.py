"""Live incidents: the same as an offline diagnosis says, told once, updated, resolved."""

from __future__ import annotations

import os
import random
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from tracecore.diagnose.offline import PATIENCE, diagnose
from tracecore.engine.emission import Emission
from tracecore.engine.engine import LATENESS, Engine
from tracecore.facts.fact import Fact
from tracecore.facts.gpu import AerError, Xid
from tracecore.facts.host import Heartbeat, HostEvent, SlurmState
from tracecore.facts.kubernetes import PodEvicted
from tracecore.facts.process import ExitStatus
from tracecore.facts.storage import StorageError
from tracecore.facts.training import NonFinite, Progress, RunFinished
from tracecore.incidents import node_trouble, pattern_groups
from tracecore.incidents import run as runs
from tracecore.incidents.arbitration import arbitrate
from tracecore.incidents.conclusion import conclude
from tracecore.incidents.incident import Incident
from tracecore.incidents.jobs import LiveLimits
from tracecore.incidents.lifecycle import FINAL_CAUSES, Memory, Update
from tracecore.incidents.live import LiveIncidents
from tracecore.patterns import catalogue
from tracecore.signals.record import LAYERS, Source

sys.path.insert(0, str(Path(__file__).resolve().parent))
from made_verdicts import ROLES, SECOND, T0, ended, seen, steps, verdict, watchdog

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
RECORDED = sorted(
    path.parent for folder in ("incidents", "incidents-2") for path in EXAMPLES.glob(f"{folder}/*/truth.json")
)
#: Other seeds play other arrival orders, batch sizes and restarts: `TRACECORE_LIVE_SEED=7 pytest …`.
SEED = int(os.environ.get("TRACECORE_LIVE_SEED", "1"))


def essence(incident: dict[str, Any]) -> dict[str, Any]:
    """What an incident says; which layers were read is known to a bundle, not to a stream."""
    return {
        name: incident[name] for name in ("id", "status", "headline", "root_cause", "suspects", "explains", "edges")
    }


class Receiver:
    """Somebody who is told: keeps the highest revision of each incident, as a server does."""

    def __init__(self) -> None:
        self.documents: dict[str, dict[str, Any]] = {}

    def hear(self, updates: Iterable[Update]) -> None:
        for update in updates:
            before = self.documents.get(update.id)
            expected = 1 if before is None else before["revision"] + 1
            assert update.revision == expected, "a revision was lost or told twice"
            self.documents[update.id] = update.document()

    def standing(self) -> list[dict[str, Any]]:
        return [essence(document) for document in self.documents.values() if document["state"] != "resolved"]


class Joiner:
    """The joining process. It can be killed at any time: facts and delivered updates are on disk, nothing else is."""

    def __init__(self, chance: random.Random, receiver: Receiver) -> None:
        self.chance = chance
        self.receiver = receiver
        self.stored: list[Fact] = []
        self.memories: dict[str, Memory] = {}
        self.restarts = 0
        self.start(0)

    def start(self, now: int) -> None:
        self.engine, self.live = Engine(catalogue(), strict=True), LiveIncidents()
        assert self.live.restore(self.memories.values(), now) == 0
        self.chance.shuffle(self.stored)
        self.live.take(self.stored)
        self.engine.add(self.stored)

    def restart(self, now: int) -> None:
        self.restarts += 1
        self.start(now)

    def step(self, facts: Sequence[Fact], now: int, *, last: bool = False) -> None:
        self.stored += facts
        self.live.take(facts)
        self.engine.add(facts)
        self.live.hear(self.engine.close(now) if last else self.engine.advance(now))
        self.tell(now)

    def tell(self, now: int) -> None:
        updates = self.live.advance(now)
        if updates and self.chance.random() < 0.2:
            return self.restart(now)  # killed before anything of it was delivered
        self.receiver.hear(updates)
        self.memories.update({update.id: update.memory for update in updates})


def played(facts: Sequence[Fact], end: int, seed: object, restarts: float = 0.0) -> tuple[LiveIncidents, Receiver]:
    """Facts as they arrive: late by up to the lateness bound, in batches of any size, the clock running.

    Args:
        restarts: how likely the joining process is killed and started again after a batch.
    """
    chance = random.Random(f"{SEED} {seed}")
    arrivals = sorted(
        ((fact.end + chance.randrange(LATENESS), n, fact) for n, fact in enumerate(facts)), key=lambda a: a[:2]
    )
    receiver = Receiver()
    joiner = Joiner(chance, receiver)
    largest = chance.choice((3, 40, 400) if len(facts) < 150 else (40, 400))
    at = now = 0
    while at < len(arrivals):
        batch = arrivals[at : at + chance.randint(1, largest)]
        at += len(batch)
        now = min(batch[-1][0], end)
        joiner.step([fact for _, _, fact in batch], now)
        if chance.random() < restarts and joiner.restarts < 4:
            joiner.restart(now)
    joiner.step([], end, last=True)
    for _ in range(8):  # beyond the settle time, and beyond that of details; deaths in between
        end += joiner.live.settle
        joiner.step([], end)
    return joiner.live, receiver


def found(live: LiveIncidents) -> list[dict[str, Any]]:
    return [
        essence(life.incident.document())
        for job in live._jobs
        for life in job.incidents.values()
        if life.state != "resolved" and life.incident is not None
    ]


def same(one: Iterable[dict[str, Any]], other: Iterable[dict[str, Any]]) -> bool:
    return sorted(map(repr, one)) == sorted(map(repr, other))


def opened(incidents: Iterable[Incident]) -> list[dict[str, Any]]:
    """Of an offline diagnosis what opens an incident live: a stop that was asked for opens none."""
    return [
        essence(incident.document())
        for incident in incidents
        if incident.root is None or incident.root.verdict.pattern_name != "planned_stop"
    ]


def without_id(incidents: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{name: value for name, value in incident.items() if name != "id"} for incident in incidents]


def concluded(facts: Sequence[Fact], end: int, until: int) -> list[dict[str, Any]]:
    """What an offline diagnosis says about these facts."""
    facts = sorted(facts, key=lambda fact: (fact.time, fact.uid, type(fact).__name__))
    conclusion = conclude(catalogue(), facts, end=end, until=until, layers=dict.fromkeys(LAYERS, 1))
    troubles = node_trouble.uncited(facts, conclusion.verdicts)
    for incident in conclusion.finding.incidents:
        node_trouble.attach(incident, troubles)
    return opened(conclusion.finding.incidents)


def untold(live: LiveIncidents) -> set[str]:
    """Failures that the job overcame before they were told."""
    return {life.id for job in live._jobs for life in job.incidents.values() if not life.revision}


@pytest.mark.parametrize("scenario", RECORDED, ids=lambda path: f"{path.parent.name}-{path.name}")
def test_live_ends_with_what_an_offline_diagnosis_says(scenario: Path) -> None:
    diagnosis = diagnose([scenario])
    facts = diagnosis.facts
    watched = PATIENCE if any(isinstance(fact, ExitStatus) and fact.alive for fact in facts) else 0
    end = max(diagnosis.bundle.clock.latest, *(fact.end for fact in facts)) if facts else 0
    expected = opened(diagnosis.incidents)
    live, receiver = played(facts, end + watched, 1)
    # A run without a name keeps the id under which it was told, also when its first line arrives later.
    assert same(without_id(found(live)), without_id(expected))
    told = [incident for incident in found(live) if incident["id"] not in untold(live)]
    assert same(receiver.standing(), told)
    # Restarts in the middle of an episode: the same ids go on, nothing is lost and nothing is told twice.
    named = attempts(facts, 1, 0)
    expected = concluded(named, end, end + watched) if named else []
    again, receiver = played(named, end + watched, 2, restarts=0.15)
    assert same(found(again), expected)
    assert same(receiver.standing(), [incident for incident in expected if incident["id"] not in untold(again)])


def attempts(facts: Sequence[Fact], number: int, apart: int) -> list[Fact]:
    """The same run again and again under one name, each time in other files and so much later."""
    return [
        msgspec.structs.replace(
            fact,
            job="job-7",
            attempt=fact.attempt + n,
            time=fact.time + n * apart,
            last_time=None if fact.last_time is None else fact.last_time + n * apart,
            source=msgspec.structs.replace(
                fact.source,
                path=f"{n}/{fact.source.path}",
                ident=f"{n}/{fact.source.ident}" if fact.source.ident else "",
            ),
        )
        for n in range(number)
        for fact in facts
    ]


@pytest.mark.parametrize("scenario", RECORDED[SEED % 4 :: 4], ids=lambda path: f"{path.parent.name}-{path.name}")
def test_two_attempts_in_one_stream_end_with_what_an_offline_diagnosis_says(scenario: Path) -> None:
    facts = diagnose([scenario]).facts
    if not facts:
        return
    begin, end = min(fact.time for fact in facts), max(fact.end for fact in facts)
    both = sorted(attempts(facts, 2, end - begin + 200 * SECOND), key=lambda fact: (fact.time, fact.uid))
    end = max(fact.end for fact in both)
    expected = concluded(both, end, end)
    live, receiver = played(both, end, 3, restarts=0.1)
    # A second attempt that made steps for long has resolved the incident of the first.
    over = {document["id"] for document in receiver.documents.values() if document["state"] == "resolved"}
    assert same(found(live), [incident for incident in expected if incident["id"] not in over])
    assert same(receiver.standing(), [incident for incident in expected if incident["id"] not in over | untold(live)])


class Story:
    """A live stream, by seconds."""

    def __init__(self, **options: Any) -> None:
        self.live = LiveIncidents(**options)
        self.told: list[Update] = []

    def at(self, second: float, *facts: Fact, said: Sequence[Emission] = ()) -> list[Update]:
        now = T0 + int(second * SECOND)
        self.live.take(facts)
        self.live.hear(said)
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


def test_an_update_has_a_timeline() -> None:
    """Whoever receives the update has no facts to draw one from."""
    story = Story()
    story.at(40, *steps(1, 2), said=[hang(40), crash(30)])
    document = story.at(60)[0].document()
    assert [row["role"] for row in document["timeline"]][:1] == ["cause"]
    assert {"cause", "symptom"} == {row["role"] for row in document["timeline"]}


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
    assert (resolved.state, resolved.reason, resolved.revision) == (
        "resolved",
        "the job was restarted and makes steps again",
        2,
    )
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
    assert story.at(200, said=[crash(150, rank=2), hang(190)]) == []
    (update,) = story.at(210)
    assert (update.state, update.reason, update.revision) == ("diagnosed", "reopened", 3)
    assert len({update.id for update in story.told}) == 1


def test_a_verdict_that_is_taken_back_resolves_what_rested_on_it() -> None:
    story = Story()
    story.at(40, *steps(1, 2), said=[hang(40)])
    story.at(50)
    (update,) = story.at(60, said=[cleared(hang(40))])
    assert (update.state, update.reason) == ("resolved", "the evidence it rested on no longer holds")
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


CAUSES = [
    name
    for name in pattern_groups.ORDER
    if ROLES.get(name, "cause") == "cause" and name not in pattern_groups.CONDITIONS
]


@pytest.mark.parametrize("name", [*CAUSES, "nccl_hang", "nccl_bootstrap"])
def test_only_causes_that_later_evidence_cannot_change_are_told_early(name: str) -> None:
    story = Story(settle=10 * SECOND)
    made = verdict(name, 30, seen(30, node="n1", pid=7, rank=0), ranks=[0])
    story.at(31, *steps(1, 2), said=[made])
    early = name in FINAL_CAUSES
    assert states(story.at(33)) == ([(1, "diagnosed", name)] if early else [])
    assert states(story.at(40.9)) == []
    assert states(story.at(41)) == ([] if early else [(1, "diagnosed", name)])


@pytest.mark.parametrize("other", CAUSES)
@pytest.mark.parametrize("final", sorted(FINAL_CAUSES - pattern_groups.CONDITIONS))
def test_a_cause_that_is_told_early_is_not_outranked_by_what_comes_later(final: str, other: str) -> None:
    if other == final:
        return
    story = Story(settle=10 * SECOND)
    story.at(31, *steps(1, 2), said=[verdict(final, 30, seen(30, node="n1", pid=7, rank=0), ranks=[0])])
    story.at(33)
    story.at(36, said=[verdict(other, 35, seen(35, node="n1", pid=7, rank=0), ranks=[0])])
    story.at(60)
    assert {pattern for _, _, pattern in states(story.told)} == {final}
    assert len({update.id for update in story.told}) == 1


@pytest.mark.parametrize("name", sorted({*pattern_groups.STANDS_ALONE} - pattern_groups.CONDITIONS - {"planned_stop"}))
def test_a_restart_that_makes_steps_resolves_also_what_hardware_did(name: str) -> None:
    story = Story()
    story.at(10, *steps(1, 2), said=[verdict(name, 9, seen(9, rank=0, gpu="0000:3b:00.0"), ranks=[0])])
    story.at(20)
    assert states(story.told) == [(1, "diagnosed", name)]
    assert [u.state for u in story.at(100, *steps(95))] == []  # the job goes on with ailing hardware
    (over,) = story.at(200, *steps(195, attempt=1))
    assert (over.state, over.reason) == ("resolved", "the job was restarted and makes steps again")


def test_a_condition_is_resolved_after_an_hour_of_steps_without_it() -> None:
    story = Story()
    story.at(10, *steps(1, 2), said=[verdict("straggler", 9, seen(9, rank=3), ranks=[3])])
    assert states(story.at(20)) == [(1, "diagnosed", "straggler")]
    assert story.at(3600, *steps(3600)) == []
    (over,) = story.at(3700, *steps(3699))
    assert (over.state, over.reason) == ("resolved", "the job made steps for an hour without new evidence")
    wrong = Story()
    wrong.at(10, *steps(1, 2), said=[verdict("silent_data_corruption", 9, seen(9, rank=3), ranks=[3])])
    wrong.at(20)
    assert wrong.at(9000, *steps(8999)) == []


@pytest.mark.parametrize("name", ["worker_crash", "straggler"])
def test_the_same_failure_long_after_it_was_resolved_is_another_incident(name: str) -> None:
    story = Story(reopen=100 * SECOND)
    for at in (10, 5000, 10_000):
        made = verdict(name, at, seen(at, rank=3), ranks=[3])
        story.at(at, *steps(at - 1), said=[made])
        story.at(at + 20)
        story.at(at + 3800, *steps(at + 3795))
        story.at(at + 4000)
    assert [(u.revision, u.state) for u in story.told] == 3 * [(1, "diagnosed"), (2, "resolved")]
    assert len({update.id for update in story.told}) == 3


def test_verdicts_of_a_forgotten_incident_do_not_open_it_again_after_a_restart() -> None:
    story = Story(reopen=100 * SECOND)
    old = verdict("gpu_fault", 10, seen(10, rank=3, job="a", node="n1"), ranks=[3])
    named = [msgspec.structs.replace(fact, job="a") for fact in (*steps(1, 2), *steps(95, attempt=1))]
    story.at(10, *named[:-2], said=[old])
    story.at(20)
    story.at(100, *named)
    memories = [update.memory for update in story.told]
    again = Story(reopen=100 * SECOND)
    again.live.restore([memories[-1]], T0 + 300 * SECOND)
    again.at(300, *named, said=[old])
    assert again.at(400) == []
    fresh = verdict("gpu_fault", 390, seen(390, rank=3, job="a", node="n1", attempt=1), ranks=[3])
    again.at(400, said=[fresh])
    (update,) = again.at(420)
    assert update.id != memories[0].id


def test_details_alone_are_told_together() -> None:
    story = Story()
    story.at(40, *steps(1, 2), said=[hang(40)])
    assert len(story.at(50)) == 1
    for second in range(51, 100):
        story.at(second, said=[hang(second)])
    assert len(story.told) == 1
    assert [u.reason for u in story.at(111, said=[hang(105)])] == ["there is new evidence"]


def hung_task(at: float, node: str) -> HostEvent:
    when = T0 + int(at * SECOND)
    return HostEvent(time=when, source=Source(f"{node}:kmsg", int(at)), node=node, event="hung_task", process="python")


def test_trouble_of_a_machine_is_told_beside_the_incident_of_its_job() -> None:
    story = Story()
    mine = [msgspec.structs.replace(fact, job="a", node="n1") for fact in (*steps(1, 2), *ended({0: 1}))]
    others = [msgspec.structs.replace(fact, job="b", node="n2") for fact in steps(1, 2)]
    # It may come before anything is known of the job that runs there.
    story.at(30, hung_task(29, "n1"), hung_task(28, "n2"))
    story.at(60, *mine, *others)
    (update,) = story.at(75)
    (note,) = update.document()["notes"]
    assert "hung task" in note.lower()
    assert "n1" in note
    assert "hung task" in update.headline


def test_a_heartbeat_says_where_a_job_runs() -> None:
    story = Story()
    fault = verdict("gpu_fault", 8, seen(8, node="n1", gpu="0000:3b:00.0"))
    beat = Heartbeat(time=T0 + SECOND, source=Source("agent", ident="h"), node="n1", job="a")
    other = msgspec.structs.replace(steps(2)[0], job="b", node="n2")
    story.at(10, beat, other, said=[fault])
    (update,) = story.at(25)
    assert update.memory.job == "a"


def test_a_job_that_finished_resolves_its_incident() -> None:
    story = Story()
    story.at(10, *steps(1, 2), said=[crash(9)])
    story.at(20)
    done = RunFinished(time=T0 + 40 * SECOND, source=Source("a", 900), attempt=1)
    (update,) = story.at(41, *steps(30, attempt=1), done)
    assert (update.state, update.reason) == ("resolved", "the job finished")


def test_a_resolved_incident_is_forgotten_after_the_window_in_which_it_can_reopen() -> None:
    story = Story(reopen=100 * SECOND)
    story.at(10, *steps(1, 2), said=[crash(9)])
    story.at(20)
    story.at(100, *steps(95))
    story.at(201)
    assert [job.incidents for job in story.live._jobs] == [{}]
    assert [len(job.verdicts) for job in story.live._jobs] == [0]


def test_a_job_without_end_is_bounded() -> None:
    story = Story(limits=LiveLimits(jobs=8, facts=50, verdicts=5))
    for n in range(200):
        at = T0 + n * SECOND
        job = f"job-{n % 20}" if n % 2 else "busy"
        many: list[Fact] = [Progress(time=at, source=Source("a", n), step=n, rank=n % 4, job=job, node=f"n{n}")]
        story.at(n, *many, seen(n, rank=0, job=job), said=[crash(n, job=job)] if job == "busy" else ())
    held = {job.name: job for job in story.live._jobs}
    assert len(held) <= 8
    assert all(len(job.facts) <= 50 and len(job.verdicts) <= 5 and len(job.progress) <= 4 for job in held.values())
    assert {"jobs", "facts", "verdicts"} <= set(story.live.dropped)
    # Where a forgotten job was seen is forgotten, too.
    assert set().union(*story.live._jobs._where.values()) <= set(held)


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


def test_a_late_fact_that_clears_a_suspect_changes_the_incident() -> None:
    """Ranks share gradients: when another one diverges too, nobody is to blame, though the words stay the same."""
    diagnosis = diagnose([EXAMPLES / "incidents" / "d2_loss_inf"])
    late = [fact for fact in diagnosis.facts if isinstance(fact, NonFinite) and fact.rank == 1]
    assert late
    end = max(fact.end for fact in diagnosis.facts)
    engine, live = Engine(catalogue(), strict=True), LiveIncidents()
    for facts in ([fact for fact in diagnosis.facts if fact not in late], late):
        live.take(facts)
        engine.add(facts)
        live.hear(engine.advance(end))
        live.advance(end)
    assert [incident["suspects"]["ranks"] for incident in found(live)] == [[]]


def test_a_restart_does_not_make_an_incident_wait_again() -> None:
    before = Story()
    assert before.at(40, *steps(1, 2), said=[hang(40)]) == []
    again = Story()
    assert again.live.restore([], T0 + 45 * SECOND) == 0
    assert again.at(45, *steps(1, 2), said=[hang(40)]) == []
    assert states(again.at(50)) == [(1, "diagnosed", "nccl_hang")]


def test_what_waited_before_a_restart_goes_on_waiting_from_then() -> None:
    before = Story()
    before.at(47, *steps(1, 2), said=[hang(40)])
    (since,) = before.live.waiting().values()
    assert since == T0 + 47 * SECOND
    again = Story()
    again.live.restore([], T0 + 48 * SECOND, before.live.waiting())
    assert again.at(48, *steps(1, 2), said=[hang(40)]) == []
    assert again.at(56) == []
    assert states(again.at(57)) == [(1, "diagnosed", "nccl_hang")]


def test_a_layer_that_is_measured_later_is_no_longer_missing() -> None:
    story = Story()
    story.at(40, *of_job("a", "n1", steps(1, 2)), *of_job("b", "n9", steps(1, 2)), said=[hang(40, job="a")])
    (first,) = story.at(50)
    assert "kernel" in first.said["not_measured"]
    story.at(55, hung_task(54, "n9"))
    (second,) = story.at(111)
    assert (second.id, second.revision) == (first.id, 2)
    assert "kernel" not in second.said["not_measured"]


def test_more_evidence_of_a_verdict_is_told_where_the_incident_says_the_same() -> None:
    story = Story()
    story.at(40, *steps(1, 2), said=[crash(30)])
    story.at(50)
    one = crash(30)
    more = verdict("worker_crash", 30, seen(30, rank=3), seen(30.5, rank=3), ranks=[3])
    assert one.id == more.id
    story.at(55, said=[msgspec.structs.replace(more, revision=2)])
    story.at(115)
    (_, second) = story.told
    assert len(second.verdicts[0].verdict.evidence()) == 2


def of_job(job: str, node: str, facts: Iterable[Fact]) -> list[Fact]:
    return [msgspec.structs.replace(fact, job=job, node=node) for fact in facts]


def test_how_an_attempt_ended_long_ago_is_no_news() -> None:
    story = Story(reopen=100 * SECOND)
    stop = verdict("planned_stop", 10, seen(10, job="a"))
    story.at(10, *of_job("a", "n1", steps(1, 2)), said=[stop])
    story.at(60, *of_job("a", "n1", steps(50, attempt=1)))
    # The verdict does not stand for ever, and the attempt it explained is over.
    gone = msgspec.structs.replace(stop, status="cleared")
    story.at(300, *of_job("a", "n1", steps(290, attempt=1)), said=[gone])
    story.at(310, seen(305, job="a", node="n1"))
    assert story.at(340, *of_job("a", "n1", steps(330, attempt=1))) == []
    assert story.told == []


def test_a_job_that_finished_or_left_does_not_answer_for_its_node() -> None:
    story = Story()
    done = RunFinished(time=T0 + 5 * SECOND, source=Source("a", 900), job="a", node="n1")
    left = of_job("c", "n1", steps(-2000))
    story.at(6, *of_job("a", "n1", steps(1, 2)), *left, done, *of_job("b", "n1", steps(6)))
    story.at(10, said=[verdict("gpu_fault", 8, seen(8, node="n1", gpu="0000:3b:00.0"))])
    assert [update.memory.job for update in story.at(25)] == ["b"]


def test_a_job_that_was_restarted_elsewhere_does_not_answer_for_the_node_it_left() -> None:
    def beat(at: float, job: str, node: str) -> Heartbeat:
        return Heartbeat(time=T0 + int(at * SECOND), source=Source("agent", ident=f"{at}{node}"), job=job, node=node)

    story = Story()
    story.at(10, *of_job("a", "n1", steps(1, 2)), beat(9, "a", "n1"), beat(9, "a", "n2"))
    moved = of_job("a", "n2", steps(1000, 1990, attempt=1))
    story.at(2000, *moved, beat(1999, "a", "n2"), *of_job("b", "n1", steps(1990)), beat(1999, "b", "n1"))
    story.at(2010, said=[verdict("gpu_fault", 2008, seen(2008, node="n1", gpu="0000:3b:00.0"))])
    assert [update.memory.job for update in story.at(2025)] == ["b"]


def test_a_pod_of_another_workload_is_not_the_job_on_its_node() -> None:
    story = Story()
    known = [msgspec.structs.replace(fact, pod="ml/a-0") for fact in of_job("ml/a", "n1", steps(1, 2))]
    theirs = PodEvicted(
        time=T0 + 8 * SECOND, source=Source("events", ident="e"), pod="web/front-1", node="n1", reason="Evicted"
    )
    story.at(10, *known, theirs, said=[verdict("pod_evicted", 8, theirs)])
    assert story.at(100) == []
    mine = msgspec.structs.replace(theirs, pod="ml/a-0", source=Source("events", ident="f"))
    story.at(101, mine, said=[verdict("pod_evicted", 8, mine)])
    assert [update.memory.job for update in story.at(120)] == ["ml/a"]


def test_an_event_of_a_machine_is_told_only_where_the_job_does_not_go_on() -> None:
    bad = AerError(time=T0 + 8 * SECOND, source=Source("kmsg", ident="x"), node="n1", severity="fatal")
    well = Story()
    well.at(10, *of_job("a", "n1", steps(1, 2)), bad)
    well.at(25)
    well.at(40, *of_job("a", "n1", steps(39)))
    well.at(200, *of_job("a", "n1", steps(199)))
    assert well.told == []
    ill = Story()
    ill.at(10, *of_job("a", "n1", steps(1, 2)), bad)
    assert ill.at(60) == []
    assert len(ill.at(81)) == 1


@pytest.mark.parametrize(("code", "told"), [(45, 0), (63, 0), (154, 0), (31, 1), (74, 1), (145, 1), (999, 1)])
def test_an_xid_is_told_where_steps_stop_unless_it_only_informs(code: int, told: int) -> None:
    story = Story()
    xid = Xid(time=T0 + 8 * SECOND, source=Source("kmsg", ident="x"), node="n1", gpu="0000:3b:00.0", code=code)
    story.at(10, *of_job("a", "n1", steps(1, 2)), xid)
    assert [len(story.at(second)) for second in (60, 81, 200, 400)] == [0, told, 0, 0]


def test_what_the_kernel_of_a_node_without_a_job_says_of_storage_makes_no_job() -> None:
    story = Story()
    xid = Xid(time=T0 + 8 * SECOND, source=Source("kmsg", ident="x"), node="n1", gpu="0000:3b:00.0", code=45)
    slow = StorageError(time=T0 + 9 * SECOND, source=Source("kmsg", ident="y"), node="n1", error="not_responding")
    story.at(10, slow, xid)
    for second in (60, 200, 400):
        assert story.at(second) == []


def _judgements(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Count how often jobs are judged."""
    counted: list[int] = []

    def counting(*given: Any) -> Any:
        counted.append(1)
        return arbitrate(*given)

    monkeypatch.setattr("tracecore.incidents.live.arbitrate", counting)
    return counted


@pytest.mark.parametrize(("many", "details", "wait"), [(10, 60, 1), (8192, 1, 2)])
def test_a_job_of_many_facts_is_judged_less_often(
    monkeypatch: pytest.MonkeyPatch, many: int, details: int, wait: int
) -> None:
    """To judge a job takes the longer the more facts it has: details of a large one wait, and news hardly do."""
    counted = _judgements(monkeypatch)
    facts = [msgspec.structs.replace(watchdog(1, rank), job="a", node=f"n{rank // 8}") for rank in range(many)]
    story = Story()
    story.at(10, *facts)
    counted.clear()
    for second in range(11, 71):
        story.at(second, msgspec.structs.replace(facts[0], last_time=T0 + second * SECOND))
    assert len(counted) == details
    story.at(100)
    counted.clear()
    story.at(100.5, said=[verdict("gpu_fault", 70, seen(70, job="a", node="n1", gpu="0000:3b:00.0"))])
    story.at(100 + wait)
    assert len(counted) == 1


def test_steps_of_a_job_whose_incidents_are_resolved_are_not_judged(monkeypatch: pytest.MonkeyPatch) -> None:
    counted = _judgements(monkeypatch)
    story = Story()
    story.at(10, *of_job("a", "n1", steps(1, 2)), said=[verdict("worker_crash", 8, *of_job("a", "n1", [seen(8)]))])
    story.at(25)
    assert [update.state for update in story.at(200, *of_job("a", "n1", steps(190, 199, attempt=1)))] == ["resolved"]
    counted.clear()
    for second in range(210, 300, 10):
        story.at(second, *of_job("a", "n1", steps(second, attempt=1)))
    assert not counted


def test_a_job_that_goes_on_leaves_behind_what_it_overcame(monkeypatch: pytest.MonkeyPatch) -> None:
    """To judge a job that runs for weeks takes no longer than one that runs for hours."""
    looked: list[int] = []

    def counting(facts: list[Fact], *rest: Any) -> Any:
        looked.append(len(facts))
        return runs.look(facts, *rest)

    story = Story()
    monkeypatch.setattr("tracecore.incidents.live.runs", SimpleNamespace(look=counting))
    for minute in range(0, 24 * 60, 5):
        at = 60 * minute
        machine = HostEvent(time=T0 + at * SECOND, source=Source("kmsg", at), node="n1", event="cpu_throttled")
        # Rank 1 is known from what it prints alone, which was hours ago in the end.
        upload = StorageError(time=T0 + at * SECOND, source=Source("log", at), rank=1, error="timeout", retried=True)
        story.at(at + 1, *of_job("a", "n1", [*steps(at), *([upload] if minute < 600 else [])]), machine)
    assert story.told == []
    assert len(looked) == 24 * 12
    assert max(looked) < 40
    (job,) = story.live._jobs
    assert {fact.rank for fact in job.known() if fact.job == "a"} == {0, 1}


def test_what_is_near_an_incident_is_not_left_behind() -> None:
    """An open condition keeps what was known when it began, however long the job goes on with it."""
    story = Story()
    wrong = verdict("silent_data_corruption", 9, *of_job("a", "n1", [seen(9)]), ranks=[0])
    for at in range(0, 9 * 3600, 300):
        hot = HostEvent(time=T0 + at * SECOND, source=Source("kmsg", at), node="n1", event="cpu_throttled")
        story.at(at + 10, *of_job("a", "n1", steps(at)), hot, said=[wrong] if not at else ())
    (job,) = story.live._jobs
    assert [update.state for update in story.told if update.reason == "new"] == ["diagnosed"]
    held = sorted((fact.time - T0) // SECOND for fact in job.facts.values())
    assert held[:12] == [*range(0, 3600, 300)]
    assert len(held) < 40


def test_what_a_scheduler_says_before_a_restart_is_not_about_the_next_attempt() -> None:
    """A job that runs again does not make the scheduler's word about its lost node a second incident."""
    lost = verdict("host_lost", 8, seen(8, node="n1"), nodes=["n1"])
    state = SlurmState(time=T0 + 95 * SECOND, source=Source("slurm", 1), job="a", node="n0", state="NODE_FAIL")
    story = Story()
    story.at(10, *of_job("a", "n1", steps(1, 2)), said=[lost])
    story.at(96, state)
    for second in (301, 308, 315):
        upload = StorageError(
            time=T0 + second * SECOND, source=Source("log", second), attempt=1, error="timeout", retried=True
        )
        story.at(second + 1, *of_job("a", "n1", [upload]))
    story.at(401, *of_job("a", "n1", steps(320, 400, attempt=1)))
    assert len({update.id for update in story.told}) == 1
    assert story.told[-1].state == "resolved"
