"""Tell viewers what changed: one reader of the database for all of them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager, suppress
from typing import Any, Final

from sqlalchemy.exc import SQLAlchemyError
from starlette.concurrency import run_in_threadpool

from tracecore.store.records import Change
from tracecore.store.store import Store

log = logging.getLogger("tracecore.server")

#: Seconds between two looks, while somebody watches.
LOOK_S: Final = 1.0
#: Changes that wait for a slow viewer; of more the viewer is told to load the page again.
WAITING: Final = 1_000
VIEWERS: Final = 500


@asynccontextmanager
async def in_background(work: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    """Do something that never ends until the block is left."""
    task = asyncio.create_task(work)
    try:
        yield
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


class TooManyViewers(Exception):
    """No more event streams are taken."""


class Watcher:
    """Reads the changes once and hands them to every viewer."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._viewers: set[asyncio.Queue[Change | None]] = set()
        self._last = 0
        #: On PostgreSQL transactions commit in another order than their numbers: the last ones are looked at again.
        self._seen: set[int] = set()
        self._awake = asyncio.Event()

    @property
    def viewers(self) -> int:
        return len(self._viewers)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        try:
            async with in_background(self._watch()):
                yield
        finally:
            for queue in self._viewers:
                with suppress(asyncio.QueueFull):
                    queue.put_nowait(None)

    @asynccontextmanager
    async def viewer(self) -> AsyncIterator[asyncio.Queue[Change | None]]:
        """A queue of changes; None means that some were lost or that the server stops.

        Raises:
            TooManyViewers: there are too many.
        """
        if len(self._viewers) >= VIEWERS:
            raise TooManyViewers
        queue: asyncio.Queue[Change | None] = asyncio.Queue(WAITING)
        if not self._viewers:
            await self._catch_up()
        self._viewers.add(queue)
        self._awake.set()
        try:
            yield queue
        finally:
            self._viewers.discard(queue)

    async def _catch_up(self) -> None:
        self._last = await run_in_threadpool(self._store.changes.last)
        self._seen = set(range(self._last - 100, self._last + 1))

    async def _watch(self) -> None:
        while True:
            if not self._viewers:
                self._awake.clear()
                await self._awake.wait()
            await asyncio.sleep(LOOK_S)
            try:
                found = await run_in_threadpool(self._store.changes.after, self._last - 100)
            except SQLAlchemyError as error:
                log.warning("changes cannot be read: %s", type(error).__name__)
                continue
            new = [change for change in found if change.number not in self._seen]
            if not new:
                continue
            self._last = max(self._last, new[-1].number)
            self._seen = {number for number in self._seen if number > self._last - 1_000}
            self._seen.update(change.number for change in new)
            self._hand_out(new)

    def _hand_out(self, new: list[Change]) -> None:
        for queue in [*self._viewers]:
            for change in new:
                try:
                    queue.put_nowait(change)
                except asyncio.QueueFull:
                    while not queue.empty():
                        queue.get_nowait()
                    queue.put_nowait(None)
                    self._viewers.discard(queue)
                    break
