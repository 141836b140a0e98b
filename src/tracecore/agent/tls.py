"""TLS options of clients and servers, as the Collector has them."""

from __future__ import annotations

import os
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar, Literal

import msgspec

from tracecore.agent.options import Secret

Version = Literal["1.2", "1.3"]


class ClientTls(msgspec.Struct, frozen=True, kw_only=True):
    """
    Args:
        insecure: do not use TLS at all.
        insecure_skip_verify: use it and believe anybody; for tests.
        ca_file: who signs the server's certificate; the system's authorities when not given.
        ca_pem: the same, written here.
        include_system_ca_certs_pool: believe the system's authorities besides.
        cert_file: our own certificate, for servers that ask for one.
        cert_pem: the same, written here.
        key_file: its key.
        key_pem: the same, written here; never printed.
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
    ca_pem: str | None = None
    include_system_ca_certs_pool: bool = False
    cert_file: str | None = None
    cert_pem: str | None = None
    key_file: str | None = None
    key_pem: Secret | None = None
    server_name_override: str | None = None
    min_version: Version = "1.2"

    def check(self) -> Iterator[tuple[tuple[str | int, ...], str]]:
        for what in ("ca", "cert", "key"):
            if getattr(self, f"{what}_file") is not None and getattr(self, f"{what}_pem") is not None:
                yield (f"{what}_pem",), f"give {what}_file or {what}_pem, not both"
        yield from _pair(self.cert_file or self.cert_pem, self.key_file or self.key_pem)

    def warn(self) -> Iterator[tuple[tuple[str | int, ...], str]]:
        return missing_files(self, "ca_file", "cert_file", "key_file")

    def context(self) -> ssl.SSLContext:
        """For a client of this kind."""
        context = ssl.create_default_context(cafile=self.ca_file, cadata=self.ca_pem or None)
        if self.include_system_ca_certs_pool:
            context.load_default_certs()
        context.minimum_version = _version(self.min_version)
        if self.insecure_skip_verify:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        cert, key = self.certificate()
        if cert is not None and key is not None:
            _load(context, cert, key)
        return context

    def authorities(self) -> bytes | None:
        """Return who signs the server's certificate, as PEM; None for those that are believed anyway."""
        own = read_bytes(self.ca_file) if self.ca_pem is None else self.ca_pem.encode()
        if own is None or not self.include_system_ca_certs_pool:
            return own
        return own + b"\n" + (read_bytes(ssl.get_default_verify_paths().cafile) or b"")

    def certificate(self) -> tuple[bytes | None, bytes | None]:
        """Our own certificate and its key, as PEM."""
        return (
            read_bytes(self.cert_file) if self.cert_pem is None else self.cert_pem.encode(),
            read_bytes(self.key_file) if self.key_pem is None else self.key_pem.encode(),
        )


def _load(context: ssl.SSLContext, cert: bytes, key: bytes) -> None:
    """Python loads a certificate from a file only: this one has no name, and nobody else can open it."""
    descriptor = os.memfd_create("certificate")
    try:
        os.write(descriptor, cert + b"\n" + key)
        context.load_cert_chain(f"/proc/self/fd/{descriptor}")
    finally:
        os.close(descriptor)


class ServerTls(msgspec.Struct, frozen=True, kw_only=True):
    """
    Args:
        cert_file: the server's certificate.
        key_file: its key.
        client_ca_file: who signs the certificates of clients; with it a client must have one.
        min_version: the oldest TLS accepted.
    """

    IGNORED: ClassVar[tuple[str, ...]] = (
        "reload_interval",
        "client_ca_file_reload",
        "cipher_suites",
        "curve_preferences",
    )

    cert_file: str
    key_file: str
    client_ca_file: str | None = None
    min_version: Version = "1.2"

    @staticmethod
    def elsewhere(name: str) -> str:
        """Return what to do about a setting that is not here on purpose."""
        if name in ("cert_pem", "key_pem"):
            return f'"{name}" is not supported here; write it to a file and name that: {name[:-4]}_file'
        return '"tpm" is not supported here; leave it out' if name == "tpm" else ""

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
        yield (
            ("key_file",) if cert is None else ("cert_file",),
            "a certificate (cert_file, cert_pem) and its key (key_file, key_pem) belong together",
        )


def missing_files(options: msgspec.Struct, *names: str) -> Iterator[tuple[tuple[str | int, ...], str]]:
    """Files that are not there: no mistake where the configuration is checked elsewhere than it runs."""
    for name in names:
        path = getattr(options, name)
        if path is not None and not Path(path).is_file():
            yield (name,), f"there is no file {path} here"


def read_bytes(path: str | None) -> bytes | None:
    """The content of a certificate or key file; None where none is named."""
    return None if path is None else Path(path).read_bytes()
