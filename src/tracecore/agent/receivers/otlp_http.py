"""OTLP over HTTP, the server's side: bounded bodies, bounded connections, two encodings."""

from __future__ import annotations

import threading
import zlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, NoReturn, Protocol

import msgspec

from tracecore.agent.auth import CHALLENGE, Authenticator
from tracecore.agent.batch import LEVELS, Refused, Signal
from tracecore.agent.options import SECOND, address
from tracecore.agent.serving import Handler, Server
from tracecore.ottl.otlpjson import PayloadError
from tracecore.ottl.otlpjson import decode as decode_json
from tracecore.signals.otlp.messages import OtlpError, fill, request_type
from tracecore.signals.otlp.responses import failure, success

if TYPE_CHECKING:
    from tracecore.agent.receivers.otlp import Http

#: Seconds, and bytes, for which a client that was refused is still listened to.
LINGER: Final = 5.0
LEFT_OVER: Final = 256 << 20
#: The largest body where none is configured, or 0.
DEFAULT_BODY: Final = 20 << 20
#: Lines after the last chunk of a body.
TRAILERS: Final = 64

_HEX = b"0123456789abcdefABCDEF"
_INVALID, _UNAVAILABLE, _UNIMPLEMENTED, _TOO_LARGE, _UNAUTHENTICATED = 3, 14, 12, 8, 16


class TakeRequest(Protocol):
    def __call__(self, signal: Signal, raw: bytes, peer: str = "") -> int: ...


class _Answer(Exception):
    def __init__(self, status: int, code: int, text: str) -> None:
        super().__init__(text)
        self.status = status
        self.code = code
        self.text = text


def from_json(signal: Signal, body: bytes) -> bytes:
    """The protobuf encoding of an OTLP JSON document; what is not of OTLP is passed over, what is wrong is refused.

    Raises:
        OtlpError: it is no such document.
    """
    try:
        document = msgspec.json.decode(body)
        if not isinstance(document, dict):
            raise OtlpError("not an OTLP document: expected an object")
        payload = decode_json(document)
        message = request_type(signal)()
        fill(message, {LEVELS[signal][0]: payload.get(LEVELS[signal][0])})
        encoded: bytes = message.SerializeToString()
    except UnicodeError:
        raise OtlpError("not an OTLP document: it is not UTF-8") from None
    except (msgspec.DecodeError, PayloadError, RecursionError) as error:
        raise OtlpError(f"not an OTLP document: {error}") from None
    return encoded


def decompress(body: bytes, kind: str, most: int) -> bytes:
    """The body without its compression.

    Raises:
        OtlpError: it is damaged, or of a kind that is not known.
        OverflowError: it becomes larger than `most`.
    """
    if kind in ("", "identity", "none"):
        return body
    if kind in ("gzip", "deflate", "zlib"):
        stream = zlib.decompressobj(31 if kind == "gzip" else 15)
        try:
            data = stream.decompress(body, most + 1)
        except zlib.error as error:
            raise OtlpError(f"damaged {kind}: {error}") from None
        if len(data) <= most and not stream.eof:
            raise OtlpError(f"damaged {kind}: it ends too early")
    elif kind == "zstd":
        import zstandard

        try:
            with zstandard.ZstdDecompressor(max_window_size=1 << 27).stream_reader(body) as reader:
                data = reader.read(most + 1)
        except zstandard.ZstdError as error:
            raise OtlpError(f"damaged zstd: {error}") from None
    else:
        raise OtlpError(f"unknown Content-Encoding {kind[:40]!r}; use gzip or zstd")
    if len(data) > most:
        raise OverflowError
    return data


class HttpServer:
    """Listens for export requests; one thread for each connection, and a bound on connections.

    Args:
        options: where and how.
        take: what to do with a request.
        refused: told of each connection that found no place.
        believed: knows whose requests are taken; everybody's when not given.
    """

    def __init__(
        self, options: Http, take: TakeRequest, refused: Callable[[], None], believed: Authenticator | None = None
    ) -> None:
        found = address(options.endpoint)
        assert found is not None
        paths: dict[str, Signal] = {
            options.logs_url_path: "logs",
            options.metrics_url_path: "metrics",
            options.traces_url_path: "traces",
        }
        timeout = options.read_timeout / SECOND or 60.0
        handler = type(
            "Handler",
            (_OtlpHandler,),
            {"options": options, "take": staticmethod(take), "paths": paths, "timeout": timeout, "believed": believed},
        )
        tls = options.tls.context() if options.tls is not None else None
        self._server = Server(found, handler, options.max_connections, tls, refused)
        self.port: int = self._server.server_address[1]
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.1,), name="otlp-http", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        if self._thread.is_alive():
            self._server.shutdown()
        self._server.server_close()
        self._server.hang_up()


