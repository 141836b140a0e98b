"""A real OTLP server, over HTTP and gRPC, that notes which lines it has taken and misbehaves on demand."""

from __future__ import annotations

import gzip
import http.server
import random
import socketserver
import threading
import time
from collections import Counter
from concurrent import futures
from typing import Any

import grpc
from lines import parsed
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import (
    ExportLogsPartialSuccess,
    ExportLogsServiceRequest,
    ExportLogsServiceResponse,
)

Line = tuple[str, int]
#: What it may do with a request.
FAULTS = ("busy", "limit", "hang", "drop", "lose", "warn", "reject")


class Taken:
    """What has arrived."""

    def __init__(self, seed: int) -> None:
        self.lock = threading.Lock()
        self.lines: Counter[Line] = Counter()
        self.unanswered: Counter[Line] = Counter()  # taken, but the answer was lost on the way
        self.rejected: set[Line] = set()
        self.garbled: list[str] = []
        self.total = 0  # different lines
        self.repeated = 0  # lines of requests that were known by their name
        self.misnamed = 0  # requests that had the name of others and were not the same
        self.largest = 0
        self.requests = 0
        self.faults: Counter[str] = Counter()
        self.likelihood = 0.0
        self._names: dict[str, int] = {}
        self._answered: set[str] = set()
        self._chance = random.Random(seed)

    def fault(self) -> str:
        """What to do with the next request; nothing special mostly."""
        with self.lock:
            if self._chance.random() >= self.likelihood:
                return ""
            fault = self._chance.choice(FAULTS)
            self.faults[fault] += 1
            return fault

    def take(self, body: bytes, name: str, fault: str) -> int:
        """Notes the lines of a request; gives how many of them are rejected."""
        request = ExportLogsServiceRequest.FromString(body)
        found: list[Line] = []
        garbled: list[str] = []
        for resource in request.resource_logs:
            for scope in resource.scope_logs:
                for record in scope.log_records:
                    text = record.body.string_value
                    known = parsed(text)
                    if known is None:
                        garbled.append(text)
                    else:
                        found.append(known)
        with self.lock:
            self.requests += 1
            self.largest = max(self.largest, len(found))
            self.garbled += garbled[:20]
            content = hash(tuple(found))
            known = self._names.setdefault(name, content)
            if known != content:
                self.misnamed += 1
            rejected = min(3, len(found)) if fault == "reject" else 0
            self.rejected.update(found[:rejected])
            found = found[rejected:]
            if name in self._answered:
                self.repeated += len(found)
            self._answered.add(name)
            self.total += rejected + sum(line not in self.lines for line in found)
            self.lines.update(found)
            if fault == "lose":
                self.unanswered.update(found)
            return rejected

    def begin(self, total: int) -> None:
        """Forgets what is settled, so that hours do not fill the memory.

        Args:
            total: lines that were written until now; none of them is expected any more.
        """
        with self.lock:
            self.total = total
            self.lines.clear()
            self.unanswered.clear()
            self.rejected.clear()
            self._names.clear()
            self._answered.clear()
            self.repeated = 0


def answer(rejected: int, fault: str) -> bytes:
    response = ExportLogsServiceResponse()
    if fault in ("reject", "warn"):
        response.partial_success.CopyFrom(
            ExportLogsPartialSuccess(rejected_log_records=rejected, error_message="some of it is too old")
        )
    return bytes(response.SerializeToString())


class Hanging:
    """How long a request is left without an answer."""

    seconds = 0.3


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    taken: Taken

    def do_POST(self) -> None:
        fault = self.taken.fault()
        if fault == "drop":
            self.close_connection = True
            return
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.headers.get("Content-Encoding") == "gzip":
            body = gzip.decompress(body)
        if fault == "hang":
            time.sleep(Hanging.seconds)
            self.close_connection = True
            return
        if fault in ("busy", "limit"):
            self._answer(503 if fault == "busy" else 429, b"")
            return
        rejected = self.taken.take(body, self.headers.get("Idempotency-Key", ""), fault)
        if fault == "lose":
            self.close_connection = True
            return
        self._answer(200, answer(rejected, fault))

    def _answer(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", "application/x-protobuf")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *arguments: Any) -> None:
        pass


class _Quiet(http.server.ThreadingHTTPServer):
    daemon_threads = True
    allow_reuse_address = True

    def handle_error(self, request: Any, address: Any) -> None:
        """A client that was killed in the middle is no news."""


class HttpServer:
    """OTLP over HTTP on a port of its own, which can be closed and opened again."""

    def __init__(self, taken: Taken) -> None:
        self._handler = type("Handler", (_Handler,), {"taken": taken})
        self._server: socketserver.BaseServer = _Quiet(("127.0.0.1", 0), self._handler)
        self.port: int = self._server.server_address[1]  # type: ignore[index]
        self._start()

    def _start(self) -> None:
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()

    def close(self) -> None:
        """Connections are refused from now on."""
        self._server.shutdown()
        self._server.server_close()

    def open(self) -> None:
        self._server = _Quiet(("127.0.0.1", self.port), self._handler)
        self._start()


class GrpcServer(grpc.GenericRpcHandler):  # type: ignore[misc]
    """OTLP over gRPC on a port of its own."""

    def __init__(self, taken: Taken) -> None:
        self._taken = taken
        self._server = grpc.server(futures.ThreadPoolExecutor(8), handlers=(self,))
        self.port: int = self._server.add_insecure_port("127.0.0.1:0")
        self._server.start()

    def service(self, details: Any) -> Any:
        return grpc.unary_unary_rpc_method_handler(self._export)

    def _export(self, body: bytes, context: Any) -> bytes:
        fault = self._taken.fault()
        if fault in ("drop", "busy"):
            context.abort(grpc.StatusCode.UNAVAILABLE, "not now")
        if fault == "limit":
            context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "slower")
        if fault == "hang":
            time.sleep(Hanging.seconds)
            context.abort(grpc.StatusCode.DEADLINE_EXCEEDED, "too slow")
        name = dict(context.invocation_metadata()).get("idempotency-key", "")
        rejected = self._taken.take(body, name, fault)
        if fault == "lose":
            context.abort(grpc.StatusCode.UNAVAILABLE, "the answer got lost")
        return answer(rejected, fault)

    def stop(self) -> None:
        self._server.stop(0)
