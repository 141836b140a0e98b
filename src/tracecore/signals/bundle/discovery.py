"""Discovery: walk the given directories and archives in place, and recognise every file as a stream.

The order is fixed: files by name, members of an archive in the archive's order. Links that leave the given directory
are not followed. Files that cannot be read are listed with the reason.
"""

from __future__ import annotations

import io
import os
import stat
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import BinaryIO, TypedDict

import msgspec

from tracecore.signals.bundle import (
    addresses,
    archive,
    clocks,
    exports,
    identity,
    layouts,
    machines,
    ordinals,
    pasted,
    place_statements,
    placement,
    places,
    process_ranks,
    remote,
)
from tracecore.signals.bundle.archive import BundleLimits, Opener
from tracecore.signals.bundle.file_times import recorded_times, times
from tracecore.signals.bundle.formats import FORMATS
from tracecore.signals.bundle.opening import (
    GIVEN,
    aside,
    decompressed,
    descriptor,
    end_of_file,
    exactly,
    inside,
    not_regular,
    open_file,
    spool,
    stem,
    walk,
)
from tracecore.signals.bundle.recognition import Recognised, holds_work, is_node_agent, recognise
from tracecore.signals.bundle.settling import (
    settle_local_ranks,
    settle_machine_ranks,
    settle_pods,
    settle_pods_of_events,
    settle_slots,
    settle_sole_processes,
    settle_time,
)
from tracecore.signals.bundle.wrapping import task_machines
from tracecore.signals.kernel import lines as kernel_lines
from tracecore.signals.naming import printable
from tracecore.signals.record import LAYERS, Attributes
from tracecore.signals.redaction import redacted
from tracecore.signals.stamps import Stamp, is_plausible
from tracecore.signals.stream import Clock, Counters, Stream

HEAD = 64 * 1024
#: Bytes at the beginning of a long file that are searched for a launcher's settings.
SETTINGS = 16 * 1024
#: A zip inside another archive is copied, because it must be read from its end. Larger ones are skipped.
NESTED_ZIP = 1 << 30
#: Exports of logs are held in memory up to this many bytes.
EXPORTS = 4 * exports.MAX_SIZE

#: Formats whose lines have times.
TIMED = frozenset({"text", "cri", "docker", "syslog", "dmesg", "nvidia_csv", "nvidia_dmon", "nvidia_smi", "ibstat"})
#: Formats of lines. Each line is looked at by itself.
_LINES = frozenset({"text", "cri", "docker", "syslog", "dmesg", "journal_json", "journal_export"})
#: Labels of recorded cases and lists of contents, which are no part of the bundle.
IGNORED = frozenset({"truth.json", "tracecore-manifest.json"})


class Skipped(msgspec.Struct, frozen=True):
    """A file that was not read, and why."""

    path: str
    reason: str


class Coverage(TypedDict):
    """The `coverage` of a diagnosis document."""

    files_read: int
    bytes_read: int
    layers: dict[str, int]
    limits_reached: dict[str, int]
    skipped: list[dict[str, str]]


class Bundle(msgspec.Struct, kw_only=True):
    """All readable files, the end of their time, and the files that were skipped.

    Args:
        redact: remove secrets from quoted text.
        masked: secrets are already masked in its files (`signals.bundle.kept_text`).
        placement: where its ranks run, as far as its files say.
    """

    streams: list[Stream]
    skipped: list[Skipped]
    clock: Clock
    redact: bool = True
    masked: bool = False
    placement: placement.Placement = msgspec.field(default_factory=placement.Placement)

    def layers(self) -> dict[str, int]:
        """Return the number of files of each layer, also of layers without any."""
        return {layer: sum(1 for stream in self.streams if stream.layer == layer) for layer in LAYERS}

    def coverage(self, counters: Counters) -> Coverage:
        """Return the coverage for a diagnosis document."""
        return {
            "files_read": len({stream.path for stream in self.streams}),
            "bytes_read": counters.bytes_read,
            "layers": self.layers(),
            "limits_reached": counters.limits_reached(),
            "skipped": [{"path": skipped.path, "reason": skipped.reason} for skipped in self.skipped],
        }

    def skip(self, path: str, reason: str) -> None:
        """Note that a file was not read, or not to its end."""
        self.skipped.append(Skipped(path, reason))

    def note_shrunk(self) -> None:
        """Note files that became shorter since they were found, because their end may not have been read."""
        for stream in self.streams:
            if isinstance(stream.open, partial) and stream.open.func is open_file and stream.size:
                try:
                    size = os.stat(stream.open.args[0]).st_size
                except OSError:
                    size = 0
                if size < stream.size:
                    self.skip(stream.path, "read in part: it became shorter, or was removed, while it was read")

    def of(self, *formats: str) -> list[Stream]:
        """Return the streams of these formats."""
        return [stream for stream in self.streams if stream.format in formats]


