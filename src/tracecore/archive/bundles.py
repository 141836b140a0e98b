"""The bundles of a run: which paths and URLs they are, and a fingerprint that tells when one has changed."""

from __future__ import annotations

import glob
import hashlib
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

from tracecore.signals.bundle import remote
from tracecore.signals.bundle.opening import walk
from tracecore.signals.naming import printable
from tracecore.signals.redaction import redacted

#: Files of one bundle whose sizes and times are looked at.
MAX_FILES: Final = 200_000


def listed(paths: Sequence[str], *, each: bool = False) -> list[str]:
    """Return the bundles that these paths name, each once, in order.

    Args:
        paths: bundles; a URL may have `*`, `?` and `[…]`.
        each: the paths are directories, and every entry of them is a bundle.

    Raises:
        FileNotFoundError: a path does not exist.
        remote.RemoteError: a URL cannot be read.
    """
    found: dict[str, None] = {}
    for given in paths:
        path = remote.local(given)
        if remote.is_url(path):
            found |= dict.fromkeys(remote.matching(path, entries=each))
            continue
        for place in _places(given):
            if not os.path.lexists(place):
                raise FileNotFoundError(place)
            if each:
                entries = sorted(entry.name for entry in os.scandir(place) if not entry.name.startswith("."))
                found |= dict.fromkeys(_absolute(os.path.join(place, name)) for name in entries)
            else:
                found[_absolute(place)] = None
    return list(found)


def _places(given: str) -> list[str]:
    """The paths that a path, or a `file://` URL with `*`, `?` or `[…]`, stands for.

    A path is taken as it is: the shell has expanded its patterns.
    """
    path = remote.local(given)
    if path == given or os.path.lexists(path):
        return [path]
    return sorted(glob.glob(path)) or [path]


def _absolute(path: str) -> str:
    # A second start from another directory must find the same bundle under the same name.
    return os.path.abspath(path)


def named(bundle: str) -> str:
    """The name of a bundle in an archive: its path or URL on one line, as text, without secrets."""
    return redacted(printable(bundle))


def fingerprint(bundle: str) -> str:
    """Return a text that changes when a file of the bundle is added, removed or written to.

    Empty where the bundle is gone or cannot be looked at: its diagnosis will say why.
    """
    try:
        if remote.is_url(bundle):
            return _digest((file.relative, file.size, file.stamp) for file in remote.files(bundle))
        if not os.path.isdir(bundle):
            found = os.stat(bundle)
            return _digest([("", found.st_size, str(found.st_mtime_ns))])
        return _digest(_below(Path(bundle)))
    except (OSError, ValueError):
        return ""


def _below(root: Path) -> Iterable[tuple[str, int, str]]:
    for number, (path, relative) in enumerate(walk(root, lambda *_: None)):
        if number >= MAX_FILES:
            return
        try:
            found = os.stat(path)
        except OSError:
            yield relative, -1, ""
        else:
            yield relative, found.st_size, str(found.st_mtime_ns)


def _digest(files: Iterable[tuple[str, int, str]]) -> str:
    digest = hashlib.blake2b(digest_size=16)
    for name, size, stamp in files:
        digest.update(f"{name}\0{size}\0{stamp}\n".encode("utf-8", "surrogateescape"))
    return digest.hexdigest()
