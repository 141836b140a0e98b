"""Texts that somebody pasted together: the output of a program, followed by output of commands about the machine.

Such a file is read as the program's output, and each part of another format is read again in its own format. The text
of a part is the whole file with everything else blank, so that lines and offsets are those of the file.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import re2

from tracecore.signals import stamps
from tracecore.signals.bundle.formats import FORMATS, any_of
from tracecore.signals.bundle.recognition import Recognised, kind_of_line, recognise
from tracecore.signals.kernel import lines as kernel_lines
from tracecore.signals.record import Attributes

_LINE = re2.compile(rb"[^\n]*\n?")
_BLANK = bytes(10 if byte == 10 else 32 for byte in range(256))
_LOG_IN = re2.compile(
    rb"(?i)^(?:%s)(?:[-_.]?(?:node|host|server|vm|pro|air))?[-_.]?\d*[a-z]?$" % any_of("log_in").encode()
)
#: Limit of the commands in a file that become parts; the output of further ones stays in the text.
MAX_TABLES = 32


def host(text: bytes) -> str | None:
    """Return the machine in the prompts of a terminal; None if there is none, or several."""
    prompts = FORMATS.expressions["prompt"].finditer(text)
    found = {name for match in prompts for name in match.groups() if name and _LOG_IN.match(name) is None}
    return found.pop().decode("utf-8", "replace") if len(found) == 1 else None


def pod(text: bytes) -> Attributes:
    """Return the pod whose log is printed, from the `kubectl` command above it."""
    match = FORMATS.expressions["logs_of"].match(text)
    if match is None:
        return {}
    space = FORMATS.expressions["logs_in"].match(match.group())
    found: Attributes = {"k8s.pod.name": match.group(1).decode()}
    return found | ({"k8s.namespace.name": space.group(1).decode()} if space else {})


def parts(text: bytes) -> Iterator[tuple[Recognised, bytes]]:
    """Return the parts of a program's output that have another format, each as a text.

    Args:
        text: the whole file.
    """
    yield from tables(text)
    # A bundle may have 100,000 files, and nearly all have no such part.
    if not any(FORMATS.expressions[name].search(text) for name in ("kernel_time", "daemon")):
        return
    lines = [match.group() for match in _LINE.finditer(text)]
    kinds = [_system(line) for line in lines]
    system = [number for number, kind in enumerate(kinds) if kind]
    if not system:
        return
    work = [number for number, line in enumerate(lines) if FORMATS.expressions["work"].search(line)]
    # A program may also print the text that it trains on or generates. That is between lines of its own.
    if work and system[0] < work[-1] and work[0] < system[-1] and not _are_merged(lines, work, system):
        return
    for kind in ("dmesg", "syslog"):
        if kind in kinds:
            shown = (line if kind == its else _blank(line) for line, its in zip(lines, kinds, strict=True))
            yield Recognised(kind, FORMATS.layers[kind]), b"".join(shown)


def tables(text: bytes, first: int = 0) -> Iterator[tuple[Recognised, bytes]]:
    """Return the output of the commands in a file, without the first `first` ones.

    Args:
        first: if it is not 0, also return output that is plain text, because nobody else reads that.
    """
    borders = [*(match.start() for match in FORMATS.expressions["prompted"].finditer(text)), len(text)]
    for begin, end in pairwise(borders[first : first + MAX_TABLES + 1]):
        found = recognise(text[begin:end], b"", "", True)
        if found.format and (first or found.format not in ("text", "dmesg", "syslog")):
            yield found, _blank(text[:begin]) + text[begin:end]


def _system(line: bytes) -> str:
    """Return the format of a line with a time from the kernel or a system program; empty for other lines."""
    kind = "" if line.startswith(FORMATS.words["kernel"]) else kind_of_line(line)
    if kind == "syslog":
        if kernel_lines.HOSTLESS.match(line):
            return kind
        match = kernel_lines.SYSLOG.match(line)
        return kind if match and kernel_lines.is_system(match.group(3).decode("utf-8", "replace")) else ""
    return kind if kind == "dmesg" else ""


def _are_merged(lines: list[bytes], work: list[int], system: list[int]) -> bool:
    """Whether a machine's and a program's logs were merged: all lines that have times are in order, by full dates.

    Lines that a program quotes have other times.
    """
    found = {number: stamp for number, line in enumerate(lines) if (stamp := stamps.find(line)) is not None}
    if any(stamp.missing for stamp in found.values()) or not all(number in found for number in system):
        return False
    own = [number for number in work if number in found]
    if not own or own[0] > system[-1] or own[-1] < system[0]:
        return False  # the program's lines have no times, so their order is unknown
    return all(before.nanos <= after.nanos for before, after in pairwise(found.values()))


def _blank(text: bytes) -> bytes:
    return text.translate(_BLANK)
