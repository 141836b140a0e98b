"""Identities: of traces, spans and profiles, and new ones."""

from __future__ import annotations

import os
import uuid as uuids
from collections.abc import Callable
from typing import TypeVar

from tracecore.ottl.context import Context
from tracecore.ottl.errors import OttlRuntimeError
from tracecore.ottl.functions import clock
from tracecore.ottl.signature import ByteSliceLikeGetter, Getter, converter, prepared
from tracecore.ottl.values import ProfileID, SpanID, TraceID

_ID = TypeVar("_ID", TraceID, SpanID, ProfileID)


@converter("TraceID")
def trace_id(target: ByteSliceLikeGetter) -> Getter:
    """A trace's id, from 16 bytes or 32 hexadecimal digits."""
    return _identity("TraceID", target, TraceID, 16)


@converter("SpanID")
def span_id(target: ByteSliceLikeGetter) -> Getter:
    """A span's id, from 8 bytes or 16 hexadecimal digits."""
    return _identity("SpanID", target, SpanID, 8)


@converter("ProfileID")
def profile_id(target: ByteSliceLikeGetter) -> Getter:
    """A profile's id, from 16 bytes or 32 hexadecimal digits."""
    return _identity("ProfileID", target, ProfileID, 16)


def _identity(name: str, target: ByteSliceLikeGetter, make: Callable[[bytes], _ID], size: int) -> Getter:
    def read(data: bytes | None) -> _ID:
        given = data or b""
        if len(given) == size:
            return make(given)
        if len(given) != 2 * size:
            raise OttlRuntimeError(
                f"{name}: could not decode ID: invalid length: expected {size} or {2 * size} bytes, got {len(given)}"
            )
        digits = given.decode("ascii", "replace")
        if any(char not in "0123456789abcdefABCDEF" for char in digits):
            raise OttlRuntimeError(f"{name}: could not decode ID: invalid hex")
        return make(bytes.fromhex(digits))

    return prepared(target, read)


@converter("UUID", pure=False)
def uuid() -> Getter:
    """A new random UUID (version 4)."""

    def run(ctx: Context) -> str:
        return str(uuids.uuid4())

    return run


@converter("UUIDv7", pure=False)
def uuid_v7() -> Getter:
    """A new UUID that sorts by time (version 7)."""

    def run(ctx: Context) -> str:
        number = (clock.now() // 1_000_000 & (1 << 48) - 1) << 80 | int.from_bytes(os.urandom(10), "big")
        number = number & ~(0xF << 76) | 7 << 76
        number = number & ~(0x3 << 62) | 2 << 62
        return str(uuids.UUID(int=number))

    return run
