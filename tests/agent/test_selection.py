"""A pipeline that reads only the lines recipes can use says the same as one that reads all, however files are read."""

from __future__ import annotations

import random
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from tracecore.agent.batch import Batch
from tracecore.agent.component import Setting
from tracecore.agent.configuration import read as read_configuration
from tracecore.agent.processors.patterndetector import Options, PatternDetector
from tracecore.agent.selection import selections
from tracecore.agent.telemetry import Meter
from tracecore.recipes.known_shapes import LINES_BEFORE_LEARNING
from tracecore.recipes.live import LiveSelectors
from tracecore.signals.bundle.discovery import discover
from tracecore.signals.bundle.reading import read
from tracecore.signals.logs.selector import SelectAll
from tracecore.signals.logs.tail.config import FileLogConfig
from tracecore.signals.logs.tail.filelog import FileLog
from tracecore.signals.stream import Counters

SECOND = 1_000_000_000
Line = tuple[int, Path, bytes]


class Clock:
    def __init__(self, now: int) -> None:
        self.now = now

    def __call__(self) -> int:
        return self.now


def container_lines(incident: Path, pods: Path) -> list[Line]:
    """The worker output of an incident as a kubelet stores it, in the order in which it was written."""
    bundle = discover([incident])
    lines: list[Line] = []
    for number, stream in enumerate(s for s in bundle.streams if s.layer == "stdout" and s.path.endswith(".log")):
        folder = (
            pods / f"ml_{incident.name.replace('_', '-')}-{number}_0a1b2c3d-0000-4000-8000-{number:012d}" / "worker"
        )
        folder.mkdir(parents=True)
        rank = stream.resource.get("gen_ai.training.rank")
        for record in read(stream, SelectAll(), bundle.clock, Counters()):
            own = record["log"]["attributes"].get("gen_ai.training.rank", rank)
            for text in str(record["log"]["body"]).split("\n"):
                prefix = f"[rank{own}]: " if own is not None else ""
                time = record["log"]["time_unix_nano"]
                lines.append((time, folder / "0.log", wrapped(time, prefix + text)))
    latest: dict[Path, int] = {}
    ordered: list[tuple[int, int, Line]] = []
    for place, (time, path, raw) in enumerate(lines):
        latest[path] = max(time, latest.get(path, 0))
        ordered.append((latest[path], place, (latest[path], path, raw)))
    return [line for _, _, line in sorted(ordered)]


