"""Facts that somebody made up: no tenant can speak for another, fill the memory, or stop the process that joins."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from tracecore.agent.batch import Batch
from tracecore.agent.component import Setting
from tracecore.agent.exporters.webhook import told
from tracecore.agent.processors.patterndetector import Options, PatternDetector
from tracecore.agent.processors.patterndetector.options import IncidentOptions
from tracecore.agent.processors.patterndetector.senders import FactsIn
from tracecore.agent.telemetry import Meter
from tracecore.facts import wire
from tracecore.facts.catalog import TYPES, build, fields_of
from tracecore.facts.fact import Fact
from tracecore.facts.process import ExceptionRaised
from tracecore.facts.training import Progress
from tracecore.signals.record import Source

SECOND = 1_000_000_000
START = 1_790_000_000 * SECOND


class Clock:
    def __init__(self, now: int) -> None:
        self.now = now

    def __call__(self) -> int:
        return self.now


def detector(clock: Clock, **options: Any) -> tuple[PatternDetector, Meter]:
    meter = Meter("processor", "patterndetector")
    setting = Setting("patterndetector", meter, clock, {}.__getitem__, Path(), lambda: (True, {}))
    options = {"forward": "verdicts", "tell": "incidents", "incidents": IncidentOptions(settle=SECOND), **options}
    return PatternDetector(Options(**options), setting), meter


def arrived(*facts: Fact, peer: str = "10.0.0.1") -> Batch:
    """Facts as the other end receives them."""
    return Batch("logs", raw=Batch("logs", wire.payload(facts, START)).encoded(), peer=peer)


def crash(job: str | None, pod: str | None, at: int = START, rank: int = 1, **more: Any) -> ExceptionRaised:
    source = Source("/var/log/a.log", at % 10**9 + rank)
    return ExceptionRaised(
        time=at, source=source, job=job, pod=pod, node=more.pop("node", "n1"), rank=rank, type="ValueError", **more
    )


def steps(job: str, pod: str, at: int = START - 5 * SECOND, rank: int = 1, **more: Any) -> Progress:
    return Progress(
        time=at, source=Source("/var/log/a.log", rank), job=job, pod=pod, node="n1", rank=rank, step=7, **more
    )


def incidents(one: PatternDetector, clock: Clock, seconds: int = 20) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    for _ in range(seconds):
        clock.now += SECOND
        for batch in one.tick(clock.now):
            for attributes, _ in told(batch):
                found[attributes["incident.id"]] = msgspec.json.decode(attributes["incident.json"])
    return found


def test_two_namespaces_with_a_job_of_one_name_have_two_jobs() -> None:
    clock = Clock(START)
    one, _ = detector(clock)
    list(one.process(arrived(steps("llm", "team-a/w-0"), crash("llm", "team-b/w-0"))))
    found = incidents(one, clock)
    assert [document["job"] for document in found.values()] == ["team-b/llm"]


@pytest.mark.parametrize("name", ["team-a/llm", "llm", "/llm", "team-a//llm"])
def test_a_forged_fact_cannot_name_the_job_of_another_namespace(name: str) -> None:
    clock = Clock(START)
    one, _ = detector(clock)
    list(one.process(arrived(steps("llm", "team-a/w-0"))))
    list(one.process(arrived(crash(name, "team-b/evil"))))
    assert {document["job"] for document in incidents(one, clock).values()} == {f"team-b/{name}"}


def test_the_text_of_a_pod_cannot_name_another_job_pod_or_namespace() -> None:
    clock = Clock(START)
    one, _ = detector(clock)
    mine = {
        "k8s.namespace.name": "team-b",
        "k8s.pod.name": "evil",
        "k8s.node.name": "n1",
        "gen_ai.training.job_id": "own",
    }
    stolen = {"k8s.namespace.name": "team-a", "k8s.pod.name": "w-0", "gen_ai.training.job_id": "llm", "host.name": "n7"}
    text = 'Traceback (most recent call last):\n  File "/a.py", line 1, in <module>\nValueError: team-a/llm failed'
    # A parser of JSON lines makes attributes of text.
    record = {"body": text, "attributes": stolen, "time_unix_nano": START}
    entry = {"resource": {"attributes": mine}, "scope_logs": [{"scope": {}, "log_records": [record]}]}
    list(one.process(arrived(steps("llm", "team-a/w-0"))))
    list(one.process(Batch("logs", {"resource_logs": [entry]})))
    (document,) = incidents(one, clock).values()
    assert document["job"] == "team-b/own"
    assert document["suspects"]["nodes"] in ([], ["n1"])
    assert "team-a/w-0" not in document["suspects"]["pods"]


def test_a_dump_without_a_pod_belongs_to_the_only_namespace_that_has_such_a_job() -> None:
    clock = Clock(START)
    one, _ = detector(clock)
    list(one.process(arrived(steps("llm", "team-a/w-0"))))
    list(one.process(arrived(crash("llm", None))))
    assert {document["job"] for document in incidents(one, clock).values()} == {"team-a/llm"}


def test_an_agent_that_reads_a_node_believes_no_facts_verdicts_or_incidents_that_somebody_sends() -> None:
    clock = Clock(START)
    node, meter = detector(clock, forward="facts")
    list(node.process(arrived(crash("llm", "team-a/w-0"))))
    entry = {
        "resource": {"attributes": {}},
        "scope_logs": [
            {"scope": {"name": "tracecore.incidents"}, "log_records": [{"attributes": {"incident.id": "x"}}]}
        ],
    }
    assert list(node.process(Batch("logs", {"resource_logs": [entry]}))) == []
    clock.now += 5 * SECOND
    assert list(node.tick(clock.now)) == []
    assert meter.events["fact_refused"] == 1
    assert meter.events["told_refused"] == 1


def test_one_sender_cannot_use_the_share_of_others() -> None:
    clock = Clock(START)
    one, meter = detector(clock, facts=FactsIn(burst=100, per_second=1, jobs=3))
    for n in range(20):
        flood = [crash(f"job-{n}", "team-b/evil", START + k, rank=k, node="n9") for k in range(50)]
        list(one.process(arrived(*flood, peer="10.0.0.9")))
    assert meter.events["fact_over_share"] + meter.events["fact_too_many_jobs"] >= 890
    list(one.process(arrived(steps("llm", "team-a/w-0"), crash("llm", "team-a/w-0"))))
    found = incidents(one, clock)
    assert "team-a/llm" in {document["job"] for document in found.values()}
    assert len(found) <= 4
    live = one.detection._live
    assert live is not None
    assert sum(len(job.facts) + len(job.progress) for job in live._jobs) <= 110
    # It may speak again later.
    before = sum(meter.events.values())
    clock.now += 200 * SECOND
    list(one.process(arrived(crash("job-0", "team-b/evil", clock.now, node="n9"), peer="10.0.0.9")))
    assert sum(meter.events.values()) == before


def test_a_large_fact_uses_more_of_a_share() -> None:
    clock = Clock(START)
    one, meter = detector(clock, facts=FactsIn(burst=100, per_second=0))
    for n in range(10):
        list(one.process(arrived(crash("a", None, START + n, message="x" * 30_000, node="n9"))))
    assert meter.events["fact_over_share"] == 7


numbers = st.integers() | st.integers(-(2**70), 2**70) | st.floats(allow_nan=False) | st.booleans()
values = st.recursive(
    st.none() | numbers | st.text(max_size=40),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


def sample(kind: type[Fact]) -> Fact:
    made: dict[Any, Any] = {int: 3, float: 0.5, bool: True, str: "a", tuple[int, ...]: [3]}
    fields = {
        field.name: made[field.type]
        for field in msgspec.structs.fields(kind)
        if field.required and field.name in fields_of(kind)
    }
    return build(kind.__name__, {**fields, "node": "n1", "job": "a", "rank": 1}, time=START, uid="u")


@settings(max_examples=60, phases=[Phase.generate])
@given(data=st.data())
def test_no_fact_stops_the_process_that_joins(data: st.DataObject) -> None:
    clock = Clock(START)
    one, meter = detector(clock, recipes=False)
    kinds = data.draw(st.lists(st.sampled_from(TYPES), min_size=1, max_size=6))
    payload = wire.payload([sample(kind) for kind in kinds], START)
    for entry in payload["resource_logs"]:
        for record in entry["scope_logs"][0]["log_records"]:
            own = msgspec.json.decode(record["attributes"]["tracecore.fact.json"])
            changes = data.draw(
                st.dictionaries(st.sampled_from([*own, "count", "last_time", "attempt", "step", "seq"]), values)
            )
            record["attributes"]["tracecore.fact.json"] = json.dumps({**own, **changes})
            if data.draw(st.booleans()):
                record["time_unix_nano"] = data.draw(st.integers(0, 2**64 - 1))
            if data.draw(st.booleans()):
                record["attributes"]["gen_ai.training.rank"] = data.draw(values)
    list(one.process(Batch("logs", payload)))
    list(one.process(arrived(steps("llm", "team-a/w-0", rank=2), crash("llm", "team-a/w-0", rank=2))))
    jobs = {document.get("job") for document in incidents(one, clock, 20).values()}
    assert "team-a/llm" in jobs
    assert not meter.events.get("incident_judgements_forgotten")