class _OtlpHandler(Handler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    options: Http
    paths: dict[str, Signal]
    take: TakeRequest
    believed: Authenticator | None

    def do_POST(self) -> None:
        kind = self.headers.get("Content-Type", "").partition(";")[0].strip().lower()
        json = kind == "application/json"
        try:
            signal = self.paths.get(self.path.partition("?")[0])
            if signal is None:
                self.close_connection = True
                raise _Answer(404, _UNIMPLEMENTED, f"nothing is taken here; logs go to {self.options.logs_url_path}")
            if not json and kind not in ("application/x-protobuf", "application/protobuf"):
                self.close_connection = True
                raise _Answer(415, _INVALID, "Content-Type must be application/x-protobuf or application/json")
            if self.believed is not None and not self.believed.allows(
                {name.lower(): value for name, value in self.headers.items()}
            ):
                self.close_connection = True
                raise _Answer(401, _UNAUTHENTICATED, CHALLENGE)
            raw = self._body()
            self.server.allow(self.connection, None)
            type(self).take(signal, from_json(signal, raw) if json else raw, str(self.client_address[0]))
        except _Answer as answer:
            self._answer(answer.status, failure(answer.code, answer.text, json), json)
        except OtlpError as error:
            self._answer(400, failure(_INVALID, str(error)[:300], json), json)
        except Refused as error:
            self._answer(503, failure(_UNAVAILABLE, f"try again later: {error}", json), json, {"Retry-After": "1"})
        else:
            self._answer(200, success(signal, json), json)

    def do_OPTIONS(self) -> None:
        """A browser asks whether a page may send."""
        cors, origin = self.options.cors, self.headers.get("Origin", "")
        self.close_connection = self.close_connection or "Content-Length" in self.headers
        if cors is None or not cors.allows(origin):
            self._answer(403, failure(_UNIMPLEMENTED, "this origin may not send here; see cors", True), True)
            return
        headers = {
            "Access-Control-Allow-Methods": "POST",
            "Access-Control-Allow-Headers": ", ".join(("Content-Type", "Content-Encoding", *cors.allowed_headers)),
        }
        if cors.max_age:
            headers["Access-Control-Max-Age"] = str(cors.max_age)
        self._answer(204, b"", True, headers)

    def do_GET(self) -> None:
        self.close_connection = True
        self._answer(405, failure(_UNIMPLEMENTED, "use POST", True), True, {"Allow": "POST"})

    def _body(self) -> bytes:
        most = self.options.max_request_body_size or DEFAULT_BODY
        length = self.headers.get("Content-Length")
        chunked = self.headers.get("Transfer-Encoding")
        if (chunked is not None and length is not None) or len(self.headers.get_all("Content-Length", [])) > 1:
            # A proxy before us may have read the other length, and then the rest is somebody else's request.
            self.close_connection = True
            raise _Answer(400, _INVALID, "one length of the body is enough")
        if chunked is not None and chunked.strip().lower() == "chunked":
            body = self._chunks(most)
        elif length is None or not length.isascii() or not length.isdigit() or len(length) > 18:
            self.close_connection = True
            raise _Answer(411, _INVALID, "Content-Length is missing")
        elif int(length) > most:
            self._too_large(most)
        else:
            body = self.rfile.read(int(length))
            if len(body) < int(length):
                self.close_connection = True
                raise _Answer(400, _INVALID, "the body ended too early")
        try:
            return decompress(body, self.headers.get("Content-Encoding", "").strip().lower(), most)
        except OverflowError:
            self._too_large(most)

    def _chunks(self, most: int) -> bytes:
        parts: list[bytes] = []
        total = 0
        while True:
            head = self.rfile.readline(1024).partition(b";")[0].strip()
            if not 0 < len(head) <= 16 or head.strip(_HEX):
                self._damaged()
            size = int(head, 16)
            if size == 0:
                for _ in range(TRAILERS):
                    if not self.rfile.readline(8192).strip():
                        return b"".join(parts)
                self._damaged()
            total += size
            if total > most:
                self._too_large(most)
            parts.append(self.rfile.read(size))
            if self.rfile.readline(8) not in (b"\r\n", b"\n"):
                self._damaged()

    def _damaged(self) -> NoReturn:
        self.close_connection = True
        raise _Answer(400, _INVALID, "a damaged chunk")

    def _too_large(self, most: int) -> NoReturn:
        self.close_connection = True
        raise _Answer(413, _TOO_LARGE, f"larger than {most} bytes")

    def _answer(self, status: int, body: bytes, json: bool, headers: dict[str, str] | None = None) -> None:
        self.server.allow(self.connection, self.timeout)
        self.send_response(status)
        self.send_header("Content-Type", "application/json" if json else "application/x-protobuf")
        self.send_header("Content-Length", str(len(body)))
        origin = self.headers.get("Origin")
        if origin is not None and self.options.cors is not None and self.options.cors.allows(origin):
            self.send_header("Access-Control-Allow-Origin", origin)
            self.send_header("Vary", "Origin")
            if self.options.cors.exposed_headers:
                self.send_header("Access-Control-Expose-Headers", ", ".join(self.options.cors.exposed_headers))
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(body)
        if self.close_connection:
            self._linger()

    def _linger(self) -> None:
        """Read what a client still sends: a connection closed before is reset, and it never sees the answer."""
        self.server.allow(self.connection, LINGER)
        left = LEFT_OVER
        while left > 0 and (piece := self.rfile.read1(min(left, 1 << 16))):
            left -= len(piece)
