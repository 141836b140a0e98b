"""The clock that `Now`, `UUIDv7` and dates without a year read. A test or a replay sets another."""

from __future__ import annotations

import time
from collections.abc import Callable

#: Gives nanoseconds since the epoch.
source: Callable[[], int] = time.time_ns


def now() -> int:
    """Nanoseconds since the epoch."""
    return source()
