"""Events that repeat: the first few are handed on, then the first and the last of each block, with a count.

Lines are of one kind when they differ only in numbers and in words that no recipe names. Of a kind that comes again the
recipes are asked what its numbers say. Two lines are the same event when the numbers agree that name something: a rank,
a host, an error code. Times, sizes, steps and what stands in a message name nothing. A kind that says nothing but
progress is none of events. What is thinned are lines that stand alone, and tracebacks whose lines stand together.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final, NamedTuple

from tracecore.recipes.columns import HIDDEN, Array, Lines, Mask
from tracecore.recipes.shapes import DIGITS, VARYING, Ask, Said, numbers, shown_numbers, telling
from tracecore.signals.arrays import np
from tracecore.signals.logs.multiline import CONTINUES
from tracecore.signals.logs.selector import ALWAYS, OPENERS, LoneLine

#: The same event is handed on so many times in full.
FIRST: Final = 8
#: Events of one kind that are told apart.
MAX_ALIKE: Final = 128
#: Kinds of events that are remembered; all are forgotten when there are so many.
MAX_KINDS: Final = 4096
#: After so many events of a kind, progress beside them says nothing new.
NEWS: Final = 4
#: How much that is no progress is looked at in a block, for the progress lines beside it.
MAX_EVENTS: Final = 8

#: A line of a traceback, and how many lines above an error it is looked for.
FRAME: Final = b'", line '
ABOVE: Final = 8
TRACEBACK: Final = OPENERS[0]
#: What stands between two tracebacks of one error, and how many lines on the second one begins at most.
CHAINED: Final = (b"During handling of the above exception", b"direct cause of the following exception")
BETWEEN: Final = 4
#: Lines of a traceback.
MAX_FRAMES: Final = 400
#: Blank lines that may stand inside an event.
MAX_BLANK: Final = 2
_ESCAPE: Final = re.compile(rb"\\[a-z]")


class Kind(NamedTuple):
    """Lines that differ in numbers and opaque words only, as recipes see them.

    Args:
        progress: they say nothing but progress.
        both: they say progress and something else.
        names: numbers that name something, by their places; None where that is not certain.
    """

    progress: bool
    both: bool
    names: tuple[int, ...] | None

    def event(self, means: bytes) -> bytes:
        """Return what tells a line from others of its kind."""
        if not self.names:
            return b"" if self.names is not None else means
        spans = numbers(means)
        if self.names[-1] >= len(spans):
            return means
        return b" ".join([means[slice(*spans[place])] for place in self.names])


class Kinds:
    """The known kinds of lines of one format, shared by all streams that have it. Not for two threads at a time.

    Args:
        ask: what recipes and reader make of a line.
        mask: hides what means nothing to any recipe.
    """

    def __init__(self, ask: Ask, mask: Mask) -> None:
        self._ask = ask
        self.mask = mask
        self._known: dict[bytes, Kind] = {}
        self._true: dict[bytes, bool] = {}
        #: The keys of kinds in which no number names anything, by what is left of their lines without digits.
        self.keys: dict[bytes, bytes] = {}

    def true(self, key: bytes, raw: bytes) -> bool:
        """Tell whether lines of a kind are events, or only look like one; the opening line of a block always is."""
        found = self._true.get(key)
        if found is None:
            if len(self._true) >= MAX_KINDS:
                self._true.clear()
            opens = any(map(raw.__contains__, ALWAYS))
            found = not _is_ruler(raw) if opens else self._ask(raw).something
            self._true[key] = found
        return found

    def find(self, key: bytes) -> Kind | None:
        """Return what is known of a kind."""
        return self._known.get(key)

    def learn(self, key: bytes, own: bytes, raw: bytes, text: bytes, means: bytes) -> Kind:
        """Find out what recipes make of a kind.

        Args:
            key: of the kind.
            own: a line of it without digits.
            raw: the line as it is.
            text: what it says.
            means: the same without what means nothing.
        """
        heard: list[Said] = []

        def ask(line: bytes) -> Said:
            heard.append(self._ask(line))
            return heard[-1]._replace(step=None, time=None, values=())

        base = ask(raw)
        spans = shown_numbers(raw, text, numbers(means))
        names = None if spans is None else tuple(telling(raw, spans, ask, base))
        if names and not any(said.something for said in heard):
            # A line that says nothing may name its rank: that makes no event of it.
            names = ()
        progress = base.something and all(said.progress for said in heard)
        kind = Kind(progress, not progress and heard[0].step is not None, names)
        if len(self._known) >= MAX_KINDS:
            self._known.clear()
            self.keys.clear()
        self._known[key] = kind
        if names == ():
            self.keys[own] = key
        return kind


class Found(NamedTuple):
    """The events of a block.

    Args:
        kept: are handed on.
        counts: so many lines a kept one stands for.
        reports: stand for others.
        progress: lines that say nothing but progress.
        news: of which there were not many like it, and the last ones of others, with their kinds.
    """

    kept: list[int]
    counts: dict[int, int]
    reports: list[LoneLine]
    progress: list[int]
    news: dict[int, bytes]


class _Seen:
    """The lines of a kind that a stream had."""

    __slots__ = ("count", "events", "first")

    def __init__(self) -> None:
        self.count = 0
        #: The first ones, until it is known what tells them apart.
        self.first: list[bytes] = []
        #: How often each event was seen.
        self.events: dict[bytes, int] = {}

    def like(self, kind: Kind, means: bytes) -> tuple[bytes, int]:
        """Return the event that a line is, and how many there were before this one."""
        first, self.first = self.first, []
        for line in first:
            self.like(kind, line)
        event = kind.event(means)
        if not event or (event not in self.events and len(self.events) >= MAX_ALIKE):
            return b"", self.count - 1
        count = self.events.get(event, 0)
        self.events[event] = count + 1
        return event, count


class Repeats:
    """The remembered events of a stream."""

    def __init__(self, kinds: Kinds) -> None:
        self._kinds = kinds
        self._seen: dict[bytes, _Seen] = {}

    def thin(
        self,
        lines: Lines,
        said: Lines,
        events: Sequence[int],
        others: Collection[int],
        row: Callable[[int], LoneLine] | None,
    ) -> Found:
        """Sort the events of a block.

        Args:
            lines: as they are.
            said: their text.
            events: which of them.
            others: parts of a line.
            row: a line as a report; None where all events are handed on.
        """
        kinds = self._kinds
        found = Found([], {}, [], [], {})
        repeated: dict[tuple[bytes, bytes], list[int]] = {}
        own = {line: said.raw(line).translate(None, VARYING) for line in events}
        masked = self._masked(said, [line for line in events if own[line] not in kinds.keys])
        keys: dict[int, bytes] = {}
        tracebacks: dict[bytes, list[int]] = {}
        inside: dict[int, list[int]] = {}
        opener, until = -1, -1
        for line in events:
            if line <= until:
                inside[opener].append(line)
                continue
            if line in others:
                found.kept.append(line)
                continue
            if row is not None and (block := _traceback(said, line)) is not None:
                opener, until, frames = line, *block
                key = frames + kinds.mask(said.raw(until)).translate(None, DIGITS + HIDDEN)
                seen = self._of(key)
                if seen.count < NEWS:
                    found.news[line] = key
                seen.count += 1
                inside[line] = [line]
                if seen.count > FIRST:
                    tracebacks.setdefault(key, []).append(line)
                continue
            means = masked.get(line, b"")
            key = kinds.keys.get(own[line]) or means.translate(None, DIGITS + HIDDEN + b" ")
            seen = self._of(key)
            if seen.count < NEWS:
                found.news[line] = key
            seen.count += 1
            kind = kinds.find(key)
            if kind is None and seen.count > FIRST:
                kind = kinds.learn(key, own[line], lines.raw(line), said.raw(line), means)
            if kind is not None and kind.progress:
                found.progress.append(line)
            elif kind is None:
                seen.first.append(means)
                found.kept.append(line)
            elif kind.both or row is None:
                found.kept.append(line)
            else:
                event, count = seen.like(kind, means)
                if count < FIRST or not _alone(said.raw(line), said, line):
                    found.kept.append(line)
                    found.news[line] = key
                else:
                    repeated.setdefault((key, event), []).append(line)
                    keys[line] = key
        for first, *more in tracebacks.values():
            for line in more[:-1]:
                del inside[line]
            if more:
                found.counts[first] = len(more)
            found.news[(first, *more)[-1]] = TRACEBACK
        for whole in inside.values():
            found.kept.extend(whole)
        for same in repeated.values():
            assert row is not None
            # The last one for itself: whatever it began may not have ended.
            *before, last = same
            if before:
                last_of = row(before[-1]).raw
                found.reports.append(row(before[0])._replace(until=last_of, lines=len(before), event=True))
            found.reports.append(row(last))
            # That it was survived is known by steps after it.
            found.news[last] = keys[last]
        return found

    def true(self, lines: Lines, news: Mapping[int, bytes]) -> Array:
        """Some of the events that are none like many others; those that only look like one are left out."""
        some = sampled(sorted(news), MAX_EVENTS).tolist()
        return np.array([line for line in some if self._kinds.true(news[line], lines.raw(line))], np.int64)

    def _masked(self, said: Lines, events: Sequence[int]) -> dict[int, bytes]:
        """Events without what means nothing to any recipe."""
        if not events:
            return {}
        text = b"\n".join([said.raw(line) for line in events])
        # An escape in a line of JSON is no part of the word after it.
        aside = Lines(self._kinds.mask(_ESCAPE.sub(b"  ", text)))
        return {line: aside.raw(number) for number, line in enumerate(events)}

    def _of(self, key: bytes) -> _Seen:
        seen = self._seen.get(key)
        if seen is None:
            if len(self._seen) >= MAX_KINDS:
                self._seen.clear()
            seen = self._seen[key] = _Seen()
        return seen


def _traceback(said: Lines, line: int) -> tuple[int, bytes] | None:
    """Return the last line of a traceback that stands together, and its frames without digits.

    None for other lines, where others write in between, and where it is not certain that it has ended.
    """
    text = said.raw(line)
    at = text.find(TRACEBACK)
    if at < 0:
        return None
    around = text[:at].translate(None, DIGITS)
    frames = []
    for number in range(line + 1, min(line + MAX_FRAMES, len(said.ends) - 1)):
        text = said.raw(number).translate(None, DIGITS)
        if not text.startswith(around):
            return None
        frames.append(text)
        if text[len(around) : len(around) + 1] in (b" ", b"\t"):
            continue
        below = said.marked[said.ends[number] : said.ends[min(number + BETWEEN, len(said.ends) - 1)]]
        if any(chained in below for chained in CHAINED):
            again = below.count(b"\n", 0, max(below.find(TRACEBACK), 0))
            further = _traceback(said, number + again) if again else None
            return None if further is None else (further[0], b"".join(frames) + further[1])
        return None if CONTINUES.search(said.raw(number + 1)) is not None else (number, b"".join(frames[:-1]))
    return None


def _alone(text: bytes, said: Lines, line: int) -> bool:
    """Whether a line is all there is of an event, as a line of JSON is."""
    if _is_json(text):
        return True
    if any(map(text.__contains__, ALWAYS)):
        return False
    # The error at the end of a traceback is a part of it, also where ranks write in between.
    if said.marked.find(FRAME, said.starts[max(line - ABOVE, 0)], said.starts[line]) >= 0:
        return False
    # A blank line is a part of the event only if more of it follows, and a progress bar is wiped out with blanks.
    below = range(line + 1, min(line + 2 + MAX_BLANK, len(said.ends)))
    following = next((text for text in map(said.raw, below) if text.strip()), b"")
    return bool(following) and (_is_json(following) or CONTINUES.search(following) is None)


def _is_ruler(raw: bytes) -> bool:
    return b"====================" in raw or b"********************" in raw


def _is_json(text: bytes) -> bool:
    return text.endswith(b"}") and b'{"' in text


def sampled(lines: Sequence[int], most: int) -> Array:
    """Some of the lines, evenly spread."""
    chosen = np.array(lines, np.int64)
    return chosen if len(chosen) <= most else chosen[np.linspace(0, len(chosen) - 1, most).astype(np.int64)]
