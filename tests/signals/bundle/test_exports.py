"""Exports of log services: every writer is a log of its own, in order of time, with what the entries say of it."""

from __future__ import annotations

import csv
import io
import json
import tarfile
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tracecore.diagnose.offline import diagnose
from tracecore.signals.bundle import discovery, exports
from tracecore.signals.bundle.discovery import discover

BEGIN = datetime(2026, 6, 21, 22, 47, 9, tzinfo=UTC)
RAISED = """Traceback (most recent call last):
  File "/app/train.py", line 187, in main
    batch = next(rows)
ValueError: a sequence of 9213 tokens does not fit 8192"""
LOST = """Traceback (most recent call last):
  File "/app/train.py", line 192, in main
    dist.all_reduce(loss)
torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:3690, remote process exited
ncclRemoteError: A call failed possibly due to a network error or a remote process exiting prematurely."""


def told(ranks: int, failed: int) -> list[tuple[datetime, int, str]]:
    """What each rank wrote, line by line."""
    lines = [
        (BEGIN + timedelta(seconds=3 * step), rank, f"step {step} | loss {3 - step / 100:.4f} | 3.00 s")
        for step in range(10)
        for rank in range(ranks)
    ]
    for rank in range(ranks):
        text = RAISED if rank == failed else LOST
        after = BEGIN + timedelta(seconds=30 if rank == failed else 32)
        lines += [(after, rank, line) for line in text.split("\n")]
    return lines


def iso(time: datetime) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def nanos(time: datetime) -> str:
    return str(int(time.timestamp()) * 10**9 + time.microsecond * 1000)


def google(time: datetime, rank: int, line: str) -> dict[str, Any]:
    labels = {"container_name": "main", "namespace_name": "ml", "pod_name": f"llm-{rank}"}
    return {
        "insertId": "x",
        "resource": {"labels": labels, "type": "k8s_container"},
        "textPayload": line,
        "timestamp": iso(time),
    }


def amazon(time: datetime, rank: int, line: str) -> dict[str, Any]:
    at = int(time.timestamp() * 1000)
    return {"logStreamName": f"llm/main/task{rank}", "timestamp": at, "message": line, "ingestionTime": at + 900}


def loki(time: datetime, rank: int, line: str) -> dict[str, Any]:
    return {"labels": {"namespace": "ml", "pod": f"llm-{rank}"}, "line": line, "timestamp": iso(time)}


def grafana(time: datetime, rank: int, line: str) -> dict[str, Any]:
    return {"line": line, "timestamp": nanos(time), "fields": {"namespace": "ml", "pod": f"llm-{rank}"}}


def datadog(time: datetime, rank: int, line: str) -> dict[str, Any]:
    tags = [f"pod_name:llm-{rank}", "kube_namespace:ml"]
    return {"id": "A", "type": "log", "attributes": {"timestamp": iso(time), "message": line, "tags": tags}}


def fluent(time: datetime, rank: int, line: str) -> dict[str, Any]:
    pod = {"pod_name": f"llm-{rank}", "namespace_name": "ml", "container_name": "main", "host": f"n{rank}"}
    return {"date": time.timestamp(), "log": line, "kubernetes": pod}


def kibana(time: datetime, rank: int, line: str) -> dict[str, Any]:
    pod = {"pod": {"name": f"llm-{rank}"}, "namespace": "ml", "container": {"name": "main"}}
    return {"_id": "7", "_source": {"@timestamp": iso(time), "message": line, "kubernetes": pod}}


def api(entries: list[tuple[datetime, int, str]]) -> str:
    streams = [
        {
            "stream": {"namespace": "ml", "pod": f"llm-{rank}"},
            "values": [[nanos(time), line] for time, who, line in reversed(entries) if who == rank],
        }
        for rank in sorted({rank for _, rank, _ in entries})
    ]
    return json.dumps({"status": "success", "data": {"resultType": "streams", "result": streams}})


def lines(form: Callable[..., dict[str, Any]], entries: list[tuple[datetime, int, str]]) -> str:
    return "".join(json.dumps(form(*entry)) + "\n" for entry in entries)


def table(columns: list[str], rows: list[list[str]]) -> str:
    text = io.StringIO()
    csv.writer(text).writerows([columns, *rows])
    return text.getvalue()


TOLD = told(4, 2)
BACKWARDS = TOLD[::-1]
EXPORTS = {
    "google": json.dumps([google(*entry) for entry in BACKWARDS], indent=2),
    "google_lines": lines(google, TOLD),
    "amazon": json.dumps({"events": [amazon(*entry) for entry in TOLD], "searchedLogStreams": []}, indent=4),
    "loki": lines(loki, BACKWARDS),
    "loki_api": api(TOLD),
    "grafana": json.dumps([grafana(*entry) for entry in BACKWARDS]),
    "datadog": json.dumps({"data": [datadog(*entry) for entry in BACKWARDS]}),
    "fluent": lines(fluent, TOLD),
    "kibana": json.dumps({"took": 1, "hits": {"total": 1, "hits": [kibana(*entry) for entry in TOLD]}}),
    "insights": table(
        ["@timestamp", "@message", "@logStream"], [[iso(t), line, f"rank{r}"] for t, r, line in BACKWARDS]
    ),
    "azure": table(
        ["TimeGenerated [UTC]", "PodName", "ContainerName", "LogMessage"],
        [[t.strftime("%m/%d/%Y, %I:%M:%S.%f %p"), f"llm-{r}", "main", line] for t, r, line in TOLD],
    ),
}


