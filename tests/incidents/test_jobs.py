"""Jobs of a fleet: which facts and verdicts belong to which job, what is kept, and what is forgotten."""

from __future__ import annotations

import itertools
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from tracecore.facts.fact import Fact
from tracecore.facts.gpu import Xid
from tracecore.facts.host import Heartbeat
from tracecore.facts.training import Progress, RunFinished
from tracecore.incidents.incident import Incident
from tracecore.incidents.jobs import DETAILS, LEFT, LONE, NEWS, REJUDGE, JobState, JobTable, LiveLimits
from tracecore.incidents.lifecycle import REFRESH, Life
from tracecore.incidents.live import LiveIncidents
from tracecore.patterns.contract import Suspects
from tracecore.signals.record import Source

sys.path.insert(0, str(Path(__file__).resolve().parent))
from made_verdicts import SECOND, T0, Seen, place, seen, verdict

STRANGER = "\x00pod "


def step(at: float, number: int = 1, *, line: int = 1, **identity: Any) -> Progress:
    return Progress(time=T0 + int(at * SECOND), source=place("steps.log", line), step=number, **identity)


def xid(at: float, node: str = "n1", **identity: Any) -> Xid:
    return Xid(time=T0 + int(at * SECOND), source=Source("kern.log", int(at * 10)), node=node, code=79, **identity)


def cleared(emission: Any) -> Any:
    return msgspec.structs.replace(emission, status="cleared")


def table(whole: bool = True, **limits: int) -> JobTable:
    return JobTable(LiveLimits(**limits), whole=whole)


def owners(jobs: JobTable, fact: Fact) -> set[str]:
    """The jobs that took a fact."""
    jobs.take(fact)
    return {job.name for job in jobs if any(known.uid == fact.uid for known in job.known())}


# -- what a job learns -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("second", "dated"),
    [
        (seen(9), 9), (seen(11), 10), (seen(10, path="other.log"), 10), (seen(9, approximate=True), 10), (xid(9), 10),
        (seen(9, attempt=1), 10),
    ],
)  # fmt: skip
def test_an_attempt_is_dated_by_the_earliest_exact_line_of_its_own(second: Fact, dated: float) -> None:
    job = JobState("a")
    job.take(seen(10))
    job.take(second)
    assert job.first[0] == (second if dated == 9 else seen(10))
    assert (1 in job.first) == (second.attempt == 1)


@pytest.mark.parametrize(
    ("later", "kept"), [(step(20, 2), 2), (step(5, 2), 1), (step(10, 2, line=2), 2), (step(10, 2, line=0), 1)]
)
def test_the_last_report_of_a_rank_is_the_latest_of_its_file(later: Progress, kept: int) -> None:
    job = JobState("a")
    job.take(step(3, 1, last_time=T0 + 10 * SECOND))
    job.take(later)
    assert [report.step for report in job.progress.values()] == [kept]


@pytest.mark.parametrize("order", [1, -1])
def test_of_two_files_that_report_at_one_time_the_same_one_is_kept_in_any_order(order: int) -> None:
    job = JobState("a")
    for path in ("a.log", "b.log")[::order]:
        job.take(Progress(time=T0, source=Source(path, 7), step=1))
    assert [report.source.path for report in job.progress.values()] == ["b.log"]


def test_reports_are_kept_by_attempt_and_rank_and_no_rank_is_none_of_them() -> None:
    job = JobState("a")
    for number, identity in enumerate(({}, {"rank": 0}, {"rank": 1}, {"rank": 1, "attempt": 1})):
        job.take(step(10, number, **identity))
    assert [report.step for report in job.progress.values()] == [0, 1, 2, 3]
    assert job.progress[0, -1].step == 0


def test_the_last_step_is_that_of_the_attempt_or_a_later_one() -> None:
    job = JobState("a")
    assert job.last_step() == 0
    for at, attempt in ((30, 0), (20, 1), (25, 1), (22, 1)):
        job.take(step(at, attempt=attempt))
    assert [(job.last_step(attempt) or T0) - T0 for attempt in range(3)] == [30 * SECOND, 25 * SECOND, 0]


