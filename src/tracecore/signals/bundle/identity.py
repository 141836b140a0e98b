"""The identity (node, pod, rank) of a file, from its path."""

from __future__ import annotations

from functools import lru_cache

import re2

from tracecore.signals.bundle.formats import any_of
from tracecore.signals.record import Attributes

_POD = re2.compile(
    r"(?:^|/)(?P<namespace>[^_/]+)_(?P<pod>[^_/]+)_(?P<uid>[a-f0-9-]+)/(?P<container>[^._/]+)/(?P<restarts>\d+)\.log"
    r"(?:\.\d{8}-\d{6})?(?:\.gz|\.zst|\.xz)?$"
)
# /var/log/containers links: pod_namespace_container-id.log
_CONTAINER = re2.compile(r"(?:^|/)([a-z0-9.-]+)_([a-z0-9-]+)_([a-z0-9.-]+)-[a-f0-9]{64}\.log")
_ATTEMPT = re2.compile(r"(?:^|/)attempt_(\d{1,6})/(\d{1,6})/(?:(stdout|stderr)\.log|error\.json)")
_SLURM = re2.compile(r"^slurm[-_.](\d{1,12}(?:_\d{1,9})?)(?:[-_.].*)?\.(?:out|err|log|txt)")
_RANK = re2.compile(
    r"(?i)(?:^|[^a-z])(?:global[_-]?)?(?:rank|worker(?:log)?|trainer|task|proc|process)[_.-]?(\d{1,7})(?:[^0-9a-z]|$)"
)
#: `worker_1_0.log` of the second machine's first process, or of the second process' first attempt.
_TWO_NUMBERS = re2.compile(
    r"(?i)(?:^|[^a-z])(?:worker|trainer|task|proc(?:ess)?)[_.-]?\d{1,7}[_-]\d{1,3}(?:[^0-9a-z]|$)"
)
_LOCAL = re2.compile(r"(?i)local[_-]?rank|^device\d")
#: Scripts for MindSpore make one folder for each device of a machine.
_DEVICE = re2.compile(r"^device(\d{1,4})$")
_NODE = re2.compile(rf"(?i)^(?:{any_of('machines')})[-_.]?[a-z0-9.-]*\d[a-z0-9.-]*$")
_NODE_FILE = re2.compile(
    rf"(?i)^(?:(?:{any_of('of_machine')}|{any_of('of_console')}|({any_of('of_gpus')}))[-_.@]"
    rf"([a-z0-9][a-z0-9._-]*\d[a-z0-9-]*)"
    rf"|([a-z0-9][a-z0-9.-]*\d[a-z0-9-]*)[-_.]"
    rf"(?:{any_of('of_machine')}|(?:(?:{any_of('of_console')})[-_.])*(?:{any_of('of_console')})"
    rf"|(?:{any_of('of_gpus')})(?:[-_](?:{any_of('after_gpus')}))?))(?:\.[a-z]+){{0,2}}$"
)
_QUALIFIER = re2.compile(rf"(?i)^(?:(?:{any_of('qualifiers')}|{any_of('of_console')})[-_.@])+")
_CONSOLE = re2.compile(rf"(?i)(?:[-_.](?:{any_of('of_console')}))+$")
#: The number of an older log: `console-node118.log.1`.
_ROTATED = re2.compile(r"(?i)(\.(?:log|txt|out))\.\d{1,3}$")
_GPU_INDEX = re2.compile(r"(?i)^gpu_?(?:\d|1[0-5])$")
#: Words in the place of a machine's name that are none: a rank, the number of a job, a network interface.
_NO_MACHINE = re2.compile(rf"(?i)^(?:{any_of('numbered')})[-_.]?\d+$|_|^(?:{any_of('interfaces')})\d\w*$")
_LETTER_OR_ADDRESS = re2.compile(r"(?i)[a-z]|^\d+\.\d+\.\d+\.\d+$")
# The date in `dmesg-20261115.txt` or `journal-2026-11-15T02-03-04.log` is no machine.
_DATE = re2.compile(r"^\d{4}-?\d\d-?\d\d(?:[T._-]?\d[\dZ._-]*)?$|^1\d{9}$")


def of(path: str) -> Attributes:
    """Return the resource attributes in a path (archive members follow `!/`).

    The first part is the path that the user named. It may be called after anything, so its number is no rank.
    """
    path = path.replace("\\", "/").replace("!/", "/")
    found: Attributes = {}
    # A bundle may have 100,000 files, so cheap checks of literals come before regular expressions.
    of_pod = path.count("_") >= 2
    if of_pod and (match := _POD.search(path)):
        found["k8s.namespace.name"] = match.group("namespace")
        found["k8s.pod.name"] = match.group("pod")
        found["k8s.pod.uid"] = match.group("uid")
        found["k8s.container.name"] = match.group("container")
        found["k8s.container.restart_count"] = match.group("restarts")
        found["tracecore.attempt"] = int(match.group("restarts"))
        return found
    if of_pod and (match := _CONTAINER.search(path)):
        found["k8s.pod.name"], found["k8s.namespace.name"], found["k8s.container.name"] = match.groups()
        return found
    parts = [part for part in path.split("/") if part not in ("", ".", "..")]
    name = parts[-1] if parts else ""
    if "attempt_" in path and (match := _ATTEMPT.search(path)):
        found["tracecore.attempt"] = int(match.group(1))
        found["gen_ai.training.local_rank"] = int(match.group(2))
        if match.group(3):
            found["log.iostream"] = match.group(3)
    if name.startswith("slurm") and (match := _SLURM.match(name)):
        found["gen_ai.training.job_id"] = match.group(1)
    if match := _NODE_FILE.match(_ROTATED.sub(r"\1", name)):
        host = _CONSOLE.sub("", _QUALIFIER.sub("", match.group(2) or match.group(3), count=1))
        of_one_gpu = match.group(1) is not None and _GPU_INDEX.match(host)
        if not of_one_gpu and not _DATE.match(host) and _is_machine(host):
            found["host.name"] = host
    for part in [name, *parts[1:-1][:-3:-1]]:
        if "gen_ai.training.rank" in found or "gen_ai.training.local_rank" in found:
            break
        if part == name and _TWO_NUMBERS.search(part):
            continue
        if match := _RANK.search(part) or (_DEVICE.match(part) if part != name else None):
            kind = "local_rank" if _LOCAL.search(part) else "rank"
            found[f"gen_ai.training.{kind}"] = int(match.group(1))
    if "host.name" not in found:
        for part in parts[-2::-1]:
            if _is_node(part):
                found["host.name"] = part
                break
    return found


def _is_machine(name: str) -> bool:
    """Return whether this word in a file's name may be a machine."""
    return _NO_MACHINE.search(name) is None and _LETTER_OR_ADDRESS.search(name) is not None


@lru_cache(maxsize=1024)
def _is_node(folder: str) -> bool:
    """Return whether a folder is named after a machine. Cached, because many files are in one folder."""
    return _NODE.match(folder) is not None
