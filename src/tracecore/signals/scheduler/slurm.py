"""Slurm's own account of jobs and nodes: `sacct` (piped, fixed columns, JSON), `scontrol show job|node`, `sinfo`."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import zip_longest
from typing import Any

import msgspec
import re2

from tracecore.signals import stamps, whole
from tracecore.signals.record import Attributes, LogSignal, Resource, Source
from tracecore.signals.stream import Clock, Stream

MAX_BYTES = 256 << 20

_PAIR = re2.compile(r"(?:^|\s)([A-Za-z][\w/:]*)=")
_RULE = re2.compile(r"^-+(?: +-+)*\s*$")
_HOST = re2.compile(r"^[A-Za-z0-9][\w.-]*$")
_STATES = (
    "BOOT_FAIL", "CANCELLED", "COMPLETED", "COMPLETING", "CONFIGURING", "DEADLINE", "FAILED", "NODE_FAIL",
    "OUT_OF_MEMORY", "PENDING", "PREEMPTED", "REQUEUED", "RESIZING", "REVOKED", "RUNNING", "STOPPED", "SUSPENDED",
    "TIMEOUT",
)  # fmt: skip


def exit_code(text: str) -> int | None:
    """Slurm's `code:signal` as one number, negative for a signal."""
    code, _, signal = text.strip().partition(":")
    try:
        number = int(signal) if signal else 0
        return -number if number else int(code)
    except ValueError:
        return None


def read_sacct(stream: Stream, clock: Clock) -> Iterator[LogSignal]:
    """`sacct`, with `-P` or in columns; one record for each job and step."""
    columns: list[str] = []
    spans: list[tuple[int, int]] = []
    offset = 0
    previous = ""
    for number, raw in enumerate(whole.content(stream, MAX_BYTES).split(b"\n"), 1):
        here, offset = offset, offset + len(raw) + 1
        line = raw.decode("utf-8", "replace").rstrip("\r")
        if "JobID" in line and "|" in line:
            columns, spans = [name.strip() for name in line.split("|")], []
        elif _RULE.match(line) and "JobID" in previous:
            spans = [(found.start(), found.end()) for found in re2.finditer(r"-+", line)]
            columns = [previous[start:end].strip() for start, end in spans]
        elif columns and line.strip():
            cells = _cells(line, spans) if spans else line.split("|")
            row = dict(zip(columns, (cell.strip() for cell in cells), strict=False))
            if record := _job(row, line, stream, clock, Source(stream.path, here, number, len(raw))):
                yield record
        previous = line


def _cells(line: str, spans: list[tuple[int, int]]) -> list[str]:
    """Return the cells of a row. Where the ruler's gaps cut words, as in a table that was copied by hand, each word
    belongs to the column below which most of it stands."""
    if all(line[end : end + 1].isspace() for _, end in spans[:-1] if end < len(line)):
        return [line[start:end] for start, end in spans[:-1]] + [line[spans[-1][0] :]]
    cells: list[list[str]] = [[] for _ in spans]
    for word in re2.finditer(r"\S+", line):
        below = [min(word.end(), end) - max(word.start(), start) for start, end in spans]
        cells[below.index(max(below))].append(word.group())
    return [" ".join(words) for words in cells]


