"""The `k8sobjects` receiver against a real API server that checks rights."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from tracecore.agent.receivers.k8sobjects import SCOPE, Object

pytestmark = pytest.mark.interop
ROOT = Path(__file__).resolve().parents[3]
RESOURCES = ("events", "pods", "nodes")
_numbers = itertools.count()


def rules(*verbs: str) -> list[dict[str, Any]]:
    return [{"apiGroups": [""], "resources": list(RESOURCES), "verbs": list(verbs)}]


def unique(name: str) -> str:
    return f"{name}-{next(_numbers)}"


def deployed(component: str) -> list[dict[str, Any]]:
    """The rules of the role that is deployed for a component."""
    for path in sorted((ROOT / "deploy" / "kustomize" / "base").glob("*.yaml")):
        for document in YAML(typ="safe").load_all(path.read_text()):
            if document and document["kind"] == "ClusterRole" and document["metadata"]["name"].endswith(component):
                found: list[dict[str, Any]] = document["rules"]
                return found
    raise AssertionError(f"nothing is deployed for {component}")


def watching(*names: str, **more: Any) -> list[Object]:
    return [Object(name=name, mode="watch", **more) for name in names]


def test_with_the_deployed_role_every_change_is_told(
    server: Any, account: Any, receive: Any, until: Callable[..., Any]
) -> None:
    account(server.account(unique("deployed"), deployed("cluster")))
    node, pod = unique("node"), unique("pod")
    receiver = receive(objects=watching(*RESOURCES))
    until(receiver.ready)
    server.node(node, Ready="True")
    made = server.pod(pod, node)
    event = server.event(made, "FailedMount", "MountVolume.SetUp failed", node)["metadata"]["name"]
    server.status(pod, {"phase": "Running"})
    server.call("DELETE", f"/api/v1/namespaces/default/pods/{pod}")
    until(lambda: pod in receiver.names("DELETED") and event in receiver.names())
    assert receiver.names("ADDED").count(pod) == 1
    assert pod in receiver.names("MODIFIED")
    assert not receiver.meter.degraded
    (resource, record), *_ = [
        (resource, record) for resource, record in receiver.records if record["attributes"].get("event.name") == event
    ]
    assert resource == {"k8s.namespace.name": "default"}
    assert record["attributes"] == {"k8s.resource.name": "events", "event.domain": "k8s", "event.name": event}
    assert record["body"]["type"] == "ADDED"
    assert record["body"]["object"]["kind"] == "Event"
    assert record["body"]["object"]["involvedObject"]["name"] == pod
    assert "time_unix_nano" not in record
    assert SCOPE.endswith("k8sobjectsreceiver")


def test_what_there_is_is_told_first_where_that_is_wanted(server: Any, account: Any, receive: Any, until: Any) -> None:
    account(server.account(unique("initial"), rules("list", "watch")))
    node = unique("node")
    server.node(node, Ready="True")
    without = receive(objects=watching("nodes"))
    receiver = receive(objects=watching("nodes", include_initial_state=True))
    until(lambda: node in receiver.names("ADDED") and receiver.ready() and without.ready())
    later = unique("node")
    server.node(later, Ready="True")
    until(lambda: later in receiver.names("ADDED") and later in without.names("ADDED"))
    assert node not in without.names()
    body = next(body for body in receiver.bodies() if body["object"]["metadata"]["name"] == node)
    assert body["object"]["kind"] == "Node"
    assert body["object"]["apiVersion"] == "v1"


def test_a_pull_lists_all_objects_in_pages(
    server: Any, account: Any, receive: Any, until: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tracecore.signals.kubernetes.watch.PAGE", 2)
    account(server.account(unique("pull"), rules("list")))
    space = unique("space")
    server.namespace(space)
    names = [unique("pod") for _ in range(5)]
    for name in names:
        server.pod(name, "node-of-none", space, labels={"tier": "train"})
    server.pod(unique("other"), "node-of-none", space)
    pods = Object(name="pods", namespaces=[space], label_selector="tier=train", interval=3_600_000_000_000)
    receiver = receive(objects=[pods])
    until(lambda: len(receiver.records) >= 5)
    assert sorted(body["metadata"]["name"] for body in receiver.bodies()) == sorted(names)
    assert {body["kind"] for body in receiver.bodies()} == {"Pod"}
    assert all(record["attributes"] == {"k8s.resource.name": "pods"} for _, record in receiver.records)


def test_resources_of_other_groups_are_found_by_asking(server: Any, account: Any, receive: Any, until: Any) -> None:
    role = [{"apiGroups": ["coordination.k8s.io", "events.k8s.io"], "resources": ["*"], "verbs": ["list", "watch"]}]
    account(server.account(unique("groups"), role))
    lease, space = unique("lease"), unique("space")
    server.namespace(space)
    server.call("POST", f"/apis/coordination.k8s.io/v1/namespaces/{space}/leases", {"metadata": {"name": lease}})
    leases = Object(name="leases", mode="watch", include_initial_state=True)
    receiver = receive(objects=[leases, Object(name="events", group="events.k8s.io", mode="watch")])
    until(lambda: lease in receiver.names() and receiver.ready())
    pod = server.pod(unique("pod"), "node-of-none", space)
    event = server.event(pod, "Killing", "Stopping container main")["metadata"]["name"]
    until(lambda: event in receiver.names())
    body = next(body for body in receiver.bodies() if body["object"]["metadata"]["name"] == event)
    assert body["object"]["apiVersion"] == "events.k8s.io/v1"
    assert body["object"]["regarding"]["kind"] == "Pod"


@pytest.mark.parametrize("resource", RESOURCES)
@pytest.mark.parametrize(
    ("verbs", "state"),
    [
        (("list",), "missing right: watch {0}: {0} are listed every 1 s instead"),
        (("watch",), "missing right: list {0}: {0} are watched without a list"),
        ((), "missing right: list {0}; missing right: watch {0}"),
    ],
    ids=["no watch", "no list", "nothing"],
)
def test_without_a_right_it_does_what_it_can_and_says_which(
    server: Any, account: Any, receive: Any, until: Any, resource: str, verbs: tuple[str, ...], state: str
) -> None:
    name = unique("rights")
    others = [kind for kind in RESOURCES if kind != resource]
    role = [
        {"apiGroups": [""], "resources": others, "verbs": ["list", "watch"]},
        {"apiGroups": [""], "resources": [resource], "verbs": list(verbs)},
    ]
    account(server.account(name, [rule for rule in role if rule["verbs"]]))
    receiver = receive(objects=watching(*RESOURCES))
    until(lambda: receiver.meter.degraded_reason == state.format(resource))
    node, pod = unique("node"), unique("pod")
    server.node(node, Ready="True")
    made = server.pod(pod, node)
    event = server.event(made, "Killing", "Stopping container main")["metadata"]["name"]
    told = {"nodes": node, "pods": pod, "events": event}
    if not verbs:
        del told[resource]
    until(lambda: set(told.values()) <= set(receiver.names("ADDED")))
    assert len([n for n in receiver.names("ADDED") if n == told.get(resource)]) <= 1
    server.grant(name, rules("list", "watch"))
    if verbs != ("watch",):  # a watch that works is left alone until it is renewed
        until(lambda: not receiver.meter.degraded)
        later = unique("node")
        server.node(later, Ready="True")
        until(lambda: later in receiver.names("ADDED"))


def test_an_unknown_account_is_named(server: Any, account: Any, receive: Any, until: Any) -> None:
    account("no-such-token")
    receiver = receive(objects=watching("events"))
    until(lambda: "does not know who asks (401 on list events)" in receiver.meter.degraded_reason)


def test_nothing_is_lost_or_told_twice_over_a_restart_and_a_compaction(
    server: Any, account: Any, receive: Any, until: Any
) -> None:
    account(server.account(unique("resume"), rules("list", "watch")))
    space = unique("space")
    server.namespace(space)
    pod = server.pod(unique("pod"), "node-of-none", space)

    def happen(count: int) -> list[str]:
        return [server.event(pod, "Pulled", "Container image")["metadata"]["name"] for _ in range(count)]

    options: dict[str, Any] = {"objects": watching("events", namespaces=[space])}
    first = receive(**options)
    until(first.ready)
    before = happen(3)
    until(lambda: set(before) <= set(first.names()))
    first.stop()
    meanwhile = happen(4)
    second = receive(**options)
    until(lambda: set(meanwhile) <= set(second.names()))
    second.stop()
    away = happen(4)
    server.compact()
    third = receive(**options)
    until(lambda: set(away) <= set(third.names()))
    later = happen(2)
    until(lambda: set(later) <= set(third.names()))
    told = [*first.names(), *second.names(), *third.names()]
    assert len(told) == len(set(told))
    assert set(second.names()) == set(meanwhile)
    assert set(third.names()) == {*away, *later}


def test_a_watch_survives_the_end_of_the_server(server: Any, account: Any, receive: Any, until: Any) -> None:
    account(server.account(unique("survive"), rules("list", "watch")))
    space = unique("space")
    server.namespace(space)
    receiver = receive(objects=watching("pods", "events", namespaces=[space]))
    early = [unique("pod") for _ in range(3)]
    until(receiver.ready)
    for name in early:
        server.pod(name, "node-of-none", space)
    until(lambda: early[-1] in receiver.names())
    server.kill()
    until(lambda: "the API server" in receiver.meter.degraded_reason)
    server.start()
    late = [unique("pod") for _ in range(3)]
    pods = [server.pod(name, "node-of-none", space) for name in late]
    events = [server.event(pod, "Pulled", "Container image")["metadata"]["name"] for pod in pods]
    until(lambda: {*late, *events} <= set(receiver.names()), 90)
    until(lambda: not receiver.meter.degraded)
    told = receiver.names("ADDED")
    assert len(told) == len(set(told))
