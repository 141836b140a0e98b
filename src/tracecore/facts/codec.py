"""Facts as bytes: MessagePack, a list of objects each tagged with its type, for other processes and golden files."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import Any, Union

import msgspec

from tracecore.facts.catalog import TYPES
from tracecore.facts.fact import Fact

#: More than any bundle gives after folding; a longer list is refused before it is decoded further.
MAX_BYTES = 1 << 30

_ENCODER = msgspec.msgpack.Encoder()


@functools.cache
def _decoder() -> msgspec.msgpack.Decoder[list[Any]]:
    return msgspec.msgpack.Decoder(list[Union[TYPES]])  # type: ignore[valid-type]  # noqa: UP007


def encode(facts: Iterable[Fact]) -> bytes:
    """The facts in their order; `decode` gives equal facts back."""
    return _ENCODER.encode(list(facts))


def decode(data: bytes) -> list[Fact]:
    """The facts that `encode` was given.

    Raises:
        msgspec.ValidationError, msgspec.DecodeError: the bytes are no facts.
    """
    if len(data) > MAX_BYTES:
        raise msgspec.ValidationError(f"{len(data)} bytes of facts, more than {MAX_BYTES}")
    return _decoder().decode(data)
