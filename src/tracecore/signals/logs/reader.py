"""Lines of a file as records: only what a selector picked, and the lines that complete it.

The file is read in raw blocks. As long as no multi-line block is open, the reader jumps from one candidate to the next
and looks at nothing in between; with one open it goes line by line until it closes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence

import re2

from tracecore.signals import stamps
from tracecore.signals.logs import dialects
from tracecore.signals.logs.blocks import BLOCK, LINE_END, LOOK_BACK, MAX_LINE, Block, blocks, newlines
from tracecore.signals.logs.dialects import Dialect, UnwrappedLine
from tracecore.signals.logs.multiline import MAY_CONTINUE, Boxed, Message, Shape, Table, Take, Traceback, opens, unboxed
from tracecore.signals.logs.open_record import MAX_BODY, OpenRecord
from tracecore.signals.logs.selector import FAILED_GROUP, LoneLine, Picked, Selector, reports
from tracecore.signals.record import Attributes, LogSignal, Resource, Source
from tracecore.signals.stamps import Stamp
from tracecore.signals.stream import Clock, Counters, Stream

#: Lines of others that may stand between two lines of one block.
MAX_FOREIGN = 400
#: Bytes of the line above a traceback that are looked at.
ABOVE = 1024
#: Bytes above a line without a time that are looked at first.
NEAR = 1024
#: After so many looks in vain a stream is taken to have no times.
MAX_LOOKS = 64

#: What PyTorch says when a process ends that has not taken its group down: it raised, most often.
EXITING = b"destroy_process_group() was not called before program exit"

_STARTS = re2.compile(rb"(?m)^.{0,90}\d\d:\d\d:\d\d|(?m)^[\[( ]*1\d{9}")


def read(
    stream: Stream,
    selector: Selector,
    clock: Clock,
    counters: Counters | None = None,
    *,
    block_size: int = BLOCK,
) -> Iterator[LogSignal]:
    """The records of a worker's output: plain text or a container runtime's log."""
    return read_lines(stream, selector, clock, dialect(stream), counters, block_size=block_size)


def dialect(stream: Stream) -> Dialect:
    """The wrapping of the lines of a worker's output."""
    if stream.format in ("cri", "docker"):
        return dialects.container(stream.single_node)
    return dialects.plain(stream.wrapping, stream.single_node, stream.containers)


def read_lines(
    stream: Stream,
    selector: Selector,
    clock: Clock,
    dialect: Dialect,
    counters: Counters | None = None,
    *,
    block_size: int = BLOCK,
) -> Iterator[LogSignal]:
    """The same for any dialect.

    Records come in the order in which they end. Each has a `Source` with the byte range from its first line to its
    last, lines of others in between included.
    """
    counters = Counters() if counters is None else counters
    assembly = _Assembly(stream, clock, dialect, counters)
    with stream.open() as file:
        for block in blocks(file, counters, block_size):
            picked = selector.take(block) if reports(selector) else selector(block.data)
            yield from assembly.feed(block, picked)
    if reports(selector):
        yield from assembly.reported(selector.finish())
    yield from assembly.finish()


