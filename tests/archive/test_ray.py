"""A real Ray cluster of several nodes on this machine, one of which is killed in the middle."""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import random
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as parquet
import pytest

from tracecore.archive.dataset import Archive
from tracecore.archive.ray_workers import RayWorkers
from tracecore.archive.running import RunSummary, diagnose_all
from tracecore.archive.tasks import TaskLimits
from tracecore.diagnose.offline import diagnose

pytestmark = [pytest.mark.integration, pytest.mark.filterwarnings("ignore")]

ROOT = Path(__file__).resolve().parents[2]
RECORDED = sorted(path.parent for path in (ROOT / "examples").glob("incidents*/*/truth.json"))
MIB = 1 << 20
SEED = int(os.environ.get("TRACECORE_ARCHIVE_SEED", "1"))


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A head without processors, so that every task runs on a node that can be killed."""
    # Ray reads its environment when it is imported, which is below.
    if importlib.util.find_spec("ray") is None:
        pytest.skip("Ray is not installed: `make integration` installs requirements/ray.txt")
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {
            "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
            "RAY_USAGE_STATS_ENABLED": "0",
            "HOME": str(tmp_path_factory.mktemp("home")),
            "PYTHONPATH": str(ROOT / "src"),
            # What is noticed late would make the test slow, not wrong.
            "RAY_health_check_period_ms": "1000",
            "RAY_health_check_failure_threshold": "3",
        }.items():
            patch.setenv(name, value)
        made = importlib.import_module("ray.cluster_utils").Cluster(
            initialize_head=True,
            head_node_args={
                "num_cpus": 0,
                "node_ip_address": "127.0.0.1",
                "include_dashboard": False,
                "object_store_memory": 80 * MIB,
            },
        )
        try:
            yield made
        finally:
            made.shutdown()


def add_node(cluster: Any) -> Any:
    return cluster.add_node(num_cpus=1, node_ip_address="127.0.0.1", object_store_memory=80 * MIB)


def started(*words: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "tracecore", *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def finished(process: subprocess.Popen[str], seconds: float = 300) -> str:
    try:
        out, err = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        raise
    assert process.returncode == 0, (out, err[-2000:])
    return out


@pytest.fixture(scope="module")
def bundles(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Recordings several times over, so that the run takes a while."""
    folder = tmp_path_factory.mktemp("bundles")
    for again in range(3):
        for bundle in RECORDED[::4]:
            shutil.copytree(bundle, folder / f"{bundle.name}-{again}")
    return folder


def test_a_node_killed_in_the_middle_loses_and_doubles_nothing(cluster: Any, bundles: Path, tmp_path: Path) -> None:
    nodes = [add_node(cluster), add_node(cluster)]
    cluster.wait_for_nodes()
    out = tmp_path / "archive"
    given = sorted(str(path) for path in bundles.iterdir())
    moments = sorted(random.Random(SEED).sample(range(1, len(given) - 20), 2))

    def kill(summary: RunSummary) -> None:
        """Kill the older node whenever a moment has come; its tasks are under way then."""
        if moments and summary.done >= moments[0]:
            moments.pop(0)
            cluster.remove_node(nodes.pop(0), allow_graceful=False)
            nodes.append(add_node(cluster))

    workers = RayWorkers(cluster.address, TaskLimits())
    try:
        summary = diagnose_all(given, Archive.create(out), workers, progress=kill)
    finally:
        workers.close()
    assert moments == []
    assert summary.bundles == summary.done == len(given)
    assert summary.errors == []

    rows = [row for path in Archive(out).files("bundles") for row in parquet.read_table(path).to_pylist()]
    assert sorted(row["bundle"] for row in rows) == given, "each bundle has exactly one result"
    for row in rows[::7]:
        assert json.loads(row["document"]) == diagnose([row["bundle"]]).document()

    again = json.loads(finished(started("archive", "rediagnose", str(out), "--ray", cluster.address, "-o", "json")))
    assert again["bundles"] == len(given)
    assert set(again["incidents"]) == {"same"}
    assert again["changes"] == []


def test_a_large_bundle_is_read_by_several_nodes(cluster: Any, tmp_path: Path) -> None:
    """4,096 rank logs, one rank of which stops: the same document as one process gives."""
    add_node(cluster)
    cluster.wait_for_nodes()
    bundle = tmp_path / "job-large"
    bundle.mkdir()
    for rank in range(4096):
        last = 20 if rank == 1234 else 25
        (bundle / f"rank{rank}.log").write_text(
            "".join(f"2026-11-15 10:00:{step:02d} INFO step {step} loss {2 - step / 100:.2f}\n" for step in range(last))
            + ("RuntimeError: CUDA error: device-side assert triggered\n" if rank == 1234 else "")
        )
    (bundle / "exit_codes.json").write_text('{"1234": 1}')
    expected = diagnose([str(bundle)]).document()
    found = json.loads(finished(started("diagnose", "--ray", cluster.address, str(bundle), "-o", "json")))
    assert found == expected
    out = tmp_path / "archive"
    finished(started("archive", "diagnose", str(bundle), "--out", str(out), "--ray", cluster.address))
    (stored,) = Archive(out).results(contents=False)
    assert stored.document == expected
