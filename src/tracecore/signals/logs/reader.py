"""Read lines of a file as records: the candidates that a selector picked, and the lines that complete them.

The file is read in raw blocks. While no multi-line block is open, the reader jumps from candidate to candidate. While
one is open, it reads line by line.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import NamedTuple

import re2

from tracecore.signals import stamps
from tracecore.signals.logs import dialects, multiline
from tracecore.signals.logs.assembly import MAX_BODY, Assembly, TextBlock, shape_of
from tracecore.signals.logs.blocks import BLOCK, LINE_END, LOOK_BACK, MAX_LINE, Block, blocks, newlines
from tracecore.signals.logs.dialects import Dialect, UnwrappedLine
from tracecore.signals.logs.multiline import Message, Shape, Table, Traceback
from tracecore.signals.logs.selector import FAILED_GROUP, RESTARTS, LoneLine, Picked, Selector, reports
from tracecore.signals.record import Attributes, LogSignal, Resource, Source
from tracecore.signals.stamps import Stamp
from tracecore.signals.stream import Clock, Counters, Stream

#: Bytes above a traceback in which the line before it is looked for.
ABOVE = 8192
#: Bytes above a line without a time that are searched first.
NEAR = 1024
#: Lines that are parsed in each searched part.
MAX_LINES = 256
#: After this many searches without a result, a stream is considered to have no times.
MAX_LOOKS = 64

#: PyTorch's warning when a process exits without destroying its group, most often because of an exception.
EXITING = b"destroy_process_group() was not called before program exit"

#: The process id that torchrun writes in front of its messages.
_AGENT = re2.compile(rb"^[IWE]\d{4} [\d:.]+ (\d+) ")
_STARTS = re2.compile(rb"(?m)^.{0,90}\d\d:\d\d:\d\d|(?m)^[\[( ]*1\d{9}")


def read(
    stream: Stream,
    selector: Selector,
    clock: Clock,
    counters: Counters | None = None,
    *,
    block_size: int = BLOCK,
) -> Iterator[LogSignal]:
    """Yield the records of a worker's output: plain text or a container runtime's log."""
    return read_lines(stream, selector, clock, dialect(stream), counters, block_size=block_size)


def dialect(stream: Stream) -> Dialect:
    """Return the dialect of a worker's output."""
    if stream.format in ("cri", "docker"):
        return dialects.container(stream.single_node)
    return dialects.plain(stream.wrapping, stream.single_node, stream.containers, stream.tasks)


def read_lines(
    stream: Stream,
    selector: Selector,
    clock: Clock,
    dialect: Dialect,
    counters: Counters | None = None,
    *,
    block_size: int = BLOCK,
) -> Iterator[LogSignal]:
    """Yield the records of a stream in any dialect, in the order in which they end.

    The `Source` of a record is the byte range from its first to its last line, with lines of others in between.
    """
    counters = Counters() if counters is None else counters
    records = _Records(stream, clock, dialect, counters)
    with stream.open() as file:
        for block in blocks(file, counters, block_size):
            if stream.format == "cri":
                block.data = dialects.whole_bars(block.data)
            elif stream.format == "docker":
                block.data = dialects.last_redraws(block.data)
            picked = selector.take(block) if reports(selector) else selector(block.data)
            yield from records.feed(block, picked)
    if reports(selector):
        yield from records.reported(selector.finish())
    yield from records.finish()


class _Place(NamedTuple):
    """The place of a line: its offset in the file, its number and its end."""

    offset: int
    line: int
    end: int


class _OpenRecord(TextBlock):
    """A record that more lines may join."""

    __slots__ = ("announced", "attributes", "end", "host", "place", "program", "rank", "time", "wanted")

    def __init__(self, line: UnwrappedLine, shape: Shape, place: _Place, time: int, attributes: Attributes) -> None:
        super().__init__(line, shape)
        self.place = place
        self.end = place.end
        self.time = time
        self.attributes = attributes
        self.host, self.program, self.rank = line.host, line.program, line.rank
        #: Whether the first line is worth a record by itself.
        self.wanted = False
        #: The message of a logger above a traceback, if it says that the program went on.
        self.announced = b""

    @property
    def inferred(self) -> bool:
        """Whether its time comes from another line."""
        return "tracecore.time.inferred" in self.attributes


