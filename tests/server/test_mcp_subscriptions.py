"""Following an incident by the Model Context Protocol, with its official client against a real server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
from made import T0, incident
from running import running

pytest.importorskip("mcp")

from mcp import ClientSession
from mcp.client.client import Client
from mcp.client.streamable_http import streamable_http_client
from mcp.shared._httpx_utils import create_mcp_http_client
from mcp.shared.exceptions import MCPError
from mcp.shared.subscriptions import ResourceUpdated
from starlette.types import Receive, Scope, Send

from tracecore.server.app import make_app
from tracecore.server.mcp.http import McpEndpoint
from tracecore.server.principal import LOCAL
from tracecore.server.settings import ServerSettings
from tracecore.store.store import Store
from tracecore.store.update import read_update

#: The older way to follow a document, which many clients still use.
pytestmark = pytest.mark.filterwarnings("ignore::mcp.shared.exceptions.MCPDeprecationWarning")


class Served:
    """A server with one incident of the tenant `red`, and a token for each tenant."""

    def __init__(self, store: Store, address: str) -> None:
        self.url = address + "/mcp"
        self.incident = incident(1)["id"]
        self.document = f"tracecore://incidents/{self.incident}"
        store.put([read_update(incident(1), now=T0, tenant="red")], T0)
        self.tokens = {
            tenant: store.tokens.create(tenant, ["operate"], who="ada", now=T0, tenant=tenant)[1]
            for tenant in ("red", "blue")
        }

    def http(self, tenant: str) -> httpx.AsyncClient:
        found: httpx.AsyncClient = create_mcp_http_client(headers={"Authorization": f"Bearer {self.tokens[tenant]}"})
        return found

    @asynccontextmanager
    async def session(self, tenant: str) -> AsyncIterator[tuple[ClientSession, asyncio.Queue[Any]]]:
        heard: asyncio.Queue[Any] = asyncio.Queue()
        async with (
            self.http(tenant) as client,
            streamable_http_client(self.url, http_client=client) as streams,
            ClientSession(streams[0], streams[1], message_handler=heard.put) as session,
        ):
            await session.initialize()
            yield session, heard


@pytest.fixture
def served(sqlite_store: Store) -> Iterator[Served]:
    with running(make_app(sqlite_store, ServerSettings(auth=True, behind_proxy=True, rate=0))) as address:
        yield Served(sqlite_store, address)


def test_a_session_is_told_of_the_incident_it_follows(served: Served) -> None:
    async def talk() -> None:
        async with served.session("red") as (session, heard):
            await session.subscribe_resource(served.document)
            await session.call_tool("add_note", {"id": served.incident, "text": "the cable was replaced"})
            told = await asyncio.wait_for(heard.get(), 10)
            assert (told.method, str(told.params.uri)) == ("notifications/resources/updated", served.document)
            await session.unsubscribe_resource(served.document)
            await session.call_tool("add_note", {"id": served.incident, "text": "again"})
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(heard.get(), 1.5)

    asyncio.run(talk())


def test_the_newest_protocol_listens_without_a_session(served: Served) -> None:
    async def talk() -> None:
        async with (
            served.http("red") as client,
            Client(streamable_http_client(served.url, http_client=client)) as session,
            session.listen(resource_subscriptions=[served.document]) as changes,
        ):
            await session.call_tool("add_note", {"id": served.incident, "text": "the cable was replaced"})
            told = await asyncio.wait_for(anext(aiter(changes)), 10)
            assert told == ResourceUpdated(uri=served.document)

    asyncio.run(talk())


def test_nobody_follows_what_they_cannot_read(served: Served) -> None:
    async def talk() -> None:
        async with served.session("blue") as (session, _):
            for address in (served.document, "tracecore://incidents/incident-none", "file:///etc/passwd"):
                with pytest.raises(MCPError, match="there is no document"):
                    await session.subscribe_resource(address)
            await session.subscribe_resource("tracecore://runbooks/nccl_hang")
        async with (
            served.http("blue") as client,
            Client(streamable_http_client(served.url, http_client=client)) as session,
        ):
            with pytest.raises(MCPError, match="there is no document"):
                async with session.listen(resource_subscriptions=[served.document]):
                    pass
            with pytest.raises(MCPError, match="at most 100 documents"):
                async with session.listen(resource_subscriptions=[f"tracecore://runbooks/{n}" for n in range(101)]):
                    pass

    asyncio.run(talk())


def test_a_session_is_its_owner_s_alone(served: Served) -> None:
    hello = {
        "jsonrpc": "2.0",
        "id": 1,
        "method": "initialize",
        "params": {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}},
    }
    ping = {"jsonrpc": "2.0", "id": 2, "method": "ping"}

    async def talk() -> None:
        async with served.http("red") as red, served.http("blue") as blue:
            both = {"Accept": "application/json, text/event-stream"}
            begun = await red.post(served.url, json=hello, headers=both)
            own = {**both, "mcp-session-id": begun.headers["mcp-session-id"], "mcp-protocol-version": "2025-06-18"}
            assert (await blue.post(served.url, json=ping, headers=own)).status_code == 404
            assert (await blue.delete(served.url, headers=own)).status_code == 404
            assert (await red.post(served.url, json=ping, headers=own)).status_code == 200

    asyncio.run(talk())


def test_a_stream_that_the_server_s_end_cuts_short_is_ended(sqlite_store: Store) -> None:
    """uvicorn complains in the log of an answer without an end."""
    settings = ServerSettings()
    endpoint = McpEndpoint(make_app(sqlite_store, settings), sqlite_store, settings)

    async def cut_short(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"data: 1\n\n", "more_body": True})

    endpoint._app = cut_short
    sent: list[Any] = []

    async def talk() -> None:
        async def send(message: Any) -> None:
            sent.append(message)

        scope = {"type": "http", "state": {"principal": LOCAL}}
        await endpoint(scope, None, send)  # type: ignore[arg-type]

    asyncio.run(talk())
    assert [message.get("more_body") for message in sent] == [None, True, False]