def test_steps_are_no_news_but_the_first_of_a_run_without_a_name() -> None:
    named, unnamed = JobState("a"), JobState("")
    for job in (named, unnamed):
        job.take(step(10))
    assert (named.changed, unnamed.changed) == (False, True)
    unnamed.changed = False
    unnamed.take(step(11, 2, rank=1))
    assert not unnamed.changed
    unnamed.take(step(9, 2, rank=1))
    assert unnamed.changed


@pytest.mark.parametrize(("settled_until", "moved"), [(0, True), (5, False)])
def test_steps_matter_while_an_incident_is_not_settled(settled_until: int, moved: bool) -> None:
    job = JobState("a")
    job.take(step(10))
    assert not job.moved_on
    job.incidents["x"] = Life(id="x", since=0, state="resolved", settled_until=settled_until)
    job.take(step(11))
    assert job.moved_on == moved


def test_a_fact_is_news_once_and_then_a_detail_and_nothing_where_it_is_forgotten() -> None:
    job = JobState("a", closed={"": T0 + 20 * SECOND})
    job.take(seen(20))
    assert not job.facts
    assert not job.changed
    job.take(seen(21))
    assert (len(job.facts), job.changed, job.grown) == (1, True, False)
    job.changed = False
    job.take(seen(15, last_time=T0 + 21 * SECOND, path="long.log"))
    assert (len(job.facts), job.changed) == (2, True)
    job.changed = False
    job.take(seen(21, count=2))
    assert (len(job.facts), job.changed, job.grown) == (2, False, True)
    assert sorted(fact.count for fact in job.known()) == [1, 2]


def test_every_layer_of_its_facts_counts_as_measured() -> None:
    job = JobState("a")
    job.take(xid(1))
    job.take(step(1))
    assert job.layers == {"kernel", "stdout"}


@pytest.mark.parametrize(
    ("flags", "facts", "pause"),
    [
        ({"changed": True}, NEWS - 1, 0), ({"changed": True}, NEWS, SECOND), ({"changed": True}, 3 * NEWS, 3 * SECOND),
        ({"grown": True}, DETAILS - 1, 0), ({"grown": True}, 2 * DETAILS, 2 * SECOND),
        ({"grown": True}, 61 * DETAILS, REFRESH), ({"moved_on": True}, 0, REJUDGE),
        ({"moved_on": True}, 6 * DETAILS, 6 * SECOND), ({"moved_on": True}, 61 * DETAILS, REFRESH),
        ({"changed": True, "grown": True, "moved_on": True}, DETAILS, 0), ({"grown": True, "moved_on": True}, 0, 0),
    ],
)  # fmt: skip
def test_a_job_of_many_facts_waits_longer_before_it_is_judged(flags: dict[str, bool], facts: int, pause: int) -> None:
    job = JobState("a", judged=T0, **flags)
    one = seen(1)
    job.facts.update({(Seen, number, ""): one for number in range(facts)})
    assert job.is_due(T0 + pause)
    assert not job.is_due(T0 + pause - 1)


def test_a_job_without_news_is_never_due() -> None:
    assert not JobState("a").is_due(T0)


# -- forgetting --------------------------------------------------------------------------------------------------------


def incident(slot: str, attempt: int = 0, job: str = "a", origin: str = "o") -> Incident:
    return Incident(
        status="diagnosed", headline="", advice="", root=None, symptoms=[], edges=[], alternatives=[], gaps=[],
        suspects=Suspects(), slot=slot, attempt=attempt, job=job, origin=origin,
    )  # fmt: skip


def test_a_forgotten_failure_takes_what_is_not_later_than_its_end() -> None:
    job = JobState("a")
    for at in (10, 20, 21):
        job.take(seen(at))
    old, new, slow = verdict("worker_crash", 20), verdict("worker_crash", 21), verdict("straggler", 15)
    job.verdicts.update({emission.id: emission for emission in (old, new, slow)})
    job.incidents["x"] = Life(id="x", since=0, slot="2", last=T0 + 20 * SECOND)
    job.closed[""] = T0 + 5 * SECOND
    job.forget("x")
    assert [*job.verdicts] == [new.id, slow.id]
    assert [fact.time for fact in job.facts.values()] == [T0 + 21 * SECOND]
    assert job.closed == {"": T0 + 20 * SECOND}
    assert not job.incidents
    assert job.slot(incident("0")) == "3"
    assert job.slot(incident("0", attempt=1)) == "0"


