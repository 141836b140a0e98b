"""Jobs and machines of a cluster that are not those of the run are set apart, with a note."""

from __future__ import annotations

from pathlib import Path

import pytest

from tracecore.diagnose.offline import diagnose
from tracecore.incidents.diagnosis import Diagnosis

STEPS = "".join(f"2026-03-21 20:{minute:02d}:00,052 INFO train: step {minute} loss 2.8\n" for minute in range(4))
DONE = "2026-03-21 20:05:00,052 INFO train: training completed\n"
ROWS = "JobID|JobName|State|ExitCode|NodeList\n"
OTHER = "70099|other|NODE_FAIL|0:0|px09\n"


def said(folder: Path, files: dict[str, str]) -> Diagnosis:
    for name, text in files.items():
        (folder / name).write_text(text, encoding="utf-8")
    return diagnose([folder])


@pytest.mark.parametrize(
    ("own", "incidents"),
    [
        ("70102|train|COMPLETED|0:0|px03\n", 0),  # the scheduler lists the job of the log, too
        ("", 1),  # it may know that job by another number
    ],
)
def test_a_job_of_which_only_the_scheduler_speaks_is_another_one(tmp_path: Path, own: str, incidents: int) -> None:
    found = said(tmp_path, {"slurm-70102.out": STEPS + DONE, "sacct.txt": ROWS + own + OTHER})
    assert len(found.incidents) == incidents
    noted = "The scheduler also lists jobs whose output is not here: 70099 (NODE_FAIL)"
    assert (noted in found.notes) is (incidents == 0)


def test_many_other_jobs_are_counted(tmp_path: Path) -> None:
    rows = "".join(f"{80000 + number}|other|FAILED|1:0|px09\n" for number in range(9))
    own = "70102|train|COMPLETED|0:0|px03\n"
    found = said(tmp_path, {"slurm-70102.out": STEPS + DONE, "sacct.txt": ROWS + own + rows})
    assert not found.incidents
    assert any(note.endswith("80003 (FAILED) and 5 more") for note in found.notes)


PODS = "NAME  READY  STATUS  RESTARTS  AGE  IP  NODE\n{}-0  1/1  Running  0  34m  10.2.3.1  gpu-c-03\n"
LOST = (
    "LAST SEEN   TYPE      REASON         OBJECT          MESSAGE\n"
    "2h          Warning   NodeNotReady   node/{}   Node is not ready\n"
)


@pytest.mark.parametrize(
    ("pod", "node", "lost"),
    [
        ("sft", "gpu-c-11", False),
        ("sft", "gpu-c-03", True),
        ("web", "gpu-c-11", True),  # the list has other pods only
    ],
)
def test_a_machine_without_listed_pods_is_none_of_the_job(tmp_path: Path, pod: str, node: str, lost: bool) -> None:
    files = {"sft-0.log": STEPS, "pods.txt": PODS.format(pod), "events.txt": LOST.format(node)}
    found = said(tmp_path, files)
    assert ("Not ready, and none of the listed pods runs there: gpu-c-11" in found.notes) is not lost
    told = " ".join([*found.notes, *(incident.headline for incident in found.incidents)])
    assert node in told
