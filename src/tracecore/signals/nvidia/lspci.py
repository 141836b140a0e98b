"""Output of `lspci`: GPUs that are gone from the bus, and links of GPUs that run with fewer lanes than they have."""

from __future__ import annotations

from collections.abc import Iterator

import re2

from tracecore.signals import whole
from tracecore.signals.nvidia.smi import bus_id
from tracecore.signals.record import Attributes, LogSignal, Source
from tracecore.signals.stream import Clock, Stream

MAX_BYTES = 64 << 20

_DEVICE = re2.compile(rb"^((?:[0-9a-f]{4}:)?[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]) (.+)$")
_ACCELERATOR = re2.compile(rb"(?:3D controller|VGA compatible controller|Processing accelerators|Display controller)\b")
#: An idle GPU lowers its speed, and keeps its lanes.
_LANES = re2.compile(rb"^\s+LnkSta:\s.*Width x\d+ \(downgraded\)")
#: How the output begins.
BEGINS = re2.compile(rb"^(?:[0-9a-f]{4}:)?[0-9a-f]{2}:[0-9a-f]{2}\.[0-7] [A-Z0-9][\w /()-]*(?: \[[0-9a-f]{4}\])?: \S")


def read(stream: Stream, clock: Clock) -> Iterator[LogSignal]:
    """One record for each GPU that shows such a thing, taken at the end of the bundle as far as anybody knows."""
    gpu, title, offset = "", b"", 0
    for number, raw in enumerate(whole.content(stream, MAX_BYTES).split(b"\n"), 1):
        here, offset = offset, offset + len(raw) + 1
        found: Attributes = {}
        if match := _DEVICE.match(raw):
            bus, title = match.group(1).decode(), match.group(2)
            gpu = (bus_id(bus if bus.count(":") == 2 else f"0000:{bus}") or "") if _ACCELERATOR.search(title) else ""
            if gpu and b"(rev ff)" in title:
                # All bits read as one: nothing answers there.
                found["kernelevents.gpu_lost"] = True
        elif gpu and _LANES.match(raw):
            found["kernelevents.gpu.error"] = "pcie_lanes_lost"
        if found:
            text = raw if "kernelevents.gpu_lost" in found else title + b": " + raw.strip()
            yield {
                "resource": {"attributes": {**stream.resource, "tracecore.layer": stream.layer}},
                "log": {
                    "body": text.decode("utf-8", "replace").strip(),
                    "attributes": {**found, "gpu.id": gpu, "tracecore.time.inferred": True},
                    "time_unix_nano": clock.latest,
                },
                "source": Source(stream.path, here, number, len(raw)),
            }