def test_a_forgotten_condition_takes_only_verdicts_of_its_own() -> None:
    job = JobState("a")
    job.take(seen(10))
    slow, hot, crash = (verdict(name, 10) for name in ("straggler", "thermal_throttle", "worker_crash"))
    job.verdicts.update({emission.id: emission for emission in (slow, hot, crash)})
    job.closed["straggler"] = T0 + 30 * SECOND
    job.past[0, "straggler"] = 5
    job.incidents["x"] = Life(id="x", since=0, slot="straggler/1", last=T0 + 20 * SECOND)
    job.forget("x")
    assert [*job.verdicts] == [hot.id, crash.id]
    assert len(job.facts) == 1
    assert job.closed == {"straggler": T0 + 30 * SECOND}
    assert [job.slot(incident(slot)) for slot in ("straggler", "straggler/1", "thermal_throttle", "0")] == [
        "straggler/5", "straggler/6", "thermal_throttle", "0",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("life", "origin"),
    [
        ({}, "told"), ({"revision": 0}, "found"), ({"state": "resolved", "settled_until": 1}, "found"),
        ({"state": "resolved"}, "told"), ({"slot": "1"}, "found"), ({"attempt": 1}, "found"),
    ],
)  # fmt: skip
def test_a_run_without_a_name_keeps_the_origin_it_was_told_under(life: dict[str, Any], origin: str) -> None:
    job = JobState("", incidents={"x": Life(id="x", since=0, **{"revision": 1, "origin": "told"} | life)})
    assert job.origin(incident("0", job="", origin="found")) == origin
    assert job.origin(incident("0", job="a", origin="found")) == "found"


def test_an_attempt_counts_from_its_first_line_if_it_made_steps() -> None:
    job = JobState("a")
    for fact in (step(10), step(20, attempt=1), seen(30, attempt=2)):
        job.take(fact)
    at = [job.attempt_at(T0 + second * SECOND) for second in (5, 10, 19, 20, 40)]
    assert at == [0, 0, 0, 1, 1]


def restarted() -> JobState:
    job = JobState("a")
    for fact in (
        step(10), seen(12, attempt=0), xid(13), seen(14, last_time=T0 + 20 * SECOND, path="long.log"),
        xid(20), step(20, attempt=1), xid(21),
    ):  # fmt: skip
        job.take(fact)
    emissions = verdict("worker_crash", 19), verdict("worker_crash", 21), verdict("worker_crash", 20)
    job.verdicts.update({emission.id: emission for emission in emissions})
    return job


def test_an_attempt_that_another_followed_is_retired() -> None:
    job = restarted()
    job.retire(T0 + 20 * SECOND - 1)
    assert [*job.first] == [0, 1]
    job.retire(T0 + 20 * SECOND)
    assert [*job.first] == [*job.steps] == [1]
    assert [*job.progress] == [(1, -1)]
    assert [fact.time for fact in job.facts.values()] == [T0 + 21 * SECOND]
    assert [emission.verdict.time for emission in job.verdicts.values()] == [T0 + 21 * SECOND]
    assert job.closed == {"": T0 + 20 * SECOND}


def test_an_attempt_with_an_incident_is_not_retired() -> None:
    job = restarted()
    job.incidents["x"] = Life(id="x", since=0, attempt=0)
    job.retire(T0 + 20 * SECOND)
    assert [*job.first] == [0, 1]
    assert len(job.facts) == 5
    assert not job.closed


def test_an_incident_of_the_last_attempt_keeps_nothing_of_those_before() -> None:
    job = restarted()
    job.incidents["x"] = Life(id="x", since=0, attempt=1)
    job.retire(T0 + 20 * SECOND)
    assert [fact.time - T0 for fact in job.facts.values()] == [21 * SECOND]
    assert job.closed == {"": T0 + 20 * SECOND}


