"""`kubectl get events` as text: less than JSON has, and not nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from tracecore.diagnose.offline import diagnose
from tracecore.signals.bundle import identity

EVENTS = """\
LAST SEEN   TYPE      REASON      OBJECT            MESSAGE
2m          Warning   Evicted     pod/train-3       The node was low on resource: ephemeral-storage.
2m          Normal    Killing     pod/train-3       Stopping container train
"""


def test_an_eviction_on_a_node_that_is_not_named(tmp_path: Path) -> None:
    (tmp_path / "events.txt").write_text(EVENTS)
    (incident,) = diagnose([tmp_path]).document()["incidents"]
    assert incident["root_cause"]["pattern"] == "pod_evicted"
    assert incident["headline"] == "default/train-3 was evicted under disk pressure"
    assert incident["suspects"]["nodes"] == []
    assert incident["suspects"]["pods"] == ["default/train-3"]
    assert incident["failure"]["class"] == "infrastructure"
    assert incident["failure"]["retry"]["decision"] == "retry"


@pytest.mark.parametrize(
    ("name", "host"),
    [
        ("dmesg-20261115.txt", None),
        ("journal-2026-11-15T02-03-04.log", None),
        ("dmesg-gpu07.txt", "gpu07"),
        ("dmesg-10.0.0.7.txt", "10.0.0.7"),
        ("node12.dmesg", "node12"),
        ("nvidia-smi-q-gpu5.txt", None),
        ("nvidia-smi-gpu-b07.csv", "gpu-b07"),
        ("dcgm-diag-dgx-b12.txt", "dgx-b12"),
        ("dcgmi_diag_r3.txt", None),
        ("dmesg-rank3.txt", None),
        ("dmesg-12.txt", None),
        ("kern-5.15.0.log", None),
        ("ethtool-ens1f0.txt", None),
        ("gn12-nvidia-smi-q.txt", "gn12"),
        ("lspci-vvv-h100-3.txt", "h100-3"),
        ("throttle_node-c4.csv", "node-c4"),
    ],
)
def test_which_word_of_a_name_is_a_host(name: str, host: str | None) -> None:
    assert identity.of(f"bundle/{name}").get("host.name") == host


def test_a_pod_whose_image_is_not_there(tmp_path: Path) -> None:
    (tmp_path / "events.txt").write_text("""\
LAST SEEN   TYPE      REASON      OBJECT            MESSAGE
3m          Normal    Scheduled   pod/train-3       Successfully assigned ml/train-3 to gpu-node-9
60s         Warning   Failed      pod/train-3       Failed to pull image "reg/train:1": code = NotFound desc = not found
20s         Warning   BackOff     pod/train-3       Back-off pulling image "reg/train:1"
""")
    (incident,) = diagnose([tmp_path]).document()["incidents"]
    assert incident["status"] == "insufficient_evidence"
    assert incident["headline"].startswith('ml/train-3 does not start: Failed to pull image "reg/train:1"')
    assert incident["suspects"]["pods"] == ["ml/train-3"]
    assert incident["failure"]["class"] == "infrastructure"


def test_a_row_whose_cells_are_wider_than_their_columns(tmp_path: Path) -> None:
    (tmp_path / "events.txt").write_text("""\
LAST SEEN   TYPE      REASON         OBJECT      MESSAGE
10m         Normal    NodeNotReady   node/gpu-pool-d91   Node gpu-pool-d91 status is now: NodeNotReady
""")
    (incident,) = diagnose([tmp_path]).document()["incidents"]
    assert incident["suspects"]["nodes"] == ["gpu-pool-d91"]
