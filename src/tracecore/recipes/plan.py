"""The recipes of a layer, planned: one scan answers the guards of all of them, on records and on raw blocks."""

from __future__ import annotations

import re
from functools import cache
from typing import TYPE_CHECKING

import msgspec

from tracecore import recipes
from tracecore.ottl.planner.database import ScanDatabase, Search, compiled, search
from tracecore.ottl.planner.plan import Outline, Plan, outline
from tracecore.recipes import prepared as stored

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from tracecore.ottl.planner.doubts import Doubts
    from tracecore.ottl.planner.plan import PlannedGroup
    from tracecore.ottl.planner.selection import Selector as LineSelector
    from tracecore.recipes.columns import Mask
    from tracecore.recipes.known_shapes import Shapes
    from tracecore.recipes.repeats import Kinds
    from tracecore.recipes.shapes import Evaluate
    from tracecore.signals.logs.selector import Selector
    from tracecore.signals.record import Attributes, LogSignal
    from tracecore.signals.stream import Stream

#: Formats whose lines are JSON.
ESCAPED = ("docker", "journal_json")
#: Formats whose progress lines are sampled (see `sampling`).
SAMPLED_FORMATS = ("text", "cri", "docker")

#: Processors that stamp progress.
SAMPLED = ("transform/progress",)
#: The attributes of progress. A line with others is an event as well.
_PROGRESS = frozenset(
    {
        *("gen_ai.training.step", "gen_ai.training.phase", "gen_ai.training.rank", "tracecore.training.total_steps"),
        *("tracecore.training.loss", "tracecore.training.grad_norm", "tracecore.training.learning_rate"),
        *("tracecore.training.epoch", "tracecore.training.iter_time_s", "tracecore.training.data_time_s"),
        *("tracecore.training.preparation", "tracecore.training.preparation.done"),
    }
)
#: Attributes of normal work begin with one of these.
_OF_WORK = ("gen_ai.training.", "tracecore.training.", "tracecore.straggler.")
#: Attributes whose magnitude matters.
_VALUES = ("tracecore.training.loss", "tracecore.training.grad_norm")
#: Endings of attributes that name nothing. In a storm of equal errors these differ from one to the next.
_NOT_NAMING = (".message", ".path", ".step", ".stacktrace", "_bytes", "_ms", "_s")
#: Attributes that identify the writer of a line.
_WRITER = ("gen_ai.training.rank", "process.pid", "network.local.address", "k8s.pod.name", "k8s.container.name")
#: Attributes that identify the owner of progress. Stalls are looked for in each owner.
_OWNER = ("gen_ai.training.rank", "k8s.pod.name")
#: Words by which readers find the writer and the time of a line.
_READER_WORDS = (
    *("rank", "pid", "ip", "am", "pm", "pod", "stdout", "stderr"),
    *("time", "timestamp", "asctime", "datetime", "date", "utc", "gmt"),
    *("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"),
)

#: A regular expression in a statement, the syntax inside it, and a word.
_LITERAL = re.compile(r'\((?:body|cache\["\w+"\]), "((?:[^"\\]|\\.)*)"')
_SYNTAX = re.compile(r"\(\?P<\w+>|\(\?[a-zA-Z]+[:)]|\\[a-zA-Z]")
_WORD = re.compile(r"[A-Za-z]{2,}")


