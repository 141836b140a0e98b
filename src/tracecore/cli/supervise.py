"""`tracecore supervise`: run a training command, say why it failed, try again when that can help."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

#: A diagnosis reads what a node left; one that takes longer than this is not waited for.
DIAGNOSIS_S: Final = 300


def diagnosis(folder: Path) -> Mapping[str, Any] | None:
    """Diagnose a folder, in a process of its own: what is in there is hostile, and memory comes back."""
    import msgspec

    try:
        done = subprocess.run(
            [sys.executable, "-m", "tracecore", "diagnose", "--format", "json", str(folder)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=DIAGNOSIS_S,
            check=False,
        )
        document = msgspec.json.decode(done.stdout)
    except (OSError, subprocess.TimeoutExpired, msgspec.DecodeError):
        return None
    return document if done.returncode == 0 and isinstance(document, dict) else None
