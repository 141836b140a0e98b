"""The audit log of an API server."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tracecore.diagnose.offline import diagnose


def request(verb: str, resource: str, who: str, *, sub: str = "", code: int = 200, **spec: Any) -> str:
    about = {"resource": resource, "name": "llm-worker-3" if resource != "nodes" else "gke-a1", "apiVersion": "v1"}
    if resource != "nodes":
        about["namespace"] = "ml"
    if sub:
        about["subresource"] = sub
    document = {
        "kind": "Event",
        "apiVersion": "audit.k8s.io/v1",
        "stage": "ResponseComplete",
        "verb": verb,
        "user": {"username": who},
        "objectRef": about,
        "responseStatus": {"metadata": {}, "code": code},
        "stageTimestamp": "2026-05-05T10:00:01.100000Z",
    }
    if spec:
        document["requestObject"] = {"spec": spec}
    return json.dumps(document, separators=(",", ":"))


NODES = "system:serviceaccount:kube-system:node-controller"
UNREACHABLE = [{"key": "node.kubernetes.io/unreachable", "effect": "NoExecute"}]
KARPENTER = "system:serviceaccount:kube-system:karpenter"
LEAVING = [{"key": "karpenter.sh/disrupted", "effect": "NoSchedule"}]


@pytest.mark.parametrize(
    ("line", "pattern", "headline"),
    [
        (request("create", "pods", "jane@corp", sub="eviction", code=201), "planned_stop", "had to leave a node"),
        (request("delete", "pods", "jane@corp"), "planned_stop", "was cancelled"),
        (request("delete", "pods", "system:kube-scheduler"), "planned_stop", "preempted"),
        (request("delete", "pods", NODES), "pod_evicted", "ml/llm-worker-3 was evicted"),
        (request("patch", "nodes", NODES, taints=UNREACHABLE), "host_lost", "gke-a1 was lost"),
        (
            request("patch", "nodes", KARPENTER, taints=LEAVING),
            "planned_stop",
            "drain",
        ),
    ],
)
def test_requests_that_end_work(tmp_path: Path, line: str, pattern: str, headline: str) -> None:
    (tmp_path / "audit.log").write_text(line + "\n")
    (tmp_path / "train.log").write_text("2026-05-05 09:59:50 step 100 loss 2.2\n")
    (incident, *_) = diagnose([tmp_path]).document()["incidents"]
    assert (incident["root_cause"]["pattern"], headline in incident["headline"]) == (pattern, True), incident[
        "headline"
    ]


@pytest.mark.parametrize(
    "line",
    [
        request("create", "pods", "jane@corp", sub="eviction", code=429),  # refused: too few may be missing
        request("delete", "pods", "system:node:gke-a1"),  # the kubelet is done with it
        request("delete", "pods", "system:serviceaccount:kube-system:job-controller"),
        request("patch", "nodes", "system:node:gke-a1", sub="status"),
        request("patch", "nodes", NODES, taints=[]),
        '{"kind":"Event","apiVersion":"audit.k8s.io/v1","verb":"delete","objectRef":{"resource":"po',
    ],
)
def test_requests_that_end_none(tmp_path: Path, line: str) -> None:
    (tmp_path / "audit.log").write_text(line + "\n")
    document = diagnose([tmp_path]).document()
    assert not document["incidents"]
    assert not document["notes"]


def test_a_cordon_is_a_note(tmp_path: Path) -> None:
    (tmp_path / "audit.log").write_text(request("patch", "nodes", "ops@corp", unschedulable=True) + "\n")
    document = diagnose([tmp_path]).document()
    assert not document["incidents"]
    assert document["notes"][0].startswith("No jobs are scheduled on gke-a1: ops@corp has cordoned it")
