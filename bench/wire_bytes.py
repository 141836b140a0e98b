"""Bytes that leave a node as facts, compared with the lines that they were read from.

    python -m bench.wire_bytes [MEGABYTES]

Mixed logs of four pods are played to a detector with `forward: facts` by the times of their lines, in batches of a
second. Counted are the OTLP requests, uncompressed and with zstd, against the bytes of the lines themselves.
"""

from __future__ import annotations

import re
import sys
import tempfile
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import zstandard

from bench import Measurement
from bench.mixed_logs import MIXTURES, write
from tracecore.agent.batch import Batch
from tracecore.agent.component import Setting
from tracecore.agent.processors.patterndetector import Options, PatternDetector
from tracecore.agent.telemetry import Meter

SECOND = 1_000_000_000
_CRI = re.compile(r"^(\S+) (stdout|stderr) ([FP]) (.*)$")


class Clock:
    def __init__(self) -> None:
        self.now = 0

    def __call__(self) -> int:
        return self.now


def lines_of(path: Path) -> Iterator[tuple[int, str]]:
    """Time and text of the lines of a container's log."""
    part = ""
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        match = _CRI.match(line)
        if match is None:
            continue
        when, _, whole, text = match.groups()
        part += text
        if whole == "F":
            base, _, fraction = when.rstrip("Z").partition(".")
            time = int(datetime.fromisoformat(f"{base}+00:00").timestamp()) * SECOND + int(f"{fraction or '0':0<9.9}")
            yield time, part
            part = ""


class Node:
    """A detector that reads the logs of a node and counts what it sends."""

    def __init__(self) -> None:
        self.clock = Clock()
        setting = Setting(
            "patterndetector", Meter("processor", "p"), self.clock, {}.__getitem__, Path(), lambda: (True, {})
        )
        self.detector = PatternDetector(Options(forward="facts"), setting)
        self.sent = self.packed = self.facts = 0

    def take(self, batch: Batch) -> None:
        for made in (*self.detector.process(batch), *self.detector.tick(self.clock.now)):
            self.count(made)

    def count(self, made: Batch) -> None:
        raw = made.encoded()
        self.sent += len(raw)
        self.packed += len(zstandard.compress(raw))
        self.facts += made.count


def played(paths: list[Path]) -> tuple[Node, int, float]:
    """Play logs of pods of one node; return it, the bytes of the lines, and the seconds they span."""
    node, size = Node(), 0
    lines: list[tuple[int, int, str]] = []
    resources: list[dict[str, Any]] = []
    for number, path in enumerate(paths):
        resources.append(
            {
                "k8s.node.name": "gpu-node-17", "k8s.namespace.name": "ml", "k8s.pod.name": f"llm-7b-worker-{number}",
                "gen_ai.training.job_id": "llm-7b", "gen_ai.training.rank": number,
            }
        )  # fmt: skip
        for time, text in lines_of(path):
            size += len(text.encode()) + 1
            lines.append((time, number, text))
    lines.sort(key=lambda line: line[0])
    at = 0
    while at < len(lines):
        until = lines[at][0] + SECOND
        groups: dict[int, list[dict[str, Any]]] = {}
        while at < len(lines) and lines[at][0] < until:
            time, number, text = lines[at]
            groups.setdefault(number, []).append({"body": text, "attributes": {}, "time_unix_nano": time})
            at += 1
        node.clock.now = until
        entries = [
            {"resource": {"attributes": resources[number]}, "scope_logs": [{"scope": {}, "log_records": records}]}
            for number, records in groups.items()
        ]
        node.take(Batch("logs", {"resource_logs": entries}))
    for made in node.detector.drain(node.clock.now + SECOND):
        node.count(made)
    return node, size, (lines[-1][0] - lines[0][0]) / SECOND if lines else 0.0


def measure(megabytes: int = 14) -> list[Measurement]:
    """Measure each mixture; the first minutes of a run send more than those after them."""
    rows = []
    for mixture in MIXTURES:
        with tempfile.TemporaryDirectory() as folder:
            write(Path(folder), mixture, "cri", megabytes << 20, seed=3, files=4)
            node, size, seconds = played(sorted(Path(folder).rglob("*.log")))
        rate = node.facts / seconds / 4 if seconds else 0
        how = f"{size / 1e6:.1f} MB of lines in {seconds:.0f} s, {node.facts} facts, {rate:.2f} a second and rank"
        rows.append(Measurement(f"wire.{mixture}", round(100 * node.sent / size, 2), "% of the lines", "≤ 2", how))
        rows.append(Measurement(f"wire.{mixture}.zstd", round(100 * node.packed / size, 2), "% of the lines", "", how))
    return rows


if __name__ == "__main__":
    for row in measure(int(sys.argv[1]) if len(sys.argv) > 1 else 14):
        print(row)
