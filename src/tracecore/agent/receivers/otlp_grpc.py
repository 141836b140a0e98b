"""OTLP over gRPC, the server's side: bounded connections and requests, and a time for each request to arrive.

Requests wait for their message in an event loop and not in a thread: however many clients are slow, a thread only works
on a request that has arrived.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
import threading
from collections import Counter
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Final

import grpc

from tracecore.agent.batch import Refused, Signal
from tracecore.agent.options import MILLISECOND, SECOND
from tracecore.agent.tls import read_bytes
from tracecore.signals.otlp.messages import OtlpError
from tracecore.signals.otlp.responses import success
from tracecore.signals.otlp.services import METHODS

if TYPE_CHECKING:
    from tracecore.agent.receivers.otlp import Grpc

log = logging.getLogger("tracecore.agent.otlp")

#: Requests at a time: of all clients, of which more are refused; and of one address, of which more wait for their turn.
REQUESTS: Final = 2048
OF_ONE: Final = 256
#: Threads that work on requests.
WORKERS: Final = 8
#: Seconds in which a request has to arrive, and in which a connection has to greet.
ARRIVAL: Final = 30.0
GREETING: Final = 10.0
#: Nanoseconds after which a connection without a request is closed.
IDLE: Final = 300 * SECOND
#: Seconds for the server to start.
START: Final = 20.0


class GrpcServer:
    """Listens in a thread of its own.

    Args:
        options: where and how.
        where: host and port as gRPC writes them.
        take: what to do with a request.
        allows: told the metadata of a request: whether its sender is believed.
        refused: told of each request that found no place.
        challenge: what somebody hears who is not believed.
    """

    def __init__(
        self,
        options: Grpc,
        where: str,
        take: Callable[[Signal, bytes, str], int],
        allows: Callable[[dict[str, str]], bool],
        refused: Callable[[], None],
        challenge: str,
    ) -> None:
        self._options = options
        self._where = where
        self._take = take
        self._allows = allows
        self._refused = refused
        self._challenge = challenge
        self._pool = ThreadPoolExecutor(WORKERS, "otlp-grpc")
        self._by_peer: Counter[str] = Counter()
        self._turns: dict[str, asyncio.Semaphore] = {}
        self._begun = threading.Event()
        self._problem = ""
        self._loop: asyncio.AbstractEventLoop | None = None
        self._ending: asyncio.Event | None = None
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), name="otlp-grpc", daemon=True)
        self.port = 0

    def start(self) -> None:
        """Listen.

        Raises:
            OSError: it cannot.
        """
        self._thread.start()
        if not self._begun.wait(START) or self._problem:
            raise OSError(f"cannot listen on {self._where}: {self._problem or 'it takes too long'}")

    def stop(self, seconds: float) -> None:
        """Let requests that have arrived end within this time."""
        if self._loop is not None and self._ending is not None and self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._ending.set)
            self._thread.join(seconds)
        self._pool.shutdown(wait=False)

    async def _serve(self) -> None:
        self._loop, self._ending = asyncio.get_running_loop(), asyncio.Event()
        server = grpc.aio.server(options=self._settings(), maximum_concurrent_rpcs=REQUESTS)
        for signal, method in METHODS.items():
            service, _, name = method[1:].partition("/")
            handler = grpc.stream_unary_rpc_method_handler(self._handler(signal))  # type: ignore[arg-type]
            server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, {name: handler}),))
        try:
            self.port = self._bound(server)
            await server.start()
        except (RuntimeError, OSError) as error:
            self._problem = str(error) or type(error).__name__
        self._begun.set()
        if self._problem:
            return
        await self._ending.wait()
        await server.stop(1.0)

    def _settings(self) -> list[tuple[str, int]]:
        options = self._options
        alive = options.keepalive.server_parameters if options.keepalive is not None else None
        found = {
            "grpc.max_receive_message_length": options.max_recv_msg_size_mib << 20 or -1,
            "grpc.so_reuseport": 0,
            "grpc.max_allowed_incoming_connections": options.max_connections,
            "grpc.server_handshake_timeout_ms": int(GREETING * 1000),
            "grpc.max_connection_idle_ms": (alive.max_connection_idle if alive else 0) // MILLISECOND
            or IDLE // MILLISECOND,
        }
        if options.max_concurrent_streams:
            found["grpc.max_concurrent_streams"] = options.max_concurrent_streams
        if alive is not None:
            found |= {
                name: value // MILLISECOND
                for name, value in (
                    ("grpc.max_connection_age_ms", alive.max_connection_age),
                    ("grpc.max_connection_age_grace_ms", alive.max_connection_age_grace),
                    ("grpc.keepalive_time_ms", alive.time),
                    ("grpc.keepalive_timeout_ms", alive.timeout),
                )
                if value
            }
        return list(found.items())

    def _bound(self, server: Any) -> int:
        tls = self._options.tls
        if tls is None:
            port: int = server.add_insecure_port(self._where)
            return port
        credentials = grpc.ssl_server_credentials(
            [(read_bytes(tls.key_file), read_bytes(tls.cert_file))],
            read_bytes(tls.client_ca_file),
            tls.client_ca_file is not None,
        )
        port = server.add_secure_port(self._where, credentials)
        return port

    def _handler(self, signal: Signal) -> Callable[[AsyncIterator[bytes], Any], Any]:
        async def export(requests: AsyncIterator[bytes], context: Any) -> bytes:
            peer = peer_address(context.peer())
            turns = self._turns.get(peer)
            if turns is None:
                turns = self._turns[peer] = asyncio.Semaphore(OF_ONE)
            self._by_peer[peer] += 1
            try:
                async with turns:
                    return await self._answer(signal, requests, context, peer)
            finally:
                self._by_peer[peer] -= 1
                if not self._by_peer[peer]:
                    del self._by_peer[peer], self._turns[peer]

        return export

    async def _answer(self, signal: Signal, requests: AsyncIterator[bytes], context: Any, peer: str) -> bytes:
        if not self._allows({name: value for name, value in context.invocation_metadata() if isinstance(value, str)}):
            await context.abort(grpc.StatusCode.UNAUTHENTICATED, self._challenge)
        try:
            raw = await asyncio.wait_for(anext(requests), ARRIVAL)
        except TimeoutError:
            self._refused()
            await context.abort(grpc.StatusCode.DEADLINE_EXCEEDED, f"no whole request within {ARRIVAL:.0f} s")
        except StopAsyncIteration:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "there is no request")
        try:
            # The authenticator may have set context that the handler of the request reads.
            take = contextvars.copy_context().run
            await asyncio.get_running_loop().run_in_executor(self._pool, take, self._take, signal, raw, peer)
        except OtlpError as error:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error)[:300])
        except Refused as error:
            await context.abort(grpc.StatusCode.UNAVAILABLE, f"try again later: {error}")
        return success(signal, json=False)


def peer_address(peer: str) -> str:
    """The address of gRPC's `ipv4:10.0.0.1:5555` or `ipv6:%5B::1%5D:5555`; nothing for another kind."""
    kind, _, rest = peer.partition(":")
    host = rest.rpartition(":")[0].replace("%5B", "").replace("%5D", "").strip("[]")
    return host if kind in ("ipv4", "ipv6") else ""
