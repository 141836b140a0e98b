"""The `batch` processor: fewer, larger batches."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, ClassVar

import msgspec

from tracecore.agent.batch import LEVELS, Batch
from tracecore.agent.batch import count as count_of
from tracecore.agent.component import Setting
from tracecore.agent.options import MILLISECOND, Count, Duration


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """
    Args:
        send_batch_size: records that make a batch go at once.
        timeout: how long a batch waits for more; 0 waits for nothing.
        send_batch_max_size: larger ones are cut; 0 cuts none.
    """

    IGNORED: ClassVar[tuple[str, ...]] = (
        "metadata_keys",
        "metadata_cardinality_limit",
    )

    send_batch_size: Count = 8192
    timeout: Duration = 200 * MILLISECOND
    send_batch_max_size: Count = 0

    def check(self) -> Iterator[tuple[tuple[str | int, ...], str]]:
        if 0 < self.send_batch_max_size < self.send_batch_size:
            yield ("send_batch_max_size",), "may not be less than send_batch_size"


class BatchProcessor:
    """Collects records until there are enough of them, or they have waited long enough."""

    def __init__(self, options: Options, setting: Setting) -> None:
        self._options = options
        self._clock = setting.clock
        self._held: list[Batch] = []
        self._count = 0
        self._since = 0

    def process(self, batch: Batch) -> Iterable[Batch]:
        if not self._held:
            self._since = self._clock()
        self._held.append(batch)
        self._count += batch.count
        if self._count >= self._options.send_batch_size or not self._options.timeout:
            return self._flush()
        return ()

    def due(self) -> int | None:
        return self._since + self._options.timeout if self._held else None

    def tick(self, now: int) -> Iterable[Batch]:
        return self._flush() if self._held and now >= self._since + self._options.timeout else ()

    def drain(self, now: int) -> Iterable[Batch]:
        return self._flush() if self._held else ()

    def _flush(self) -> list[Batch]:
        held, self._held, self._count = self._held, [], 0
        most = self._options.send_batch_max_size
        if len(held) == 1 and (not most or held[0].count <= most):
            return held
        signal = held[0].signal
        total = sum(batch.count for batch in held)
        if (not most or total <= most) and all(batch.untouched for batch in held):
            # Encoded requests, one after the other, are one request.
            raw = b"".join([batch.encoded() for batch in held])
            return [Batch(signal, raw=raw, count=total, acks=tuple(ack for batch in held for ack in batch.acks))]
        entries: list[dict[str, Any]] = []
        owners: list[int] = []
        for number, batch in enumerate(held):
            entries += batch.payload.get(LEVELS[signal][0]) or ()
            owners += [number] * (len(entries) - len(owners))
        made: list[Batch] = []
        waits = [0] * len(held)
        for part, first, last in split(signal, entries, most or total):
            # A source that gave nothing to a part need not wait for it.
            of = dict.fromkeys(owners[first : last + 1])
            for number in of:
                waits[number] += 1
            made.append(Batch(signal, part, acks=tuple(ack for number in of for ack in held[number].acks)))
        for batch, count in zip(held, waits, strict=True):
            if count:
                batch.hold(count - 1)
            else:
                batch.done()
        return made


def split(signal: str, entries: list[dict[str, Any]], most: int) -> Iterator[tuple[dict[str, Any], int, int]]:
    """Cut entries of a payload so that no part has more records; a metric is never cut, however many points it has.

    Gives parts, each with the numbers of the first and the last entry that it has something of.
    """
    resources, scopes, items = LEVELS[signal]
    part: list[dict[str, Any]] = []
    room = most
    first = last = 0
    for number, resource in enumerate(entries):
        for scope in resource.get(scopes) or ():
            held = scope.get(items) or []
            at = 0
            while at < len(held):
                taken, size = _take(signal, items, held, at, room)
                if not taken and part:
                    yield {resources: part}, first, last
                    part, room = [], most
                    continue
                taken, size = (taken, size) if taken else (1, _size(signal, items, held[at : at + 1]))
                if not part:
                    first = number
                last = number
                part.append({**resource, scopes: [{**scope, items: held[at : at + taken]}]})
                at += taken
                room -= size
                if room <= 0:
                    yield {resources: part}, first, last
                    part, room = [], most
    if part:
        yield {resources: part}, first, last


def _take(signal: str, items: str, held: list[Any], at: int, room: int) -> tuple[int, int]:
    if signal != "metrics":
        taken = min(room, len(held) - at)
        return taken, taken
    taken = size = 0
    for metric in held[at:]:
        more = _size(signal, items, [metric])
        if size + more > room:
            break
        taken, size = taken + 1, size + more
    return taken, size


def _size(signal: str, items: str, held: list[Any]) -> int:
    resources, scopes, _ = LEVELS[signal]
    return count_of(signal, {resources: [{scopes: [{items: held}]}]})