def test_of_attempts_around_one_with_an_incident_only_their_own_lines_go() -> None:
    job = restarted()
    for fact in (seen(30, attempt=2), step(30, attempt=2)):
        job.take(fact)
    job.incidents["x"] = Life(id="x", since=0, attempt=1)
    job.closed[""] = T0 + 5 * SECOND
    job.retire(T0 + 30 * SECOND)
    assert [*job.first] == [1, 2]
    assert sorted(fact.time - T0 for fact in job.facts.values()) == [13 * SECOND, 20 * SECOND, 21 * SECOND, 30 * SECOND]
    assert len(job.verdicts) == 3
    assert job.closed == {"": T0 + 5 * SECOND}


@pytest.mark.parametrize(
    ("name", "at", "closed"),
    [
        ("worker_crash", 20, True),
        ("worker_crash", 20.5, False),
        ("straggler", 10, False),
        ("thermal_throttle", 5, True),
    ],
)
def test_a_verdict_is_closed_with_all_its_evidence(name: str, at: float, closed: bool) -> None:
    job = JobState("a", closed={"": T0 + 20 * SECOND, "thermal_throttle": T0 + 5 * SECOND})
    assert job.is_closed(verdict(name, at)) == closed
    assert not job.is_closed(verdict(name, 3, seen(3), seen(21)))
    assert not JobState("a").is_closed(verdict(name, at))


# -- to whom something belongs -----------------------------------------------------------------------------------------


def test_a_fact_belongs_to_the_job_it_names_else_to_those_where_it_was_seen() -> None:
    jobs = table()
    for job, node in (("a", "n1"), ("b", "n2")):
        jobs.take(step(1, job=job, node=node, pod=f"ml/{job}"))
    assert owners(jobs, xid(2, "n1")) == {"a"}
    assert owners(jobs, xid(3, "n1", job="b")) == {"b"}
    assert owners(jobs, xid(4, "n2")) == {"b"}
    assert owners(jobs, xid(5, "n3")) == {f"{LONE}n3"}
    assert owners(jobs, seen(6, node="n3", path="x.log")) == {""}
    assert owners(jobs, xid(7, "")) == {""}
    assert owners(jobs, xid(8, "n1", pod="ml/b")) == {"b"}
    assert owners(jobs, xid(9, "n1", pod="ml/other")) == {f"{STRANGER}ml/other"}


@pytest.mark.parametrize(
    ("whole", "where", "node", "owner"),
    [
        (True, "", "n9", "a"),
        (True, "", "", "a"),
        (True, "n1", "", "a"),
        # It runs on n1; whoever runs on n9 may not have been heard yet.
        (True, "n1", "n9", f"{LONE}n9"),
        (False, "", "n9", f"{LONE}n9"),
        (False, "", "", ""),
    ],
)
def test_what_names_no_job_is_of_the_only_one_unless_it_runs_elsewhere(
    whole: bool, where: str, node: str, owner: str
) -> None:
    jobs = table(whole)
    jobs.take(step(1, job="a", node=where))
    assert owners(jobs, xid(2, node)) == {owner}


@pytest.mark.parametrize("order", range(6))
def test_the_order_of_facts_gives_no_job_a_node_of_another(order: int) -> None:
    jobs = table()
    facts = [step(1, job="a", node="n1"), xid(2, "n2"), step(3, job="b", node="n2")]
    for fact in [*itertools.permutations(facts)][order]:
        jobs.take(fact)
    assert owners(jobs, xid(4, "n2")) == {"b"}
    assert jobs.get("a").places == {"n1"}


@pytest.mark.parametrize(("second", "here"), [(LEFT, {"a", "b"}), (LEFT + 1, {"b"})])
def test_of_two_jobs_on_a_node_the_one_that_fell_silent_has_left(second: int, here: set[str]) -> None:
    jobs = table()
    jobs.take(step(0, job="a", node="n1"))
    jobs.take(step(second / SECOND, job="b", node="n1"))
    jobs.get("b").heard = T0 + second
    assert owners(jobs, xid(1, "n1")) == here


