"""The process's memory: how much it holds, and giving back what the allocator keeps for later."""

from __future__ import annotations

import ctypes
import functools
import gc
from collections.abc import Callable
from typing import Final

#: glibc's `mallopt` parameters.
_M_TRIM_THRESHOLD: Final = -1
_M_MMAP_THRESHOLD: Final = -3
_M_ARENA_MAX: Final = -8
#: Allocations of this size and more are mapped on their own, so that freeing one returns it to the system.
MAPPED: Final = 256 << 10
#: Free bytes at the top of the heap from which on they are returned.
TRIMMED: Final = 1 << 20
#: Heaps that threads share. glibc makes eight for each core, and each keeps what was freed in it.
HEAPS: Final = 2
#: New objects between two looks for unreachable ones, and the same of older ones. Records hardly ever form circles, and
#: there are many of them.
GARBAGE: Final = (50_000, 20, 20)


def resident_bytes() -> int:
    """Return the memory this process occupies; 0 where the system does not tell."""
    import resource

    try:
        with open("/proc/self/statm", "rb") as file:
            return int(file.read().split()[1]) * resource.getpagesize()
    except (OSError, IndexError, ValueError):
        return 0


@functools.cache
def _libc() -> ctypes.CDLL | None:
    try:
        return ctypes.CDLL(None)
    except OSError:
        return None


def _function(name: str) -> Callable[..., int] | None:
    """Return a function of the C library; other libraries than glibc do not have these."""
    return getattr(_libc(), name, None)


def tune() -> None:
    """Make the allocator return large blocks when they are freed, and look for garbage less often.

    Called once, when an agent starts. By default glibc raises its mapping threshold up to 32 MiB after the first large
    block was freed, and then keeps the memory of queued batches for ever.
    """
    gc.set_threshold(*GARBAGE)
    mallopt = _function("mallopt")
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, MAPPED)
        mallopt(_M_TRIM_THRESHOLD, TRIMMED)
        mallopt(_M_ARENA_MAX, HEAPS)


def release(collect: bool = False) -> int:
    """Return freed memory to the system, and say how much is occupied now.

    Args:
        collect: look for unreachable objects first, which takes longer.
    """
    if collect:
        gc.collect()
    trim = _function("malloc_trim")
    if trim is not None:
        trim(0)
    return resident_bytes()
