"""The table of formats (`formats.toml`): the signs by which the format of a file is recognised."""

from __future__ import annotations

import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import re2

from tracecore.signals.kernel import ibstat, perfquery
from tracecore.signals.kubernetes import flat_events, printed
from tracecore.signals.logs import dialects
from tracecore.signals.nvidia import lspci, smi, smi_csv
from tracecore.signals.scheduler import slurm

#: Expressions for rows of kubectl without a header, from their reader.
ROWS = {
    "event_row": printed.BARE_ROW,
    "dated_event_row": printed.BARE_DATED,
    "event_without_type_row": printed.BARE_EVENT,
    "old_event_row": printed.BARE_OLD_EVENT,
    "pod_row": printed.BARE_POD,
    "node_row": printed.BARE_NODE,
}
#: Functions by which readers recognise their format: (text without blanks and command, all bytes) → it is theirs.
READERS: dict[str, Callable[[bytes, bytes], bool]] = {
    "docker": lambda start, head: dialects.DOCKER_BEGINS.match(start) is not None,
    # Jobs print the table before they train.
    "nvidia_table": lambda start, head: smi.is_table(head) and FORMATS.expressions["work"].search(head) is None,
    "nvidia_rows": smi_csv.begins_with_rows,
    "dcgm_fields": smi_csv.begins_with_fields,
    "nvidia_dmon": lambda start, head: smi.DMON_BEGINS.match(start) is not None,
    "nvidia_nvlink": lambda start, head: smi.NVLINK_BEGINS.match(start) is not None,
    "lspci": lambda start, head: lspci.BEGINS.match(start) is not None,
    "slurm_counts": lambda start, head: slurm.COUNTS.match(head) is not None,
    "ibstat": lambda start, head: ibstat.BEGINS.match(start) is not None,
    "perfquery": lambda start, head: (
        perfquery.LOOKS.search(head) is not None and FORMATS.expressions["work"].search(head) is None
    ),
    "sinfo": lambda start, head: slurm.begins_as_sinfo(start.split(b"\n", 1)[0]),
    "kubernetes_events": lambda start, head: flat_events.begins_with_events(start),
    "kubernetes_header": lambda start, head: flat_events.is_header(
        start.split(b"\n", 1)[0].decode("utf-8", "replace").rstrip()
    ),
    "kubernetes_fragment": lambda start, head: (
        printed.FRAGMENT_BEGINS.match(start) is not None and printed.FRAGMENT.search(head) is not None
    ),
}


class Sign(msgspec.Struct, frozen=True, kw_only=True):
    """Signs of one format. A file must have all of them.

    Args:
        begins: the text begins with one of these; `unless`: with none of these.
        first_line: the first line has all of these; `two_of`: at least two of these.
        has: one literal of each group is in the first `within` bytes.
        match: the expression matches the beginning; `search`: all of these match in the first `within` bytes.
        rows: the first three lines are rows of this kind (`ROWS`).
        reader: the reader recognises the text (`READERS`).
        longest: the file is complete and has at most this many bytes; 0 for any number.
    """

    format: str
    begins: tuple[bytes, ...] = ()
    unless: tuple[bytes, ...] = ()
    first_line: tuple[bytes, ...] = ()
    two_of: tuple[bytes, ...] = ()
    has: tuple[tuple[bytes, ...], ...] = ()
    within: int = 4096
    match: re2._Regexp | None = None
    search: tuple[re2._Regexp, ...] = ()
    rows: str = ""
    reader: str = ""
    longest: int = 0

    def fits(self, start: bytes, head: bytes, complete: bool) -> bool:
        """Return whether a file has these signs.

        Literals are checked first: they cost a tenth of a regular expression, and a bundle may have 100,000 files.

        Args:
            start: the text without leading blanks and the command above it.
            head: the first bytes of the file.
            complete: head is the whole file.
        """
        if self.begins and not start.startswith(self.begins):
            return False
        if self.longest and not (complete and len(head) <= self.longest):
            return False
        first = start.split(b"\n", 1)[0] if self.first_line or self.two_of or self.rows else b""
        if not all(word in first for word in self.first_line):
            return False
        if self.two_of and sum(word in first for word in self.two_of) < 2:
            return False
        early = head[: self.within] if self.has or self.search else b""
        if not all(any(word in early for word in group) for group in self.has):
            return False
        if self.unless and start.startswith(self.unless):
            return False
        if self.rows and not _are_rows(ROWS[self.rows], first, start):
            return False
        if self.match is not None and self.match.match(start) is None:
            return False
        if not all(expression.search(early) for expression in self.search):
            return False
        return not self.reader or READERS[self.reader](start, head)


def _are_rows(row: re2._Regexp, first: bytes, start: bytes) -> bool:
    return bool(row.match(first)) and all(row.match(line) for line in start.splitlines()[1:3] if line.strip())


class NameSign(msgspec.Struct, frozen=True, kw_only=True):
    """A sign of one format in a file's name: the name begins and ends with one of these."""

    format: str
    begins: tuple[str, ...] = ("",)
    ends: tuple[str, ...] = ("",)

    def fits(self, name: str) -> bool:
        return name.startswith(self.begins) and name.endswith(self.ends)


class TextSign(msgspec.Struct, frozen=True, kw_only=True):
    """A sign that a plain text is not a program's output but of another layer: in its name or its text."""

    layer: str
    begins: tuple[str, ...] = ()
    search: re2._Regexp | None = None

    def fits(self, name: str, early: bytes) -> bool:
        return name.startswith(self.begins) or (self.search is not None and self.search.search(early) is not None)


class Formats(msgspec.Struct, frozen=True, kw_only=True):
    """The whole table.

    Args:
        names: expressions of words in the names of files and folders, and names that are no machines.
        columns: names of columns in tables of ranks, by content.
        variables: names of environment variables, by content.
        launch: expressions for the settings by which a scheduler places ranks.
    """

    layers: dict[str, str]
    json: tuple[Sign, ...]
    content: tuple[Sign, ...]
    name: tuple[NameSign, ...]
    text: tuple[TextSign, ...]
    words: dict[str, tuple[bytes, ...]]
    names: dict[str, tuple[str, ...]]
    columns: dict[str, tuple[str, ...]]
    variables: dict[str, tuple[str, ...]]
    launch: dict[str, re2._Regexp]
    expressions: dict[str, re2._Regexp]


#: Keys of the table whose values are literals, searched for in bytes.
_LITERALS = frozenset({"begins", "unless", "first_line", "two_of", "has"})


def _encoded(value: Any) -> Any:
    return value.encode() if isinstance(value, str) else tuple(_encoded(item) for item in value)


def _load() -> Formats:
    table = tomllib.loads(Path(__file__).with_suffix(".toml").read_text("utf-8"))
    for rows in (table["json"], table["content"]):
        for row in rows:
            row |= {key: _encoded(value) for key, value in row.items() if key in _LITERALS}
    table["words"] = {key: _encoded(value) for key, value in table["words"].items()}
    return msgspec.convert(
        table, Formats, dec_hook=lambda kind, text: re2.compile(text.encode()), builtin_types=(bytes,)
    )


FORMATS: Formats = _load()


def any_of(name: str) -> str:
    """Return an expression that matches any word of one list of the table."""
    return "|".join(FORMATS.names[name])