@pytest.mark.parametrize(("last", "here"), [(10, {"b"}), (11, {"a", "b"})])
def test_a_finished_job_answers_for_its_node_only_if_it_went_on(last: float, here: set[str]) -> None:
    jobs = table()
    jobs.take(RunFinished(time=T0 + 10 * SECOND, source=place("a.log"), job="a", node="n1", step=5))
    jobs.take(step(last, job="a", node="n1"))
    jobs.take(step(12, job="b", node="n1"))
    assert owners(jobs, xid(13, "n1")) == here
    assert jobs.get("a").finished == T0 + 10 * SECOND


def test_a_job_that_finished_alone_on_its_node_still_answers_for_it() -> None:
    jobs = table()
    jobs.take(RunFinished(time=T0 + 10 * SECOND, source=place("a.log"), job="a", node="n1", step=5))
    jobs.take(step(1, job="b", node="n2"))
    assert owners(jobs, xid(13, "n1")) == {"a"}


@pytest.mark.parametrize(
    ("beats", "restarted_at", "last", "here"),
    [
        (True, 20, 611, {f"{LONE}n1"}), (True, 20, 610, {"a"}), (False, 20, 611, {"a"}), (True, 10, 611, {"a"}),
    ],
)  # fmt: skip
def test_a_job_has_left_a_node_where_it_was_started_again_elsewhere(
    beats: bool, restarted_at: float, last: float, here: set[str]
) -> None:
    jobs = table()
    jobs.take(step(10, job="a", node="n1"))
    jobs.take(step(1, job="b", node="n3"))
    if beats:
        jobs.meet(Heartbeat(time=T0 + 10 * SECOND, source=place("beat"), job="a", node="n1"))
    jobs.take(step(restarted_at, job="a", node="n2", attempt=1))
    jobs.take(step(last, job="a", node="n2", attempt=1))
    assert owners(jobs, xid(700, "n1")) == here


def test_a_job_that_never_spoke_from_a_node_has_not_left_it() -> None:
    jobs = table()
    jobs.take(step(1, job="b", node="n3"))
    jobs.take(xid(1, "n1", job="a"))
    jobs.meet(Heartbeat(time=T0 + 10 * SECOND, source=place("beat"), job="a", node="n2"))
    jobs.take(step(900, job="a", node="n2", attempt=1))
    assert owners(jobs, xid(901, "n1")) == {"a"}


def test_a_heartbeat_says_where_a_job_runs_and_nothing_else() -> None:
    jobs = table(whole=False)
    jobs.meet(Heartbeat(time=T0, source=place("beat"), node="n1"))
    assert not [*jobs]
    jobs.meet(Heartbeat(time=T0, source=place("beat"), job="a", node="n1"))
    (job,) = jobs
    assert (job.places, job.beats, job.known()) == ({"n1"}, True, [])


def test_a_pod_of_a_fact_without_a_job_is_the_jobs_own_only_if_its_process_wrote_it() -> None:
    jobs = table()
    jobs.take(step(1, job="a", node="n1"))
    jobs.take(xid(2, "n1", job="a", pod="ml/a"))
    assert jobs.get("a").places == {"n1", "ml/a"}
    jobs.take(xid(3, "", pod="ml/x"))
    assert jobs.get("a").places == {"n1", "ml/a"}
    jobs.take(seen(4, pod="ml/y"))
    assert jobs.get("a").places == {"n1", "ml/a", "ml/y"}


def test_a_job_is_heard_when_its_own_lines_end() -> None:
    jobs = table()
    jobs.take(seen(1, last_time=T0 + 5 * SECOND, job="a"))
    job = jobs.get("a")
    assert job.heard == T0 + 5 * SECOND
    jobs.take(seen(6))
    jobs.take(xid(7, job="a"))
    assert job.heard == T0 + 5 * SECOND
    done = RunFinished(time=T0, last_time=T0 + 9 * SECOND, source=place("a.log"), job="a", step=5)
    jobs.take(done)
    assert job.finished == T0 + 9 * SECOND


