"""From the end of a log to what it states: read in lines and blocks, stamp by the recipes, type as facts.

Only lines that some recipe knows are parsed. Progress lines are most of a log and matter in two places only, after
something went wrong and at the end: `read_progress` looks there.
"""

from __future__ import annotations

import io
from collections import deque
from functools import cache
from typing import TYPE_CHECKING, Final

import msgspec

from tracecore.actions.plans import planned
from tracecore.facts.fact import Fact
from tracecore.facts.projection import project
from tracecore.facts.training import Progress, RunFinished
from tracecore.ottl.planner.selection import Selector
from tracecore.signals.bundle import archive, reading, recognition
from tracecore.signals.logs.selector import ALWAYS
from tracecore.signals.record import Attributes, Source
from tracecore.signals.stream import Clock, Counters, Stream

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from tracecore.recipes.plan import LayerPlan
    from tracecore.signals.logs.selector import Selector as LineSelector
    from tracecore.signals.record import LogSignal

#: Of a longer text the end is read.
MAX_BYTES: Final = 4 << 20
#: Records that are looked at; of more, the first and the last halves are kept.
MAX_RECORDS: Final = 20_000
#: Of records that differ in their numbers only (a thousand ranks say the same) so many are looked at, the first half
#: and the last half of them: the first may be the cause, the last what ended it.
ALIKE: Final = 12
#: Knowledge that is looked for in any log: worker output quotes the kernel, Slurm and Kubernetes.
LAYERS: Final = ("stdout", "kernel", "kubernetes")
#: Characters of numbers and addresses: lines that differ in them only are alike.
NUMBERS: Final = b"0123456789abcdefx"
#: The recipes of progress lines, and those of bodies that are no text.
PROGRESS: Final = "transform/progress"
OBJECTS: Final = "transform/kubernetes_objects"
NON_FINITE: Final = "tracecore.training.non_finite"
#: A text so short is read line by line.
SHORT: Final = 16 * 1024
#: Of a longer one progress is looked for in so many lines after each of so many places, and at the end.
LINES_AFTER: Final = 60
PLACES: Final = 24
#: And of these so many progress lines.
STEPS: Final = 6

_LINES: Final = frozenset({"text", "cri", "docker", "dmesg", "syslog"})


class Stated(msgspec.Struct, frozen=True):
    """A line or block that says something.

    Args:
        body: its text, without prefixes.
        attributes: what the recipes stamped.
        facts: what that means.
        source: where it stands in the tail.
    """

    body: str
    attributes: Attributes
    facts: tuple[Fact, ...]
    source: Source


class Made(msgspec.Struct, frozen=True):
    """A step that was reported, or that the run is complete (then without a step)."""

    offset: int
    rank: int | None = None
    step: int | None = None
    finished: bool = False


class Tail(msgspec.Struct):
    """Statements at the end of a log, in order.

    Args:
        data: the text itself.
        format: as what it is read.
        wrapping: what stands before each of its lines.
        finished: where the run says that it is complete.
        dropped: records that were not looked at, because there were too many or too many like them.
    """

    data: bytes = b""
    format: str = "text"
    wrapping: str = ""
    stated: list[Stated] = []
    finished: list[Made] = []
    dropped: int = 0


def read_tail(text: str | bytes) -> Tail:
    """Return the statements at the end of a log, without its progress."""
    data = text if isinstance(text, bytes) else text.encode("utf-8", "replace")
    if len(data) > MAX_BYTES:
        data = data[-MAX_BYTES:]
        data = data[data.find(b"\n") + 1 :]
    if not data.strip():
        return Tail(data)
    head, end = data[:65_536], data[-65_536:]
    recognised = recognition.recognise(head, end, "tail.log", len(data) <= len(head))
    known = recognised.format in _LINES or recognised.format in reading.WHOLE
    tail = Tail(data, recognised.format if known else "text", recognised.wrapping)
    try:
        _gather(tail)
    except archive.ERRORS:
        if tail.format in _LINES:
            raise
        # It looked like a document and is none, or is cut: then it is lines.
        tail = Tail(data)
        _gather(tail)
    return tail


def _gather(tail: Tail) -> None:
    plan = _events()
    # Every line of a short text is looked at: that takes less time than to make ready for a scan.
    for record in _unlike(tail, _records(tail.data, tail, None if len(tail.data) <= SHORT else plan)):
        plan.run(record)
        attributes = record["log"]["attributes"]
        if NON_FINITE in attributes:
            # A value printed among others is a report; only the other values tell it from a complaint.
            _progress().run(record)
        facts = project(record)
        for fact in facts:
            if isinstance(fact, RunFinished):
                tail.finished.append(Made(fact.source.offset, fact.rank, finished=True))
        others = tuple(fact for fact in facts if not isinstance(fact, Progress | RunFinished))
        if others or attributes:
            body = record["log"].get("body")
            tail.stated.append(Stated(body if isinstance(body, str) else "", attributes, others, record["source"]))


