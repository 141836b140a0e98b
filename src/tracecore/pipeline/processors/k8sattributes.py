"""The `k8sattributes` processor: who a record comes from, by the Kubernetes API."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Iterator
from typing import Any, Final, Literal

import msgspec
import re2

from tracecore.pipeline.agent.batch import LEVELS, Batch
from tracecore.pipeline.agent.component import Factory, Setting
from tracecore.pipeline.agent.options import SECOND, Duration
from tracecore.pipeline.processors.pods import Api, Pods

log = logging.getLogger("tracecore.agent.k8sattributes")

Metadata = Literal[
    "k8s.namespace.name", "k8s.pod.name", "k8s.pod.uid", "k8s.pod.hostname", "k8s.pod.ip", "k8s.pod.start_time",
    "k8s.deployment.name", "k8s.replicaset.name", "k8s.statefulset.name", "k8s.daemonset.name", "k8s.job.name",
    "k8s.cronjob.name", "k8s.node.name", "k8s.container.name", "container.image.name", "container.image.tag",
]  # fmt: skip
#: What is extracted when nothing is said.
DEFAULT: Final[tuple[Metadata, ...]] = (
    "k8s.namespace.name", "k8s.pod.name", "k8s.pod.uid", "k8s.pod.start_time", "k8s.deployment.name", "k8s.node.name",
    "container.image.name", "container.image.tag",
)  # fmt: skip
_HASH = re2.compile(r"^(.*)-[0-9a-zA-Z]+$")
_CRON = re2.compile(r"^(.*)-[0-9]+$")
_OWNERS: Final = {
    "ReplicaSet": "k8s.replicaset.name",
    "StatefulSet": "k8s.statefulset.name",
    "DaemonSet": "k8s.daemonset.name",
    "Job": "k8s.job.name",
}


class Field(msgspec.Struct, frozen=True, kw_only=True):
    """A label or annotation.

    Args:
        tag_name: the attribute; `k8s.pod.labels.<key>` when not given. `$1` is a group of `key_regex`.
        key: its key.
        key_regex: which keys.
        from_: whose.
    """

    tag_name: str = ""
    key: str = ""
    key_regex: str = ""
    from_: Literal["pod"] = msgspec.field(default="pod", name="from")

    def check(self) -> Iterator[tuple[tuple[str | int, ...], str]]:
        if bool(self.key) == bool(self.key_regex):
            yield (), "one of key and key_regex is needed"
        if self.key_regex:
            try:
                re2.compile(f"^(?:{self.key_regex})$")
            except re2.error as error:
                yield ("key_regex",), f"not a regular expression: {error}"


class Extract(msgspec.Struct, frozen=True, kw_only=True):
    """
    Args:
        metadata: which attributes.
        labels: labels of the pod as attributes.
        annotations: annotations of the pod as attributes.
    """

    metadata: tuple[Metadata, ...] = DEFAULT
    labels: list[Field] = []
    annotations: list[Field] = []


class AssociationSource(msgspec.Struct, frozen=True, kw_only=True):
    """
    Args:
        from_: an attribute of the resource.
        name: which.
    """

    from_: Literal["resource_attribute"] = msgspec.field(name="from")
    name: Literal["k8s.pod.uid", "k8s.pod.ip", "k8s.pod.name", "k8s.namespace.name"]


class Association(msgspec.Struct, frozen=True, kw_only=True):
    """
    Args:
        sources: all of which must match.
    """

    sources: list[AssociationSource]

    def check(self) -> Iterator[tuple[tuple[str | int, ...], str]]:
        if key_kind([source.name for source in self.sources]) is None:
            yield ("sources",), "use k8s.pod.uid, k8s.pod.ip, or k8s.namespace.name with k8s.pod.name"


class Filter(msgspec.Struct, frozen=True, kw_only=True):
    """
    Args:
        node: only pods of this node.
        node_from_env_var: the variable that names the node.
        namespace: only pods of this namespace.
    """

    node: str = ""
    node_from_env_var: str = ""
    namespace: str = ""


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """
    Args:
        auth_type: `serviceAccount`, or `none` for a proxy that needs none.
        passthrough: ask nobody; records pass as they are.
        extract: what to add. What a resource already has is never changed.
        pod_association: how a resource's pod is found: the first that matches.
        filter: which pods are followed. On a node of its own an agent wants `node_from_env_var`.
        wait_for_metadata: hold records back until pods are known.
        wait_for_metadata_timeout: for at most so long.
    """

    auth_type: Literal["serviceAccount", "none"] = "serviceAccount"
    passthrough: bool = False
    extract: Extract = Extract()
    pod_association: list[Association] = []
    filter: Filter = Filter()
    wait_for_metadata: bool = False
    wait_for_metadata_timeout: Duration = 10 * SECOND


def key_kind(names: list[str]) -> str | None:
    """Which key of a pod these attributes make."""
    if names == ["k8s.pod.uid"]:
        return "uid"
    if names == ["k8s.pod.ip"]:
        return "ip"
    return "name" if sorted(names) == ["k8s.namespace.name", "k8s.pod.name"] else None


class K8sAttributes:
    """Adds what the API knows about the pod of each resource."""

    def __init__(self, options: Options, setting: Setting) -> None:
        self._options = options
        self._setting = setting
        names = [[source.name for source in association.sources] for association in options.pod_association]
        kinds = [kind for one in names if (kind := key_kind(list(one))) is not None]
        self._kinds = kinds or ["uid", "ip", "name"]
        query: dict[str, str] = {}
        node = options.filter.node or os.environ.get(options.filter.node_from_env_var, "")
        if node:
            query["fieldSelector"] = f"spec.nodeName={node}"
        secure = options.auth_type == "serviceAccount"
        self._pods = Pods(lambda: Api.inside(secure), query, options.filter.namespace, self._state)
        self._waited = not options.wait_for_metadata

    def start(self) -> None:
        if not self._options.passthrough:
            self._pods.start()

    def stop(self) -> None:
        self._pods.stop()

    def _state(self, wrong: str) -> None:
        meter = self._setting.meter
        if not wrong:
            if meter.recover():
                log.info("%s: pods are known again", self._setting.id)
        elif meter.degrade(f"pods are not known: {wrong}"):
            log.warning("%s: pods are not known: %s", self._setting.id, wrong)

    def process(self, batch: Batch) -> Iterable[Batch]:
        if self._options.passthrough:
            return (batch,)
        if not self._waited:
            self._pods.synced.wait(self._options.wait_for_metadata_timeout / SECOND)
            self._waited = True
        for entry in batch.payload.get(LEVELS[batch.signal][0]) or ():
            attributes = entry.setdefault("resource", {}).setdefault("attributes", {})
            pod = self._find(attributes)
            if pod is not None:
                for name, value in self._extracted(pod, attributes):
                    attributes.setdefault(name, value)
        return (batch,)

    def _find(self, attributes: dict[str, Any]) -> dict[str, Any] | None:
        for kind in self._kinds:
            if kind == "name":
                key = (attributes.get("k8s.namespace.name"), attributes.get("k8s.pod.name"))
            else:
                key = (attributes.get(f"k8s.pod.{kind}"),)  # type: ignore[assignment]
            if (
                all(isinstance(part, str) for part in key)
                and (pod := self._pods.find(kind, *map(str, key))) is not None
            ):
                return pod
        return None

    def _extracted(self, pod: dict[str, Any], attributes: dict[str, Any]) -> Iterator[tuple[str, Any]]:
        extract = self._options.extract
        known = facts_of(pod, attributes.get("k8s.container.name"))
        for name in extract.metadata:
            if (value := known.get(name)) is not None:
                yield name, value
        metadata = pod.get("metadata") or {}
        for field in extract.labels:
            yield from _fields(field, metadata.get("labels") or {}, "k8s.pod.labels.")
        for field in extract.annotations:
            yield from _fields(field, metadata.get("annotations") or {}, "k8s.pod.annotations.")


def facts_of(pod: dict[str, Any], container: Any) -> dict[str, Any]:
    """What the API says of a pod, by attribute."""
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
        name = owner.get("name")
        if (attribute := _OWNERS.get(owner.get("kind"))) is None or not isinstance(name, str):
            continue
        found[attribute] = name
        if owner["kind"] == "ReplicaSet" and (match := _HASH.match(name)):
            found["k8s.deployment.name"] = match.group(1)
        elif owner["kind"] == "Job" and (match := _CRON.match(name)):
            found["k8s.cronjob.name"] = match.group(1)
    containers = spec.get("containers") or []
    one = next((c for c in containers if c.get("name") == container), containers[0] if len(containers) == 1 else None)
    if one is not None:
        found["k8s.container.name"] = one.get("name")
        image = str(one.get("image") or "").partition("@")[0]
        name, colon, tag = image.rpartition(":")
        tagged = bool(colon) and "/" not in tag
        found["container.image.name"] = (name if tagged else image) or None
        found["container.image.tag"] = tag if tagged else "latest" if image else None
    return found


def _fields(field: Field, values: dict[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    if field.key:
        if field.key in values:
            yield field.tag_name or f"{prefix}{field.key}", values[field.key]
        return
    expression = re2.compile(f"^(?:{field.key_regex})$")
    for key, value in values.items():
        if (match := expression.match(key)) is not None:
            name = field.tag_name or f"{prefix}$0"
            for number in range(expression.groups, -1, -1):
                name = name.replace(f"${number}", match.group(number) or "")
            yield name, value


FACTORY = Factory(
    kind="processor",
    type="k8sattributes",
    summary="Adds pod, workload and node of each resource, by the Kubernetes API.",
    options=Options,
    create=K8sAttributes,
)
