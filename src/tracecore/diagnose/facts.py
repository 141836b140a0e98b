"""Turn the logs of a bundle into facts: read, stamp, type, fold. The first half of an offline diagnosis."""

from __future__ import annotations

import os
import signal
from functools import cache
from typing import TYPE_CHECKING, Final, TypeAlias

import msgspec

from tracecore.diagnose.thinning import Thinning
from tracecore.facts import codec
from tracecore.facts.fold import fold
from tracecore.facts.projection import TRIGGERS, project
from tracecore.recipes.plan import plan
from tracecore.signals.bundle import archive
from tracecore.signals.bundle.addresses import name_node
from tracecore.signals.bundle.process_ranks import name_rank
from tracecore.signals.bundle.reading import read
from tracecore.signals.logs.selector import SelectAll, reports
from tracecore.signals.stream import Counters

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from tracecore.facts.fact import Fact
    from tracecore.ottl.processor import Processor
    from tracecore.signals.bundle.discovery import Bundle
    from tracecore.signals.logs.selector import Selector
    from tracecore.signals.stream import Clock, Stream

    Tick: TypeAlias = Callable[[int], None]

#: Every line of a bundle of up to this many bytes is evaluated. In larger ones progress lines are sampled.
SMALL: Final = 2 << 20
#: Reading a file of up to this many bytes is faster than setting up a sampler for it.
TINY: Final = 1 << 10
#: The assumed size of a compressed stream.
_LARGE: Final = 1 << 19
#: The streams of one task of a worker process: bytes and files.
_CHUNK_BYTES: Final = 16 << 20
_CHUNK_FILES: Final = 64
#: Facts of one stream are folded when there are this many, so that a storm needs little memory.
_MAX_UNFOLDED: Final = 16_384


class StreamFacts(msgspec.Struct):
    """Facts and counters of some streams.

    Args:
        facts: folded, stream by stream.
        skipped: (path, reason) of streams that could not be read to the end.
    """

    facts: list[Fact] = []
    counters: Counters = msgspec.field(default_factory=Counters)
    skipped: list[tuple[str, str]] = []


@cache
def processors(layer: str) -> tuple[Processor, ...]:
    """Return the compiled recipes of a layer, for signals that are not log lines."""
    from tracecore import recipes
    from tracecore.ottl.processor import Processor

    return tuple(Processor(processor.config()) for processor in recipes.load(layer))


def selector_of(stream: Stream, *, all_lines: bool = False) -> Selector:
    """Return the selector of a stream's lines.

    Args:
        all_lines: select every line. For a small bundle this is faster than planning a scan.
    """
    if all_lines:
        return SelectAll()
    planned = plan(stream.layer)
    return planned.every(stream) if stream.size is not None and stream.size <= TINY else planned.selector(stream)


def facts_of(
    stream: Stream, clock: Clock, counters: Counters, *, all_lines: bool = False, redact: bool = True
) -> Iterator[Fact]:
    """Yield the facts of one stream. See `selector_of` and `project` for the arguments.

    Raises:
        archive.ERRORS: the stream is damaged. The facts before the damage were yielded.
    """
    selector = selector_of(stream, all_lines=all_lines)
    stamp = plan(stream.layer).run
    refused_before = _refused(selector)
    for record in read(stream, selector, clock, counters):
        stamp(record)
        attributes = record["log"]["attributes"]
        if not TRIGGERS.isdisjoint(attributes):
            if stream.processes or stream.machine_ranks:
                name_rank(attributes, stream)
            if stream.nodes:
                name_node(attributes, stream)
            yield from project(record, redact=redact)
    # The known shapes are shared by streams, and so is this count.
    counters.kinds_refused += _refused(selector) - refused_before


def _refused(selector: Selector) -> int:
    """Return how many shapes of progress lines the selector refused because it had misread them."""
    return selector.refused if reports(selector) else 0


def gather(bundle: Bundle, *, jobs: int = 1, tick: Tick | None = None) -> StreamFacts:
    """Return the facts of every log, kernel, Kubernetes and scheduler stream of a bundle.

    The result is the same for any number of jobs. Damaged streams are listed in `skipped`.

    Args:
        jobs: processes to read with.
        tick: called from time to time with the number of bytes read so far.
    """
    small = is_small(bundle.streams)
    chunks = list(in_chunks(bundle.streams))
    if jobs > 1 and len(chunks) > 1 and not small and hasattr(os, "fork"):
        parts = _in_processes(chunks, bundle.clock, jobs, tick, bundle.redact)
    else:
        parts, base = [], 0
        for chunk in chunks:
            chunk_tick = None if tick is None else _after(tick, base)
            parts.append(read_chunk(chunk, bundle.clock, chunk_tick, all_lines=small, redact=bundle.redact))
            base += parts[-1].counters.bytes_read
    whole = StreamFacts()
    for part in parts:
        whole.facts += part.facts
        whole.counters.add(part.counters)
        whole.skipped += part.skipped
    return whole


