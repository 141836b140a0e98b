"""The machines of a bundle: which of its files is of which.

A kernel's log, a scrape or a file's name says which machine it is of. Other files then belong to a machine that is
known in this way: by their names, by the field of their lines that names it, or because the bundle has only one.
"""

from __future__ import annotations

from collections.abc import Iterable

import re2

from tracecore.signals.bundle.formats import any_of
from tracecore.signals.kernel import lines as kernel_lines
from tracecore.signals.stream import Stream

#: Formats of what a program prints about the machine that it runs on.
_SNAPSHOTS = frozenset({"nvidia_smi", "nvidia_nvlink", "nvidia_table"})
#: Layers that are about a machine, and not about the work on it.
_OF_MACHINE = frozenset({"kernel", "metrics"})
_NO_HOST = re2.compile(rf"(?i)^(?:{any_of('no_machines')})(?:[-_.]?\d|$)")
_HOST = re2.compile(r"(?i)^[a-z][a-z0-9.-]{0,62}\d[a-z0-9-]{0,62}$")
#: Lines at the beginning of a file that are looked at, and bytes of them.
_LINES, _BYTES = 8, 4096
#: A machine's name before the message of a line: only times, levels and brackets stand before it.
_FIELD = re2.compile(
    rb"^(?:(?:INFO|WARN|WARNING|ERROR|DEBUG|[IWE])[\s:\]|]+)?[\d\s:.,/+\[\]|()<>TZ-]{0,48}"
    rb"(?:(?:INFO|WARN|WARNING|ERROR|DEBUG|[IWE])[\s:\]|]+)?[\[(<]?([A-Za-z][A-Za-z0-9.-]{0,62})[\])>]?(?:[\s:|,]|$)"
)
_LABEL = re2.compile(rb'[{,](?:Hostname|hostname|nodename|node|kubernetes_node)="([^"\n]{1,253})"')
#: How files end in which somebody put the lines of a machine and of the work on it: `gx-07-merged.log`.
_TOGETHER = re2.compile(r"[-_](?:mixed|merged|combined)$")
_DIGITS = re2.compile(r"\d+")
_PARTS = re2.compile(r"[A-Za-z0-9]+")
#: Parts of a file's name that one host may span: `ip-10-0-61-9`.
_SPAN = 8


def names(stream: Stream, head: bytes) -> frozenset[str]:
    """Return the names of machines at the beginning of a file; of a file of work, words that may be one."""
    early = head[:_BYTES].split(b"\n")[:_LINES]
    if stream.format in ("dmesg", "syslog"):
        found = {match.group(2) for line in early if (match := kernel_lines.SYSLOG.match(line))}
    elif stream.format == "prometheus":
        found = set(_LABEL.findall(head[:_BYTES]))
    elif stream.layer == "stdout" and "k8s.pod.name" not in stream.resource:
        found = {match.group(1) for line in early if (match := _FIELD.match(line[:160]))}
    else:
        return frozenset()
    told = {name.decode("utf-8", "replace").rstrip(".") for name in found}
    return frozenset(name for name in told if any(map(str.isdigit, name)))


def is_name(word: str) -> bool:
    """Return whether this word may be the name of a machine, and not of a rank, a job or a version."""
    return _HOST.match(word) is not None and _NO_HOST.match(word) is None


def settle(
    streams: list[Stream], folders: dict[str, str], said: dict[str, frozenset[str]], told: Iterable[str] = ()
) -> None:
    """Give files that name no machine the one that they belong to.

    Args:
        folders: the folder of each file, below what the user named; "" where it lies there directly.
        said: by path what `names` found.
        told: machines on which ranks run, as files tell.
    """
    _settle_folders(streams, folders)
    _settle_outer_folders(streams, folders, set(map(_short, told)))
    known = {name for name in told if is_name(name)}
    for stream in streams:
        if stream.layer in _OF_MACHINE:
            stem = stream.path.rpartition("/")[2].partition(".")[0]
            if (name := _TOGETHER.sub("", stem)) != stem and is_name(name) and "k8s.pod.name" not in stream.resource:
                stream.resource.setdefault("host.name", name)
            known |= said.get(stream.path, frozenset())
            if isinstance(host := stream.resource.get("host.name"), str):
                known.add(host)
    if not known:
        return
    short = {host.partition(".")[0]: host for host in sorted(known) if not host[:1].isdigit()}
    hosts = short | {host: host for host in known}
    kinds = {_DIGITS.sub("0", host) for host in short}
    for stream in streams:
        if "host.name" in stream.resource or "k8s.pod.name" in stream.resource:
            continue
        if stream.layer in _OF_MACHINE:
            name = stream.path.rpartition("/")[2].partition(".")[0]
            if is_name(name) and _DIGITS.sub("0", name) in kinds:
                stream.resource["host.name"] = hosts.get(name, name)
            elif len(set(map(_short, known))) == 1 and not said.get(stream.path):
                stream.resource["host.name"] = max(known, key=len)
        elif stream.layer == "stdout" and (host := _host_of(stream, said.get(stream.path, frozenset()), hosts)):
            stream.resource["host.name"] = host


def _short(host: str) -> str:
    return host if host[:1].isdigit() else host.partition(".")[0]


def _host_of(stream: Stream, words: frozenset[str], hosts: dict[str, str]) -> str | None:
    """Return the known machine that the name of a file has, or else the only one that its lines begin with."""
    name = stream.path.rpartition("/")[2]
    parts = [match.span() for match in _PARTS.finditer(name)]
    found = [
        host
        for place, (begin, _) in enumerate(parts)
        for _, end in parts[place : place + _SPAN]
        if (host := hosts.get(name[begin:end])) is not None
    ]
    if found:
        longest = {host for host in found if len(host) == max(map(len, found))}
        return longest.pop() if len(longest) == 1 else None
    named = {hosts[word] for word in words if word in hosts}
    return named.pop() if len(named) == 1 else None


def _settle_folders(streams: list[Stream], folders: dict[str, str]) -> None:
    """Give the files of a folder the folder's name as their host, where it has the kernel's log of a machine or what a
    program printed about one.
    """
    hosts = {
        folder
        for stream in streams
        if (stream.layer == "kernel" or stream.format in _SNAPSHOTS)
        and (folder := folders.get(stream.path, ""))
        and _is_host(folder)
    }
    for stream in streams:
        if folders.get(stream.path) in hosts:
            stream.resource.setdefault("host.name", folders[stream.path].rpartition("/")[2])


def _settle_outer_folders(streams: Iterable[Stream], folders: dict[str, str], told: set[str]) -> None:
    """Give files the outermost folder that is called like a machine on which ranks run, or like its neighbours."""
    parts = {path: folder.split("/") for path, folder in folders.items() if folder}
    outer = {_short(part) for names in parts.values() for part in names}
    kinds = {_DIGITS.sub("0", name) for name in told & outer if _is_host(name)}
    if not kinds:
        return
    for stream in streams:
        if stream.layer == "stdout" and "host.name" not in stream.resource and "k8s.pod.name" not in stream.resource:
            own = (part for part in parts.get(stream.path, ()) if _DIGITS.sub("0", _short(part)) in kinds)
            if (host := next(own, None)) is not None:
                stream.resource["host.name"] = host


def _is_host(folder: str) -> bool:
    return is_name(folder.rpartition("/")[2])
