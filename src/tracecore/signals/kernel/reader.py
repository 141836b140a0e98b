"""Kernel and system logs as text: dmesg, kmsg, journalctl's short formats, syslog files."""

from __future__ import annotations

from collections.abc import Iterator

from tracecore.signals.kernel import lines
from tracecore.signals.logs.blocks import BLOCK
from tracecore.signals.logs.reader import read_lines
from tracecore.signals.logs.selector import Selector
from tracecore.signals.record import LogSignal
from tracecore.signals.stream import Clock, Counters, Stream


def read(
    stream: Stream, selector: Selector, clock: Clock, counters: Counters | None = None, *, block_size: int = BLOCK
) -> Iterator[LogSignal]:
    """One record for each line, one for a whole out-of-memory report."""
    return read_lines(stream, selector, clock, lines.dialect(stream, clock), counters, block_size=block_size)
