"""The recipes on real recordings and on excerpts of real reports."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML


def test_recorded_xids(incidents: Path, kernel: Any) -> None:
    found = {
        scenario: [kernel(line) for line in (incidents / scenario / "dmesg.txt").read_text().splitlines()]
        for scenario in ("device_assert", "illegal_access", "kernel_trap")
    }
    codes = {name: {a["kernelevents.xid"] for a in lines if "kernelevents.xid" in a} for name, lines in found.items()}
    assert codes == {"device_assert": {43}, "illegal_access": {31}, "kernel_trap": {43}}
    assert {a.get("gpu.id") for lines in found.values() for a in lines if "kernelevents.xid" in a} == {"0000:00:06.0"}
    assert all(a["kernelevents.xid.process"] == "python3" for a in found["device_assert"] if "kernelevents.xid" in a)


def test_recorded_cgroup_kill_line_by_line_and_whole(incidents: Path, kernel: Any) -> None:
    text = (incidents / "cgroup_oom_loader" / "dmesg.txt").read_text()
    lines = [kernel(line) for line in text.splitlines()]
    victims = {a["kernelevents.oom.victim_pid"] for a in lines if "kernelevents.oom.victim_pid" in a}
    assert len(victims) == 1
    whole = kernel(text)
    assert whole["kernelevents.oom.victim_pid"] in victims
    assert whole["kernelevents.oom.constraint"] == "memcg"
    assert whole["kernelevents.oom.limit_kb"] == 6291456
    assert whole["kernelevents.oom.cgroup"] == "/training"
    assert whole["kernelevents.oom.rss_kb"] > 0
    assert "kernelevents.host" not in whole


def test_recordings_without_a_kernel_event_stamp_none(incidents: Path, kernel: Any) -> None:
    loud = {"device_assert", "illegal_access", "kernel_trap", "cgroup_oom_loader"}
    for path in sorted(incidents.glob("*/dmesg.txt")):
        if path.parent.name in loud or not path.stat().st_size:
            continue
        for line in path.read_text().splitlines():
            names = [name for name in kernel(line) if name.startswith("kernelevents.")]
            # Some recordings share one boot: an Xid or a kill of a run before them may still be in the ring.
            assert all(
                name.startswith(("kernelevents.xid", "kernelevents.oom", "kernelevents.host")) for name in names
            ), line


@pytest.fixture(scope="module")
def reports(shared_data: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (shared_data / "issue_logs.jsonl").read_text(encoding="utf-8").splitlines()]


def of_kind(reports: list[dict[str, Any]], prefix: str) -> list[str]:
    texts = [report["text"] for report in reports if report["kind"].startswith(prefix)]
    if not texts:
        pytest.skip(f"the shared data has no {prefix} excerpts")
    return texts


@pytest.mark.parametrize(
    ("prefix", "name"),
    [
        ("kernel_oom_kill", "kernelevents.oom.invoked_by|kernelevents.oom.victim_pid"),
        ("xid_", "kernelevents.xid"),
        ("pcie_aer", "kernelevents.pcie_aer.severity|kernelevents.xid"),
    ],
)
def test_kernel_reports(reports: list[dict[str, Any]], kernel: Any, prefix: str, name: str) -> None:
    for text in of_kind(reports, prefix):
        found = kernel(text)
        for line in text.splitlines():
            found |= kernel(line)
        assert any(option in found for option in name.split("|")), text


@pytest.mark.parametrize(
    ("prefix", "expected"),
    [
        ("slurm_oom_kill", {"tracecore.host_oom.reporter": "slurm", "tracecore.slurm.state": "OUT_OF_MEMORY"}),
        ("slurm_sigkill", {"tracecore.process.signal": "SIGKILL"}),
        ("ray_oom_killed", {"tracecore.host_oom.reporter": "ray"}),
    ],
)
def test_scheduler_reports(
    reports: list[dict[str, Any]], scheduler: Any, prefix: str, expected: dict[str, Any]
) -> None:
    for text in of_kind(reports, prefix):
        assert expected.items() <= scheduler(text).items() or any(
            expected.items() <= scheduler(line).items() for line in text.splitlines()
        ), text


@pytest.mark.parametrize(
    ("prefix", "hints"),
    [
        ("k8s_failed_scheduling", {"failed_scheduling", "mount_failure"}),
        ("k8s_evicted", {"pod_evicted"}),
        ("k8s_oomkilled", {"oom_killed"}),
    ],
)
def test_kubernetes_reports(reports: list[dict[str, Any]], kubernetes: Any, prefix: str, hints: set[str]) -> None:
    for text in of_kind(reports, prefix):
        found = {kubernetes(part).get("k8s.event.hint") for part in (text, *text.splitlines())}
        assert found & hints, text
        assert found <= hints | {None}, text


def test_benign_reports_stamp_no_fault(
    reports: list[dict[str, Any]], kernel: Any, scheduler: Any, kubernetes: Any
) -> None:
    for report in reports:
        if report["class"] != "benign":
            continue
        for line in (report["text"], *report["text"].splitlines()):
            assert "k8s.event.hint" not in kubernetes(line), line
            assert scheduler(line) == {}, line
            # A port that comes up is measured, and a GPU's name is noted: neither is a fault.
            names = {name for name in kernel(line) if not name.startswith(("hw.network.", "network.", "gpu."))}
            assert names == set(), line


def test_collector_fixtures(shared_data: Path, kubernetes: Any) -> None:
    """Events as the Collector's two receivers give them arrive in the same attributes."""
    root = shared_data / "peers" / "otel_fixtures" / "receiver"
    expected = YAML(typ="safe").load((root / "k8seventsreceiver/testdata/e2e/expected/watch_events.yaml").read_text())
    resource = expected["resourceLogs"][0]
    record = resource["scopeLogs"][0]["logRecords"][0]
    found = kubernetes(
        record["body"]["stringValue"],
        _attributes(record["attributes"]),
        _attributes(resource["resource"]["attributes"]),
    )
    assert found["k8s.pod.name"] == "test-pod"
    assert found["k8s.event.note"] == record["body"]["stringValue"]
    assert "k8s.event.hint" not in found
    core = YAML(typ="safe").load((root / "k8sobjectsreceiver/testdata/e2e/expected/watch_events_core.yaml").read_text())
    record = core["resourceLogs"][0]["scopeLogs"][0]["logRecords"][0]
    found = kubernetes(_value(record["body"]))
    assert found["k8s.event.note"] == "test event of type warning"
    assert found["k8s.event.reason"]


def _attributes(pairs: list[dict[str, Any]]) -> dict[str, Any]:
    return {pair["key"]: _value(pair["value"]) for pair in pairs}


def _value(value: dict[str, Any]) -> Any:
    match next(iter(value.items()), None):
        case ("kvlistValue", inner):
            return _attributes(inner.get("values") or [])
        case ("arrayValue", inner):
            return [_value(item) for item in inner.get("values") or []]
        case ("intValue", inner):
            return int(inner)
        case (_, inner):
            return inner
    return None
