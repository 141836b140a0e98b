"""Lines of a file into batches of records, by the shortest way that the configuration allows.

Lines of a container runtime, and lines as they are, become columns without a record being made. What follows the
`container` operator and looks at attributes only is done once for all lines that share them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Protocol

from tracecore.signals.logs.operators.base import Failures, Operator
from tracecore.signals.logs.operators.chain import Chain
from tracecore.signals.logs.operators.container import Container
from tracecore.signals.logs.operators.container_lines import Runtime
from tracecore.signals.logs.operators.entry_batches import Converted, Every
from tracecore.signals.logs.operators.line_selection import LineSelection, mended, sound
from tracecore.signals.logs.selector import Selector, Selectors
from tracecore.signals.logs.tail.batch import LogBatch, RecordColumns, Template
from tracecore.signals.logs.tail.config import FileLogConfig, codec
from tracecore.signals.logs.tail.splitting import trimmer
from tracecore.signals.logs.tail.watched import WatchedFile

_BLANK: Final = b" \t\r\n"


class Converter(Protocol):
    """Makes batches of lines."""

    def convert(
        self, file: WatchedFile, data: bytes, tokens: Sequence[bytes], starts: Sequence[int], start: int, now: int
    ) -> tuple[list[LogBatch], int | None]:
        """Batches of these lines, and where in the file the first thing held back begins."""

    def released(self) -> list[tuple[WatchedFile, int | None]]:
        """Other files of which something was held back that has gone out with the last lines.

        A line that began in a file and ended in the one that came in its place. With each where the next thing
        begins that is still held back.
        """

    @property
    def holds(self) -> bool:
        """Return whether something is held back."""

    def due(self, now: int) -> list[Converted]:
        """Return what has been held back for long enough."""

    def flush(self, file: WatchedFile, now: int) -> list[Converted]:
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
        return PlainLines(config, selector)
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


class PlainLines:
    """No operators: lines as they are."""

    def __init__(self, config: FileLogConfig, selector: Selector | Selectors | None) -> None:
        self._config = config
        self._select = LineSelection(selector)
        self._trim = trimmer(config)
        self._both = not (config.preserve_leading_whitespaces or config.preserve_trailing_whitespaces)

    def convert(
        self, file: WatchedFile, data: bytes, tokens: Sequence[bytes], starts: Sequence[int], start: int, now: int
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
        return [RecordColumns(file.path, template, None, bodies, None, now, skipped)], None

    def released(self) -> list[tuple[WatchedFile, int | None]]:
        return []

    holds = False

    def due(self, now: int) -> list[Converted]:
        return []

    def flush(self, file: WatchedFile, now: int) -> list[Converted]:
        return []

    def drain(self, now: int) -> list[Converted]:
        return []