@pytest.mark.parametrize("name", EXPORTS)
def test_who_failed_is_told_from_an_export(tmp_path: Path, name: str) -> None:
    (tmp_path / "logs.export").write_text(EXPORTS[name])
    incident = diagnose([tmp_path]).document()["incidents"][0]
    assert incident["root_cause"]["pattern"] == "worker_crash"
    assert incident["suspects"]["ranks"] == [2]
    assert incident["failure"]["class"] in ("code", "data")


@pytest.mark.parametrize("name", EXPORTS)
def test_a_log_has_its_lines_in_order_and_its_name(tmp_path: Path, name: str) -> None:
    (tmp_path / "logs.export").write_text(EXPORTS[name])
    bundle = discover([tmp_path])
    assert bundle.skipped == []
    assert len(bundle.streams) == 4
    (mine,) = (stream for stream in bundle.streams if "2" in stream.path.rpartition("!/")[2])
    with mine.open() as file:
        found = [line.split(" ", 3)[3] for line in file.read().decode().splitlines()]
    assert found == [line for _, rank, line in TOLD if rank == 2]


def test_events_and_a_nodes_journal_among_the_entries(tmp_path: Path) -> None:
    event = {
        "apiVersion": "v1", "kind": "Event", "reason": "Evicted", "type": "Warning", "message": "low on memory",
        "involvedObject": {"kind": "Pod", "name": "llm-2", "namespace": "ml"}, "lastTimestamp": "2026-06-21T22:48:09Z",
        "metadata": {"name": "llm-2.17", "namespace": "ml", "uid": "u17"}, "source": {"host": "n7"},
    }  # fmt: skip
    line = "NVRM: Xid (PCI:0000:db:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."
    journal = {"MESSAGE": line, "SYSLOG_IDENTIFIER": "kernel", "_TRANSPORT": "kernel", "_HOSTNAME": "n7"}
    entries = [{"insertId": "1", "timestamp": iso(BEGIN), "jsonPayload": payload} for payload in (event, journal)]
    (tmp_path / "logs.json").write_text(json.dumps(entries))
    assert {stream.format for stream in discover([tmp_path]).streams} == {"kubernetes_json", "journal_json"}
    patterns = {verdict["pattern.name"] for verdict in diagnose([tmp_path]).document()["verdicts"]}
    assert {"gpu_fault", "pod_evicted"} <= patterns


@pytest.mark.parametrize(
    "text",
    [
        '{"time": "2026-06-21T22:47:09Z", "level": "info", "message": "step 1", "loss": 2.0}\n' * 9,
        '{"log":"step 1 loss 2.0\\n","stream":"stdout","time":"2026-06-21T22:47:09Z"}\n' * 9,
        '{"timestamp": "2026-06-21T22:47:09Z", "line": 88, "labels": {"run": "a"}, "message": "step 1"}\n' * 9,
        '{"timestamp": "2026-06-21T22:47:09Z", "line": 88, "fields": {"loss": 2.0}, "message": "step 1"}\n' * 9,
        "step,loss\n1,2.0\n",
        "[rank0]: step 1, loss 2.0\n" * 9,
    ],
)
def test_what_a_program_wrote_itself_is_no_export(text: str) -> None:
    assert exports.shape(text.encode()) is None


@pytest.mark.parametrize("cut", [10, 200, 2000])
def test_a_damaged_export_is_read_line_by_line(tmp_path: Path, cut: int) -> None:
    (tmp_path / "logs.json").write_text(EXPORTS["google"][:-cut])
    bundle = discover([tmp_path])
    assert [stream.path for stream in bundle.streams] == [str(tmp_path / "logs.json")]
    assert "read line by line" in bundle.skipped[0].reason


def test_entries_that_are_none_are_counted(tmp_path: Path) -> None:
    (tmp_path / "logs.jsonl").write_text(EXPORTS["loki"] + "{not JSON\n" + '{"labels": {}, "timestamp": "x"}\n')
    bundle = discover([tmp_path])
    assert len(bundle.streams) == 4
    assert bundle.skipped[0].reason.startswith("2 entries")


def test_too_large_an_export_is_not_held(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exports, "MAX_SIZE", 1000)
    (tmp_path / "logs.jsonl").write_text(EXPORTS["loki"])
    bundle = discover([tmp_path])
    assert [stream.format for stream in bundle.streams] == ["text"]
    assert "too large" in bundle.skipped[0].reason
    monkeypatch.undo()
    monkeypatch.setattr(discovery, "EXPORTS", len(EXPORTS["loki"]) + 1)
    (tmp_path / "more.jsonl").write_text(EXPORTS["loki"])
    assert "too large" in discover([tmp_path]).skipped[0].reason


def test_deep_nesting_ends_nothing(tmp_path: Path) -> None:
    deep = "[" * 100_000
    (tmp_path / "logs.json").write_text('{"events": ' + deep + ', "ingestionTime": 1, "message": "x"}')
    assert len(discover([tmp_path]).streams) == 1


def test_two_members_of_one_name_are_told_apart(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "logs.tar", "w") as archive:
        for host in ("n1", "n2"):
            said = f"Oct  3 04:12:00 {host} train[1]: step 1 loss 2.0\nOct  3 04:12:09 {host} train[1]: training done\n"
            member = tarfile.TarInfo("a.log")
            member.size = len(said)
            archive.addfile(member, io.BytesIO(said.encode()))
    found = diagnose([tmp_path])
    assert {fact.node for fact in found.facts} == {"n1", "n2"}
    assert len({fact.uid for fact in found.facts}) == len(found.facts)


def test_writers_beyond_the_bound_are_left_out_and_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exports, "MAX_WRITERS", 3)
    entries = [(BEGIN, rank, "step 1 loss 2.0") for rank in range(9)]
    found = exports.read(lines(loki, entries).encode(), "lines")
    assert (len(found.logs), found.left_out) == (3, 6)
