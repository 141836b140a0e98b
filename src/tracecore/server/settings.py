"""Settings of the server."""

from __future__ import annotations

import ipaddress
from pathlib import Path
from typing import Final

import msgspec

DEFAULT_LISTEN: Final = "127.0.0.1:8040"
MIB: Final = 1 << 20


class Oidc(msgspec.Struct, kw_only=True, frozen=True):
    """An OpenID Connect provider that people sign in with.

    Args:
        issuer: its address; `/.well-known/openid-configuration` below it says the rest.
        client_secret: from a file or the environment, never from the command line.
        operators: who may operate, by `email` or a value of `groups_claim`; everybody else who signs in may read.
        admins: who may also make tokens.
    """

    issuer: str
    client_id: str
    client_secret: str
    operators: frozenset[str] = frozenset()
    admins: frozenset[str] = frozenset()
    groups_claim: str = "groups"
    tenant_claim: str = ""


class ServerSettings(msgspec.Struct, kw_only=True, frozen=True):
    """The options of `tracecore serve`.

    Args:
        auth: whether callers have to say who they are.
        secret: signs sessions and form tokens; the same in every process of one server.
        base_url: how people reach the server, where a proxy stands in front.
        behind_proxy: a proxy in front ends TLS and sets X-Forwarded-*.
        uploads: folder of uploaded bundles that wait.
        max_upload: bytes of one upload.
        max_body: bytes of any other request.
        rate: requests per second of one caller, on average.
        burst: requests of one caller at once.
        upload_seconds, upload_memory: what a diagnosis may take.
        keep_days: resolved incidents older than this are removed; 0 keeps all.
        keep_bytes: the oldest resolved incidents are removed when the database is larger; 0 for no limit.
    """

    listen: str = DEFAULT_LISTEN
    auth: bool = False
    secret: bytes = b""
    base_url: str = ""
    behind_proxy: bool = False
    tls: bool = False
    oidc: Oidc | None = None
    uploads: Path | None = None
    max_upload: int = 2048 * MIB
    max_body: int = 20 * MIB
    rate: float = 50.0
    burst: int = 200
    upload_seconds: int = 600
    upload_memory: int = 2048 * MIB
    keep_days: int = 0
    keep_bytes: int = 0
    demo: bool = False

    @property
    def host(self) -> str:
        return self.listen.rpartition(":")[0].strip("[]") or "0.0.0.0"

    @property
    def port(self) -> int:
        return int(self.listen.rpartition(":")[2])

    @property
    def secure(self) -> bool:
        """Whether browsers reach the server by https."""
        return self.tls or self.behind_proxy or self.base_url.startswith("https://")


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches an address."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
