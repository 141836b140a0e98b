"""Unwrap lines: remove formats of container runtimes, prefixes of launchers, and terminal codes."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import TypeAlias

import msgspec
import re2

from tracecore.signals import stamps
from tracecore.signals.record import Attributes
from tracecore.signals.stamps import Stamp

#: The beginning of a line of Docker's json-file driver. Tools that copy such logs write JSON with blanks, or in another
#: order.
DOCKER_BEGINS = re.compile(
    rb'\{ ?"(?:log" ?: ?"|stream" ?: ?"std(?:out|err)|time" ?: ?"[\w:.+-]{19,40}", ?"stream" ?: ?"std)'
)
#: Docker and the kubelet cut lines at this size. A shorter piece without a newline is a whole line.
DOCKER_PIECE = 16 * 1024


class UnwrappedLine(msgspec.Struct, gc=False):
    """A line without its wrapping.

    Args:
        text: what the program wrote.
        writer: output stream and prefixes. A multi-line block has one writer. If one writer's name begins with
            another's, it has an additional prefix.
        stamp: the time in the wrapping; None if only the text may have one.
        rank: global rank from the prefix.
        partial: the runtime cut the line, and the next piece of this output stream belongs to it.
        attributes: of the record; None if there are none.
        host: the machine that the line names.
        task: the number of the launcher that passed the line on, if it has one.
        program: the program that logged it, in a syslog.
        folded: the line has a whole traceback in a field, so following lines do not belong to it.
    """

    text: bytes
    writer: bytes = b""
    stamp: Stamp | None = None
    rank: int | None = None
    partial: bool = False
    attributes: Attributes | None = None
    host: str = ""
    task: str = ""
    program: str = ""
    folded: bool = False


#: Takes a raw line without its terminator.
Dialect: TypeAlias = Callable[[bytes], UnwrappedLine]

#: Python's `re` replaces and matches much faster than RE2. These expressions run in linear time.
_ANSI = re.compile(rb"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]{0,200}(?:\x07|\x1b\\)|[@-Z\\^_])")
_CRI = re.compile(rb"^([^ ]+) (stdout|stderr) ([^ ]*) ?")
_CRI_STREAMS = (b" stdout ", b" stderr ")
#: A word that may name a machine; numbers of other things that programs count stand beside ranks, too.
_MACHINE = (
    rb"(?!(?:global|local|world|step|epoch|iter|layer|stage|gpu|cuda|device|worker|proc|pid|[dtpce]p|mb|micro|batch|seq|try"
    rb"|attempt|replica|rank|v)[a-z]{0,10}[-_.]?\d)[A-Za-z][\w.-]{0,60}\d[\w.-]{0,60}"
)
_PREFIX = re.compile(
    rb"^(?:\[rank(\d{1,7})\](?:: ?| )"  # PyTorch's except hook and logging; wrappers of one's own
    rb"|\[[A-Za-z_]+?(\d{1,5})\]:"  # torchrun --tee: role name and local rank
    rb"|\[(?:\d+,)?(?:mpirank:)?(\d{1,7})(?:,[\w.-]{1,80})?\]<std(?:out|err|diag)>: ?"  # mpirun, Horovod, SageMaker
    rb"|\([\w.:<>-]{1,80}(?:\[rank=(\d{1,7})\])? pid=(\d+)(?:, ip=([0-9a-fA-F.:]+))?\) ?"  # Ray, with NeMo-RL's rank
    rb"|\[pod/([a-z0-9.-]+)/([a-z0-9.-]+)\] "  # kubectl logs --prefix
    # Wrappers of one's own, with rank and machine: `[rank 40 | tn-52]`, `[tn-52 rank=40]`.
    rb"|\[[Rr]ank[ :=]?(\d{1,7})(?: ?[|,@/] ?| )(?:(?:host|node)[ =:])?(" + _MACHINE + rb")\](?::? |:?$)"
    rb"|\[(" + _MACHINE + rb")(?: ?[|,:/] ?| )[Rr]ank[ :=]?(\d{1,7})\](?::? |:?$))"
)
#: Larger numbers are not ranks.
MAX_RANK = 10_000_000
TRACEBACK = b"Traceback (most recent call last)"
#: A message of a logger that is tried again, or warns of a failure.
_WENT_ON = re2.compile(
    rb"(?i)\bretrying (?:in|after|request|\()|\bwill (?:be )?retr(?:y|ied)\b|\bbacking off\b|\btry(?:ing)? again\b"
    rb"|\bnext (?:(?:retry|attempt|try) )?(?:in|after) \d"
    rb"|^.{0,200}\bwarn(?:ing)?\b.*"
    rb"(?:fail|error|exception|could not|cannot|unable|time[ds]? ?out|unavailable|skip|ignor)"
)
_ANNOUNCED = re2.compile(
    rb"\b(?:ERROR|CRITICAL|FATAL|WARNING)\b.*[\[(][Rr]ank[ :=]?(\d{1,6})[\])]"
    # A field of a logger before or after the level: `rank:3 ERROR`, `| rank=7 |`, `[r2] CRITICAL`, `[Rank 3][ERROR]`.
    rb"|^[\d.,:/ T|Z+-]{0,40}\[?(?:[Gg]lobal[_ ])?[Rr](?:ank)?[ :=]?(\d{1,6})[\]| :]{1,3}(?:ERROR|CRITICAL|FATAL)\b"
    rb"|\b(?:ERROR|CRITICAL|FATAL) *\| *[Rr]ank[ :=]{1,2}(\d{1,6}) *\|"
    rb"|^\[[^\]]{1,40}\] ?\[[Rr]ank[ :=]{0,2}(\d{1,6})\] ?\[(?:ERROR|CRITICAL|FATAL)\]"
    rb"|^\[NeMo E [^\]]{0,80} rank:(\d{1,6})\]"
    rb"|^-+Begin global rank (\d{1,6}) STD(?:OUT|ERR)-+$"  # Composer, at its end
    rb"|^-- Process (\d{1,6}) terminated with the following error:$"  # torch.multiprocessing.spawn
)
#: A time in front of the program's text, from `kubectl logs --timestamps` or `docker logs -t`.
_STAMPED = re.compile(rb"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d{1,9})?(?:Z|[+-]\d\d:\d\d):? ")
#: TorchX writes role, replica and process number: `trainer/0 [1]:`.
_ROLE = re.compile(rb"^[A-Za-z][\w.-]{0,24}/\d{1,5} \[(\d{1,6})\]:")
#: The prefix of every line in a file of several processes, by the program that adds it. It names a rank, a launcher, a
#: host or container, or a pod and its container.
WRAPPINGS = {
    "srun": re.compile(rb"^ *(\d{1,7}): ?"),
    "tasks": re.compile(rb"^ *(\d{1,7}): ?"),
    "compose": re.compile(rb"^([A-Za-z0-9][\w.@-]{0,120}) *\| ?"),
    "stern": re.compile(rb"^([a-z0-9][a-z0-9.-]{1,120}) ([a-z0-9][a-z0-9-]{0,62}) "),
    "pdsh": re.compile(rb"^([A-Za-z][\w.-]{0,60}\d[\w.-]{0,60}|\d{1,3}(?:\.\d{1,3}){3}):(?: |$)"),
}


def clean(raw: bytes) -> bytes:
    """Remove terminal codes, NULs and trailing white space."""
    if b"\x1b" in raw:
        raw = _ANSI.sub(b"", raw)
    if b"\x00" in raw:
        raw = raw.replace(b"\x00", b"")
    return raw.rstrip()


def plain(
    wrapping: str = "",
    single_node: bool = True,
    containers: Mapping[str, int] | None = None,
    tasks: Mapping[str, str] | None = None,
) -> Dialect:
    """Return the dialect of a program's own output, perhaps with prefixes of launchers.

    Args:
        wrapping: the entry of `WRAPPINGS` that every line begins with; empty for none.
        single_node: local ranks are global ranks.
        containers: known ranks of Docker Compose's containers.
        tasks: known machines of srun's tasks.
    """
    ranks, machines = containers or {}, tasks or {}
    wrapped = WRAPPINGS.get(wrapping)
    single_node = single_node and wrapping not in ("pdsh", "tasks")

    def unwrap(raw: bytes) -> UnwrappedLine:
        line = UnwrappedLine(clean(raw))
        if wrapped is not None and (match := wrapped.match(line.text)):
            _unwrap_prefix(line, match, wrapping)
            line.rank = ranks.get(line.host, line.rank)
            line.host = machines.get(line.task, "") if line.task else line.host
        strip_prefixes(line, single_node)
        return line

    return unwrap


def _unfold(line: UnwrappedLine) -> None:
    """Move a traceback from a field of a JSON line to the lines after it."""
    try:
        entry = msgspec.json.decode(line.text.decode("utf-8", "replace"))
    except (msgspec.DecodeError, RecursionError):
        return
    if not isinstance(entry, dict):
        return
    for fields in (entry, *(value for value in entry.values() if isinstance(value, dict))):
        for name, value in fields.items():
            if isinstance(value, str) and TRACEBACK.decode() in value:
                fields[name] = ""
                line.folded = True
                line.text = msgspec.json.encode(entry) + b"\n" + clean(value.encode("utf-8", "surrogatepass"))
                rank = entry.get("global_rank", entry.get("rank"))
                if type(rank) is int and 0 <= rank < MAX_RANK:
                    line.rank = rank
                return


def _unwrap_prefix(line: UnwrappedLine, match: re.Match[bytes], wrapping: str) -> None:
    """Remove a wrapping, and take host, rank or pod from it."""
    name, *more = [group.decode("ascii", "replace") for group in match.groups()]
    line.writer = match.group().rstrip() + b" "
    line.text = line.text[match.end() :]
    if wrapping == "srun":
        line.rank = int(name)
    elif wrapping == "tasks":
        line.task = name
    elif wrapping in ("compose", "pdsh"):
        line.host = name
    else:
        line.attributes = {"k8s.pod.name": name, "k8s.container.name": more[0]}


def strip_prefixes(line: UnwrappedLine, single_node: bool) -> None:
    """Remove prefixes of launchers and times in front of them, and take rank and writer from them.

    If the rest is JSON with a traceback, unfold it.
    """
    _strip(line, single_node)
    if line.text[:1] == b"{" and TRACEBACK in line.text:
        _unfold(line)


def _strip(line: UnwrappedLine, single_node: bool) -> None:
    for _ in range(3):
        text = line.text
        # Most lines have no prefix, and many begin with a bracketed time.
        if text[:1] == b"[":
            if b"]" not in text[2:100] or (text[1:3].isdigit() and b"]<std" not in text[:100]):
                return
        elif text[10:11] == b"T" and text[4:5] == b"-":
            if (stamped := _STAMPED.match(text)) is None:
                return
            line.stamp = line.stamp or stamps.find(stamped.group())
            line.text = text[stamped.end() :]
            continue
        elif text[24:25] == b"[" and b"]<std" in text[25:60]:  # mpirun --timestamp-output
            line.stamp = line.stamp or stamps.find(text[:24])
            line.text = text[24:]
            continue
        elif b"/" in text[:32] and (role := _ROLE.match(text)) is not None:
            number = int(role.group(1))
            line.attributes = {**(line.attributes or {}), "gen_ai.training.local_rank": number}
            line.rank = number if single_node and line.rank is None else line.rank
            line.writer += role.group()
            line.text = text[role.end() :]
            continue
        elif text[:1] != b"(" or b" pid=" not in text[:100]:
            return
        match = _PREFIX.match(text)
        if match is None:
            return
        rank, local, mpi, actor, pid, ip, pod, container, of_host, host, other_host, of_other = match.groups()
        attributes: Attributes = line.attributes or {}
        if (own := rank or mpi or actor or of_host or of_other) is not None:
            line.rank = int(own)
        if (machine := host or other_host) is not None:
            line.host = line.host or machine.decode("ascii", "replace")
        if local is not None:
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
        # In an empty line of PyTorch's except hook the trailing space was removed.
        line.writer += match.group() if line.text or not match.group().endswith(b":") else match.group() + b" "


def announced(line: bytes) -> int | None:
    """Return the rank in the message of a logger that reports an error."""
    found = _ANNOUNCED.search(line)
    return int(next(rank for rank in found.groups() if rank)) if found else None


def went_on(message: bytes) -> bool:
    """Return whether a logger's message says that the program went on after the exception below it."""
    return bool(_WENT_ON.search(message))


