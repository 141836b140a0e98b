"""Samples in short, and what all bridges make of them."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable
from typing import Any

import pytest

from tracecore.signals.metrics.bridges import all_bridges
from tracecore.signals.metrics.point import Sample, Series
from tracecore.signals.record import LogSignal, Source
from tracecore.signals.stamps import SECOND

START = 1_794_700_800 * SECOND
BUSES = ("0000:18:00.0", "0000:2a:00.0", "0000:3a:00.0", "0000:5d:00.0", "0000:9a:00.0", "0000:ab:00.0")


def make(name: str, value: float, second: float, gpu: int | None = 0, **attributes: Any) -> Sample:
    """A sample of a series; keywords are attributes, `__` for a dot."""
    named: dict[str, Any] = {"host.name": "node-7"}
    if gpu is not None:
        named |= {"gpu.id": BUSES[gpu % 6], "gpu.uuid": f"GPU-{gpu}", "hw.gpu.index": gpu}
    named |= {key.replace("__", "."): given for key, given in attributes.items() if key not in ("origin", "declared")}
    named = {key: given for key, given in named.items() if given is not None}
    series = Series.of(name, attributes.get("origin", name), named, attributes.get("declared", ""))
    time = START + int(second * SECOND)
    place = zlib.crc32(repr((series.key, second)).encode())
    return Sample(series, value, time, Source("scrape.prom", place, 1, 10))


@pytest.fixture
def sample() -> Callable[..., Sample]:
    return make


@pytest.fixture
def bridged() -> Callable[..., list[dict[str, Any]]]:
    """The attributes of the records that these samples give, identity and time (seconds) among them."""

    def run(samples: Iterable[Sample], event: str = "") -> list[dict[str, Any]]:
        bridges = all_bridges()
        for one in samples:
            bridges.observe(one)
        return [_flat(made) for made in bridges.finish() if not event or made["log"]["event_name"] == event]

    return run


def _flat(made: LogSignal) -> dict[str, Any]:
    at = (made["log"]["time_unix_nano"] - START) / SECOND
    return {**made["resource"]["attributes"], **made["log"]["attributes"], "at": at}