def wrapped(time: int, text: str) -> bytes:
    """A line in the CRI format."""
    second = datetime.fromtimestamp(time // SECOND, UTC).strftime("%Y-%m-%dT%H:%M:%S")
    return f"{second}.{time % SECOND:09d}Z stderr F {text}\n".encode()


def chunked(lines: list[Line], how: str) -> Iterator[list[Line]]:
    """Lines as they are read together."""
    if how == "at once":
        yield lines
    elif how == "by the line":
        yield from ([line] for line in lines)
    elif how.isdigit():
        yield from (lines[at : at + int(how)] for at in range(0, len(lines), int(how)))
    else:
        chance = random.Random(how)
        while lines:
            size = chance.choice((1, 2, 7, 30, 100))
            yield lines[:size]
            lines = lines[size:]


def said(lines: list[Line], pods: Path, how: str, selector: Any) -> set[tuple[str, str]]:
    """The verdicts that stand at the end: pattern and headline."""
    for path in {path for _, path, _ in lines}:
        path.write_bytes(b"")
    clock = Clock(lines[0][0])
    setting = Setting("p", Meter("processor", "p", "logs"), clock, {}.__getitem__, Path(), lambda: (True, {}))
    detector = PatternDetector(Options(forward="verdicts"), setting)
    config = FileLogConfig(
        include=(f"{pods}/*/*/*.log",),
        start_at="beginning",
        include_file_path=True,
        operators=({"type": "container"},),
    )
    log = FileLog(config, None, clock, selector=selector)
    told: dict[str, dict[str, Any]] = {}

    def note(batches: Any) -> None:
        for batch in batches:
            for entry in batch.view()["resource_logs"]:
                for record in entry["scope_logs"][0]["log_records"]:
                    told[record["attributes"]["verdict.id"]] = record["attributes"]

    def pump() -> None:
        for found in log.poll():
            note(detector.process(Batch("logs", source=found, count=found.count)))
        note(detector.tick(clock.now))

    for chunk in chunked(lines, how):
        for path in {path for _, path, _ in chunk}:
            with path.open("ab") as file:
                file.write(b"".join(raw for _, other, raw in chunk if other == path))
        clock.now = max(clock.now + SECOND // 4, chunk[-1][0])
        pump()
    for _ in range(10):
        clock.now += SECOND
        pump()
    note(detector.drain(clock.now))
    log.close()
    return {
        (one["pattern.name"], one["pattern.headline"]) for one in told.values() if one["verdict.status"] == "active"
    }


INCIDENTS = (
    "exploding", "nan_raises", "oom_one_rank", "dl_killed", "elastic_gives_up", "faulthandler_segfault", "ckpt_enospc",
    "healthy", "nccl_rank_exception", "ddp_straggler",
)  # fmt: skip


@pytest.mark.parametrize("incident", INCIDENTS)
def test_the_same_is_said_of_selected_lines(incidents: Path, incident: str, tmp_path: Path) -> None:
    lines = container_lines(incidents / incident, tmp_path)
    every = said(lines, tmp_path, "20", None)
    for how in ("at once", "200", "seed 1"):
        assert said(lines, tmp_path, how, LiveSelectors("stdout", container=True)) == every, how


def after_a_while(lines: list[Line], steps: int) -> list[Line]:
    """The same after a run that went well, with a hundred steps a second."""
    before: list[Line] = []
    for step in range(steps):
        time = lines[0][0] - (steps - step) * SECOND // 100
        for rank, path in enumerate(sorted({path for _, path, _ in lines})):
            text = f"[rank{rank}]: rank {rank} | step {10_000 + step} | loss 2.{step % 7} | iter_time 0.010"
            before.append((time, path, wrapped(time, text)))
    return before + lines


@pytest.mark.parametrize("incident", ["exploding", "ddp_straggler"])
@pytest.mark.parametrize("how", ["200", "seed 2"])
def test_what_comes_after_many_lines_is_not_missed(incidents: Path, incident: str, how: str, tmp_path: Path) -> None:
    lines = after_a_while(container_lines(incidents / incident, tmp_path), 400)
    truth = {pattern for pattern, _ in said(lines, tmp_path, "20", None)}
    assert truth
    selected = said(lines, tmp_path, how, LiveSelectors("stdout", container=True))
    assert {pattern for pattern, _ in selected} == truth


def records(lines: list[bytes], pods: Path, pieces: int) -> list[str]:
    """The bodies that a receiver with a selector gives, where a file is read in so many pieces."""
    path = pods / "ml_a_0a1b2c3d-0000-4000-8000-000000000001" / "worker" / "0.log"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"")
    config = FileLogConfig(include=(str(path),), start_at="beginning", operators=({"type": "container"},))
    clock = Clock(lines_start)
    log = FileLog(config, None, clock, selector=LiveSelectors("stdout", container=True))
    found: list[str] = []
    size = -(-len(lines) // pieces)
    for at in range(0, len(lines), size):
        with path.open("ab") as file:
            file.write(b"".join(lines[at : at + size]))
        clock.now += SECOND
        found += [str(record["body"]) for batch in log.poll() for _, record in batch.records()]
    log.close()
    return found


lines_start = 1_790_000_000 * SECOND
TRACEBACK = [
    "Traceback (most recent call last):",
    '  File "/app/train.py", line 10, in <module>',
    "    main()",
    "ValueError: the batch is empty",
]


@pytest.mark.parametrize("pieces", [1, 2, 3, 7, 1000])
def test_blocks_stay_whole_wherever_files_are_cut(tmp_path: Path, pieces: int) -> None:
    texts = ["loading shard 12 of 4096"] * 40 + TRACEBACK + ["loading shard 13 of 4096"] * 40
    lines = [wrapped(lines_start + n, text) for n, text in enumerate(texts)]
    assert records(lines, tmp_path, pieces) == TRACEBACK


def test_details_follow_the_line_they_belong_to(tmp_path: Path) -> None:
    texts = [
        "loading",
        "RuntimeError: CUDA error: an illegal memory access was encountered",
        "CUDA kernel errors might be asynchronously reported at some other API call",
        "Compile with `TORCH_USE_CUDA_DSA` to enable device-side assertions.",
        "loading",
    ]
    lines = [wrapped(lines_start + n, text) for n, text in enumerate(texts)]
    assert records(lines, tmp_path, 1) == texts[1:4]
    assert records(lines, tmp_path, 5) == texts[1:4]


def test_of_a_fast_run_few_lines_are_read_and_of_a_slow_one_all(tmp_path: Path) -> None:
    text = "step {} loss 2.5 iter_time 0.1"
    slow = [wrapped(lines_start + n * SECOND // 2, text.format(n)) for n in range(400)]
    assert len(records(slow, tmp_path, 20)) == len(slow)
    fast = [wrapped(lines_start + n * SECOND // 2000, text.format(n)) for n in range(20_000)]
    assert len(records(fast, tmp_path, 50)) < len(fast) // 20


def test_who_asks_for_ranks_hears_of_them() -> None:
    block = b"".join(wrapped(lines_start + n, f"[rank3]: loading shard {n}") for n in range(100))
    assert list(LiveSelectors("stdout", container=True).of(1)(block) or ()) == []
    (place,) = LiveSelectors("stdout", container=True, ranks=True).of(1)(block) or ()
    assert block[place:].startswith(wrapped(lines_start, "[rank3]: loading shard 0"))


@pytest.mark.parametrize("blank", [b"", b" "])
def test_lines_of_docker_are_selected_too(blank: bytes) -> None:
    lines = [
        b'{"log":"loading shard 1\\n","stream":"stderr","time":"2026-11-15T01:37:04.1Z"}\n',
        b'{"log":"Traceback (most recent call last):\\n","stream":"stderr","time":"2026-11-15T01:37:04.2Z"}\n',
        b'{"log":"  File \\"a.py\\", line 1, in f\\n","stream":"stderr","time":"2026-11-15T01:37:04.2Z"}\n',
        b'{"log":"ValueError: no\\n","stream":"stderr","time":"2026-11-15T01:37:04.2Z"}\n',
        b'{"log":"loading shard 2\\n","stream":"stderr","time":"2026-11-15T01:37:04.3Z"}\n',
    ]
    lines = [line.replace(b'":"', b'":' + blank + b'"').replace(b'","', b'",' + blank + b'"') for line in lines]
    picked = LiveSelectors("stdout", container=True).of(1)(b"".join(lines))
    assert picked is not None
    starts = [sum(map(len, lines[:n])) for n in range(len(lines))]
    assert list(picked) == starts[1:4]


def test_each_file_is_sampled_by_itself_and_shapes_are_learned_once() -> None:
    selectors = LiveSelectors("stdout", container=True)
    one, other = selectors.of(1), selectors.of(2)
    assert selectors.of(1) is one
    assert other is not one
    block = b"".join(wrapped(lines_start + n * 1000, f"step {n} loss 2.5 iter_time 0.1") for n in range(2000))
    first = len(one(block) or ())
    assert 0 < first < 300
    assert len(one(block.replace(b"step 1", b"step 9")) or ()) < first, "what was seen is remembered"
    assert first - LINES_BEFORE_LEARNING <= len(other(block) or ()) <= first, (
        "of another file nothing but the shape was seen"
    )


CONFIG = """
receivers:
  filelog: {{include: [/var/log/pods/*/*/*.log], {filelog}}}
processors:
  memory_limiter: {{limit_mib: 100}}
  rankjoin: {{}}
  filter: {{logs: {{log_record: ['IsMatch(body, "x")']}}}}
  transform: {{log_statements: [{{context: log, statements: ['set(body, "x")']}}]}}
  resource: {{attributes: [{{key: tracecore.layer, value: kernel, action: upsert}}]}}
  resource/job: {{attributes: [{{key: gen_ai.training.job_id, value: j, action: upsert}}]}}
  patterndetector: {{forward: verdicts}}
  patterndetector/all: {{forward: all}}
  patterndetector/stamped: {{forward: verdicts, recipes: false}}
exporters:
  debug: {{}}
service:
  pipelines:
    logs: {{receivers: [filelog], processors: [{processors}], exporters: [debug]}}
{more}
"""
OTHER = "    logs/all: {receivers: [filelog], exporters: [debug]}"


@pytest.mark.parametrize(
    ("processors", "filelog", "more", "selected"),
    [
        ("patterndetector", "operators: [{type: container}]", "", True),
        ("patterndetector", "", "", True),
        ("memory_limiter, rankjoin, filter, resource/job, patterndetector", "", "", True),
        ("patterndetector/all", "", "", False),
        ("patterndetector/stamped", "", "", False),
        ("transform, patterndetector", "", "", False),
        ("resource, patterndetector", "", "", False),
        ("", "", "", False),
        ("patterndetector", "", OTHER, False),
        ("patterndetector", "encoding: utf-16", "", False),
        ("patterndetector", "multiline: {line_start_pattern: '^x'}", "", False),
        ("patterndetector", "operators: [{type: json_parser}]", "", False),
        ("patterndetector", "operators: [{type: container}, {type: regex_parser, regex: '(?P<a>.)'}]", "", False),
        (
            "patterndetector",
            "operators: [{type: container}, {type: move, from: attributes.a, to: resource.b}]",
            "",
            True,
        ),
        ("patterndetector", "operators: [{type: container}, {type: move, from: attributes.a, to: body}]", "", False),
        ("patterndetector", "resource: {tracecore.layer: kernel}", "", True),
    ],
)
def test_lines_are_selected_where_nobody_needs_the_others(
    tmp_path: Path, processors: str, filelog: str, more: str, selected: bool
) -> None:
    path = tmp_path / "agent.yaml"
    path.write_text(CONFIG.format(processors=processors, filelog=filelog or "start_at: end", more=more))
    configuration, _ = read_configuration([path])
    assert bool(selections(configuration)) is selected
