"""The `resourcedetection` processor: says where the agent runs, by its environment, its machine and its node."""

from __future__ import annotations

import logging
import os
import platform
import socket
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, Literal
from urllib.parse import unquote

import msgspec

from tracecore.agent.batch import LEVELS, Batch
from tracecore.agent.component import Setting
from tracecore.agent.document import ConfigReport, Node
from tracecore.agent.options import SECOND, Duration

log = logging.getLogger("tracecore.agent.resourcedetection")

#: Beside those that look at the environment, the machine and the node: those that ask a cloud's metadata service, which
#: an agent beside a training run has no business with.
Detector = Literal[
    "env", "system", "k8snode", "k8s_node", "k8s_api",
    "aks", "akamai", "alibaba_ecs", "azure", "consul", "digitalocean", "docker", "dynatrace", "ec2", "ecs", "eks",
    "elastic_beanstalk", "elasticbeanstalk", "gcp", "gce", "gke", "heroku", "hetzner", "ibmcloud", "kubeadm", "lambda",
    "nova", "openshift", "openstack_nova", "oraclecloud", "scaleway", "tencent_cvm", "upcloud", "vultr",
]  # fmt: skip
_NODES: Final = frozenset({"k8snode", "k8s_node", "k8s_api"})
_ARCHITECTURES: Final = {"x86_64": "amd64", "aarch64": "arm64"}
_MACHINE_ID: Final = (Path("/etc/machine-id"), Path("/var/lib/dbus/machine-id"))


class Enabled(msgspec.Struct, frozen=True, kw_only=True):
    """
    Args:
        enabled: whether records get it.
    """

    enabled: bool


class System(msgspec.Struct, frozen=True, kw_only=True):
    """
    Args:
        hostname_sources: where the machine's name comes from, the first that has one: `os`, its own; `dns`, `fqdn` and
            `lookup`, its full name; `cname`, that of its address.
        resource_attributes: `host.name` and `os.type` (on), `host.id`, `host.arch` and `os.description` (off).
    """

    hostname_sources: tuple[Literal["os", "dns", "fqdn", "lookup", "cname"], ...] = ("dns", "os")
    resource_attributes: dict[str, Enabled] = {}


class NodeDetector(msgspec.Struct, frozen=True, kw_only=True):
    """
    Args:
        auth_type: accepted for the Collector's sake: the API is not asked.
        context: accepted for the Collector's sake.
        node_from_env_var: the variable that names the node.
        resource_attributes: `k8s.node.name` (on); `k8s.node.uid` comes from `k8sattributes`.
    """

    auth_type: str = "serviceAccount"
    context: str = ""
    node_from_env_var: str = "K8S_NODE_NAME"
    resource_attributes: dict[str, Enabled] = {}


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """
    Args:
        detectors: who is asked, in order; what an earlier one says stays. `env` reads OTEL_RESOURCE_ATTRIBUTES.
        override: whether what is found replaces what records have.
        timeout: accepted for the Collector's sake: nothing is waited for.
        refresh_interval: accepted for the Collector's sake.
        attributes: keep only these; all when none is given.
        system: the machine.
        k8snode: the node.
        k8s_node: the same.
        k8s_api: the same.
        aks: accepted and without effect, like everything of a cloud.
        azure: accepted and without effect.
        docker: accepted and without effect.
        ec2: accepted and without effect.
        ecs: accepted and without effect.
        eks: accepted and without effect.
        gcp: accepted and without effect.
        openshift: accepted and without effect.
    """

    detectors: tuple[Detector, ...] = ("env",)
    override: bool = True
    timeout: Duration = 5 * SECOND
    refresh_interval: Duration = 0
    attributes: list[str] = []
    system: System = System()
    k8snode: NodeDetector = NodeDetector()
    k8s_node: NodeDetector = NodeDetector()
    k8s_api: NodeDetector = NodeDetector()
    aks: dict[str, Any] = {}
    azure: dict[str, Any] = {}
    docker: dict[str, Any] = {}
    ec2: dict[str, Any] = {}
    ecs: dict[str, Any] = {}
    eks: dict[str, Any] = {}
    gcp: dict[str, Any] = {}
    openshift: dict[str, Any] = {}


