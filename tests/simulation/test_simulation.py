"""The simulated fleet: deterministic, as often broken as published, and scored by its truth."""

from __future__ import annotations

from itertools import pairwise

import msgspec
import pytest

from tracecore.facts.host import Heartbeat
from tracecore.patterns import types
from tracecore.simulation import run
from tracecore.simulation.fleet import DAY, GPUS, SECOND, START, Fleet, RankEvent, SimulatedJob, draw
from tracecore.simulation.paging import Page, pages
from tracecore.simulation.plays import Play, catalogue
from tracecore.simulation.reading import facts_of
from tracecore.simulation.run import ToldRevision, Truth
from tracecore.simulation.score import score
from tracecore.simulation.simulate import simulate, table


def test_the_causes_are_those_of_the_published_table() -> None:
    causes = catalogue().causes
    assert sum(cause.count for cause in causes if not cause.planned) == 419
    assert sum(cause.count for cause in causes if cause.planned) == 47
    known = {kind.name for kind in types()} | {""}
    assert {root for cause in causes for play in cause.plays for root in play.root} <= known


def test_the_same_seed_draws_the_same_fleet() -> None:
    one, other = draw(64, 54, 7), draw(64, 54, 7)
    assert msgspec.json.encode(one) == msgspec.json.encode(other)
    assert msgspec.json.encode(draw(64, 54, 8)) != msgspec.json.encode(one)


def test_a_fleet_of_the_published_size_fails_as_often_as_published() -> None:
    fleet = draw(2048, 54, 3, noise=0)
    assert len([event for event in fleet.events if not event.planned]) == 419
    assert len(fleet.events) == 466
    assert sum(len(jobs[0].nodes) for jobs in fleet.slots) == 2048
    assert len([event for event in draw(256, 54, 3).events if event.noise]) >= 50 * 99


def _job(scheduler: str, number: int = 1) -> SimulatedJob:
    name = str(480_000 + number) if scheduler == "slurm" else f"ml/llm-{number}"
    fields = {
        "name": name, "id": 480_000 + number, "numbered": number, "scheduler": scheduler,
        "nodes": [f"n{number}-{which}" for which in range(3)], "begins": START, "ends": START + DAY, "step_s": 2.0,
        "timeout_s": 180, "reported": START,
    }  # fmt: skip
    return msgspec.convert(fields, SimulatedJob)


PLAYS = [(cause, play, end) for cause in catalogue().causes for play in cause.plays for end in play.ends]


@pytest.mark.integration
@pytest.mark.parametrize("scheduler", ["slurm", "kubernetes"])
def test_every_play_by_itself_is_told_rightly(scheduler: str) -> None:
    truths: list[Truth] = []
    told: list[ToldRevision] = []
    for number, (cause, play, end) in enumerate(PLAYS):
        if end == "cancelled" and scheduler == "kubernetes":
            continue
        job = _job(scheduler, number)
        event = RankEvent(
            number=number, at=START + 3600 * SECOND, slot=0, cause=cause.cause, play=play, end=end,
            rank_share=number / len(PLAYS), planned=cause.planned,
        )  # fmt: skip
        fleet = Fleet(nodes=3, days=1, slots=[[job]], spares=["spare"], events=[event])
        outcome = run.play(fleet, 0, 1)
        truths += outcome.truths
        told += outcome.told
    found = score(truths, told, pages(told), 7)
    assert not found.wrong, table(found)
    assert not found.duplicates, table(found)
    assert not found.false_pages, table(found)
    assert not found.total.missed_pages, table(found)


def test_every_other_rank_is_heard_when_collectives_time_out() -> None:
    play = Play(play="a rank does not come", root=("nccl_hang",))
    event = RankEvent(number=1, at=START, slot=0, cause="x", play=play, rank_share=0.5, end="watchdog")
    facts = facts_of(event, _job("slurm"))
    assert {fact.rank for fact in facts} == set(range(3 * GPUS)) - {12}
    assert all(fact.time >= START + 180 * SECOND for fact in facts)


def _truth(number: int, **more: object) -> Truth:
    fields: dict[str, object] = {
        "number": number, "cause": "faulty GPU", "play": "p", "end": "watchdog", "job": "j", "attempt": 0,
        "at": 1000 * SECOND, "until": 2000 * SECOND, "node": "n1", "rank": 9, "ranks": 16, "planned": False,
        "signal": True, "root": ("gpu_fault",), "class_": ("infrastructure",), "names_node": True, "page": "needed",
    }  # fmt: skip
    return msgspec.convert(fields | more, Truth)


def _told(id: str, at: int, pattern: str | None, *nodes: str, job: str = "j") -> ToldRevision:
    return ToldRevision(
        at=at * SECOND,
        document={
            "id": id, "job": job, "headline": id, "root_cause": {"pattern": pattern} if pattern else None,
            "suspects": {"nodes": [*nodes], "ranks": []}, "failure": {"class": "infrastructure"},
        },
    )  # fmt: skip