# -- verdicts ----------------------------------------------------------------------------------------------------------


def holders(jobs: JobTable, emission: Any) -> set[str]:
    jobs.hear(emission)
    return {job.name for job in jobs if emission.id in job.verdicts}


def test_a_verdict_belongs_to_the_job_of_its_evidence_else_to_those_at_its_place() -> None:
    jobs = table()
    for job, node in (("a", "n1"), ("b", "n2")):
        jobs.take(step(1, job=job, node=node))
    assert holders(jobs, verdict("gpu_fault", 2, seen(2, node="n1"))) == {"a"}
    assert holders(jobs, verdict("gpu_fault", 3, seen(3, node="n1", job="b"), seen(3, job="c"))) == {"b"}
    assert holders(jobs, verdict("gpu_fault", 4, seen(4, node="n7"))) == {f"{LONE}n7"}
    assert holders(jobs, verdict("gpu_fault", 5, seen(5))) == {""}
    assert holders(jobs, verdict("pod_evicted", 6, seen(6, node="n1", pod="ml/x"))) == {f"{STRANGER}ml/x"}


def test_a_verdict_without_a_place_is_of_the_only_job_and_one_with_another_place_is_not() -> None:
    jobs = table()
    jobs.take(step(1, job="a", node="n1"))
    assert holders(jobs, verdict("worker_crash", 2, seen(2))) == {"a"}
    assert holders(jobs, verdict("gpu_fault", 3, seen(3, node="n2"))) == {f"{LONE}n2"}


def test_a_verdict_is_news_once_and_its_end_is_news_where_it_stood() -> None:
    jobs = table()
    job = jobs.get("a")
    said = verdict("worker_crash", 2, seen(2, job="a"))
    jobs.hear(cleared(said))
    assert not job.changed
    jobs.hear(said)
    assert (job.changed, job.grown) == (True, False)
    job.changed = False
    jobs.hear(said)
    assert (job.changed, job.grown) == (False, True)
    jobs.hear(cleared(said))
    assert (job.changed, [*job.verdicts]) == (True, [])
    jobs.hear(cleared(said))
    assert job.changed, "what is not judged yet stays so"
    job.closed[""] = T0 + 2 * SECOND
    jobs.hear(said)
    assert not job.verdicts


def test_what_was_said_of_a_place_moves_to_the_job_that_is_seen_there() -> None:
    jobs = table()
    for name in ("a", "b"):
        jobs.get(name)
    jobs.take(xid(2, "n1"))
    said = verdict("gpu_fault", 2, seen(2, node="n1"))
    jobs.hear(said)
    lone = jobs.get(f"{LONE}n1")
    lone.incidents["x"] = Life(id="x", since=0, revision=1)
    lone.incidents["y"] = Life(id="y", since=0)
    jobs.take(step(3, job="a", node="n1"))
    job = jobs.get("a")
    assert [type(fact) for fact in job.facts.values()] == [Xid]
    assert [*job.verdicts] == [said.id]
    assert [(group, life.id, new) for group, life, new in jobs.moved] == [(lone, "x", job)]
    assert lone not in [*jobs]


def test_the_first_job_with_a_name_takes_what_named_none() -> None:
    jobs = table()
    jobs.take(step(1, node="n1", rank=4))
    jobs.hear(verdict("worker_crash", 2, seen(2)))
    unnamed = jobs.get("")
    unnamed.incidents["x"] = Life(id="x", since=0, revision=1)
    unnamed.changed = False
    jobs.take(step(3, job="a", node="n2"))
    (job,) = jobs
    assert (job.name, job.places, len(job.verdicts), job.changed) == ("a", {"n1", "n2"}, 1, True)
    assert [life.id for _, life, _ in jobs.moved] == ["x"]
    assert [*job.progress] == [(0, 4), (0, -1)]
    assert owners(jobs, xid(4, "n1")) == {"a"}
    jobs.take(step(5, job="b", node="n1"))
    assert owners(jobs, xid(6, "n1")) == {"a", "b"}


