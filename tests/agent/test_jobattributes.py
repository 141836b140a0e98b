"""Log files get job, rank and attempt of the process that writes them, with a real agent and a real process."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tracecore.agent.batch import Batch
from tracecore.agent.component import Setting
from tracecore.agent.processors.jobattributes import JobAttributes, Options
from tracecore.agent.telemetry import Meter
from tracecore.signals.processes.writers import WritingProcess

Start = Callable[[str], Any]
Wait = Callable[..., Any]
SECOND = 1_000_000_000

AGENT = """\
receivers:
  filelog: {include: ["LOGS/*.log"], start_at: beginning, include_file_path: true}
processors:
  jobattributes:
  patterndetector: {forward: facts}
exporters:
  file: {path: out.json}
service:
  telemetry: {metrics: {address: "127.0.0.1:0"}}
  pipelines:
    logs: {receivers: [filelog], processors: [jobattributes, patterndetector], exporters: [file]}
"""
#: Ranks write different losses: of files that are the same to the last byte only one is read (docs/tailing.md).
PROGRAM = """\
import os, time
time.sleep(1)
for step in range(200):
    print(f"step {step} loss 2.{os.environ['RANK']}", flush=True)
    time.sleep(0.1)
"""


def test_facts_of_a_plain_machine_name_job_rank_and_attempt(agent: Start, tmp_path: Path, wait_for: Wait) -> None:
    logs = tmp_path / "logs"
    logs.mkdir()
    own = {"TORCHELASTIC_RUN_ID": "llm-7b", "TORCHELASTIC_RESTART_COUNT": "1"}
    processes = []
    for rank in (0, 1):
        with (logs / f"out-{'ab'[rank]}.log").open("wb") as file:
            environment = {**os.environ, **own, "RANK": str(rank)}
            processes.append(subprocess.Popen([sys.executable, "-c", PROGRAM], stdout=file, env=environment))
    try:
        running = agent(AGENT.replace("LOGS", str(logs)))

        def told() -> bool:
            ranks = {record["attributes"].get("gen_ai.training.rank") for record in running.written()}
            return {"0", "1"} <= {str(rank) for rank in ranks if rank is not None}

        wait_for(told, 40)
        facts = [r for r in running.written() if "gen_ai.training.rank" in r["attributes"]]
        assert {record["resource"].get("gen_ai.training.job_id") for record in facts} == {"llm-7b"}
        assert all('"attempt":1' in record["attributes"]["tracecore.fact.json"] for record in facts)
    finally:
        for process in processes:
            process.kill()
            process.wait()


def made(found: dict[str, WritingProcess], clock: list[int], asked: list[set[str]]) -> tuple[JobAttributes, Meter]:
    meter = Meter("processor", "jobattributes")
    setting = Setting("jobattributes", meter, lambda: clock[0], {}.__getitem__, Path(), lambda: (True, {}))

    def find(paths: set[str]) -> tuple[dict[str, WritingProcess], bool]:
        asked.append(paths)
        return {path: found[path] for path in paths if path in found}, True

    return JobAttributes(Options(), setting, find), meter


def batch(*paths: str, **resource: Any) -> Batch:
    records = [{"body": path, "attributes": {"log.file.path": path} if path else {}} for path in paths]
    entry = {"resource": {"attributes": dict(resource)}, "scope_logs": [{"scope": {}, "log_records": records}]}
    return Batch("logs", {"resource_logs": [entry]})


def process(pid: int, **environment: str) -> WritingProcess:
    return WritingProcess(pid, environment, "", "python", "1")


def test_records_of_several_files_are_told_apart_and_files_are_asked_about_now_and_then() -> None:
    clock, asked = [SECOND], []  # type: tuple[list[int], list[set[str]]]
    found = {"a": process(1, RANK="0"), "b": process(2, RANK="1")}
    one, meter = made(found, clock, asked)
    (stamped,) = one.process(batch("a", "b", "a", "c", ""))
    ranks = {
        record["body"]: entry["resource"]["attributes"].get("gen_ai.training.rank")
        for entry in stamped.payload["resource_logs"]
        for record in entry["scope_logs"][0]["log_records"]
    }
    assert ranks == {"a": 0, "b": 1, "c": None, "": None}
    assert stamped.count == 5
    list(one.process(batch("a", "b")))
    assert asked == [{"a", "b", "c"}]
    assert (meter.events["files_without_writer"], meter.events["records_without_path"]) == (1, 1)
    # Its process ended: the last lines are still its own. Then another one writes the file.
    del found["a"]
    clock[0] += 20 * SECOND
    (late,) = one.process(batch("a"))
    assert late.payload["resource_logs"][0]["resource"]["attributes"]["gen_ai.training.rank"] == 0
    found["a"] = process(3, RANK="7")
    clock[0] += 20 * SECOND
    (anew,) = one.process(batch("a"))
    assert anew.payload["resource_logs"][0]["resource"]["attributes"]["gen_ai.training.rank"] == 7


def test_what_a_resource_says_already_stays() -> None:
    one, _ = made({"a": process(1, RANK="0", TORCHELASTIC_RUN_ID="x")}, [SECOND], [])
    (stamped,) = one.process(batch("a", **{"gen_ai.training.job_id": "configured"}))
    attributes = stamped.payload["resource_logs"][0]["resource"]["attributes"]
    assert attributes == {"gen_ai.training.job_id": "configured", "gen_ai.training.rank": 0}
