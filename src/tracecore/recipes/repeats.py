"""Thinning of repeated events: the first few are handed on, then the first and the last of each block, with a count.

A kind that comes all the time is *routine*: far from the end of the stream its events are no longer told apart, and
only the last one of each block is handed on. If it tells of normal work, such as checkpoints, only the events of the
lowest rank are, so that what one rank began that rank also ends.

Lines are of one *kind* when they differ only in numbers and in words that no recipe names. When a kind has come a few
times, the recipes are asked what its numbers mean. Numbers that name something (a rank, a host, an error code) tell
*events* of the kind apart. Times, sizes, steps and numbers in a message do not.

    rank 3: CUDA error 700 at 12:00:01      one event
    rank 3: CUDA error 700 at 12:00:02      the same event again
    rank 4: CUDA error 700 at 12:00:02      another event of the same kind

Only events of one line and tracebacks without foreign lines in between are thinned. A kind that says nothing but
progress is left to `lanes`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final, NamedTuple

from tracecore.recipes.columns import HIDDEN, Lines, Mask
from tracecore.recipes.shapes import DIGITS, VARYING, Evaluate, Reading, meaningful, number_spans, raw_spans
from tracecore.signals.logs.multiline import CHAINS, CONTINUES
from tracecore.signals.logs.selector import ALWAYS, OPENERS, LoneLine

#: How often the same event is handed on, with progress lines beside it, before it is thinned.
FIRST: Final = 8
#: After this many lines a kind is routine: jobs survive what they do that often. Of an event of such a kind, only the
#: first `FIRST_ROUTINE` are handed on before it is thinned.
ROUTINE: Final = 64
FIRST_ROUTINE: Final = 2
#: Events of one kind that are told apart; further ones count as one event.
MAX_ALIKE: Final = 128
#: Kinds that are remembered; all are forgotten when there are more.
MAX_KINDS: Final = 4096

#: A line of a traceback, and how many lines above an error it is looked for.
FRAME: Final = b'", line '
ABOVE: Final = 8
TRACEBACK: Final = OPENERS[0]
#: Within how many lines the second of two chained tracebacks begins.
BETWEEN: Final = 4
#: Lines of a traceback.
MAX_FRAMES: Final = 400
#: Blank lines that may come inside an event.
MAX_BLANK: Final = 2
_ESCAPE: Final = re.compile(rb"\\[a-z]")


class Kind(NamedTuple):
    """The findings of the recipes on lines of one kind.

    Args:
        only_progress: they say nothing but progress.
        mixed: they say progress and something else.
        trouble: they say more than normal work.
        naming: indexes of the numbers that name something; None where that is not certain.
    """

    only_progress: bool
    mixed: bool
    trouble: bool
    naming: tuple[int, ...] | None

    def event(self, masked: bytes) -> bytes:
        """Return the numbers that tell a line's event from others of its kind."""
        if not self.naming:
            return b"" if self.naming is not None else masked
        spans = number_spans(masked)
        if self.naming[-1] >= len(spans):
            return masked
        return b" ".join([masked[slice(*spans[place])] for place in self.naming])


class Kinds:
    """The known kinds of lines of one format, shared by all streams of this format. Not thread-safe.

    Args:
        evaluate: what reader and recipes make of a line.
        mask: hides what means nothing to any recipe.
    """

    def __init__(self, evaluate: Evaluate, mask: Mask) -> None:
        self._evaluate = evaluate
        self.mask = mask
        self._known: dict[bytes, Kind] = {}
        self._tells: dict[bytes, bool] = {}
        #: Kinds whose numbers name nothing: the key by a line without digits. It saves masking the line.
        self.keys: dict[bytes, bytes] = {}

    def tells_trouble(self, key: bytes, raw: bytes) -> bool:
        """Whether recipes find trouble in lines of a kind. The opening line of a block always counts."""
        found = self._tells.get(key)
        if found is None:
            if len(self._tells) >= MAX_KINDS:
                self._tells.clear()
            opens = any(map(raw.__contains__, ALWAYS))
            found = not _is_ruler(raw) if opens else self._evaluate(raw).trouble
            self._tells[key] = found
        return found

    def find(self, key: bytes) -> Kind | None:
        """Return what is known about a kind."""
        return self._known.get(key)

    def learn(self, key: bytes, bare: bytes, raw: bytes, text: bytes, masked: bytes) -> Kind:
        """Find out what recipes make of a kind.

        Args:
            key: of the kind.
            bare: one of its lines without digits.
            raw: the line as it is.
            text: its text.
            masked: the text with `HIDDEN` for what means nothing.
        """
        readings: list[Reading] = []

        def evaluate(line: bytes) -> Reading:
            readings.append(self._evaluate(line))
            return readings[-1]._replace(step=None, time=None, values=())

        base = evaluate(raw)
        spans = raw_spans(raw, text, number_spans(masked))
        naming = None if spans is None else tuple(meaningful(raw, spans, evaluate, base))
        if naming and not any(reading.stamped for reading in readings):
            # Recipes find nothing in the line, so the rank that its prefix names does not make it an event.
            naming = ()
        only_progress = base.stamped and all(reading.only_progress for reading in readings)
        mixed = not only_progress and readings[0].step is not None
        kind = Kind(only_progress, mixed, base.trouble, naming)
        if len(self._known) >= MAX_KINDS:
            self._known.clear()
            self.keys.clear()
        self._known[key] = kind
        if naming == ():
            self.keys[bare] = key
        return kind


