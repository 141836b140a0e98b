"""Diagnose one uploaded bundle in a process of its own, with limits on memory, time and files.

    python -m tracecore.server.bundle_worker BUNDLE FOLDER MEMORY SECONDS

Progress goes to standard output, a line of `done total` each; the results are `document.json` and `page.html`.
"""

from __future__ import annotations

import resource
import sys
import time
from pathlib import Path
from typing import Final

#: Bytes of a result.
MAX_RESULT: Final = 64 << 20


def limit(memory: int, seconds: int) -> None:
    """Bound what this process can take; the parent's limit on wall time comes on top."""
    for what, most in (
        (resource.RLIMIT_AS, memory),
        (resource.RLIMIT_CPU, seconds),
        (resource.RLIMIT_FSIZE, MAX_RESULT),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_NOFILE, 256),
    ):
        hard = resource.getrlimit(what)[1]
        bound = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.setrlimit(what, (bound, bound))


def main(bundle: str, folder: str, memory: str, seconds: str) -> int:
    """Diagnose, and write the results."""
    limit(int(memory), int(seconds))
    import msgspec

    from tracecore.diagnose.offline import diagnose
    from tracecore.incidents.page import page
    from tracecore.signals import private

    last = 0.0

    def tell(done: int, total: int) -> None:
        nonlocal last
        if time.monotonic() - last > 0.5:
            last = time.monotonic()
            print(done, total, flush=True)

    try:
        found = diagnose([Path(bundle)], progress=tell)
        private.write(Path(folder) / "page.html", page(found, time.time_ns()).encode("utf-8", "replace"))
        private.write(Path(folder) / "document.json", msgspec.json.encode(found.document()))
    except MemoryError:
        print("it needs more memory than an upload may take", file=sys.stderr)
        return 3
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:5]))
