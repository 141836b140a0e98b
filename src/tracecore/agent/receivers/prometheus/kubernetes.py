"""Targets that the Kubernetes API knows, with the labels that Prometheus gives them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, Final

import re2

from tracecore.agent.following import Objects
from tracecore.agent.receivers.prometheus.options import KubernetesSd
from tracecore.signals.kubernetes import api
from tracecore.signals.kubernetes.watch import Collection

log = logging.getLogger("tracecore.agent.prometheus")

_UNFIT = re2.compile(r"[^a-zA-Z0-9_]")
_PREFIX: Final = "__meta_kubernetes_"

Object = dict[str, Any]
Labels = dict[str, str]


class Kubernetes:
    """Follows pods, and gives the targets they are.

    Args:
        config: namespaces and selectors.
        way: to the API server; that of the cluster this runs in, as its service account, when not given.
    """

    def __init__(
        self, config: KubernetesSd, way: Callable[[], api.Way] = lambda: api.connect("serviceAccount")
    ) -> None:
        self._wrong: dict[str, str] = {}
        self._pods = [
            Objects(way, collection, "uid", lambda pod: pod, partial(self._wrong.__setitem__, collection.namespace))
            for collection in _collections(config)
        ]

    def start(self) -> None:
        for pods in self._pods:
            pods.following.start()

    def stop(self) -> None:
        for pods in self._pods:
            pods.following.stop()

    def version(self) -> int:
        return sum(pods.following.settled for pods in self._pods)

    def wrong(self) -> str:
        return next((text for text in self._wrong.values() if text), "")

    def labels(self) -> Iterator[Labels]:
        for pods in self._pods:
            for pod in list(pods.known.values()):
                yield from pod_targets(pod)


def _collections(config: KubernetesSd) -> Iterator[Collection]:
    chosen = config.selectors[0] if config.selectors else None
    names = list(config.namespaces.names)
    if config.namespaces.own_namespace:
        own = (api.ACCOUNT / "namespace").read_text().strip()
        names += [own] if own not in names else []
    for namespace in names or [""]:
        yield Collection(
            resource="pods",
            namespace=namespace,
            labels=chosen.label if chosen is not None else "",
            fields=chosen.field if chosen is not None else "",
        )


# -- what Prometheus calls things --------------------------------------------------------------------------------------


def _map(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _list(value: Any) -> list[Any]:
    return [one for one in value if isinstance(one, dict)] if isinstance(value, list) else []


def _named(prefix: str, values: Mapping[str, Any]) -> Labels:
    """`{prefix}_{name}` and `{prefix}present_{name}` for each."""
    made: Labels = {}
    for name, value in values.items():
        fit = _UNFIT.sub("_", str(name))
        made[f"{_PREFIX}{prefix}_{fit}"] = str(value)
        made[f"{_PREFIX}{prefix}present_{fit}"] = "true"
    return made


def _prefixed(values: Mapping[str, Any]) -> Labels:
    return {f"{_PREFIX}{name}": str(value) for name, value in values.items() if value}


def _address(host: str, port: Any) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _about_pod(pod: Object) -> Labels:
    metadata, spec, status = _map(pod.get("metadata")), _map(pod.get("spec")), _map(pod.get("status"))
    ready = next((str(c.get("status")) for c in _list(status.get("conditions")) if c.get("type") == "Ready"), "unknown")
    made = {
        "namespace": metadata.get("namespace"),
        "pod_name": metadata.get("name"),
        "pod_uid": metadata.get("uid"),
        "pod_ip": status.get("podIP"),
        "pod_host_ip": status.get("hostIP"),
        "pod_node_name": spec.get("nodeName"),
        "pod_phase": status.get("phase"),
        "pod_ready": ready.lower(),
    }
    owner = next((one for one in _list(metadata.get("ownerReferences")) if one.get("controller")), None)
    if owner is not None:
        made |= {"pod_controller_kind": owner.get("kind"), "pod_controller_name": owner.get("name")}
    return {
        **_named("pod_label", _map(metadata.get("labels"))),
        **_named("pod_annotation", _map(metadata.get("annotations"))),
        **_prefixed(made),
    }


def _about_container(pod: Object, container: Object, init: bool) -> Labels:
    states = _list(_map(pod.get("status")).get("initContainerStatuses" if init else "containerStatuses"))
    ident = next((str(s.get("containerID") or "") for s in states if s.get("name") == container.get("name")), "")
    made = {
        "pod_container_name": container.get("name"),
        "pod_container_image": container.get("image"),
        "pod_container_id": ident,
        "pod_container_init": "true" if init else "false",
    }
    return _prefixed(made)


def _about_port(port: Object) -> Labels:
    made = {
        "pod_container_port_name": port.get("name"),
        "pod_container_port_number": port.get("containerPort"),
        "pod_container_port_protocol": port.get("protocol") or "TCP",
    }
    return _prefixed(made)


def pod_targets(pod: Object) -> Iterator[Labels]:
    """Each port of each container; a container without ports is a target without one."""
    host = _map(pod.get("status")).get("podIP")
    if not isinstance(host, str) or not host:
        return  # it has no address yet
    shared, spec = _about_pod(pod), _map(pod.get("spec"))
    for init, held in ((False, "containers"), (True, "initContainers")):
        for container in _list(spec.get(held)):
            about = {**shared, **_about_container(pod, container, init)}
            ports = _list(container.get("ports"))
            if not ports:
                yield {**about, "__address__": host}
            for port in ports:
                yield {**about, **_about_port(port), "__address__": _address(host, port.get("containerPort"))}