class _Assembly:
    """Turns candidate lines into records; what is open survives from one block to the next."""

    def __init__(self, stream: Stream, clock: Clock, dialect: Dialect, counters: Counters) -> None:
        self._stream = stream
        self._clock = clock
        self._dialect = dialect
        self._counters = counters
        self._resources: dict[tuple[str, str], Resource] = {}
        self._pieces: dict[bytes, OpenRecord] = {}  # runtimes' partial lines, by stream
        self._open: dict[bytes, OpenRecord] = {}  # blocks, by lane
        self._message: OpenRecord | None = None  # the last single line, which detail lines may follow
        self._tail = b""  # bytes before this block, for a look back
        self._seen = 0  # lines before this offset are known not to have a later time than `_time`
        self._time: int | None = None
        self._stamped_at = -1
        self._looks = 0
        self._size = stream.size
        self._all = False
        first = stream.resource.get("tracecore.attempt")
        self._attempt = first if isinstance(first, int) else 0
        self._first_attempt = self._attempt
        self._failed = False

    @property
    def idle(self) -> bool:
        """Whether no record is open that the next lines may join."""
        return not self._open and self._message is None and not self._pieces

    def feed(self, block: Block, picked: Sequence[int] | None) -> Iterator[LogSignal]:
        data, base = block.data, block.offset
        size = len(data)
        self._all = picked is None
        position, index, count = 0, 0, 0 if picked is None else len(picked)
        counted_to, line = 0, block.line
        known = lines = None
        reports: deque[LoneLine] = deque()
        if isinstance(picked, Picked):
            known, lines = picked.newlines, picked.lines
            reports.extend(picked.reports)
        while position < size:
            if picked is not None:
                while index < count and picked[index] < position:
                    index += 1
                if self.idle:
                    if index == count:
                        break
                    at = picked[index]
                    start = data.rfind(b"\n", position, at) + 1
                    position = max(position, start, data.rfind(b"\r", max(position, start), at) + 1)
            end, after = _line_end(data, position, size)
            if end - position > MAX_LINE:
                # The beginning and the end of a line that is too long are read as two.
                after = max(position + MAX_LINE, end - LINE_END)
                end = position + MAX_LINE
                self._counters.lines_capped += 1
                self._counters.bytes_dropped += after - end
            candidate = picked is None or (index < count and picked[index] < min(after, position + MAX_LINE))
            if known is None:
                line += _newlines(data, counted_to, position)
                counted_to = position
            else:
                line = block.line + int(known.searchsorted(position))
            raw = data[position:end]
            while candidate and reports and reports[0].offset < base + position:
                # What has no time of its own gets that of the lines above it.
                yield from self.reported((reports.popleft(),))
            if not candidate and self._ends_message(raw):
                message, self._message = self._message, None
                assert message is not None
                yield from self._emit(message)
                position = after
                continue
            yield from self._line(raw, base + position, line, candidate, data, position)
            position = after
        yield from self.reported(reports)
        if known is not None:
            block.newlines = len(known)
        elif lines is not None:
            block.newlines = lines
        else:
            block.newlines = line - block.line + _newlines(data, counted_to, size)
        self._tail = data[-LOOK_BACK:] if size >= LOOK_BACK else (self._tail + data)[-LOOK_BACK:]

    def _ends_message(self, raw: bytes) -> bool:
        """Whether nothing but a line that stands alone is open, and this one, not a candidate, cannot be part of it."""
        message = self._message
        if message is None or self._open or self._pieces or len(message.lines) > 1 or message.held:
            return False
        return MAY_CONTINUE.search(raw) is None

    def reported(self, reports: Iterable[LoneLine]) -> Iterator[LogSignal]:
        """Lines that stand alone, those a selector kept back from blocks before among them."""
        for report in reports:
            line = self._dialect(report.raw)
            if line.partial or not line.text:
                continue
            stamp = line.stamp or stamps.find(line.text)
            if stamp is not None and not self._fits(self._resolved(stamp)):
                stamp = None
            time = self._anchor(report.offset) if stamp is None else self._resolved(stamp)
            if stamp is not None and report.offset > self._stamped_at:
                self._time = time
                self._stamped_at = self._seen = report.offset
            self._count_attempts(line, None)
            attributes = self._marked(line, inferred=stamp is None)
            if report.until is not None:
                last = self._dialect(report.until)
                until = last.stamp or stamps.find(last.text)
                kind = "repeat" if report.event else "report"
                if until is not None:
                    attributes[f"tracecore.{kind}.until_unix_nano"] = max(until.resolve(time), time)
                if until is not None or report.event:
                    attributes[f"tracecore.{kind}.count"] = report.lines
            source = Source(self._stream.path, report.offset, report.line, len(report.raw))
            yield self._record(line.host, line.program, line.text[:MAX_BODY], attributes, time, source)

    def finish(self) -> Iterator[LogSignal]:
        still = [*self._pieces.values(), *self._open.values()]
        if self._message is not None:
            still.append(self._message)
        self._pieces, self._open, self._message = {}, {}, None
        for record in sorted(still, key=lambda r: r.offset):
            yield from self._emit(record)

    def _line(
        self, raw: bytes, offset: int, number: int, candidate: bool, data: bytes, position: int
    ) -> Iterator[LogSignal]:
        line = self._dialect(raw)
        end = offset + len(raw)
        if line.partial or self._pieces:
            joined = self._join(line, offset, number, end)
            if joined is None:
                return
            line, offset, number, candidate = *joined[:3], candidate or joined[3]
        for lane, record in list(self._open.items()):
            if record.foreign > MAX_FOREIGN:
                del self._open[lane]
                yield from self._emit(record)
        if self._open and EXITING in line.text:
            self._left(line)
        record_here = self._open.get(line.lane)
        if record_here is not None and (shape := record_here.shape) is not None:
            taken = shape.take(line.text)
            if taken is Take.HOLD:
                record_here.held += 1
                return
            if taken in (Take.TAKE, Take.LAST):
                record_here.append(line.text, end)
                _date(record_here, line.text)
                if taken is Take.LAST:
                    del self._open[line.lane]
                    yield from self._emit(record_here)
                return
            if taken is Take.CLOSE:
                del self._open[line.lane]
                yield from self._emit(record_here)
        for record in self._open.values():
            record.foreign += 1
        message = self._message
        if message is not None and message.shape is not None:
            if line.lane in (message.lane, b"", *_iostream(message)):
                taken = message.shape.take(line.text)
                if taken is Take.HOLD:
                    message.held += 1
                    return
                if taken is Take.TAKE:
                    message.append(line.text, end)
                    return
            self._message = None
            yield from self._emit(message)
        if not candidate or not line.text:
            return
        if line.stamp is None:
            line.stamp = stamps.find(line.text)
        shape = opens(line.text, line.lane.endswith(b"]: "))
        if line.rank is None and isinstance(shape, Traceback):
            line.rank = self._announced(data, position)
        time, inferred = self._when(line.stamp, offset, data, position)
        opened = OpenRecord(line, offset, number, end, shape or Message(), shape is None or shape.worthy or self._all)
        self._count_attempts(line, shape)
        opened.attributes = self._marked(line, inferred=inferred)
        opened.stamp = Stamp(time)
        if line.folded:
            yield from self._emit(opened)
        elif shape is None:
            self._message = opened
        else:
            self._open[line.lane] = opened

    def _left(self, line: UnwrappedLine) -> None:
        """PyTorch's last word at the end of a process that raised is nearer to its traceback than the line above it."""
        stamp = line.stamp or stamps.find(line.text)
        whose = self._stream.resource.get("gen_ai.training.rank") if line.rank is None else line.rank
        for record in self._open.values():
            inferred = record.attributes is not None and "tracecore.time.inferred" in record.attributes
            rank = self._stream.resource.get("gen_ai.training.rank") if record.rank is None else record.rank
            if stamp is not None and inferred and rank == whose and isinstance(record.shape, Traceback):
                record.stamp = Stamp(self._resolved(stamp))

    def _marked(self, line: UnwrappedLine, *, inferred: bool) -> Attributes:
        """The attributes of a line's record: its own, and what the reader knows of it."""
        attributes: Attributes = dict(line.attributes or {})
        if self._attempt != self._first_attempt:
            attributes["tracecore.attempt"] = self._attempt
        if inferred:
            attributes["tracecore.time.inferred"] = True
        if line.rank is not None:
            attributes["gen_ai.training.rank"] = line.rank
        return attributes

    def _count_attempts(self, line: UnwrappedLine, shape: Shape | None) -> None:
        """After torchrun has said that its workers failed, it sums up; what workers say then is the next attempt."""
        if FAILED_GROUP in line.text and b"local_rank:" in line.text:
            self._failed = True
        elif self._failed and (
            line.rank is not None or not (shape or b"/elastic/" in line.text or b".elastic." in line.text)
        ):
            self._failed = False
            self._attempt += 1

    def _join(
        self, line: UnwrappedLine, offset: int, number: int, end: int
    ) -> tuple[UnwrappedLine, int, int, bool] | None:
        """Puts the pieces of a line together that the container runtime had cut; None while more are to come."""
        name = line.attributes.get("log.iostream") if line.attributes else None
        key = name.encode() if isinstance(name, str) else b""
        pending = self._pieces.get(key)
        if pending is None:
            if not line.partial:
                return line, offset, number, False
            self._pieces[key] = OpenRecord(line, offset, number, end, None, True)
            return None
        pending.lines.append(line.text)
        pending.size += len(line.text)
        pending.end = end
        if line.partial and pending.size < MAX_LINE:
            return None
        del self._pieces[key]
        whole = UnwrappedLine(
            dialects.clean(b"".join(pending.lines)), key, pending.stamp, attributes=pending.attributes
        )
        dialects.strip_prefixes(whole, self._stream.single_node)
        return whole, pending.offset, pending.line, True

    def _when(self, stamp: Stamp | None, offset: int, data: bytes, position: int) -> tuple[int, bool]:
        """The time of a line and whether it was inferred."""
        if stamp is not None and self._fits(time := self._resolved(stamp)):
            self._time = time
            self._seen = self._stamped_at = offset
            return self._time, False
        if self._looks < MAX_LOOKS and offset > self._seen:
            found = self._look_back(offset, data, position)
            if found is not None and self._fits(time := self._resolved(found)):
                self._time = time
                self._looks = 0
            else:
                self._looks += 1
        self._seen = offset
        if self._time is not None:
            return self._time, True
        return self._anchor(offset), True

    def _resolved(self, stamp: Stamp) -> int:
        """Complete a year or a date from the line before, and the first time from the bundle's end."""
        return self._from_end(stamp) if self._time is None else stamp.resolve(self._time)

    def _from_end(self, stamp: Stamp) -> int:
        # A complete time may be of something else than the end; without any, nothing is after the bundle's last line.
        end = self._clock.latest
        return stamp.resolve(end) if self._clock.exact else stamp.resolve_before(end)

    def _fits(self, time: int) -> bool:
        """Whether a line can be of this time: not long before the line above, nor after the end of the bundle."""
        if time > self._clock.latest + stamps.DAY and self._clock.exact:
            return False
        return self._time is None or time > self._time - stamps.APART

    def _look_back(self, offset: int, data: bytes, position: int) -> Stamp | None:
        """The nearest time in the lines above that nobody has looked at yet."""
        reach = min(LOOK_BACK, offset - self._seen)
        above = data[max(0, position - reach) : position]
        if len(above) < reach:
            above = self._tail[len(self._tail) - min(reach - len(above), len(self._tail)) :] + above
        stamped = self._stream.format.startswith(("cri", "docker"))
        # The nearest lines first: most often one of them has a time.
        for part in (above[-NEAR:], above) if len(above) > NEAR else (above,):
            if len(part) > NEAR and not stamped and not _STARTS.search(part):
                continue
            lines = part.replace(b"\r", b"\n").split(b"\n")
            for raw in reversed(lines[1:] if len(part) in (NEAR, LOOK_BACK) else lines):
                line = self._dialect(raw) if raw else None
                stamp = None if line is None else line.stamp or stamps.find(line.text)
                if stamp is not None:
                    return stamp
        return None

    def _announced(self, data: bytes, position: int) -> int | None:
        """The rank that the line before a traceback names: a logger writes an exception right below its message."""
        above = data[max(0, position - ABOVE) : position] or self._tail[-ABOVE:]
        return dialects.announced(above.rstrip(b"\r\n").rpartition(b"\n")[2])

    def _anchor(self, offset: int) -> int:
        """A time for a line of a stream that has had none so far: one nanosecond a byte, and never out of order."""
        if self._stream.first_stamp is not None:
            first = self._from_end(self._stream.first_stamp)
            return first - (1 << 40) + offset if offset > 1 << 30 else first - (1 << 30) + offset
        if self._size is None:
            self._size = measure(self._stream)
        return self._clock.latest - max(self._size - offset, 0)

    def _emit(self, record: OpenRecord) -> Iterator[LogSignal]:
        if record.shape is not None and not (record.wanted or record.shape.worthy):
            return
        self._counters.bytes_dropped += record.left_out
        assert record.stamp is not None
        assert record.attributes is not None
        source = Source(self._stream.path, record.offset, record.line, record.end - record.offset)
        body = unboxed(record.body()) if isinstance(record.shape, Boxed) else record.body()
        yield self._record(record.host, record.program, body, record.attributes, record.stamp.nanos, source)

    def _record(
        self, host: str, program: str, body: bytes, attributes: Attributes, time: int, source: Source
    ) -> LogSignal:
        self._counters.records += 1
        return {
            "resource": self._resource(host, program),
            "log": {"body": body.decode("utf-8", "replace"), "attributes": attributes, "time_unix_nano": time},
            "source": source,
        }

    def _resource(self, host: str, program: str) -> Resource:
        key = (host, program)
        known = self._resources.get(key)
        if known is None:
            attributes: Attributes = {**self._stream.resource, "tracecore.layer": layer_of(program, self._stream.layer)}
            if host:
                attributes["host.name"] = host
            known = self._resources[key] = {"attributes": attributes}
        return known


