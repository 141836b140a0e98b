"""Events, pods and nodes as `kubectl get … -o json|yaml` prints them: one record for each thing that happened."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, cast

import msgspec
import re2

from tracecore.signals import stamps, whole
from tracecore.signals.kubernetes import plain_yaml
from tracecore.signals.record import Attributes, LogSignal, Resource, Source, Value
from tracecore.signals.stream import Clock, Stream

MAX_JSON = 512 << 20
MAX_YAML = 128 << 20
#: What the general YAML parser, a thousand times slower, is asked to read.
MAX_ODD_YAML = 4 << 20
MAX_TEXT = 16_384
MAX_FAILURES = 100

#: The API server takes no underscore in the domain of a label; files made by hand may have one.
_JOB_LABELS = (
    "gen-ai.training.io/job-id",
    "gen_ai.training.io/job-id",
    "training.kubeflow.org/job-name",
    "pytorch-job-name",
    "jobset.sigs.k8s.io/jobset-name",
    "volcano.sh/job-name",
    "ray.io/job-name",
    "ray.io/originated-from-cr-name",
    "ray.io/cluster",
    "leaderworkerset.sigs.k8s.io/name",
    "kueue.x-k8s.io/pod-group-name",
    "batch.kubernetes.io/job-name",
    "job-name",
)
#: Which start of the job a pod is part of.
_ATTEMPT_LABELS = ("jobset.sigs.k8s.io/restart-attempt", "volcano.sh/job-version")
_RANK_LABELS = ("gen-ai.training.io/rank", "gen_ai.training.io/rank")
_OWNERS = {
    "Job": "k8s.job.name",
    "StatefulSet": "k8s.statefulset.name",
    "DaemonSet": "k8s.daemonset.name",
    "ReplicaSet": "k8s.replicaset.name",
}
#: The device plugin's word for the GPU a pod was given, where it is one.
_GPU_ANNOTATION = "nvidia.com/gpu-PCIDeviceBusID"
#: What makes CUDA count devices as it does.
_CUDA_VARIABLES = ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER")
#: The place of a pod among those of its job, and the labels that would say there are several such rows.
_INDEX_LABELS = (
    ("batch.kubernetes.io/job-completion-index", "jobset.sigs.k8s.io/job-index"),
    ("leaderworkerset.sigs.k8s.io/worker-index", "leaderworkerset.sigs.k8s.io/group-index"),
    ("apps.kubernetes.io/pod-index", ""),
    ("kueue.x-k8s.io/pod-group-pod-index", ""),
)
#: Exit codes of a container that was stopped: by SIGTERM, and by SIGKILL when its grace period was over.
_ASKED = (143, 137)
#: Where an object begins: in a list that was cut off, or on a line of its own.
_OBJECT = re2.compile(r'(?m)\{\s*"apiVersion"|^\{')
_RANK = re2.compile(r"^\d{1,7}$")
#: Anything the API or a hostile file may hold; every access goes through the checks below.
Json = dict[str, Any]


def read_json(stream: Stream, clock: Clock) -> Iterator[LogSignal]:
    """A list, a single object, or several documents one after another (`kubectl get -w -o json`)."""
    raw = whole.content(stream, MAX_JSON)
    for index, item in enumerate(_items(_documents(raw))):
        yield from records(item, stream, clock, index)


def read_yaml(stream: Stream, clock: Clock) -> Iterator[LogSignal]:
    """The same in YAML."""
    text = whole.content(stream, MAX_YAML).decode("utf-8", "replace")
    for index, item in enumerate(_items(_yaml(text))):
        yield from records(item, stream, clock, index)


#: Variables by which a pod says its number among those of its job, and how many processes it starts.
_PLACES = ("NODE_RANK", "PET_NODE_RANK", "GROUP_RANK", "JOB_COMPLETION_INDEX", "RANK")
_PROCESSES = ("PET_NPROC_PER_NODE", "NPROC_PER_NODE", "LOCAL_WORLD_SIZE", "GPUS_PER_NODE")


def pods(stream: Stream) -> Iterator[tuple[str, str, Attributes]]:
    """Namespace, name and identity of every pod in a file of objects, with its address and its place in its job."""
    if stream.format == "kubernetes_json":
        documents: Iterator[object] = _documents(whole.content(stream, MAX_JSON))
    else:
        documents = _yaml(whole.content(stream, MAX_YAML).decode("utf-8", "replace"))
    for item in _items(documents):
        if item.get("kind") == "Pod":
            identity = pod_identity(item) | _place(item)
            yield str(identity.get("k8s.namespace.name", "")), str(identity.get("k8s.pod.name", "")), identity


def _place(item: Json) -> Attributes:
    """The address of a pod, and of one that starts several processes its number among the pods of its job."""
    meta, spec = _dict(item.get("metadata")), _dict(item.get("spec"))
    place: Attributes = {}
    _put(place, "k8s.pod.ip", _text(_dict(item.get("status")).get("podIP")))
    environment = _environment(spec)
    each = next((count for name in _PROCESSES if (count := environment.get(name, "")).isdigit()), str(_gpus(spec)))
    number = next((number for name in _PLACES if (number := environment.get(name, "")).isdigit()), "")
    labels = {**_dict(meta.get("annotations")), **_dict(meta.get("labels"))}
    for label, row in _INDEX_LABELS if not number else ():
        if (index := _text(labels.get(label))).isdigit() and _text(labels.get(row)) in ("", "0"):
            number = index
            break
    if number and int(each[:6] or 0) > 1:
        place |= {"tracecore.pod.number": int(number[:6]), "tracecore.pod.processes": int(each[:6])}
    return place


def _documents(raw: bytes) -> Iterator[object]:
    try:
        yield msgspec.json.decode(raw)
        return
    except (msgspec.DecodeError, RecursionError) as error:
        problem = str(error)
    # Several documents, or a list that was cut off: take the objects that are whole.
    text = raw.decode("utf-8", "replace")
    decoder = json.JSONDecoder()
    at = failures = found = 0
    while failures < MAX_FAILURES and (match := _OBJECT.search(text, at)):
        try:
            document, at = decoder.raw_decode(text, match.start())
        except (ValueError, RecursionError):
            failures += 1
            at = match.start() + 1
            continue
        found += 1
        yield document
    if not found:
        raise ValueError(f"not JSON: {problem}")


def _yaml(text: str) -> Iterator[object]:
    try:
        yield from plain_yaml.load_all(text)
        return
    except plain_yaml.Unsupported as error:
        if len(text) > MAX_ODD_YAML:
            raise ValueError(f"YAML of an unusual kind, too large to read: {error}") from error
    from ruamel.yaml import YAML
    from ruamel.yaml.error import YAMLError

    # Aliases share nodes, so a bomb of them costs nothing as long as nobody walks the whole tree, and nobody does.
    try:
        yield from YAML(typ="safe", pure=True).load_all(text)
    except (YAMLError, ValueError, RecursionError) as error:
        raise ValueError(f"not YAML: {str(error).splitlines()[0]}") from error


def _items(documents: Iterator[object]) -> Iterator[Json]:
    for document in documents:
        for entry in document if isinstance(document, list) else [document]:
            if not isinstance(entry, dict):
                continue
            if (wrapped := _dict(entry.get("object"))) and "type" in entry:
                # A watch wraps each object with the kind of change. An event that is deleted happened long ago.
                if entry["type"] == "DELETED" and wrapped.get("kind") == "Event":
                    continue
                entry = wrapped
            kind = str(entry.get("kind", ""))
            items = entry.get("items")
            if isinstance(items, list):
                for item in items:
                    if isinstance(item, dict):
                        # A typed list (`EventList`) leaves the kind out of its items; filters for pods do, too.
                        of_pod = kind == "List" and "nodeName" in _dict(item.get("spec"))
                        yield {"kind": "Pod" if of_pod else kind.removesuffix("List") or "List", **item}
            elif not kind and ("involvedObject" in entry or "regarding" in entry):
                yield {"kind": "Event", **entry}  # of an event that `jq` took some fields of
            else:
                yield entry


def records(item: Json, stream: Stream, clock: Clock, index: int) -> Iterator[LogSignal]:
    """Yield what one object says has happened."""
    kind = item.get("kind")
    if kind == "Event":
        yield _event(item, stream, clock, index)
    elif kind == "Pod":
        yield from _pod(item, stream, clock, index)
    elif kind == "Node":
        yield from _node(item, stream, clock, index)


def _event(item: Json, stream: Stream, clock: Clock, index: int) -> LogSignal:
    meta = _dict(item.get("metadata"))
    about = _dict(item.get("involvedObject")) or _dict(item.get("regarding"))
    series = _dict(item.get("series"))
    origin = _dict(item.get("source")) or _dict(item.get("deprecatedSource"))
    note = _text(item.get("message") or item.get("note"))
    reason = _text(item.get("reason"))
    first = _time(item.get("firstTimestamp") or item.get("deprecatedFirstTimestamp") or item.get("eventTime"))
    last = _time(
        item.get("lastTimestamp") or item.get("deprecatedLastTimestamp") or series.get("lastObservedTime")
        or item.get("eventTime")
    )  # fmt: skip
    when = last or first or _time(meta.get("creationTimestamp"))
    count = item.get("count") or series.get("count") or item.get("deprecatedCount") or 1
    attributes: Attributes = {
        "k8s.event.reason": reason,
        "k8s.event.note": note,
        "k8s.event.count": count if isinstance(count, int) else 1,
        "k8s.object.kind": _text(about.get("kind")),
        "k8s.object.name": _text(about.get("name")),
    }
    uid = _text(meta.get("uid"))
    _put(attributes, "k8s.event.uid", uid)
    _put(attributes, "k8s.event.type", _text(item.get("type")))
    if first and when and first != when:
        attributes["k8s.event.first_time"] = first
    identity: Attributes = {}
    _put(identity, "k8s.namespace.name", _text(about.get("namespace") or meta.get("namespace")))
    if about.get("kind") == "Pod":
        _put(identity, "k8s.pod.name", _text(about.get("name")))
        _put(identity, "k8s.pod.uid", _text(about.get("uid")))
    host = _text(origin.get("host") or item.get("reportingInstance"))
    component = _text(origin.get("component") or item.get("reportingComponent") or item.get("reportingController"))
    if about.get("kind") == "Node":
        _put(identity, "k8s.node.name", _text(about.get("name")))
    elif host and component in ("kubelet", "node-problem-detector", ""):
        identity["k8s.node.name"] = host
    return record(stream, clock, identity, attributes, f"{reason}: {note}" if reason else note, when, uid, index)


def pod_identity(item: Json) -> Attributes:
    """Resource attributes of a pod: where it is, what it belongs to, which rank it runs."""
    meta, spec = _dict(item.get("metadata")), _dict(item.get("spec"))
    labels = {**_dict(meta.get("annotations")), **_dict(meta.get("labels"))}
    identity: Attributes = {}
    _put(identity, "k8s.namespace.name", _text(meta.get("namespace")))
    _put(identity, "k8s.pod.name", _text(meta.get("name")))
    _put(identity, "k8s.pod.uid", _text(meta.get("uid")))
    _put(identity, "k8s.node.name", _text(spec.get("nodeName")))
    for owner in _list(meta.get("ownerReferences")):
        if name := _OWNERS.get(_text(_dict(owner).get("kind"))):
            _put(identity, name, _text(_dict(owner).get("name")))
    for label in _JOB_LABELS:
        if value := _text(labels.get(label)):
            identity["gen_ai.training.job_id"] = value
            break
    if "gen_ai.training.job_id" not in identity and _gpus(spec) and "k8s.statefulset.name" in identity:
        identity["gen_ai.training.job_id"] = identity["k8s.statefulset.name"]
    rank = _environment_rank(spec)
    for label in _RANK_LABELS:
        rank = rank or _text(labels.get(label))
    rank = rank or _index(labels, spec)
    if _RANK.match(rank):
        identity["gen_ai.training.rank"] = int(rank)
    for label in _ATTEMPT_LABELS:
        if _RANK.match(attempt := _text(labels.get(label))) and int(attempt):
            identity["tracecore.attempt"] = int(attempt)
            break
    gpu = _text(labels.get(_GPU_ANNOTATION)).strip()
    if gpu:
        identity["gpu.id" if "," not in gpu else "tracecore.pod.gpus"] = gpu.lower()
    environment = _environment(_gpu_containers(spec))
    for variable in _CUDA_VARIABLES:
        _put(identity, f"process.environment_variable.{variable}", environment.get(variable, ""))
    return identity


def _gpu_containers(spec: Json) -> Json:
    """The one container that asks for GPUs, alone; nothing where there are several."""
    asking = [one for one in _list(spec.get("containers")) if _gpus({"containers": [one]})]
    return {"containers": asking} if len(asking) == 1 else {}


def _environment_rank(spec: Json) -> str:
    """Return RANK of the pod's environment; of a pod that starts several processes it is the number of the pod."""
    environment = _environment(spec)
    several = environment.get("PET_NPROC_PER_NODE", "1") != "1" or _gpus(spec) > 1
    return "" if several else environment.get("RANK", "")


