"""The machine that each file of a bundle comes from.

A kernel's log, a scrape of metrics or a file's name tells its machine. Other files are then assigned to one of these
machines: by a word in the file's name, by a field of its lines, or because the bundle has only one machine.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

import re2

from tracecore.signals.bundle.formats import any_of
from tracecore.signals.kernel import lines as kernel_lines
from tracecore.signals.stream import Stream

#: Formats of programs that print the state of the machine that they run on.
_SNAPSHOTS = frozenset({"nvidia_smi", "nvidia_nvlink", "nvidia_table"})
#: Layers that are about a machine, not about the work on it.
_OF_MACHINE = frozenset({"kernel", "metrics"})
_NO_HOST = re2.compile(rf"(?i)^(?:{any_of('no_machines')})(?:[-_.]?\d|$)")
_HOST = re2.compile(r"(?i)^[a-z][a-z0-9.-]{0,62}\d[a-z0-9-]{0,62}$")
#: Lines and bytes at the beginning of a file that are searched for a machine's name.
_LINES, _BYTES = 8, 4096
#: A machine's name in a line. Only times, levels, brackets and a rank may precede it.
_FIELD = re2.compile(
    rb"^(?:(?:INFO|WARN|WARNING|ERROR|DEBUG|[IWE])[\s:\]|]+)?[\d\s:.,/+\[\]|()<>TZ-]{0,48}"
    rb"(?:(?:INFO|WARN|WARNING|ERROR|DEBUG|[IWE])[\s:\]|]+)?(?:[Rr]ank ?\d{1,7}[\]\s:|]{1,4})?"
    rb"[\[(<]?([A-Za-z][A-Za-z0-9.-]{0,62})[\])>]?(?:[\s:|,]|$)"
)
_LABEL = re2.compile(rb'[{,](?:Hostname|hostname|nodename|node|kubernetes_node)="([^"\n]{1,253})"')
#: Endings of the names of files with the lines of a machine and of the work on it: `gx-07-merged.log`.
_TOGETHER = re2.compile(r"[-_](?:mixed|merged|combined)$")
_DIGITS = re2.compile(r"\d+")
_PARTS = re2.compile(r"[A-Za-z0-9]+")
#: A host in a file's name may consist of this many parts: `ip-10-0-61-9` has five.
_SPAN = 8


def names(stream: Stream, head: bytes) -> frozenset[str]:
    """Return the names of machines at the beginning of a file; for a program's output, words that may be such names."""
    early = head[:_BYTES].split(b"\n")[:_LINES]
    if stream.format in ("dmesg", "syslog"):
        found = {match.group(2) for line in early if (match := kernel_lines.SYSLOG.match(line))}
    elif stream.format == "prometheus":
        found = set(_LABEL.findall(head[:_BYTES]))
    elif stream.layer == "stdout" and not stream.wrapping and "k8s.pod.name" not in stream.resource:
        found = {match.group(1) for line in early if (match := _FIELD.match(line[:160]))}
    else:
        return frozenset()
    told = {name.decode("utf-8", "replace").rstrip(".") for name in found}
    return frozenset(name for name in told if any(map(str.isdigit, name)))


def is_name(word: str) -> bool:
    """Return whether a word may be the name of a machine, rather than of a rank, a job or a version."""
    return _HOST.match(word) is not None and _NO_HOST.match(word) is None


def settle(
    streams: list[Stream],
    folders: dict[str, str],
    said: dict[int, frozenset[str]],
    told: Iterable[str] = (),
    listed: Collection[str] = (),
) -> None:
    """Set the machine of files that do not name one.

    Args:
        folders: the folder of each file, relative to the path that the user named.
        said: the result of `names` by the `id` of the stream.
        told: machines on which ranks run, from statements in files.
        listed: machines of a launcher's list of hosts. Files may be named after any of them (`gpu03`).
    """
    _settle_folders(streams, folders)
    _settle_outer_folders(streams, folders, set(map(_short, told)))
    known = {name for name in told if is_name(name)}
    for stream in streams:
        if stream.layer in _OF_MACHINE:
            stem = stream.path.rpartition("/")[2].partition(".")[0]
            if (name := _TOGETHER.sub("", stem)) != stem and is_name(name) and "k8s.pod.name" not in stream.resource:
                stream.resource.setdefault("host.name", name)
            known |= said.get(id(stream), frozenset())
            if isinstance(host := stream.resource.get("host.name"), str):
                known.add(host)
    if not known and not listed:
        return
    short = {host.partition(".")[0]: host for host in sorted(known) if not host[:1].isdigit()}
    hosts = short | {host: host for host in known}
    named = hosts | {host: host for host in listed}
    kinds = {_DIGITS.sub("0", host) for host in short}
    for stream in streams:
        if "host.name" in stream.resource or "k8s.pod.name" in stream.resource:
            continue
        if stream.layer in _OF_MACHINE:
            name = stream.path.rpartition("/")[2].partition(".")[0]
            if is_name(name) and _DIGITS.sub("0", name) in kinds:
                stream.resource["host.name"] = hosts.get(name, name)
            elif host := _host_of(stream, frozenset(), hosts, hosts):
                stream.resource["host.name"] = host
            elif len(set(map(_short, known))) == 1 and not said.get(id(stream)):
                stream.resource["host.name"] = max(known, key=len)
        elif stream.layer == "stdout" and (host := _host_of(stream, said.get(id(stream), frozenset()), hosts, named)):
            stream.resource["host.name"] = host
    _settle_abbreviations(streams, known.difference(*said.values(), told))


def _settle_abbreviations(streams: Iterable[Stream], abbreviations: Collection[str]) -> None:
    """Replace names of machines that only names of files have by the one longer name that ends with them: `x2` by
    `hel-l40s-x2`.
    """
    found = {str(host) for stream in streams if (host := stream.resource.get("host.name")) is not None}
    for name in abbreviations:
        longer = [host for host in found if _short(host).endswith(f"-{name}")]
        if len(longer) == 1:
            for stream in streams:
                if stream.resource.get("host.name") == name:
                    stream.resource["host.name"] = longer[0]


def _short(host: str) -> str:
    return host if host[:1].isdigit() else host.partition(".")[0]


def _host_of(stream: Stream, words: frozenset[str], hosts: dict[str, str], named: dict[str, str]) -> str | None:
    """Return the known machine in the name of a file, else the only one in its lines.

    Args:
        named: machines that a file may be named after.
    """
    name = stream.path.rpartition("/")[2]
    parts = [match.span() for match in _PARTS.finditer(name)]
    found = [
        host
        for place, (begin, _) in enumerate(parts)
        for _, end in parts[place : place + _SPAN]
        if (host := named.get(name[begin:end])) is not None
    ]
    if found:
        longest = {host for host in found if len(host) == max(map(len, found))}
        return longest.pop() if len(longest) == 1 else None
    begun = {hosts[word] for word in words if word in hosts}
    return begun.pop() if len(begun) == 1 else None


def _settle_folders(streams: list[Stream], folders: dict[str, str]) -> None:
    """Set the host of all files in a folder to the folder's name, if the folder has a kernel's log or a snapshot of a
    machine.
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
    """Set the host to the outermost folder whose name looks like those of machines on which ranks run."""
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
