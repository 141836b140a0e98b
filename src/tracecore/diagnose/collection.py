"""Collect a support bundle on a node: one archive that `tracecore diagnose` reads.

Each item is a command to run or files to copy. If an item fails, the others are still collected, and
`tracecore-manifest.json` lists the reason.
"""

from __future__ import annotations

import errno
import glob
import io
import os
import socket
import subprocess
import tarfile
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import IO, Any, Final

import msgspec

from tracecore.signals import folders, programs
from tracecore.signals.bundle.recognition import is_binary
from tracecore.signals.naming import printable
from tracecore.signals.redaction import Redactor

#: Bytes of one item. A longer one is cut, and the manifest says so.
MAX_ITEM: Final = 4 << 30
MAX_FILES: Final = 20_000
MANIFEST: Final = "tracecore-manifest.json"
TIMEOUT_S: Final = 120.0


class Item(msgspec.Struct, frozen=True, kw_only=True):
    """One thing to collect.

    Args:
        name: its path in the archive.
        what: a description for people.
        commands: the first one that works is used; empty for files.
        files: patterns of paths. Directories are copied whole.
    """

    name: str
    what: str
    commands: tuple[tuple[str, ...], ...] = ()
    files: tuple[str, ...] = ()


class Collected(msgspec.Struct, kw_only=True):
    """The result for one item. If nothing was collected, `missing` says why."""

    name: str
    what: str
    source: str = ""
    bytes: int = 0
    redacted: int = 0
    cut: bool = False
    missing: str = ""


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """The request of a user: what to collect.

    Args:
        paths: logs and other files; directories are copied whole.
        dumps: paths or patterns of Flight Recorder dumps, in addition to the usual places.
        namespace, pod, job: of Kubernetes. `pod` may be a prefix; `job` is the value of the `job-name` label.
        slurm_job: job id.
        since: the age of the oldest logs, in the notation of `journalctl` and `kubectl` (`24h`).
    """

    paths: tuple[str, ...] = ()
    dumps: tuple[str, ...] = ()
    namespace: str = ""
    pod: str = ""
    job: str = ""
    slurm_job: str = ""
    since: str = "24h"


def items(request: Request, environment: dict[str, str] | None = None) -> list[Item]:
    """Return the items to collect, in order."""
    environment = dict(os.environ) if environment is None else environment
    hours = request.since.removesuffix("h")
    back = f"{hours} hours ago" if hours.isdigit() else "24 hours ago"
    found = [
        Item(
            name="dmesg.txt",
            what="kernel log",
            commands=(
                ("dmesg", "--time-format", "iso"),
                ("dmesg", "-T"),
                ("dmesg",),
                ("journalctl", "-k", "-o", "short-iso", "--no-pager", "--since", back),
            ),
        ),
        Item(name="nvidia-smi.txt", what="state of the GPUs", commands=(("nvidia-smi", "-q"),)),
    ]
    found += _kubernetes(request)
    if job := request.slurm_job:
        columns = "--format=JobID,JobName,State,ExitCode,DerivedExitCode,Start,End,NodeList,Reason"
        accounting = ("sacct", "-j", job, "--parsable2", columns)
        found += [
            Item(name="sacct.txt", what="Slurm accounting", commands=(accounting,)),
            Item(name="scontrol.txt", what="Slurm job", commands=(("scontrol", "show", "job", job),)),
        ]
    variables = ("TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE")
    named = [f"{glob.escape(prefix)}*" for variable in variables if (prefix := environment.get(variable))]
    places = [*request.dumps, *named, "/tmp/nccl_trace_rank_*"]
    found.append(Item(name="flight_recorder", what="Flight Recorder dumps", files=tuple(places)))
    for path in request.paths:
        name = "logs" if os.path.isdir(path) else f"logs/{_base(path)}"
        found.append(Item(name=name, what=path, files=(path,)))
    return found


