"""The `patterndetector` processor: says by name what breaks, while it happens.

    lines → blocks → recipes → facts → bridges → engine → verdicts

From blocks on it is what an offline diagnosis does. A verdict leaves as a log record.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, Literal

import msgspec

from tracecore.engine.emission import Emission
from tracecore.engine.engine import Engine
from tracecore.facts.fact import Fact
from tracecore.facts.fold import Fold
from tracecore.facts.progress import ProgressBridge
from tracecore.facts.projection import TRIGGERS, project
from tracecore.facts.silence import SilenceBridge
from tracecore.patterns import catalogue, types
from tracecore.patterns.config import ConfigError, load
from tracecore.pipeline.agent.batch import Batch
from tracecore.pipeline.agent.component import Factory, Setting
from tracecore.pipeline.agent.document import Node, Report
from tracecore.pipeline.agent.options import MILLISECOND, SECOND, Duration, Interval
from tracecore.pipeline.processors.blocks import Blocks
from tracecore.recipes.plan import LayerPlan, plan
from tracecore.signals.logs.reader import layer_of
from tracecore.signals.record import LAYERS, LogSignal, Resource, Source
from tracecore.signals.stream import Stream

log = logging.getLogger("tracecore.agent.patterndetector")

#: Verdicts whose having been told is remembered, so that only those are taken back.
TOLD: Final = 65_536
#: Streams whose steps are sampled; of a stream that is forgotten, sampling begins anew.
SAMPLED: Final = 1_000
#: Records that are known again when they come twice.
KNOWN: Final = 65_536
#: Records carry the time of other machines' clocks, and some lie: a record from farther ahead does not move ours.
AHEAD: Final = 60 * SECOND
#: Attributes of a record that say which stream it is of, beside its resource.
_STREAM: Final = ("log.file.path", "log.iostream", "gen_ai.training.rank")
_SCOPE: Final = "tracecore.patterndetector"


class Progress(msgspec.Struct, frozen=True, kw_only=True):
    """
    Args:
        enabled: whether steps are followed.
        stall_after: how long a step may take before it counts as a stall.
    """

    enabled: bool = True
    stall_after: Duration = 60 * SECOND

    def check(self) -> Iterator[tuple[tuple[str | int, ...], str]]:
        if self.stall_after < SECOND:
            yield ("stall_after",), "at least 1s"


class Silence(msgspec.Struct, frozen=True, kw_only=True):
    """
    Args:
        enabled: whether nodes that fall silent are noticed.
        silent_after: how long a node may be silent while its peers talk.
    """

    enabled: bool = True
    silent_after: Duration = 60 * SECOND

    def check(self) -> Iterator[tuple[tuple[str | int, ...], str]]:
        if self.silent_after < SECOND:
            yield ("silent_after",), "at least 1s"


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """
    Args:
        patterns: thresholds of each pattern by its name (`tracecore patterns list`); `enabled: false` leaves one out.
        partial_verdicts: whether a verdict that misses a layer of evidence is told.
        forward: `all` records and verdicts, or `verdicts` only.
        recipes: whether the built-in recipes stamp records; without them, records must arrive stamped.
        evaluation_interval: how often the engine looks.
        block_timeout: how long a line waits for the lines that complete its block.
        lateness: how late a record may arrive and still count fully.
        progress: the bridge from steps to stalls.
        silence: the bridge from silence to lost nodes.
    """

    patterns: dict[str, Any] = {}
    partial_verdicts: bool = True
    forward: Literal["all", "verdicts"] = "all"
    recipes: bool = True
    evaluation_interval: Interval = 100 * MILLISECOND
    block_timeout: Interval = 250 * MILLISECOND
    lateness: Duration = 30 * SECOND
    progress: Progress = Progress()
    silence: Silence = Silence()


def check(options: Options, node: Node, report: Report) -> None:
    """The thresholds, pattern by pattern and field by field."""
    known = {kind.name: kind for kind in types()}
    patterns = node.get("patterns")
    if patterns is None or not patterns.is_map:
        return
    for name, child in patterns.value.items():
        kind = known.get(name)
        if kind is None:
            report.unknown(patterns.key(name), "there is no pattern", name, list(known))
            continue
        if child.value is None:
            continue
        if not child.is_map:
            report.error(child, "expected settings by name")
            continue
        for field, setting in child.value.items():
            if field == "enabled":
                if not isinstance(setting.value, bool):
                    report.error(setting, "expected true or false")
            elif field not in kind.Config.__struct_fields__:
                report.unknown(child.key(field), "no such setting", field, ["enabled", *kind.Config.__struct_fields__])
            else:
                try:
                    load(kind.Config, {field: setting.plain()})
                except ConfigError as error:
                    report.error(setting, str(error).removeprefix(f"{field}: "))
        _check_together(kind.Config, child, report)


def _check_together(kind: type[msgspec.Struct], node: Node, report: Report) -> None:
    """Settings that are fine one by one may not be together."""
    if any(p.line == node.line or any(p.line == c.line for c in node.value.values()) for p in report.problems):
        return
    try:
        load(kind, {name: child.plain() for name, child in node.value.items() if name != "enabled"})
    except ConfigError as error:
        report.error(node, str(error))


class PatternDetector:
    """Reads logs as evidence."""

    def __init__(self, options: Options, setting: Setting) -> None:
        self._options = options
        self._setting = setting
        self._clock = setting.clock
        settings: dict[str, Mapping[str, Any]] = {name: values or {} for name, values in options.patterns.items()}
        self._engine = Engine(catalogue(settings), lateness=options.lateness, strict=False)
        self._blocks = Blocks(options.block_timeout)
        self._fold = Fold()
        self._progress = ProgressBridge(options.progress.stall_after) if options.progress.enabled else None
        self._silence = SilenceBridge(options.silence.silent_after) if options.silence.enabled else None
        #: Recipes take a moment to compile: those of the usual layers are ready before the first record.
        self._readers = {layer: _Reader(layer) for layer in ("stdout", "kernel")} if options.recipes else {}
        self._told: OrderedDict[str, None] = OrderedDict()
        self._known: OrderedDict[int, int] = OrderedDict()
        self._count = 0
        self._ahead: int | None = None
        self._arrived = 0
        self._next = 0
        self._expired = 0

    # -- records -----------------------------------------------------------------------------------------------------

    def process(self, batch: Batch) -> Iterable[Batch]:
        now = self._clock()
        forwards = self._options.forward == "all"
        for entry in batch.view().get("resource_logs") or ():
            # What recipes stamp is for the detectors: records go on as they came.
            found = entry.get("resource") or {}
            resource: Resource = {"attributes": dict(found.get("attributes") or {})}
            layer = layer_of_resource(resource)
            for held in entry.get("scope_logs") or ():
                for place, whose, records in _by_layer(layer, resource, held.get("log_records") or ()):
                    self._records(place, whose, records, now)
        if forwards:
            yield batch
        else:
            batch.done()
        if now >= self._next:
            yield from self._evaluate(now)

    def _records(self, layer: str, resource: Resource, records: Any, now: int) -> None:
        origin = repr(sorted(resource["attributes"].items(), key=lambda item: item[0])) if records else ""
        picked: set[int] | None = None
        if self._options.recipes:
            if layer not in self._readers:
                self._readers[layer] = _Reader(layer)
            picked = self._readers[layer].picked(origin, records)
        for number, record in enumerate(records):
            self._see(record, now)
            attributes = record.get("attributes")
            body = record.get("body")
            candidate = picked is None or number in picked
            if attributes and not TRIGGERS.isdisjoint(attributes):
                own: Any = _timed(record, now)  # it came with a stamp
                self._state({"resource": resource, "log": own, "source": self._source(own, origin)})
            if not self._options.recipes or type(body) is not str:
                continue
            if "\n" in body:
                if candidate:
                    whole: Any = {**_timed(record, now), "attributes": dict(attributes or {})}
                    self._stamp(layer, {"resource": resource, "log": whole, "source": self._source(whole, origin)})
                continue
            if candidate or self._blocks:
                key = (layer, origin, *((attributes or {}).get(name) for name in _STREAM))
                if candidate or self._blocks.expects(key):
                    timed = _timed(record, now)
                    source = self._source(timed, origin) if candidate else None
                    for signal in self._blocks.feed(key, resource, timed, source, now):
                        self._stamp(layer, signal)

    def _source(self, record: dict[str, Any], origin: str) -> Source:
        """A name for a record that sorts by its time and its arrival; the same for a record that comes twice."""
        time, body, attributes = record["time_unix_nano"], record.get("body"), record.get("attributes") or {}
        what = hash((time, origin, body if type(body) is str else repr(body), attributes.get("log.file.path")))
        number = self._known.get(what)
        if number is None:
            number = self._known[what] = self._count = self._count + 1
            if len(self._known) > KNOWN:
                self._known.popitem(last=False)
        path = attributes.get("log.file.path")
        where = path if isinstance(path, str) else "otlp"
        return Source(where, length=len(body) if type(body) is str else 0, ident=f"otlp:{time:019d}-{number:09d}")

    def _stamp(self, layer: str, signal: LogSignal) -> None:
        self._readers[layer].plan.run(signal)
        self._state(signal)

    def _state(self, signal: LogSignal) -> None:
        if not TRIGGERS.isdisjoint(signal["log"]["attributes"]):
            for fact in project(signal):
                self._fold.add(fact)

    def _see(self, record: Any, now: int) -> None:
        """The clock of the engine follows what records say, and never runs ahead of ours."""
        time = record.get("time_unix_nano") or record.get("observed_time_unix_nano") or 0
        if time and time <= now + AHEAD and (self._ahead is None or time >= self._ahead):
            self._ahead, self._arrived = time, now

    # -- the clock -----------------------------------------------------------------------------------------------------

    def due(self) -> int | None:
        return self._next

    def tick(self, now: int) -> Iterable[Batch]:
        return (
            self._evaluate(now)
            if now >= self._next or self._next - now > 10 * self._options.evaluation_interval
            else ()
        )

    def drain(self, now: int) -> Iterable[Batch]:
        for signal in self._blocks.finish():
            self._stamp(_layer(signal), signal)
        return self._evaluate(now)

    def _evaluate(self, now: int) -> list[Batch]:
        self._next = now + self._options.evaluation_interval
        for signal in self._blocks.expire(now):
            self._stamp(_layer(signal), signal)
        if self._ahead is None:
            return []
        instant = min(self._ahead + max(now - self._arrived, 0), now + AHEAD)
        facts = [change.fact for change in self._fold.changes()]
        facts += self._bridged(facts, instant)
        self._engine.add(facts)
        said = [e for e in self._engine.advance(instant) if self._tells(e)]
        if now - self._expired > 10 * SECOND:
            self._expired = now
            self._fold.expire(instant)
        return [self._batch(said, now)] if said else []

    def _bridged(self, facts: list[Fact], instant: int) -> list[Fact]:
        made: list[Fact] = []
        if self._progress is not None:
            for fact in facts:
                self._progress.observe(fact)
            made += self._progress.tick(instant)
        if self._silence is not None:
            for fact in facts:
                self._silence.observe(fact)
            made += self._silence.tick(instant)
        return made

    def _tells(self, emission: Emission) -> bool:
        """Whether this is told: a partial verdict may be unwanted, and what was not told is not taken back."""
        if emission.status == "cleared":
            return self._told.pop(emission.id, 0) is None
        if emission.verdict.confidence == "partial" and not self._options.partial_verdicts:
            return False
        self._told[emission.id] = None
        if len(self._told) > TOLD:
            self._told.popitem(last=False)
        return True

    def _batch(self, emissions: list[Emission], now: int) -> Batch:
        for emission in emissions:
            log.info(
                "verdict %s revision %d %s: %s",
                emission.id,
                emission.revision,
                emission.status,
                emission.verdict.headline(),
            )
        entries = [
            {
                "resource": {"attributes": _entities(emission)},
                "scope_logs": [{"scope": {"name": _SCOPE}, "log_records": [_record(emission, now)]}],
            }
            for emission in emissions
        ]
        return Batch("logs", {"resource_logs": entries}, count=len(entries))


class _Reader:
    """The recipes of a layer, and which lines they can do something with."""

    def __init__(self, layer: str) -> None:
        self.plan: LayerPlan = plan(layer)
        self._stream = Stream(path="otlp", format="text", layer=layer, open=_nothing)
        self._selectors: OrderedDict[str, Any] = OrderedDict()

    def picked(self, origin: str, records: Any) -> set[int] | None:
        """Numbers of the records that some recipe can change; None for all. Of steps that merely follow, a sample."""
        select = self._selectors.get(origin)
        if select is None:
            select = self._selectors[origin] = self.plan.selector(self._stream)
            if len(self._selectors) > SAMPLED:
                self._selectors.popitem(last=False)
        else:
            self._selectors.move_to_end(origin)
        bodies = [body.encode("utf-8", "replace") if type(body := r.get("body")) is str else b"" for r in records]
        found = select(b"\n".join(bodies) + b"\n")
        if found is None:
            return None
        numbers: set[int] = set()
        number, end = 0, len(bodies[0]) if bodies else 0
        for place in found:
            while place > end and number + 1 < len(bodies):
                number += 1
                end += len(bodies[number]) + 1
            numbers.add(number)
        return numbers


def _by_layer(layer: str, resource: Resource, records: Any) -> Iterator[tuple[str, Resource, Any]]:
    """Records, those of a journal apart: their text is a field, and says itself which layer it is of."""
    if not any(type(record.get("body")) is dict for record in records):
        yield layer, resource, records
        return
    groups: dict[tuple[str, str], list[Any]] = {}
    for record in records:
        body = record.get("body")
        if type(body) is not dict or type(body.get("MESSAGE")) is not str:
            groups.setdefault((layer, ""), []).append(record)
            continue
        kernel = body.get("_TRANSPORT") == "kernel"
        program = "kernel" if kernel else str(body.get("SYSLOG_IDENTIFIER") or body.get("_COMM") or "")
        place = "kernel" if kernel else layer_of(program, layer)
        groups.setdefault((place, str(body.get("_HOSTNAME") or "")), []).append({**record, "body": body["MESSAGE"]})
    for (place, host), held in groups.items():
        identity = {"host.name": host, **resource["attributes"]} if host else resource["attributes"]
        yield place, {"attributes": {**identity, "tracecore.layer": place}}, held


def _nothing() -> Any:
    raise OSError("a live stream has no file to open")


def _timed(record: dict[str, Any], now: int) -> Any:
    """The record; with the time of its arrival where it has none."""
    if record.get("time_unix_nano"):
        return record
    return {**record, "time_unix_nano": record.get("observed_time_unix_nano") or now}


def layer_of_resource(resource: Mapping[str, Any]) -> str:
    """Which layer of evidence a resource's records are."""
    attributes = resource.get("attributes") or {}
    named = attributes.get("tracecore.layer")
    if named in LAYERS:
        return str(named)
    program = attributes.get("service.name") or attributes.get("syslog.appname")
    return layer_of(program, "stdout") if isinstance(program, str) else "stdout"


