"""The `kmsg` receiver: the kernel's messages, from `/dev/kmsg`."""

from __future__ import annotations

import errno
import logging
import os
import select
import socket
import threading
import time
from functools import partial
from typing import Any, Final, Literal

import msgspec
import re2

from tracecore.agent.component import Consumer, Setting
from tracecore.agent.options import StorageId
from tracecore.agent.receivers.delivery import DeliveredPositions, deliver, logs

log = logging.getLogger("tracecore.agent.kmsg")

#: One record of the kernel is at most 8 KiB.
PIECE: Final = 16 * 1024
#: Records of one batch.
MOST: Final = 512
_HEAD = re2.compile(rb"^(\d{1,10}),(\d{1,19}),(\d{1,19}),[^;]{0,200};")
_ESCAPE = re2.compile(rb"\\x([0-9a-f]{2})")
#: OTLP's severity for the eight levels of syslog.
_SEVERITY: Final = (
    (23, "emerg"), (22, "alert"), (21, "crit"), (17, "err"), (13, "warning"), (10, "notice"), (9, "info"), (5, "debug"),
)  # fmt: skip


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """
    Args:
        path: the device.
        start_at: `end` takes new messages only, `beginning` all that the kernel still has.
        storage: the extension that remembers the last message, so that a restart misses none.
    """

    path: str = "/dev/kmsg"
    start_at: Literal["beginning", "end"] = "end"
    storage: StorageId | None = None


def parse(raw: bytes, boot: int) -> tuple[int, dict[str, Any]] | None:
    """Sequence number and record of one message; None for what is none.

    Args:
        raw: `prio,sequence,microseconds,flags;text`.
        boot: when the kernel's clock began, in nanoseconds since the epoch.
    """
    match = _HEAD.match(raw)
    if match is None:
        return None
    priority, sequence, micros = (int(part) for part in match.groups())
    text = raw[match.end() :]
    if b"\\x" in text:
        text = bytes(_ESCAPE.sub(lambda m: bytes((int(m.group(1), 16),)), text))
    number, name = _SEVERITY[priority & 7]
    record = {
        "body": text.decode("utf-8", "replace"),
        "attributes": {"log.record.sequence": sequence, "syslog.facility.code": priority >> 3},
        "time_unix_nano": boot + micros * 1000,
        "severity_number": number,
        "severity_text": name,
    }
    return sequence, record


class Kmsg:
    """Follows the device."""

    def __init__(self, options: Options, setting: Setting) -> None:
        self._options = options
        self._setting = setting
        self._positions: DeliveredPositions[bytes] | None = None
        #: The sequence number of the last message that was handed on.
        self._last = -1
        self._resource = {"host.name": socket.gethostname(), "tracecore.layer": "kernel"}

    def run(self, consume: Consumer, stop: threading.Event) -> None:
        boot_id = _boot_id()
        if self._positions is None and (store := self._setting.store(self._options.storage)) is not None:
            known = (store.get("position") or b"").decode("ascii", "replace").partition(" ")
            if known[0] == boot_id and known[2].isdigit():
                self._last = int(known[2])
            self._positions = DeliveredPositions(partial(store.set, "position"))
        descriptor = os.open(self._options.path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            if self._options.start_at == "end" and self._last < 0:
                _seek_end(descriptor)
            rest = b""
            while not stop.is_set():
                ready, _, _ = select.select([descriptor], [], [], 0.2)
                lines, rest, open_ = self._read(descriptor, rest) if ready else ([], rest, True)
                boot = time.time_ns() - time.clock_gettime_ns(time.CLOCK_MONOTONIC)
                found = [p for line in lines if (p := parse(line, boot)) is not None and p[0] > self._last]
                if found:
                    records = [{**record, "observed_time_unix_nano": time.time_ns()} for _, record in found]
                    last = found[-1][0]
                    acks = () if self._positions is None else (self._positions.ack(f"{boot_id} {last}".encode()),)
                    if not deliver(consume, logs(dict(self._resource), records, acks=acks), stop):
                        return
                    self._last = last
                if not open_ and stop.wait(0.2):
                    return
        finally:
            os.close(descriptor)

    def _read(self, descriptor: int, rest: bytes) -> tuple[list[bytes], bytes, bool]:
        """Whole messages that are there; a bound on how many keeps batches small."""
        lines: list[bytes] = []
        while len(lines) < MOST:
            try:
                piece = os.read(descriptor, PIECE)
            except BlockingIOError:
                break
            except OSError as error:
                if error.errno == errno.EPIPE:  # the kernel has overwritten messages that nobody had read
                    self._setting.meter.drop("overwritten", 1)
                    continue
                raise
            if not piece:
                return lines, rest, False
            *whole, rest = (rest + piece).split(b"\n")
            # Lines that begin with a blank are properties of the message above.
            lines += [line for line in whole if line and line[:1] != b" "]
            rest = rest[-PIECE:]
        return lines, rest, True


def _seek_end(descriptor: int) -> None:
    try:
        os.lseek(descriptor, 0, os.SEEK_END)
    except OSError as error:
        if error.errno != errno.ESPIPE:  # a pipe has no old messages to pass over
            raise


def _boot_id() -> str:
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            return file.read().strip()
    except OSError:
        return "unknown"