def is_small(streams: Sequence[Stream]) -> bool:
    """Whether a bundle with these streams is so small that every line is evaluated."""
    return sum(_LARGE if stream.size is None else stream.size for stream in streams) <= SMALL


def in_chunks(streams: Sequence[Stream]) -> Iterator[list[Stream]]:
    """Divide streams into tasks for processes, in order."""
    chunk: list[Stream] = []
    size = 0
    for stream in streams:
        chunk.append(stream)
        size += stream.size or _CHUNK_BYTES // _CHUNK_FILES
        if size >= _CHUNK_BYTES or len(chunk) >= _CHUNK_FILES:
            yield chunk
            chunk, size = [], 0
    if chunk:
        yield chunk


def read_chunk(
    chunk: Sequence[Stream], clock: Clock, tick: Tick | None = None, *, all_lines: bool = False, redact: bool = True
) -> StreamFacts:
    """Return the facts of some streams. See `facts_of` and `gather` for the arguments."""
    part = StreamFacts(counters=_TickingCounters(tick=tick))
    for stream in chunk:
        unfolded: list[Fact] = []
        progress = Thinning()
        limit = _MAX_UNFOLDED
        try:
            for fact in facts_of(stream, clock, part.counters, all_lines=all_lines, redact=redact):
                if progress.take(fact):
                    continue
                unfolded.append(fact)
                if len(unfolded) >= limit:
                    unfolded = fold(unfolded)
                    limit = max(_MAX_UNFOLDED, 2 * len(unfolded))
        except archive.ERRORS as error:
            part.skipped.append((stream.path, f"read in part: {archive.reason(error)}"))
        part.facts += fold((*unfolded, *progress.kept()))
    return part


class _TickingCounters(Counters):
    """Counters that report the progress of reading."""

    tick: Tick | None = None

    def read(self, size: int) -> None:
        self.bytes_read += size
        if self.tick is not None:
            self.tick(self.bytes_read)


def _after(tick: Tick, base: int) -> Tick:
    return lambda done: tick(base + done)


# -- several processes -------------------------------------------------------------------------------------------------

#: The chunks that forked workers read. Streams cannot be pickled, so workers get only the number of a chunk.
_WORK: tuple[list[list[Stream]], Clock, bool] | None = None


def _in_processes(
    chunks: list[list[Stream]], clock: Clock, jobs: int, tick: Tick | None, redact: bool
) -> list[StreamFacts]:
    """Read chunks in forked processes, which inherit the compiled recipes and return facts as bytes."""
    import multiprocessing
    from concurrent.futures import ProcessPoolExecutor, as_completed
    from concurrent.futures.process import BrokenProcessPool

    global _WORK
    for layer in dict.fromkeys(stream.layer for chunk in chunks for stream in chunk):
        plan(layer)
    parts: list[StreamFacts | None] = [None] * len(chunks)
    _WORK = chunks, clock, redact
    pool = ProcessPoolExecutor(jobs, multiprocessing.get_context("fork"), initializer=_quiet)
    try:
        # Largest first, so that all workers finish at about the same time.
        order = sorted(range(len(chunks)), key=lambda n: -sum(stream.size or 0 for stream in chunks[n]))
        futures = {pool.submit(_work, number): number for number in order}
        done = 0
        for future in as_completed(futures):
            try:
                facts, counters, skipped = future.result()
            except BrokenProcessPool:
                continue  # a worker was killed, most likely for memory; the remaining chunks are read below
            part = parts[futures[future]] = StreamFacts(codec.decode(facts), counters, skipped)
            done += part.counters.bytes_read
            if tick is not None:
                tick(done)
    except BaseException:
        for process in multiprocessing.active_children():
            process.terminate()
        # Wait for the pool's thread, which would otherwise fail at exit. Without workers this is quick.
        pool.shutdown(wait=True, cancel_futures=True)
        raise
    finally:
        _WORK = None
    pool.shutdown()
    return [
        read_chunk(chunk, clock, redact=redact) if part is None else part
        for chunk, part in zip(chunks, parts, strict=True)
    ]


def _quiet() -> None:
    """Let an interrupt end a worker without a message; the parent prints one."""
    signal.signal(signal.SIGINT, lambda *_: os._exit(130))


def _work(number: int) -> tuple[bytes, Counters, list[tuple[str, str]]]:
    assert _WORK is not None
    chunks, clock, redact = _WORK
    part = read_chunk(chunks[number], clock, redact=redact)
    return codec.encode(part.facts), part.counters, part.skipped