class _CutLine:
    """A line that the container runtime cut into pieces."""

    def __init__(self, first: UnwrappedLine, place: _Place, stream: bytes) -> None:
        self.place = place
        self.size = len(first.text)
        self._first = first
        self._stream = stream
        self._pieces = [first.text]

    def add(self, line: UnwrappedLine, place: _Place) -> None:
        self._pieces.append(line.text)
        self.size += len(line.text)
        self.place = self.place._replace(end=place.end)

    def whole(self, single_node: bool) -> UnwrappedLine:
        """Return the joined line."""
        text = dialects.clean(b"".join(self._pieces))
        line = UnwrappedLine(text, self._stream, self._first.stamp, attributes=self._first.attributes)
        dialects.strip_prefixes(line, single_node)
        return line


class _Records:
    """Turns candidate lines into records. Open records continue in the next block."""

    def __init__(self, stream: Stream, clock: Clock, dialect: Dialect, counters: Counters) -> None:
        self._stream = stream
        self._clock = clock
        self._dialect = dialect
        self._counters = counters
        self._resources: dict[tuple[str, str], Resource] = {}
        self._cut_lines: dict[bytes, _CutLine] = {}  # by stream
        self._open: Assembly[_OpenRecord] = Assembly()
        self._tail = b""  # the bytes before this block, to search for a time
        self._searched = 0  # lines before this offset have been searched for a time
        self._time: int | None = None
        self._stamped_at = -1
        self._looks = 0
        self._size = stream.size
        self._all = False
        first = stream.resource.get("tracecore.attempt")
        self._attempt = first if isinstance(first, int) else 0
        self._first_attempt = self._attempt
        #: The machine or task whose launcher reported failed workers; "" if lines do not name one.
        self._failed: str | None = None
        #: If several launchers write to the stream, how often each started its workers again, by its process.
        self._restarts: Counter[bytes] = Counter()
        #: How many repeated records a record stands for, by the offset of its first line.
        self._counts: dict[int, int] = {}

    @property
    def idle(self) -> bool:
        """Whether no record is open that the next lines may join."""
        return self._open.idle and not self._cut_lines

    def feed(self, block: Block, picked: Sequence[int] | None) -> Iterator[LogSignal]:
        data, base = block.data, block.offset
        size = len(data)
        self._all = picked is None
        position, index, count = 0, 0, 0 if picked is None else len(picked)
        counted_to, number = 0, block.line
        newline_places = newline_count = None
        reports: deque[LoneLine] = deque()
        if isinstance(picked, Picked):
            newline_places, newline_count = picked.newlines, picked.lines
            reports.extend(picked.reports)
            self._counts = {base + begin: count for begin, count in picked.counts.items()}
        while position < size:
            if picked is not None:
                while index < count and picked[index] < position:
                    index += 1
                if self.idle:
                    if index == count:
                        break
                    at = picked[index]
                    start = data.rfind(b"\n", position, at) + 1
                    # The position may be the line's own newline, also that of a CR LF.
                    last = at - 1 if data[at - 1 : at + 1] == b"\r\n" else at
                    position = max(position, start, data.rfind(b"\r", max(position, start), last) + 1)
            end, after = _line_end(data, position, size)
            if end - position > MAX_LINE:
                # Read the beginning and the end of a line that is too long as two lines.
                after = max(position + MAX_LINE, end - LINE_END)
                end = position + MAX_LINE
                self._counters.lines_capped += 1
                self._counters.bytes_dropped += after - end
            candidate = picked is None or (index < count and picked[index] < min(after, position + MAX_LINE))
            if newline_places is None:
                number += _newlines(data, counted_to, position)
                counted_to = position
            else:
                number = block.line + int(newline_places.searchsorted(position))
            while candidate and reports and reports[0].offset < base + position:
                # Reports above this line come first: this line may take its time from them.
                yield from self.reported((reports.popleft(),), data, base)
            begin, position = position, after
            raw = data[begin:end]
            if not candidate and not self._cut_lines and (message := self._open.ended_message(raw)) is not None:
                yield from self._emit(message)
                continue
            if not candidate and not self._cut_lines and EXITING not in raw and self._open.passes(raw):
                continue
            line, place = self._dialect(raw), _Place(base + begin, number, base + end)
            if line.partial or self._cut_lines:
                joined = self._join(line, place)
                if joined is None:
                    continue
                candidate = candidate or joined[1] is not place
                line, place = joined
            yield from self._place(line, place, candidate, data, begin)
        yield from self.reported(reports, data, base)
        if newline_places is not None:
            block.newlines = len(newline_places)
        elif newline_count is not None:
            block.newlines = newline_count
        else:
            block.newlines = number - block.line + _newlines(data, counted_to, size)
        self._tail = data[-LOOK_BACK:] if size >= LOOK_BACK else (self._tail + data)[-LOOK_BACK:]

    def reported(self, reports: Iterable[LoneLine], data: bytes = b"", base: int = 0) -> Iterator[LogSignal]:
        """Yield the records of reports, which may come from earlier blocks.

        Args:
            reports: in order.
            data: the block; empty at the end of the stream.
            base: the offset of the block.
        """
        for report in reports:
            line = self._dialect(report.raw)
            if line.partial or not line.text:
                continue
            stamp = line.stamp or stamps.find(line.text)
            if stamp is not None and not self._fits(self._resolved(stamp)):
                stamp = None
            if stamp is not None:
                time = self._resolved(stamp)
            elif report.offset >= base and data:
                time, _ = self._when(None, report.offset, data, report.offset - base)
            else:
                time = self._anchor(report.offset)
            if stamp is not None and report.offset > self._stamped_at:
                self._time = time
                self._stamped_at = self._searched = report.offset
            self._count_attempts(line, Message())
            attributes = self._attributes(line, inferred=stamp is None)
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
        """Yield the records that are still open."""
        cut_lines, self._cut_lines = self._cut_lines, {}
        for cut in cut_lines.values():
            yield from self._place(cut.whole(self._stream.single_node), cut.place, True, b"", 0)
        unfinished, self._open = list(self._open), Assembly()
        for record in sorted(unfinished, key=lambda record: record.place.offset):
            yield from self._emit(record)

    def _join(self, line: UnwrappedLine, place: _Place) -> tuple[UnwrappedLine, _Place] | None:
        """Join the pieces of a cut line; None while pieces are missing. Other lines are returned unchanged."""
        stream = _iostream(line)
        cut = self._cut_lines.get(stream)
        if cut is None:
            if not line.partial:
                return line, place
            self._cut_lines[stream] = _CutLine(line, place, stream)
            return None
        cut.add(line, place)
        if line.partial and cut.size < MAX_LINE:
            return None
        del self._cut_lines[stream]
        return cut.whole(self._stream.single_node), cut.place

    def _place(
        self, line: UnwrappedLine, place: _Place, candidate: bool, data: bytes, position: int
    ) -> Iterator[LogSignal]:
        """Add a line to its open record. A candidate without one opens a new record."""
        if self._open.by_writer and EXITING in line.text:
            self._date_by_exit(line)
        joined, ended = self._open.place(line)
        if joined is not None and not joined.held:
            joined.end = place.end
            _date_table(joined, line.text)
        for record in ended:
            yield from self._emit(record)
        if joined is not None or not candidate or not line.text:
            return
        if line.stamp is None:
            line.stamp = stamps.find(line.text)
        shape = shape_of(line)
        announced = self._announce(line, data, position) if isinstance(shape, Traceback) and not line.folded else b""
        time, inferred = self._when(line.stamp, place.offset, data, position)
        self._count_attempts(line, shape)
        attributes = self._attributes(line, inferred=inferred)
        if place.offset in self._counts:
            attributes["tracecore.repeat.count"] = self._counts.pop(place.offset)
        opened = _OpenRecord(line, shape, place, time, attributes)
        opened.wanted = self._all or isinstance(shape, Message)
        opened.announced = announced
        if line.folded:
            yield from self._emit(opened)
        elif (before := self._open.add(opened)) is not None:
            yield from self._emit(before)

    def _date_by_exit(self, line: UnwrappedLine) -> None:
        """Date an open traceback by PyTorch's warning at exit, which is closer to it than the line above."""
        stamp = line.stamp or stamps.find(line.text)
        own_rank = self._stream.resource.get("gen_ai.training.rank") if line.rank is None else line.rank
        for record in self._open.by_writer.values():
            rank = self._stream.resource.get("gen_ai.training.rank") if record.rank is None else record.rank
            if stamp is not None and record.inferred and rank == own_rank and isinstance(record.shape, Traceback):
                record.time = self._resolved(stamp)

    def _attributes(self, line: UnwrappedLine, *, inferred: bool) -> Attributes:
        """Return the attributes of a line's record: its own, and those that the reader adds."""
        attributes: Attributes = dict(line.attributes or {})
        if self._attempt != self._first_attempt:
            attributes["tracecore.attempt"] = self._attempt
        if inferred:
            attributes["tracecore.time.inferred"] = True
        if line.rank is not None:
            attributes["gen_ai.training.rank"] = line.rank
        return attributes

    def _count_attempts(self, line: UnwrappedLine, shape: Shape) -> None:
        """Count a new attempt at the first line of a worker after torchrun reported that the workers failed.

        If launchers of several machines write to one log, an attempt begins when one of them says that it restarts.
        """
        if self._stream.launchers > 1:
            if RESTARTS in line.text and (match := _AGENT.match(line.text)) is not None:
                self._restarts[match.group(1)] += 1
                self._attempt = self._first_attempt + max(self._restarts.values())
        elif FAILED_GROUP in line.text and b"local_rank:" in line.text:
            self._failed = line.task or line.host
        elif self._failed == (line.task or line.host) and (
            line.rank is not None
            or RESTARTS in line.text
            or (isinstance(shape, Message) and b"/elastic/" not in line.text and b".elastic." not in line.text)
        ):
            self._failed = None
            self._attempt += 1

    def _when(self, stamp: Stamp | None, offset: int, data: bytes, position: int) -> tuple[int, bool]:
        """Return the time of a line and whether it was inferred."""
        if stamp is not None and self._fits(time := self._resolved(stamp)):
            self._time = time
            self._searched = self._stamped_at = offset
            return self._time, False
        if self._looks < MAX_LOOKS and offset > self._searched:
            found = self._look_back(offset, data, position)
            if found is not None and self._fits(time := self._resolved(found)):
                self._time = time
                self._looks = 0
            else:
                self._looks += 1
        self._searched = offset
        if self._time is not None:
            return self._time, True
        return self._anchor(offset), True

    def _resolved(self, stamp: Stamp) -> int:
        """Complete a time without year or date, from the line before or from the end of the bundle."""
        return self._from_end(stamp) if self._time is None else stamp.resolve(self._time)

    def _from_end(self, stamp: Stamp) -> int:
        # Lines may be later than an exact `latest`, which may be the time of something else. No line is later than an
        # inferred one.
        end = self._clock.latest
        return stamp.resolve(end) if self._clock.exact else stamp.resolve_before(end)

    def _fits(self, time: int) -> bool:
        """Whether a time is plausible: not long before the line above, and not after the end of the bundle."""
        if time > self._clock.latest + stamps.DAY and self._clock.exact:
            return False
        return self._time is None or time > self._time - stamps.APART

    def _look_back(self, offset: int, data: bytes, position: int) -> Stamp | None:
        """Return the nearest time in the lines above that were not searched yet."""
        reach = offset - self._searched
        above = data[max(0, position - reach) : position]
        if len(above) < reach:
            above = self._tail[-(reach - len(above)) :] + above
        if len(above) < reach:
            above = above[above.find(b"\n") + 1 :]  # it may begin within a line
        above = above.replace(b"\r", b"\n")
        stamped = self._stream.format.startswith(("cri", "docker"))
        stop = len(above)
        # Search the nearest lines first: most often one of them has a time.
        for size in (NEAR, LOOK_BACK, stop):
            start = above.rfind(b"\n", 0, max(len(above) - size, 0)) + 1
            part, stop = above[start:stop], start
            if size > NEAR and not stamped and not _STARTS.search(part):
                continue
            for raw in islice(reversed(part.split(b"\n")), MAX_LINES):
                line = self._dialect(raw) if raw else None
                stamp = None if line is None else line.stamp or stamps.find(line.text)
                if stamp is not None:
                    return stamp
        return None

    def _announce(self, line: UnwrappedLine, data: bytes, position: int) -> bytes:
        """Give a traceback the rank and the time of the line above it, if that line names a rank.

        Loggers print an exception right below their message. Return the message if it says that the program went on.
        """
        above = data[max(0, position - ABOVE) : position] or self._tail[-ABOVE:]
        message = above.rstrip(b"\r\n").rpartition(b"\n")[2]
        above_it = self._dialect(message)
        # A progress bar may stand before it in the same line.
        text = above_it.text.rpartition(b"\r")[2]
        rank = dialects.announced(message) if line.rank is None else None
        went_on = above_it.writer == line.writer and dialects.went_on(text)
        if rank is not None:
            line.rank = rank
        if line.stamp is None and (rank is not None or went_on):
            line.stamp = above_it.stamp or stamps.find(text)
        return text if went_on else b""

    def _anchor(self, offset: int) -> int:
        """Return a time for a line of a stream without any so far: one nanosecond per byte, always ascending."""
        if self._stream.first_stamp is not None:
            first = self._from_end(self._stream.first_stamp)
            return first - (1 << 40) + offset if offset > 1 << 30 else first - (1 << 30) + offset
        if self._size is None:
            self._size = measure(self._stream)
        return self._clock.latest - max(self._size - offset, 0)

    def _emit(self, record: _OpenRecord) -> Iterator[LogSignal]:
        if not (record.wanted or record.shape.worthy):
            return
        self._counters.bytes_dropped += record.left_out
        offset, line, _ = record.place
        source = Source(self._stream.path, offset, line, record.end - offset)
        body = record.body()
        # What the outermost code of a program printed, it did not catch.
        if record.announced and not multiline.IN_MODULE.search(body):
            body = record.announced + b"\n" + body
        yield self._record(record.host, record.program, body, record.attributes, record.time, source)

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


def _date_table(record: _OpenRecord, text: bytes) -> None:
    """Date a failure table by its own line `time`, which is better than the time of a line above."""
    if isinstance(record.shape, Table) and record.inferred:
        name, _, value = text.partition(b":")
        if name.strip() == b"time" and (stamp := stamps.find(value.strip())) and not stamp.missing:
            record.time = stamp.nanos
            del record.attributes["tracecore.time.inferred"]


def _iostream(line: UnwrappedLine) -> bytes:
    name = line.attributes.get("log.iostream") if line.attributes else None
    return name.encode() if isinstance(name, str) else b""


def _newlines(data: bytes, start: int, end: int) -> int:
    return newlines(data, start, end) if end - start > 2048 else data.count(b"\n", start, end)


def _line_end(data: bytes, start: int, size: int) -> tuple[int, int]:
    """Return where the line at `start` ends, and where the next line begins."""
    newline = data.find(b"\n", start)
    if newline < 0:
        newline = size
    carriage = data.find(b"\r", start, newline)
    if carriage < 0:
        return newline, min(newline + 1, size)
    return carriage, carriage + (2 if carriage + 1 == newline < size else 1)
