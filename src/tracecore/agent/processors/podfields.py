"""Attributes that records get of their pod: metadata, labels, annotations, training job, namespace and node."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, ClassVar, Final, Literal

import msgspec
import re2

from tracecore.facts.identity import bus_id
from tracecore.signals.kubernetes.objects import pod_identity

Metadata = Literal[
    "k8s.namespace.name", "k8s.pod.name", "k8s.pod.uid", "k8s.pod.hostname", "k8s.pod.ip", "k8s.pod.start_time",
    "k8s.deployment.name", "k8s.replicaset.name", "k8s.replicaset.uid", "k8s.statefulset.name", "k8s.statefulset.uid",
    "k8s.daemonset.name", "k8s.daemonset.uid", "k8s.job.name", "k8s.job.uid", "k8s.cronjob.name", "k8s.node.name",
    "k8s.node.uid", "k8s.cluster.uid", "k8s.container.name", "container.id", "container.image.name",
    "container.image.tag", "container.image.tags", "container.image.repo_digests", "service.name", "service.namespace",
    "service.version", "service.instance.id", "k8s.deployment.uid", "k8s.cronjob.uid",
]  # fmt: skip
#: The API would have to be asked for replica sets and jobs to know these.
UNKNOWN: Final = ("k8s.deployment.uid", "k8s.cronjob.uid")
#: What is extracted when nothing is said.
DEFAULT: Final[tuple[Metadata, ...]] = (
    "k8s.namespace.name", "k8s.pod.name", "k8s.pod.uid", "k8s.pod.start_time", "k8s.deployment.name", "k8s.node.name",
    "container.image.name", "container.image.tag",
)  # fmt: skip
_HASH = re2.compile(r"^(.*)-[0-9a-zA-Z]+$")
_CRON = re2.compile(r"^(.*)-[0-9]+$")
_OWNERS: Final = {"ReplicaSet": "replicaset", "StatefulSet": "statefulset", "DaemonSet": "daemonset", "Job": "job"}
_OF_CONTAINER: Final = frozenset(
    {"k8s.container.name", "container.id", "container.image.name", "container.image.tag", "container.image.tags",
     "container.image.repo_digests", "service.version", "service.instance.id"}
)  # fmt: skip
_TRAINING: Final = (
    "gen_ai.training.job_id", "gen_ai.training.rank", "tracecore.attempt", "gpu.id", "tracecore.pod.gpus",
    "process.environment_variable.CUDA_VISIBLE_DEVICES", "process.environment_variable.CUDA_DEVICE_ORDER",
)  # fmt: skip
#: A service is named after the first of these that exists.
_WORKLOADS: Final = ("deployment", "replicaset", "statefulset", "daemonset", "cronjob", "job", "pod")
_IGNORED: Final = "opentelemetry.io/k8s-processor/ignore"
_OTEL: Final = "resource.opentelemetry.io/"
#: The namespace that every cluster has: its uid is taken for the cluster's.
SYSTEM: Final = "kube-system"
#: Attributes that labels and annotations may become before it is warned about, and those that are counted.
MANY_NAMES: Final = 64
MOST_NAMES: Final = 10_000
#: Labels that are another one with every rollout or pod: as attributes they make every backend's index grow for ever.
FICKLE: Final = (
    "pod-template-hash",
    "controller-revision-hash",
    "statefulset.kubernetes.io/pod-name",
    "batch.kubernetes.io/controller-uid",
)
#: Longer values of labels and annotations are cut.
MAX_VALUE: Final = 4096

Pod = dict[str, Any]


Whose = Literal["pod", "namespace", "node"]


class PodLabel(msgspec.Struct, frozen=True, kw_only=True):
    """A label.

    Args:
        tag_name: the attribute; `k8s.<from>.labels.<key>` when not given. `$1` is a group of `key_regex`.
        key: its key.
        key_regex: which keys.
        from_: whose: the pod's, its namespace's, or its node's.
    """

    tag_name: str = ""
    key: str = ""
    key_regex: str = ""
    from_: Whose = msgspec.field(default="pod", name="from")

    def check(self) -> Iterator[tuple[tuple[str | int, ...], str]]:
        if bool(self.key) == bool(self.key_regex):
            yield (), "one of key and key_regex is needed"
        if self.key_regex:
            try:
                re2.compile(f"^(?:{self.key_regex})$")
            except re2.error as error:
                yield ("key_regex",), f"not a regular expression: {error}"


class Annotation(PodLabel, frozen=True, kw_only=True):
    """An annotation.

    Args:
        tag_name: the attribute; `k8s.<from>.annotations.<key>` when not given. `$1` is a group of `key_regex`.
    """


class Extract(msgspec.Struct, frozen=True, kw_only=True):
    """
    Args:
        metadata: which attributes.
        labels: labels of the pod, of its namespace or of its node as attributes.
        annotations: annotations of the same.
        otel_annotations: annotations `resource.opentelemetry.io/NAME` as attributes NAME.
        training: the job, rank and GPU of a training pod, by the labels of Kubeflow, JobSet, Volcano, Ray and others
            and the device plugin's annotation.
    """

    IGNORED: ClassVar[tuple[str, ...]] = ("deployment_name_from_replicaset",)

    metadata: tuple[Metadata, ...] = DEFAULT
    labels: list[PodLabel] = []
    annotations: list[Annotation] = []
    otel_annotations: bool = False
    training: bool = True

    def asks(self, whose: Whose) -> bool:
        """Return whether something of the pod's namespace, or of its node, is wanted."""
        own = {"namespace": "k8s.cluster.uid", "node": "k8s.node.uid"}.get(whose)
        return own in self.metadata or any(field.from_ == whose for field in (*self.labels, *self.annotations))


