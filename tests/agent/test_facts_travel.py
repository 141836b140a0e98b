"""Node detectors send facts, one detector joins them: the same incident as from all lines at once, told once."""

from __future__ import annotations

import os
import random
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tracecore.agent.batch import Ack, Batch
from tracecore.agent.component import Setting
from tracecore.agent.exporters.webhook import alert, told
from tracecore.agent.extensions.file_storage import FileStorageConfig, FileStorageExtension
from tracecore.agent.processors.patterndetector import Options, PatternDetector
from tracecore.agent.processors.patterndetector.options import IncidentOptions
from tracecore.agent.telemetry import Meter
from tracecore.diagnose.offline import diagnose
from tracecore.facts import wire
from tracecore.signals.bundle.discovery import discover
from tracecore.signals.bundle.reading import read
from tracecore.signals.logs.selector import SelectAll
from tracecore.signals.stream import Counters

SECOND = 1_000_000_000
START = 1_790_000_000 * SECOND


class Clock:
    def __init__(self, now: int) -> None:
        self.now = now

    def __call__(self) -> int:
        return self.now


def detector(clock: Clock, extensions: dict[str, Any] | None = None, **options: Any) -> PatternDetector:
    meter = Meter("processor", "patterndetector")
    setting = Setting("patterndetector", meter, clock, (extensions or {}).__getitem__, Path(), lambda: (True, {}))
    one = PatternDetector(Options(**options), setting)
    one.meter = meter  # type: ignore[attr-defined]
    return one


def lines_of(path: Path) -> list[tuple[int, int, str, dict[str, Any]]]:
    """Time, number, text and resource of all lines of a bundle; each rank on a node of its own."""
    bundle = discover([path])
    lines: list[tuple[int, int, str, dict[str, Any]]] = []
    for stream in bundle.streams:
        if stream.layer not in ("stdout", "kernel"):
            continue
        for record in read(stream, SelectAll(), bundle.clock, Counters()):
            rank = record["log"]["attributes"].get("gen_ai.training.rank")
            resource = {"host.name": f"node-{rank}", "log.file.path": stream.path, "gen_ai.training.job_id": "job-7"}
            prefix = f"[rank{rank}]: " if rank is not None else ""
            for text in str(record["log"]["body"]).split("\n"):
                lines.append((record["log"]["time_unix_nano"], len(lines), prefix + text, resource))
    return sorted(lines, key=lambda line: line[:2])


def batch(lines: Iterable[tuple[int, str]], resource: dict[str, Any], acks: tuple[Ack, ...] = ()) -> Batch:
    records = [{"body": text, "attributes": {}, "time_unix_nano": time} for time, text in lines]
    entry = {"resource": {"attributes": resource}, "scope_logs": [{"scope": {}, "log_records": records}]}
    return Batch("logs", {"resource_logs": [entry]}, acks=acks)


def over_the_wire(batches: Iterable[Batch]) -> list[Batch]:
    """As the other end receives them."""
    return [Batch("logs", raw=one.encoded()) for one in batches]


class Fleet:
    """Two node agents and a joining process on one clock."""

    def __init__(self, start: int, seed: int = 0) -> None:
        self.clock = Clock(start)
        self.chance = random.Random(seed)
        self.nodes = [detector(self.clock, forward="facts") for _ in range(2)]
        self.joiner = self.join()
        self.sent = 0
        self.records: list[tuple[dict[str, Any], dict[str, Any]]] = []

    def join(self) -> PatternDetector:
        return detector(self.clock, forward="verdicts", tell="incidents", incidents=IncidentOptions(settle=5 * SECOND))

    def hear(self, batches: Iterable[Batch]) -> None:
        for one in batches:
            self.records += told(one)

    def carry(self, batches: Iterable[Batch]) -> None:
        """From a node to the joiner; now and then twice, as after a retry."""
        for one in over_the_wire(batches):
            self.sent += len(one.encoded())
            for _ in range(2 if self.chance.random() < 0.2 else 1):
                self.hear(self.joiner.process(Batch("logs", raw=one.encoded())))

    def line(self, time: int, text: str, resource: dict[str, Any]) -> None:
        self.clock.now = max(self.clock.now, time)
        node = (
            self.nodes[int(resource["host.name"].rpartition("-")[2]) % 2]
            if resource["host.name"][-1].isdigit()
            else self.nodes[0]
        )
        self.carry(node.process(batch([(time, text)], resource)))
        self.carry(node.tick(self.clock.now))
        self.hear(self.joiner.tick(self.clock.now))

    def wait(self, seconds: float) -> None:
        for _ in range(int(seconds * 4)):
            self.clock.now += SECOND // 4
            for node in self.nodes:
                self.carry(node.tick(self.clock.now))
            self.hear(self.joiner.tick(self.clock.now))

    def incidents(self) -> dict[str, dict[str, Any]]:
        return {attributes["incident.id"]: attributes for attributes, _ in self.records}


