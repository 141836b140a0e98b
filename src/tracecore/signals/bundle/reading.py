"""The table of readers: which function takes which format."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeAlias

from tracecore.signals.kernel import reader as kernel
from tracecore.signals.logs import reader as logs
from tracecore.signals.logs.selector import Selector
from tracecore.signals.record import LogSignal
from tracecore.signals.scheduler import exit_codes
from tracecore.signals.stream import Clock, Counters, Stream

LineReader: TypeAlias = Callable[[Stream, Selector, Clock, Counters], Iterator[LogSignal]]
WholeReader: TypeAlias = Callable[[Stream, Clock], Iterator[LogSignal]]

#: Formats of lines, of which a selector picks some.
LINES: dict[str, LineReader] = {
    "text": logs.read,
    "cri": logs.read,
    "docker": logs.read,
    "dmesg": kernel.read,
    "syslog": kernel.read,
}
#: Formats that are read as a whole.
WHOLE: dict[str, WholeReader] = {
    "exit_codes": exit_codes.read,
}


def read(stream: Stream, selector: Selector, clock: Clock, counters: Counters) -> Iterator[LogSignal]:
    """The records of a stream; nothing for formats that hold no log records (metrics, Flight Recorder dumps).

    Raises:
        ValueError, OSError: the stream is damaged; what was read until then has been given.
    """
    if reader := LINES.get(stream.format):
        yield from reader(stream, selector, clock, counters)
    elif whole := WHOLE.get(stream.format):
        for record in whole(stream, clock):
            counters.records += 1
            yield record
        counters.bytes_read += stream.size or 0
