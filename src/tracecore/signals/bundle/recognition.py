"""Recognition of the format of a file, by its content first, then by its name."""

from __future__ import annotations

from collections import Counter

import msgspec
import re2

from tracecore.signals.bundle.formats import FORMATS
from tracecore.signals.bundle.wrapping import wrapping
from tracecore.signals.kernel import lines as kernel_lines
from tracecore.signals.logs.dialects import DOCKER_BEGINS, whole_bars

#: The layer of each format. The formats are also the keys of the tables of readers.
LAYER_OF = FORMATS.layers


class Recognised(msgspec.Struct, frozen=True):
    """The format of a file. If no reader can read it, `format` is empty and `reason` says why."""

    format: str = ""
    layer: str = ""
    reason: str = ""
    wrapping: str = ""


_OTHER_OBJECTS = "Kubernetes objects, but neither events, pods nor nodes"
_BINARY = bytes(set(range(32)) - {7, 8, 9, 10, 12, 13, 27})
_JOURNAL = (b"__CURSOR=", b"__REALTIME_TIMESTAMP=")
_LEVELS = frozenset(FORMATS.words["levels"])

# Expressions for lines of logs, like those of their readers.
_CRI = re2.compile(rb"^[^ ]{8,40} (?:stdout|stderr) [FP](?::[^ ]*)?(?: |$)")
_KMSG = re2.compile(rb"^\d{1,6},\d+,\d+,[^;]*;")
_WALL = re2.compile(
    rb"^(?:<\d+>)?(?:[a-z]+ *:[a-z]+ *: ?)?\[[A-Z][a-z]{2} [A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d \d{4}\] "
)
_KERNEL_ISO = re2.compile(rb"^(?:[a-z]+ *:[a-z]+ *: ?)?\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d,\d{6}[+-]\d\d:\d\d ")
_DMESG = re2.compile(
    b"|".join(expression.pattern for expression in (kernel_lines.UPTIME, kernel_lines.CONSOLE, _WALL, _KERNEL_ISO))
)
_SAMPLE = re2.compile(rb"^[a-zA-Z_:][\w:]*(?:\{.*\})? +[-+]?(?:\d|NaN|Inf)")
_SERIES = re2.compile(rb'(?m)^[a-zA-Z_:][\w:]*\{[a-zA-Z_]\w* *= *"')
_FAMILY = re2.compile(rb"(?m)^# (?:TYPE|HELP) [a-zA-Z_:][\w:]*")


_TEXT_SIGNS = re2.compile(b"|".join(b"(?:%s)" % sign.search.pattern for sign in FORMATS.text if sign.search))


def recognise(head: bytes, tail: bytes, name: str, complete: bool) -> Recognised:
    """Return the format and layer of a file.

    Args:
        head: the first bytes, tens of KiB.
        tail: the last bytes; empty if head has them.
        name: the base name, without the suffix of a compression.
        complete: head is the whole file.
    """
    if not head:
        # An empty log is not listed as skipped.
        is_log = FORMATS.expressions["log"].search(name.encode("utf-8", "surrogateescape")) is not None
        return Recognised("text", "stdout") if is_log else Recognised(reason="empty")
    if complete and not head.strip(b" \t\r\n\0"):
        return Recognised(reason="nothing but blanks")
    found = _by_content(head, complete)
    if found == "text" and not complete and tail:
        # The file may begin with a banner or start-up lines of another format.
        later = _by_line(tail)
        found = later if later != "text" else found
    if found in ("text", ""):
        found = _by_name(name, head) or found
    if not found:
        return Recognised(reason="binary, not a format known here")
    objects = found in ("kubernetes_json", "kubernetes_yaml")
    if objects and complete and not FORMATS.expressions["objects"].search(head):
        return Recognised(reason=_OTHER_OBJECTS)
    if found != "text":
        if complete and (prompt := FORMATS.expressions["prompted"].search(head)) and head[: prompt.start()].strip():
            above = recognise(head[: prompt.start()], b"", name, True)
            if above.format == "text":
                return above  # a command's table below a program's output is a part of that file (see `pasted`)
        return Recognised(found, LAYER_OF[found])
    early = head[:4096]
    # First search for all signs at once: a bundle may have 100,000 logs of workers, which have none.
    hinted = _TEXT_SIGNS.search(early) is not None
    signs = (sign for sign in FORMATS.text if hinted or sign.begins)
    layer = next((sign.layer for sign in signs if sign.fits(name, early)), LAYER_OF[found])
    return Recognised(found, layer, wrapping=wrapping(head, tail))