def _unlike(tail: Tail, records: Iterable[LogSignal]) -> list[LogSignal]:
    """The records that are worth a look, in order; `dropped` counts the others."""
    first: list[LogSignal] = []
    last: deque[LogSignal] = deque(maxlen=MAX_RECORDS // 2)
    total = 0
    for record in records:
        total += 1
        if len(first) < MAX_RECORDS // 2:
            first.append(record)
        else:
            last.append(record)
    kept = [*first, *last]
    if len(kept) > ALIKE:
        alike: dict[bytes, list[int]] = {}
        for number, record in enumerate(kept):
            alike.setdefault(_shape(record), []).append(number)
        half = ALIKE // 2
        chosen = {n for numbers in alike.values() for n in (*numbers[:half], *numbers[-half:])}
        kept = [record for number, record in enumerate(kept) if number in chosen]
    tail.dropped = total - len(kept)
    return kept


def _shape(record: LogSignal) -> bytes:
    """A record's text without its numbers, near both ends."""
    body = record["log"].get("body")
    if not isinstance(body, str):
        return b""
    text = body if len(body) <= 1024 else body[:512] + body[-512:]
    return text.encode("utf-8", "replace").translate(None, NUMBERS)


def read_progress(tail: Tail, places: Iterable[int]) -> list[Made]:
    """Steps reported around the first of some places, shortly after the others, and at the end, in order."""
    if tail.format not in ("text", "cri", "docker"):
        return tail.finished
    plan = _progress()
    selector = None if len(tail.data) <= SHORT else plan.progress()
    found = list(tail.finished)
    for start, end, count in _windows(tail.data, sorted(set(places))):
        for first, line in _picked(tail.data[start:end], selector, count):
            for record in _records(line, tail, None):
                plan.run(record)
                found += (
                    Made(start + first + fact.source.offset, fact.rank, fact.step)
                    for fact in project(record)
                    if isinstance(fact, Progress) and fact.step is not None and fact.phase != "init"
                )
    found.sort(key=lambda made: made.offset)
    return found


def _picked(block: bytes, selector: LineSelector | None, count: int) -> Iterator[tuple[int, bytes]]:
    """Lines of a block that may tell of progress: the first so many, or the last where the number is negative."""
    if selector is None:
        yield 0, block
        return
    starts: dict[int, int] = {}
    for place in selector(block) or ():
        start = block.rfind(b"\n", 0, place) + 1
        if start not in starts:
            end = block.find(b"\n", place)
            starts[start] = len(block) if end < 0 else end
    lines = sorted(starts.items())
    for start, end in lines[:count] if count > 0 else lines[count:]:
        yield start, block[start:end]


def _windows(data: bytes, places: list[int]) -> Iterator[tuple[int, int, int]]:
    """Ranges of whole lines that do not overlap, and how many progress lines to look at in each."""
    if len(data) <= SHORT:
        yield 0, len(data), SHORT
        return
    if len(places) > PLACES:
        places = [*places[: PLACES // 2], *places[-PLACES // 2 :]]
    # What the job had reached is said before the first of them.
    wanted = [(place, STEPS) for place in places]
    wanted += [(_lines_before(data, place), -2) for place in (*places[:1], len(data))]
    done = 0
    for place, count in sorted(wanted):
        start = end = max(place, done)
        for _ in range(LINES_AFTER):
            end = data.find(b"\n", end) + 1
            if end == 0:
                end = len(data)
                break
        if end > start:
            yield start, end, count
            done = end


def _lines_before(data: bytes, place: int) -> int:
    for _ in range(LINES_AFTER):
        place = data.rfind(b"\n", 0, place)
        if place < 0:
            break
    return place + 1


def _records(data: bytes, tail: Tail, plan: LayerPlan | None) -> Iterator[LogSignal]:
    """Records of a text: of all lines, or of those that a plan selects."""
    stream = Stream(
        path="tail",
        format=tail.format,
        layer=recognition.LAYER_OF[tail.format],
        open=lambda: io.BytesIO(data),
        size=len(data),
        wrapping=tail.wrapping,
    )
    selector = Selector() if plan is None else plan.every(stream)
    return reading.read(stream, _Thinned(selector), Clock(), Counters())


class _Thinned:
    """Picks what another selector picks, but of a storm of lines that differ in their numbers only the two ends.

    Lines that may begin a block are all picked: what the blocks say is not in that line.
    """

    def __init__(self, selector: LineSelector) -> None:
        self._selector = selector

    def __call__(self, block: bytes) -> Sequence[int] | None:
        picked = self._selector(block)
        if picked is None or len(picked) <= ALIKE:
            return picked
        kept: list[int] = []
        alike: dict[bytes, list[int]] = {}
        start, end = 0, -1
        for place in picked:
            if place <= end:
                continue
            start = block.rfind(b"\n", 0, place) + 1
            end = block.find(b"\n", place)
            end = len(block) if end < 0 else end
            line = block[start : min(end, start + 512)]
            if any(opener in line for opener in ALWAYS):
                kept.append(place)
            else:
                alike.setdefault(line.translate(None, NUMBERS), []).append(place)
        half = ALIKE // 2
        for places in alike.values():
            kept += (*places[:half], *places[half:][-half:])
        kept.sort()
        return kept


@cache
def _events() -> LayerPlan:
    """All recipes of text but those of progress lines."""
    return planned(LAYERS, without=(PROGRESS, OBJECTS))


@cache
def _progress() -> LayerPlan:
    return planned(("stdout",), only=(PROGRESS,))
