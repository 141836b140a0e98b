"""Credentials as kubectl keeps them: `$KUBECONFIG`, else `~/.kube/config`."""

from __future__ import annotations

import base64
import binascii
import contextlib
import os
import ssl
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import msgspec

from tracecore.signals import stamps
from tracecore.signals.kubernetes.api import ApiError, Credentials, Way, basic, unverified

MAX_FILE: Final = 8 << 20
#: Seconds a program that gives credentials may take.
PROGRAM: Final = 60.0
#: Credentials are asked for anew so many seconds before they expire.
EARLY: Final = 30.0

Entry = dict[str, Any]


def way(context: str = "") -> Way:
    """The way that a context names; the current one when empty.

    Raises:
        ApiError: there is none, or it cannot be gone.
    """
    found = _merged(_paths())
    name = context or found["current-context"]
    if not name:
        raise ApiError("the kubeconfig has no current context")
    chosen = _named(found["contexts"], name, "context")
    cluster = _named(found["clusters"], str(chosen.get("cluster") or ""), "cluster")
    user = _named(found["users"], str(chosen["user"]), "user") if chosen.get("user") else {}
    server = urlsplit(str(cluster.get("server") or ""))
    if server.scheme not in ("http", "https") or not server.hostname:
        raise ApiError(f'the kubeconfig\'s cluster of context "{name}" has no server address')
    if cluster.get("proxy-url"):
        raise ApiError("the kubeconfig asks for a proxy-url, which is not supported")
    secure = server.scheme == "https"
    return Way(
        server.hostname,
        server.port or (443 if secure else 80),
        _credentials(cluster, user, secure),
        prefix=server.path,
        server_name=str(cluster.get("tls-server-name") or ""),
    )


def _paths() -> list[Path]:
    named = os.environ.get("KUBECONFIG", "")
    return [Path(part) for part in named.split(os.pathsep) if part] or [Path.home() / ".kube" / "config"]


def _merged(paths: list[Path]) -> dict[str, Any]:
    """All files together: of two entries with one name the first counts."""
    merged: dict[str, Any] = {"current-context": "", "contexts": {}, "clusters": {}, "users": {}}
    missing = []
    for path in paths:
        try:
            with path.open("rb") as file:
                raw = file.read(MAX_FILE + 1)
        except OSError as error:
            missing.append(f"{path}: {error.strerror}")
            continue
        document = _document(raw, path)
        merged["current-context"] = merged["current-context"] or str(document.get("current-context") or "")
        for section, key in (("contexts", "context"), ("clusters", "cluster"), ("users", "user")):
            for entry in document.get(section) or ():
                if isinstance(entry, dict) and isinstance(entry.get(key), dict):
                    # Paths are as seen from the file they stand in.
                    merged[section].setdefault(str(entry.get("name")), {"": path.parent, **entry[key]})
    if len(missing) == len(paths):
        raise ApiError("no kubeconfig: " + "; ".join(missing))
    return merged


def _document(raw: bytes, path: Path) -> Entry:
    if len(raw) > MAX_FILE:
        raise ApiError(f"{path} is too large for a kubeconfig")
    from ruamel.yaml import YAML
    from ruamel.yaml.error import YAMLError

    try:
        document = YAML(typ="safe", pure=True).load(raw.decode("utf-8"))
    except (YAMLError, ValueError, RecursionError) as error:
        raise ApiError(f"{path} is no kubeconfig: {str(error).splitlines()[0]}") from None
    if not isinstance(document, dict):
        raise ApiError(f"{path} is no kubeconfig")
    return document


def _named(entries: Mapping[str, Entry], name: str, what: str) -> Entry:
    if name not in entries:
        raise ApiError(f'the kubeconfig has no {what} "{name}"')
    return entries[name]


def _credentials(cluster: Entry, user: Entry, secure: bool) -> Credentials:
    program = _Program(user["exec"], user[""], cluster) if isinstance(user.get("exec"), dict) else None

    def headers() -> dict[str, str]:
        if program is not None and (token := program.get().get("token")):
            return {"Authorization": f"Bearer {token}"}
        if user.get("tokenFile"):
            return {"Authorization": f"Bearer {_read(user, 'tokenFile').decode().strip()}"}
        if user.get("token"):
            return {"Authorization": f"Bearer {user['token']}"}
        if user.get("username"):
            return {"Authorization": basic(str(user["username"]), str(user.get("password") or ""))}
        return {}

    def context() -> ssl.SSLContext:
        try:
            return _context(cluster, user, program)
        except (ssl.SSLError, ValueError) as error:
            raise ApiError(f"the kubeconfig's certificates: {error}") from None

    return Credentials(headers, context if secure else None)


