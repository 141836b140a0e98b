"""What records get of the namespace and the node of their pod."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tracecore.agent.batch import Batch
from tracecore.agent.component import Setting
from tracecore.agent.following import Objects
from tracecore.agent.processors.k8sattributes import K8sAttributes
from tracecore.agent.processors.k8sattributes_options import Filter, Options
from tracecore.agent.processors.podfields import Annotation, Extract, PodLabel, Surrounding
from tracecore.agent.telemetry import Meter
from tracecore.signals.kubernetes import api
from tracecore.signals.kubernetes.watch import Collection, ObjectChange

Until = Callable[..., Any]
Made = Callable[..., tuple[K8sAttributes, Meter]]
WIDE = Extract(
    metadata=("k8s.pod.name", "k8s.node.uid", "k8s.cluster.uid"),
    labels=[
        PodLabel(key="team", from_="namespace"),
        PodLabel(key_regex="topology.kubernetes.io/(.*)", tag_name="place.$1", from_="node"),
    ],
    annotations=[Annotation(key="cost", tag_name="cost", from_="namespace"), Annotation(key="rack", from_="node")],
    training=False,
)


def listed(kind: str, *items: dict[str, Any]) -> bytes:
    return json.dumps(
        {"kind": f"{kind}List", "apiVersion": "v1", "metadata": {"resourceVersion": "300"}, "items": list(items)}
    ).encode()


def thing(name: str, **metadata: Any) -> dict[str, Any]:
    return {"metadata": {"name": name, "uid": f"uid-{name}", "resourceVersion": "7", **metadata}}


@pytest.fixture
def wide(replay: Any) -> Any:
    """A server with namespaces and nodes that have labels."""
    replay.lists["/api/v1/namespaces"] = listed(
        "Namespace",
        thing("ml", labels={"team": "vision"}, annotations={"cost": "17"}),
        thing("kube-system"),
    )
    replay.lists["/api/v1/nodes"] = listed(
        "Node", thing("gpu-7", labels={"topology.kubernetes.io/zone": "a"}, annotations={"rack": "r-2"})
    )
    return replay


@pytest.fixture
def made() -> Iterator[Made]:
    started: list[K8sAttributes] = []

    def make(**options: Any) -> tuple[K8sAttributes, Meter]:
        meter = Meter("processor", "k8sattributes")
        setting = Setting("k8sattributes", meter, lambda: 1, {}.__getitem__, Path(), lambda: (True, {}))
        options = {"extract": WIDE, "wait_for_metadata": True, **options}
        one = K8sAttributes(Options(auth_type="none", wait_for_pod=0, **options), setting)
        one.start()
        started.append(one)
        return one, meter

    yield make
    for one in started:
        one.stop()


def through(processor: K8sAttributes, attributes: dict[str, Any]) -> dict[str, Any]:
    entry = {"resource": {"attributes": dict(attributes)}, "scope_logs": [{"log_records": [{"body": "x"}]}]}
    (batch,) = processor.process(Batch("logs", {"resource_logs": [entry]}))
    found: dict[str, Any] = batch.payload["resource_logs"][0]["resource"]["attributes"]
    return found


def test_a_record_gets_what_its_namespace_and_its_node_have(wide: Any, made: Made) -> None:
    processor, meter = made()
    pod = {"k8s.namespace.name": "ml", "k8s.pod.name": "llama-worker-2"}
    assert through(processor, pod) == {
        **pod,
        "k8s.namespace.labels.team": "vision",
        "cost": "17",
        "place.zone": "a",
        "k8s.node.annotations.rack": "r-2",
        "k8s.node.uid": "uid-gpu-7",
        "k8s.cluster.uid": "uid-kube-system",
    }
    assert not meter.degraded


def test_a_record_of_no_pod_gets_what_it_names_and_keeps_what_it_has(wide: Any, made: Made) -> None:
    processor, _ = made()
    kernel = {"k8s.node.name": "gpu-7", "place.zone": "mine"}
    assert through(processor, kernel) == {
        **kernel,
        "k8s.node.annotations.rack": "r-2",
        "k8s.node.uid": "uid-gpu-7",
        "k8s.cluster.uid": "uid-kube-system",
    }


def test_a_label_that_is_changed_is_changed_here(wide: Any, made: Made, until: Until) -> None:
    processor, _ = made(extract=Extract(metadata=(), labels=[PodLabel(key="team", from_="namespace")]))
    pod = {"k8s.namespace.name": "ml"}
    until(lambda: wide.open == 2)
    body = {"kind": "Namespace", **thing("ml", labels={"team": "speech"}, resourceVersion="301")}
    line = json.dumps({"type": "MODIFIED", "object": body}).encode() + b"\n"

    def changed() -> bool:
        wide.watches.put([line])  # both watches read one queue, and this is for one of them
        return through(processor, pod).get("k8s.namespace.labels.team") == "speech"

    until(changed)


def test_only_what_is_asked_for_is_followed(wide: Any, made: Made, until: Until) -> None:
    made(filter=Filter(node="gpu-7"), extract=Extract(annotations=[Annotation(key="rack", from_="node")]))
    until(lambda: wide.open == 2)
    asked = {(path, query.get("fieldSelector")) for path, query in wide.asked}
    assert asked == {("/api/v1/pods", "spec.nodeName=gpu-7"), ("/api/v1/nodes", "metadata.name=gpu-7")}


@pytest.mark.parametrize("kind", ["namespaces", "nodes"])
def test_a_right_that_is_missing_is_named_and_pods_are_known_all_the_same(
    wide: Any, made: Made, until: Until, kind: str
) -> None:
    wide.closed.add(f"/api/v1/{kind}")
    processor, meter = made(wait_for_metadata=False)
    until(lambda: meter.degraded_reason == f"missing right: list {kind}; missing right: watch {kind}")
    pod = {"k8s.namespace.name": "ml", "k8s.pod.name": "llama-worker-2"}
    there = {"namespaces": "k8s.node.annotations.rack", "nodes": "k8s.namespace.labels.team"}[kind]
    gone = {"nodes": "k8s.node.annotations.rack", "namespaces": "k8s.namespace.labels.team"}[kind]
    until(lambda: there in through(processor, pod))
    assert gone not in through(processor, pod)
    wide.closed.clear()
    until(lambda: not meter.degraded)
    until(lambda: gone in through(processor, pod))


def test_two_rights_that_are_missing_are_both_named(wide: Any, made: Made, until: Until) -> None:
    wide.closed |= {"/api/v1/namespaces", "/api/v1/nodes"}
    _, meter = made(wait_for_metadata=False)
    until(lambda: "namespaces" in meter.degraded_reason and "nodes" in meter.degraded_reason)


def _nowhere() -> api.Way:
    raise api.ApiError("there is no server")


def test_what_a_list_does_not_have_any_more_is_forgotten_and_there_is_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tracecore.agent.following.MOST", 2)
    one = Objects(_nowhere, Collection("nodes"), "name", Surrounding(WIDE, "node"), print)

    def told(kind: Any, body: Any) -> None:
        one.following.apply(ObjectChange(kind, "1", json.dumps(body).encode()))

    for name in "abc":
        told("ITEM", thing(name))
    one.following.apply(ObjectChange("SYNCED", "1"))
    assert (sorted(one.known), one.following.overflow) == (["a", "b"], 1)
    told("ITEM", thing("b", labels={"topology.kubernetes.io/zone": "z"}))
    one.following.apply(ObjectChange("SYNCED", "2"))
    assert one.known == {"b": {"k8s.node.uid": "uid-b", "place.zone": "z"}}
    told("DELETED", thing("b"))
    told("ADDED", {"metadata": "nonsense"})
    told("ADDED", [1])
    assert (one.known, one.following.malformed) == ({}, 2)
