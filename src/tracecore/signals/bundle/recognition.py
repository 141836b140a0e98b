"""Recognise the format of a file by its content first, then by its name."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from itertools import islice, pairwise

import msgspec
import re2

from tracecore.signals import stamps
from tracecore.signals.kernel import ibstat
from tracecore.signals.kernel import lines as kernel_lines
from tracecore.signals.kubernetes import printed
from tracecore.signals.logs.dialects import WRAPPINGS, plain
from tracecore.signals.nvidia import smi
from tracecore.signals.scheduler import slurm
from tracecore.signals.stamps import Stamp

#: Format → layer. The formats are the keys of the table of readers, too.
LAYER_OF = {
    "text": "stdout",
    "cri": "stdout",
    "docker": "stdout",
    "elastic_error": "stdout",
    "dmesg": "kernel",
    "syslog": "kernel",
    "journal_json": "kernel",
    "journal_export": "kernel",
    "kubernetes_json": "kubernetes",
    "kubernetes_yaml": "kubernetes",
    "kubernetes_describe": "kubernetes",
    "kubernetes_fragment": "kubernetes",
    "kubernetes_nodes": "kubernetes",
    "kubernetes_pods": "kubernetes",
    "kubernetes_table": "kubernetes",
    "prometheus": "metrics",
    "nvidia_smi": "metrics",
    "nvidia_csv": "metrics",
    "nvidia_nvlink": "metrics",
    "nvidia_table": "metrics",
    "ibstat": "kernel",
    "flight_recorder": "flight_recorder",
    "exit_codes": "scheduler",
    "sacct": "scheduler",
    "sacct_json": "scheduler",
    "scontrol": "scheduler",
    "sinfo": "scheduler",
}


class Recognised(msgspec.Struct, frozen=True):
    """The format of a file; `format` is empty where nothing reads it, and `reason` says why."""

    format: str = ""
    layer: str = ""
    reason: str = ""
    wrapping: str = ""


_CRI = re2.compile(rb"^[^ ]{8,40} (?:stdout|stderr) [FP](?::[^ ]*)?(?: |$)")
_LEVELS = frozenset((b"INFO", b"WARN", b"WARNING", b"ERROR", b"DEBUG", b"CRITICAL", b"FATAL", b"TRACE", b"NOTICE"))
_DAEMON = re2.compile(
    rb" (?:[\w./@()-]+\[\d+\]|kernel|systemd|kubelet|containerd|slurmd|slurmctld|slurmstepd|sshd|CRON): "
)
#: How lines of `dmesg -t` begin, which have no time at all.
_KERNEL = (
    b"NVRM: ",
    b"nvidia-nvswitch",
    b"nvidia-nvlink",
    b"nvidia ",
    b"pcieport ",
    b"mlx5_core ",
    b"infiniband ",
    b"EXT4-fs ",
    b"XFS (",
    b"Memory cgroup out of memory",
    b"Out of memory: ",
    b"oom-kill:",
    b"oom_reaper: ",
    b"mce: ",
    b"EDAC ",
    b"watchdog: BUG",
    b"INFO: task ",
    b"BUG: ",
    b"audit: ",
    b"usb ",
    b"nvme ",
    b"nfs: ",
    b"LustreError",
    b"amdgpu ",
)
_OBJECTS = re2.compile(rb'"?kind"?: ?"?(?:Event|Pod|Node)(?:List)?\b')
_OTHER_OBJECTS = "Kubernetes objects, but neither events, pods nor nodes"
_DOCKER = re2.compile(rb'^\{"log":"')
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
_EXIT_CODES = re2.compile(rb'^\s*\{(?:\s*"(?:rank_?)?\d{1,7}"\s*:\s*(?:-?\d{1,10}|null)\s*,?)+\s*\}\s*$')
_YAML_KIND = re2.compile(rb"(?m)^(?:- | {0,4})?kind: ?[A-Z]")
_YAML_VERSION = re2.compile(rb"(?m)^(?:- | {0,4})?apiVersion: ")
_EVENTS_TABLE = re2.compile(
    rb"(?m)^(?:NAMESPACE +)?LAST SEEN +(?:FIRST SEEN +COUNT +NAME +KIND +)?.*\bREASON\b.*\bMESSAGE\b"
)
#: The command that printed the rest, as somebody copied it from a terminal, with or without the prompt.
_COMMAND = re2.compile(
    rb"^(?:[^\n]{0,100}[$#>%] +| *)(?:sudo +)?"
    rb"(?:(?:kubectl|oc|k) [^\n]*\b(?:get|describe)\b|(?:sacct|scontrol|sinfo|nvidia-smi|ibstat)\b)[^\n]*\n\s*"
)
_NODES_TABLE = re2.compile(rb"^NAME +STATUS +ROLES +AGE +VERSION\b")
_PODS_TABLE = re2.compile(rb"^(?:NAMESPACE +)?NAME +READY +STATUS +RESTARTS +AGE\b")
#: Rows of kubectl without the header.
_BARE_ROWS = (
    (printed.BARE_ROW, "kubernetes_table"),
    (printed.BARE_DATED, "kubernetes_table"),
    (printed.BARE_EVENT, "kubernetes_table"),
    (printed.BARE_OLD_EVENT, "kubernetes_table"),
    (printed.BARE_POD, "kubernetes_pods"),
)
#: Bytes of a piece that somebody cut out of `kubectl describe`.
_FRAGMENT = 8192
_DESCRIBE = re2.compile(rb"(?m)^Name: +\S")
_DESCRIBE_TOO = re2.compile(rb"(?m)^(?:Namespace|Roles|Annotations|Conditions|Events|Controlled By|Containers): *")
_SACCT_PIPED = re2.compile(rb"(?m)^(?:[A-Za-z]+\|)*JobID(?:Raw)?\|")
_SACCT_FIXED = re2.compile(rb"(?m)^ *JobID(?:Raw)? +.*\bState\b.*\n[- ]+$")
_SCONTROL = re2.compile(rb"(?m)^ *(?:JobId=\d+ |NodeName=\S+ |JobId=\d+$|StepId=)")
_NVIDIA_FIELDS = (
    b"pci.bus_id",
    b"temperature.gpu",
    b"utilization.gpu",
    b"clocks.",
    b"ecc.errors",
    b"power.draw",
    b"gpu_uuid",
)
#: The part of `nvidia-smi -q` that is about one GPU, without what stands above it.
_SMI_OF_ONE = re2.compile(rb"(?m)^GPU [0-9A-F]{8}:[0-9A-F]{2}:[0-9A-F]{2}\.[0-7]\r?\n {4}[A-Z][\w ]+ : ")
_SLURM_DAEMON = re2.compile(
    rb"(?m)^\[?\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d[.\d]*\]? (?:slurmctld|slurmd|error: |debug|sched: |_slurm)"
)
#: The log of the board's management controller, as ipmitool prints it.
_SEL = re2.compile(rb"(?m)^\s*[0-9a-f]{1,6} \| +(?:\d\d/\d\d/\d{2,4}|[Pp]re-Init) *\| +[\d:]+[^|\n]*\|")


#: Logs of programs that look after the machine.
_OF_MACHINE = ("fabricmanager", "nvidia-fabricmanager", "nv-hostengine", "nvidia-dcgm", "dcgm", "ipmi", "df", "nhc")
#: Tables that programs print which look at the machine: DCGM's, sensors of the board, and file systems.
_OF_HEALTH = re2.compile(
    rb"(?m)^\| (?:Diagnostic +\| Result|Health Monitor Report)|^[\s{]*\"DCGM GPU Diagnostic\"|^\s*gpuId \d+:\s*$"
    rb"|^\d{1,4},[^,\n]{1,40},(?:Fan|Power Supply|Temperature|Voltage)[^,\n]*,"
    rb"|^Filesystem +(?:Type +)?(?:Size|1K-blocks|1M-blocks) +Used +Avail"
)


def _is_event_log(early: bytes) -> bool:
    return (b" | " in early and _SEL.search(early) is not None) or _OF_HEALTH.search(early) is not None


#: Lines at either end of a file in which a time is looked for.
LOOKED_AT = 100
#: Times at either end that are compared with each other.
COMPARED = 8
_LOG = re2.compile(r"(?i)\.(?:log|out|err|txt)(?:\.\d+)?$")
_BINARY = bytes(set(range(32)) - {7, 8, 9, 10, 12, 13, 27})


def recognise(head: bytes, tail: bytes, name: str, complete: bool) -> Recognised:
    """Return what a file is.

    Args:
        head: its first bytes, tens of KiB.
        tail: its last bytes; empty where head has them.
        name: base name, without the suffix of a compression.
        complete: head is the whole file.
    """
    if not head:
        # A log nobody wrote to was read all the same.
        return Recognised("text", "stdout") if _LOG.search(name) else Recognised(reason="empty")
    if complete and not head.strip(b" \t\r\n\0"):
        return Recognised(reason="nothing but blanks")
    found = _by_content(head, complete)
    if found == "text" and not complete and tail:
        # A banner or a few start-up lines may hide what the rest is.
        later = _by_line(tail)
        found = later if later != "text" else found
    if found in ("text", ""):
        found = _by_name(name, head) or found
    if not found:
        return Recognised(reason="binary, not a format known here")
    if found in ("kubernetes_json", "kubernetes_yaml") and complete and not _OBJECTS.search(head):
        return Recognised(reason=_OTHER_OBJECTS)
    layer = LAYER_OF[found]
    if found == "text" and (name.startswith(("slurmctld", "slurmd")) or _SLURM_DAEMON.search(head[:4096])):
        layer = "scheduler"
    elif found == "text" and (name.startswith(_OF_MACHINE) or _is_event_log(head[:4096])):
        layer = "kernel"
    elif found == "text" and name.startswith(("kubelet", "containerd")):
        layer = "kubernetes"
    return Recognised(found, layer, wrapping=_wrapping(head) if found == "text" else "")


def _by_content(head: bytes, complete: bool) -> str:
    if head[:1] == b"\x80" and head[1:2] in (b"\x02", b"\x03", b"\x04", b"\x05"):
        known = any(word in head for word in (b"pg_config", b"nccl_version", b"profiling_name", b"entries"))
        return "flight_recorder" if known else ""
    if is_binary(head):
        return "journal_export" if head.startswith((b"__CURSOR=", b"__REALTIME_TIMESTAMP=")) else ""
    start = head.lstrip(b"\xef\xbb\xbf \t\r\n")
    if start[:1] in (b"{", b"[") and (found := _by_json(start, complete)):
        return found
    if (command := _COMMAND.match(start)) is not None:
        start = start[command.end() :]
    if b"NVSMI LOG" in head[:4096] or _SMI_OF_ONE.search(head[:4096]) is not None:
        return "nvidia_smi"
    if b"NVIDIA-SMI " in head[:1024] and smi.TABLE.search(head[:1024]):
        return "nvidia_table"
    # Asking for a literal costs a tenth of asking a regular expression, and a bundle may have 100,000 files.
    if start.startswith(b"GPU ") and smi.NVLINK_BEGINS.match(start):
        return "nvidia_nvlink"
    if (start.startswith((b"CA '", b"hca_id:")) or b" ==> " in start[:128]) and ibstat.BEGINS.match(start):
        return "ibstat"
    if head.startswith((b"__CURSOR=", b"__REALTIME_TIMESTAMP=")):
        return "journal_export"
    first = start.split(b"\n", 1)[0]
    if b"," in first and sum(field in first for field in _NVIDIA_FIELDS) >= 2:
        return "nvidia_csv"
    early = head[:4096]
    if b"JobID" in early and (_SACCT_PIPED.search(early) or _SACCT_FIXED.search(early)):
        return "sacct"
    if b"=" in first and _SCONTROL.match(start):
        return "scontrol"
    if b"NODELIST" in first and slurm.SINFO_BEGINS.match(first):
        return "sinfo"
    if b"VERSION" in first and _NODES_TABLE.match(start):
        return "kubernetes_nodes"
    if b"LAST SEEN" in first and _EVENTS_TABLE.match(start):
        return "kubernetes_table"
    if b"RESTARTS" in first and _PODS_TABLE.match(start):
        return "kubernetes_pods"
    for row, kind in _BARE_ROWS:
        if row.match(first) and all(row.match(line) for line in start.splitlines()[1:3] if line.strip()):
            return kind
    if start.startswith(b"Name:") and _DESCRIBE.match(start) and _DESCRIBE_TOO.search(head):
        return "kubernetes_describe"
    if complete and len(head) <= _FRAGMENT and printed.FRAGMENT_BEGINS.match(start) and printed.FRAGMENT.search(head):
        return "kubernetes_fragment"
    if b"apiVersion: " in head[:8192] and _YAML_VERSION.search(head[:8192]) and _YAML_KIND.search(head):
        begins = start.startswith((b"apiVersion:", b"kind:", b"items:", b"---", b"- apiVersion:", b"#"))
        return "kubernetes_yaml" if begins else _by_line(head)
    return _by_line(head)


def _by_json(start: bytes, complete: bool) -> str:
    if _DOCKER.match(start):
        return "docker"
    if b'"__REALTIME_TIMESTAMP"' in start:
        return "journal_json"
    if b'"apiVersion"' in start and b'"kind"' in start and not start.startswith(b'{"level"'):
        return "kubernetes_json"
    if (b'"pg_config"' in start or b'"collective_seq_id"' in start or b'"nccl_version"' in start) and (
        b'"entries"' in start or b'"version"' in start
    ):
        return "flight_recorder"
    if complete and _EXIT_CODES.match(start):
        return "exit_codes"
    if b'"py_callstack"' in start:
        return "elastic_error"
    if b'"jobs"' in start and (b'"job_id"' in start or b'"slurm"' in start):
        return "sacct_json"
    return ""


def _by_line(sample: bytes) -> str:
    lines = [line for line in sample[:16_384].replace(b"\r", b"\n").split(b"\n") if line.strip()][:40]
    if not lines:
        return "text"
    if any(line[:1] == b"#" for line in lines) or b'="' in sample:
        values = sum(1 for line in lines if line[:1] == b"#" or _SAMPLE.match(line))
        if values >= len(lines) * 0.8 and (_FAMILY.search(sample) or _SERIES.search(sample)):
            return "prometheus"
    kinds: Counter[str] = Counter()
    for line in lines:
        kind = _kind(line)
        kinds[kind] += 1
        if kinds[""] > len(lines) * 0.4:
            return "text"  # no other kind can have most of the lines any more
        if kind and kinds[kind] >= len(lines) * 0.6:
            # `time name logger: text` is how many programs log, too: a system log has process ids or known daemons.
            return kind if kind != "syslog" or any(_DAEMON.search(line[:200]) for line in lines) else "text"
    return "text"


def _kind(line: bytes) -> str:
    """Return which format of lines this could be one of; cheap questions come before regular expressions."""
    if line.startswith(_KERNEL):
        return "dmesg"
    first, early = line[:1], line[:60]
    if first == b"{":
        return "docker" if _DOCKER.match(line) else ""
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
        match = kernel_lines.SYSLOG.match(line)
        if match and match.group(2).upper() not in _LEVELS:
            return "syslog"
    return ""


def _by_name(name: str, head: bytes) -> str:
    """A name counts only where the content does not speak against it."""
    lower = name.lower()
    text = not is_binary(head)
    if not text:
        return "flight_recorder" if lower.startswith("nccl_trace") else ""
    if lower.startswith(("dmesg", "kern.log", "kmsg")) or lower.endswith((".dmesg", "dmesg.txt", "dmesg.log")):
        return "dmesg"
    if lower.startswith(("syslog", "messages", "journal")):
        return "syslog"
    if lower.startswith(("exit_codes", "exit-codes", "exitcodes")) and lower.endswith(".json"):
        return "exit_codes"
    if lower.endswith(".prom"):
        return "prometheus"
    return ""


def is_binary(head: bytes) -> bool:
    """Return whether this is no text. NULs between text (a crashed writer, a sparse log) are text still.

    A few control bytes are text too, unless much around them is no UTF-8: text in other encodings has none.
    """
    sample = head.replace(b"\x00", b"")[:8192]
    strange = len(sample) - len(sample.translate(None, _BINARY))
    if not sample or strange * 20 > len(sample):
        return True
    return strange > 0 and sample.decode("utf-8", "replace").count("\ufffd") * 4 > len(sample)


_WORK = re2.compile(
    rb"(?i)Traceback \(most recent call last\)|\bloss[\\\"']?[ =:]|\bstep[\\\"']?[ =:]+\d|\bNCCL |ProcessGroupNCCL"
)


def holds_work(found: Recognised, head: bytes, tail: bytes) -> bool:
    """Return whether a log of the system also has the output of a program that trains."""
    if found.format not in ("syslog", "journal_json"):
        return False
    for line in (head + b"\n" + tail).split(b"\n"):
        if _WORK.search(line):
            if found.format == "journal_json":
                return True
            match = kernel_lines.SYSLOG.match(line)
            if match is not None and not kernel_lines.is_system(match.group(3).decode("utf-8", "replace")):
                return True
    return False


_LABELLED = re2.compile(rb"^ *\d{1,7}: ?[\[A-Za-z]")


def _wrapping(head: bytes) -> str:
    """Return which of `dialects.WRAPPINGS` stands before every line: nearly all have it; of a few lines all."""
    lines = [line for line in head[:16_384].split(b"\n")[:60] if line.strip() and not _is_of_launcher(line)]
    if len(lines) < 4:
        return "srun" if len(lines) > 1 and all(map(_LABELLED.match, lines)) else ""
    for name, expression in WRAPPINGS.items():
        # The first few tell that nearly every file has none.
        first = [line for line in lines[:8] if _MAY_WRAP[name](line)]
        if sum(1 for line in first if expression.match(line)) * 2 <= len(lines[:8]):
            continue
        found = [match for line in lines if (match := expression.match(line))]
        if len(found) >= len(lines) * 0.9 and _TELLS_APART[name](found):
            return name
    return ""


def _is_of_launcher(line: bytes) -> bool:
    """Whether the program writes this itself that puts its wrapping before the lines of others."""
    return line.startswith((b"Attaching to ", b"srun: ", b"slurmstepd: ")) or b" exited with code " in line


_NUMBERED = re2.compile(rb"[-_.]\d+(?:\.\w+@[\w.-]+)?$")
_POD = re2.compile(rb"-[a-z0-9-]*\d|\d[a-z0-9]*-|-[a-z0-9]{5}$")


def _are_containers(found: list[re2._Match]) -> bool:
    """Compose writes its bars below each other, after names that it has numbered or of which there are several."""
    names = {match.group(1) for match in found}
    bars = {match.group().find(b"|") for match in found}
    named = all(_NUMBERED.search(name) for name in names) or (len(names) > 1 and not names & _LEVELS)
    return len(bars) == 1 and named and not any(name.isdigit() for name in names)


def _are_pods(found: list[re2._Match]) -> bool:
    """The same few names again and again, which look like those of pods."""
    pods = {match.group(1) for match in found}
    containers = {match.group(2) for match in found}
    few = len(pods) * 3 <= len(found) and len(containers) <= 3
    return few and len(found) >= 8 and all(_POD.search(pod) for pod in pods)


#: Lines that cannot begin with a wrapping, told without a regular expression.
_MAY_WRAP: dict[str, Callable[[bytes], bool]] = {
    "srun": lambda line: line.lstrip(b" ")[:1].isdigit(),
    "compose": lambda line: line[:1].isalnum() and b"|" in line,
    "stern": lambda line: line[:1].isalnum(),
}
_TELLS_APART: dict[str, Callable[[list[re2._Match]], bool]] = {
    "srun": lambda found: True,
    "compose": _are_containers,
    "stern": _are_pods,
}


def times(head: bytes, tail: bytes) -> tuple[Stamp | None, list[Stamp]]:
    """The first timestamp of a file, and its last ones: the last, and the last complete one where that is another."""
    early = head.replace(b"\r", b"\n")
    late = tail.replace(b"\r", b"\n") if tail else early
    known: dict[bytes, Stamp | None] = {}  # a short file has the same lines at both ends

    def stamp_of(raw: bytes) -> Stamp | None:
        if raw not in known:
            known[raw] = _stamp(raw)
        return known[raw]

    begin = list(islice(filter(None, map(stamp_of, early.split(b"\n", LOOKED_AT)[:LOOKED_AT])), COMPARED))
    end: list[Stamp] = []
    complete = 0
    for raw in late.rsplit(b"\n", LOOKED_AT)[: -LOOKED_AT - 1 : -1]:
        stamp = stamp_of(raw)
        if stamp is None or (end and stamp.missing):
            continue
        end.append(stamp)
        complete += not stamp.missing
        if complete == COMPARED:
            break
    dated = [stamp for stamp in end if not stamp.missing]
    return _typical(begin), [*(stamp for stamp in end[:1] if stamp.missing), *filter(None, (_typical(dated),))]


def _typical(found: list[Stamp]) -> Stamp | None:
    """The first of these times that the next one agrees with: a single date may be of anything."""
    for stamp, following in pairwise(found):
        if stamp.missing or following.missing or abs(stamp.nanos - following.nanos) < stamps.APART:
            return stamp
    return found[0] if found else None


_WRAPPED = plain()
#: Whole dates inside lines, where the stamps around them have no year: torchelastic's table, slurmstepd.
_TOLD = re2.compile(rb"(?:^|\s)(?:time +: |CANCELLED AT )(\d{4}-\d\d-\d\d)[_T](\d\d:\d\d:\d\d)")


def _stamp(raw: bytes) -> Stamp | None:
    if len(raw) < 10:
        return None
    if raw.startswith(b"Timestamp  "):  # nvidia-smi -q
        return stamps.find(raw.partition(b":")[2].strip())
    if (b" : " in raw or b" AT " in raw) and (told := _TOLD.search(raw[:400])) is not None:
        return stamps.find(b"T".join(told.groups()))
    line = _WRAPPED(raw[:400])
    return line.stamp or stamps.find(line.text)


_HAPPENED = re2.compile(
    rb'"?(?:lastTimestamp|eventTime|finishedAt|lastObservedTime)"?: ?"?(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d[.\d]*Z)'
)
_JOURNALED = re2.compile(rb'__REALTIME_TIMESTAMP(?:=|"\s*:\s*")(\d{10,17})')


def recorded_times(sample: bytes) -> list[int]:
    """Times in Kubernetes objects or journal entries; only the latest matters."""
    found = [stamps.parse(text.decode()) or 0 for text in _HAPPENED.findall(sample)]
    found += [int(micros) * 1000 for micros in _JOURNALED.findall(sample)]
    found = [time for time in found if stamps.is_plausible(time)]
    return [max(found)] if found else []
