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
from tracecore.signals.metrics.exposition import ExpositionError, number, written
from tracecore.signals.metrics.point import Point
from tracecore.signals.record import Source
from tracecore.signals.stamps import SECOND
from tracecore.signals.stream import Clock, Counters, Stream

INTERVAL = 15 * SECOND
MAX_TYPES = 65_536
#: Points of one scrape: a whole cluster's, federated.
MAX_POINTS = 2_000_000
#: Seconds since the epoch after which a time is not believed: the year 2100.
LATEST = 4_102_444_800

_COMMENT = re2.compile(rb"^#.*?(\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d\S*|\b1\d{9}(?:\d{3})?(?:\.\d+)?\b)")
_IN_NAME = re2.compile(
    r"(20\d\d)-?(\d\d)-?(\d\d)[T_.-]?(\d\d)[-:.]?(\d\d)[-:.]?(\d\d)|(?:^|\D)(1\d{9})(?:\d{3})?(?:\D|$)"
)

#: DCGM has no way to leave a field out: blank, not found, not supported, no permission.
BLANK = frozenset(
    [float(0x7FFFFFF0 + i) for i in range(4)]
    + [float(0x7FFFFFFFFFFFFFF0 + i) for i in range(4)]
    + [140737488355328.0 + i for i in range(4)]
)


class Scrape(msgspec.Struct):
    """One scrape as found: its time if it has one, else its place in the file."""

    time: int | None
    index: int
    points: list[tuple[str, dict[str, str], float, int | None, int, int, int, str]]


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
    path, host = stream.path, _host(stream)
    end = clock.latest if last is None else last
    total = seen = 0
    for scrape in _scrapes(stream, counters):
        inferred = scrape.time is None
        if scrape.time is None:
            if not total:
                total = sum(1 for other in _scrapes(stream, Counters()) if other.time is None)
            seen += 1
            when = end - (total - seen) * INTERVAL
        else:
            when = scrape.time
        for name, labels, value, time, offset, line, length, declared in scrape.points:
            if host:
                labels = {"host.name": host, **labels}
            counters.records += 1
            yield Point(
                name=name,
                labels=labels,
                value=value,
                time=when if time is None else time,
                source=Source(path, offset, line, length),
                inferred=inferred and time is None,
                declared=declared,
            )


def _host(stream: Stream) -> str:
    """The machine that a file is from; the time in `node_exporter-20261115T000000Z.prom` is none."""
    host = stream.resource.get("host.name")
    if not isinstance(host, str):
        return ""
    found = _IN_NAME.search(host)
    return host if found is None else host[: found.start()].rstrip("-_.")


def _scrapes(stream: Stream, counters: Counters) -> Iterator[Scrape]:
    named = time_in_name(stream.path)
    current = Scrape(named, 0, [])
    seen: set[int] = set()
    types: dict[str, str] = {}
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
                    if text.startswith(b"# TYPE "):
                        _declare(text, types)
                    match = None if text.startswith((b"# TYPE ", b"# HELP ")) else _COMMENT.match(text)
                    if (match or text == b"# EOF") and current.points:
                        yield current
                        current = Scrape(None, current.index + 1, [])
                        seen = set()
                    if match and (stamp := stamps.find(match.group(1))) and not stamp.missing:
                        current.time = stamp.nanos
                    continue
                sample = _KNOWN.parse(text.decode("utf-8", "replace"))
                if sample is None:
                    counters.lines_unparsed += 1
                    continue
                name, labels, value, time = sample
                mark = hash(text[: text.rfind(b"}") + 1] or name)
                if mark in seen and time is None:
                    if current.points:
                        yield current  # a series that comes again is the next scrape's
                        current = Scrape(None, current.index + 1, [])
                    seen = set()
                if len(seen) < MAX_POINTS:
                    seen.add(mark)
                if name == "node_time_seconds" and current.time is None and 0 < value < LATEST:
                    current.time = int(value * 1000) * 1_000_000
                if value in BLANK and name.startswith(("DCGM_", "dcgm_")):
                    continue
                if len(current.points) >= MAX_POINTS:
                    counters.lines_capped += 1
                    continue
                current.points.append((name, labels, value, time, here, line, length, types.get(name, "")))
    if current.points:
        yield current


def _declare(text: bytes, types: dict[str, str]) -> None:
    """Note what `# TYPE name kind` says. OpenMetrics leaves `_total` out of a counter's name."""
    parts = text[7:].decode("utf-8", "replace").split()
    if len(parts) == 2 and parts[1] in ("counter", "gauge") and len(types) < MAX_TYPES:
        types[parts[0]] = parts[1]
        if parts[1] == "counter":
            types.setdefault(f"{parts[0]}_total", "counter")


class Families:
    """Remembers how series are written, so that a scrape like the one before costs a look-up for each line.

    Series share their labels: whoever changes them makes a copy.
    """

    def __init__(self, room: int = 1 << 24) -> None:
        self._known: dict[str, tuple[str, dict[str, str]]] = {}
        #: Characters that may still be remembered; without room, what is remembered is forgotten.
        self._room = self._all = room

    def parse(self, text: str) -> tuple[str, dict[str, str], float, int | None] | None:
        """As `parse` below."""
        end = text.rfind("}") + 1 or text.find(" ")
        known = self._known.get(text[:end]) if end > 0 else None
        if known is None:
            sample = parse(text)
            # Behind an exemplar the last brace is not the series'.
            if sample is not None and 0 < end < self._all and " # " not in text:
                self._room -= end
                if self._room < 0:
                    self._known.clear()
                    self._room = self._all - end
                self._known[text[:end]] = sample[0], sample[1]
            return sample
        amount = _amount(text[end:])
        return None if amount is None else (*known, *amount)


#: Files of one bundle are scrapes of the same exporters.
_KNOWN = Families()


def parse(text: str) -> tuple[str, dict[str, str], float, int | None] | None:
    """Return name, labels, value and, where it has one, the time of a sample line. None where it is no sample."""
    try:
        name, labels, end = written(text)
    except ExpositionError:
        return None
    amount = _amount(text[end:])
    return None if amount is None else (name, labels, *amount)


def _amount(rest: str) -> tuple[float, int | None] | None:
    """Return the value behind a series, and its time where it has one. None where nothing was measured."""
    parts = rest.partition("#")[0].split()
    if not 1 <= len(parts) <= 2:
        return None
    time: int | None = None
    try:
        value = number(parts[0])
        if len(parts) == 2:
            # Prometheus writes milliseconds, OpenMetrics seconds with a fraction.
            stamp = number(parts[1])
            time = int(stamp * SECOND) if stamp < 1e11 else int(stamp) * 1_000_000
            if not 0 < time < LATEST * SECOND:
                return None
    except (ExpositionError, ValueError, OverflowError):
        return None
    return None if value != value else (value, time)