class Surrounding:
    """Works out what a namespace, or a node, gives to the records of its pods.

    Args:
        wanted: what to take.
        whose: which of the two.
    """

    def __init__(self, wanted: Extract, whose: Whose) -> None:
        self._labels, self._annotations = _takings(wanted, whose)
        self._whose = whose
        self._uid = "k8s.node.uid" in wanted.metadata
        self._cluster = "k8s.cluster.uid" in wanted.metadata

    def __call__(self, told: dict[str, Any]) -> dict[str, Any]:
        metadata = told["metadata"]
        found: dict[str, Any] = {}
        if self._whose == "node":
            if self._uid:
                found["k8s.node.uid"] = str(metadata["uid"])
        elif self._cluster and metadata["name"] == SYSTEM:
            found["k8s.cluster.uid"] = str(metadata["uid"])
        for taking, values in (
            (self._labels, metadata.get("labels")),
            (self._annotations, metadata.get("annotations")),
        ):
            for one in taking:
                found.update(one(values or {}))
        return found


class Extraction:
    """Works out what a pod gives.

    Args:
        wanted: what to take.
        excluded: regular expressions; a pod whose name one of them finds gives nothing.
    """

    def __init__(self, wanted: Extract, excluded: Sequence[str] = ()) -> None:
        self._wanted = wanted
        self._own: list[str] = [name for name in wanted.metadata if name not in _OF_CONTAINER]
        self._of_container: list[str] = [name for name in wanted.metadata if name in _OF_CONTAINER]
        self._labels, self._annotations = _takings(wanted, "pod")
        #: Attributes that labels and annotations became; a few more than may be wanted are remembered.
        self.names: set[str] = set()
        self._excluded = [re2.compile(expression) for expression in excluded]

    def __call__(self, pod: Pod) -> tuple[dict[str, Any], dict[str, dict[str, Any]]] | None:
        """Attributes of records of the pod, and beside them those of each container's; None for a pod to be left out.

        A pod of one container gives that container's attributes to all of its records.
        """
        metadata = pod["metadata"]
        labels, annotations = metadata.get("labels") or {}, metadata.get("annotations") or {}
        if annotations.get(_IGNORED) == "true":
            return None
        name = str(metadata.get("name"))
        if any(expression.search(name) for expression in self._excluded):
            return None
        known = facts_of(pod)
        found = {name: value for name in self._own if (value := known.get(name)) is not None}
        for taking, values in ((self._labels, labels), (self._annotations, annotations)):
            for one in taking:
                for name, value in one(values):
                    found[name] = value
                    if len(self.names) < MOST_NAMES:
                        self.names.add(name)
        if self._wanted.otel_annotations:
            found.update((key.removeprefix(_OTEL), v) for key, v in annotations.items() if key.startswith(_OTEL))
        if self._wanted.training:
            found.update(_training(pod))
        containers = {
            name: {key: value for key in self._of_container if (value := facts.get(key)) is not None}
            for name, facts in containers_of(pod)
        }
        if len(containers) == 1:
            found.update(next(iter(containers.values())))
        return found, containers


def _takings(wanted: Extract, whose: Whose) -> tuple[list[_Taker], list[_Taker]]:
    """Those for labels and those for annotations."""
    labels = [_Taker(field, f"k8s.{whose}.labels.") for field in wanted.labels if field.from_ == whose]
    annotations = [_Taker(field, f"k8s.{whose}.annotations.") for field in wanted.annotations if field.from_ == whose]
    return labels, annotations


