"""Data is looked at before it is trained on: is it there, and is it what was meant?

The checksum of a directory is that of its listing: one line `<hex of the file>  <path>` for each file below it, paths
relative with `/`, in the order of their bytes. So `cd DIR && find . -type f | cut -c3- | LC_ALL=C sort | xargs -d'\\n' sha256sum | sha256sum`
gives the same.
"""  # noqa: E501

from __future__ import annotations

import hashlib
import hmac
import os
from typing import TYPE_CHECKING, Final

from tracecore.queue.task import Dataset, SpecError
from tracecore.signals import folders

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

ALGORITHMS: Final = {"sha256": 64, "sha512": 128, "sha1": 40, "md5": 32, "blake2b": 128}
_CHUNK: Final = 1 << 20
MAX_FILES: Final = 5_000_000


class DatasetError(Exception):
    """A dataset that is missing or is not what it should be."""


def is_remote(uri: str) -> bool:
    """Return whether it is an address (`s3://…`) and not a path."""
    scheme, separator, _ = uri.partition("://")
    return bool(separator) and scheme.isalnum() and scheme != "file"


def path_of(uri: str) -> str:
    """The path of a dataset that has one."""
    return uri.removeprefix("file://")


def algorithm_of(checksum: str) -> str:
    """The algorithm of `algorithm:hex`.

    Raises:
        SpecError: it is not of that shape.
    """
    algorithm, separator, digest = checksum.partition(":")
    length = ALGORITHMS.get(algorithm)
    if not separator or length is None:
        raise SpecError(f"{checksum[:80]!r} is no checksum: write algorithm:hex, with one of {', '.join(ALGORITHMS)}")
    if len(digest) != length or not set(digest.lower()) <= set("0123456789abcdef"):
        raise SpecError(f"a {algorithm} checksum has {length} hexadecimal digits, not {digest[:150]!r}")
    return algorithm


def verify(datasets: Sequence[Dataset], tick: Callable[[], None] = lambda: None) -> None:
    """Look at every dataset that has a path; return if all are as they should be.

    Args:
        tick: called after every chunk, so that a lease can be kept up while terabytes are read; may raise.

    Raises:
        DatasetError: one is missing, unreadable or has another checksum.
    """
    for dataset in datasets:
        if is_remote(dataset.uri):
            continue
        path = path_of(dataset.uri)
        if not os.path.exists(path):
            raise DatasetError(f"dataset not found: {path}")
        if not dataset.checksum:
            continue
        algorithm = algorithm_of(dataset.checksum)
        try:
            found = digest(path, algorithm, tick)
        except OSError as error:
            raise DatasetError(f"dataset unreachable: {path}: {error.strerror or error}") from error
        expected = dataset.checksum.partition(":")[2].lower()
        if not hmac.compare_digest(found, expected):
            raise DatasetError(f"checksum failed: {path} has {algorithm}:{found}, expected {algorithm}:{expected}")


def digest(path: str, algorithm: str, tick: Callable[[], None] = lambda: None) -> str:
    """The checksum of a file, or of a directory's listing."""
    if not os.path.isdir(path):
        return _file_digest(path, algorithm, tick)
    listing = hashlib.new(algorithm)
    for count, name in enumerate(sorted(_files(path), key=os.fsencode)):
        if count >= MAX_FILES:
            raise DatasetError(f"{path} holds more than {MAX_FILES} files: give the checksum of an archive or manifest")
        inner = _file_digest(os.path.join(path, name), algorithm, tick)
        listing.update(inner.encode() + b"  " + os.fsencode(name) + b"\n")
    return listing.hexdigest()


def _files(root: str) -> Iterator[str]:
    def stop(error: OSError) -> None:
        raise error

    for folder, names in folders.walk(root, stop):
        for name in names:
            full = os.path.join(folder, name)
            if os.path.isfile(full) and not os.path.islink(full):
                yield os.path.relpath(full, root)


def _file_digest(path: str, algorithm: str, tick: Callable[[], None]) -> str:
    state = hashlib.new(algorithm, usedforsecurity=False)
    buffer = bytearray(_CHUNK)
    view = memoryview(buffer)
    with open(path, "rb", buffering=0) as file:
        while count := file.readinto(buffer):
            state.update(view[:count])
            tick()
    return state.hexdigest()


def environment(datasets: Sequence[Dataset]) -> dict[str, str]:
    """`TRACECORE_DATASET_<NAME>` for every dataset that has a name."""
    return {f"TRACECORE_DATASET_{dataset.name.upper()}": path_of(dataset.uri) for dataset in datasets if dataset.name}
