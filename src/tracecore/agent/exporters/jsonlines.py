"""Batches as OTLP in JSON, one document on a line."""

from __future__ import annotations

import msgspec

from tracecore.agent.batch import Batch
from tracecore.ottl.otlpjson import encode

_encoder = msgspec.json.Encoder()


def document(batch: Batch) -> bytes:
    """Return the OTLP JSON of a batch, without a line break."""
    return _encoder.encode(encode(batch.view()))
