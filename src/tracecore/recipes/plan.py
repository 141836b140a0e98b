"""The recipes of a layer, planned: one scan for all of them, on records and on raw blocks."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

import msgspec

from tracecore import recipes
from tracecore.ottl.planner.database import Database, Search, compiled
from tracecore.ottl.planner.plan import Outline, Plan, outline
from tracecore.recipes import prepared as kept

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from tracecore.ottl.planner.doubts import Doubts
    from tracecore.ottl.planner.plan import PlannedGroup
    from tracecore.recipes.sampling import Shapes
    from tracecore.recipes.templates import Ask, Lessons
    from tracecore.signals.logs.selector import Selector
    from tracecore.signals.record import Attributes, LogSignal
    from tracecore.signals.stream import Stream

#: Formats whose lines are JSON.
ESCAPED = ("docker", "journal_json")
#: Formats whose progress lines are sampled; the last one only with spans.
SAMPLED_FORMATS = ("text", "cri", "docker")


#: Processors whose records are sampled (see `sampling`), and the attributes whose statements are events all the same.
SAMPLED = ("transform/progress",)
EDGES = ("gen_ai.training.phase",)
#: One of these says that a line is a progress line.
_PROGRESS = (
    "gen_ai.training.step",
    "tracecore.training.loss",
    "tracecore.training.grad_norm",
    "tracecore.training.iter_time_s",
    "tracecore.training.data_time_s",
)
#: Of these, it matters how large they are.
_VALUES = ("tracecore.training.loss", "tracecore.training.grad_norm")


class Prepared(msgspec.Struct, frozen=True):
    """Everything that has to be found out about a layer's recipes before they run; it can be kept on disk.

    Args:
        outline: their statements and guards.
        patterns: guards, one of which matches wherever a statement does something.
        sampled: some of them are guards of progress.
        text: the database for bodies.
        guarded: no statement can do something to a line in which no guard matches.
        every: for raw lines, all guards; None where it is not needed or cannot be had.
        events: for raw lines, all guards but those of progress.
        progress: for raw lines, those.
        searched: what `events` searches for.
        event_patterns: the guards it was made from.
    """

    outline: Outline
    patterns: tuple[str, ...]
    sampled: bool
    guarded: bool
    text: bytes
    every: bytes | None
    events: bytes | None
    progress: bytes | None
    searched: Search | None
    event_patterns: tuple[str, ...]


def prepare(processors: Iterable[recipes.Processor]) -> Prepared:
    """Reads processors in the order in which they run; those that transform no logs are left out."""
    chosen = [processor for processor in processors if processor.signal == "log"]
    outlined = outline(processor.config() for processor in chosen)
    searched, database = compiled(outlined.text, once=True)
    groups, names = outlined.groups, outlined.patterns
    sampled = {number for number, processor in enumerate(chosen) if processor.name in SAMPLED}
    of_events = _patterns(group for group in groups if group.processor not in sampled)
    of_progress = _patterns(group for group in groups if group.processor in sampled)
    every, events, progress = ([names[n] for n in found] for found in (_patterns(groups), of_events, of_progress))
    events += _edges(group for group in groups if group.processor in sampled)
    # A statement without a guard may do something to any line.
    guarded = not any(group.fresh is None and None in group.guards for group in groups)
    wanted, dumped = _of_lines(events) if guarded and progress else (None, None)
    return Prepared(
        outline=msgspec.structs.replace(outlined, text=searched),
        patterns=tuple(every),
        sampled=bool(progress),
        text=database.dump(),
        guarded=guarded,
        every=_of_lines(every)[1] if guarded and not progress else None,
        events=dumped,
        progress=_of_lines(progress, always=False)[1] if guarded and progress else None,
        searched=wanted,
        event_patterns=tuple(events),
    )


def _of_lines(patterns: Sequence[str], *, always: bool = True) -> tuple[Search, bytes | None]:
    """What to search for in raw lines, and its database; None where some pattern cannot be searched for."""
    from tracecore.ottl.planner.selection import line_search

    searched, database = compiled(line_search(patterns, always=always), once=False)
    return searched, None if searched.open else database.dump()


class _Either:
    """Picks what one of two selectors picks."""

    def __init__(self, one: Selector, other: Selector) -> None:
        self._one, self._other = one, other

    def __call__(self, block: bytes) -> Sequence[int] | None:
        one, other = self._one(block), self._other(block)
        if one is None or other is None:
            return None
        return sorted({*one, *other}) if one and other else one or other


class LayerPlan:
    """What is known about the text of one layer of evidence, ready to be used. Not for two threads at a time.

    Args:
        prepared: from `prepare`.
        name: what is compiled later is kept on disk under it; None for not at all.
    """

    def __init__(self, prepared: Prepared, name: str | None = None) -> None:
        self._prepared = prepared
        self._name = name
        self._plan = Plan(prepared.outline, prepared.text)
        self._databases: dict[str, Database] = {}
        self._doubts: Doubts | None = None
        self._shapes: Shapes | None = None
        #: Of lines of each format.
        self._lessons: dict[str, Lessons] = {}

    def run(self, signal: LogSignal) -> None:
        """Stamp a record, in place."""
        self._plan.run(signal)

    def selector(self, stream: Stream, shapes: Shapes | None = None, *, spans: bool = False) -> Selector:
        """A new selector for the lines of a stream that can get a stamp; progress lines are sampled.

        Args:
            shapes: shared by streams that go on for ever; None for one that has an end.
            spans: a progress line may stand for those that follow it; for readers that know `Report`.
        """
        prepared = self._prepared
        formats = SAMPLED_FORMATS if spans else SAMPLED_FORMATS[:2]
        if prepared.events is not None and prepared.progress is not None and stream.format in formats:
            from tracecore.ottl.planner.doubts import Doubts
            from tracecore.recipes.sampling import Sampler, Shapes
            from tracecore.recipes.templates import Lessons

            events = self._database("events", prepared.events)
            progress = self._database("progress", prepared.progress)
            if self._doubts is None and prepared.searched is not None:
                self._doubts = Doubts(prepared.searched, prepared.event_patterns, self._keep)
            if self._shapes is None:
                self._shapes = Shapes()
            return Sampler(
                events,
                progress,
                self._asking(stream),
                self._lessons.setdefault(stream.format, Lessons()),
                form=stream.format,
                size=stream.size,
                doubts=self._doubts,
                shapes=shapes or self._shapes,
                live=shapes is not None,
                spans=spans,
            )
        return self.every(stream)

    @property
    def patterns(self) -> tuple[str, ...]:
        """Guards, one of which matches wherever a statement does something."""
        return self._prepared.patterns

    def every(self, stream: Stream) -> Selector:
        """The same without sampling."""
        from tracecore.ottl.planner.selection import Selector

        prepared = self._prepared
        escaped = stream.format in ESCAPED
        if prepared.events is not None and prepared.progress is not None:
            # Both are there already; one database of all guards would have to be made for this.
            return _Either(
                Selector(self._database("events", prepared.events), escaped=escaped),
                Selector(self._database("progress", prepared.progress), escaped=escaped),
            )
        every = None if prepared.every is None else self._database("every", prepared.every)
        return Selector(every, escaped=escaped)

    def _keep(self, name: str, make: Callable[[], bytes]) -> bytes:
        return make() if self._name is None else kept.keep(f"{self._name}-{name}", make)

    def _database(self, name: str, serialised: bytes) -> Database:
        if name not in self._databases:
            self._databases[name] = Database((), once=False, serialised=serialised)
        return self._databases[name]

    def _asking(self, stream: Stream) -> Ask:
        """What the reader of a stream and the recipes make of one of its lines."""
        from tracecore.recipes.templates import Said
        from tracecore.signals import stamps
        from tracecore.signals.logs import reader

        dialect = reader.dialect(stream)
        resource: Attributes = {**stream.resource, "tracecore.layer": stream.layer}

        def ask(raw: bytes) -> Said:
            line = dialect(raw)
            attributes: Attributes = dict(line.attributes or {})
            if line.rank is not None:
                attributes["gen_ai.training.rank"] = line.rank
            body = line.text.decode("utf-8", "replace")
            signal: LogSignal = {
                "resource": {"attributes": dict(resource)},
                "log": {"body": body, "attributes": attributes, "time_unix_nano": 0},
            }
            self._plan.run(signal)
            step = attributes.get("gen_ai.training.step")
            who = (line.lane, attributes.get("gen_ai.training.rank"), attributes.get("process.pid"))
            progress = not line.partial and any(attributes.get(name) is not None for name in _PROGRESS)
            stamp = line.stamp or stamps.find(line.text)
            values = tuple(attributes.get(name) for name in _VALUES)
            time = None if stamp is None else stamp.nanos
            return Said(progress, step if isinstance(step, int) else None, who, stamp is not None, values, time)

        return ask


def _patterns(groups: Iterable[PlannedGroup]) -> tuple[int, ...]:
    """Numbers of the patterns one of which matches where any of these groups does something."""
    found: set[int] = set()
    for group in groups:
        for guard in group.guards if group.fresh is None else (group.fresh,):
            found.update(guard or ())
    return tuple(sorted(found))


def _edges(groups: Iterable[PlannedGroup]) -> tuple[str, ...]:
    """Guards of statements that stamp one of `EDGES`."""
    from tracecore.ottl.parser import parse
    from tracecore.ottl.planner.guards import guard

    found: set[str] = set()
    for group in groups:
        for text in group.statements:
            if any(f'set(attributes["{name}"]' in text for name in EDGES):
                found.update(guard(parse(text).where) or ())
    return tuple(sorted(found))


@cache
def plan(layer: str) -> LayerPlan:
    """The plan of a layer of `tracecore.signals.record.LAYERS`, made once, and kept for the next process."""
    return fresh(layer)


def fresh(layer: str) -> LayerPlan:
    """The same, of one's own: for whoever runs in a thread beside others."""
    files = [(recipes.directory() / name).read_bytes() for name in recipes.FILES[layer]]
    name = f"{layer}-{kept.key(*files)}"
    prepared = kept.load(name, Prepared)
    if prepared is None:
        prepared = prepare(recipes.load(layer))
        kept.store(name, prepared)
    return LayerPlan(prepared, name)
