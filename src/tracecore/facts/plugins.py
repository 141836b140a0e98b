"""Load plugins that installed packages offer through entry points."""

from __future__ import annotations

import logging
from typing import Any, TypeVar

log = logging.getLogger(__name__)

T = TypeVar("T")


def plugins(group: str, kind: type[T], *, subclasses: bool = False) -> list[Any]:
    """Return the plugins of a group, by name: objects of a type, or subclasses of it.

    A plugin that cannot be imported, or is of another type, is left out with a warning: diagnosis works without it.
    """
    from importlib.metadata import entry_points

    found: list[Any] = []
    for entry in sorted(entry_points(group=group), key=lambda entry: entry.name):
        try:
            value = entry.load()
        except Exception as error:
            why = f"{type(error).__name__}: {error}"
        else:
            if issubclass(value, kind) if subclasses and isinstance(value, type) else isinstance(value, kind):
                found.append(value)
                continue
            why = f"it is not a {kind.__name__}"
        log.warning("%s (%s) of another package, group %s, is left out: %s", entry.name, entry.value, group, why)
    return found
