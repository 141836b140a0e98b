"""What stands around the text of a line: container runtimes' wrapping, launchers' prefixes, terminal codes."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import msgspec
import re2

from tracecore.signals import stamps
from tracecore.signals.record import Attributes
from tracecore.signals.stamps import Stamp

#: Docker and the kubelet cut lines at this size; a shorter piece without a newline is a line of its own.
DOCKER_PIECE = 16 * 1024


class Line(msgspec.Struct, gc=False):
    """A line without its wrapping.

    Args:
        text: what the program wrote.
        lane: names who wrote it (stream and prefix); a multi-line block stays in its lane.
        stamp: the time the wrapping gives; None where only the text may have one.
        rank: global rank, where the prefix says it.
        partial: the runtime cut the line: the next piece of the lane belongs to it.
        attributes: the record's own attributes; None where there are none.
        host: the machine, where the line names it.
        program: who logged it, in a syslog.
    """

    text: bytes
    lane: bytes = b""
    stamp: Stamp | None = None
    rank: int | None = None
    partial: bool = False
    attributes: Attributes | None = None
    host: str = ""
    program: str = ""


#: Takes a raw line without its terminator.
Dialect: TypeAlias = Callable[[bytes], Line]

_ANSI = re2.compile(rb"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]{0,200}(?:\x07|\x1b\\)|[@-Z\\^_])")
_CRI = re2.compile(rb"^([^ ]+) (stdout|stderr) ([^ ]*) ?")
_CRI_STREAMS = (b" stdout ", b" stderr ")
_PREFIX = re2.compile(
    rb"^(?:\[rank(\d{1,7})\]: ?"  # PyTorch's except hook and logging
    rb"|\[[A-Za-z_]+?(\d{1,5})\]:"  # torchrun --tee: role name and local rank
    rb"|\[\d+,(\d{1,7})\]<std(?:out|err|diag)>: ?"  # mpirun --tag-output
    rb"|\([\w.:<>-]{1,80} (?:pid=(\d+))(?:, ip=([0-9a-fA-F.:]+))?\) ?"  # Ray
    rb"|\[pod/([a-z0-9.-]+)/([a-z0-9.-]+)\] )"  # kubectl logs --prefix
)
_ANNOUNCED = re2.compile(rb"\b(?:ERROR|CRITICAL|FATAL|WARNING)\b.*[\[(][Rr]ank[ :=]?(\d{1,6})[\])]")
_LABEL = re2.compile(rb"^ *(\d{1,7}): ?")


def clean(raw: bytes) -> bytes:
    """Without terminal codes, NULs and trailing white space."""
    if b"\x1b" in raw:
        raw = _ANSI.sub(b"", raw)
    if b"\x00" in raw:
        raw = raw.replace(b"\x00", b"")
    return raw.rstrip()


def plain(labelled: bool = False, single_node: bool = True) -> Dialect:
    """Lines as a program wrote them, with the prefixes of launchers.

    Args:
        labelled: lines start with `srun --label`'s task number.
        single_node: a local rank is the global one.
    """

    def unwrap(raw: bytes) -> Line:
        line = Line(clean(raw))
        if labelled and (match := _LABEL.match(line.text)):
            line.rank = int(match.group(1))
            line.lane = match.group(1) + b":"
            line.text = line.text[match.end() :]
        strip_prefixes(line, single_node)
        return line

    return unwrap


def strip_prefixes(line: Line, single_node: bool) -> None:
    """Takes launchers' prefixes off the text; they name the rank and the lane."""
    for _ in range(3):
        text = line.text
        # Most lines have no prefix, and many begin with a bracketed time.
        if text[:1] == b"[":
            if b"]" not in text[2:100] or (text[1:2].isdigit() and text[2:3].isdigit()):
                return
        elif text[:1] != b"(" or b" pid=" not in text[:100]:
            return
        match = _PREFIX.match(text)
        if match is None:
            return
        rank, local, mpi, pid, ip, pod, container = match.groups()
        attributes: Attributes = line.attributes or {}
        if rank is not None or mpi is not None:
            line.rank = int(rank or mpi)
        elif local is not None:
            attributes["gen_ai.training.local_rank"] = int(local)
            if single_node and line.rank is None:
                line.rank = int(local)
        elif pid is not None:
            attributes["process.pid"] = int(pid)
            if ip is not None:
                attributes["network.local.address"] = ip.decode("ascii", "replace")
        elif pod is not None:
            attributes["k8s.pod.name"] = pod.decode("ascii", "replace")
            attributes["k8s.container.name"] = container.decode("ascii", "replace")
        if attributes:
            line.attributes = attributes
        line.text = text[match.end() :]
        # An empty line of PyTorch's except hook has lost the space that the others have.
        line.lane += match.group() if line.text or not match.group().endswith(b":") else match.group() + b" "


def announced(line: bytes) -> int | None:
    """The rank that the message of a logger names which says that something is wrong."""
    found = _ANNOUNCED.search(line)
    return int(found.group(1)) if found else None


def container(single_node: bool = True) -> Dialect:
    """Lines as CRI runtimes (containerd, CRI-O) and Docker's json-file driver store them."""

    def unwrap(raw: bytes) -> Line:
        line = docker(raw) if raw[:1] == b"{" else cri(raw)
        if line is None:
            line = Line(clean(raw))
        elif not line.partial:
            line.text = clean(line.text)
            strip_prefixes(line, single_node)
        return line

    return unwrap


def cri(raw: bytes) -> Line | None:
    """`2026-11-15T01:37:04.123456789Z stdout F text`; tags may be colon-separated, only the first matters."""
    begin = raw.find(b" ")
    end = raw.find(b" ", begin + 8) if raw[begin : begin + 8] in _CRI_STREAMS else -1
    if begin > 0 and end > 0 and raw[:end].isascii():
        # As nearly all lines are: no need for an expression.
        time, name, tag, text = raw[:begin], raw[begin + 1 : begin + 7], raw[begin + 8 : end], raw[end + 1 :]
    else:
        match = _CRI.match(raw)
        if match is None:
            return None
        time, name, tag = match.groups()
        text = raw[match.end() :]
    stamp = stamps.find(time)
    if stamp is not None and stamp.missing:
        stamp = None
    attributes: Attributes = {"log.iostream": name.decode(), "logtag": tag.decode("utf-8", "replace")}
    return Line(text, name, stamp, partial=tag.split(b":", 1)[0] == b"P", attributes=attributes)


class _Docker(msgspec.Struct):
    log: str
    stream: str = "stdout"
    time: str = ""


_docker = msgspec.json.Decoder(_Docker)


def docker(raw: bytes) -> Line | None:
    """`{"log":"text\\n","stream":"stdout","time":"…"}`."""
    try:
        entry = _docker.decode(raw)
    except msgspec.DecodeError:  # invalid UTF-8 included
        try:
            entry = _docker.decode(raw.decode("utf-8", "replace").encode())
        except msgspec.DecodeError:
            return None
    text = entry.log.encode("utf-8", "surrogatepass")
    partial = len(text) >= DOCKER_PIECE and not text.endswith(b"\n")
    stamp = stamps.find(entry.time.encode())
    name = entry.stream.encode()
    return Line(text.rstrip(b"\r\n"), name, stamp, partial=partial, attributes={"log.iostream": entry.stream})
