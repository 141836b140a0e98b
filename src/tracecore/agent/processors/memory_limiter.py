"""The `memory_limiter` processor: when memory runs short, sources are asked to wait."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable, Iterator
from typing import Annotated, ClassVar

import msgspec

from tracecore.agent.batch import Ack, Batch, Refused
from tracecore.agent.component import Setting
from tracecore.agent.memory import release, resident_bytes
from tracecore.agent.options import SECOND, Count, Interval

Percent = Annotated[int, msgspec.Meta(ge=0, le=100)]
MIB = 1 << 20
log = logging.getLogger("tracecore.agent.memory_limiter")
#: Nanoseconds between two collections of garbage while memory is short: each walks over everything that is held.
COLLECT_EVERY = 10 * SECOND
#: The event of beginning to refuse.
REFUSING = "memory_short"


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """
    Args:
        check_interval: how often memory is looked at.
        limit_mib: the most the agent may hold.
        spike_limit_mib: how much may come between two looks; refusing begins this far below the limit. A fifth of the
            limit when not given.
        limit_percentage: the same as a share of the machine's or container's memory.
        spike_limit_percentage: the same.
    """

    IGNORED: ClassVar[tuple[str, ...]] = (
        "min_gc_interval_when_soft_limited",
        "min_gc_interval_when_hard_limited",
    )

    check_interval: Interval = SECOND
    limit_mib: Count = 0
    spike_limit_mib: Count = 0
    limit_percentage: Percent = 0
    spike_limit_percentage: Percent = 0

    def check(self) -> Iterator[tuple[tuple[str | int, ...], str]]:
        if not self.limit_mib and not self.limit_percentage:
            yield (), '"limit_mib" or "limit_percentage" is missing'
        if self.limit_mib and self.spike_limit_mib >= self.limit_mib:
            yield ("spike_limit_mib",), "must be less than limit_mib"
        if self.limit_percentage and self.spike_limit_percentage >= self.limit_percentage:
            yield ("spike_limit_percentage",), "must be less than limit_percentage"

    def bounds(self, total: int) -> tuple[int, int]:
        """Bytes from which batches are refused, and the most that may be held."""
        if self.limit_mib:
            limit, spike = self.limit_mib * MIB, self.spike_limit_mib * MIB
        else:
            limit, spike = total * self.limit_percentage // 100, total * self.spike_limit_percentage // 100
        return limit - (spike or limit // 5), limit


def total_memory() -> int:
    """Return what this process may use at most: its control group's limit, else the machine's memory."""
    import os

    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for path in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        try:
            with open(path) as file:
                text = file.read().strip()
        except OSError:
            continue
        if text.isdigit():
            return min(total, int(text))
    return total


class MemoryLimiter:
    """Refuses batches while the agent holds too much; looks again at most once in each interval."""

    def __init__(self, options: Options, setting: Setting) -> None:
        self._options = options
        self._setting = setting
        self._soft, self._hard = options.bounds(total_memory())
        self._looked = self._collected = self._since = 0
        self._short = False
        #: Batches that were accepted and have not left the agent.
        self._under_way = 0
        self._lock = threading.Lock()
        setting.meter.declare(events=(REFUSING,))

    def admit(self) -> None:
        """Asked before a batch enters the pipeline.

        Raises:
            Refused: memory is short.
        """
        now = self._setting.clock()
        if now - self._looked >= self._options.check_interval or now < self._looked:
            self._look(now)
        if self._short and not self._alone(now):
            raise Refused(f"{self._setting.id}: more than {self._soft // MIB} MiB are in use")

    def _look(self, now: int) -> None:
        self._looked = now
        used = resident_bytes()
        if used > self._soft:
            # Freed memory that the allocator keeps counts as resident, too. Only what cannot be returned is held.
            used = release()
        if used > self._soft and (used > self._hard or now - self._collected >= COLLECT_EVERY):
            self._collected = now
            used = release(collect=True)
        before, self._short = self._short, used > self._soft
        meter = self._setting.meter
        if self._short:
            meter.degrade(f"{used // MIB} MiB in use, batches are refused from {self._soft // MIB} MiB on")
            if not before:
                self._since = now
                meter.note(REFUSING)
                log.warning(
                    "%s: %d MiB in use: batches are refused from %d MiB on, and their sources wait",
                    self._setting.id, used // MIB, self._soft // MIB,
                )  # fmt: skip
        elif before:
            meter.recover()
            log.info(
                "%s: %d MiB in use: batches are accepted again after %.0f s",
                self._setting.id, used // MIB, (now - self._since) / SECOND,
            )  # fmt: skip

    def _alone(self, now: int) -> bool:
        """Return whether waiting cannot free any memory, because no batch is under way: then one at a time is accepted.

        What is left then is state, or memory that the interpreter cannot return. To refuse would be for ever.
        """
        return not self._under_way and now - self._since >= self._options.check_interval

    def process(self, batch: Batch) -> Iterable[Batch]:
        with self._lock:
            self._under_way += 1
        batch.acks = (*batch.acks, Ack(self._left))
        return (batch,)

    def _left(self) -> None:
        with self._lock:
            self._under_way -= 1