class Prepared(msgspec.Struct, frozen=True):
    """Everything that is computed from a layer's recipes before they run. It can be stored on disk.

    Args:
        outline: statements and guards.
        patterns: the guards. Where a statement does something, one of them matches.
        text: the database of all guards, for bodies.
        events: the database of all guards but those of progress, for raw lines. None if a statement may stamp any line.
        progress: the database of the guards of progress, for raw lines. None if there are none, or if one of them
            cannot be searched for.
        searched: what `events` searches for.
        event_patterns: the guards in `events`.
        progress_patterns: the guards in `progress`.
        effects: the database of the expressions from which a statement of progress takes a value; empty if not known.
        vocabulary: words that the recipes of progress name.
        words: words that any recipe names.
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
    """Prepare processors, given in the order in which they run. Those that transform no logs are left out."""
    chosen = [processor for processor in processors if processor.signal == "log"]
    outlined = outline(processor.config() for processor in chosen)
    searched, database = compiled(outlined.text, once=True)
    groups, names = outlined.groups, outlined.patterns
    sampled = {number for number, processor in enumerate(chosen) if processor.name in SAMPLED}
    event_numbers = _patterns(group for group in groups if group.processor not in sampled)
    progress_numbers = _patterns(group for group in groups if group.processor in sampled)
    every, events, progress = (
        [names[n] for n in numbers] for numbers in (_patterns(groups), event_numbers, progress_numbers)
    )
    # A statement without a guard may do something to any line.
    guarded = not any(group.fresh is None and None in group.guards for group in groups)
    event_search, event_database = _for_lines(events) if guarded else (None, None)
    return Prepared(
        outline=msgspec.structs.replace(outlined, text=searched),
        patterns=tuple(every),
        text=database.dump(),
        events=event_database,
        progress=_for_lines(progress, always=False)[1] if guarded and progress else None,
        searched=event_search,
        event_patterns=tuple(events),
        progress_patterns=tuple(progress),
        effects=_effects([group for group in groups if group.processor in sampled]),
        vocabulary=_vocabulary(group for group in groups if group.processor in sampled),
        words=_vocabulary(groups) if progress else (),
    )


def _for_lines(patterns: Sequence[str], *, always: bool = True) -> tuple[Search, bytes | None]:
    """Return what to search for in raw lines, and its database; None if a pattern cannot be searched for."""
    from tracecore.ottl.planner.selection import line_search

    searched, database = compiled(line_search(patterns, always=always), once=False)
    return searched, None if searched.open else database.dump()


def _effects(groups: Sequence[PlannedGroup]) -> bytes:
    """Return the database of expressions, one of which matches where a group sets anything; empty if not known."""
    if any(group.effects is None for group in groups):
        return b""
    patterns = sorted({pattern for group in groups for pattern in group.effects or ()})
    wanted = search(patterns, lines=True, literals=False, once_a_line=True)
    searched, database = compiled(wanted, once=False, alike=True)
    return b"" if searched.open else database.dump()


class LayerPlan:
    """The recipes of one layer of evidence, ready to use. Not thread-safe.

    Args:
        prepared: from `prepare`.
        name: databases that are compiled later are stored on disk under this name; None to store nothing.
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
        """Return a new selector for the lines of a stream that recipes may stamp. Progress lines are sampled.

        Args:
            live: the stream has no end, and nothing of it may be held back.
        """
        prepared = self._prepared
        if prepared.events is None or prepared.progress is None or stream.format not in SAMPLED_FORMATS:
            return self.every(stream)
        from tracecore.recipes.sampling import Sampler

        shapes, kinds = self._known_of(stream)
        return Sampler(
            self.events(),
            # A progress line matches both: the guard of a condition, and an expression that takes a value.
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
        """Return a new selector for lines that are more than progress."""
        from tracecore.ottl.planner.doubts import Doubts
        from tracecore.ottl.planner.selection import Selector

        prepared = self._prepared
        assert prepared.events is not None
        if self._doubts is None and prepared.searched is not None:
            self._doubts = Doubts(prepared.searched, prepared.event_patterns, self._keep)
        return Selector(self._database("events", prepared.events), doubts=self._doubts)

    def progress(self) -> LineSelector:
        """Return a new selector for progress lines; for all lines if they cannot be searched for."""
        from tracecore.ottl.planner.selection import Selector

        found = self._prepared.progress
        return Selector() if found is None else Selector(self._database("progress", found))

    @property
    def event_patterns(self) -> tuple[str, ...]:
        """The guards that `events` searches for."""
        return self._prepared.event_patterns

    def _mask(self, words: tuple[str, ...]) -> Mask:
        """Return the mask that hides all words but these and those of readers."""
        from tracecore.recipes.columns import Mask

        if words not in self._masks:
            self._masks[words] = Mask((*words, *_READER_WORDS))
        return self._masks[words]

    def _known_of(self, stream: Stream) -> tuple[Shapes, Kinds]:
        """Return the known shapes and kinds of lines, shared by streams with the same format."""
        from tracecore.recipes.known_shapes import Shapes
        from tracecore.recipes.repeats import Kinds

        ranked = "gen_ai.training.rank" in stream.resource
        key = stream.format, stream.wrapping, stream.single_node, ranked
        if key not in self._known:
            evaluate = self._evaluation(stream)
            self._known[key] = Shapes(evaluate), Kinds(evaluate, self._mask(self._prepared.words))
        return self._known[key]

    @property
    def patterns(self) -> tuple[str, ...]:
        """The guards. Where a statement does something, one of them matches."""
        return self._prepared.patterns

    def every(self, stream: Stream) -> Selector:
        """Return a selector for the lines of a stream that recipes may stamp, without sampling."""
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
        return make() if self._name is None else stored.keep(f"{self._name}-{name}", make)

    def _database(self, name: str, serialised: bytes) -> ScanDatabase:
        if name not in self._databases:
            self._databases[name] = ScanDatabase((), once=False, serialised=serialised)
        return self._databases[name]

    def _evaluation(self, stream: Stream) -> Evaluate:
        """Return a function that evaluates one raw line: with the reader of a stream, then with the recipes."""
        from tracecore.recipes.shapes import Reading
        from tracecore.signals import stamps
        from tracecore.signals.logs import reader

        dialect = reader.dialect(stream)
        resource: Attributes = {**stream.resource, "tracecore.layer": stream.layer}

        def evaluate(raw: bytes) -> Reading:
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
            stamped = attributes.keys() - before
            stamp = line.stamp or stamps.find(line.text)
            return Reading(
                stamped=bool(stamped) and not line.partial,
                only_progress=stamped <= _PROGRESS and self._plan.failures == failures,
                trouble=any(not name.startswith(_OF_WORK) for name in stamped),
                step=step if isinstance(step, int) else None,
                writer=(line.writer, line.host, *map(attributes.get, _WRITER)),
                kind=(attributes.get("gen_ai.training.phase"), frozenset(attributes)),
                time=None if stamp is None else stamp.nanos / 10**9,
                values=tuple(value if isinstance(value, float) else None for value in map(attributes.get, _VALUES)),
                owner=(line.host, *map(attributes.get, _OWNER)),
                details={name: attributes[name] for name in stamped - _PROGRESS if not name.endswith(_NOT_NAMING)},
            )

        return evaluate


def _patterns(groups: Iterable[PlannedGroup]) -> tuple[int, ...]:
    """Return the numbers of patterns, one of which matches where any of these groups does something."""
    found: set[int] = set()
    for group in groups:
        for guard in group.guards if group.fresh is None else (group.fresh,):
            found.update(guard or ())
    return tuple(sorted(found))


def _vocabulary(groups: Iterable[PlannedGroup]) -> tuple[str, ...]:
    """Return the words in the regular expressions of statements, in small letters."""
    found: set[str] = set()
    for group in groups:
        for text in (*group.conditions, *group.statements):
            for literal in _LITERAL.findall(text):
                found.update(word.lower() for word in _WORD.findall(_SYNTAX.sub(" ", literal)))
    return tuple(sorted(found))


@cache
def plan(layer: str) -> LayerPlan:
    """Return the plan of a layer of `tracecore.signals.record.LAYERS`, shared by the whole process."""
    return fresh(layer)


def fresh(layer: str) -> LayerPlan:
    """Return a plan that nobody else uses, for a thread. What takes long is stored on disk for the next process."""
    files = [(recipes.directory() / name).read_bytes() for name in recipes.FILES[layer]]
    name = f"{layer}-{stored.key(*files)}"
    prepared = stored.load(name, Prepared)
    if prepared is None:
        prepared = prepare(recipes.load(layer))
        stored.store(name, prepared)
    return LayerPlan(prepared, name)
