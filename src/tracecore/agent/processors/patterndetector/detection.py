"""What goes on in a `patterndetector`, whichever pipelines it stands in.

    lines → blocks → recipes ┐
    dumps → join             ├→ facts → bridges → engine → verdicts → incidents
    metric points → bridges  │
    facts of other nodes     ┘

From blocks on it is what an offline diagnosis does.
"""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import msgspec
import xxhash

from tracecore.actions.incident_failure import failure_of_facts
from tracecore.agent.batch import Ack
from tracecore.agent.component import Setting
from tracecore.agent.options import MILLISECOND, SECOND
from tracecore.agent.processors.blocks import Blocks
from tracecore.agent.processors.hints import Hints
from tracecore.agent.processors.numbers import Numbers
from tracecore.agent.processors.patterndetector.grouping import Groups, Summary
from tracecore.agent.processors.patterndetector.lines import Lines, by_layer, layer_of_resource, layer_of_signal
from tracecore.agent.processors.patterndetector.options import Options
from tracecore.agent.processors.patterndetector.pulse import Pulse
from tracecore.agent.processors.patterndetector.stalls import Stalls
from tracecore.agent.processors.patterndetector.state import Kept, Told, verdict_told
from tracecore.agent.processors.patterndetector.verdicts import is_told
from tracecore.engine.emission import Emission
from tracecore.engine.engine import Engine, Limits
from tracecore.facts import wire
from tracecore.facts.fact import Fact
from tracecore.facts.fold import Fold
from tracecore.facts.ordinals import Holdings, named, reasons
from tracecore.facts.projection import TRIGGERS, project
from tracecore.facts.silence import SilenceBridge
from tracecore.facts.thinning import INTERVAL, FactThinner
from tracecore.incidents.live import LiveIncidents, Update
from tracecore.patterns import catalogue
from tracecore.signals.kubernetes.live import Live, likeness, unwrapped
from tracecore.signals.record import LogSignal, Resource, Source

if TYPE_CHECKING:
    from tracecore.agent.processors.patterndetector.dumps import DumpFacts
    from tracecore.diagnose.metrics import MetricFacts

log = logging.getLogger("tracecore.agent.patterndetector")

#: Verdicts whose having been told is remembered, so that only those are taken back.
TOLD: Final = 65_536
#: What tenants can make an agent hold: on a node, far less than an offline diagnosis may.
LIMITS: Final = Limits(window=16_384, total=250_000, windows=50_000, future=10_000, past=16_384)
#: Records that are known again when they come twice.
KNOWN: Final = 65_536
#: Kinds of Kubernetes events that were found to mean nothing.
DULL: Final = 8_192
#: Records carry the time of other machines' clocks, and some lie: a record from farther ahead does not move ours, and
#: is judged as if its stream's clock agreed with ours.
AHEAD: Final = 60 * SECOND
FROM_AHEAD: Final = "records_ahead"
#: Streams whose offset is remembered.
OFFSETS: Final = 10_000
#: What is read together, from several files, is judged together: the engine waits so long for the rest of it.
TOGETHER: Final = 20 * MILLISECOND
#: How often the engine looks where nothing came: deadlines, stalls and silences are matters of many seconds.
HEARTBEAT: Final = SECOND
#: A line waits so long for the next one of its block: from whom nobody knows when it is read, a Collector that looks
#: at files every 200 ms; and beyond the time within which a receiver of ours looks again.
REMOTE: Final = 250 * MILLISECOND
BEYOND: Final = 75 * MILLISECOND
#: No block waits longer for its next line.
BLOCK_AT_MOST: Final = 1500 * MILLISECOND
#: Facts of an earlier run that are not understood any more.
STATE_LOST: Final = "state_lost"
#: Attributes of a record that say which stream it is of, beside its resource.
_STREAM: Final = ("log.file.path", "log.iostream", "gen_ai.training.rank")


