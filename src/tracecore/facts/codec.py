"""Encode facts as MessagePack: a list of objects, each tagged with its type, for other processes and golden files."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import Any, Union

import msgspec

from tracecore.facts.catalog import TYPES
from tracecore.facts.fact import Fact

#: Longer data is refused without decoding. No bundle gives that much after folding.
MAX_BYTES = 1 << 30

_ENCODER = msgspec.msgpack.Encoder()


@functools.cache
def _decoder() -> msgspec.msgpack.Decoder[list[Any]]:
    return msgspec.msgpack.Decoder(list[Union[TYPES]])  # type: ignore[valid-type]  # noqa: UP007


def encode(facts: Iterable[Fact]) -> bytes:
    """Encode facts in their order; `decode` returns equal facts."""
    return _ENCODER.encode(list(facts))


def decode(data: bytes) -> list[Fact]:
    """Return the facts that `encode` encoded.

    Raises:
        msgspec.ValidationError, msgspec.DecodeError: the bytes are not encoded facts.
    """
    if len(data) > MAX_BYTES:
        raise msgspec.ValidationError(f"{len(data)} bytes of facts, more than {MAX_BYTES}")
    return _decoder().decode(data)
