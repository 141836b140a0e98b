"""Streams made of bytes."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any, BinaryIO, cast

import pytest

from tracecore.signals.bundle.recognition import LAYER_OF
from tracecore.signals.stream import Stream


@pytest.fixture(scope="session")
def make() -> Callable[..., Stream]:
    """`make(data, format, path=…)`: a stream of these bytes."""

    def build(data: bytes | str, format: str, path: str = "file", layer: str = "", **options: Any) -> Stream:
        raw = data.encode() if isinstance(data, str) else data
        return Stream(
            path=path,
            format=format,
            layer=layer or LAYER_OF.get(format, "stdout"),
            open=lambda: cast(BinaryIO, io.BytesIO(raw)),
            size=len(raw),
            **options,
        )

    return build
