"""The `k8sattributes` processor against a real API server that checks rights."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tracecore.agent.batch import Batch
from tracecore.agent.processors.k8sattributes_options import Filter
from tracecore.agent.processors.podfields import Annotation, Extract, PodLabel

pytestmark = pytest.mark.interop
Until = Callable[..., Any]
PODS = {"apiGroups": [""], "resources": ["pods"]}


def through(processor: Any, attributes: dict[str, Any], peer: str = "") -> dict[str, Any]:
    entry = {"resource": {"attributes": dict(attributes)}, "scope_logs": [{"log_records": [{"body": "x"}]}]}
    made = list(processor.process(Batch("logs", {"resource_logs": [entry]}, peer=peer)))
    found: dict[str, Any] = made[-1].payload["resource_logs"][0]["resource"]["attributes"] if made else {}
    return found


@pytest.fixture(scope="module")
def pod(server: Any) -> Any:
    labels = {"training.kubeflow.org/job-name": "llama", "gen-ai.training.io/rank": "3", "pod-template-hash": "5d4f8c"}
    made = server.pod(
        "named-0", "named-node", labels=labels,
        annotations={"nvidia.com/gpu-PCIDeviceBusID": "0000:3B:00.0", "team.example/owner": "vision"},
        ownerReferences=[{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "trainer-5d4f8c", "uid": "r-1"}],
    )  # fmt: skip
    server.status("named-0", {"phase": "Running", "podIP": "10.1.2.3", "podIPs": [{"ip": "10.1.2.3"}]})
    server.pod("elsewhere-0", "other-node")
    return made


EXPECTED = {
    "k8s.namespace.name": "default", "k8s.pod.name": "named-0", "k8s.node.name": "named-node",
    "k8s.deployment.name": "trainer", "gen_ai.training.job_id": "llama", "gen_ai.training.rank": 3,
    "gpu.id": "0000:3b:00.0", "container.image.name": "registry.example/train", "container.image.tag": "2.1",
}  # fmt: skip


def test_a_node_s_agent_knows_its_pods_and_no_others(
    server: Any, account: Any, naming: Any, until: Until, pod: Any
) -> None:
    account(server.account("attributes", [{**PODS, "verbs": ["list", "watch"]}]))
    extract = Extract(annotations=[Annotation(key_regex="team.example/(.*)", tag_name="team.$1")])
    processor, meter = naming(filter=Filter(node="named-node"), extract=extract, wait_for_metadata=True, wait_for_pod=0)
    uid = pod["metadata"]["uid"]
    by_uid = through(processor, {"k8s.pod.uid": uid})
    assert {**EXPECTED, "k8s.pod.uid": uid, "team.owner": "vision"}.items() <= by_uid.items()
    by_name = through(processor, {"k8s.namespace.name": "default", "k8s.pod.name": "named-0"})
    assert by_name["k8s.pod.uid"] == uid
    assert through(processor, {}, peer="10.1.2.3")["k8s.pod.name"] == "named-0"
    assert through(processor, {}, peer="::ffff:10.1.2.3")["k8s.pod.name"] == "named-0"
    other = {"k8s.namespace.name": "default", "k8s.pod.name": "elsewhere-0"}
    assert through(processor, other) == other
    assert not meter.degraded


def test_a_record_that_comes_before_its_pod_waits_for_it(
    server: Any, account: Any, naming: Any, until: Until, pod: Any
) -> None:
    account(server.account("early", [{**PODS, "verbs": ["list", "watch"]}]))
    processor, _ = naming(wait_for_metadata=True, wait_for_pod=30_000_000_000)
    name = {"k8s.namespace.name": "default", "k8s.pod.name": "early-0"}
    assert through(processor, name) == {}
    server.pod("early-0", "named-node")
    (batch,) = until(lambda: list(processor.tick(0)) if processor.due() == 0 else [])
    found = batch.payload["resource_logs"][0]["resource"]["attributes"]
    assert found["k8s.node.name"] == "named-node"


@pytest.mark.parametrize(
    ("verbs", "state", "works"),
    [
        (["list"], "missing right: watch pods: pods are listed every 1 s instead", True),
        (["watch"], "missing right: list pods: pods are watched without a list", True),
        ([], "missing right: list pods; missing right: watch pods", False),
    ],
    ids=["no watch", "no list", "nothing"],
)
def test_without_a_right_it_does_what_it_can_and_says_which(
    server: Any, account: Any, naming: Any, until: Until, pod: Any, verbs: list[str], state: str, works: bool
) -> None:
    name = f"attributes-{'-'.join(verbs) or 'none'}"
    account(server.account(name, [{**PODS, "verbs": verbs}] if verbs else []))
    processor, meter = naming(wait_for_pod=0)
    until(lambda: meter.degraded_reason == state)
    if works:
        until(lambda: through(processor, {"k8s.pod.uid": pod["metadata"]["uid"]}).get("k8s.pod.name") == "named-0")
        late = server.pod(f"late-{name}", "named-node")["metadata"]["uid"]
        until(lambda: through(processor, {"k8s.pod.uid": late}).get("k8s.pod.name") == f"late-{name}")
    else:
        server.grant(name, [{**PODS, "verbs": ["list", "watch"]}])
        until(lambda: not meter.degraded)
        assert through(processor, {"k8s.pod.uid": pod["metadata"]["uid"]})["k8s.pod.name"] == "named-0"


def test_a_kubeconfig_serves_outside_of_a_cluster(
    server: Any, account: Any, naming: Any, pod: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    token = server.account("outside", [{**PODS, "verbs": ["list", "watch"]}])
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST")
    monkeypatch.setenv("KUBECONFIG", str(server.kubeconfig(tmp_path / "config", token)))
    processor, _ = naming(auth_type="kubeConfig", wait_for_metadata=True, wait_for_pod=0)
    assert through(processor, {"k8s.pod.uid": pod["metadata"]["uid"]})["k8s.pod.name"] == "named-0"


WIDE = Extract(
    metadata=("k8s.pod.name", "k8s.node.uid", "k8s.cluster.uid"),
    labels=[
        PodLabel(key="kubernetes.io/metadata.name", tag_name="space", from_="namespace"),
        PodLabel(key="zone", from_="node"),
    ],
)


def test_namespaces_and_nodes_give_their_labels_where_their_rights_are(
    server: Any, account: Any, naming: Any, until: Until, pod: Any
) -> None:
    """Without the right it is named, pods are known all the same, and it goes away when the right is given."""
    server.call("POST", "/api/v1/nodes", {"metadata": {"name": "named-node", "labels": {"zone": "a"}}})
    account(server.account("around", [{**PODS, "verbs": ["list", "watch"]}]))
    processor, meter = naming(extract=WIDE, wait_for_pod=0, filter=Filter(node="named-node"))
    name = {"k8s.namespace.name": "default", "k8s.pod.name": "named-0"}
    missing = (
        "missing right: list namespaces; missing right: watch namespaces; "
        "missing right: list nodes; missing right: watch nodes"
    )
    until(lambda: meter.degraded_reason == missing)
    until(lambda: through(processor, name).get("gen_ai.training.job_id") == "llama")
    wide = {"apiGroups": [""], "resources": ["pods", "namespaces", "nodes"], "verbs": ["list", "watch"]}
    server.grant("around", [wide])
    until(lambda: not meter.degraded)
    until(lambda: "k8s.node.labels.zone" in through(processor, name) and "space" in through(processor, name))
    found = through(processor, name)
    assert (found["space"], found["k8s.node.labels.zone"]) == ("default", "a")
    assert len(found["k8s.node.uid"]) == len(found["k8s.cluster.uid"]) == 36