def container(single_node: bool = True) -> Dialect:
    """Return the dialect of CRI runtimes (containerd, CRI-O) and Docker's json-file driver."""

    def unwrap(raw: bytes) -> UnwrappedLine:
        line = docker(raw) if raw[:1] == b"{" else cri(raw)
        if line is None:
            line = UnwrappedLine(clean(raw))
        elif not line.partial:
            line.text = clean(line.text)
            strip_prefixes(line, single_node)
        return line

    return unwrap


def cri(raw: bytes) -> UnwrappedLine | None:
    """Unwrap `2026-11-15T01:37:04.123456789Z stdout F text`. Of several tags (`F:x`) only the first matters."""
    begin = raw.find(b" ")
    end = raw.find(b" ", begin + 8) if raw[begin : begin + 8] in _CRI_STREAMS else -1
    if begin > 0 and end > 0 and raw[:end].isascii():
        # The usual case needs no regular expression.
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
    return UnwrappedLine(text, name, stamp, partial=tag.split(b":", 1)[0] == b"P", attributes=attributes)


def whole_bars(block: bytes) -> bytes:
    """Mark each redraw of a progress bar as a whole line (`F`) in a CRI log. The offsets of all bytes stay the same.

    A bar begins or ends with a carriage return and has no newline. CRI-O therefore tags each redraw as a part of a line
    (`P`), and thousands of redraws would be joined to one line.
    """
    if b"\r" not in block:
        return block
    changed = bytearray(block)
    for header in (b" stdout P ", b" stderr P "):
        at = block.find(header)
        while at >= 0:
            text = at + len(header)
            end = block.find(b"\n", text)
            end = len(block) if end < 0 else end
            if b" " not in block[block.rfind(b"\n", 0, at) + 1 : at] and b"\r" in (
                block[text : text + 1],
                block[end - 1 : end],
            ):
                changed[text - 2 : text] = b"F "
            at = block.find(header, end)
    for header in (b" stdout F ", b" stderr F "):
        # The text of the bar begins after the carriage return.
        changed = changed.replace(header + b"\r", header + b" ")
    return bytes(changed)