def _job(row: dict[str, str], body: str, stream: Stream, clock: Clock, source: Source) -> LogSignal | None:
    job = row.get("JobID") or row.get("JobIDRaw") or row.get("JobId") or ""
    words = (row.get("State") or row.get("JobState") or "").split()
    # Narrow columns cut a state off: "OUT_OF_ME+" is still one.
    state = words[0].rstrip("+") if words else ""
    state = next((known for known in _STATES if state and known.startswith(state)), state)
    if not job or not state or _says_nothing(job.partition(".")[2], state):
        return None
    attributes: Attributes = {"tracecore.slurm.state": state, "tracecore.slurm.job_id": job}
    code = exit_code(row.get("ExitCode", ""))
    if code is not None and _counts(code, state):
        attributes["tracecore.process.exit_code"] = code
    if (reason := row.get("Reason", "")) not in ("", "None"):
        attributes["tracecore.slurm.reason"] = reason
    when = next(
        (t for name in ("End", "EndTime", "Start", "StartTime") if (t := stamps.parse(row.get(name, "")))), None
    )
    identity: Attributes = {"gen_ai.training.job_id": job.split(".")[0]}
    if (listed := row.get("NodeList", "")) and listed.lower() not in ("none assigned", "none", "unknown", "(null)"):
        attributes["tracecore.slurm.nodes"] = listed
    nodes = listed or row.get("BatchHost") or ""
    if _HOST.match(nodes) and nodes.lower() not in ("none", "unknown"):
        identity["host.name"] = nodes
    return _record(stream, clock, identity, attributes, body.strip(), when, source)


def _counts(code: int, state: str) -> bool:
    """Return whether this is how a process ended: a job that lost its node has a 0 there, too, and did not end well."""
    return state not in ("RUNNING", "PENDING") and (code != 0 or state == "COMPLETED")


def _says_nothing(step: str, state: str) -> bool:
    """Return whether a step says nothing about how the job went.

    The one that Slurm runs for itself (`extern`) ends well whatever happens; and steps are cancelled because a task or
    the node failed as often as because somebody asked: who asked is in the job's own row.
    """
    return step.startswith("ext") or (bool(step) and state == "CANCELLED")


def _record(
    stream: Stream,
    clock: Clock,
    identity: Attributes,
    attributes: Attributes,
    body: str,
    when: int | None,
    source: Source,
) -> LogSignal:
    if when is None:
        attributes["tracecore.time.inferred"] = True
    resource: Resource = {"attributes": {**stream.resource, **identity, "tracecore.layer": stream.layer}}
    return {
        "resource": resource,
        "log": {"body": body, "attributes": attributes, "time_unix_nano": clock.latest if when is None else when},
        "source": source,
    }


def read_sacct_json(stream: Stream, clock: Clock) -> Iterator[LogSignal]:
    """`sacct --json`, `squeue --json`, `scontrol show job --json`; jobs and their steps."""
    document = msgspec.json.decode(whole.content(stream, MAX_BYTES))
    jobs = document.get("jobs") if isinstance(document, dict) else None
    for index, job in enumerate(jobs if isinstance(jobs, list) else []):
        if not isinstance(job, dict):
            continue
        steps = job.get("steps")
        for part, entry in enumerate([job, *(steps if isinstance(steps, list) else [])]):
            if isinstance(entry, dict):
                ident = f"{stream.path}#{index}.{part}"
                if record := _json_job(entry, job, stream, clock, Source(stream.path, index, 0, 0, ident)):
                    yield record


def _json_job(
    entry: dict[str, Any], job: dict[str, Any], stream: Stream, clock: Clock, source: Source
) -> LogSignal | None:
    state = entry.get("state") or entry.get("job_state")
    if isinstance(state, dict):
        state = state.get("current")
    if isinstance(state, list):
        state = state[0] if state else None
    if not isinstance(state, str):
        return None
    step = entry.get("step")
    number = job.get("job_id")
    name = step.get("id") if isinstance(step, dict) else None
    if isinstance(name, dict):
        name = f"{name.get('job_id', number)}.{name.get('step_id', '')}"
    label = str(step.get("name") or "step") if isinstance(step, dict) else ""
    if _says_nothing(label, state):
        return None
    attributes: Attributes = {"tracecore.slurm.state": state, "tracecore.slurm.job_id": str(name or number)}
    code = entry.get("exit_code")
    if isinstance(code, dict):
        signal = _number(code.get("signal", {}).get("id") if isinstance(code.get("signal"), dict) else None)
        ended = -signal if signal else _number(code.get("return_code"))
        if ended is not None and _counts(ended, state):
            attributes["tracecore.process.exit_code"] = ended
    times = entry.get("time")
    end = _number(times.get("end") if isinstance(times, dict) else entry.get("end_time"))
    identity: Attributes = {"gen_ai.training.job_id": str(number)}
    nodes = entry.get("nodes")
    if isinstance(nodes, dict):
        nodes = nodes.get("range")
    if isinstance(nodes, str) and _HOST.match(nodes):
        identity["host.name"] = nodes
    body = f"job {name or number} {state}"
    return _record(stream, clock, identity, attributes, body, end * 1_000_000_000 if end else None, source)