def _by_content(head: bytes, complete: bool) -> str:
    if head[:1] == b"\x80" and head[1:2] in (b"\x02", b"\x03", b"\x04", b"\x05"):
        return "flight_recorder" if any(word in head for word in FORMATS.words["flight_recorder"]) else ""
    if is_binary(head):
        return "journal_export" if head.startswith(_JOURNAL) else ""
    start = head.lstrip(b"\xef\xbb\xbf \t\r\n")
    if start[:1] in (b"{", b"["):
        for sign in FORMATS.json:
            if sign.fits(start, start, complete):
                return sign.format
    if (command := FORMATS.expressions["command"].match(start)) is not None:
        start = start[command.end() :]
    for sign in FORMATS.content:
        if sign.fits(start, head, complete):
            return sign.format
    return _by_line(head)


def _by_line(sample: bytes) -> str:
    lines = [line for line in whole_bars(sample[:16_384]).replace(b"\r", b"\n").split(b"\n") if line.strip()][:40]
    if not lines:
        return "text"
    if any(line[:1] == b"#" for line in lines) or b'="' in sample:
        values = sum(1 for line in lines if line[:1] == b"#" or _SAMPLE.match(line))
        if values >= len(lines) * 0.8 and (_FAMILY.search(sample) or _SERIES.search(sample)):
            return "prometheus"
    kinds: Counter[str] = Counter()
    daemon = FORMATS.expressions["daemon"]
    for line in lines:
        kind = kind_of_line(line)
        kinds[kind] += 1
        if kinds[""] > len(lines) * 0.4:
            return "text"  # no kind can reach 60 % of the lines any more
        if kind and kinds[kind] >= len(lines) * 0.6:
            # Many programs log `time name logger: text`, too. A system log has process ids or known daemons.
            return kind if kind != "syslog" or any(daemon.search(line[:200]) for line in lines) else "text"
    return "text"


def kind_of_line(line: bytes) -> str:
    """Return the format that this line could have. Cheap checks come before regular expressions."""
    if line.startswith(FORMATS.words["kernel"]):
        return "dmesg"
    first, early = line[:1], line[:60]
    if first == b"{":
        return "docker" if DOCKER_BEGINS.match(line) else ""
    if (b" stdout " in early or b" stderr " in early) and _CRI.match(line):
        return "cri"
    if first in (b"[", b"<") or b" :" in early[:16] or early[:5] in (b"kern:", b"user:"):
        if _DMESG.match(line):
            return "dmesg"
    elif first.isdigit():
        if line[4:5] == b"-":
            if _KERNEL_ISO.match(line):
                return "dmesg"
        elif b"," in early[:8] and _KMSG.match(line):
            return "dmesg"
    if b"]: " in line[:128] and kernel_lines.TALOS.match(line):
        return "dmesg"
    if line[3:4] in (b" ", b".") or first == b"<" or line[4:5] == b"-":
        if kernel_lines.HOSTLESS.match(line):
            return "syslog"
        match = kernel_lines.SYSLOG.match(line)
        if match and match.group(2).upper() not in _LEVELS:
            return "syslog"
    return ""


def _by_name(name: str, head: bytes) -> str:
    """Return the format by the name of a file; for binary content only that of Flight Recorder dumps."""
    lower = name.lower()
    text = not is_binary(head)
    if not text:
        return "flight_recorder" if lower.startswith("nccl_trace") else ""
    return next((sign.format for sign in FORMATS.name if sign.fits(lower)), "")


def is_node_agent(name: str) -> bool:
    """Return whether a pod or log of this name belongs to an agent that monitors or manages its machine."""
    return name.encode("utf-8", "surrogateescape").startswith(FORMATS.words["node_agents"])


def is_binary(head: bytes) -> bool:
    """Return whether this is no text. NULs are ignored: a crashed writer or a sparse file may leave them in a log.

    Text may have a few control bytes, but not together with many bytes that are no UTF-8.
    """
    sample = head.replace(b"\x00", b"")[:8192]
    strange = len(sample) - len(sample.translate(None, _BINARY))
    if not sample or strange * 20 > len(sample):
        return True
    return strange > 0 and sample.decode("utf-8", "replace").count("\ufffd") * 4 > len(sample)


def holds_work(found: Recognised, head: bytes, tail: bytes) -> bool:
    """Return whether a log of the system also has the output of a program that trains."""
    work = FORMATS.expressions["work"]
    if found.format == "text" and found.layer == "kernel":
        # Somebody pasted, for example, a table of file systems below a traceback.
        return work.search(head) is not None
    if found.format not in ("syslog", "journal_json"):
        return False
    for line in (head + b"\n" + tail).split(b"\n"):
        if work.search(line):
            if found.format == "journal_json":
                return True
            match = kernel_lines.SYSLOG.match(line)
            if match is not None and not kernel_lines.is_system(match.group(3).decode("utf-8", "replace")):
                return True
    return False
