"""Plans stored on disk, so that a new process has nothing to parse and nothing to compile.

A file's name is a hash of everything its content depends on: the recipe files, the code of this package and the version
of Hyperscan. If a file is missing, damaged, not writable or owned by somebody else, the plan is made again.
"""

from __future__ import annotations

import hashlib
import os
import platform
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import TypeVar

import msgspec

T = TypeVar("T")

#: Larger files are not read.
MAX_BYTES = 64 << 20
_DIGEST = 32


def directory() -> Path | None:
    """Return the directory of stored plans; None if there is no home directory."""
    base = os.environ.get("XDG_CACHE_HOME")
    if base:
        return Path(base) / "tracecore" / "plans"
    home = os.path.expanduser("~")
    return Path(home) / ".cache" / "tracecore" / "plans" if os.path.isabs(home) else None


def key(*parts: bytes) -> str:
    """Return a name for something that depends on these parts, the planner's code and this machine."""
    digest = hashlib.blake2b(_environment(), digest_size=16)
    for part in parts:
        digest.update(len(part).to_bytes(8, "little") + part)
    return digest.hexdigest()


@cache
def _environment() -> bytes:
    """Return a hash of everything that a plan depends on besides its recipes."""
    from importlib.metadata import version

    digest = hashlib.blake2b(digest_size=_DIGEST)
    code = Path(__file__).resolve().parents[1]
    for folder in (code / "ottl" / "planner", code / "ottl", code / "recipes"):
        for path in sorted(folder.glob("*.py")):
            digest.update(path.read_bytes())
    # `platform.processor()` would start a program.
    for text in (version("hyperscan"), platform.machine(), _features()):
        digest.update(text.encode() + b"\0")
    return digest.digest()


def _features() -> str:
    """Return the features of this processor. Hyperscan compiles for them."""
    try:
        with open("/proc/cpuinfo", encoding="ascii", errors="replace") as file:
            return next((line for line in file if line.startswith("flags")), "")
    except OSError:
        return ""


def load(name: str, kind: type[T]) -> T | None:
    """Return the value stored under a name; None if it is not complete or somebody else could have written it."""
    place = directory()
    if place is None:
        return None
    try:
        path = place / name
        status = path.stat()
        if status.st_size > MAX_BYTES or status.st_uid != os.getuid() or status.st_mode & 0o077:
            return None
        data = path.read_bytes()
        if hashlib.blake2b(data[_DIGEST:], digest_size=_DIGEST).digest() != data[:_DIGEST]:
            return None
        return msgspec.msgpack.decode(data[_DIGEST:], type=kind)
    except (OSError, msgspec.MsgspecError):
        return None


def store(name: str, value: object) -> None:
    """Store a value under a name, atomically. Errors are ignored."""
    place = directory()
    if place is None:
        return
    data = msgspec.msgpack.encode(value)
    try:
        place.mkdir(parents=True, exist_ok=True, mode=0o700)
        handle, temporary = tempfile.mkstemp(dir=place, prefix=".new-")  # only its owner can read it
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(hashlib.blake2b(data, digest_size=_DIGEST).digest() + data)
            os.replace(temporary, place / name)
        except OSError:
            os.unlink(temporary)
    except OSError:
        return


def keep(name: str, make: Callable[[], bytes]) -> bytes:
    """Return the value stored under a name, or make it and store it for the next process."""
    found = load(name, bytes)
    if found is None:
        found = make()
        store(name, found)
    return found