#: Drawings of a bar of tqdm, with the escapes of JSON.
_DRAWN = re2.compile(rb"(?:(?:\\r)*\s*[^%|]{0,120}\d{1,3}%\|[^|]*\| [^|\]]*\]\s*)+(?:\\r)*")


def last_redraws(block: bytes) -> bytes:
    """Blank all but the last drawing of a bar in each line of Docker's log. The offsets of all bytes stay the same.

    A bar has no newline, so one line has up to 16 KiB of its redraws. Lines with other text between them are unchanged.
    """
    at = block.find(rb"\r") if b"%|" in block else -1
    if at < 0:
        return block
    changed = bytearray(block)
    while at >= 0:
        start, end = block.rfind(b"\n", 0, at) + 1, block.find(b"\n", at)
        end = len(block) if end < 0 else end
        if block.startswith(b'{"log":"', start):
            parts = block[start + 8 : end].partition(b'","stream"')[0].split(rb"\r")
            drawn = parts[: max((number for number, part in enumerate(parts) if b"%|" in part), default=0)]
            size = len(rb"\r".join(drawn))
            if _DRAWN.fullmatch(block[start + 8 : start + 8 + size]) is not None:
                changed[start + 8 : start + 8 + size] = b" " * size
        at = block.find(rb"\r", end)
    return bytes(changed)


class _Docker(msgspec.Struct):
    log: str
    stream: str = "stdout"
    time: str = ""


_docker = msgspec.json.Decoder(_Docker)


def docker(raw: bytes) -> UnwrappedLine | None:
    """Unwrap `{"log":"text\\n","stream":"stdout","time":"…"}`."""
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
    return UnwrappedLine(text.rstrip(b"\r\n"), name, stamp, partial=partial, attributes={"log.iostream": entry.stream})
