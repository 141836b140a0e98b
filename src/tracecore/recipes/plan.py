"""The recipes of a layer, planned: one scan for all of them, on records and on raw blocks."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from tracecore import recipes
from tracecore.ottl.planner.plan import Plan, outline

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from tracecore.ottl.planner.database import Database
    from tracecore.ottl.planner.plan import PlannedGroup
    from tracecore.recipes.templates import Ask
    from tracecore.signals.logs.selector import Selector
    from tracecore.signals.record import Attributes, LogSignal
    from tracecore.signals.stream import Stream

#: Formats whose lines are JSON.
ESCAPED = ("docker", "journal_json")


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


class LayerPlan:
    """What is known about the text of one layer of evidence, ready to be used.

    Args:
        processors: in the order in which they run; those that transform no logs are left out.
    """

    def __init__(self, processors: Iterable[recipes.Processor]) -> None:
        processors = [p for p in processors if p.signal == "log"]
        self._plan = Plan(outline(p.config() for p in processors))
        groups = self._plan.outline.groups
        #: Some statement has no guard: every line may matter.
        self._everything = any(group.guard is None and None in group.guards for group in groups)
        sampled = {n for n, processor in enumerate(processors) if processor.name in SAMPLED}
        names = self._plan.outline.patterns
        self._all = tuple(names[n] for n in _patterns(groups))
        self._events = tuple(names[n] for n in _patterns(g for g in groups if g.processor not in sampled))
        self._progress = tuple(names[n] for n in _patterns(g for g in groups if g.processor in sampled))
        self._edges = _edges(g for g in groups if g.processor in sampled)
        self._databases: dict[str, Database | None] = {}

    def run(self, signal: LogSignal) -> None:
        """Stamp a record, in place."""
        self._plan.run(signal)

    def selector(self, stream: Stream) -> Selector:
        """A new selector for the lines of a stream that can get a stamp; progress lines are sampled."""
        from tracecore.ottl.planner.selection import Selector

        escaped = stream.format in ESCAPED
        if self._progress and stream.format in ("text", "cri"):
            events = self._database("events", (*self._events, *self._edges))
            progress = self._database("progress", self._progress)
            if events is not None and progress is not None:
                from tracecore.recipes.sampling import Sampler

                container = stream.format == "cri"
                return Sampler(events, progress, self._asking(stream), container=container, size=stream.size)
        return Selector(self._database("all", self._all), escaped=escaped)

    @property
    def patterns(self) -> tuple[str, ...]:
        """Guards, one of which matches wherever a statement does something."""
        return self._all

    def every(self, stream: Stream) -> Selector:
        """The same without sampling."""
        from tracecore.ottl.planner.selection import Selector

        return Selector(self._database("all", self._all), escaped=stream.format in ESCAPED)

    def _database(self, name: str, patterns: Sequence[str]) -> Database | None:
        """None where some pattern cannot be searched for."""
        from tracecore.ottl.planner.database import compiled
        from tracecore.ottl.planner.selection import line_search

        if self._everything:
            return None
        if name not in self._databases:
            searched, database = compiled(line_search(patterns, always=name != "progress"), once=False)
            self._databases[name] = None if searched.open else database
        return self._databases[name]

    def _asking(self, stream: Stream) -> Ask:
        """What the reader of a stream and the recipes make of one of its lines."""
        from tracecore.recipes.templates import Said
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
            return Said(progress, step if isinstance(step, int) else None, who)

        return ask


def _patterns(groups: Iterable[PlannedGroup]) -> tuple[int, ...]:
    """Numbers of the patterns one of which matches where any of these groups does something."""
    found: set[int] = set()
    for group in groups:
        for guard in group.guards if group.guard is None else (group.guard,):
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
    """The plan of a layer of `tracecore.signals.record.LAYERS`, made once."""
    return LayerPlan(recipes.load(layer))