def _index(labels: Json, spec: Json) -> str:
    """The rank of a pod by its place in its job: known where a pod is one process, which one GPU each says."""
    if _gpus(spec) != 1:
        return ""
    for label, row in _INDEX_LABELS:
        if (place := _text(labels.get(label))) and _text(labels.get(row)) in ("", "0"):
            return place
    return ""


def _gpus(spec: Json) -> int:
    total = 0
    for container in _list(spec.get("containers")):
        limits = _dict(_dict(_dict(container).get("resources")).get("limits"))
        for name, amount in limits.items():
            if name.endswith("/gpu") and (count := _text(amount)).isdigit():
                total += int(count[:6])
    return total


def _environment(spec: Json) -> dict[str, str]:
    found: dict[str, str] = {}
    for container in _list(spec.get("containers")):
        for entry in _list(_dict(container).get("env")):
            found.setdefault(_text(_dict(entry).get("name")), _text(_dict(entry).get("value")))
    return found


def _pod(item: Json, stream: Stream, clock: Clock, index: int) -> Iterator[LogSignal]:
    identity, status = pod_identity(item), _dict(item.get("status"))
    uid = _text(_dict(item.get("metadata")).get("uid"))
    about: Attributes = {"k8s.object.kind": "Pod", "k8s.object.name": identity.get("k8s.pod.name", "")}
    for condition in map(_dict, _list(status.get("conditions"))):
        if condition.get("type") == "Ready" and condition.get("status") == "True":
            at = _text(condition.get("lastTransitionTime"))
            ready: Attributes = {**about, "k8s.pod.ready_time": at}
            yield record(
                stream, clock, identity, ready, "pod became ready", _time(at), f"{uid}/ready" if uid else "", index
            )
        elif (
            condition.get("type") == "DisruptionTarget"
            and condition.get("status") == "True"
            and not status.get("reason")  # which says the same, and is told below
        ):
            reason, message = _text(condition.get("reason")), _text(condition.get("message"))
            ended: Attributes = {**about, "k8s.event.reason": reason, "k8s.event.note": message, "k8s.event.count": 1}
            when = _time(condition.get("lastTransitionTime"))
            ident = f"{uid}/disruption/{reason}" if uid else ""
            yield record(stream, clock, identity, ended, f"{reason}: {message}", when, ident, index)
    if reason := _text(status.get("reason")):
        message = _text(status.get("message"))
        stopped: Attributes = {**about, "k8s.event.reason": reason, "k8s.event.note": message, "k8s.event.count": 1}
        when = _stopped(status)
        body = f"{reason}: {message}"
        yield record(stream, clock, identity, stopped, body, when, f"{uid}/{reason}" if uid else "", index)
    asked = _deleted(_dict(item.get("metadata")))
    containers = [c for group in ("initContainerStatuses", "containerStatuses") for c in _list(status.get(group))]
    if status.get("phase") == "Succeeded":
        # What was started again ended well, too; where another container was not, it was not the whole pod.
        starts = [count for c in containers if isinstance(count := _dict(c).get("restartCount"), int)]
        least = {"restartCount": min(starts, default=0), "lastState": None}
        containers = [{**_dict(c), **least} for c in containers]
    for container in map(_dict, containers):
        yield from _container(container, identity, about, stream, clock, uid, index, asked)


