"""numpy, without the threads of its linear algebra.

Nothing here multiplies large matrices, but OpenBLAS starts a thread for every core as it is loaded, and each of them
waits for work by spinning: a tenth of a second of processor time for each core, before anything is read. Programs that
are started from here keep the setting of whoever started this one.
"""

from __future__ import annotations

import os
from typing import TypeVar

_THREADS = "OPENBLAS_NUM_THREADS"
_wanted = os.environ.get(_THREADS)
os.environ.setdefault(_THREADS, "1")
try:
    import numpy as np
finally:
    if _wanted is None:
        del os.environ[_THREADS]

Kind = TypeVar("Kind", bound=np.generic)


def distinct(values: np.ndarray[tuple[int], np.dtype[Kind]]) -> np.ndarray[tuple[int], np.dtype[Kind]]:
    """Return the values ascending, each once. `np.unique` loads masked arrays, which takes longer than a small file."""
    ordered = np.sort(values)
    first = np.ones(len(ordered), np.bool_)
    first[1:] = ordered[1:] != ordered[:-1]
    return ordered[first]


__all__ = ["distinct", "np"]
