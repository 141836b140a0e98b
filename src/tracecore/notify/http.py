"""Post JSON to a receiver, and say whether trying again can help."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from functools import cache
from typing import Any, Final
from urllib.parse import urlsplit

import httpx

from tracecore.notify.kinds.kind import MessageRefused, TryAgain

TIMEOUT_S: Final = 10.0
#: Bytes of an answer that are read.
MAX_ANSWER: Final = 1 << 20
#: Seconds that a receiver can ask to wait.
MAX_WAIT_S: Final = 3600.0


def post(url: str, body: bytes, headers: Mapping[str, str] | None = None, timeout: float = TIMEOUT_S) -> bytes:
    """Post JSON and return the answer.

    Raises:
        TryAgain: no answer, or 408, 429 or 5xx. An answer that is not complete in time ends there.
        MessageRefused: any other answer that is not a success.
    """
    host = urlsplit(url).hostname or "?"
    given = {"Content-Type": "application/json; charset=utf-8", "User-Agent": "tracecore", **(headers or {})}
    until = time.monotonic() + timeout
    try:
        with _client().stream("POST", url, content=body, headers=given, timeout=timeout) as answer:
            found = b""
            for piece in answer.iter_bytes():
                found += piece[: MAX_ANSWER - len(found)]
                if len(found) >= MAX_ANSWER or time.monotonic() > until:
                    break
            status, wait = answer.status_code, answer.headers.get("retry-after", "")
    except httpx.TimeoutException:
        raise TryAgain(f"{host} did not answer within {timeout:g} s") from None
    except httpx.ConnectError as error:
        # The text of a certificate's error names no URL.
        why = f": {error}" if "CERTIFICATE" in str(error) else ""
        raise TryAgain(f"{host} cannot be reached{why}") from None
    except (httpx.HTTPError, httpx.InvalidURL, OSError) as error:
        # The error's own text can contain the URL, which can contain a secret.
        raise TryAgain(f"{host}: {type(error).__name__}") from None
    if status in (408, 429) or status >= 500:
        raise TryAgain(f"{host} answered {status}", _seconds(wait))
    if not 200 <= status < 300:
        raise MessageRefused(f"{host} answered {status} {_start(found)}".strip())
    return found


def url_problem(url: str) -> str:
    """Say what is wrong with an address; empty where nothing is."""
    try:
        found = httpx.URL(url)
        parts_of = urlsplit(url)
        host = parts_of.hostname if parts_of.port != 0 else ""
    except (httpx.InvalidURL, ValueError) as error:
        return f"is not a URL: {error}"
    if found.scheme not in ("http", "https") or not host:
        return "is not a URL: expected http:// or https:// and a host"
    # httpx would escape it, and post elsewhere.
    return "is not a URL: it has a space in it" if any(letter.isspace() for letter in url) else ""


@cache
def _client() -> httpx.Client:
    """One client for all threads: to make one costs more than a request, and connections are used again."""
    return httpx.Client(follow_redirects=False, limits=httpx.Limits(max_connections=100, keepalive_expiry=30))


def _seconds(text: str) -> float:
    """Return the seconds in `Retry-After`."""
    try:
        wait = float(text)
    except ValueError:
        try:
            wait = (parsedate_to_datetime(text) - datetime.now(UTC)).total_seconds()
        except (ValueError, TypeError):
            return 0.0
    return min(max(wait, 0.0), MAX_WAIT_S) if not math.isnan(wait) else 0.0


def _start(answer: bytes) -> str:
    text = answer[:200].decode("utf-8", "replace")
    return "".join(letter if letter.isprintable() else " " for letter in text).strip()


def parts(value: Any) -> dict[str, Any]:
    """An answer's object; empty where it is none."""
    return value if isinstance(value, dict) else {}
