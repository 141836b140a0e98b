"""Exit statuses and Slurm's accounts of a job become records."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tracecore.signals.bundle.discovery import discover
from tracecore.signals.record import LogSignal
from tracecore.signals.scheduler import exit_codes, slurm
from tracecore.signals.stamps import SECOND, parse
from tracecore.signals.stream import Clock, Stream

Make = Callable[..., Stream]
T = 1_794_706_624 * SECOND  # 2026-11-15T01:37:04Z
CLOCK = Clock(T, True)


def test_exit_codes_of_a_recorded_run(incidents: Path) -> None:
    bundle = discover([incidents / "nccl_rank_exception"])
    (stream,) = bundle.of("exit_codes")
    found = list(exit_codes.read(stream, bundle.clock))
    codes = {
        r["log"]["attributes"]["gen_ai.training.rank"]: r["log"]["attributes"]["tracecore.process.exit_code"]
        for r in found
    }
    assert codes == {0: -6, 1: -6, 2: -6, 3: 1}
    assert {r["resource"]["attributes"]["tracecore.layer"] for r in found} == {"scheduler"}
    assert len({r["source"].uid for r in found}) == 4


@pytest.mark.parametrize("text", ['{"0": null, "1": 137}', '{"rank0": null, "rank_1": 137}', "[null, 137]"])
def test_a_process_without_a_status_was_alive(make: Make, text: str) -> None:
    alive, killed = exit_codes.read(make(text, "exit_codes"), CLOCK)
    assert alive["log"]["attributes"] == {
        "gen_ai.training.rank": 0,
        "tracecore.process.alive": True,
        "tracecore.time.inferred": True,
    }
    assert killed["log"]["attributes"]["tracecore.process.exit_code"] == 137
    assert killed["log"]["attributes"]["tracecore.process.alive"] is False
    assert killed["log"]["time_unix_nano"] == T


def read_all(make: Make, text: str) -> tuple[dict[int, object], str]:
    """Status by rank, and what was said of entries that were not used."""
    found: dict[int, object] = {}
    try:
        for record in exit_codes.read(make(text, "exit_codes"), CLOCK):
            told = record["log"]["attributes"]
            found[int(str(told["gen_ai.training.rank"]))] = told.get("tracecore.process.exit_code")
    except ValueError as error:
        return found, str(error)
    return found, ""


@pytest.mark.parametrize(
    "text",
    [
        '{"0": 1, "1": -9, "2": null}',
        '{"0": "1", "1": "-9", "2": null}',
        '{"0": 1.0, "1": "SIGKILL", "2": null}',
        '{"0": {"exit_code": 1}, "1": {"signal": "KILL"}, "2": {"exit_code": null}}',
        '{"0": {"exitCode": "1"}, "1": {"exit_code": 0, "signal": 9}, "2": {"status": null}}',
        '{"rank0": {"returncode": 1}, "rank1": {"returncode": -9}, "rank2": {"returncode": null}}',
        '[{"rank": 0, "exit_code": 1}, {"rank": 1, "exit_code": -9}, {"rank": 2, "exit_code": null}]',
        '[{"global_rank": "0", "status": "1:0"}, {"rank": "rank1", "status": "0:9"}, {"rank": 2, "code": null}]',
        '{"exit_codes": {"0": 1, "1": -9, "2": null}}',
        '{"results": {"ranks": [{"rank": 0, "exit_code": 1}, {"rank": 1, "signal": 9}, {"rank": 2, "code": null}]}}',
        '{"a": {"rank": 0, "code": 1}, "b": {"rank": 1, "code": "signal 9"}, "c": {"rank": 2, "code": null}}',
        "[1, -9, null]",
    ],
)
def test_shapes_that_people_write(make: Make, text: str) -> None:
    assert read_all(make, text) == ({0: 1, 1: -9, 2: None}, "")


@pytest.mark.parametrize(
    ("entry", "why"),
    [
        ('"0": "dead"', '0: "dead" is neither a status nor a signal'),
        ('"0": true', "0: true is no exit status"),
        ('"0": [1]', "0: [1] is no exit status"),
        ('"0": 1.5', "0: 1.5 is no exit status"),
        ('"0": {"host": "n1"}', "0: says no exit status"),
        ('"0": {"exit_code": false}', "0: false is no exit status"),
        ('"0": 99999999999999999999', "0: its status is too large"),
        ('"-1": 1', "-1: a rank is not negative"),
        ('"x": 1', "x: no rank"),
        ('"launcher-5": 1', "launcher-5: no rank"),
        ('"x": {"rank": -3, "exit_code": 1}', "rank -3: is no rank"),
        ('"x": {"rank": true, "exit_code": 1}', "rank True: is no rank"),
        ('"2": 1', "2: rank 2 was given before, with another status"),
        ('"rank2": 1', "rank2: rank 2 was given before, with another status"),
    ],
)
def test_entries_that_are_not_used_are_said(make: Make, entry: str, why: str) -> None:
    assert read_all(make, '{"2": 0, ' + entry + "}") == ({2: 0}, f"not used: {why}")


def test_many_entries_that_are_not_used_are_counted(make: Make) -> None:
    text = json.dumps({f"host{n}": 1 for n in range(1200)})
    said = read_all(make, text)[1]
    assert said.endswith("host4: no rank; and 1,195 more")


def test_deep_exit_codes_are_one_line(make: Make) -> None:
    assert read_all(make, "[" * 100_000 + "]" * 100_000) == ({}, "nested too deeply")
    assert read_all(make, '{"a": ' * 900 + "{}" + "}" * 900) == ({}, "not used: entries that are nested too deeply")


def attributes(records: list[LogSignal], name: str) -> list[object]:
    return [r["log"]["attributes"].get(name) for r in records]


PIPED = """\
JobID|JobName|State|ExitCode|Start|End|NodeList
4711|llama|OUT_OF_MEMORY|0:125|2026-11-15T01:00:00|2026-11-15T01:37:04|node-7
4711.batch|batch|CANCELLED by 1000|0:15|2026-11-15T01:00:00|2026-11-15T01:37:04|node-7
4711.0|python|FAILED|1:0|2026-11-15T01:00:00|Unknown|node-[1-4]
4712|next|RUNNING|0:0|2026-11-15T01:30:00|Unknown|None assigned
"""

FIXED = """\
JobID           JobName  Partition    Account  AllocCPUS      State ExitCode
------------ ---------- ---------- ---------- ---------- ---------- --------
4711              llama        gpu         ml         64 OUT_OF_ME+    0:125
4711.batch        batch                    ml         64 CANCELLED+     0:15
4711.0           python                    ml         64     FAILED      1:0
4712               next        gpu         ml         64    RUNNING      0:0
"""


@pytest.mark.parametrize("text", [PIPED, FIXED], ids=["piped", "fixed"])
def test_sacct(make: Make, text: str) -> None:
    found = list(slurm.read_sacct(make(text, "sacct", layer="scheduler"), CLOCK))
    assert attributes(found, "tracecore.slurm.state") == ["OUT_OF_MEMORY", "FAILED", "RUNNING"]
    assert attributes(found, "tracecore.slurm.job_id") == ["4711", "4711.0", "4712"]
    assert attributes(found, "tracecore.process.exit_code") == [-125, 1, None]
    assert [r["resource"]["attributes"]["gen_ai.training.job_id"] for r in found] == ["4711", "4711", "4712"]
    assert all(text.encode()[r["source"].offset :].startswith(str(r["log"]["body"]).encode()[:4]) for r in found)


def test_a_ruler_of_sacct_that_would_cut_words(make: Make) -> None:
    """Somebody copied the table by hand; a word belongs to the column below which most of it stands."""
    text = (
        "JobID           State ExitCode             NodeList\n------------ --------- -------- --------------------\n"
        "4711       NODE_FAIL      0:0 gx-[07-08,11-12]\n4711.ext    CANCELLED by 7     0:6 gx-[07-08,11-12]\n"
    )
    (found,) = slurm.read_sacct(make(text, "sacct"), CLOCK)
    told = found["log"]["attributes"]
    assert (told["tracecore.slurm.state"], told["tracecore.slurm.nodes"]) == ("NODE_FAIL", "gx-[07-08,11-12]")


def test_times_and_nodes_of_sacct(make: Make) -> None:
    found = list(slurm.read_sacct(make(PIPED, "sacct"), CLOCK))
    assert found[0]["log"]["time_unix_nano"] == parse("2026-11-15T01:37:04Z")
    assert found[1]["log"]["time_unix_nano"] == parse("2026-11-15T01:00:00Z")
    hosts = [r["resource"]["attributes"].get("host.name") for r in found]
    assert hosts == ["node-7", None, None]


def test_sacct_json(make: Make) -> None:
    job = {
        "job_id": 4711,
        "state": {"current": ["NODE_FAIL"], "reason": "None"},
        "exit_code": {"return_code": {"set": True, "number": 1}, "signal": {"id": {"set": True, "number": 9}}},
        "time": {"end": 1_794_706_624, "start": 1},
        "nodes": "node-7",
        "steps": [
            {"step": {"id": "4711.0"}, "state": ["FAILED"], "exit_code": {"return_code": 2, "signal": {"id": 0}}},
            {"step": {"id": {"job_id": 4711, "step_id": "batch"}}, "state": "COMPLETED", "exit_code": None},
        ],
    }
    text = json.dumps({"meta": {"slurm": {}}, "jobs": [job, 3, {}]})
    found = list(slurm.read_sacct_json(make(text, "sacct_json"), CLOCK))
    assert attributes(found, "tracecore.slurm.state") == ["NODE_FAIL", "FAILED", "COMPLETED"]
    assert attributes(found, "tracecore.slurm.job_id") == ["4711", "4711.0", "4711.batch"]
    assert attributes(found, "tracecore.process.exit_code") == [-9, 2, None]
    assert found[0]["log"]["time_unix_nano"] == T
    assert len({r["source"].uid for r in found}) == 3


SCONTROL = """\
JobId=4711 JobName=llama train
   UserId=u(1000) Priority=1 Nice=0
   JobState=NODE_FAIL Reason=NodeDown Dependency=(null)
   Requeue=1 Restarts=0 BatchFlag=1 Reboot=0 ExitCode=0:1
   StartTime=2026-11-15T01:00:00 EndTime=2026-11-15T01:37:04 Deadline=N/A
   NodeList=node-7
   Command=/home/u/run.sh --name=x

