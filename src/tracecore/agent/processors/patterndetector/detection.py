"""The work of a `patterndetector`, whichever pipelines it stands in.

    lines → blocks → recipes ┐
    dumps → join             ├→ facts → bridges → engine → verdicts → incidents
    metric points → bridges  │
    facts of other nodes     ┘

From blocks on it is what an offline diagnosis does.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import msgspec

from tracecore.actions.incident_failure import failure_of_facts
from tracecore.agent.batch import Ack
from tracecore.agent.component import Setting
from tracecore.agent.options import MILLISECOND, SECOND
from tracecore.agent.processors.hints import Hints
from tracecore.agent.processors.numbers import EngineNumbers
from tracecore.agent.processors.patterndetector.clock import AHEAD, LookClock
from tracecore.agent.processors.patterndetector.grouping import HeldBackVerdicts, VerdictGroups
from tracecore.agent.processors.patterndetector.lines import by_layer, layer_of_resource
from tracecore.agent.processors.patterndetector.options import Options
from tracecore.agent.processors.patterndetector.pulse import Pulse, own_names
from tracecore.agent.processors.patterndetector.records import FROM_AHEAD, Records
from tracecore.agent.processors.patterndetector.senders import REFUSED, TOO_MANY, TOO_MANY_JOBS, Senders
from tracecore.agent.processors.patterndetector.stalls import StallBridge
from tracecore.agent.processors.patterndetector.state import DeliveredVerdict, DetectorState, verdict_told
from tracecore.agent.processors.patterndetector.verdicts import is_told
from tracecore.agent.tally import Growth
from tracecore.engine.emission import Emission
from tracecore.engine.engine import Engine, EngineLimits
from tracecore.facts import wire
from tracecore.facts.fact import Fact
from tracecore.facts.host import NodeSilence
from tracecore.facts.ordinals import Holdings, named, reasons
from tracecore.facts.silence import SilenceBridge
from tracecore.facts.tenants import Tenants
from tracecore.facts.thinning import INTERVAL, FactThinner
from tracecore.facts.training import StepStalled
from tracecore.incidents.live import LiveIncidents, Update
from tracecore.patterns import catalogue
from tracecore.recent import Recent
from tracecore.signals.record import Resource

if TYPE_CHECKING:
    from tracecore.agent.processors.patterndetector.dumps import DumpFacts
    from tracecore.diagnose.metrics import MetricFacts

log = logging.getLogger("tracecore.agent.patterndetector")

#: Verdicts whose having been told is remembered, so that only those are taken back.
TOLD: Final = 65_536
#: What tenants can make an agent hold: on a node, far less than an offline diagnosis may.
LIMITS: Final = EngineLimits(window=16_384, total=250_000, windows=50_000, future=10_000, past=16_384)
#: No block waits longer for its next line.
BLOCK_AT_MOST: Final = 1500 * MILLISECOND
#: Facts of an earlier run that are not understood any more.
STATE_LOST: Final = "state_lost"
#: Verdicts and incidents of other detectors that were not passed on.
TOLD_REFUSED: Final = "told_refused"


class Detection:
    """Evidence in, verdicts out. Hold `lock` while calling: pipelines run in threads of their own.

    Args:
        options: of the processor.
        setting: of the first of the processors that share this.
        owns: as in `LiveIncidents`, where other processes detect other jobs.
        behind: as in `LookClock`.
    """

    def __init__(
        self, options: Options, setting: Setting, owns: Callable[[str], bool] | None = None, behind: int = 0
    ) -> None:
        self.lock = threading.Lock()
        self._options = options
        self._clock = LookClock(options.evaluation_interval, behind)
        self._meter = setting.meter
        settings: dict[str, Mapping[str, Any]] = {name: values or {} for name, values in options.patterns.items()}
        patterns = catalogue(settings)
        self._engine = Engine(patterns, lateness=options.lateness, limits=LIMITS, strict=False)
        self._numbers = EngineNumbers(setting.meter, self._engine.stats, [pattern.name for pattern in patterns])
        self._groups = VerdictGroups(options.grouping, setting.id, setting.meter)
        #: What was held back in an interval that has just ended.
        self.held_back: HeldBackVerdicts | None = None
        setting.meter.declare(events=(STATE_LOST, FROM_AHEAD, REFUSED, TOO_MANY, TOO_MANY_JOBS, TOLD_REFUSED))
        self._hints = Hints(setting.id, setting.meter.note)
        self._records = Records(options, self._clock, self._hints, setting.meter)
        self._stalls = StallBridge(options.progress) if options.progress.enabled else None
        self._silence = SilenceBridge(options.silence.silent_after) if options.silence.enabled else None
        self._metrics: MetricFacts | None = None
        self._holdings = Holdings()
        self._dumps: DumpFacts | None = None
        self._sent: list[Fact] = []
        self._tenants = Tenants()
        accept = options.forward != "facts" if options.facts.accept is None else options.facts.accept
        self._senders = Senders(options.facts, accept=accept, note=setting.meter.note)
        #: Whether verdicts and incidents of other detectors are passed on.
        self.accepts = accept
        self._pulse = Pulse(own_names())
        self._thinner = FactThinner(min(INTERVAL, options.progress.stall_after // 4))
        #: Sources of what was read, and when, whose facts have not left yet.
        self._waiting: list[tuple[int, Ack]] = []
        self._live: LiveIncidents | None = None
        if options.tell != "verdicts":
            self._live = LiveIncidents(
                settle=options.incidents.settle,
                reopen=options.incidents.reopen,
                classify=failure_of_facts,
                strict=False,
                owns=owns,
            )
        self._told: Recent[str, None] = Recent(TOLD)
        self._lost = Growth()
        self._expired = 0
        self._claimed = False
        self._setting = setting
        self._kept: DetectorState | None = None
        self._horizon = options.lateness + 2 * max((pattern.horizon for pattern in patterns), default=0)
        #: What the engine says about the facts of an earlier run, until the first look.
        self._resumed: list[Emission] = []
        #: Verdicts that were delivered before a restart.
        self._before: dict[str, DeliveredVerdict] = {}

    def claim(self) -> bool:
        """Whether whoever asks is the first to: that one tells what is found."""
        claimed, self._claimed = self._claimed, True
        return not claimed

    # -- over restarts -----------------------------------------------------------------------------------------------

    def waiting(self) -> dict[str, int]:
        """Return since when incidents wait that were not told yet, by id."""
        return self._live.waiting() if self._live is not None else {}

    def restore(self, now: int, instant: int = 0, waiting: Mapping[str, int] | None = None) -> None:
        """Take the facts of an earlier run, so that what began before a restart is still told.

        Args:
            instant: the engine's time where the earlier run stopped, if that is known.
            waiting: as `waiting` said it then.
        """
        if (store := self._setting.store(self._options.storage)) is None:
            return
        self._kept = DetectorState(store, self._horizon)
        found = self._kept.load()
        self._before = found.told
        self._records.numbers_kept = True
        self._records.count = max(self._records.count, found.count)
        self._records.known.update(found.known)
        if self._live is not None:
            found.lost += self._live.restore(found.incidents, max(found.clock, instant), waiting)
        if found.lost:
            self._meter.note(STATE_LOST, found.lost)
            log.warning("%s: %d stored facts or verdicts are not understood any more", self._setting.id, found.lost)
        if not found.facts:
            return
        clock = max(found.clock, instant)
        self._clock.resume(clock, now)
        # Verdicts first become what they were. A stall that went on after its verdict was final does not change that.
        self._engine.add(found.facts)
        self._resumed = self._engine.advance(clock)
        bridged = self._bridged(found.facts, clock)
        self._engine.add(bridged)
        if self._live is not None:
            self._live.take([*found.facts, *bridged])
        self._clock.appoint(now, self._records.blocks.due)
        log.info("%s: goes on with %d facts of an earlier run", self._setting.id, len(found.facts))

    def await_judgement(self, acks: Iterable[Ack], now: int) -> None:
        """Remember who waits until what it gave was judged, and what that led to has arrived."""
        self._waiting += [(now, ack) for ack in acks]

    def _judged(self, now: int, *, last: bool) -> tuple[Ack, ...]:
        """Return those who gave what has been judged now."""
        # Lines of a block that is not whole yet have given no fact yet.
        ripe = now if last or not self._records.blocks else now - BLOCK_AT_MOST
        acks = tuple(ack for came, ack in self._waiting if came <= ripe)
        self._waiting = [(came, ack) for came, ack in self._waiting if came > ripe]
        return acks

    def delivered(self, said: Sequence[Emission], updates: Sequence[Update]) -> None:
        """These have been delivered, or stored by their exporter. Any thread may say so."""
        if self._kept is not None and (said or updates):
            self._kept.tell(map(verdict_told, said), (update.memory for update in updates))

    # -- evidence ------------------------------------------------------------------------------------------------------

    def quoted(self, uid: str) -> tuple[str, ...]:
        """Return the lines that a fact rests on, read here or sent with it."""
        return self._records.quotes.of(uid) or self._senders.quotes.of(uid)

    def logs(
        self, payload: Mapping[str, Any], now: int, pause: int = 0, peer: str = "", *, selected: bool = False
    ) -> list[Fact]:
        """Take log records, which are not changed; return the facts among them that are used.

        Args:
            pause: nanoseconds after which at the latest their receiver has what follows; 0 where nobody knows.
            peer: the address they were sent from; empty where that is not known.
            selected: their receiver has sampled steps already.
        """
        self._records.pause(pause)
        facts: list[Fact] = []
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
                    facts += self._senders.take(entry, held, peer, now)
                    continue
                if layer == "flight_recorder":
                    self._recorded(resource, records, now)
                    continue
                for place, whose, some in by_layer(layer, resource, records):
                    self._records.take(place, whose, some, now, selected=selected)
        self._join(facts, now)
        self._clock.appoint(now, self._records.blocks.due)
        return facts

    def _join(self, facts: list[Fact], now: int) -> None:
        """Take facts that other agents sent."""
        for fact in facts:
            self._clock.see(fact.end, now)
        if facts and self._kept is not None:
            # Whoever sent them takes them for delivered as soon as this returns.
            self._keep(facts, max(fact.end for fact in facts), {})
        self._sent += facts
        self._clock.news = self._clock.news or bool(facts)

    def _keep(self, facts: Sequence[Fact], instant: int, numbers: Mapping[int, int]) -> None:
        assert self._kept is not None
        needed = self._live.needed if self._live is not None else tuple
        self._kept.keep(facts, instant, self._records.count, numbers, needed)

    def metrics(self, payload: Mapping[str, Any], now: int) -> None:
        """Take metric points."""
        from tracecore.diagnose.metrics import MetricFacts
        from tracecore.signals.metrics.otlp import points

        if self._metrics is None:
            self._metrics = MetricFacts()
        for point in points(payload):
            if point.time > now + AHEAD:
                host = point.labels.get("host.name") or point.labels.get("k8s.node.name")
                (moved,) = self._records.present([{"time_unix_nano": point.time}], [("metrics", host)], now)
                point = msgspec.structs.replace(point, time=moved["time_unix_nano"])
            self._clock.see(point.time, now)
            self._metrics.observe(point)
        self._clock.news = True
        self._clock.appoint(now, self._records.blocks.due)

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
            self._clock.news = True
            time = self._dumps.take(resource["attributes"], record.get("attributes") or {}, body, now)
            if time is not None:
                self._clock.see(time, now)
        if others:
            self._records.take("flight_recorder", resource, others, now)

    # -- the clock -----------------------------------------------------------------------------------------------------

    def finish(self) -> None:
        """Finish the blocks that wait for more lines, at the end of the stream."""
        self._records.finish()

    def collected(self, now: int, *, last: bool = False) -> tuple[list[Fact], tuple[Ack, ...]]:
        """The facts that are new or have grown, for somebody else to join, and who waits for them to arrive."""
        instant = self._begin(now, last=last)
        if instant is None and self._clock.started:
            return [], ()
        own, sent = ([], []) if instant is None else self._gathered(instant, now, last=last)
        facts = [*self._thinner.take(own + sent, instant or now), *self._pulse.beats(now)]
        if last:
            facts += self._thinner.finish()
        return facts, self._judged(now, last=last)

    def evaluate(self, now: int, *, last: bool = False) -> tuple[list[Emission], list[Update], tuple[Ack, ...]]:
        """Return the verdicts and incident updates to send now, and who waits for their delivery."""
        instant = self._begin(now, last=last)
        self.held_back = None
        if instant is None:
            return [], [], () if self._clock.started else self._judged(now, last=last)
        own, sent = self._gathered(instant, now, last=last)
        if self._kept is not None:
            numbers, self._records.numbered = self._records.numbered, {}
            self._keep(own, instant, numbers if own else {})
        facts = own + sent
        facts += self._bridged(facts, instant)
        self._engine.add(facts)
        resumed, self._resumed = self._resumed, []
        heard = [e for e in resumed + self._engine.advance(instant) if self._tells(e)]
        if self._kept is not None and (cited := _bridged_evidence(heard)):
            self._keep(cited, instant, {})
        updates: list[Update] = []
        if self._live is not None:
            self._live.take(facts)
            self._live.hear(heard)
            updates = self._live.advance(instant)
            self._note_forgotten(self._live.dropped)
        said: list[Emission] = []
        if self._options.tell != "incidents":
            news = [e for found in heard if (e := self._anew(found))]
            said, self.held_back = self._groups.take(news, now, last=last)
        self._numbers.update(self._records.blocks)
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

    @property
    def next(self) -> int:
        """When to look next."""
        return self._clock.next

    def instant(self, now: int) -> int:
        """Return the engine's time at a time of our clock."""
        return self._clock.instant(now)

    def due(self, now: int) -> int:
        """Return when to look next; sooner than before where the clock was set back."""
        return self._clock.due(now, self._records.blocks.due)

    def _begin(self, now: int, *, last: bool) -> int | None:
        """Return the instant to judge at; None where there is nothing to judge."""
        self._records.expire(now)
        return self._clock.begin(now, self._records.blocks.due, last=last)

    def _gathered(self, instant: int, now: int, *, last: bool) -> tuple[list[Fact], list[Fact]]:
        """Return the facts that came since the last look: those read here, and those that others sent."""
        if self._metrics is not None:
            for fact in self._metrics.advance(instant):
                self._records.fold.add(fact)
            self._count_lost(self._metrics.dropped)
        facts = self._named([change.fact for change in self._records.fold.changes()])
        if self._dumps is not None:
            facts += self._dumps.facts(now, last=last)
        facts = [*map(self._tenants.name, facts)]
        sent, self._sent = [*map(self._tenants.name, self._sent)], []
        if now - self._expired > 10 * SECOND:
            self._expired = now
            self._records.fold.expire(instant)
        return facts, sent

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

    def _note_forgotten(self, dropped: Mapping[str, int]) -> None:
        """Show what live incidents forgot because a bound was reached."""
        for kind, count in dropped.items():
            name = f"incident_{kind}_forgotten"
            self._meter.note(name, self._lost.of(name, count))

    def _count_lost(self, dropped: Mapping[str, int]) -> None:
        for reason, count in dropped.items():
            self._meter.drop(reason.replace(" ", "_"), self._lost.of(reason, count))

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
        return True


def _bridged_evidence(emissions: Iterable[Emission]) -> list[Fact]:
    """Return the stalls and silences that verdicts rest on, as long as they were when the verdict was found.

    They grow with the clock, so the facts alone do not tell how long they were then.
    """
    cited = (fact for emission in emissions for fact in emission.verdict.evidence())
    return [*{(fact.uid, fact.end): fact for fact in cited if isinstance(fact, StepStalled | NodeSilence)}.values()]
