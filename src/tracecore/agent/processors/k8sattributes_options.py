"""Options of the `k8sattributes` processor: how pods are found for records, which pods, and what is taken of them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, TypeAlias

import msgspec
import re2

from tracecore.agent.options import SECOND, Duration
from tracecore.agent.processors.podfields import Extract
from tracecore.signals.kubernetes import api
from tracecore.signals.kubernetes.watch import Collection

How: TypeAlias = Literal["uid", "name", "ip", "connection", "container", "node"]


class AssociationSource(msgspec.Struct, frozen=True, kw_only=True):
    """
    Args:
        from_: an attribute of the resource, or the address that the records were sent from.
        name: which attribute.
    """

    from_: Literal["resource_attribute", "connection"] = msgspec.field(name="from")
    name: Literal[
        "", "k8s.pod.uid", "k8s.pod.ip", "k8s.pod.name", "k8s.namespace.name", "k8s.node.name", "host.name", "ip",
        "container.id",
    ] = ""  # fmt: skip


class Association(msgspec.Struct, frozen=True, kw_only=True):
    """
    Args:
        sources: all of which must match.
    """

    sources: list[AssociationSource]

    def check(self) -> Iterator[tuple[tuple[str | int, ...], str]]:
        if key_kind(self.sources) is None:
            yield (
                ("sources",),
                "use k8s.pod.uid, k8s.pod.ip, host.name, container.id, k8s.node.name, connection, or "
                "k8s.namespace.name with k8s.pod.name",
            )


class PodSelector(msgspec.Struct, frozen=True, kw_only=True):
    """
    Args:
        key: of a label or field.
        value: its value.
        op: how it is compared.
    """

    key: str
    value: str = ""
    op: Literal["", "equals", "not-equals", "exists", "does-not-exist"] = ""

    def text(self) -> str:
        """As the API reads it."""
        if self.op == "exists":
            return self.key
        if self.op == "does-not-exist":
            return f"!{self.key}"
        return f"{self.key}{'!=' if self.op == 'not-equals' else '='}{self.value}"


class Filter(msgspec.Struct, frozen=True, kw_only=True):
    """
    Args:
        node: only pods of this node.
        node_from_env_var: the variable that names the node.
        namespace: only pods of this namespace.
        labels: only pods with these labels.
        fields: only pods with these fields.
    """

    node: str = ""
    node_from_env_var: str = ""
    namespace: str = ""
    labels: list[PodSelector] = []
    fields: list[PodSelector] = []

    def check(self) -> Iterator[tuple[tuple[str | int, ...], str]]:
        for number, field in enumerate(self.fields):
            if field.op in ("exists", "does-not-exist"):
                yield ("fields", number, "op"), "fields can be compared only: equals or not-equals"

    def collection(self, node: str) -> Collection:
        fields = [*([f"spec.nodeName={node}"] if node else []), *(field.text() for field in self.fields)]
        labels = ",".join(label.text() for label in self.labels)
        return Collection("pods", namespace=self.namespace, labels=labels, fields=",".join(fields))


class ExcludedPod(msgspec.Struct, frozen=True, kw_only=True):
    """
    Args:
        name: a regular expression that finds the name of a pod.
    """

    name: str

    def check(self) -> Iterator[tuple[tuple[str | int, ...], str]]:
        try:
            re2.compile(self.name)
        except re2.error as error:
            yield ("name",), f"not a regular expression: {error}"


class Exclude(msgspec.Struct, frozen=True, kw_only=True):
    """
    Args:
        pods: left as they are.
    """

    pods: list[ExcludedPod] = []


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """
    Args:
        auth_type: `serviceAccount` inside a pod, `kubeConfig` as kubectl does, `none` for a server that asks nothing.
        context: of the kubeconfig; its current one when not given.
        passthrough: ask nobody: records only get the address they were sent from.
        extract: what to add. What a resource already has is never changed.
        pod_association: how a resource's pod is found: the first that matches. When not given: by uid, by namespace
            and name, by address, by the address that the records were sent from.
        filter: which pods are followed. On a node of its own an agent wants `node_from_env_var`.
        exclude: which pods are none of ours.
        wait_for_metadata: hold records back until pods are known.
        wait_for_metadata_timeout: for at most so long.
        wait_for_pod: how long records wait for a pod that is not known yet; 0 does not wait.
        pod_delete_grace_period: how long a pod that is gone is still known.
        watch_sync_period: read for compatibility; pods are never worked out again for nothing.
    """

    auth_type: api.AuthType = "serviceAccount"
    context: str = ""
    passthrough: bool = False
    extract: Extract = Extract()
    pod_association: list[Association] = []
    filter: Filter = Filter()
    exclude: Exclude = Exclude()
    wait_for_metadata: bool = False
    wait_for_metadata_timeout: Duration = 10 * SECOND
    wait_for_pod: Duration = 2 * SECOND
    pod_delete_grace_period: Duration = 120 * SECOND
    watch_sync_period: Duration = 300 * SECOND

    def check(self) -> Iterator[tuple[tuple[str | int, ...], str]]:
        if self.context and self.auth_type != "kubeConfig":
            yield ("context",), "is for auth_type: kubeConfig only"
        if self.wait_for_pod > 60 * SECOND:
            yield ("wait_for_pod",), "at most 60s"


def key_kind(sources: list[AssociationSource]) -> How | None:
    """Return which key of a pod these sources make."""
    names = sorted("connection" if source.from_ == "connection" else source.name for source in sources)
    known: dict[tuple[str, ...], How] = {
        ("k8s.pod.uid",): "uid",
        ("k8s.pod.ip",): "ip",
        ("connection",): "connection",
        ("k8s.namespace.name", "k8s.pod.name"): "name",
        ("k8s.namespace.name", "k8s.node.name", "k8s.pod.name"): "name",
        # The Collector takes both for the pod's address.
        ("host.name",): "ip",
        ("ip",): "ip",
        ("container.id",): "container",
        # Of a node no pod follows, but its own labels and annotations do.
        ("k8s.node.name",): "node",
    }
    return known.get(tuple(names))
