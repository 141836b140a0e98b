"""Output of `ibstat`, `ibv_devinfo`, `ibdev2netdev`, `rdma link`, `iblinkinfo` and `ethtool`: ports and their links."""

from __future__ import annotations

from collections.abc import Iterator

import re2

from tracecore.signals import stamps, whole
from tracecore.signals.record import Attributes, LogSignal, Source
from tracecore.signals.stream import Clock, Stream

MAX_BYTES = 16 << 20

_ADAPTER = re2.compile(rb"^(?:CA '|hca_id:\s+)([^'\s]{1,64})")
_PORT = re2.compile(rb"^\s+(?:Port (\d{1,3}):|port:\s+(\d{1,3}))\s*$")
_STATE = re2.compile(rb"^\s+(?:State: |state:\s+PORT_)(\w+)\b")
#: State: Down, of `ibstat | grep State:`
_BARE = re2.compile(rb"^\s*State: (Down|Init\w*|Armed|Active)\s*$")
#: link mlx5_1/1 subnet_prefix … state DOWN physical_state POLLING
_RDMA = re2.compile(rb"^(?:\d+/\d+: |link )([^\s/]{1,64})/(\d{1,3})\b.*? state (DOWN|INIT|ARMED|ACTIVE)\b")
#: CA: ib-n4 mlx5_2:
_CHANNEL_ADAPTER = re2.compile(rb"^CA: (\S{1,128}) (\S{1,64}):\s*$")
#: 0x1070fd0300a1b2c5      6    1[  ] ==(                Down/ Polling)==>             [  ] "" ( )
_CABLE = re2.compile(rb"^\s+0x[0-9a-f]{16}\s+\d+\s+(\d{1,3})\[[^\]]*\] ==\([^/)]*\b(Down|Init\w*|Armed|Active)/")
_INTERFACE = re2.compile(rb"^Settings for ([\w.@-]{1,64}):")
_DETECTED = re2.compile(rb"^\s+Link detected: (yes|no)\b")
#: mlx5_1 port 1 ==> ib1 (Down)
_LINE = re2.compile(rb"^(\S{1,64}) port (\d{1,3}) ==> \S+ \((Up|Down)\)\s*$")
#: === Tue Nov 17 10:01:00 UTC 2026 ===, of a loop that looks again and again, or the head that `watch` prints.
_DATED = re2.compile(
    rb"[A-Z][a-z]{2} +[A-Z][a-z]{2} +\d{1,2} +\d\d:\d\d:\d\d(?: [A-Z]{3,4})?(?: \d{4})?"
    rb"|\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d\S{0,16}"
)
_EARLY = 160
_STATES = {
    b"down": 1, b"init": 2, b"initializing": 2, b"initialize": 2, b"armed": 3, b"active": 4, b"up": 4,
}  # fmt: skip
#: How such a file begins.
BEGINS = re2.compile(
    rb"^(?:[^\n]{0,60}\d\d:\d\d:\d\d[^\n]{0,20}\r?\n\s*)?"
    rb"(?:CA '[^'\n]{1,64}'\r?\n\s+CA type: |hca_id:\s+\S+\r?\n\s+transport:"
    rb"|\S{1,64} port \d{1,3} ==> \S+ \((?:Up|Down)\)"
    rb"|(?:link |\d+/\d+: )[^\s/]{1,64}/\d{1,3} (?:\S+ )*state [A-Z]+ physical_state "
    rb"|(?:CA|Switch): \S+ [^\n]*:\r?\n\s+(?:0x[0-9a-f]{16}\s+)?\d+\s+\d+\[|Settings for [\w.@-]{1,64}:\r?\n"
    rb"|State: (?:Down|Init\w*|Armed|Active)\s*(?:\n|$))"
)


def read(stream: Stream, clock: Clock) -> Iterator[LogSignal]:
    """One record for each port. It was taken when the line above it says, or else at the end of the bundle."""
    device, port, offset, host, interface = b"", 0, 0, b"", b""
    when: int | None = None
    for number, raw in enumerate(whole.content(stream, MAX_BYTES).split(b"\n"), 1):
        here, offset = offset, offset + len(raw) + 1
        word = b""
        if raw[:1].strip() and (dated := _DATED.search(raw[:_EARLY])) is not None:
            when = None if (stamp := stamps.find(dated.group(0))) is None else stamp.resolve(clock.latest)
        elif match := _LINE.match(raw) or _RDMA.match(raw):
            device, port, word = match.group(1), int(match.group(2)), match.group(3)
        elif match := _CHANNEL_ADAPTER.match(raw):
            host, device, port = match.group(1), match.group(2), 0
        elif match := _ADAPTER.match(raw):
            device, port = match.group(1), 0
        elif raw.startswith(b"Switch: "):
            device, host = b"", b""  # ports of a switch that nothing is plugged into are down
        elif match := _INTERFACE.match(raw):
            interface = match.group(1)
        elif match := _PORT.match(raw):
            port = int(match.group(1) or match.group(2))
        elif device and (match := _CABLE.match(raw)):
            port, word = int(match.group(1)), match.group(2)
        elif device and port and (match := _STATE.match(raw)):
            word = match.group(1)
        elif not device and (match := _BARE.match(raw)):
            port, word = port + 1, match.group(1)
        elif interface and (match := _DETECTED.match(raw)):
            link: Attributes = {"network.interface.name": _text(interface), "hw.network.up": match.group(1) == b"yes"}
            body = f"{_text(interface)}: {_text(raw.strip())}"
            yield _signal(stream, clock, when, body, link, (here, number, len(raw)))
            interface = b""
        if (state := _STATES.get(word.lower())) is not None:
            name = _text(device) or "unnamed"
            port_state: Attributes = {
                "hw.network.ib.device": name,
                "hw.network.ib.port.num": port,
                "hw.network.ib.port.state": state,
            }
            body = f"{name} port {port}: {_text(raw.strip())}"
            yield _signal(stream, clock, when, body, port_state, (here, number, len(raw)), _text(host))


def _text(raw: bytes) -> str:
    return raw.decode("utf-8", "replace")


def _signal(
    stream: Stream,
    clock: Clock,
    when: int | None,
    body: str,
    stated: Attributes,
    place: tuple[int, int, int],
    host: str = "",
) -> LogSignal:
    resource: Attributes = {**stream.resource, "tracecore.layer": stream.layer}
    if host:
        resource["host.name"] = host
    return {
        "resource": {"attributes": resource},
        "log": {
            "body": body,
            "attributes": stated if when is not None else {**stated, "tracecore.time.inferred": True},
            "time_unix_nano": clock.latest if when is None else when,
        },
        "source": Source(stream.path, *place),
    }