def layer_of(program: str, default: str) -> str:
    """Return the layer of evidence of a program's lines in a system log."""
    if program in ("slurmd", "slurmstepd", "slurmctld"):
        return "scheduler"
    if program in ("kubelet", "containerd", "dockerd", "crio"):
        return "kubernetes"
    return default


def measure(stream: Stream) -> int:
    """Return the number of bytes of a stream, by reading it."""
    size = 0
    with stream.open() as file:
        while chunk := file.read(BLOCK):
            size += len(chunk)
    return size


def _date(record: OpenRecord, text: bytes) -> None:
    """A failure table has times of its own, better than that of a line above it."""
    if isinstance(record.shape, Table) and record.attributes and "tracecore.time.inferred" in record.attributes:
        name, _, value = text.partition(b":")
        if name.strip() == b"time" and (stamp := stamps.find(value.strip())) and not stamp.missing:
            record.stamp = stamp
            del record.attributes["tracecore.time.inferred"]


def _iostream(record: OpenRecord) -> tuple[bytes, ...]:
    name = record.attributes.get("log.iostream") if record.attributes else None
    return (name.encode(),) if isinstance(name, str) else ()


def _newlines(data: bytes, start: int, end: int) -> int:
    return newlines(data, start, end) if end - start > 2048 else data.count(b"\n", start, end)


def _line_end(data: bytes, start: int, size: int) -> tuple[int, int]:
    """Where the line at `start` ends, and where the next begins."""
    newline = data.find(b"\n", start)
    if newline < 0:
        newline = size
    carriage = data.find(b"\r", start, newline)
    if carriage < 0:
        return newline, min(newline + 1, size)
    return carriage, carriage + (2 if carriage + 1 == newline < size else 1)
