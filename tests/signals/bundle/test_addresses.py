"""Machines that are known by address in one file and by name in another."""

from __future__ import annotations

from pathlib import Path

import pytest

from tracecore.diagnose.offline import diagnose

XID = "Jun  1 10:00:12 {0} kernel: [ 9911.1] NVRM: Xid (PCI:0000:3b:00): 79, pid=71, GPU has fallen off the bus.\n"
RAISED = (
    "(RayTrainWorker pid=71, ip=10.9.0.5) Setting up process group for: env:// [rank=9, world_size=16]\n"
    "(RayTrainWorker pid=71, ip=10.9.0.5) RuntimeError: CUDA error: unknown error\n"
)
NODES = (
    "NAME    STATUS   ROLES    AGE   VERSION   INTERNAL-IP   EXTERNAL-IP\n"
    "{0}   Ready    <none>   90d   v1.29.3   10.9.0.5      <none>\n"
)
PODS = (
    "NAME      READY   STATUS    RESTARTS   AGE   IP         NODE\n"
    "trn-w-1   1/1     Running   0          2h    10.9.0.5   {0}\n"
)
DESCRIBED = (
    "Name:               {0}\nRoles:              worker\nConditions:\n"
    "Addresses:\n  InternalIP:  10.9.0.5\n  Hostname:    {0}\n"
)


def nodes_of_rank(folder: Path, name: str, files: dict[str, str]) -> set[str]:
    """Return the machines that facts of rank 9 are of."""
    for file, text in {f"syslog-{name}.log": XID.format(name), "job.log": RAISED, **files}.items():
        (folder / file).write_text(text)
    return {fact.node for fact in diagnose([folder]).facts if fact.rank == 9 and fact.node}


@pytest.mark.parametrize(
    ("name", "file", "text"),
    [
        ("node-b5", "hosts", "127.0.0.1 localhost\n10.9.0.5\tnode-b5.cluster.local node-b5 # second rack\n"),
        ("node-b5", "nodes.txt", NODES.format("node-b5")),
        ("node-b5", "pods.txt", PODS.format("node-b5")),
        ("node-b5", "describe.txt", DESCRIBED.format("node-b5")),
        ("node-b5", "notes.log", "launching on node-b5 (10.9.0.5)\n"),
        ("ip-10-9-0-5", "notes.log", "nothing\n"),
    ],
)
def test_one_machine_where_a_file_says_so(tmp_path: Path, name: str, file: str, text: str) -> None:
    assert nodes_of_rank(tmp_path, name, {file: text}) == {name}


@pytest.mark.parametrize(
    "text",
    [
        "launching on node-b6 (10.9.0.6)\n",
        "rank3 (10.9.0.5) joined\n",
        "node-b5 (10.9.0.5) joined\nnode-b7 (10.9.0.5) joined\n",  # two machines have had it
    ],
)
def test_two_machines_where_no_file_says_otherwise(tmp_path: Path, text: str) -> None:
    assert nodes_of_rank(tmp_path, "node-b5", {"notes.log": text}) == set()
