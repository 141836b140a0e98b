"""What the next attempt is to do without, as launchers and schedulers want it said."""

from __future__ import annotations

from tracecore.actions import policy as policies
from tracecore.actions.exclusion import Exclusions, exclusions

POLICY = policies.standard()


def test_a_bad_gpu_excludes_itself_and_its_node() -> None:
    verdict = {"pattern.name": "gpu_fault", "gpu.id": "0000:3b:00.0", "k8s.node.name": "node-7"}
    found = exclusions(verdict, POLICY)
    assert found == Exclusions(("node-7",), ("node-7/0000:3b:00.0",))
    assert found.slurm() == "--exclude=node-7"
    assert found.environment() == {
        "TRACECORE_EXCLUDE_NODES": "node-7",
        "TRACECORE_EXCLUDE_GPUS": "node-7/0000:3b:00.0",
    }
    terms = found.kubernetes()["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    assert terms == [
        {"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "NotIn", "values": ["node-7"]}]}
    ]


def test_suspects_of_an_incident_are_taken() -> None:
    found = exclusions({"pattern.name": "host_lost", "suspects": {"nodes": ["b", "a"], "gpus": []}}, POLICY)
    assert found.nodes == ("a", "b")


def test_a_program_fault_excludes_nothing() -> None:
    for pattern in ("gpu_app_fault", "worker_crash", "cuda_oom", "nccl_hang"):
        assert not exclusions({"pattern.name": pattern, "k8s.node.name": "node-7", "gpu.id": "0000:3b:00.0"}, POLICY)


def test_exclusions_add_up_and_stay_sorted_and_bounded() -> None:
    found = Exclusions(("b",)) | Exclusions(("a", "b"))
    assert found.nodes == ("a", "b")
    many = Exclusions(tuple(f"n{n:04d}" for n in range(500))) | Exclusions()
    assert len(many.nodes) == 64


def test_nothing_is_said_where_nothing_is_excluded() -> None:
    nothing = Exclusions()
    assert (nothing.slurm(), nothing.kubernetes(), nothing.environment(), nothing.document()) == ("", {}, {}, {})


def test_a_name_that_could_break_out_of_a_list_is_left_out() -> None:
    hostile = {"pattern.name": "host_lost", "suspects": {"nodes": ["a b", "x;rm -rf /", "$(id)", "ok-1", "", "é"]}}
    assert exclusions(hostile, POLICY).nodes == ("ok-1",)