class _Taker:
    """Takes labels or annotations as a field says."""

    def __init__(self, field: PodLabel, prefix: str) -> None:
        self._key = field.key
        self._name = field.tag_name or f"{prefix}{field.key or '$0'}"
        self._expression = re2.compile(f"^(?:{field.key_regex})$") if field.key_regex else None

    def __call__(self, values: dict[str, str]) -> Iterator[tuple[str, str]]:
        if self._expression is None:
            if self._key in values:
                yield self._name, str(values[self._key])[:MAX_VALUE]
            return
        for key, value in values.items():
            if (match := self._expression.match(key)) is not None:
                name = self._name
                for number in range(self._expression.groups, -1, -1):
                    name = name.replace(f"${number}", match.group(number) or "")
                yield name, str(value)[:MAX_VALUE]


def _training(pod: Pod) -> Iterator[tuple[str, Any]]:
    identity = pod_identity(pod)
    for name in _TRAINING:
        value: Any = identity.get(name)
        if name == "gpu.id":
            value = bus_id(value)
        if value is not None:
            yield name, value


def facts_of(pod: Pod) -> dict[str, Any]:
    """Return what the API says of a pod itself, by attribute."""
    metadata, spec, status = (pod.get(part) or {} for part in ("metadata", "spec", "status"))
    found = {
        "k8s.namespace.name": metadata.get("namespace"),
        "k8s.pod.name": metadata.get("name"),
        "k8s.pod.uid": metadata.get("uid"),
        "k8s.pod.hostname": spec.get("hostname") or metadata.get("name"),
        "k8s.pod.ip": status.get("podIP"),
        "k8s.pod.start_time": status.get("startTime"),
        "k8s.node.name": spec.get("nodeName"),
    }
    for owner in metadata.get("ownerReferences") or ():
        name, kind = owner.get("name"), _OWNERS.get(owner.get("kind"))
        if kind is None or not isinstance(name, str):
            continue
        found[f"k8s.{kind}.name"] = name
        found[f"k8s.{kind}.uid"] = owner.get("uid")
        if kind == "replicaset" and (deployment := _deployment(name, metadata.get("labels") or {})):
            found["k8s.deployment.name"] = deployment
        elif kind == "job" and (match := _CRON.match(name)):
            found["k8s.cronjob.name"] = match.group(1)
    found |= _service(metadata, found)
    return found


def _service(metadata: dict[str, Any], found: dict[str, Any]) -> dict[str, Any]:
    """Name and namespace of the service that a pod is part of, as OpenTelemetry's conventions find them."""
    labels, annotations = metadata.get("labels") or {}, metadata.get("annotations") or {}
    names = (
        annotations.get(f"{_OTEL}service.name"),
        labels.get("app.kubernetes.io/instance"),
        labels.get("app.kubernetes.io/name"),
        *(found.get(f"k8s.{kind}.name") for kind in _WORKLOADS),
    )
    return {
        "service.name": next((name for name in names if name), None),
        "service.namespace": annotations.get(f"{_OTEL}service.namespace") or metadata.get("namespace"),
    }


def _deployment(replicaset: str, labels: dict[str, Any]) -> str | None:
    """Return whose replica set it is: its name without the hash that the pod's label tells."""
    if hash_ := labels.get("pod-template-hash"):
        return replicaset.removesuffix(f"-{hash_}") if replicaset.endswith(f"-{hash_}") else None
    match = _HASH.match(replicaset)
    return match.group(1) if match else None


def containers_of(pod: Pod) -> Iterator[tuple[str, dict[str, Any]]]:
    """Each container and what is known of it."""
    metadata = pod.get("metadata") or {}
    states = {
        state.get("name"): state
        for state in (pod.get("status") or {}).get("containerStatuses") or ()
        if isinstance(state, dict)
    }
    for container in (pod.get("spec") or {}).get("containers") or ():
        name = container.get("name")
        if not isinstance(name, str):
            continue
        state = states.get(name) or {}
        image = str(container.get("image") or "").partition("@")[0]
        base, colon, tag = image.rpartition(":")
        tagged = bool(colon) and "/" not in tag
        version = tag if tagged else "latest" if image else None
        digest = str(state.get("imageID") or "").removeprefix("docker-pullable://")
        given = metadata.get("annotations") or {}
        release = (metadata.get("labels") or {}).get("app.kubernetes.io/version")
        instance = ".".join(str(part) for part in (metadata.get("namespace"), metadata.get("name"), name))
        yield (
            name,
            {
                "k8s.container.name": name,
                "container.id": str(state.get("containerID") or "").partition("://")[2] or None,
                "container.image.name": (base if tagged else image) or None,
                "container.image.tag": version,
                "container.image.tags": [version] if version else None,
                "container.image.repo_digests": [digest] if "@sha256:" in digest else None,
                "service.version": given.get(f"{_OTEL}service.version") or release or version,
                "service.instance.id": given.get(f"{_OTEL}service.instance.id") or instance,
            },
        )
