"""The tables of readers by format, and functions that read a whole bundle."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeAlias

import re2

from tracecore.signals.bundle import archive
from tracecore.signals.bundle.discovery import Bundle
from tracecore.signals.kernel import ibstat, journal, perfquery
from tracecore.signals.kernel import reader as kernel
from tracecore.signals.kubernetes import audit, objects, printed
from tracecore.signals.logs import elastic
from tracecore.signals.logs import reader as logs
from tracecore.signals.logs.selector import Selector
from tracecore.signals.metrics import prometheus
from tracecore.signals.metrics.point import Point
from tracecore.signals.nvidia import lspci, smi, smi_csv
from tracecore.signals.record import LogSignal
from tracecore.signals.scheduler import exit_codes, slurm
from tracecore.signals.stream import Clock, Counters, Stream

LineReader: TypeAlias = Callable[[Stream, Selector, Clock, Counters], Iterator[LogSignal]]
WholeReader: TypeAlias = Callable[[Stream, Clock], Iterator[LogSignal]]
PointReader: TypeAlias = Callable[[Stream, Clock, Counters], Iterator[Point]]

#: Formats of lines. A selector picks the lines to read.
LINES: dict[str, LineReader] = {
    "text": logs.read,
    "cri": logs.read,
    "docker": logs.read,
    "dmesg": kernel.read,
    "syslog": kernel.read,
    "journal_json": journal.read_json,
    "journal_export": journal.read_export,
}
#: Formats that are read as a whole.
WHOLE: dict[str, WholeReader] = {
    "exit_codes": exit_codes.read,
    "elastic_error": elastic.read,
    "kubernetes_audit": audit.read,
    "kubernetes_json": objects.read_json,
    "kubernetes_yaml": objects.read_yaml,
    "kubernetes_describe": printed.read_describe,
    "kubernetes_fragment": printed.read_fragment,
    "kubernetes_nodes": printed.read_nodes,
    "kubernetes_pods": printed.read_pods,
    "kubernetes_table": printed.read_table,
    "sacct": slurm.read_sacct,
    "sacct_json": slurm.read_sacct_json,
    "scontrol": slurm.read_scontrol,
    "sinfo": slurm.read_sinfo,
    "slurm_counts": slurm.read_counts,
    "ibstat": ibstat.read,
    "lspci": lspci.read,
}
#: Formats of metric points.
POINTS: dict[str, PointReader] = {
    "prometheus": prometheus.read,
    "nvidia_smi": smi.read_query,
    "nvidia_csv": smi_csv.read_csv,
    "nvidia_dmon": smi.read_dmon,
    "nvidia_nvlink": smi.read_nvlink,
    "nvidia_table": smi.read_table,
    "perfquery": perfquery.read,
}


def read(stream: Stream, selector: Selector, clock: Clock, counters: Counters) -> Iterator[LogSignal]:
    """Return the records of a stream; nothing for formats without log records (metrics, Flight Recorder dumps).

    Raises:
        ValueError, OSError and others of `archive.ERRORS`: the stream is damaged. The records before the damage have
        been returned. `records` handles the error for a whole bundle.
    """
    if reader := LINES.get(stream.format):
        records = reader(stream, selector, clock, counters)
        yield from records if not stream.ahead else _moved(records, stream.ahead)
    elif whole := WHOLE.get(stream.format):
        for record in whole(stream, clock):
            counters.records += 1
            yield record
        counters.bytes_read += stream.size or 0


def _moved(records: Iterator[LogSignal], ahead: int) -> Iterator[LogSignal]:
    for record in records:
        if "tracecore.time.inferred" not in record["log"]["attributes"]:
            record["log"]["time_unix_nano"] += ahead
        yield record


def records(
    bundle: Bundle, selector_of: Callable[[Stream], Selector], counters: Counters
) -> Iterator[tuple[Stream, LogSignal]]:
    """Return every record of a bundle with its stream. A damaged stream is listed as read in part."""
    for stream in bundle.streams:
        try:
            for record in read(stream, selector_of(stream), bundle.clock, counters):
                yield stream, record
        except archive.ERRORS as error:
            bundle.skip(stream.path, f"read in part: {archive.reason(error)}")


def points(bundle: Bundle, counters: Counters) -> Iterator[tuple[Stream, Iterator[Point]]]:
    """Return every stream of metrics with its points.

    Scrapes without times in one directory are treated as a series in the order of their names (`9.prom` before
    `10.prom`), one interval apart.
    """
    series: dict[str, list[Stream]] = {}
    for stream in bundle.of("prometheus"):
        if prometheus.time_in_name(stream.path) is None:
            series.setdefault(stream.path.rpartition("/")[0], []).append(stream)
    last: dict[str, int] = {}
    for streams in series.values():
        streams.sort(key=lambda stream: _natural(stream.path))
        for place, stream in enumerate(reversed(streams)):
            last[stream.path] = bundle.clock.latest - place * prometheus.INTERVAL
    for stream in bundle.of(*POINTS):
        if stream.format == "prometheus":
            yield stream, prometheus.read(stream, bundle.clock, counters, last.get(stream.path))
        else:
            yield stream, POINTS[stream.format](stream, bundle.clock, counters)


_DIGITS = re2.compile(r"\d+|\D+")


def _natural(path: str) -> list[tuple[int, int, str]]:
    return [(0, int(part), "") if part.isdigit() else (1, 0, part) for part in _DIGITS.findall(path)]
