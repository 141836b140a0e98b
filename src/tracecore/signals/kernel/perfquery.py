"""Counters of InfiniBand ports that somebody looked at again and again, as metric points: how often a link went down.

`perfquery` prints them of one port, `ibqueryerrors` of all ports with errors, and the kernel keeps them below
`/sys/class/infiniband`. One look alone shows errors of any age; a counter that grows shows a link that fails now.
"""

from __future__ import annotations

from collections.abc import Iterator

import re2

from tracecore.signals import stamps, whole
from tracecore.signals.metrics.point import Point
from tracecore.signals.nvidia.smi import host_of
from tracecore.signals.record import Source
from tracecore.signals.stream import Clock, Counters, Stream

MAX_BYTES = 16 << 20

#: When somebody looked: a line with a date, or with nothing but the time of day.
_CLOCK = re2.compile(rb"^\W{0,8}(\d\d):(\d\d):(\d\d)\W{0,8}$")
_DATED = re2.compile(rb"^[^\n]{0,40}\d\d:\d\d:\d\d[^\n]{0,40}$")
#: LinkDownedCounter:...............36
_COUNTER = re2.compile(rb"^LinkDowned(?:Counter)?:\.*(\d{1,12})\s*$")
#: # Port extended counters: Lid 21 port 1 (CapMask: 0x5a20)
_HEAD = re2.compile(rb"^# Port (?:extended )?counters: Lid (\d{1,6}) port (\d{1,3})\b")
#: The adapter and its port, by the command that asks for its counters.
_ASKED = re2.compile(rb"\bperfquery\b[^\n|;]*? (?:-C ?|--Ca[= ])?([a-z]\w*_\d+)(?: (?:-P ?|--Port[= ])?(\d{1,3})\b)?")
#: Errors for "gpu-7 mlx5_3"
_ADAPTER = re2.compile(rb'^Errors for "(?:([\w.-]+) )?([\w.-]+)"')
#:    GUID 0xb8cef60300a1b2c4 port 1: [SymbolErrorCounter == 12] [LinkDownedCounter == 36]
_PORT = re2.compile(rb"^\s+(?:GUID 0x[0-9a-f]+ )?port (\d{1,3}):[^\n]*\[LinkDownedCounter == (\d{1,12})\b")
#: /sys/class/infiniband/mlx5_3/ports/1/counters/link_downed:36
_KERNEL = re2.compile(rb"infiniband/([^/\s]{1,64})/ports/(\d{1,3})/(?:hw_)?counters/link_downed[: ]+(\d{1,12})\s*$")
#: Two looks, each with its time.
LOOKS = re2.compile(
    rb"(?s)\n[^\n]{0,40}\d\d:\d\d:\d\d[^\n]{0,40}\n.*(?:LinkDowned|link_downed).*"
    rb"\n[^\n]{0,40}\d\d:\d\d:\d\d[^\n]{0,40}\n.*(?:LinkDowned|link_downed)"
)


def read(stream: Stream, clock: Clock, counters: Counters) -> Iterator[Point]:
    """One point for each port in each look that has a time."""
    data = whole.content(stream, MAX_BYTES)
    counters.bytes_read += len(data)
    host, device, port, offset = b"", b"", b"1", 0
    when: int | None = None
    for number, raw in enumerate(data.split(b"\n"), 1):
        here, offset = offset, offset + len(raw) + 1
        downs = b""
        if match := _ASKED.search(raw):
            device, port = match.group(1), match.group(2) or b"1"
        elif match := _HEAD.match(raw):
            device, port = device or b"lid " + match.group(1), match.group(2)
        elif match := _ADAPTER.match(raw):
            host, device = match.group(1) or b"", match.group(2)
        elif match := _COUNTER.match(raw):
            downs = match.group(1)
        elif match := _PORT.match(raw):
            port, downs = match.groups()
        elif match := _KERNEL.search(raw):
            device, port, downs = match.groups()
        elif match := _CLOCK.match(raw):
            hours, minutes, seconds = map(int, match.groups())
            of_day = stamps.Stamp((hours * 3600 + minutes * 60 + seconds) * stamps.SECOND, "date")
            when = of_day.resolve(clock.latest)
        elif _DATED.match(raw) and (stamp := stamps.find(raw)) is not None:
            when = stamp.resolve(clock.latest)
        if not downs or when is None:
            continue
        counters.records += 1
        yield Point(
            name="hw.errors",
            labels={
                **host_of(stream),
                **({"host.name": host.decode("utf-8", "replace")} if host else {}),
                "hw.network.ib.device": device.decode("utf-8", "replace") or "unnamed",
                "hw.network.ib.port.num": port.decode(),
                "error.type": "link_downed",
            },
            value=float(downs),
            time=when,
            source=Source(stream.path, here, number, len(raw)),
        )
