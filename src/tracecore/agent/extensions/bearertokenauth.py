"""The `bearertokenauth` extension: a token that clients send and servers ask for."""

from __future__ import annotations

import hmac
from collections.abc import Iterator, Mapping
from pathlib import Path

import msgspec

from tracecore.agent.component import Extension, Setting
from tracecore.agent.options import Secret

#: Of a file with a token so much is read.
MAX_TOKEN = 64 << 10


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """
    Args:
        scheme: the word before the token; empty for none.
        header: where it stands.
        token: never printed.
        tokens: several that a server believes; a client sends the first.
        filename: a file with a token on each line, read for each request, so that a renewed one is used.
    """

    scheme: str = "Bearer"
    header: str = "Authorization"
    token: Secret = ""
    tokens: list[Secret] = []
    filename: str = ""

    def check(self) -> Iterator[tuple[tuple[str | int, ...], str]]:
        if not (self.token or self.tokens or self.filename):
            yield (), "one of token, tokens and filename is needed"

    def warn(self) -> Iterator[tuple[tuple[str | int, ...], str]]:
        if self.filename and not Path(self.filename).is_file():
            yield ("filename",), f"there is no file {self.filename} here"


class BearerTokenAuth(Extension):
    """Knows tokens."""

    def __init__(self, options: Options, setting: Setting) -> None:
        self._options = options

    def _values(self) -> list[str]:
        options = self._options
        if options.filename:
            with open(options.filename, encoding="utf-8") as file:
                tokens = [line.strip() for line in file.read(MAX_TOKEN).splitlines() if line.strip()]
        else:
            tokens = list(options.tokens) or [options.token]
        return [f"{options.scheme} {token}".strip() for token in tokens]

    def headers(self) -> dict[str, str]:
        values = self._values()
        if not values:
            raise OSError(f"{self._options.filename}: no token in it")
        return {self._options.header: values[0]}

    def allows(self, headers: Mapping[str, str]) -> bool:
        given = headers.get(self._options.header.lower(), "").encode("utf-8", "replace")
        try:
            values = self._values()
        except OSError:
            return False
        good = False
        for value in values:  # all of them, and for as long: how long it takes tells nothing
            good |= hmac.compare_digest(given, value.encode())
        return good
