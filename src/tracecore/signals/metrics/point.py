"""One value of one series at one time."""

from __future__ import annotations

import msgspec

from tracecore.signals.record import Source


class Point(msgspec.Struct, frozen=True, kw_only=True):
    """A metric point.

    Args:
        name: as the source calls it (`DCGM_FI_DEV_GPU_TEMP`), or `hw.*` where the source has no names of its own.
        labels: what tells series of one name apart, the resource's identity (host) included.
        value: a number; a value that was not measured gives no point.
        time: nanoseconds since the epoch.
        source: where it was read.
        inferred: the time was not written down with the value.
    """

    name: str
    labels: dict[str, str]
    value: float
    time: int
    source: Source
    inferred: bool = False
