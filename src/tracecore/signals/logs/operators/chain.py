"""The operators of a receiver, in the order in which entries pass them."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from tracecore.signals.logs.operators.base import Failures, Operator, Sink
from tracecore.signals.logs.operators.container import Container
from tracecore.signals.logs.operators.entry import Entry
from tracecore.signals.logs.operators.moving import Add, FilterOperator, Move, Remove, Router
from tracecore.signals.logs.operators.options import Options, Problem
from tracecore.signals.logs.operators.parsers import JsonParser, RegexParser, SeverityParser, TimeParser
from tracecore.signals.logs.operators.recombine import Recombine
from tracecore.signals.logs.operators.reshaping import (
    AssignKeys,
    Copy,
    Flatten,
    KeyValueParser,
    Noop,
    RegexReplace,
    Retain,
    SanitizeUtf8,
    Unquote,
)

OPERATORS: Final[dict[str, type[Operator]]] = {
    "add": Add,
    "assign_keys": AssignKeys,
    "container": Container,
    "copy": Copy,
    "filter": FilterOperator,
    "flatten": Flatten,
    "json_parser": JsonParser,
    "key_value_parser": KeyValueParser,
    "move": Move,
    "noop": Noop,
    "recombine": Recombine,
    "regex_parser": RegexParser,
    "regex_replace": RegexReplace,
    "remove": Remove,
    "retain": Retain,
    "router": Router,
    "sanitize_utf8": SanitizeUtf8,
    "severity_parser": SeverityParser,
    "time_parser": TimeParser,
    "unquote": Unquote,
}
#: Operators of the Collector that are not here on purpose.
ELSEWHERE: Final = frozenset(
    {"csv_parser", "headerless_jarray_parser", "json_array_parser", "file_output", "otelcol", "scope_name_parser",
     "stdout", "syslog_parser", "trace_parser", "uri_parser"}
)  # fmt: skip


class ChainError(Exception):
    """The operators are not configured well.

    Args:
        problems: each with its place.
    """

    def __init__(self, problems: list[Problem]) -> None:
        super().__init__("; ".join(f"operators{list(path)}: {message}" for path, message in problems))
        self.problems = problems


class _Count(msgspec.Struct):
    entries_failed: int = 0
    entries_dropped: int = 0
    reasons: dict[tuple[str, str], int] = {}


def problems(operators: Sequence[Any]) -> list[Problem]:
    """Return what is wrong with the configuration of operators, and where."""
    try:
        Chain(operators, _Count())
    except ChainError as error:
        return error.problems
    return []


class Chain:
    """Operators, connected.

    Args:
        operators: as a configuration has them.
        failures: counts what went wrong.

    Raises:
        ChainError: they are not configured well.
    """

    def __init__(self, operators: Sequence[Any], failures: Failures) -> None:
        wrong: list[Problem] = []
        self.operators: list[Operator] = []
        self._sink = Sink()
        known: dict[str, Operator] = {}
        places: list[int] = []
        for number, values in enumerate(operators):
            if not isinstance(values, Mapping):
                wrong.append(((number,), "expected settings by name"))
                continue
            made = _made(values, number, failures, wrong)
            if made is None:
                continue
            if made.id in known and not values.get("id"):
                # Like the Collector, operators without an id of their own are numbered.
                count = 1
                while f"{made.id}{count}" in known:
                    count += 1
                made.id = f"{made.id}{count}"
            elif made.id in known:
                wrong.append(((number, "id"), f'two operators are called "{made.id}"'))
            known[made.id] = made
            self.operators.append(made)
            places.append(number)
        for number, made in enumerate(self.operators):
            following = self.operators[number + 1] if number + 1 < len(self.operators) else self._sink
            for missing in made.connect(known, following):
                close = difflib.get_close_matches(missing, known, 1)
                suggestion = f'; did you mean "{close[0]}"?' if close else ""
                wrong.append(((places[number], "output"), f'no operator is called "{missing}"{suggestion}'))
        if not wrong and self._circular():
            wrong.append(((), "operators lead in a circle"))
        if wrong:
            raise ChainError(wrong)

    def process(self, entries: list[Entry], now: int) -> list[Entry]:
        """Return what becomes of entries; some may be held back."""
        if self.operators:
            self.operators[0].process(entries, now)
        else:
            self._sink.process(entries, now)
        return self._taken()

    def due(self, now: int) -> list[Entry]:
        """Entries that have been held back for long enough."""
        for operator in self.operators:
            operator.due(now)
        return self._taken()

    def drain(self, now: int) -> list[Entry]:
        """All entries that are held back."""
        for operator in self.operators:
            operator.drain(now)
        return self._taken()

    def held(self, source: object) -> int | None:
        """Return where the first entry of a file begins that is held back."""
        return min((at for operator in self.operators if (at := operator.held(source)) is not None), default=None)

    def _taken(self) -> list[Entry]:
        entries, self._sink.entries = self._sink.entries, []
        return entries

    def _circular(self) -> bool:
        by_id = {operator.id: operator for operator in self.operators}
        following: dict[str, list[str]] = {}
        for number, operator in enumerate(self.operators):
            outputs = operator.outputs()
            if outputs is None:
                outputs = [self.operators[number + 1].id] if number + 1 < len(self.operators) else []
            following[operator.id] = outputs
        done: set[str] = set()
        for start in by_id:
            path: list[str] = [start]
            iterators = [iter(following[start])]
            while iterators:
                step = next(iterators[-1], None)
                if step is None:
                    iterators.pop()
                    done.add(path.pop())
                elif step in path:
                    return True
                elif step not in done:
                    path.append(step)
                    iterators.append(iter(following[step]))
        return False


def _made(values: Mapping[str, Any], number: int, failures: Failures, wrong: list[Problem]) -> Operator | None:
    kind = values.get("type")
    make = OPERATORS.get(kind) if isinstance(kind, str) else None
    if kind in ELSEWHERE:
        text = "is not supported here; run it in a Collector in front and send OTLP"
        wrong.append(((number, "type"), f'the operator "{kind}" {text}'))
        return None
    if make is None:
        close = difflib.get_close_matches(str(kind), OPERATORS, 1)
        suggestion = f'; did you mean "{close[0]}"?' if close else f"; there are {', '.join(OPERATORS)}"
        wrong.append(
            ((number, "type"), f'no operator is of type "{kind}"{suggestion}' if kind else '"type" is missing')
        )
        return None
    options = Options(values, (number,), wrong)
    made = make(options, failures)
    options.finish()
    return made
