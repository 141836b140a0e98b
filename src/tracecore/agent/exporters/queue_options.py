"""Options of the sending queue: its size, its batches, its retries."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, ClassVar, Literal

import msgspec

from tracecore.agent.options import SECOND, Count, Duration, StorageId

Positive = Annotated[int, msgspec.Meta(ge=1, le=1 << 50)]


class QueueBatch(msgspec.Struct, frozen=True, kw_only=True):
    """
    Args:
        flush_timeout: how long records wait for more.
        min_size: so many records are sent at once.
        max_size: more than this are cut into several; 0 for never.
        sizer: what the sizes count: records.
    """

    flush_timeout: Duration = SECOND // 5
    min_size: Count = 8192
    max_size: Count = 0
    sizer: Literal["items"] = "items"

    def check(self) -> Iterator[tuple[tuple[str | int, ...], str]]:
        if self.max_size and self.max_size < self.min_size:
            yield ("max_size",), "may not be less than min_size"
        if not self.flush_timeout:
            yield ("flush_timeout",), "more than nothing"


class SendingQueue(msgspec.Struct, frozen=True, kw_only=True):
    """
    Args:
        enabled: without it the source waits until every batch is sent.
        num_consumers: connections that send at once.
        sizer: what `queue_size` counts: `requests` (batches), `items` (records) or `bytes` (of encoded requests).
        queue_size: how much may wait; when that much waits, sources are asked to wait too. At most 64 MiB wait in
            memory unless `sizer` is `bytes`.
        block_on_overflow: with false a batch that finds the queue full is dropped and counted instead.
        storage: the extension that keeps what waits over a restart.
        batch: collect records into fewer, larger requests before they wait, as the `batch` processor does.
        wait_for_result: accepted for the Collector's sake: sources always learn what became of their records.
    """

    enabled: bool = True
    num_consumers: Annotated[int, msgspec.Meta(ge=1, le=256)] = 10
    sizer: Literal["requests", "items", "bytes"] = "requests"
    queue_size: Positive = 1000
    block_on_overflow: bool = True
    storage: StorageId | None = None
    batch: QueueBatch | None = None
    wait_for_result: bool = False

    PRESENT: ClassVar[tuple[str, ...]] = ("batch",)

    def check(self) -> Iterator[tuple[tuple[str | int, ...], str]]:
        if self.storage is not None and not self.enabled:
            yield ("storage",), "there is nothing to store without a queue"


class RetryOnFailure(msgspec.Struct, frozen=True, kw_only=True):
    """
    Args:
        enabled: without it a batch is sent once.
        initial_interval: before the second attempt.
        randomization_factor: how much the interval varies.
        multiplier: how much it grows each time.
        max_interval: the longest.
        max_elapsed_time: after this a batch is dropped and counted; 0 never gives up.
    """

    enabled: bool = True
    initial_interval: Duration = 5 * SECOND
    randomization_factor: Annotated[float, msgspec.Meta(ge=0.0, le=1.0)] = 0.5
    multiplier: Annotated[float, msgspec.Meta(ge=1.0, le=100.0)] = 1.5
    max_interval: Duration = 30 * SECOND
    max_elapsed_time: Duration = 300 * SECOND

    def check(self) -> Iterator[tuple[tuple[str | int, ...], str]]:
        if self.max_interval < self.initial_interval:
            yield ("max_interval",), "may not be less than initial_interval"
