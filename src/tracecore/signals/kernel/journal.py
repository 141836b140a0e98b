"""The journal's own formats: `journalctl -o json` and `-o export`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, BinaryIO

import msgspec

from tracecore.signals.kernel import lines
from tracecore.signals.logs.assembly import Assembly, TextBlock
from tracecore.signals.logs.blocks import BLOCK, Block, blocks
from tracecore.signals.logs.dialects import UnwrappedLine, clean, strip_prefixes
from tracecore.signals.logs.multiline import OomReport
from tracecore.signals.logs.reader import layer_of, read_lines
from tracecore.signals.logs.selector import Selector
from tracecore.signals.record import Attributes, LogSignal, Resource, Source
from tracecore.signals.stamps import Stamp, is_plausible
from tracecore.signals.stream import Clock, Counters, Stream

MAX_FIELD = 1 << 20
_FIELDS = frozenset(
    ("MESSAGE", "__REALTIME_TIMESTAMP", "_SOURCE_REALTIME_TIMESTAMP", "_HOSTNAME", "SYSLOG_IDENTIFIER", "_TRANSPORT",
     "_COMM", "PRIORITY", "__CURSOR", "_SYSTEMD_UNIT")
)  # fmt: skip


def read_json(
    stream: Stream, selector: Selector, clock: Clock, counters: Counters | None = None, *, block_size: int = BLOCK
) -> Iterator[LogSignal]:
    """One entry on each line; of a stream of worker output, the lines that the worker wrote."""
    counters = Counters() if counters is None else counters
    if stream.layer == "stdout":
        return read_lines(stream, selector, clock, _worker, counters, block_size=block_size)
    return _join(_json_entries(stream, selector, counters, block_size), stream, clock, counters)


def read_export(
    stream: Stream, selector: Selector, clock: Clock, counters: Counters | None = None, *, block_size: int = BLOCK
) -> Iterator[LogSignal]:
    """`NAME=value` lines, binary fields with their length, a blank line between entries. Every entry is parsed."""
    counters = Counters() if counters is None else counters
    return _join(_export_entries(stream, counters, block_size), stream, clock, counters)


def _worker(raw: bytes) -> UnwrappedLine:
    """The line of a worker in an entry of the journal; nothing where the machine itself speaks."""
    try:
        entry = msgspec.json.decode(raw.decode("utf-8", "replace"))
    except (msgspec.DecodeError, RecursionError):
        return UnwrappedLine(b"")
    if not isinstance(entry, dict) or entry.get("_TRANSPORT") == "kernel":
        return UnwrappedLine(b"")
    program = _text(entry.get("SYSLOG_IDENTIFIER")) or _text(entry.get("_COMM"))
    if lines.is_system(program):
        return UnwrappedLine(b"")
    host = _text(entry.get("_HOSTNAME"))
    micros = _text(entry.get("_SOURCE_REALTIME_TIMESTAMP")) or _text(entry.get("__REALTIME_TIMESTAMP"))
    known = micros.isdigit() and len(micros) < 18
    writer = f"{host} {program} {_text(entry.get('_PID'))} ".encode("utf-8", "replace")
    stamp = Stamp(int(micros) * 1000) if known and is_plausible(int(micros) * 1000) else None
    line = UnwrappedLine(
        clean(_text(entry.get("MESSAGE")).encode("utf-8", "replace")), writer, stamp, host=host, program=program
    )
    strip_prefixes(line, single_node=False)
    return line


Entry = tuple[dict[str, Any], int, int, int]


def _json_entries(stream: Stream, selector: Selector, counters: Counters, size: int) -> Iterator[Entry]:
    with stream.open() as file:
        for block in blocks(file, counters, size):
            yield from _picked(block, selector, counters)


def _picked(block: Block, selector: Selector, counters: Counters) -> Iterator[Entry]:
    data = block.data
    picked = selector(data)
    # The parts of a report cannot be picked one by one: with one in the block, every entry is looked at.
    if picked is not None and b"oom-killer" in data:
        picked = None
    index = position = 0
    line = block.line - 1
    while position < len(data):
        end = data.find(b"\n", position)
        end = len(data) if end < 0 else end
        line += 1
        if picked is not None:
            while index < len(picked) and picked[index] < position:
                index += 1
            if index == len(picked):
                return
            if picked[index] > end:
                line += data.count(b"\n", position, picked[index]) - 1
                position = data.rfind(b"\n", position, picked[index]) + 1
                continue
        raw = data[position:end].strip()
        if raw:
            try:
                entry = msgspec.json.decode(raw)
            except (msgspec.DecodeError, RecursionError):
                entry = None
            if isinstance(entry, dict):
                yield entry, block.offset + position, line, end - position
            else:
                counters.lines_unparsed += 1
        position = end + 1


def _export_entries(stream: Stream, counters: Counters, size: int) -> Iterator[Entry]:
    with stream.open() as file:
        source = _Lines(file, counters, size)
        entry: dict[str, Any] = {}
        start, first = 0, 1
        while (line := source.line()) is not None:
            if not line:
                if entry:
                    yield entry, start, first, source.offset - start
                entry, start, first = {}, source.offset, source.number + 1
                continue
            name, equals, value = line.partition(b"=")
            if not equals:
                value = source.binary()
            key = name.decode("ascii", "replace")
            if key in _FIELDS:
                entry[key] = value[:MAX_FIELD].decode("utf-8", "replace")
        if entry:
            yield entry, start, first, source.offset - start


class _Lines:
    """Lines and length-prefixed values of a file."""

    def __init__(self, file: BinaryIO, counters: Counters, size: int) -> None:
        self._file = file
        self._counters = counters
        self._size = size
        self._buffer = b""
        self._at = 0
        self.offset = 0
        self.number = 0

    def _more(self) -> bool:
        chunk = self._file.read(self._size)
        self._counters.read(len(chunk))
        self._buffer = self._buffer[self._at :] + chunk
        self._at = 0
        return bool(chunk)

    def line(self) -> bytes | None:
        searched = self._at
        while (end := self._buffer.find(b"\n", searched)) < 0:
            kept = len(self._buffer) - self._at
            if kept > 4 * MAX_FIELD:
                raise ValueError("a field without an end")
            if not self._more():
                if not kept:
                    return None
                end = len(self._buffer)
                break
            searched = kept
        found = self._buffer[self._at : end]
        self.offset += end + 1 - self._at
        self.number += 1
        self._at = min(end + 1, len(self._buffer))
        return found

    def binary(self) -> bytes:
        size = int.from_bytes(self._take(8), "little")
        if size > 64 * MAX_FIELD:
            raise ValueError("a field of an impossible length")
        value = self._take(size)
        self._take(1)
        self.number += value.count(b"\n") + 1
        return value

    def _take(self, size: int) -> bytes:
        while len(self._buffer) - self._at < size:
            if not self._more():
                raise ValueError("the journal ends inside of a field")
        found = self._buffer[self._at : self._at + size]
        self._at += size
        self.offset += size
        return found


def _text(value: object) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, list) and all(isinstance(byte, int) and 0 <= byte < 256 for byte in value):
        return bytes(value).decode("utf-8", "replace")  # a message that is not UTF-8 is an array of numbers
    return ""


class _Report(TextBlock):
    """An out-of-memory report that more entries may join."""

    __slots__ = ("record",)

    def __init__(self, line: UnwrappedLine, record: LogSignal) -> None:
        super().__init__(line, OomReport())
        self.record = record

    def finish(self) -> LogSignal:
        self.record["log"]["body"] = self.body().decode("utf-8", "replace")
        return self.record


def _join(entries: Iterator[Entry], stream: Stream, clock: Clock, counters: Counters) -> Iterator[LogSignal]:
    """Entries as records; an out-of-memory report of many entries is one."""
    resources: dict[tuple[str, str], Resource] = {}
    reports: Assembly[_Report] = Assembly()
    for entry, offset, number, length in entries:
        text = _text(entry.get("MESSAGE")).replace("\x00", "")
        host = _text(entry.get("_HOSTNAME"))
        kernel = entry.get("_TRANSPORT") == "kernel"
        program = "kernel" if kernel else _text(entry.get("SYSLOG_IDENTIFIER")) or _text(entry.get("_COMM"))
        line = UnwrappedLine(text.encode("utf-8", "replace"), host.encode("utf-8", "replace"))
        if program == "kernel":
            joined, ended = reports.place(line)
            for report in ended:
                yield report.finish()
            if joined is not None:
                continue
        key = (host, program)
        if key not in resources:
            identity: Attributes = {**stream.resource, "tracecore.layer": layer_of(program, stream.layer)}
            if host:
                identity["host.name"] = host
            resources[key] = {"attributes": identity}
        micros = _text(entry.get("_SOURCE_REALTIME_TIMESTAMP")) or _text(entry.get("__REALTIME_TIMESTAMP"))
        attributes: Attributes = {}
        if micros.isdigit() and len(micros) < 18:
            when = int(micros) * 1000
        else:
            when = clock.latest
            attributes["tracecore.time.inferred"] = True
        counters.records += 1
        record: LogSignal = {
            "resource": resources[key],
            "log": {"body": text, "attributes": attributes, "time_unix_nano": when},
            "source": Source(stream.path, offset, number, length),
        }
        if program == "kernel" and "invoked oom-killer:" in text:
            reports.add(_Report(line, record))
        else:
            yield record
    for report in reports:
        yield report.finish()