@pytest.mark.parametrize(("flag", "changed"), [("changed", True), ("grown", True), ("moved_on", False)])
def test_news_of_a_run_without_a_name_is_news_of_the_job_that_takes_it(flag: str, changed: bool) -> None:
    jobs = table()
    setattr(jobs.get(""), flag, True)
    assert jobs.get("a").changed == changed


@pytest.mark.parametrize("whole", [True, False])
def test_only_where_all_facts_come_here_a_name_takes_what_named_none(whole: bool) -> None:
    jobs = table(whole)
    jobs.take(step(1, node="n1"))
    jobs.take(step(2, job="a", node="n2"))
    assert {job.name for job in jobs} == ({"a"} if whole else {"", "a"})
    assert len(table(whole).get("a").places) == 0


# -- bounds ------------------------------------------------------------------------------------------------------------


def test_every_bound_forgets_the_oldest_and_counts_it() -> None:
    jobs = table(facts=2, ranks=2, verdicts=2, places=2, attempts=2)
    for at in range(3):
        jobs.take(seen(at, job="a", node=f"n{at}"))
        jobs.take(step(at, job="a", rank=at, attempt=at))
        jobs.hear(verdict("worker_crash", at, seen(at, job="a")))
    job = jobs.get("a")
    assert [fact.time - T0 for fact in job.facts.values()] == [SECOND, 2 * SECOND]
    assert [*job.progress] == [(1, 1), (2, 2)]
    assert [emission.verdict.time - T0 for emission in job.verdicts.values()] == [SECOND, 2 * SECOND]
    assert job.places == {"n0", "n1"}
    assert ([*job.first], [*job.steps]) == ([1, 2], [1, 2])
    assert jobs.dropped == {"facts": 1, "ranks": 1, "verdicts": 1, "places": 1, "attempts": 1}


def test_of_too_many_jobs_the_one_heard_least_recently_goes_unless_it_has_something_open() -> None:
    jobs = table(jobs=3)
    for name in "abc":
        jobs.take(step(1, job=name, node="n1"))
    jobs.get("a").incidents["x"] = Life(id="x", since=0, revision=1)
    jobs.get("b")
    jobs.take(step(2, job="d", node="n2"))
    assert {job.name for job in jobs} == {"a", "b", "d"}
    assert jobs.dropped == {"jobs": 1}
    assert owners(jobs, xid(3, "n1")) == {"a", "b"}
    for name in "bd":
        jobs.get(name).incidents["x"] = Life(id="x", since=0, revision=1)
    jobs.get("e")
    assert {job.name for job in jobs} == {"b", "d", "e"}, "where all have something open, the oldest goes"
    assert owners(jobs, xid(4, "n1")) == {"b"}


def test_a_place_of_which_all_jobs_are_forgotten_is_nobodys() -> None:
    jobs = table(whole=False, jobs=1)
    jobs.take(step(1, job="a", node="n1"))
    jobs.get("b")
    assert owners(jobs, xid(2, "n1")) == {f"{LONE}n1"}


def test_a_forgotten_job_is_not_counted_among_those_with_a_name() -> None:
    jobs = table(jobs=1)
    jobs.take(step(1, job="a"))
    jobs.get("b")
    assert owners(jobs, xid(2, "n1")) == {"b"}


@pytest.mark.parametrize(
    ("name", "incidents", "needed"),
    [
        ("a", {}, []),
        ("", {}, ["first"]),
        ("a", {"i": 1}, ["first", "progress", "fact", "evidence"]),
        ("", {"i": 1}, ["first", "first", "progress", "fact", "evidence"]),
    ],
)
def test_a_restart_needs_the_facts_of_incidents_and_the_first_of_nameless_runs(
    name: str, incidents: dict[str, Any], needed: list[str]
) -> None:
    verdict = SimpleNamespace(verdict=SimpleNamespace(evidence=lambda: ["evidence"]))
    job = SimpleNamespace(
        name=name, incidents=incidents, first={0: "first"}, progress={0: "progress"}, facts={0: "fact"},
        verdicts={"v": verdict},
    )  # fmt: skip
    live: Any = LiveIncidents()
    live._jobs = [job]
    assert list(live.needed()) == needed