def _context(cluster: Entry, user: Entry, program: _Program | None) -> ssl.SSLContext:
    if cluster.get("insecure-skip-tls-verify"):
        made = unverified()
    elif (authority := _bytes(cluster, "certificate-authority")) is not None:
        made = ssl.create_default_context(cadata=authority.decode("ascii", "replace"))
    else:
        made = ssl.create_default_context()
    certificate, key = _bytes(user, "client-certificate"), _bytes(user, "client-key")
    if program is not None and (given := program.get()).get("clientCertificateData"):
        certificate, key = str(given["clientCertificateData"]).encode(), str(given.get("clientKeyData") or "").encode()
    if certificate is not None and key is not None:
        with _file(certificate + b"\n" + key) as path:
            made.load_cert_chain(path)
    return made


def _bytes(entry: Entry, name: str) -> bytes | None:
    """A certificate or key, given in place or as a file."""
    if data := entry.get(f"{name}-data"):
        try:
            return base64.b64decode(str(data), validate=True)
        except binascii.Error:
            raise ApiError(f"the kubeconfig's {name}-data is no base64") from None
    return _read(entry, name) if entry.get(name) else None


def _read(entry: Entry, name: str) -> bytes:
    path = Path(entry[""]) / str(entry[name])
    try:
        return path.read_bytes()
    except OSError as error:
        raise ApiError(f"the kubeconfig's {name}: {path}: {error.strerror}") from None


@contextlib.contextmanager
def _file(content: bytes) -> Iterator[str]:
    """A file that only we can read, for a library that takes nothing else."""
    descriptor, path = tempfile.mkstemp()
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
        yield path
    finally:
        os.unlink(path)


class _Program:
    """A program that gives credentials (`exec`), asked again when they expire."""

    def __init__(self, entry: Entry, base: Path, cluster: Entry, now: Callable[[], float] = time.time) -> None:
        self._entry = entry
        self._base = base
        self._now = now
        self._lock = threading.Lock()
        self._given: Entry = {}
        self._until = 0.0
        self._server = str(cluster.get("server") or "")

    def get(self) -> Entry:
        with self._lock:
            if not self._given or self._now() >= self._until:
                self._given = self._ask()
                expires = stamps.parse(str(self._given.get("expirationTimestamp") or ""))
                self._until = expires / 1e9 - EARLY if expires else float("inf")
            return self._given

    def _ask(self) -> Entry:
        command = str(self._entry.get("command") or "")
        if "/" in command:
            command = str(self._base / command)
        arguments = [str(argument) for argument in self._entry.get("args") or ()]
        spec = {
            "apiVersion": str(self._entry.get("apiVersion") or "client.authentication.k8s.io/v1"),
            "kind": "ExecCredential",
            "spec": {"interactive": False, "cluster": {"server": self._server}},
        }
        environment = {**os.environ, "KUBERNETES_EXEC_INFO": msgspec.json.encode(spec).decode()}
        for pair in self._entry.get("env") or ():
            if isinstance(pair, dict):
                environment[str(pair.get("name"))] = str(pair.get("value") or "")
        try:
            done = subprocess.run(
                [command, *arguments], capture_output=True, timeout=PROGRAM, env=environment, check=False,
                stdin=subprocess.DEVNULL,
            )  # fmt: skip
        except (OSError, subprocess.TimeoutExpired) as error:
            raise ApiError(f"the kubeconfig's program for credentials: {error}") from None
        try:
            document = msgspec.json.decode(done.stdout)
        except (msgspec.DecodeError, RecursionError):
            document = None
        status = document.get("status") if isinstance(document, dict) else None
        if done.returncode or not isinstance(status, dict):
            said = done.stderr[:300].decode("utf-8", "replace").strip()
            raise ApiError(f"the kubeconfig's program for credentials ended with status {done.returncode}: {said}")
        return status
