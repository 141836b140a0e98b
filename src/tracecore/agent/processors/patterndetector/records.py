"""Log records into facts: lines into blocks, recipes, and the facts they state.

A record is known again when it comes twice, and one whose clock is ahead is judged on ours.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

import xxhash

from tracecore.agent.options import MILLISECOND, SECOND
from tracecore.agent.processors.blocks import Blocks
from tracecore.agent.processors.hints import Hints
from tracecore.agent.processors.patterndetector.clock import AHEAD, LookClock
from tracecore.agent.processors.patterndetector.lines import RecipeLines, layer_of_signal
from tracecore.agent.processors.patterndetector.options import Options
from tracecore.agent.telemetry import Meter
from tracecore.facts.fold import Fold
from tracecore.facts.projection import TRIGGERS, project
from tracecore.facts.quotes import Quotes, lines_of
from tracecore.facts.wire import FREQUENT
from tracecore.recent import Recent
from tracecore.signals.kubernetes.live import Live, likeness, unwrapped
from tracecore.signals.record import LogSignal, Resource, Source

#: Records that are known again when they come twice.
KNOWN: Final = 65_536
#: Kinds of Kubernetes events that were found to mean nothing.
DULL: Final = 8_192
FROM_AHEAD: Final = "records_ahead"
#: Streams whose offset is remembered.
OFFSETS: Final = 10_000
#: A line waits so long for the next one of its block: from whom nobody knows when it is read, a Collector that looks
#: at files every 200 ms; and beyond the time within which a receiver of ours looks again.
REMOTE: Final = 250 * MILLISECOND
BEYOND: Final = 75 * MILLISECOND
#: Attributes of a record that say which stream it is of, beside its resource.
_STREAM: Final = ("log.file.path", "log.iostream", "gen_ai.training.rank")


class Records:
    """Takes log records, which are not changed, and adds their facts to `fold`.

    Args:
        options: of the processor.
        clock: told the times of records, and that something is new.
        hints: warns about records that cannot be read as evidence.
    """

    def __init__(self, options: Options, clock: LookClock, hints: Hints, meter: Meter) -> None:
        self.fold = Fold()
        self.quotes = Quotes()
        self.blocks = Blocks(options.block_timeout or REMOTE)
        #: Whether numbers of records are kept over a restart; the new ones are in `numbered`.
        self.numbers_kept = False
        self.numbered: dict[int, int] = {}
        #: The number of each record that is known again, and the last number that was given.
        self.known: Recent[int, int] = Recent(KNOWN)
        self.count = 0
        self._recipes = options.recipes
        self._redact = options.redact
        self._adapts = not options.block_timeout
        self._clock = clock
        self._hints = hints
        self._meter = meter
        self._quiet = 0
        #: Recipes take a moment to compile: those of the usual layers are ready before the first record.
        self._lines = {layer: RecipeLines(layer) for layer in ("stdout", "kernel")} if options.recipes else {}
        self._live = Live()
        self._dull: Recent[tuple[object, ...], None] = Recent(DULL)
        #: How far the clocks of streams are ahead of ours, where that is far.
        self._offsets: Recent[tuple[Any, ...], int] = Recent(OFFSETS)

    def pause(self, pause: int) -> None:
        """Say after how many nanoseconds their receiver has what follows; 0 where nobody knows."""
        self._quiet = pause + BEYOND if pause and self._adapts else 0

    def expire(self, now: int) -> None:
        """Judge the blocks that wait no longer for more lines."""
        self._stamp_all(self.blocks.expire(now))

    def finish(self) -> None:
        """Finish the blocks that wait for more lines, at the end of the stream."""
        self._stamp_all(self.blocks.finish())

    def _stamp_all(self, signals: Iterable[LogSignal]) -> None:
        for signal in signals:
            self._stamp(layer_of_signal(signal), signal)

    def take(self, layer: str, resource: Resource, records: Any, now: int, *, selected: bool = False) -> None:
        """Take records of one layer and resource."""
        if any(type(record.get("body")) is dict for record in records):
            records = self._objects(records, now)
        if not records:
            return
        self._hints.look(records)
        origin = repr(sorted(resource["attributes"].items(), key=lambda item: item[0]))
        streams = [
            (layer, origin, *(own.get(name) for name in _STREAM))
            if (own := record.get("attributes"))
            else (layer, origin)
            for record in records
        ]
        picked: set[int] | None = None
        if self._recipes:
            if layer not in self._lines:
                self._lines[layer] = RecipeLines(layer)
            picked = self._lines[layer].picked(streams, records, selected=selected)
        for number, record in enumerate(self.present(records, streams, now)):
            self._clock.see(record.get("time_unix_nano") or record.get("observed_time_unix_nano") or 0, now)
            attributes = record.get("attributes")
            body = record.get("body")
            candidate = picked is None or number in picked
            if attributes and not TRIGGERS.isdisjoint(attributes):
                stamped: Any = _timed(record, now)
                self._state({"resource": resource, "log": stamped, "source": self._source(stamped, origin)})
            if not self._recipes or type(body) is not str:
                continue
            if "\n" in body:
                if candidate:
                    whole: Any = {**_timed(record, now), "attributes": dict(attributes or {})}
                    self._stamp(layer, {"resource": resource, "log": whole, "source": self._source(whole, origin)})
                continue
            if candidate or (self.blocks and self.blocks.expects(streams[number])):
                timed = _timed(record, now)
                source = self._source(timed, origin) if candidate else None
                for signal in self.blocks.feed(streams[number], resource, timed, source, now, self._quiet):
                    self._stamp(layer, signal)

    def present(self, records: Sequence[Any], streams: Sequence[tuple[Any, ...]], now: int) -> Sequence[Any]:
        """Return the records; those whose clock is ahead of ours with times that are on our clock.

        The times of a stream stay as far apart as its own clock has them. Only records that are ahead are moved, so
        that a single time that makes no sense moves nothing else.
        """
        latest = now + AHEAD
        if not any((record.get("time_unix_nano") or 0) > latest for record in records):
            return records
        newest: dict[tuple[Any, ...], int] = {}
        for record, stream in zip(records, streams, strict=True):
            newest[stream] = max(newest.get(stream, 0), record.get("time_unix_nano") or 0)
        for stream, time in newest.items():
            if time > latest and abs(time - self._offsets.get(stream, 0) - now) > AHEAD:
                self._offsets[stream] = time - now
        found = []
        for record, stream in zip(records, streams, strict=True):
            time = record.get("time_unix_nano") or 0
            if time > latest:
                offset = self._offsets.get(stream, time - now)
                self._meter.note(FROM_AHEAD)
                self._hints.ahead(offset / SECOND, stream)
                record = {**record, "time_unix_nano": time - offset}
            found.append(record)
        return found

    def _objects(self, records: Any, now: int) -> list[Any]:
        """Take what are objects of the Kubernetes API; gives the others.

        The reading of a whole object says more than what a recipe may have stamped on its record.
        """
        others = []
        for record in records:
            body = record.get("body")
            told = unwrapped(body) if type(body) is dict else None
            if told is None:
                others.append(record)
                continue
            self._clock.see(record.get("time_unix_nano") or record.get("observed_time_unix_nano") or 0, now)
            self._object(*told, now)
        return others

    def _object(self, change: str, item: dict[str, Any], now: int) -> None:
        """Take an object of the Kubernetes API, as `k8sobjects` gives it."""
        like = likeness(item)
        if like is not None and like in self._dull:
            return
        told = fruitful = False
        for signal in self._live.signals(change, item, now):
            told = True
            if not self._recipes:
                fruitful |= self._state(signal)
                continue
            if "kubernetes" not in self._lines:
                self._lines["kubernetes"] = RecipeLines("kubernetes")
            fruitful |= self._stamp("kubernetes", signal)
        if like is not None and told and not fruitful:
            self._dull[like] = None

    def _source(self, record: dict[str, Any], origin: str) -> Source:
        """A name for a record that sorts by its time and its arrival; the same for a record that comes twice."""
        time, body, attributes = record["time_unix_nano"], record.get("body"), record.get("attributes") or {}
        text = body if type(body) is str else repr(body)
        key = f"{time}\0{origin}\0{attributes.get('log.file.path')}\0{text}"
        what = xxhash.xxh3_64_intdigest(key.encode("utf-8", "replace"))
        number = self.known.get(what)
        if number is None:
            number = self.known[what] = self.count = self.count + 1
            if self.numbers_kept and len(self.numbered) < KNOWN:
                self.numbered[what] = number
        path = attributes.get("log.file.path")
        where = path if isinstance(path, str) else "otlp"
        return Source(where, length=len(body) if type(body) is str else 0, ident=f"record:{time:019d}-{number:09d}")

    def _stamp(self, layer: str, signal: LogSignal) -> bool:
        self._lines[layer].plan.run(signal)
        return self._state(signal)

    def _state(self, signal: LogSignal) -> bool:
        """Take the facts of a record that is stamped; whether there were any."""
        if TRIGGERS.isdisjoint(signal["log"]["attributes"]):
            return False
        facts = project(signal, redact=self._redact)
        for fact in facts:
            self.fold.add(fact)
            if type(fact) not in FREQUENT and type(body := signal["log"].get("body")) is str:
                self.quotes.keep(fact.uid, lines_of(body))
            self._clock.news = True
        if not facts:
            stamped = {**signal["resource"]["attributes"], **signal["log"]["attributes"]}
            self._hints.unprojected(stamped, TRIGGERS, "gpu.id" in stamped)
        return bool(facts)


def _timed(record: dict[str, Any], now: int) -> Any:
    """The record; with the time of its arrival where it has none."""
    if record.get("time_unix_nano"):
        return record
    return {**record, "time_unix_nano": record.get("observed_time_unix_nano") or now}
