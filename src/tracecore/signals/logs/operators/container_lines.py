"""Fast way for the `container` operator: lines of a container runtime become records without an entry for each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from tracecore.signals.logs.operators.base import Operator
from tracecore.signals.logs.operators.container import Container, runtime_time
from tracecore.signals.logs.operators.entry import SEVERITIES, Entry, OperatorError
from tracecore.signals.logs.operators.entry_batches import Converted, Every, joined
from tracecore.signals.logs.operators.line_selection import LineSelection, mended, sound
from tracecore.signals.logs.operators.parsers import json_object
from tracecore.signals.logs.operators.recombine import FLUSH
from tracecore.signals.logs.selector import Selector, Selectors
from tracecore.signals.logs.tail.batch import LogBatch, RecordColumns, Template
from tracecore.signals.logs.tail.config import FileLogConfig
from tracecore.signals.logs.tail.splitting import trimmer
from tracecore.signals.logs.tail.watched import WatchedFile
from tracecore.signals.record import Attributes

_STREAMS: Final = frozenset((b"stdout", b"stderr"))


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
        self._select = LineSelection(selector)
        self._trim = trimmer(config)
        self._docker = msgspec.json.Decoder(_Docker)
        # By path, as the Collector has it: what begins in a file may end in the one that takes its place.
        self._pieces: dict[str | int, tuple[WatchedFile, Pieces]] = {}
        self._released: list[tuple[WatchedFile, int | None]] = []
        self._seconds: dict[bytes, int] = {}

    def convert(
        self, file: WatchedFile, data: bytes, tokens: Sequence[bytes], starts: Sequence[int], start: int, now: int
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

    def _held(self, file: WatchedFile) -> int | None:
        if not self._pieces:
            return None
        return min((pieces.start for owner, pieces in self._pieces.values() if owner is file), default=None)

    def released(self) -> list[tuple[WatchedFile, int | None]]:
        found, self._released = self._released, []
        return found

    @property
    def holds(self) -> bool:
        return bool(self._pieces)

    def due(self, now: int) -> list[Converted]:
        if not self._pieces:
            return []
        return self._flush([path for path, (_, pieces) in self._pieces.items() if now - pieces.since >= FLUSH])

    def flush(self, file: WatchedFile, now: int) -> list[Converted]:
        return self._flush([path for path, (owner, _) in self._pieces.items() if owner is file])

    def drain(self, now: int) -> list[Converted]:
        return self._flush(list(self._pieces))

    def _flush(self, paths: list[str | int]) -> list[Converted]:
        found: list[Converted] = []
        for path in paths:
            file, pieces = self._pieces.pop(path)
            body = b"".join(pieces.parts)
            batch = RecordColumns(file.path, [pieces.template], None, [body], [pieces.time], pieces.since)
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
        file: WatchedFile,
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
            parts.append(RecordColumns(file.path, templates, None if one else kinds, bodies, times, now))

    def _entry(self, file: WatchedFile, token: bytes, now: int, start: int) -> Entry:
        attributes: dict[str, Any] = {**file.attributes, **self._config.attributes}
        return Entry(token.decode("utf-8", "replace"), attributes, dict(self._config.resource), now, file, start)

    def template(self, file: WatchedFile, added: dict[str, Any], pod: Attributes) -> Template:
        """Return what all lines have that came on one stream with one tag."""
        entry = Entry(
            "", {**file.attributes, **self._config.attributes, **added}, {**self._config.resource, **pod}, 0, file
        )
        for operator in self._rest:
            operator.process_one(entry)
        severity = entry.severity_text or SEVERITIES[entry.severity]
        return Template(entry.resource, entry.attributes, entry.severity, severity, entry.scope)

    def pod(self, file: WatchedFile) -> Attributes:
        """Return what the path says.

        Raises:
            OperatorError: that is asked for, and it says nothing.
        """
        return self._container.pod(self.path(file)) if self._container.add_metadata else {}

    @property
    def sends_failed(self) -> bool:
        """Return whether entries that the operator could not treat go on."""
        return self._container.on_error.startswith("send")

    def path(self, file: WatchedFile) -> str | None:
        """Return what the attribute says, if it is there."""
        path = {**file.attributes, **self._config.attributes}.get("log.file.path")
        return path if isinstance(path, str) else None


class _Kinds:
    """The templates of a file."""

    #: Tags are the runtime's: more of them than this is somebody else's doing.
    MOST: Final = 64

    def __init__(self, runtime: Runtime, file: WatchedFile) -> None:
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
