"""From a bundle to facts: read, stamp, type. The first half of an offline diagnosis."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from tracecore import recipes
from tracecore.facts.projection import project
from tracecore.ottl.processor import Processor
from tracecore.signals.bundle.reading import read
from tracecore.signals.logs.selector import SelectAll

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tracecore.facts.fact import Fact
    from tracecore.signals.bundle.discovery import Bundle
    from tracecore.signals.stream import Clock, Counters, Stream


@cache
def processors(layer: str) -> tuple[Processor, ...]:
    """The compiled recipes of a layer."""
    return tuple(Processor(processor.config()) for processor in recipes.load(layer))


def facts_of(stream: Stream, clock: Clock, counters: Counters) -> Iterator[Fact]:
    """Every fact that one stream states."""
    for signal in read(stream, SelectAll(), clock, counters):
        for processor in processors(stream.layer):
            processor.process_signals([signal])
        yield from project(signal)


def gather(bundle: Bundle, counters: Counters) -> Iterator[Fact]:
    """Every fact of a bundle, stream by stream."""
    for stream in bundle.streams:
        yield from facts_of(stream, bundle.clock, counters)
