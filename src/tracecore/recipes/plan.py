"""The recipes of a layer, planned: one scan for all of them, on records and on raw blocks."""

from __future__ import annotations

import re
from functools import cache
from typing import TYPE_CHECKING

import msgspec

from tracecore import recipes
from tracecore.ottl.planner.database import ScanDatabase, Search, compiled, search
from tracecore.ottl.planner.plan import Outline, Plan, outline
from tracecore.recipes import prepared as kept

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from tracecore.ottl.planner.doubts import Doubts
    from tracecore.ottl.planner.plan import PlannedGroup
    from tracecore.ottl.planner.selection import Selector as LineSelector
    from tracecore.recipes.columns import Mask
    from tracecore.recipes.known_shapes import Shapes
    from tracecore.recipes.repeats import Kinds
    from tracecore.recipes.shapes import Ask
    from tracecore.signals.logs.selector import Selector
    from tracecore.signals.record import Attributes, LogSignal
    from tracecore.signals.stream import Stream

#: Formats whose lines are JSON.
ESCAPED = ("docker", "journal_json")
#: Formats whose progress lines are sampled.
SAMPLED_FORMATS = ("text", "cri", "docker")


#: Processors whose records are sampled (see `sampling`).
SAMPLED = ("transform/progress",)
#: What is sampled says nothing but these.
_PROGRESS = frozenset(
    {
        *("gen_ai.training.step", "gen_ai.training.phase", "gen_ai.training.rank", "tracecore.training.total_steps"),
        *("tracecore.training.loss", "tracecore.training.grad_norm", "tracecore.training.learning_rate"),
        *("tracecore.training.epoch", "tracecore.training.iter_time_s", "tracecore.training.data_time_s"),
    }
)
#: Of these, it matters how large they are.
_VALUES = ("tracecore.training.loss", "tracecore.training.grad_norm")
#: Endings of what is told and names nothing: in a storm of errors these differ from one to the next.
_TOLD = (".message", ".path", ".step", ".stacktrace", "_bytes", "_ms", "_s")
#: These say whose line it is.
_WHO = ("gen_ai.training.rank", "process.pid", "network.local.address", "k8s.pod.name", "k8s.container.name")
#: These say whose progress it is: stalls are looked for in each by itself.
_STREAM = ("gen_ai.training.rank", "k8s.pod.name")
#: Words by which readers know who wrote a line, and when.
_OF_READERS = (
    *(
        "rank",
        "pid",
        "ip",
        "am",
        "pm",
        "pod",
        "stdout",
        "stderr",
        "time",
        "timestamp",
        "asctime",
        "datetime",
        "date",
        "utc",
        "gmt",
    ),
    *("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"),
)

#: An expression in a statement, what in it is no text, and a word.
_LITERAL = re.compile(r'\((?:body|cache\["\w+"\]), "((?:[^"\\]|\\.)*)"')
_SYNTAX = re.compile(r"\(\?P<\w+>|\(\?[a-zA-Z]+[:)]|\\[a-zA-Z]")
_WORD = re.compile(r"[A-Za-z]{2,}")


class Prepared(msgspec.Struct, frozen=True):
    """Everything that has to be found out about a layer's recipes before they run; it can be kept on disk.

    Args:
        outline: their statements and guards.
        patterns: guards, one of which matches wherever a statement does something.
        text: the database for bodies.
        events: for raw lines, all guards but those of progress; None where a statement may do something to any line.
        progress: for raw lines, those; None where there are none, or they cannot be searched for.
        searched: what `events` searches for.
        event_patterns: the guards it was made from.
        progress_patterns: those of `progress`.
        effects: for raw lines, what progress lines must have besides; empty where that is not known.
        vocabulary: words that the recipes of progress name.
        words: those that any recipe names.
    """

    outline: Outline
    patterns: tuple[str, ...]
    text: bytes
    events: bytes | None
    progress: bytes | None
    searched: Search | None
    event_patterns: tuple[str, ...]
    progress_patterns: tuple[str, ...]
    effects: bytes
    vocabulary: tuple[str, ...]
    words: tuple[str, ...]


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
    # A statement without a guard may do something to any line.
    guarded = not any(group.fresh is None and None in group.guards for group in groups)
    wanted, dumped = _of_lines(events) if guarded else (None, None)
    return Prepared(
        outline=msgspec.structs.replace(outlined, text=searched),
        patterns=tuple(every),
        text=database.dump(),
        events=dumped,
        progress=_of_lines(progress, always=False)[1] if guarded and progress else None,
        searched=wanted,
        event_patterns=tuple(events),
        progress_patterns=tuple(progress),
        effects=_second_look([group for group in groups if group.processor in sampled]),
        vocabulary=_vocabulary(group for group in groups if group.processor in sampled),
        words=_vocabulary(groups) if progress else (),
    )


