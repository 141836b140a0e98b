"""Processors by themselves: batch, rankjoin, filter, attributes, memory_limiter."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from tracecore.agent.batch import Ack, Batch, Refused
from tracecore.agent.component import Setting
from tracecore.agent.processors import batch as batching
from tracecore.agent.processors import memory_limiter, rankjoin
from tracecore.agent.processors.actions import AttributeAction, compile_actions
from tracecore.agent.processors.filter import FilterProcessor, Logs, Metrics
from tracecore.agent.processors.filter import Options as FilterOptions
from tracecore.agent.telemetry import Meter
from tracecore.signals.otlp import encoding

SECOND = 1_000_000_000


class Clock:
    now = 1_790_000_000 * SECOND

    def __call__(self) -> int:
        return self.now


def setting(clock: Clock | None = None) -> Setting:
    return Setting("p", Meter("processor", "p"), clock or Clock(), {}.__getitem__, Path(), lambda: (True, {}))


def logs(bodies: list[str], acks: tuple[Ack, ...] = (), **resource: Any) -> Batch:
    records = [{"body": body, "attributes": {}} for body in bodies]
    attributes = {name.replace("_", "."): value for name, value in resource.items()}
    entry = {"resource": {"attributes": attributes}, "scope_logs": [{"scope": {}, "log_records": records}]}
    return Batch("logs", {"resource_logs": [entry]}, acks=acks)


def bodies(batch: Batch) -> list[str]:
    return [r["body"] for e in batch.view()["resource_logs"] for s in e["scope_logs"] for r in s["log_records"]]


def test_batches_are_joined_until_there_are_enough_and_cut_where_there_are_too_many() -> None:
    clock, done = Clock(), []
    one = batching.BatchProcessor(
        batching.Options(send_batch_size=5, send_batch_max_size=5, timeout=SECOND), setting(clock)
    )
    assert list(one.process(logs(["a", "b"], (Ack(lambda: done.append("first")),)))) == []
    assert one.due() == clock.now + SECOND
    out = list(one.process(logs(["c", "d", "e", "f", "g"], (Ack(lambda: done.append("second")),))))
    assert [bodies(b) for b in out] == [["a", "b", "c", "d", "e"], ["f", "g"]]
    out[0].done()
    assert done == ["first"]  # nothing of it is in the rest
    out[1].done()
    assert done == ["first", "second"]
    assert one.due() is None


def test_batches_that_nobody_has_looked_into_are_joined_as_bytes() -> None:
    one = batching.BatchProcessor(batching.Options(send_batch_size=3), setting())
    raw = [encoding.encode("logs", logs([name]).payload) for name in "abc"]
    assert [list(one.process(Batch("logs", raw=r, count=1))) for r in raw[:2]] == [[], []]
    (joined,) = one.process(Batch("logs", raw=raw[2], count=1))
    assert joined.untouched
    assert (joined.count, bodies(joined)) == (3, ["a", "b", "c"])


def test_a_batch_waits_no_longer_than_its_time() -> None:
    clock = Clock()
    one = batching.BatchProcessor(batching.Options(timeout=SECOND), setting(clock))
    list(one.process(logs(["a"])))
    assert list(one.tick(clock.now + SECOND - 1)) == []
    assert [bodies(b) for b in one.tick(clock.now + SECOND)] == [["a"]]


def ranks(batch: Batch) -> list[Any]:
    return [entry["resource"]["attributes"].get("gen_ai.training.rank") for entry in batch.view()["resource_logs"]]


def test_records_of_a_pod_wait_for_its_rank_and_keep_their_order() -> None:
    clock = Clock()
    one = rankjoin.RankJoin(rankjoin.Options(), setting(clock))
    assert list(one.process(logs(["from the sidecar"], k8s_pod_uid="u1"))) == []
    assert list(one.process(logs(["again"], k8s_pod_uid="u1"))) == []
    # Nobody else waits for it.
    assert [bodies(b) for b in one.process(logs(["kernel"], host_name="n1"))] == [["kernel"]]
    assert [(bodies(b), ranks(b)) for b in one.process(logs(["[rank0]: x"], k8s_pod_uid="u2"))] == [
        (["[rank0]: x"], [0])
    ]
    out = list(one.process(logs(["[rank3]: hello"], k8s_pod_uid="u1")))
    assert [(bodies(b)[0], ranks(b)) for b in out] == [
        ("from the sidecar", [3]), ("again", [3]), ("[rank3]: hello", [3]),
    ]  # fmt: skip
    assert [ranks(b) for b in one.process(logs(["later"], k8s_pod_uid="u1"))] == [[3]]


def test_of_a_batch_only_the_records_of_pods_without_a_rank_wait() -> None:
    done: list[int] = []
    one = rankjoin.RankJoin(rankjoin.Options(), setting())
    mixed = logs(["u1 a"], k8s_pod_uid="u1")
    for body, resource in (
        ("kernel", {"host_name": "n1"}),
        ("[rank2]: b", {"k8s_pod_uid": "u2"}),
        ("u3 c", {"k8s_pod_uid": "u3"}),
    ):
        mixed.payload["resource_logs"] += logs([body], **resource).payload["resource_logs"]
    mixed = Batch("logs", mixed.payload, acks=(Ack(lambda: done.append(1)),), pause=7)
    (now,) = one.process(mixed)
    assert (bodies(now), ranks(now), now.count, now.pause) == (["kernel", "[rank2]: b"], [None, 2], 2, 7)
    now.done()
    assert done == []
    (first,) = one.process(Batch("logs", logs(["[rank1]: x"], k8s_pod_uid="u1").payload))[:1]
    assert (bodies(first), ranks(first)) == (["u1 a"], [1])
    first.done()
    assert done == []
    (last,) = one.drain(Clock.now)
    assert (bodies(last), ranks(last)) == (["u3 c"], [None])
    last.done()
    assert done == [1]


def test_a_pod_that_was_forgotten_while_its_records_wait() -> None:
    one = rankjoin.RankJoin(rankjoin.Options(max_pods=1), setting())
    assert list(one.process(logs(["a"], k8s_pod_uid="u1"))) == []
    assert list(one.process(logs(["b"], k8s_pod_uid="u2"))) == []
    assert list(one.process(logs(["c"], k8s_pod_uid="u1"))) == []
    assert [bodies(b) for b in one.drain(Clock.now)] == [["a"], ["c"], ["b"]]


def test_a_pod_without_a_rank_is_waited_for_once() -> None:
    clock = Clock()
    one = rankjoin.RankJoin(rankjoin.Options(), setting(clock))
    assert list(one.process(logs(["a"], k8s_pod_uid="u1"))) == []
    assert list(one.tick(clock.now + 5 * SECOND - 1)) == []
    assert [bodies(b) for b in one.tick(clock.now + 5 * SECOND)] == [["a"]]
    clock.now += 6 * SECOND
    assert [bodies(b) for b in one.process(logs(["b"], k8s_pod_uid="u1"))] == [["b"]]


def test_a_pod_of_several_ranks_gives_its_job_only() -> None:
    one = rankjoin.RankJoin(rankjoin.Options(), setting())
    resource = {"k8s.pod.uid": "u1", "k8s.pod.labels.gen_ai.training.io/job-id": "j7"}
    batch = logs(["[rank0]: x", "[rank1]: y"])
    batch.payload["resource_logs"][0]["resource"]["attributes"] = resource
    (out,) = one.process(batch)
    assert ranks(out) == [None]
    assert out.view()["resource_logs"][0]["resource"]["attributes"]["gen_ai.training.job_id"] == "j7"


def test_too_many_waiting_records_go_on() -> None:
    one = rankjoin.RankJoin(rankjoin.Options(max_held=2), setting())
    assert list(one.process(logs(["a", "b"], k8s_pod_uid="u1"))) == []
    assert [bodies(b) for b in one.process(logs(["c"], k8s_pod_uid="u2"))] == [["a", "b"]]
    assert [bodies(b) for b in one.drain(Clock.now)] == [["c"]]


def test_what_is_filtered_is_counted_and_an_empty_batch_is_done() -> None:
    done: list[int] = []
    where = setting()
    one = FilterProcessor(FilterOptions(logs=Logs(log_record=['IsMatch(body, "^a")'])), where)
    (out,) = one.process(logs(["a1", "b", "a2"]))
    assert bodies(out) == ["b"]
    assert list(one.process(logs(["a"], (Ack(lambda: done.append(1)),)))) == []
    assert (where.meter.dropped, done) == ({"filtered": 3}, [1])


def test_points_are_filtered_and_a_metric_without_points_goes() -> None:
    points = [{"attributes": {"gpu": "0"}, "as_int": 1}, {"attributes": {"gpu": "1"}, "as_int": 2}]
    metrics = [{"name": "m", "gauge": {"data_points": points}}, {"name": "n", "gauge": {"data_points": points[:1]}}]
    batch = Batch("metrics", {"resource_metrics": [{"resource": {}, "scope_metrics": [{"metrics": metrics}]}]})
    one = FilterProcessor(FilterOptions(metrics=Metrics(datapoint=['attributes["gpu"] == "0"'])), setting())
    (out,) = one.process(batch)
    left = out.view()["resource_metrics"][0]["scope_metrics"][0]["metrics"]
    assert [(m["name"], [p["as_int"] for p in m["gauge"]["data_points"]]) for m in left] == [("m", [2])]


@pytest.mark.parametrize(
    ("action", "before", "after"),
    [
        ({"action": "insert", "key": "a", "value": 1}, {"a": 2}, {"a": 2}),
        ({"action": "insert", "key": "a", "value": 1}, {}, {"a": 1}),
        ({"action": "update", "key": "a", "value": 1}, {}, {}),
        ({"action": "upsert", "key": "a", "from_attribute": "b"}, {"b": 3}, {"b": 3, "a": 3}),
        ({"action": "upsert", "key": "a", "from_attribute": "c"}, {"b": 3}, {"b": 3}),
        ({"action": "delete", "key": "a"}, {"a": 1, "b": 2}, {"b": 2}),
        ({"action": "delete", "pattern": "^x\\."}, {"x.a": 1, "b": 2}, {"b": 2}),
        ({"action": "extract", "key": "u", "pattern": "^(?P<host>[^:]+):(?P<port>.*)$"}, {"u": "h:1"},
         {"u": "h:1", "host": "h", "port": "1"}),
        ({"action": "convert", "key": "a", "converted_type": "int"}, {"a": "12"}, {"a": 12}),
        ({"action": "convert", "key": "a", "converted_type": "int"}, {"a": "twelve"}, {"a": "twelve"}),
        ({"action": "convert", "key": "a", "converted_type": "boolean"}, {"a": "true"}, {"a": True}),
        ({"action": "convert", "key": "a", "converted_type": "double"}, {"a": "1.5"}, {"a": 1.5}),
        ({"action": "hash", "key": "a"}, {"a": "x"},
         {"a": "2d711642b726b04401627ca9fbac32f5c8530fb1903cc4db02258717921a4881"}),
    ],
)  # fmt: skip
def test_actions_on_attributes(action: dict[str, Any], before: dict[str, Any], after: dict[str, Any]) -> None:
    compile_actions([AttributeAction(**action)])(before)
    assert before == after


def test_short_memory_refuses_until_there_is_more() -> None:
    where = setting()
    one = memory_limiter.MemoryLimiter(memory_limiter.Options(limit_mib=1), where)
    with pytest.raises(Refused, match="MiB are in use"):
        one.admit()
    assert where.meter.degraded
    plenty = memory_limiter.MemoryLimiter(memory_limiter.Options(limit_percentage=100), setting())
    plenty.admit()
    assert memory_limiter.Options(limit_mib=100, spike_limit_mib=30).bounds(0) == (70 << 20, 100 << 20)
    assert memory_limiter.Options(limit_mib=100).bounds(0) == (80 << 20, 100 << 20)


def test_a_copy_is_nobody_elses_and_is_waited_for() -> None:
    done: list[float] = []
    original = logs(["a"], (Ack(lambda: done.append(time.monotonic())),))
    copy = original.copy()
    copy.payload["resource_logs"][0]["scope_logs"][0]["log_records"][0]["body"] = "b"
    assert bodies(original) == ["a"]
    original.done()
    assert done == []
    copy.done()
    assert len(done) == 1
