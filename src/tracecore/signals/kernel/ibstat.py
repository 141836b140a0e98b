"""Output of `ibstat`, `ibv_devinfo` and `ibdev2netdev`: the ports of a machine's InfiniBand adapters."""

from __future__ import annotations

from collections.abc import Iterator

import re2

from tracecore.signals import whole
from tracecore.signals.record import LogSignal, Source
from tracecore.signals.stream import Clock, Stream

MAX_BYTES = 16 << 20

_ADAPTER = re2.compile(rb"^(?:CA '|hca_id:\s+)([^'\s]{1,64})")
_PORT = re2.compile(rb"^\s+(?:Port (\d{1,3}):|port:\s+(\d{1,3}))\s*$")
_STATE = re2.compile(rb"^\s+(?:State: |state:\s+PORT_)(\w+)\b")
#: mlx5_1 port 1 ==> ib1 (Down)
_LINE = re2.compile(rb"^(\S{1,64}) port (\d{1,3}) ==> \S+ \((Up|Down)\)\s*$")
_STATES = {
    b"down": 1, b"init": 2, b"initializing": 2, b"initialize": 2, b"armed": 3, b"active": 4, b"up": 4,
}  # fmt: skip
#: How such a file begins.
BEGINS = re2.compile(
    rb"^(?:CA '[^'\n]{1,64}'\r?\n\s+CA type: |hca_id:\s+\S+\r?\n\s+transport:"
    rb"|\S{1,64} port \d{1,3} ==> \S+ \((?:Up|Down)\))"
)


def read(stream: Stream, clock: Clock) -> Iterator[LogSignal]:
    """One record for each port. It was taken at the end of the bundle, as far as anybody knows."""
    device, port, offset = b"", 0, 0
    for number, raw in enumerate(whole.content(stream, MAX_BYTES).split(b"\n"), 1):
        here, offset = offset, offset + len(raw) + 1
        word = b""
        if match := _LINE.match(raw):
            device, port, word = match.group(1), int(match.group(2)), match.group(3)
        elif match := _ADAPTER.match(raw):
            device, port = match.group(1), 0
        elif match := _PORT.match(raw):
            port = int(match.group(1) or match.group(2))
        elif device and port and (match := _STATE.match(raw)):
            word = match.group(1)
        if (state := _STATES.get(word.lower())) is not None:
            name = device.decode("utf-8", "replace")
            yield {
                "resource": {"attributes": {**stream.resource, "tracecore.layer": stream.layer}},
                "log": {
                    "body": f"{name} port {port}: {raw.strip().decode('utf-8', 'replace')}",
                    "attributes": {
                        "hw.network.ib.device": name,
                        "hw.network.ib.port.num": port,
                        "hw.network.ib.port.state": state,
                        "tracecore.time.inferred": True,
                    },
                    "time_unix_nano": clock.latest,
                },
                "source": Source(stream.path, here, number, len(raw)),
            }
