"""The pods of a node or cluster, as the Kubernetes API tells them: listed once, then watched."""

from __future__ import annotations

import http.client
import logging
import os
import ssl
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlencode

import msgspec

log = logging.getLogger("tracecore.agent.k8sattributes")

ACCOUNT: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")
#: Seconds between attempts: at first, and at most.
BACK_OFF: Final = (1.0, 30.0)
#: A watch is renewed after so many seconds, as the API asks its clients to.
WATCH: Final = 240
#: Pods remembered; a larger cluster wants a filter by node.
MOST: Final = 50_000
MAX_LINE: Final = 4 << 20


class Api:
    """The way to the API server.

    Args:
        host: of the server.
        secure: by TLS, with the account's token.
    """

    def __init__(self, host: str, port: int, secure: bool, account: Path = ACCOUNT) -> None:
        self._host = host
        self._port = port
        self._secure = secure
        self._account = account

    @classmethod
    def inside(cls, secure: bool) -> Api:
        """The server of the cluster this runs in.

        Raises:
            OSError: it does not run in one.
        """
        host, port = os.environ.get("KUBERNETES_SERVICE_HOST"), os.environ.get("KUBERNETES_SERVICE_PORT", "443")
        if not host or not port.isdigit():
            raise OSError("KUBERNETES_SERVICE_HOST is not set: this is no pod")
        return cls(host, int(port), secure)

    def get(self, path: str, query: dict[str, str], timeout: float) -> tuple[http.client.HTTPConnection, Any]:
        """An open connection and its answer.

        Raises:
            OSError: it cannot be reached, or says no.
        """
        headers = {"Accept": "application/json", "User-Agent": "tracecore"}
        connection: http.client.HTTPConnection
        if self._secure:
            # Tokens are renewed on disk: read anew each time.
            headers["Authorization"] = f"Bearer {(self._account / 'token').read_text().strip()}"
            context = ssl.create_default_context(cafile=str(self._account / "ca.crt"))
            connection = http.client.HTTPSConnection(self._host, self._port, timeout=timeout, context=context)
        else:
            connection = http.client.HTTPConnection(self._host, self._port, timeout=timeout)
        try:
            connection.request("GET", f"{path}?{urlencode(query)}", headers=headers)
            answer = connection.getresponse()
        except http.client.HTTPException as error:
            connection.close()
            raise OSError(f"the API server: {error!r}") from None
        if answer.status != 200:
            connection.close()
            may = " (the service account needs get, list and watch on pods)" if answer.status in (401, 403) else ""
            raise OSError(f"the API server answers {answer.status}{may}")
        return connection, answer


class Pods:
    """Follows pods in a thread of its own.

    Args:
        api: where to ask.
        query: which pods (`fieldSelector`, …).
        namespace: one namespace; all when empty.
        state: told what is wrong, or nothing when all is well.
    """

    def __init__(
        self, api: Callable[[], Api], query: dict[str, str], namespace: str, state: Callable[[str], None]
    ) -> None:
        self._api = api
        self._query = query
        self._path = f"/api/v1/namespaces/{namespace}/pods" if namespace else "/api/v1/pods"
        self._state = state
        self._stop = threading.Event()
        self.synced = threading.Event()
        self._pods: dict[str, dict[str, Any]] = {}
        self._index: dict[tuple[str, ...], dict[str, Any]] = {}
        self._connection: http.client.HTTPConnection | None = None
        self._thread = threading.Thread(target=self._run, name="pods", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        if (connection := self._connection) is not None and connection.sock is not None:
            connection.sock.close()

    def find(self, *key: str) -> dict[str, Any] | None:
        """A pod by `("uid", …)`, `("ip", …)` or `("name", namespace, name)`."""
        return self._index.get(key)

    def _run(self) -> None:
        wait = BACK_OFF[0]
        while not self._stop.is_set():
            try:
                version = self._list()
                self._state("")
                wait = BACK_OFF[0]
                self._watch(version)
            except (OSError, ValueError, http.client.HTTPException) as error:
                if self._stop.is_set():
                    return
                self._state(str(error) or type(error).__name__)
                self._stop.wait(wait)
                wait = min(wait * 2, BACK_OFF[1])

    def _list(self) -> str:
        found: dict[str, dict[str, Any]] = {}
        more, version = "", ""
        while True:
            query = {**self._query, "limit": "500", **({"continue": more} if more else {})}
            connection, answer = self._api().get(self._path, query, 30.0)
            try:
                document = msgspec.json.decode(answer.read())
            finally:
                connection.close()
            for pod in document.get("items") or ():
                if len(found) < MOST and (uid := _metadata(pod).get("uid")):
                    found[uid] = pod
            version = str((document.get("metadata") or {}).get("resourceVersion") or "")
            more = str((document.get("metadata") or {}).get("continue") or "")
            if not more:
                break
        self._pods = found
        index: dict[tuple[str, ...], dict[str, Any]] = {}
        for pod in found.values():
            index.update(dict.fromkeys(_keys(pod), pod))
        self._index = index
        self.synced.set()
        return version

    def _watch(self, version: str) -> None:
        """Changes from a version on, until the server ends it."""
        query = {**self._query, "watch": "1", "resourceVersion": version, "allowWatchBookmarks": "true",
                 "timeoutSeconds": str(WATCH)}  # fmt: skip
        connection, answer = self._api().get(self._path, query, WATCH + 30.0)
        self._connection = connection
        try:
            while not self._stop.is_set() and (line := answer.readline(MAX_LINE)):
                event = msgspec.json.decode(line)
                if event.get("type") == "ERROR":
                    return  # too old a version: list again
                self._apply(str(event.get("type")), event.get("object") or {})
        finally:
            self._connection = None
            connection.close()

    def _apply(self, kind: str, pod: dict[str, Any]) -> None:
        uid = _metadata(pod).get("uid")
        if kind not in ("ADDED", "MODIFIED") or not uid:
            return  # a pod that is gone is remembered until the next list: its last lines still come
        if uid in self._pods or len(self._pods) < MOST:
            self._pods[uid] = pod
            for key in _keys(pod):
                self._index[key] = pod


def _metadata(pod: dict[str, Any]) -> dict[str, Any]:
    found = pod.get("metadata")
    return found if isinstance(found, dict) else {}


def _keys(pod: dict[str, Any]) -> Iterator[tuple[str, ...]]:
    metadata, spec = _metadata(pod), pod.get("spec") or {}
    yield "uid", str(metadata.get("uid"))
    yield "name", str(metadata.get("namespace")), str(metadata.get("name"))
    address = (pod.get("status") or {}).get("podIP")
    if address and not spec.get("hostNetwork"):
        yield "ip", str(address)