def _of_lines(patterns: Sequence[str], *, always: bool = True) -> tuple[Search, bytes | None]:
    """Return the patterns to search for in raw lines, and their database; None if one cannot be searched for."""
    from tracecore.ottl.planner.selection import line_search

    searched, database = compiled(line_search(patterns, always=always), once=False)
    return searched, None if searched.open else database.dump()


def _second_look(groups: Sequence[PlannedGroup]) -> bytes:
    """The database of what it takes so that one of these groups sets anything; empty where that is not known."""
    if any(group.effects is None for group in groups):
        return b""
    patterns = sorted({pattern for group in groups for pattern in group.effects or ()})
    wanted = search(patterns, lines=True, literals=False, once_a_line=True)
    usable, database = compiled(wanted, once=False, alike=True)
    return b"" if usable.open else database.dump()


class LayerPlan:
    """The recipes of one layer of evidence, ready to be used. Not for two threads at a time.

    Args:
        prepared: from `prepare`.
        name: what is compiled later is kept on disk under it; None for not at all.
    """

    def __init__(self, prepared: Prepared, name: str | None = None) -> None:
        self._prepared = prepared
        self._name = name
        self._plan = Plan(prepared.outline, prepared.text)
        self._databases: dict[str, ScanDatabase] = {}
        self._doubts: Doubts | None = None
        self._known: dict[tuple[object, ...], tuple[Shapes, Kinds]] = {}
        self._masks: dict[tuple[str, ...], Mask] = {}

    def run(self, signal: LogSignal) -> None:
        """Stamp a record, in place."""
        self._plan.run(signal)

    def selector(self, stream: Stream, *, live: bool = False) -> Selector:
        """A new selector for the lines of a stream that can get a stamp; progress lines are sampled.

        Args:
            live: the stream goes on for ever, and nothing of it may be kept back.
        """
        prepared = self._prepared
        if prepared.events is None or prepared.progress is None or stream.format not in SAMPLED_FORMATS:
            return self.every(stream)
        from tracecore.recipes.sampling import Sampler

        shapes, kinds = self._known_of(stream)
        return Sampler(
            self.events(),
            # A line of progress has both: what a condition asks for, and what a statement takes from it.
            [
                self._database(name, serialised)
                for name, serialised in (("effects", prepared.effects), ("progress", prepared.progress))
                if serialised
            ],
            shapes,
            self._mask(prepared.vocabulary),
            kinds,
            escaped=stream.format == "docker",
            size=stream.size,
            live=live,
        )

    def events(self) -> LineSelector:
        """A new selector for lines that are no progress, or more than that."""
        from tracecore.ottl.planner.doubts import Doubts
        from tracecore.ottl.planner.selection import Selector

        prepared = self._prepared
        assert prepared.events is not None
        if self._doubts is None and prepared.searched is not None:
            self._doubts = Doubts(prepared.searched, prepared.event_patterns, self._keep)
        return Selector(self._database("events", prepared.events), doubts=self._doubts)

    def progress(self) -> LineSelector:
        """A new selector for lines of progress alone; every line where they cannot be searched for."""
        from tracecore.ottl.planner.selection import Selector

        found = self._prepared.progress
        return Selector() if found is None else Selector(self._database("progress", found))

    @property
    def event_patterns(self) -> tuple[str, ...]:
        """The guards that these are found by."""
        return self._prepared.event_patterns

    def _mask(self, words: tuple[str, ...]) -> Mask:
        """Return the expression that hides all words but these and those of readers."""
        from tracecore.recipes.columns import Mask

        if words not in self._masks:
            self._masks[words] = Mask((*words, *_OF_READERS))
        return self._masks[words]

    def _known_of(self, stream: Stream) -> tuple[Shapes, Kinds]:
        """Return the known shapes and kinds of lines of this kind of stream."""
        from tracecore.recipes.known_shapes import Shapes
        from tracecore.recipes.repeats import Kinds

        ranked = "gen_ai.training.rank" in stream.resource
        key = stream.format, stream.wrapping, stream.single_node, ranked
        if key not in self._known:
            ask = self._asking(stream)
            self._known[key] = Shapes(ask), Kinds(ask, self._mask(self._prepared.words))
        return self._known[key]

    @property
    def patterns(self) -> tuple[str, ...]:
        """Guards, one of which matches wherever a statement does something."""
        return self._prepared.patterns

    def every(self, stream: Stream) -> Selector:
        """The same without sampling."""
        from tracecore.ottl.planner.selection import Selector

        prepared = self._prepared
        escaped, opaque = stream.format in ESCAPED, stream.format not in SAMPLED_FORMATS
        if prepared.events is None or (prepared.progress is None and prepared.progress_patterns):
            return Selector(escaped=escaped, opaque=opaque)
        databases = [self._database("events", prepared.events)]
        if prepared.progress is not None:
            databases.append(self._database("progress", prepared.progress))
        return Selector(*databases, escaped=escaped, opaque=opaque)

    def _keep(self, name: str, make: Callable[[], bytes]) -> bytes:
        return make() if self._name is None else kept.keep(f"{self._name}-{name}", make)

    def _database(self, name: str, serialised: bytes) -> ScanDatabase:
        if name not in self._databases:
            self._databases[name] = ScanDatabase((), once=False, serialised=serialised)
        return self._databases[name]

    def _asking(self, stream: Stream) -> Ask:
        """Return what the reader of a stream and the recipes make of one line."""
        from tracecore.recipes.shapes import Said
        from tracecore.signals import stamps
        from tracecore.signals.logs import reader

        dialect = reader.dialect(stream)
        resource: Attributes = {**stream.resource, "tracecore.layer": stream.layer}

        def ask(raw: bytes) -> Said:
            line = dialect(raw)
            attributes: Attributes = dict(line.attributes or {})
            if line.rank is not None:
                attributes["gen_ai.training.rank"] = line.rank
            before = set(attributes)
            body = line.text.decode("utf-8", "replace")
            signal: LogSignal = {
                "resource": {"attributes": dict(resource)},
                "log": {"body": body, "attributes": attributes, "time_unix_nano": 0},
            }
            failures = self._plan.failures
            self._plan.run(signal)
            step = attributes.get("gen_ai.training.step")
            who = (line.lane, line.host, *map(attributes.get, _WHO))
            stamped = attributes.keys() - before
            stamp = line.stamp or stamps.find(line.text)
            return Said(
                bool(stamped) and not line.partial,
                stamped <= _PROGRESS and self._plan.failures == failures,
                step if isinstance(step, int) else None,
                who,
                (attributes.get("gen_ai.training.phase"), frozenset(attributes)),
                None if stamp is None else stamp.nanos / 10**9,
                tuple(value if isinstance(value, float) else None for value in map(attributes.get, _VALUES)),
                (line.host, *map(attributes.get, _STREAM)),
                {name: attributes[name] for name in stamped - _PROGRESS if not name.endswith(_TOLD)},
            )

        return ask


def _patterns(groups: Iterable[PlannedGroup]) -> tuple[int, ...]:
    """Numbers of the patterns one of which matches where any of these groups does something."""
    found: set[int] = set()
    for group in groups:
        for guard in group.guards if group.fresh is None else (group.fresh,):
            found.update(guard or ())
    return tuple(sorted(found))


def _vocabulary(groups: Iterable[PlannedGroup]) -> tuple[str, ...]:
    """Words that the expressions of statements name, in small letters."""
    found: set[str] = set()
    for group in groups:
        for text in (*group.conditions, *group.statements):
            for literal in _LITERAL.findall(text):
                found.update(word.lower() for word in _WORD.findall(_SYNTAX.sub(" ", literal)))
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