def discover(
    paths: Sequence[str | Path], limits: BundleLimits | None = None, now: int | None = None, *, redact: bool = True
) -> Bundle:
    """Find and recognise every file under these paths.

    Args:
        paths: files and directories, also as URLs.
        limits: see `BundleLimits`; the defaults suffice for any real bundle.
        now: used as the modification time of every file. It decides the year if no timestamp has one.
        redact: remove secrets from file names and from text that is quoted later.

    Raises:
        FileNotFoundError: a given path does not exist. Errors inside of a path are noted, not raised.
        remote.RemoteError: a URL cannot be read.
    """
    search = _Search(limits or BundleLimits(), now, redact=redact)
    for path in sorted({remote.local(os.fspath(path)) for path in paths}):
        if remote.is_url(path):
            search.remote(path)
            continue
        if descriptor(path) is None and not os.path.lexists(path):
            raise FileNotFoundError(path)
        search.path(Path(path))
    settle_machine_ranks(search.streams, search.folders)
    settle_sole_processes(search.streams, search.places.told)
    settle_local_ranks(search.streams)
    told = {one.node for _, one in search.places.told if one.node}
    clustered = any(stream.layer == "kubernetes" for stream in search.streams)
    listed_hosts = set() if clustered else {one.node for _, one in search.places.told if one.slots}
    machines.settle(search.streams, search.folders, search.machines, told, listed_hosts)
    listed = settle_pods(search.streams)
    ordinals.settle(search.streams, search.processes, listed)
    process_ranks.settle(search.streams, search.told_ranks)
    settle_pods_of_events(search.streams)
    settle_slots(search.streams, (one for _, one in search.places.told))
    hosts: frozenset[str] = frozenset().union(*search.machines.values())
    addresses.settle(search.streams, [*search.addresses, *addresses.of_pods(listed.values())], hosts)
    clock = settle_time(search.stamps)
    if search.places.left_out:
        search.skipped.append(
            Skipped(search.places.left_out, "read, but not for the places of ranks: too many were told")
        )
    placed = places.settle(search.streams, search.places.told, search.told_ranks, listed, search.settings)
    # Inside a pod the host name is the pod's name.
    inside = {name: placed.pod_nodes[pod] for name, pod in places.pod_aliases(placed.pod_nodes).items()}
    for stream in search.streams if inside else ():
        stream.nodes = inside | stream.nodes
    return Bundle(
        streams=search.streams,
        skipped=search.skipped,
        clock=clock,
        redact=redact,
        placement=placed,
    )


