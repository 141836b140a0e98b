"""A real kube-apiserver over a real etcd, for tests: rights are checked, nothing else of a cluster runs."""

from __future__ import annotations

import base64
import http.client
import json
import os
import shutil
import signal
import socket
import ssl
import subprocess
import time
from pathlib import Path
from typing import Any

#: Seconds the server has to become ready. The first start of a day reads 100 MB from disk.
PATIENCE = 120.0
ADMIN = "interop-admin-token"


def missing() -> str:
    """Why there can be no server here; nothing where there can."""
    for program, package in (("etcd", "etcd-server"), ("openssl", "openssl")):
        if not shutil.which(program):
            return f"{program} is not installed (Debian: {package})"
    return ""


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port


class Refusal(Exception):
    """The server said no."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(f"{status}: {text[:500]}")
        self.status = status


class Server:
    """An API server that can be stopped and started again.

    Args:
        program: kube-apiserver.
        place: a directory for its files.
    """

    def __init__(self, program: Path, place: Path) -> None:
        self._program = program
        self._place = place
        self.port = free_port()
        self._etcd_port, peer = free_port(), free_port()
        self._etcd = f"http://127.0.0.1:{self._etcd_port}"
        self.authority = place / "ca.crt"
        _certificates(place)
        (place / "tokens.csv").write_text(f"{ADMIN},admin,admin,system:masters\n")
        self._log = (place / "log").open("ab")
        self._store = subprocess.Popen(
            ["etcd", "--data-dir", str(place / "etcd"), "--listen-client-urls", self._etcd,
             "--advertise-client-urls", self._etcd, "--listen-peer-urls", f"http://127.0.0.1:{peer}",
             "--initial-advertise-peer-urls", f"http://127.0.0.1:{peer}",
             "--initial-cluster", f"default=http://127.0.0.1:{peer}", "--unsafe-no-fsync"],
            stdout=self._log, stderr=self._log,
        )  # fmt: skip
        self._process: subprocess.Popen[bytes] | None = None
        self.context = ssl.create_default_context(cafile=str(self.authority))
        self.start()

    def start(self) -> None:
        place = self._place
        self._process = subprocess.Popen(
            [str(self._program), f"--etcd-servers={self._etcd}", "--bind-address=127.0.0.1",
             f"--secure-port={self.port}", f"--tls-cert-file={place / 'server.crt'}",
             f"--tls-private-key-file={place / 'server.key'}",
             "--service-account-issuer=https://kubernetes.default.svc",
             f"--service-account-key-file={place / 'account.key'}",
             f"--service-account-signing-key-file={place / 'account.key'}",
             "--authorization-mode=RBAC", f"--token-auth-file={place / 'tokens.csv'}",
             "--service-cluster-ip-range=10.0.0.0/24", "--etcd-compaction-interval=0",
             # Pods are made by the tests, as a kubelet would run them; no controller makes accounts for them.
             "--disable-admission-plugins=ServiceAccount,TaintNodesByCondition", "--v=0"],
            stdout=self._log, stderr=self._log, env={**os.environ, "GOMAXPROCS": "2"},
        )  # fmt: skip
        until = time.monotonic() + PATIENCE
        while True:
            if self._process.poll() is not None:
                raise AssertionError(f"kube-apiserver ended; see {place / 'log'}")
            try:
                self.call("GET", "/readyz", plain=True)
                # The roles every cluster has are made after it is ready.
                self.call("GET", "/apis/rbac.authorization.k8s.io/v1/clusterroles/system:discovery")
                self.call("GET", "/api/v1/namespaces/default")
                return
            except (OSError, Refusal, http.client.HTTPException):
                assert time.monotonic() < until, "kube-apiserver is not ready in time"
                time.sleep(0.2)

    def kill(self) -> None:
        """End the server, and with it every watch; its store stays."""
        assert self._process is not None
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()

    def restart(self) -> None:
        self.kill()
        self.start()

    def close(self) -> None:
        self.kill()
        self._store.kill()
        self._store.wait()
        self._log.close()

    def call(self, method: str, path: str, body: Any = None, *, token: str = ADMIN, plain: bool = False) -> Any:
        """One request.

        Raises:
            Refusal: it was not granted.
        """
        kind = "application/strategic-merge-patch+json" if method == "PATCH" else "application/json"
        connection = http.client.HTTPSConnection("127.0.0.1", self.port, timeout=60, context=self.context)
        try:
            headers = {"Authorization": f"Bearer {token}", "Content-Type": kind}
            connection.request(method, path, None if body is None else json.dumps(body), headers)
            answer = connection.getresponse()
            text = answer.read().decode()
        finally:
            connection.close()
        if answer.status >= 300:
            raise Refusal(answer.status, text)
        return text if plain else json.loads(text)

    def raw(self, path: str, token: str = ADMIN) -> bytes:
        """An answer as it came."""
        connection = http.client.HTTPSConnection("127.0.0.1", self.port, timeout=60, context=self.context)
        connection.request("GET", path, headers={"Authorization": f"Bearer {token}"})
        found = connection.getresponse().read()
        connection.close()
        return found

    def compact(self) -> None:
        """Forget every version but the present ones, as a cluster does every five minutes."""
        key = base64.b64encode(b"/").decode()
        revision = int(self._etcd_call("kv/range", {"key": key})["header"]["revision"])
        self._etcd_call("kv/compaction", {"revision": str(revision), "physical": True})

    def _etcd_call(self, what: str, body: Any) -> Any:
        connection = http.client.HTTPConnection("127.0.0.1", self._etcd_port, timeout=30)
        connection.request("POST", f"/v3/{what}", json.dumps(body))
        answer = connection.getresponse()
        text = answer.read()
        connection.close()
        assert answer.status == 200, text
        return json.loads(text)

    # -- accounts ------------------------------------------------------------------------------------------------------

    def account(self, name: str, rules: list[dict[str, Any]]) -> str:
        """A service account with these rights in the whole cluster, and its token."""
        role = {"metadata": {"name": name}, "rules": rules}
        rbac = "/apis/rbac.authorization.k8s.io/v1"
        self.call("POST", "/api/v1/namespaces/default/serviceaccounts", {"metadata": {"name": name}})
        self.call("POST", f"{rbac}/clusterroles", role)
        binding = {
            "metadata": {"name": name},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": name},
            "subjects": [{"kind": "ServiceAccount", "name": name, "namespace": "default"}],
        }
        self.call("POST", f"{rbac}/clusterrolebindings", binding)
        asked = {"spec": {"expirationSeconds": 3600}}
        given = self.call("POST", f"/api/v1/namespaces/default/serviceaccounts/{name}/token", asked)
        return str(given["status"]["token"])

    def grant(self, name: str, rules: list[dict[str, Any]]) -> None:
        """Other rights for an account."""
        path = f"/apis/rbac.authorization.k8s.io/v1/clusterroles/{name}"
        self.call("PUT", path, {"metadata": {"name": name}, "rules": rules})

    def kubeconfig(self, path: Path, token: str) -> Path:
        """A kubeconfig for a token, which is kept in a file beside it."""
        path.with_suffix(".token").write_text(token)
        document = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "interop",
            "contexts": [{"name": "interop", "context": {"cluster": "interop", "user": "agent"}}],
            "clusters": [
                {
                    "name": "interop",
                    "cluster": {
                        "server": f"https://127.0.0.1:{self.port}",
                        "certificate-authority": str(self.authority),
                    },
                }
            ],
            "users": [{"name": "agent", "user": {"tokenFile": path.with_suffix(".token").name}}],
        }
        path.write_text(json.dumps(document))
        return path

    # -- objects -------------------------------------------------------------------------------------------------------

    def node(self, name: str, **conditions: str) -> Any:
        """A node with conditions, as a kubelet would report them."""
        made = self.call("POST", "/api/v1/nodes", {"metadata": {"name": name}})
        self.condition(name, **conditions)
        return made

    def condition(self, name: str, **conditions: str) -> None:
        """Conditions of a node that change now."""
        now = stamp()
        entries = [
            {"type": kind, "status": status, "lastHeartbeatTime": now, "lastTransitionTime": now,
             "reason": f"Kubelet{kind}", "message": f"{kind} is {status}"}
            for kind, status in conditions.items()
        ]  # fmt: skip
        self.call("PATCH", f"/api/v1/nodes/{name}/status", {"status": {"conditions": entries}})

    def pod(self, name: str, node: str, namespace: str = "default", **metadata: Any) -> Any:
        """A pod that runs on a node."""
        body = {
            "metadata": {"name": name, **metadata},
            "spec": {
                "nodeName": node,
                "containers": [{"name": "main", "image": "registry.example/train:2.1"}],
                "terminationGracePeriodSeconds": 0,
            },
        }
        return self.call("POST", f"/api/v1/namespaces/{namespace}/pods", body)

    def status(self, name: str, status: dict[str, Any], namespace: str = "default") -> Any:
        """What a kubelet reports of a pod."""
        return self.call("PATCH", f"/api/v1/namespaces/{namespace}/pods/{name}/status", {"status": status})

    def event(self, pod: Any, reason: str, message: str, host: str = "", **more: Any) -> Any:
        """An event about a pod, as a kubelet would record it."""
        now = stamp()
        meta = pod["metadata"]
        body = {
            "metadata": {"generateName": f"{meta['name']}.", "namespace": meta["namespace"]},
            "involvedObject": {
                "kind": "Pod", "namespace": meta["namespace"], "name": meta["name"], "uid": meta["uid"],
                "apiVersion": "v1",
            },
            "reason": reason, "message": message, "type": "Warning", "count": 1,
            "firstTimestamp": now, "lastTimestamp": now,
            "source": {"component": "kubelet", **({"host": host} if host else {})}, **more,
        }  # fmt: skip
        return self.call("POST", f"/api/v1/namespaces/{meta['namespace']}/events", body)

    @staticmethod
    def evicted(message: str) -> dict[str, Any]:
        """What a kubelet reports of a pod that it evicted."""
        return evicted(message)

    def namespace(self, name: str) -> None:
        self.call("POST", "/api/v1/namespaces", {"metadata": {"name": name}})


def stamp(seconds: float = 0.0) -> str:
    """The time so many seconds from now, as the API writes it."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() + seconds))