def _deleted(meta: Json) -> int | None:
    """Return when somebody asked for the pod to go: what is left of its life then is its grace period."""
    when, grace = _time(meta.get("deletionTimestamp")), meta.get("deletionGracePeriodSeconds")
    if when is None:
        return None
    return when - (grace if isinstance(grace, int) else 0) * stamps.SECOND


def _stopped(status: Json) -> int | None:
    """Return when a pod was ended: as its conditions, else its containers say; of one that never ran, when it came."""
    conditions = [_dict(c) for c in _list(status.get("conditions"))]
    ends = [
        _time(c.get("lastTransitionTime")) or 0
        for c in conditions
        if (c.get("type"), c.get("status"))
        in (("DisruptionTarget", "True"), ("Ready", "False"), ("ContainersReady", "False"))
    ]
    if not ends:
        states = [_dict(_dict(c).get("state")) for c in _list(status.get("containerStatuses"))]
        ends = [_time(_dict(state.get("terminated")).get("finishedAt")) or 0 for state in states]
    if not any(ends):
        ends = [_time(c.get("lastTransitionTime")) or 0 for c in conditions]
    return max(ends, default=0) or _time(status.get("startTime"))


def _container(
    container: Json,
    identity: Attributes,
    about: Attributes,
    stream: Stream,
    clock: Clock,
    uid: str,
    index: int,
    asked: int | None,
) -> Iterator[LogSignal]:
    name = _text(container.get("name"))
    restarts = container.get("restartCount")
    restarts = restarts if isinstance(restarts, int) else 0
    for key, attempt in (("lastState", restarts - 1), ("state", restarts)):
        state = _dict(container.get(key))
        ended, waiting = _dict(state.get("terminated")), _dict(state.get("waiting"))
        attributes: Attributes = {**about, "k8s.container.name": name}
        if ended:
            code = ended.get("exitCode")
            when = _time(ended.get("finishedAt"))
            if asked is not None and code in _ASKED and ended.get("reason") == "Error" and (when or asked) >= asked:
                continue  # it was told to go, or did not listen and was made to
            attributes["k8s.container.terminated.reason"] = _text(ended.get("reason"))
            attributes["tracecore.attempt"] = max(attempt, 0)
            if isinstance(code, int):
                attributes["k8s.container.terminated.exit_code"] = code
            body = f"container {name} terminated: {ended.get('reason')}, exit code {code}"
            if message := _text(ended.get("message")):
                body += f": {message}"
            # The state becomes the last state when the container starts again: it is the same end.
            ident = f"{uid}/{name}/{max(attempt, 0)}" if uid else ""
            yield record(stream, clock, identity, attributes, body, when, ident, index)
        elif waiting and (reason := _text(waiting.get("reason"))) not in ("", "ContainerCreating", "PodInitializing"):
            note = _text(waiting.get("message"))
            attributes |= {"k8s.event.reason": reason, "k8s.event.note": note, "k8s.event.count": 1}
            body = f"{reason}: {note}"
            yield record(stream, clock, identity, attributes, body, None, f"{uid}/{name}/waiting" if uid else "", index)