class SortedEvents(NamedTuple):
    """The candidate lines of a block, sorted.

    Args:
        kept: lines that are handed on.
        counts: how many lines a kept one stands for, if more than itself.
        reports: lines that stand for others.
        progress: lines that turned out to say nothing but progress.
        news: lines beside which progress is kept, with the keys of their kinds.
    """

    kept: list[int]
    counts: dict[int, int]
    reports: list[LoneLine]
    progress: list[int]
    news: dict[int, bytes]


class _KindHistory:
    """The lines of one kind that a stream had so far."""

    __slots__ = ("count", "events", "first", "lowest")

    def __init__(self) -> None:
        self.count = 0
        #: The first ones, masked, until the kind is known.
        self.first: list[bytes] = []
        #: How often each event was seen.
        self.events: dict[bytes, int] = {}
        #: The first event in the order of its numbers: as a rule that of the lowest rank.
        self.lowest: bytes | None = None

    def add(self, kind: Kind, masked: bytes) -> tuple[bytes, int]:
        """Return the event of a line, and how often it was seen before."""
        first, self.first = self.first, []
        for line in first:
            self.add(kind, line)
        event = kind.event(masked)
        if not event or (event not in self.events and len(self.events) >= MAX_ALIKE):
            return b"", self.count - 1
        count = self.events.get(event, 0)
        self.events[event] = count + 1
        if self.lowest is None or event < self.lowest:
            self.lowest = event
        return event, count


class Repeats:
    """The events that a stream had so far."""

    def __init__(self, kinds: Kinds) -> None:
        self._kinds = kinds
        self._histories: dict[bytes, _KindHistory] = {}

    def thin(
        self,
        lines: Lines,
        texts: Lines,
        events: Sequence[int],
        partial: Collection[int],
        row: Callable[[int], LoneLine] | None,
        *,
        far: bool,
    ) -> SortedEvents:
        """Sort the candidate lines of a block.

        Args:
            lines: of the block.
            texts: their texts, without escapes and terminal codes.
            events: the candidates.
            partial: those that are part of a line that the container runtime cut; they are kept.
            row: returns a line as a report; None to keep all events.
            far: the end of the stream is far away.
        """
        kinds = self._kinds
        found = SortedEvents([], {}, [], [], {})
        repeated: dict[tuple[bytes, bytes], list[int]] = {}
        bare = {line: texts.raw(line).translate(None, VARYING) for line in events}
        masked_lines = self._masked(texts, [line for line in events if bare[line] not in kinds.keys])
        tracebacks: dict[bytes, list[int]] = {}
        inside: dict[int, list[int]] = {}
        #: Lines of routine kinds.
        routines: set[int] = set()
        opener, until = -1, -1
        for line in events:
            if line <= until:
                inside[opener].append(line)
                continue
            if line in partial:
                found.kept.append(line)
                continue
            if row is not None and (block := _traceback(texts, line)) is not None:
                opener, until, frames = line, *block
                key = frames + kinds.mask(texts.raw(until)).translate(None, DIGITS + HIDDEN)
                history = self._count(key, line, found)
                inside[line] = [line]
                if history.count > FIRST:
                    tracebacks.setdefault(key, []).append(line)
                if far and history.count > ROUTINE:
                    routines.add(line)
                continue
            masked = masked_lines.get(line, b"")
            key = kinds.keys.get(bare[line]) or masked.translate(None, DIGITS + HIDDEN + b" ")
            history = self._count(key, line, found)
            kind = kinds.find(key)
            if kind is None and history.count > FIRST:
                kind = kinds.learn(key, bare[line], lines.raw(line), texts.raw(line), masked)
            if kind is not None and kind.only_progress:
                found.progress.append(line)
            elif kind is None:
                history.first.append(masked)
                found.kept.append(line)
            elif row is None or (kind.mixed and kind.trouble):
                found.kept.append(line)
            else:
                event, count = history.add(kind, masked)
                routine = far and history.count > ROUTINE
                if routine and not kind.trouble and event != history.lowest:
                    continue  # one rank stands for all that write the same checkpoint
                if kind.mixed:
                    found.kept.append(line)
                elif count < (FIRST_ROUTINE if routine else FIRST) or not _is_whole_event(texts, line, until + 1):
                    found.kept.append(line)
                    found.news[line] = key
                else:
                    if routine:
                        event = b""
                        routines.add(line)
                    repeated.setdefault((key, event), []).append(line)
        for same in tracebacks.values():
            _thin_tracebacks(same, inside, found, routine=same[-1] in routines)
        for whole in inside.values():
            found.kept.extend(whole)
        for (key, _), same in repeated.items():
            assert row is not None
            # The last one stands for itself: whatever it began may not have ended. Steps after it show that the run
            # survived it.
            *before, last = same
            found.news[last] = key
            alone = row(last)
            if last in routines:
                alone = alone._replace(until=alone.raw, lines=len(same), event=True)
            elif before:
                found.news[before[-1]] = key
                until_raw = row(before[-1]).raw
                found.reports.append(row(before[0])._replace(until=until_raw, lines=len(before), event=True))
            found.reports.append(alone)
        return found

    def troubles(self, lines: Lines, news: Mapping[int, bytes]) -> list[int]:
        """Return the news in which recipes find trouble."""
        return [line for line in sorted(news) if self._kinds.tells_trouble(news[line], lines.raw(line))]

    def _masked(self, texts: Lines, events: Sequence[int]) -> dict[int, bytes]:
        """Return the masked texts of some lines."""
        if not events:
            return {}
        text = b"\n".join([texts.raw(line) for line in events])
        # An escape in a line of JSON is not part of the word after it.
        masked = Lines(self._kinds.mask(_ESCAPE.sub(b"  ", text)))
        return {line: masked.raw(number) for number, line in enumerate(events)}

    def _count(self, key: bytes, line: int, found: SortedEvents) -> _KindHistory:
        """Count a line of a kind; the first ones are news."""
        history = self._histories.get(key)
        if history is None:
            if len(self._histories) >= MAX_KINDS:
                self._histories.clear()
            history = self._histories[key] = _KindHistory()
        if history.count < FIRST:
            found.news[line] = key
        history.count += 1
        return history


