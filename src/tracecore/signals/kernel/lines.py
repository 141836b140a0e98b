"""One line of a kernel or system log in the shapes `dmesg`, `journalctl` and syslog daemons print.

Times since boot become wall-clock time by the boot time the log itself gives (a clock or audit line), else by putting
the end of the log at the end of the bundle, in which case every record says that its time is inferred.
"""

from __future__ import annotations

import re2

from tracecore.signals import stamps
from tracecore.signals.logs.dialects import Dialect, UnwrappedLine, clean
from tracecore.signals.stamps import SECOND, Stamp
from tracecore.signals.stream import Clock, Stream

UPTIME = re2.compile(rb"^(?:<\d{1,3}>)?(?:[a-z]+ *:[a-z]+ *: ?)?\[ *(\d{1,10})\.(\d{6})\](?:\[ *[TC]\d+\])? ?")
_WALL = re2.compile(
    rb"^(?:<\d{1,3}>)?(?:[a-z]+ *:[a-z]+ *: ?)?\[([A-Z][a-z]{2} [A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d \d{4})\] ?"
)
_ISO = re2.compile(
    rb"^(?:<\d{1,3}>)?(?:[a-z]+ *:[a-z]+ *: ?)?(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d[.,]\d{1,9}[+-]\d\d:?\d\d) "
)
#: A server of consoles writes the time before the kernel's own: `[2026-02-18T01:17:28Z] [942210.113310] `.
CONSOLE = re2.compile(
    rb"^\[(\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d{1,9})?(?:Z|[+-]\d\d:?\d\d)?)\] ?"
    rb"\[ *\d{1,10}\.\d{6}\](?:\[ *[TC]\d+\])? ?"
)
_KMSG = re2.compile(rb"^(\d{1,6}),(\d+),(\d{1,19}),[^;]{0,200};")
SYSLOG = re2.compile(
    rb"^(?:<\d{1,3}>(?:\d )?)?([A-Za-z][a-z]{2}\.? [ \d]\d (?:\d{4} )?\d\d:\d\d:\d\d(?:\.\d{1,9})?"
    rb"|\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:[.,]\d{1,9})?(?:Z|[+-]\d\d:?\d\d)?)"
    rb" ([\w.:-]{1,255}) ([\w./@()-]{1,128}?)(?:\[(\d{1,10})\])?:(?: |$)"
)
#: journalctl --no-hostname, and merged logs of one machine: `2026-02-18T01:17:28Z kernel: nvidia 0000:66:00.0: …`.
HOSTLESS = re2.compile(
    rb"^([A-Za-z][a-z]{2}\.? [ \d]\d (?:\d{4} )?\d\d:\d\d:\d\d(?:\.\d{1,9})?"
    rb"|\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:[.,]\d{1,9})?(?:Z|[+-]\d\d:?\d\d)) kernel: (?:\[ *\d{1,10}\.\d{6}\] ?)?"
)
# talosctl dmesg
TALOS = re2.compile(
    rb"^([0-9a-zA-Z.:-]{1,255}): [a-z]+: +[a-z]+: \[(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d{1,9})?Z)\]: "
)
_RTC = re2.compile(rb"(?m)\[ *(\d+)\.(\d+)\].{0,60}setting system clock to [^(\n]{10,40}\((1\d{9})\)")
_AUDIT = re2.compile(rb"(?m)\[ *(\d+)\.(\d+)\].{0,60}audit\((1\d{9})\.(\d{3}):\d+\)")


def boot_time(text: bytes) -> int | None:
    """Return when the machine booted, where the log tells (the clock chip at start, an audit record later)."""
    last = None
    for match in _AUDIT.finditer(text):
        last = match
    if last is not None:
        seconds, part, epoch, millis = last.groups()
        return int(epoch) * SECOND + int(millis) * 1_000_000 - _uptime(seconds, part)
    if match := _RTC.search(text):
        seconds, part, epoch = match.groups()
        return int(epoch) * SECOND - _uptime(seconds, part)
    return None


def last_uptime(text: bytes) -> int | None:
    """The last time since boot in this end of a log."""
    for raw in reversed(text.splitlines()):
        if match := UPTIME.match(raw):
            return _uptime(*match.groups())
        if match := _KMSG.match(raw):
            return int(match.group(3)) * 1000
    return None


def _uptime(seconds: bytes, part: bytes) -> int:
    return int(seconds) * SECOND + int(part.ljust(9, b"0"))


