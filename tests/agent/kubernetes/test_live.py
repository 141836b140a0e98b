"""What objects say while they change is what a bundle of them says; each thing once."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tracecore.agent.batch import Batch
from tracecore.agent.component import Setting
from tracecore.agent.processors.patterndetector import Options, PatternDetector
from tracecore.agent.telemetry import Meter
from tracecore.diagnose.offline import diagnose
from tracecore.signals.kubernetes.live import Live, unwrapped
from tracecore.signals.record import LogSignal
from tracecore.signals.stamps import SECOND, parse

Lines = Callable[[str], list[bytes]]


def told(lines: list[bytes]) -> list[dict[str, Any]]:
    """Bodies of records, of a watch's lines."""
    return [body for line in lines if (body := json.loads(line))["type"] in ("ADDED", "MODIFIED", "DELETED")]


def said(live: Live, bodies: list[dict[str, Any]], now: int = 1) -> list[LogSignal]:
    found = []
    for body in bodies:
        opened = unwrapped(body)
        assert opened is not None
        found += list(live.signals(*opened, now))
    return found


def test_a_pod_that_is_told_again_says_nothing_again(lines: Lines) -> None:
    live = Live()
    bodies = told(lines("pods.watch.jsonl"))
    first = said(live, bodies)
    statements = [
        (s["resource"]["attributes"]["k8s.pod.name"], sorted(s["log"]["attributes"].keys() - {"k8s.object.kind"}))
        for s in first
    ]
    ready = [name for name, keys in statements if "k8s.pod.ready_time" in keys]
    assert sorted(ready) == [f"llama-worker-{n}" for n in range(4)]
    killed = [s for s in first if s["log"]["attributes"].get("k8s.container.terminated.reason") == "OOMKilled"]
    assert [s["resource"]["attributes"]["k8s.pod.name"] for s in killed] == ["llama-worker-1"]
    assert killed[0]["resource"]["attributes"]["gen_ai.training.job_id"] == "llama"
    assert killed[0]["resource"]["attributes"]["gpu.id"] == "0000:3c:00.0"
    reasons = [s["log"]["attributes"].get("k8s.event.reason") for s in first]
    assert reasons.count("Evicted") == 1
    assert reasons.count("EvictionByEvictionAPI") == 1
    assert said(live, bodies) == []


def test_a_killed_container_is_the_same_end_after_its_restart() -> None:
    ended = {"terminated": {"reason": "OOMKilled", "exitCode": 137, "finishedAt": "2026-11-15T01:37:00Z"}}
    status: dict[str, Any] = {"name": "main", "restartCount": 0, "state": ended}
    pod = {"kind": "Pod", "metadata": {"uid": "u", "name": "p"}, "status": {"containerStatuses": [status]}}
    live = Live()
    assert len(said(live, [{"type": "MODIFIED", "object": pod}])) == 1
    status |= {"restartCount": 1, "lastState": ended, "state": {"running": {}}}
    assert said(live, [{"type": "MODIFIED", "object": pod}]) == []
    again = {"terminated": {**ended["terminated"], "finishedAt": "2026-11-15T01:47:00Z"}}
    status |= {"restartCount": 2, "lastState": again}
    assert len(said(live, [{"type": "MODIFIED", "object": pod}])) == 1


def test_a_condition_that_comes_back_is_said_again(lines: Lines) -> None:
    live = Live()
    node = json.loads(lines("nodes.watch.jsonl")[0])["object"]
    node["status"]["conditions"] = [condition := {"type": "MemoryPressure", "status": "False"}]
    found = []
    for status, at in (("False", "00"), ("True", "10"), ("True", "10"), ("False", "20"), ("True", "30")):
        condition |= {"status": status, "lastTransitionTime": f"2026-11-15T01:00:{at}Z"}
        found += said(live, [{"type": "MODIFIED", "object": node}])
    assert [s["log"]["attributes"]["k8s.node.condition.status"] for s in found] == ["False", "True", "False", "True"]
    assert len({s["source"].uid for s in found}) == 4


def test_an_event_that_happens_again_counts_only_what_is_new(lines: Lines) -> None:
    live = Live()
    event = json.loads(lines("events.watch.jsonl")[0])["object"]
    event |= {"count": 3, "firstTimestamp": "2026-11-15T01:00:00Z", "lastTimestamp": "2026-11-15T01:02:00Z"}
    counts = []
    for kind, count, at in (("ADDED", 3, "02"), ("MODIFIED", 3, "02"), ("MODIFIED", 7, "09"), ("DELETED", 7, "09")):
        event |= {"count": count, "lastTimestamp": f"2026-11-15T01:{at}:00Z"}
        counts += [
            (s["log"]["attributes"]["k8s.event.count"], s["log"]["time_unix_nano"])
            for s in said(live, [{"type": kind, "object": event}])
        ]
    assert counts == [(3, parse("2026-11-15T01:02:00Z")), (4, parse("2026-11-15T01:09:00Z"))]


