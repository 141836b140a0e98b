"""From the end of a log to what it states: read in lines and blocks, stamp by the recipes, type as facts."""

from __future__ import annotations

import io
from functools import cache
from typing import TYPE_CHECKING, BinaryIO, Final

import msgspec

from tracecore import recipes
from tracecore.facts.fact import Fact
from tracecore.facts.projection import project
from tracecore.facts.training import Progress, RunFinished
from tracecore.ottl.processor import Processor
from tracecore.signals.bundle import archive, reading, recognition
from tracecore.signals.logs.selector import SelectAll
from tracecore.signals.record import Attributes, Source
from tracecore.signals.stream import Clock, Counters, Stream

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tracecore.signals.record import LogSignal

#: Of a longer text the end is read.
MAX_BYTES: Final = 4 << 20
#: Records that state something; of more, the first and the last halves are kept.
MAX_STATED: Final = 20_000
#: Knowledge that is looked for in any log: worker output quotes the kernel, Slurm and Kubernetes.
LAYERS: Final = ("stdout", "kernel", "kubernetes")
_LINES: Final = frozenset({"text", "cri", "docker", "dmesg", "syslog"})


class Stated(msgspec.Struct, frozen=True):
    """A line or block that says something.

    Args:
        body: its text, without prefixes.
        attributes: what the recipes stamped.
        facts: what that means.
        source: where it stands in the tail.
    """

    body: str
    attributes: Attributes
    facts: tuple[Fact, ...]
    source: Source


class Tail(msgspec.Struct):
    """What the end of a log states, in order."""

    data: bytes = b""
    stated: list[Stated] = []
    progress: list[Progress | RunFinished] = []
    dropped: int = 0


def read_tail(text: str | bytes) -> Tail:
    """Everything the end of a log states."""
    data = text if isinstance(text, bytes) else text.encode("utf-8", "replace")
    if len(data) > MAX_BYTES:
        data = data[-MAX_BYTES:]
        data = data[data.find(b"\n") + 1 :]
    tail = Tail(data)
    if not data.strip():
        return tail
    for record in _records(data):
        facts = project(record)
        progress = [fact for fact in facts if isinstance(fact, Progress | RunFinished)]
        others = tuple(fact for fact in facts if not isinstance(fact, Progress | RunFinished))
        tail.progress += progress
        attributes = record["log"]["attributes"]
        body = record["log"].get("body")
        if others or attributes:
            tail.stated.append(Stated(body if isinstance(body, str) else "", attributes, others, record["source"]))
    if len(tail.stated) > MAX_STATED:
        tail.dropped = len(tail.stated) - MAX_STATED
        del tail.stated[MAX_STATED // 2 : -MAX_STATED // 2]
    return tail


def _records(data: bytes) -> Iterator[LogSignal]:
    head, end = data[:65_536], data[-65_536:]
    recognised = recognition.recognise(head, end, "tail.log", len(data) <= len(head))
    kind = recognised.format
    if kind not in _LINES and kind not in reading.WHOLE:
        kind = "text"

    def opened() -> BinaryIO:
        return io.BytesIO(data)

    stream = Stream(
        path="tail",
        format=kind,
        layer=recognition.LAYER_OF[kind],
        open=opened,
        size=len(data),
        labelled=recognised.labelled,
    )
    stampers = _stampers()
    try:
        for record in reading.read(stream, SelectAll(), Clock(), Counters()):
            for processor in stampers:
                processor.process_signals([record])
            yield record
    except archive.ERRORS:
        # It looked like a document and is none, or is cut: then it is lines.
        if kind in _LINES:
            raise
        stream.format, stream.layer = "text", "stdout"
        for record in reading.read(stream, SelectAll(), Clock(), Counters()):
            for processor in stampers:
                processor.process_signals([record])
            yield record


@cache
def _stampers() -> tuple[Processor, ...]:
    return tuple(Processor(processor.config()) for layer in LAYERS for processor in recipes.load(layer))