#: Programs of the system that write to its log.
_SYSTEM = re2.compile(
    r"^(?:kernel|systemd(?:-.*)?|\(.*\)|init|sshd.*|sudo|su|CRON|cron[d]?|anacron|dbus.*|rsyslogd|audit.*|polkitd|snapd?.*"
    r"|kubelet|containerd.*|dockerd|docker|crio|podman|runc|slurm.*|munged|NetworkManager|dhclient|networkd.*|chronyd?"
    r"|ntpd|irqbalance|smartd|multipathd|iscsid|lvm|mdadm|udev.*|nvidia-.*|nv-.*|nvsm.*|dcgm.*|nv_peer_mem|opensmd?|openibd"
    r"|agetty|login|gdm.*|postfix.*|packagekitd|fwupd|thermald|acpid|rpc\..*|nfs.*|automount|sssd.*|ipmi.*|prometheus.*"
    r"|node_exporter|telegraf|fluent.*|otelcol.*|filebeat|tailscaled|cloud-init|google_.*|amazon-.*|waagent|kdump.*)$"
)


def is_system(program: str) -> bool:
    """Return whether a program of this name is part of the machine, and no work that runs on it."""
    return not program or bool(_SYSTEM.match(program))


# journalctl -o short-monotonic
_MONOTONIC = re2.compile(rb"^([\w.-]{1,255}) kernel: ")


def dialect(stream: Stream, clock: Clock) -> Dialect:
    """Return how to read the lines of this kernel or system log."""
    work = stream.layer == "stdout"
    boot, inferred = stream.boot_time, False
    if boot is None:
        boot, inferred = clock.latest - (stream.last_uptime or 0), True

    def since_boot(nanos: int, text: bytes) -> UnwrappedLine:
        line = UnwrappedLine(text, stamp=Stamp(max(boot + nanos, 0)), program="kernel")
        if match := _MONOTONIC.match(text):
            line.host, line.text = match.group(1).decode("utf-8", "replace"), text[match.end() :]
        if inferred:
            line.attributes = {"tracecore.time.inferred": True}
        return line

    def unwrap(raw: bytes) -> UnwrappedLine:
        if match := UPTIME.match(raw):
            return since_boot(_uptime(*match.groups()), clean(raw[match.end() :]))
        if match := HOSTLESS.match(raw):
            text = b"" if work else clean(raw[match.end() :])
            return UnwrappedLine(text, stamp=stamps.find(match.group(1)), program="kernel")
        if match := SYSLOG.match(raw):
            line = _syslog(work, raw, match.end(), *match.groups())
            if stream.processes and (pid := match.group(4)):
                line.rank = stream.processes.get((line.host, int(pid)))
            return line
        if match := _WALL.match(raw):
            return UnwrappedLine(clean(raw[match.end() :]), stamp=stamps.find(match.group(1)), program="kernel")
        if match := _ISO.match(raw) or CONSOLE.match(raw):
            return UnwrappedLine(clean(raw[match.end() :]), stamp=stamps.find(match.group(1)), program="kernel")
        if match := TALOS.match(raw):
            host, text = match.group(1).decode("utf-8", "replace"), clean(raw[match.end() :])
            return UnwrappedLine(text, stamp=stamps.find(match.group(2)), host=host, program="kernel")
        if match := _KMSG.match(raw):
            return since_boot(int(match.group(3)) * 1000, clean(_unescape(raw[match.end() :])))
        return UnwrappedLine(clean(raw), program="" if stream.format == "syslog" else "kernel")

    return unwrap


def _syslog(
    work: bool, raw: bytes, end: int, time: bytes, host: bytes, program: bytes, pid: bytes | None
) -> UnwrappedLine:
    text = raw[end:]
    if program == b"kernel" and (match := UPTIME.match(text)):
        text = text[match.end() :]
    name = program.rsplit(b"/", 1)[-1].decode("utf-8", "replace")
    if work and is_system(name):
        return UnwrappedLine(b"")
    writer = b"%s %s %s " % (host, program, pid or b"")
    return UnwrappedLine(clean(text), writer, stamps.find(time), host=host.decode("utf-8", "replace"), program=name)


_ESCAPE = re2.compile(rb"\\x([0-9a-f]{2})")


def _unescape(text: bytes) -> bytes:
    if b"\\x" not in text:
        return text
    return bytes(_ESCAPE.sub(lambda m: bytes((int(m.group(1), 16),)), text))