def test_the_score_tells_right_from_wrong_and_new_from_twice() -> None:
    right = score([_truth(1)], [_told("a", 1010, "gpu_fault", "n1")], [_page(1045, "a")], 7)
    assert (right.total.root, right.total.node, right.total.class_, right.total.missed_pages) == (1, 1, 1, 0)
    assert (right.total.seconds, right.false_pages, right.duplicates, right.wrong) == ([45.0], [], [], [])
    wrong = score([_truth(1)], [_told("a", 1010, "host_lost", "n2")], [_page(1045, "a")], 7)
    assert (wrong.total.found, wrong.total.root, wrong.total.node, len(wrong.wrong)) == (1, 0, 0, 1)
    both = [_told("a", 1010, "gpu_fault", "n1", "n2"), _told("b", 1100, None)]
    twice = score([_truth(1)], both, [_page(1045, "a"), _page(1200, "b")], 7)
    assert (twice.total.node, len(twice.duplicates)) == (0, 1)
    early = score([_truth(1)], [_told("a", 100, "gpu_fault", "n1")], [_page(140, "a")], 7)
    assert (early.total.found, len(early.false_pages), early.total.missed_pages) == (0, 1, 1)
    planned = score([_truth(1, planned=True)], [_told("a", 1010, None)], [_page(1045, "a")], 7)
    assert (planned.total.count, planned.false_pages) == (0, ["a [j] (planned)"])
    unsaid = score([_truth(1, signal=False, page="optional")], [], [], 7)
    assert (unsaid.total.count, unsaid.total.counted) == (1, 0)


def test_a_failure_that_nobody_was_told_of_has_no_right_class() -> None:
    missed = score([_truth(1)], [], [], 7).total
    assert (missed.counted, missed.found, missed.root, missed.node, missed.class_, missed.missed_pages) == (
        1, 0, 0, 0, 0, 1,
    )  # fmt: skip
    free = score([_truth(1, root=("planned_stop", ""), page="optional", names_node=False)], [], [], 7).total
    assert (free.counted, free.needed, free.found, free.root, free.class_) == (1, 0, 0, 1, 1)


def test_an_incident_without_a_job_is_about_no_failure() -> None:
    found = score([_truth(1)], [_told("a", 1010, "gpu_fault", "n1", job="")], [_page(1045, "a")], 7)
    assert found.false_pages == ["a [no job]"]
    assert (found.total.found, found.total.root, found.total.missed_pages) == (0, 0, 1)


def test_a_second_incident_with_another_root_makes_the_answer_wrong() -> None:
    both = [_told("a", 1010, "gpu_fault", "n1"), _told("b", 1012, "host_lost", "n1")]
    found = score([_truth(1)], both, [_page(1045, "a", "b")], 7)
    assert (found.total.found, found.total.root, found.total.class_, len(found.wrong)) == (1, 0, 0, 1)


def test_an_incident_that_opens_after_the_restart_is_not_about_the_failure() -> None:
    late = score([_truth(1)], [_told("a", 2060, "gpu_fault", "n1")], [_page(2090, "a")], 7)
    assert (late.total.found, late.false_pages, late.false_incidents) == (0, ["a [j]"], ["a [j]"])


def test_a_page_with_news_of_one_failure_can_repeat_another() -> None:
    truths = [_truth(1), _truth(2, job="k")]
    told = [_told("a", 1010, "gpu_fault", "n1"), _told("b", 1010, "gpu_fault", "n1", job="k"), _told("c", 1100, None)]
    found = score(truths, told, [_page(1045, "a"), _page(1145, "b", "c")], 7)
    assert len(found.duplicates) == 1


def _page(at: int, *ids: str) -> Page:
    return Page(at=at * SECOND, reason="opened", new=ids)


def test_every_failure_of_a_job_is_played_however_close_they_are() -> None:
    """A failure of another job between two of one job makes a single window of all three."""
    play = Play(play="p", root=("gpu_fault",))
    jobs = [_job("slurm", number) for number in range(2)]
    events = [
        RankEvent(
            number=number, at=START + (3600 + at) * SECOND, slot=slot, cause="faulty GPU", play=play, rank_share=0.5
        )
        for number, (slot, at) in enumerate([(0, 0), (1, 1500), (0, 2700)])
    ]
    story = run.Story(Fleet(nodes=6, days=1, slots=[[job] for job in jobs], spares=["s"], events=events), [0, 1])
    looks = [*story]
    assert story.windows == 1
    assert [truth.number for truth in sorted(story.truths, key=lambda truth: truth.at)] == [0, 1, 2]
    assert [job.attempt for job in jobs] == [2, 1]
    facts = [fact for _, facts in looks for fact in facts]
    # A job that runs again goes on until the others do.
    last = max(fact.end for fact in facts)
    assert all(max(f.end for f in facts if f.job == job.name) > last - 20 * SECOND for job in jobs)


def test_no_node_of_a_job_that_stands_still_is_unheard_for_long() -> None:
    nodes = [f"n{number}" for number in range(200)]
    job = msgspec.structs.replace(_job("slurm"), nodes=nodes)
    play = Play(play="p", root=("nccl_hang",))
    event = RankEvent(
        number=0, at=START + DAY // 2, slot=0, cause="software bug", play=play, rank_share=0.9, end="watchdog"
    )  # fmt: skip
    story = run.Story(Fleet(nodes=200, days=1, slots=[[job]], spares=["s"], events=[event]), [0])
    looks = [*story]
    times: dict[str, list[int]] = {node: [] for node in nodes}
    for _, facts in looks:
        for fact in facts:
            if isinstance(fact, Heartbeat):
                times[str(fact.node)].append(fact.time)
    for heard in times.values():
        # A job that makes steps misses nobody.
        known = [looks[0][0], *(time for time in heard if time < story.truths[0].until), story.truths[0].until]
        assert all(later - earlier < 60 * SECOND for earlier, later in pairwise(known))


def test_two_days_of_a_small_fleet_are_told_rightly() -> None:
    found, outcome = simulate(12, 2, 12, rate=60, noise=10)
    assert outcome.truths
    assert outcome.noise >= 20
    assert not found.wrong, table(found)
    assert not found.duplicates, table(found)
    assert not found.false_pages, table(found)
    assert not found.total.missed_pages, table(found)
