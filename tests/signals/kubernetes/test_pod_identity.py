"""Job, rank and attempt of a pod, by what each kind of workload puts on it."""

from __future__ import annotations

from typing import Any

import pytest

from tracecore.signals.kubernetes.objects import pod_identity

JOB, RANK, ATTEMPT = "gen_ai.training.job_id", "gen_ai.training.rank", "tracecore.attempt"


def pod(
    labels: dict[str, str],
    annotations: dict[str, str] | None = None,
    env: dict[str, str] | None = None,
    gpus: int = 1,
    owner: tuple[str, str] | None = None,
) -> dict[str, Any]:
    container = {
        "name": "main",
        "env": [{"name": name, "value": value} for name, value in (env or {}).items()],
        "resources": {"limits": {"nvidia.com/gpu": str(gpus)}} if gpus else {},
    }
    metadata: dict[str, Any] = {
        "namespace": "team-a",
        "name": "w-0",
        "labels": labels,
        "annotations": annotations or {},
    }
    if owner:
        metadata["ownerReferences"] = [{"kind": owner[0], "name": owner[1]}]
    return {"kind": "Pod", "metadata": metadata, "spec": {"nodeName": "n1", "containers": [container]}}


KUBEFLOW = {"training.kubeflow.org/job-name": "llm", "training.kubeflow.org/replica-type": "worker"}
CASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "JobSet": (
        pod(
            {
                "jobset.sigs.k8s.io/jobset-name": "llm", "jobset.sigs.k8s.io/restart-attempt": "2",
                "jobset.sigs.k8s.io/job-index": "0", "batch.kubernetes.io/job-completion-index": "3",
            }
        ),
        {JOB: "llm", RANK: 3, ATTEMPT: 2},
    ),
    "Kubeflow Trainer": (
        pod(
            {
                "jobset.sigs.k8s.io/jobset-name": "llm", "trainer.kubeflow.org/trainjob-ancestor-step": "trainer",
                "batch.kubernetes.io/job-completion-index": "1",
            }
        ),
        {JOB: "llm", RANK: 1},
    ),
    "PyTorchJob": (pod(KUBEFLOW, env={"RANK": "4", "WORLD_SIZE": "8"}), {JOB: "llm", RANK: 4}),
    "PyTorchJob, several processes": (
        pod(KUBEFLOW, env={"RANK": "1", "PET_NPROC_PER_NODE": "8"}, gpus=8), {JOB: "llm"}
    ),
    "MPIJob": (pod({**KUBEFLOW, "training.kubeflow.org/job-role": "worker"}, gpus=8), {JOB: "llm"}),
    "Volcano": (
        pod(
            {"volcano.sh/job-name": "llm"}, {"volcano.sh/task-spec": "worker", "volcano.sh/job-version": "1"},
            env={"RANK": "2"},
        ),
        {JOB: "llm", RANK: 2, ATTEMPT: 1},
    ),
    "Kueue pod group": (
        pod({"kueue.x-k8s.io/pod-group-name": "llm", "kueue.x-k8s.io/pod-group-pod-index": "5"}), {JOB: "llm", RANK: 5}
    ),
    "Ray": (pod({"ray.io/cluster": "llm-raycluster-x", "ray.io/node-type": "worker"}), {JOB: "llm-raycluster-x"}),
    "RayJob": (
        pod(
            {
                "ray.io/cluster": "llm-x7k", "ray.io/originated-from-crd": "RayJob",
                "ray.io/originated-from-cr-name": "llm",
            }
        ),
        {JOB: "llm"},
    ),
    "LeaderWorkerSet": (
        pod({"leaderworkerset.sigs.k8s.io/name": "llm", "leaderworkerset.sigs.k8s.io/worker-index": "1"}),
        {JOB: "llm", RANK: 1},
    ),
    "Job": (
        pod({"batch.kubernetes.io/job-name": "llm"}, {"batch.kubernetes.io/job-completion-index": "7"}),
        {JOB: "llm", RANK: 7},
    ),
    "StatefulSet": (
        pod({"apps.kubernetes.io/pod-index": "2"}, owner=("StatefulSet", "llm")), {JOB: "llm", RANK: 2}
    ),
    "StatefulSet without GPUs": (pod({"apps.kubernetes.io/pod-index": "2"}, gpus=0, owner=("StatefulSet", "db")), {}),
    "own labels": (
        pod({"gen-ai.training.io/job-id": "llm", "gen-ai.training.io/rank": "6", "job-name": "other"}, gpus=8),
        {JOB: "llm", RANK: 6},
    ),
    "nothing": (pod({"app": "nginx"}, gpus=0), {}),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_a_pod_gives(name: str) -> None:
    item, expected = CASES[name]
    found = pod_identity(item)
    assert {key: found[key] for key in (JOB, RANK, ATTEMPT) if key in found} == expected
