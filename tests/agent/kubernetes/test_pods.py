"""What `k8sattributes` knows of pods, and what it does with records whose pod it does not know."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tracecore.agent.batch import Ack, Batch
from tracecore.agent.component import Setting
from tracecore.agent.processors import k8sattributes
from tracecore.agent.processors.k8sattributes import K8sAttributes
from tracecore.agent.processors.k8sattributes_options import Exclude, ExcludedPod, Filter, Options, PodSelector
from tracecore.agent.processors.podfields import Annotation, Extract, Extraction
from tracecore.agent.processors.pods import Pods
from tracecore.agent.receivers.otlp_grpc import peer_address
from tracecore.agent.telemetry import Meter
from tracecore.signals.kubernetes import api
from tracecore.signals.kubernetes.watch import Collection, ObjectChange

SECOND = 1_000_000_000
Until = Callable[..., Any]


def pod(name: str = "w-0", **parts: Any) -> dict[str, Any]:
    metadata = {"name": name, "namespace": "ml", "uid": f"uid-{name}", **parts.pop("metadata", {})}
    containers = [{"name": "main", "image": "registry.example:5000/ml/train:1.2@sha256:ab"}]
    spec = {"nodeName": "node-1", "containers": containers, **parts.pop("spec", {})}
    return {"metadata": metadata, "spec": spec, "status": parts.pop("status", {}), **parts}


def told(kind: Any, body: dict[str, Any]) -> ObjectChange:
    return ObjectChange(kind, "1", json.dumps(body).encode())


class Cache:
    """A cache that is told by hand."""

    def __init__(self, wanted: Extract | None = None, grace: float = 120.0) -> None:
        self.now = 0.0
        extraction = Extraction(wanted or Extract())
        self.pods = Pods(_nowhere, Collection("pods"), extraction, print, grace, lambda: self.now)


def _nowhere() -> api.Way:
    raise api.ApiError("there is no server")


def test_a_pod_that_is_gone_is_known_for_a_while_and_its_address_is_not() -> None:
    cache = Cache(grace=60)
    cache.pods.following.apply(told("ADDED", pod(status={"podIP": "10.0.0.1"})))
    cache.pods.following.apply(told("DELETED", pod()))
    assert "uid-w-0" in cache.pods.by_uid
    assert cache.pods.by_address == {}
    cache.now = 61
    cache.pods.following.apply(ObjectChange("BOOKMARK", "2"))
    assert len(cache.pods) == 0
    assert cache.pods.by_name == {}


def test_a_pod_of_the_same_name_takes_its_place() -> None:
    cache = Cache(grace=60)
    cache.pods.following.apply(told("ADDED", pod(metadata={"uid": "first"}, status={"podIP": "10.0.0.1"})))
    cache.pods.following.apply(told("DELETED", pod(metadata={"uid": "first"})))
    cache.pods.following.apply(told("ADDED", pod(metadata={"uid": "second"}, status={"podIP": "10.0.0.1"})))
    cache.now = 61
    cache.pods.following.apply(ObjectChange("BOOKMARK", "2"))
    assert cache.pods.by_name["ml", "w-0"].uid == "second"
    assert cache.pods.by_address["10.0.0.1"].uid == "second"
    assert list(cache.pods.by_uid) == ["second"]


def test_an_address_belongs_to_the_pod_that_has_it_now() -> None:
    cache = Cache()
    cache.pods.following.apply(told("ADDED", pod("a", status={"podIP": "10.0.0.1", "phase": "Running"})))
    cache.pods.following.apply(told("MODIFIED", pod("a", status={"podIP": "10.0.0.1", "phase": "Succeeded"})))
    assert "10.0.0.1" not in cache.pods.by_address
    cache.pods.following.apply(told("ADDED", pod("b", status={"podIPs": [{"ip": "10.0.0.1"}, {"ip": "fd00::1"}]})))
    assert {address: known.uid for address, known in cache.pods.by_address.items()} == {
        "10.0.0.1": "uid-b",
        "fd00::1": "uid-b",
    }
    host = pod("host", spec={"hostNetwork": True}, status={"podIP": "192.168.0.1"})
    cache.pods.following.apply(told("ADDED", host))
    assert "192.168.0.1" not in cache.pods.by_address


def test_a_new_list_tells_which_pods_are_gone() -> None:
    cache = Cache(grace=0)
    for name in "ab":
        cache.pods.following.apply(told("ITEM", pod(name)))
    cache.pods.following.apply(ObjectChange("SYNCED", "5"))
    cache.pods.following.apply(told("ITEM", pod("b")))
    cache.pods.following.apply(ObjectChange("SYNCED", "9"))
    cache.pods.following.apply(ObjectChange("BOOKMARK", "9"))
    assert list(cache.pods.by_uid) == ["uid-b"]


def test_there_is_a_bound_and_it_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tracecore.agent.processors.pods.MOST", 2)
    cache = Cache()
    for name in "abc":
        cache.pods.following.apply(told("ADDED", pod(name)))
    cache.pods.following.apply(told("MODIFIED", pod("a", spec={"nodeName": "node-2"})))
    assert sorted(cache.pods.by_uid) == ["uid-a", "uid-b"]
    assert cache.pods.by_uid["uid-a"].attributes["k8s.node.name"] == "node-2"
    assert cache.pods.following.overflow == 1


@pytest.mark.parametrize("raw", [b"[]", b"{}", b'{"metadata":null}', b"not", b'{"metadata":{"uid":"u"},"spec":7}'])
def test_what_is_no_pod_is_counted(raw: bytes) -> None:
    cache = Cache()
    cache.pods.following.apply(ObjectChange("ADDED", "1", raw))
    assert cache.pods.following.malformed == 1
    assert len(cache.pods) == 0


# -- what a pod gives --------------------------------------------------------------------------------------------------


def given(body: dict[str, Any], **wanted: Any) -> dict[str, Any]:
    found = Extraction(Extract(**wanted))(body)
    assert found is not None
    return found[0]


@pytest.mark.parametrize(
    ("labels", "job"),
    [
        ({"training.kubeflow.org/job-name": "a"}, "a"),
        ({"jobset.sigs.k8s.io/jobset-name": "b", "batch.kubernetes.io/job-name": "b-workers-0"}, "b"),
        ({"volcano.sh/job-name": "c"}, "c"),
        ({"ray.io/cluster": "d"}, "d"),
        ({"gen-ai.training.io/job-id": "e", "training.kubeflow.org/job-name": "x"}, "e"),
        ({"app": "web"}, None),
    ],
)
def test_the_labels_of_operators_name_the_job(labels: dict[str, str], job: str | None) -> None:
    assert given(pod(metadata={"labels": labels})).get("gen_ai.training.job_id") == job


def test_the_rank_is_what_the_pod_says_and_never_a_guess() -> None:
    index = {"labels": {"batch.kubernetes.io/job-completion-index": "3"}}

    def with_gpus(count: str) -> dict[str, Any]:
        return {"containers": [{"name": "main", "resources": {"limits": {"nvidia.com/gpu": count}}}]}

    rank = "gen_ai.training.rank"
    assert given(pod(metadata={"labels": {"gen-ai.training.io/rank": "7"}}))[rank] == 7
    environment = {"containers": [{"name": "main", "env": [{"name": "RANK", "value": "5"}]}]}
    assert given(pod(spec=environment))[rank] == 5
    assert given(pod(metadata=index, spec=with_gpus("1")))[rank] == 3
    assert rank not in given(pod(metadata=index, spec=with_gpus("8")))
    assert rank not in given(pod(metadata=index))
    second_row = {"labels": {**index["labels"], "jobset.sigs.k8s.io/job-index": "1"}}
    assert rank not in given(pod(metadata=second_row, spec=with_gpus("1")))
    assert rank not in given(pod(metadata={"labels": {"gen-ai.training.io/rank": "master"}}))


@pytest.mark.parametrize(
    ("annotation", "gpu"),
    [("00000000:3B:00.0", "0000:3b:00.0"), ("0000:3b:00.0,0000:3c:00.0", None), ("GPU-1234", None), ("0", None)],
)
def test_the_device_plugin_s_annotation_is_the_gpu_where_it_is_one(annotation: str, gpu: str | None) -> None:
    body = pod(metadata={"annotations": {"nvidia.com/gpu-PCIDeviceBusID": annotation}})
    assert given(body).get("gpu.id") == gpu
    assert "gpu.id" not in given(body, training=False)


def test_the_owner_is_known_without_a_guess_where_the_pod_says_its_hash() -> None:
    owners = [{"kind": "ReplicaSet", "name": "my-web-app-5d4f8c", "uid": "r"}]
    names: Any = ("k8s.deployment.name", "k8s.replicaset.name", "k8s.replicaset.uid")
    with_hash = {"ownerReferences": owners, "labels": {"pod-template-hash": "5d4f8c"}}
    expected = {
        "k8s.deployment.name": "my-web-app",
        "k8s.replicaset.name": "my-web-app-5d4f8c",
        "k8s.replicaset.uid": "r",
    }
    assert given(pod(metadata=with_hash), metadata=names) == expected
    bare = {"ownerReferences": owners, "labels": {"pod-template-hash": "other"}}
    assert "k8s.deployment.name" not in given(pod(metadata=bare), metadata=names)
    cron = {"ownerReferences": [{"kind": "Job", "name": "nightly-28000000", "uid": "j"}]}
    names = ("k8s.job.name", "k8s.cronjob.name")
    assert given(pod(metadata=cron), metadata=names) == {
        "k8s.job.name": "nightly-28000000",
        "k8s.cronjob.name": "nightly",
    }


def test_containers_differ_and_a_single_one_speaks_for_its_pod() -> None:
    cache = Cache(Extract(metadata=("k8s.container.name", "container.image.name", "container.image.tag")))
    two = [{"name": "a", "image": "x/a"}, {"name": "b", "image": "x/b:7"}]
    cache.pods.following.apply(told("ADDED", pod("one")))
    cache.pods.following.apply(told("ADDED", pod("two", spec={"containers": two})))
    one, both = cache.pods.by_uid["uid-one"], cache.pods.by_uid["uid-two"]
    assert (
        one.of(None)
        == one.of("main")
        == {
            "k8s.container.name": "main",
            "container.image.name": "registry.example:5000/ml/train",
            "container.image.tag": "1.2",
        }
    )
    assert both.of(None) == both.of("stranger") == both.of(["a"]) == {}
    assert both.of("a")["container.image.tag"] == "latest"
    assert both.of("b")["container.image.tag"] == "7"


def test_fields_by_expression_and_annotations_of_opentelemetry() -> None:
    annotations = {
        "team.example/owner": "vision",
        "team.example/cost": "7",
        "resource.opentelemetry.io/service.name": "t",
    }
    found = given(
        pod(metadata={"annotations": annotations}), metadata=(), otel_annotations=True,
        annotations=[Annotation(key_regex="team.example/(.*)", tag_name="team.$1"), Annotation(key="absent")],
    )  # fmt: skip
    assert found == {"team.owner": "vision", "team.cost": "7", "service.name": "t"}


def test_pods_that_are_none_of_ours_give_nothing() -> None:
    extraction = Extraction(Extract(), ["^sidecar-"])
    assert extraction(pod("sidecar-1")) is None
    assert extraction(pod(metadata={"annotations": {"opentelemetry.io/k8s-processor/ignore": "true"}})) is None
    assert extraction(pod()) is not None


# -- records -----------------------------------------------------------------------------------------------------------


class Clock:
    def __init__(self) -> None:
        self.now = 1_000 * SECOND

    def __call__(self) -> int:
        return self.now


class Naming:
    """A processor whose pods are told by hand."""

    def __init__(self, **options: Any) -> None:
        self.clock, self.meter = Clock(), Meter("processor", "k8sattributes")
        setting = Setting("k8sattributes", self.meter, self.clock, {}.__getitem__, Path(), lambda: (True, {}))
        self.processor = K8sAttributes(Options(auth_type="none", **options), setting)
        self.pods = self.processor._pods
        self.pods.following.apply(ObjectChange("SYNCED", "1"))

    def send(self, *resources: dict[str, Any], acks: tuple[Ack, ...] = (), peer: str = "") -> list[dict[str, Any]]:
        entries = [
            {"resource": {"attributes": dict(own)}, "scope_logs": [{"log_records": [{"body": "x"}]}]}
            for own in resources
        ]
        return self.came(self.processor.process(Batch("logs", {"resource_logs": entries}, acks=acks, peer=peer)))

    def came(self, batches: Any) -> list[dict[str, Any]]:
        found = []
        for batch in batches:
            found += [entry["resource"]["attributes"] for entry in batch.payload["resource_logs"]]
            batch.done()
        return found

    def tick(self) -> list[dict[str, Any]]:
        due = self.processor.due()
        return self.came(self.processor.tick(self.clock.now)) if due is not None and due <= self.clock.now else []


KNOWN, UNKNOWN = {"k8s.pod.uid": "uid-w-0"}, {"k8s.pod.uid": "uid-late"}


def test_records_wait_for_their_pod_and_others_do_not_wait_for_them() -> None:
    one = Naming()
    one.pods.following.apply(told("ADDED", pod()))
    arrived: list[str] = []
    came = one.send(KNOWN, UNKNOWN, acks=(Ack(lambda: arrived.append("all")),))
    assert [own["k8s.pod.uid"] for own in came] == ["uid-w-0"]
    assert arrived == [], "the source hears when everything has left"
    assert one.tick() == []
    one.pods.following.apply(told("ADDED", pod("late")))
    (late,) = one.tick()
    assert late["k8s.pod.name"] == "late"
    assert arrived == ["all"]


def test_records_of_a_pod_that_never_comes_go_on_and_the_next_do_not_wait() -> None:
    one = Naming(wait_for_pod=2 * SECOND)
    assert one.send(UNKNOWN) == []
    one.clock.now += 2 * SECOND
    assert one.tick() == [UNKNOWN]
    assert one.send(UNKNOWN) == [UNKNOWN]
    one.clock.now += k8sattributes.STRANGER
    assert one.send(UNKNOWN) == [], "after a while it may have come into being"


def test_what_waits_is_bounded_and_leaves_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(k8sattributes, "WAITING", 3)
    one = Naming()
    others = [{"k8s.pod.uid": f"uid-{n}"} for n in range(5)]
    assert [one.send(own) for own in others] == [[], [], [], [others[3]], [others[4]]]
    assert one.came(one.processor.drain(one.clock.now)) == others[:3]


def test_records_that_name_no_pod_never_wait() -> None:
    one = Naming()
    assert one.send({"host.name": "node-1"}, {}) == [{"host.name": "node-1"}, {}]


def test_the_sender_s_address_is_the_last_resort() -> None:
    one = Naming()
    one.pods.following.apply(told("ADDED", pod(status={"podIP": "10.0.0.1"})))
    (found,) = one.send({}, peer="::ffff:10.0.0.1")
    assert found["k8s.pod.name"] == "w-0"
    assert found["k8s.pod.ip"] == "10.0.0.1"
    assert one.send({}, peer="10.0.0.9") == [{}]
    (own,) = one.send({"k8s.pod.uid": "uid-w-0"}, peer="10.0.0.9")
    assert own["k8s.pod.name"] == "w-0"


def test_passing_through_only_notes_the_address() -> None:
    one = Naming(passthrough=True)
    assert one.send({"a": 1}, peer="10.0.0.1") == [{"a": 1, "k8s.pod.ip": "10.0.0.1"}]
    assert one.send({"k8s.pod.ip": "10.0.0.7"}, peer="10.0.0.1") == [{"k8s.pod.ip": "10.0.0.7"}]
    assert one.send(UNKNOWN) == [UNKNOWN]


@pytest.mark.parametrize(
    ("peer", "address"),
    [
        ("ipv4:10.0.0.1:5555", "10.0.0.1"),
        ("ipv6:%5Bfd00::1%5D:5555", "fd00::1"),
        ("ipv6:[fd00::1]:5555", "fd00::1"),
        ("unix:/run/x", ""),
        ("", ""),
    ],
)
def test_the_address_of_a_grpc_peer(peer: str, address: str) -> None:
    assert peer_address(peer) == address


def test_filters_become_selectors(replay: Any, until: Until) -> None:
    chosen = Filter(
        node="node-1", namespace="ml", fields=[PodSelector(key="status.phase", value="Failed", op="not-equals")],
        labels=[PodSelector(key="tier", value="train"), PodSelector(key="gpu", op="exists"),
                PodSelector(key="x", op="does-not-exist")],
    )  # fmt: skip
    found = chosen.collection("node-1")
    assert found.path == "/api/v1/namespaces/ml/pods"
    assert found.query == {
        "fieldSelector": "spec.nodeName=node-1,status.phase!=Failed",
        "labelSelector": "tier=train,gpu,!x",
    }


def test_a_node_s_agent_without_its_node_s_name_follows_nobody(replay: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NODE_NAME", raising=False)
    one = Naming(filter=Filter(node_from_env_var="NODE_NAME"), exclude=Exclude(pods=[ExcludedPod(name="x")]))
    one.processor.start()
    assert one.meter.degraded_reason == "the environment variable NODE_NAME is not set"
    one.processor.stop()
    assert replay.asked == []


def test_the_pods_of_a_real_server_are_found_over_http(replay: Any, until: Until) -> None:
    meter = Meter("processor", "k8sattributes")
    setting = Setting("k8sattributes", meter, lambda: 1, {}.__getitem__, Path(), lambda: (True, {}))
    processor = K8sAttributes(Options(auth_type="none", wait_for_metadata=True), setting)
    processor.start()
    try:
        entry: dict[str, Any] = {
            "resource": {"attributes": {"k8s.namespace.name": "ml", "k8s.pod.name": "llama-worker-2"}}
        }
        (batch,) = processor.process(Batch("logs", {"resource_logs": [entry]}))
        found = batch.payload["resource_logs"][0]["resource"]["attributes"]
        expected = {
            "k8s.node.name": "gpu-7", "gen_ai.training.job_id": "llama", "gen_ai.training.rank": 2,
            "gpu.id": "0000:3d:00.0", "container.image.tag": "2.1",
        }  # fmt: skip
        assert expected.items() <= found.items()
    finally:
        processor.stop()


def test_processors_of_one_id_follow_the_pods_once(replay: Any, until: Until) -> None:
    shared: dict[str, Any] = {}

    def share(make: Callable[[], Any]) -> Any:
        return shared.setdefault("k8sattributes", shared.get("k8sattributes") or make())

    processors = []
    for pipeline in ("logs", "metrics"):
        meter = Meter("processor", "k8sattributes", pipeline)
        setting = Setting(
            "k8sattributes", meter, lambda: 1, {}.__getitem__, Path(), lambda: (True, {}), share=share
        )  # fmt: skip
        processors.append(K8sAttributes(Options(auth_type="none", wait_for_metadata=True), setting))
    for one in processors:
        one.start()
    until(lambda: replay.open == 1)
    processors[0].stop()
    assert shared["k8sattributes"].running, "the other one still needs it"
    processors[1].stop()
    assert not shared["k8sattributes"].running
    assert len(replay.versions()) == 1
