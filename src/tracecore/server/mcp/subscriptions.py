"""Tell assistants that an incident has changed whose document they asked to follow.

Clients of the newest protocol send `subscriptions/listen`, whose answer is the stream of changes; older ones subscribe
within a session. Both are told the address of the document alone, and only of incidents that they may read.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, suppress
from typing import Any, Final

import anyio
from mcp.server.context import ServerRequestContext
from mcp.server.mcpserver import Context, MCPServer
from mcp.server.mcpserver.exceptions import ResourceError
from mcp.server.session import ServerSession
from mcp.server.subscriptions import InMemorySubscriptionBus, ListenHandler, ResourceUpdated, ServerEvent
from mcp.shared.exceptions import MCPError
from mcp.types import (
    INTERNAL_ERROR,
    INVALID_PARAMS,
    INVALID_REQUEST,
    EmptyResult,
    SubscribeRequestParams,
    SubscriptionsListenRequestParams,
    SubscriptionsListenResult,
    UnsubscribeRequestParams,
)

from tracecore.server.events import TooManyViewers, Watcher, in_background

log = logging.getLogger("tracecore.server")

INCIDENTS: Final = "tracecore://incidents/"
#: Documents that one session or stream follows.
MAX_FOLLOWED: Final = 100
#: Streams of the newest protocol at the same time.
MAX_STREAMS: Final = 200
#: Seconds after which somebody looks whether anybody still follows anything.
IDLE_S: Final = 15.0

Request = ServerRequestContext[Any, Any]


class IncidentEvents(InMemorySubscriptionBus):
    """Changes of incidents as events of the protocol. The database is asked only while somebody follows one."""

    def __init__(self, watcher: Watcher) -> None:
        super().__init__()
        self._watcher = watcher
        self._followers = 0
        self._followed, self._read = asyncio.Event(), asyncio.Event()

    def subscribe(self, listener: Callable[[ServerEvent], None]) -> Callable[[], None]:
        end = super().subscribe(listener)
        self._followers += 1
        self._followed.set()

        def unsubscribe() -> None:
            self._followers -= 1
            end()

        return unsubscribe

    async def being_read(self) -> None:
        """Wait until changes are read: what changes after it is told."""
        try:
            await asyncio.wait_for(self._read.wait(), IDLE_S)
        except TimeoutError:
            raise MCPError(INTERNAL_ERROR, "changes cannot be read at the moment; try again later") from None

    def running(self) -> AbstractAsyncContextManager[None]:
        return in_background(self._follow())

    async def _follow(self) -> None:
        while True:
            await self._followed.wait()
            try:
                async with self._watcher.viewer() as queue:
                    self._read.set()
                    await self._publish(queue)
            except TooManyViewers:
                log.warning("assistants are not told of changes: too many event streams are open")
                await asyncio.sleep(IDLE_S)
            finally:
                self._read.clear()
            if not self._followers:
                self._followed.clear()

    async def _publish(self, queue: asyncio.Queue[Any]) -> None:
        """Hand on changes until some were lost or nobody follows any."""
        while self._followers:
            try:
                change = await asyncio.wait_for(queue.get(), IDLE_S)
            except TimeoutError:
                continue
            if change is None:
                return
            if change.kind == "incident":
                await self.publish(ResourceUpdated(uri=INCIDENTS + change.name))


class Subscriptions:
    """The requests by which a client follows documents, and stops."""

    def __init__(self, server: MCPServer, changes: IncidentEvents) -> None:
        self._server, self._changes = server, changes
        self._listen = ListenHandler(changes, max_subscriptions=MAX_STREAMS)
        self._sessions: dict[str, dict[str, DocumentFollower]] = {}
        handlers = server._lowlevel_server
        handlers.add_request_handler("subscriptions/listen", SubscriptionsListenRequestParams, self.listen)
        handlers.add_request_handler("resources/subscribe", SubscribeRequestParams, self.subscribe)
        handlers.add_request_handler("resources/unsubscribe", UnsubscribeRequestParams, self.unsubscribe)

    async def listen(self, request: Request, wanted: SubscriptionsListenRequestParams) -> SubscriptionsListenResult:
        addresses = wanted.notifications.resource_subscriptions or []
        _bound(len(addresses))
        for address in addresses:
            await self._check(request, str(address))
        stop = self._changes.subscribe(lambda _: None)
        try:
            await self._changes.being_read()
            return await self._listen(request, wanted)
        finally:
            stop()

    async def subscribe(self, request: Request, wanted: SubscribeRequestParams) -> EmptyResult:
        session, address = _session(request), str(wanted.uri)
        await self._check(request, address)
        if session not in self._sessions:
            self._sessions[session] = {}
            # The library has no public word for the end of a session.
            request.session._connection.exit_stack.callback(self._forget, session)
        followed = self._sessions[session]
        if address not in followed:
            _bound(len(followed) + 1)
            followed[address] = DocumentFollower(request.session, address, self._changes)
        await self._changes.being_read()
        return EmptyResult()

    async def unsubscribe(self, request: Request, wanted: UnsubscribeRequestParams) -> EmptyResult:
        if follower := self._sessions.get(_session(request), {}).pop(str(wanted.uri), None):
            follower.stop()
        return EmptyResult()

    def _forget(self, session: str) -> None:
        for follower in self._sessions.pop(session, {}).values():
            follower.stop()

    async def _check(self, request: Request, address: str) -> None:
        """Refuse to tell about what the client cannot read."""
        try:
            await self._server.read_resource(address, Context(request_context=request, mcp_server=self._server))
        except ResourceError:
            raise MCPError(INVALID_PARAMS, f"there is no document {address[:200]}") from None


class DocumentFollower:
    """One session that follows one document. What changes while it is being told, is told once, afterwards."""

    def __init__(self, session: ServerSession, address: str, changes: IncidentEvents) -> None:
        self._session, self._address = session, address
        self._changed = asyncio.Event()
        self._task = asyncio.create_task(self._tell())
        self._end = changes.subscribe(self._hear)

    def stop(self) -> None:
        self._end()
        self._task.cancel()

    def _hear(self, event: ServerEvent) -> None:
        if isinstance(event, ResourceUpdated) and event.uri == self._address:
            self._changed.set()

    async def _tell(self) -> None:
        with suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):
            while await self._changed.wait():
                self._changed.clear()
                await self._session.send_resource_updated(self._address)


def _session(request: Request) -> str:
    found = request.request and request.request.headers.get("mcp-session-id")
    if not found:
        raise MCPError(INVALID_REQUEST, "this server keeps no sessions; use subscriptions/listen")
    return str(found)


def _bound(followed: int) -> None:
    if followed > MAX_FOLLOWED:
        raise MCPError(INVALID_PARAMS, f"at most {MAX_FOLLOWED} documents can be followed at once")
