"""A stand-in for the Kubernetes API: pods, nodes and events that can be listed and watched, and nothing else.

It asks nobody who they are. The project's own tests play the same incidents before a real API server.
"""

from __future__ import annotations

import copy
import http.server
import json
import threading
import time
import urllib.parse
import uuid
from collections.abc import Callable
from typing import Any, Protocol

Object = dict[str, Any]
Clock = Callable[[], float]
KINDS = {"pods": "Pod", "nodes": "Node", "events": "Event"}


class Api(Protocol):
    """What incidents need of a cluster; the stand-in has it, and so has a real server in the tests."""

    def node(self, name: str, **conditions: str) -> Any: ...

    def condition(self, name: str, **conditions: str) -> None: ...

    def pod(self, name: str, node: str, namespace: str = "default", **metadata: Any) -> Any: ...

    def status(self, name: str, status: dict[str, Any], namespace: str = "default") -> Any: ...

    def event(self, pod: Any, reason: str, message: str, host: str = "", **more: Any) -> Any: ...


def stamp(seconds: float) -> str:
    """A time as the API writes it."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(seconds))


class Cluster:
    """The objects, and a server over them."""

    def __init__(self, clock: Clock = time.time) -> None:
        self._clock = clock
        self._objects: dict[str, dict[str, Object]] = {kind: {} for kind in KINDS}
        self._changes: list[tuple[int, str, str, Object]] = []
        self._version = 1
        self._changed = threading.Condition()
        self._closed = False
        cluster = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                cluster._answer(self)

            def log_message(self, format: str, *args: object) -> None:
                """Nothing."""

        self._serving = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._serving.daemon_threads = True
        self.port: int = self._serving.server_address[1]
        self._thread = threading.Thread(target=self._serving.serve_forever, args=(0.1,), daemon=True)
        self._thread.start()

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._serving.shutdown()
        self._serving.server_close()
        self._thread.join()

    # -- what happens --------------------------------------------------------------------------------------------------

    def node(self, name: str, **conditions: str) -> Any:
        """A node with conditions, as a kubelet would report them."""
        self._put("nodes", name, {"metadata": {"name": name, "uid": str(uuid.uuid4())}, "status": {"conditions": []}})
        self.condition(name, **conditions)
        return self._objects["nodes"][name]

    def condition(self, name: str, **conditions: str) -> None:
        """Conditions of a node that change now."""
        now, node = stamp(self._clock()), copy.deepcopy(self._objects["nodes"][name])
        kept = [one for one in node["status"]["conditions"] if one["type"] not in conditions]
        for kind, status in conditions.items():
            kept.append({"type": kind, "status": status, "lastHeartbeatTime": now, "lastTransitionTime": now,
                         "reason": f"Kubelet{kind}", "message": f"{kind} is {status}"})  # fmt: skip
        node["status"]["conditions"] = kept
        self._put("nodes", name, node)

    def pod(self, name: str, node: str, namespace: str = "default", **metadata: Any) -> Any:
        """A pod that runs on a node."""
        meta = {"name": name, "namespace": namespace, "uid": str(uuid.uuid4()), **metadata}
        meta["creationTimestamp"] = stamp(self._clock())
        spec = {"nodeName": node, "containers": [{"name": "main", "image": "registry.example/train:2.1"}]}
        pod = {"metadata": meta, "spec": spec, "status": {"phase": "Pending"}}
        self._put("pods", f"{namespace}/{name}", pod)
        return pod

    def status(self, name: str, status: dict[str, Any], namespace: str = "default") -> Any:
        """What a kubelet reports of a pod."""
        pod = copy.deepcopy(self._objects["pods"][f"{namespace}/{name}"])
        pod["status"].update(status)
        self._put("pods", f"{namespace}/{name}", pod)
        return pod

    def delete(self, name: str, namespace: str = "default", grace: int = 30) -> None:
        """Somebody asks for a pod to go."""
        pod = copy.deepcopy(self._objects["pods"][f"{namespace}/{name}"])
        when = {"deletionTimestamp": stamp(self._clock() + grace), "deletionGracePeriodSeconds": grace}
        self._put("pods", f"{namespace}/{name}", {**pod, "metadata": {**pod["metadata"], **when}})

    def event(self, pod: Any, reason: str, message: str, host: str = "", **more: Any) -> Any:
        """An event about a pod, as a kubelet would record it."""
        now, meta = stamp(self._clock()), pod["metadata"]
        name = f"{meta['name']}.{uuid.uuid4().hex[:16]}"
        event = {
            "metadata": {"name": name, "namespace": meta["namespace"], "uid": str(uuid.uuid4())},
            "involvedObject": {"kind": "Pod", "namespace": meta["namespace"], "name": meta["name"], "uid": meta["uid"],
                               "apiVersion": "v1"},
            "reason": reason, "message": message, "type": "Warning", "count": 1,
            "firstTimestamp": now, "lastTimestamp": now,
            "source": {"component": "kubelet", **({"host": host} if host else {})}, **more,
        }  # fmt: skip
        self._put("events", f"{meta['namespace']}/{name}", event)
        return event

    def _put(self, kind: str, key: str, thing: Object) -> None:
        with self._changed:
            self._version += 1
            known = key in self._objects[kind]
            thing = {**thing, "metadata": {**thing["metadata"], "resourceVersion": str(self._version)}}
            thing |= {"kind": KINDS[kind], "apiVersion": "v1"}
            self._objects[kind][key] = thing
            self._changes.append((self._version, kind, "MODIFIED" if known else "ADDED", thing))
            self._changed.notify_all()

    # -- who asks ------------------------------------------------------------------------------------------------------

    def _answer(self, request: http.server.BaseHTTPRequestHandler) -> None:
        parts = urllib.parse.urlsplit(request.path)
        asked = {name: values[-1] for name, values in urllib.parse.parse_qs(parts.query).items()}
        kind = parts.path.rpartition("/")[2]
        if kind not in KINDS:
            request.send_error(404)
        elif asked.get("watch") in ("1", "true"):
            self._watch(request, kind, asked)
        else:
            with self._changed:
                items = [one for one in self._objects[kind].values() if _chosen(one, asked)]
                version = str(self._version)
            listed = {"kind": f"{KINDS[kind]}List", "apiVersion": "v1", "metadata": {"resourceVersion": version}}
            body = json.dumps({**listed, "items": items}).encode()
            request.send_response(200)
            request.send_header("Content-Type", "application/json")
            request.send_header("Content-Length", str(len(body)))
            request.end_headers()
            request.wfile.write(body)

    def _watch(self, request: http.server.BaseHTTPRequestHandler, kind: str, asked: dict[str, str]) -> None:
        request.send_response(200)
        request.send_header("Content-Type", "application/json")
        request.send_header("Connection", "close")
        request.end_headers()
        request.close_connection = True
        after, place = int(asked.get("resourceVersion") or 0), 0
        while True:
            with self._changed:
                while place == len(self._changes) and not self._closed:
                    self._changed.wait(1.0)
                if self._closed:
                    return
                new, place = self._changes[place:], len(self._changes)
            told = [
                json.dumps({"type": change, "object": thing})
                for version, of, change, thing in new
                if of == kind and version > after and _chosen(thing, asked)
            ]
            try:
                request.wfile.write("".join(f"{line}\n" for line in told).encode())
                request.wfile.flush()
            except OSError:
                return  # whoever watched has gone


def _chosen(thing: Object, asked: dict[str, str]) -> bool:
    """Whether the selectors of a request choose an object."""
    labels = thing["metadata"].get("labels") or {}
    for term in filter(None, asked.get("labelSelector", "").split(",")):
        name, _, value = term.partition("=")
        if labels.get(name) != value:
            return False
    field = asked.get("fieldSelector", "")
    return not field.startswith("spec.nodeName=") or thing.get("spec", {}).get("nodeName") == field.partition("=")[2]
