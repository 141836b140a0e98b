"""TLS options of clients and servers, as the Collector has them."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar, Literal

import msgspec

Version = Literal["1.2", "1.3"]


class ClientTls(msgspec.Struct, frozen=True, kw_only=True):
    """
    Args:
        insecure: do not use TLS at all.
        insecure_skip_verify: use it and believe anybody; for tests.
        ca_file: who signs the server's certificate; the system's authorities when not given.
        cert_file: our own certificate, for servers that ask for one.
        key_file: its key.
        server_name_override: the name the certificate must have.
        min_version: the oldest TLS accepted.
    """

    IGNORED: ClassVar[tuple[str, ...]] = (
        "reload_interval",
        "cipher_suites",
        "curve_preferences",
    )

    insecure: bool = False
    insecure_skip_verify: bool = False
    ca_file: str | None = None
    cert_file: str | None = None
    key_file: str | None = None
    server_name_override: str | None = None
    min_version: Version = "1.2"

    def check(self) -> Iterator[tuple[tuple[str | int, ...], str]]:
        yield from _pair(self.cert_file, self.key_file)

    def warn(self) -> Iterator[tuple[tuple[str | int, ...], str]]:
        return missing_files(self, "ca_file", "cert_file", "key_file")

    def context(self) -> ssl.SSLContext:
        """For a client of this kind."""
        context = ssl.create_default_context(cafile=self.ca_file)
        context.minimum_version = _version(self.min_version)
        if self.insecure_skip_verify:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        if self.cert_file is not None:
            context.load_cert_chain(self.cert_file, self.key_file)
        return context


class ServerTls(msgspec.Struct, frozen=True, kw_only=True):
    """
    Args:
        cert_file: the server's certificate.
        key_file: its key.
        client_ca_file: who signs the certificates of clients; with it a client must have one.
        min_version: the oldest TLS accepted.
    """

    cert_file: str
    key_file: str
    client_ca_file: str | None = None
    min_version: Version = "1.2"

    def warn(self) -> Iterator[tuple[tuple[str | int, ...], str]]:
        return missing_files(self, "cert_file", "key_file", "client_ca_file")

    def context(self) -> ssl.SSLContext:
        """For a server of this kind."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = _version(self.min_version)
        context.load_cert_chain(self.cert_file, self.key_file)
        if self.client_ca_file is not None:
            context.verify_mode = ssl.CERT_REQUIRED
            context.load_verify_locations(self.client_ca_file)
        return context


def _version(text: str) -> ssl.TLSVersion:
    return ssl.TLSVersion.TLSv1_3 if text == "1.3" else ssl.TLSVersion.TLSv1_2


def _pair(cert: str | None, key: str | None) -> Iterator[tuple[tuple[str | int, ...], str]]:
    if (cert is None) != (key is None):
        yield ("key_file",) if cert is None else ("cert_file",), "cert_file and key_file belong together"


def missing_files(options: msgspec.Struct, *names: str) -> Iterator[tuple[tuple[str | int, ...], str]]:
    """Files that are not there: no mistake where the configuration is checked elsewhere than it runs."""
    for name in names:
        path = getattr(options, name)
        if path is not None and not Path(path).is_file():
            yield (name,), f"there is no file {path} here"


def read_bytes(path: str | None) -> bytes | None:
    """The content of a certificate or key file; None where none is named."""
    return None if path is None else Path(path).read_bytes()
