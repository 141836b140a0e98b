"""A support bundle: what a node knows of a run, in one archive that `tracecore diagnose` reads.

A collection is a list of items, each a command to run or files to copy. What is missing is listed with its reason in
`tracecore-manifest.json`, and never ends the rest.
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

#: Of one item; a longer one is cut, and the manifest says so.
MAX_ITEM: Final = 4 << 30
MAX_FILES: Final = 20_000
MANIFEST: Final = "tracecore-manifest.json"
TIMEOUT_S: Final = 120.0


class Item(msgspec.Struct, frozen=True, kw_only=True):
    """One thing to collect.

    Args:
        name: where it goes in the archive.
        what: for people.
        commands: the first that can be run is; empty where files are copied.
        files: patterns of paths; directories are taken whole.
        wanted: the user asked for it, so that its absence is worth a word.
    """

    name: str
    what: str
    commands: tuple[tuple[str, ...], ...] = ()
    files: tuple[str, ...] = ()
    wanted: bool = False


class Got(msgspec.Struct, kw_only=True):
    """The result for one item: `missing` says why there is nothing of it."""

    name: str
    what: str
    source: str = ""
    bytes: int = 0
    redacted: int = 0
    cut: bool = False
    missing: str = ""


class Wish(msgspec.Struct, frozen=True, kw_only=True):
    """The items to collect.

    Args:
        paths: logs and other files, directories taken whole.
        dumps: Flight Recorder dumps: paths or patterns, beside the usual places.
        namespace, pod, job: of Kubernetes; the pod's name may be a prefix, the job's the value of its label.
        slurm_job: job id.
        since: how far back logs go, as `journalctl` and `kubectl` understand it (`24h`).
    """

    paths: tuple[str, ...] = ()
    dumps: tuple[str, ...] = ()
    namespace: str = ""
    pod: str = ""
    job: str = ""
    slurm_job: str = ""
    since: str = "24h"


def items(wish: Wish, environment: dict[str, str] | None = None) -> list[Item]:
    """The list, in the order in which it is collected."""
    environment = dict(os.environ) if environment is None else environment
    hours = wish.since.removesuffix("h")
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
    found += _kubernetes(wish)
    if job := wish.slurm_job:
        columns = "--format=JobID,JobName,State,ExitCode,DerivedExitCode,Start,End,NodeList,Reason"
        accounting = ("sacct", "-j", job, "--parsable2", columns)
        found += [
            Item(name="sacct.txt", what="Slurm accounting", wanted=True, commands=(accounting,)),
            Item(name="scontrol.txt", what="Slurm job", wanted=True, commands=(("scontrol", "show", "job", job),)),
        ]
    variables = ("TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE")
    named = [f"{glob.escape(prefix)}*" for variable in variables if (prefix := environment.get(variable))]
    places = [*wish.dumps, *named, "/tmp/nccl_trace_rank_*"]
    found.append(
        Item(name="flight_recorder", what="Flight Recorder dumps", files=tuple(places), wanted=bool(wish.dumps))
    )
    for path in wish.paths:
        name = "logs" if os.path.isdir(path) else f"logs/{_base(path)}"
        found.append(Item(name=name, what=path, files=(path,), wanted=True))
    return found


def _kubernetes(wish: Wish) -> Iterator[Item]:
    space = ("-n", wish.namespace) if wish.namespace else ("-A",)
    yield Item(
        name="events.json",
        what="Kubernetes events",
        commands=(("kubectl", "get", "events", *space, "-o", "json"),),
        wanted=bool(wish.pod or wish.job),
    )
    if not (wish.pod or wish.job):
        return
    named = ("-n", wish.namespace or "default")
    chosen = ("-l", f"job-name={wish.job}") if wish.job else (wish.pod,)
    yield Item(
        name="pods.json",
        what="Kubernetes pods",
        commands=(("kubectl", "get", "pods", *chosen, *named, "-o", "json"),),
        wanted=True,
    )
    logs = ("--all-containers", "--timestamps", f"--since={wish.since}", "--tail=-1")
    pods = [wish.pod] if wish.pod else _pods_of(wish.job, named)
    for pod in pods:
        # Named as the kubelet names them, so that a reader knows whose they are.
        folder = f"pods/{wish.namespace or 'default'}_{pod}_0"
        for name, more in (("0.log", ("--previous",)), ("1.log", ())):
            yield Item(
                name=f"{folder}/all/{name}",
                what=f"log of {pod}" + (" before its last restart" if more else ""),
                commands=(("kubectl", "logs", pod, *named, *logs, *more),),
                wanted=not more,
            )
    if wish.pod:
        pattern = f"/var/log/pods/{glob.escape(wish.namespace) or '*'}_{glob.escape(wish.pod)}_*"
        yield Item(name="pods", what="container logs on this node", files=(pattern,))


def _pods_of(job: str, named: Sequence[str]) -> list[str]:
    """The pods of a job, as the cluster names them; none where it cannot be asked."""
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
    told: Callable[[Got], None] | None = None,
    timeout: float = TIMEOUT_S,
) -> list[Got]:
    """Collect into an archive, which appears under its name only when it is whole.

    Raises:
        OSError: the archive cannot be written.
    """
    if output.exists() and not output.is_file():
        # Replacing a device would take it away from everybody.
        raise OSError(errno.EINVAL, "not a regular file", str(output))
    results: list[Got] = []
    partial = output.with_name(f".{output.name}.{os.getpid()}.partial")
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0)
    try:
        with os.fdopen(os.open(partial, flags, 0o600), "wb") as raw, tarfile.open(fileobj=raw, mode="w:gz") as tar:
            for item in wanted:
                for got in _item(item, tar, redact, timeout):
                    results.append(got)
                    if told is not None:
                        told(got)
            _add(tar, MANIFEST, io.BytesIO(_manifest(results, redact)))
        os.replace(partial, output)
    finally:
        partial.unlink(missing_ok=True)
    return results


def summary(results: Sequence[Got], redact: bool) -> dict[str, Any]:
    """Return what was collected and what is missing, as the archive's manifest says it."""
    told = [
        {key: printable(value) if isinstance(value, str) else value for key, value in msgspec.to_builtins(got).items()}
        for got in results
    ]
    return {
        "tracecore_bundle": 1,
        "host": socket.gethostname(),
        "redacted": redact,
        "items": [got for got in told if not got["missing"]],
        "missing": [
            {"name": got["name"], "what": got["what"], "reason": got["missing"]} for got in told if got["missing"]
        ],
    }