class _Search:
    def __init__(self, limits: BundleLimits, now: int | None = None, *, redact: bool = True) -> None:
        self.limits = limits
        self.redact = redact
        self.streams: list[Stream] = []
        self.skipped: list[Skipped] = []
        #: Timestamps, each with the modification time of its file.
        self.stamps: list[tuple[Stamp, int]] = []
        self.now = time.time_ns() if now is None else now
        self.trusts_files = now is None
        #: The modification time of the current file or member of an archive.
        self.modified = self.now
        self.processes: dict[str, ordinals.Processes] = {}
        #: Names of machines that occur in files, by the `id` of the stream: sections of a file share its path.
        self.machines: dict[int, frozenset[str]] = {}
        self.addresses: list[tuple[str, str]] = []
        self.told_ranks: list[tuple[process_ranks.Process, int]] = []
        self.places = place_statements.Statements()
        #: The different settings of launchers, as an ordered set.
        self.settings: dict[layouts.Setting, None] = {}
        #: The folder of each file relative to the path that the user named, by the file's path.
        self.folders: dict[str, str] = {}
        self.count = 0
        self.exported = 0
        #: Bytes of all files on disk, and bytes to which the compressed ones expand.
        self.compressed = 0
        self.expanded = 0
        self.paths: Counter[str] = Counter()

    def skip(self, path: str, reason: str) -> None:
        self.skipped.append(Skipped(self.shown(path), reason))

    def shown(self, path: str) -> str:
        """Return a path as it is shown: on one line, without secrets."""
        path = printable(path)
        return redacted(path) if self.redact else path

    def note_modified(self, modified: int, otherwise: int) -> None:
        """Note when the next file was modified; use `otherwise` if its time is not plausible."""
        self.modified = modified if self.trusts_files and is_plausible(modified) else otherwise

    def note_times(self, found: Iterable[Stamp]) -> None:
        self.stamps.extend((stamp, self.modified) for stamp in found)

    def path(self, root: Path) -> None:
        """Search a file or directory that the user named."""
        if (number := descriptor(os.fspath(root))) is not None:
            self._given(number, "<stdin>" if number == 0 else str(root))
            return
        if not root.is_dir():
            self.file(str(root), root.name)
            return
        real = os.path.realpath(root)
        for path, relative in walk(root, self.skip):
            if self.count >= self.limits.files:
                self.skip(str(root), f"more than {self.limits.files} files: the rest was left out")
                return
            if os.path.islink(path) and not inside(path, real):
                self.skip(path, "a link that leads out of the directory")
                continue
            self.file(path, f"{root.name}/{relative}")

    def remote(self, url: str) -> None:
        """Search a file or directory that the user named by a URL."""
        root = url.rstrip("/").rsplit("/", 1)[-1]
        for found, opener in remote.openers(remote.files(url)):
            if self.count >= self.limits.files:
                self.skip(url, f"more than {self.limits.files} files: the rest was left out")
                return
            self.count += 1
            if found.url.rsplit("/", 1)[-1] in IGNORED:
                continue
            self.compressed += found.size
            self.note_modified(found.modified, self.now)
            try:
                self.consider(found.url, f"{root}/{found.relative}".rstrip("/"), opener, found.size, 0)
            except archive.ERRORS as error:
                self.skip(found.url, archive.reason(error))

    def _given(self, number: int, shown: str) -> None:
        """Read standard input or another open file. It is copied if it can be read only once."""
        self.count += 1
        try:
            copy, whole = spool(number)
            if not whole:
                self.skip(shown, f"read in part: more than {GIVEN >> 30} GiB")
            self.compressed += copy.size
            self.modified = self.now
            self.consider(shown, "stdin.log", copy, copy.size, 0)
        except archive.ERRORS as error:
            self.skip(shown, archive.reason(error))

    def file(self, path: str, relative: str) -> None:
        self.count += 1
        if os.path.basename(path) in IGNORED:
            return
        try:
            found = os.stat(path)
            if not stat.S_ISREG(found.st_mode):
                self.skip(path, not_regular(found.st_mode))
                return
            self.compressed += found.st_size
            self.note_modified(found.st_mtime_ns, self.now)
            self.consider(path, relative, partial(open_file, path), found.st_size, 0)
        except archive.ERRORS as error:
            self.skip(path, archive.reason(error))

    def consider(self, path: str, relative: str, opener: Opener, size: int | None, depth: int) -> None:
        """Recognise one file, or search the members of an archive."""
        path, relative = self.shown(path), printable(relative)
        with opener() as file:
            head = exactly(file, HEAD)
            kind = archive.kind(head)
            made_of = None if kind else exports.shape(head)
            if made_of is not None and self._export(path, relative, made_of, head, file):
                return
            if not kind and made_of is None:
                self._recognise(path, relative, opener, size, head, file)
                self._note_cut(path, file)
                return
        if not kind:
            with opener() as file:
                self._recognise(path, relative, opener, size, exactly(file, HEAD), file)
                self._note_cut(path, file)
            return
        if depth >= self.limits.depth:
            self.skip(path, f"an archive more than {self.limits.depth} deep")
        elif kind == "tar":
            self._tar(path, relative, opener, depth)
        elif kind == "zip":
            self._zip(path, relative, opener, depth)
        else:
            self._compressed(path, relative, opener, size, kind, depth)

    def _note_cut(self, path: str, file: BinaryIO) -> None:
        if cut := getattr(file, "cut", ""):
            self.skip(path, f"read in part: {cut}")

    def _compressed(self, path: str, relative: str, opener: Opener, size: int | None, kind: str, depth: int) -> None:
        inner = partial(decompressed, opener, kind, size if size is not None else self.limits.ratio_from, self.limits)
        with inner() as file:
            tar = archive.kind(exactly(file, 512)) == "tar"
        if tar:
            self._tar(path, relative, inner, depth)
        else:
            self.consider(path, stem(relative), inner, None, depth + 1)

    def _tar(self, path: str, relative: str, opener: Opener, depth: int) -> None:
        tar = archive.Tar(opener, self.limits)
        found = False
        try:
            for index, info in tar.members():
                found = True
                name = archive.safe_name(info.name)
                shown = f"{path}!/{name or info.name}"
                if info.isdir():
                    continue
                if name is None:
                    self.skip(shown, "a name that leads out of the archive")
                elif not info.isfile():
                    self.skip(shown, "a link or device in an archive")
                else:
                    opener = partial(tar.open, index)
                    self._member(shown, f"{relative}/{name}", opener, info.size, depth, archive.modified(info))
            if tar.cut:
                self.skip(path, f"read in part: {tar.cut}")
        except archive.ERRORS as error:
            self.skip(path, f"read in part: {archive.reason(error)}" if found else archive.reason(error))

    def _zip(self, path: str, relative: str, opener: Opener, depth: int) -> None:
        bundle = archive.Zip(partial(aside, opener, NESTED_ZIP) if depth else opener, self.limits)
        for info, allowed in bundle.members():
            name = archive.safe_name(info.filename)
            shown = f"{path}!/{name or info.filename}"
            if info.is_dir():
                continue
            if name is None:
                self.skip(shown, "a name that leads out of the archive")
            elif stat.S_ISLNK(info.external_attr >> 16):
                self.skip(shown, "a link or device in an archive")
            elif info.flag_bits & 1:
                self.skip(shown, "encrypted")
            elif not allowed:
                self.skip(shown, f"expands from {info.compress_size:,} to {info.file_size:,} bytes, which is too much")
            else:
                opener = partial(bundle.open, info)
                self._member(shown, f"{relative}/{name}", opener, info.file_size, depth, archive.modified(info))

    def _member(self, path: str, relative: str, opener: Opener, size: int, depth: int, modified: int) -> None:
        self.count += 1
        if self.count > self.limits.files:
            raise archive.Bomb(f"more than {self.limits.files} files")
        if path.rsplit("/", 1)[-1] in IGNORED:
            return
        around = self.modified
        self.note_modified(modified, around)
        try:
            self.consider(path, relative, opener, size, depth + 1)
        except archive.ERRORS as error:
            self.skip(path, archive.reason(error))
        finally:
            self.modified = around

    def _export(self, path: str, relative: str, made_of: exports.Shape, head: bytes, file: BinaryIO) -> bool:
        """Add the logs of an export, each as a file; False if there are none, or the export is too large."""
        data = head + exactly(file, exports.MAX_SIZE + 1 - len(head))
        self.exported += len(data)
        if len(data) > exports.MAX_SIZE or self.exported > EXPORTS:
            self.skip(path, "exports of logs too large to be held, read line by line: give them in parts")
            return False
        try:
            export = exports.read(data, made_of)
        except ValueError as error:
            self.skip(path, f"read line by line: {archive.reason(error)}")
            return False
        if export.left_out:
            self.skip(path, f"{export.left_out} entries that are no lines of a log, or of too many writers")
        for log in export.logs:
            opener, name = partial(io.BytesIO, log.data), printable(log.name)
            resource = (
                log.resource if "k8s.pod.name" in log.resource else identity.of(f"{relative}/{name}") | log.resource
            )
            with opener() as inner:
                start = exactly(inner, HEAD)
                self._recognise(f"{path}!/{name}", f"{relative}/{name}", opener, len(log.data), start, inner, resource)
        return bool(export.logs)

    def _recognise(
        self,
        path: str,
        relative: str,
        opener: Opener,
        size: int | None,
        head: bytes,
        file: BinaryIO,
        resource: Attributes | None = None,
    ) -> None:
        self.paths[path] += 1
        if self.paths[path] > 1:
            # An archive may have two members with the same name.
            path = f"{path} ({self.paths[path]})"
        complete = len(head) < HEAD
        if complete and (sections := pasted.sections(head, relative.rsplit("/", 1)[-1])):
            self._add_sections(path, relative, opener, head, sections, resource)
            return
        self._add(path, relative, opener, size, head, file, resource)

    def _add_sections(
        self,
        path: str,
        relative: str,
        opener: Opener,
        text: bytes,
        sections: Sequence[pasted.Section],
        resource: Attributes | None,
    ) -> None:
        """Add the parts of a text that are files of several formats, each as the file that it was."""
        noted, added = len(self.stamps), len(self.streams)
        host = pasted.host(text)
        for one in sections:
            part = text[one.begin : one.end]
            whole = f"{relative.rpartition('/')[0]}/{one.name.lstrip('/')}" if one.name else relative
            own = identity.of(whole) | (resource or {}) | one.resource
            if host is not None and "k8s.pod.name" not in own:
                own.setdefault("host.name", host)
            shown = partial(pasted.opened, opener, one.begin, one.end)
            self._add(path, whole, shown, one.end, part, io.BytesIO(part), own, before=text[: one.begin])
        self.folders[path] = "/".join(relative.replace("!/", "/").split("/")[1:-1])
        rest = text
        for stream in self.streams[added:]:
            if stream.format in ("dmesg", "syslog") and stream.last_uptime is None and not stream.ahead:
                with stream.open() as file:
                    part = exactly(file, len(text))
                if shift := clocks.ahead(text, part):
                    stream.ahead = shift
                    rest = clocks.without(rest, part)
        if rest is not text:
            # The end of the bundle is not where the other clock has it.
            del self.stamps[noted:]
            self.note_times(times(rest, b"")[1])

    def _add(
        self,
        path: str,
        relative: str,
        opener: Opener,
        size: int | None,
        head: bytes,
        file: BinaryIO,
        resource: Attributes | None,
        *,
        before: bytes | None = None,
    ) -> None:
        """Add a file as what it is.

        Args:
            before: the text before it, where it is a section of a file; it is complete then.
        """
        complete = before is not None or len(head) < HEAD
        if before is not None:
            tail = b""
        else:
            tail, size = (b"", len(head)) if complete else end_of_file(file, head, size)
        if not file.seekable():
            most = max(4 * self.limits.ratio_from, self.limits.ratio * self.compressed)
            if self.expanded + (size or 0) > most:
                # Its size is not added, so that smaller files after it can still be read.
                raise archive.Bomb(f"compressed files here expand to more than {most:,} bytes together")
            self.expanded += size or 0
        name = relative.rsplit("/", 1)[-1]
        found = recognise(head, tail, name, complete)
        if not found.format:
            self.skip(path, found.reason)
            return
        stream = Stream(
            path=path,
            format=found.format,
            layer=found.layer,
            open=opener,
            size=size,
            resource=identity.of(relative) if resource is None else resource,
            wrapping=found.wrapping,
            containers=ordinals.containers(head, tail) if found.wrapping == "compose" else {},
            tasks=task_machines(head, tail) if found.wrapping == "tasks" else {},
        )
        if b"kubectl " in head[:128] and found.format.startswith(("text", "kubernetes")):
            stream.resource |= pasted.pod(head) if found.format == "text" else pasted.namespace(head)
        if stream.layer == "kubernetes":
            stream.resource.pop("gen_ai.training.rank", None)  # `describe-worker-5.txt` is about a pod
        if stream.layer == "stdout" and is_node_agent(str(stream.resource.get("k8s.pod.name") or name)):
            stream.layer = "kernel"
        self.folders[path] = "/".join(relative.replace("!/", "/").split("/")[1:-1])
        noted = len(self.stamps)
        whole_head = head if complete else head[: head.rfind(b"\n") + 1]
        if found.format in TIMED:
            stream.first_stamp, last = times(whole_head, tail[tail.find(b"\n") + 1 :])
            self.note_times(last)
            if stream.first_stamp is not None and not stream.first_stamp.missing:
                # The times at the end of a log may have no year although those at its beginning do.
                self.note_times([stream.first_stamp])
        elif found.format in (
            "kubernetes_audit",
            "kubernetes_json",
            "kubernetes_table",
            "kubernetes_yaml",
            "journal_json",
            "journal_export",
            "elastic_error",
        ):
            self.note_times(Stamp(nanos) for nanos in recorded_times(head + b"\n" + tail))
        if found.format in ("dmesg", "syslog"):
            stream.boot_time = kernel_lines.boot_time(head + tail)
            stream.last_uptime = kernel_lines.last_uptime(tail or head)
            if stream.boot_time is not None and stream.last_uptime is not None:
                self.note_times([Stamp(stream.boot_time + stream.last_uptime)])
        if said := machines.names(stream, whole_head):
            self.machines[id(stream)] = said
        self.addresses += addresses.said(stream, head, name)
        if (known := ordinals.processes(stream, head, tail)) is not None:
            self.processes[path] = known
        if complete or found.layer in ("stdout", "scheduler"):
            self.settings |= dict.fromkeys(
                layouts.said(head if complete else head[:SETTINGS], output=found.layer == "stdout")
            )
        self.places.add(stream, place_statements.said(stream, head, tail, name, complete=complete))
        works = holds_work(found, head, tail)
        if found.layer == "stdout" or works:
            self.told_ranks += process_ranks.said(head, tail)
        if found.layer == "stdout":
            stream.machine_ranks = process_ranks.of_machine(head, tail)
            stream.launchers = process_ranks.launchers(head)
            stream.single_node = stream.machine_ranks[:1] == (0,) or not (
                stream.machine_ranks or process_ranks.on_several_machines(head)
            )
        if found.format == "text" and b"[default0]:" in head:
            stream.resource.setdefault("gen_ai.training.local_ranks", True)
        if complete and (host := pasted.host(head)) is not None:
            stream.resource.setdefault("host.name", host)
        self.streams.append(stream)
        if works:
            self.streams.append(msgspec.structs.replace(stream, layer="stdout", resource=dict(stream.resource)))
        elif before is not None and found.format not in _LINES and FORMATS.expressions["work"].search(head):
            # Nothing tells where the table ends and a program's lines begin again.
            self.streams.append(
                msgspec.structs.replace(stream, format="text", layer="stdout", resource=dict(stream.resource))
            )
        if complete and found.format == "text" and found.layer == "stdout":
            self._add_pasted(stream, head, pasted.parts(head), noted, before or b"")
        elif complete and found.format != "text":
            self._add_pasted(stream, head, pasted.tables(head, first=1), noted, before or b"")

    def _add_pasted(
        self, around: Stream, text: bytes, parts: Iterable[tuple[Recognised, bytes]], noted: int, before: bytes
    ) -> None:
        """Add the output of other programs that is pasted into a file.

        Args:
            noted: how many stamps were known before the file.
            before: the text above this one, if it is a section of a file.
        """
        for found, part in parts:
            shown = pasted.blank(before) + part
            stream = Stream(
                path=around.path,
                format=found.format,
                layer=found.layer,
                open=partial(io.BytesIO, shown),
                size=len(shown),
                resource=dict(around.resource),
            )
            if found.format in ("dmesg", "syslog"):
                stream.first_stamp, _ = times(part, b"")
                stream.boot_time, stream.last_uptime = kernel_lines.boot_time(part), kernel_lines.last_uptime(part)
                stream.ahead = clocks.ahead(text, part) if stream.last_uptime is None else 0
                if stream.ahead:
                    # The stamps of the part have another zone, so they must not decide the end of the bundle.
                    del self.stamps[noted:]
                    self.note_times(times(clocks.without(text, part), b"")[1])
            self.streams.append(stream)
