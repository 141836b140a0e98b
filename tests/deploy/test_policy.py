"""What the manifests ask of a cluster is as little as can be, and every way to ask for more is noticed."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest

Objects = list[dict[str, Any]]


def _of(objects: Objects, kind: str, end: str) -> dict[str, Any]:
    return next(one for one in objects if one["kind"] == kind and one["metadata"]["name"].endswith(end))


def _pod(objects: Objects, kind: str = "DaemonSet", end: str = "-agent") -> dict[str, Any]:
    pod: dict[str, Any] = _of(objects, kind, end)["spec"]["template"]["spec"]
    return pod


def _context(objects: Objects) -> dict[str, Any]:
    context: dict[str, Any] = _pod(objects)["containers"][0]["securityContext"]
    return context


def _mount(objects: Objects, name: str) -> dict[str, Any]:
    return next(one for one in _pod(objects)["containers"][0]["volumeMounts"] if one["name"] == name)


def _rule(objects: Objects, end: str = "-cluster") -> dict[str, Any]:
    rule: dict[str, Any] = _of(objects, "ClusterRole", end)["rules"][0]
    return rule


def _no_seccomp(objects: Objects) -> None:
    _pod(objects)["securityContext"].pop("seccompProfile")
    _context(objects).pop("seccompProfile")


#: A change for the worse, and what is said of it.
BROKEN: dict[str, tuple[Callable[[Objects], Any], str]] = {
    "privileged": (lambda o: _context(o).update(privileged=True), "privileged"),
    "privileged init container": (
        lambda o: _pod(o)["initContainers"][0]["securityContext"].update(privileged=True),
        "container prepare-state: privileged",
    ),
    "host network": (lambda o: _pod(o).update(hostNetwork=True), "hostNetwork"),
    "host processes": (lambda o: _pod(o).update(hostPID=True), "hostPID"),
    "host IPC": (lambda o: _pod(o, "Deployment", "-cluster").update(hostIPC=True), "hostIPC"),
    "host port": (lambda o: _pod(o)["containers"][0]["ports"][0].update(hostPort=8888), "port 8888 of the node"),
    "escalation": (lambda o: _context(o).update(allowPrivilegeEscalation=True), "may escalate"),
    "escalation by default": (lambda o: _context(o).pop("allowPrivilegeEscalation"), "may escalate"),
    "added capability": (lambda o: _context(o)["capabilities"].update(add=["SYSLOG"]), "are added: SYSLOG"),
    "added capability to the init container": (
        lambda o: _pod(o)["initContainers"][0]["securityContext"]["capabilities"].update(add=["CHOWN"]),
        "are added: CHOWN",
    ),
    "kept capabilities": (lambda o: _context(o)["capabilities"].update(drop=["NET_RAW"]), "are not dropped"),
    "root": (lambda o: _context(o).update(runAsUser=0), "runs as root"),
    "root of the pod": (lambda o: _pod(o)["securityContext"].update(runAsUser=0), "runs as root"),
    "perhaps root": (lambda o: _pod(o)["securityContext"].pop("runAsNonRoot"), "runs as root"),
    "another root init container": (
        lambda o: _pod(o)["initContainers"].append({**_pod(o)["initContainers"][0], "name": "setup"}),
        "container setup: runs as root",
    ),
    "root in the Deployment": (
        lambda o: _pod(o, "Deployment", "-cluster")["securityContext"].update(runAsNonRoot=False),
        "runs as root",
    ),
    "writable root file system": (lambda o: _context(o).update(readOnlyRootFilesystem=False), "is writable"),
    "writable by default": (lambda o: _context(o).pop("readOnlyRootFilesystem"), "is writable"),
    "no seccomp": (_no_seccomp, "seccomp profile is missing"),
    "unconfined seccomp": (
        lambda o: _context(o).update(seccompProfile={"type": "Unconfined"}),
        "seccomp profile is Unconfined",
    ),
    "unmasked proc": (lambda o: _context(o).update(procMount="Unmasked"), "procMount"),
    "unconfined AppArmor": (lambda o: _context(o).update(appArmorProfile={"type": "Unconfined"}), "AppArmor"),
    "SELinux super-privileged": (
        lambda o: _pod(o)["securityContext"].update(seLinuxOptions={"type": "spc_t"}),
        "SELinux type spc_t",
    ),
    "sysctls": (
        lambda o: _pod(o)["securityContext"].update(sysctls=[{"name": "kernel.msgmax", "value": "1"}]),
        "sysctls",
    ),
    "root of the node": (
        lambda o: _pod(o)["volumes"].append({"name": "host", "hostPath": {"path": "/"}}),
        "mounts / of the node",
    ),
    "container runtime's socket": (
        lambda o: _pod(o)["volumes"].append({"name": "sock", "hostPath": {"path": "/run/containerd/containerd.sock"}}),
        "mounts /run/containerd/containerd.sock",
    ),
    "kubelet's directory": (
        lambda o: _pod(o)["volumes"].append({"name": "kubelet", "hostPath": {"path": "/var/lib/kubelet"}}),
        "mounts /var/lib/kubelet",
    ),
    "a way out of an allowed directory": (
        lambda o: _pod(o)["volumes"].append({"name": "out", "hostPath": {"path": "/var/log/../lib/kubelet"}}),
        "of the node",
    ),
    "writable logs of the node": (lambda o: _mount(o, "pods").pop("readOnly"), "may write /var/log/pods"),
    "writable journal of the node": (
        lambda o: _mount(o, "kernel").update(readOnly=False),
        "may write /var/log/journal",
    ),
    "propagating mounts": (lambda o: _mount(o, "pods").update(mountPropagation="HostToContainer"), "propagate"),
    "root that sees logs": (
        lambda o: _pod(o)["initContainers"][0]["volumeMounts"].append(_mount(o, "pods")),
        "sees /var/log/pods as root",
    ),
    "other kinds of volumes": (
        lambda o: _pod(o)["volumes"].append({"name": "disk", "nfs": {"server": "a", "path": "/"}}),
        "is a nfs",
    ),
    "no limit of memory": (lambda o: _pod(o)["containers"][0]["resources"].pop("limits"), "memory is not limited"),
    "wildcard verbs": (lambda o: _rule(o).update(verbs=["*"]), "may *"),
    "wildcard resources": (lambda o: _rule(o).update(resources=["*"]), "may read *"),
    "wildcard groups": (lambda o: _rule(o).update(apiGroups=["*"]), "may read the group *"),
    "secrets": (lambda o: _rule(o)["resources"].append("secrets"), "may read secrets"),
    "exec": (lambda o: _rule(o, "-agent")["resources"].append("pods/exec"), "may read pods/exec"),
    "node proxy": (lambda o: _rule(o)["resources"].append("nodes/proxy"), "may read nodes/proxy"),
    "writing": (lambda o: _rule(o).update(verbs=["get", "patch"]), "may patch"),
    "paths": (lambda o: _rule(o).update(nonResourceURLs=["/metrics"]), "paths that are no objects"),
    "aggregation": (
        lambda o: _of(o, "ClusterRole", "-agent").update(aggregationRule={"clusterRoleSelectors": [{}]}),
        "takes on rights",
    ),
    "administrator": (
        lambda o: _of(o, "ClusterRoleBinding", "-agent")["roleRef"].update(name="cluster-admin"),
        "binds cluster-admin",
    ),
    "rights for everybody": (
        lambda o: _of(o, "ClusterRoleBinding", "-agent")["subjects"].append(
            {"kind": "Group", "name": "system:serviceaccounts"}
        ),
        "gives rights to Group",
    ),
    "token for every pod": (lambda o: _of(o, "ServiceAccount", "-agent").pop("automountServiceAccountToken"), "token"),
    "open to the outside": (lambda o: _of(o, "Service", "-cluster")["spec"].update(type="LoadBalancer"), "outside"),
}


def test_the_base_keeps_to_the_policy(policy: Any, base: Objects) -> None:
    assert {one["kind"] for one in base} >= {
        "DaemonSet",
        "Deployment",
        "ClusterRole",
        "NetworkPolicy",
        "ServiceAccount",
    }
    assert policy.violations(base) == []


@pytest.mark.parametrize("name", BROKEN)
def test_every_way_to_ask_for_more_is_noticed(policy: Any, base: Objects, name: str) -> None:
    change, said = BROKEN[name]
    broken = copy.deepcopy(base)
    change(broken)
    assert broken != base
    found = policy.violations(broken)
    assert any(said in text for text in found), found


def test_traffic_is_closed_but_for_what_is_named(base: Objects) -> None:
    policies = [one["spec"] for one in base if one["kind"] == "NetworkPolicy"]
    pods = [one["spec"]["template"]["metadata"]["labels"] for one in base if one["kind"] in ("DaemonSet", "Deployment")]
    for labels in pods:
        mine = [one for one in policies if one["podSelector"]["matchLabels"].items() <= labels.items()]
        assert len(mine) == 1
        assert mine[0]["policyTypes"] == ["Ingress", "Egress"]
        for rule in (*mine[0]["ingress"], *mine[0]["egress"]):
            assert rule["ports"], "a rule without ports opens all of them"
    (gathering,) = [
        rule
        for one in policies
        for rule in one["ingress"]
        if any(port["port"] == "otlp-grpc" for port in rule["ports"])
    ]
    (sender,) = gathering["from"]
    agents = next(one for one in pods if one["app.kubernetes.io/component"] == "agent")
    assert sender["podSelector"]["matchLabels"].items() <= agents.items()