NodeName=node-7 Arch=x86_64 CoresPerSocket=64
   OS=Linux 6.8.0 #1 SMP
   State=DOWN+DRAIN ThreadsPerCore=1
   Reason=Kill task failed [root@2026-11-15T01:30:00]
NodeName=node-8 Arch=x86_64
   State=IDLE ThreadsPerCore=1
"""


def test_scontrol_with_something_else_below(make: Make) -> None:
    assert [*slurm.read_scontrol(make(f"{SCONTROL}\n$ tail slurm-4711.out\nstep 1 done\n", "scontrol"), CLOCK)]


def test_scontrol(make: Make) -> None:
    job, down, idle = slurm.read_scontrol(make(SCONTROL, "scontrol"), CLOCK)
    assert job["log"]["attributes"] == {
        "tracecore.slurm.state": "NODE_FAIL",
        "tracecore.slurm.job_id": "4711",
        "tracecore.process.exit_code": -1,
        "tracecore.slurm.reason": "NodeDown",
        "tracecore.slurm.nodes": "node-7",
    }
    assert job["resource"]["attributes"]["host.name"] == "node-7"
    assert job["log"]["time_unix_nano"] == T
    assert down["log"]["attributes"]["tracecore.slurm.node_state"] == "DOWN+DRAIN"
    assert down["log"]["attributes"]["tracecore.slurm.reason"] == "Kill task failed [root@2026-11-15T01:30:00]"
    assert down["log"]["time_unix_nano"] == parse("2026-11-15T01:30:00Z")
    assert (idle["resource"]["attributes"]["host.name"], idle["source"].line) == ("node-8", 13)


def test_steps_that_say_nothing_about_the_job_are_left(make: Make) -> None:
    """The job's node failed: its steps were cancelled for that, and Slurm's own step ended well."""
    text = (
        "JobIDRaw|JobName|State|ExitCode|End|NodeList\n"
        "99|train|NODE_FAIL|1:0|2026-01-02T03:04:05|gpu-[1-2]\n"
        "99.extern|extern|COMPLETED|0:0|2026-01-02T03:04:05|gpu-[1-2]\n"
        "99.0|python|CANCELLED|0:15|2026-01-02T03:04:05|gpu-[1-2]\n"
        "99.1|python|FAILED|1:0|2026-01-02T03:04:05|gpu-1\n"
    )
    found = [record["log"]["attributes"] for record in slurm.read_sacct(make(text, "sacct"), Clock(T, True))]
    assert [(one["tracecore.slurm.job_id"], one["tracecore.slurm.state"]) for one in found] == [
        ("99", "NODE_FAIL"),
        ("99.1", "FAILED"),
    ]


def test_steps_that_say_nothing_are_left_in_json_too(make: Make) -> None:
    def step(name: str, state: str) -> dict[str, Any]:
        return {"step": {"id": f"99.{name}", "name": name}, "state": [state]}

    steps = [step("extern", "COMPLETED"), step("python", "CANCELLED"), step("batch", "OUT_OF_MEMORY")]
    text = json.dumps({"jobs": [{"job_id": 99, "state": {"current": ["OUT_OF_MEMORY"]}, "steps": steps}]})
    found = [record["log"]["attributes"] for record in slurm.read_sacct_json(make(text, "sacct_json"), Clock(T, True))]
    assert [one["tracecore.slurm.job_id"] for one in found] == ["99", "99.batch"]


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("n1", ["n1"]), ("", []), ("gpu-[003,009-011],login1", ["gpu-003", "gpu-009", "gpu-010", "gpu-011", "login1"]),
        ("r[1-2]-ib", ["r1-ib", "r2-ib"]), (f"n[{'9' * 5000}],m", ["m"]),
        ("gpu[001-0+", []), ("nid[0308-03", []), ("n1,n2,n+", []),
    ],
)  # fmt: skip
def test_lists_of_hosts(text: str, names: list[str]) -> None:
    assert slurm.hosts(text) == names


def test_a_list_of_hosts_has_an_end() -> None:
    assert len(slurm.hosts("n[1-99999999],m[1-99999999]")) == slurm.NODES
