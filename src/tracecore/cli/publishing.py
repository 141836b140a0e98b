"""Publish a diagnosis to a server (`tracecore serve`)."""

from __future__ import annotations

import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

import click
import msgspec

from tracecore.cli.secrets import secret

#: Seconds for an answer.
TIMEOUT_S: Final = 30
publish_option: Final = click.option(
    "--publish", metavar="URL", help="Also store the incidents on this server; TRACECORE_TOKEN holds its API token."
)


class PublishError(Exception):
    """The server did not take it; the message says why."""


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """A token goes to the server that was named, and to no other."""

    def redirect_request(self, *_: Any) -> None:
        return None


class PublishAnswer(NamedTuple):
    """The answer of a server.

    Args:
        new: incidents that said something new.
        not_sent: incidents that nobody is notified of, since nothing happened in them for an hour.
    """

    new: int
    not_sent: int

    def __str__(self) -> str:
        old = f"; nobody is notified of {self.not_sent}: older than an hour" if self.not_sent else ""
        return f"{self.new} new{old}"


def publish(url: str, document: Mapping[str, Any]) -> PublishAnswer:
    """Store the incidents of a diagnosis.

    Raises:
        PublishError: the server did not take them.
    """
    if not url.startswith(("http://", "https://")):
        raise PublishError(f"{url!r} is not an address: it begins with http:// or https://")
    headers = {"Content-Type": "application/json"}
    if token := secret(None, "TRACECORE_TOKEN"):
        headers["Authorization"] = f"Bearer {token}"
    request = urllib.request.Request(
        f"{url.rstrip('/')}/api/v1/diagnoses/published", msgspec.json.encode(document), headers
    )
    try:
        with urllib.request.build_opener(_NoRedirect).open(request, timeout=TIMEOUT_S) as answer:
            found = msgspec.json.decode(answer.read(1 << 20))
        return PublishAnswer(int(found["new"]), len(found.get("not_sent") or ()))
    except urllib.error.HTTPError as error:
        said = error.read(1 << 16)
        error.close()
        try:
            reason = msgspec.json.decode(said)["detail"]
        except (msgspec.DecodeError, KeyError, TypeError):
            reason = error.reason
        raise PublishError(f"{url} refused it: {error.code} {reason}") from None
    except (OSError, ValueError, msgspec.DecodeError, KeyError, TypeError) as error:
        reason = getattr(error, "reason", None) or error
        raise PublishError(f"{url} does not answer: {reason}") from None


def publishing(
    diagnose: Callable[[Path], Mapping[str, Any] | None], url: str | None, say: Callable[[str], None]
) -> Callable[[Path], Mapping[str, Any] | None]:
    """The same diagnosis, which is also published; that it was not is said and stops nothing."""
    if url is None:
        return diagnose

    def both(folder: Path) -> Mapping[str, Any] | None:
        document = diagnose(folder)
        if document is not None and document.get("incidents"):
            try:
                publish(url, document)
            except PublishError as error:
                say(f"the diagnosis is not published: {error}")
        return document

    return both
