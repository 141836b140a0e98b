"""A stalled input pipeline, live: why it stands still is joined from the trainer's lines and Kubernetes' events."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tracecore.agent.batch import Batch
from tracecore.agent.component import Setting
from tracecore.agent.processors.patterndetector import Options, PatternDetector
from tracecore.agent.telemetry import Meter
from tracecore.patterns.contract import SECOND

START = 1_790_000_000 * SECOND
POD = {"k8s.pod.name": "w-0", "k8s.namespace.name": "train", "k8s.node.name": "node-7"}
KILLED = "RuntimeError: DataLoader worker (pid 4711) is killed by signal: Killed."
MOUNT = {
    "k8s.event.reason": "FailedMount",
    "k8s.object.kind": "Pod",
    "k8s.object.name": "w-0",
    "k8s.namespace.name": "train",
    "k8s.node.name": "node-7",
}


def said(*told: tuple[int, str, dict[str, Any]], steps: int = 30, until: int = 700) -> list[dict[str, Any]]:
    """The verdicts of ten minutes in which no step follows the first ones, as last said of each.

    Args:
        told: second, text and attributes of other records.
        steps: steps before the stall, ten seconds apart.
    """
    now = START
    setting = Setting(
        "patterndetector",
        Meter("processor", "patterndetector"),
        lambda: now,
        {}.__getitem__,
        Path(),
        lambda: (True, {}),
    )
    detector = PatternDetector(Options(), setting)
    records = [(at * 10, f"INFO step: {at} loss: 2.{at % 97}", {}) for at in range(steps)]
    records += [*told, *((at, "INFO heartbeat", {}) for at in range(steps * 10, until, 10))]
    verdicts: dict[str, dict[str, Any]] = {}
    for at, text, attributes in sorted(records, key=lambda record: record[0]):
        now = START + at * SECOND
        record = {"body": text, "attributes": attributes, "time_unix_nano": now}
        entry = {"resource": {"attributes": POD}, "scope_logs": [{"scope": {}, "log_records": [record]}]}
        batches = [*detector.process(Batch("logs", {"resource_logs": [entry]})), *detector.tick(now)]
        for one in batches:
            for group in one.view()["resource_logs"]:
                for scope in group["scope_logs"]:
                    for made in scope["log_records"]:
                        if made["attributes"].get("pattern.name") == "dataloader_hang":
                            verdicts[made["attributes"]["pattern.headline"].partition(" for ")[0]] = made["attributes"]
    return list(verdicts.values())


def test_a_worker_that_was_killed() -> None:
    (verdict,) = said((291, KILLED, {}))
    assert verdict["tracecore.alert.dataloader_hang.discriminator"] == "worker_killed"
    assert verdict["dataloader.error_class"] == "DataLoader worker killed"
    assert verdict["dataloader.worker_pid"] == 4711
    assert verdict["pattern.confidence"] == "full"
    assert (verdict["k8s.pod.name"], verdict["k8s.node.name"]) == ("w-0", "node-7")


def test_a_volume_that_could_not_be_mounted() -> None:
    (verdict,) = said((291, "MountVolume.SetUp failed for volume data", MOUNT))
    assert verdict["tracecore.alert.dataloader_hang.discriminator"] == "storage_event"
    assert verdict["k8s.event.reason"] == "FailedMount"
    assert "dataloader.error_class" not in verdict


def test_both_at_once_are_one_verdict_and_the_worker_is_named() -> None:
    (verdict,) = said((291, KILLED, {}), (292, "MountVolume.SetUp failed for volume data", MOUNT))
    assert verdict["tracecore.alert.dataloader_hang.discriminator"] == "worker_killed"
    assert "A volume could not be mounted on that node either" in verdict["pattern.remediation"]
    assert "FailedMount" in verdict["pattern.verdict_json"]


def test_a_stall_alone_says_nothing() -> None:
    assert said() == []


def test_a_worker_that_was_killed_while_steps_go_on_says_nothing() -> None:
    assert said((291, KILLED, {}), steps=70) == []


def test_the_first_steps_are_not_judged() -> None:
    assert said((5, KILLED, {}), steps=1) == []