@pytest.mark.parametrize(
    "scenario", ["nccl_rank_exception", "oom_one_rank", "chained", "nan_raises", "ckpt_enospc", "dl_exc"]
)
def test_facts_of_two_nodes_make_the_incident_that_a_diagnosis_finds(incidents: Path, scenario: str) -> None:
    (expected, *_) = diagnose([incidents / scenario]).incidents
    lines = lines_of(incidents / scenario)
    fleet = Fleet(lines[0][0])
    for time, _, text, resource in lines:
        fleet.line(time, text, resource)
    fleet.wait(20)
    found = fleet.incidents()
    assert len(found) == 1, [attributes["incident.headline"] for attributes in found.values()]
    (incident,) = found.values()
    assert expected.root is not None
    assert incident["pattern.name"] == expected.root.verdict.pattern_name
    document = msgspec.json.decode(incident["incident.json"])
    assert document["suspects"]["ranks"] == list(expected.suspects.ranks)
    assert document["job"] == "job-7"
    revisions = [attributes["incident.revision"] for attributes, _ in fleet.records]
    assert revisions == list(range(1, len(revisions) + 1))


@pytest.mark.parametrize("scenario", ["healthy", "hf_ok", "noisy_and_well", "speaks_of_failures"])
def test_a_healthy_run_gives_no_incident(incidents: Path, scenario: str) -> None:
    lines = lines_of(incidents / scenario)
    fleet = Fleet(lines[0][0])
    for time, _, text, resource in lines:
        fleet.line(time, text, resource)
    fleet.wait(20)
    assert fleet.incidents() == {}


CRASH = [
    "[rank1]: Traceback (most recent call last):",
    '[rank1]:   File "/app/train.py", line 10, in <module>',
    "[rank1]:     main()",
    "[rank1]: ValueError: the batch is empty",
]


def test_lines_do_not_travel() -> None:
    clock = Clock(START)
    node = detector(clock, forward="facts")
    noise = [(START + n, f"connecting to shard {n} of the data set, all is well") for n in range(500)]
    assert list(node.process(batch(noise, {"host.name": "n1"}))) == []
    list(node.process(batch([(START + 900 + n, text) for n, text in enumerate(CRASH)], {"host.name": "n1"})))
    clock.now += 2 * SECOND
    (sent,) = node.tick(clock.now)
    received = wire.read(sent.view())
    assert [type(fact).__name__ for fact in received.facts] == ["ExceptionRaised"]
    assert not received.others


def test_the_lines_that_a_fact_rests_on_travel_with_it_without_secrets() -> None:
    clock = Clock(START)
    node = detector(clock, forward="facts")
    resource = {"host.name": "n1", "gen_ai.training.job_id": "job-7", "log.file.path": "/logs/rank3.log"}
    error = "[rank3]: ValueError: no access with hf_abcdefghijklmnopqrstuvwxyz0123456789 to row 600"
    told = ["[rank3]: Traceback (most recent call last):", '[rank3]:   File "train.py", line 9, in <module>', error]
    sent = [*node.process(batch([(START + number, text) for number, text in enumerate(told)], resource))]
    for _ in range(10):
        clock.now += 5 * SECOND
        sent += node.tick(clock.now)
    received = [wire.read(one.payload) for one in over_the_wire(sent)]
    (lines,) = [tuple(found) for one in received for found in one.lines.values()][:1]
    assert "Traceback" in lines[0]
    assert "ValueError: no access with" in lines[-1]
    assert "hf_abc" not in str(lines)


def test_a_source_waits_until_the_facts_of_its_lines_have_arrived() -> None:
    clock = Clock(START)
    node = detector(clock, forward="facts")
    committed: list[str] = []
    ack = Ack(lambda: committed.append("crash"))
    resource = {"host.name": "n1"}
    list(node.process(batch([(START + n, text) for n, text in enumerate(CRASH)], resource, acks=(ack,))))
    clock.now += 2 * SECOND
    (sent,) = node.tick(clock.now)
    assert committed == []
    sent.done()
    assert committed == ["crash"]


def test_lines_that_say_nothing_are_done_with_soon() -> None:
    clock = Clock(START)
    node = detector(clock, forward="facts")
    committed: list[str] = []
    ack = Ack(lambda: committed.append("noise"))
    list(node.process(batch([(START, "nothing happened")], {"host.name": "n1"}, acks=(ack,))))
    for _ in range(20):
        clock.now += SECOND // 10
        assert list(node.tick(clock.now)) == []
    assert committed == ["noise"]


def test_a_fact_that_cannot_be_read_is_counted_and_the_others_are_joined() -> None:
    clock = Clock(START)
    node, joiner = detector(clock, forward="facts"), detector(clock, tell="incidents")
    list(node.process(batch([(START + n, text) for n, text in enumerate(CRASH)], {"host.name": "n1"})))
    clock.now += 2 * SECOND
    (sent,) = node.tick(clock.now)
    forged = msgspec.json.decode(msgspec.json.encode(sent.payload["resource_logs"][0]))
    forged["scope_logs"][0]["log_records"][0]["attributes"]["tracecore.fact.kind"] = "of_the_future"
    sent.payload["resource_logs"].append(forged)
    list(joiner.process(sent))
    clock.now += 60 * SECOND
    found = [attributes for one in joiner.tick(clock.now) for attributes, _ in told(one)]
    clock.now += 20 * SECOND
    found += [attributes for one in joiner.tick(clock.now) for attributes, _ in told(one)]
    assert [attributes["pattern.name"] for attributes in found] == ["worker_crash"]
    assert joiner.meter.events["fact_unknown_kind"] == 1  # type: ignore[attr-defined]


