"""Targets that the Kubernetes API knows, with the labels that Prometheus gives them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final
from urllib.parse import urlsplit

import re2

from tracecore.agent.following import Following
from tracecore.agent.receivers.prometheus.options import KubernetesSd
from tracecore.signals.kubernetes import api
from tracecore.signals.kubernetes.watch import Collection

log = logging.getLogger("tracecore.agent.prometheus")

#: Objects of one kind that are remembered.
MOST: Final = 50_000
_UNFIT = re2.compile(r"[^a-zA-Z0-9_]")
_PREFIX: Final = "__meta_kubernetes_"
#: What has to be followed for each role; the first is what targets are made of.
_FOLLOWED: Final = {
    "pod": ("pods",),
    "node": ("nodes",),
    "service": ("services",),
    "endpoints": ("endpoints", "services", "pods"),
    "endpointslice": ("endpointslices", "services", "pods"),
}
_ROLES: Final = {
    "pods": "pod", "nodes": "node", "services": "service", "endpoints": "endpoints", "endpointslices": "endpointslice",
}  # fmt: skip

Object = dict[str, Any]
Labels = dict[str, str]


class Kubernetes:
    """Follows the objects of a role, and gives the targets they are."""

    def __init__(self, config: KubernetesSd) -> None:
        self._config = config
        self._followed = {
            resource: [Objects(collection, self._way) for collection in _collections(config, resource)]
            for resource in _FOLLOWED[config.role]
        }

    def start(self) -> None:
        for many in self._followed.values():
            for one in many:
                one.following.start()

    def stop(self) -> None:
        for many in self._followed.values():
            for one in many:
                one.following.stop()

    def version(self) -> int:
        return sum(one.following.settled for many in self._followed.values() for one in many)

    def wrong(self) -> str:
        return next((one.wrong for many in self._followed.values() for one in many if one.wrong), "")

    def labels(self) -> Iterator[Labels]:
        role = self._config.role
        first = self._objects(_FOLLOWED[role][0])
        if role == "pod":
            for pod in first:
                yield from pod_targets(pod)
        elif role == "node":
            for node in first:
                yield from node_targets(node)
        elif role == "service":
            for service in first:
                yield from service_targets(service)
        else:
            services = {_key(one): one for one in self._objects("services")}
            pods = {_key(one): one for one in self._objects("pods")}
            make = endpoints_targets if role == "endpoints" else slice_targets
            for one in first:
                yield from make(one, services, pods)

    def _objects(self, resource: str) -> list[Object]:
        return [found for one in self._followed[resource] for found in one.all()]

    def _way(self) -> api.Way:
        if (server := self._config.api_server) is None:
            return api.connect("serviceAccount")
        parts = urlsplit(server)
        secure = parts.scheme == "https"
        given = self._config.authorization

        def headers() -> dict[str, str]:
            if given is None:
                return {}
            secret = given.credentials
            if given.credentials_file is not None:
                with open(given.credentials_file) as file:
                    secret = file.read().strip()
            return {"Authorization": f"{given.type} {secret}"}

        return api.Way(
            parts.hostname or "",
            parts.port or (443 if secure else 80),
            api.Credentials(headers, self._config.tls_config.context if secure else None),
            prefix=parts.path,
            server_name=self._config.tls_config.server_name or "",
        )


def _collections(config: KubernetesSd, resource: str) -> Iterator[Collection]:
    names = list(config.namespaces.names)
    if config.namespaces.own_namespace:
        try:
            names.append((api.ACCOUNT / "namespace").read_text().strip())
        except OSError as error:
            log.warning("the namespace of this pod is not known: %s", error)
    chosen = next((one for one in config.selectors if one.role == _ROLES[resource]), None)
    for namespace in ([""] if resource == "nodes" else names) or [""]:
        yield Collection(
            resource=resource,
            group="discovery.k8s.io" if resource == "endpointslices" else "",
            namespace=namespace,
            labels=chosen.label if chosen is not None else "",
            fields=chosen.field if chosen is not None else "",
        )


class Objects:
    """The objects of one collection, as they are now."""

    def __init__(self, collection: Collection, way: Callable[[], api.Way]) -> None:
        self._known: dict[str, Object] = {}
        self.wrong = ""
        self.following = Following(way, collection, self, self._state)

    def all(self) -> list[Object]:
        return list(self._known.values())

    def key(self, found: Object) -> str:
        return str(found["metadata"]["uid"])

    def kept(self) -> Iterable[str]:
        return self._known

    def put(self, key: str, found: Object) -> bool:
        if key not in self._known and len(self._known) >= MOST:
            return False
        self._known[key] = found
        return True

    def drop(self, key: str) -> None:
        self._known.pop(key, None)

    def _state(self, wrong: str) -> None:
        self.wrong = wrong


# -- what Prometheus calls things --------------------------------------------------------------------------------------


def _map(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _list(value: Any) -> list[Any]:
    return [one for one in value if isinstance(one, dict)] if isinstance(value, list) else []


def _meta(found: Object) -> dict[str, Any]:
    return _map(found.get("metadata"))


def _key(found: Object) -> tuple[str, str]:
    return str(_meta(found).get("namespace") or ""), str(_meta(found).get("name") or "")


def _named(prefix: str, values: Mapping[str, Any]) -> Labels:
    """`{prefix}_{name}` and `{prefix}present_{name}` for each."""
    made: Labels = {}
    for name, value in values.items():
        fit = _UNFIT.sub("_", str(name))
        made[f"{_PREFIX}{prefix}_{fit}"] = str(value)
        made[f"{_PREFIX}{prefix}present_{fit}"] = "true"
    return made


def _told(kind: str, found: Object) -> Labels:
    """Labels and annotations of an object."""
    metadata = _meta(found)
    return {
        **_named(f"{kind}_label", _map(metadata.get("labels"))),
        **_named(f"{kind}_annotation", _map(metadata.get("annotations"))),
    }


def _address(host: str, port: Any) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _about_pod(pod: Object) -> Labels:
    metadata, spec, status = _meta(pod), _map(pod.get("spec")), _map(pod.get("status"))
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
    return {**_told("pod", pod), **{f"{_PREFIX}{name}": str(value) for name, value in made.items() if value}}


def _about_container(pod: Object, container: Object, init: bool) -> Labels:
    states = _list(_map(pod.get("status")).get("initContainerStatuses" if init else "containerStatuses"))
    ident = next((str(s.get("containerID") or "") for s in states if s.get("name") == container.get("name")), "")
    made = {
        "pod_container_name": container.get("name"),
        "pod_container_image": container.get("image"),
        "pod_container_id": ident,
        "pod_container_init": "true" if init else "false",
    }
    return {f"{_PREFIX}{name}": str(value) for name, value in made.items() if value}


def _about_port(port: Object) -> Labels:
    made = {
        "pod_container_port_name": port.get("name"),
        "pod_container_port_number": port.get("containerPort"),
        "pod_container_port_protocol": port.get("protocol") or "TCP",
    }
    return {f"{_PREFIX}{name}": str(value) for name, value in made.items() if value}


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


def node_targets(node: Object) -> Iterator[Labels]:
    """The kubelet of a node."""
    metadata, status = _meta(node), _map(node.get("status"))
    addresses: dict[str, str] = {}
    for one in _list(status.get("addresses")):
        addresses.setdefault(str(one.get("type")), str(one.get("address")))
    order = ("InternalIP", "InternalDNS", "ExternalIP", "ExternalDNS", "LegacyHostIP", "Hostname")
    host = next((addresses[kind] for kind in order if kind in addresses), "")
    if not host:
        return
    port = _map(_map(status.get("daemonEndpoints")).get("kubeletEndpoint")).get("Port") or 10250
    name = str(metadata.get("name") or "")
    yield {
        **_told("node", node),
        f"{_PREFIX}node_name": name,
        f"{_PREFIX}node_provider_id": str(_map(node.get("spec")).get("providerID") or ""),
        **{f"{_PREFIX}node_address_{kind}": address for kind, address in addresses.items()},
        "instance": name,
        "__address__": _address(host, port),
    }


def _about_service(service: Object) -> Labels:
    namespace, name = _key(service)
    return {**_told("service", service), f"{_PREFIX}namespace": namespace, f"{_PREFIX}service_name": name}


def service_targets(service: Object) -> Iterator[Labels]:
    """Each port of a service, by its name in DNS."""
    namespace, name = _key(service)
    spec = _map(service.get("spec"))
    kind = str(spec.get("type") or "ClusterIP")
    shared = {**_about_service(service), f"{_PREFIX}service_type": kind}
    if kind == "ExternalName":
        shared[f"{_PREFIX}service_external_name"] = str(spec.get("externalName") or "")
    else:
        shared[f"{_PREFIX}service_cluster_ip"] = str(spec.get("clusterIP") or "")
    for port in _list(spec.get("ports")):
        made = {
            "service_port_name": port.get("name"),
            "service_port_number": port.get("port"),
            "service_port_protocol": port.get("protocol") or "TCP",
        }
        yield {
            **shared,
            **{f"{_PREFIX}{label}": str(value) for label, value in made.items() if value},
            "__address__": f"{name}.{namespace}.svc:{port.get('port')}",
        }


Known = Mapping[tuple[str, str], Object]


def _pod_behind(target: Any, namespace: str, pods: Known) -> Object | None:
    reference = _map(target)
    if reference.get("kind") != "Pod":
        return None
    return pods.get((str(reference.get("namespace") or namespace), str(reference.get("name") or "")))


def _of_pod(pod: Object | None, number: Any) -> Labels:
    """What is said about the pod behind an address, and about the container that has the port."""
    if pod is None:
        return {}
    made = _about_pod(pod)
    for container in _list(_map(pod.get("spec")).get("containers")):
        for port in _list(container.get("ports")):
            if port.get("containerPort") == number:
                return {**made, **_about_container(pod, container, False), **_about_port(port)}
    return made


def endpoints_targets(endpoints: Object, services: Known, pods: Known) -> Iterator[Labels]:
    """Each port of each address."""
    namespace, name = _key(endpoints)
    shared = {
        **_named("endpoints_label", _map(_meta(endpoints).get("labels"))),
        **_named("endpoints_annotation", _map(_meta(endpoints).get("annotations"))),
        f"{_PREFIX}namespace": namespace,
        f"{_PREFIX}endpoints_name": name,
    }
    if (service := services.get((namespace, name))) is not None:
        shared |= _about_service(service)
    for subset in _list(endpoints.get("subsets")):
        for held, ready in (("addresses", "true"), ("notReadyAddresses", "false")):
            for one in _list(subset.get(held)):
                for port in _list(subset.get("ports")):
                    made = {
                        "endpoint_ready": ready,
                        "endpoint_port_name": port.get("name"),
                        "endpoint_port_protocol": port.get("protocol") or "TCP",
                        "endpoint_hostname": one.get("hostname"),
                        "endpoint_node_name": one.get("nodeName"),
                        "endpoint_address_target_kind": _map(one.get("targetRef")).get("kind"),
                        "endpoint_address_target_name": _map(one.get("targetRef")).get("name"),
                    }
                    yield {
                        **_of_pod(_pod_behind(one.get("targetRef"), namespace, pods), port.get("port")),
                        **shared,
                        **{f"{_PREFIX}{label}": str(value) for label, value in made.items() if value},
                        "__address__": _address(str(one.get("ip") or ""), port.get("port")),
                    }


def slice_targets(found: Object, services: Known, pods: Known) -> Iterator[Labels]:
    """The same for a slice of endpoints."""
    namespace, name = _key(found)
    shared = {
        **_named("endpointslice_label", _map(_meta(found).get("labels"))),
        **_named("endpointslice_annotation", _map(_meta(found).get("annotations"))),
        f"{_PREFIX}namespace": namespace,
        f"{_PREFIX}endpointslice_name": name,
        f"{_PREFIX}endpointslice_address_type": str(found.get("addressType") or ""),
    }
    owner = str(_map(_meta(found).get("labels")).get("kubernetes.io/service-name") or "")
    if (service := services.get((namespace, owner))) is not None:
        shared |= _about_service(service)
    for one in _list(found.get("endpoints")):
        conditions = _map(one.get("conditions"))
        for address in one.get("addresses") or ():
            for port in _list(found.get("ports")):
                if port.get("port") is None:
                    continue
                made = {
                    "endpointslice_port": port.get("port"),
                    "endpointslice_port_name": port.get("name"),
                    "endpointslice_port_protocol": port.get("protocol") or "TCP",
                    "endpointslice_endpoint_hostname": one.get("hostname"),
                    "endpointslice_endpoint_node_name": one.get("nodeName"),
                    "endpointslice_address_target_kind": _map(one.get("targetRef")).get("kind"),
                    "endpointslice_address_target_name": _map(one.get("targetRef")).get("name"),
                    "endpointslice_endpoint_conditions_ready": str(conditions.get("ready", True)).lower(),
                }
                yield {
                    **_of_pod(_pod_behind(one.get("targetRef"), namespace, pods), port.get("port")),
                    **shared,
                    **{f"{_PREFIX}{label}": str(value) for label, value in made.items() if value},
                    "__address__": _address(str(address), port.get("port")),
                }
