"""Lines of a file into batches of records, by the shortest way that the configuration allows.

Lines of a container runtime, and lines as they are, become columns without a record being made. What follows the
`container` operator and looks at attributes only is done once for all lines that share them.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterator, Sequence
from typing import Any, Final, Protocol

import msgspec

from tracecore.signals.logs.operators.base import Failures, Operator
from tracecore.signals.logs.operators.chain import Chain
from tracecore.signals.logs.operators.container import Container, runtime_time
from tracecore.signals.logs.operators.entry import MAX_TIME, SEVERITIES, Entry, OperatorError
from tracecore.signals.logs.operators.parsers import json_object
from tracecore.signals.logs.operators.recombine import FLUSH
from tracecore.signals.logs.selector import Picked, Selector, Selectors
from tracecore.signals.logs.tail.batch import Columns, LogBatch, Template, grouped
from tracecore.signals.logs.tail.config import NOP, FileLogConfig, codec
from tracecore.signals.logs.tail.lines import Lines as Cut
from tracecore.signals.logs.tail.lines import Starts
from tracecore.signals.logs.tail.splitting import trimmer
from tracecore.signals.logs.tail.watched import Watched
from tracecore.signals.otlp import encoding
from tracecore.signals.record import Attributes, Log

#: What `convert` and `due` give: a file, a batch, and where in the file the first thing held back begins.
Converted = tuple[Watched, LogBatch, int | None]

_BLANK: Final = b" \t\r\n"
_PARTIALS: Final = (b" stdout P", b" stderr P")
_STREAMS: Final = frozenset((b"stdout", b"stderr"))


class Converter(Protocol):
    """Makes batches of lines."""

    def convert(
        self, file: Watched, data: bytes, tokens: Sequence[bytes], starts: Sequence[int], start: int, now: int
    ) -> tuple[list[LogBatch], int | None]:
        """Batches of these lines, and where in the file the first thing held back begins."""

    def released(self) -> list[tuple[Watched, int | None]]:
        """Other files of which something was held back that has gone out with the last lines.

        A line that began in a file and ended in the one that came in its place. With each where the next thing
        begins that is still held back.
        """

    @property
    def holds(self) -> bool:
        """Return whether something is held back."""

    def due(self, now: int) -> list[Converted]:
        """Return what has been held back for long enough."""

    def flush(self, file: Watched, now: int) -> list[Converted]:
        """Return what is held back of a file, because nothing that follows belongs to it."""

    def drain(self, now: int) -> list[Converted]:
        """All that is held back."""


def converter(config: FileLogConfig, failures: Failures, selector: Selector | Selectors | None = None) -> Converter:
    """The shortest way."""
    chain = Chain(config.operators, failures)
    plain = (
        codec(config.encoding) == "utf-8"
        and not config.include_file_record_number
        and not config.include_file_record_offset
    )
    every = Every(config, chain, selector)
    if plain and not chain.operators:
        return Lines(config, selector)
    if plain and isinstance(first := chain.operators[0] if chain.operators else None, Container):
        rest = chain.operators[1:]
        if first.plain and first.condition is None and first.output is None and all(map(_uniform, rest)):
            return Runtime(config, first, rest, every, selector)
    return every


def _uniform(operator: Operator) -> bool:
    return (
        operator.uniform
        and operator.output is None
        and operator.on_error.startswith("send")
        and operator.reads_attributes_only()
    )


class Entries:
    """Records that share nothing."""

    __slots__ = ("_entries", "count", "notes", "path")
    compact = False

    def __init__(self, path: str, entries: Sequence[Entry]) -> None:
        self.path = path
        self._entries = entries
        self.count = len(entries)
        self.notes: list[Any] = []

    def records(self) -> Iterator[tuple[Attributes, Log]]:
        for entry in self._entries:
            resource, _, log = entry.record()
            yield resource, log

    def payload(self) -> dict[str, Any]:
        return grouped(entry.record() for entry in self._entries)

    def encoded(self) -> bytes:
        groups: list[tuple[dict[str, Any], dict[str, list[bytes]]]] = []
        resource: dict[str, Any] | None = None
        scope, seen, observed = "", -1, b""
        records: list[bytes] = []
        for entry in self._entries:
            if entry.observed != seen:
                seen, observed = entry.observed, encoding.observed_time(entry.observed)
            if entry.resource != resource or entry.scope != scope:
                resource, scope = entry.resource, entry.scope
                scopes = next((held for known, held in groups if known == resource), None)
                if scopes is None:
                    scopes = {}
                    groups.append((resource, scopes))
                records = scopes.setdefault(scope, [])
            time = entry.time & MAX_TIME if entry.time is not None else None
            text = entry.severity_text or SEVERITIES[entry.severity]
            records.append(encoding.parsed_record(entry.body, entry.attributes, time, entry.severity, text, observed))
        return b"".join(encoding.resource_logs(*group) for group in groups)


class Joined:
    """Batches of one file as one, in order."""

    __slots__ = ("_parts", "compact", "count", "notes", "path")

    def __init__(self, parts: Sequence[LogBatch]) -> None:
        self._parts = parts
        self.compact = all(part.compact for part in parts)
        self.path = parts[0].path
        self.count = sum(part.count for part in parts)
        self.notes: list[Any] = []

    def records(self) -> Iterator[tuple[Attributes, Log]]:
        for part in self._parts:
            yield from part.records()

    def payload(self) -> dict[str, Any]:
        return {"resource_logs": [entry for part in self._parts for entry in part.payload()["resource_logs"]]}

    def encoded(self) -> bytes:
        # Requests that stand one after another are one request.
        return b"".join(part.encoded() for part in self._parts)


def joined(parts: Sequence[LogBatch]) -> LogBatch:
    """Return one batch of some."""
    return parts[0] if len(parts) == 1 else Joined(parts)


class Every:
    """Any configuration: an entry for each line, through all operators."""

    def __init__(self, config: FileLogConfig, chain: Chain, selector: Selector | Selectors | None) -> None:
        self._config = config
        self._chain = chain
        self._select = _Selection(selector)
        self._trim = trimmer(config)
        self._raw = config.encoding in NOP
        self._codec = codec(config.encoding)
        self._holding: dict[int, tuple[Watched, int]] = {}
        self._released: list[tuple[Watched, int | None]] = []

    def convert(
        self, file: Watched, data: bytes, tokens: Sequence[bytes], starts: Sequence[int], start: int, now: int
    ) -> tuple[list[LogBatch], int | None]:
        chosen = self._select(file, data, tokens, starts)
        config = self._config
        numbers: Sequence[int] = range(len(tokens)) if chosen is None else chosen
        trim, raw, encoding_, first = self._trim, self._raw, self._codec, file.record
        shared = {**file.attributes, **config.attributes}
        resource = config.resource
        numbered, placed = config.include_file_record_number, config.include_file_record_offset
        entries: list[Entry] = []
        for n in numbers:
            token = trim(tokens[n])
            if not token:
                continue
            attributes: dict[str, Any] = shared.copy()
            if numbered:
                attributes["log.file.record_number"] = first + n + 1
            if placed:
                attributes["log.file.record_offset"] = start + starts[n]
            body: Any = token if raw else token.decode(encoding_, "replace")
            entries.append(Entry(body, attributes, resource.copy(), now, file, start + starts[n]))
        found = self.entries(file, entries, now)
        return found, self._hold(file)

    def _hold(self, file: Watched) -> int | None:
        """Return where the first thing begins that is held back of a file; notes what was let go of others."""
        self._holding.pop(file.ident, None)
        for other, before in list(self._holding.values()):
            start = self._chain.held(other)
            if start != before:
                self._released.append((other, start))
                del self._holding[other.ident]
                if start is not None:
                    self._holding[other.ident] = (other, start)
        held = self._chain.held(file)
        if held is not None:
            self._holding[file.ident] = (file, held)
        return held

    def released(self) -> list[tuple[Watched, int | None]]:
        found, self._released = self._released, []
        return found

    def entries(self, file: Watched, entries: list[Entry], now: int) -> list[LogBatch]:
        """Return what becomes of entries of a file."""
        found = self._chain.process(entries, now) if entries else []
        return [Entries(file.path, found)] if found else []

    @property
    def holds(self) -> bool:
        return bool(self._holding)

    def due(self, now: int) -> list[Converted]:
        return self._by_file(self._chain.due(now))

    def flush(self, file: Watched, now: int) -> list[Converted]:
        return self.drain(now) if self._chain.held(file) is not None else []

    def drain(self, now: int) -> list[Converted]:
        return self._by_file(self._chain.drain(now))

    def _by_file(self, entries: list[Entry]) -> list[Converted]:
        files: dict[int, tuple[Watched, list[Entry]]] = {}
        for entry in entries:
            files.setdefault(id(entry.source), (entry.source, []))[1].append(entry)
        return [(file, Entries(file.path, held), self._hold(file)) for file, held in files.values()]


class Lines:
    """No operators: lines as they are."""

    def __init__(self, config: FileLogConfig, selector: Selector | Selectors | None) -> None:
        self._config = config
        self._select = _Selection(selector)
        self._trim = trimmer(config)
        self._both = not (config.preserve_leading_whitespaces or config.preserve_trailing_whitespaces)

    def convert(
        self, file: Watched, data: bytes, tokens: Sequence[bytes], starts: Sequence[int], start: int, now: int
    ) -> tuple[list[LogBatch], int | None]:
        chosen = self._select(file, data, tokens, starts)
        skipped = 0
        if chosen is not None:
            skipped = len(tokens) - len(chosen)
            tokens = [tokens[n] for n in chosen]
        if self._both:
            bodies = [body for token in tokens if (body := token.strip(_BLANK))]
        else:
            trim = self._trim
            bodies = [body for token in tokens if (body := trim(token))]
        if not bodies:
            return [], None
        if chosen is not None or not sound(data):
            bodies = [mended(body) for body in bodies]
        template = file.templates.get("")
        if template is None:
            attributes = {**file.attributes, **self._config.attributes}
            template = file.templates[""] = (Template(self._config.resource, attributes),)
        return [Columns(file.path, template, None, bodies, None, now, skipped)], None

    def released(self) -> list[tuple[Watched, int | None]]:
        return []

    holds = False

    def due(self, now: int) -> list[Converted]:
        return []

    def flush(self, file: Watched, now: int) -> list[Converted]:
        return []

    def drain(self, now: int) -> list[Converted]:
        return []


class _Docker(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    log: str
    stream: str
    time: str
    attrs: msgspec.Raw = msgspec.Raw(b"")


class Pieces:
    """Parts of a line that the runtime cut, waiting for the last one."""

    __slots__ = ("parts", "since", "size", "start", "template", "time")

    def __init__(self, template: Template, time: int, start: int, since: int) -> None:
        self.template = template
        self.time = time
        self.start = start
        self.since = since
        self.parts: list[bytes] = []
        self.size = 0


class Runtime:
    """The `container` operator, followed by operators that look at attributes only."""

    def __init__(
        self,
        config: FileLogConfig,
        container: Container,
        rest: Sequence[Operator],
        every: Every,
        selector: Selector | Selectors | None,
    ) -> None:
        self._config = config
        self._container = container
        self._rest = rest
        self._every = every
        self._select = _Selection(selector)
        self._trim = trimmer(config)
        self._docker = msgspec.json.Decoder(_Docker)
        # By path, as the Collector has it: what begins in a file may end in the one that takes its place.
        self._pieces: dict[str | int, tuple[Watched, Pieces]] = {}
        self._released: list[tuple[Watched, int | None]] = []
        self._seconds: dict[bytes, int] = {}

    def convert(
        self, file: Watched, data: bytes, tokens: Sequence[bytes], starts: Sequence[int], start: int, now: int
    ) -> tuple[list[LogBatch], int | None]:
        chosen = self._select(file, data, tokens, starts)
        numbers: Sequence[int] = range(len(tokens)) if chosen is None else chosen
        parts: list[LogBatch] = []
        #: Entries for the long way; they come before `bodies`.
        slow: list[Entry] = []
        if chosen is None and not sound(data):
            tokens = [mended(token) for token in tokens]
        state = file.templates.get("")
        if state is None:
            state = file.templates[""] = _Kinds(self, file)
        owner, pieces = self._pieces.get(state.path) or (file, None)
        bodies: list[bytes] = []
        times: list[int] = []
        kinds: list[int] = []
        trim, seconds, wanted = self._trim, self._seconds, self._container.format
        most = self._container.max_log_size
        kind_of = state.kinds
        usual = state.usual if state.usable and wanted in ("", "containerd") else {}
        for n in numbers:
            token = trim(tokens[n])
            if not token:
                continue
            if chosen is not None:
                token = mended(token)  # of few lines, each is looked at alone
            time: int | None = None
            kind = usual.get(token[29:40])
            if kind is not None and pieces is None:
                # As containerd writes nearly all lines: everything is at its place.
                second, fraction = seconds.get(token[:20]), token[20:29]
                if second is not None and fraction.isdigit():
                    bodies.append(token[40:])
                    times.append(second + int(fraction))
                    kinds.append(kind)
                    continue
            words = token.split(b" ", 3)
            kind = None
            body = b""
            tag = b"F"
            if state.usable and len(words) > 2 and words[1] in _STREAMS and wanted != "docker":
                stamp = words[0]
                tag = words[2]
                kind = kind_of.get((words[1], tag))
                if kind is None:
                    kind = state.add(words[1], tag)
                body = words[3] if len(words) > 3 else b""
                second = seconds.get(stamp[:20])
                if second is not None and stamp[-1:] == b"Z" and len(stamp) == 30 and stamp[20:29].isdigit():
                    time = second + int(stamp[20:29]) if wanted != "crio" else None
                else:
                    time = self._time(stamp)
            elif state.usable and token[:1] == b"{" and wanted in ("", "docker"):
                try:
                    entry = self._docker.decode(token)
                    time = runtime_time(entry.time) if entry.time.endswith("Z") else None
                    kind = state.docker(entry.stream, bytes(entry.attrs))
                    body = entry.log.encode("utf-8", "replace")
                    if time is not None and kind >= 0:
                        bodies.append(body)
                        times.append(time)
                        kinds.append(kind)
                        continue
                except (msgspec.DecodeError, OperatorError):
                    time = None
            if time is None or kind is None or kind < 0:
                # Something else: the long way, in its place between the others.
                if bodies:
                    self._add(file, state, slow, bodies, times, kinds, now, parts)
                    slow, bodies, times, kinds = [], [], [], []
                slow.append(self._entry(file, token, now, start + starts[n]))
                continue
            if (tag == b"F" or state.wrong) and pieces is None:
                bodies.append(body)
                times.append(time)
                kinds.append(kind)
                continue
            if pieces is None:
                pieces = Pieces(state.templates[kind], time, start + starts[n], now)
                self._pieces[state.path] = (owner, pieces) = (file, pieces)
            pieces.parts.append(body)
            pieces.size += len(body)
            if tag == b"F" or (most and pieces.size > most):
                bodies.append(b"".join(pieces.parts))
                times.append(pieces.time)
                kinds.append(state.of(pieces.template))
                pieces = None
                del self._pieces[state.path]
                if owner is not file:
                    self._released.append((owner, self._held(owner)))
        self._add(file, state, slow, bodies, times, kinds, now, parts)
        return ([joined(parts)] if parts else []), self._held(file)

    def _held(self, file: Watched) -> int | None:
        if not self._pieces:
            return None
        return min((pieces.start for owner, pieces in self._pieces.values() if owner is file), default=None)

    def released(self) -> list[tuple[Watched, int | None]]:
        found, self._released = self._released, []
        return found

    @property
    def holds(self) -> bool:
        return bool(self._pieces)

    def due(self, now: int) -> list[Converted]:
        if not self._pieces:
            return []
        return self._flush([path for path, (_, pieces) in self._pieces.items() if now - pieces.since >= FLUSH])

    def flush(self, file: Watched, now: int) -> list[Converted]:
        return self._flush([path for path, (owner, _) in self._pieces.items() if owner is file])

    def drain(self, now: int) -> list[Converted]:
        return self._flush(list(self._pieces))

    def _flush(self, paths: list[str | int]) -> list[Converted]:
        found: list[Converted] = []
        for path in paths:
            file, pieces = self._pieces.pop(path)
            body = b"".join(pieces.parts)
            batch = Columns(file.path, [pieces.template], None, [body], [pieces.time], pieces.since)
            found.append((file, batch, self._held(file)))
        return found

    def _time(self, stamp: bytes) -> int | None:
        """The time of a line; the seconds are remembered, many lines share them."""
        text = stamp.decode("ascii", "replace")
        ends = text.endswith("Z")
        if text.count("Z") != ends or "^" in text or self._container.format == ("crio" if ends else "containerd"):
            return None
        found = runtime_time(text)
        if found is not None and ends:
            if len(self._seconds) > 4096:
                self._seconds.clear()
            if stamp[19:20] == b".":
                self._seconds[stamp[:20]] = found - found % 1_000_000_000
        return found

    def _add(
        self,
        file: Watched,
        state: _Kinds,
        slow: list[Entry],
        bodies: list[bytes],
        times: list[int],
        kinds: list[int],
        now: int,
        parts: list[LogBatch],
    ) -> None:
        """Add entries, then columns."""
        parts += self._every.entries(file, slow, now)
        if bodies:
            if state.wrong:
                self._container.count_failure(state.wrong, len(bodies))
            one = kinds.count(kinds[0]) == len(kinds)
            templates = [state.templates[kinds[0]]] if one else list(state.templates)
            parts.append(Columns(file.path, templates, None if one else kinds, bodies, times, now))

    def _entry(self, file: Watched, token: bytes, now: int, start: int) -> Entry:
        attributes: dict[str, Any] = {**file.attributes, **self._config.attributes}
        return Entry(token.decode("utf-8", "replace"), attributes, dict(self._config.resource), now, file, start)

    def template(self, file: Watched, added: dict[str, Any], pod: Attributes) -> Template:
        """Return what all lines have that came on one stream with one tag."""
        entry = Entry(
            "", {**file.attributes, **self._config.attributes, **added}, {**self._config.resource, **pod}, 0, file
        )
        for operator in self._rest:
            operator.process_one(entry)
        severity = entry.severity_text or SEVERITIES[entry.severity]
        return Template(entry.resource, entry.attributes, entry.severity, severity, entry.scope)

    def pod(self, file: Watched) -> Attributes:
        """Return what the path says.

        Raises:
            OperatorError: that is asked for, and it says nothing.
        """
        return self._container.pod(self.path(file)) if self._container.add_metadata else {}

    @property
    def sends_failed(self) -> bool:
        """Return whether entries that the operator could not treat go on."""
        return self._container.on_error.startswith("send")

    def path(self, file: Watched) -> str | None:
        """Return what the attribute says, if it is there."""
        path = {**file.attributes, **self._config.attributes}.get("log.file.path")
        return path if isinstance(path, str) else None


class _Kinds:
    """The templates of a file."""

    #: Tags are the runtime's: more of them than this is somebody else's doing.
    MOST: Final = 64

    def __init__(self, runtime: Runtime, file: Watched) -> None:
        self._runtime = runtime
        self._file = file
        self._pod: Attributes = {}
        #: Why no line of this file can be treated; they are sent without their pod.
        self.wrong = ""
        try:
            self._pod = runtime.pod(file)
        except OperatorError as error:
            self.wrong = str(error)
        self.usable = not self.wrong or runtime.sends_failed
        #: What lines that were cut are kept by.
        self.path: str | int = runtime.path(file) or file.ident
        self.kinds: dict[tuple[bytes, bytes], int] = {}
        #: The same of whole lines, by what stands between a time of nine digits and the text.
        self.usual: dict[bytes, int] = {}
        self.templates: list[Template] = []

    def add(self, stream: bytes, tag: bytes) -> int:
        """The number of a template; -1 where there are too many."""
        return self._added((stream, tag), {"log.iostream": stream.decode(), "logtag": tag.decode("utf-8", "replace")})

    def of(self, template: Template) -> int:
        """The number of a template, which may come from a file that was here before."""
        for number, known in enumerate(self.templates):
            if known is template or known == template:
                return number
        self.templates.append(template)
        return len(self.templates) - 1

    def docker(self, stream: str, attrs: bytes) -> int:
        """The number of a template of Docker's lines, whose `attrs` (labels, a tag) become an attribute."""
        key = (stream.encode("utf-8", "replace"), b"\x00docker" + attrs)
        known = self.kinds.get(key)
        if known is not None:
            return known
        if len(self.templates) >= self.MOST:
            return -1
        added: dict[str, Any] = json_object(f'{{"attrs":{attrs.decode()}}}') if attrs else {}
        return self._added(key, {**added, "log.iostream": stream})

    def _added(self, key: tuple[bytes, bytes], added: dict[str, Any]) -> int:
        if len(self.templates) >= self.MOST:
            return -1
        self.templates.append(self._runtime.template(self._file, added, self._pod))
        number = self.kinds[key] = len(self.templates) - 1
        if key[1] == b"F":
            self.usual[b"Z %s F " % key[0]] = number
        return number


