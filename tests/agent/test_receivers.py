"""Receivers of the kernel's messages and of the journal, fed as the real ones are."""

from __future__ import annotations

import os
import signal
import stat
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tracecore.agent.receivers.journald import Options as JournaldOptions
from tracecore.agent.receivers.kmsg import parse

Start = Callable[[str], Any]
Wait = Callable[..., Any]

TEXT = """\
receivers:
  {receiver}
processors:
  patterndetector:
exporters:
  file: {{path: out.json, append: true}}
extensions:
  file_storage: {{directory: kept, create_directory: true}}
service:
  extensions: [file_storage]
  telemetry: {{metrics: {{address: "127.0.0.1:0"}}}}
  pipelines:
    logs: {{receivers: [{name}], processors: [patterndetector], exporters: [file]}}
"""


def test_a_message_of_the_kernel_is_parsed() -> None:
    found = parse(b"30,8801,5140000,-;nvme nvme0: I/O \\x0atimeout", 1_000)
    assert found is not None
    sequence, record = found
    assert sequence == 8801
    assert record == {
        "body": "nvme nvme0: I/O \ntimeout",
        "attributes": {"log.record.sequence": 8801, "syslog.facility.code": 3},
        "time_unix_nano": 1_000 + 5_140_000_000,
        "severity_number": 9,
        "severity_text": "info",
    }


@pytest.mark.parametrize("raw", [b"", b"no header", b"1,2;x", b"a,1,2,-;x", b"9" * 30 + b",1,1,-;x"])
def test_what_is_no_message_is_passed_over(raw: bytes) -> None:
    assert parse(raw, 0) is None


def test_kernel_messages_become_verdicts_and_a_restart_repeats_none(
    agent: Start, tmp_path: Path, wait_for: Wait
) -> None:
    device = tmp_path / "kmsg"
    now = time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000
    xid = "NVRM: Xid (PCI:0000:3b:00): 79, pid=2411, name=python, GPU has fallen off the bus."
    device.write_text(f"6,1,{now},-;usb 1-1: new device\n SUBSYSTEM=usb\n4,2,{now + 5},-;{xid}\n")
    running = agent(
        TEXT.format(receiver=f"kmsg: {{path: {device}, start_at: beginning, storage: file_storage}}", name="kmsg")
    )
    verdict = wait_for(lambda: [r for r in running.written() if "pattern.name" in r["attributes"]])[0]
    assert "0000:3b:00.0" in verdict["body"]
    assert [r["body"] for r in running.written() if "pattern.name" not in r["attributes"]] == [
        "usb 1-1: new device",
        xid,
    ]
    assert running.written()[0]["resource"]["tracecore.layer"] == "kernel"
    assert running.stop() == 0
    with device.open("a") as file:
        file.write(f"6,3,{now + 9},-;a new line\n")
    running.start()
    wait_for(lambda: running.written()[-1]["body"] == "a new line")
    bodies = [r["body"] for r in running.written()]
    assert (bodies.count("usb 1-1: new device"), bodies.count(xid)) == (1, 1)
    assert running.stop() == 0


KILLED = "Out of memory: Killed process 42 (python) total-vm:9kB, anon-rss:8kB, file-rss:0kB, shmem-rss:0kB"
JOURNALCTL = """\
#!{python}
import json, sys, time
open({calls!r}, "a").write(" ".join(sys.argv[1:]) + "\\n")
after = [a for a in sys.argv if a.startswith("--after-cursor=c")]
first = int(after[0].rpartition("c")[2]) + 1 if after else 0
for n in range(first, {entries}):
    message = {killed!r} if n == 1 else f"m{{n}}"
    stamp = str(int(time.time() * 1e6))
    entry = {{"__CURSOR": f"c{{n}}", "__REALTIME_TIMESTAMP": stamp, "_TRANSPORT": "kernel", "_HOSTNAME": "node-9"}}
    print(json.dumps({{**entry, "MESSAGE": message}}), flush=True)
time.sleep(600)
"""


def test_the_journal_is_followed_from_where_it_was_read(agent: Start, tmp_path: Path, wait_for: Wait) -> None:
    program, calls = tmp_path / "journalctl", tmp_path / "calls"

    def write(entries: int) -> None:
        program.write_text(JOURNALCTL.format(python=sys.executable, calls=str(calls), entries=entries, killed=KILLED))
        program.chmod(program.stat().st_mode | stat.S_IXUSR)

    write(3)
    options = f"{{journalctl_path: {program}, storage: file_storage, units: [kubelet], start_at: beginning}}"
    running = agent(TEXT.format(receiver=f"journald: {options}", name="journald"))
    verdicts = wait_for(lambda: [r for r in running.written() if "pattern.name" in r["attributes"]])
    assert {verdict["attributes"]["pattern.name"] for verdict in verdicts} == {"host_oom"}
    assert "node-9" in verdicts[0]["body"]
    assert running.stop() == 0
    write(5)
    running.start()
    wait_for(lambda: "m4" in (tmp_path / "out.json").read_text())
    assert running.stop() == 0
    messages = [
        msgspec.json.decode(line)["resourceLogs"][0]["scopeLogs"][0]["logRecords"]
        for line in (tmp_path / "out.json").read_text().splitlines()
    ]
    cursors = [
        entry["value"]["stringValue"]
        for records in messages
        for record in records
        for entry in record["body"].get("kvlistValue", {}).get("values", [])
        if entry["key"] == "__CURSOR"
    ]
    assert cursors == ["c0", "c1", "c2", "c3", "c4"]
    first, second = calls.read_text().splitlines()
    assert "--no-tail" in first
    assert "--unit=kubelet" in first
    assert "--after-cursor=c2" in second


def test_a_journalctl_that_ends_is_degraded_with_its_words(agent: Start, tmp_path: Path, wait_for: Wait) -> None:
    program = tmp_path / "journalctl"
    program.write_text("#!/bin/sh\necho 'No journal files were found.' >&2\nexit 1\n")
    os.chmod(program, 0o700)
    running = agent(TEXT.format(receiver=f"journald: {{journalctl_path: {program}}}", name="journald"))
    running.wait_log("No journal files were found.")
    assert running.get("/readyz")[0] == 503


def test_a_stop_of_all_processes_of_a_service_logs_no_error(agent: Start, tmp_path: Path, wait_for: Wait) -> None:
    """systemd sends SIGTERM to the agent and to its journalctl."""
    program, number = tmp_path / "journalctl", tmp_path / "pid"
    program.write_text(f"#!/bin/sh\necho $$ > {number}\nexec sleep 60\n")
    os.chmod(program, 0o700)
    running = agent(TEXT.format(receiver=f"journald: {{journalctl_path: {program}}}", name="journald"))
    wait_for(lambda: number.exists() and number.read_text().strip())
    pid = int(number.read_text())
    assert running.process is not None
    assert os.getpgid(pid) != os.getpgid(running.process.pid)
    os.kill(pid, signal.SIGTERM)
    time.sleep(0.1)
    assert running.stop() == 0
    assert "ERROR" not in running.log


def test_the_arguments_of_journalctl() -> None:
    options = JournaldOptions(
        matches=[{"_UID": "0"}, {"_EXE": "/a", "_PID": "1"}], identifiers=["x"], priority="err", dmesg=True
    )
    command = options.command(None)
    assert command[-5:] == ["--dmesg", "_UID=0", "+", "_EXE=/a", "_PID=1"]
    assert "--priority=err" in command
    assert "--lines=0" in command
