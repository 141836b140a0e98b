"""Check that the files of globs can be reached: a host path that is not mounted looks like a quiet node."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Final

from tracecore.signals.logs.tail.globs import alternatives

_WILD: Final = frozenset("*?[\\")


def unreachable(include: Sequence[str]) -> str:
    """Return what keeps a glob from finding files, in words; empty when at least one directory can be looked into.

    A directory that may not be read is always said, one that is missing only when all are: some are optional.
    """
    missing: list[str] = []
    directories = dict.fromkeys(fixed(one) for pattern in include for one in alternatives(pattern))
    for directory in directories:
        try:
            with os.scandir(directory):
                pass
        except FileNotFoundError:
            missing.append(directory)
        except OSError as error:
            return f"cannot open {directory}: {error.strerror}; its owner and mode, or the rights of the agent"
    if missing and len(missing) == len(directories):
        return f"cannot open {missing[0]}: no such directory; is the host's path mounted?"
    return ""


def fixed(pattern: str) -> str:
    """The directory of a glob above everything that varies."""
    parts = pattern.split("/")
    for number, part in enumerate(parts[:-1]):
        if set(part) & _WILD:
            return "/".join(parts[:number]) or ("/" if pattern.startswith("/") else ".")
    return "/".join(parts[:-1]) or ("/" if pattern.startswith("/") else ".")
