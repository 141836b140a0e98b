"""Headers that keep browsers from doing what an attacker wants, and refusals of foreign hosts and origins."""

from __future__ import annotations

from typing import Final
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tracecore.server.problems import problem
from tracecore.server.settings import ServerSettings, is_loopback

#: Nothing from elsewhere, no inline script; styles and scripts are files of ours.
CSP: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; font-src 'self'; "
    "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
#: Pages written by `tracecore diagnose` have their style inside and no script at all.
REPORT_CSP: Final = "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'; sandbox"

_SAFE: Final = frozenset({"GET", "HEAD", "OPTIONS", "TRACE"})


class SecurityHeaders:
    """Adds security headers to every answer, and refuses requests that another site made a browser send.

    A server on loopback that asks nobody for a token is reachable by every web page the user visits. So the Host has to
    be this machine (else a name that an attacker points here would do), and what changes something has to come from
    our own pages or from no browser at all.
    """

    def __init__(self, app: ASGIApp, settings: ServerSettings) -> None:
        self._app = app
        self._settings = settings

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        if (said := self._refusal(scope, headers)) is not None:
            await problem(*said)(scope, receive, self._marked(send, scope))
            return
        await self._app(scope, receive, self._marked(send, scope))

    def _refusal(self, scope: Scope, headers: Headers) -> tuple[int, str] | None:
        host = headers.get("host", "")
        if not self._settings.auth and not is_loopback(_hostname(host)):
            return 421, "this server answers only to this machine's own name: use http://127.0.0.1 or localhost"
        if scope["method"] in _SAFE or "authorization" in headers:
            return None
        origin = headers.get("origin")
        site = headers.get("sec-fetch-site")
        if site is not None and site not in ("same-origin", "none"):
            return 403, "another site made this request"
        if origin is not None and not self._is_own(origin, host):
            return 403, "another site made this request"
        return None

    def _is_own(self, origin: str, host: str) -> bool:
        base = self._settings.base_url
        try:
            return urlsplit(origin).netloc == (urlsplit(base).netloc if base else host) and origin != "null"
        except ValueError:
            return False

    def _marked(self, send: Send, scope: Scope) -> Send:
        async def marked(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers.setdefault("Content-Security-Policy", CSP)
                headers.setdefault("X-Content-Type-Options", "nosniff")
                headers.setdefault("X-Frame-Options", "DENY")
                headers.setdefault("Referrer-Policy", "same-origin")
                headers.setdefault("Cross-Origin-Opener-Policy", "same-origin")
                headers.setdefault("Cross-Origin-Resource-Policy", "same-origin")
                headers.setdefault("Permissions-Policy", "camera=(), geolocation=(), microphone=()")
                if not scope["path"].startswith("/static/"):
                    headers.setdefault("Cache-Control", "no-store")
                if self._settings.secure:
                    headers.setdefault("Strict-Transport-Security", "max-age=31536000")
            await send(message)

        return marked


def _hostname(host: str) -> str:
    try:
        return urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return ""