def _manifest(results: Sequence[Got], redact: bool) -> bytes:
    return msgspec.json.format(msgspec.json.encode(summary(results, redact)), indent=1) + b"\n"


def _item(item: Item, tar: tarfile.TarFile, redact: bool, timeout: float) -> Iterator[Got]:
    if item.commands:
        yield _command(item, tar, redact, timeout)
        return
    paths = list(_files(item.files))
    if not paths:
        where = ", ".join(item.files)
        yield Got(name=item.name, what=item.what, missing=f"nothing at {where}")
    single = len(paths) == 1 and len(item.files) == 1 and os.fspath(paths[0][0]) == item.files[0]
    for number, (path, inner) in enumerate(paths):
        if number >= MAX_FILES:
            yield Got(name=item.name, what=item.what, missing=f"more than {MAX_FILES} files: the rest was left out")
            return
        yield _file(path, item.name if single else f"{item.name}/{inner}", item.what, tar, redact)


def _command(item: Item, tar: tarfile.TarFile, redact: bool, timeout: float) -> Got:
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
    return Got(name=item.name, what=item.what, missing=reason)


def _files(patterns: Sequence[str]) -> Iterator[tuple[Path, str]]:
    """Regular files under these patterns with their names in the archive, each once; links are not followed."""
    seen: set[str] = set()
    for pattern in patterns:
        for found in [pattern] if os.path.lexists(pattern) else sorted(glob.glob(pattern)):
            root = Path(found)
            inside = [root] if not root.is_dir() else [Path(f, name) for f, names in _below(root) for name in names]
            for path in inside:
                if path.is_symlink() or str(path) in seen or not path.is_file():
                    continue
                seen.add(str(path))
                relative = path.name if path == root else f"{root.name}/{path.relative_to(root).as_posix()}"
                yield path, relative


def _below(root: Path) -> Iterator[tuple[str, list[str]]]:
    return folders.walk(root, lambda _: None)


def _file(path: Path, name: str, what: str, tar: tarfile.TarFile, redact: bool) -> Got:
    try:
        with open(path, "rb") as file:
            return _take(file, name, what, str(path), tar, redact)
    except OSError as error:
        return Got(name=name, what=what, missing=f"{path}: {(error.strerror or 'unreadable').lower()}")


def _take(file: IO[bytes], name: str, what: str, source: str, tar: tarfile.TarFile, redact: bool) -> Got:
    head = file.read(8192)
    file.seek(0)
    got = Got(name=name, what=what, source=source)
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
    """A member with nothing in it but its bytes: no owner, no mode of the original, no links."""
    size = file.seek(0, os.SEEK_END)
    file.seek(0)
    info = tarfile.TarInfo(name.lstrip("/").replace("..", "_"))
    info.size = min(size, MAX_ITEM)
    info.mode = 0o600
    tar.addfile(info, file)
    return info.size, size > MAX_ITEM


def _base(path: str) -> str:
    return os.path.basename(path.rstrip("/")) or "root"