def _thin_tracebacks(same: list[int], inside: dict[int, list[int]], found: SortedEvents, *, routine: bool) -> None:
    """Keep the first and the last of equal tracebacks; only the last one of a routine kind.

    Args:
        same: the first line of each.
        inside: the lines of each traceback; those that are left out are removed.
        found: gets the counts, and the tracebacks beside which progress is kept.
    """
    first, last = same[0], same[-1]
    found.news[last] = TRACEBACK
    if len(same) == 1:
        return
    if routine:
        found.counts[last] = len(same)
    else:
        found.counts[first] = len(same) - 1
        found.news[same[-2]] = TRACEBACK
    for line in same[:-1]:
        if routine or line != first:
            del inside[line]


def _traceback(texts: Lines, line: int) -> tuple[int, bytes] | None:
    """Return the last line of a traceback that begins in a line, and its frames without digits.

    None for other lines, where other writers interrupt it, and where it may not have ended.
    """
    text = texts.raw(line)
    at = text.find(TRACEBACK)
    if at < 0:
        return None
    prefix = text[:at].translate(None, DIGITS)
    frames = []
    for number in range(line + 1, min(line + MAX_FRAMES, len(texts.ends) - 1)):
        text = texts.raw(number).translate(None, DIGITS)
        if not text.startswith(prefix):
            return None
        frames.append(text)
        if text[len(prefix) : len(prefix) + 1] in (b" ", b"\t"):
            continue
        below = texts.marked[texts.ends[number] : texts.ends[min(number + BETWEEN, len(texts.ends) - 1)]]
        if any(chain in below for chain in CHAINS):
            again = below.count(b"\n", 0, max(below.find(TRACEBACK), 0))
            further = _traceback(texts, number + again) if again else None
            return None if further is None else (further[0], b"".join(frames) + further[1])
        return None if CONTINUES.search(texts.raw(number + 1)) is not None else (number, b"".join(frames[:-1]))
    return None


def _is_whole_event(texts: Lines, line: int, since: int) -> bool:
    """Whether a line is a whole event, not the first or last line of a block.

    Args:
        since: the first line after the last traceback that is known to have ended.
    """
    text = texts.raw(line)
    if _is_json(text):
        return True
    if any(map(text.__contains__, ALWAYS)):
        return False
    # The error at the end of a traceback belongs to it, even if other ranks write in between.
    if texts.marked.find(FRAME, texts.starts[max(line - ABOVE, since, 0)], texts.starts[line]) >= 0:
        return False
    # A blank line belongs to the event only if more of it follows. Programs overwrite a progress bar with blanks.
    below = range(line + 1, min(line + 2 + MAX_BLANK, len(texts.ends)))
    following = next((text for text in map(texts.raw, below) if text.strip()), b"")
    return bool(following) and (_is_json(following) or CONTINUES.search(following) is None)


def _is_ruler(raw: bytes) -> bool:
    return b"====================" in raw or b"********************" in raw


def _is_json(text: bytes) -> bool:
    return text.endswith(b"}") and b'{"' in text
