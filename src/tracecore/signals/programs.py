"""Finding other people's programs: only in directories that PATH names in full."""

from __future__ import annotations

import os
import shutil


def find(name: str) -> str | None:
    """Return where a program is; None where it is not installed.

    An entry of PATH that is not absolute (`.`, or an empty one) is passed over: it would run whatever file of that name
    lies in the directory somebody happens to be in.
    """
    entries = os.environ.get("PATH", os.defpath).split(os.pathsep)
    return shutil.which(name, path=os.pathsep.join(entry for entry in entries if os.path.isabs(entry)))