def _number(value: object) -> int | None:
    if isinstance(value, dict):
        value = value.get("number") if value.get("set", True) else None
    return value if isinstance(value, int) and not isinstance(value, bool) else None


#: How a table of `sinfo` begins: the names of its columns, among them the nodes and their state or the reason for it.
SINFO_BEGINS = re2.compile(
    rb"^[A-Z_:/() ]*\b(?:NODELIST\b[A-Z_:/() ]*\b(?:STATE|REASON)|(?:STATE|REASON)\b[A-Z_:/() ]*\bNODELIST)\b"
)
#: Nodes of one row that are told of.
NODES = 4096


def begins_as_sinfo(line: bytes) -> bool:
    """Return whether this is the header of `sinfo`; that of `squeue` has jobs."""
    return b"JOBID" not in line and SINFO_BEGINS.match(line) is not None


def read_sinfo(stream: Stream, clock: Clock) -> Iterator[LogSignal]:
    """`sinfo`, `sinfo -R`, `sinfo -N -l` and formats of one's own: one record for each node, its state and reason."""
    columns: list[str] = []
    offset = 0
    for number, raw in enumerate(whole.content(stream, MAX_BYTES).split(b"\n"), 1):
        here, offset = offset, offset + len(raw) + 1
        line = raw.decode("utf-8", "replace").rstrip()
        if SINFO_BEGINS.match(raw):
            columns = line.split()
            continue
        row = _sinfo_row(line, columns)
        for node in hosts(row.get("NODELIST", "")):
            state, reason = row.get("STATE", ""), row.get("REASON", "")
            attributes: Attributes = {"tracecore.slurm.node_state": state}
            if reason and reason.lower() != "none":
                attributes["tracecore.slurm.reason"] = reason
            said = " ".join(part for part in (state, reason) if part and part.lower() != "none")
            when = stamps.parse(row.get("TIMESTAMP", ""))
            source = Source(stream.path, here, number, len(raw), f"{stream.path}@{here}/{node}")
            yield _record(stream, clock, {"host.name": node}, attributes, f"node {node} {said}", when, source)


def _sinfo_row(line: str, columns: list[str]) -> dict[str, str]:
    """Cells by column; only a reason has words in it."""
    cells = line.split()
    if not columns or len(cells) < len(columns):
        return {}
    if "REASON" not in columns:
        return dict(zip(columns, cells, strict=False))
    at = columns.index("REASON")
    after = len(columns) - at - 1
    words = cells[at : len(cells) - after]
    return dict(zip(columns, [*cells[:at], " ".join(words), *cells[len(cells) - after :]], strict=False))


_NUMBER = re2.compile(r"^\d{1,9}$")
_LISTED = re2.compile(r"([^\s,\[\]]+)(?:\[([\d,-]+)\])?([^\s,\[\]]*)")


def hosts(text: str) -> list[str]:
    """`gpu-[003,009-011],login1` as names; at most `NODES` of them. None of a list that a narrow column has cut."""
    found: list[str] = []
    if text.count("[") != text.count("]") or text.endswith("+"):
        return found
    for prefix, ranges, suffix in _LISTED.findall(text):
        if not ranges:
            found.append(prefix + suffix)
        for part in ranges.split(",") if ranges else ():
            first, _, last = part.partition("-")
            if not _NUMBER.match(first) or not _NUMBER.match(last or first):
                continue
            numbers = range(int(first), min(int(last or first), int(first) + NODES) + 1)
            found += [f"{prefix}{number:0{len(first)}d}{suffix}" for number in numbers]
        if len(found) > NODES:
            return found[:NODES]
    return found


