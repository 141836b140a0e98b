"""Ask a server, or a store on this machine, the same questions."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote, urlencode

import click

from tracecore.cli.secrets import secret

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import httpx

#: Seconds for an answer.
TIMEOUT_S: Final = 30.0


def place_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Options that say where incidents are kept."""
    for option in (
        click.option("--token-file", metavar="FILE", help="Holds an API token; else TRACECORE_TOKEN."),
        click.option("--database", metavar="FILE|URL", help="A store to open, instead of asking a server."),
        click.option(
            "--server",
            metavar="URL",
            help="Such as http://127.0.0.1:8040; TRACECORE_SERVER. Without it the store of this machine is opened.",
        ),
    ):
        function = option(function)
    return function


class IncidentSource:
    """Where incidents are asked for: the API of a server, or the API over a store that is opened here."""

    def __init__(self, server: str | None, database: str | None, token_file: str | None) -> None:
        if server and database:
            raise click.UsageError("--server or --database, not both")
        server = server or (None if database else os.environ.get("TRACECORE_SERVER"))
        try:
            import httpx
        except ModuleNotFoundError:
            raise click.ClickException("httpx is not installed: pip install 'tracecore-diagnosis[server]'") from None
        self._store: Any = None
        if server:
            if not server.startswith(("http://", "https://")):
                raise click.UsageError(f"{server!r} is not an address: it begins with http:// or https://")
            token = secret(token_file, "TRACECORE_TOKEN")
            headers = {"Authorization": f"Bearer {token}"} if token else {}
            self._base = server.rstrip("/")
            self._client: httpx.Client | None = httpx.Client(headers=headers, timeout=TIMEOUT_S)
        else:
            from tracecore.cli.tokens import open_store

            self._base, self._client = "http://127.0.0.1", None
            self._store = open_store(database)

    def get(self, path: str, **parameters: Any) -> Any:
        """The answer to a question."""
        asked = {name: value for name, value in parameters.items() if value not in (None, "")}
        return self._ask("GET", f"{path}?{urlencode(asked)}" if asked else path, None)

    def post(self, path: str, body: Mapping[str, Any]) -> Any:
        """The answer to something that is done."""
        return self._ask("POST", path, body)

    def _ask(self, method: str, path: str, body: Mapping[str, Any] | None) -> Any:
        import httpx

        url = f"{self._base}/api/v1{path}"
        try:
            answer = self._client.request(method, url, json=body) if self._client else self._local(method, url, body)
        except httpx.TimeoutException:
            raise click.ClickException(f"{self._base} did not answer within {TIMEOUT_S:g} s") from None
        except httpx.HTTPError as error:
            raise click.ClickException(f"{self._base} does not answer: {error or type(error).__name__}") from None
        try:
            document = answer.json()
        except ValueError:
            raise click.ClickException(
                f"{self._base} is not a tracecore server (status {answer.status_code})"
            ) from None
        if answer.is_success:
            return document
        said = document.get("detail") or document.get("title") if isinstance(document, dict) else ""
        raise click.ClickException(str(said) or f"status {answer.status_code}")

    def _local(self, method: str, url: str, body: Mapping[str, Any] | None) -> httpx.Response:
        """Ask the application in this process: a store gives the same answers as a server over it."""
        import asyncio

        import httpx

        from tracecore.server.app import make_app
        from tracecore.server.settings import ServerSettings

        app = make_app(self._store, ServerSettings(rate=0))

        async def ask() -> httpx.Response:
            async with httpx.AsyncClient(transport=httpx.ASGITransport(app=app)) as client:
                return await client.request(method, url, json=body)

        return asyncio.run(ask())

    def close(self) -> None:
        if self._client is not None:
            self._client.close()
        if self._store is not None:
            self._store.close()


def segment(name: str) -> str:
    """A name as a part of a path."""
    return quote(name, safe="")
