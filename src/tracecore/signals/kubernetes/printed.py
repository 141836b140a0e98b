"""Output of kubectl for people: `describe pod`, `describe node`, `get events`, `get pods`, `get nodes`.

Events there have ages, not times: they are counted back from the end of the bundle, and their records say so.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import re2

from tracecore.signals import stamps, whole
from tracecore.signals.kubernetes import flat_events
from tracecore.signals.kubernetes.objects import record
from tracecore.signals.record import Attributes, LogSignal
from tracecore.signals.stamps import SECOND
from tracecore.signals.stream import Clock, Stream

MAX_BYTES = 256 << 20

_AGE = re2.compile(r"(\d+)([smhdy])")
_FOLDED = re2.compile(r"^(\S+)(?: \(x(\d+) over (\S+)\))?$")
_PLACED = re2.compile(r"Successfully assigned ([^\s/]+)/(\S+) to (\S+)")
#: A node that is short of something, by its own event.
_SHORT = frozenset(
    {"NodeHasDiskPressure", "NodeHasInsufficientMemory", "NodeHasInsufficientPID", "EvictionThresholdMet"}
)
#: A row with times instead of ages, which are wider than the column: time, perhaps another, type, reason, object, rest.
_DATED_TEXT = (
    r"^(?P<SEEN>\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?Z) +(?:\d{4}-\S+Z +)?(?P<TYPE>Normal|Warning) +"
    r"(?P<REASON>[A-Z]\w+) +(?P<OBJECT>[A-Za-z][A-Za-z.]*/\S+) +(?P<REST>\S.*)$"
)
_DATED = re2.compile(_DATED_TEXT)
BARE_DATED = re2.compile(_DATED_TEXT.encode())
#: Characters of further lines that are read of one message.
MESSAGE = 16 << 10
#: What the kubelet adds to a mount that failed, each on its own line.
_GOES_ON = re2.compile(r"^\s*(?:Mounting (?:command|arguments): |Output: |mount(?:\.\w+)?: )")
_POD_NAME = re2.compile(r"^[a-z0-9][a-z0-9.-]*$")
_UNIT = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "y": 31_536_000}
_FIELD = re2.compile(r"^( *)([A-Za-z][\w /.-]*?):(?: +(.*))?$")


def age(text: str) -> int | None:
    """`3m12s` in nanoseconds."""
    parts = _AGE.findall(text)
    return sum(int(number) * _UNIT[unit] for number, unit in parts) * SECOND if parts else None


def read_table(stream: Stream, clock: Clock) -> Iterator[LogSignal]:
    """`kubectl get events [-A] [-o wide|custom-columns]`, and events as lines of JSON with fields of one's own.

    Which node a pod was put on, only the scheduler's event says, unless there is a column of nodes.
    """
    lines = list(_joined(_lines(stream)))
    placed: dict[str, tuple[str, str]] = {}
    short: set[str] = set()
    for _, row in _event_rows(lines):
        for space, pod, node in _PLACED.findall(row.get("MESSAGE", "")):
            placed[pod] = space, node
        if row.get("REASON") in _SHORT and row.get("OBJECT", "").lower().startswith("node/"):
            short.add(row["OBJECT"].partition("/")[2])
    for here, row in _event_rows(lines):
        seen, about = row.get("LAST SEEN", ""), row.get("OBJECT", "")
        kind, _, name = about.partition("/")
        kind = _KINDS.get(kind.lower(), kind.capitalize())
        space, node = placed.get(name, ("", "")) if kind == "Pod" else ("", "")
        if row.get("NAMESPACE", space) != space:
            node = ""
        node = row.get("NODE", node)
        if not node and row.get("REASON") == "Evicted" and len(short) == 1:
            # Only a kubelet that is short of something evicts.
            node = next(iter(short))
        yield _event(
            stream,
            clock,
            here,
            seen,
            (row.get("TYPE", ""), row.get("REASON", ""), row.get("MESSAGE", "")),
            (kind, name, row.get("NAMESPACE", space)),
            _number(row.get("COUNT", "")),
            node,
        )


def pods_of_events(stream: Stream) -> Iterator[tuple[str, str]]:
    """Return namespace and name of each pod that a table of events is about."""
    for _, row in _event_rows(_joined(_lines(stream))):
        kind, _, name = row.get("OBJECT", "").partition("/")
        if kind.lower() == "pod" and _POD_NAME.match(name):
            yield row.get("NAMESPACE", ""), name


def _event_rows(lines: Iterable[tuple[int, str]]) -> Iterator[tuple[int, dict[str, str]]]:
    columns: list[tuple[str, int]] = []
    for here, line in lines:
        if flat_events.is_header(line):
            columns = [(flat_events.field(name), start) for name, start in _columns(line)]
            continue
        if not line.strip():
            continue
        if line[:1] in "{[":
            row = flat_events.of_line(line) or {}
        else:
            row = _dated_row(line)
            if not row and (not columns or _is_torn(line, columns)):
                row = _bare_row(line)
            if not row and columns:
                row = flat_events.completed(_row(line, columns))
        if row:
            yield here, row


#: States of a pod, as `kubectl get pods` shows them, that an event has the same word for.
_TOLD = frozenset({"Evicted", "CrashLoopBackOff", "ImagePullBackOff", "ErrImagePull", "InvalidImageName", "Preempting"})
#: The same that a container ended with.
_ENDED = frozenset({"OOMKilled", "Error", "ContainerCannotRun", "StartError", "DeadlineExceeded"})


def addresses(stream: Stream) -> Iterator[tuple[str, str]]:
    """Return (address, node) of `kubectl get nodes -o wide`."""
    columns: list[tuple[str, int]] = []
    for _, line in _lines(stream):
        if "INTERNAL-IP" in line:
            columns = _columns(line)
            continue
        row = _row(line, columns) if columns else {}
        if row.get("INTERNAL-IP", "")[:1].isdigit() and row.get("NAME"):
            yield row["INTERNAL-IP"], row["NAME"]


def pods(stream: Stream) -> Iterator[tuple[str, str, Attributes]]:
    """Return namespace, name and identity of every pod of `kubectl get pods`."""
    for _, row in _pod_rows(stream):
        name, space, node = row.get("NAME", ""), row.get("NAMESPACE", ""), row.get("NODE", "<none>")
        if not _POD_NAME.match(name):
            continue
        identity: Attributes = {"k8s.pod.name": name}
        if space:
            identity["k8s.namespace.name"] = space
        if node != "<none>":
            identity["k8s.node.name"] = node
        if row.get("IP", "")[:1].isdigit():
            identity["k8s.pod.ip"] = row["IP"]
        yield space, name, identity


def _pod_rows(stream: Stream) -> Iterator[tuple[int, dict[str, str]]]:
    columns: list[tuple[str, int]] = []
    for here, line in _lines(stream):
        if "STATUS" in line and "RESTARTS" in line:
            columns = _columns(line)
            continue
        yield here, _row(line, columns) if columns else _matched(_BARE_POD, line)


def read_pods(stream: Stream, clock: Clock) -> Iterator[LogSignal]:
    """`kubectl get pods [-A] [-o wide]`: the state of each pod that failed or completed."""
    for here, row in _pod_rows(stream):
        completed = row.get("STATUS") == "Completed"
        state, name = row.get("STATUS", "").removeprefix("Init:"), row.get("NAME", "")
        if not name or not (completed or state in _TOLD | _ENDED):
            continue
        identity: Attributes = {"k8s.pod.name": name}
        if space := row.get("NAMESPACE"):
            identity["k8s.namespace.name"] = space
        if (node := row.get("NODE", "<none>")) != "<none>":
            identity["k8s.node.name"] = node
        attributes: Attributes = {"k8s.object.kind": "Pod", "k8s.object.name": name, "tracecore.time.inferred": True}
        attributes["k8s.event.reason" if state in _TOLD else "k8s.container.terminated.reason"] = state
        if completed:
            attributes["k8s.container.terminated.exit_code"] = 0
        body = f"pod {name}: {state}"
        yield record(stream, clock, identity, attributes, body, clock.latest, f"{stream.path}@{here}", here)


def read_nodes(stream: Stream, clock: Clock) -> Iterator[LogSignal]:
    """`kubectl get nodes [-o wide]`: which nodes are ready."""
    for here, line in _lines(stream):
        cells = line.split()
        if len(cells) < 5 or cells[0] == "NAME":
            continue
        name, states = cells[0], cells[1].split(",")
        if states[0] not in ("Ready", "NotReady", "Unknown"):
            continue
        attributes: Attributes = {
            "k8s.object.kind": "Node",
            "k8s.object.name": name,
            "k8s.node.condition": "Ready",
            "k8s.node.condition.status": {"Ready": "True", "NotReady": "False"}.get(states[0], "Unknown"),
            "tracecore.time.inferred": True,
        }
        body, ident = f"node {name}: {cells[1]}", f"{stream.path}@{here}"
        yield record(stream, clock, {"k8s.node.name": name}, attributes, body, clock.latest, ident, here)


_KINDS = {
    kind.lower(): kind
    for kind in ("ReplicaSet", "StatefulSet", "DaemonSet", "PersistentVolumeClaim", "PyTorchJob", "JobSet", "PodGroup")
}


def _columns(header: str) -> list[tuple[str, int]]:
    found: list[tuple[str, int]] = []
    at = 0
    for name in re2.split(r" {2,}", header.strip()):
        start = header.index(name, at)
        found.append((name, start))
        at = start + len(name)
    return found


def _row(line: str, columns: list[tuple[str, int]]) -> dict[str, str]:
    ends = [start for _, start in columns[1:]] + [len(line)]
    return {name: line[start:end].strip() for (name, start), end in zip(columns, ends, strict=True)}


def _is_torn(line: str, columns: list[tuple[str, int]]) -> bool:
    """Whether a column begins within a word, as it does behind a cell that is wider than its column."""
    return any(start < len(line) and " " not in line[start - 1 : start + 1] for _, start in columns[1:])


#: A row whose header was cut off: perhaps a namespace, how long ago or the time of day, type, reason, object, message.
_BARE_TEXT = (
    r"^(?:(?P<NAMESPACE>[a-z0-9][a-z0-9-]*) +)?"
    r"(?P<SEEN>(?:\d+[smhdy]){1,3}(?: \(x\d+ over \S+\))?|<unknown>|\d\d:\d\d:\d\d) +(?P<TYPE>Normal|Warning) +"
    r"(?P<REASON>[A-Z]\w+) +(?P<OBJECT>[a-z][a-z.]*/(?:<[^>]*>|[^\s<>])+) +(?P<MESSAGE>\S.*)$"
)
#: The same under `Events:` of a described pod, whose name was cut off, too: type, reason, how long ago, who says it.
_BARE_EVENT_TEXT = (
    r"^ *(?P<TYPE>Normal|Warning) {2,}(?P<REASON>[A-Z]\w+) {2,}"
    r"(?P<SEEN>(?:\d+[smhdy]){1,3}(?: \(x\d+ over \S+\))?) {2,}[a-z][\w.-]*(?:, [\w.-]+)? {2,}(?P<MESSAGE>\S.*)$"
)
#: The same of kubectl before 1.10: first and last seen, how often, who says it and where, perhaps a part of the pod.
_BARE_OLD_EVENT_TEXT = (
    r"^\s*(?:\d+[smhdy]){1,3}\s+(?P<SEEN>(?:\d+[smhdy]){1,3})\s+(?P<COUNT>\d+)\s+\{[\w.-]+ [^}\s]*\}\s+(?:\S+\s+)?"
    r"(?P<TYPE>Normal|Warning)\s+(?P<REASON>[A-Z][A-Za-z]+)\s+(?P<MESSAGE>\S.*)$"
)
#: And of a table of pods: perhaps a namespace, name, containers that are ready, state, restarts, age.
_BARE_POD_TEXT = (
    r"^(?:(?P<NAMESPACE>[a-z0-9][a-z0-9-]*) +)?(?P<NAME>[a-z0-9][a-z0-9.-]*) +\d+/\d+ +"
    r"(?P<STATUS>[A-Z][\w:]+|Init:[\w:/]+) +\d+(?: \(\S+ ago\))? +(?:\d+[smhdy]){1,3}"
    r"(?: +(?P<IP>\d{1,3}(?:\.\d{1,3}){3}|<none>) +(?P<NODE>[a-z0-9][a-z0-9.-]*|<none>)(?: .*)?| .*)?$"
)
#: And of a table of nodes: name, state, roles, age, version.
BARE_NODE = re2.compile(
    rb"^[a-z0-9][a-z0-9.-]* +(?:NotReady|Ready|Unknown)(?:,\w+)* +(?:<none>|[\w.,/-]+) +(?:\d+[smhdy]){1,3} +"
    rb"v\d+\.\d+\.\d+"
)
#: Whom such a row is about: it does not say, and an eviction is one all the same.
UNNAMED = "pod/unnamed-pod"
_BARE = re2.compile(_BARE_TEXT)
_BARE_EVENT = re2.compile(_BARE_EVENT_TEXT)
_BARE_OLD_EVENT = re2.compile(_BARE_OLD_EVENT_TEXT)
_BARE_POD = re2.compile(_BARE_POD_TEXT)
BARE_ROW = re2.compile(_BARE_TEXT.encode())
BARE_EVENT = re2.compile(_BARE_EVENT_TEXT.encode())
BARE_OLD_EVENT = re2.compile(_BARE_OLD_EVENT_TEXT.encode())
BARE_POD = re2.compile(_BARE_POD_TEXT.encode())


def _dated_row(line: str) -> dict[str, str]:
    row = _matched(_DATED, line)
    if not row:
        return {}
    # Who says it may stand before the message; the columns of these tables are far apart.
    cells = [cell for cell in re2.split(r" {2,}", row["REST"].strip()) if cell]
    message = max(cells, key=len)
    return {**row, "LAST SEEN": row["SEEN"], "MESSAGE": message}


def _bare_row(line: str) -> dict[str, str]:
    row = _matched(_BARE, line) or _matched(_BARE_EVENT, line) or _matched(_BARE_OLD_EVENT, line)
    if not row:
        return {}
    return {"OBJECT": UNNAMED, **row, "LAST SEEN": row["SEEN"]}


def _matched(expression: Any, line: str) -> dict[str, str]:
    match = expression.match(line.rstrip())
    return {} if match is None else {name: value for name, value in match.groupdict().items() if value}


def _event(
    stream: Stream,
    clock: Clock,
    offset: int,
    seen: str,
    event: tuple[str, str, str],
    about: tuple[str, str, str],
    count: int | None = None,
    node: str = "",
) -> LogSignal:
    severity, reason, note = event
    kind, name, namespace = about
    folded = _FOLDED.match(seen.strip())
    dated = stamps.parse(seen) if seen[4:5] == "-" else None
    ago = 0 if dated else age(folded.group(1) if folded else seen) or 0
    times = count or (int(folded.group(2)) if folded and folded.group(2) else 1)
    attributes: Attributes = {
        "k8s.event.reason": reason,
        "k8s.event.note": note,
        "k8s.event.count": times,
        "k8s.event.type": severity,
        "k8s.object.kind": kind,
        "k8s.object.name": name,
    }
    if dated is None:
        attributes["tracecore.time.inferred"] = True
    identity: Attributes = {}
    if namespace:
        identity["k8s.namespace.name"] = namespace
    if kind == "Pod":
        identity["k8s.pod.name"] = name
        if node:
            identity["k8s.node.name"] = node
    elif kind == "Node":
        identity["k8s.node.name"] = name
    if folded and folded.group(3) and (over := age(folded.group(3))):
        attributes["k8s.event.first_time"] = clock.latest - over
    ident = f"{stream.path}@{offset}"
    when = dated or clock.latest - ago
    return record(stream, clock, identity, attributes, f"{reason}: {note}", when, ident, offset)


def read_describe(stream: Stream, clock: Clock) -> Iterator[LogSignal]:
    """`kubectl describe pod|node`, also of several objects one after another."""
    lines: list[tuple[int, str]] = []
    for offset, line in _joined(_lines(stream)):
        if line.startswith("Name:") and lines:
            yield from _described(lines, stream, clock)
            lines = []
        lines.append((offset, line))
    yield from _described(lines, stream, clock)


#: A piece of `kubectl describe pod`, cut out of it: how a container or the pod ended, or its events.
FRAGMENT = re2.compile(
    rb"(?m)^\s*(?:(?:Last )?State:\s+(?:Terminated|Waiting|Running)\s*$|Status:\s+(?:Failed|Evicted)\s*$"
    rb"|Reason:\s+(?:Evicted|OOMKilled|Error|StartError|ContainerCannotRun|ContainerStatusUnknown)\s*$"
    rb"|Type\s+Reason\s+Age\s+From\s+Message\s*$)|\bThe node (?:was low on resource: |had condition: \[)"
)
#: Its first line: a field, the heading of a table, a line of a component's log, or the kubelet's own words.
FRAGMENT_BEGINS = re2.compile(
    rb"^\s*(?:[A-Z][A-Za-z ]{1,24}:(?:\s|$)|Type\s+Reason\s|[IWE]\d{4} \d\d:"
    rb"|(?:[^\n]*\n)?[^\n]*\bThe node (?:was low|had condition))"
)
_OF_STATE = frozenset({"Reason", "Message", "Exit Code", "Signal", "Started", "Finished"})


def read_fragment(stream: Stream, clock: Clock) -> Iterator[LogSignal]:
    """A piece of `kubectl describe pod`, as it is pasted: without the name of the pod, unless its events have it."""
    lines = [(offset, line) for offset, line in _joined(_lines(stream)) if line.strip()]
    placed = {found for _, line in lines for found in _PLACED.findall(line)}
    yield from _described(list(_indented(lines, placed.pop() if len(placed) == 1 else None)), stream, clock)
    pod: Attributes = {"k8s.pod.name": UNNAMED.partition("/")[2]}
    for offset, line in lines:
        _, words, note = line.partition("The node ")
        if words and not line.lstrip().startswith("Message:"):
            yield record(stream, clock, pod, {}, f"{words}{note}", None, f"{stream.path}@{offset}", offset)


def _indented(lines: list[tuple[int, str]], placed: tuple[str, str, str] | None = None) -> Iterator[tuple[int, str]]:
    """Give the fields of a piece the indentation they have in the whole.

    Args:
        placed: namespace, name and node of the pod, where an event has them.
    """
    offset = lines[0][0] if lines else 0
    if placed is None:
        yield offset, f"Name: {UNNAMED.partition('/')[2]}"
    else:
        for name, value in zip(("Namespace", "Name", "Node"), placed, strict=True):
            yield offset, f"{name}: {value}"
    inside = table = False
    for offset, line in lines:
        match = _FIELD.match(line)
        name = match.group(2) if match else ""
        if name == "Events" or line.split()[:2] == ["Type", "Reason"]:
            inside, table = False, True
            yield offset, "Events:"
        elif table:
            yield offset, line
        elif name in ("State", "Last State"):
            if not inside:
                yield offset, "Containers:"
                yield offset, f"  {UNNAMED.partition('/')[2]}:"
            inside = True
            yield offset, f"    {line.strip()}"
        elif inside and name in _OF_STATE:
            yield offset, f"      {line.strip()}"
        elif inside and match:
            yield offset, f"    {line.strip()}"
        else:
            yield offset, line.strip()


def _described(lines: list[tuple[int, str]], stream: Stream, clock: Clock) -> Iterator[LogSignal]:
    top: dict[str, str] = {}
    section, container = "", ""
    state: dict[str, str] = {}
    state_at = 0
    conditions: list[tuple[int, str]] = []
    events: list[tuple[int, str]] = []
    ended: list[tuple[int, str, dict[str, str]]] = []

    def close() -> None:
        if state.get("state") == "Terminated":
            ended.append((state_at, container, dict(state)))
        state.clear()

    for offset, line in lines:
        match = _FIELD.match(line)
        indent = len(line) - len(line.lstrip(" "))
        if indent == 0 and match:
            close()
            section = match.group(2)
            top.setdefault(section, (match.group(3) or "").strip())
            continue
        if section == "Events":
            events.append((offset, line))
        elif section == "Conditions":
            conditions.append((offset, line))
        elif section in ("Containers", "Init Containers") and match:
            name, value = match.group(2), (match.group(3) or "").strip()
            if indent == 2:
                close()
                container = name
            elif name in ("State", "Last State"):
                close()
                state["state"], state["which"] = value, name
                state_at = offset
            elif state and indent >= 6:
                state[name] = value
            else:
                close()
    close()
    heartbeats = any("LastHeartbeatTime" in line for _, line in conditions)
    node = "Roles" in top or "Unschedulable" in top or "Allocatable" in top or heartbeats
    identity = _identity(top, node)
    kind, name = ("Node" if node else "Pod"), top.get("Name", "")
    about: Attributes = {"k8s.object.kind": kind, "k8s.object.name": name}
    for offset, container, what in ended:
        attributes: Attributes = {
            **about,
            "k8s.container.name": container,
            "k8s.container.terminated.reason": what.get("Reason", ""),
        }
        if (code := _number(what.get("Exit Code", ""))) is not None:
            attributes["k8s.container.terminated.exit_code"] = code
        body = f"container {container} terminated: {what.get('Reason', '')}, exit code {what.get('Exit Code', '?')}"
        if what.get("Message"):
            body += f": {what['Message']}"
        when = stamps.parse(what.get("Finished", ""))
        yield record(stream, clock, identity, attributes, body, when, f"{stream.path}@{offset}", offset)
    if not node and (reason := top.get("Reason")):
        stopped: Attributes = {
            **about,
            "k8s.event.reason": reason,
            "k8s.event.note": top.get("Message", ""),
            "k8s.event.count": 1,
        }
        body = f"{reason}: {top.get('Message', '')}"
        yield record(stream, clock, identity, stopped, body, None, f"{stream.path}@{lines[0][0]}/{reason}", lines[0][0])
    if node:
        yield from _conditions(conditions, name, identity, about, stream, clock)
    host = str(identity.get("k8s.node.name", ""))
    yield from _events(events, kind, name, top.get("Namespace", ""), host, stream, clock)


def _identity(top: dict[str, str], node: bool) -> Attributes:
    identity: Attributes = {}
    if node:
        identity["k8s.node.name"] = top.get("Name", "")
        return identity
    identity["k8s.pod.name"] = top.get("Name", "")
    if namespace := top.get("Namespace"):
        identity["k8s.namespace.name"] = namespace
    if (host := top.get("Node", "").split("/")[0]) not in ("", "<none>"):
        identity["k8s.node.name"] = host
    return identity


def _conditions(
    lines: list[tuple[int, str]], name: str, identity: Attributes, about: Attributes, stream: Stream, clock: Clock
) -> Iterator[LogSignal]:
    for offset, line in lines:
        cells = [cell for cell in re2.split(r" {2,}", line.strip()) if cell]
        if len(cells) < 2 or cells[1] not in ("True", "False", "Unknown"):
            continue
        attributes: Attributes = {**about, "k8s.node.condition": cells[0], "k8s.node.condition.status": cells[1]}
        when = stamps.parse(cells[3]) if len(cells) > 3 else None
        body = f"node {name}: {cells[0]}={cells[1]}: {': '.join(cells[4:])}"
        yield record(stream, clock, identity, attributes, body, when, f"{stream.path}@{offset}", offset)


def _events(
    lines: list[tuple[int, str]], kind: str, name: str, namespace: str, host: str, stream: Stream, clock: Clock
) -> Iterator[LogSignal]:
    for offset, line in lines:
        cells = re2.split(r" {2,}", line.strip(), 4)
        if len(cells) != 5 or cells[0] not in ("Normal", "Warning"):
            continue
        # Kubelets of old name their node: "kubelet, gpu-7".
        _, _, node = cells[3].partition("kubelet, ")
        about = (kind, name, namespace)
        yield _event(stream, clock, offset, cells[2], (cells[0], cells[1], cells[4]), about, node=node or host)


def _joined(lines: Iterable[tuple[int, str]]) -> Iterator[tuple[int, str]]:
    """Give each line together with those below it in which its message goes on, up to a length."""
    start, parts, room = 0, list[str](), 0
    for offset, line in lines:
        if parts and _GOES_ON.match(line) is not None:
            if (room := room - len(line)) > 0:
                parts.append(line.strip())
            continue
        if parts:
            yield start, " ".join(parts)
        start, parts, room = offset, [line], MESSAGE
    if parts:
        yield start, " ".join(parts)


def _number(text: str) -> int | None:
    try:
        return int(text)
    except ValueError:
        return None


def _lines(stream: Stream) -> Iterator[tuple[int, str]]:
    offset = 0
    for raw in whole.content(stream, MAX_BYTES).split(b"\n"):
        yield offset, raw.decode("utf-8", "replace").rstrip("\r")
        offset += len(raw) + 1
