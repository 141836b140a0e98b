"""The `k8sobjects` receiver: records in the Collector's shape, positions, bounds."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tracecore.agent.batch import Batch, Refused
from tracecore.agent.component import Setting
from tracecore.agent.configuration import ConfigurationError, read
from tracecore.agent.receivers import k8sobjects
from tracecore.agent.receivers.delivery import DeliveredPositions
from tracecore.agent.receivers.k8sobjects import Backlog, K8sObjects, Object, Options
from tracecore.agent.telemetry import Meter

Until = Callable[..., Any]


class Store:
    def __init__(self) -> None:
        self.held: dict[str, bytes] = {}

    def client(self, name: str) -> Store:
        return self

    def items(self) -> Iterator[tuple[str, bytes]]:
        return iter(list(self.held.items()))

    def update(self, changes: dict[str, bytes]) -> None:
        self.held.update(changes)


class Receiving:
    def __init__(self, store: Store, options: dict[str, Any]) -> None:
        self.meter = Meter("receiver", "k8sobjects")
        self.batches: list[Batch] = []
        self.refuses = False
        self.keeps = False
        setting = Setting("k8sobjects", self.meter, lambda: 1_000, lambda _: store, Path(), lambda: (True, {}))
        self.receiver = K8sObjects(Options(auth_type="none", storage="file_storage", **options), setting)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self.receiver.run, args=(self._take, self._stop), daemon=True)
        self._thread.start()

    def _take(self, batch: Batch) -> None:
        if self.refuses:
            raise Refused("no room")
        self.batches.append(batch)
        if not self.keeps:
            batch.done()

    def records(self) -> list[tuple[dict[str, Any], str, dict[str, Any]]]:
        """Resource, scope and record of everything that came."""
        return [
            (entry["resource"]["attributes"], scope["scope"]["name"], record)
            for batch in list(self.batches)
            for entry in batch.view()["resource_logs"]
            for scope in entry["scope_logs"]
            for record in scope["log_records"]
        ]

    def names(self) -> list[str]:
        return [record["body"]["object"]["metadata"]["name"] for _, _, record in self.records()]

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(20)
        assert not self._thread.is_alive()
        self.receiver.close()


@pytest.fixture
def store() -> Store:
    return Store()


@pytest.fixture
def receive(replay: Any, store: Store, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Receiving]]:
    monkeypatch.setattr(k8sobjects, "NOTES", 0.0)
    started: list[Receiving] = []

    def start(**options: Any) -> Receiving:
        started.append(Receiving(store, options))
        return started[-1]

    yield start
    for one in started:
        one.stop()


def watching(name: str, **more: Any) -> list[Object]:
    return [Object(name=name, mode="watch", **more)]


def test_a_watched_object_is_a_record_as_the_collector_makes_it(
    replay: Any, receive: Any, lines: Any, until: Until
) -> None:
    replay.lists["/api/v1/events"] = b'{"metadata":{"resourceVersion":"1"}}'
    one = receive(objects=watching("events"))
    told = lines("events.watch.jsonl")
    replay.watches.put(told)
    until(lambda: len(one.records()) == len(told))
    for line, (resource, scope, record) in zip(told, one.records(), strict=True):
        original = json.loads(line)
        assert resource == {"k8s.namespace.name": "ml"}
        assert scope.endswith("/k8sobjectsreceiver")
        assert record == {
            "body": {"type": original["type"], "object": original["object"]},
            "attributes": {
                "k8s.resource.name": "events",
                "event.domain": "k8s",
                "event.name": original["object"]["metadata"]["name"],
            },
            "observed_time_unix_nano": 1_000,
        }


def test_a_pulled_object_is_the_body_itself(replay: Any, receive: Any, until: Until) -> None:
    one = receive(objects=[Object(name="nodes")])
    until(lambda: len(one.records()) == 2)
    resource, _, record = one.records()[0]
    assert resource == {}
    assert record["attributes"] == {"k8s.resource.name": "nodes"}
    assert record["body"]["kind"] == "Node"
    assert record["body"]["apiVersion"] == "v1"


def test_selectors_and_namespaces_go_to_the_server(replay: Any, receive: Any, until: Until) -> None:
    wanted = Object(
        name="pods", mode="watch", namespaces=["a", "b"], label_selector="tier in (train)",
        field_selector="status.phase=Running",
    )  # fmt: skip
    for space in "ab":
        replay.lists[f"/api/v1/namespaces/{space}/pods"] = b'{"metadata":{"resourceVersion":"1"}}'
    receive(objects=[wanted])
    until(lambda: len(replay.versions()) == 2)
    assert {path for path, _ in replay.asked} == {"/api/v1/namespaces/a/pods", "/api/v1/namespaces/b/pods"}
    assert all(query["labelSelector"] == "tier in (train)" for _, query in replay.asked)
    assert all(query["fieldSelector"] == "status.phase=Running" for _, query in replay.asked)


def test_what_there_is_is_told_only_where_it_is_wanted(replay: Any, receive: Any, change: Any, until: Until) -> None:
    one = receive(objects=watching("pods"))
    other = receive(objects=watching("pods"), include_initial_state=True)
    until(lambda: len(other.names()) == 3)
    until(lambda: replay.open == 2)
    assert {record["body"]["type"] for _, _, record in other.records()} == {"ADDED"}
    assert one.names() == []


def test_kinds_of_change_can_be_left_out_and_still_move_the_position(
    replay: Any, receive: Any, store: Store, change: Any, until: Until
) -> None:
    one = receive(objects=watching("pods", exclude_watch_type=["DELETED"], resource_version="100"))
    replay.lists["/api/v1/pods"] = b'{"metadata":{"resourceVersion":"102"}}'
    replay.watches.put([change("ADDED", "a", 101), change("DELETED", "a", 102)])
    until(lambda: store.held.get("/pods@") == b"102")
    assert one.names() == ["a"]
    assert replay.versions()[0] == "100"


def test_a_position_is_kept_only_of_what_has_left_the_agent(
    replay: Any, receive: Any, store: Store, change: Any, until: Until
) -> None:
    replay.lists["/api/v1/pods"] = b'{"metadata":{"resourceVersion":"1"}}'
    one = receive(objects=watching("pods"))
    one.keeps = True
    replay.watches.put([change("ADDED", "a", 101)])
    until(lambda: one.names() == ["a"])
    replay.watches.put([change("ADDED", "b", 102)])
    until(lambda: one.names() == ["a", "b"])
    one.batches[1].done()
    time.sleep(0.3)
    assert store.held.get("/pods@") in (None, b"1"), "what came before it is still on its way"
    one.batches[0].done()
    until(lambda: store.held.get("/pods@") == b"102")
    one.stop()
    replay.lists["/api/v1/pods"] = b'{"metadata":{"resourceVersion":"200"}}'
    receive(objects=watching("pods"))
    until(lambda: replay.versions()[-1] == "102")


def test_while_nobody_takes_more_nothing_is_lost_and_little_is_held(
    replay: Any, receive: Any, change: Any, until: Until, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(k8sobjects, "BACKLOG", (64, 1 << 20))
    monkeypatch.setattr(Backlog.__init__, "__defaults__", (64, 1 << 20))
    replay.lists["/api/v1/pods"] = b'{"metadata":{"resourceVersion":"1"}}'
    one = receive(objects=watching("pods"))
    one.refuses = True
    told = [change("ADDED", f"p-{n}", 10 + n) for n in range(2_000)]
    replay.watches.put(told)
    depth = one.meter
    until(lambda: depth.queue_depth is not None and depth.queue_depth() == 64)
    time.sleep(0.2)
    assert depth.queue_depth() == 64
    one.refuses = False
    until(lambda: len(one.names()) == 2_000)
    assert one.names() == [f"p-{n}" for n in range(2_000)]


def test_a_resource_that_does_not_exist_is_named_and_the_others_go_on(replay: Any, receive: Any, until: Until) -> None:
    one = receive(objects=[Object(name="pytorchjobs"), Object(name="nodes")])
    until(lambda: len(one.records()) == 2)
    until(lambda: one.meter.degraded_reason == 'the API server has no resource "pytorchjobs"')


def test_a_lone_large_object_goes_through_a_small_backlog() -> None:
    backlog = Backlog(most=10, size=4)
    feed: Any = None
    assert backlog.put(k8sobjects._Told(feed, "ADDED", "1", b"x" * 100))
    assert len(backlog.take(0)) == 1
    backlog.close()
    assert not backlog.put(k8sobjects._Told(feed, "ADDED", "2", b""))


def test_positions_follow_the_order_of_sending() -> None:
    reached: dict[str, str] = {}
    positions = DeliveredPositions(reached.update)
    first, second = positions.ack({"a": "1"}), positions.ack({"a": "2", "b": "9"})
    second.release()
    assert reached == {}
    first.release()
    assert reached == {"a": "2", "b": "9"}


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("objects: []", "name at least one kind"),
        ("objects: [{name: pods, mode: poll}]", 'no such value "poll"; did you mean "pull"'),
        ("objects: [{name: pods, mode: pull, exclude_watch_type: [ADDED]}]", "is for mode: watch only"),
        ("objects: [{name: pods, mode: watch, interval: 1m}]", "is for mode: pull only"),
        ("{auth_type: token, objects: [{name: pods}]}", 'no such value "token"'),
        ("{context: prod, objects: [{name: pods}]}", "is for auth_type: kubeConfig only"),
    ],
)
def test_mistakes_in_its_configuration_are_found(tmp_path: Path, text: str, problem: str) -> None:
    path = tmp_path / "agent.yaml"
    path.write_text(
        "receivers:\n  k8sobjects:\n    "
        + (text if text[0] != "{" else "\n    ".join(text.strip("{}").split(", ", 1)))
        + "\nexporters: {debug: {}}\nservice: {pipelines: {logs: {receivers: [k8sobjects], exporters: [debug]}}}\n"
    )
    with pytest.raises(ConfigurationError, match=problem):
        read([path])


def test_the_collector_s_own_example_is_read(tmp_path: Path) -> None:
    path = tmp_path / "agent.yaml"
    path.write_text(
        """
receivers:
  k8sobjects:
    auth_type: serviceAccount
    objects:
      - name: pods
        mode: pull
        label_selector: environment in (production),tier in (frontend)
        field_selector: status.phase=Running
        interval: 15m
      - name: events
        mode: watch
        group: events.k8s.io
        namespaces: [default]
exporters: {debug: {}}
service: {pipelines: {logs: {receivers: [k8sobjects], exporters: [debug]}}}
"""
    )
    configuration, warnings = read([path])
    assert not warnings
    options = configuration.components["receiver", "k8sobjects"].options
    assert options.objects[0].interval == 900 * 1_000_000_000