def evicted(message: str) -> dict[str, Any]:
    """The status of a pod that a kubelet evicted."""
    now = stamp()
    conditions = [
        {"type": "DisruptionTarget", "status": "True", "reason": "TerminationByKubelet", "message": message,
         "lastTransitionTime": now},
        {"type": "Ready", "status": "False", "reason": "PodFailed", "lastTransitionTime": now},
        {"type": "ContainersReady", "status": "False", "reason": "PodFailed", "lastTransitionTime": now},
    ]  # fmt: skip
    return {"phase": "Failed", "reason": "Evicted", "message": message, "conditions": conditions}


def _certificates(place: Path) -> None:
    """An authority, the server's certificate, and a key to sign tokens with."""

    def openssl(*arguments: str) -> None:
        subprocess.run(["openssl", *arguments], cwd=place, check=True, capture_output=True)

    key = ("-newkey", "rsa:2048", "-nodes")
    openssl("req", "-x509", *key, "-keyout", "ca.key", "-out", "ca.crt", "-days", "30", "-subj", "/CN=interop-ca",
            "-addext", "keyUsage=critical,keyCertSign,cRLSign")  # fmt: skip
    openssl("req", *key, "-keyout", "server.key", "-out", "server.csr", "-subj", "/CN=kubernetes")
    (place / "names").write_text("subjectAltName=IP:127.0.0.1,DNS:localhost,DNS:kubernetes\n")
    openssl("x509", "-req", "-in", "server.csr", "-CA", "ca.crt", "-CAkey", "ca.key", "-CAcreateserial",
            "-out", "server.crt", "-days", "30", "-extfile", "names")  # fmt: skip
    openssl("genrsa", "-out", "account.key", "2048")
