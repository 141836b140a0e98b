"""A webhook of one's own: the message as JSON, signed, with a key by which a repeated delivery is recognised."""

from __future__ import annotations

import hashlib
import hmac
import time
from collections.abc import Mapping
from typing import Any, ClassVar
from urllib.parse import urlsplit

import msgspec

from tracecore.notify.http import post
from tracecore.notify.kinds.kind import Kind
from tracecore.notify.message import NotificationMessage


class Webhook(Kind, kw_only=True):
    """
    Args:
        url: where to post.
        secret: signs `timestamp.body` with HMAC-SHA256; sent as `X-Tracecore-Signature: sha256=…`.
    """

    url: str
    secret: str = ""

    SECRETS: ClassVar = ("url", "secret")
    EDITS: ClassVar = True

    def problem(self) -> str:
        return "" if urlsplit(self.url).scheme in ("http", "https") else "the webhook's url is not a URL"

    def send(self, message: NotificationMessage, before: Mapping[str, Any], uncertain: bool) -> dict[str, Any]:
        body = msgspec.json.encode(message.document())
        headers = {"Idempotency-Key": message.delivery}
        if self.secret:
            stamp = str(int(time.time()))
            headers |= {"X-Tracecore-Timestamp": stamp, "X-Tracecore-Signature": signature(self.secret, stamp, body)}
        post(self.url, body, headers)
        return {}


def signature(secret: str, stamp: str, body: bytes) -> str:
    """Sign a body; receivers compute the same and compare."""
    digest = hmac.new(secret.encode(), f"{stamp}.".encode() + body, hashlib.sha256).hexdigest()
    return f"sha256={digest}"
