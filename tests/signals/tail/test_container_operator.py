"""The `container` operator: our own lines, and the Collector's cases where their data is at hand."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest

from tracecore.signals.logs.operators.chain import Chain, ChainError, problems
from tracecore.signals.logs.operators.entry import Entry
from tracecore.signals.logs.selector import SelectLiterals
from tracecore.signals.logs.tail.filelog import FileLog, TailCounters
from tracecore.signals.otlp import encoding

Make = Callable[..., Any]
LINES = (
    "2026-11-15T01:37:04.123456789Z stdout F hello\n2026-11-15T01:37:04.5Z stderr P cut\n"
    "2026-11-15T01:37:04.6Z stderr F  off\n2026-11-15T01:37:04+01:00 stdout F crio\nrubbish\n"
    '{"log":"docker\\n","stream":"stdout","time":"2026-11-15T01:37:04Z"}\n'
    "2026-11-15T01:37:04.7Z stdout F   two  words \n"
)


def test_lines_of_all_runtimes_become_records(logs: Path, tail: Make) -> None:
    (logs / "ml_pod_0-1" / "c").mkdir(parents=True)
    (logs / "ml_pod_0-1" / "c" / "0.log").write_text(LINES)
    t = tail(operators=({"type": "container"},), include=(str(logs / "*/*/*.log"),), include_file_path=True)
    found = [(log["body"], resource.get("k8s.pod.name"), log.get("time_unix_nano", 0)) for resource, log in t.records()]
    assert found == [
        ("hello", "pod", 1_794_706_624_123_456_789),
        ("cut off", "pod", 1_794_706_624_500_000_000),
        ("crio", "pod", 1_794_703_024_000_000_000),
        ("rubbish", None, 0),
        ("docker\n", "pod", 1_794_706_624_000_000_000),
        ("  two  words", "pod", 1_794_706_624_700_000_000),
    ]


def test_the_encoding_is_that_of_the_payload(logs: Path, tail: Make) -> None:
    (logs / "0.log").write_text(LINES + "2026-11-15T01:37:05.1Z stdout F " + "x" * 20_000 + "\n")
    operators = ({"type": "container", "add_metadata_from_filepath": False},)
    t = tail(operators=operators, resource={"a": 1, "b": [True, 2.5]}, attributes={"c": "d"})
    t.records()
    assert t.batches
    for batch in t.batches:
        ours = ExportLogsServiceRequest.FromString(batch.encoded())
        assert ours == ExportLogsServiceRequest.FromString(encoding.logs(batch.payload()))


def test_a_selector_leaves_out_lines_but_keeps_cut_ones_whole(logs: Path, tail: Make) -> None:
    (logs / "0.log").write_text(LINES + "2026-11-15T01:37:05.1Z stdout F CUDA error\n")
    t = tail(operators=({"type": "container", "add_metadata_from_filepath": False},))
    t.log = FileLog(t.config, None, t.clock, selector=SelectLiterals([b"CUDA error"]))
    assert t.bodies() == ["cut off", "CUDA error"]


def test_pieces_that_wait_are_read_again_after_a_restart(logs: Path, tail: Make, tmp_path: Path) -> None:
    from tracecore.signals.storage.journal import Journal

    log = logs / "0.log"
    log.write_text("2026-11-15T01:37:04.5Z stdout F whole\n2026-11-15T01:37:04.5Z stdout P half\n")
    store = Journal(tmp_path / "store")
    options = {"operators": ({"type": "container", "add_metadata_from_filepath": False},), "store": store}
    t = tail(**options)
    assert t.bodies(2) == ["whole"]
    assert t.log.drain() == []
    t.log.close()
    with log.open("a") as out:
        out.write("2026-11-15T01:37:04.6Z stdout F  and half\n")
    assert tail(**options).bodies() == ["half and half"]


def test_pieces_without_an_end_come_after_a_while(logs: Path, tail: Make) -> None:
    (logs / "0.log").write_text("2026-11-15T01:37:04.5Z stdout P half\n")
    t = tail(operators=({"type": "container", "add_metadata_from_filepath": False},))
    assert t.bodies(3) == []
    t.wait(6)
    assert t.bodies() == ["half"]


def test_the_collectors_cases(shared_data: Path) -> None:
    checked = 0
    for case in json.loads((shared_data / "peers" / "container_cases.json").read_text())["cases"]:
        expected = case.get("expectedOutput") or case.get("expect")
        if case["peer"] != "otel-collector container parser" or not isinstance(expected, dict | list):
            continue
        given = case["config"]
        options = {"type": "container", "add_metadata_from_filepath": given["AddMetadataFromFilePath"],
                   "format": given.get("Format", ""), "if": given.get("IfExpr")}  # fmt: skip
        chain = Chain([options], TailCounters())
        lines = case["input"] if isinstance(case["input"], list) else [case["input"]]
        found = chain.process([Entry(one["body"], dict(one.get("attributes", {}))) for one in lines], 0)
        wanted = expected if isinstance(expected, list) else [expected]
        assert len(found) == len(wanted), case["name"]
        for entry, want in zip(found, wanted, strict=True):
            assert (entry.body, entry.attributes) == (want["body"], want["attributes"]), case["name"]
            assert entry.resource == want.get("resource", {}), case["name"]
            assert (entry.time or 0) == want.get("timestamp_unix_nano", 0), case["name"]
            checked += 1
    assert checked >= 10


def test_mistakes_are_named_at_their_place() -> None:
    wrong = [
        {"type": "contaner"}, {"type": "move", "from": "attributes.a"},
        {"type": "add", "field": "nothing.x", "value": 1},
        {"type": "filter", "expr": "body =="}, {"type": "container", "format": "podman", "ad_metadata": True},
        {"type": "regex_parser", "regex": "(no names)"},
        {"type": "router", "routes": [{"expr": "true", "output": "nobody"}]},
        {"type": "time_parser", "parse_from": "attributes.t", "layout": "%Q"},
        {"type": "recombine", "combine_field": "body"},
    ]  # fmt: skip
    places = [path for path, _ in problems(wrong)]
    for number in range(len(wrong)):
        assert any(path[0] == number for path in places), wrong[number]
    with pytest.raises(ChainError, match="did you mean"):
        Chain(wrong, TailCounters())
    assert problems([{"type": "add", "id": "a", "field": "body", "value": 1, "output": "a"}]) == [
        ((), "operators lead in a circle")
    ]
