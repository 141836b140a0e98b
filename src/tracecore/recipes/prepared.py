"""Plans kept on disk, so that a process that starts has nothing to parse and nothing to compile.

What is kept is keyed by everything it follows from: the recipe files, this package's code and Hyperscan's version. A
file that is missing, damaged, somebody else's or not writable costs the time to make it again, and nothing else.
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

#: Files larger than this are none of ours.
MAX_BYTES = 64 << 20
_DIGEST = 32


def directory() -> Path | None:
    """Where plans are kept; None where there is no such place."""
    base = os.environ.get("XDG_CACHE_HOME")
    if base:
        return Path(base) / "tracecore" / "plans"
    home = os.path.expanduser("~")
    return Path(home) / ".cache" / "tracecore" / "plans" if os.path.isabs(home) else None


def key(*parts: bytes) -> str:
    """The name of what follows from these, this package's planner, and the machine it was made for."""
    digest = hashlib.blake2b(_surroundings(), digest_size=16)
    for part in parts:
        digest.update(len(part).to_bytes(8, "little") + part)
    return digest.hexdigest()


@cache
def _surroundings() -> bytes:
    """Return everything that a plan depends on beside its recipes."""
    from importlib.metadata import version

    digest = hashlib.blake2b(digest_size=_DIGEST)
    code = Path(__file__).resolve().parents[1]
    for folder in (code / "ottl" / "planner", code / "ottl", code / "recipes"):
        for path in sorted(folder.glob("*.py")):
            digest.update(path.read_bytes())
    # Not `platform.processor()`, which starts a program to find out.
    for text in (version("hyperscan"), platform.machine(), _features()):
        digest.update(text.encode() + b"\0")
    return digest.digest()


def _features() -> str:
    """Return the features of this processor, for which a database is made."""
    try:
        with open("/proc/cpuinfo", encoding="ascii", errors="replace") as file:
            return next((line for line in file if line.startswith("flags")), "")
    except OSError:
        return ""


def load(name: str, kind: type[T]) -> T | None:
    """Return the file kept under this name, if it is complete and nobody else could have written it."""
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
    """Keep something, whole or not at all."""
    place = directory()
    if place is None:
        return
    data = msgspec.msgpack.encode(value)
    try:
        place.mkdir(parents=True, exist_ok=True, mode=0o700)
        handle, temporary = tempfile.mkstemp(dir=place, prefix=".new-")  # readable to its owner alone
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(hashlib.blake2b(data, digest_size=_DIGEST).digest() + data)
            os.replace(temporary, place / name)
        except OSError:
            os.unlink(temporary)
    except OSError:
        return


def keep(name: str, make: Callable[[], bytes]) -> bytes:
    """Return what was kept under this name, or make it now and keep it for the next process."""
    found = load(name, bytes)
    if found is None:
        found = make()
        store(name, found)
    return found