class Detection:
    """Evidence in, verdicts out. Hold `lock` while calling: pipelines run in threads of their own.

    Args:
        options: of the processor.
        setting: of the first of the processors that share this.
    """

    def __init__(self, options: Options, setting: Setting) -> None:
        self.lock = threading.Lock()
        #: When to look next.
        self.next = 0
        #: When the engine looked last, whether anything came since, and since when that is known.
        self._looked = 0
        self._news = False
        self._since = 0
        self._options = options
        self._meter = setting.meter
        settings: dict[str, Mapping[str, Any]] = {name: values or {} for name, values in options.patterns.items()}
        patterns = catalogue(settings)
        self._engine = Engine(patterns, lateness=options.lateness, limits=LIMITS, strict=False)
        self._numbers = Numbers(setting.meter, self._engine.stats, [pattern.name for pattern in patterns])
        self._groups = Groups(options.grouping, setting.id, setting.meter)
        #: What was held back in an interval that has just ended.
        self.held_back: Summary | None = None
        setting.meter.declare(events=(STATE_LOST, FROM_AHEAD))
        self._hints = Hints(setting.id, setting.meter.note)
        self._blocks = Blocks(options.block_timeout or REMOTE)
        self._quiet = 0
        self._fold = Fold()
        self._stalls = Stalls(options.progress) if options.progress.enabled else None
        self._silence = SilenceBridge(options.silence.silent_after) if options.silence.enabled else None
        #: Recipes take a moment to compile: those of the usual layers are ready before the first record.
        self._lines = {layer: Lines(layer) for layer in ("stdout", "kernel")} if options.recipes else {}
        self._objects_seen = Live()
        self._dull: OrderedDict[tuple[object, ...], None] = OrderedDict()
        self._metrics: MetricFacts | None = None
        self._holdings = Holdings()
        self._dumps: DumpFacts | None = None
        self._sent: list[Fact] = []
        self._pulse = Pulse()
        self._thinner = FactThinner(min(INTERVAL, options.progress.stall_after // 4))
        #: Sources of what was read, and when, whose facts have not left yet.
        self._waiting: list[tuple[int, Ack]] = []
        self._live: LiveIncidents | None = None
        if options.tell != "verdicts":
            self._live = LiveIncidents(
                settle=options.incidents.settle, reopen=options.incidents.reopen, classify=failure_of_facts
            )
        self._told: OrderedDict[str, None] = OrderedDict()
        self._known: OrderedDict[int, int] = OrderedDict()
        #: The new ones of them, which are kept with their facts.
        self._numbered: dict[int, int] = {}
        #: How far the clocks of streams are ahead of ours, where that is far.
        self._offsets: OrderedDict[tuple[Any, ...], int] = OrderedDict()
        self._lost: dict[str, int] = {}
        self._count = 0
        self._ahead: int | None = None
        self._arrived = 0
        self._expired = 0
        self._claimed = False
        self._setting = setting
        self._kept: Kept | None = None
        self._horizon = options.lateness + 2 * max((pattern.horizon for pattern in patterns), default=0)
        #: Verdicts that were delivered before a restart.
        self._before: dict[str, Told] = {}

    def claim(self) -> bool:
        """Whether whoever asks is the first to: that one tells what is found."""
        claimed, self._claimed = self._claimed, True
        return not claimed

    # -- over restarts -----------------------------------------------------------------------------------------------

    def restore(self, now: int) -> None:
        """Take the facts of an earlier run, so that what began before a restart is still told."""
        if self._options.storage is None:
            return
        store = self._setting.extension(self._options.storage).client(f"processor_{self._setting.id}")
        self._kept = Kept(store, self._horizon)
        found = self._kept.load()
        self._before = found.told
        self._count = max(self._count, found.count)
        self._known.update(found.known)
        if self._live is not None:
            found.lost += self._live.restore(found.incidents, found.clock)
        if found.lost:
            self._meter.note(STATE_LOST, found.lost)
            log.warning("%s: %d stored facts or verdicts are not understood any more", self._setting.id, found.lost)
        if not found.facts:
            return
        # The clock goes on where it stopped: what happened meanwhile is in files that are read next.
        self._ahead, self._arrived, self._news = found.clock, now, True
        facts = [*found.facts, *self._bridged(found.facts, found.clock)]
        self._engine.add(facts)
        if self._live is not None:
            self._live.take(facts)
        self._appoint(now)
        log.info("%s: goes on with %d facts of an earlier run", self._setting.id, len(found.facts))

    def await_judgement(self, acks: Iterable[Ack], now: int) -> None:
        """Remember who waits until what it gave was judged, and what that led to has arrived."""
        self._waiting += [(now, ack) for ack in acks]

    def _judged(self, now: int, *, last: bool) -> tuple[Ack, ...]:
        """Return those who gave what has been judged now."""
        # Lines of a block that is not whole yet have given no fact yet.
        ripe = now if last or not self._blocks else now - BLOCK_AT_MOST
        acks = tuple(ack for came, ack in self._waiting if came <= ripe)
        self._waiting = [(came, ack) for came, ack in self._waiting if came > ripe]
        return acks

    def delivered(self, said: Sequence[Emission], updates: Sequence[Update]) -> None:
        """These have been delivered, or stored by their exporter. Any thread may say so."""
        if self._kept is not None and (said or updates):
            self._kept.tell(map(verdict_told, said), (update.memory for update in updates))

    # -- evidence ------------------------------------------------------------------------------------------------------

    def logs(self, payload: Mapping[str, Any], now: int, pause: int = 0) -> None:
        """Take log records, which are not changed.

        Args:
            pause: nanoseconds after which at the latest their receiver has what follows; 0 where nobody knows.
        """
        self._quiet = pause + BEYOND if pause and not self._options.block_timeout else 0
        for entry in payload.get("resource_logs") or ():
            found = entry.get("resource") or {}
            resource: Resource = {"attributes": dict(found.get("attributes") or {})}
            self._pulse.heard(resource["attributes"], now)
            layer = layer_of_resource(resource)
            for held in entry.get("scope_logs") or ():
                records = held.get("log_records") or ()
                if is_told(held):
                    continue
                if (held.get("scope") or {}).get("name") == wire.SCOPE:
                    self._facts_of(entry, held, now)
                    continue
                if layer == "flight_recorder":
                    self._recorded(resource, records, now)
                    continue
                for place, whose, some in by_layer(layer, resource, records):
                    self._records(place, whose, some, now)
        self._appoint(now)

    def _facts_of(self, entry: Mapping[str, Any], held: Mapping[str, Any], now: int) -> None:
        """Take facts that another agent sent."""
        received = wire.read({"resource_logs": [{**entry, "scope_logs": [held]}]})
        for reason, count in received.skipped.items():
            self._meter.note(f"fact_{reason}", count)
        for fact in received.facts:
            self._see(fact.end, now)
        self._sent += received.facts
        self._news = self._news or bool(received.facts)

    def metrics(self, payload: Mapping[str, Any], now: int) -> None:
        """Take metric points."""
        from tracecore.diagnose.metrics import MetricFacts
        from tracecore.signals.metrics.otlp import points

        if self._metrics is None:
            self._metrics = MetricFacts()
        for point in points(payload):
            if point.time > now + AHEAD:
                host = point.labels.get("host.name") or point.labels.get("k8s.node.name")
                (moved,) = self._present([{"time_unix_nano": point.time}], [("metrics", host)], now)
                point = msgspec.structs.replace(point, time=moved["time_unix_nano"])
            self._see(point.time, now)
            self._metrics.observe(point)
        self._news = True
        self._appoint(now)

    def _recorded(self, resource: Resource, records: Any, now: int) -> None:
        """Take Flight Recorder dumps; what is no dump is read as any record."""
        from tracecore.agent.processors.patterndetector.dumps import DumpFacts

        others = []
        for record in records:
            body = record.get("body")
            if type(body) is not bytes:
                others.append(record)
                continue
            if self._dumps is None:
                self._dumps = DumpFacts(self._meter.drop)
            self._news = True
            time = self._dumps.take(resource["attributes"], record.get("attributes") or {}, body, now)
            if time is not None:
                self._see(time, now)
        if others:
            self._records("flight_recorder", resource, others, now)

    def _records(self, layer: str, resource: Resource, records: Any, now: int) -> None:
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
        if self._options.recipes:
            if layer not in self._lines:
                self._lines[layer] = Lines(layer)
            picked = self._lines[layer].picked(streams, records)
        for number, record in enumerate(self._present(records, streams, now)):
            self._see(record.get("time_unix_nano") or record.get("observed_time_unix_nano") or 0, now)
            attributes = record.get("attributes")
            body = record.get("body")
            candidate = picked is None or number in picked
            if attributes and not TRIGGERS.isdisjoint(attributes):
                stamped: Any = _timed(record, now)
                self._state({"resource": resource, "log": stamped, "source": self._source(stamped, origin)})
            if not self._options.recipes or type(body) is not str:
                continue
            if "\n" in body:
                if candidate:
                    whole: Any = {**_timed(record, now), "attributes": dict(attributes or {})}
                    self._stamp(layer, {"resource": resource, "log": whole, "source": self._source(whole, origin)})
                continue
            if candidate or (self._blocks and self._blocks.expects(streams[number])):
                timed = _timed(record, now)
                source = self._source(timed, origin) if candidate else None
                for signal in self._blocks.feed(streams[number], resource, timed, source, now, self._quiet):
                    self._stamp(layer, signal)

    def _present(self, records: Sequence[Any], streams: Sequence[tuple[Any, ...]], now: int) -> Sequence[Any]:
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
                if len(self._offsets) > OFFSETS:
                    self._offsets.popitem(last=False)
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
            self._see(record.get("time_unix_nano") or record.get("observed_time_unix_nano") or 0, now)
            self._object(*told, now)
        return others

    def _object(self, change: str, item: dict[str, Any], now: int) -> None:
        """Take an object of the Kubernetes API, as `k8sobjects` gives it."""
        like = likeness(item)
        if like is not None and like in self._dull:
            return
        told = fruitful = False
        for signal in self._objects_seen.signals(change, item, now):
            told = True
            if not self._options.recipes:
                fruitful |= self._state(signal)
                continue
            if "kubernetes" not in self._lines:
                self._lines["kubernetes"] = Lines("kubernetes")
            fruitful |= self._stamp("kubernetes", signal)
        if like is not None and told and not fruitful:
            self._dull[like] = None
            if len(self._dull) > DULL:
                self._dull.popitem(last=False)

    def _source(self, record: dict[str, Any], origin: str) -> Source:
        """A name for a record that sorts by its time and its arrival; the same for a record that comes twice."""
        time, body, attributes = record["time_unix_nano"], record.get("body"), record.get("attributes") or {}
        text = body if type(body) is str else repr(body)
        key = f"{time}\0{origin}\0{attributes.get('log.file.path')}\0{text}"
        what = xxhash.xxh3_64_intdigest(key.encode("utf-8", "replace"))
        number = self._known.get(what)
        if number is None:
            number = self._known[what] = self._count = self._count + 1
            if self._kept is not None and len(self._numbered) < KNOWN:
                self._numbered[what] = number
            if len(self._known) > KNOWN:
                self._known.popitem(last=False)
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
        facts = project(signal, redact=self._options.redact)
        for fact in facts:
            self._fold.add(fact)
            self._news = True
        if not facts:
            stamped = {**signal["resource"]["attributes"], **signal["log"]["attributes"]}
            self._hints.unprojected(stamped, TRIGGERS, "gpu.id" in stamped)
        return bool(facts)

    def _see(self, time: int, now: int) -> None:
        """The clock of the engine follows what records say, and never runs ahead of ours."""
        if time and time <= now + AHEAD and (self._ahead is None or time >= self._ahead):
            self._ahead, self._arrived = time, now

    # -- the clock -----------------------------------------------------------------------------------------------------

    def due(self, now: int) -> int:
        """When to look next."""
        if now < self._looked:
            self._appoint(now)
        return self.next

    def _appoint(self, now: int) -> None:
        """Say when to look next: soon where something is new, when a block of lines is whole, or now and then."""
        if now < self._looked:
            self._looked = now  # the clock was set back
        interval = self._options.evaluation_interval
        whole = self._blocks.due
        if self._news:
            # What is not whole yet is waited for, but not for long.
            self._since = min(self._since or now, now)
            settled = self._since + TOGETHER if whole is None else min(max(whole, self._since), self._since + interval)
            self.next = max(self._looked + interval, settled)
        else:
            self.next = self._looked + max(interval, HEARTBEAT)
        if whole is not None:
            # What a block says is told as soon as it is whole; but not for each of many does everybody look again.
            self.next = min(self.next, max(whole, self._looked + interval // 2))

    def finish(self) -> None:
        """Nothing more comes: what waits for more lines is whole."""
        for signal in self._blocks.finish():
            self._stamp(layer_of_signal(signal), signal)

    def collected(self, now: int, *, last: bool = False) -> tuple[list[Fact], tuple[Ack, ...]]:
        """The facts that are new or have grown, for somebody else to join, and who waits for them to arrive."""
        instant = self._begin(now, last=last)
        if instant is None and self._ahead is not None:
            return [], ()
        found = [] if instant is None else self._gathered(instant, now, last=last)
        facts = [*self._thinner.take(found, instant or now), *self._pulse.beats(now)]
        if last:
            facts += self._thinner.finish()
        return facts, self._judged(now, last=last)

    def evaluate(self, now: int, *, last: bool = False) -> tuple[list[Emission], list[Update], tuple[Ack, ...]]:
        """What is to be told now: verdicts, and updates of incidents; and who waits for them to arrive."""
        instant = self._begin(now, last=last)
        self.held_back = None
        if instant is None:
            return [], [], () if self._ahead is not None else self._judged(now, last=last)
        facts = self._gathered(instant, now, last=last)
        if self._kept is not None:
            numbers, self._numbered = self._numbered, {}
            needed = self._live.needed if self._live is not None else tuple
            self._kept.keep(facts, instant, self._count, numbers if facts else {}, needed)
        facts += self._bridged(facts, instant)
        self._engine.add(facts)
        heard = [e for e in self._engine.advance(instant) if self._tells(e)]
        updates: list[Update] = []
        if self._live is not None:
            self._live.take(facts)
            self._live.hear(heard)
            updates = self._live.advance(instant)
        said: list[Emission] = []
        if self._options.tell != "incidents":
            news = [e for found in heard if (e := self._anew(found))]
            said, self.held_back = self._groups.take(news, now, last=last)
        self._numbers.update(self._blocks)
        for emission in said:
            log.info(
                "verdict %s revision %d %s: %s",
                emission.id,
                emission.revision,
                emission.status,
                emission.verdict.headline(),
            )
        for update in updates:
            log.info("%s revision %d %s: %s", update.id, update.revision, update.state, update.headline)
        return said, updates, self._judged(now, last=last)

    def _begin(self, now: int, *, last: bool) -> int | None:
        """The instant to judge at; None where there is nothing to judge."""
        for signal in self._blocks.expire(now):
            self._stamp(layer_of_signal(signal), signal)
        if not (self._news or last or now >= self._looked + HEARTBEAT or now < self._looked):
            self._appoint(now)
            return None
        self._looked, self._news, self._since = now, False, 0
        self._appoint(now)
        if self._ahead is None:
            return None
        return min(self._ahead + max(now - self._arrived, 0), now + AHEAD)

    def _gathered(self, instant: int, now: int, *, last: bool) -> list[Fact]:
        """Everything that came since the last look, as facts."""
        if self._metrics is not None:
            for fact in self._metrics.advance(instant):
                self._fold.add(fact)
            self._count_lost(self._metrics.dropped)
        facts = self._named([change.fact for change in self._fold.changes()])
        if self._dumps is not None:
            facts += self._dumps.facts(now, last=last)
        sent, self._sent = self._sent, []
        if now - self._expired > 10 * SECOND:
            self._expired = now
            self._fold.expire(instant)
        return facts + sent

    def _named(self, facts: list[Fact]) -> list[Fact]:
        """The same facts; those that name a CUDA device with the GPU it is, where that is certain."""
        refused: list[tuple[Fact, str]] = []
        holdings = self._holdings if self._metrics is None else self._metrics.holdings
        found = named(facts, holdings, self._options.gpu_by_ordinal, refused)
        for reason in reasons(refused):
            self._hints.nameless(reason)
        return found

    def _bridged(self, facts: list[Fact], instant: int) -> list[Fact]:
        made: list[Fact] = []
        if self._stalls is not None:
            made += self._stalls.tick(facts, instant)
        if self._silence is not None:
            for fact in facts:
                self._silence.observe(fact)
            made += self._silence.tick(instant)
        return made

    def _count_lost(self, dropped: Mapping[str, int]) -> None:
        for reason, count in dropped.items():
            self._meter.drop(reason.replace(" ", "_"), count - self._lost.get(reason, 0))
            self._lost[reason] = count

    def _anew(self, found: Emission) -> Emission | None:
        """Return what is to be told, as a revision of what was told before a restart; None where that is the same."""
        id, told = verdict_told(found)
        before = self._before.get(id)
        if before is None:
            return found
        if before.digest == told.digest:
            return None
        # From now on it is news again when it becomes what it was.
        self._before[id] = msgspec.structs.replace(before, digest=b"")
        return msgspec.structs.replace(found, revision=found.revision + before.revision)

    def _tells(self, emission: Emission) -> bool:
        """Whether this is told: a partial verdict may be unwanted, and what was not told is not taken back."""
        if emission.status == "cleared":
            return self._told.pop(emission.id, 0) is None
        if emission.verdict.confidence == "partial" and not self._options.partial_verdicts:
            return False
        if emission.id not in self._told:
            self._numbers.verdict(emission.verdict.pattern_name)
        self._told[emission.id] = None
        if len(self._told) > TOLD:
            self._told.popitem(last=False)
        return True


def _timed(record: dict[str, Any], now: int) -> Any:
    """The record; with the time of its arrival where it has none."""
    if record.get("time_unix_nano"):
        return record
    return {**record, "time_unix_nano": record.get("observed_time_unix_nano") or now}