def read_scontrol(stream: Stream, clock: Clock) -> Iterator[LogSignal]:
    """`scontrol show job` and `scontrol show node`, one object after another, also one on each line (`-o`)."""
    offset, start, first = 0, 0, 1
    gathered: list[str] = []
    for number, raw in enumerate([*whole.content(stream, MAX_BYTES).split(b"\n"), b""], 1):
        here, offset = offset, offset + len(raw) + 1
        line = raw.decode("utf-8", "replace").rstrip()
        new = line.startswith(("JobId=", "NodeName="))
        if (not line or new) and gathered:
            yield from _object(gathered, stream, clock, Source(stream.path, start, first, here - start))
            gathered = []
        if line:
            if not gathered:
                start, first = here, number
            gathered.append(line)


def _object(lines: list[str], stream: Stream, clock: Clock, source: Source) -> Iterator[LogSignal]:
    text = " ".join(line.strip() for line in lines)
    pairs = _pairs(text)
    if "JobId" in pairs:
        body = " ".join(
            f"{key}={pairs[key]}"
            for key in ("JobId", "JobState", "Reason", "ExitCode", "EndTime", "NodeList")
            if key in pairs
        )
        if record := _job(pairs, body, stream, clock, source):
            yield record
    elif "NodeName" in pairs:
        state, reason = pairs.get("State", ""), pairs.get("Reason", "")
        attributes: Attributes = {"tracecore.slurm.node_state": state}
        if reason:
            attributes["tracecore.slurm.reason"] = reason
        # Reason=... [user@2026-11-15T01:37:04]
        when = stamps.parse(reason.rsplit("@", 1)[-1]) if "@" in reason else None
        identity: Attributes = {"host.name": pairs["NodeName"]}
        body = f"node {pairs['NodeName']} {state}" + (f": {reason}" if reason else "")
        yield _record(stream, clock, identity, attributes, body, when, source)


_BAD = ("DOWN", "DRAIN", "FAIL", "NOT_RESPONDING", "INVALID_REG")
#: Nodes counted by their state (`… | sort | uniq -c`), or the state of one node alone.
COUNTS = re2.compile(
    rb"^(?:\s*\d{1,7} [A-Z][A-Z_+*]{2,63}\s*\n){2,}\s*$|^\s*(?:draining|drained|drain|drng|down\*?|fail(?:ing)?)\s*$"
)
#: From this share of nodes on that take no jobs it is worth a word.
SHARE = 0.15


def read_counts(stream: Stream, clock: Clock) -> Iterator[LogSignal]:
    """The number of nodes that take no jobs, where those are many; or the state of one node that takes none."""
    data = whole.content(stream, MAX_BYTES)
    rows = [line.split() for line in data.decode("utf-8", "replace").split("\n") if line.strip()]
    if any(len(row) != 2 for row in rows):
        detail = rows[0][0] if rows and rows[0] else ""
    else:
        every = sum(int(row[0]) for row in rows)
        bad = sum(int(row[0]) for row in rows if any(word in row[1] for word in _BAD))
        if bad < SHARE * every:
            return
        detail = f"{bad} of {every} nodes are down or drained"
    attributes: Attributes = {"kernelevents.host": "node_unavailable", "kernelevents.host.detail": detail}
    source = Source(stream.path, 0, 1, len(data))
    yield _record(stream, clock, {}, attributes, detail, None, source)


def _pairs(text: str) -> dict[str, str]:
    """`Key=value` pairs whose values may hold spaces."""
    found: dict[str, str] = {}
    marks = list(_PAIR.finditer(text))
    for mark, following in zip_longest(marks, marks[1:]):
        end = following.start() if following is not None else len(text)
        found.setdefault(mark.group(1), text[mark.end() : end].strip())
    return found
