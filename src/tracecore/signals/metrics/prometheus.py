"""Saved scrapes in Prometheus' text format (and what OpenMetrics adds to it that matters here).

The time of a sample is the one written behind it, else that of the scrape: a comment with a time in it, the exporter's
own clock (`node_time_seconds`), a time in the file's name. Scrapes without any are put in order of their names, a
scrape interval apart, the last at the end of the bundle; their points say that the time is inferred.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import re2

from tracecore.signals import stamps
from tracecore.signals.logs.blocks import blocks
from tracecore.signals.metrics.point import Point
from tracecore.signals.record import Source
from tracecore.signals.stamps import SECOND
from tracecore.signals.stream import Clock, Counters, Stream

INTERVAL = 15 * SECOND
MAX_LABELS = 64
MAX_LABEL = 4096

_NAME = re2.compile(r"^([a-zA-Z_:][a-zA-Z0-9_:]*)\s*")
_LABEL = re2.compile(r'\s*([a-zA-Z_][a-zA-Z0-9_]*)\s*=\s*"((?:[^"\\]|\\.)*)"\s*,?')
_VALUE = re2.compile(
    r"^\s*([-+]?(?:[0-9.]+(?:[eE][-+]?\d+)?|Inf|inf|NaN|nan|0x[0-9a-fA-F]+))(?:\s+(-?[0-9.]+))?\s*(?:#.*)?$"
)
_COMMENT = re2.compile(rb"^#.*?(\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d\S*|\b1\d{9}(?:\d{3})?(?:\.\d+)?\b)")
_IN_NAME = re2.compile(
    r"(20\d\d)-?(\d\d)-?(\d\d)[T_.-]?(\d\d)[-:.]?(\d\d)[-:.]?(\d\d)|(?:^|\D)(1\d{9})(?:\d{3})?(?:\D|$)"
)

# DCGM has no way to leave a field out: blank, not found, not supported, no permission.
_BLANK = frozenset(
    [float(0x7FFFFFF0 + i) for i in range(4)]
    + [float(0x7FFFFFFFFFFFFFF0 + i) for i in range(4)]
    + [140737488355328.0 + i for i in range(4)]
)


class Scrape(msgspec.Struct):
    """One scrape as found: its time if it has one, else its place in the file."""

    time: int | None
    index: int
    points: list[tuple[str, dict[str, str], float, int | None, int, int, int]]


def time_in_name(path: str) -> int | None:
    """The time of a scrape that its file's name gives."""
    match = _IN_NAME.search(path.replace("\\", "/").rsplit("/", 1)[-1])
    if match is None:
        return None
    if match.group(7):
        return int(match.group(7)) * SECOND
    year, month, day, hour, minute, second = match.groups()[:6]
    return stamps.parse(f"{year}-{month}-{day}T{hour}:{minute}:{second}Z")


def read(stream: Stream, clock: Clock, counters: Counters, last: int | None = None) -> Iterator[Point]:
    """The points of a file of one or more scrapes, in order.

    Args:
        stream: the file.
        clock: when the bundle ended.
        counters: lines that are no samples are counted here.
        last: when to put the last scrape where the file does not say; the end of the bundle by default.
    """
    path, host = stream.path, stream.resource.get("host.name")
    end = clock.latest if last is None else last
    total = sum(1 for scrape in _scrapes(stream, Counters()) if scrape.time is None)
    seen = 0
    for scrape in _scrapes(stream, counters):
        inferred = scrape.time is None
        if scrape.time is None:
            seen += 1
            when = end - (total - seen) * INTERVAL
        else:
            when = scrape.time
        for name, labels, value, time, offset, line, length in scrape.points:
            if isinstance(host, str):
                labels.setdefault("host.name", host)
            counters.records += 1
            yield Point(
                name=name,
                labels=labels,
                value=value,
                time=when if time is None else time,
                source=Source(path, offset, line, length),
                inferred=inferred and time is None,
            )


def _scrapes(stream: Stream, counters: Counters) -> Iterator[Scrape]:
    named = time_in_name(stream.path)
    current = Scrape(named, 0, [])
    families: set[bytes] = set()
    first_series: tuple[str, tuple[tuple[str, str], ...]] | None = None
    with stream.open() as file:
        for block in blocks(file, counters):
            offset, line = block.offset, block.line - 1
            for raw in block.data.split(b"\n"):
                here, length = offset, len(raw)
                offset += length + 1
                line += 1
                text = raw.strip()
                if not text:
                    continue
                if text.startswith(b"#"):
                    again = text.startswith(b"# TYPE ") and text in families
                    families.add(text)
                    match = None if text.startswith((b"# TYPE ", b"# HELP ")) else _COMMENT.match(text)
                    if (again or match or text == b"# EOF") and current.points:
                        yield current
                        current = Scrape(None, current.index + 1, [])
                        families, first_series = {text}, None
                    if match and (stamp := stamps.find(match.group(1))) and not stamp.missing:
                        current.time = stamp.nanos
                    continue
                sample = parse(text.decode("utf-8", "replace"))
                if sample is None:
                    counters.lines_unparsed += 1
                    continue
                name, labels, value, time = sample
                series = (name, tuple(sorted(labels.items())))
                if series == first_series and time is None:
                    yield current
                    current = Scrape(None, current.index + 1, [])
                    families = set()
                elif first_series is None:
                    first_series = series
                if name == "node_time_seconds" and current.time is None:
                    current.time = int(value * 1000) * 1_000_000
                if name.startswith("DCGM_") and value in _BLANK:
                    continue
                current.points.append((name, labels, value, time, here, line, length))
    if current.points:
        yield current


def parse(text: str) -> tuple[str, dict[str, str], float, int | None] | None:
    """One sample line: name, labels, value, its own time if it has one. None where it is no sample."""
    match = _NAME.match(text)
    if match is None:
        return None
    name, rest = match.group(1), text[match.end() :]
    labels: dict[str, str] = {}
    if rest.startswith("{"):
        at = 1
        while found := _LABEL.match(rest[at:] if at else rest):
            if len(labels) >= MAX_LABELS or len(found.group(2)) > MAX_LABEL:
                return None
            labels[found.group(1)] = _unescape(found.group(2))
            at += found.end()
        if not rest[at:].lstrip().startswith("}"):
            return None
        rest = rest[rest.index("}", at) + 1 :]
    match = _VALUE.match(rest)
    if match is None:
        return None
    written, stamp = match.groups()
    try:
        value = float(int(written, 16)) if written[:2] == "0x" else float(written)
        time = None
        if stamp is not None:
            # Prometheus writes milliseconds, OpenMetrics seconds with a fraction.
            number = float(stamp)
            time = int(number * SECOND) if number < 1e11 else int(number) * 1_000_000
    except (ValueError, OverflowError):
        return None
    if value != value:  # NaN: not measured
        return None
    return name, labels, value, time


def _unescape(text: str) -> str:
    if "\\" not in text:
        return text
    return text.replace("\\\\", "\x00").replace('\\"', '"').replace("\\n", "\n").replace("\x00", "\\")
