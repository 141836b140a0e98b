"""How a receiver that reads something waits while nobody can take more."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any, Final

from tracecore.pipeline.agent.batch import Batch, Refused
from tracecore.pipeline.agent.component import Consumer

#: Seconds between two attempts: at first, and at most.
WAIT: Final = (0.02, 1.0)


def deliver(
    consume: Consumer,
    batch: Batch,
    stop: threading.Event,
    meanwhile: Callable[[], None] = lambda: None,
    patience: float = 0.0,
) -> bool:
    """Hand a batch on, however long that takes; false when the receiver was told to stop before.

    Args:
        meanwhile: called as long as nobody takes it.
        patience: seconds to try it for although the receiver was told to stop.
    """
    wait = WAIT[0]
    deadline = time.monotonic() + patience
    while True:
        try:
            consume(batch)
            return True
        except Refused:
            if stop.wait(wait):
                if time.monotonic() >= deadline:
                    return False
                time.sleep(wait)
            meanwhile()
            wait = min(wait * 2, WAIT[1])


def logs(resource: dict[str, Any], records: list[dict[str, Any]], scope: str = "") -> Batch:
    """Records of one resource as a batch."""
    entry = {
        "resource": {"attributes": resource},
        "scope_logs": [{"scope": {"name": scope} if scope else {}, "log_records": records}],
    }
    return Batch("logs", {"resource_logs": [entry]}, count=len(records))
