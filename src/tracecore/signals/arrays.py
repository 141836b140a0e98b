"""numpy, without the threads of its linear algebra, and with memory that is used again.

Nothing here multiplies large matrices, but OpenBLAS starts a thread for every core as it is loaded, and each of them
waits for work by spinning: a tenth of a second of processor time for each core, before anything is read. Programs that
are started from here keep the setting of whoever started this one.

The arrays of a block are as large as the block and live no longer. glibc would give their pages back to the kernel and
fetch fresh ones for the next block: up to a thousand page faults for each MB.
"""

from __future__ import annotations

import ctypes
import os

_THREADS = "OPENBLAS_NUM_THREADS"
_wanted = os.environ.get(_THREADS)
os.environ.setdefault(_THREADS, "1")
try:
    import numpy as np
finally:
    if _wanted is None:
        del os.environ[_THREADS]

#: Options of glibc's `mallopt`, and the most that it takes for the second.
_TRIM_THRESHOLD, _KEPT = -1, 64 << 20
_MMAP_THRESHOLD, _LARGEST = -3, 32 << 20


def _keep_pages() -> None:
    """Keep freed memory of up to `_KEPT` bytes; other allocators than glibc's have no such option."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_MMAP_THRESHOLD, _LARGEST)
        mallopt(_TRIM_THRESHOLD, _KEPT)


_keep_pages()

__all__ = ["np"]
