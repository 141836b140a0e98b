"""Trouble of other pods and machines beside a job: a note, unless something ties it to the job."""

from __future__ import annotations

from pathlib import Path

import pytest

from tracecore.diagnose.offline import diagnose
from tracecore.incidents.diagnosis import Diagnosis

PODS = (
    "NAME      READY   STATUS    RESTARTS   AGE   IP         NODE\n"
    "llm-w-0   1/1     Running   0          2h    10.1.0.9   gpu-a1\n"
)
STEPS = "".join(f"2026-05-20T08:0{minute}:00Z step {minute} loss 2.3{minute}\n" for minute in range(3))
NAN = "".join(f"2026-05-20T08:0{minute}:00Z step {minute} loss nan\n" for minute in range(3, 6))
EVENTS = (
    "LAST SEEN   TYPE      REASON        OBJECT        MESSAGE\n"
    '1m          Warning   FailedMount   pod/{0}   MountVolume.SetUp failed for volume "data" : mount failed\n'
)
REMOVED = (
    "I0520 08:02:40.5  1 actuator.go:211] Scale-down: removing node {0}, utilization: {{}}, pods to reschedule: {1}\n"
)
DISRUPTED = (
    '{{"level":"INFO","time":"2026-05-20T08:02:40Z","message":"disrupting node(s)",'
    '"disrupted-nodes":[{{"Node":{{"name":"{0}"}}}}]}}\n'
)


def told(folder: Path, files: dict[str, str]) -> tuple[str | None, Diagnosis]:
    for name, text in {"pods.txt": PODS, **files}.items():
        (folder / name).write_text(text)
    said = diagnose([folder])
    first = said.incidents[0] if said.incidents else None
    return first.root.verdict.pattern_name if first is not None and first.root is not None else None, said


CRASH = (
    "2026-05-20T08:03:00Z Traceback (most recent call last):\n"
    '  File "/app/t.py", line 9, in <module>\n'
    "KeyError: 'x'\n"
)


@pytest.mark.parametrize(
    ("pod", "end", "root"),
    [
        ("jupyter-ana", NAN, "training_divergence"),
        ("llm-w-1", NAN, "training_divergence"),
        ("jupyter-ana", CRASH, "worker_crash"),
        ("llm-w-1", CRASH, "storage_failure"),
    ],
)
def test_a_volume_of_another_pod_is_not_why_a_job_failed(tmp_path: Path, pod: str, end: str, root: str) -> None:
    found, said = told(tmp_path, {"llm-w-0.log": STEPS + end, "events.txt": EVENTS.format(pod)})
    assert found == root
    noted = any(note.startswith("About a pod that may not belong to the job") for note in said.notes)
    assert noted is (root != "storage_failure")


@pytest.mark.parametrize(
    ("log", "stopped"),
    [
        (REMOVED.format("gpu-a1", "default/other-0"), True),
        (REMOVED.format("gpu-b7", "default/llm-w-0"), True),
        (REMOVED.format("gpu-b7", "default/other-0"), False),
        (DISRUPTED.format("gpu-a1.ec2.internal"), True),
        (DISRUPTED.format("gpu-b7.ec2.internal"), False),
    ],
)
def test_an_autoscaler_stops_only_jobs_on_the_node_that_it_takes_away(tmp_path: Path, log: str, stopped: bool) -> None:
    found, said = told(tmp_path, {"llm-w-0.log": STEPS, "autoscaler.log": log})
    assert (found == "planned_stop") is stopped
    assert any(note.startswith("Nothing links it to the job: stop requested") for note in said.notes) is not stopped
