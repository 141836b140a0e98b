"""Texts that somebody pasted together: the output of a program, followed by output of commands about the machine.

Such a file is read as the program's output, and each part of another format is read again in its own format. The text
of a part is the whole file with everything else blank, so that lines and offsets are those of the file.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import BinaryIO

import msgspec
import re2

from tracecore.signals import stamps
from tracecore.signals.bundle.archive import Opener
from tracecore.signals.bundle.formats import FORMATS, any_of
from tracecore.signals.bundle.machines import is_name
from tracecore.signals.bundle.opening import exactly
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
    return {} if match is None else {"k8s.pod.name": match.group(1).decode(), **namespace(match.group())}


def namespace(text: bytes) -> Attributes:
    """Return the namespace that the `kubectl` command in the first line is about, if it names one."""
    match = FORMATS.expressions["namespace"].match(text)
    return {} if match is None else {"k8s.namespace.name": match.group(1).decode()}


class Section(msgspec.Struct, frozen=True):
    """A part of a text below the command that printed it, or below a title that names a file.

    Args:
        begin, end: where it stands in the text.
        name: the file that its first line names; "" where it names none.
        resource: the machine, pod and rank that its first line names.
    """

    begin: int
    end: int
    name: str = ""
    resource: Attributes = {}


def sections(text: bytes, name: str) -> Sequence[Section]:
    """Return the parts of a text that are files of several formats; () where it is one file.

    Args:
        text: the whole file.
        name: its own name.
    """
    borders = _borders(text)
    if not borders:
        return ()
    found = [] if not text[: borders[0].begin].strip() else [Section(0, borders[0].begin)]
    for border, end in zip(borders, [*(border.begin for border in borders[1:]), len(text)], strict=True):
        found.append(msgspec.structs.replace(border, begin=border.end, end=end))
    kinds = {recognise(text[one.begin : one.end], b"", one.name or name, True).format for one in found}
    if len(kinds - {""}) > 1 or any(_shows_kernel(one, text) for one in found[1:]):
        return found
    return ()


def _shows_kernel(section: Section, text: bytes) -> bool:
    """Return whether a title names the machine of the kernel's lines below it, among which other commands stand."""
    kernel = FORMATS.expressions["kernel_time"]
    return "host.name" in section.resource and kernel.search(text[section.begin : section.end]) is not None


def _borders(text: bytes) -> list[Section]:
    """The first lines of sections: what each names, from where it stands to where the text below it begins."""
    found: dict[int, Section] = {}
    for match in FORMATS.expressions["section_command"].finditer(text):
        prompt, short, remote, command = (group or b"" for group in match.groups())
        host = remote or (b"" if command.startswith((b"kubectl", b"oc ", b"k ")) else prompt or short)
        resource: Attributes = pod(match.group())
        if host and _LOG_IN.match(host) is None:
            resource["host.name"] = host.decode("utf-8", "replace")
        resource |= _of_rank(command.partition(b"#")[2])
        # What a command prints is recognised together with the command.
        found[match.start()] = Section(match.start(), match.start(), _file(command), resource)
    for match in FORMATS.expressions["section_title"].finditer(text):
        title = match.group(1).strip(b" \t\r=#*<-")
        found.setdefault(match.start(), Section(match.start(), match.end(), _file(title), _of_title(title)))
    borders = [found[place] for place in sorted(found)]
    return borders[: MAX_TABLES - 1]


def _of_title(title: bytes) -> Attributes:
    resource = pod(title + b"\n")
    if resource:
        return resource
    hosts = {host.decode("utf-8", "replace") for host in FORMATS.expressions["section_host"].findall(title)}
    if len(named := {host for host in hosts if is_name(host)}) == 1:
        resource["host.name"] = named.pop()
    return resource | _of_rank(title)


def _of_rank(text: bytes) -> Attributes:
    """Return the rank that a title, or a comment behind a command, names; nothing if it names several."""
    ranks = set(FORMATS.expressions["section_rank"].findall(text))
    return {"gen_ai.training.rank": int(ranks.pop())} if len(ranks) == 1 else {}


def _file(line: bytes) -> str:
    """The file that a command prints or a title names, or a usual name for it; "" where it names none, or several."""
    if FORMATS.expressions["section_dmesg"].match(line):
        return "dmesg"
    if line.startswith((b"kubectl", b"oc ")):
        return ""
    if line.startswith((b"ipmitool ", b"df ", b"dcgmi ", b"py-spy ")):
        return line.split(b" ", 1)[0].decode()  # the usual names of such files begin so
    found = {path.decode("utf-8", "replace") for path in FORMATS.expressions["section_path"].findall(line)}
    return found.pop() if len(found) == 1 else ""


def opened(opener: Opener, begin: int, end: int) -> BinaryIO:
    """Open a file of which only one section is shown, in its place."""
    with opener() as file:
        text = exactly(file, end)
    return io.BytesIO(blank(text[:begin]) + text[begin:])


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
            shown = (line if kind == its else blank(line) for line, its in zip(lines, kinds, strict=True))
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
            yield found, blank(text[:begin]) + text[begin:end]


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


def blank(text: bytes) -> bytes:
    """Return as many lines of the same length, with nothing in them."""
    return text.translate(_BLANK)
