"""Gather what a command leaves behind into one folder that `tracecore diagnose` reads."""

from __future__ import annotations

import os
import stat
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from tracecore.signals import private

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

SECOND: Final = 1_000_000_000
#: Of each log the end is classified.
TAIL: Final = 1 << 20
#: Dumps that were written elsewhere are copied, no more than so much of them.
MAX_DUMP_BYTES: Final = 2 << 30
MAX_DUMPS: Final = 20_000
MAX_KERNEL_LINES: Final = 100_000
#: Kernel lines from a little before the start belong to it: a GPU may have fallen off the bus just then.
_BEFORE: Final = 60 * SECOND

#: Where the Flight Recorder writes: the name of this year, then the older one.
DUMP_VARIABLES: Final = ("TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE")
PIPE_VARIABLE: Final = "TORCH_NCCL_DEBUG_INFO_PIPE_FILE"
SIZE_VARIABLES: Final = ("TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE")
TIMEOUT_VARIABLE: Final = "TORCH_NCCL_DUMP_ON_TIMEOUT"
_ENTRIES: Final = "2000"


def recorder_settings(folder: Path, env: Mapping[str, str], *, make: bool = True) -> dict[str, str]:
    """Variables that make every rank keep a Flight Recorder whose dumps can be asked for; what is set already stays.

    Args:
        make: make the folders for them too.
    """
    dumps = str(folder / "fr" / "nccl_trace_rank_")
    # Outside the evidence folder: a reader of the evidence would block on a pipe.
    pipes = str(folder.parent / "pipes" / "rank_")
    wanted: dict[str, str] = {}
    if not any(name in env for name in SIZE_VARIABLES):
        wanted |= dict.fromkeys(SIZE_VARIABLES, _ENTRIES)
    if not any(name in env for name in DUMP_VARIABLES):
        wanted |= dict.fromkeys(DUMP_VARIABLES, dumps)
    if make:
        private.make_folder(folder / "fr")
        private.make_folder(folder.parent / "pipes")
    for name, value in ((PIPE_VARIABLE, pipes), (TIMEOUT_VARIABLE, "1")):
        if name not in env:
            wanted[name] = value
    return wanted


def tail(logs: Sequence[Path], size: int = TAIL) -> bytes:
    """The ends of these logs one after another, each from the start of a line where it was cut."""
    parts = []
    for path in logs:
        try:
            with path.open("rb") as file:
                length = file.seek(0, os.SEEK_END)
                file.seek(max(0, length - size))
                data = file.read(size)
        except FileNotFoundError:
            continue
        if length > size:
            data = data[data.find(b"\n") + 1 :]
        parts.append(data if not data or data.endswith(b"\n") else data + b"\n")
    return b"".join(parts)


def write_exit_code(folder: Path, exit_code: int | None, *, known: bool) -> None:
    """Put the launcher's exit status beside the logs, where a diagnosis finds it.

    Args:
        exit_code: negative for a signal; None where the command still runs.
        known: it was seen how the command ended, or that it runs.
    """
    if known:
        # The exit statuses of single ranks are not known here: this one is the launcher's.
        private.write(folder / "exit_codes.json", msgspec.json.encode({"launcher": exit_code}) + b"\n")


def gather(folder: Path, env: Mapping[str, str], since: int) -> list[str]:
    """Add dumps from elsewhere and the kernel's lines to the folder.

    Args:
        env: of the command: it says where dumps are.
        since: when the attempt began, in nanoseconds since the epoch.

    Returns:
        what could not be had, in words.
    """
    missing = [_kernel(folder / "dmesg.txt", since)]
    for name in DUMP_VARIABLES:
        prefix = env.get(name)
        if prefix and not Path(prefix).is_relative_to(folder):
            missing.append(_dumps(Path(prefix), folder / "fr", since))
            break
    return [line for line in missing if line]


def _dumps(prefix: Path, target: Path, since: int) -> str:
    left = MAX_DUMP_BYTES
    try:
        names = sorted(name for name in os.listdir(prefix.parent) if name.startswith(prefix.name))
    except OSError as error:
        return f"Flight Recorder dumps: {prefix.parent}: {error.strerror}"
    for count, name in enumerate(names):
        path = prefix.parent / name
        try:
            status = path.lstat()
            if not stat.S_ISREG(status.st_mode) or status.st_mtime_ns < since:
                continue
            if count >= MAX_DUMPS or status.st_size > left:
                return (
                    f"Flight Recorder dumps: more than {MAX_DUMP_BYTES >> 30} GiB or {MAX_DUMPS} files: read {prefix}*"
                )
            private.make_folder(target)
            private.copy(path, target / name)
            left -= status.st_size
        except OSError as error:
            return f"Flight Recorder dumps: {path}: {error.strerror}"
    return ""


def _kernel(path: Path, since: int) -> str:
    """Write the kernel's lines since then; why not, if it cannot be."""
    try:
        fd = os.open("/dev/kmsg", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        return f"kernel log: /dev/kmsg: {error.strerror}"
    # Stamped in microseconds of a clock that began at boot.
    boot = time.time_ns() - time.clock_gettime_ns(time.CLOCK_MONOTONIC)
    lines: list[str] = []
    try:
        while len(lines) < MAX_KERNEL_LINES:
            try:
                record = os.read(fd, 8192)
            except BlockingIOError:
                break
            except BrokenPipeError:
                # The buffer went round while it was read: what is next is still good.
                continue
            if not record:
                break
            line = _kernel_line(record, boot, since - _BEFORE)
            if line:
                lines.append(line)
    except OSError as error:
        if not lines:
            return f"kernel log: /dev/kmsg: {error.strerror}"
    finally:
        os.close(fd)
    private.write(path, "".join(lines).encode())
    return ""


def _kernel_line(record: bytes, boot: int, since: int) -> str:
    head, _, message = record.partition(b";")
    fields = head.split(b",")
    if len(fields) < 3 or not fields[2].isdigit():
        return ""
    at = boot + int(fields[2]) * 1000
    if at < since:
        return ""
    text = message.partition(b"\n")[0].decode("utf-8", "backslashreplace")
    stamp = datetime.fromtimestamp(at / SECOND, UTC).strftime("%Y-%m-%dT%H:%M:%S,%f+00:00")
    return f"{stamp} {text}\n"
