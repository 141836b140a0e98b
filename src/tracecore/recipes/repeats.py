"""Events that repeat: the first few are handed on, then the first and the last of each block, with a count.

Two lines are the same event when they differ only in times, long numbers and words that no recipe names. Of lines that
differ in other numbers, many are handed on, since a rank or an error code is such a number; a program that puts a
counter into each message is thinned after that. Only lines that stand alone are thinned: of a traceback over several
lines, every one is kept.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final

from tracecore.recipes.columns import HIDDEN, Array, Lines
from tracecore.recipes.shapes import DIGITS
from tracecore.signals.arrays import np
from tracecore.signals.logs.multiline import CONTINUES
from tracecore.signals.logs.selector import ALWAYS, LoneLine

#: The same event is handed on so many times in full.
FIRST: Final = 8
#: Lines that differ in short numbers only, of which all are handed on.
MAX_ALIKE: Final = 128
#: Kinds of events that are remembered; all are forgotten when there are so many.
MAX_KINDS: Final = 4096
#: After so many events of a kind, progress beside them says nothing new.
NEWS: Final = 4

_UNTELLING: Final = re.compile(rb"\d+(?:[:.,TZ/-]\d+){2,}|\d{6,}")


class Repeats:
    """The remembered events of a stream."""

    def __init__(self) -> None:
        #: How often each event was seen, by what it says without numbers.
        self._kinds: dict[bytes, dict[bytes, int]] = {}
        self._told: dict[bytes, int] = {}
        #: Kinds of which all that comes is thinned, by what is left of their lines.
        self._settled: dict[bytes, bytes] = {}

    def open(self, events: Sequence[int], keys: Mapping[int, bytes]) -> list[int]:
        """Events of which it has to be known what they say.

        Args:
            events: lines.
            keys: of each, what is left of it without digits and the like.
        """
        return [line for line in events if keys[line] not in self._settled]

    def thin(
        self,
        events: Sequence[int],
        keys: Mapping[int, bytes],
        masked: Mapping[int, bytes],
        said: Lines,
        row: Callable[[int], LoneLine],
        others: Collection[int],
    ) -> tuple[list[int], list[LoneLine]]:
        """Events of a block that are handed on, and reports that stand for all others.

        Args:
            events: lines.
            keys: as of `open`.
            masked: what those say that are open, without what means nothing to recipes.
            said: what the lines say.
            row: a line as a report.
            others: lines that are progress, too, or parts of a line.
        """
        kept: list[int] = []
        repeated: dict[tuple[bytes, bytes], list[int]] = {}
        for line in events:
            event, count = b"", FIRST
            means = masked.get(line)
            if means is None:
                key = self._settled[keys[line]]
            else:
                key = means.translate(None, DIGITS + HIDDEN + b" ")
                kind = self._kind(key)
                if len(kind) < MAX_ALIKE:
                    event = _UNTELLING.sub(b"", means)
                    count = kind.get(event, 0)
                    kind[event] = count + 1
                else:
                    self._settle(keys[line], key)
            if count < FIRST or line in others or not _alone(said.raw(line), said, line):
                kept.append(line)
            else:
                repeated.setdefault((key, event), []).append(line)
        reports = []
        for lines in repeated.values():
            # The last one for itself: whatever it began may not have ended.
            *before, last = lines
            if before:
                until = row(before[-1]).raw
                reports.append(row(before[0])._replace(until=until, lines=len(before), event=True))
            reports.append(row(last))
        return kept, reports

    def news(self, keys: Mapping[int, bytes], masked: Mapping[int, bytes], *, settle: bool) -> list[int]:
        """Events of which there were not many like it.

        Args:
            keys: as of `open`.
            masked: as of `thin`.
            settle: nothing else is asked of events.
        """
        found = []
        for line, means in masked.items():
            kind = means.translate(None, DIGITS + HIDDEN + b" ")
            count = self._told.get(kind, 0)
            if count < NEWS:
                if len(self._told) >= MAX_KINDS:
                    self._told.clear()
                self._told[kind] = count + 1
                found.append(line)
            elif settle:
                self._settle(keys[line], kind)
        return found

    def _settle(self, key: bytes, kind: bytes) -> None:
        if len(self._settled) >= MAX_KINDS:
            self._settled.clear()
        self._settled[key] = kind

    def _kind(self, key: bytes) -> dict[bytes, int]:
        kind = self._kinds.get(key)
        if kind is None:
            if len(self._kinds) >= MAX_KINDS:
                self._kinds.clear()
            kind = self._kinds[key] = {}
        return kind


def _alone(text: bytes, said: Lines, line: int) -> bool:
    """Whether a line is all there is of an event, as a line of JSON is."""
    if _is_json(text):
        return True
    if any(opener in text for opener in ALWAYS):
        return False
    following = said.raw(line + 1) if line + 1 < len(said.ends) else b""
    return bool(following) and (_is_json(following) or CONTINUES.search(following) is None)


def _is_json(text: bytes) -> bool:
    return text.endswith(b"}") and b'{"' in text


def sampled(lines: Sequence[int], most: int) -> Array:
    """Some of the lines, evenly spread."""
    chosen = np.array(lines, np.int64)
    return chosen if len(chosen) <= most else chosen[np.linspace(0, len(chosen) - 1, most).astype(np.int64)]
