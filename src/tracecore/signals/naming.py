"""Names of files as they are told: whoever made a file chose its name, and that may be anything."""

from __future__ import annotations

import os


def printable(name: str) -> str:
    """A name on one line: what is no text, breaks lines or moves a cursor is escaped."""
    if name.isprintable():
        return name
    name = os.fsencode(name).decode("utf-8", "backslashreplace")
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in name)