def test_an_event_gets_the_job_and_node_of_its_pod(lines: Lines) -> None:
    live = Live()
    said(live, told(lines("pods.watch.jsonl"))[:4])
    event = json.loads(lines("events.watch.jsonl")[0])["object"]
    event["source"] = {"component": "kubelet"}
    (signal,) = said(live, [{"type": "ADDED", "object": event}])
    attributes = signal["resource"]["attributes"]
    assert attributes["k8s.pod.name"] == "llama-worker-0"
    assert attributes["k8s.node.name"] == "gpu-7"
    assert attributes["gen_ai.training.job_id"] == "llama"
    assert attributes["gen_ai.training.rank"] == 0


@pytest.mark.parametrize(
    "body",
    [{}, {"kind": "Event"}, {"kind": "Secret", "metadata": {}}, {"type": "ADDED", "object": 3}, {"MESSAGE": "x"}],
)
def test_other_maps_are_no_objects(body: dict[str, Any]) -> None:
    assert unwrapped(body) is None


@pytest.mark.parametrize(
    "item",
    [
        {"kind": "Pod", "metadata": None, "status": 5},
        {"kind": "Pod", "metadata": {"labels": [1], "uid": 3}, "status": {"conditions": [None, 5, {"type": []}]}},
        {"kind": "Pod", "metadata": {}, "spec": {"containers": [{"resources": {"limits": {"x/gpu": "9" * 99}}}]}},
        {"kind": "Node", "metadata": {"uid": {}}, "status": {"conditions": {"type": "Ready"}}},
        {"kind": "Event", "metadata": {}, "count": "many", "involvedObject": [], "lastTimestamp": 7},
    ],
)
def test_hostile_objects_do_no_harm(item: dict[str, Any]) -> None:
    live = Live()
    for _ in range(2):
        for signal in live.signals("MODIFIED", item, 1):
            assert isinstance(signal["log"]["time_unix_nano"], int)


def verdicts(batches: Any) -> list[dict[str, Any]]:
    return [
        record["attributes"]
        for one in batches
        for entry in one.view()["resource_logs"]
        for scope in entry["scope_logs"]
        for record in scope["log_records"]
        if "pattern.name" in record["attributes"]
    ]


def test_live_and_offline_name_the_same(lines: Lines, recorded: Callable[[str], bytes], tmp_path: Path) -> None:
    bundle = {}
    bodies = []
    for kind in ("nodes", "pods", "events"):
        bodies += told(lines(f"{kind}.watch.jsonl"))
        bundle[kind] = recorded(f"{kind}.list.json")
        (tmp_path / f"{kind}.json").write_bytes(bundle[kind])
    events = json.loads(bundle["events"])["items"]
    now = max(parse(item["lastTimestamp"]) or 0 for item in events) + 2 * SECOND
    meter = Meter("processor", "patterndetector")
    setting = Setting("patterndetector", meter, lambda: now, {}.__getitem__, Path(), lambda: (True, {}))
    detector = PatternDetector(Options(), setting)
    records = [{"body": body, "attributes": {}, "observed_time_unix_nano": now} for body in bodies]
    entry = {"resource": {"attributes": {}}, "scope_logs": [{"log_records": records}]}
    found = [*detector.process(Batch("logs", {"resource_logs": [entry]})), *detector.drain(now)]
    live = {(v["pattern.name"], v["pattern.confidence"]) for v in verdicts(found)}
    assert ("pod_evicted", "full") in live
    assert any(name == "host_oom" for name, _ in live)
    # The pod whose eviction was asked for is deleted: only the watch saw that it stopped as planned.
    offline = {(e.verdict.pattern_name, e.verdict.confidence) for e in diagnose([tmp_path]).verdicts}
    assert live - offline <= {("planned_stop", "full"), ("planned_stop", "partial")}
    assert offline <= live


def test_events_that_say_nothing_are_passed_over_and_none_that_says_something(lines: Lines) -> None:
    note = "The node was low on resource: memory."
    now = 1_794_706_624 * SECOND

    def event(number: int, reason: str, message: str) -> dict[str, Any]:
        about = {"kind": "Pod", "namespace": "ml", "name": f"w-{number}", "uid": f"p-{number}"}
        at = "2026-11-15T01:37:04Z"
        return {
            "kind": "Event", "metadata": {"uid": f"{reason}-{number}"}, "involvedObject": about, "reason": reason,
            "message": message, "source": {"component": "kubelet", "host": "node-7"}, "count": 1, "lastTimestamp": at,
        }  # fmt: skip

    meter = Meter("processor", "patterndetector")
    setting = Setting("patterndetector", meter, lambda: now, {}.__getitem__, Path(), lambda: (True, {}))
    detector = PatternDetector(Options(forward="verdicts"), setting)
    bodies = [event(n, "Pulled", f"Successfully pulled image in {n}s") for n in range(50)]
    # Told twice: the second time there is nothing new in it, which does not make its like dull.
    bodies += [event(0, "Evicted", note), event(0, "Evicted", note), event(1, "Evicted", note)]
    records = [{"body": {"type": "ADDED", "object": body}, "observed_time_unix_nano": now} for body in bodies]
    entry = {"resource": {"attributes": {}}, "scope_logs": [{"log_records": records}]}
    found = [*detector.process(Batch("logs", {"resource_logs": [entry]})), *detector.drain(now)]
    evicted = {v["k8s.pod.name"] for v in verdicts(found) if v["pattern.name"] == "pod_evicted"}
    assert evicted == {"w-0", "w-1"}
    assert len(detector.detection._records._dull) == 1