def _layer(signal: LogSignal) -> str:
    return layer_of_resource(signal["resource"])


def _entities(emission: Emission) -> dict[str, Any]:
    """Whom a verdict is about, where it is one."""
    suspects = emission.verdict.suspects()
    found: dict[str, Any] = {"service.name": "tracecore"}
    if len(suspects.nodes) == 1:
        found["k8s.node.name" if suspects.pods else "host.name"] = suspects.nodes[0]
    if len(suspects.pods) == 1:
        namespace, _, name = suspects.pods[0].rpartition("/")
        found |= {"k8s.namespace.name": namespace, "k8s.pod.name": name} if namespace else {"k8s.pod.name": name}
    jobs = {fact.job for fact in emission.verdict.evidence() if fact.job}
    if len(jobs) == 1:
        found["gen_ai.training.job_id"] = jobs.pop()
    return found


def _record(emission: Emission, now: int) -> dict[str, Any]:
    verdict = emission.verdict
    active = emission.status == "active"
    return {
        "body": verdict.headline(),
        "attributes": {
            **verdict.attributes(),
            "pattern.role": verdict.role,
            "verdict.id": emission.id,
            "verdict.revision": emission.revision,
            "verdict.status": emission.status,
        },
        "time_unix_nano": verdict.time,
        "observed_time_unix_nano": now,
        "severity_number": 17 if active else 9,
        "severity_text": "ERROR" if active else "INFO",
        "event_name": "tracecore.verdict",
    }


FACTORY = Factory(
    kind="processor",
    type="patterndetector",
    summary="Says by name what breaks: recipes, facts and detectors over the logs that pass.",
    options=Options,
    create=PatternDetector,
    signals=("logs",),
    check=check,
)