def _kubernetes(request: Request) -> Iterator[Item]:
    space = ("-n", request.namespace) if request.namespace else ("-A",)
    yield Item(
        name="events.json",
        what="Kubernetes events",
        commands=(("kubectl", "get", "events", *space, "-o", "json"),),
    )
    if not (request.pod or request.job):
        return
    named = ("-n", request.namespace or "default")
    chosen = ("-l", f"job-name={request.job}") if request.job else (request.pod,)
    yield Item(
        name="pods.json",
        what="Kubernetes pods",
        commands=(("kubectl", "get", "pods", *chosen, *named, "-o", "json"),),
    )
    logs = ("--all-containers", "--timestamps", f"--since={request.since}", "--tail=-1")
    pods = [request.pod] if request.pod else _pods_of(request.job, named)
    for pod in pods:
        # The kubelet's names, from which the reader knows the pod.
        folder = f"pods/{request.namespace or 'default'}_{pod}_0"
        for name, more in (("0.log", ("--previous",)), ("1.log", ())):
            yield Item(
                name=f"{folder}/all/{name}",
                what=f"log of {pod}" + (" before its last restart" if more else ""),
                commands=(("kubectl", "logs", pod, *named, *logs, *more),),
            )
    if request.pod:
        pattern = f"/var/log/pods/{glob.escape(request.namespace) or '*'}_{glob.escape(request.pod)}_*"
        yield Item(name="pods", what="container logs on this node", files=(pattern,))


def _pods_of(job: str, named: Sequence[str]) -> list[str]:
    """Return the names of a job's pods; empty if the cluster does not answer."""
    program = programs.find("kubectl")
    if program is None:
        return []
    command = [program, "get", "pods", "-l", f"job-name={job}", *named, "-o", "name"]
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return []
    names = [line.rpartition("/")[2] for line in done.stdout.decode("utf-8", "replace").split()]
    return [name for name in names if name and not name.startswith("-")][:MAX_FILES]


def collect(
    wanted: Iterable[Item],
    output: Path,
    *,
    redact: bool = True,
    on_result: Callable[[Collected], None] | None = None,
    timeout: float = TIMEOUT_S,
) -> list[Collected]:
    """Collect items into an archive. The file appears only when it is complete.

    Raises:
        OSError: the archive cannot be written.
    """
    if output.exists() and not output.is_file():
        # `os.replace` would remove a device.
        raise OSError(errno.EINVAL, "not a regular file", str(output))
    results: list[Collected] = []
    partial = output.with_name(f".{output.name}.{os.getpid()}.partial")
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0)
    try:
        with os.fdopen(os.open(partial, flags, 0o600), "wb") as raw, tarfile.open(fileobj=raw, mode="w:gz") as tar:
            for item in wanted:
                for result in _item(item, tar, redact, timeout):
                    results.append(result)
                    if on_result is not None:
                        on_result(result)
            _add(tar, MANIFEST, io.BytesIO(_manifest(results, redact)))
        os.replace(partial, output)
    finally:
        partial.unlink(missing_ok=True)
    return results


def summary(results: Sequence[Collected], redact: bool) -> dict[str, Any]:
    """Return what was collected and what is missing, in the format of the manifest."""
    documents = [
        {key: printable(value) if isinstance(value, str) else value for key, value in document.items()}
        for document in map(msgspec.to_builtins, results)
    ]
    return {
        "tracecore_bundle": 1,
        "host": socket.gethostname(),
        "redacted": redact,
        "items": [got for got in documents if not got["missing"]],
        "missing": [
            {"name": got["name"], "what": got["what"], "reason": got["missing"]} for got in documents if got["missing"]
        ],
    }


def _manifest(results: Sequence[Collected], redact: bool) -> bytes:
    return msgspec.json.format(msgspec.json.encode(summary(results, redact)), indent=1) + b"\n"


def _item(item: Item, tar: tarfile.TarFile, redact: bool, timeout: float) -> Iterator[Collected]:
    if item.commands:
        yield _command(item, tar, redact, timeout)
        return
    paths = list(_files(item.files))
    if not paths:
        where = ", ".join(item.files)
        yield Collected(name=item.name, what=item.what, missing=f"nothing at {where}")
    single = len(paths) == 1 and len(item.files) == 1 and os.fspath(paths[0][0]) == item.files[0]
    for number, (path, inner) in enumerate(paths):
        if number >= MAX_FILES:
            yield Collected(
                name=item.name, what=item.what, missing=f"more than {MAX_FILES} files: the rest was left out"
            )
            return
        yield _file(path, item.name if single else f"{item.name}/{inner}", item.what, tar, redact)


