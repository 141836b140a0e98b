"""What manifests may ask of a cluster: "restricted" Pod Security and least rights, with named exceptions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

Object = dict[str, Any]

#: Directories of a node that may be mounted, and whether for writing. A path below one of them counts as it.
HOST_PATHS: Final[Mapping[str, bool]] = {
    "/var/log": False,
    "/run/log/journal": False,
    "/var/lib/docker/containers": False,
    "/var/lib/tracecore-dumps": False,
    "/var/lib/tracecore": True,
}
#: The one container that may be root: it opens the state directory to the agent's group, without any capability.
ROOT_INIT: Final = "prepare-state"
VOLUMES: Final = frozenset({"configMap", "emptyDir", "secret", "projected", "persistentVolumeClaim", "downwardAPI"})
SELINUX: Final = frozenset({"", "container_t", "container_init_t", "container_kvm_t", "container_logreader_t"})
#: Kinds that may be read, and how.
READABLE: Final = frozenset({"pods", "events", "nodes"})
VERBS: Final = frozenset({"get", "list", "watch"})


def violations(objects: Sequence[Object]) -> list[str]:
    """Everything that is forbidden; empty when all is well."""
    return [text for found in objects for text in _of(found, objects)]


def _of(found: Object, objects: Sequence[Object]) -> Iterator[str]:
    kind = found["kind"]
    where = f"{kind} {found['metadata']['name']}"
    if kind in ("DaemonSet", "Deployment", "StatefulSet", "Job", "ReplicaSet"):
        for text in _pod(found["spec"]["template"]["spec"], found["spec"]["template"].get("metadata") or {}):
            yield f"{where}: {text}"
    elif kind == "Pod":
        for text in _pod(found["spec"], found["metadata"]):
            yield f"{where}: {text}"
    elif kind in ("Role", "ClusterRole"):
        for rule in found.get("rules") or ():
            for text in _rule(rule):
                yield f"{where}: {text}"
        if found.get("aggregationRule"):
            yield f"{where}: takes on rights of other roles"
    elif kind in ("RoleBinding", "ClusterRoleBinding"):
        for text in _binding(found, objects):
            yield f"{where}: {text}"
    elif kind == "ServiceAccount" and found.get("automountServiceAccountToken") is not False:
        yield f"{where}: hands its token to every pod"
    elif kind == "Service" and found["spec"].get("type", "ClusterIP") != "ClusterIP":
        yield f"{where}: open to the outside ({found['spec']['type']})"


def _pod(spec: Object, metadata: Object) -> Iterator[str]:
    for name in ("hostNetwork", "hostPID", "hostIPC"):
        if spec.get(name):
            yield name
    context = spec.get("securityContext") or {}
    if context.get("sysctls"):
        yield "sysctls"
    if (context.get("seLinuxOptions") or {}).get("type", "") not in SELINUX:
        yield "SELinux type " + context["seLinuxOptions"]["type"]
    for name, value in (metadata.get("annotations") or {}).items():
        if name.startswith("container.apparmor.security.beta.kubernetes.io/") and value == "unconfined":
            yield "AppArmor unconfined"
    containers = [(one, "init") for one in spec.get("initContainers") or ()]
    containers += [(one, "main") for one in spec.get("containers") or ()]
    containers += [(one, "ephemeral") for one in spec.get("ephemeralContainers") or ()]
    for one, role in containers:
        for text in _container(one, context, role):
            yield f"container {one['name']}: {text}"
    yield from _volumes(spec, [one for one, _ in containers])


def _container(one: Object, pod: Object, role: str) -> Iterator[str]:
    context = one.get("securityContext") or {}
    if role == "ephemeral":
        yield "ephemeral"
    if context.get("privileged"):
        yield "privileged"
    if context.get("allowPrivilegeEscalation") is not False:
        yield "may escalate privileges"
    if context.get("readOnlyRootFilesystem") is not True:
        yield "root file system is writable"
    capabilities = context.get("capabilities") or {}
    if "ALL" not in (capabilities.get("drop") or ()):
        yield "capabilities are not dropped"
    if capabilities.get("add"):
        yield f"capabilities are added: {', '.join(capabilities['add'])}"
    if context.get("procMount", "Default") != "Default":
        yield "procMount"
    seccomp = (context.get("seccompProfile") or pod.get("seccompProfile") or {}).get("type")
    if seccomp not in ("RuntimeDefault", "Localhost"):
        yield f"seccomp profile is {seccomp or 'missing'}"
    for source in (context, pod):
        if (source.get("appArmorProfile") or {}).get("type") == "Unconfined":
            yield "AppArmor unconfined"
        if (source.get("windowsOptions") or {}).get("hostProcess"):
            yield "host process"
    if (context.get("seLinuxOptions") or {}).get("type", "") not in SELINUX:
        yield "SELinux type " + context["seLinuxOptions"]["type"]
    user, non_root = (context.get(name, pod.get(name)) for name in ("runAsUser", "runAsNonRoot"))
    if (user == 0 or non_root is not True) and not (role == "init" and one["name"] == ROOT_INIT):
        yield "runs as root"
    for port in one.get("ports") or ():
        if port.get("hostPort"):
            yield f"port {port['hostPort']} of the node"
    if not ((one.get("resources") or {}).get("limits") or {}).get("memory"):
        yield "memory is not limited"
    for event in ("postStart", "preStop"):
        if (one.get("lifecycle") or {}).get(event):
            yield f"{event} hook"


def _volumes(spec: Object, containers: Sequence[Object]) -> Iterator[str]:
    for volume in spec.get("volumes") or ():
        kinds = set(volume) - {"name"}
        if kinds - VOLUMES - {"hostPath"}:
            yield f"volume {volume['name']} is a {', '.join(sorted(kinds - VOLUMES))}"
        if "hostPath" not in kinds:
            continue
        path = volume["hostPath"]["path"].rstrip("/")
        known = [one for one in HOST_PATHS if path == one or path.startswith(one + "/")]
        if not known or ".." in path.split("/"):
            yield f"mounts {path or '/'} of the node"
            continue
        for one in containers:
            for mount in one.get("volumeMounts") or ():
                if mount["name"] != volume["name"]:
                    continue
                if not mount.get("readOnly") and not HOST_PATHS[known[0]]:
                    yield f"container {one['name']}: may write {path} of the node"
                if mount.get("mountPropagation", "None") != "None":
                    yield f"container {one['name']}: mounts propagate"
                if one["name"] == ROOT_INIT and not HOST_PATHS[known[0]]:
                    yield f"container {one['name']}: sees {path} as root"


def _rule(rule: Object) -> Iterator[str]:
    if rule.get("nonResourceURLs"):
        yield "may ask for paths that are no objects"
        return
    for group in rule.get("apiGroups") or ():
        if group not in ("", "events.k8s.io"):
            yield f"may read the group {group}"
    for name in rule.get("resources") or ():
        if name not in READABLE:
            yield f"may read {name}"
    for verb in rule.get("verbs") or ():
        if verb not in VERBS:
            yield f"may {verb}"


def _binding(found: Object, objects: Sequence[Object]) -> Iterator[str]:
    names = {(one["kind"], one["metadata"]["name"]) for one in objects}
    if (found["roleRef"]["kind"], found["roleRef"]["name"]) not in names:
        yield f"binds {found['roleRef']['name']}, which is none of ours"
    for subject in found.get("subjects") or ():
        if subject["kind"] != "ServiceAccount" or ("ServiceAccount", subject["name"]) not in names:
            yield f"gives rights to {subject['kind']} {subject['name']}"
