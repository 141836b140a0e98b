"""Parse one line of Prometheus' text format or of OpenMetrics, strictly, as Prometheus does.

The receiver rejects a whole answer for one bad line, because it cannot know what else is missing. The reader of saved
scrapes counts the line and goes on.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

#: Labels of one series, and characters of one value, whatever a configuration allows.
MOST_LABELS: Final = 256
LONGEST_LABEL: Final = 1 << 18
#: Characters of a line shown in an error.
SHOWN: Final = 120
#: Milliseconds since the epoch after which a time is not believed: the year 2200.
LATEST: Final = 7_258_118_400_000

_LABEL: Final = re.compile(r'[ \t]*([a-zA-Z_]\w*)[ \t]*=[ \t]*"([^"\\]*(?:\\.[^"\\]*)*)"[ \t]*(?:,|(?=}))', re.ASCII)
_CLOSING: Final = re.compile(r"[ \t]*}")
_KINDS: Final = frozenset(
    {"counter", "gauge", "histogram", "gaugehistogram", "summary", "info", "stateset", "unknown", "untyped"}
)


class ExpositionError(ValueError):
    """A line that is none."""


class Written(NamedTuple):
    """A line of a series.

    Args:
        name: of the metric.
        labels: of the series.
        end: where the series ends and its value begins.
    """

    name: str
    labels: dict[str, str]
    end: int


class Exemplar(NamedTuple):
    """One measurement behind a value.

    Args:
        labels: its own, usually the trace it is from.
        value: what was measured.
        time: in milliseconds, where it has one.
    """

    labels: dict[str, str]
    value: float
    time: int | None


class About(NamedTuple):
    """`# TYPE name kind`, or the same of HELP and UNIT."""

    what: str
    name: str
    text: str


def written(line: str) -> Written:
    """The series of a line.

    Raises:
        ExpositionError: there is none.
    """
    brace = line.find("{")
    space = _blank(line, 0)
    if brace < 0 or (0 <= space < brace and line[space:brace].strip(" \t")):
        if space <= 0 or not _is_name(line[:space].replace(":", "_")):
            raise ExpositionError(f"no series: {line[:SHOWN]!r}")
        return Written(line[:space], {}, space)
    name = line[:brace].rstrip(" \t")
    if not _is_name(name.replace(":", "_")):
        raise ExpositionError(f"no name of a metric: {line[:SHOWN]!r}")
    labels, at = _labels(line, brace + 1)
    return Written(name, labels, at)


def _is_name(name: str) -> bool:
    """Return whether it may be the name of a label."""
    return name.isascii() and name.isidentifier()


def _unescape(text: str) -> str:
    if "\\" not in text:
        return text
    return text.replace("\\\\", "\x00").replace('\\"', '"').replace("\\n", "\n").replace("\x00", "\\")


def _labels(line: str, at: int) -> tuple[dict[str, str], int]:
    """Return the labels that begin here, and where the line goes on behind the closing brace."""
    labels: dict[str, str] = {}
    while (found := _LABEL.match(line, at)) is not None:
        name, value = found.groups()
        if name in labels:
            raise ExpositionError(f"a label stands twice: {line[:SHOWN]!r}")
        if len(labels) >= MOST_LABELS or len(value) > LONGEST_LABEL:
            break
        labels[name] = _unescape(value)
        at = found.end()
    end = _CLOSING.match(line, at)
    if end is None:
        raise ExpositionError(f"no labels: {line[:SHOWN]!r}")
    return labels, end.end()


def _blank(text: str, at: int) -> int:
    places = [found for mark in " \t" if (found := text.find(mark, at)) >= 0]
    return min(places, default=-1)


def number(text: str) -> float:
    """A value as Go writes it.

    Raises:
        ExpositionError: it is none.
    """
    try:
        if "_" in text:
            raise ValueError
        return float(text)
    except ValueError:
        raise ExpositionError(f"no number: {text[:SHOWN]!r}") from None


def amount(rest: str, open_metrics: bool) -> tuple[float, int | None, Exemplar | None]:
    """Value, time in milliseconds and exemplar behind a series.

    Raises:
        ExpositionError: something else is there.
    """
    exemplar: Exemplar | None = None
    if "#" in rest:
        rest, _, behind = rest.partition("#")
        if not open_metrics:
            raise ExpositionError(f"unexpected text behind a value: {behind[:SHOWN]!r}")
        exemplar = _exemplar(behind)
    parts = rest.split()
    if not 1 <= len(parts) <= 2:
        raise ExpositionError(f"expected a value and a time, got {rest[:SHOWN]!r}")
    return number(parts[0]), _milliseconds(parts[1], open_metrics) if len(parts) == 2 else None, exemplar


def _milliseconds(text: str, open_metrics: bool) -> int:
    """The text format has milliseconds, OpenMetrics seconds with a fraction."""
    time = number(text) * (1000 if open_metrics else 1)
    if not -LATEST <= time <= LATEST:
        raise ExpositionError(f"no time: {text[:SHOWN]!r}")
    return int(time)


def _exemplar(behind: str) -> Exemplar:
    text = behind.lstrip(" \t")
    if not text.startswith("{"):
        raise ExpositionError(f"no exemplar: {text[:SHOWN]!r}")
    labels, at = _labels(text, 1)
    parts = text[at:].split()
    if not 1 <= len(parts) <= 2:
        raise ExpositionError(f"no exemplar: {text[:SHOWN]!r}")
    return Exemplar(labels, number(parts[0]), _milliseconds(parts[1], True) if len(parts) == 2 else None)


def about(line: str) -> About | None:
    """Return what a comment says about a metric; None for any other comment.

    Raises:
        ExpositionError: a type that is none.
    """
    parts = line[1:].split(None, 2)
    if len(parts) < 2 or parts[0] not in ("TYPE", "HELP", "UNIT"):
        return None
    what, name, text = parts[0], parts[1], parts[2] if len(parts) > 2 else ""
    if what == "TYPE":
        kind = text.strip()
        if kind not in _KINDS:
            raise ExpositionError(f"no type of a metric: {line[:SHOWN]!r}")
        return About(what, name, "unknown" if kind == "untyped" else kind)
    if what == "HELP":
        text = _unescape(text)
    return About(what, name, text)