class _Selection:
    """Which lines somebody wants; those that belong to a cut line come with it."""

    def __init__(self, selector: Selector | Selectors | None) -> None:
        self._selector = selector

    def __call__(self, file: Watched, data: bytes, tokens: Sequence[bytes], starts: Sequence[int]) -> list[int] | None:
        if self._selector is None:
            return None
        select = self._selector if callable(self._selector) else self._selector.of(file.ident)
        positions = select(data)
        if positions is None:
            return None
        if isinstance(positions, Picked) and positions.newlines is not None and isinstance(tokens, Cut):
            tokens.ends = positions.newlines
        chosen: list[int] = []
        after = 0
        if file.partial:
            after = self._follow(file, tokens, 0, chosen)
        for position in positions:
            number = (
                starts.holding(position) if isinstance(starts, Starts) else bisect.bisect_right(starts, position) - 1
            )
            if number >= after and number < len(tokens):
                after = self._follow(file, tokens, number, chosen)
        return chosen

    def _follow(self, file: Watched, tokens: Sequence[bytes], number: int, chosen: list[int]) -> int:
        """Chooses a line and those that complete it; gives the one after them."""
        while number < len(tokens):
            chosen.append(number)
            file.partial = any(part in tokens[number][:64] for part in _PARTIALS)
            number += 1
            if not file.partial:
                break
        return number


def mended(text: bytes) -> bytes:
    """The same as valid UTF-8."""
    return text if text.isascii() else text.decode("utf-8", "replace").encode()


def sound(data: bytes) -> bool:
    """Return whether bytes are valid UTF-8."""
    if data.isascii():
        return True
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True
