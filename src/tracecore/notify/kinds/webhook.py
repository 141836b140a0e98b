"""A webhook of one's own: the message as JSON, signed, with a key by which a repeated delivery is recognised."""

from __future__ import annotations

import hashlib
import hmac
import time
from collections.abc import Mapping
from typing import Any, ClassVar

import msgspec

from tracecore.notify.http import post, url_problem
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
    MOST: ClassVar = 1_000

    def problem(self) -> str:
        problem = url_problem(self.url)
        return f"the webhook's url {problem}" if problem else ""

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