def _node(item: Json, stream: Stream, clock: Clock, index: int) -> Iterator[LogSignal]:
    meta, status = _dict(item.get("metadata")), _dict(item.get("status"))
    name = _text(meta.get("name"))
    identity: Attributes = {"k8s.node.name": name}
    for condition in map(_dict, _list(status.get("conditions"))):
        kind, state = _text(condition.get("type")), _text(condition.get("status"))
        attributes: Attributes = {
            "k8s.object.kind": "Node",
            "k8s.object.name": name,
            "k8s.node.condition": kind,
            "k8s.node.condition.status": state,
        }
        body = f"node {name}: {kind}={state}: {_text(condition.get('reason'))}: {_text(condition.get('message'))}"
        when = _time(condition.get("lastTransitionTime"))
        uid = _text(meta.get("uid"))
        # A condition comes and goes: each time is a statement of its own.
        ident = f"{uid}/{kind}={state}@{_text(condition.get('lastTransitionTime'))}" if uid else ""
        yield record(stream, clock, identity, attributes, body, when, ident, index)


def record(
    stream: Stream,
    clock: Clock,
    identity: Attributes,
    attributes: Attributes,
    body: str,
    when: int | None,
    ident: str,
    index: int,
) -> LogSignal:
    """A record about a Kubernetes object; without a time it happened at the end of the bundle."""
    if when is None:
        attributes = {**attributes, "tracecore.time.inferred": True}
    resource: Resource = {"attributes": {**stream.resource, **identity, "tracecore.layer": stream.layer}}
    return {
        "resource": resource,
        "log": {
            "body": body[:MAX_TEXT],
            "attributes": attributes,
            "time_unix_nano": clock.latest if when is None else when,
        },
        "source": Source(stream.path, index, 0, 0, ident or f"{stream.path}#{index}:{body[:80]}"),
    }


def _put(attributes: Attributes, name: str, value: Value) -> None:
    if value not in ("", None):
        attributes[name] = value


def _dict(value: object) -> Json:
    return cast(Json, value) if isinstance(value, dict) else {}


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def _text(value: object) -> str:
    if isinstance(value, str):
        return value[:MAX_TEXT]
    return str(value) if isinstance(value, int | float) else ""


def _time(value: object) -> int | None:
    return stamps.parse(value) if isinstance(value, str) else None