def test_an_alert_of_an_incident_is_known_by_the_same_labels_whatever_the_diagnosis() -> None:
    attributes = {
        "incident.id": "incident-1", "incident.state": "open", "incident.headline": "a", "incident.remediation": "b",
        "incident.class": "code", "gen_ai.training.job_id": "job-7",
    }  # fmt: skip
    record = {"time_unix_nano": START, "observed_time_unix_nano": START + SECOND}
    first = alert(attributes, record, {"cluster": "eu"})
    better = alert({**attributes, "pattern.name": "cuda_oom", "incident.headline": "c"}, record, {"cluster": "eu"})
    assert first["labels"] == better["labels"]
    assert first["labels"]["incident_id"] == "incident-1"
    assert "endsAt" not in first
    over = alert({**attributes, "incident.state": "resolved"}, record, {"cluster": "eu"})
    assert over["labels"] == first["labels"]
    assert over["endsAt"] > over["startsAt"]


def steps(fleet: Fleet, seconds: range, ranks: Iterable[int]) -> None:
    for second in seconds:
        for rank in ranks:
            resource = {"host.name": f"node-{rank}", "gen_ai.training.job_id": "job-7", "gen_ai.training.rank": rank}
            time = START + second * SECOND
            fleet.line(time, f"[rank{rank}]: step {second} loss 2.0 time 1.0", resource)


def test_a_node_whose_heartbeats_stop_is_lost_and_one_that_is_only_quiet_is_not() -> None:
    for dies in (True, False):
        fleet = Fleet(START)
        fleet.nodes = [detector(fleet.clock, forward="facts") for _ in range(2)]
        steps(fleet, range(60), (0, 1))
        if dies:
            del fleet.nodes[sum(b"node-1") % 2]
        for second in range(60, 200):
            fleet.clock.now = START + second * SECOND
            for node in fleet.nodes:
                fleet.carry(node.tick(fleet.clock.now))
            fleet.hear(fleet.joiner.tick(fleet.clock.now))
        patterns = {attributes.get("pattern.name") for attributes in fleet.incidents().values()}
        assert ("host_lost" in patterns) == dies


class Killed(Fleet):
    """The same, whose joining process is killed now and then; what it had stored is all that the next one has."""

    def __init__(self, start: int, directory: Path, seed: int) -> None:
        self.directory = directory
        self.storage: FileStorageExtension | None = None
        self.kills = 0
        super().__init__(start, seed)

    def join(self) -> PatternDetector:
        if self.storage is not None:
            self.storage.stop()
        meter = Meter("extension", "file_storage")
        setting = Setting("file_storage", meter, self.clock, {}.__getitem__, Path(), lambda: (True, {}))
        options = FileStorageConfig(directory=str(self.directory), create_directory=True)
        self.storage = FileStorageExtension(options, setting)
        self.storage.start()
        one = detector(
            self.clock,
            {"file_storage": self.storage},
            forward="verdicts",
            tell="incidents",
            incidents=IncidentOptions(settle=5 * SECOND),
            storage="file_storage",
        )
        one.start()
        return one

    def hear(self, batches: Iterable[Batch]) -> None:
        for one in batches:
            if self.chance.random() < 0.3:
                self.kill()  # before it was delivered
            else:
                self.records += told(one)
                one.done()

    def kill(self) -> None:
        if self.kills < 8:
            self.kills += 1
            self.joiner = self.join()

    def line(self, time: int, text: str, resource: dict[str, Any]) -> None:
        super().line(time, text, resource)
        if self.chance.random() < 0.02:
            self.kill()


@pytest.mark.parametrize("scenario", ["nccl_rank_exception", "oom_one_rank", "ckpt_enospc"])
def test_a_joining_process_that_is_killed_goes_on_with_the_same_incident(
    incidents: Path, tmp_path: Path, scenario: str
) -> None:
    (expected, *_) = diagnose([incidents / scenario]).incidents
    lines = lines_of(incidents / scenario)
    fleet = Killed(lines[0][0], tmp_path / "state", seed=int(os.environ.get("TRACECORE_LIVE_SEED", "1")))
    for time, _, text, resource in lines:
        fleet.line(time, text, resource)
    for _ in range(6):
        fleet.wait(4)
        fleet.kill()
    fleet.wait(75)
    assert fleet.kills
    (incident,) = fleet.incidents().values()
    assert expected.root is not None
    assert incident["pattern.name"] == expected.root.verdict.pattern_name
    assert msgspec.json.decode(incident["incident.json"])["suspects"]["ranks"] == list(expected.suspects.ranks)
    revisions = [attributes["incident.revision"] for attributes, _ in fleet.records]
    assert revisions == list(range(1, len(revisions) + 1))
