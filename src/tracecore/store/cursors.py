"""Cursors: where the next page of a list begins, as an opaque word."""

from __future__ import annotations

import base64
from typing import Any

import msgspec


class BadCursor(ValueError):
    """The cursor is not one of ours."""


def encode(*keys: str | int) -> str:
    return base64.urlsafe_b64encode(msgspec.json.encode(keys)).decode().rstrip("=")


def decode(cursor: str, *kinds: type) -> tuple[Any, ...]:
    """The keys in a cursor.

    Args:
        kinds: the type of each key.

    Raises:
        BadCursor: it holds something else.
    """
    try:
        raw = base64.urlsafe_b64decode(cursor.encode("ascii") + b"=" * (-len(cursor) % 4))
        keys = msgspec.json.decode(raw)
    except (ValueError, msgspec.DecodeError) as error:
        raise BadCursor("the cursor is not valid: begin again without one") from error
    fits = isinstance(keys, list) and len(keys) == len(kinds)
    if not fits or not all(type(key) is kind for key, kind in zip(keys, kinds, strict=True)):
        raise BadCursor("the cursor is not valid: begin again without one")
    if any(isinstance(key, int) and abs(key) >= 1 << 63 for key in keys):
        raise BadCursor("the cursor is not valid: begin again without one")
    if any(isinstance(key, str) and "\x00" in key for key in keys):
        raise BadCursor("the cursor is not valid: begin again without one")
    return tuple(keys)
