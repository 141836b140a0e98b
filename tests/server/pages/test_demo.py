"""The demo fleet: the same for the same seed, and every page has something to show."""

from __future__ import annotations

import random
import runpy
import subprocess
import sys
import time
from pathlib import Path

import httpx
import msgspec
import pytest

from tracecore.server import demo
from tracecore.server.demo import live
from tracecore.server.demo.recordings import recordings, restamped
from tracecore.store.store import Store

ROOT = Path(__file__).parents[3]
NOW = 1_790_000_000_000_000_000
HOUR = 3600 * 1_000_000_000


def _fleet(folder: Path, seed: int) -> bytes:
    store = Store.open(str(folder / f"{seed}{random.random()}.db"), durable=False)
    demo.fill(store, NOW, seed)
    said = [store.incidents.find(limit=200), store.jobs.find(limit=200), store.overview(NOW, days=14)]
    store.close()
    return msgspec.json.encode(said)


def test_the_same_seed_is_the_same_fleet(tmp_path: Path) -> None:
    assert _fleet(tmp_path, 3) == _fleet(tmp_path, 3)
    assert _fleet(tmp_path, 3) != _fleet(tmp_path, 4)


def test_the_fleet_is_alive(fleet: Store) -> None:
    seen = fleet.overview(NOW, days=14)
    assert 4 <= seen.open_count <= 8
    assert 0 < seen.unacknowledged < seen.open_count
    assert {"failed", "degraded", "silent", "healthy"} == {*seen.nodes}
    assert seen.jobs["running"] >= 8
    assert len({cause.day for cause in seen.causes}) >= 12
    assert seen.lost_gpu_hours > 100
    assert seen.recurring_nodes[0].name == demo.fleet.FLAPPING
    rows = fleet.incidents.find(limit=200).incidents
    assert len({row.pattern for row in rows}) >= 12
    assert len({row.id for row in rows}) == len(rows) > 50
    assert all(NOW - 15 * 24 * HOUR < row.first_seen <= row.last_seen <= NOW for row in rows)
    assert any(row.state == "open" for row in rows)
    job = next(row for row in fleet.jobs.find(state="running").jobs if row.attempts > 2)
    detail = fleet.jobs.get(job.name)
    assert detail is not None
    assert detail.goodput is not None
    assert 0.5 < detail.goodput < 1
    assert len(fleet.jobs.progress(job.name)) > 500
    node = fleet.nodes.get(demo.fleet.FLAPPING)
    assert node is not None
    assert {event.kind for event in node.events} >= {"xid", "ecc", "link", "pcie"}


@pytest.mark.heavy
def test_the_recordings_say_what_a_diagnosis_says_today() -> None:
    record = runpy.run_path(str(ROOT / "examples/demo-fleet/record.py"))
    held = recordings()
    for name in record["RECORDED"]:
        short = name.rpartition("/")[2]
        for one in record["_incidents"](ROOT / "examples" / name, short):
            told = [held[short].incident["headline"], held[short].incident["remediation"]]
            assert told == [one["incident"]["headline"], one["incident"]["remediation"]], "run record.py again"


def test_a_restamped_incident_is_another_incident_of_the_same_kind() -> None:
    one = recordings()["fallen off the bus/watchdog"]
    made = [
        restamped(one, key=key, at=NOW, job="a", attempt=1, nodes=["node-x", "node-y"]) for key in ("one", "two", "one")
    ]
    assert made[0] == made[2]
    assert made[0]["id"] != made[1]["id"]
    assert made[0]["fingerprint"] == made[1]["fingerprint"] == one.incident["fingerprint"]
    assert made[0]["root_cause"]["verdict"] in {verdict["verdict.id"] for verdict in made[0]["verdicts"]}
    assert made[0]["root_cause"]["verdict"] != made[1]["root_cause"]["verdict"]
    assert made[0]["headline"].endswith(" on node-x has fallen off the bus (Xid 79, 154)")
    text = msgspec.json.encode(made[0]).decode()
    assert "demo-node" not in text
    assert "T15:1" not in text  # when it was recorded


def test_something_breaks_and_is_resolved(tmp_path: Path) -> None:
    store = Store.open(str(tmp_path / "live.db"), durable=False)
    demo.fill(store, NOW)
    dice = random.Random(1)
    before, last = store.overview(NOW).open_count, store.changes.last()
    document, gpus = live.break_something(store, dice, NOW)
    assert store.overview(NOW).open_count == before + 1
    assert [change.name for change in store.changes.after(last) if change.kind == "incident"] == [document["id"]]
    live.beat(store, dice, NOW)
    live.resolve(store, document, gpus, NOW + HOUR)
    assert store.overview(NOW).open_count == before
    store.close()


def test_the_command_serves_the_demo(tmp_path: Path) -> None:
    """README's third command, as a newcomer runs it: every page within a minute, from anywhere."""
    command = [sys.executable, "-m", "tracecore", "serve", "--demo", "--listen", "127.0.0.1:18047"]
    with subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE) as process:
        try:
            until = time.monotonic() + 60
            while True:
                try:
                    page = httpx.get("http://127.0.0.1:18047/", headers={"Accept": "text/html"}, timeout=10)
                    break
                except httpx.TransportError:
                    assert process.poll() is None
                    assert time.monotonic() < until
                    time.sleep(0.3)
            assert "has fallen off the bus" in page.text
            for path in ("/incidents", "/jobs", "/nodes", "/patterns", "/upload", "/silences", "/tokens"):
                assert httpx.get(f"http://127.0.0.1:18047{path}", timeout=10).status_code == 200
        finally:
            process.terminate()
            said = process.communicate(timeout=20)[1].decode()
    assert said.startswith("making the simulated fleet…\ntracecore serves http://127.0.0.1:18047/")
    assert [*tmp_path.iterdir()] == []