def _command(item: Item, tar: tarfile.TarFile, redact: bool, timeout: float) -> Collected:
    """The output of the first command that works."""
    reason = ""
    for command in item.commands:
        program = programs.find(command[0])
        if program is None:
            reason = reason or f"{command[0]} is not installed"
            continue
        with tempfile.TemporaryFile() as out:
            try:
                done = subprocess.run(
                    [program, *command[1:]], stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.PIPE,
                    timeout=timeout, check=False,
                )  # fmt: skip
            except subprocess.TimeoutExpired:
                reason = f"`{' '.join(command)}` took longer than {timeout:g} s"
                continue
            except OSError as error:
                reason = f"`{' '.join(command)}`: {error.strerror}"
                continue
            if done.returncode or not out.tell():
                said = done.stderr[-2000:].decode("utf-8", "replace").strip().splitlines()
                reason = f"`{' '.join(command)}` ended with status {done.returncode}" + (
                    f": {said[-1]}" if said else ""
                )
                continue
            out.seek(0)
            return _take(out, item.name, item.what, " ".join(command), tar, redact)
    return Collected(name=item.name, what=item.what, missing=reason)


def _files(patterns: Sequence[str]) -> Iterator[tuple[Path, str]]:
    """Return regular files that match patterns, each once, with their names in the archive. Links are not followed."""
    seen: set[str] = set()
    for pattern in patterns:
        for match in [pattern] if os.path.lexists(pattern) else sorted(glob.glob(pattern)):
            root = Path(match)
            inside = [root] if not root.is_dir() else [Path(f, name) for f, names in _below(root) for name in names]
            for path in inside:
                if path.is_symlink() or str(path) in seen or not path.is_file():
                    continue
                seen.add(str(path))
                relative = path.name if path == root else f"{root.name}/{path.relative_to(root).as_posix()}"
                yield path, relative


def _below(root: Path) -> Iterator[tuple[str, list[str]]]:
    return folders.walk(root, lambda _: None)


def _file(path: Path, name: str, what: str, tar: tarfile.TarFile, redact: bool) -> Collected:
    try:
        with open(path, "rb") as file:
            return _take(file, name, what, str(path), tar, redact)
    except OSError as error:
        return Collected(name=name, what=what, missing=f"{path}: {(error.strerror or 'unreadable').lower()}")


def _take(file: IO[bytes], name: str, what: str, source: str, tar: tarfile.TarFile, redact: bool) -> Collected:
    head = file.read(8192)
    file.seek(0)
    got = Collected(name=name, what=what, source=source)
    if not redact:
        got.bytes, got.cut = _add(tar, name, file)
        return got
    with tempfile.TemporaryFile() as clean:
        redactor = Redactor(keep_length=is_binary(head))
        if name.endswith(".json") and not is_binary(head):
            clean.write(redactor.document(file.read(MAX_ITEM)))
        else:
            taken = 0
            while taken < MAX_ITEM and (line := file.readline(1 << 20)):
                clean.write(redactor.line(line))
                taken += len(line)
        got.redacted = redactor.count
        clean.seek(0)
        got.bytes, got.cut = _add(tar, name, clean)
    return got


def _add(tar: tarfile.TarFile, name: str, file: IO[bytes]) -> tuple[int, bool]:
    """Add a member without the owner and mode of the original; return its size and whether it was cut."""
    size = file.seek(0, os.SEEK_END)
    file.seek(0)
    info = tarfile.TarInfo(name.lstrip("/").replace("..", "_"))
    info.size = min(size, MAX_ITEM)
    info.mode = 0o600
    tar.addfile(info, file)
    return info.size, size > MAX_ITEM


def _base(path: str) -> str:
    return os.path.basename(path.rstrip("/")) or "root"