def check(options: Options, node: Node, report: ConfigReport) -> None:
    """Warn of detectors that detect nothing here."""
    for number, detector in enumerate(options.detectors):
        if detector not in ("env", "system", *_NODES):
            report.warning(
                node.near("detectors", number),
                f'"{detector}" asks a cloud, which is not done here: its attributes are missing; set them with a '
                "resource processor",
            )


class ResourceDetection:
    """Adds what it found at the start to every resource."""

    def __init__(self, options: Options, setting: Setting) -> None:
        self._override = options.override
        self._found = dict(_wanted(detect(options, os.environ), options.attributes))
        for detector in options.detectors:
            name = _node_options(options, detector).node_from_env_var
            if detector in _NODES and not os.environ.get(name):
                log.warning("%s: the environment variable %s is not set: the node is not known", setting.id, name)

    def process(self, batch: Batch) -> Iterable[Batch]:
        for entry in batch.payload.get(LEVELS[batch.signal][0]) or ():
            resource = entry.setdefault("resource", {})
            own = resource.get("attributes") or {}
            resource["attributes"] = {**own, **self._found} if self._override else {**self._found, **own}
        return (batch,)


def detect(options: Options, environment: Mapping[str, str]) -> dict[str, Any]:
    """Return what all detectors find; an earlier one goes before a later one."""
    found: dict[str, Any] = {}
    for detector in options.detectors:
        for name, value in _detected(detector, options, environment):
            found.setdefault(name, value)
    return found


def _detected(detector: str, options: Options, environment: Mapping[str, str]) -> Iterator[tuple[str, Any]]:
    if detector == "env":
        yield from from_text(environment.get("OTEL_RESOURCE_ATTRIBUTES") or environment.get("OTEL_RESOURCE") or "")
    elif detector == "system":
        yield from _of_system(options.system)
    elif detector in _NODES:
        wanted = _node_options(options, detector)
        node = environment.get(wanted.node_from_env_var)
        if node and _on(wanted.resource_attributes, "k8s.node.name", True):
            yield "k8s.node.name", node


def _node_options(options: Options, detector: str) -> NodeDetector:
    found: NodeDetector = getattr(options, detector) if detector in _NODES else options.k8snode
    return found


def from_text(text: str) -> Iterator[tuple[str, str]]:
    """The pairs of `key=value,key=value`, with `%2C` and its like written out."""
    for pair in text.split(","):
        name, equals, value = pair.partition("=")
        if equals and name.strip():
            yield unquote(name.strip()), unquote(value.strip())


def _of_system(options: System) -> Iterator[tuple[str, Any]]:
    wanted = options.resource_attributes
    values: dict[str, tuple[bool, Callable[[], str]]] = {
        "host.name": (True, lambda: _hostname(options.hostname_sources)),
        "os.type": (True, lambda: platform.system().lower()),
        "host.arch": (False, lambda: _ARCHITECTURES.get(platform.machine(), platform.machine())),
        "host.id": (False, _machine_id),
        "os.description": (False, platform.platform),
    }
    for name, (usual, value) in values.items():
        if _on(wanted, name, usual) and (found := value()):
            yield name, found


def _on(wanted: Mapping[str, Enabled], name: str, usual: bool) -> bool:
    return wanted[name].enabled if name in wanted else usual


def _hostname(sources: Iterable[str]) -> str:
    own = socket.gethostname()
    for source in sources:
        if source == "os":
            return own
        full = socket.getfqdn(own)
        if full and full != "localhost":
            return full
    return own


def _machine_id() -> str:
    for path in _MACHINE_ID:
        try:
            return path.read_text().strip()
        except OSError:
            continue
    return ""


def _wanted(found: Mapping[str, Any], names: list[str]) -> Iterator[tuple[str, Any]]:
    return ((name, value) for name, value in found.items() if not names or name in names)
